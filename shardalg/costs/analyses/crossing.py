"""Where one price overtakes another as a size grows, and how large a size may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from shardalg.sizes.array_steps import Code, run
from shardalg.sizes.conditions import crossovers, words
from shardalg.sizes.facts import POSITIVE, Fact
from shardalg.sizes.formula import Ceil, Formula, FormulaError, Number

LARGEST = 1 << 40
"""Sizes are looked at up to here."""
EACH = 1 << 14
"""Up to here at each of them, then at as many in equal ratios."""
_ROUNDED = 2.0**-40
"""Of the sum of all terms; what is nearer to 0 in double precision is asked exactly."""


def turns(difference: Formula, name: str, hints: Mapping[str, Number]) -> tuple[int, ...]:
    """The integers at which a difference has another sign than at the one before.

    All of them up to `EACH`. Beyond it one turn is found between two sizes that are looked at, by
    halving, and those around the roots of a polynomial. Every turn is exact, so that ceilings and
    what is the longer of two times count.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> turns(M * X - 96, "X", {"M": 2, "X": 4})
    (48, 49)

    Raises:
      FormulaError: the difference does not depend on the size.
    """
    if name not in difference.names:
        raise FormulaError(f"{difference} does not depend on {name}: nothing turns as it grows.")
    here = difference.subs({other: size for other, size in hints.items() if other != name})

    def sign(size: int) -> int:
        value = here.at({name: size})
        return (value > 0) - (value < 0)

    beyond = np.geomspace(EACH, LARGEST, EACH)
    given = np.concatenate([np.arange(1, EACH), beyond, [*_roots(here, name)]])
    sizes = np.unique(given.astype(np.int64))
    signs = _signs(here, {name: sizes}, sign)
    changes = np.flatnonzero(signs[1:] != signs[:-1])
    return tuple(t for i in changes for t in _turns(sign, int(sizes[i]), int(sizes[i + 1])))


def _roots(difference: Formula, name: str) -> Iterator[int]:
    """The roots of a polynomial, with what is next to them."""
    if _only_ceilings(difference):
        for root in crossovers(difference, name):
            yield from (int(root) + k for k in range(-1, 3) if 1 <= int(root) + k <= LARGEST)


def _only_ceilings(formula: Formula) -> bool:
    """Whether nothing but ceilings keeps a formula from being a polynomial over products."""
    return all(type(atom) is Ceil and _only_ceilings(atom.ratio) for atom in formula.atoms)


def _signs(difference: Formula, sizes: Mapping[str, Any], sign: Callable[[int], int]) -> Any:
    """The signs at an array of sizes, exactly."""
    code = Code()
    absolute = {monomial: abs(c) for monomial, c in difference.terms.items()}
    roots = [code.polynomial(terms) for terms in (difference.terms, absolute)]
    values, most = run(code, roots, sizes)
    signs = np.sign(values)
    (given,) = sizes.values()
    for i in np.flatnonzero(np.abs(values) <= _ROUNDED * most):
        signs[i] = sign(int(given[i]))
    return signs


def _turns(sign: Callable[[int], int], low: int, high: int) -> Iterator[int]:
    while sign(low) != sign(high):
        first, last, here = low, high, sign(low)
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if sign(middle) == here else (first, middle)
        yield last
        low = last


def largest(fits: Callable[[int], bool]) -> int:
    """The largest size that fits, of a need that does not shrink; 0 if 1 does not."""
    if not fits(1):
        return 0
    low = 1
    while low < LARGEST and fits(2 * low):
        low *= 2
    return _last(fits, low, 2 * low)


def largest_near(fits: Callable[[int], bool], guess: int, step: int) -> int:
    """A size that fits: the largest multiple of a step, and what fits up to the next one.

    The multiple is looked for from a guess; what lies between two of them in multiples of ever
    smaller divisors of the step, as sizes that divide less evenly may need more. 0 if none fits.

    >>> largest_near(lambda n: n <= 70 and n % 4 == 0, guess=1000, step=24)
    68
    """
    found = step * _turn(lambda k: fits(k * step), guess // step)
    for prime in sorted(_primes(step), reverse=True):
        found, step = _finer(fits, found, step // prime, prime), step // prime
    return found


def _finer(fits: Callable[[int], bool], low: int, step: int, steps: int) -> int:
    """What fits of a size and those that are fewer than so many steps above it."""
    return low + step * _last(lambda k: fits(low + k * step), 0, steps)


def _turn(fits: Callable[[int], bool], guess: int) -> int:
    """A number that fits where the next does not, looked for from a guess; 0 fits.

    Upward in ever longer steps, past what does not fit as far as twice the guess; else downward.
    """
    low = high = by = 0
    while (at := guess + by) < LARGEST:
        if at == 0 or fits(at):
            low, high = at, 0
        else:
            high = high or at
            if at >= 2 * guess:
                break
        by = 2 * by or 1
    if low:
        return _last(fits, low, high) if high else low
    low, high, by = max(guess - 1, 0), guess, 1
    while low > 0 and not fits(low):
        low, high, by = max(low - by, 0), low, 2 * by
    return _last(fits, low, high)


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The last number that fits between one that does and one that does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _primes(n: int) -> Iterator[int]:
    """The prime factors of a number, each as often as it divides it."""
    prime = 2
    while prime * prime <= n:
        if n % prime:
            prime += 1
        else:
            yield prime
            n //= prime
    if n > 1:
        yield n


def less(first: Formula, second: Formula) -> str:
    """The condition under which the first price is smaller, divided by what both share.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> less(2 * B * M / X, B * M), less(B, B + 1), less(B, B)
    ('2 < X', 'always', 'never')
    """
    difference = second - first
    if not difference:
        return "never"
    above, _ = difference.fraction
    shared = _shared(above)
    if all(c > 0 for c in (above / shared).terms.values()):
        return "always"
    if all(c < 0 for c in (above / shared).terms.values()):
        return "never"
    return words(Fact(above / shared, POSITIVE))


def _shared(formula: Formula) -> Formula:
    """The largest product that divides all terms."""
    powers = [dict(monomial) for monomial in formula.terms]
    least = {f: min(found.get(f, 0) for found in powers) for f in {f for p in powers for f in p}}
    numbers = [Fraction(c).numerator for c in formula.terms.values()]
    return Formula({frozenset((f, e) for f, e in least.items() if e): math.gcd(*numbers)})
