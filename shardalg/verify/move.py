"""One instruction with the contents of its operands, and the claims that several kinds share.

Claims treat starts as whole numbers, whereas a device counts in 32 bits, so that is a claim too. An
instruction must also read values that belong together: those of its node, or of one value.
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
    fill_number,
    layout_contents,
    on_member,
)
from shardalg.verify.report import Decided, Statement

LARGEST = 2**31 - 1
"""Largest number of the type in which partition ids are counted."""


def int32_claims(attributes: Attributes) -> Iterator[Decided]:
    """Yield a claim for each start of an instruction that it is computed without 32-bit overflow.

    Every number in the computation of the start must fit into 32 bits. A size of the instruction
    that does not fit gives a failing claim.

    >>> from shardalg.algebra.affine import Index
    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.spmd.instructions import SliceAt
    >>> row = Index.of("o") * 2**30
    >>> start = Start(row // 2**29, (("o", (Digit(1, 4),)),))
    >>> [claim.holds for claim in int32_claims(SliceAt(0, start, 2))]
    [False]
    """
    for one in fields(attributes):  # type: ignore[arg-type]  # every kind is a dataclass
        start = getattr(attributes, one.name)
        if isinstance(start, Start):
            words = f"{start.index} is computed in 32 bits"
            yield Decided(words, max(start_bounds(start)) <= LARGEST)
    # A device also compares places with sizes, and with the end of the last block (the last entry),
    # in 32 bits.
    sizes = (
        getattr(attributes, "size", 0),
        *getattr(attributes, "sizes", ()),
        getattr(attributes, "block", 0) * parts(getattr(attributes, "digits", ())),
    )
    for size in sizes:
        if not 0 <= size <= LARGEST:
            yield Decided(f"{size} is counted in 32 bits", holds=False)
            break


def start_bounds(start: Start) -> tuple[int, ...]:
    """Return upper bounds of all numbers that a device computes for a start.

    A start is `(sum of terms // divisor) % modulus + more` in partition ids. The bounds are for the
    sum with `more`, the divisor and the modulus.
    """
    index, counts = start.index, {name: parts(digits) for name, digits in start.digits}
    terms = sum(abs(c) * (counts[name] - 1) for name, c in index.terms)
    return terms + abs(index.constant) + abs(start.more), index.div, index.mod


MEMBER = "m"
X = Number.of("x")
Goal = tuple[str, Statement]


@dataclass(frozen=True)
class CheckedInstruction(Generic[A_co]):
    """An instruction with the contents of its operands and the local value that it declares.

    Attributes:
      mesh: the mesh of the program; attributes: the instruction itself.
      operands: the elements that each device holds of each operand.
      declared: the type and the sharding that the program declares for the result.
      filler: name of a mask's second operand, if the mask fills with a value.
      number: index of the result that is checked, and of the operand from which it is made.
      count: number of results.
    """

    mesh: Mesh
    attributes: A_co
    operands: tuple[Contents, ...]
    declared: DeclaredLocal
    filler: str = ""
    number: int = 0
    count: int = 1

    @property
    def operand(self) -> Contents:
        """Contents of the operand from which the checked result is made, usually the first one."""
        return self.operands[self.number]

    @property
    def declared_contents(self) -> Contents:
        """Contents that the program declares for the result."""
        return layout_contents(self.declared.sharding, self.declared.shape, None)

    def claim(self, words: str, goal: Formula, **more: Any) -> IntegerClaim:
        """Return the claim on this mesh that `goal` is true; `words` state it for reports."""
        return IntegerClaim(words, self.mesh, goal, **more)


Result = tuple[Contents, list[Goal]]
"""Contents of a result, and the claims that it rests on."""
Results = tuple[list[Result], list[Goal]]
"""Contents and claims of every result, and claims about all of them."""
MOVES: dict[type[Attributes], Callable[[Any], Results]] = {}
"""Per kind of instruction that is no operator and has no body, the function of its results."""
A = TypeVar("A", bound=Attributes)


def moves(
    kind: type[A],
) -> Callable[
    [Callable[[CheckedInstruction[A]], Result]], Callable[[CheckedInstruction[A]], Result]
]:
    """Register the function that checks a kind of instruction with one result.

    The function returns the elements that each device holds of the result, and the claims that show
    this.
    """

    def register(
        claim: Callable[[CheckedInstruction[A]], Result],
    ) -> Callable[[CheckedInstruction[A]], Result]:
        # `MOVES` has functions for all results. This kind has one, and no claims about several.
        MOVES[kind] = lambda step: ([claim(step)], [])
        return claim

    return register


def moves_each(
    kind: type[A],
) -> Callable[
    [Callable[[CheckedInstruction[A]], Results]], Callable[[CheckedInstruction[A]], Results]
]:
    """Register the function that checks a kind of instruction with several results.

    The function returns the elements that each device holds of each result, and the claims that
    show this.
    """

    def register(
        claim: Callable[[CheckedInstruction[A]], Results],
    ) -> Callable[[CheckedInstruction[A]], Results]:
        MOVES[kind] = claim
        return claim

    return register


def with_dim(contents: Contents, dim: int, span: DimensionContents) -> Contents:
    """Return the contents with `span` in the place of dimension `dim`."""
    return replace(contents, dims=(*contents.dims[:dim], span, *contents.dims[dim + 1 :]))


def keep_equal_fills(step: CheckedInstruction, fill: Fill) -> Contents:
    """Return the operand's contents after a further padding with `fill`.

    A known fill of another dimension stays known only if it equals `fill`, because the later
    padding overwrites the places where both meet. All others become None (unknown).
    """
    # Padding a along one dimension, then padding b along the other one:
    #   element | a
    #   --------+---      the corner holds b, so fill a stays known only if a = b.
    #      b    | b
    dtype = step.declared.dtype
    number = fill_number(fill, dtype)

    def alike(other: Fill) -> bool:
        return other == fill or (number is not None and fill_number(other, dtype) == number)

    dims = tuple(
        replace(span, fill=span.fill if alike(span.fill) else None) for span in step.operand.dims
    )
    return replace(step.operand, dims=dims)


def members_agree(
    step: CheckedInstruction, digits: Digits, dims: tuple[int, ...]
) -> Iterator[Goal]:
    """Yield the claims that a collective combines or moves only elements that belong together.

    All members of a group must hold the same elements along the dimensions that the collective does
    not move. Along the dimensions `dims`, which it moves, every existing element must be held.

    Args:
      digits: the digits in which the members of a group differ.
    """
    for dim, span in enumerate(step.operand.dims):
        if dim in dims:
            yield from all_existing_wanted(step, span)
            continue
        for start in start_positions(span):
            # The other member is an unknown of the claim, so one claim is about all members.
            other = on_member(start, digits, MEMBER)
            if other != start:
                words = f"members agree on dimension {dim}"
                members = ((MEMBER, digits),)
                yield "delivers", step.claim(words, equal(other, start), members=members)


def crosses(attributes: Attributes, digits: Digits) -> bool:
    """Return whether a device receives data from devices that differ from it in some of the digits.

    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.spmd.instructions import CollectivePermute
    >>> swap = CollectivePermute((Digit(1, 2),), ((0, 1), (1, 0), (2, 2), (3, 3)))
    >>> crosses(swap, (Digit(1, 2),)), crosses(swap, (Digit(2, 2),))
    (True, False)
    """
    # Only collectives send data to other devices.
    if not digits or not isinstance(attributes, Collective):
        return False
    routes: list[Pairs | Runs] = []
    if isinstance(attributes, CollectivePermute):
        routes = [attributes.pairs]
    elif isinstance(attributes, HaloExchange):
        routes = [pairs for reading in attributes.readings for pairs in reading.permutes]
    else:
        return any(overlap(a, b) for a in attributes.digits for b in digits)
    # The pairs of a permute name single devices, so their partition ids along the digits decide.
    # The attribute `digits` would include devices that exchange nothing.
    ends = [partition_ids(digits, positions(pairs)) for pairs in routes]
    return any(bool((sources != targets).any()) for sources, targets in ends)


def positions(pairs: Iterable[tuple[int, ...]] | Runs) -> np.ndarray:
    """Return the (source, target) pairs of a permute as an array of two rows: sources and targets.

    A pair of a halo exchange also has the number of the operand that is sent. These numbers are a
    third row.
    """
    position_pairs = pairs.arrays if isinstance(pairs, Runs) else np.array(list(pairs), int)
    return position_pairs.T if position_pairs.size else np.zeros((2, 0), int)


def movement_keeps_meaning(step: CheckedInstruction) -> Goal:
    """Return the claim that the numbers mean the same on the device that receives them.

    A partial sum, an index shifted by the partition id, or a pending mask belongs to one device
    along some digits. It may not move to devices that differ in these digits.
    """
    # A change without digits may depend on the device in any way, so it may not move at all.
    device_digits: list[tuple[Digits | None, str]] = []
    for contents in step.operands:
        device_digits.append((contents.unreduced, "partial sums"))
        device_digits += [(getattr(task, "digits", None), f"{task}") for task in contents.tasks]
    moving = [
        name for digits, name in device_digits if digits is None or crosses(step.attributes, digits)
    ]
    words = "moved numbers mean the same on the sender and the receiver"
    words = f"{words}{': not ' if moving else ''}{', '.join(moving)}"
    return "combine", Decided(words, not moving)


def no_pending_changes(contents: Contents) -> Goal:
    """Return the claim that the numbers may be combined, because no change is pending on them."""
    gaps = any(span.base > 1 for span in contents.dims)
    words = "combined numbers have no pending change, no shift and no base dilation"
    return "combine", Decided(words, not (contents.tasks or gaps or contents.viewed))


def is_finished(contents: Contents) -> bool:
    """Return whether the elements are the graph value's, with no change pending."""
    return not (contents.tasks or contents.unreduced or contents.viewed)


def all_existing_wanted(step: CheckedInstruction, span: DimensionContents) -> Iterator[Goal]:
    """Yield the claim that a device holds all elements of its block of a dimension.

    An instruction that fetches only a needed range holds no elements outside of it (`wanted`). The
    claim is that the range contains every element of the block that exists. Without ranges there is
    nothing to prove.
    """
    if span.wanted:
        goal = implies(within(span.start + X, 0, span.size), span.exists(span.start + X))
        words = "every element that exists at these places is in the wanted range"
        yield "delivers", step.claim(words, goal, unknowns=(("x", span.length),))


def start_positions(span: DimensionContents) -> tuple[Number, ...]:
    """Return the starts that describe the held elements of a dimension, as numbers per device.

    They are the first element of the device's block, and the start of each range in `wanted`.
    """
    return span.start, *(start for start, _ in span.wanted)


def declared_dim(step: CheckedInstruction, dim: int) -> DimensionContents:
    """Return dimension `dim` of the result as the program declares it, with the operand's size.

    The declared sharding may be padded to a longer dimension. That does not make more elements
    exist, so the number of existing elements is that of the operand.
    """
    return replace(step.declared_contents.dims[dim], size=step.operand.dims[dim].size)


def numbers_at(number: Number, positions: np.ndarray) -> np.ndarray:
    """Return the value of a formula in partition ids on each device, as exact integers.

    Args:
      positions: the positions of the devices in the mesh.
    """
    # Python integers are slow, but exact where an intermediate result exceeds 64 bits.
    kind = object if _number_bound(number) > np.iinfo(np.int64).max else np.int64
    ids = (atom for atom in number.atoms() if isinstance(atom, PartitionId))
    numbers = number.at({atom: partition_ids(atom.digits, positions).astype(kind) for atom in ids})
    return np.broadcast_to(numbers, positions.shape)


def _number_bound(number: Number) -> int:
    """Return an upper bound of all intermediate results when a formula is computed.

    The bound is for absolute values. The atoms of the formula are partition ids, and quotients and
    remainders of such formulas.
    """
    total = abs(number.constant)
    for atom, coefficient in number.terms:
        # A floor quotient is at most its dividend, and a remainder is less than its divisor.
        if isinstance(atom, FloorQuotient | Remainder):
            most = max(_number_bound(atom.number), atom.by)
        else:
            # Other atoms are unknowns, which `numbers_at` cannot evaluate: they need no bound.
            most = parts(atom.digits) if isinstance(atom, PartitionId) else 0
        # The atom is an intermediate result itself, so it counts once even with coefficient 0.
        total += max(abs(coefficient), 1) * most
    return total


Values = tuple[int | None, ...]


def reads_own_values(graph: Graph, instruction: Instruction, given: Values) -> bool:
    """Return whether the operands are parts of the values that the instruction must read.

    Operators, and instructions that complete an operator's result, must read values of their node.
    Instructions that join parts, for example a concatenation, must read parts of one value. All
    others may read any value.

    Args:
      given: per operand, the graph value of which it is a part.
    """
    kind = type(instruction.attributes)
    if kind in _OF_ONE_VALUE:
        return len(set(given)) == 1
    if kind not in _OF_NODE:
        return True
    return instruction.node is not None and _OF_NODE[kind](graph.nodes[instruction.node], given)


_OF_ONE_VALUE = (ArgReduce, Concatenate, Join)
_OF_NODE: dict[type, Callable[[Node, Values], bool]] = {
    **dict.fromkeys(kinds(Operator), lambda node, operand: operand == node.operands),
    Fold: lambda node, operand: operand == (*node.results, *node.operands[len(node.results) :]),
    MaskIndexed: lambda node, operand: operand == (node.results[0], node.operands[1]),
    # Regroup flattens in row-major order. A reshape with `dimensions` transposes first, so it would
    # number the elements differently.
    Regroup: lambda node, operand: (
        bool(node.signature.param("new_sizes") and not node.signature.param("dimensions"))
        and operand[0] == node.operands[0]
    ),
    Top: lambda node, operand: operand == node.results,
    ValueAt: lambda node, operand: operand == (node.results[0], node.operands[0]),
}
