"""While loops and branches: their bodies are partitioned, proved, and run as one device does."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.errors import ProgramError
from shardalg.spmd import instructions as p
from shardalg.spmd.host.simulate import simulate
from shardalg.verify.verify import verify
from tests.partition.planned import checked, instructions, numbers, planned


def settled(x, w):
    """Products until the largest element is small, at most nine times: a condition with sums."""

    def goes_on(carry):
        count, y = carry
        return (count < 9) & (jnp.abs(y).sum() + w.sum() > 40.0)

    def body(carry):
        count, y = carry
        return count + 1, jnp.tanh(y @ w) * 0.5

    return lax.while_loop(goes_on, body, (0, x))


def branched(x, w, number):
    """Three ways: a product, a sum over rows repeated, nothing."""
    ways = (
        lambda x, w: x @ w,
        lambda x, w: jnp.broadcast_to(x.sum(0), x.shape) + w[0, 0],
        lambda x, w: x,
    )
    return lax.switch(number, ways, x, w) * 2


def nested(x, w):
    """Return a branch inside a loop inside a scan; a branch result is an argument or constant."""

    def step(carry, row):
        def body(c):
            count, y = c
            y = lax.cond(count % 2 == 0, lambda y: y @ w, lambda y: jnp.ones_like(y), y)
            return count + 1, y + row

        _, carry = lax.while_loop(lambda c: c[0] < 3, body, (0, carry))
        return carry, carry.sum()

    return lax.scan(step, jnp.zeros_like(x), x)


def learned(x, w, flag):
    """Return the gradient of a branch."""

    def loss(w):
        y = lax.cond(flag > 0, lambda w: jnp.tanh(x @ w), lambda w: x @ (w * w), w)
        return (y * y).sum()

    return jax.grad(loss)(w)


X, W = numbers(8, 8), numbers(8, 8, seed=1)
CASES = {
    "while": (settled, (X, W / 8), (P("X", None), P(None, "Y"))),
    "while, contracted": (settled, (X, W / 8), (P("X", "Y"), P("Y", None))),
    "while, uneven": (settled, (numbers(7, 6), numbers(6, 6, seed=1) / 8), (P("Y"), P(None, "X"))),
    "product": (branched, (X, W, np.int32(0)), (P("X", None), P(None, "Y"), P())),
    "sum": (branched, (X, W, np.int32(1)), (P("X", None), P(None, "Y"), P())),
    "neither": (branched, (X, W, np.int32(7)), (P("X", "Y"), P("Y", None), P())),
    "nested": (nested, (X, W / 8), (P(None, "X"), P("X", "Y"))),
    "gradient": (learned, (X, W / 8, np.int32(1)), (P("X", None), P(None, "Y"), P())),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_bodies_are_partitioned_and_proved(name):
    fn, arguments, specs = CASES[name]
    plan = checked(fn, arguments, specs)
    assert verify(plan.sharded, plan.program).ok
    assert plan.warnings().query("op not in ('jax.jit', 'uneven', 'unread', 'while')").empty
    split = [
        step
        for step in instructions(plan.program.block)
        if isinstance(step.attributes, p.While | p.Branches)
    ]
    assert split
    assert any(plan.program.locals[o].sharding.key[0] for s in split for o in s.operands)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["while, contracted", "product", "nested", "gradient"])
def test_lowered_equals_one_device(name):
    fn, arguments, specs = CASES[name]
    got = planned(fn, arguments, specs).lower()(*arguments)
    for result, want in zip(jax.tree.leaves(got), jax.tree.leaves(fn(*arguments)), strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)


def changed(block, kind, change):
    """Return the block with every instruction of a kind changed, or left out for None."""
    steps, renamed = [], {}
    for step in block.instructions:
        operands = tuple(renamed.get(o, o) for o in step.operands)
        inside = [changed(body, kind, change) for body in step.attributes.bodies]
        step = replace(step, operands=operands, attributes=step.attributes.with_bodies(inside))
        if isinstance(step.attributes, kind):
            attributes = change(step.attributes)
            if attributes is None:
                renamed[step.results[0]] = operands[0]
                continue
            step = replace(step, attributes=attributes)
        steps.append(step)
    results = tuple(renamed.get(r, r) for r in block.results)
    return replace(block, instructions=tuple(steps), results=results)


def crossed(block):
    """Return the block with its last two results exchanged."""
    *first, one, other = block.results
    return replace(block, results=(*first, other, one))


def pair(x, w):
    """Return a loop that carries two arrays of one shape."""
    return lax.while_loop(lambda c: c[0][0, 0] < 99, lambda c: (c[0] + 64, c[1] @ w), (x, x + 1))


MUTATIONS = {
    "the sum in a condition is not combined": ("while, contracted", p.AllReduce, lambda a: None),
    "branches in another order": (
        "product", p.Branches, lambda a: replace(a, blocks=a.blocks[::-1]),
    ),
    "the first branch in place of every other": (
        "sum", p.Branches, lambda a: replace(a, blocks=a.blocks[:1] * 3),
    ),
    "carries handed on crossed": ("pair", p.While, lambda a: replace(a, body=crossed(a.body))),
}  # fmt: skip
CASES_OF_MUTATIONS = {**CASES, "pair": (pair, (X, W), (P("X", None), P(None, "Y")))}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_refuted_and_seen(name):
    case, kind, change = MUTATIONS[name]
    fn, arguments, specs = CASES_OF_MUTATIONS[case]
    plan = checked(fn, arguments, specs)
    wrong = replace(plan.program, block=changed(plan.program.block, kind, change))
    assert wrong != plan.program
    assert verify(plan.sharded, plan.program).ok
    assert not verify(plan.sharded, wrong).ok
    try:
        results = simulate(wrong, plan.graph, *arguments)
    except ProgramError:
        return
    wants = jax.tree.leaves(fn(*arguments))
    assert not all(np.allclose(r, w, rtol=1e-5) for r, w in zip(results, wants, strict=True))


def test_a_while_loop_is_priced_once_and_named():
    """Nobody knows how often it runs: `collectives()` counts one execution, region "while"."""
    fn, arguments, specs = CASES["while, contracted"]
    plan = planned(fn, arguments, specs)
    moved = plan.collectives()
    assert set(moved["region"]) >= {"while"}
    assert set(moved["executions"]) == {1}
    cost = plan.cost("tpu_v3")
    assert cost.flops > 0
    assert cost.peak_memory_bytes > 0
    assert "condition(" in str(plan.program)
