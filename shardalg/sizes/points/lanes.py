"""Numbers of many points at once: code that computes with them runs for all points in one go.

Planning and pricing are ordinary code on numbers. Run once on `Lanes` in place of the sizes of one
point they give what they give at every point, in the same operations, so exactly. What they ask of
a size (which is larger, does it divide) is answered as the first point does; points at which the
answer is another one leave the run, and are run again by themselves (`points.parted`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from shardalg.sizes.points.arithmetic import FLOAT, OF_RATIOS, OF_WHOLE, ON_ANY, ratio

SAFE = float(1 << 62)
"""Below it no 64-bit integer overflows."""
_WHOLE_FLOATS = float(1 << 53)
"""Up to it every whole number is a float."""


class Calls:
    """Calls that were made on points of their own (`sizes.points.rejoined`), each once."""

    def __init__(self) -> None:
        self.found: dict[Hashable, Any] = {}
        self.known: dict[int, Points] = {}

    def forget(self) -> None:
        """Drop all calls, and what was worked out of their keys."""
        for points in self.known.values():
            points.forget()
        self.found.clear()

    def keys(self, count: int) -> Points:
        """So many points, in whose lanes arguments are kept: nothing is asked of them."""
        found = self.known.get(count)
        if found is None:
            found = self.known[count] = Points(count, self)
        return found


class PartedError(Exception):
    """Points left: numbers that differed at those alone are equal now, but not one object."""


class Points:
    """The lanes of one set of points: equal ones are one object, so that caches find them.

    Attributes:
      alive: the points whose answers were those of the first one so far.
      ends: whether a run on them ends where some leave (`PartedError`); else it goes on.
      lead: the point as which questions are answered.
      group: in `each_way`, the points that go the way of that one.

    >>> points = Points(3)
    >>> b, q = points.of([8, 16, 24]), points.of([2, 2, 3])
    >>> b * q, b // 8 + 1, q == 0, points.of([5, 5, 5]), max(b, 3) is b
    (Lanes(16, 32, 72), Lanes(2, 3, 4), False, 5, True)
    >>> b < 20, points.alive, b < 20
    (True, array([ True,  True, False]), True)
    """

    def __init__(self, count: int, calls: Calls | None = None, *, ends: bool = False) -> None:
        self.alive = np.ones(count, bool)
        self.ends = ends
        self.lead = 0
        self.group: np.ndarray | None = None
        self.calls = calls or Calls()
        self.known: dict[Hashable, Lanes] = {}
        self.done: dict[Hashable, Any] = {}

    def answer(self, answers: np.ndarray) -> Any:
        """The first point's answer; points of other answers leave."""
        first = answers[self.lead]
        self.keep(answers == first)
        return first.item() if isinstance(first, np.generic) else first

    def keep(self, places: np.ndarray) -> None:
        """The other points leave.

        Raises:
          PartedError: the run is to be made again, of those that are left.
        """
        before = self.alive
        self.alive = before & places
        if self.ends and (self.alive != before).any():
            raise PartedError

    def choice(self, answers: np.ndarray) -> int:
        """The same of what is chosen on the way to a number: in `each_way` nobody leaves."""
        if self.group is None:
            return int(self.answer(answers))
        self.group &= answers == answers[self.lead]
        return int(answers[self.lead])

    def each_way(self, work: Callable[[], Any]) -> Any:
        """The number that is made at each point, where points may choose otherwise on the way.

        The work is done once for each way of choosing. All else that it asks is asked of all points
        that are left, so that answers which code remembers hold for each of them.
        """
        waiting, made = self.alive.copy(), np.zeros(len(self.alive), np.int64)
        while (waiting := waiting & self.alive).any():
            self.lead, self.group = int(np.argmax(waiting)), waiting.copy()
            number = work()
            values = number.values if type(number) is Lanes else np.full(len(made), number)
            if self.alive[self.lead]:
                made = np.where(self.group, values, made)
                waiting &= ~self.group
        self.lead, self.group = int(np.argmax(self.alive)), None
        return self.of(np.where(self.alive, made, made[self.lead]))

    def of(self, values: Sequence[Any] | np.ndarray) -> Any:
        """The number at each point; a plain number where it is one at all of them."""
        made = np.asarray(values)
        if made.dtype == object:
            pairs = _pairs(made)
            if pairs is not None:
                return self.ratio(*pairs)
        first = made[0]
        if (made == first).all():
            return first.item() if isinstance(first, np.generic) else first
        is_object = made.dtype == object
        key = (made.dtype.str, tuple(made.tolist()) if is_object else made.tobytes())
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = Lanes(self, made)
        return found

    def ratio(self, above: np.ndarray, below: np.ndarray | None) -> Any:
        """The number `above / below` at each point, of 64-bit integers; None for 1.

        Raises:
          ZeroDivisionError: a divisor of a point that is alive is 0.
        """
        if below is None:
            return self.of(above)
        if not below.all():
            above, below = map(self._of_alive, (above, below))
            if not below.all():
                raise ZeroDivisionError
        shared = np.gcd(above, below) * np.sign(below)
        above, below = above // shared, below // shared
        if (below == 1).all():
            return self.of(above)
        if (above == above[0]).all() and (below == below[0]).all():
            return Fraction(int(above[0]), int(below[0]))
        key = (above.tobytes(), below.tobytes())
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = Lanes(self, above, below)
        return found

    def at(self, lanes: Lanes, places: Any) -> Any:
        """Of other points the number at some of their places, which are these points."""
        if lanes.below is None:
            return self.of(lanes.above[places])
        return self.ratio(lanes.above[places], lanes.below[places])

    def forget(self) -> None:
        """Drop what was worked out, once nothing more is: caches hold keys of these points."""
        self.known.clear()
        self.done.clear()

    def ask(self, name: str, a: Lanes, b: Any) -> Any:
        """What an operation gives on lanes and on lanes or a number on the right."""
        act = OF_WHOLE.get(name) if a.is_whole else None
        if act is not None and (type(b) is int or (type(b) is Lanes and b.is_whole)):
            most = b.most if type(b) is Lanes else abs(b)
            if (a.most * most if name == "mul" else a.most + most) < SAFE:
                made = act(a.above, b.above if type(b) is Lanes else b)
                return self.answer(made) if made.dtype == bool else self.of(made)
        wide = (a.most + 1) * (_most(b) + 1) >= SAFE
        if not wide and _is_exact(name, a, b):
            made = OF_RATIOS[name](*_ratio_of(a), *_ratio_of(b))
            if type(made) is tuple:
                return self.ratio(*made)
            return self.answer(made) if made.dtype == bool else self.of(made)
        if name not in _PRODUCTS:
            wide = max(a.most, _most(b)) >= SAFE / 2
        sides = [_objects(n) if wide else n.values if type(n) is Lanes else n for n in (a, b)]
        try:
            with np.errstate(all="ignore"):
                made = ON_ANY[name](*sides)
        except ZeroDivisionError:
            # Of points that left: what they have here, no code would divide by.
            made = ON_ANY[name](*map(self._of_alive, sides))
        return self.answer(made) if made.dtype == bool else self.of(made)

    def _of_alive(self, values: Any) -> Any:
        """The same with the first point's number at points that left."""
        if not isinstance(values, np.ndarray):
            return values
        return np.where(self.alive, values, values[self.lead])


