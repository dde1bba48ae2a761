"""Reshapes whose blocks end where those of the result do not: one exchange on flat elements.

The dimensions of a reshape fall into groups that hold the same elements on both sides. Of a group
that is split on its leading dimension a device holds an interval of its flat elements, and wants
another one (`algebra.halos.realignment.reshape_interval`); between them are whole rows on both
sides. Source: GSPMD (arXiv:2105.04663), section 4.3, "Halo exchange for data formatting".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.algebra.halos.exchange import Exchange
from shardalg.algebra.halos.intervals import Interval
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Signature
from shardalg.graph.ops.families.data_formatting import DimensionRange, groups
from shardalg.planner.reshard.exchanges import (
    DimBuilder,
    DimProgram,
    cheaper,
    deliver,
    transfers_of,
)
from shardalg.sizes.recorded import are_numbers
from shardalg.spmd.instructions import leading

Dims = tuple[Digits, ...]


@dataclass(frozen=True)
class ReshapeGroup:
    """Dimensions of the operand of a reshape, and those of the result with the same elements.

    Attributes:
      sizes, out_sizes: of the dimensions.
      start, out_start: the first of them.
    """

    start: int
    sizes: tuple[int, ...]
    out_start: int
    out_sizes: tuple[int, ...]

    @property
    def is_kept(self) -> bool:
        """Whether one dimension stays as it is."""
        return len(self.sizes) == len(self.out_sizes) == 1

    @property
    def leads(self) -> tuple[int, int]:
        """The dimension of the operand that may be split, and that of the result."""
        return self.start + leading(self.sizes), self.out_start + leading(self.out_sizes)

    def split_dim(self, made: Sharding) -> int:
        """Return the result's dimension along which devices hold runs of flat elements.

        It is the last sharded dimension if each dimension before it has one element per device and
        no device is empty. Otherwise it is the leading dimension.
        """
        first, span = leading(self.out_sizes), slice(self.out_start, None)
        rows = list(zip(self.out_sizes, made.shard_shape[span], made.dims[span], strict=False))
        last = max([d for d, (_, _, digits) in enumerate(rows) if digits], default=first)
        is_run = all(block == 1 for _, block, _ in rows[:last])
        is_run &= all((parts(digits) - 1) * block < size for size, block, digits in rows)
        return last if last > first and is_run else first

    @property
    def flat(self) -> tuple[int, ...]:
        """Sizes of the dimensions as one."""
        return (prod(self.sizes),)


@lru_cache(maxsize=1 << 12)
def regrouped(signature: Signature) -> tuple[ReshapeGroup, ...]:
    """The groups of a reshape; () of every other operator, of scalars, and of no elements.

    >>> from shardalg.graph.ir import ValueType
    >>> x, y = ValueType((5, 3, 2, 1), "float32"), ValueType((5, 6), "float32")
    >>> reshape = Signature("reshape", (("new_sizes", (5, 6)), ("dimensions", None)), (x,), (y,))
    >>> [(group.sizes, group.out_sizes) for group in regrouped(reshape)]
    [((5,), (5,)), ((3, 2, 1), (6,))]
    """
    if not signature.param("new_sizes") or signature.param("dimensions"):
        return ()
    shape, out_shape = signature.operands[0].shape, signature.results[0].shape
    # What is planned on named sizes keeps to loops: an exchange needs numbers.
    if not shape or 0 in shape or not are_numbers((*shape, *out_shape)):
        return ()
    found: list[ReshapeGroup] = []
    for left, right in groups(list(shape), list(out_shape)):
        found.append(_group(left, right))
        if not (left.sizes and right.sizes) and len(found) > 1:  # a dimension of size 1
            found[-2:] = [_joined(*found[-2:])]
    return tuple(found)


def _group(left: DimensionRange, right: DimensionRange) -> ReshapeGroup:
    return ReshapeGroup(left.start, left.sizes, right.start, right.sizes)


def _joined(first: ReshapeGroup, second: ReshapeGroup) -> ReshapeGroup:
    sizes, out_sizes = first.sizes + second.sizes, first.out_sizes + second.out_sizes
    return ReshapeGroup(first.start, sizes, first.out_start, out_sizes)


def layouts(
    signature: Signature, sources: tuple[Sharding, ...], result_sharding: Sharding
) -> Iterator[tuple[Dims, Dims]]:
    """Digits of the operand and of the result between which an exchange may stand."""
    every = regrouped(signature)
    if not every:
        return
    tried = {
        pair
        for source in sources
        for kept in (source.dims, None)
        for led in (result_sharding.dims, None)
        for pair in [_layout(every, source.dims, result_sharding.dims, kept, led)]
    }
    tried |= {(dims, _as_home(every, out, result_sharding)) for dims, out in tried}
    yield from sorted(pair for pair in tried if _moves(every, *pair) and all(map(_apart, pair)))


def _as_home(every: tuple[ReshapeGroup, ...], out: Dims, home: Sharding) -> Dims:
    """Return the result's digits, taken from its sharding in groups where its blocks are runs."""
    found = list(out)
    for group in every:
        if not group.is_kept and group.split_dim(home) != leading(group.out_sizes):
            for d in range(group.out_start, group.out_start + len(group.out_sizes)):
                found[d] = home.dims[d]
    return tuple(found)


