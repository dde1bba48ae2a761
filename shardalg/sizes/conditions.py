"""When a choice that was made at the hints stays the cheaper one at other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardalg.sizes.formula import Ceil, Formula, FormulaError, Number, symbol
from shardalg.sizes.growth import Shardings, without_ceilings

if TYPE_CHECKING:
    import sympy


def always(difference: Formula, *, shardings: Shardings = ()) -> bool:
    """Whether a formula is certainly >= 0 for all sizes >= 1 that keep D >= n for each sharding.

    It is if, each size s written as 1 + s, no coefficient is negative. A dimension D over n is
    written as n*d with d >= 1 before, a ceiling as a size >= 1 or as its argument and a rest >= 0.
    Sufficient: False means "not known".

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> always(B * M - B), always(M - X), always(M - X, shardings=[(M, X)])
    (True, False, True)
    """
    known = tuple(shardings)
    forms = {_opened(difference, low) for low in (_at_least_one, _at_least_ratio)}
    return any(_nonnegative(_widened(form, known).fraction[0]) for form in forms)


def _opened(formula: Formula, low: Callable[[Ceil, Formula], Formula], depth: int = 0) -> Formula:
    """The formula with each ceiling in terms of a new size."""
    if not formula.atoms:
        return formula
    atoms = sorted(formula.atoms, key=str)
    fresh = {atom: symbol(f"ceil_{depth}_{i}") for i, atom in enumerate(atoms)}
    opened = formula.replace(lambda f: low(f, fresh[f]) if f in fresh else symbol(f))
    return _opened(opened, low, depth + 1)


def _at_least_one(atom: Ceil, fresh: Formula) -> Formula:
    return fresh


def _at_least_ratio(atom: Ceil, fresh: Formula) -> Formula:
    return atom.ratio + fresh - 1


def _widened(formula: Formula, shardings: Shardings) -> Formula:
    """The formula with `n*d` for each dimension D, `d = D/n` taking over the name of D.

    Where D is a part count itself, what divides by it learns less than is true, never more.
    """
    parts: dict[str, Formula] = {}
    for size, count in shardings:
        [name, *others] = Formula.of(size).names or [""]
        if not others and size == symbol(name or "_"):
            parts[name] = max(parts.get(name, Formula.of(1)), Formula.of(count), key=_extent)
    return formula.subs({name: n * symbol(name) for name, n in parts.items()})


def _extent(parts: Formula) -> tuple[int, Number]:
    """Sorts products: by degree, then by coefficient."""
    [(monomial, coefficient)] = parts.terms.items()
    return sum(e for _, e in monomial), coefficient


def _nonnegative(polynomial: Formula) -> bool:
    """Whether no coefficient is negative once each size is written as 1 + s."""
    if sum(polynomial.terms.values()) < 0:
        return False
    if all(c >= 0 for c in polynomial.terms.values()):
        return True
    shifted = polynomial.subs({name: symbol(name) + 1 for name in polynomial.names})
    return all(c >= 0 for c in shifted.terms.values())


@dataclass(frozen=True)
class Bound:
    """A condition solved for one size: `name >= threshold`, or `<=`.

    Where the divisor of the threshold is 0 (`B <= H/(X - 1)` on one device), the condition does
    not depend on that size, and the bound says nothing.
    """

    name: str
    relation: str
    threshold: sympy.Expr

    def __str__(self) -> str:
        return f"{self.name} {self.relation} {self.threshold}"


@dataclass(frozen=True)
class Condition:
    """A choice made at the hints: it stays the cheaper one while `chosen <= alternative`.

    Attributes:
      chosen, alternative: the costs of both, in one unit.
      what: the choice in words.

    >>> from shardalg.sizes.formula import symbols
    >>> B, H, M, S, X = symbols("B H M S X")
    >>> gather = Condition(M * H / X, 2 * B * S * M / X, "gather the weight")
    >>> print(gather), print(gather.bounds()[0])
    gather the weight: H*M/X <= 2*B*M*S/X
    B >= H/(2*S)
    (None, None)
    """

    chosen: Formula
    alternative: Formula
    what: str = ""

    @cached_property
    def difference(self) -> Formula:
        """`alternative - chosen` without common factors: the condition is that it is >= 0."""
        return primitive(self.alternative - self.chosen)

    def holds(self, values: Mapping[str, Number]) -> bool:
        """Whether the choice is right at these sizes."""
        return self.difference.at(values) >= 0

    def margin(self, values: Mapping[str, Number]) -> float:
        """What the choice saves, as a share of the dearer of the two: 0 at a tie, at most 1."""
        chosen, alternative = self.chosen.at(values), self.alternative.at(values)
        dearer = max(chosen, alternative)
        return float(Fraction(alternative - chosen) / dearer) if dearer else 0.0

    def bounds(self) -> tuple[Bound, ...]:
        """The condition solved for each size that stands in it to one power only."""
        found = (_bound(self.difference, name) for name in sorted(self.difference.names))
        return tuple(bound for bound in found if bound is not None)

    def __str__(self) -> str:
        return f"{self.what}: {self.chosen} <= {self.alternative}".removeprefix(": ")


def conditions(
    candidates: Iterable[Condition],
    *,
    hints: Mapping[str, Number],
    shardings: Shardings = (),
) -> tuple[Condition, ...]:
    """The distinct conditions that may fail at other sizes, the closest at the hints first.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> pairs = [(M, M * X), (M, 3 * B), (M, 2 * B), (X * M, 2 * B * X)]
    >>> found = conditions(
    ...     [Condition(chosen, other) for chosen, other in pairs], hints={"B": 8, "M": 10, "X": 2}
    ... )
    >>> for condition in found: print(condition)
    M <= 2*B
    M <= 3*B
    """
    known, distinct = tuple(shardings), {c.difference: c for c in reversed([*candidates])}
    open_ones = [c for c in distinct.values() if not always(c.difference, shardings=known)]
    return tuple(sorted(open_ones, key=lambda c: (c.margin(hints), str(c))))


def primitive(formula: Formula) -> Formula:
    """The formula divided by its largest common product, so that proportional ones are equal.

    The product is positive at all sizes: the formula keeps its sign.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> primitive(4 * B * M / X - 6 * M)
    2*B - 3*X
    """
    if not formula:
        return formula
    powers = [dict(monomial) for monomial in formula.terms]
    factors = [f for f in frozenset().union(*powers) if _is_size(f)]
    least = {f: min(p.get(f, 0) for p in powers) for f in factors}
    left = ({**p, **{f: p.get(f, 0) - e for f, e in least.items()}} for p in powers)
    monomials = (frozenset((f, e) for f, e in p.items() if e) for p in left)
    return Formula(dict(zip(monomials, _coprime(formula.terms.values()), strict=True)))


def is_positive(formula: Formula) -> bool:
    """Whether a formula is a sum of positive products: positive at all sizes."""
    factors = (f for monomial in formula.terms for f, _ in monomial)
    return all(c > 0 for c in formula.terms.values()) and all(map(_is_size, factors))


def _is_size(factor: Any) -> bool:
    """Whether a factor is at least 1 at all sizes: a name, or a ceiling of what is positive."""
    return type(factor) is str or is_positive(factor.ratio)


def _coprime(numbers: Iterable[Number]) -> list[int]:
    """Numbers divided by the largest one of which they are multiples."""
    fractions = [Fraction(n) for n in numbers]
    scale = math.lcm(*(n.denominator for n in fractions))
    whole = [n.numerator * (scale // n.denominator) for n in fractions]
    shared = math.gcd(*whole)
    return [n // shared for n in whole]


def _by_power(formula: Formula, name: str) -> dict[int, Formula]:
    """The coefficients of a polynomial in one size."""
    found: dict[int, Formula] = {}
    for monomial, coefficient in formula.terms.items():
        power = dict(monomial).get(name, 0)
        rest = Formula({monomial - {(name, power)}: coefficient})
        found[power] = found.get(power, Formula({})) + rest
    return found


def _bound(difference: Formula, name: str) -> Bound | None:
    """`a * name**k + b >= 0` solved, for an `a` whose sign is known."""
    powers = _by_power(difference, name)
    inside = any(name in atom.ratio.names for atom in difference.atoms)
    if inside or len(powers) != 2 or 0 not in powers:
        return None
    power = max(powers)
    factor, rest = powers[power], powers[0]
    for relation, sign in ((">=", 1), ("<=", -1)):
        # A root needs a radicand that is never negative.
        if always(factor * sign) and (power == 1 or always(rest * -sign)):
            return Bound(name, relation, _root(-rest.sympy() / factor.sympy(), power))
    return None


def _root(radicand: sympy.Expr, power: int) -> sympy.Expr:
    import sympy

    product = sympy.factor(radicand)
    return product if power == 1 else sympy.root(product, power)


def crossovers(
    difference: Formula, name: str, *, values: Mapping[str, Number] | None = None
) -> tuple[float, ...]:
    """Where, above 1, a difference of two costs changes its sign as one size grows.

    `ceil(D/n)` counts as D/n, so that a crossover of uneven sizes is right up to one block.

    Args:
      values: all sizes but `name`.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> crossovers(M * X - 12 * B, "X", values={"M": 2, "B": 8})
    (48.0,)

    Raises:
      FormulaError: a size has no value.
    """
    others = {n: v for n, v in (values or {}).items() if n != name}
    smooth = difference
    while smooth.atoms:
        smooth = smooth.replace(without_ceilings(0))
    above, _ = smooth.subs(others).fraction
    if missing := sorted(above.names - {name}):
        raise FormulaError(f"crossovers in {name} of {difference}: {', '.join(missing)} is open.")
    by_power = {power: c.number or 0 for power, c in _by_power(above, name).items()}
    numbers = [float(by_power.get(k, 0)) for k in range(max(by_power, default=0), -1, -1)]
    roots = np.roots(numbers) if len(numbers) > 1 else np.array([])
    real = sorted({float(r.real) for r in roots if abs(r.imag) < 1e-9 * abs(r) and r.real > 1})
    between = [1.0, *real, 2 * real[-1]] if real else []
    signs = [np.polyval(numbers, (low + high) / 2) > 0 for low, high in pairwise(between)]
    return tuple(root for root, (a, b) in zip(real, pairwise(signs), strict=True) if a != b)
