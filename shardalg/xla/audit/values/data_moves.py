"""Moves of data on one device, as changes of the lines of a view."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction
from shardalg.xla.audit.hlo_attributes import integers, padding_of, slices_of
from shardalg.xla.audit.values.element_views import (
    LOW,
    MIXED,
    VOID,
    Fill,
    Known,
    Value,
    View,
    fill_of,
    scalar_fill,
    view,
)
from shardalg.xla.audit.values.per_device import ArrayPool, ClassError, PerDevice, UnknownError


def broadcast(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> View:
    """Return the view of a broadcast: the elements do not vary along the new dimensions."""
    (x,) = operands
    assert isinstance(x, View)
    dims = integers(instruction.attributes.get("dimensions"))
    lines = [
        x.lines[dims.index(d)] if d in dims else pool.same(np.zeros(n, np.int64))
        for d, n in enumerate(instruction.leaves[0][1])
    ]
    return replace(x, lines=tuple(lines))


def transpose(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> View:
    """Return the view of a transpose."""
    (x,) = operands
    assert isinstance(x, View)
    order = integers(instruction.attributes["dimensions"])
    return replace(x, lines=tuple(x.lines[d] for d in order))


def cut(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> View:
    """Return the view of a slice at fixed places."""
    (x,) = operands
    assert isinstance(x, View)
    lines = []
    for line, part in zip(x.lines, slices_of(instruction), strict=True):
        name = ("slice", part.start, part.stop, part.step)
        lines.append(pool.applied(name, lambda c, s=part: c[:, s], line))
    return view(pool, x, x.shift, lines)


def reverse(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> View:
    """Return the view of a reversal."""
    (x,) = operands
    assert isinstance(x, View)
    turned = integers(instruction.attributes["dimensions"])
    lines = [
        pool.applied("reverse", lambda c: c[:, ::-1], line) if d in turned else line
        for d, line in enumerate(x.lines)
    ]
    return view(pool, x, x.shift, lines)


def dynamic_slice(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> View:
    """Return the view of a slice at places that are known on every device."""
    x, *starts = operands
    assert isinstance(x, View)
    lines = []
    for line, start, length in zip(x.lines, starts, instruction.leaves[0][1], strict=True):
        assert isinstance(start, Known)

        def take(c: np.ndarray, first: np.ndarray, n: int = length) -> np.ndarray:
            # A start beyond the end is moved back, as in XLA.
            first = np.clip(first, 0, c.shape[1] - n)
            return np.take_along_axis(c, first[:, None] + np.arange(n), 1)

        lines.append(pool.applied(("take", length), take, line, start.cells))
    return view(pool, x, x.shift, lines)


def pad(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> View:
    """Return the view of a padded value; its padding holds a fill."""
    x, value = operands
    assert isinstance(x, View)
    lines, added = [], False
    for line, (low, high, inner) in zip(x.lines, padding_of(instruction), strict=True):
        if (low, high, inner) == (0, 0, 0):
            lines.append(line)
            continue

        def widen(
            c: np.ndarray, low: int = low, high: int = high, step: int = inner + 1
        ) -> np.ndarray:
            """Return a line with `VOID` at the padding; an element is at every `step`-th place.

            E.g. [0, 1] with low=1, high=0, step=2 has the places [VOID, 0, VOID, 1].
            """
            span = max(0, (c.shape[1] - 1) * step + 1)
            at = np.arange(-low, span + high)
            exists = (at >= 0) & (at < span) & (at % step == 0)
            taken = c[:, np.clip(at // step, 0, max(c.shape[1] - 1, 0))]
            return np.where(exists, taken, VOID)

        lines.append(pool.applied(("pad", low, high, inner), widen, line))
        added = added or low > 0 or high > 0 or inner > 0
    fill = x.fill
    if added:
        fill = scalar_fill(value)
        if x.fill != fill and x.is_partly_void:
            fill = _joined_fill(x.fill, fill)
    return view(pool, replace(x, fill=fill), x.shift, lines)


def _joined_fill(first: Fill, second: Fill) -> Fill:
    """Return the fill of places that hold one of two fills."""
    if first is None or second is None or first == second:
        return second if first is None else first
    return MIXED


def concatenate(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> View:
    """Return the view of a concatenation, whose parts are elements of one base or known numbers.

    A view has the element `shift + lines[0][i] + lines[1][j] + ...` of its base at place (i, j,
    ...). So the parts get one common shift, and only their lines along the concatenated dimension
    may differ. E.g. shift 8 with line [0, 1] and shift 12 with line [0, 1] -> shift 8 with line
    [0, 1, 4, 5].

    Raises:
      UnknownError: the parts are of several bases, or differ along another dimension.
    """
    (dim,) = integers(instruction.attributes["dimensions"])
    views = [x for x in operands if isinstance(x, View)]
    # One view describes elements of one base, with at most one reduction that is still pending.
    if len({x.base for x in views}) > 1 or len({x.pending for x in views}) > 1:
        raise UnknownError("a concatenation of several tensors")
    # The content of the places without an element of the base: known numbers, and old fills.
    fill: Fill = None
    for x in operands:
        if isinstance(x, Known):
            fill = _joined_fill(fill, scalar_fill(x))
        elif x.is_partly_void:
            fill = _joined_fill(fill, x.fill)
    # The common shift is that of the first part with elements on the device. Each part's elements
    # are at a distance from it, `VOID` for a part that has none.
    shifts = [x.shift for x in views]
    common_shift = pool.applied("lead", lead_shift, *shifts)
    distances = [pool.applied("distance", distance, shift, common_shift) for shift in shifts]
    # Along the concatenated dimension, the distance is added to each part's line. The places of a
    # known number are marked as without an element.
    next_distance = iter(distances)
    part_lines = []
    for x in operands:
        if isinstance(x, Known):
            part_lines.append(pool.same(np.full(x.shape[dim], VOID)))
        else:
            line = pool.applied("counted", counted, x.lines[dim], next(next_distance))
            part_lines.append(line)
    # Along every other dimension, all parts must have the same line. `one_line` needs the distances
    # too, because parts without elements do not count.
    lines = list(views[0].lines)
    for d in range(len(lines)):
        if d != dim:
            other_lines = [x.lines[d] for x in views]
            lines[d] = pool.applied("one line", one_line, *distances, *other_lines)
    lines[dim] = pool.applied("append", lambda *parts: np.concatenate(parts, 1), *part_lines)
    return view(pool, replace(views[0], fill=fill), common_shift, lines)


def lead_shift(*shifts: np.ndarray) -> np.ndarray:
    """Return the shift of the first part that has elements; `VOID` if no part has any.

    A class is a set of devices with equal arrays.

    Args:
      shifts: per part, the flat index of its first element in the base, [classes].
    """
    table = np.stack(shifts, -1)
    # A part without elements has a shift below LOW. If all are, `argmax` is 0: such a shift, too.
    first_part = np.argmax(table > LOW, -1)
    return np.take_along_axis(table, first_part[..., None], -1)[..., 0]


def distance(shift: np.ndarray, lead: np.ndarray) -> np.ndarray:
    """Return the number of elements from the first part's shift to this one; `VOID` without one."""
    return np.where(shift < LOW, VOID, shift - lead)


