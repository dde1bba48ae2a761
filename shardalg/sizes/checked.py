"""Facts about sizes at many points at once, exactly.

A fact that follows from the least and the largest sizes is not looked at; the others are asked in
the order in which they rule points out, each only where all before it hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardalg.sizes.array_steps import FEWER, Code, Points, straight
from shardalg.sizes.facts import BROKEN, NONNEGATIVE, NONZERO, POSITIVE, WHOLE, ZERO, Fact
from shardalg.sizes.formula import Ceil, Formula, Number

_EXACT = float(1 << 52)
_ROUNDED = 2.0**-40
_SAMPLE = 256
_CHUNK = 1 << 12
_COMPARE: dict[str, Any] = {
    POSITIVE: lambda x: x > 0,
    NONNEGATIVE: lambda x: x >= 0,
    ZERO: lambda x: x == 0,
    NONZERO: lambda x: x != 0,
    WHOLE: lambda x: x == np.floor(x),
    BROKEN: lambda x: x != np.floor(x),
}
Ranges = Mapping[str, tuple[float, float]]


class Checked:
    """Facts with some sizes known, to be asked at arrays of the others.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> facts = Checked([Fact(M / X, WHOLE), Fact(M - 2 * X, POSITIVE)], {"M": 12})
    >>> facts.hold({"X": np.array([1, 3, 5, 6])})
    array([ True,  True, False, False])
    """

    def __init__(self, facts: Iterable[Fact], known: Mapping[str, Number]) -> None:
        asked = dict.fromkeys(Fact(f.formula.subs(known), f.relation) for f in facts)
        numbers = [f for f in asked if f.formula.number is not None]
        self.never = not all(f.holds({}) for f in numbers)
        self.checks = [_Check(f) for f in asked if f.formula.number is None]

    def hold(self, values: Mapping[str, Any], among: np.ndarray | None = None) -> np.ndarray:
        """Where every fact holds, at arrays that broadcast against each other.

        Args:
          among: the points that are asked about; the others come out as False.
        """
        points = Points(values)
        ranges = {n: (float(a.min()), float(a.max())) for n, a in points.arrays.items() if a.size}
        found = np.full(points.inner, not self.never)
        if among is not None:
            found &= among.reshape(points.inner)
        if found.size and found.any():
            largest = {name: most for name, (_, most) in ranges.items()}
            asked = [
                _AskedFact(check, _most(largest, check.fact.formula))
                for check in self.checks
                if not check.follows(ranges)
            ]
            self._ask(asked, points, found)
        return found.reshape(points.shape)

    def _ask(self, asked: list[_AskedFact], points: Points, found: np.ndarray) -> None:
        """Rule out points: first by the facts of few sizes, at the points that these span."""
        arrays, many = points.arrays, []
        groups: dict[frozenset[str], list[_AskedFact]] = {}
        for one in asked:
            groups.setdefault(one.check.names, []).append(one)
        for names, checks in groups.items():
            shape = np.broadcast_shapes(*(arrays[name].shape for name in names))
            if math.prod(shape) * FEWER > points.count:
                many += checks
                continue
            inside = np.ones(shape, bool)
            _staged(checks, {name: arrays[name] for name in names}, inside)
            found &= inside
        _staged(many, arrays, found)


def _staged(checks: list[_AskedFact], arrays: Mapping[str, np.ndarray], found: np.ndarray) -> None:
    """Rule out points fact by fact, block by block."""
    if not checks or not found.any():
        return
    ordered = _by_failures(checks, arrays, found.shape)
    names = sorted(frozenset().union(*(one.check.names for one in checks)))
    places = np.flatnonzero(found)
    found[...] = False
    for start in range(0, places.size, _CHUNK):
        left = places[start : start + _CHUNK]
        held = _at(left, {name: arrays[name] for name in names}, found.shape)
        for one in ordered:
            good = one.at(held)
            if not good.all():
                left, held = left[good], {name: values[good] for name, values in held.items()}
                if not left.size:
                    break
        found.reshape(-1)[left] = True


def _at(
    places: np.ndarray, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Arrays at places of the shape that they broadcast to, numbered in order."""
    along = np.unravel_index(places, shape)
    return {
        name: array[tuple(0 if n == 1 else at for n, at in zip(array.shape, along, strict=True))]
        for name, array in arrays.items()
    }


