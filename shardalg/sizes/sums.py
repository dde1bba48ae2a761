"""Sums of many prices, numbers or formulas; of several sums the least, and where it stays that."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from shardalg.sizes.formula import UNIT, Formula
from shardalg.sizes.recorded import formula_of, recorder_of


def summed(tally: Mapping[tuple[Hashable, Any, Any], int]) -> dict[Any, Any]:
    """Sum per quantity of amounts, each times a factor.

    Args:
      tally: (quantity, amount, factor) to how often it occurs.

    >>> from shardalg.sizes.formula import symbols
    >>> B, L = symbols("B L")
    >>> summed({("flops", B, L): 3, ("flops", B + 1, 1): 1, ("count", 2, L): 3})
    {'flops': 3*B*L + B + 1, 'count': 6*L}
    """
    amounts: dict[Any, dict[Any, list[tuple[Any, int]]]] = defaultdict(lambda: defaultdict(list))
    for (quantity, amount, factor), times in tally.items():
        amounts[quantity][factor].append((amount, times))
    return {
        quantity: total([added(found) * factor for factor, found in factors.items()])
        for quantity, factors in amounts.items()
    }


def total(amounts: Iterable[Any]) -> Any:
    """The sum of amounts: a formula if one of them is.

    >>> from shardalg.sizes.formula import symbol
    >>> total([symbol("B"), 2, symbol("B")]), total([])
    (2*B + 2, 0)
    """
    return added((amount, 1) for amount in amounts)


def added(amounts: Iterable[tuple[Any, int]]) -> Any:
    """The sum of amounts, each that many times: a formula if one of them is."""
    terms: dict[Any, Any] = {}
    number = 0
    for amount, times in amounts:
        if type(amount) is not Formula:
            number += amount * times
            continue
        for monomial, coefficient in amount.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient * times
    return Formula(terms) + number if terms else number


_FARTHEST = 1 << 10
"""How many times the number at the hints `least_sum` asks about at most."""


def least_sum(
    sizes: Sequence[Any], ask: Callable[[tuple[int, ...]], frozenset[int]]
) -> frozenset[int]:
    """Return the places whose sizes have the least sum of all sets that `ask` chooses from.

    Of recorded sizes `a*x + c` of one number x, the range of x is noted in which the same set is
    the least. Two ends of it suffice: the sum of a set is a line in x, and the least of several
    lines is concave, so that a line which is the least at two points is so in between. Recorded
    sizes of another form are noted to stay the numbers that they are.

    Args:
      ask: of numbers the set of the least sum; of sets of equal sums one that contains no other.

    >>> from shardalg.sizes.formula import symbol
    >>> from shardalg.sizes.recorded import Answers, Recorder
    >>> recorder = Recorder(Answers({"B": 12}))
    >>> smaller = lambda sizes: frozenset({0 if sizes[0] <= sizes[1] else 1})
    >>> least_sum([recorder.size(2 * symbol("B")), 60], smaller), list(recorder.facts)
    (frozenset({0}), [-B + 30 >= 0])
    """
    recorder = recorder_of(sizes)
    formulas = [formula_of(size) for size in sizes]
    monomials = {m for formula in formulas for m in formula.terms if m}
    plain = all(type(f) is str and e > 0 for m in monomials for f, e in m)
    if recorder is None or len(monomials) != 1 or not plain:
        return ask(tuple(map(int, sizes)))
    (monomial,) = monomials
    scale = math.lcm(*(Fraction(c).denominator for f in formulas for c in f.terms.values()))
    lines = [
        tuple(int(f.terms.get(part, 0) * scale) for part in (monomial, UNIT)) for f in formulas
    ]
    x = recorder.size(Formula({monomial: 1}))
    found = ask(tuple(a * x.value + c for a, c in lines))
    assert x <= _end(lines, ask, found, (x.value, x.value * _FARTHEST))
    low = _end(lines, ask, found, (x.value, 1))
    assert low == 1 or x >= low
    return found


def _end(
    lines: Sequence[tuple[int, ...]],
    ask: Callable[[tuple[int, ...]], frozenset[int]],
    found: frozenset[int],
    ends: tuple[int, int],
) -> int:
    """Return the last number, on the way from the first end to the other, with the same answer."""
    here, far = ends
    step = 1 if far > here else -1
    slope, height = (sum(lines[place][i] for place in found) for i in (0, 1))
    while far != here:
        other = ask(tuple(a * far + c for a, c in lines))
        if other == found:
            break
        # where both sums are equal, or the whole number before it
        a, c = (sum(lines[place][i] for place in other) for i in (0, 1))
        meet = Fraction(c - height, slope - a)
        before = math.floor(meet) if step > 0 else math.ceil(meet)
        far = before if before != far else far - step
    return far
