"""Instructions: what each kind says of itself, and what stands around it in a program.

A kind is a frozen class of attributes in `instructions/`. What it does is written three times, each
on its own, since that is what makes them evidence: `spmd/host` (simulate), `lower/emit` (run),
`verify/moves` (prove).

Why an instruction is there: a value, from which tables and listings print their words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, TypeGuard, TypeVar

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ProgramError
from shardalg.spmd.identity import identity


class Purpose(Enum):
    """What an instruction is there for. The value is the words, behind the operator's name."""

    NONE = ""
    NEEDS = "needs"
    GIVES = "gives"
    LEAVES_SUMS = "leaves partial sums"
    READS_WINDOW = "reads a window"
    COMBINES = "combines"
    MOVES_BLOCKS = "moves borders of blocks"
    LOOP_TAKES = "the loop takes"
    BODIES_TAKE = "the bodies take"
    REGION_TAKES = "the region takes"
    BODY_RESULT = "the body hands on"
    RESULT = "the result is"
    ARGUMENT_ORDER = "the argument is in another order of the devices"
    RESULT_ORDER = "the result is in another order of the devices"
    WRITTEN = "the function asks for it"


class Why(NamedTuple):
    """Why an instruction is there. A named tuple: a plan makes tens of thousands.

    Attributes:
      purpose: what it is for; operator: for which, "" at a border.
      path: of a step between two layouts, the layout before and after it.
      chain: a number for the steps from one layout to another, None outside of such a chain.

    >>> print(Why(Purpose.NEEDS, "dot_general"))
    dot_general needs
    """

    purpose: Purpose = Purpose.NONE
    operator: str = ""
    path: tuple[Sharding, Sharding] | None = None
    chain: int | None = None

    def along(self, path: tuple[Sharding, Sharding] | None, chain: int) -> Why:
        """The same for one step of a chain."""
        return Why(self.purpose, self.operator, path, chain)

    def is_chained(self, other: Why) -> bool:
        """Whether two steps for one node belong to one chain of moves."""
        return (self.chain, self.purpose, self.operator) == (
            other.chain,
            other.purpose,
            other.operator,
        )

    def __str__(self) -> str:
        words = f"{self.operator} {self.purpose.value}" if self.operator else self.purpose.value
        if self.path is None:
            return words
        before, after = self.path
        return f"{words}: {before.text()} to {after.text()}"


UNSTATED = Why()
"""Of an instruction that no operator and no border asks for."""


Shape = tuple[int, ...]
Type = tuple[Shape, str]
"""Local shape and item type."""


class Attributes:
    """What an instruction does, beside its operands: the base of every kind.

    Unless a kind says otherwise, it has one operand, and one result of its type.

    Attributes:
      of_one_type: whether all operands have one item type.
      lacks_dim: whether the first operand lacks the dimension that is spoken of.
    """

    __slots__ = ()
    of_one_type: ClassVar[bool] = False
    lacks_dim: ClassVar[bool] = False

    def text(self, mesh: Mesh) -> str:
        """The kind and what it says, as a program is printed."""
        raise NotImplementedError(type(self).__name__)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        """Local shape of each result, from the operands'; None where these do not fit together."""
        return first

    def arity(self, rank: int, count: int) -> int:
        """How many operands it has, given the rank of the first and how many there are."""
        return 1

    def followed(self, count: int) -> Sequence[int]:
        """Per result the operand whose item type it has, given how many operands there are."""
        return (0,)

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that it speaks of; of the operand, but for `lacks_dim`."""
        return ()

    @property
    def cut(self) -> tuple[int, Digits] | None:
        """(dimension, digits) whose parts must divide the operand."""
        return None

    @property
    def padding(self) -> str | None:
        """The way to combine whose identity is put where there is no element."""
        return None

    @property
    def bodies(self) -> tuple[Block, ...]:
        """The blocks inside."""
        return ()

    def with_bodies(self, blocks: Sequence[Block]) -> Attributes:
        """The same around other blocks."""
        return self

    @property
    def executions(self) -> int:
        """How often its blocks run; where nobody knows, and of branches, each counts once."""
        return 1

    @property
    def executions_of_bodies(self) -> tuple[int, ...]:
        """How often each of its blocks runs."""
        return (self.executions,) * len(self.bodies)


class Along(Attributes):
    """What speaks of one dimension, `dim`."""

    __slots__ = ()
    dim: int

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimension alone."""
        return (self.dim,)


