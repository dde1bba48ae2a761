"""Sums of many prices, numbers or formulas, of which most occur again and again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from shardalg.sizes.formula import Formula


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
