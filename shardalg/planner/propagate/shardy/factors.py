"""Shardy's step: one operator, all its tensors and both directions at once, loop by loop.

Each loop (Shardy: factor) takes the longest list of digits on which its tensors agree. Then each
tensor is extended along its loops, in an order that decides conflicts between loops.
Steps are pure functions of (operator class, layout numbers, directions); `worklist.py` remembers
their outcomes.
Source: `shardy/dialect/sdy/transforms/propagation` (aggressive and basic factor propagation).

The stages in which a step may extend a loop. No operator is named here.
Source: `op_priority_propagation.cc`: 0 pass-through operators whose operands have no other user,
1 all of them, 2 every operator along the loops that pass through, broadcasts only towards their
operand, 3 all loops, 4 broadcasts forward too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardalg.algebra.digits import Digit, Digits, is_major, overlap, parts, starts_with, take
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.layouts import Layouts
from shardalg.planner.propagate.operator_classes import Dims, OperatorClass

Numbers = tuple[int, ...]
FORWARD, BACKWARD, BOTH = 1, 2, 3
"""The tensors whose digits may extend a loop: operands, results or both, as a bit mask."""


class TensorFactor(NamedTuple):
    """The sharding of one tensor along one loop of an operator (a factor, in Shardy's words).

    Attributes:
      digits: the digits that partition the loop, major first.
      over: the minor digits that remain if the tensor's dimension has more parts than the loop.
      is_open: whether propagation may append digits.
      is_minor: whether the loop is the last one of its dimension.
    """

    digits: Digits
    over: Digits
    is_open: bool
    is_minor: bool


Tensor = dict[str, TensorFactor]
"""A tensor's sharding by loop. A dimension `d` without loops has the key "dim d"."""
Extended = tuple[tuple[int, Numbers], ...]
"""Per tensor its layout after the step, and the tensors that it took something from."""


def step(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts, directions: Mapping[str, int]
) -> Extended | None:
    """Return the layouts of an operator's tensors after one step of Shardy's propagation.

    An entry is (layout number, numbers of the tensors from which the digits came), operands first.
    Return None if nothing changes.

    Args:
      numbers: the layout numbers before the step, operands first.
      directions: per loop, the tensors whose digits may extend it: `FORWARD` (operands),
        `BACKWARD` (results) or `BOTH`.
    """
    # If nothing is sharded, or all tensors agree already, nothing can change.
    if max([layouts.tiles[number] for number in numbers]) == 1:
        return None
    if kind.has_equal_maps and len({layouts.dims[number] for number in numbers}) == 1:
        return None
    # 1. Tensors have different dimensions, so they are compared by loop (Shardy's factors).
    tensors = [split(kind, k, layouts, number) for k, number in enumerate(numbers)]
    # 2. Where tensors conflict along a loop, its digits end: none is changed against another.
    axes = {loop: _agreed(kind, tensors, loop, directions.get(loop, 0)) for loop in kind.sizes}
    if not any(axes.values()):
        return None
    # 3. If loops compete for an axis, the loop of the largest source goes first, as in Shardy.
    sources = {loop: _source(kind, tensors, loop, digits) for loop, digits in axes.items()}
    order = sorted(kind.sizes, key=lambda loop: _rank(kind, sources[loop], axes[loop]))
    reserved = [layouts.reserved[number] for number in numbers]
    after: list[tuple[int, Numbers]] = [(number, ()) for number in numbers]
    # 4. Extend results before operands: a pointwise operand must not surpass a result.
    for k in (*kind.results, *kind.operands):
        limits = [tensors[r] for r in kind.results] if _is_sideways(kind, k) else []
        # `_extend` changes the tensor's loops and returns those that got digits.
        extended_loops = _extend(tensors[k], kind, order, Extension(axes, reserved[k], limits))
        if extended_loops:
            new = layouts.extended(numbers[k], joined(kind, k, tensors[k], layouts))
            source_tensors = tuple(sorted({sources[loop][1] for loop in extended_loops} - {k}))
            after[k] = (new, source_tensors if new != numbers[k] else ())
    changed = any(new != old for (new, _), old in zip(after, numbers, strict=True))
    return tuple(after) if changed else None


def all_offers(
    kind: OperatorClass, numbers: Numbers, layouts: Layouts
) -> Iterator[tuple[int, str, Dims, Numbers]]:
    """Yield the sharding that each sharded tensor of a step offers to each other one.

    Each entry is (number of the receiving tensor, direction, offered digits per dimension, (number
    of the offering tensor,)).

    Args:
      numbers: the layout numbers of the step's tensors, operands first.
    """
    for target in (*kind.results, *kind.operands):
        direction = image.FORWARD if target in kind.results else image.BACKWARD
        for source, number in enumerate(numbers):
            if source != target and layouts.tiles[number] > 1:
                dims = kind.project(source, target, layouts.dims[number])
                if any(dims):
                    yield target, direction, dims, (source,)


def _is_sideways(kind: OperatorClass, tensor: int) -> bool:
    """Return whether a tensor is an operand of a pointwise operator.

    Such an operand is not extended beyond the results.
    """
    return kind.role == image.POINTWISE and tensor < kind.num_operands


def split(kind: OperatorClass, tensor: int, layouts: Layouts, number: int) -> Tensor:
    """Return the sharding of a tensor as the digits of each loop (Shardy's factors).

    A dimension of several loops gives its digits to the major loop first. A digit is cut in two if
    a loop has room for its major part only. The last loop of a dimension takes all digits left,
    except if a more major loop is not split to single elements: it then keeps them.

    A `TensorFactor` has the loop's digits, the digits that it has no room for, whether propagation
    may append digits, and whether the loop is the last one of its dimension.

    Args:
      tensor: the number of the tensor in the operator.
      number: the number of its layout.
    """
    found: Tensor = {}
    is_fixed, free = layouts.fixed[number], layouts.open[number]
    rows = zip(layouts.dims[number], kind.maps[tensor], strict=True)
    for dim, (digits, entry) in enumerate(rows):
        is_open, rest, full = not is_fixed or dim in free, digits, False
        # Blocks are contiguous: only if a major loop is split to single elements can the next loop
        # be split as well. So a loop that is not, and has digits left, leaves none to minor loops.
        for loop, _ in entry[:-1]:
            if full:
                found[loop] = TensorFactor((), (), False, False)
                continue
            # `taken` divides the loop's size, `rest` is left, and `room` is the size of a block.
            taken, rest, room = take(rest, kind.sizes[loop])
            full = bool(rest) and room > 1
            found[loop] = TensorFactor(taken, rest if full else (), is_open, False)
        # A dimension without loops still holds its digits.
        last = entry[-1][0] if entry else f"dim {dim}"
        open_here = is_open and bool(entry)
        found[last] = (
            TensorFactor((), (), False, True) if full else TensorFactor(rest, (), open_here, True)
        )
    return found


def _agreed(kind: OperatorClass, tensors: Sequence[Tensor], loop: str, direction: int) -> Digits:
    """Return the digits of a loop on which all tensors agree, for one direction of propagation.

    The digits are the longest common prefix. Tensors on the side that propagates (operands in the
    forward direction) may have further digits, which are added.

    Args:
      direction: forward, backward or both; 0 gives ().
    """
    if not direction:
        return ()
    # All tensors are compared, because a conflict anywhere cuts the digits. Only the side that is
    # read first may add digits, unless both sides may.
    sides = (kind.operands, kind.results)
    found: Digits = ()
    may_extend = True
    for side in sides[::-1] if direction == BACKWARD else sides:
        for k in side:
            if loop in tensors[k]:
                found, may_extend = _compatible(found, tensors[k][loop].digits, may_extend)
        may_extend = may_extend and direction == BOTH
    return found


def _compatible(old: Digits, new: Digits, may_extend: bool) -> tuple[Digits, bool]:
    """Return the digits on which two lists agree, and whether later lists may extend them.

    If one list is longer and the digits do not conflict, its remaining digits are included only if
    `may_extend` is True. After a conflict, nothing may extend the digits.

    Args:
      old: the digits so far, major first.
      new: the digits of a further tensor.
      may_extend: whether `new` may extend `old`.
    """
    for k, (a, b) in enumerate(zip(old, new, strict=False)):
        if a == b:
            continue
        # The last digit of one list may be the major part of the other list's digit, as X:(1)2 is
        # of X. The two lists then agree, and the longer digit is a refinement.
        if is_major(b, a) and k == len(new) - 1:
            return old, may_extend
        if is_major(a, b) and k == len(old) - 1:
            return (new if may_extend else old), may_extend
        shorter = b if is_major(b, a) else a if is_major(a, b) else None
        return (*old[:k], *([shorter] if shorter else [])), False
    return (new if may_extend and len(new) > len(old) else old), may_extend


def _source(
    kind: OperatorClass, tensors: Sequence[Tensor], loop: str, digits: Digits
) -> tuple[int, int]:
    """Return (negated size, number) of the largest tensor whose loop begins with these digits.

    The result is (1, -1) if there is none.
    """
    best = (1, -1)
    for k, tensor in enumerate(tensors) if digits else ():
        if loop in tensor and starts_with(tensor[loop].digits, digits):
            best = min(best, (-kind.elements[k], k))
    return best


def _rank(kind: OperatorClass, source: tuple[int, int], digits: Digits) -> tuple[int, int, int]:
    """Return the sort key of a loop; the loops of a tensor are extended in ascending order of it.

    Loops whose digits come from a larger tensor come first. Next, in a pointwise operator, come
    loops with more partitions.

    Args:
      source: (negated size, number) of the tensor that the digits come from.
      digits: the digits by which the loop is extended.
    """
    split = parts(digits) if kind.role == image.POINTWISE else 0
    return (source[0], -split, source[1])


class Extension(NamedTuple):
    """The restrictions under which the sharding of one tensor is extended.

    Attributes:
      axes: the digits by which each loop may be extended.
      reserved: digits that the tensor may not have.
      limits: results of a pointwise operator. An operand may not have more digits on a loop than
        these have.
    """

    axes: Mapping[str, Digits]
    reserved: Digits
    limits: Sequence[Tensor]


def _extend(
    tensor: Tensor,
    kind: OperatorClass,
    order: Sequence[str],
    by: Extension,
) -> list[str]:
    """Shard a tensor further along its loops, in place; return the loops that got digits.

    Args:
      tensor: the digits of each loop in the tensor.
      kind: the operator's class, with the extents of its loops.
      order: the loops in the order in which they take digits; an earlier loop wins a conflict.
      by: the digits proposed for each loop, the reserved digits, and the tensors that limit it.
    """
    (axes, reserved, limits), changed = by, []
    for loop in order:
        part = tensor.get(loop)
        if part is None or not axes[loop]:
            continue
        room = _within(part, axes[loop], kind.sizes[loop], reserved)
        # Propagation only appends digits to those that the tensor has.
        if room == part.digits or not starts_with(room, part.digits):
            continue
        # An axis partitions one loop of a tensor only: the loop that is first in the order gets it.
        used = [d for other, p in tensor.items() if other != loop for d in (*p.digits, *p.over)]
        new = _without(room, used)
        # A pointwise operand gets no more digits of a loop than each result has.
        for limit in limits:
            own = limit[loop].digits if loop in limit else new
            new = own if own != new and starts_with(new, own) else new
        if new != part.digits and starts_with(new, part.digits):
            tensor[loop] = part._replace(digits=new)
            changed.append(loop)
    return changed


def _within(part: TensorFactor, digits: Digits, size: int, reserved: Digits) -> Digits:
    """Return the digits with which one tensor can be sharded along a loop, out of the agreed ones.

    The list ends where the tensor has no room: where the loop must be divided evenly and its extent
    does not allow this, or where its sharding is closed.

    Args:
      part: the tensor's present sharding along the loop.
      digits: the digits on which all tensors of the operator agree.
      size: the extent of the loop.
      reserved: digits that the tensor must not have.
    """
    kept: list[Digit] = []
    for digit in _without(digits, reserved):
        # A digit that the tensor has on this loop already, alone or in a longer digit, needs no
        # further room.
        if any(
            own.stride <= digit.stride
            and digit.stride * digit.size <= own.stride * own.size
            and overlap(own, digit)
            for own in part.digits
        ):
            kept.append(digit)
            continue
        # The most minor loop of a dimension has room for any digits: its blocks may be uneven.
        if part.is_open and not part.over and part.is_minor:
            kept.append(digit)
            continue
        # Any other loop must be divided evenly, or the next loop's blocks would not be contiguous.
        # A digit that does not fit is cut to its major part (Shardy: a sub-axis), which ends it.
        fits = math.gcd(size // parts(tuple(kept)), digit.size)
        if part.is_open and not part.over and size % parts(tuple(kept)) == 0 and fits > 1:
            kept.append(Digit(digit.stride * (digit.size // fits), fits))
            if fits == digit.size:
                continue
        elif part.digits and is_major(part.digits[-1], digit):
            kept.append(part.digits[-1])
        break
    return tuple(kept)


def _without(digits: Digits, used: Sequence[Digit]) -> Digits:
    """Return the digits before the first one that overlaps a used digit.

    Of the overlapping digit itself, the part above the used one is kept.
    """
    # One mesh axis cannot partition two loops, and a more minor digit without its major one would
    # not give contiguous blocks: the first overlap ends the list.
    kept: list[Digit] = []
    for digit in digits:
        left: Digit | None = digit
        for other in used:
            top = other.stride * other.size
            if left is not None and overlap(left, other):
                # A digit covers the strides from `stride` to `stride * size`. The part from the end
                # of the used digit (`top`) on is free, if the two divide evenly there.
                whole = left.stride * left.size
                left = Digit(top, whole // top) if whole > top and whole % top == 0 else None
        if left is not None:
            kept.append(left)
        if left != digit:
            break
    return tuple(kept)


def joined(kind: OperatorClass, tensor: int, found: Tensor, layouts: Layouts) -> Dims:
    """Return the digits of a tensor's dimensions from the digits of its loops.

    A dimension of several loops has their digits, major loop first. It ends at the first loop that
    is not split to single elements.
    """
    return tuple(
        layouts.fused(tuple(_dimension_digits(kind, entry, found)))
        if entry
        else found[f"dim {dim}"].digits
        for dim, entry in enumerate(kind.maps[tensor])
    )


def _dimension_digits(
    kind: OperatorClass, entry: Sequence[tuple[str, int]], found: Tensor
) -> Iterator[Digit]:
    """Yield the digits of one dimension, major first.

    A dimension of several loops is sharded along a minor loop only if the loops before it are split
    into single iterations, because blocks of the dimension must be contiguous.
    """
    for loop, _ in entry:
        part = found[loop]
        yield from part.digits
        # Digits beyond the loop's size split its blocks further, so that they are the last ones.
        yield from part.over
        if part.over or parts(part.digits) < kind.sizes[loop]:
            return


Directions = dict[str, int]
"""Per loop `FORWARD`, `BACKWARD` or `BOTH`."""
PASSING = {
    image.POINTWISE: BOTH,
    image.LAYOUT: BOTH,
    image.LOOP: BOTH,
    image.DYNAMIC_SLICE: FORWARD,
}
"""The roles that act in stages 0 and 1, with their directions."""
LAST_STAGE = 4


def directions(kind: OperatorClass, stage: int) -> Directions:
    """Return, per loop, the tensors whose digits may extend the loop at a stage of propagation.

    The values are bit masks: 1 for operands (`FORWARD`), 2 for results (`BACKWARD`), 3 for both. A
    loop that nothing may extend is left out.

    >>> from shardalg.planner.propagate.operator_classes import edge
    >>> kind = edge((8,), 1, 1, role="loop", alone=False)
    >>> directions(kind, 0), directions(kind, 1)
    ({}, {'d0': 3})
    """
    if kind.role == image.EXIT:
        return dict.fromkeys(kind.sizes, BOTH)
    if kind.blocks.issuperset(kind.sizes):  # a sort along its only dimension passes nothing on
        return {}
    found = {loop: _direction(kind, loop, stage) for loop in kind.sizes}
    return {loop: way for loop, way in found.items() if way}


def _direction(kind: OperatorClass, loop: str, stage: int) -> int:
    """Return the directions in which an operator passes shardings along one loop at a stage.

    `FORWARD` is from operands to results, `BACKWARD` from results to operands, `BOTH` is both, and
    0 is neither. Shardy's propagation has several stages, and each adds directions. Stages 0 and 1
    act on the operators in `PASSING`, stage 0 only if no operand has another user (`kind.alone`).
    Stage 2 adds loops that pass from operands to results one to one (`kind.through`), stage 3 all
    other loops.
    """
    # Each stage adds directions to those of the stages before it. A broadcast is extended towards
    # its result last, because its operand says nothing about the result's new dimensions.
    towards_operand = BACKWARD if kind.role == image.BROADCAST else BOTH
    way = PASSING.get(kind.role, 0) if stage >= 1 or kind.alone else 0
    if (stage >= 2 and loop in kind.through) or stage >= 3:
        way |= towards_operand
    return BOTH if stage >= LAST_STAGE else way
