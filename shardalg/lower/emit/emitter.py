"""The context of emission, and the table of functions that emit each kind of instruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from jax import lax, named_scope

from shardalg.algebra.digits import Digits, partition_id, parts
from shardalg.graph.evaluate import by_word
from shardalg.graph.ir import Graph
from shardalg.lower.around_xla import repeated
from shardalg.lower.axes import Axes
from shardalg.spmd.instruction import Attributes, Block, Instruction
from shardalg.spmd.instructions import Apply, Control
from shardalg.spmd.local import Start
from shardalg.spmd.program import SpmdProgram

# The prefix of an instruction's scope, before the number of its first result.
SCOPE = "at_v"
Array = Any
A = TypeVar("A", bound=Attributes)
Operands = ParamSpec("Operands")


@dataclass(frozen=True)
class Emitter:
    """The context in which every instruction is emitted.

    Attributes:
      tiled: whether collectives are tiled along any dimension, and copies that are made twice are
        kept apart (False on CPU, whose compiler drops barriers before it merges operators).
    """

    program: SpmdProgram
    graph: Graph
    axes: Axes
    tiled: bool

    def partition_id(self, digits: Digits) -> Array:
        """Partition id of the device that executes."""
        names = self.axes.names(digits)
        return lax.axis_index(names) if names else 0

    def emit(self, instruction: Instruction) -> Callable[..., list[Array]]:
        """Return the function that emits an instruction; moves of random keys move their words."""
        emit = EMIT[type(instruction.attributes)]
        # Operators take random keys as they are; moves send their words.
        if isinstance(instruction.attributes, Apply | Control):
            return emit
        return lambda emitter, it, *operands: by_word(partial(emit, emitter, it), *operands)

    def rotated(self, digits: Digits, x: Array, hop: int) -> Array:
        """Return the block of the group's member that is `hop` places further."""
        # A group is the set of positions that differ in `digits` alone.
        at, n = {}, parts(digits)
        for p in range(self.program.mesh.size):
            group = p - sum(digit.at(p) * digit.stride for digit in digits)
            at[group, partition_id(digits, p)] = p
        pairs = [(at[group, (number + hop) % n], p) for (group, number), p in at.items()]
        # permutes count along the axes of the mesh, in whichever order these are named
        return lax.ppermute(x, self.axes.all_names, pairs)

    def start(self, start: Start) -> Array:
        """Return the element number on the device that executes."""
        return start.of({name: self.partition_id(digits) for name, digits in start.digits})


EMIT: dict[type[Attributes], Callable[..., list[Array]]] = {}
"""The emitting function of each kind of instruction: `(emitter, instruction, *operands)`."""

Emit = Callable[Concatenate[Emitter, Instruction[A], Operands], list[Array]]


def emits(kind: type[A]) -> Callable[[Emit[A, Operands]], Emit[A, Operands]]:
    """Register what emits a kind of instruction as `jax.lax` calls."""

    def register(emit: Emit[A, Operands]) -> Emit[A, Operands]:
        EMIT[kind] = emit
        return emit

    return register


def run_block(emitter: Emitter, block: Block, env: dict[int, Array]) -> list[Array]:
    """Emit `block` with its arguments in `env`; the values of its results."""
    # The CPU compiler drops barriers before it merges operators, so they would be useless there.
    again = repeated(emitter.graph, block) if emitter.tiled else {}
    for position, instruction in enumerate(block.instructions):
        if position in again:
            # None of these values exists before all of them do.
            held = sorted({*instruction.operands, *again[position]})
            env.update(zip(held, lax.optimization_barrier([env[i] for i in held]), strict=True))
        operands = [env[index] for index in instruction.operands]
        emit = emitter.emit(instruction)
        # Profiles and compiled collectives are assigned to instructions by this scope.
        with named_scope(f"{SCOPE}{instruction.results[0]}" if instruction.results else ""):
            made = emit(emitter, instruction, *operands)
        env.update(zip(instruction.results, made, strict=True))
    return [env[index] for index in block.results]
