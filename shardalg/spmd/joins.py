"""Partial results of several values that become one: members send theirs, and all join them."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.graph.ir import Params


@dataclass(frozen=True, slots=True)
class Top:
    """The best elements of a dimension cut in blocks, from the best of every block.

    Operands are the best values of the device's block, best first, and their places in there;
    results the best of all, and their places in the dimension. Of equal values the lower place
    comes first; values are in total order (a NaN before all numbers, one with a sign behind).

    Attributes:
      dim: of operands and results; block: places per block.
    """

    dim: int
    digits: Digits
    block: int


@dataclass(frozen=True, slots=True)
class Fold:
    """Partial results of a reduction by a function of the user, joined by that function.

    Operands are the partial results, then the numbers that the reduction starts from, which change
    nothing. Members are joined in the order of their partition ids.

    Attributes:
      params: of the same reduction, over the members.
    """

    digits: Digits
    params: Params = (("dimensions", (0,)),)