def counted(line: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Return a part's line, counted from the common shift of all parts.

    E.g. line [0, 1] at the distance 4 -> [4, 5]. Places without an element stay `VOID`.
    """
    # The sum of a mark and a number would be another number below LOW, so the mark is set again.
    void = (line < LOW) | (distance < LOW)[..., None]
    return np.where(void, VOID, line + distance[..., None])


def one_line(*parts: np.ndarray) -> np.ndarray:
    """Return the line along one dimension that all parts with elements have in common.

    Args:
      parts: the distance of each part, `VOID` if it has no elements; then the line of each part.

    Raises:
      ClassError: two parts have different lines.
    """
    num_parts = len(parts) // 2
    has_elements = np.stack(parts[:num_parts], -1) > LOW
    lines = np.stack(parts[num_parts:], 1)
    return agreed(has_elements, lines)


def agreed(alive: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Return the line of the first part with elements, [classes, length].

    Args:
      alive: which parts have elements, [classes, parts]. lines: [classes, parts, length].

    Raises:
      ClassError: two parts have different lines.
    """
    first_part = np.argmax(alive, 1)
    first_line = np.take_along_axis(lines, first_part[:, None, None], 1)
    # Only parts with elements must have this line: the line of any other part means nothing.
    differs = ((lines != first_line).any(2) & alive).any(1)
    if differs.any():
        raise ClassError(UnknownError("parts that differ in more than their place"), _one(differs))
    return first_line[:, 0]


def _one(flags: np.ndarray) -> int:
    """Return the index of the first flag that is True, which an error names as an example."""
    return int(np.argmax(flags))


def reshape(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> View:
    """Return the view of a reshape: runs of dimensions are merged, then split.

    Raises:
      UnknownError: a split after which no lines give the elements.
    """
    (x,) = operands
    assert isinstance(x, View)
    shape = instruction.leaves[0][1]
    lines: list[PerDevice] = []
    for taken, given in reshape_runs(x.shape, shape):
        sizes = [shape[d] for d in given]
        old = [x.lines[d] for d in taken]
        if [line.rows.shape[1] for line in old] == sizes:
            lines += old
            continue
        merged = pool.same(np.zeros(1, np.int64))
        for line in old:
            merged = pool.applied("merge", _merged, merged, line)
        new = []
        while len(sizes) > 1:
            size = sizes.pop()
            new.append(pool.applied(("minor", size), _split(size, 1), merged))
            merged = pool.applied(("major", size), _split(size, 0), merged)
        lines += [merged, *reversed(new)] if sizes else []
    return view(pool, x, x.shift, lines)


def reshape_runs(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the runs of old and new dimensions that have the same elements.

    >>> reshape_runs((2, 3, 4), (6, 2, 2))
    [([0, 1], [0]), ([2], [1, 2])]
    """
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        # A run begins with one dimension of each side, if the side has any left.
        taken, given = [], []
        if i < len(old):
            taken, i = [i], i + 1
        if j < len(new):
            given, j = [j], j + 1
        # The side with fewer elements takes one more dimension, until both have equally many.
        while (a := math.prod(old[d] for d in taken)) != (b := math.prod(new[d] for d in given)):
            if (a < b and i < len(old)) or j >= len(new):
                taken, i = [*taken, i], i + 1
            else:
                given, j = [*given, j], j + 1
        runs.append((taken, given))
    return runs


def _merged(major: np.ndarray, minor: np.ndarray) -> np.ndarray:
    """Return the line of two dimensions that are merged into one, [classes, length].

    E.g. major line [0, 8] and minor line [0, 1] -> [0, 1, 8, 9].
    """
    if major.shape[1] * minor.shape[1] > 1 << 24:
        raise UnknownError("a reshape that merges more than 2**24 elements")
    total = major[:, :, None] + minor[:, None, :]
    return np.where(total < LOW, VOID, total).reshape(len(major), -1)


def _split(size: int, part: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that splits a line: part 0 is the major line, part 1 the minor one."""

    def split(line: np.ndarray) -> np.ndarray:
        """Return the major or the minor line, e.g. [0, 8] or [0, 1] of [0, 1, 8, 9] in pairs.

        Raises:
          ClassError: the line is no sum of two lines, because it has padding within a row.
        """
        table: Any = line.reshape(len(line), -1, size)
        void = table < LOW
        # A row or a column without elements is a mark; the others are sums of two lines.
        row_void, column_void = void.all(2), void.all(1)
        row = np.argmax(~row_void, 1)
        minor = np.take_along_axis(table, row[:, None, None], 1)[:, 0]
        column = np.argmax(~column_void, 1)
        major = np.take_along_axis(table, column[:, None, None], 2)[:, :, 0]
        # The first element of the minor line is part of the major one already.
        first = np.take_along_axis(minor, column[:, None], 1)
        dead = row_void.all(1)
        both = np.where(
            row_void[:, :, None] | column_void[:, None, :],
            VOID,
            major[:, :, None] + (minor - first)[:, None, :],
        )
        # The sums of both lines must give the line; else no two lines can describe the elements.
        wrong = (np.where(void, VOID, table) != both).any((1, 2)) & ~dead
        if wrong.any():
            why = "a reshape that splits a dimension with padding"
            raise ClassError(UnknownError(why), _one(wrong))
        if part == 0:
            return np.where(row_void, VOID, major)
        return np.where(column_void, VOID, minor - first)

    return split


def select(pool: ArrayPool, instruction: HloInstruction, operands: Sequence[Value]) -> View | None:
    """Return the view of a select by a known mask; None if it is no move of data.

    It is one if the mask varies along one dimension, and the parts are elements of one base or a
    known number.
    """
    mask, yes, no = operands
    assert isinstance(mask, Known)
    # The select of two known numbers moves no elements of a base.
    if isinstance(yes, Known) and isinstance(no, Known):
        return None
    if any(isinstance(x, View) and x.change is not None for x in (yes, no)):
        return None
    # A view has one line per dimension, so it cannot show a choice that depends on two of them.
    vary = [d for d in range(len(mask.shape)) if mask.varies(d)]
    if len(vary) > 1:
        return None
    flags = pool.applied("flat", lambda c: c.reshape(len(c), -1), mask.cells)
    # If only one part is known, it becomes the second one, so that `yes` is always a view.
    if isinstance(yes, Known):
        yes, no = no, yes
        flags = pool.applied("not", np.invert, flags)
    assert isinstance(yes, View)
    dim = vary[0] if vary else 0
    if isinstance(no, Known) or no.base != yes.base:
        number = fill_of(no)
        if number is None:
            if isinstance(no, Known) or fill_of(yes) is None:
                return None
            # The first part is the padding of the second one.
            flags, number, yes = pool.applied("not", np.invert, flags), fill_of(yes), no
        return _masked(pool, yes, flags, dim if vary else None, number)
    if yes.base != no.base or yes.pending != no.pending:
        return None
    if not vary:
        # The mask chooses one of the parts as a whole, per device.
        def choose(m: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.where(m.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        shift = pool.applied("choose", choose, flags, yes.shift, no.shift)
        pairs = zip(yes.lines, no.lines, strict=True)
        lines = [pool.applied("choose", choose, flags, a, b) for a, b in pairs]
        return view(pool, replace(yes, fill=_joined_fill(yes.fill, no.fill)), shift, lines)
    # As in `concatenate`, both parts get one common shift, and differ only along `dim`.
    lead = pool.applied("lead", lead_shift, yes.shift, no.shift)
    apart = [pool.applied("distance", distance, v.shift, lead) for v in (yes, no)]
    lines = [
        pool.applied("one line", one_line, *apart, yes.lines[d], no.lines[d])
        if d != dim else yes.lines[d]
        for d in range(len(yes.lines))
    ]  # fmt: skip
    a, b = (
        pool.applied("counted", counted, v.lines[dim], step)
        for v, step in zip((yes, no), apart, strict=True)
    )
    lines[dim] = pool.applied("choose places", np.where, flags, a, b)
    return view(pool, replace(yes, fill=_joined_fill(yes.fill, no.fill)), lead, lines)


def _masked(pool: ArrayPool, x: View, flags: PerDevice, dim: int | None, number: Fill) -> View:
    """Return a view in which the places without a flag hold a number instead of an element.

    Args:
      flags: per place along `dim`, whether it keeps its element. If `dim` is None, there is one
        flag for all places of a device.
    """
    if dim is None:
        # A device with the shift VOID has no element at any place.
        hide = lambda m, s: np.where(m[:, 0], s, VOID)  # noqa: E731
        shift = pool.applied("hide", hide, flags, x.shift)
        masked = replace(x, shift=shift)
    else:
        lines = list(x.lines)
        mask = lambda m, c: np.where(m, c, VOID)  # noqa: E731
        lines[dim] = pool.applied("mask", mask, flags, lines[dim])
        masked = view(pool, x, x.shift, lines)
    if not masked.is_partly_void:
        return x
    # The mask may replace all old fills; then only the new one is left.
    fill: Fill = number
    if x.fill not in (None, number) and x.is_partly_void and not _hides(pool, x, flags, dim):
        fill = MIXED
    return replace(masked, fill=fill)


def _hides(pool: ArrayPool, x: View, flags: PerDevice, dim: int | None) -> bool:
    """Return whether a mask overwrites all places that had no element before.

    Args:
      flags: the places that the mask keeps, along `dim`, or one flag per device if it is None.
    """
    # A device without any element must keep no place.
    shift = pool.applied("shown shift", lambda m, s: m.any(1) & (s < LOW), flags, x.shift)
    if shift.rows.any():
        return False
    for d, line in enumerate(x.lines):
        is_masked_dim = d == dim

        def shows_fill(flags: Any, line: Any, is_masked_dim: bool = is_masked_dim) -> Any:
            """Return whether a place without an element is kept along one dimension, [classes].

            Along another dimension than the mask's, a place is kept if the mask keeps any place.
            """
            is_kept = flags if is_masked_dim else flags.any(1, keepdims=True)
            return np.asarray(((line < LOW) & is_kept).any(1))

        shown = pool.applied(("shown", is_masked_dim), shows_fill, flags, line)
        if shown.rows.any():
            return False
    return True


MOVES: dict[str, Callable[[ArrayPool, HloInstruction, Sequence[Value]], View]] = {
    "broadcast": broadcast, "transpose": transpose, "slice": cut, "reverse": reverse,
    "pad": pad, "concatenate": concatenate, "reshape": reshape, "dynamic-slice": dynamic_slice,
}  # fmt: skip
