"""What a device does along one dimension of its blocks, as a value; `partition.emit` writes it."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.spmd.instruction import Attributes
from shardalg.spmd.instructions import Slice


@dataclass(frozen=True, slots=True)
class DimStep:
    """One instruction of a `DimProgram`; its results are as long as `sizes` say.

    Attributes:
      operands: values by number, the inputs first, then the results of each step.
      places: of a fetch, which is made once for all that ask for it, `[lower, upper)` of every
        operand; else ().
    """

    attributes: Attributes
    operands: tuple[int, ...]
    sizes: tuple[int, ...]
    places: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DimProgram:
    """Instructions that change one dimension of some values, and the numbers of the results."""

    dim: int
    steps: tuple[DimStep, ...]
    results: tuple[int, ...]


class DimBuilder:
    """A `DimProgram` under construction.

    Attributes:
      sizes: places of every value, those of the inputs first.
    """

    def __init__(self, dim: int, sizes: tuple[int, ...]) -> None:
        self.dim, self.sizes = dim, list(sizes)
        self.steps: list[DimStep] = []

    def add(self, attributes: Attributes, size: int, *operands: int) -> int:
        """An instruction whose result has `size` places; its number."""
        return self.results(DimStep(attributes, operands, (size,)))[0]

    def results(self, step: DimStep) -> tuple[int, ...]:
        """The numbers of the results of one more step."""
        first = len(self.sizes)
        self.steps.append(step)
        self.sizes += step.sizes
        return tuple(range(first, len(self.sizes)))

    def places(self, value: int, lower: int, upper: int) -> int:
        """Places `[lower, upper)` of a value: itself, if these are all."""
        if (lower, upper) == (0, self.sizes[value]):
            return value
        return self.add(Slice(self.dim, lower, upper - lower), upper - lower, value)

    def program(self, *results: int) -> DimProgram:
        """The program that gives these values."""
        return DimProgram(self.dim, tuple(self.steps), results)
