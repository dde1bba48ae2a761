"""Reshapes in which a device's operand and result blocks hold different elements.

An exchange moves the elements.

The dimensions of a reshape fall into groups that contain the same elements on both sides. If a
group is sharded along its leading dimension, a device holds an interval of the group's flat
elements. It needs another interval for its block of the result. An exchange fetches the difference.
Source: GSPMD (arXiv:2105.04663), section 4.3, "Halo exchange for data formatting".
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
from shardalg.graph.ops.families.data_formatting import groups
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
    """Dimensions of a reshape's operand, and the result's dimensions with the same elements.

    Attributes:
      start, sizes: the number of the operand's first dimension in the group, and the sizes of its
        dimensions in the group.
      out_start, out_sizes: the same of the result.
    """

    start: int
    sizes: tuple[int, ...]
    out_start: int
    out_sizes: tuple[int, ...]

    @property
    def is_kept(self) -> bool:
        """True if the reshape keeps the dimension: the group has one on either side."""
        return len(self.sizes) == len(self.out_sizes) == 1

    @property
    def leads(self) -> tuple[int, int]:
        """The leading dimension of the group in the operand, and in the result.

        Only these may be sharded (except as `split_dim` allows): a block is then one run of flat
        elements.
        """
        return self.start + leading(self.sizes), self.out_start + leading(self.out_sizes)

    def split_dim(self, made: Sharding) -> int:
        """Return the last dimension of the result that may be sharded, counted from `out_start`.

        A device must hold one run of the group's flat elements. The dimension is therefore the last
        sharded one, if each dimension before it has one element per device and no device is empty.
        Otherwise it is the leading dimension.

        Args:
          made: the sharding of the result.
        """
        # A block of sizes (1, 1, b, whole, whole) is one run of flat elements; of (2, b, whole)
        # with b < size it would be two runs with a gap between them.
        first, span = leading(self.out_sizes), slice(self.out_start, None)
        rows = list(zip(self.out_sizes, made.shard_shape[span], made.dims[span], strict=False))
        last = max([d for d, (_, _, digits) in enumerate(rows) if digits], default=first)
        is_run = all(block == 1 for _, block, _ in rows[:last])
        is_run &= all((parts(digits) - 1) * block < size for size, block, digits in rows)
        return last if last > first and is_run else first

    @property
    def flat(self) -> tuple[int, ...]:
        """A tuple with the number of elements of the group: its shape as one flat dimension."""
        return (prod(self.sizes),)


@lru_cache(maxsize=1 << 12)
def regroups(signature: Signature) -> tuple[ReshapeGroup, ...]:
    """Return the groups of dimensions with the same elements on both sides of a reshape.

    They are () for other operators, scalars and empty tensors.

    >>> from shardalg.graph.ir import ValueType
    >>> x, y = ValueType((5, 3, 2, 1), "float32"), ValueType((5, 6), "float32")
    >>> reshape = Signature("reshape", (("new_sizes", (5, 6)), ("dimensions", None)), (x,), (y,))
    >>> [(group.sizes, group.out_sizes) for group in regroups(reshape)]
    [((5,), (5,)), ((3, 2, 1), (6,))]
    """
    if not signature.param("new_sizes") or signature.param("dimensions"):
        return ()
    shape, out_shape = signature.operands[0].shape, signature.results[0].shape
    # An exchange needs numbers: plans with named sizes use the loops of the row instead.
    if not shape or 0 in shape or not are_numbers((*shape, *out_shape)):
        return ()
    found: list[ReshapeGroup] = []
    for left, right in groups(list(shape), list(out_shape)):
        found.append(ReshapeGroup(left.start, left.sizes, right.start, right.sizes))
        if not (left.sizes and right.sizes) and len(found) > 1:
            # A dimension of size 1 that one side lacks belongs to the group before it.
            first, second = found[-2:]
            sizes, out_sizes = first.sizes + second.sizes, first.out_sizes + second.out_sizes
            found[-2:] = [ReshapeGroup(first.start, sizes, first.out_start, out_sizes)]
    return tuple(found)


def layouts(
    signature: Signature, sources: tuple[Sharding, ...], result_sharding: Sharding
) -> Iterator[tuple[Dims, Dims]]:
    """Yield (digits of the operand's dimensions, digits of the result's) of possible exchanges.

    A group is a set of operand and result dimensions that contain the same elements. Only its
    leading dimensions are sharded. A candidate takes the digits of unchanged dimensions from the
    operand or from the result, and also the digits of the leading dimensions after the reshape.

    Args:
      sources: shardings of the operand's available copies.
      result_sharding: the result's completed sharding.
    """
    every = regroups(signature)
    if not every:
        return
    # Which combination sends least depends on the sizes and the other dimensions, so all four are
    # tried.
    tried = {
        pair
        for source in sources
        for kept in (source.dims, None)
        for led in (result_sharding.dims, None)
        for pair in [_dims(every, source.dims, result_sharding.dims, kept, led)]
    }
    tried |= {(dims, _with_runs(every, out, result_sharding)) for dims, out in tried}
    for dims, out in sorted(tried):
        # Without a group that is sharded on both sides there is nothing to exchange.
        exchanges = any(not g.is_kept and dims[g.leads[0]] and out[g.leads[1]] for g in every)
        if exchanges and _are_disjoint(dims) and _are_disjoint(out):
            yield dims, out


def _with_runs(every: tuple[ReshapeGroup, ...], out: Dims, home: Sharding) -> Dims:
    """Return the digits `out` of a reshape's result, with those of `home` in some groups.

    A group has neighbouring dimensions of the operand and of the result that contain the same
    elements. In some groups, `home` shards more than the leading dimension, but each block still is
    one run of consecutive elements in row-major order. There the result gets the digits of `home`.
    """
    found = list(out)
    for group in every:
        if not group.is_kept and group.split_dim(home) != leading(group.out_sizes):
            for d in range(group.out_start, group.out_start + len(group.out_sizes)):
                found[d] = home.dims[d]
    return tuple(found)


def _dims(
    every: tuple[ReshapeGroup, ...], held: Dims, home: Dims, kept: Dims | None, led: Dims | None
) -> tuple[Dims, Dims]:
    """Return one candidate for the digits of the operand's and of the result's dimensions.

    A group consists of the dimensions of operand and result that contain the same elements. Only
    the leading dimension on each side of a group is sharded. Dimensions that the reshape keeps have
    the same digits on both sides.

    Args:
      every: all groups.
      held: digits of the operand's dimensions now.
      home: digits of the result's dimensions in its completed sharding.
      kept: the operand's digits to use for kept dimensions; None: those of `home`.
      led: the result's digits to use for leading dimensions; None: the operand's.
    """
    dims: list[Digits] = [()] * sum(len(group.sizes) for group in every)
    out: list[Digits] = [()] * sum(len(group.out_sizes) for group in every)
    for group in every:
        first, second = group.leads
        if group.is_kept:
            dims[first] = out[second] = home[second] if kept is None else kept[first]
        else:
            # The operand keeps its digits. If it has none, the result's leading dimension stays
            # whole, too. Otherwise it gets the digits of `led`, or the operand's if these are ().
            dims[first] = held[first]
            if held[first]:
                out[second] = (led[second] if led else ()) or held[first]
    return tuple(dims), tuple(out)


def _are_disjoint(dims: Dims) -> bool:
    """Return whether no two dimensions are sharded along overlapping digits."""
    digits = [digit for row in dims for digit in row]
    return not any(overlap(a, b) for k, a in enumerate(digits) for b in digits[:k])


def exchange(group: ReshapeGroup, held: Sharding, made: Sharding) -> Exchange:
    """Return the exchange that gives every device the flat elements of its block of the result.

    A group of dimensions with the same elements before and after a reshape is seen as one flat
    dimension. For example, [3, 4] -> [12] has 12 flat elements, and row 1 the elements 4 to 7.

    Args:
      held, made: the shardings of the operand and of the result.
    """
    first, last = group.leads[0], group.split_dim(made)
    # One index of the operand's leading dimension has `inner` flat elements.
    inner = prod(group.sizes[leading(group.sizes) + 1 :])
    block = held.shard_shape[first] * inner
    # A block's flat elements are one interval, because every dimension before `last` has one
    # element per device (`ReshapeGroup.split_dim`).
    # Its start is a sum over the sharded dimensions: partition id * block size * flat elements of
    # one index. The variable `p0` is the partition id of the result's dimension 0 in the group.
    start, ids = Index(), []
    for d in range(last + 1):
        digits, run = made.dims[group.out_start + d], prod(group.out_sizes[d + 1 :])
        if digits:
            ids.append((f"p{d}", digits))
            start += Index.of(f"p{d}") * (made.shard_shape[group.out_start + d] * run)
    length = made.shard_shape[group.out_start + last] * prod(group.out_sizes[last + 1 :])
    want = Interval(start, length)
    (size,) = group.flat
    return cheaper(
        Exchange(
            want=want,
            size=size,
            block=block,
            held=held.dims[first],
            ids=tuple(ids),
            devices=held.mesh.size,
        )
    )


def exchange_program(group: ReshapeGroup, dim: int, held: Sharding, made: Sharding) -> DimProgram:
    """Return the program that exchanges elements between devices for one group of a reshape.

    The dimensions of the group were flattened to the single dimension `dim`. Each device receives
    the elements of its block of the result.

    Args:
      held, made: the shardings of the operand and of the result.
    """
    wanted = exchange(group, held, made)
    along = DimBuilder(dim, (wanted.block,))
    return along.program(*deliver(along, (0,), (wanted,)))


def elements(signature: Signature, held: Sharding, made: Sharding) -> int:
    """Return the number of elements that a device sends in the exchanges of a reshape.

    Args:
      held, made: the shardings of the operand and of the result.
    """
    total, every = 0, regroups(signature)
    for nth, group in enumerate(every):
        # A kept group has equal blocks on both sides, so that it sends nothing.
        if not group.is_kept:
            # The exchange sends slices across all other dimensions of the block.
            others = prod(made.shard_shape[: group.out_start])
            # Groups before this one have the result's blocks already, groups behind it do not.
            rest = (held.shard_shape[g.start : g.start + len(g.sizes)] for g in every[nth + 1 :])
            others *= prod(map(prod, rest))
            sent = transfers_of((exchange(group, held, made),), (0,))
            total += others * sum(transfer.elements for transfer in sent)
    return total
