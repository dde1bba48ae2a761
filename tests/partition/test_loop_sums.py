"""Sums that a loop adds to its carry, or stacks, are reduced once behind it (`defer_in_loops`)."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import ProgramError
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instructions import FirstMember
from shardalg.verify.verify import verify
from tests.partition.planned import numbers

MESH = sa.Mesh({"L": 2, "X": 2, "Y": 2})
ON = sa.Options(switches=sa.Switches(defer_in_loops=True))


def error(w, x):
    return jnp.sum((jax.nn.relu(x @ w[0]) @ w[1]) ** 2)


def accumulated(w, xs):
    """Gradients and losses of microbatches, added up."""

    def step(carry, x):
        loss, grads = jax.value_and_grad(error)(w, x)
        return (carry[0] + loss, jax.tree.map(jnp.add, carry[1], grads)), None

    return lax.scan(step, (jnp.float32(1), jax.tree.map(jnp.ones_like, w)), xs)[0]


def layers(w, xs):
    """Return the layers in a loop of their own."""

    def loss(w, x):
        body = lambda h, w: (h + jax.nn.relu(h @ w[0]) @ w[1], None)  # noqa: E731
        return jnp.sum(lax.scan(body, x, w)[0] ** 2)

    def step(carry, x):
        return jax.tree.map(jnp.add, carry, jax.grad(loss)(w, x)), None

    return lax.scan(step, jax.tree.map(jnp.zeros_like, w), xs)[0]


def pipeline(w, xs):
    """Return the gradient of a shifting buffer of two stages, each computed again."""

    def stage(w, x):
        return x + jax.nn.relu(x @ w[0]) @ w[1]

    def loss(w):
        def step(state, x):
            state = jnp.concatenate([x[None], state[:-1]])
            state = jax.vmap(jax.checkpoint(stage))(w, state)
            return state, state[-1]

        fresh = jnp.pad(xs, ((0, 1), (0, 0), (0, 0)))
        return (lax.scan(step, jnp.zeros((2, *xs.shape[1:])), fresh)[1][1:] ** 2).sum()

    return jax.grad(loss)(w)


def weights(*leading):
    return numbers(*leading, 8, 16), numbers(*leading, 16, 8, seed=1)


XS, FLAT = numbers(3, 4, 8, seed=2), (P(None, "Y"), P("Y"))
STACK = P(None, None, "Y"), P(None, "Y")
STAGES = P("L", None, "Y"), P("L", "Y")
CASES = {  # function, weights, their layouts, sums along X in a step: in loops, behind them
    "accumulated": (accumulated, weights(), FLAT, 9, 3),
    "layers": (layers, weights(2), STACK, 12, 2),
    "pipeline": (pipeline, weights(2), STAGES, 8, 2),
}


def along(plan, axis):
    """Return how often sums along an axis are sent in a step."""
    sums = ("all_reduce", "reduce_scatter")
    rows = [r for r in plan.collectives_table if r["mesh_axes"] == axis and r["kind"] in sums]
    return sum(r["executions"] for r in rows)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_sums_are_reduced_once_behind_the_loop(name):
    fn, w, layout, before, after = CASES[name]
    specs = {"mesh": MESH, "in_shardings": (layout, P(None, "X"))}
    plain, plan = (sa.plan(fn, w, XS, options=o, **specs) for o in (sa.Options(), ON))
    assert (along(plain, "X"), along(plan, "X")) == (before, after)
    peaks = [p.cost("tpu_v3").peak_memory_bytes for p in (plain, plan)]
    assert peaks[1] <= peaks[0] or name == "layers"
    values, want = jax.tree.leaves((w, XS)), jax.tree.leaves(jax.jit(fn)(w, XS))
    runs = [simulate(plan.program, plan.graph, *values)]
    runs += [jax.tree.leaves(plan.lower()(w, XS))] if name == "pipeline" else []
    for results in runs:
        for found, wanted in zip(results, want, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-3)
    assert plan.verify().ok, plan.verify().refuted


def test_what_the_last_stage_hands_out_leaves_once():
    plain = {"mesh": MESH, "in_shardings": (STAGES, P())}
    plan = sa.plan(pipeline, weights(2), XS, options=ON, **plain)
    rows = [r for r in plan.collectives_table if "L" in r["mesh_axes"]]
    assert {(r["kind"], r["executions"]) for r in rows if "scan" in r["region"]} == {
        ("collective_permute", 4)
    }
    assert [r["executions"] for r in rows if "scan" not in r["region"]] == [1]


@pytest.mark.parametrize(
    "step",
    [
        lambda c, x: c + jnp.tanh(c) * x.sum(0),
        lambda c, x: jnp.where(c > 0, c, x.sum(0)),
        lambda c, x: c * x.sum(0),
    ],
)
def test_a_carry_that_is_read_otherwise_is_whole(step):
    fn = lambda c, x: lax.scan(lambda c, x: (step(c, x), None), c, x)[0]  # noqa: E731
    c, x = numbers(8), numbers(3, 8, 8, seed=1)
    plan = sa.plan(fn, c, x, mesh=MESH, in_shardings=(P(), P(None, "X")), options=ON)
    assert along(plan, "X") == 3
    np.testing.assert_allclose(simulate(plan.program, plan.graph, c, x)[0], fn(c, x), rtol=1e-5)
    assert plan.verify().ok


SCALED = {  # what a step adds to the carry
    "times a number": lambda c, g, x: c + g * x.sum(),
    "over a number": lambda c, g, x: c + g / (1 + jnp.abs(x).sum()),
    "times a row": lambda c, g, x: c + g * x.sum(0)[:, None],
    "times a column by an einsum": lambda c, g, x: c + jnp.einsum("ij,i->ij", g, x.sum(0)),
    "negated and transposed twice": lambda c, g, x: c - (g.T * x.sum()).T,
    "times two numbers": lambda c, g, x: c + 0.5 * g * x.sum() / (1 + jnp.abs(x).max()),
    "times a matrix": lambda c, g, x: c + jnp.eye(8) @ g * x.sum(),
    "reshaped": lambda c, g, x: c + (g.reshape(2, 4, 16) * x.sum()).reshape(g.shape),
    "a moving mean": lambda c, g, x: 0.9 * c + 0.1 * g * x.sum(),
    "a carry times a number": lambda c, g, x: c * jnp.tanh(x.sum()) + g,
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SCALED)
def test_a_scaled_gradient_is_reduced_once_behind_the_loop(name):
    """The factor is reduced in every iteration; the gradient, which is larger, is not."""

    def fn(w, xs):
        def step(c, x):
            grad = jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)
            return SCALED[name](c, grad, x), None

        return lax.scan(step, jnp.ones_like(w), xs)[0]

    w, xs = numbers(8, 16), numbers(3, 8, 8, seed=2)
    specs = {"mesh": MESH, "in_shardings": (P(None, "Y"), P(None, "X"))}
    plan = sa.plan(fn, w, xs, options=ON, **specs)
    rows = [r for r in plan.collectives_table if r["mesh_axes"] == "X"]
    sums = [r for r in rows if r["kind"] == "all_reduce"]
    once = [r["wire_bytes"] for r in sums if r["executions"] == 1]
    assert once == [4 * 8 * 16 // 2]
    assert all(r["wire_bytes"] <= 4 * 8 for r in sums if r["executions"] > 1)
    for results in (simulate(plan.program, plan.graph, w, xs), [plan.lower()(w, xs)]):
        np.testing.assert_allclose(results[0], fn(w, xs), rtol=1e-5, atol=1e-4)
    report = plan.verify()
    assert report.ok, report.refuted
    assert {claim.status for claim in report.claims if claim.claim == "finite"} == {"trusted"}


def test_outside_loops_a_scaled_sum_of_floats_is_reduced_first():
    """The switch of loops says nothing of the rest of the program, in the plan or in the proof."""
    fn = lambda x: x.sum(0) * 2.5 + x.sum(0)  # noqa: E731
    plan = sa.plan(fn, numbers(8, 8), mesh=MESH, in_shardings=(P("X"),), options=ON)
    assert plan.verify().ok
    assert not [claim for claim in plan.verify().claims if claim.claim == "finite"]
    finite = sa.Options(switches=sa.Switches(finite_sums=True))
    other = sa.plan(fn, numbers(8, 8), mesh=MESH, in_shardings=(P("X"),), options=finite)
    refuted = verify(other.sharded, other.program, finite_in_loops=True).refuted
    assert {claim.claim for claim in refuted} == {"finite"}


def test_of_two_partial_factors_the_smaller_one_is_reduced():
    """A product of two pending sums is pending if one of them is reduced first."""
    fn = lambda x, y: (x.T @ y) * y.sum()  # noqa: E731
    x, y = numbers(8, 8), numbers(8, 8, seed=1)
    options = sa.Options(switches=sa.Switches(finite_sums=True))
    layouts = {"in_shardings": (P("X"), P("X")), "out_shardings": P("X")}
    plan = sa.plan(fn, x, y, mesh=sa.Mesh({"X": 4}), options=options, **layouts)
    kinds = [(r["kind"], r["wire_bytes"]) for r in plan.collectives_table]
    assert sorted(kinds) == [("all_reduce", 6), ("reduce_scatter", 3 * 2 * 8 * 4)]
    np.testing.assert_allclose(simulate(plan.program, plan.graph, x, y)[0], fn(x, y), rtol=1e-4)
    assert plan.verify().ok


def narrow(w, xs):
    """Gradients that a layer computes in bfloat16 and adds up in float32."""
    half = lambda x: x.astype(jnp.bfloat16)  # noqa: E731

    def step(carry, x):
        grads = jax.grad(lambda w: error(jax.tree.map(half, w), x).astype("float32"))(w)
        return jax.tree.map(jnp.add, carry, grads), None

    return lax.scan(step, jax.tree.map(jnp.zeros_like, w), half(xs))[0]


def test_a_sum_that_a_loop_reduces_names_the_operator_behind_which_none_is_deferred():
    fn = lambda c, x: lax.scan(lambda c, x: (c + jnp.tanh(x.sum(0)), None), c, x)[0]  # noqa: E731
    c, x = numbers(8), numbers(3, 8, 8, seed=1)
    plan = sa.plan(fn, c, x, mesh=MESH, in_shardings=(P(), P(None, "X")), options=ON)
    stop = r"in every iteration: no sum can be deferred past tanh \(test_loop_sums.py:\d+\)"
    assert re.search(stop, plan.explain(0).headline)


def test_sums_are_deferred_behind_a_wider_type():
    """Parts of bfloat16 are then added up in float32; a sum of them may overflow in it alone."""
    specs = {"mesh": MESH, "in_shardings": (FLAT, P(None, "X"))}
    plan = sa.plan(narrow, weights(), XS, **specs)
    assert along(plan, "X") == 6
    later = sa.plan(narrow, weights(), XS, **specs, options=ON)
    assert along(later, "X") == 2
    rows = [r for r in later.collectives_table if r["mesh_axes"] == "X"]
    assert [r["wire_bytes"] for r in rows] == [4 * 8 * 16 // 2] * 2  # float32 of half a weight
    values, want = jax.tree.leaves((weights(), XS)), narrow(weights(), XS)
    for found, wanted in zip(simulate(later.program, later.graph, *values), want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2 * np.abs(wanted).max())
    assert later.verify().ok
    refuted = verify(later.sharded, later.program).refuted
    assert {claim.claim for claim in refuted} == {"finite"}


def test_a_sum_that_every_member_begins_with_is_refuted_and_seen():
    fn, w, layout, *_ = CASES["accumulated"]
    plan = sa.plan(fn, w, XS, mesh=MESH, in_shardings=(layout, P(None, "X")), options=ON)
    steps = list(plan.program.block.instructions)
    k = next(k for k, step in enumerate(steps) if isinstance(step.attributes, FirstMember))
    every = replace(steps[k].attributes, digits=())
    steps[k] = replace(steps[k], attributes=every)
    program = replace(plan.program, block=replace(plan.program.block, instructions=tuple(steps)))
    assert verify(plan.sharded, program).refuted
    values, want = jax.tree.leaves((w, XS)), jax.tree.leaves(fn(w, XS))
    try:
        results = simulate(program, plan.graph, *values)
    except ProgramError:
        return
    assert any((a != b).any() for a, b in zip(results, want, strict=True))


def test_the_switch_is_priced_with_the_memory_it_holds():
    """A sum that is divided among the devices is held whole until then."""

    def fn(xs):
        start = jnp.zeros((16, 16))
        return lax.scan(lambda c, x: (c + x.T @ x, None), start, xs)[0]

    specs = {"in_shardings": (P(None, "X"),), "out_shardings": P("X")}
    plan = sa.plan(fn, numbers(3, 64, 16), mesh=sa.Mesh({"X": 2}), **specs)
    table = plan.switches().set_index("options")
    planned, flipped = (table.loc[k] for k in ("as planned", "defer_in_loops=True"))
    assert planned["wire_bytes"] == 3 * flipped["wire_bytes"]
    assert flipped["peak_memory_bytes"] - planned["peak_memory_bytes"] >= 8 * 16 * 4
