"""Numbers that are known to stand at the padding of a local value, instruction by instruction.

A whole dimension is padded with zeros, blocks are cut out of it, masks fill, pointwise operators
make numbers of numbers: a mask that would fill again is left out, wherever its value comes from.
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
"""(digits, block, size): places `x` with `p*block + x >= size`, as a `Mask` has them."""


@dataclass(frozen=True)
class ValueFacts:
    """What is known of the numbers of a local.

    Attributes:
      fills: per dimension the padding, and the number that stands there.
      number: the one that all elements are.
    """

    fills: Mapping[int, tuple[Padding, Number]] = field(default_factory=dict)
    number: Number | None = None

    def has(self, mask: p.Mask, dtype: str) -> bool:
        """Whether a mask would change nothing."""
        return self.fills.get(mask.dim) == filled_by(mask, dtype)

    def fill(self, dim: int, padding: Padding | None) -> Number | None:
        """The number at a padding; None where it is not known."""
        found, number = self.fills.get(dim, (None, None))
        return number if found == padding else None

    def but(self, dim: int, fill: tuple[Padding, Number] | None = None) -> ValueFacts:
        """The fills with another one of a dimension, or none."""
        others = {d: f for d, f in self.fills.items() if d != dim}
        return ValueFacts(others | ({dim: fill} if fill else {}))


PaddedDim = tuple[int | None, Padding | None, Mapping[int, int | None]]
"""A dimension with its padding, and per operand the dimension read along it (`operands_along`).

