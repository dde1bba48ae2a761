"""Crossovers: the sizes at which one price overtakes another; and the largest size that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from shardalg.sizes.array_steps import Code, run
from shardalg.sizes.conditions import crossovers, words
from shardalg.sizes.facts import POSITIVE, Fact
from shardalg.sizes.formula import Ceil, Formula, FormulaError, Number
from shardalg.sizes.recorded import total

if TYPE_CHECKING:
    from shardalg.costs.cost import Totals

# A search ends here, because it would never end if every size fits.
LARGEST = 1 << 40
# Up to here every size is checked. Beyond, that would take too long, so as many sizes in equal
# ratios are checked.
EACH = 1 << 14
# A difference below this share of its terms may be a rounding error, so it is computed exactly.
_ROUNDED = 2.0**-40


def sign_changes(difference: Formula, name: str, hints: Mapping[str, Number]) -> tuple[int, ...]:
    """Return the values of a size at which a difference of prices has another sign than before.

    A returned integer n means that the signs at n - 1 and at n differ. Up to `EACH` all of them are
    found. Beyond, bisection finds one between two sizes that are checked, and sizes next to the
    roots of a polynomial are checked too. Every result is exact.

    Args:
      difference: one price minus another.
      name: the size that grows.
      hints: values of all other sizes.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> sign_changes(M * X - 96, "X", {"M": 2, "X": 4})
    (48, 49)

    Raises:
      FormulaError: the difference does not depend on the size.
    """
    if name not in difference.names:
        raise FormulaError(f"{difference} does not depend on {name}: nothing turns as it grows.")
    difference_of_size = difference.subs(
        {other: size for other, size in hints.items() if other != name}
    )

    def sign(size: int) -> int:
        """Return the sign of the difference, -1, 0 or 1, computed exactly."""
        value = difference_of_size.at({name: size})
        return (value > 0) - (value < 0)

    sizes_beyond = np.geomspace(EACH, LARGEST, EACH)
    # `crossovers` reads `ceil(n/d)` as `n/d`, so an exact turn may be next to one of its roots.
    roots = []
    for root in crossovers(difference_of_size, name) if _only_ceilings(difference_of_size) else ():
        roots += [int(root) + k for k in range(-1, 3) if 1 <= int(root) + k <= LARGEST]
    all_sizes = np.concatenate([np.arange(1, EACH), sizes_beyond, roots])
    # Sorted and without repetition, so that neighbours enclose each change of sign.
    sizes = np.unique(all_sizes.astype(np.int64))
    signs = _signs(difference_of_size, {name: sizes}, sign)
    changes = np.flatnonzero(signs[1:] != signs[:-1])
    return tuple(
        t for i in changes for t in _changes_between(sign, int(sizes[i]), int(sizes[i + 1]))
    )


def _only_ceilings(formula: Formula) -> bool:
    """Return whether a formula has no other parts than sizes, numbers and ceilings of these."""
    return all(type(atom) is Ceil and _only_ceilings(atom.ratio) for atom in formula.atoms)


def _signs(difference: Formula, sizes: Mapping[str, Any], sign: Callable[[int], int]) -> Any:
    """Return an array of the signs of a difference at an array of sizes.

    Args:
      sizes: the name of one size, with an array of its values.
      sign: returns the exact sign at one value, for values at which rounding errors matter.
    """
    # The sum of the terms' absolute values is the scale of the rounding errors in the difference.
    code = Code()
    absolute = {monomial: abs(c) for monomial, c in difference.terms.items()}
    roots = [code.polynomial(terms) for terms in (difference.terms, absolute)]
    values, most = run(code, roots, sizes)
    signs = np.sign(values)
    (given,) = sizes.values()
    # Rounding errors of double precision are far below this share of the absolute terms' sum.
    for i in np.flatnonzero(np.abs(values) <= _ROUNDED * most):
        signs[i] = sign(int(given[i]))
    return signs


def _changes_between(sign: Callable[[int], int], low: int, high: int) -> Iterator[int]:
    """Yield integers in `(low, high]` at which the sign differs from the sign at the one before."""
    # The bisection finds one change; there may be more between it and the upper end.
    while sign(low) != sign(high):
        first, last, here = low, high, sign(low)
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if sign(middle) == here else (first, middle)
        yield last
        low = last


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest size for which `fits` is true; 0 if it is false for 1.

    `fits` must be monotonic: if a size does not fit, no larger one does. The size is doubled until
    it does not fit, or until LARGEST; then bisection finds the last one that fits.
    """
    if not fits(1):
        return 0
    low = 1
    while low < LARGEST and fits(2 * low):
        low *= 2
    return _last(fits, low, 2 * low)


