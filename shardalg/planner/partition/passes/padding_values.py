"""Padding-value analysis: which numbers the padding of a local value is known to hold.

Four instructions make such numbers known. A whole dimension is padded with zeros. A block is cut
out of a padded dimension. A mask fills padding. A pointwise operator maps known numbers to known
numbers. A mask that fills padding with the number that it holds already is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from shardalg.algebra.digits import Digits, parts
from shardalg.graph.ir import Graph, Signature
from shardalg.graph.ops.families.pointwise import Number
from shardalg.graph.ops.loops import moves_none, number_along, operands_along, row_of
from shardalg.graph.ops.rows import rules
from shardalg.planner.partition.choose.key import LoopDigits
from shardalg.spmd import instructions as p
from shardalg.spmd.identity import identity, identity_if_any
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.local import Local

Padding = tuple[Digits, int, int]
"""(digits, block, size): elements `x` with `p*block + x >= size`, as in `Mask`."""


@dataclass(frozen=True)
class ValueFacts:
    """The numbers of a local value that are known during planning.

    Attributes:
      fills: per dimension with known padding, the padding and the number that it holds.
      number: the known number that all elements equal; None if there is no such number.
    """

    fills: Mapping[int, tuple[Padding, Number]] = field(default_factory=dict)
    number: Number | None = None

    def has(self, mask: p.Mask, dtype: str) -> bool:
        """Return whether the padding that a mask fills already holds the mask's number."""
        return self.fills.get(mask.dim) == filled_by(mask, dtype)

    def fill(self, dim: int, padding: Padding | None) -> Number | None:
        """Return the number that this padding of a dimension holds; None if it is not known."""
        found, number = self.fills.get(dim, (None, None))
        return number if found == padding else None

    def with_fill(self, dim: int, fill: tuple[Padding, Number] | None = None) -> ValueFacts:
        """Return the facts about the padding of all dimensions, changed for one dimension.

        Args:
          fill: the padding of `dim` and its number; None if nothing is known about it.
        """
        others = {d: f for d, f in self.fills.items() if d != dim}
        return ValueFacts(others | ({dim: fill} if fill else {}))


# A dimension of a result, its padding, and per operand the dimension that is read along it
# (`operands_along`). Dimension and padding are None if the entry concerns all elements.
PaddedDim = tuple[int | None, Padding | None, Mapping[int, int | None]]
NOTHING = ValueFacts()


def filled_by(mask: p.Mask, dtype: str) -> tuple[Padding, Number]:
    """Return the padding that a mask fills, and the number that it writes there."""
    return (mask.digits, mask.block, mask.size), identity(mask.fill, dtype)


