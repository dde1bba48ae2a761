"""Values of a partitioned program, as elements of values of the program before partitioning.

A `View` says which element every place of a local value holds. Place (i, j) of device d holds the
element with the flat index

    shift[d] + lines[0][d, i] + lines[1][d, j]

of the base. A base is an argument, a computed tensor or a carried value of a loop. Moves of data
change the lines only, so that a transpose, a reshape, a halo exchange or an all-to-all costs the
sum of the dimensions. A negative number marks a place that holds no element, but a fill.

A `Known` is a value that depends on no argument: a constant, a mask, or an offset of a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardalg.xla.audit.values.per_device import (
    NOT_SHOWN,
    ArrayPool,
    Content,
    PerDevice,
    RefutedError,
    Shown,
    UnknownError,
)

VOID = -(1 << 52)
"""Marks a place without an element; sums with it stay negative."""
LOW = -(1 << 51)
"""Numbers below it are marks, not indices."""
ANYTHING = "anything"
"""The fill of a place that holds no element of its base, and an unknown content."""
MIXED = "mixed"
"""The fill of a place whose content is not known, and which may be one before partitioning."""
Fill = float | str | None


@dataclass(frozen=True)
class Pending:
    """A reduction that devices still have to combine.

    Attributes:
      combine: the opcode of the reduction.
      covers: per reduced dimension, the indices that each device has reduced, [classes, size].
    """

    combine: str
    covers: tuple[PerDevice, ...]


def parts_of(pending: Pending, device: int = 0) -> Shown:
    """Return the expected and the found indices of a reduction that is not complete."""
    rows = [cover.of(device) for cover in pending.covers]
    sizes = " x ".join(str(len(row)) for row in rows)
    parts = " x ".join(f"{int(row.sum())} of {len(row)}" for row in rows)
    name = "sum" if pending.combine == "add" else pending.combine
    return Shown(expected=f"the {name} over {sizes} indices", found=f"the {name} over {parts}")


@dataclass(frozen=True)
class Fault:
    """A place at which a value is not the expected element: the reason, device and place.

    Attributes:
      shown: the expected and the found content of the place.
    """

    why: str
    device: int = 0
    place: tuple[int, ...] = ()
    shown: Shown = NOT_SHOWN


@dataclass(frozen=True)
class Origin:
    """The instruction that first read or joined wrong elements, and the fault.

    Attributes:
      reader: the operator before partitioning, and the device's operands in its order.
    """

    computation: str
    instruction: str
    fault: Fault
    reader: object = field(default=None, compare=False)


@dataclass(frozen=True)
class View:
    """Elements of a base; see the docstring of the file.

    Attributes:
      base: number of the base.
      shift: the flat index of the first element, per device; `VOID` for a device with fill only.
      lines: per dimension, the steps from the first element, [classes, length].
      fill: the content of places without an element; None if there are none.
      pending: the reduction that the elements still need, or None.
      origin: the instruction that first left elements out, or None.
      change: the change that made the values from the elements; None: they are the elements.
    """

    base: int
    shift: PerDevice
    lines: tuple[PerDevice, ...]
    fill: Fill = None
    pending: Pending | None = None
    origin: Origin | None = None
    change: Hashable = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The local shape."""
        return tuple(line.rows.shape[1] for line in self.lines)

    @property
    def is_partly_void(self) -> bool:
        """True if a place on some device holds a fill."""
        return bool((self.shift.rows < LOW).any()) or any(
            (line.rows < LOW).any() for line in self.lines
        )

    def varies(self, dim: int) -> bool:
        """Return whether the elements along a dimension are not all the same."""
        return bool(self.lines[dim].rows.any())

    def same_places(self, other: View) -> bool:
        """Return whether another view holds the same elements at the same places."""
        return (self.base, self.shift, self.lines, self.fill) == (
            other.base, other.shift, other.lines, other.fill,
        ) and (self.pending, self.change) == (other.pending, other.change)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A value that depends on no argument.

    Attributes:
      cells: the numbers, [classes, ...]; a dimension along which they are equal has length 1.
      shape: the local shape.
    """

    cells: PerDevice
    shape: tuple[int, ...]

    def varies(self, dim: int) -> bool:
        """Return whether the numbers along a dimension are not stored as one."""
        return self.cells.rows.shape[1 + dim] > 1

    @property
    def number(self) -> float | None:
        """The number that all devices have in all places, or None."""
        return float(self.cells.rows.reshape(-1)[0]) if self.cells.rows.size == 1 else None


Value = View | Known


def content(x: View, device: int, place: Sequence[int] = ()) -> Content:
    """Return the content of a place: the base and the element, or a fill in words.

    Args:
      place: an index per dimension; missing ones are 0.
    """
    spot = (*place, *[0] * len(x.lines))
    total = int(x.shift.of(device))
    for index, line in zip(spot, x.lines, strict=False):
        row = line.of(device)
        total += int(row[min(index, len(row) - 1)]) if len(row) else 0
    if total >= 0:
        return x.base, total
    return "no element" if x.fill in (None, ANYTHING, MIXED) else f"padding {x.fill}"


def view(pool: ArrayPool, like: View, shift: PerDevice, lines: Sequence[PerDevice]) -> View:
    """Return a view with other lines, every line counted from its first element."""
    based = []
    for line in lines:
        if is_based(line):
            based.append(line)
            continue
        shift = pool.applied("first", added_first, shift, line)
        based.append(pool.applied("based", based_line, line))
    return replace(like, shift=shift, lines=tuple(based))


def is_based(line: PerDevice) -> bool:
    """Return whether a line counts from its first place on all devices."""
    return line.rows.shape[1] > 0 and not line.rows[:, 0].any()


def _first(line: np.ndarray) -> np.ndarray:
    """Return the first element of each row; `VOID` for a row without elements."""
    if not line.shape[1]:
        return np.zeros(len(line), np.int64)
    at = np.argmax(line > LOW, 1)
    return line[np.arange(len(line)), at]


def added_first(shift: np.ndarray, line: np.ndarray) -> np.ndarray:
    """Return the shift after the first element of a line moved into it."""
    total = shift + _first(line)
    return np.where(total < LOW, VOID, total)


def based_line(line: np.ndarray) -> np.ndarray:
    """Return a line counted from its first element."""
    first = _first(line)[:, None]
    # A row without elements makes the device's shift VOID, so its line has no information.
    based = np.where(line < LOW, VOID, line - first)
    return np.where(first < LOW, 0, based)


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the distance of neighbours along each dimension, in elements.

    >>> strides((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def whole(pool: ArrayPool, base: int, shape: Sequence[int], shift: PerDevice | None = None) -> View:
    """Return the view of all elements of a base, in order.

    Args:
      shift: where each device's part of the base begins; None: the base is one part.
    """
    steps = zip(shape, strides(shape), strict=True)
    lines = tuple(pool.same(np.arange(n, dtype=np.int64) * step) for n, step in steps)
    return View(base, pool.same(0) if shift is None else shift, lines)


def placed(pool: ArrayPool, like: View, places: Sequence[PerDevice], shape: Sequence[int]) -> View:
    """Return the view of a base at given indices per dimension; -1 marks a missing element.

    Args:
      like: gives the base and the fill. places: indices, [classes, length], per dimension.
      shape: the shape of the base.
    """
    lines = [
        pool.applied(("times", step), lambda p, s=step: np.where(p < 0, VOID, p * s), place)
        for place, step in zip(places, strides(shape), strict=True)
    ]
    return view(pool, like, like.shift, lines)


def picked(pool: ArrayPool, value: Value, places: Sequence[PerDevice]) -> Value:
    """Return the places of a value that all devices hold whole, given as indices per dimension."""
    if isinstance(value, Known):
        cells = value.cells
        for dim, place in enumerate(places):
            if value.varies(dim):
                cells = pool.applied(("take", dim), _take(dim), cells, place)
        return Known(cells, tuple(p.rows.shape[1] for p in places))
    lines = [
        pool.applied("picked", pick_line, *pair) for pair in zip(value.lines, places, strict=True)
    ]
    moved = view(pool, value, value.shift, lines)
    if all((place.rows >= 0).all() for place in places):
        return moved if moved.is_partly_void else replace(moved, fill=None)
    return replace(moved, fill=ANYTHING)


def pick_line(line: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return the places of a line; -1 gives a place without an element."""
    found = np.take_along_axis(line, np.maximum(place, 0), 1)
    return np.where(place < 0, VOID, found)


