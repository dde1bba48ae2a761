"""Barriers keep XLA from merging a gather with the second gather of a freed value."""

import re
import tempfile
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

import shardalg as sa
from shardalg.lab import table1_strategies as table1
from shardalg.lower import lower
from shardalg.lower.around_xla import repeated_collectives
from shardalg.lower.emit import Emitter, body
from shardalg.lower.xla_dump.hlo_collectives import collectives
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.spmd.instructions import AllGather

MESH = sa.Mesh({"X": 2, "Y": 4})
CONFIG = Config(B=4, S=8, M=16, H=32, N=4, D=4, V=16, dtype="float32")
# Of XLA's passes on CPU the one that takes barriers away; the merging of equal operators that
# respects them runs before it.
EXPANDER = "cse_barrier_expander"


def planned(name, **options):
    step = part(name)
    return sa.plan(
        step.function(CONFIG),
        *step.arguments(CONFIG),
        strategy=table1.finalized(MESH, CONFIG, name),
        roles=step.roles(),
        options=sa.Options(**options),
    )


def emitted(plan):
    """Return the program as emitted for accelerators, on the CPU devices of this process."""
    graph = plan._traced.graph
    lowered = lower(plan.program, graph)
    mapped = jax.shard_map(
        body(Emitter(plan.program, graph, lowered.run, tiled=True)),
        mesh=lowered.run.mesh,
        in_specs=tuple(lowered.run.spec(b.sharding) for b in lowered.arguments),
        out_specs=tuple(lowered.run.spec(b.sharding) for b in lowered.results),
        check_vma=False,
    )
    return jax.jit(mapped), lowered


def gathers_after_merging(plan):
    """Gathers per axis once XLA has merged all that it can."""
    function, lowered = emitted(plan)
    stage = function.lower(*(b.struct for b in lowered.arguments))
    with tempfile.TemporaryDirectory() as folder:
        stage.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_pass_re": EXPANDER})
        (before,) = (p for p in Path(folder).iterdir() if re.search(f"before_{EXPANDER}", p.name))
        found = collectives(before.read_text(), MESH)
    return Counter(c.axes for c in found if c.kind == "all_gather")


def gathers_planned(plan):
    table = plan.collectives().query("kind == 'all_gather'")
    return Counter((row.mesh_axes,) for row in table.itertuples() for _ in range(row.executions))


@pytest.mark.parametrize("name", ["ffn_gradient", "attention_gradient"])
def test_xla_makes_every_gather_that_is_planned(name):
    plan = planned(name)
    assert repeated_collectives(plan._traced.graph, plan.program.block)
    assert gathers_after_merging(plan) == gathers_planned(plan)


def test_without_barriers_xla_would_keep_the_copies(monkeypatch):
    plan = planned("ffn_gradient")
    monkeypatch.setattr("shardalg.lower.emit.emitter.repeated_collectives", lambda *_: {})
    assert gathers_after_merging(plan) == gathers_planned(
        planned("ffn_gradient", keep_gathers=True)
    )
    assert gathers_after_merging(plan) != gathers_planned(plan)


def test_a_plan_that_keeps_copies_needs_no_barrier():
    plan = planned("ffn_gradient", keep_gathers=True)
    assert not repeated_collectives(plan._traced.graph, plan.program.block)
    function, lowered = emitted(plan)
    text = function.lower(*(b.struct for b in lowered.arguments)).as_text()
    assert "optimization_barrier" not in text


def test_what_is_held_back_waits_for_the_backward_pass():
    plan = planned("layer_gradient")
    block = plan.program.block
    made = {local: i for i in block.instructions for local in i.results}
    found = repeated_collectives(plan._traced.graph, block)
    assert {type(block.instructions[at].attributes).__name__ for at in found} == {"AllGather"}
    for at, waits_for in found.items():
        assert block.instructions[at].phase == "backward"
        assert waits_for
        assert {made[local].phase for local in waits_for} == {"backward"}


def ancestors(block, locals_):
    """Positions of the instructions that values are made by, directly or not."""
    made = {r: at for at, i in enumerate(block.instructions) for r in i.results}
    found, waiting = set(), list(locals_)
    while waiting:
        at = made.get(waiting.pop())
        if at is not None and at not in found:
            found.add(at)
            waiting += block.instructions[at].operands
    return found


@pytest.mark.parametrize("name", ["layer_gradient", "train_step"])
def test_no_more_than_two_copies_at_a_time(name):
    """Before a copy is gathered again, all that reads the others but the last one has run."""
    plan = planned(name)
    block = plan.program.block
    ran = set()
    for at, waits_for in repeated_collectives(plan._traced.graph, block).items():
        ran |= ancestors(block, waits_for)
        copies = [
            copy
            for copy, instruction in enumerate(block.instructions[:at])
            if type(instruction.attributes) is AllGather and instruction.phase == "backward"
        ]
        for copy in copies[:-1]:
            read = set(block.instructions[copy].results)
            readers = {i for i, x in enumerate(block.instructions) if read & set(x.operands)}
            assert max(readers) > at or readers <= ran


def test_values_are_those_of_one_device():
    plan = planned("ffn_gradient")
    arguments = part("ffn_gradient").random_arguments(CONFIG)
    function, _ = emitted(plan)
    want = part("ffn_gradient").function(CONFIG)(*arguments)
    for got, expected in zip(
        function(*jax.tree.leaves(arguments)), jax.tree.leaves(want), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
