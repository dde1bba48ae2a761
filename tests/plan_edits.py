"""Plan files with one or a few edited values, and the requirements on each of them."""

import copy
import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError, PlanFileError
from shardalg.plan import plan_file, running
from shardalg.plan.explain import plan_summary

MESH = sa.Mesh({"X": 2, "Y": 4})
OTHERS = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 1 << 31, 1 << 62, 1 << 64, -(1 << 63), 10**400),
    *(0.5, 1.0, -1.5, 1e308, float("nan"), float("inf")),
    *("", "x", "X", "no_such_primitive", "dot_general", "scan", "tanh", "add", "psum", "reshape"),
    *("float32", "float64", "int4", "object", "key<fry>", "float0", "HIGHEST", "gspmd", "shardy"),
    *("__import__('os').abort()", "\u00e4\u2603\U0001f600", "\ud800", "a" * 5000, "size", "pow"),
    *([], {}, [0], [1, 2], [[]], [["X", 2]], [[1, 4]], {"float": "nan"}, {"float": "x"}, {"a": 1}),
)


def deep(levels):
    made = []
    for _ in range(levels):
        made = [made]
    return made


def places(data, path=()):
    """Return the path of every value."""
    yield path
    if isinstance(data, dict | list):
        for key, item in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(item, (*path, key))


def at(data, path):
    for key in path:
        data = data[key]
    return data


def replaced(rng, data, path, paths):
    return OTHERS[rng.integers(len(OTHERS))]


def nested(rng, data, path, paths):
    return deep(int(rng.choice([3, 90, 200])))


def moved(rng, data, path, paths):
    """Return a value of the same file, most likely of the same kind."""
    kind = type(at(data, path))
    drawn = [at(data, paths[i]) for i in rng.integers(len(paths), size=20)]
    return next((item for item in drawn if type(item) is kind), drawn[0])


def nudged(rng, data, path, paths):
    value = at(data, path)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + int(rng.choice([-1, 1])) if rng.random() < 0.5 else -value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return value[::-1]
    return value


# How often a part of the file is edited, however long it is.
WEIGHTS = {
    "graph": 0.23, "graph/signatures": 0.2, "annotations": 0.2, "symbols": 0.13, "options": 0.07,
    "donated": 0.06, "argument_roles": 0.05, "summary": 0.02,
    "home": 0.04,
}  # fmt: skip
VALUES = (replaced, nested, moved, nudged, nudged, moved)


def edited(content, rng):
    """Return the content with one edit, at few places with two or three."""
    first, content = plan_file.body(content), copy.deepcopy(content)
    count = int(rng.choice([1, 1, 1, 2, 3]))
    while count > 0 or plan_file.body(content) == first:
        count -= 1
        paths = list(places(content))[1:]
        part = rng.choice(list(WEIGHTS), p=list(WEIGHTS.values()))
        inside = [path for path in paths if path[: part.count("/") + 1] == tuple(part.split("/"))]
        if not inside:
            continue
        path = inside[rng.integers(len(inside))]
        whole, key = at(content, path[:-1]), path[-1]
        draw = rng.random()
        if draw < 0.1:
            del whole[key]
        elif draw < 0.2 and isinstance(whole, list):
            whole.insert(key, copy.deepcopy(whole[key]))
        elif draw < 0.3 and isinstance(whole, list):
            other = int(rng.integers(len(whole)))
            whole[key], whole[other] = whole[other], whole[key]
        else:
            make = VALUES[rng.integers(len(VALUES))]
            whole[key] = copy.deepcopy(make(rng, content, path, paths))
    return content


def matmul(x, w):
    return jnp.tanh(sa.annotate(jnp.dot(x, w, precision="highest"), "hidden"))


def matmul_plan():
    x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((7, 16), (16, 6)))
    specs = (P("X", "Y"), P("Y", None))
    strategy = sa.Strategy(
        MESH, in_shardings=specs, out_shardings=P("X"), sites={"hidden": P("X", "Y")}
    )
    return sa.plan(matmul, x, w, strategy=strategy, donate_argnums=0, roles=("data", "parameters"))


CLOSED = np.arange(32, dtype=np.float32).reshape(8, 4)


