"""Facts: conditions on named sizes, such as "X divides B"; and a fast check of thousands of them.

A fact is true at the hints, where a program was planned. The program's formulas are valid at all
sizes at which its facts are true. A check at one point takes a fraction of a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from shardalg.sizes.formula import Ceil, Formula, Monomial, Number

POSITIVE, NONNEGATIVE, ZERO, NONZERO = "> 0", ">= 0", "== 0", "!= 0"
WHOLE, BROKEN = "is whole", "is not whole"
_HOLDS: dict[str, Callable[[Number], bool]] = {
    POSITIVE: lambda number: number > 0,
    NONNEGATIVE: lambda number: number >= 0,
    ZERO: lambda number: number == 0,
    NONZERO: lambda number: number != 0,
    WHOLE: lambda number: type(number) is int,
    BROKEN: lambda number: type(number) is not int,
}
_REST = (WHOLE, BROKEN)
_EXACT = float(1 << 62)
"""Beyond this bound, sums of 64-bit integers may overflow: formulas are evaluated exactly."""


@dataclass(frozen=True)
class Fact:
    """Statement about a formula of named sizes, such as "M - 2*X > 0" or "M/X is whole".

    Attributes:
      formula: the formula.
      relation: "> 0", ">= 0", "== 0", "!= 0", "is whole" or "is not whole".

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> fact = Fact(M / X, WHOLE)
    >>> fact, fact.holds({"M": 12, "X": 4}), fact.holds({"M": 12, "X": 5})
    (M/X is whole, True, False)
    """

    formula: Formula
    relation: str

    def holds(self, values: Mapping[str, Number]) -> bool:
        """Return whether the statement is true at these sizes."""
        return _HOLDS[self.relation](self.formula.at(values))

    def __repr__(self) -> str:
        return f"{self.formula} {self.relation}"


class Facts:
    """Collection of facts, stored as arrays, so that numpy checks thousands of them at one point.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> facts = Facts([Fact(M / X, WHOLE), Fact(M - 2 * X, POSITIVE)])
    >>> facts.failing({"M": 12, "X": 4}), facts.failing({"M": 9, "X": 6})
    ((), (M/X is whole, M - 2*X > 0))
    """

    def __init__(self, facts: Iterable[Fact]) -> None:
        self.facts = tuple(dict.fromkeys(facts))

    def failing(self, values: Mapping[str, int]) -> tuple[Fact, ...]:
        """Return the facts that are false at given sizes, a number for each name.

        All facts are evaluated at once by numpy, in 64-bit integers. If these could overflow, each
        fact is evaluated exactly by itself.
        """
        sizes = [values[name] for name in self._names]
        # Inner ceilings come first in `_order`, so their values are known here.
        for above, below in self._atoms:
            sizes.append(-(-_sum(above, sizes) // _sum(below, sizes)))
        # 64-bit arithmetic may overflow with large sizes: evaluate the formulas exactly then.
        if not self.facts or max(map(abs, sizes), default=0) >= _EXACT:
            return tuple(fact for fact in self.facts if not fact.holds(values))
        is_false = self._wrong(np.array([1, *sizes], np.int64))
        if is_false is None:
            return tuple(fact for fact in self.facts if not fact.holds(values))
        return tuple(self.facts[i] for i in np.flatnonzero(is_false))

    def _wrong(self, known: np.ndarray) -> np.ndarray | None:
        """Return, for each fact, whether it fails; None if 64-bit integers may overflow.

        The numerators of all facts are summed at once: `reduceat` adds the terms from one start to
        the next.

        Args:
          known: the number 1, then the value of each name and ceiling in `_order`.
        """
        factors, coefficients, starts, below, scale, relations = self._arrays
        # The sum of absolute values in floats bounds all intermediate integers.
        magnitudes = known.astype(float)[factors].prod(axis=1)
        if np.add.reduceat(np.abs(coefficients) * magnitudes, starts).max() >= _EXACT:
            return None
        number = np.add.reduceat(coefficients * known[factors].prod(axis=1), starts)
        remainder = np.zeros_like(number)
        # Only statements about divisibility need the denominator.
        with_divisor = np.flatnonzero(np.isin(relations, [_CODE[r] for r in _REST]))
        denominator = known[below[with_divisor]].prod(axis=1)
        remainder[with_divisor] = number[with_divisor] % (denominator * scale[with_divisor])
        # `relations` has the number of each fact's relation, which chooses one of these tests.
        return ~np.choose(
            relations,
            [number > 0, number >= 0, number == 0, number != 0, remainder == 0, remainder != 0],
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Names of the sizes in all facts."""
        return tuple(sorted(frozenset().union(*(fact.formula.names for fact in self.facts))))

    @cached_property
    def _order(self) -> dict[Any, int]:
        """Index of each name and ceiling; a ceiling comes after the ceilings inside it."""
        order: dict[Any, int] = {name: i for i, name in enumerate(self._names)}
        for fact in self.facts:
            _add_ceilings(fact.formula, order)
        return order

    @cached_property
    def _atoms(self) -> list[tuple[Any, ...]]:
        """For each ceiling in `_order`, the numerator and the denominator of its ratio.

        Each of these is a list with an entry (coefficient, indices of the factors) per term.
        """
        ceilings = [atom for atom in self._order if type(atom) is Ceil]
        order = self._order
        return [
            tuple(
                [(int(c), _factors(m, order)) for m, c in side.terms.items()]
                for side in atom.ratio.fraction
            )
            for atom in ceilings
        ]

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        """The formulas and relations of all facts as six arrays.

        The first two have a row per term of a numerator: the indices of its factors, and its
        coefficient. The others have a row per fact: the index of its first term, the indices of the
        denominator's factors, the denominator's coefficient, and the code of the relation.

        For the facts `2*B*S - X > 0` and `B/(3*X) is whole`, with the indices B 1, S 2 and X 3:
            [[1, 2], [3, 0], [1, 0]]   [2, -1, 1]   [0, 2]   [[0], [3]]   [1, 3]   [0, 4]
        Index 0 means the number 1.
        """
        sides: list[tuple[Formula, Formula]] = []
        for formula in (fact.formula for fact in self.facts):
            # Most facts have no divisor: their formula is the numerator, over 1.
            terms = formula.terms.items()
            is_plain = all(type(c) is int and all(e > 0 for _, e in m) for m, c in terms)
            sides.append((formula, _ONE) if is_plain else formula.fraction)
        # A numerator without terms is 0 and has one row, because `np.add.reduceat` needs at least
        # one row per fact.
        numerator_terms = [
            (m, c) for side, _ in sides for m, c in (side.terms or {frozenset(): 0}).items()
        ]
        counts = [max(len(side.terms), 1) for side, _ in sides]
        scale = [int(next(iter(below.terms.values()))) for _, below in sides]
        term_factors = _places([m for m, _ in numerator_terms], self._order)
        denominator_factors = _places([next(iter(below.terms)) for _, below in sides], self._order)
        # The first term of fact k has the number of all terms of the facts before it (`cumsum`).
        return (
            term_factors,
            np.array([int(c) for _, c in numerator_terms], np.int64),
            np.cumsum([0, *counts[:-1]]),
            denominator_factors,
            np.array(scale, np.int64),
            np.array([_CODE[fact.relation] for fact in self.facts]),
        )


