"""A JAX primitive on local operands, and instructions with bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.graph.ir import Params
from shardalg.spmd.instruction import Attributes, Block, Operator
from shardalg.spmd.local import axes_text


@dataclass(frozen=True, slots=True)
class Apply(Operator):
    """Run a JAX primitive on local operands.

    The primitive determines the types of the results, and the locals declare them.

    Attributes:
      primitive: the name of the primitive. It may differ from the primitive of the node.
      params: the parameters that differ from the node's own (local shapes, dropped hints).
      loops: the digits on each sharded loop of the node's rule.
    """

    primitive: str
    params: Params = ()
    loops: tuple[tuple[str, Digits], ...] = ()

    def text(self, mesh: Mesh) -> str:
        loops = ", ".join(f"{name}@{axes_text(mesh, digits)}" for name, digits in self.loops)
        return self.primitive + (f" [{loops}]" if loops else "")


class Control(Attributes):
    """Base of the kinds that contain blocks of instructions, for example loops and branches."""

    __slots__ = ()

    @property
    def titles(self) -> tuple[str, ...]:
        """The words that a printed program has in front of each block, such as "condition"."""
        return ("body",)


@dataclass(frozen=True, slots=True)
class Loop(Control):
    """A scan: operands are (constants, initial carry, xs), results (carry, ys).

    Attributes:
      body: arguments (constants, carry, one of each xs), results (carry, one of each ys).
      length: number of iterations; `reverse`: from the last to the first.
    """

    body: Block
    num_consts: int
    num_carry: int
    length: int
    reverse: bool

    def text(self, mesh: Mesh) -> str:
        return f"loop {self.length} times" + (" in reverse" if self.reverse else "")

    @property
    def bodies(self) -> tuple[Block, ...]:
        return (self.body,)

    def with_bodies(self, blocks: Sequence[Block]) -> Loop:
        return replace(self, body=blocks[0])

    @property
    def executions(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True)
class While(Control):
    """Iterations while a predicate is true: operands (constants, initial carry), results (carry).

    Attributes:
      condition: arguments (its constants, carry); its result, the same on all devices, is
        the predicate.
      body: arguments (its constants, carry), results (carry).
      num_consts: number of constants of the condition, and of the body.
      iterations: number of executions of the body; None if it is unknown.
    """

    condition: Block
    body: Block
    num_consts: tuple[int, int]
    iterations: int | None = None

    def text(self, mesh: Mesh) -> str:
        return "while"

    @property
    def titles(self) -> tuple[str, ...]:
        return "condition", "body"

    @property
    def bodies(self) -> tuple[Block, ...]:
        return self.condition, self.body

    @property
    def executions_of_bodies(self) -> tuple[int, ...]:
        if self.iterations is None:
            return 1, 1
        return self.iterations + 1, self.iterations  # the last test of the condition fails

    def with_bodies(self, blocks: Sequence[Block]) -> While:
        return replace(self, condition=blocks[0], body=blocks[1])


@dataclass(frozen=True, slots=True)
class Branches(Control):
    """One of several blocks: operands are (its number, the arguments of every block).

    The number is the same on all devices, so that they meet in the collectives of one block.
    """

    blocks: tuple[Block, ...]

    def text(self, mesh: Mesh) -> str:
        return f"one of {len(self.blocks)} blocks"

    @property
    def titles(self) -> tuple[str, ...]:
        return tuple(f"block {number}" for number in range(len(self.blocks)))

    @property
    def bodies(self) -> tuple[Block, ...]:
        return self.blocks

    def with_bodies(self, blocks: Sequence[Block]) -> Branches:
        return Branches(tuple(blocks))


@dataclass(frozen=True, slots=True)
class Manual(Control):
    """The body of a `jax.shard_map`: each device runs it on its own blocks.

    Operands and results are blocks, in the shardings of the region's specs. Inside, values may
    differ between devices, and the collectives are the user's.

    Attributes:
      body: the instructions.
      digits: digits of the manual axes.
    """

    body: Block
    digits: Digits

    def text(self, mesh: Mesh) -> str:
        return f"manual axes={axes_text(mesh, self.digits)}"

    @property
    def bodies(self) -> tuple[Block, ...]:
        return (self.body,)

    def with_bodies(self, blocks: Sequence[Block]) -> Manual:
        return replace(self, body=blocks[0])
