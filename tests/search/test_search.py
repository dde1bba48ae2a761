"""`sa.search` compared with every layout of the arguments, and its errors."""

import itertools
import random

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.topology import arranged
from shardalg.errors import StrategyError
from shardalg.plan.search.mesh_search import MeshFigures
from shardalg.plan.search.search_answer import SearchAnswer, SearchedMesh
from shardalg.spmd.host.simulate import simulate


def struct(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def two_products(up, down, x):
    return jnp.tanh(x @ up) @ down


def descent(up, down, x):
    """Return the loss and two matrices after a step of gradient descent."""

    def loss(up, down):
        return (two_products(up, down, x).astype("float32") ** 2).mean()

    value, (first, second) = jax.value_and_grad(loss, (0, 1))(up, down)
    return value, up - 0.1 * first, down - 0.1 * second


def lookup(table, ids):
    return jax.nn.logsumexp(table[ids].sum(1), -1)


PROGRAMS = {
    "two products": (two_products, (struct(2048, 8192), struct(8192, 2048), struct(4096, 2048))),
    "descent": (descent, (struct(1024, 4096), struct(4096, 1024), struct(2048, 1024))),
    "lookup": (lookup, (struct(8192, 512), struct(64, 16, dtype="int32"))),
}
MESHES = ({"a": 4}, {"a": 2, "b": 2})


def devices(count):
    """Return CPU devices; the suite has eight of them."""
    return jax.devices("cpu")[:count]


def specs(shape, mesh):
    """Return every way to put each axis on one dimension or on none, with even blocks."""
    found = []
    for places in itertools.product((None, *range(len(shape))), repeat=len(mesh)):
        dims = [
            tuple(a for a, at in zip(mesh, places, strict=True) if at == d)
            for d in range(len(shape))
        ]
        counts = [1] * len(shape)
        for axis, at in zip(mesh, places, strict=True):
            if at is not None:
                counts[at] *= mesh[axis]
        if all(size % count == 0 for size, count in zip(shape, counts, strict=True)):
            found.append(P(*(axes or None for axes in dims)))
    return found


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("lookup", 12),
        ("two products", 12),
        *(pytest.param(name, None, marks=pytest.mark.slow) for name in PROGRAMS),
    ],
)
def test_it_is_at_least_as_fast_as_every_layout_of_the_arguments(name, drawn):
    """The brute force leaves all but the arguments to completion, so that it may be slower.

    The suite plans some layouts that are drawn, and `make test-slow` plans all.
    """
    function, args = PROGRAMS[name]
    found = sa.search(function, *args, hardware="h100", devices=4, over=sa.family(meshes=MESHES))
    least = float("inf")
    for axes in MESHES:
        mesh = sa.Mesh(axes)
        chip = arranged("h100", mesh).on(DATASHEET)
        first = None
        every = [*itertools.product(*(specs(each.shape, axes) for each in args))]
        if drawn is not None:
            every = random.Random(20261128).sample(every, min(drawn, len(every)))
        for layouts in every:
            results = (None, *layouts[:2]) if function is descent else None
            strategy = sa.Strategy(mesh, layouts, results)
            first = first.replan(strategy) if first else sa.plan(function, *args, strategy=strategy)
            least = min(least, float(first.cost(chip, overlap="none").step_time_s))
    assert found.step_s <= least * (1 + 1e-9)
    # The table is a model of the plan: its error is below 1 % here.
    assert abs(found.gap) < 0.01


@pytest.mark.slow
def test_the_plan_computes_what_the_function_computes():
    args = (struct(64, 128, dtype="float32"), struct(128, 64, dtype="float32"))
    args = (*args, struct(32, 64, dtype="float32"))
    over = sa.family(meshes=[{"a": 2, "b": 2}])
    found = sa.search(descent, *args, hardware="h100", devices=4, over=over)
    keys = jax.random.split(jax.random.key(0), 3)
    values = [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, args, strict=True)]
    assert found.best.verify().ok
    results = simulate(found.best.program, found.best.graph, *values)
    for ours, expected in zip(results, descent(*values), strict=True):
        assert jnp.allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_new_parameters_have_the_layouts_of_the_old_ones():
    function, args = PROGRAMS["descent"]
    over = sa.family(meshes=[{"a": 8}])
    plan = sa.search(function, *args, hardware="h100:8", over=over).best
    old, new = plan.named_shardings(devices(8))
    assert [each.spec for each in new[1:]] == [each.spec for each in old[:2]]


def test_a_budget_is_met_and_its_bound_holds():
    function, args = PROGRAMS["descent"]
    only = sa.family(meshes=[{"a": 2, "b": 4}])
    free = sa.search(function, *args, hardware="h100:8", over=only)
    budget = 0.9 * free.rows[0].peak_bytes
    found = sa.search(function, *args, hardware="h100:8", memory_bytes=budget, over=only)
    assert found.rows[0].peak_bytes <= budget < free.rows[0].peak_bytes
    assert free.bound_s <= found.bound_s <= found.step_s
    assert found.step_s >= free.step_s * (1 - 1e-9)
    with pytest.raises(sa.BudgetError, match=r"within 1 kB.*smallest budget") as error:
        sa.search(function, *args, hardware="h100:8", memory_bytes=1000, over=only)
    # The error has the plan that needs the least memory.
    least = error.value.smallest_bytes
    assert error.value.plan.cost("h100:8").peak_memory_bytes == least > 1000
    again = sa.search(function, *args, hardware="h100:8", memory_bytes=least, over=only)
    assert again.rows[0].peak_bytes <= least