class Operator(Attributes):
    """What is run as the operator of a node; all other kinds move what it reads or makes.

    Attributes:
      loops: the digits on each sharded loop of the node's rule.
    """

    __slots__ = ()
    loops: tuple[tuple[str, Digits], ...]


class Collective(Attributes):
    """What moves blocks between the devices along `digits`.

    Attributes:
      sent_as: the collective on the wire, a name in `costs/collectives.py`.
    """

    __slots__ = ()
    digits: Digits
    sent_as: ClassVar[str]

    @property
    def sends(self) -> int:
        """How many collectives it is on the wire: none in a group of one."""
        return 1 if self.digits else 0

    @property
    def stays(self) -> bool:
        """Whether every device sends to itself alone."""
        return False

    @property
    def choices(self) -> int:
        """Of how many operands a device sends one at a time; all of them move where it is one."""
        return 1

    def moving(self, results: int) -> int | None:
        """How many operands move, given the number of results; None for all."""
        return None


if TYPE_CHECKING:  # a bare `Instruction` is one of any kind, which only a checker needs to know
    from typing_extensions import TypeVar as WithDefault

    A_co = WithDefault("A_co", bound=Attributes, covariant=True, default=Attributes)
else:
    A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Instruction(Generic[A_co]):
    """One step of a block; `Instruction[AllGather]` is one of a kind.

    Attributes:
      operands, results: indices of `Local`s.
      node: the graph node it was emitted for; None at the program's border.
      phase: "forward", "backward" or "update".
      role: of the value that moves: "activation", "weight", "gradient", "loss",
        "constant", "optimizer_state" or "unknown".
      why: what it is there for; of a step between two layouts, which chain of moves it is part of.
    """

    attributes: A_co
    operands: tuple[int, ...]
    results: tuple[int, ...]
    node: int | None
    phase: str = "forward"
    role: str = "unknown"
    why: Why = UNSTATED


A = TypeVar("A", bound=Attributes)


def is_a(instruction: Instruction, kind: type[A]) -> TypeGuard[Instruction[A]]:
    """Whether an instruction is of a kind."""
    return type(instruction.attributes) is kind


@dataclass(frozen=True)
class Block:
    """A list of instructions with arguments and results (indices of `Local`s)."""

    arguments: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]

    @cached_property
    def kinds(self) -> frozenset[type[Attributes]]:
        """The kinds of the instructions in this block and in all blocks inside of it."""
        found = {type(one.attributes) for one in self.instructions}
        if all(kind.bodies is Attributes.bodies for kind in found):
            return frozenset(found)
        bodies = (body for one in self.instructions for body in one.attributes.bodies)
        return frozenset(found.union(*(body.kinds for body in bodies)))


def infer_types(attributes: Attributes, operands: Sequence[Type]) -> list[Type]:
    """The type of every result.

    >>> from shardalg.spmd.instructions import Slice
    >>> infer_types(Slice(0, 1, 4), [((8, 3), "int8")])
    [((4, 3), 'int8')]

    Raises:
      ProgramError: operands that such an instruction cannot have.
    """
    count, shapes = len(operands), [shape for shape, _ in operands]
    wanted = attributes.arity(len(shapes[0]) if shapes else 0, count)
    if count != wanted:
        raise ProgramError(f" takes {wanted} operands, has {count}.")
    _check_dims(attributes, shapes[0])
    shape = attributes.result_shape(*shapes)
    types = [dtype for _, dtype in operands]
    if shape is None or (attributes.of_one_type and len(set(types)) > 1):
        raise ProgramError(f" joins {[*map(list, operands)]}, which are not alike.")
    if attributes.padding is not None:
        identity(attributes.padding, types[0])
    return [(shape, types[number]) for number in attributes.followed(count)]


def _check_dims(attributes: Attributes, shape: Shape) -> None:
    rank = len(shape) + attributes.lacks_dim
    for dim in attributes.dims:
        if not 0 <= dim < rank:
            raise ProgramError(f" speaks of dimension {dim} of {rank}.")
    if attributes.cut is not None:
        dim, digits = attributes.cut
        count, size = parts(digits), shape[dim]
        if size % count:
            what = f" cuts dimension {dim} of size {size} into {count} blocks: pad it first."
            raise ProgramError(what)
