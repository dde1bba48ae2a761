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
from shardalg.lower.around_xla import repeated_collectives
from shardalg.lower.axes import Axes
from shardalg.spmd.instruction import Attributes, Block, Instruction
from shardalg.spmd.instructions import Apply, Control
from shardalg.spmd.local import Start
from shardalg.spmd.program import SpmdProgram

SCOPE = "at_v"
"""The prefix of an instruction's scope, before the number of its first result."""
Array = Any
A = TypeVar("A", bound=Attributes)
Operands = ParamSpec("Operands")


@dataclass(frozen=True)
class Emitter:
    """The context in which every instruction is emitted.

    Attributes:
      axes: names of the mesh axes along each digit.
      tiled: whether collectives are tiled along any dimension, and repeated collectives get
        barriers so that XLA does not merge them. False on CPU, whose compiler drops barriers before
        it merges operators.
    """

    program: SpmdProgram
    graph: Graph
    axes: Axes
    tiled: bool

    def partition_id(self, digits: Digits) -> Array:
        """Return the partition id along `digits` of the device that executes; 0 for no digits."""
        names = self.axes.names(digits)
        return lax.axis_index(names) if names else 0

    def emit(self, instruction: Instruction) -> Callable[..., list[Array]]:
        """Return the function that emits an instruction.

        An instruction that moves elements gets random keys as arrays of their words, because
        collectives cannot send keys.
        """
        emit = EMIT[type(instruction.attributes)]
        # Operators need random keys with their type; only other instructions get the words.
        if isinstance(instruction.attributes, Apply | Control):
            return emit
        return lambda emitter, it, *operands: by_word(partial(emit, emitter, it), *operands)

    def rotated(self, digits: Digits, x: Array, hop: int) -> Array:
        """Return the block of another device: the one whose id along `digits` is larger by `hop`.

        Ids count modulo the size of the group. `x` is the device's own block.
        """
        # Every group of positions that differ in `digits` alone is a ring of its own.
        at, n = {}, parts(digits)
        for p in range(self.program.mesh.size):
            group = p - sum(digit.at(p) * digit.stride for digit in digits)
            at[group, partition_id(digits, p)] = p
        pairs = [(at[group, (number + hop) % n], p) for (group, number), p in at.items()]
        # `ppermute` numbers devices in the order of the mesh, in whichever order axes are named.
        return lax.ppermute(x, self.axes.all_names, pairs)

    def start(self, start: Start) -> Array:
        """Return the element number that `start` has on the device that executes."""
        return start.of({name: self.partition_id(digits) for name, digits in start.digits})


EMIT: dict[type[Attributes], Callable[..., list[Array]]] = {}
"""The emitting function of each kind of instruction: `(emitter, instruction, *operands)`."""

Emit = Callable[Concatenate[Emitter, Instruction[A], Operands], list[Array]]


def emits(kind: type[A]) -> Callable[[Emit[A, Operands]], Emit[A, Operands]]:
    """Return a decorator that registers the function that emits a kind of instruction."""

    def register(emit: Emit[A, Operands]) -> Emit[A, Operands]:
        EMIT[kind] = emit
        return emit

    return register


def run_block(emitter: Emitter, block: Block, env: dict[int, Array]) -> list[Array]:
    """Emit the instructions of `block` and return the arrays of its results.

    A collective that repeats an earlier one, to save memory in between, gets an optimization
    barrier before it: otherwise the compiler would merge it with the earlier one.

    Args:
      env: array per local; it has the block's arguments, and gets all other locals.
    """
    # The CPU compiler drops barriers before it merges operators, so they would be useless there.
    again = repeated_collectives(emitter.graph, block) if emitter.tiled else {}
    for position, instruction in enumerate(block.instructions):
        if position in again:
            # The barrier delays the repeated collective: no value exists before all of them do.
            held = sorted({*instruction.operands, *again[position]})
            env.update(zip(held, lax.optimization_barrier([env[i] for i in held]), strict=True))
        operands = [env[index] for index in instruction.operands]
        emit = emitter.emit(instruction)
        # Profiles and compiled collectives are assigned to instructions by this scope.
        with named_scope(f"{SCOPE}{instruction.results[0]}" if instruction.results else ""):
            made = emit(emitter, instruction, *operands)
        env.update(zip(instruction.results, made, strict=True))
    return [env[index] for index in block.results]
