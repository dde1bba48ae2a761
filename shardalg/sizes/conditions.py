"""Text and analysis of facts about sizes: inequalities, and the sizes at which they become false.

A fact is a condition that was true at the hints, where a plan was computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from shardalg.sizes.facts import BROKEN, NONNEGATIVE, NONZERO, POSITIVE, WHOLE, ZERO, Fact
from shardalg.sizes.formula import Ceil, Formula, FormulaError, Number, symbol
from shardalg.sizes.growth import Shardings, without_ceilings


def always(difference: Formula, *, shardings: Shardings = ()) -> bool:
    """Return whether a formula is certainly at least 0 at all sizes of at least 1.

    It is if no coefficient is negative once each size s is written as 1 + s. Before that, a sharded
    dimension D is written as n*d with d >= 1, and a ceiling as a size >= 1, or as its argument and
    a rest >= 0. False means "not known".

    Args:
      shardings: pairs (D, n) of a dimension and its number of shards, for which D >= n holds.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> always(B * M - B), always(M - X), always(M - X, shardings=[(M, X)])
    (True, False, True)
    """
    known = tuple(shardings)
    # A ceiling q is at least 1 and at least its ratio. So it is written as `fresh`, a new size,
    # which is at least 1; or as `ratio + fresh - 1`, which is at least the ratio.
    bounds: tuple[Callable[[Ceil, Formula], Formula], ...] = (
        lambda atom, fresh: fresh,
        lambda atom, fresh: atom.ratio + fresh - 1,
    )
    forms = {_replace_ceilings(difference, low) for low in bounds}
    return any(_nonnegative(_substitute_quotients(form, known).fraction[0]) for form in forms)


def _replace_ceilings(
    formula: Formula, low: Callable[[Ceil, Formula], Formula], depth: int = 0
) -> Formula:
    """Return the formula with a new size in place of each ceiling, also inside of ceilings.

    Args:
      low: function of a ceiling and its new size; returns the formula that replaces the ceiling.
        `low` is not called for a ceiling in a denominator, which becomes the new size itself.
      depth: number of levels of ceilings that were replaced already, for new names.
    """
    if not formula.atoms:
        return formula
    atoms = sorted(formula.atoms, key=str)
    fresh = {atom: symbol(f"ceil_{depth}_{i}") for i, atom in enumerate(atoms)}
    # Formulas divide by products only, so a ceiling that divides cannot become a sum.
    divide = {factor for monomial in formula.terms for factor, power in monomial if power < 0}
    written = {a: size if a in divide else low(a, size) for a, size in fresh.items()}
    opened = formula.replace(lambda f: written[f] if f in written else symbol(f))
    return _replace_ceilings(opened, low, depth + 1)


def _substitute_quotients(formula: Formula, shardings: Shardings) -> Formula:
    """Return the formula with `n*d` in place of each sharded dimension D of n shards.

    The name of D then means `d = D/n`, which is at least 1. For example, D - n becomes n*d - n,
    which is seen to be at least 0. If D is a number of shards itself, the result is a lower bound
    of the formula.

    Args:
      shardings: pairs (D, n): a size and the number of its shards.
    """

    def degree(product: Formula) -> tuple[int, Number]:
        """Return (number of factors, coefficient) of a product, by which products are compared."""
        [(monomial, coefficient)] = product.terms.items()
        return sum(e for _, e in monomial), coefficient

    # D >= n holds for each of several shardings of D, and the largest n says most.
    num_shards: dict[str, Formula] = {}
    for size, count in shardings:
        # Only a size that is a single name can be replaced, not a formula such as D + 1.
        [name, *other_names] = Formula.of(size).names or [""]
        if not other_names and size == symbol(name or "_"):
            num_shards[name] = max(
                num_shards.get(name, Formula.of(1)), Formula.of(count), key=degree
            )
    return formula.subs({name: n * symbol(name) for name, n in num_shards.items()})


def _nonnegative(polynomial: Formula) -> bool:
    """Return whether no coefficient is negative once each size s is written as 1 + s.

    Sizes are at least 1, so such a polynomial is at least 0 at all sizes. For example, X*Y - X
    becomes X*Y + Y. False means only that this test does not show it.
    """
    # At sizes 1 the polynomial is the sum of its coefficients: a quick way to say no.
    if sum(polynomial.terms.values()) < 0:
        return False
    if all(c >= 0 for c in polynomial.terms.values()):
        return True
    shifted = polynomial.subs({name: symbol(name) + 1 for name in polynomial.names})
    return all(c >= 0 for c in shifted.terms.values())


def primitive(formula: Formula) -> Formula:
    """Return a formula divided by the largest product that divides all of its terms.

    The product is positive at all sizes, so the sign does not change. Formulas that differ only by
    such a product become equal.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> primitive(4 * B * M / X - 6 * M)
    2*B - 3*X
    """
    if not formula:
        return formula
    monomial_powers = [dict(monomial) for monomial in formula.terms]
    factors = [f for f in frozenset().union(*monomial_powers) if _is_size(f)]
    # The least power of each factor divides all terms.
    common_powers = {f: min(p.get(f, 0) for p in monomial_powers) for f in factors}
    remaining_powers = (
        {**p, **{f: p.get(f, 0) - e for f, e in common_powers.items()}} for p in monomial_powers
    )
    monomials = (frozenset((f, e) for f, e in p.items() if e) for p in remaining_powers)
    # Coefficients become coprime integers, so that multiples of a formula become equal, too.
    fractions = [Fraction(n) for n in formula.terms.values()]
    scale = math.lcm(*(n.denominator for n in fractions))
    integers = [n.numerator * (scale // n.denominator) for n in fractions]
    coprime = [n // math.gcd(*integers) for n in integers]
    return Formula(dict(zip(monomials, coprime, strict=True)))


def is_positive(formula: Formula) -> bool:
    """Return whether a formula is a sum of positive products, which is positive at all sizes."""
    factors = (f for monomial in formula.terms for f, _ in monomial)
    return all(c > 0 for c in formula.terms.values()) and all(map(_is_size, factors))


def _is_size(factor: Any) -> bool:
    """Return whether a factor is a name or a ceiling of a positive ratio, hence at least 1."""
    return type(factor) is str or is_positive(factor.ratio)


def by_power(formula: Formula, name: str) -> dict[int, Formula]:
    """Return, for each power of one size in a polynomial, its coefficient.

    For example, in 3*X**2*B + X - 1, the size X has {2: 3*B, 1: 1, 0: -1}.
    """
    coefficient_of: dict[int, Formula] = {}
    for monomial, coefficient in formula.terms.items():
        power = dict(monomial).get(name, 0)
        rest = Formula({monomial - {(name, power)}: coefficient})
        coefficient_of[power] = coefficient_of.get(power, Formula({})) + rest
    return coefficient_of


def crossovers(
    difference: Formula, name: str, *, values: Mapping[str, Number] | None = None
) -> tuple[float, ...]:
    """Return the sizes above 1 at which a difference of two costs changes its sign.

    `ceil(D/n)` counts as D/n, so that a crossover of uneven sizes is right up to one block.

    Args:
      values: values of all sizes except `name`.

    Raises:
      FormulaError: a size has no value.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> crossovers(M * X - 12 * B, "X", values={"M": 2, "B": 8})
    (48.0,)
    """
    other_values = {n: v for n, v in (values or {}).items() if n != name}
    # Without ceilings the difference is a polynomial, whose roots numpy finds.
    smooth = difference
    while smooth.atoms:
        smooth = smooth.replace(without_ceilings(0))
    # The denominator is positive at all sizes, so the numerator has the sign of the difference.
    numerator, _ = smooth.subs(other_values).fraction
    if missing := sorted(numerator.names - {name}):
        raise FormulaError(f"crossovers in {name} of {difference}: {', '.join(missing)} is open.")
    coefficient_of = {power: c.number or 0 for power, c in by_power(numerator, name).items()}
    # numpy expects the coefficient of the highest power first.
    coefficients = [
        float(coefficient_of.get(k, 0)) for k in range(max(coefficient_of, default=0), -1, -1)
    ]
    roots = np.roots(coefficients) if len(coefficients) > 1 else np.array([])
    # Sizes are at least 1, so smaller roots are irrelevant.
    real = sorted({float(r.real) for r in roots if abs(r.imag) < 1e-9 * abs(r) and r.real > 1})
    # A root counts only if the sign changes there: compare the middles of both neighbouring ranges.
    between = [1.0, *real, 2 * real[-1]] if real else []
    signs = [np.polyval(coefficients, (low + high) / 2) > 0 for low, high in pairwise(between)]
    return tuple(root for root, (a, b) in zip(real, pairwise(signs), strict=True) if a != b)


def words(fact: Fact) -> str:
    """Return a fact as text for users: an inequality of sums, or a statement of divisibility.

    >>> from shardalg.sizes.formula import ceiling, symbols
    >>> B, M, X = symbols("B M X")
    >>> [words(Fact(formula, NONNEGATIVE)) for formula in (2 * B * X - M, B - 1)]
    ['M <= 2*B*X', '1 <= B']
    >>> words(Fact(M / (2 * X), WHOLE)), words(Fact(M - X * ceiling(M / X), NONZERO))
    ('2*X divides M', 'X does not divide M')
    """
    # Divisibility reads better in words than as an inequality.
    divided = split_of(fact)
    if divided is not None:
        verb = "divides" if fact.relation in (WHOLE, ZERO) else "does not divide"
        return f"{divided[1]} {verb} {divided[0]}"
    left, right = sides(fact.formula)
    if fact.relation in (ZERO, NONZERO) and left.number is not None:
        # An equation is read with the size on the left and the number on the right.
        left, right = right, left
    return f"{left} {_SIGNS[fact.relation]} {right}"


_SIGNS = {POSITIVE: "<", NONNEGATIVE: "<=", ZERO: "=", NONZERO: "!="}


def split_of(fact: Fact) -> tuple[Formula, Formula] | None:
    """Return (size, number of parts) of a fact about divisibility; None for any other fact.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> split_of(Fact(M / X, WHOLE)), split_of(Fact(M - X, ZERO))
    ((M, X), None)
    """
    if fact.relation in (WHOLE, BROKEN):
        return fact.formula.fraction
    return _rest_of(fact.formula) if fact.relation in (ZERO, NONZERO) else None


def _rest_of(formula: Formula) -> tuple[Formula, Formula] | None:
    """Return (a, b) for the formula `a - b * ceil(a / b)` or its negative; None for another form.

    The formula is 0 if and only if b divides a.
    """
    for monomial, coefficient in formula.terms.items():
        for atom in (f for f, e in monomial if type(f) is Ceil and e == 1):
            # In `a - b*ceil(a/b)` the ceiling's coefficient is -b, and b times its ratio is a.
            parts = Formula({monomial - {(atom, 1)}: -coefficient})
            size = parts * atom.ratio
            if formula + parts * Formula({frozenset([(atom, 1)]): 1}) == size:
                return _as_positive(size), _as_positive(parts)
    return None


def _as_positive(product: Formula) -> Formula:
    """Return a product of sizes or its negative, whichever is positive."""
    return product if is_positive(product) else -product


def sides(difference: Formula) -> tuple[Formula, Formula]:
    """Return (left, right): two sums of positive terms with `right - left == difference`."""
    terms = difference.terms.items()
    left = Formula({m: -c for m, c in terms if c < 0})
    return left, Formula({m: c for m, c in terms if c > 0})


def margin(fact: Fact, hints: Mapping[str, Number]) -> float | None:
    """Return how far a comparison is from becoming false: the distance of its sides at the hints.

    The distance is a share of the larger side. The result is None for equations and divisibility.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> margin(Fact(M - 2 * X, POSITIVE), {"M": 12, "X": 3})
    0.5
    """
    if fact.relation not in (POSITIVE, NONNEGATIVE, NONZERO) or split_of(fact) is not None:
        return None
    left, right = (Fraction(side.at(hints)) for side in sides(fact.formula))
    return float(abs(right - left) / max(left, right, Fraction(1)))


def is_open(fact: Fact, *, shardings: Shardings = ()) -> bool:
    """Return whether a fact may be false at some sizes of at least 1.

    Args:
      shardings: pairs (D, n) of a dimension and its number of shards, for which D >= n holds.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> facts = [Fact(M * X - M, NONNEGATIVE), Fact(M * X - M, POSITIVE), Fact(M + X, NONZERO)]
    >>> [is_open(fact) for fact in facts]
    [False, True, False]
    """
    found, known = fact.formula, tuple(shardings)
    if fact.relation == NONNEGATIVE:
        return not always(found, shardings=known)
    if fact.relation == POSITIVE:
        return not always(found - 1, shardings=known)
    if fact.relation == NONZERO:
        return not any(always(side - 1, shardings=known) for side in (found, -found))
    return True


def flips(fact: Fact, hints: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return, for each size, the nearest values below and above its hint that make a fact false.

    All other sizes have their hints. A size without such a value has no entry, and facts that are
    no inequalities have none at all.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> flips(Fact(B * X - M, POSITIVE), {"B": 8, "M": 12, "X": 4})
    {'B': (3,), 'M': (32,), 'X': (1,)}
    """
    if fact.relation not in (POSITIVE, NONNEGATIVE):
        return {}
    points_of_sizes = (
        (name, _flip_points(fact, name, hints)) for name in sorted(fact.formula.names)
    )
    return {name: sizes for name, sizes in points_of_sizes if sizes}


