"""Proofs that an inequality of named sizes holds wherever some other facts hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

from shardalg.sizes.conditions import always
from shardalg.sizes.facts import BROKEN, NONNEGATIVE, POSITIVE, WHOLE, Fact
from shardalg.sizes.formula import Ceil, Formula, FormulaError, symbol
from shardalg.sizes.maximum import MaximumFactor

MOST_WAYS = 16
"""Number of ways to write sizes as products that are tried."""


def follows(fact: Fact, known: Sequence[Fact]) -> bool:
    """Return whether `fact` (relation ">= 0") holds at all sizes at which the `known` facts hold.

    Sizes are whole numbers of at least 1. False means "not known".

    >>> from shardalg.sizes.formula import symbols
    >>> B, X = symbols("B X")
    >>> divides = Fact(B / X, WHOLE)
    >>> follows(Fact(B - X, NONNEGATIVE), [divides]), follows(Fact(B - X, NONNEGATIVE), [])
    (True, False)
    >>> follows(Fact(X * X - 3 * X, NONNEGATIVE), [Fact(X - 3, NONNEGATIVE)])
    True
    """
    if fact.formula.number is not None:
        return fact.holds({})
    if all(isinstance(atom, Ceil) for atom in fact.formula.atoms):
        least = _least_sizes(known)
        for quotients in _quotients(known):
            # The divisor is a product of sizes, so positive: the sign is that of the numerator.
            numerator, _ = fact.formula.subs(quotients).fraction
            # With n + least - 1 in place of a size, the n are again whole numbers of at least 1.
            lows = {n: symbol(n) + low - 1 for n, low in least.items() if n not in quotients}
            # A ceiling may divide by a size, which then cannot become a sum.
            with suppress(FormulaError):
                if always(numerator.subs(lows)):
                    return True
            if always(numerator):
                return True
    return _by_z3(fact, known)


def _least_sizes(known: Iterable[Fact]) -> dict[str, int]:
    """Return the lower bounds of single sizes above 1 that facts state, by name.

    E.g. X - 2 >= 0 -> {"X": 2}, and 2*X - 5 > 0 -> {"X": 3}. Other facts are ignored.
    """
    found: dict[str, int] = {}
    for fact in known:
        # Only facts c*n + k with one size n: a constant term, and one other term.
        terms = dict(fact.formula.terms)
        constant = terms.pop(frozenset(), 0)
        if len(terms) != 1 or fact.relation not in (POSITIVE, NONNEGATIVE):
            continue
        ((monomial, coefficient),) = terms.items()
        if len(monomial) != 1 or coefficient <= 0:
            continue
        ((name, power),) = monomial
        if type(name) is str and power == 1:
            # c*n + k >= 0 means n >= -k/c, and > 0 means the next whole number if that is whole.
            low = math.ceil(Fraction(-constant) / Fraction(coefficient))
            if fact.relation == POSITIVE and low * coefficient + constant == 0:
                low += 1
            found[name] = max(found.get(name, 1), low)
    return {name: low for name, low in found.items() if low > 1}


def _quotients(known: Iterable[Fact]) -> Iterator[dict[str, Formula]]:
    """Yield ways to write sizes as products, exactly: `D = n * d` if a fact says that n divides D.

    The name of D then means the whole number d. A size that several products divide has one of
    them in each way, and the most factors first. E.g. the facts D/X and D/(X*Y) whole ->
    {"D": X*Y*D}, {"D": X*D}.
    """
    # The products that divide each size.
    divisors_by_name: dict[str, list[Formula]] = {}
    for fact in known:
        above, below = fact.formula.fraction
        # Only facts about a quotient whose numerator is a single size.
        if fact.relation == WHOLE and len(above.names) == 1:
            name = next(iter(above.names))
            if above == symbol(name) and name not in below.names:
                divisors_by_name.setdefault(name, []).append(below)
    divisor_lists = [
        sorted(divisors, key=lambda n: -len(n.names)) for divisors in divisors_by_name.values()
    ]
    for combination in itertools.islice(itertools.product(*divisor_lists), MOST_WAYS):
        divisors = dict(zip(divisors_by_name, combination, strict=True))
        # A number of shards that is itself written as a product would change its meaning.
        if not any(count.names & divisors.keys() for count in divisors.values()):
            yield {name: count * symbol(name) for name, count in divisors.items()}


def _by_z3(fact: Fact, known: Sequence[Fact]) -> bool:
    """Return whether z3 proves that `fact` holds wherever the `known` facts hold."""
    from shardalg.merge.proofs.implied import implied

    goal, names = _text(fact), fact.formula.names
    # Facts about other sizes cannot help, and make the search longer. Leaving one out is safe: less
    # is known then.
    near = (_text(other) for other in known if other.formula.names <= names)
    if goal is None:
        return False
    return implied(goal, [text for text in near if text], sorted(names))


def _text(fact: Fact) -> str | None:
    """Return a fact in the language of `merge.proofs.integers`; None if that has no such factor.

    All divisors are products of sizes, so they are positive and can be multiplied out.
    """
    try:
        above, below = map(_polynomial, fact.formula.fraction)
    except NotImplementedError:
        return None
    # "above/below is whole" means that the remainder is 0; BROKEN is the opposite.
    if fact.relation in (WHOLE, BROKEN):
        return f"({above}) % ({below}) {'==' if fact.relation == WHOLE else '!='} 0"
    return f"{above} {fact.relation}"


def _polynomial(formula: Formula) -> str:
    """Return a formula without divisors as text, with whole coefficients.

    Raises:
      NotImplementedError: it has a factor that is neither a size, a ceiling nor a maximum.
    """
    terms = []
    for monomial, coefficient in formula.terms.items():
        assert coefficient == int(coefficient), "a fraction's sides have whole coefficients"
        factors = [f"({int(coefficient)})"]
        for factor, power in monomial:
            factors += [_factor(factor)] * power
        terms.append("*".join(factors))
    return " + ".join(terms) or "0"


def _factor(factor: Any) -> str:
    """Return a factor as text: a size, or a ceiling or a maximum of whole numbers.

    E.g. "X", "ceil((1)*B, (1)*X)", "max((1)*B, (1)*X)".

    Raises:
      NotImplementedError: another kind of factor, or a maximum of quotients.
    """
    if isinstance(factor, str):
        return factor
    if isinstance(factor, Ceil):
        above, below = map(_polynomial, factor.ratio.fraction)
        return f"ceil({above}, {below})"
    if isinstance(factor, MaximumFactor):
        # The language of proofs has whole numbers only, so both sides must have no divisor.
        sides = [Formula(terms).fraction for terms in factor.pair]
        if all(below == Formula.of(1) for _, below in sides):
            return f"max({', '.join(_polynomial(above) for above, _ in sides)})"
    raise NotImplementedError(f"{factor} has no text for proofs")
