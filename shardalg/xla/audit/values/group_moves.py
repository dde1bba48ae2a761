"""Collectives as changes of the views of all members of a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction
from shardalg.xla.audit.hlo_attributes import groups_of, integers, pairs_of
from shardalg.xla.audit.values.data_moves import agreed, counted, distance, lead_shift
from shardalg.xla.audit.values.element_views import (
    LOW,
    MIXED,
    VOID,
    Known,
    Pending,
    Value,
    View,
    content,
    view,
)
from shardalg.xla.audit.values.per_device import (
    COMPLETE_ALREADY,
    OTHER_BLOCKS,
    ArrayPool,
    ClassError,
    PerDevice,
    RefutedError,
    Shown,
    UnknownError,
)


def all_gather(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> Value:
    """Return the view of the joined blocks of each group."""
    (x,) = operands
    (dim,) = integers(instruction.attributes["dimensions"])
    groups = groups_of(instruction, pool.devices)
    if isinstance(x, Known):
        return _known_gather(pool, x, dim, groups)
    return _exchanged(pool, x, dim, groups, None)


def _known_gather(pool: ArrayPool, x: Known, dim: int, groups: np.ndarray) -> Known:
    """Return the numbers of all members of each group, joined along a dimension.

    Args:
      groups: device numbers, [groups, members].
    """
    size = x.shape[dim]
    # Numbers that are stored once are repeated, because other members may have other numbers.
    full = pool.applied(
        ("spread", dim, size), lambda c: np.repeat(c, size // c.shape[1 + dim], 1 + dim), x.cells
    )

    def join(cells: np.ndarray) -> np.ndarray:
        """Return the joined numbers, [groups, members, ...]; all members receive the same."""
        joined = np.concatenate([cells[:, m] for m in range(cells.shape[1])], 1 + dim)
        return np.repeat(joined[:, None], cells.shape[1], 1)

    cells = pool.in_groups(("gather", dim, groups.tobytes()), join, groups, full)
    shape = tuple(n * groups.shape[1] if d == dim else n for d, n in enumerate(x.shape))
    return Known(cells, shape)


def all_to_all(
    pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]
) -> Value | tuple[Value, ...]:
    """Return the view after an exchange: member j receives part j of every member."""
    groups = groups_of(instruction, pool.devices)
    if len(operands) > 1 or len(instruction.leaves) > 1:
        return _all_to_all_of_tuple(pool, operands, groups)
    (x,) = operands
    (dim,) = integers(instruction.attributes["dimensions"])
    if isinstance(x, Known):
        raise UnknownError("all-to-all of known numbers")
    return _exchanged(pool, x, dim, groups, x.shape[dim] // groups.shape[1])


def _all_to_all_of_tuple(
    pool: ArrayPool, operands: Sequence[Value], groups: np.ndarray
) -> tuple[Value, ...]:
    """Return result s of each member j: operand j of member s."""
    views = [x for x in operands if isinstance(x, View)]
    if len(views) < len(operands) or len({(x.base, x.pending) for x in views}) > 1:
        raise UnknownError("all-to-all of several tensors")
    results = []
    for s in range(groups.shape[1]):
        parts: list[PerDevice] = []
        for of in (lambda x: (x.shift,), lambda x: x.lines):
            for rows in zip(*(of(x) for x in views), strict=True):

                def receive(*cells: np.ndarray, s: int = s) -> np.ndarray:
                    return np.stack([c[:, s] for c in cells], 1)

                key = ("receive", s, groups.tobytes())
                parts.append(pool.in_groups(key, receive, groups, *rows))
        fills = {x.fill for x in views}
        fill = fills.pop() if len(fills) == 1 else MIXED
        results.append(replace(views[0], shift=parts[0], lines=tuple(parts[1:]), fill=fill))
    return tuple(results)


def _exchanged(pool: ArrayPool, x: View, dim: int, groups: np.ndarray, width: int | None) -> View:
    """Return the join along a dimension of the parts that each member receives from each other.

    Args:
      width: the size of a part; None: every member receives everything.
    """
    name = groups.tobytes()
    lead = pool.in_groups(
        ("group lead", name),
        lambda s: np.repeat(lead_shift(*s.T)[:, None], s.shape[1], 1),
        groups,
        x.shift,
    )

    apart = pool.applied("distance", distance, x.shift, lead)

    def join(apart: np.ndarray, line: np.ndarray) -> np.ndarray:
        """Return the elements that each member receives, [groups, members, length].

        Args:
          apart: how far each member's first element is from the group's, [groups, members].
        """
        steps = counted(line, apart)
        members = range(steps.shape[1])
        if width is None:
            joined = np.concatenate([steps[:, s] for s in members], 1)
            return np.repeat(joined[:, None], len(members), 1)
        # With a width, member j receives part j of each member s, in the order of the members.
        received = [
            np.concatenate([steps[:, s, j * width : (j + 1) * width] for s in members], 1)
            for j in members
        ]
        return np.stack(received, 1)

    def common(shift: np.ndarray, line: np.ndarray) -> np.ndarray:
        chosen = agreed(shift > LOW, line)
        return np.repeat(chosen[:, None], line.shape[1], 1)

    lines = [
        pool.in_groups(("join", width, name), join, groups, apart, line)
        if d == dim
        else pool.in_groups(("common", name), common, groups, apart, line)
        for d, line in enumerate(x.lines)
    ]
    return view(pool, x, lead, lines)


def collective_permute(
    pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]
) -> Value:
    """Return the view of the values that devices receive; the others hold 0."""
    (x,) = operands
    pairs = pairs_of(instruction)
    source = np.full(pool.devices, -1)
    for sender, receiver in pairs:
        source[receiver] = sender
    silent = source < 0

    def received(part: PerDevice, rows: np.ndarray | None = None) -> PerDevice:
        """Return an array as the devices have it after the permute.

        Args:
          rows: the row of a device that receives nothing; None: its row stays.
        """
        # On a device that receives nothing the lines stay its own, so that joins with them agree.
        kept = np.where(silent, np.arange(pool.devices), source)
        if rows is None:
            return pool.made(part.rows, part.classes[kept])
        table = np.concatenate([part.rows, rows])
        return pool.made(table, np.where(silent, len(part.rows), part.classes[kept]))

    if isinstance(x, Known):
        return replace(x, cells=received(x.cells, np.zeros_like(x.cells.rows[:1])))
    shift = received(x.shift, np.full(1, VOID))
    lines = tuple(received(line) for line in x.lines)
    fill = x.fill
    if silent.any():
        fill = 0.0 if x.fill in (None, 0.0) or not x.is_partly_void else MIXED
    return replace(x, shift=shift, lines=lines, fill=fill)


def all_reduce(pool: ArrayPool, combine: str, groups: np.ndarray, x: Value) -> Value:
    """Return the view after a reduction over the members of each group.

    Raises:
      RefutedError: the members do not hold parts of one reduction, or add a part twice.
      UnknownError: no rule explains the reduction.
    """
    name = groups.tobytes()
    if isinstance(x, Known):
        return _known_reduce(pool, combine, groups, x)
    if x.pending is None:
        if combine == "add" and x.fill == 0.0:
            return _owned(pool, groups, x)
        parts = (x.shift, *x.lines)

        def same(c: np.ndarray) -> np.ndarray:
            equal = (c == c[:, :1]).reshape(len(c), -1).all(1)
            return np.repeat(equal[:, None], c.shape[1], 1)

        equal = all(pool.in_groups(("same", name), same, groups, part).rows.all() for part in parts)
        if combine in ("maximum", "minimum", "and", "or") and equal:
            return x
        if combine == "add" and x.fill is None:
            times = f"the sum of {groups.shape[1]} devices' elements"
            shown = Shown((), content(x, int(groups[0, 0])), times)
            raise RefutedError(
                COMPLETE_ALREADY, int(groups[0, 0]),
                (0,) * len(x.lines), shown=shown,
            )  # fmt: skip
        raise UnknownError("an all-reduce of values that are no pending reduction")
    if x.pending.combine != combine:
        shown = Shown(expected=f"combined by {x.pending.combine}", found=f"combined by {combine}")
        why = f"an all-reduce by {combine} of a pending {x.pending.combine}"
        raise RefutedError(why, shown=shown)

    def equal_blocks(part: np.ndarray) -> np.ndarray:
        """Return the array if all members of each group have it; else raise an error."""
        differ = (part != part[:, :1]).reshape(*part.shape[:2], -1).any(2)
        if differ.any():
            row, member = map(int, np.argwhere(differ)[0])
            raise ClassError(RefutedError(OTHER_BLOCKS), row, member)
        return part

    try:
        for part in (x.shift, *x.lines):
            pool.in_groups(("equal blocks", name), equal_blocks, groups, part)
    except RefutedError as error:
        raise _other_block(groups, x, error) from None
    is_sum = combine not in ("maximum", "minimum", "and", "or")

    def join(at: int) -> Callable[..., np.ndarray]:
        return lambda *covers: _joined_cover(at, covers, is_sum=is_sum)

    covers = tuple(
        pool.in_groups(("cover", at, is_sum, name), join(at), groups, *x.pending.covers)
        for at in range(len(x.pending.covers))
    )
    done = all(cover.rows.all() for cover in covers)
    return replace(x, pending=None if done else Pending(combine, covers))


def _other_block(groups: np.ndarray, x: View, error: RefutedError) -> RefutedError:
    """Return the error with the first element in which a device differs from its group's first."""
    (group,) = groups[(groups == error.device).any(1)]
    first = int(group[0])
    place = [0] * len(x.lines)
    for dim, line in enumerate(x.lines):
        differ = np.argwhere(line.of(first) != line.of(error.device))
        place[dim] = int(differ[0, 0]) if len(differ) else 0
    shown = Shown((), content(x, first, place), content(x, error.device, place))
    return RefutedError(error.why, error.device, tuple(place), shown=shown)