def _flip_points(fact: Fact, name: str, hints: Mapping[str, int]) -> tuple[int, ...]:
    """Return the nearest values of one size, below and above its hint, that make a fact false.

    The result has 0, 1 or 2 values: a side is left out if no value was found there.

    Args:
      fact: a condition that is true at the hints.
      name: the size that changes; all others have their hints.
    """
    hint, roots = hints[name], crossovers(fact.formula, name, values=hints)
    floors, ceilings = (math.floor(r) for r in reversed(roots)), (math.ceil(r) for r in roots)
    # With ceilings, a root is exact only up to one block, so its neighbourhood is tried as well.
    below = [n for root in floors if root <= hint for n in (root, root - 1, root // 2)]
    above = [n for root in ceilings if root >= hint for n in (root, root + 1, root * 2)]

    def holds(size: int) -> bool:
        """Return whether the fact is true at one value of the size."""
        return fact.holds({**hints, name: size})

    flip_points = []
    # The value 1 is the smallest size; it is tried last on the lower side.
    for side in ((*(n for n in below if n >= 1), 1), above):
        outside = next((n for n in side if not holds(n)), None)
        if outside is None:
            continue
        # The fact holds at `inside` and fails at `outside`. Each step halves their distance, so few
        # evaluations are needed.
        inside = hint
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            inside, outside = (middle, outside) if holds(middle) else (inside, middle)
        flip_points.append(outside)
    return tuple(flip_points)