def _operator(name: str) -> Callable[[Lanes, Any], Any]:
    def method(self: Lanes, other: Any) -> Any:
        if type(other) is Lanes:
            key: Hashable = (name, id(self), id(other))
        elif type(other) in _NUMBERS:
            key = (name, id(self), None, type(other), other)
        else:
            return NotImplemented
        points = self.points
        found = points.done.get(key)
        if found is None:
            found = points.done[key] = points.ask(name, self, other)
        return found

    return method


class Lanes:
    """A number that differs between points; made by `Points.of`.

    It stands wherever a number may. It is no `int`, so that nothing reads one number behind the
    others' back; where plain code needs one (a `range`), it is the first point's.
    """

    __slots__ = ("_hash", "_values", "above", "below", "is_whole", "most", "points")

    def __init__(self, points: Points, above: np.ndarray, below: np.ndarray | None = None) -> None:
        self.points, self.above, self.below = points, above, below
        self._values = above if below is None else None
        self.is_whole = below is None and above.dtype == np.int64
        # Sums and products of integers below it need no more than 64 bits.
        self.most = 0.0 if above.dtype is FLOAT else float(abs(above).max())
        if below is not None:
            self.most = max(self.most, float(below.max()))
        self._hash = hash((id(points), len(points.known)))

    @property
    def values(self) -> np.ndarray:
        """The number at each point; objects where they are fractions."""
        if self._values is None:
            rows = zip(self.above.tolist(), self._below, strict=True)
            self._values = np.array([ratio(*row) for row in rows], object)
        return self._values

    @property
    def _below(self) -> list[int]:
        return [] if self.below is None else self.below.tolist()

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """What tells points apart: the numbers, of fractions what is above and what is below."""
        return (self.above,) if self.below is None else (self.above, self.below)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Lanes({', '.join(map(str, self.values[:8]))})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __bool__(self) -> bool:
        return self != 0

    def __neg__(self) -> Any:
        return self * -1

    def __abs__(self) -> Any:
        if self.below is not None:
            return self.points.ratio(abs(self.above), self.below)
        return self.points.of(abs(self.above))

    def __index__(self) -> int:
        return int(self.points.answer(self.values))

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.points.answer(self.values))

    def __eq__(self, other: object) -> bool:
        return True if self is other else _equal(self, other)

    __add__ = __radd__ = _operator("add")
    __mul__ = __rmul__ = _operator("mul")
    __sub__, __rsub__ = _operator("sub"), _operator("rsub")
    __truediv__, __rtruediv__ = _operator("truediv"), _operator("rtruediv")
    __floordiv__, __rfloordiv__ = _operator("floordiv"), _operator("rfloordiv")
    __mod__, __rmod__ = _operator("mod"), _operator("rmod")
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self