def _joined_cover(at: int, covers: Sequence[Any], *, is_sum: bool) -> np.ndarray:
    """Return the indices of reduced dimension `at` that a group has together.

    Each member has reduced a box of indices, one set per dimension. The boxes must be disjoint if
    they are added, and must fill a box.

    Args:
      covers: per reduced dimension, [groups, members, size].
    """
    groups, members = covers[0].shape[:2]
    union = [cover.any(1) for cover in covers]
    differ = [(cover != cover[:, :1]).any((1, 2)) for cover in covers]
    for group in range(groups):
        sizes = np.array([[cover[group, m].sum() for cover in covers] for m in range(members)])
        total = sum(math.prod(map(int, row)) for row in sizes)
        full = math.prod(int(u[group].sum()) for u in union)
        vary = [k for k in range(len(covers)) if differ[k][group]]
        if is_sum:
            # Two boxes with a common index add it twice. Boxes that vary along one dimension are
            # compared by counts, which is linear in the number of members.
            if len(vary) == 1:
                twice = bool((covers[vary[0]][group].sum(0) > 1).any()) and bool(sizes.all(1).any())
            else:
                twice = any(
                    all((cover[group, a] & cover[group, b]).any() for cover in covers)
                    for a in range(members)
                    for b in range(a)
                )
            if twice:
                why = "parts of a sum are added more than once"
                shown = Shown(expected=f"a sum of {full} parts", found=f"a sum of {total} parts")
                raise ClassError(RefutedError(why, shown=shown), group, members - 1)
            if total != full:
                raise ClassError(UnknownError("an all-reduce whose parts fill no box"), group)
        elif len(vary) > 1:
            raise ClassError(UnknownError("a reduction along two dimensions"), group)
    return np.repeat(union[at][:, None], members, 1)


