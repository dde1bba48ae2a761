"""Exact check of facts about sizes at many points at once.

A fact that follows from the smallest and largest sizes is not evaluated. Of the other facts, those
that are false at the most points are evaluated first, and the next ones only at the points that
are left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardalg.sizes.array_steps import FEWER, Code, Points, run_row
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
    """Collection of facts that can be checked at arrays of sizes.

    Args:
      facts: the facts.
      known: numbers of the sizes that are the same at all points.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> facts = Checked([Fact(M / X, WHOLE), Fact(M - 2 * X, POSITIVE)], {"M": 12})
    >>> facts.hold({"X": np.array([1, 3, 5, 6])})
    array([ True,  True, False, False])
    """

    def __init__(self, facts: Iterable[Fact], known: Mapping[str, Number]) -> None:
        """Substitute the known sizes, and store the facts that are still open.

        `never` is True if a fact is false at all sizes.
        """
        checks = dict.fromkeys(Fact(f.formula.subs(known), f.relation) for f in facts)
        # With some sizes known, a fact may already be decided.
        numbers = [f for f in checks if f.formula.number is not None]
        self.never = not all(f.holds({}) for f in numbers)
        self.checks = [_Check(f) for f in checks if f.formula.number is None]

    def hold(self, values: Mapping[str, Any], among: np.ndarray | None = None) -> np.ndarray:
        """Return an array of booleans: whether all facts are true, at each point.

        Args:
          values: for each size, an array; the arrays broadcast against each other.
          among: a mask of the points to check; the result is False at all others.
        """
        points = Points(values)
        ranges = {n: (float(a.min()), float(a.max())) for n, a in points.arrays.items() if a.size}
        # `never` is True if a fact without sizes is false, so that no point can pass.
        all_hold = np.full(points.inner, not self.never)
        if among is not None:
            all_hold &= among.reshape(points.inner)
        if all_hold.size and all_hold.any():
            # Facts that follow from the ranges of the sizes need no check. For each of the
            # others, the largest number in its evaluation tells whether floating point is exact.
            largest = {name: most for name, (_, most) in ranges.items()}
            checks = [
                _AskedFact(check, _largest_intermediate(largest, check.fact.formula))
                for check in self.checks
                if not check.follows(ranges)
            ]
            self._rule_out(checks, points, all_hold)
        return all_hold.reshape(points.shape)

    def _rule_out(self, checks: list[_AskedFact], points: Points, found: np.ndarray) -> None:
        """Set `found` to False at each point where a fact is false.

        Facts about few of the sizes are checked first, on the smaller grid of these sizes. For
        example, a fact about B alone is evaluated once for each value of B.

        Args:
          found: a flag per point, which this method changes.
        """
        arrays, full_grid_facts = points.arrays, []
        groups: dict[frozenset[str], list[_AskedFact]] = {}
        for fact in checks:
            groups.setdefault(fact.check.names, []).append(fact)
        for names, group in groups.items():
            shape = np.broadcast_shapes(*(arrays[name].shape for name in names))
            # A grid that is not at least FEWER times smaller saves too little.
            if math.prod(shape) * FEWER > points.count:
                full_grid_facts += group
                continue
            holds_here = np.ones(shape, bool)
            _check_in_stages(group, {name: arrays[name] for name in names}, holds_here)
            # The smaller grid has size 1 along all other sizes, so that its flags broadcast.
            found &= holds_here
        _check_in_stages(full_grid_facts, arrays, found)


def _check_in_stages(
    checks: list[_AskedFact], arrays: Mapping[str, np.ndarray], found: np.ndarray
) -> None:
    """Set `found` to False at each point where a fact is false, in blocks of points.

    Args:
      checks: the facts.
      arrays: the values of each size, which broadcast against each other.
      found: a flag per point, which this function changes.
    """
    if not checks or not found.any():
        return
    # A sample of the points tells which facts fail most often: these are checked first.
    sample = np.linspace(0, math.prod(found.shape) - 1, _SAMPLE).astype(int)
    sample_values = _values_at(sample, arrays, found.shape)
    ordered = sorted(checks, key=lambda fact: fact.at(sample_values).sum())
    names = sorted(frozenset().union(*(fact.check.names for fact in checks)))
    # Points that are excluded already are not evaluated again.
    open_points = np.flatnonzero(found)
    found[...] = False
    for start in range(0, open_points.size, _CHUNK):
        points = open_points[start : start + _CHUNK]
        known_values = _values_at(points, {name: arrays[name] for name in names}, found.shape)
        for fact in ordered:
            holds = fact.at(known_values)
            if not holds.all():
                points, known_values = (
                    points[holds],
                    {name: values[holds] for name, values in known_values.items()},
                )
                if not points.size:
                    break
        # The points that are left satisfy all facts.
        found.reshape(-1)[points] = True


def _values_at(
    places: np.ndarray, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Return, for each size, its values at some points.

    Args:
      places: flat indices of the points in `shape`.
      arrays: for each size, an array that broadcasts to `shape`.
    """
    along = np.unravel_index(places, shape)
    return {
        name: array[tuple(0 if n == 1 else at for n, at in zip(array.shape, along, strict=True))]
        for name, array in arrays.items()
    }


