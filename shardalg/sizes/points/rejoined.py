"""Pure functions on numbers of many points: ways part inside of a call, and come together after it.

A search for the cheapest path compares what it then drops, so that points which end with the same
path leave each other on the way. A call is therefore made on points of its own, as often as there
are ways; what it gives is one value for all points whose values differ in sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from shardalg.algebra.mesh import Mesh
from shardalg.sizes.points.lanes import Lanes, PartedError, Points
from shardalg.sizes.points.replaced import Replaced


class Way(NamedTuple):
    """What a call gave, the points that went this way, and their places among those of the call."""

    made: Any
    points: np.ndarray
    among: np.ndarray


class ApartError(Exception):
    """Values that differ in more than sizes."""


def rejoined(
    cached: Callable[..., Any], function: Callable[..., Any], args: tuple[Any, ...], points: Points
) -> Any:
    """What a pure function gives at each of the points; those with another value leave.

    Args:
      cached: the same function, for arguments that are plain numbers.

    >>> points = Points(3)
    >>> odd = lambda n: (n + 1, "up") if n % 2 else (n + 0, "up")
    >>> rejoined(odd, odd, (points.of([3, 4, 6]),), points), points.alive
    ((Lanes(4, 4, 6), 'up'), array([ True,  True,  True]))
    """
    lanes, alive = _lanes_in(args), np.flatnonzero(points.alive)
    label, places = _distinct([column[alive] for n in lanes for column in n.columns])
    among = alive[places]

    def at(here: Points, rows: Any) -> tuple[Any, ...]:
        made = {id(n): here.at(n, among[rows]) for n in lanes}
        moved: tuple[Any, ...] = Replaced(Lanes, lambda n: made[id(n)])(args)
        return moved

    key = function, at(points.calls.keys(len(places)), slice(None))
    found = points.calls.found.get(key)
    if found is None:
        found = points.calls.found[key] = tuple(_ways((cached, function), at, len(places), points))
    first, *others = (_way(made, place[label], alive) for made, place in found)
    kept = [first]
    for way in others:
        try:
            _Joined(points, (first, way))()
        except ApartError:
            points.keep(~np.isin(np.arange(len(points.alive)), way.points))
        else:
            kept.append(way)
    return _Joined(points, kept)()


def _way(made: Any, among: np.ndarray, alive: np.ndarray) -> Way:
    return Way(made, alive[among >= 0], among[among >= 0])


def _ways(
    functions: tuple[Callable[..., Any], ...], at: Callable[..., Any], count: int, points: Points
) -> Iterator[tuple[Any, np.ndarray]]:
    """The call on points of its own until all have gone some way.

    Yields: what it gives, and the place of each point among those it was made on (-1: it left).
    """
    cached, function = functions
    queue = [np.arange(count)]
    while queue:
        waiting = queue.pop(0)
        here = Points(len(waiting), points.calls, ends=True)
        try:
            found = (function if len(waiting) > 1 else cached)(*at(here, waiting))
        except PartedError:
            queue[:0] = [waiting[here.alive], waiting[~here.alive]]
            continue
        finally:
            here.forget()
        place = np.full(count, -1)
        place[waiting] = np.arange(len(waiting))
        yield found, place


def _lanes_in(value: Any) -> list[Lanes]:
    """The lanes in a value, each once."""
    found: dict[int, Lanes] = {}
    Replaced(Lanes, lambda number: found.setdefault(id(number), number))(value)
    return list(found.values())


def _distinct(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Of each row the number of what it says, in order of the first; and where that stands first.

    >>> label, places = _distinct([np.array([5, 3, 5]), np.array([1, 1, 1])])
    >>> label.tolist(), places.tolist()
    ([0, 1, 0], [0, 1])
    """
    label = np.zeros(len(columns[0]), int)
    for column in columns:
        own, number = np.unique(column, return_inverse=True)
        label = np.unique(label * len(own) + number, return_inverse=True)[1]
    places = np.unique(label, return_index=True)[1]
    order = np.argsort(places)
    return np.argsort(order)[label], places[order]


class _Joined:
    """Values of several ways as one value, with a number of all points in place of theirs."""

    def __init__(self, points: Points, ways: Sequence[Way]) -> None:
        self.points, self.ways = points, ways

    def __call__(self) -> Any:
        """The value.

        Raises:
          ApartError: there is none.
        """
        return self.of(*(way.made for way in self.ways))

    def of(self, *values: Any) -> Any:
        """Of parts of the values."""
        first, kinds = values[0], {type(value) for value in values}
        if kinds <= _NUMBERS and not kinds.isdisjoint(_AMOUNTS):
            return self.number(values)
        if len(kinds) > 1:
            raise ApartError
        if isinstance(first, tuple):
            return self.sequence(values)
        if is_dataclass(first) and type(first) is not Mesh:
            return self.record(values)
        if any(value is not first and value != first for value in values):
            raise ApartError
        return first

    def number(self, values: tuple[Any, ...]) -> Any:
        """The number at each point; of points that left what it is at the first one."""
        if all(value is values[0] for value in values) and type(values[0]) is not Lanes:
            return values[0]
        sides = [_sides(value, way.among) for value, way in zip(values, self.ways, strict=True)]
        kinds = {above.dtype for above, _ in sides}
        is_ratio = any(type(below) is np.ndarray for _, below in sides)
        if is_ratio and _FLOAT in kinds:
            raise ApartError
        above = self._spread([above for above, _ in sides], np.result_type(*kinds))
        if not is_ratio:
            return self.points.of(above)
        if above.dtype == object:
            wide = [a.astype(object) * Fraction(1) / b for a, b in sides]
            return self.points.of(self._spread(wide, np.dtype(object)))
        below = [np.broadcast_to(below, above.shape) for above, below in sides]
        return self.points.ratio(above, self._spread(below, np.dtype(np.int64)))

    def _spread(self, rows: Sequence[np.ndarray], kind: np.dtype[Any]) -> np.ndarray:
        """Rows of the ways at all points."""
        made = np.full(len(self.points.alive), rows[0][0], kind)
        for row, way in zip(rows, self.ways, strict=True):
            made[way.points] = row
        return made

    def sequence(self, values: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
        """Item by item."""
        first = values[0]
        if any(len(value) != len(first) for value in values):
            raise ApartError
        made = [self.of(*row) for row in zip(*values, strict=True)]
        if all(one is before for one, before in zip(made, first, strict=True)):
            return first
        return tuple(made) if type(first) is tuple else type(first)(*made)

    def record(self, values: tuple[Any, ...]) -> Any:
        """Field by field."""
        first = values[0]
        parts = {f.name: [getattr(v, f.name) for v in values] for f in fields(first) if f.init}
        made = {name: self.of(*row) for name, row in parts.items()}
        if all(made[name] is row[0] for name, row in parts.items()):
            return first
        return type(first)(**made)


def _sides(number: Any, among: np.ndarray) -> tuple[np.ndarray, Any]:
    """What is above and below, at the points of a way."""
    if type(number) is Lanes:
        return number.above[among], 1 if number.below is None else number.below[among]
    above, below = number.as_integer_ratio() if type(number) is Fraction else (number, None)
    given = np.full(len(among), above)
    return given, 1 if below is None else np.full(len(among), below)


_FLOAT = np.dtype(float)
_AMOUNTS = {Lanes, Fraction, float}
"""Kinds of numbers that are sizes for certain: two whole numbers that differ may be places."""
_NUMBERS = {*_AMOUNTS, int}
