"""All-reduces that are sent as one come after the last of their operands, in every order."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.analyses.overlap import (
    all_in_execution_order,
    combined_all_reduces,
    execution_order,
    scheduled_s,
)
from shardalg.costs.collectives import is_collective
from shardalg.spmd.instruction import Block

F = jax.ShapeDtypeStruct


def loss(layers, x):
    for w in layers:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def sgd(layers, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, jax.grad(loss)(layers, x))


def clipped(layers, x):
    grads = jax.grad(loss)(layers, x)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grads))
    return [w - g / jnp.maximum(norm, 1.0) for w, g in zip(layers, grads, strict=True)]


def alternating(layers, x):
    """Return sums along two axes that depend on each other in turns."""
    total = 0.0
    for w in layers:
        total = total + jnp.tanh((x @ w).sum(0)).max() + jnp.exp(x.sum() * w.sum())
    return total


def scanned(layers, x):
    def body(carry, _):
        return sgd(carry, x), None

    return lax.scan(body, layers, None, length=3)[0]


def plan_of(function):
    layers = [F((64, 64), "float32")] * 6
    return sa.plan(
        function,
        layers,
        F((256, 64), "float32"),
        mesh=sa.Mesh({"data": 4, "model": 2}),
        in_shardings=(P(None, "model"), P("data")),
    )


FUNCTIONS = (sgd, clipped, alternating, scanned)


def blocks(block):
    yield block
    for instruction in block.instructions:
        for body in instruction.attributes.bodies:
            yield from blocks(body)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_instruction_runs_once_after_what_it_reads(function):
    program = plan_of(function).program
    for block in blocks(program.block):
        order = execution_order(block)
        assert sorted(map(id, order)) == sorted(map(id, block.instructions))
        made_here = {v for one in block.instructions for v in one.results}
        there: set[int] = set()
        for instruction in order:
            assert there.issuperset(made_here.intersection(instruction.operands))
            there.update(instruction.results)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_members_of_a_message_follow_one_another(function):
    program = plan_of(function).program
    sent = combined_all_reduces(program.block)
    for block in blocks(program.block):
        order = execution_order(block)
        for members in (sent[id(one)] for one in block.instructions if id(one) in sent):
            places = sorted(order.index(member) for member in members)
            assert not places or places == list(range(places[0], places[0] + len(places)))


@pytest.mark.parametrize("function", FUNCTIONS[:2])
def test_no_event_of_the_backward_pass_follows_the_sum_of_the_gradients(function):
    plan = plan_of(function)
    events = plan.timeline("h100:8").events
    large = max((e for e in events if e.kind == "all_reduce"), key=lambda e: e.seconds)
    late = [e for e in events if e.kind == "compute" and e.phase == "backward"]
    assert sum(e.seconds for e in late if e.start_s >= large.start_s + large.seconds) == 0
    step = sum(e.seconds for e in events)
    assert step == pytest.approx(plan.cost("h100:8").step_time_s)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_schedule_has_no_message_before_its_operands(function):
    """Free collectives leave the compute alone; free compute leaves the messages alone."""
    program = plan_of(function).program

    def computing(one):
        return 0.0 if is_collective(one.attributes) else 1.0

    def sending(one):
        return 1.0 if is_collective(one.attributes) else 0.0

    both = scheduled_s(program.block, lambda one: computing(one) + sending(one))
    parts = [scheduled_s(program.block, each) for each in (computing, sending)]
    assert max(parts) <= both <= sum(parts) + 1e-9
    assert len([*all_in_execution_order(program.block)]) == sum(
        len(b.instructions) for b in blocks(program.block)
    )


def test_a_message_waits_for_its_last_operand():
    program = plan_of(sgd).program
    sent = combined_all_reduces(program.block)
    first = max(sent, key=lambda key: len(sent[key]))
    (message,) = [one for one in program.block.instructions if id(one) == first]
    members = sent[first]
    last = max(program.block.instructions.index(one) for one in members)
    before = [one for one in program.block.instructions[:last] if not is_collective(one.attributes)]
    needed = {v for one in members for v in one.operands}
    kept: list = []
    for one in reversed(before):
        if needed.intersection(one.results):
            kept.append(one)
            needed.update(one.operands)
    block = Block(program.block.arguments, (*reversed(kept), *members), message.results)
    seconds = {id(one): 1.0 for one in kept} | {id(message): 1.0}
    assert scheduled_s(block, lambda one: seconds.get(id(one), 0.0)) == len(kept) + 1