_CODE = {relation: code for code, relation in enumerate(_HOLDS)}


_ONE = Formula({frozenset(): 1})


def _add_ceilings(formula: Formula, order: dict[Any, int]) -> None:
    """Add the ceilings of a formula to `order`, each after the ceilings inside it."""
    for atom in sorted(formula.atoms, key=str):
        if atom not in order:
            _add_ceilings(atom.ratio, order)
            order[atom] = len(order)


def _factors(monomial: Monomial, order: Mapping[Any, int]) -> list[int]:
    """Return the indices in `order` of a product's factors; with exponent e, an index e times."""
    return [order[factor] for factor, exponent in monomial for _ in range(exponent)]


def _sum(rows: list[tuple[int, list[int]]], known: list[int]) -> int:
    """Return a sum of products, given by (coefficient, indices of the factors in `known`) each."""
    return sum(c * math.prod(known[i] for i in factors) for c, factors in rows)


def _places(monomials: list[Monomial], order: Mapping[Any, int]) -> np.ndarray:
    """Return a matrix with a row per product: the indices of its factors, plus 1.

    Index 0 means the number 1, which fills shorter rows.

    Args:
      order: index of each name and ceiling.
    """
    factor_places = [[i + 1 for i in _factors(m, order)] for m in monomials]
    # Rows of equal length make one array, which numpy multiplies along.
    width = max(map(len, factor_places), default=0) or 1
    return np.array([row + [0] * (width - len(row)) for row in factor_places], np.intp)


