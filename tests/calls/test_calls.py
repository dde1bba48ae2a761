"""Information in a call itself: shardings, statics, donation, keywords, meshes."""

from functools import partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import StrategyError, TraceError
from tests.calls import programs

MESH = sa.Mesh({"X": 2, "Y": 4})
ABSTRACT = AbstractMesh((2, 4), ("X", "Y"), axis_types=(AxisType.Auto,) * 2)
ON = partial(NamedSharding, ABSTRACT)
X, W = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16), (16, 4)))


def dot(x, w):
    return x @ w


def layouts(plan):
    program = plan.program
    return [s.text() for s in (*program.argument_shardings, *program.result_shardings)]


WANT = sa.plan(dot, X, W, mesh=MESH, in_shardings=(P("X", "Y"), P("Y")), out_shardings=P(None, "X"))


def with_layouts(x):
    """Return the shape with its sharding, as arguments of explicit and restored programs have."""
    spec = P("X", "Y") if x is X else P("Y")
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=ON(spec))


SIDES = {"in_shardings": (P("X", "Y"), P("Y")), "out_shardings": P(None, "X")}
JITTED = jax.jit(dot, in_shardings=(ON(P("X", "Y")), ON(P("Y"))), out_shardings=ON(P(None, "X")))
SAID = {
    "jit's own shardings": lambda: sa.plan(JITTED, X, W),
    "a trace": lambda: sa.plan(JITTED.trace(X, W)),
    "an abstract mesh": lambda: sa.plan(dot, X, W, mesh=ABSTRACT, **SIDES),
    "arguments that lie": lambda: sa.plan(
        dot, with_layouts(X), with_layouts(W), out_shardings=P(None, "X")
    ),
    "layouts of arguments": lambda: sa.plan(
        dot, X, W, in_shardings=(ON(P("X", "Y")), ON(P("Y"))), out_shardings=P(None, "X")
    ),
    "text": lambda: sa.plan(
        dot, X, W, mesh=MESH, in_shardings=("[X, Y]", "P('Y')"), out_shardings="[-1, 0]"
    ),
    "keywords": lambda: sa.plan(
        lambda x, *, w: x @ w, X, kwargs={"w": W}, mesh=MESH,
        in_shardings=(P("X", "Y"), {"w": P("Y")}), out_shardings=P(None, "X"),
    ),
    "numpy's integers": lambda: sa.plan(
        dot, X, W, mesh=sa.Mesh({"X": np.int64(2), "Y": np.int32(4)}), **SIDES
    ),
    "another mesh, restated": lambda: sa.plan(
        dot, X, W, mesh=sa.Mesh({"X": 4, "Y": 2}), **SIDES
    ).replan(mesh=ABSTRACT),
}  # fmt: skip


@pytest.mark.parametrize("how", SAID)
def test_layouts_are_heard_wherever_they_are_said(how):
    made = SAID[how]()
    assert made.mesh == MESH
    assert layouts(made) == layouts(WANT)
    assert made.collectives().wire_bytes.tolist() == WANT.collectives().wire_bytes.tolist()


def test_the_mesh_that_is_set_is_the_plans():
    with jax.set_mesh(jax.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Auto,) * 2)):
        assert layouts(sa.plan(dot, X, W, **SIDES)) == layouts(WANT)


def test_the_mesh_that_only_the_function_names_is_the_plans():
    """A constraint in a nested call, and a region, of a function that is not traced yet."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    there = NamedSharding(mesh, P("x", "y"))
    constrained = jax.jit(lambda v: jax.lax.with_sharding_constraint(jnp.sin(v), there))
    region = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    for fn in (lambda v: constrained(v) + 1, region):
        plan = sa.plan(fn, np.ones((8, 8), "float32"))
        assert plan.mesh.shape == {"x": 2, "y": 4}
        assert plan.mesh.device_ids == sa.Mesh.from_jax(mesh).device_ids


def test_what_wraps_a_jitted_function_is_planned_itself():
    """`functools.wraps` copies what a jitted function says of itself, `__wrapped__` too."""

    @jax.jit
    def halved(v):
        return v / 2

    @wraps(halved)
    def less(v):
        return halved(v) - 1

    v = np.ones((8, 4), "float32")
    lowered = sa.plan(less, v, mesh=MESH, in_shardings=(P("X"),)).lower()
    np.testing.assert_array_equal(lowered(v), np.full((8, 4), -0.5))


def test_what_is_donated_and_static_is_the_functions_own():
    step = jax.jit(lambda n, state, x: (state + n * x, x), static_argnums=0, donate_argnums=1)
    plan = sa.plan(step, 3, X, X, mesh=MESH, in_shardings=(P("X"), P("X")))
    assert plan.graph.argument_paths == ("state", "x")
    assert plan._traced.donated == (0,)
    ones = np.ones((8, 16), "float32")
    made = plan.lower()(3, ones, ones)
    np.testing.assert_array_equal(made[0], 4 * ones)
    with pytest.raises(TraceError, match=r"argument 0 is 4, planned was 3.*Plan it for that"):
        plan.lower()(4, ones, ones)
    assert sa.plan(step, 3, X, X, mesh=MESH, donate_argnums=())._traced.donated == ()


@pytest.mark.parametrize("specs", [(None, P("X"), None), (None, P("X"))])
def test_layouts_may_count_static_arguments_or_leave_them_out(specs):
    model, _ = programs.nnx_state()

    @partial(nnx.jit, static_argnums=2)
    def apply(model, x, train):
        model.set_attributes(deterministic=not train)
        return model(x)

    plan = sa.plan(apply, model, programs.X, False, mesh=MESH, in_shardings=specs)
    rows = dict(zip(plan.graph.argument_paths, plan.program.argument_shardings, strict=True))
    assert rows["x"].text() == "[X, None]"
    assert plan._traced.argument_roles[-1] == "data"


def test_a_saved_plan_goes_to_another_mesh_too(tmp_path):
    named = lambda x: sa.annotate(x @ x.T, "square")  # noqa: E731
    first = sa.plan(named, X, strategy=sa.Strategy(MESH, (P("X"),), sites={"square": P(None, "X")}))
    first.save(tmp_path / "plan")
    small = sa.Mesh({"X": 4})
    here, loaded = first.replan(mesh=small), sa.load_plan(tmp_path / "plan").replan(mesh=small)
    assert loaded.text() == here.text()
    assert "2@X" in here.text()
    with pytest.raises(
        StrategyError, match=r"cannot be expressed on Mesh.Z=4.*'X'.*Give a Strategy"
    ):
        first.replan(mesh=sa.Mesh({"Z": 4}))


def test_layouts_that_operators_say_hold_on_explicit_axes():
    explicit = AbstractMesh((2, 4), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)

    def loss(w, x):
        h = jnp.dot(x, w, out_sharding=P("X", None))
        return jnp.sum(jax.sharding.reshard(h * h, P(None, "Y")))

    plan = sa.plan(jax.grad(loss), W, X, mesh=explicit, in_shardings=(P("Y"), P("X", "Y")))
    said = [s.spec for s in plan.graph.sites]
    assert (("X",), ()) in said
    assert ((), ("Y",)) in said
    assert plan.verify().ok


def test_an_effect_is_left_out_and_listed():
    def step(x):
        jax.debug.print("{}", x.sum())
        return x + 1

    plan = sa.plan(step, X, mesh=MESH, in_shardings=(P("X"),))
    assert plan.collectives().empty
    (row,) = plan.warnings().to_dict("records")
    assert row["op"] == "debug_print"
    assert "left out" in row["warning"]