def largest_near(fits: Callable[[int], bool], guess: int, step: int) -> int:
    """Return a large size for which `fits` is true; 0 if none is found.

    The search first finds a large multiple of `step` that fits, starting from `guess`. Then it adds
    multiples of ever smaller divisors of `step`, up to the next multiple. `fits` need not be
    monotonic, because sizes that divide less evenly may need more.

    >>> largest_near(lambda n: n <= 70 and n % 4 == 0, guess=1000, step=24)
    68
    """
    found = step * _last_fitting_near(lambda k: fits(k * step), guess // step)
    for prime in sorted(_primes(step), reverse=True):
        step //= prime
        found = _refine(fits, found, step, prime)
    return found


def _refine(fits: Callable[[int], bool], low: int, step: int, steps: int) -> int:
    """Return `low + k * step` for the largest k that a bisection of `0 <= k < steps` finds to fit.

    `low` must fit.
    """
    return low + step * _last(lambda k: fits(low + k * step), 0, steps)


def _last_fitting_near(fits: Callable[[int], bool], guess: int) -> int:
    """Return a number for which `fits` is true, although it is false for the next number.

    The search goes upward from the guess in doubling steps. It passes numbers that do not fit, up
    to twice the guess, because `fits` need not be monotonic. If no number fits there, the search
    goes downward. 0 counts as a number that fits. Between a number that fits and one that does not,
    `_last` finds the last one that fits, by bisection.
    """
    # Upward, in steps of 0, 1, 2, 4, .... `fitting` is the last number that fits, and `failing` the
    # first one above it that does not; 0 means that there is none yet.
    fitting = failing = step = 0
    while (tried := guess + step) < LARGEST:
        if tried == 0 or fits(tried):
            fitting, failing = tried, 0
        else:
            failing = failing or tried
            if tried >= 2 * guess:
                break
        step = 2 * step or 1
    if fitting:
        return _last(fits, fitting, failing) if failing else fitting
    # Downward from the guess, in steps of 1, 2, 4, ..., until a number fits or 0 is reached.
    fitting, failing, step = max(guess - 1, 0), guess, 1
    while fitting > 0 and not fits(fitting):
        fitting, failing, step = max(fitting - step, 0), fitting, 2 * step
    return _last(fits, fitting, failing)


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number that fits, by bisection; `low` must fit and `high` must not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _primes(n: int) -> Iterator[int]:
    """Yield the prime factors of a number, each as often as it divides the number.

    E.g. 12 gives 2, 2 and 3.
    """
    prime = 2
    while prime * prime <= n:
        if n % prime:
            prime += 1
        else:
            yield prime
            n //= prime
    # No number up to the square root divides the rest, so it is 1 or a prime.
    if n > 1:
        yield n


def compute_minus_communication(totals: Totals, axes: Sequence[str] | None = None) -> Formula:
    """Return the seconds of computation minus those of communication, as a formula.

    Args:
      axes: only collectives along at least one of these mesh axes count; None counts all.
    """
    sent = (
        item.time_s
        for item in totals.items
        if item.is_communication and (axes is None or not set(axes).isdisjoint(item.axes))
    )
    return Formula.of(totals.sum("time_s", communication=False)) - Formula.of(total(sent))


def less(first: Formula, second: Formula) -> str:
    """Return text: the condition on sizes under which the first price is smaller than the second.

    Common factors are divided out. The text is "always" or "never" if the sizes do not matter.

    >>> from shardalg.sizes.formula import symbols
    >>> B, M, X = symbols("B M X")
    >>> less(2 * B * M / X, B * M), less(B, B + 1), less(B, B)
    ('2 < X', 'always', 'never')
    """
    difference = second - first
    if not difference:
        return "never"
    # The denominator is positive, as all sizes are, so the sign is that of the numerator.
    above, _ = difference.fraction
    # A positive factor of all terms does not change the sign, so the inequality is divided by it.
    powers = [dict(monomial) for monomial in above.terms]
    factors = {factor for monomial in powers for factor in monomial}
    least = {factor: min(monomial.get(factor, 0) for monomial in powers) for factor in factors}
    numbers = [Fraction(coefficient).numerator for coefficient in above.terms.values()]
    shared_factors = frozenset((factor, power) for factor, power in least.items() if power)
    reduced = above / Formula({shared_factors: math.gcd(*numbers)})
    # Sizes are positive, so terms of a single sign decide.
    if all(coefficient > 0 for coefficient in reduced.terms.values()):
        return "always"
    if all(coefficient < 0 for coefficient in reduced.terms.values()):
        return "never"
    return words(Fact(reduced, POSITIVE))
