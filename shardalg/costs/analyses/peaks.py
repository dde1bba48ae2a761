"""Peak of memory at other sizes: the bytes alive at each instruction, in formulas.

The instruction with the most bytes alive at the hints may not be the peak at other sizes. Each
formula is kept that may be the largest at some sizes, as far as its terms show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from shardalg.costs.memory import Scan, peak_bytes
from shardalg.costs.symbolic import Symbolised
from shardalg.costs.walk import NOTHING, AliveBytes, LiveValue, ProgramPoint
from shardalg.sizes.formula import Formula, Monomial
from shardalg.sizes.maximum import largest_of
from shardalg.spmd.program import SpmdProgram

Rows = list[np.ndarray]


def candidate_peaks(
    named: Symbolised, *, donated: Sequence[int], rebuild: bool
) -> tuple[Formula, ...]:
    """Return formulas of the bytes alive; the largest of them is the peak of memory.

    Lifetimes, and which results overwrite operands, are those at the hints (`costs.memory`).

    Args:
      donated, rebuild: as in `liveness`.
    """
    scan = _Candidates(named.hints, named.graph, (), rebuild, named.program)
    line = scan.peak(named.hints.block, scan.lives(donated))
    assert isinstance(line, _Rows), "begun by this scan"
    return undominated(scan.terms.formula(row) for row in np.unique(line.rows, axis=0))


@lru_cache(maxsize=16)
def peak_formula(named: Symbolised, donated: tuple[int, ...], rebuild: bool) -> Formula:
    """Return the peak of memory as one formula: the largest of `candidate_peaks`."""
    return Formula.of(largest_of(candidate_peaks(named, donated=donated, rebuild=rebuild)))


def memory_facts(
    named: Symbolised, size: Callable[[Any], Any], *, donated: Sequence[int], rebuild: bool
) -> None:
    """Ask the questions that decide how much memory is alive at each instruction.

    An example is whether a result fits into the memory of an operand. The questions become guards.
    The instruction with the most bytes is not asked for, because `candidate_peaks` has all of them.

    Args:
      size: returns the recorded size of a formula, which records the questions.
    """
    held = named.program.locals
    sized = (replace(local, shape=tuple(map(size, local.shape))) for local in held)
    scan = _Unranked(replace(named.hints, locals=tuple(sized)), named.graph, (), rebuild)
    scan.peak(named.hints.block, scan.lives(donated))


def peak_at(
    named: Symbolised, point: Mapping[str, int], *, donated: Sequence[int], rebuild: bool
) -> int:
    """Return the peak of the program with the sizes that its formulas have at a point."""
    known: dict[Any, Any] = {}

    def number(size: Any) -> Any:
        if size not in known:
            known[size] = Formula.of(size).at(point)
        return known[size]

    held = named.program.locals
    sized = (replace(local, shape=tuple(map(number, local.shape))) for local in held)
    program = replace(named.hints, locals=tuple(sized))
    found: int = peak_bytes(program, named.graph, donated=donated, rebuild=rebuild)
    return found


def undominated(formulas: Iterable[Formula]) -> tuple[Formula, ...]:
    """Return the formulas that may be larger than all others at some sizes of at least 1.

    A formula dominates another one if the terms that it has in excess are at least as large as
    the terms that it lacks. The test is incomplete: a formula that is kept may be dominated.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M = symbols("B M")
    >>> undominated([B, 2 * B, B + M, M, 2 * B, M + B / M])
    (2*B, B + M)
    """
    found = tuple(dict.fromkeys(formulas))
    terms = _Terms.of(found)
    rows = [terms.row(formula) for formula in found]
    kept: list[int] = []
    for at in sorted(range(len(rows)), key=lambda at: (-rows[at].sum(), str(found[at]))):
        if not any((rows[k] >= rows[at]).all() for k in kept):
            kept.append(at)
    left = [found[at] for at in kept]
    return _outermost(f for f in left if not any(o is not f and _covers(o - f) for o in left))


def _outermost(formulas: Iterable[Formula]) -> tuple[Formula, ...]:
    """Return the formulas that are not below a mean of two others, hence below the larger one.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M = symbols("B M")
    >>> _outermost([4 * B, 4 * M, B + 2 * M, 3 * B + 3 * M])
    (4*B, 4*M, 3*B + 3*M)
    """
    found = tuple(formulas)
    terms = _Terms.of(found)
    rows = {formula: terms.row(formula) for formula in found}
    # The smallest first, so that extreme formulas are still there for the formulas between them.
    for formula in sorted(found, key=lambda f: rows[f].sum()) if len(found) > 2 else ():
        others = [other for other in rows if other is not formula]
        found_mean = _mean(rows[formula], np.array([rows[other] for other in others]))
        if found_mean is None:
            continue
        first, second, weight = found_mean
        mean = weight * others[first] + (1 - weight) * others[second]
        # The weight was found in floating point. The exact mean is checked before it counts.
        if _covers(mean - formula):
            del rows[formula]
    return tuple(rows)


def _mean(row: np.ndarray, others: np.ndarray) -> tuple[int, int, Fraction] | None:
    """Return two rows and the weight of the first whose mean is at least a row, term by term."""
    # weight * first + (1 - weight) * second >= row, for each term, bounds the weight from below
    # (positive slope) or from above. A pair is possible if its bounds leave an interval.
    firsts, seconds = np.triu_indices(len(others), 1)
    slope, need = others[firsts] - others[seconds], row - others[seconds]
    with np.errstate(divide="ignore", invalid="ignore"):
        turn = need / slope
    low = np.where(slope > 0, turn, 0).max(axis=1, initial=0)
    high = np.where(slope < 0, turn, 1).min(axis=1, initial=1)
    possible = (low <= high) & ((slope != 0) | (need <= 0)).all(axis=1)
    if not possible.any():
        return None
    at = int(np.argmax(np.where(possible, high - low, -1)))
    weight = Fraction((low[at] + high[at]) / 2).limit_denominator(1 << 12)
    return int(firsts[at]), int(seconds[at]), weight


def _covers(difference: Formula) -> bool:
    """Return whether the positive terms of a difference cover its negative ones at sizes >= 1."""
    spare = {m: c for m, c in difference.terms.items() if c > 0}
    for monomial, lacking in difference.terms.items():
        need = -lacking
        for other in spare if need > 0 else ():
            if need <= 0 or not spare[other]:
                continue
            # A monomial is at least another one if their quotient is a product of sizes.
            left = Formula({other: 1}) / Formula({monomial: 1})
            if all(type(f) is str and e > 0 for m in left.terms for f, e in m):
                taken = min(need, spare[other])
                spare[other] -= taken
                need -= taken
        if need > 0:
            return False
    return True


@dataclass(frozen=True, eq=False)
class _Terms:
    """Positions of monomials in a row; coefficients are whole numbers in units of 1 / `scale`."""

    places: Mapping[Monomial, int]
    scale: int

    @staticmethod
    def of(formulas: Iterable[Formula]) -> _Terms:
        """Return positions for all monomials of some formulas."""
        terms = [(m, c) for formula in formulas for m, c in formula.terms.items()]
        scale = math.lcm(*(Fraction(c).denominator for _, c in terms))
        return _Terms({m: at for at, m in enumerate(dict(terms))}, scale)

    def row(self, formula: Formula) -> np.ndarray:
        """Return the coefficients of a formula."""
        row = np.zeros(len(self.places))
        for monomial, coefficient in formula.terms.items():
            row[self.places[monomial]] = float(coefficient * self.scale)
        return row

    def formula(self, row: np.ndarray) -> Formula:
        """Return the formula with given coefficients."""
        pairs = zip(self.places, row, strict=True)
        return Formula({m: Fraction(int(c), self.scale) for m, c in pairs if c})


@dataclass
class _Rows(AliveBytes):
    """Alive values, with the coefficients of their bytes at every instruction in `rows`.

    Attributes:
      sizes: coefficients of the bytes of each local value.
      row: coefficients of the bytes alive now.
      rows: coefficients of the bytes alive at each instruction so far.
    """

    sizes: Sequence[np.ndarray] = ()
    row: Any = 0.0
    rows: Rows = field(default_factory=list)

    def add(self, value: int, held: LiveValue) -> None:
        """Count a value as alive from here on; replaces an earlier count of the value."""
        self.row = self.row + self.bytes(held) - self.bytes(self.alive.get(value, NOTHING))
        super().add(value, held)

    def drop(self, value: int) -> None:
        """Count a value as freed."""
        self.row = self.row - self.bytes(self.alive.get(value, NOTHING))
        super().drop(value)

    def reach(self, i: int, inner: AliveBytes | None) -> None:
        """Record the total while instruction `i` runs; `inner` is its loop body, if any."""
        super().reach(i, inner)
        inside = inner.rows if isinstance(inner, _Rows) else [0.0]
        self.rows += [self.row + row for row in inside]

    def bytes(self, held: LiveValue) -> Any:
        """Return the coefficients of the bytes of an alive value."""
        return sum((self.sizes[v] for v in held.of), start=np.zeros_like(self.sizes[0]))


@dataclass(frozen=True)
class _Candidates(Scan):
    """Scan of a program at the hints that records the bytes alive at every instruction."""

    formulas: SpmdProgram | None = None

    @cached_property
    def held(self) -> list[Formula]:
        """The bytes of each local value, in formulas."""
        assert self.formulas is not None, "given where it is made"
        return [Formula.of(local.bytes) for local in self.formulas.locals]

    @cached_property
    def terms(self) -> _Terms:
        """The monomials of all bytes."""
        return _Terms.of(dict.fromkeys(self.held))

    @cached_property
    def rows(self) -> Rows:
        """The coefficients of the bytes of each local value."""
        known = {size: self.terms.row(size) for size in dict.fromkeys(self.held)}
        return [known[size] for size in self.held]

    def begin(self, start: dict[int, LiveValue]) -> AliveBytes:
        """Return totals that also record rows."""
        line = super().begin(start)
        found = _Rows(line.alive, line.total, totals=line.totals, sizes=self.rows)
        found.row = sum(map(found.bytes, start.values()), start=np.zeros(len(self.terms.places)))
        found.rows.append(found.row)
        return found

    def largest(self, lines: list[AliveBytes], most: int) -> AliveBytes:
        """Return the largest body at the hints, with the rows of all bodies."""
        both = lines[most]
        assert isinstance(both, _Rows), "begun by this scan"
        both.rows = [row for line in lines if isinstance(line, _Rows) for row in line.rows]
        return both


class _Unordered(AliveBytes):
    """Values in memory, for callers that do not compare the totals of instructions."""

    @property
    def peak(self) -> tuple[int, ProgramPoint]:
        """A constant, so that no sizes are compared."""
        return 0, ()


@dataclass(frozen=True)
class _Unranked(Scan):
    """Scan of a program that does not compare the totals of its instructions."""

    def begin(self, start: dict[int, LiveValue]) -> AliveBytes:
        """Return totals without a peak."""
        line = super().begin(start)
        return _Unordered(line.alive, line.total, totals=line.totals)
