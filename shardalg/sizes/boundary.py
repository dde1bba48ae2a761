"""Short inequalities that say where one price is larger than another, near a point.

Prices have maxima and ceilings. Near one point each maximum is one of its sides, and a ceiling is
close to its quotient, so that a difference of prices is a quotient of polynomials there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardalg.sizes.conditions import by_power
from shardalg.sizes.formula import Ceil, Formula, Monomial, Number, symbol
from shardalg.sizes.maximum import SumFactor

# Smaller shares than this of the largest term hardly move a boundary, but make an inequality long.
SMALL = 0.01


def branch(formula: Formula, values: Mapping[str, Number]) -> Formula:
    """Return a formula in which each maximum is replaced by its larger side at a point.

    Ceilings are replaced by their quotients.

    Args:
      values: the point, a number for each size.

    >>> from shardalg.sizes.formula import ceiling, symbols
    >>> from shardalg.sizes.maximum import larger
    >>> B, X = symbols("B X")
    >>> branch(larger(B, 8 * X) + ceiling(B / X), {"B": 64, "X": 4})
    B + B/X
    """

    def near(factor: Any) -> Formula:
        """Return the formula that replaces one factor of the formula near the point.

        A name stays, a ceiling becomes its quotient, and a maximum becomes its larger side.
        """
        if type(factor) is str:
            return symbol(factor)
        if type(factor) is Ceil:
            return branch(factor.ratio, values)
        if type(factor) is SumFactor:
            return branch(factor.inside, values)
        return branch(max(factor.first, factor.second, key=lambda side: side.at(values)), values)

    return formula.replace(near) if formula.atoms else formula


def inequality(difference: Formula, names: Sequence[str], values: Mapping[str, Number]) -> str:
    """Return text: the inequality under which a difference is positive, near a point.

    It is solved for the first of the names in which the difference is linear. Other names that
    multiply the largest term of the result go to its left side. Terms that hardly move the boundary
    (1 %) are left out; factors have three digits. The text is "always" or "never" if the difference
    has one sign at all values of that name.

    Args:
      names: sizes to solve for, in order of preference.
      values: the point, a number for each name.

    >>> from shardalg.sizes.formula import symbols
    >>> B, D, X = symbols("B D X")
    >>> difference = 2 * B * D / X - 6 * D * D + 1
    >>> inequality(difference, ("B",), {"B": 64, "D": 1000, "X": 4})
    'B > 3*D*X'
    >>> inequality(difference, ("B", "X"), {"B": 64, "D": 1000, "X": 4})
    'B/X > 3*D'
    >>> inequality(6 * X * X - B, ("B",), {"B": 64, "X": 4})
    'B < 6*X**2'
    """
    above, _ = branch(difference, values).fraction
    sizes = {m: float(Formula({m: c}).at(values)) for m, c in above.terms.items()}
    if not sizes or min(sizes.values()) > 0 or max(sizes.values()) < 0:
        return "always" if sizes and min(sizes.values()) > 0 else "never"
    # At a boundary the sums of both signs are equal. Away from it, the smaller one decides which
    # terms move the boundary.
    least = SMALL * min(max(sign * n for n in sizes.values()) for sign in (1, -1))
    kept_terms = Formula({m: c for m, c in above.terms.items() if abs(sizes[m]) >= least})
    kept_terms /= _common(kept_terms.terms)
    for name in names:
        powers = by_power(kept_terms, name)
        # The difference is then `name**k * (slope*name + rest)`. Sizes are positive, so that it has
        # the sign of the bracket.
        if len(powers) == 2 and max(powers) - min(powers) == 1:
            rest, slope = powers[min(powers)], powers[max(powers)]
            others = [other for other in names if other != name]
            if float(slope.at(values)) > 0:
                return _solved((name, ">", others), -rest, slope, values)
            return _solved((name, "<", others), rest, -slope, values)
    positive = Formula({m: c for m, c in kept_terms.terms.items() if c > 0})
    return f"{_text(positive - kept_terms, 1, values)} < {_text(positive, 1, values)}"


def _solved(
    side: tuple[str, str, Sequence[str]],
    above: Formula,
    below: Formula,
    values: Mapping[str, Number],
) -> str:
    """Return the text of an inequality between one name and a quotient of two sums.

    Names that multiply the largest term of the quotient go to the left side: `B > 3*D*X` becomes
    `B/X > 3*D` if X may go there.

    Args:
      side: the name, the sign, and the names that may go to the left side.
      above, below: numerator and denominator of the quotient.
      values: the point near which the inequality holds; it decides which term is the largest.
    """
    name, sign, others = side
    # Sizes are positive, so that a bound below 0 decides for all of them.
    if float(above.at(values)) <= 0 or not above:
        return "always" if sign == ">" else "never"
    common = _common((*above.terms, *below.terms))
    above, below = above / common, below / common
    # The largest term decides which names belong to the left side, as in "B/X > 3*D".
    first = max(above.terms, key=lambda m: abs(float(Formula({m: above.terms[m]}).at(values))))
    moved_powers = {f: e for f, e in first if f in others and e > 0 and f not in below.names}
    above /= Formula({frozenset(moved_powers.items()): 1})
    left = "/".join(
        [name, *(f"{f}**{e}" if e > 1 else str(f) for f, e in sorted(moved_powers.items()))]
    )
    return f"{left} {sign} {_quotient(above, below, values)}"


def _common(monomials: Iterable[Monomial]) -> Formula:
    """Return the largest product of sizes that divides all of some monomials."""
    powers = [dict(monomial) for monomial in monomials]
    shared = {f: min(p.get(f, 0) for p in powers) for f in {f for p in powers for f in p}}
    return Formula({frozenset((f, e) for f, e in shared.items() if e): 1})


def _quotient(above: Formula, below: Formula, values: Mapping[str, Number]) -> str:
    """Return a quotient of two sums as text."""
    if len(below.terms) == 1:
        ((monomial, factor),) = below.terms.items()
        # A denominator of one term divides each term above it, so the text needs no brackets.
        return _text(above / Formula({monomial: 1}), factor, values)
    scale = max(below.terms.values())
    top = _text(above, scale, values)
    top = f"({top})" if len(above.terms) > 1 else top
    return f"{top}/({_text(below, scale, values)})"


def _text(formula: Formula, scale: Number, values: Mapping[str, Number]) -> str:
    """Return a sum as text, with coefficients that are divided by a scale and have three digits.

    Terms come in the order of their values at a point, positive ones first.

    >>> from shardalg.sizes.formula import symbols
    >>> B, X = symbols("B X")
    >>> _text(5 * B * B / X - X / 1000, 2, {"B": 64, "X": 4})
    '2.5*B**2/X - X/2000'
    """
    pieces = []
    value_of = {m: float(Formula({m: c}).at(values) / scale) for m, c in formula.terms.items()}
    # A text that begins with a positive term needs no minus sign in front.
    for monomial in sorted(value_of, key=lambda m: (value_of[m] < 0, -abs(value_of[m]))):
        number = float(formula.terms[monomial] / scale)
        numerator = [f"{f}**{e}" if e > 1 else str(f) for f, e in sorted(monomial) if e > 0]
        denominator = [f"{f}**{-e}" if e < -1 else str(f) for f, e in sorted(monomial) if e < 0]
        if numerator and abs(number) < SMALL:
            # F/2550 is read more easily than 0.000392*F.
            denominator = [_digits(1 / abs(number)), *denominator]
        elif not numerator or _digits(abs(number)) != "1":
            numerator = [_digits(abs(number)), *numerator]
        text = "/".join(["*".join(numerator), *denominator])
        pieces.append(f"{'-' if number < 0 else '+'} {text}")
    joined = " ".join(pieces) or "0"
    return f"-{joined[2:]}" if joined.startswith("- ") else joined.removeprefix("+ ")


def _digits(number: float) -> str:
    """Return a positive number with three digits, without an exponent below a million.

    >>> _digits(2551.2), _digits(0.12345), _digits(4.5e7)
    ('2550', '0.123', '4.5e+07')
    """
    text = f"{number:.3g}"
    return f"{float(text):.0f}" if 1000 <= float(text) < 1e6 else text
