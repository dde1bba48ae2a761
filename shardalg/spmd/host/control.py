"""Simulate operators, by JAX on the host, and instructions with bodies, for all positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardalg.errors import ProgramError
from shardalg.graph.abstract import zeros
from shardalg.graph.evaluate import apply, by_word
from shardalg.spmd.bound import bound
from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.run import HostRun, run_block, simulates
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply, Branches, Loop, Manual, While


@simulates(Apply)
def _apply(run: HostRun, instruction: Instruction[Apply], *stacks: Stack) -> list[Stack]:
    """Run a JAX primitive on the blocks of every position; return a stack per result.

    A stack has one block per position of the mesh.
    """
    primitive = instruction.attributes.primitive
    binding, params = bound(run.graph, instruction)
    # Replicated operands are one object per group of devices, for which JAX runs once.
    results_of: dict[tuple[int, ...], list[np.ndarray]] = {}
    results_by_position = []
    for position in run.positions:
        blocks = [stack[position] for stack in stacks]
        key = tuple(map(id, blocks))  # equal objects give equal results: computed once
        if key not in results_of:
            try:
                results = apply(primitive, binding, params, blocks)
            except (TypeError, ValueError) as error:
                message = str(error).split("\n")[0]
                raise ProgramError(f"{run.place(instruction)}: JAX refuses it: {message}") from None
            results_of[key] = [on_host(result) for result in results]
        results_by_position.append(results_of[key])
    # Turn the rows (a tuple of results per position) into stacks (a list of positions per result).
    return (
        [list(stack) for stack in zip(*results_by_position, strict=True)]
        if instruction.results
        else []
    )


def on_host(array: Any) -> Any:
    """Return a numpy array; random keys have no such form and are returned as they are."""
    return np.asarray(array) if isinstance(array.dtype, np.dtype) else array


@simulates(Loop)
def _loop(run: HostRun, instruction: Instruction[Loop], *stacks: Stack) -> list[Stack]:
    """Run the body once per iteration, with one slice of each stacked input.

    Return the final carry and the stacked outputs, as `jax.lax.scan` does. The stacks are the
    constants of the body, the initial carry, and the stacked inputs.
    """
    a = instruction.attributes
    consts, other_stacks = stacks[: a.num_consts], stacks[a.num_consts :]
    carry, xs = list(other_stacks[: a.num_carry]), other_stacks[a.num_carry :]
    # A reversed scan stores its outputs at the places of its inputs.
    order = range(a.length)[::-1] if a.reverse else range(a.length)
    outputs: dict[int, list[Stack]] = {}
    for step in order:
        slices = [[block[step] for block in stack] for stack in xs]
        results = run_block(run, a.body, (*consts, *carry, *slices))
        carry, outputs[step] = results[: a.num_carry], results[a.num_carry :]
    return [*carry, *_stack_outputs(run, instruction, outputs)]


@simulates(While)
def _while(run: HostRun, instruction: Instruction[While], *stacks: Stack) -> list[Stack]:
    """Run the body as long as the condition is true on some device."""
    a = instruction.attributes
    first, both = a.num_consts[0], sum(a.num_consts)
    # Each block has constants of its own, in front of the carry: it does not see the other's.
    carry = list(stacks[both:])
    while True:
        (predicate,) = run_block(run, a.condition, (*stacks[:first], *carry))
        ways = _branch_numbers(run, instruction, predicate)
        if not any(ways):
            return carry
        after = run_block(run, a.body, (*stacks[first:both], *carry))
        # In a manual region devices stop separately: those that are done keep their carry.
        carry = [_select_blocks(ways, (old, new)) for old, new in zip(carry, after, strict=True)]


@simulates(Branches)
def _branches(
    run: HostRun, instruction: Instruction[Branches], which: Stack, *stacks: Stack
) -> list[Stack]:
    """Run each block that some device takes, and give every device the results of its own block."""
    blocks = instruction.attributes.blocks
    # XLA clamps the number of a branch.
    branch_of_device = [
        min(max(way, 0), len(blocks) - 1) for way in _branch_numbers(run, instruction, which)
    ]
    results_of_branch = {way: run_block(run, blocks[way], stacks) for way in set(branch_of_device)}
    count = len(instruction.results)
    return [
        _select_blocks(
            branch_of_device, {way: results_of_branch[way][k] for way in results_of_branch}
        )
        for k in range(count)
    ]


def _branch_numbers(run: HostRun, instruction: Instruction, stack: Stack) -> list[int]:
    """Return the number of the branch that each device takes.

    Args:
      stack: the operand with this number, on every device.

    Raises:
      ProgramError: outside of a manual region, devices take different branches.
    """
    branches = [int(block) for block in stack]
    # Outside of manual regions all devices run one branch; otherwise some would miss a collective.
    if len(set(branches)) > 1 and not run.manual:
        raise ProgramError(
            f"{run.place(instruction)}: devices take different branches: {sorted(set(branches))}."
        )
    return branches


def _select_blocks(ways: list[int], stacks: Mapping[int, Stack] | Sequence[Stack]) -> Stack:
    """Return, for each device, its block of the stack that its branch number selects.

    Args:
      ways: the branch number per mesh position.
      stacks: by branch number, the blocks of all positions.
    """
    return [stacks[way][position] for position, way in enumerate(ways)]


@simulates(Manual)
def _manual(run: HostRun, instruction: Instruction[Manual], *stacks: Stack) -> list[Stack]:
    return run_block(replace(run, manual=True), instruction.attributes.body, stacks)


def _stack_outputs(
    run: HostRun, instruction: Instruction[Loop], outputs: dict[int, list[Stack]]
) -> list[Stack]:
    """Stack the outputs of all iterations on a new leading dimension; return a stack per output.

    Args:
      outputs: per iteration, the stacks of its outputs.
    """
    a = instruction.attributes
    indices = instruction.results[a.num_carry :]
    # Without an iteration there is no output to take the shape from.
    if not a.length:
        locals_ = [run.program.locals[index] for index in indices]
        empty_blocks = [zeros(local.shape, local.dtype) for local in locals_]
        return [[block] * len(run.positions) for block in empty_blocks]
    # `by_word` also stacks types that numpy does not have, such as random keys.
    return [
        [
            by_word(lambda *x: [np.stack(x)], *(outputs[i][k][position] for i in range(a.length)))[
                0
            ]
            for position in run.positions
        ]
        for k in range(len(indices))
    ]
