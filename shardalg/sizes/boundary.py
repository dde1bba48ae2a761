"""Short inequalities that say where one price is larger than another, near a point.

Prices have maxima and ceilings. Near one point each maximum is one of its sides, and a ceiling is
close to its quotient, so that a difference of prices is a quotient of polynomials there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardalg.sizes.conditions import by_power
from shardalg.sizes.formula import Ceil, Formula, Number, symbol
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
        # The factor is a maximum: near the point, it equals the side that is larger there.
        return branch(max(factor.first, factor.second, key=lambda side: side.at(values)), values)

    return formula.replace(near) if formula.atoms else formula


def inequality(difference: Formula, names: Sequence[str], values: Mapping[str, Number]) -> str:
    """Return text: the inequality under which a difference is positive, near a point.

    It is solved for the first of the names in which the difference is linear. Terms below 1 % of
    the largest one of their sign at the point are left out; factors have three digits.

    Args:
      names: sizes to solve for, in order of preference.
      values: the point, a number for each size.

    >>> from shardalg.sizes.formula import symbols
    >>> B, D, X = symbols("B D X")
    >>> inequality(2 * B * D / X - 6 * D * D + 1, ("B",), {"B": 64, "D": 1000, "X": 4})
    'B > 3*D*X'
    >>> inequality(6 * X * X - B, ("B",), {"B": 64, "X": 4})
    'B < 6*X**2'
    """
    above, _ = branch(difference, values).fraction
    sizes = {m: float(Formula({m: c}).at(values)) for m, c in above.terms.items()}
    # Compared with terms of the same sign: at a boundary the sums of both signs are equal.
    largest = {sign: max((sign * n for n in sizes.values()), default=0.0) for sign in (1, -1)}
    kept = Formula(
        {
            m: c
            for m, c in above.terms.items()
            if abs(sizes[m]) >= SMALL * largest[1 if sizes[m] > 0 else -1]
        }
    )
    for name in names:
        powers = by_power(kept, name)
        # The difference is then `name**k * (slope*name + rest)`, and the sign of the bracket is its
        # own, because sizes are positive.
        if len(powers) == 2 and max(powers) - min(powers) == 1:
            rest, slope = powers[min(powers)], powers[max(powers)]
            if float(slope.at(values)) > 0:
                return f"{name} > {_quotient(-rest, slope)}"
            return f"{name} < {_quotient(rest, -slope)}"
    positive = Formula({m: c for m, c in kept.terms.items() if c > 0})
    return f"{_text(positive - kept, 1)} < {_text(positive, 1)}"


def _quotient(above: Formula, below: Formula) -> str:
    """Return a quotient of two sums as text, in which common factors are divided out."""
    monomials = [dict(m) for m in (*above.terms, *below.terms)]
    # The least power of each factor divides every term of both sums.
    shared = {f: min(m.get(f, 0) for m in monomials) for f in {f for m in monomials for f in m}}
    common = Formula({frozenset((f, e) for f, e in shared.items() if e): 1})
    above, below = above / common, below / common
    if len(below.terms) == 1:
        ((monomial, factor),) = below.terms.items()
        # A denominator of one term divides each term above it, so the text needs no brackets.
        return _text(above / Formula({monomial: 1}), factor)
    scale = max(below.terms.values())
    top = _text(above, scale)
    top = f"({top})" if len(above.terms) > 1 else top
    return f"{top}/({_text(below, scale)})"


def _text(formula: Formula, scale: Number) -> str:
    """Return a sum as text, with coefficients that are divided by a scale and have three digits.

    >>> from shardalg.sizes.formula import symbols
    >>> B, X = symbols("B X")
    >>> _text(5 * B * B / X - X, 2)
    '2.5*B**2/X - 0.5*X'
    """
    pieces = []
    # A text that begins with a positive term needs no minus sign in front, and the first terms
    # matter most.
    for monomial, factor in sorted(formula.terms.items(), key=lambda term: -term[1] / scale):
        number = float(factor / scale)
        above = [f"{f}**{e}" if e > 1 else f for f, e in sorted(monomial) if e > 0]
        below = [f"{f}**{-e}" if e < -1 else f for f, e in sorted(monomial) if e < 0]
        digits = f"{abs(number):.3g}"
        front = [] if digits == "1" and above else [digits]
        text = "/".join(["*".join([*front, *above]), *below])
        pieces.append(f"{'-' if number < 0 else '+'} {text}")
    joined = " ".join(pieces) or "0"
    return f"-{joined[2:]}" if joined.startswith("- ") else joined.removeprefix("+ ")
