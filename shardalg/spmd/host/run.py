"""A program that runs on the host, and the registry of the functions that simulate instructions.

The lowering shares only the program itself and JAX's primitives with this code: collectives are
plain numpy over the groups of positions that differ in the collective's digits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from shardalg.algebra.digits import Digits, partition_id
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ProgramError
from shardalg.graph.ir import Graph
from shardalg.spmd.host.blocks import Stack, block_ids, by_word, groups, in_order, valid_slices
from shardalg.spmd.instruction import Attributes, Block, Instruction
from shardalg.spmd.instructions import Apply, Control
from shardalg.spmd.program import SpmdProgram

A = TypeVar("A", bound=Attributes)
Operands = ParamSpec("Operands")


@dataclass(frozen=True)
class HostRun:
    """The program that runs, and the graph whose primitives it applies.

    Attributes:
      constants: the constants with which the program and each of its blocks start.
      manual: whether the instructions that run now are in a manual region, where all values may
        differ between devices.
    """

    program: SpmdProgram
    graph: Graph
    constants: Mapping[int, Stack] = field(default_factory=dict)
    manual: bool = False

    @property
    def positions(self) -> range:
        """Every device position."""
        return range(self.program.mesh.size)

    def place(self, instruction: Instruction) -> str:
        """Return the instruction in words, for messages."""
        node = instruction.node
        node_results = self.graph.nodes[node].results if node is not None else ()
        name = f" for {self.graph.values[node_results[0]].name}" if node_results else ""
        results = ", ".join(repr(self.program.locals[r]) for r in instruction.results)
        # Attributes of an instruction with bodies would print the bodies.
        attributes = (
            "" if isinstance(instruction.attributes, Control) else f" ({instruction.attributes!r})"
        )
        return f"{type(instruction.attributes).__name__} -> {results}{name}{attributes}"


SIMULATE: dict[type[Attributes], Callable[..., list[Stack]]] = {}
"""Function that gives the results of a kind: `(run, instruction, *stacks)`."""

Simulate = Callable[Concatenate[HostRun, Instruction[A], Operands], list[Stack]]
OnBlocks = Callable[Concatenate[A, Operands], Stack]


def simulates(kind: type[A]) -> Callable[[Simulate[A, Operands]], Simulate[A, Operands]]:
    """Register the function that simulates a kind of instruction."""

    def register(simulate: Simulate[A, Operands]) -> Simulate[A, Operands]:
        SIMULATE[kind] = simulate
        return simulate

    return register


def on_blocks(kind: type[A]) -> Callable[[OnBlocks[A, Operands]], OnBlocks[A, Operands]]:
    """Register the function that gives a kind's only result from its attributes and operands."""

    def register(function: OnBlocks[A, Operands]) -> OnBlocks[A, Operands]:
        """Store `simulate`, a wrapper of the function, and return the function unchanged."""

        def simulate(
            run: HostRun,
            instruction: Instruction[A],
            *stacks: Operands.args,
            **named: Operands.kwargs,
        ) -> list[Stack]:
            """Return the function's result as a list; errors name the instruction."""
            try:
                return [function(instruction.attributes, *stacks, **named)]
            except ProgramError as error:
                # The function knows only the attributes: add the instruction to its error.
                raise ProgramError(f"{run.place(instruction)}: {error}") from None

        SIMULATE[kind] = simulate
        return function

    return register


def map_blocks(function: Callable[..., np.ndarray], *stacks: Stack) -> Stack:
    """Return `function(position, *blocks)` for every position."""
    return [
        function(position, *blocks) for position, blocks in enumerate(zip(*stacks, strict=True))
    ]


def exchange(digits: Digits, stack: Stack, function: Callable[[Stack], Stack]) -> Stack:
    """Apply a function to the blocks of each group of devices; return the block of every device.

    Args:
      digits: devices that differ only in these digits are a group.
      stack: the block of every device.
      function: function from the blocks of a group to the new blocks, both by partition id.
    """
    result: Stack = [stack[0]] * len(stack)
    for group in groups(digits, len(stack)):
        # `groups` lists members by partition id, and `function` returns their blocks in this order.
        for position, block in zip(group, function([stack[p] for p in group]), strict=True):
            result[position] = block
    return result