@dataclass(frozen=True, eq=False)
class _Check:
    """One fact with the program that evaluates its formula on arrays."""

    fact: Fact

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the sizes in the fact's formula."""
        return self.fact.formula.names

    @cached_property
    def sides(self) -> tuple[Formula, Formula]:
        """Pair (numerator, denominator) of the fact's formula."""
        return self.fact.formula.fraction

    @cached_property
    def program(self) -> tuple[Code, int]:
        """The program on arrays for one side of the fact, and the number of its last step.

        The fact says whether a formula is positive, zero, whole, and so on. The program computes
        the formula if the fact is about divisibility. For comparisons with 0 the numerator is
        enough, because the denominator is positive.
        """
        code, divides = Code(), self.fact.relation in (WHOLE, BROKEN)
        return code, (self.fact.formula if divides else self.sides[0]).steps(code)

    def follows(self, ranges: Ranges) -> bool:
        """Return whether the fact is certainly true if each size is in a range.

        False means "not known", so that the points must be checked.

        Args:
          ranges: for each size, its smallest and largest value.
        """
        # Ranges say nothing about divisibility.
        if self.fact.relation not in (POSITIVE, NONNEGATIVE, NONZERO):
            return False
        # The denominator is positive, so the numerator has the sign of the formula. Ceilings and
        # maxima in the numerator (`atoms`) have no bounds here.
        numerator = self.sides[0]
        if numerator.atoms:
            return False
        # Interval arithmetic: each product is monotonic in every size, so its ends bound it.
        low = high = 0.0
        for m, c in numerator.terms.items():
            ends = [float(c) * math.prod(ranges[f][end] ** e for f, e in m) for end in (0, 1)]
            low, high = low + min(ends), high + max(ends)
        # The bounds are computed in double precision: a bound near 0 proves nothing.
        rounded = _ROUNDED * _largest_intermediate(
            {name: most for name, (_, most) in ranges.items()}, numerator
        )
        return low > rounded or (self.fact.relation == NONZERO and high < -rounded)


class _AskedFact(NamedTuple):
    """A fact about named sizes, prepared for arrays of sizes (points).

    Attributes:
      check: the fact, and the program that evaluates its formula on arrays.
      most: an upper bound of the numbers that occur when the formula is evaluated at the points.
        Double precision is exact below 2**52.
    """

    check: _Check
    most: float

    def at(self, known_values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return an array of booleans: whether the fact is true, at each of a row of points.

        All points are computed together in double precision. Where rounding could change the
        answer, the fact is decided again with exact numbers, point by point.
        """
        fact, (code, root) = self.check.fact, self.check.program
        number = run_row(code, root, known_values)
        good = np.array(_COMPARE[fact.relation](number))
        if self.most < _EXACT:
            return good
        # Double precision is inexact beyond 2**52, and `most` bounds all numbers that occur. A sign
        # is still certain if the number is further from 0 than all rounding errors. For a question
        # of divisibility, and for a formula with ceilings or maxima, every point is doubtful.
        is_clear = fact.relation not in (WHOLE, BROKEN) and not fact.formula.atoms
        doubtful = np.abs(number) <= self.most * _ROUNDED if is_clear else np.full(good.shape, True)
        for at in np.flatnonzero(doubtful):
            # A size that is equal at all points is a single number, and so may be the answer.
            sizes = {n: np.broadcast_to(known_values[n], good.shape) for n in self.check.names}
            good.flat[at] = fact.holds({name: int(each.flat[at]) for name, each in sizes.items()})
        return good


def _largest_intermediate(largest: Mapping[Any, float], formula: Formula) -> float:
    """Return a bound of the absolute values of all numbers in the evaluation of a formula.

    A formula is evaluated as a fraction (`Formula.fraction`): a sum of terms, and the denominator.

    Args:
      largest: the largest value of each size; the smallest is at least 1.
    """
    largest_of: dict[Any, Any] = dict(largest)
    bounds = [0.0]
    for atom in formula.atoms:
        inner_formulas = [atom.ratio] if type(atom) is Ceil else [atom.first, atom.second]
        inner_bound = max(_largest_intermediate(largest, part) for part in inner_formulas)
        bounds.append(inner_bound)
        # A ceiling exceeds its ratio by less than 1. A maximum does not, but the bound may be
        # larger.
        largest_of[atom] = inner_bound + 1
    # The numerator is each term times the common denominator: `scale` times the largest negative
    # power of each factor.
    scale: Any = math.lcm(*(c.denominator for c in formula.terms.values()))
    powers: dict[Any, Any] = {}
    for monomial in formula.terms:
        for factor, e in monomial:
            powers[factor] = max(powers.get(factor, 0), -e)
    powers_bound: Any = math.prod(largest_of[f] ** e for f, e in powers.items())
    terms = formula.terms.items()
    # A factor is at least 1, so a negative power of it is at most 1 and is left out of the bound.
    terms_bound: Any = sum(
        abs(c) * scale * math.prod(largest_of[f] ** e for f, e in m if e > 0) for m, c in terms
    )
    # The numerator is at most this sum times the powers of the denominator.
    return max(float(terms_bound) * max(powers_bound, 1.0), *bounds)