def _take(dim: int) -> Callable[..., np.ndarray]:
    """Return a function that takes the places along one dimension of known numbers.

    Args:
      dim: the dimension, without the leading one of device classes.
    """

    def take(cells: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return the numbers at the places, [classes, ...]; -1 gives any number."""
        # A place of -1 has no number; any number may be there, and index 0 is valid.
        index = np.maximum(place, 0).reshape(
            len(place), *(-1 if k == dim else 1 for k in range(cells.ndim - 1))
        )
        return np.take_along_axis(cells, index, 1 + dim)

    return take


Found = tuple[tuple[PerDevice | None, ...], dict[int, Fault]]
"""The indices per dimension, and the dimensions along which an element is not found."""


def find_places(pool: ArrayPool, whole_view: View, part: View) -> Found:
    """Return the indices per dimension at which a value before partitioning has a part's elements.

    None is returned for a dimension along which neither varies. -1 marks a place without an
    element, or with one that the value does not have. -2 is a fill that the value has too, and -3
    any index, on a device with such fill only.

    Raises:
      RefutedError: the part varies along a dimension along which the value does not.
    """
    key = (
        "find", whole_view.shift.number, part.shift.number, whole_view.fill, part.fill,
        *(line.number for line in (*whole_view.lines, *part.lines)),
    )  # fmt: skip
    found = pool.kept(key, lambda: _found(pool, whole_view, part))
    assert isinstance(found, tuple)
    return found


def _found(pool: ArrayPool, whole_view: View, part: View) -> Found:
    """Return the places for `find_places`, which keeps them per pair of views."""
    # The shift of the part joins the offsets of all dimensions in one number. It is divided among
    # the value's dimensions, the largest step first, as a number is written in digits. E.g. the
    # steps of f32[4,10] are 10 and 1, so a shift of 23 is index 2 along the first dimension and
    # index 3 along the second.
    rank = len(whole_view.lines)
    live = [k for k in range(rank) if whole_view.varies(k)]
    sorted_lines = {}
    for k in live:
        line = whole_view.lines[k].rows[0]
        line = np.unique(line[line > LOW])
        sorted_lines[k] = (int(line[0]), pool.same(line - line[0]))
    start = sum(low for low, _ in sorted_lines.values())
    # In a manual region each device has its own part of the value.
    rest = pool.applied(
        ("minus", start),
        lambda s, t: np.where(s < LOW, 0, s - t - start),
        part.shift,
        whole_view.shift,
    )
    # A line of merged dimensions has several digits, between which those of other lines may lie.
    digits = [(digit, k) for k in live for digit in line_digits(sorted_lines[k][1].rows[0])]
    leads = {k: pool.applied("zero", np.zeros_like, rest) for k in live}
    for digit, k in sorted(digits, key=lambda pair: -int(np.diff(pair[0]).min(initial=1 << 60))):
        taken = pool.applied("digit", largest_digit, pool.same(digit), rest)
        rest = pool.applied("minus digit", np.subtract, rest, taken)
        leads[k] = pool.applied("plus digit", np.add, leads[k], taken)
    # Blocks of all dimensions together are many; those of one dimension are few. So only flags of
    # the shift take part in the search of a dimension.
    dead = pool.applied("dead", lambda s: s < LOW, part.shift)
    strange = pool.applied("strange", lambda r: r != 0, rest)
    shares_fill = shares(whole_view, part)
    places: list[PerDevice | None] = [None] * rank
    faults: dict[int, Fault] = {}
    why = "the elements are not those that the operator reads"
    for k in live:
        # The mark of a fill that the value has too depends on its place: -2 if this dimension has
        # the fill, -3 if another one has it. -4 marks an element that is not found.
        line, low = whole_view.lines[k], sorted_lines[k][0]
        shared = (-2 if (line.rows < LOW).any() else -3) if shares_fill else -1
        found = pool.applied(
            ("places", low, shared), _searched(low, shared),
            line, leads[k], part.lines[k], dead, strange,
        )  # fmt: skip
        lost = found.rows == -4
        if lost.any():
            row, place = map(int, np.argwhere(lost)[0])
            faults[k] = Fault(why, found.device(row), (place,))
            found = pool.applied("lost", lambda p: np.where(p == -4, -1, p), found)
        places[k] = found
    # A value of one element has no dimension that could explain a shift.
    if not live and rest.rows.any():
        device = rest.device(int(np.argmax(rest.rows != 0)))
        spot = (0,) * len(part.lines)
        raise RefutedError(why, device, spot, shown=unread(part, device, spot))
    # Along a dimension in which all elements of the value are equal, the part must not vary either;
    # its fills are allowed.
    for k in set(range(rank)) - set(live):
        if not part.varies(k):
            continue
        steps = part.lines[k].rows
        if steps[steps > LOW].any():
            row, place = map(int, np.argwhere((steps > LOW) & (steps != 0))[0])
            device, spot = part.lines[k].device(row), along(part, k, place)
            raise RefutedError(why, device, spot, shown=unread(part, device, spot))
        places[k] = pool.applied("void only", lambda v: np.where(v < LOW, -1, 0), part.lines[k])
    return tuple(places), faults


def unread(part: View, device: int, place: tuple[int, ...]) -> Shown:
    """Return the content of a place that the operator before partitioning does not read there."""
    return Shown((), "an element that the operator reads", content(part, device, place))


def along(x: View, dim: int, index: int) -> tuple[int, ...]:
    """Return the place with an index along a dimension, and 0 along the others."""
    return tuple(index if d == dim else 0 for d in range(len(x.lines)))


def shares(whole_view: View, part: View) -> bool:
    """Return whether the fill of a part is one that the value before partitioning has too."""
    return (
        part.fill not in (None, ANYTHING, MIXED)
        and part.fill == whole_view.fill
        and whole_view.is_partly_void
    )


def line_digits(line: np.ndarray) -> list[np.ndarray]:
    """Return the digits of a sorted line that begins with 0: lines of one step, whose sum it is.

    A line that is no such sum is one digit.

    >>> [digit.tolist() for digit in line_digits(np.array([0, 1, 8, 9]))]
    [[0, 1], [0, 8]]
    """
    digits: list[np.ndarray] = []
    made = np.zeros(1, np.int64)
    while len(made) < len(line):
        step, size = int(line[len(made)]), 1
        while len(made) * size < len(line) and line[len(made) * size] == step * size:
            size += 1
        digits.append(np.arange(size) * step)
        made = (digits[-1][:, None] + made).reshape(-1)
    return digits if np.array_equal(made, line) else [line]


def largest_digit(line: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return the largest number of the sorted line that is not above the rest; else the first."""
    at = np.searchsorted(line[0], rest, "right") - 1
    return line[0][np.clip(at, 0, len(line[0]) - 1)]


def _searched(low: int, shared: int) -> Callable[..., np.ndarray]:
    """Return a function that finds the index of each element in a line before partitioning.

    It marks an element that is not found by -4.

    Args:
      shared: the mark of a device without elements; -1 if its fill is none before partitioning.
    """

    def search(
        line: np.ndarray, lead: np.ndarray, steps: np.ndarray, dead: np.ndarray, strange: np.ndarray
    ) -> np.ndarray:
        """Return the index in the line of each element of the part, [classes, length].

        Args:
          line: the elements before partitioning along the dimension. steps: those of the part.
          lead: the share of the part's shift that belongs to this dimension.
          dead: the device has fill only. strange: its shift is no sum of the dimensions' steps.
        """
        want, values = low + lead[:, None] + steps, line[0]
        # A line of one step is divided by the step; any other line is searched.
        step = values[1] - values[0] if len(values) > 1 else 0
        if step > 0 and (np.diff(values) == step).all():
            at = np.clip((want - values[0]) // step, 0, len(values) - 1)
        else:
            order = np.argsort(values, kind="stable")
            ranked = values[order]
            at = order[np.minimum(np.searchsorted(ranked, want), len(ranked) - 1)]
        at = np.where((values[at] != want) | strange[:, None], -4, at)
        at = np.where(steps < LOW, -2 if shared == -2 else -1, at)
        return np.where(dead[:, None], shared, at)

    return search


def numbers_differ(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return where numbers differ; NaN equals NaN."""
    return (first != second) & ((first == first) | (second == second))


def fill_of(value: Value) -> float | str | None:
    """Return the content of padding: a number, or the name of one element; else None."""
    if isinstance(value, Known):
        return value.number
    plain = value.pending is None and value.change is None and value.shift.is_equal
    if plain and not value.is_partly_void and not any(map(value.varies, range(len(value.lines)))):
        return f"element {value.shift.rows[0]} of value {value.base}"
    return None


def scalar_fill(value: Value) -> float | str:
    """Return the content of padding.

    Raises:
      UnknownError: it differs between places or devices.
    """
    fill = fill_of(value)
    if fill is None:
        raise UnknownError("padding with different numbers")
    return fill
