"""What is done to the results of a local operator before they are those of the node."""

from __future__ import annotations

from collections.abc import Sequence

from shardalg.partition.emit.context import Cause, PartitionContext
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import (
    ArgReduce,
    Dilate,
    ExclusiveScan,
    Fold,
    Join,
    OwnerSelect,
    Slice,
    SliceAt,
    Top,
    ValueAt,
)

Given = tuple[int, ...]
"""A result and the operands of the operator that made it, as locals."""


Resizing = Dilate | Slice | SliceAt | OwnerSelect


def resized(attributes: Resizing, size: int) -> int:
    """Places of the dimension after an instruction that changes their number."""
    if isinstance(attributes, OwnerSelect):
        return 1
    return attributes.length(size) if isinstance(attributes, Dilate) else attributes.size


def done_after(
    context: PartitionContext,
    given: tuple[Given, Given],
    attributes: Attributes,
    causes: Sequence[Cause],
) -> Given:
    """The results after one more step, which joins all of them or is done to each.

    Args:
      given: results and operands of the operator.
      causes: per result.
    """
    results, operands = given
    if isinstance(attributes, Top | Fold):
        made = tuple([_like(context, result) for result in results])
        starts = operands[len(results) :] if isinstance(attributes, Fold) else ()
        context.emit(attributes, (*results, *starts), made, causes[0])
        return made
    return tuple(
        _after(context, (result, *operands), attributes, cause)
        for result, cause in zip(results, causes, strict=True)
    )


def _after(context: PartitionContext, given: Given, attributes: Attributes, cause: Cause) -> int:
    """A result after one more step, which may take more than one instruction."""
    if isinstance(attributes, ArgReduce):
        return _best_on(context, given, attributes, cause)
    if isinstance(attributes, ExclusiveScan):
        return _carry_on(context, given, attributes, cause)
    return apply_on(context, given[0], attributes, cause)


def apply_on(
    context: PartitionContext, local: int, attributes: Attributes, cause: Cause, *more: int
) -> int:
    """The local that an instruction on `local` (and `more`) makes."""
    like = context.locals[local]
    shape = list(like.shape)
    if isinstance(attributes, Resizing):
        shape[attributes.dim] = resized(attributes, shape[attributes.dim])
    made = context.new_local(tuple(shape), like.dtype, like.sharding)
    context.emit(attributes, (local, *more), (made,), cause)
    return made


def _like(context: PartitionContext, local: int) -> int:
    like = context.locals[local]
    return context.new_local(like.shape, like.dtype, like.sharding)


def _carry_on(context: PartitionContext, given: Given, carry: ExclusiveScan, cause: Cause) -> int:
    """The prefix of a block after that of all blocks before it."""
    local = given[0]
    size = context.locals[local].shape[carry.dim]
    end = apply_on(context, local, Slice(carry.dim, 0 if carry.reverse else size - 1, 1), cause)
    before = apply_on(context, end, carry, cause)
    return apply_on(context, local, Join(carry.dim, carry.combine), cause, before)


def _best_on(context: PartitionContext, given: Given, best: ArgReduce, cause: Cause) -> int:
    """The best place of all blocks, by its value in each."""
    place, block = (context.locals[local] for local in given)
    value = context.new_local(place.shape, block.dtype, place.sharding)
    context.emit(ValueAt(best.dim), given, (value,), cause)
    made = context.new_local(place.shape, place.dtype, place.sharding)
    context.emit(best, (value, given[0]), (made,), cause)
    return made