def control(params, x):
    """Loops, branches, a rematerialised span, windows, gathers, constants, a constraint."""

    def body(c, w):
        c = jax.checkpoint(lambda c, w: jnp.tanh(c @ w))(c, w)
        return sa.annotate(c, "carry"), jnp.max(c, initial=-jnp.inf)

    x = jax.lax.with_sharding_constraint(x + CLOSED, P("X"))
    x = jax.lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, x)
    y, m = jax.lax.scan(body, x, params["w"])
    n = jax.lax.while_loop(lambda i: i < 3, lambda i: i + 1, 0)
    y = jnp.pad(y, ((1, 0), (0, 0)))[:-1] + y[jnp.array([1, 0, 3, 2, 5, 4, 7, 6])]
    return (jax.lax.cumsum(y, axis=0) * n).sum() + m.sum()


def control_plan():
    params = {"w": jax.ShapeDtypeStruct((3, 4, 4), "float32")}
    x = jax.ShapeDtypeStruct((8, 4), "float32")
    specs = ({"w": P(None, None, "Y")}, P("X"))
    return sa.plan(jax.grad(control), params, x, mesh=MESH, in_shardings=specs)


def named(x, w):
    y, _ = jax.lax.scan(lambda c, row: (jnp.tanh(c @ w + row), c), x, jnp.ones((3, x.shape[1])))
    return jnp.sort(y.reshape(-1, 2), axis=1) * x.shape[0]


def named_plan():
    (B, M) = sa.dims("B M", hint=(8, 6))
    x, w = jax.ShapeDtypeStruct((B, M), "float32"), jax.ShapeDtypeStruct((M, M), "float32")
    mesh = sa.Mesh({"X": 2, "Y": 4}, symbolic=True)
    return sa.plan(named, x, w, mesh=mesh, in_shardings=(P("X"), P(None, "Y")))


def manual(x):
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 4), ("X", "Y"), axis_types=kinds)

    def body(x):
        y = jax.lax.ppermute(x, "X", [(0, 1), (1, 0)]) + jax.lax.axis_index("X")
        return jax.lax.psum(y, "X")

    return jax.shard_map(body, mesh=mesh, in_specs=P("X"), out_specs=P())(x)


def manual_plan():
    x = jax.ShapeDtypeStruct((8, 4), "float32")
    return sa.plan(manual, x, mesh=MESH, in_shardings=(P("X"),))


BASES = {
    "matmul": (matmul_plan, matmul),
    "control": (control_plan, jax.grad(control)),
    "named": (named_plan, named),
    "manual": (manual_plan, manual),
}


@cache
def base(name, folder):
    """Return the inputs of a saved plan, and its summary."""
    path = folder / f"{name}.json"
    BASES[name][0]().save(path)
    return content_of(path)


def content_of(path):
    saved = plan_file.read(path)
    return {**saved.inputs, "summary": saved.summary}


def write(path, content):
    """Write a file of this content with this version's digest."""
    inputs = {key: content[key] for key in content if key != "summary"}
    versions = plan_file.versions(sa.Options())
    plan_file.write(path, plan_file.PlanFile(inputs, versions, content.get("summary")))


def tried(content, path, name):
    """Return "refused" or "taken" for an edited plan, after checking all requirements.

    The digest of the file is made again as the library makes it. Then the summary is not compared,
    as if it had been made again, too.
    """
    try:
        write(path, content)
        loaded = sa.load_plan(path)
    except (PlanFileError, UserWarning):
        pass
    else:
        assert as_json(inputs_of(loaded)) == as_json(content)
    try:
        loaded = restored(path)
    except PlanFileError:
        return "refused"
    parts_agree(loaded, as_json(content), name)
    return "taken"


def restored(path):
    """`load_plan` of a file whose summary was made again, too, for the plan that it gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_summary, "since_saved", lambda *_: ())
        return sa.load_plan(path)


def inputs_of(plan):
    """Return the inputs of planning in the form of a file."""
    return plan_file.inputs(plan._traced, plan._annotations, plan.options)


def as_json(content):
    return json.loads(json.dumps({key: content[key] for key in content if key != "summary"}))


def parts_agree(loaded, content, name):
    """Check that the plan equals the file, is proved, prints, and lowers its own function."""
    assert as_json(inputs_of(loaded)) == content
    report = loaded.verify()
    assert not [claim for claim in report.claims if claim.status == "refuted"], str(report)
    for table in ("shardings", "collectives", "warnings"):
        getattr(loaded, table)()
    loaded.cost("tpu_v3").table()
    made = loaded.memory
    assert made.peak_bytes >= 0
    function = BASES[name][1]
    args = loaded.traced.symbols and None
    try:
        bound = running.bound(loaded, function, args)
    except LoweringError:
        return
    assert bound.hash == loaded.traced.hash