def _known_reduce(pool: ArrayPool, combine: str, groups: np.ndarray, x: Known) -> Known:
    """Return known numbers after a reduction over the members of each group.

    Raises:
      UnknownError: the function of the reduction is not in the table.
    """
    combined: dict[str, Callable[..., np.ndarray]] = {
        "add": np.sum, "maximum": np.max, "minimum": np.min, "and": np.all, "or": np.any,
    }  # fmt: skip
    if combine not in combined:
        raise UnknownError(f"an all-reduce of known numbers by {combine or 'a program'}")

    def reduce(cells: np.ndarray) -> np.ndarray:
        total = combined[combine](cells, axis=1)
        return np.repeat(total[:, None], cells.shape[1], 1)

    cells = pool.in_groups(("reduce", combine, groups.tobytes()), reduce, groups, x.cells)
    return replace(x, cells=cells)


def _owned(pool: ArrayPool, groups: np.ndarray, x: View) -> View:
    """Return the sum of values of which only one member has an element at each place.

    Raises:
      RefutedError: two members have an element at the same place.
      UnknownError: the places are masked along two dimensions.
    """
    name = groups.tobytes()
    partly = [d for d, line in enumerate(x.lines) if (line.rows < LOW).any()]
    if len(partly) > 1:
        raise UnknownError("an all-reduce of values that are masked along two dimensions")
    lead = pool.in_groups(
        ("group lead", name),
        lambda s: np.repeat(lead_shift(*s.T)[:, None], s.shape[1], 1),
        groups,
        x.shift,
    )

    def once(shift: np.ndarray) -> np.ndarray:
        """Return the shifts, after a check that only one member of each group has elements.

        With a masked dimension, `add` checks each place instead.
        """
        if partly:
            return shift
        many = (shift > LOW).sum(1) > 1
        if many.any():
            row = int(np.argmax(many))
            raise ClassError(_added(int((shift[row] > LOW).sum())), row, 1)
        return shift

    pool.in_groups(("once", bool(partly), name), once, groups, x.shift)

    apart = pool.applied("distance", distance, x.shift, lead)

    def add(apart: np.ndarray, line: np.ndarray) -> np.ndarray:
        """Return the elements of a masked dimension that the members have together.

        Only one member has an element at each place. The others have the negative mark `VOID`, so
        that the maximum is the element.
        """
        steps = counted(line, apart)
        many = ((steps > LOW).sum(1) > 1).any(1)
        if many.any():
            row = int(np.argmax(many))
            raise ClassError(_added(int((steps[row] > LOW).sum(0).max())), row, 1)
        return np.repeat(steps.max(1)[:, None], steps.shape[1], 1)

    def common(shift: np.ndarray, line: np.ndarray) -> np.ndarray:
        return np.repeat(agreed(shift > LOW, line)[:, None], line.shape[1], 1)

    lines = [
        pool.in_groups(("add", name), add, groups, apart, line)
        if d in partly
        else pool.in_groups(("common", name), common, groups, apart, line)
        for d, line in enumerate(x.lines)
    ]
    summed = view(pool, x, lead, lines)
    return summed if summed.is_partly_void else replace(summed, fill=None)


def _added(times: int) -> RefutedError:
    """Return the error of an element that several members add."""
    shown = Shown(expected="the element of one device", found=f"the sum of {times} devices")
    return RefutedError("an element is added more than once", shown=shown)


def reduce_scatter(pool: ArrayPool, combine: str, instruction: HloInstruction, x: Value) -> View:
    """Return the view of the block of a reduction that each member keeps."""
    groups = groups_of(instruction, pool.devices)
    (dim,) = integers(instruction.attributes["dimensions"])
    total = all_reduce(pool, combine, groups, x)
    if isinstance(total, Known):
        raise UnknownError("reduce-scatter of known numbers")
    width = instruction.leaves[0][1][dim]
    place = np.zeros(pool.devices, np.int64)
    place[groups] = np.arange(groups.shape[1]) * width
    take = lambda c, s: np.take_along_axis(c, s[:, None] + np.arange(width), 1)  # noqa: E731
    lines = list(total.lines)
    lines[dim] = pool.applied(("block", width), take, lines[dim], pool.made(place))
    return view(pool, total, total.shift, lines)
