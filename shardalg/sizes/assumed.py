"""What the formulas of a program take for granted: they are right wherever it is so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from shardalg.sizes.facts import BROKEN, WHOLE, ZERO, Fact
from shardalg.sizes.formula import Formula

Size = Formula | int


@dataclass(frozen=True)
class Divides:
    """That `parts` divides `size`, or that it does not.

    >>> from shardalg.sizes.formula import symbols
    >>> M, X = symbols("M X")
    >>> fact = Divides(M, X, True)
    >>> fact, fact.holds({"M": 12, "X": 4}), fact.holds({"M": 12, "X": 5})
    (X divides M, True, False)
    """

    kind: ClassVar[str] = "divides"
    decides: ClassVar[str] = "the size of blocks"
    size: Size
    parts: Size
    divides: bool

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it is so at these sizes."""
        size, count = (Formula.of(side).at(values) for side in (self.size, self.parts))
        return (size % count == 0) == self.divides

    @property
    def where(self) -> str:
        """What it is of."""
        return f"{self.size} in {self.parts}"

    def otherwise(self, values: Mapping[str, int]) -> str:
        """What is so at these sizes, where this is not."""
        return str(replace(self, divides=not self.divides))

    @property
    def fact(self) -> Fact:
        """The same as a fact."""
        return Fact(Formula.of(self.size) / self.parts, WHOLE if self.divides else BROKEN)

    @property
    def divided(self) -> tuple[tuple[Size, Size], ...]:
        """The size with the number that divides it, if one does."""
        return ((self.size, self.parts),) if self.divides else ()

    def __repr__(self) -> str:
        verb = "divides" if self.divides else "does not divide"
        return f"{self.parts} {verb} {self.size}"


@dataclass(frozen=True)
class Exactly:
    """That an axis has the size of its hint: a collective runs along a part of it, a number.

    Which part that is depends on the factors of the sizes, for which there is no formula.

    >>> from shardalg.sizes.formula import symbol
    >>> fact = Exactly(symbol("X"), 4)
    >>> fact, fact.holds({"X": 4}), fact.otherwise({"X": 8})
    (X = 4, True, 'X = 8')
    """

    kind: ClassVar[str] = "part"
    decides: ClassVar[str] = "the part of an axis that a collective runs along"
    size: Formula
    number: int

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it is so at these sizes."""
        return self.size.at(values) == self.number

    @property
    def where(self) -> str:
        """What it is of."""
        return str(self.size)

    def otherwise(self, values: Mapping[str, int]) -> str:
        """What is so at these sizes, where this is not."""
        return f"{self.size} = {self.size.at(values)}"

    @property
    def fact(self) -> Fact:
        """The same as a fact."""
        return Fact(self.size - self.number, ZERO)

    @property
    def divided(self) -> tuple[tuple[Size, Size], ...]:
        """Nothing: it is about one size."""
        return ()

    def __repr__(self) -> str:
        return f"{self.size} = {self.number}"


Assumed = Divides | Exactly
