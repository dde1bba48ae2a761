"""Longer and shorter dimensions: padded, stripped, dilated, one after the other.

Regrouping: an instruction that gives the same elements other dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Along, Attributes, Shape
from shardalg.spmd.local import common_shape, resize_dim


@dataclass(frozen=True, slots=True)
class Resize(Along):
    """Pad `dim` with zeros at its end, or strip it, to `size` elements."""

    dim: int
    size: int

    def text(self, mesh: Mesh) -> str:
        return f"resize dim={self.dim} to {self.size}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        return resize_dim(first, self.dim, self.size)


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
        return None if any(more) else resize_dim(first, self.dim, self.length(first[self.dim]))


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
        if common_shape([resize_dim(shape, self.dim, 1) for shape in shapes]) is None:
            return None
        return resize_dim(first, self.dim, sum(shape[self.dim] for shape in shapes))


@dataclass(frozen=True, slots=True)
class Regroup(Attributes):
    """The same elements, in row-major order, under other dimensions.

    Of the dimensions that become others only the first that is longer than 1 is held in part, on
    both sides; the others are whole. In the result, `held` may name a later dimension instead. A
    device then holds one element of each dimension before it.

    Attributes:
      groups: (how many dimensions, the global sizes of those in their place), in order.
      held: per group, the dimension of the result that is held in part; () selects the first
        dimension that is longer than 1 in every group.
    """

    groups: tuple[tuple[int, tuple[int, ...]], ...]
    held: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The global shape that the dimensions then have."""
        return tuple(size for _, sizes in self.groups for size in sizes)

    def shape(self, before: tuple[int, ...]) -> tuple[int, ...]:
        """The local shape that a local shape becomes.

        >>> Regroup(((1, (5,)), (2, (4, 3)))).shape((5, 1, 6))
        (5, 2, 3)
        """
        found: list[int] = []
        for (count, sizes), first in zip(self.groups, self.held_dims, strict=True):
            taken, before = before[:count], before[count:]
            found += taken if len(sizes) == count == 1 else _led(math.prod(taken), sizes, first)
        return tuple(found)

    @property
    def held_dims(self) -> tuple[int, ...]:
        """Per group, the dimension of the result that is held in part."""
        return self.held or tuple(leading(sizes) for _, sizes in self.groups)

    def text(self, mesh: Mesh) -> str:
        groups = (f"{'*'.join('d' * n)} as {'*'.join(map(str, sizes))}" for n, sizes in self.groups)
        return "regroup " + ", ".join(groups)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        counts = [count for count, _ in self.groups]
        if min(counts, default=1) < 1 or sum(counts) != len(first):
            return None
        if not all(sizes for _, sizes in self.groups):
            return None
        if self.held and not (
            len(self.held) == len(self.groups)
            and all(0 <= k < len(n) for k, (_, n) in zip(self.held, self.groups, strict=True))
        ):
            return None
        made = self.shape(first)
        return made if math.prod(made) == math.prod(first) else None


def _led(elements: int, sizes: tuple[int, ...], first: int) -> list[int]:
    """Return sizes of `elements` elements: 1 before `first`, a part of it, the rest whole."""
    inner = math.prod(sizes[first + 1 :])
    return [1] * first + [elements // inner] + list(sizes[first + 1 :])


def leading(sizes: tuple[int, ...]) -> int:
    """The first of some dimensions that is longer than 1; the last one where none is.

    >>> leading((1, 4, 3)), leading((1, 1))
    (1, 1)
    """
    return next((k for k, size in enumerate(sizes) if size > 1), len(sizes) - 1)
