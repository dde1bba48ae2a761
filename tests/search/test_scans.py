"""`sa.search` of scans: compared with the unrolled function, and with layouts of the arguments."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.topology import arranged
from shardalg.plan.search.check_certificate import check
from shardalg.spmd.host.simulate import simulate

LAYERS = 6


def struct(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def training(*, is_scanned):
    """Return a step of gradient descent of residual layers, scanned or unrolled."""

    def layer(x, weights):
        up, down = weights
        return x + jnp.tanh(x @ up) @ down, None

    def step(ups, downs, x):
        def loss(ups, downs):
            y = x
            if is_scanned:
                y, _ = jax.lax.scan(layer, y, (ups, downs))
            else:
                for one in zip(ups, downs, strict=True):
                    y, _ = layer(y, one)
            return (y.astype("float32") ** 2).mean()

        value, (first, second) = jax.value_and_grad(loss, (0, 1))(ups, downs)
        new = jax.tree.map(lambda w, g: w - 0.1 * g, (ups, downs), (first, second))
        return value, *new

    return step


def given(width, inner, batch, dtype="bfloat16"):
    shapes = (LAYERS, width, inner), (LAYERS, inner, width), (batch, width)
    return tuple(struct(*shape, dtype=dtype) for shape in shapes)


SCANNED = [{"a": 8}, pytest.param({"a": 2, "b": 4}, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=SCANNED, ids=str)
def both(request):
    args, over = given(1024, 4096, 4096), sa.family(meshes=[request.param])
    # The unrolled function has a list of weights, because slices of a stack cost more.
    lists = [[struct(*each.shape[1:])] * LAYERS for each in args[:2]]
    return [
        sa.search(training(is_scanned=True), *args, hardware="h100:8", over=over),
        sa.search(training(is_scanned=False), *lists, args[2], hardware="h100:8", over=over),
    ]


def test_a_scan_costs_as_much_as_its_unrolled_layers(both):
    scanned, unrolled = both
    # The functions differ in how they store gradients: in a stack, and in a list.
    assert scanned.step_s == pytest.approx(unrolled.step_s, rel=0.03)


def test_the_table_is_the_price_of_the_plan_and_the_proof_is_accepted(both):
    scanned = both[0]
    assert abs(scanned.gap) < 0.01
    assert scanned.best.verify().ok
    bound_ps = check(scanned.rows[0].certificate.content()).bound_ps
    assert bound_ps == pytest.approx(scanned.bound_s * 1e12, rel=1e-6)
    given_again = given(1024, 4096, 4096)
    again = sa.plan(training(is_scanned=True), *given_again, strategy=scanned.strategy)
    chip = arranged("h100", again.mesh).on(DATASHEET)
    again_s = float(again.cost(chip, overlap="none").step_time_s)
    assert again_s == pytest.approx(scanned.step_s, rel=0.01)


def test_checkpoints_with_many_arrays_are_refused_by_name():
    def layer(x, weights):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x, None

    def loss(weights, x):
        return jax.lax.scan(jax.checkpoint(layer), x, weights)[0].sum()

    weights = (struct(4, 64, 64),) * 9
    with pytest.raises(sa.StrategyError, match=r"optimization_barrier of \d+ values has"):
        sa.search(jax.grad(loss), weights, struct(64, 64), hardware="h100:8")


def test_no_layout_of_the_arguments_is_faster():
    """The brute force leaves all but the arguments to completion, so that it may be slower."""
    args, mesh = given(1024, 4096, 4096), sa.Mesh({"a": 4})
    found = sa.search(
        training(is_scanned=True), *args, hardware="h100", devices=4, over=sa.family(meshes=[mesh])
    )
    chip, first, least = arranged("h100", mesh).on(DATASHEET), None, float("inf")
    stacked = P(), P(None, "a"), P(None, None, "a")
    for layouts in itertools.product(stacked, stacked, (P(), P("a"), P(None, "a"))):
        strategy = sa.Strategy(mesh, layouts, (None, *layouts[:2]))
        first = (
            first.replan(strategy)
            if first
            else sa.plan(training(is_scanned=True), *args, strategy=strategy)
        )
        least = min(least, float(first.cost(chip, overlap="none").step_time_s))
    assert found.step_s <= least * (1 + 1e-9)


def test_the_plan_computes_what_the_function_computes():
    step, args = training(is_scanned=True), given(16, 32, 32, "float32")
    over = sa.family(meshes=[{"a": 2}])
    best = sa.search(step, *args, hardware="h100", devices=2, over=over).best
    keys = jax.random.split(jax.random.key(0), 3)
    values = [0.1 * jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, args, strict=True)]
    results = simulate(best.program, best.graph, *values)
    for ours, expected in zip(results, step(*values), strict=True):
        assert jnp.allclose(ours, expected, rtol=1e-4, atol=1e-5)