def _layout(
    every: tuple[ReshapeGroup, ...], held: Dims, home: Dims, kept: Dims | None, led: Dims | None
) -> tuple[Dims, Dims]:
    """Digits of both sides, from those that the operand is held in.

    Args:
      home: digits of the result's sharding.
      kept: of dimensions that stay; the home's if None.
      led: of leading dimensions of the result; the operand's if None.
    """
    dims: list[Digits] = [()] * sum(len(group.sizes) for group in every)
    out: list[Digits] = [()] * sum(len(group.out_sizes) for group in every)
    for group in every:
        first, second = group.leads
        if group.is_kept:
            dims[first] = out[second] = home[second] if kept is None else kept[first]
        else:
            dims[first] = held[first]
            out[second] = (led[second] if led and held[first] else ()) or held[first]
    return tuple(dims), tuple(out)


def _moves(every: tuple[ReshapeGroup, ...], dims: Dims, out: Dims) -> bool:
    return any(not g.is_kept and dims[g.leads[0]] and out[g.leads[1]] for g in every)


def _apart(dims: Dims) -> bool:
    """No digit splits two dimensions."""
    digits = [digit for row in dims for digit in row]
    return not any(overlap(a, b) for k, a in enumerate(digits) for b in digits[:k])


def exchange(group: ReshapeGroup, held: Sharding, made: Sharding) -> Exchange:
    """What brings every device the flat elements of its block of the result."""
    first, last = group.leads[0], group.split_dim(made)
    inner = prod(group.sizes[leading(group.sizes) + 1 :])
    block = held.shard_shape[first] * inner
    start, ids = Index(), []
    for d in range(last + 1):
        digits, run = made.dims[group.out_start + d], prod(group.out_sizes[d + 1 :])
        if digits:
            ids.append((f"p{d}", digits))
            start += Index.of(f"p{d}") * (made.shard_shape[group.out_start + d] * run)
    length = made.shard_shape[group.out_start + last] * prod(group.out_sizes[last + 1 :])
    want = Interval(start, length)
    (size,) = group.flat
    return cheaper(Exchange(want, size, block, held.dims[first], tuple(ids), held.mesh.size))


def moved(group: ReshapeGroup, dim: int, held: Sharding, made: Sharding) -> DimProgram:
    """What brings the flat elements of a group, on one dimension, from one layout to another."""
    wanted = exchange(group, held, made)
    along = DimBuilder(dim, (wanted.block,))
    return along.program(*deliver(along, (0,), (wanted,)))


def elements(signature: Signature, held: Sharding, made: Sharding) -> int:
    """Elements that a device sends from a layout of the operand to one of the result."""
    total, every = 0, regrouped(signature)
    for nth, group in enumerate(every):
        if not group.is_kept:
            others = prod(made.shard_shape[: group.out_start])
            others *= prod(prod(_held(g, held)) for g in every[nth + 1 :])
            sent = transfers_of((exchange(group, held, made),), (0,))
            total += others * sum(transfer.elements for transfer in sent)
    return total


def _held(group: ReshapeGroup, held: Sharding) -> tuple[int, ...]:
    return held.shard_shape[group.start : group.start + len(group.sizes)]
