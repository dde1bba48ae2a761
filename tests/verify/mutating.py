"""Planned programs with one instruction changed, and whether they still compute the function."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np
import pytest

from shardalg.errors import ProgramError
from shardalg.lower import lower
from shardalg.spmd.check import check
from shardalg.spmd.host.simulate import simulate
from shardalg.verify.verify import verify
from tests.partition.planned import instructions, planned


@dataclass(frozen=True, eq=False)
class Case:
    """A function with its arguments, their shardings, and the results' shardings."""

    fn: object
    arguments: tuple
    specs: tuple
    results: object

    @cached_property
    def plan(self):
        return planned(self.fn, self.arguments, self.specs, out_shardings=self.results)

    def mutated(self, kind, change, which=0):
        """Return the program with instruction `which` of `kind` changed; None uses its operands.

        Those in bodies count, too; negative numbers count from the last one.
        """
        program = self.plan.program
        count = sum(isinstance(s.attributes, kind) for s in instructions(program.block))
        assert -count <= which < count, f"{count} instructions of {kind}"
        return replace(program, block=_changed(program.block, kind, change, [which % count]))

    def verified(self, program):
        return verify(self.plan.sharded, program)

    def computes(self, program):
        """Return True if the results equal one device's."""
        try:
            results = simulate(program, self.plan.graph, *self.arguments)
        except (ProgramError, IndexError):
            return False
        wants = jax.tree.leaves(self.fn(*self.arguments))
        return all(np.allclose(r, w, rtol=1e-5) for r, w in zip(results, wants, strict=True))

    def check(self):
        """Check that the planned program is right and proved."""
        assert self.computes(self.plan.program)
        report = self.verified(self.plan.program)
        assert report.ok, report.refuted


def refuted(plan, program, *arguments, run=simulate):
    """Check that it is well formed, computes something else, and is refused; the plan is not.

    Args:
      run: what runs a program; `lowered`, where its numbers are those of a device.
    """
    check(program)
    planned = run(plan.program, plan.graph, *arguments)
    with suppress(ProgramError):  # copies of a value that differ
        got = run(program, plan.graph, *arguments)
        assert any((a != b).any() for a, b in zip(planned, got, strict=True))
    assert plan.verify().ok
    bad = [c for c in verify(plan.sharded, program).claims if c.status == "refuted"]
    assert bad
    assert not any(claim.claim == "well formed" for claim in bad), bad


def lowered(program, graph, *arguments):
    """Return the results on devices, one of each."""
    return [np.asarray(r) for r in jax.tree.leaves(lower(program, graph)(*arguments))]


def judged_both_ways(cases, mutations, *, unseen=frozenset()):
    """Return a file's two tests: `verify` refutes each mutation, and `simulate` sees it.

    Args:
      cases: by name; mutations: name to (case, kind of instruction, change, which one).
      unseen: names of those that only a claim reads.
    """

    def of(name):
        case, *how = mutations[name]
        return cases[case], cases[case].mutated(*how)

    @pytest.mark.parametrize("name", mutations)
    def test_verify_refutes_it(name):
        case, program = of(name)
        assert case.verified(program).refuted

    @pytest.mark.parametrize("name", [name for name in mutations if name not in unseen])
    def test_simulate_sees_it(name):
        case, program = of(name)
        assert not case.computes(program)

    return test_verify_refutes_it, test_simulate_sees_it


def _changed(block, kind, change, left):
    """`left` holds how many instructions of the kind come before the one that is changed."""
    steps, renamed = [], {}
    for instruction in block.instructions:
        operands = tuple(renamed.get(o, o) for o in instruction.operands)
        instruction = replace(instruction, operands=operands)
        if isinstance(instruction.attributes, kind):
            left[0] -= 1
            if left[0] == -1 and change is None:
                renamed |= dict(zip(instruction.results, operands, strict=False))
                continue
            if left[0] == -1:
                instruction = replace(instruction, attributes=change(instruction.attributes))
        blocks = [_changed(body, kind, change, left) for body in instruction.attributes.bodies]
        if blocks:
            attributes = instruction.attributes.with_bodies(blocks)
            instruction = replace(instruction, attributes=attributes)
        steps.append(instruction)
    results = tuple(renamed.get(r, r) for r in block.results)
    return replace(block, instructions=tuple(steps), results=results)


def changed(program, step, new):
    """Return the program with another instruction in place of one, at any depth."""
    return replace(program, block=_exchanged(program.block, step, new))


def _exchanged(block, step, new):
    steps = []
    for each in block.instructions:
        blocks = [_exchanged(body, step, new) for body in each.attributes.bodies]
        whole = replace(each, attributes=each.attributes.with_bodies(blocks)) if blocks else each
        steps.append(new if each is step else whole)
    return replace(block, instructions=tuple(steps))