@dataclass
class Fills:
    """The numbers that the padding of each local value of a block is known to hold.

    They are found by calls of `note`, one for each instruction of the block in order.

    Attributes:
      known: the facts about each local value; nothing is known about absent ones.
    """

    graph: Graph
    locals: Sequence[Local]
    known: dict[int, ValueFacts] = field(default_factory=dict)

    def of(self, local: int) -> ValueFacts:
        """Return the facts about a local value; they are empty if nothing is known."""
        return self.known.get(local, NOTHING)

    def signature(self, instruction: Instruction) -> Signature:
        """Return the signature of the node that a local operator belongs to."""
        assert instruction.node is not None, f"{instruction} belongs to no node"
        return self.graph.nodes[instruction.node].signature

    def note(self, instruction: Instruction) -> None:
        """Record which numbers the padding of an instruction's results is known to hold.

        Uneven blocks have padding. If it has the number that a later mask would write, such as 0
        before a sum, the mask can be left out.
        """
        # The table has a function per kind of instruction, which yields the facts of each result.
        kind = type(instruction.attributes)
        facts_of_results = _MAKES.get(kind)
        # Only a mask or a resize (`FILLS`) writes a number into padding by itself. Any other
        # instruction must read a value whose padding is known, which most do not.
        if facts_of_results is None or (
            kind not in FILLS and self.known.keys().isdisjoint(instruction.operands)
        ):
            return
        facts = facts_of_results(self, instruction)
        for local, known in zip(instruction.results, facts, strict=False):
            if known.fills or known.number is not None:
                self.known[local] = known

    def of_operator(self, instruction: Instruction[p.Apply]) -> Iterator[ValueFacts]:
        """Yield, per result of a local operator, the numbers that its padding is known to hold.

        A number is known if the operator computes it from known numbers of its operands.
        """
        known, results = self.known.keys(), instruction.results
        even = all(self.locals[result].sharding.is_even for result in results)
        # Without padding, the only fact can be one number everywhere (`everywhere`), and then every
        # operand must be one number, too.
        if even and not known >= set(instruction.operands):
            return
        signature = self.signature(instruction)
        for nth in range(len(results)):
            places = _places(signature, instruction.attributes.loops, nth)
            fills: dict[int, tuple[Padding, Number]] = {}
            everywhere = None
            # Without `padding` the place is the whole result: its number is the one that all of its
            # elements are equal to.
            for dim, padding, along in places:
                number = self.computed_number(instruction, along, padding)
                if dim is None or padding is None:
                    everywhere = number
                elif number is not None:
                    fills[dim] = padding, number
            yield ValueFacts(fills, everywhere)

    def computed_number(
        self, instruction: Instruction, along: Mapping[int, int | None], padding: Padding | None
    ) -> Number | None:
        """Return the number that a pointwise operator computes in a padding of its result, or None.

        It is known if the padding of all operands holds known numbers. For example, an addition of
        0 and 1 computes 1.

        Args:
          along: for each operand, its dimension that corresponds to the padded one, or None.
          padding: the padding; None if all elements of the result are meant.
        """
        operands = {k: self.of(instruction.operands[k]) for k in along}
        # `numbers` has operands that are one number everywhere, `fills` the padding of the others.
        numbers = {k: known.number for k, known in operands.items()}
        fills = {(k, d): operands[k].fill(d, padding) for k, d in along.items() if d is not None}
        signature = self.signature(instruction)
        return number_along(signature, along, numbers, fills)

    def maskable_operand(
        self, instruction: Instruction[p.Apply], mask: p.Mask
    ) -> Iterator[tuple[int, p.Mask]]:
        """Yield (operand, mask) if masking this operand would make a mask of the result needless.

        The operand is a local value. Yields nothing if there is no such operand.
        """
        signature = self.signature(instruction)
        rows = rules(signature)
        # An operator that shifts or reverses a dimension has its operand's padding elsewhere.
        if not rows or len(rows) > 1 or not moves_none(rows[0]):
            return
        # `along` has, per operand, the dimension of the masked dimension's loop, or None.
        loop = row_of(rows, 0)[1][mask.dim].loop
        along = (operands_along(rows[0], loop) if loop is not None else None) or {}
        # If two operands had padding along the loop, both would need a mask to replace this one.
        places = [(k, dim) for k, dim in along.items() if dim is not None]
        if (
            len(places) == 1
            and dict(instruction.attributes.loops).get(loop or "", ()) == mask.digits
        ):
            ((operand, dim),) = places
            # The operator must map the fill to itself: negation maps 0 to 0, but exp(0) is 1.
            read = self.locals[instruction.operands[operand]]
            same = {places[0]: identity_if_any(mask.fill, read.dtype)}
            numbers = {k: self.of(instruction.operands[k]).number for k in along}
            result_number = number_along(signature, along, numbers, same)
            if result_number == identity(mask.fill, signature.results[0].dtype):
                yield read.index, replace(mask, dim=dim)

    def of_resize(self, instruction: Instruction[p.Resize]) -> Iterator[ValueFacts]:
        """Yield the numbers in the padding of a resized value: new elements of a dimension are 0.

        They count as padding only if the dimension is not sharded.
        """
        a, (operand,) = instruction.attributes, instruction.operands
        local, known = self.locals[operand], self.of(operand)
        size, zero = local.shape[a.dim], identity_if_any("sum", local.dtype)
        # A fill is (padding, number); padding is (digits, padded size, true size). A shorter
        # dimension keeps the known padding.
        fill = known.fills.get(a.dim)
        if a.size > size:
            is_whole = size == local.sharding.shape[a.dim] and not local.sharding.dims[a.dim]
            fill = (((), a.size, size), zero) if is_whole and zero is not None else None
            # New elements are 0, also where they are in the padding of another dimension. That
            # padding still holds one known number only if the number is 0.
            zero_fills = {dim: other for dim, other in known.fills.items() if other[1] == zero}
            known = ValueFacts(zero_fills)
        yield known.with_fill(a.dim, fill)

    def of_cut(self, instruction: Instruction[p.DynamicSlice]) -> Iterator[ValueFacts]:
        """Yield the numbers in the padding of a device's block, cut out of a padded dimension."""
        a = instruction.attributes
        yield _block(self.of(instruction.operands[0]), a.dim, a.digits, a.block)

    def of_reduce_scatter(self, instruction: Instruction[p.ReduceScatter]) -> Iterator[ValueFacts]:
        """Yield the numbers in padding after a reduce-scatter, which reduces, then cuts a block."""
        a = instruction.attributes
        (reduced,) = self.of_reduction(instruction)
        block = self.locals[instruction.results[0]].shape[a.dim]
        yield _block(reduced, a.dim, a.digits, block)

    def scattered_dims(self, instruction: Instruction[p.ReduceScatters]) -> Iterator[ValueFacts]:
        """Yield the known numbers in the padding of the result of a `ReduceScatters`."""
        (known,) = self.of_reduction(instruction)
        shape = self.locals[instruction.results[0]].shape
        for dim, digits in instruction.attributes.along:
            known = _block(known, dim, digits, shape[dim])
        yield known

    def of_all_to_all(self, instruction: Instruction[p.AllToAll]) -> Iterator[ValueFacts]:
        """Yield the numbers in padding after an all-to-all.

        The all-to-all cuts one dimension into blocks and joins received pieces along another.
        Nothing is known about padding of the joined dimension, because it has the padding of all
        pieces.
        """
        a = instruction.attributes
        block = self.locals[instruction.results[0]].shape[a.split_dim]
        known = self.of(instruction.operands[0]).with_fill(a.concat_dim)
        yield _block(known, a.split_dim, a.arriving or a.digits, block)

    def all_exchanged(
        self, instruction: Instruction[p.AllToAlls | p.AllGathers]
    ) -> Iterator[ValueFacts]:
        """Yield the known numbers in the padding of an exchange's result.

        Padding of the dimensions that the exchange splits, gathers or concatenates has no known
        number afterwards. All other dimensions keep theirs.
        """
        known = self.of(instruction.operands[0])
        for dim in instruction.attributes.dims:
            known = known.with_fill(dim)
        yield known

    def of_reduction(
        self, instruction: Instruction[p.AllReduce | p.ReduceScatter | p.ReduceScatters]
    ) -> Iterator[ValueFacts]:
        """Yield the numbers that padding holds after a reduction.

        Padding that holds the identity of the combination (0 for a sum) holds it afterwards, too.
        """
        (operand,), a = instruction.operands, instruction.attributes
        # The identity combined with itself is the identity. Another number would change: n copies
        # of 5 add up to 5*n.
        neutral = identity(a.combine, self.locals[operand].dtype)
        fills = self.of(operand).fills.items()
        yield ValueFacts({dim: fill for dim, fill in fills if fill[1] == neutral})

    def of_mask(self, instruction: Instruction[p.Mask]) -> Iterator[ValueFacts]:
        """Yield the numbers in padding after a mask, which fills the padding of its dimension."""
        mask, operand = instruction.attributes, instruction.operands[0]
        fill = filled_by(mask, self.locals[operand].dtype)
        # In the corner in which the padding of two dimensions meets, the last mask wins. The other
        # padding stays known only if both numbers are equal.
        equal = {dim: found for dim, found in self.of(operand).fills.items() if found[1] == fill[1]}
        yield ValueFacts(equal).with_fill(mask.dim, fill)

    def of_one_dimension(
        self, instruction: Instruction[p.AllGather | p.Slice | p.SliceAt]
    ) -> Iterator[ValueFacts]:
        """Yield the numbers in padding after an instruction that changes one dimension only.

        The padding of the other dimensions keeps its numbers.
        """
        yield self.of(instruction.operands[0]).with_fill(instruction.attributes.dim)


