"""What devices found along a sharded loop becomes one: prefixes, best places, partial results."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.graph.ir import Params


@dataclass(frozen=True, slots=True)
class Carry:
    """What all blocks before the device's own come to, from what each of them comes to.

    An exclusive scan over the members of a group in the order of their partition ids, from the
    last to the first in `reverse`; the first of them gets the identity. The operand has one place
    along `dim`, the dimension that the blocks cut.
    """

    dim: int
    digits: Digits
    combine: str
    reverse: bool


@dataclass(frozen=True, slots=True)
class Join:
    """Combine every place along `dim` of the first operand with the one place of the second."""

    dim: int
    combine: str


@dataclass(frozen=True, slots=True)
class Best:
    """Position of the best element of a dimension cut in blocks, from the best of every block.

    Operands are the best value of the device's block and its place in there; the member of lowest
    partition id wins a tie, and the first NaN wins over all numbers.

    Attributes:
      dim: of the tensor, which the results lack; block: places per block.
      combine: "argmax" or "argmin".
    """

    dim: int
    digits: Digits
    block: int
    combine: str


@dataclass(frozen=True, slots=True)
class ValueAt:
    """Of the second operand, the element at the place along `dim` that the first one names."""

    dim: int


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
