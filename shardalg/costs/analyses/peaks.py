"""Peak memory of a plan with named sizes, as formulas of the bytes alive at each instruction.

The peak is the largest of these formulas. Which one is the largest depends on the sizes, so all are
kept except those whose terms show that another one is always as large.
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
    """Return the bytes alive at the instructions that may be the peak, as formulas.

    The peak of memory is their maximum. Lifetimes, and which results overwrite operands, are those
    at the hints, the sizes for which the program was planned (`costs.memory`).

    Args:
      donated: positions of the flattened arguments whose buffers the program may take over.
      rebuild: whether the backward pass recomputes cheap values instead of keeping them.
    """
    scan = _Candidates(named.hints, named.graph, (), rebuild, named.program)
    line = scan.peak(named.hints.block, scan.lives(donated))
    assert isinstance(line, _Rows), "begun by this scan"
    return possible_maxima(scan.terms.formula(row) for row in np.unique(line.rows, axis=0))


@lru_cache(maxsize=16)
def peak_formula(named: Symbolised, donated: tuple[int, ...], rebuild: bool) -> Formula:
    """Return the peak of memory as one formula, the maximum of `candidate_peaks`."""
    return Formula.of(largest_of(candidate_peaks(named, donated=donated, rebuild=rebuild)))


def memory_facts(
    named: Symbolised, size: Callable[[Any], Any], *, donated: Sequence[int], rebuild: bool
) -> None:
    """Record the comparisons of sizes that decide how much memory is alive at each instruction.

    An example is whether a result fits into the memory of an operand. `size` records them as
    conditions of the plan. Which instruction has the most bytes is not compared, because
    `candidate_peaks` returns the formulas of all instructions.

    Args:
      size: returns a recorded size for a formula: a number that records its comparisons.
      donated, rebuild: as in `candidate_peaks`.
    """
    held = named.program.locals
    sized = (replace(local, shape=tuple(map(size, local.shape))) for local in held)
    scan = _Unranked(replace(named.hints, locals=tuple(sized)), named.graph, (), rebuild)
    scan.peak(named.hints.block, scan.lives(donated))


def peak_at(
    named: Symbolised, point: Mapping[str, int], *, donated: Sequence[int], rebuild: bool
) -> int:
    """Return the bytes of the peak if the named sizes have given values.

    The program is the one that was planned at the hints (`named.hints`), with other sizes.

    Args:
      point: a value for each named size.
      donated, rebuild: as in `candidate_peaks`.
    """
    numbers: dict[Any, Any] = {}

    def number(size: Any) -> Any:
        """Return the value of a size at the point; each distinct size is evaluated once."""
        if size not in numbers:
            numbers[size] = Formula.of(size).at(point)
        return numbers[size]

    planned_locals = named.program.locals
    sized_locals = (
        replace(local, shape=tuple(map(number, local.shape))) for local in planned_locals
    )
    program = replace(named.hints, locals=tuple(sized_locals))
    peak: int = peak_bytes(program, named.graph, donated=donated, rebuild=rebuild)
    return peak


def possible_maxima(formulas: Iterable[Formula]) -> tuple[Formula, ...]:
    """Return the formulas that may be the largest at some sizes of at least 1.

    A formula is left out if another one is found to be at least as large at all such sizes: the
    terms that the other has in excess are at least as large as the terms that it lacks. The test is
    incomplete, so that a returned formula may still never be the largest.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M = symbols("B M")
    >>> possible_maxima([B, 2 * B, B + M, M, 2 * B, M + B / M])
    (2*B, B + M)
    """
    distinct = tuple(dict.fromkeys(formulas))
    # A row has a formula's coefficients, a column per monomial. Monomials are positive, so a row
    # that is at least as large in every column is at least as large at all sizes. A larger row has
    # the larger sum, so that it is kept before the rows that it makes superfluous.
    terms = _Terms.of(distinct)
    rows = [terms.row(formula) for formula in distinct]
    kept_rows: list[int] = []
    for at in sorted(range(len(rows)), key=lambda at: (-rows[at].sum(), str(distinct[at]))):
        if not any((rows[k] >= rows[at]).all() for k in kept_rows):
            kept_rows.append(at)
    candidates = [distinct[at] for at in kept_rows]
    # The exact test (`_covers`) costs a subtraction per pair, so coefficients are compared first.
    # `_outermost` also drops formulas below a weighted mean of two others.
    return _outermost(
        f for f in candidates if not any(o is not f and _covers(o - f) for o in candidates)
    )


def _outermost(formulas: Iterable[Formula]) -> tuple[Formula, ...]:
    """Return the formulas that can be the largest one at some sizes, as far as this test decides.

    A formula is removed if a weighted mean of two others is at least as large at all sizes: then
    one of these two is as large.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M = symbols("B M")
    >>> _outermost([4 * B, 4 * M, B + 2 * M, 3 * B + 3 * M])
    (4*B, 4*M, 3*B + 3*M)
    """
    candidates = tuple(formulas)
    terms = _Terms.of(candidates)
    rows = {formula: terms.row(formula) for formula in candidates}
    # The smallest formulas are tried first, while the large ones that can form such a mean are
    # still there.
    for formula in sorted(candidates, key=lambda f: rows[f].sum()) if len(candidates) > 2 else ():
        other_formulas = [other for other in rows if other is not formula]
        found_mean = _mean(rows[formula], np.array([rows[other] for other in other_formulas]))
        if found_mean is None:
            continue
        first, second, weight = found_mean
        mean = weight * other_formulas[first] + (1 - weight) * other_formulas[second]
        # The weight was found in floating point. The exact mean is checked before it counts.
        if _covers(mean - formula):
            del rows[formula]
    return tuple(rows)


def _mean(row: np.ndarray, others: np.ndarray) -> tuple[int, int, Fraction] | None:
    """Return two rows whose weighted mean is at least a given row in every column.

    The result is (number of the first, number of the second, weight of the first); None if there
    are no such rows.

    Args:
      row: coefficients of a formula.
      others: coefficients of the other formulas, one row per formula.
    """
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
    """Return whether a formula is certainly at least 0 at all sizes of at least 1.

    This is so if each negative term is matched by positive terms whose monomials are at least as
    large.
    """
    # A positive term can match several negative ones, until its coefficient is used up.
    spare_coefficients = {monomial: c for monomial, c in difference.terms.items() if c > 0}
    for monomial, coefficient in difference.terms.items():
        uncovered = -coefficient
        for larger in spare_coefficients if uncovered > 0 else ():
            if uncovered <= 0 or not spare_coefficients[larger]:
                continue
            # A monomial is at least another one if their quotient is a product of sizes.
            ratio = Formula({larger: 1}) / Formula({monomial: 1})
            powers = [power for product in ratio.terms for power in product]
            if all(type(factor) is str and exponent > 0 for factor, exponent in powers):
                matched = min(uncovered, spare_coefficients[larger])
                spare_coefficients[larger] -= matched
                uncovered -= matched
        if uncovered > 0:
            return False
    return True


@dataclass(frozen=True, eq=False)
class _Terms:
    """A numbering of the monomials of several formulas, so that a formula is a row of coefficients.

    Attributes:
      places: the column of each monomial.
      scale: factor that makes all coefficients whole numbers.
    """

    places: Mapping[Monomial, int]
    scale: int

    @staticmethod
    def of(formulas: Iterable[Formula]) -> _Terms:
        """Return the table of columns for all monomials that occur in some formulas."""
        terms = [(m, c) for formula in formulas for m, c in formula.terms.items()]
        scale = math.lcm(*(Fraction(c).denominator for _, c in terms))
        return _Terms({m: at for at, m in enumerate(dict(terms))}, scale)

    def row(self, formula: Formula) -> np.ndarray:
        """Return a formula as an array: entry k is `scale` times the coefficient of monomial k."""
        row = np.zeros(len(self.places))
        for monomial, coefficient in formula.terms.items():
            row[self.places[monomial]] = float(coefficient * self.scale)
        return row

    def formula(self, row: np.ndarray) -> Formula:
        """Return the formula with the coefficients of a row, the inverse of `row`."""
        pairs = zip(self.places, row, strict=True)
        return Formula({m: Fraction(int(c), self.scale) for m, c in pairs if c})


@dataclass
class _Rows(AliveBytes):
    """A count of the bytes alive that is also kept in formulas of the named sizes.

    A formula is a sum of products of sizes, and is stored as the array of its coefficients.

    Attributes:
      sizes: the coefficients of the bytes of each local value (`_Terms.row`).
      row: the coefficients of the bytes alive now.
      rows: the coefficients of the bytes alive at each instruction so far.
    """

    sizes: Sequence[np.ndarray] = ()
    row: Any = 0.0
    rows: Rows = field(default_factory=list)

    def add(self, value: int, held: LiveValue) -> None:
        """Count the bytes of a value as alive from now on, in place of its earlier bytes if any."""
        self.row = self.row + self.bytes(held) - self.bytes(self.alive.get(value, NOTHING))
        super().add(value, held)

    def drop(self, value: int) -> None:
        """Count the bytes of a value as freed."""
        self.row = self.row - self.bytes(self.alive.get(value, NOTHING))
        super().drop(value)

    def reach(self, i: int, inner: AliveBytes | None) -> None:
        """Record the bytes alive while instruction `i` runs.

        If the instruction has a body, `inner` has the bytes alive in the body.
        """
        super().reach(i, inner)
        inside = inner.rows if isinstance(inner, _Rows) else [0.0]
        self.rows += [self.row + row for row in inside]

    def bytes(self, held: LiveValue) -> Any:
        """Return the bytes of a value that is alive, as the coefficients of a formula."""
        return sum((self.sizes[v] for v in held.of), start=np.zeros_like(self.sizes[0]))


@dataclass(frozen=True)
class _Candidates(Scan):
    """Scan of a program, as planned in numbers, that records the bytes alive as formulas.

    Attributes:
      formulas: the same program with formulas for the sizes of its local values.
    """

    formulas: SpmdProgram | None = None

    @cached_property
    def held(self) -> list[Formula]:
        """For each local value, its bytes as a formula."""
        assert self.formulas is not None, "given where it is made"
        return [Formula.of(local.bytes) for local in self.formulas.locals]

    @cached_property
    def terms(self) -> _Terms:
        """A numbering of the monomials in the bytes of local values.

        With it, a formula is a row of coefficients, which is compared faster than a formula.
        """
        return _Terms.of(dict.fromkeys(self.held))

    @cached_property
    def rows(self) -> Rows:
        """For each local value, its bytes as the coefficients of a formula (`_Terms.row`)."""
        known = {size: self.terms.row(size) for size in dict.fromkeys(self.held)}
        return [known[size] for size in self.held]

    def begin(self, start: dict[int, LiveValue]) -> AliveBytes:
        """Return a count of bytes alive as formulas, from the values at the start of a block."""
        line = super().begin(start)
        found = _Rows(line.alive, line.total, totals=line.totals, sizes=self.rows)
        found.row = sum(map(found.bytes, start.values()), start=np.zeros(len(self.terms.places)))
        found.rows.append(found.row)
        return found

    def largest(self, lines: list[AliveBytes], most: int) -> AliveBytes:
        """Return the bytes alive in the body `lines[most]`, with the formulas of all bodies.

        Of several bodies, such as the branches of a `cond`, `lines[most]` has the highest peak at
        the planned sizes. Its `rows` (candidates for the peak, as formulas) are extended by the
        rows of all other bodies, because at other sizes another body may have the highest peak.
        """
        line = lines[most]
        assert isinstance(line, _Rows), "begun by this scan"
        line.rows = [row for other in lines if isinstance(other, _Rows) for row in other.rows]
        return line


class _Unordered(AliveBytes):
    """Count of the bytes alive in which the peak is not searched."""

    @property
    def peak(self) -> tuple[int, ProgramPoint]:
        """The constant (0, ()) in place of the true peak (bytes, point of the program)."""
        # To find the peak, totals would be compared, and these sizes record each comparison as
        # a condition of the plan.
        return 0, ()


@dataclass(frozen=True)
class _Unranked(Scan):
    """Scan of a program that does not compare the bytes alive at different instructions."""

    def begin(self, start: dict[int, LiveValue]) -> AliveBytes:
        """Return a count of bytes alive without a peak, from the values at a block's start."""
        line = super().begin(start)
        return _Unordered(line.alive, line.total, totals=line.totals)
