"""Longer and shorter dimensions: padded, stripped, dilated, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Along, Shape
from shardalg.spmd.shapes import alike, sized


@dataclass(frozen=True, slots=True)
class Resize(Along):
    """Pad `dim` with zeros at its end, or strip it, to `size` elements."""

    dim: int
    size: int

    def text(self, mesh: Mesh) -> str:
        return f"resize dim={self.dim} to {self.size}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        return sized(first, self.dim, self.size)


@dataclass(frozen=True, slots=True)
class Dilate(Along):
    """`factor - 1` places between neighbours of `dim`, `low` before the first, `high` at the end.

    They hold the identity of `fill`; the second operand, a number, where `fill` is None.
    """

    dim: int
    factor: int
    low: int
    high: int
    fill: str | None = "sum"
    of_one_type = True

    def length(self, before: int) -> int:
        """Places that `before` places become."""
        return self.low + max((before - 1) * self.factor + 1, 0) + self.high

    def text(self, mesh: Mesh) -> str:
        return f"dilate dim={self.dim} by {self.factor}, {self.low} before, {self.high} after"

    @property
    def padding(self) -> str | None:
        return self.fill

    def arity(self, rank: int, count: int) -> int:
        return 1 + (self.fill is None)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return None if any(more) else sized(first, self.dim, self.length(first[self.dim]))


@dataclass(frozen=True, slots=True)
class Concatenate(Along):
    """The operands one after the other along `dim`."""

    dim: int
    of_one_type = True

    def text(self, mesh: Mesh) -> str:
        return f"concatenate dim={self.dim}"

    def arity(self, rank: int, count: int) -> int:
        return max(count, 1)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        shapes = (first, *more)
        if alike([sized(shape, self.dim, 1) for shape in shapes]) is None:
            return None
        return sized(first, self.dim, sum(shape[self.dim] for shape in shapes))