def test_a_budget_that_layouts_of_the_arguments_meet_is_met():
    """The brute force plans every layout of the arguments on one mesh."""
    function, args = PROGRAMS["descent"]
    mesh = sa.Mesh({"a": 4})
    peaks, first = [], None
    for layouts in itertools.product(*(specs(each.shape, {"a": 4}) for each in args)):
        strategy = sa.Strategy(mesh, layouts, (None, *layouts[:2]))
        first = first.replan(strategy) if first else sa.plan(function, *args, strategy=strategy)
        peaks.append(first.cost("h100").peak_memory_bytes)
    budget = sorted(peaks)[2]
    only = sa.family(meshes=[mesh])
    found = sa.search(function, *args, hardware="h100", memory_bytes=budget, over=only)
    assert found.rows[0].peak_bytes <= budget


def test_the_same_input_has_the_same_answer():
    function, args = PROGRAMS["two products"]
    one, other = (sa.search(function, *args, hardware="h100:8") for _ in range(2))
    assert one.table == other.table
    assert one.best.text() == other.best.text()


def test_equal_layers_are_decided_alike():
    def layers(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x

    weights = (struct(512, 512),) * 12
    plan = sa.search(layers, weights, struct(64, 512), hardware="h100:8").best
    inner = plan.named_shardings(devices(8))[0][0][4:8]
    assert len({each.spec for each in inner}) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, a: sa.search(f, *a, hardware="h100"), "devices is None: give a whole number"),
        (lambda f, a: sa.search(f, *a, hardware="h100", devices=1), "devices is 1"),
        (lambda f, a: sa.family(axes=4), "axes is 4: give a whole number from 1 to 3"),
        (
            lambda f, a: sa.search(f, *a, hardware="h100:8", devices=6),
            r"devices is 6, and Topology\(h100:1x8\) has 8",
        ),
        (lambda f, a: sa.family(meshes=[]), r"meshes is \[\]: give a list of meshes, or None"),
        (lambda f, a: sa.family(meshes=8), "meshes is 8: give a list of meshes"),
        (
            lambda f, a: sa.family(meshes=[sa.Mesh({"a": 8}, symbolic=True)]),
            "has named sizes: search decides at numbers",
        ),
        (lambda f, a: sa.search(f, *a, hardware="h100:8", over=[]), r"over is \[\]: give a family"),
        *(
            (
                lambda f, a, given=given: sa.search(f, *a, hardware="h100:8", memory_bytes=given),
                "memory_bytes is .*: give a number above 0",
            )
            for given in (-1, 0, float("nan"), True, "1e9")
        ),
        (
            lambda f, a: sa.search(f, *a, hardware="h100:8", roles=("foo", "data", "data")),
            "foo",
        ),
        (lambda f, a: sa.family(meshes=["x"]), "meshes has 'x': give a Mesh, or axis sizes"),
        (
            lambda f, a: sa.search(
                f, *a, hardware="h100", devices=8, over=sa.family(meshes=[{"a": 4}])
            ),
            r"meshes of the family do not have 8 devices: Mesh\(a=4\)",
        ),
        (
            lambda f, a: sa.search(
                lambda x: jax.lax.while_loop(lambda v: v[0, 0] < 9, lambda v: v * 2, x),
                a[2],
                hardware="h100:8",
            ),
            r"the function has 1 regions \(while\)",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(StrategyError, match=message):
        call(*PROGRAMS["two products"])


def test_an_argument_that_is_none_is_named():
    w = struct(8, 8)
    for call in (sa.search, sa.plan):
        place = {"hardware": "h100:8"} if call is sa.search else {"mesh": sa.Mesh({"a": 2})}
        with pytest.raises(sa.TraceError, match="its argument 0 is None: TypeError"):
            call(lambda x, w: x @ w, None, w, **place)
    # A function may accept None.
    assert sa.plan(lambda x, w: w + 1, None, w, mesh=sa.Mesh({"a": 2})).mesh.size == 2


def test_a_program_without_work_has_no_gap():
    found = sa.search(lambda x: x, struct(8, 8), hardware="h100:8")
    assert (found.step_s, found.bound_s, found.gap) == (0, 0, 0)


def test_without_a_budget_the_memory_of_the_chip_is_the_limit():
    large = struct(1 << 20, 1 << 20)
    with pytest.raises(StrategyError, match=r"no plan was found within 85\.9 GB"):
        sa.search(lambda x: x @ x, large, hardware="h100:8", over=sa.family(axes=1))


def test_a_table_that_is_too_high_is_named():
    row = SearchedMesh(sa.Mesh({"a": 2}), figures=MeshFigures((), 1.0, 1.5, 1.5, 0.0))
    found = SearchAnswer((row,))
    assert found.gap == pytest.approx(-1 / 3)
    assert "overestimates this program by 33%" in repr(found)


def test_a_cache_that_is_updated_in_place_is_sharded():
    """A slice of a replicated cache would be copied before its update."""

    def decode(query, keys, new, at):
        keys = jax.lax.dynamic_update_slice(keys, new, (0, at, 0))
        return jnp.einsum("bd,btd->bt", query, keys), keys

    args = (struct(64, 512), struct(64, 4096, 512), struct(64, 1, 512), struct(dtype="int32"))
    over = sa.family(meshes=[{"a": 8}])
    found = sa.search(decode, *args, hardware="h100:8", over=over)
    assert found.best.named_shardings(devices(8))[0][1].spec != P(None, None, None)
    assert abs(found.gap) < 0.01