@lru_cache(maxsize=1 << 14)
def _places(signature: Signature, loops: LoopDigits, result: int) -> tuple[PaddedDim, ...]:
    """Return the parts of an operator's result that may hold known numbers.

    They are the paddings of its dimensions, and all elements together. Each entry is (dimension,
    padding, per operand the dimension that is read along it). A padding is (digits, block, size).
    Dimension and padding are None for all elements. Empty if the operator moves elements along a
    dimension.

    Args:
      loops: the sharded loops with their digits.
      result: the number of the result.
    """
    rows = rules(signature)
    rule, indices = row_of(rows, result) if rows else (None, ())
    if rule is None or not moves_none(rule):
        return ()
    # No loop has the name "": the entry for all elements needs no dimension of the operands.
    split, every = dict(loops), operands_along(rule, "")
    found: list[PaddedDim] = [] if every is None else [(None, None, every)]
    for dim, index in enumerate(indices):
        if index.loop is None:
            continue
        digits, extent = split.get(index.loop, ()), rule.extents[index.loop]
        along = operands_along(rule, index.loop) if extent % parts(digits) else None
        if along is not None:
            found.append((dim, (digits, -(-extent // parts(digits)), extent), along))
    return tuple(found)


def _block(known: ValueFacts, dim: int, digits: Digits, block: int) -> ValueFacts:
    """Return the facts after a device's block was cut out of a dimension.

    Args:
      known: the facts before the cut.
      digits: the digits along which the dimension is sharded afterwards.
      block: the size of the block.
    """
    # Only padding of a whole dimension (no digits) is at one end of the dimension, from which the
    # last blocks are cut.
    (held, _, size), number = known.fills.get(dim, ((None, 0, 0), 0))
    return known.with_fill(dim, ((digits, block, size), number) if held == () else None)


FILLS = frozenset({p.Mask, p.Resize})
"""Instructions that write a known number into padding.

After any other instruction a number is known only if one of its operands had known numbers.
"""
_MAKES: Mapping[type, Callable[[Fills, Any], Iterator[ValueFacts]]] = {
    p.AllGather: Fills.of_one_dimension,
    p.AllGathers: Fills.all_exchanged,
    p.AllReduce: Fills.of_reduction,
    p.AllToAll: Fills.of_all_to_all,
    p.AllToAlls: Fills.all_exchanged,
    p.Apply: Fills.of_operator,
    p.DynamicSlice: Fills.of_cut,
    p.Mask: Fills.of_mask,
    p.ReduceScatter: Fills.of_reduce_scatter,
    p.ReduceScatters: Fills.scattered_dims,
    p.Resize: Fills.of_resize,
    p.Slice: Fills.of_one_dimension,
    p.SliceAt: Fills.of_one_dimension,
}