def run_block(run: HostRun, block: Block, arguments: Iterable[Stack]) -> list[Stack]:
    """Run the instructions of a block on the host, and return the block's results.

    Args:
      run: the program that runs, with its constants.
      arguments: for each argument of the block, its block on every device.
    """
    # A body reads constants of the program directly.
    env = {**run.constants, **dict(zip(block.arguments, arguments, strict=True))}
    for instruction in block.instructions:
        operands = [env[index] for index in instruction.operands]
        simulate = partial(SIMULATE[type(instruction.attributes)], run, instruction)
        # An instruction that only moves elements runs in numpy, which has no random keys, so it
        # moves the words of a key (`by_word`). JAX's primitives take keys as they are.
        whole = isinstance(instruction.attributes, Apply | Control)
        stacks = simulate(*operands) if whole else by_word(simulate, *operands)
        for index, stack in zip(instruction.results, stacks, strict=True):
            _check_result(run, instruction, index, stack)
            env[index] = stack
    return [env[index] for index in block.results]


def _check_result(run: HostRun, instruction: Instruction, index: int, stack: Stack) -> None:
    """Raise ProgramError unless local `index` has its declared shape, and its copies are equal.

    Args:
      index: the number of the local.
      stack: its block at every position.
    """
    local = run.program.locals[index]
    if stack[0].shape != local.shape:
        raise ProgramError(
            f"{run.place(instruction)} makes blocks of shape {stack[0].shape}; the program "
            f"declares {local.shape} for value {index}."
        )
    if local.origin is None or run.manual:
        # Only graph values must agree: an intermediate of an emission may differ between devices.
        return
    check_copies(run, stack, local.sharding, f"{run.place(instruction)} leaves")


def check_copies(run: HostRun, stack: Stack, sharding: Sharding, what: str) -> None:
    """Raise unless devices that should hold copies of one block hold equal ones.

    Raises:
      ProgramError: the copies differ; `what` begins the message, for example "the program returns".
    """
    # The sharding may be on a mesh in another device order, in which the same position is another
    # device.
    stack = in_order(stack, run.program.mesh, sharding.mesh)
    first: dict[tuple[int, ...], int] = {}
    for position in run.positions:
        # Devices with the same block of the same partial sum must agree; padding is not compared.
        key = (*block_ids(sharding, position), partition_id(sharding.unreduced, position))
        other = first.setdefault(key, position)
        inside = valid_slices(sharding, position, stack[position].shape)
        if not _agree(stack[other], stack[position], inside):
            raise ProgramError(
                f"{what} different copies of a value, laid out as {sharding.text()}: positions "
                f"{other} and {position} should hold the same block and differ by "
                f"{_difference(stack[other][inside], stack[position][inside])}."
            )


def _agree(first: np.ndarray, second: np.ndarray, inside: tuple[slice, ...]) -> bool:
    """Return whether two blocks hold equal elements, floats up to rounding.

    Args:
      inside: the part of the blocks that is not padding.
    """
    if first is second:
        return True
    # Padding may hold different garbage on each device.
    a, b = first[inside], second[inside]
    # JAX's types of random keys are no numpy types; keys are equal or not.
    if not isinstance(a.dtype, np.dtype):
        return bool((a == b).all())
    if a.dtype.kind in "biu" or np.array_equal(a, b):
        return bool(np.array_equal(a, b))
    # Replicated computations may round differently, for example after different reduction orders.
    wide_type = np.complex128 if a.dtype.kind == "c" else np.float64
    return bool(
        np.allclose(a.astype(wide_type), b.astype(wide_type), rtol=1e-5, atol=1e-6, equal_nan=True)
    )


def _difference(first: np.ndarray, second: np.ndarray) -> str:
    """Return the largest difference in words; `nan` if one has a NaN and the other a number."""
    if not isinstance(first.dtype, np.dtype):
        return "other random keys"
    wide_type = np.complex128 if first.dtype.kind == "c" else np.float64
    a, b = first.astype(wide_type), second.astype(wide_type)
    with np.errstate(invalid="ignore"):  # inf - inf, whose result is not used
        # Two NaN and two equal infinities do not differ, though their difference is NaN.
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
        return f"up to {float(difference.max())}"
