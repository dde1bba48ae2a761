"""Instructions: the interface of a kind, and the context of an instruction in a program.

A kind is a frozen class of attributes in `instructions/`. Its meaning is written three times,
independently, because that makes the copies evidence for each other: `spmd/host` (simulate),
`lower/emit` (run), `verify/moves` (prove).

`Why` is the reason for an instruction, from which tables and listings print their words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeGuard, TypeVar, cast

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ProgramError
from shardalg.spmd.identity import identity


class Purpose(Enum):
    """The reason why the planner emitted an instruction, as a phrase for listings.

    A listing prints the operator's name and the phrase, for example "dot_general needs".
    """

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
    """Reason for an instruction.

    It is a named tuple, because a plan makes tens of thousands.

    Attributes:
      purpose: the purpose; operator: the operator that it serves, "" at a border.
      path: for a step between two shardings, the sharding before and after it.
      chain: a number shared by the steps from one sharding to another, None outside such a chain.

    >>> print(Why(Purpose.NEEDS, "dot_general"))
    dot_general needs
    """

    purpose: Purpose = Purpose.NONE
    operator: str = ""
    path: tuple[Sharding, Sharding] | None = None
    chain: int | None = None

    def along(self, path: tuple[Sharding, Sharding] | None, chain: int) -> Why:
        """Return this reason for one step of a chain of moves.

        Args:
          path: the shardings before and after the step; None if there are none.
          chain: the number of the chain, which all of its steps share.
        """
        return Why(self.purpose, self.operator, path, chain)

    def is_chained(self, other: Why) -> bool:
        """Return whether two instructions of one node belong to the same chain of moves."""
        return (self.chain, self.purpose, self.operator) == (
            other.chain,
            other.purpose,
            other.operator,
        )

    def __str__(self) -> str:
        """Return the reason in words, such as an operator's name, a purpose and two shardings."""
        words = f"{self.operator} {self.purpose.value}" if self.operator else self.purpose.value
        if self.path is None:
            return words
        before, after = self.path
        return f"{words}: {before.text()} to {after.text()}"


UNSTATED = Why()
"""Reason of an instruction that no operator and no border needs."""


Shape = tuple[int, ...]
Type = tuple[Shape, str]
"""Local shape and item type."""


class Attributes:
    """Base of every kind: the meaning of an instruction, apart from its operands.

    By default a kind has one operand, and one result of the same type.

    Attributes:
      of_one_type: whether all operands must have one item type.
      lacks_dim: whether `dims` is a dimension of the result that the first operand lacks.
    """

    __slots__ = ()
    of_one_type: ClassVar[bool] = False
    lacks_dim: ClassVar[bool] = False

    def text(self, mesh: Mesh) -> str:
        """Return the kind and its attributes as they appear in a printed program."""
        raise NotImplementedError(type(self).__name__)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        """Return the local shape of each result, or None if the operands do not fit together."""
        return first

    def arity(self, rank: int, count: int) -> int:
        """Return how many operands this kind of instruction needs: 1, unless a kind overrides it.

        Args:
          rank: the rank of the first operand.
          count: how many operands the instruction has.
        """
        return 1

    def followed(self, count: int) -> Sequence[int]:
        """Return, for each result, the number of the operand whose item type the result has.

        Args:
          count: the number of operands.
        """
        return (0,)

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions in the instruction's attributes.

        They are numbers of the operand's dimensions; if `lacks_dim` is True, of the result's.
        """
        return ()

    @property
    def cut(self) -> tuple[int, Digits] | None:
        """The dimension that is cut into blocks, and its digits; None if no dimension is cut.

        The operand's size must be divisible by the number of blocks.
        """
        return None

    @property
    def padding(self) -> str | None:
        """The combination, such as "sum", whose identity fills places without elements; or None."""
        return None

    @property
    def bodies(self) -> tuple[Block, ...]:
        """The blocks of instructions inside this instruction, for example a loop's body."""
        return ()

    def with_bodies(self, blocks: Sequence[Block]) -> Attributes:
        """Return the same instruction with other blocks."""
        return self

    @property
    def executions(self) -> int:
        """Number of times that the blocks are run; 1 if it is unknown, and for branches."""
        return 1

    @property
    def executions_of_bodies(self) -> tuple[int, ...]:
        """Number of executions of each block."""
        return (self.executions,) * len(self.bodies)


class Along(Attributes):
    """Base of the instructions that work along one dimension, `dim`."""

    __slots__ = ()
    dim: int

    @property
    def dims(self) -> tuple[int, ...]:
        """The only dimension that the instruction names, as a tuple."""
        return (self.dim,)


class Operator(Attributes):
    """Base of the kinds that run a node's operator; all other kinds move its operands or results.

    Attributes:
      loops: the digits on each sharded loop of the node's rule.
    """

    __slots__ = ()
    loops: tuple[tuple[str, Digits], ...]


