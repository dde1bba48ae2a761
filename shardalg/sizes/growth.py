"""Order of growth of a formula in some of its sizes, in O notation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from shardalg.sizes.formula import Ceil, Formula, FormulaError, Monomial, symbol

Shardings = Iterable[tuple[Formula | int, Formula | int]]
"""Pairs (D, n): a dimension of size D has n shards.

Then D/n >= 1, which decides whether a term such as D/n or a constant is the larger one.
"""


@dataclass(frozen=True, repr=False)
class Order:
    """Order of growth of a formula, printed as O(...).

    Attributes:
      terms: products of the growing sizes whose sum is the order. None of them is bounded by
        another; empty for a formula that is 0.
      leading: the largest terms of the formula, with their coefficients and all sizes.
    """

    terms: tuple[Formula, ...]
    leading: tuple[Formula, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        return f"O({' + '.join(map(str, self.terms))})" if self.terms else "0"


def order(formula: Formula, *, growing: Iterable[str], shardings: Shardings = ()) -> Order:
    """Return the order of growth of a nonnegative formula in some of its sizes.

    1. A term a is dropped if another term b bounds it: `a <= constant * b` wherever all sizes are
       >= 1 and D/n >= 1 for each sharding. This holds exactly if `b/a` is a product of nonnegative
       powers of the sizes and of the ratios D/n (Farkas' lemma on the exponents).
    2. In the remaining terms, sizes that are not in `growing` are constants, which are left out.
    3. Products that another product bounds are dropped again.

    `ceil(D/n)` is replaced by its bound `D/n + 1`. Step 1 drops the 1 if D/n >= 1 is known.

    Args:
      growing: names of the sizes that grow.
      shardings: pairs (D, n) of a dimension and its number of shards, for which D/n >= 1 holds.

    Raises:
      FormulaError: no other term bounds a negative term, or the formula divides by a ceiling.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, S, X, Y = symbols("B M S X Y")
    >>> print(order(6 * B * M * S / (X * Y) + 16 * B * S / X, growing="XY", shardings=[(M, Y)]))
    O(1/(X*Y))
    >>> print(order(6 * B * M * S / (X * Y) + 16 * B * S / X, growing="XY"))
    O(1/X)
    """
    bound = _upper_bound(Formula.of(formula))
    cone = _Cone.of(shardings)
    leading = _largest(_positive(bound), cone.dominates)
    # A cost is nonnegative, so each negative term must be bounded by a positive one.
    negative = [m for m, c in bound.terms.items() if c < 0]
    for monomial in negative:
        if not any(cone.dominates(other, monomial) for other in leading):
            raise FormulaError(
                f"{formula} may be negative: nothing bounds its term "
                f"{Formula({monomial: bound.terms[monomial]})} on {cone}."
            )
    # Other sizes are constants, so only the powers of growing sizes count.
    growing_names = frozenset(growing)
    projected = {frozenset((f, e) for f, e in m if f in growing_names) for m in leading}
    largest = _largest(list(projected), _Cone(()).dominates)
    return Order(
        tuple(sorted((Formula({m: 1}) for m in largest), key=str)),
        tuple(sorted((Formula({m: bound.terms[m]}) for m in leading), key=str)),
    )


def _upper_bound(formula: Formula) -> Formula:
    """Return an upper bound of a formula that has no ceilings, by `q <= ceil(q) <= q + 1`."""
    total = Formula({})
    for monomial, coefficient in formula.terms.items():
        if any(e < 0 for f, e in monomial if type(f) is Ceil):
            raise FormulaError(f"{formula} divides by a ceiling: its order is not defined here.")
        # A positive term is bounded with the upper bound of its ceiling, a negative one with the
        # lower.
        rounding = int(coefficient > 0)
        total += Formula({monomial: coefficient}).replace(without_ceilings(rounding))
    return total if not total.atoms else _upper_bound(total)


def _positive(formula: Formula) -> list[Monomial]:
    """Return the monomials with a positive coefficient."""
    return [monomial for monomial, coefficient in formula.terms.items() if coefficient > 0]


def without_ceilings(rounding: int) -> Callable[[Any], Formula]:
    """Return a function for `Formula.replace` that replaces `ceil(q)` by `q + rounding`.

    With a rounding of 0 this is a lower bound of the ceiling, with 1 an upper bound.
    """
    return lambda f: f.ratio + rounding if type(f) is Ceil else symbol(f)


def _largest(
    monomials: Sequence[Monomial], dominates: Callable[[Monomial, Monomial], bool]
) -> list[Monomial]:
    """Return the monomials that no other monomial bounds; of two that bound each other, the first.

    Args:
      dominates: function that returns whether its first argument bounds the second.
    """
    largest: list[Monomial] = []
    # A fixed order makes the first of several equal bounds the same in every run.
    for monomial in sorted(monomials, key=lambda m: (-sum(e for _, e in m), str(Formula({m: 1})))):
        if any(dominates(other, monomial) for other in largest):
            continue
        largest = [other for other in largest if not dominates(monomial, other)]
        largest.append(monomial)
    return largest


@dataclass(frozen=True)
class _Cone:
    """Region of sizes in which all sizes, and some quotients of sizes, are at least 1.

    Attributes:
      ratios: the quotients, such as a dimension over its number of shards.
    """

    ratios: tuple[Monomial, ...]

    @staticmethod
    def of(shardings: Shardings) -> _Cone:
        """Return the region of sizes in which each sharded dimension has an element per shard.

        Args:
          shardings: (size of the dimension, number of shards) of each sharded dimension.
        """
        ratios = [Formula.of(size) / parts for size, parts in shardings]
        # A size such as V - 1 is at most a constant times its largest term, if it has one. A ratio
        # without one is left out: the region is then larger, so statements about it stay true.
        tops = [_largest(_positive(_upper_bound(ratio)), _Cone(()).dominates) for ratio in ratios]
        return _Cone(tuple(dict.fromkeys(top[0] for top in tops if len(top) == 1)))

    def dominates(self, big: Monomial, small: Monomial) -> bool:
        """Return whether `big` grows at least as fast as `small` in the region of this cone.

        That is, `small <= constant * big` for some constant at all sizes in the region.
        """
        need = _quotient(big, small)
        if all(e >= 0 for _, e in need):
            return True
        return bool(self.ratios) and _in_cone(need, self.ratios)

    def __str__(self) -> str:
        ratios = "".join(f", {Formula({ratio: 1})} >= 1" for ratio in self.ratios)
        return f"all sizes >= 1{ratios}"


def _quotient(big: Monomial, small: Monomial) -> Monomial:
    """Return `big / small`: the exponents are subtracted."""
    powers = dict(big)
    for factor, exponent in small:
        powers[factor] = powers.get(factor, 0) - exponent
    return frozenset((f, e) for f, e in powers.items() if e)


@lru_cache(maxsize=1 << 14)
def _in_cone(need: Monomial, ratios: tuple[Monomial, ...]) -> bool:
    """Return whether a monomial is a product of nonnegative powers of ratios and of sizes.

    Args:
      need: the monomial, a set of (factor, exponent).
      ratios: monomials that are at least 1.
    """
    from scipy.optimize import nnls

    # Nonnegative least squares: the distance is 0 exactly if such a combination exists.
    # A column has the exponents of one size alone, or of one ratio, in the order of `names`.
    names = sorted({f for monomial in (need, *ratios) for f, _ in monomial})
    row = {name: i for i, name in enumerate(names)}
    columns = np.zeros((len(names), len(names) + len(ratios)))
    columns[:, : len(names)] = np.eye(len(names))
    target = np.zeros(len(names))
    for factor, exponent in need:
        target[row[factor]] = exponent
    for j, ratio in enumerate(ratios, start=len(names)):
        for factor, exponent in ratio:
            columns[row[factor], j] = exponent
    _, distance = nnls(columns, target)
    return bool(distance < 1e-9)
