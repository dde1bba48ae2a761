"""Sums of many prices, numbers or formulas, of which most occur again and again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from shardalg.costs.formula import Formula

Row = tuple[Any, ...]


def summed(tally: Mapping[tuple[Row, Any], int]) -> Row:
    """Sum of several quantities, each times a factor.

    Args:
      tally: (quantities, factor) to how often it occurs; at least one.

    >>> from shardalg.costs.formula import symbols
    >>> B, L = symbols("B L")
    >>> summed({((B, 2), L): 3, ((B + 1, 5), 1): 1})
    (3*B*L + B + 1, 6*L + 5)
    """
    amounts: dict[Any, dict[int, Counter[Any]]] = defaultdict(lambda: defaultdict(Counter))
    for (quantities, factor), times in tally.items():
        for place, amount in enumerate(quantities):
            amounts[factor][place][amount] += times
    sums = ([added(c) * factor for c in places.values()] for factor, places in amounts.items())
    return tuple(map(sum, zip(*sums, strict=True)))


def added(amounts: Mapping[Any, int]) -> Any:
    """The sum of amounts that occur several times: a formula if one of them is."""
    terms: dict[Any, Any] = {}
    number = 0
    for amount, times in amounts.items():
        if type(amount) is not Formula:
            number += amount * times
            continue
        for monomial, coefficient in amount.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient * times
    return Formula(terms) + number if terms else number