def _by_failures(
    checks: list[_AskedFact], arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> list[_AskedFact]:
    """What fails most often first, by some of the points."""
    places = np.linspace(0, math.prod(shape) - 1, _SAMPLE).astype(int)
    some = _at(places, arrays, shape)
    return sorted(checks, key=lambda one: one.at(some).sum())


@dataclass(frozen=True, eq=False)
class _Check:
    """One fact."""

    fact: Fact

    @cached_property
    def names(self) -> frozenset[str]:
        """The sizes that it is about."""
        return self.fact.formula.names

    @cached_property
    def sides(self) -> tuple[Formula, Formula]:
        """Numerator and denominator."""
        return self.fact.formula.fraction

    @cached_property
    def program(self) -> tuple[Code, int]:
        """What is compared, as steps on arrays: of a comparison, the numerator."""
        code, divides = Code(), self.fact.relation in (WHOLE, BROKEN)
        return code, (self.fact.formula if divides else self.sides[0]).steps(code)

    def follows(self, ranges: Ranges) -> bool:
        """Whether it holds at all points, by the least and the largest sizes."""
        if self.fact.relation not in (POSITIVE, NONNEGATIVE, NONZERO) or self.sides[0].atoms:
            return False
        low, high = _between(self.sides[0], ranges)
        rounded = _ROUNDED * _most(
            {name: most for name, (_, most) in ranges.items()}, self.sides[0]
        )
        return low > rounded or (self.fact.relation == NONZERO and high < -rounded)


class _AskedFact(NamedTuple):
    """A fact that is asked at points, and the largest number that its evaluation meets at them."""

    check: _Check
    most: float

    def at(self, held: Mapping[str, np.ndarray]) -> np.ndarray:
        """Whether it holds, at each of a row of points."""
        fact, (code, root) = self.check.fact, self.check.program
        number = straight(code, root, held)
        good = _COMPARE[fact.relation](number)
        if self.most < _EXACT:
            return good
        # Beyond the whole numbers of double precision what is not clear is asked of the formula.
        is_clear = fact.relation not in (WHOLE, BROKEN) and not fact.formula.atoms
        doubtful = np.abs(number) <= self.most * _ROUNDED if is_clear else np.full(good.shape, True)
        for at in np.flatnonzero(doubtful):
            good[at] = fact.holds({name: int(held[name][at]) for name in self.check.names})
        return good


def _between(formula: Formula, ranges: Ranges) -> tuple[float, float]:
    """What a polynomial lies between."""
    low = high = 0.0
    for monomial, c in formula.terms.items():
        ends = [float(c) * math.prod(ranges[f][end] ** e for f, e in monomial) for end in (0, 1)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _most(largest: Mapping[Any, float], formula: Formula) -> float:
    """The largest number that its evaluation meets; whatever divides is at least 1."""
    known: dict[Any, Any] = dict(largest)
    inside = [0.0]
    for atom in formula.atoms:
        within = [atom.ratio] if type(atom) is Ceil else [atom.first, atom.second]
        most = max(_most(largest, part) for part in within)
        inside.append(most)
        known[atom] = most + 1
    scale: Any = math.lcm(*(c.denominator for c in formula.terms.values()))
    powers: dict[Any, Any] = {}
    for monomial in formula.terms:
        for factor, e in monomial:
            powers[factor] = max(powers.get(factor, 0), -e)
    below: Any = math.prod(known[f] ** e for f, e in powers.items())
    terms = formula.terms.items()
    sums: Any = sum(
        abs(c) * scale * math.prod(known[f] ** e for f, e in m if e > 0) for m, c in terms
    )
    return max(float(sums) * max(below, 1.0), *inside)