All elements where no dimension is named.
"""
NOTHING = ValueFacts()


def filled_by(mask: p.Mask, dtype: str) -> tuple[Padding, Number]:
    """The padding that a mask fills, and with what."""
    return (mask.digits, mask.block, mask.size), identity(mask.fill, dtype)


@dataclass
class Fills:
    """What is known of the locals of one block.

    Attributes:
      known: per local; of one that is not in it nothing is.
    """

    graph: Graph
    locals: Sequence[Local]
    known: dict[int, ValueFacts] = field(default_factory=dict)

    def of(self, local: int) -> ValueFacts:
        """What is known of a local."""
        return self.known.get(local, NOTHING)

    def signature(self, instruction: Instruction) -> Signature:
        """Of the node that an operator was emitted for."""
        assert instruction.node is not None, f"{instruction} is of no node"
        return self.graph.nodes[instruction.node].signature

    def note(self, instruction: Instruction) -> None:
        """Learn what an instruction makes."""
        kind = type(instruction.attributes)
        made = _MAKES.get(kind)
        if made is None or (
            kind not in FILLS and self.known.keys().isdisjoint(instruction.operands)
        ):
            return
        for local, known in zip(instruction.results, made(self, instruction), strict=False):
            if known.fills or known.number is not None:
                self.known[local] = known

    def applied(self, instruction: Instruction[p.Apply]) -> Iterator[ValueFacts]:
        """The results of an operator: pointwise ones and layouts make numbers of numbers."""
        known, results = self.known.keys(), instruction.results
        even = all(self.locals[result].sharding.is_even for result in results)
        if even and not known >= set(instruction.operands):
            return  # without padding it makes numbers of nothing but numbers
        signature = self.signature(instruction)
        for nth in range(len(results)):
            places = _places(signature, instruction.attributes.loops, nth)
            fills: dict[int, tuple[Padding, Number]] = {}
            everywhere = None
            for dim, padding, along in places:
                number = self.made_of(instruction, along, padding)
                if dim is None or padding is None:
                    everywhere = number
                elif number is not None:
                    fills[dim] = padding, number
            yield ValueFacts(fills, everywhere)

    def made_of(
        self, instruction: Instruction, along: Mapping[int, int | None], padding: Padding | None
    ) -> Number | None:
        """The number at a padding; everywhere, where there is none."""
        operands = {k: self.of(instruction.operands[k]) for k in along}
        numbers = {k: known.number for k, known in operands.items()}
        fills = {(k, d): operands[k].fill(d, padding) for k, d in along.items() if d is not None}
        signature = self.signature(instruction)
        return number_along(signature, along, numbers, fills)

    def above(
        self, instruction: Instruction[p.Apply], mask: p.Mask
    ) -> Iterator[tuple[int, p.Mask]]:
        """The operand whose mask would serve for that of an operator's result, if one does."""
        signature = self.signature(instruction)
        rows = rules(signature)
        if not rows or len(rows) > 1 or not moves_none(rows[0]):
            return
        loop = row_of(rows, 0)[1][mask.dim].loop
        along = (operands_along(rows[0], loop) if loop is not None else None) or {}
        places = [(k, dim) for k, dim in along.items() if dim is not None]
        if (
            len(places) == 1
            and dict(instruction.attributes.loops).get(loop or "", ()) == mask.digits
        ):
            ((operand, dim),) = places
            read = self.locals[instruction.operands[operand]]
            same = {places[0]: identity_if_any(mask.fill, read.dtype)}
            numbers = {k: self.of(instruction.operands[k]).number for k in along}
            made = number_along(signature, along, numbers, same)
            if made == identity(mask.fill, signature.results[0].dtype):
                yield read.index, replace(mask, dim=dim)

    def resized(self, instruction: Instruction[p.Resize]) -> Iterator[ValueFacts]:
        """A whole dimension is padded with zeros."""
        a, (operand,) = instruction.attributes, instruction.operands
        local, known = self.locals[operand], self.of(operand)
        size, zero = local.shape[a.dim], identity_if_any("sum", local.dtype)
        found = known.fills.get(a.dim)
        if a.size > size:
            whole = size == local.sharding.shape[a.dim] and not local.sharding.dims[a.dim]
            found = (((), a.size, size), zero) if whole and zero is not None else None
            # where the padding of two dimensions meets, zeros stand
            known = ValueFacts({dim: fill for dim, fill in known.fills.items() if fill[1] == zero})
        yield known.but(a.dim, found)

    def cut(self, instruction: Instruction[p.DynamicSlice]) -> Iterator[ValueFacts]:
        """The own block of a dimension that is padded as a whole."""
        a = instruction.attributes
        yield _block(self.of(instruction.operands[0]), a.dim, a.digits, a.block)

    def scattered(self, instruction: Instruction[p.ReduceScatter]) -> Iterator[ValueFacts]:
        """The same of a sum."""
        a = instruction.attributes
        (reduced,) = self.reduced(instruction)
        block = self.locals[instruction.results[0]].shape[a.dim]
        yield _block(reduced, a.dim, a.digits, block)

    def exchanged(self, instruction: Instruction[p.AllToAll]) -> Iterator[ValueFacts]:
        """The same of one dimension; another has the padding of all blocks."""
        a = instruction.attributes
        block = self.locals[instruction.results[0]].shape[a.split_dim]
        known = self.of(instruction.operands[0]).but(a.concat_dim)
        yield _block(known, a.split_dim, a.arriving or a.digits, block)

    def all_exchanged(self, instruction: Instruction[p.AllToAlls]) -> Iterator[ValueFacts]:
        """Nothing is known of the dimensions that are exchanged; the others keep their padding."""
        known = self.of(instruction.operands[0])
        for dim in instruction.attributes.dims:
            known = known.but(dim)
        yield known

    def reduced(
        self, instruction: Instruction[p.AllReduce | p.ReduceScatter]
    ) -> Iterator[ValueFacts]:
        """What every member has at its padding is combined: an identity stays."""
        (operand,), a = instruction.operands, instruction.attributes
        neutral = identity(a.combine, self.locals[operand].dtype)
        fills = self.of(operand).fills.items()
        yield ValueFacts({dim: fill for dim, fill in fills if fill[1] == neutral})

    def masked(self, instruction: Instruction[p.Mask]) -> Iterator[ValueFacts]:
        """A mask fills the padding of its dimension, and leaves that of the others."""
        mask, operand = instruction.attributes, instruction.operands[0]
        fill = filled_by(mask, self.locals[operand].dtype)
        # where the padding of two dimensions meets, the last mask fills
        alike = {dim: found for dim, found in self.of(operand).fills.items() if found[1] == fill[1]}
        yield ValueFacts(alike).but(mask.dim, fill)

    def others(
        self, instruction: Instruction[p.AllGather | p.Slice | p.SliceAt]
    ) -> Iterator[ValueFacts]:
        """Padding of dimensions that an instruction does not touch."""
        yield self.of(instruction.operands[0]).but(instruction.attributes.dim)


@lru_cache(maxsize=1 << 14)
def _places(signature: Signature, loops: LoopDigits, result: int) -> tuple[PaddedDim, ...]:
    """Where a result may hold numbers: at the padding of its dimensions, and everywhere.

    None where its row moves what it reads.
    """
    rows = rules(signature)
    rule, indices = row_of(rows, result) if rows else (None, ())
    if rule is None or not moves_none(rule):
        return ()
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
    """With the own block of a dimension that was whole."""
    (held, _, size), number = known.fills.get(dim, ((None, 0, 0), 0))
    return known.but(dim, ((digits, block, size), number) if held == () else None)


FILLS = frozenset({p.Mask, p.Resize})
"""What fills padding by itself; all else makes known numbers of known ones."""
_MAKES: Mapping[type, Callable[[Fills, Any], Iterator[ValueFacts]]] = {
    p.AllGather: Fills.others,
    p.AllReduce: Fills.reduced,
    p.AllToAll: Fills.exchanged,
    p.AllToAlls: Fills.all_exchanged,
    p.Apply: Fills.applied,
    p.DynamicSlice: Fills.cut,
    p.Mask: Fills.masked,
    p.ReduceScatter: Fills.scattered,
    p.Resize: Fills.resized,
    p.Slice: Fills.others,
    p.SliceAt: Fills.others,
}