class Collective(Attributes):
    """Base of the kinds that move blocks between the devices along `digits`.

    Attributes:
      sent_as: the collective that is sent, a name in `costs/collectives.py`.
    """

    __slots__ = ()
    digits: Digits
    sent_as: ClassVar[str]

    def with_digits(self, rename: Callable[[Digits], Digits]) -> Collective:
        """Return the same collective along renamed digits, for example digits of named sizes.

        Args:
          rename: returns the new digits for the old ones.
        """
        kind: Any = self  # every kind is a dataclass, its base is none
        return cast(Collective, replace(kind, digits=rename(self.digits)))

    @property
    def sends(self) -> int:
        """Number of collectives that are sent: none in a group of one."""
        return 1 if self.digits else 0

    @property
    def stays(self) -> bool:
        """True if every device sends only to itself."""
        return False

    @property
    def choices(self) -> int:
        """The number of operands among which a device chooses the one that it sends.

        It is 1 if a device sends all operands.
        """
        return 1

    @property
    def routes(self) -> tuple[tuple[Iterable[tuple[int, int]], ...], ...]:
        """For each permute that is sent, the pairs (source, target) of positions for each operand.

        Positions are those of devices in the mesh. A collective that is no permute has ().
        """
        return ()

    def moving(self, results: int) -> int | None:
        """Return the number of operands that are sent, counted from the first; None if all are.

        The default of this base class is None.

        Args:
          results: the number of results.
        """
        return None


if TYPE_CHECKING:  # `Instruction` without a parameter has any kind, which only a checker uses
    from typing_extensions import TypeVar as WithDefault

    A_co = WithDefault("A_co", bound=Attributes, covariant=True, default=Attributes)
else:
    A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Instruction(Generic[A_co]):
    """One step of a block; `Instruction[AllGather]` is one of that kind.

    Attributes:
      operands, results: indices of `Local`s.
      node: the graph node it was emitted for; None at the program's border.
      phase: "forward", "backward" or "update".
      role: role of the value that moves: "activation", "weight", "gradient", "loss",
        "constant", "optimizer_state" or "unknown".
      why: its reason; for a step between two shardings, also its chain of moves.
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
    """Return whether an instruction has attributes of one class, such as `AllGather`."""
    return type(instruction.attributes) is kind


@dataclass(frozen=True)
class Block:
    """A list of instructions with arguments and results (indices of `Local`s)."""

    arguments: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]

    @cached_property
    def kinds(self) -> frozenset[type[Attributes]]:
        """The kinds of the instructions in this block and in all blocks inside it."""
        own_kinds = {type(one.attributes) for one in self.instructions}
        # Most blocks have no control flow, so their bodies need not be visited.
        if all(kind.bodies is Attributes.bodies for kind in own_kinds):
            return frozenset(own_kinds)
        bodies = (body for one in self.instructions for body in one.attributes.bodies)
        return frozenset(own_kinds.union(*(body.kinds for body in bodies)))


def infer_types(attributes: Attributes, operands: Sequence[Type]) -> list[Type]:
    """Return the type (shape, dtype) of every result.

    Args:
      attributes: the attributes of an instruction, such as `Slice(0, 1, 4)`.
      operands: the types of its operands.

    Raises:
      ProgramError: such an instruction cannot have these operands.

    >>> from shardalg.spmd.instructions import Slice
    >>> infer_types(Slice(0, 1, 4), [((8, 3), "int8")])
    [((4, 3), 'int8')]
    """
    count, shapes = len(operands), [shape for shape, _ in operands]
    # The number of operands comes first: `result_shape` relies on it.
    num_operands = attributes.arity(len(shapes[0]) if shapes else 0, count)
    if count != num_operands:
        raise ProgramError(f" takes {num_operands} operands, has {count}.")
    _check_dims(attributes, shapes[0])
    shape = attributes.result_shape(*shapes)
    types = [dtype for _, dtype in operands]
    if shape is None or (attributes.of_one_type and len(set(types)) > 1):
        raise ProgramError(f" has operands whose types do not match: {[*map(list, operands)]}.")
    if attributes.padding is not None:
        identity(attributes.padding, types[0])  # raises if the item type has no such number
    # All results of an instruction have one shape, so it is inferred once.
    return [(shape, types[number]) for number in attributes.followed(count)]


def _check_dims(attributes: Attributes, shape: Shape) -> None:
    """Raise unless the first operand has the dimensions that the attributes name and cut."""
    # An instruction may name a dimension that only its result has (`lacks_dim`).
    rank = len(shape) + attributes.lacks_dim
    for dim in attributes.dims:
        if not 0 <= dim < rank:
            raise ProgramError(f" names dimension {dim}, but there are {rank}.")
    if attributes.cut is not None:
        dim, digits = attributes.cut
        count, size = parts(digits), shape[dim]
        # An uneven dimension is padded by a `Resize` first, so that all pieces have one shape.
        if size % count:
            what = f" cuts dimension {dim} of size {size} into {count} blocks: pad it first."
            raise ProgramError(what)