Size = Formula | int


@dataclass(frozen=True)
class Divides:
    """Statement that `parts` divides `size`, or that it does not; an assumption about block sizes.

    Attributes:
      kind: name of this kind of statement, for tables.
      decides: the property of a program that depends on it, for tables.
      size, parts: a dimension, and the product of the axes that shard it.
      divides: whether `parts` divides `size`.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> fact = Divides(M, X, True)
    >>> fact, fact.holds({"M": 12, "X": 4}), fact.holds({"M": 12, "X": 5})
    (X divides M, True, False)
    """

    kind: ClassVar[str] = "divides"
    decides: ClassVar[str] = "the size of blocks"
    size: Size
    parts: Size
    divides: bool

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return whether the statement is true at these sizes."""
        size, count = (Formula.of(side).at(values) for side in (self.size, self.parts))
        return (size % count == 0) == self.divides

    @property
    def where(self) -> str:
        """Text that names the size and the number of parts, such as "M in X"."""
        return f"{self.size} in {self.parts}"

    def otherwise(self, values: Mapping[str, int]) -> str:
        """Return the text of the opposite statement, which is true where this one is false."""
        return str(replace(self, divides=not self.divides))

    @property
    def fact(self) -> Fact:
        """The statement as a `Fact` that `size / parts` is whole, or is not."""
        return Fact(Formula.of(self.size) / self.parts, WHOLE if self.divides else BROKEN)

    @property
    def divided(self) -> tuple[tuple[Size, Size], ...]:
        """The pair (size, parts) if `parts` divides `size`, else no pair."""
        return ((self.size, self.parts),) if self.divides else ()

    def __repr__(self) -> str:
        verb = "divides" if self.divides else "does not divide"
        return f"{self.parts} {verb} {self.size}"


@dataclass(frozen=True)
class Exactly:
    """Statement that a mesh axis has the size of its hint, such as "X = 4".

    It is assumed if a collective runs along a part of the axis. The size of the part depends on the
    factors of the axis size, for which there is no formula.

    Attributes:
      kind: name of this kind of statement, for tables.
      decides: the property of a program that depends on it, for tables.
      size: the size of the axis.
      number: its hint.

    >>> from shardalg.sizes.formula import symbol
    >>> fact = Exactly(symbol("X"), 4)
    >>> fact, fact.holds({"X": 4}), fact.otherwise({"X": 8})
    (X = 4, True, 'X = 8')
    """

    kind: ClassVar[str] = "part"
    decides: ClassVar[str] = "the part of an axis that a collective runs along"
    size: Formula
    number: int

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return whether the statement is true at these sizes."""
        return self.size.at(values) == self.number

    @property
    def where(self) -> str:
        """Text that names the axis."""
        return str(self.size)

    def otherwise(self, values: Mapping[str, int]) -> str:
        """Return the statement with the size that the axis has in `values`, such as "X = 8"."""
        return f"{self.size} = {self.size.at(values)}"

    @property
    def fact(self) -> Fact:
        """The statement as a `Fact` that `size - number` is 0."""
        return Fact(self.size - self.number, ZERO)

    @property
    def divided(self) -> tuple[tuple[Size, Size], ...]:
        """No pair (size, parts), because nothing is divided."""
        return ()

    def __repr__(self) -> str:
        return f"{self.size} = {self.number}"


Assumed = Divides | Exactly