_equal = _operator("eq")
_NUMBERS = {int, bool, Fraction, float}


def _objects(a: Any) -> Any:
    """Integers of any size."""
    if type(a) is not Lanes:
        return a
    return a.above if a.above.dtype is FLOAT else a.values.astype(object)


def _most(number: Any) -> float:
    """No part of a number is larger."""
    if type(number) is Lanes:
        return number.most
    parts = number.as_integer_ratio() if type(number) is Fraction else (number,)
    return float(max(map(abs, parts)))


def _pairs(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray | None] | None:
    """What is above and below, where all numbers are small enough whole numbers or fractions."""
    if any(type(n) not in _EXACT for n in numbers):
        return None
    above, below = ([getattr(n, of) for n in numbers] for of in ("numerator", "denominator"))
    if max(map(abs, above)) >= SAFE or max(below) >= SAFE:
        return None
    rest = np.array(below, np.int64) if any(n != 1 for n in below) else None
    return np.array(above, np.int64), rest


def _is_exact(name: str, a: Lanes, b: Any) -> bool:
    """Whether it is done on numerators and denominators: one side has some, or gets them."""
    kinds = [n.above.dtype if type(n) is Lanes else type(n) for n in (a, b)]
    if name not in OF_RATIOS or any(kind not in _WHOLE for kind in kinds):
        return False
    given = a.below is not None or kinds[1] is Fraction
    given = given or (type(b) is Lanes and b.below is not None)
    return given or name in ("truediv", "rtruediv")


def _ratio_of(number: Any) -> tuple[Any, Any]:
    if type(number) is Lanes:
        return number.above, 1 if number.below is None else number.below
    return number.as_integer_ratio()


_PRODUCTS = ("mul", "truediv", "rtruediv")
_EXACT = {int, Fraction}
_WHOLE = {np.dtype(np.int64), *_EXACT}


def real(number: Any) -> Any:
    """The nearest float, at each point.

    >>> real(Fraction(1, 4)), real(Points(2).of([1, Fraction(1, 2)]))
    (0.25, Lanes(1.0, 0.5))
    """
    if type(number) is not Lanes:
        return float(number)
    if number.below is not None and number.most < _WHOLE_FLOATS:
        return number.points.of(number.above / number.below)
    return number.points.of(number.values.astype(float))


def largest(numbers: Iterable[Any]) -> Any:
    """The largest number, at each point; the first of equal ones.

    >>> points = Points(2)
    >>> largest([points.of([1, 5]), 3, 2]), largest([1, 3.0, 2])
    (Lanes(3, 5), 3.0)
    """
    found = tuple(numbers)
    lanes = next((n for n in found if type(n) is Lanes), None)
    if lanes is None:
        return max(found)
    return lanes.points.of(np.maximum.reduce([spread(n, len(lanes.values)) for n in found]))


def least(numbers: Iterable[Any]) -> Any:
    """The smallest number, at each point."""
    found = tuple(numbers)
    return -largest([-n for n in found]) if any(type(n) is Lanes for n in found) else min(found)


def points_of(numbers: Iterable[Any]) -> Points | None:
    """Whose lanes these are; None where none of them is one."""
    return next((number.points for number in numbers if type(number) is Lanes), None)


def spread(number: Any, count: int) -> np.ndarray:
    """The number at each of so many points, also where it is one at all of them."""
    if type(number) is Lanes:
        return number.values
    kind = object if isinstance(number, Fraction) or abs(number) >= SAFE else None
    return np.full(count, number, kind)
