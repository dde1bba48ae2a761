"""One instruction with what its operands hold, and what is claimed of several kinds alike.

What a device counts: starts are whole numbers to a claim, and numbers of 32 bits to a device.

Whether an instruction reads the values that it should: those of its node, or of one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import numpy as np

from shardalg.algebra.digits import Digits, overlap, partition_ids, parts
from shardalg.algebra.halos.classes import Runs
from shardalg.algebra.mesh import Mesh
from shardalg.graph.ir import Graph, Node
from shardalg.merge.proofs.integers import (
    FloorQuotient,
    Formula,
    IntegerClaim,
    Number,
    PartitionId,
    Remainder,
    equal,
    implies,
    within,
)
from shardalg.spmd.instruction import A_co, Attributes, Collective, Instruction, Operator
from shardalg.spmd.instructions import (
    ArgReduce,
    CollectivePermute,
    Concatenate,
    Fold,
    HaloExchange,
    Join,
    MaskIndexed,
    Pairs,
    Regroup,
    Top,
    ValueAt,
    kinds,
)
from shardalg.spmd.local import Start
from shardalg.verify.contents import (
    Contents,
    DeclaredLocal,
    DimensionContents,
    Fill,
    at_member,
    fill_number,
    laid_out,
)
from shardalg.verify.report import Decided, Statement

LARGEST = 2**31 - 1
"""Of the type in which partition ids are counted."""


def counted(attributes: Attributes) -> Iterator[Decided]:
    """Of every start that a device works out, whether all numbers on the way to it fit.

    >>> from shardalg.algebra.affine import Index
    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.spmd.instructions import SliceAt
    >>> row = Index.of("o") * 2**30
    >>> start = Start(row // 2**29, (("o", (Digit(1, 4),)),))
    >>> [claim.holds for claim in counted(SliceAt(0, start, 2))]
    [False]
    """
    for one in fields(attributes):  # type: ignore[arg-type]  # every kind is a dataclass
        start = getattr(attributes, one.name)
        if isinstance(start, Start):
            words = f"{start.index} is worked out in 32 bits"
            yield Decided(words, max(largest(start)) <= LARGEST)
    wrong = [number for number in _sizes(attributes) if not 0 <= number <= LARGEST]
    if wrong:
        yield Decided(f"{wrong[0]} is counted in 32 bits", holds=False)


def _sizes(attributes: Attributes) -> Iterator[int]:
    """Sizes that places are compared with, and where the block behind the last one starts."""
    yield getattr(attributes, "size", 0)
    yield from getattr(attributes, "sizes", ())
    yield getattr(attributes, "block", 0) * parts(getattr(attributes, "digits", ()))


def largest(start: Start) -> tuple[int, ...]:
    """What no number on the way to a start exceeds."""
    index, counts = start.index, {name: parts(digits) for name, digits in start.digits}
    terms = sum(abs(c) * (counts[name] - 1) for name, c in index.terms)
    return terms + abs(index.constant) + abs(start.more), index.div, index.mod


MEMBER = "m"
X = Number.of("x")
Stated = tuple[str, Statement]


@dataclass(frozen=True)
class CheckedInstruction(Generic[A_co]):
    """An instruction with what its operands hold and the local that it makes.

    Attributes:
      filler: the second operand of a mask in words, where it fills with a value.
      number: of the result that is spoken of, and of the operand that it follows.
      count: of results.
    """

    mesh: Mesh
    attributes: A_co
    operands: tuple[Contents, ...]
    made: DeclaredLocal
    filler: str = ""
    number: int = 0
    count: int = 1

    @property
    def given(self) -> Contents:
        """What the operand holds that the result follows: the first one, mostly."""
        return self.operands[self.number]

    @property
    def said(self) -> Contents:
        """What the program says that the result holds."""
        return laid_out(self.made.sharding, self.made.shape, None)

    def claim(self, words: str, goal: Formula, **more: Any) -> IntegerClaim:
        """A claim about this instruction."""
        return IntegerClaim(words, self.mesh, goal, **more)


Result = tuple[Contents, list[Stated]]
"""What a result holds, and the claims on which that rests."""
Results = tuple[list[Result], list[Stated]]
"""The same of every result, and claims of all of them."""
MOVES: dict[type[Attributes], Callable[[Any], Results]] = {}
"""Per kind of instruction that is no operator and holds no blocks, what it makes of a step."""
A = TypeVar("A", bound=Attributes)


def moves(
    kind: type[A],
) -> Callable[
    [Callable[[CheckedInstruction[A]], Result]], Callable[[CheckedInstruction[A]], Result]
]:
    """Register what the one result of a kind holds."""

    def register(
        claim: Callable[[CheckedInstruction[A]], Result],
    ) -> Callable[[CheckedInstruction[A]], Result]:
        MOVES[kind] = lambda step: ([claim(step)], [])
        return claim

    return register


def moves_each(
    kind: type[A],
) -> Callable[
    [Callable[[CheckedInstruction[A]], Results]], Callable[[CheckedInstruction[A]], Results]
]:
    """Register what the results of a kind hold."""

    def register(
        claim: Callable[[CheckedInstruction[A]], Results],
    ) -> Callable[[CheckedInstruction[A]], Results]:
        MOVES[kind] = claim
        return claim

    return register


def with_dim(contents: Contents, dim: int, held: DimensionContents) -> Contents:
    """The contents with another dimension in place of one."""
    return replace(contents, dims=(*contents.dims[:dim], held, *contents.dims[dim + 1 :]))


def filled_with(step: CheckedInstruction, fill: Fill) -> Contents:
    """What is given, of its fills those alike: where two paddings meet, the last counts."""
    dtype = step.made.dtype
    number = fill_number(fill, dtype)

    def alike(other: Fill) -> bool:
        return other == fill or (number is not None and fill_number(other, dtype) == number)

    dims = tuple(
        replace(held, fill=held.fill if alike(held.fill) else None) for held in step.given.dims
    )
    return replace(step.given, dims=dims)


def members_agree(
    step: CheckedInstruction, digits: Digits, dims: tuple[int, ...]
) -> Iterator[Stated]:
    """Dimensions that a collective does not touch lie alike on the members of its group.

    Of those that it does touch, all that exists is held.
    """
    for dim, held in enumerate(step.given.dims):
        if dim in dims:
            yield from nothing_beyond(step, held)
            continue
        for own in begins(held):
            other = at_member(own, digits, MEMBER)
            if other != own:
                words = f"members agree on dimension {dim}"
                members = ((MEMBER, digits),)
                yield "delivers", step.claim(words, equal(other, own), members=members)


def crosses(attributes: Attributes, digits: Digits) -> bool:
    """Whether what a device gets comes from devices that differ from it in some of the digits.

    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.spmd.instructions import CollectivePermute
    >>> swap = CollectivePermute((Digit(1, 2),), ((0, 1), (1, 0), (2, 2), (3, 3)))
    >>> crosses(swap, (Digit(1, 2),)), crosses(swap, (Digit(2, 2),))
    (True, False)
    """
    if not digits or not isinstance(attributes, Collective):
        return False
    routes: list[Pairs | Runs] = []
    if isinstance(attributes, CollectivePermute):
        routes = [attributes.pairs]
    elif isinstance(attributes, HaloExchange):
        routes = [pairs for reading in attributes.readings for pairs in reading.permutes]
    else:
        return any(overlap(a, b) for a in attributes.digits for b in digits)
    ends = [partition_ids(digits, positions(pairs)) for pairs in routes]
    return any(bool((sources != targets).any()) for sources, targets in ends)


def positions(pairs: Iterable[tuple[int, ...]] | Runs) -> np.ndarray:
    """Pairs, or edges, as rows of numbers: sources, targets, and what they are of."""
    found = pairs.arrays if isinstance(pairs, Runs) else np.array(list(pairs), int)
    return found.T if found.size else np.zeros((2, 0), int)


def undisturbed(step: CheckedInstruction) -> Stated:
    """Nothing moves over digits on which its meaning depends.

    What members hold partial sums of, numbers that were shifted by the partition id, and what has
    still to be masked by it are a device's own along these digits.
    """
    own = [
        kind
        for held in step.operands
        for kind in ((held.unreduced, "partial sums"), *map(_dependence, held.tasks))
    ]
    moved = [words for digits, words in own if digits is None or crosses(step.attributes, digits)]
    words = "what moves means the same on all devices that it moves between"
    said = f"{words}{': not ' if moved else ''}{', '.join(moved)}"
    return "combine", Decided(said, not moved)


def _dependence(task: object) -> tuple[Digits | None, str]:
    """The digits on which a change depends; None of one that depends on the whole device."""
    return getattr(task, "digits", None), f"{task}"


def bare(contents: Contents) -> Stated:
    """What is added up are numbers as they are meant: none is still to be changed."""
    gaps = any(held.base > 1 for held in contents.dims)
    words = "what is joined waits for nothing, is not shifted, and has no places between elements"
    return "combine", Decided(words, not (contents.tasks or gaps or contents.viewed))


def finished(contents: Contents) -> bool:
    """Whether the elements are the graph value's, with nothing left to be done."""
    return not (contents.tasks or contents.unreduced or contents.viewed)


def nothing_beyond(step: CheckedInstruction, held: DimensionContents) -> Iterator[Stated]:
    """Windows that were cut to what is wanted hold nothing else that exists."""
    if held.wanted:
        goal = implies(within(held.start + X, 0, held.size), held.exists(held.start + X))
        words = "every element that exists at these places was wanted"
        yield "delivers", step.claim(words, goal, unknowns=(("x", held.length),))


def begins(held: DimensionContents) -> tuple[Number, ...]:
    """Where a dimension begins, and what of it is wanted."""
    return held.start, *(start for start, _ in held.wanted)


def said_along(step: CheckedInstruction, dim: int) -> DimensionContents:
    """Where the result's layout begins; of a padded layout no more elements exist for that."""
    return replace(step.said.dims[dim], size=step.given.dims[dim].size)


def numbers_at(number: Number, positions: np.ndarray) -> np.ndarray:
    """A number on the devices at some positions, exactly, where 64 bits are too few as well."""
    kind = object if _largest(number) > np.iinfo(np.int64).max else np.int64
    ids = (atom for atom in number.atoms() if isinstance(atom, PartitionId))
    found = number.at({atom: partition_ids(atom.digits, positions).astype(kind) for atom in ids})
    return np.broadcast_to(found, positions.shape)


def _largest(number: Number) -> int:
    """What no number on the way to it exceeds."""
    total = abs(number.constant)
    for atom, coefficient in number.terms:
        if isinstance(atom, FloorQuotient | Remainder):
            most = max(_largest(atom.number), atom.by)
        else:
            most = parts(atom.digits) if isinstance(atom, PartitionId) else 0
        total += max(abs(coefficient), 1) * most
    return total


Values = tuple[int | None, ...]


def of_its_own(graph: Graph, instruction: Instruction, given: Values) -> bool:
    """Whether the values that are read belong together.

    Args:
      given: the graph values that the operands are parts of.
    """
    kind = type(instruction.attributes)
    if kind in _OF_ONE_VALUE:
        return len(set(given)) == 1
    if kind not in _OF_NODE:
        return True
    return instruction.node is not None and _OF_NODE[kind](graph.nodes[instruction.node], given)


def _is_view(node: Node, given: Values) -> bool:
    """The node makes of the value that is regrouped the same elements in the same order."""
    row_major = node.signature.param("new_sizes") and not node.signature.param("dimensions")
    return bool(row_major) and given[0] == node.operands[0]


_OF_ONE_VALUE = (ArgReduce, Concatenate, Join)
_OF_NODE: dict[type, Callable[[Node, Values], bool]] = {
    **dict.fromkeys(kinds(Operator), lambda node, given: given == node.operands),
    Fold: lambda node, given: given == (*node.results, *node.operands[len(node.results) :]),
    MaskIndexed: lambda node, given: given == (node.results[0], node.operands[1]),
    Regroup: _is_view,
    Top: lambda node, given: given == node.results,
    ValueAt: lambda node, given: given == (node.results[0], node.operands[0]),
}
