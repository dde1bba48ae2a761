"""Instructions that make dimensions longer or shorter, and that regroup dimensions."""

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
    """Insert `factor - 1` places between neighbours along `dim`, and `low` and `high` at the ends.

    The new places hold the identity of `fill`. If `fill` is None, they hold the second operand, a
    number.
    """

    dim: int
    factor: int
    low: int
    high: int
    fill: str | None = "sum"
    of_one_type = True

    def length(self, before: int) -> int:
        """Return the size of a dimension after the insertion, from its size before."""
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
        # At least one operand, because the type of the result is that of the first.
        return max(count, 1)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        shapes = (first, *more)
        if common_shape([resize_dim(shape, self.dim, 1) for shape in shapes]) is None:
            return None
        return resize_dim(first, self.dim, sum(shape[self.dim] for shape in shapes))


@dataclass(frozen=True, slots=True)
class Regroup(Attributes):
    """The same elements, in row-major order, with other dimensions.

    Among regrouped dimensions, only the first that is longer than 1 is sharded, on both sides. The
    others are whole. In the result, `held` may name a later dimension instead. A device then holds
    one element of each dimension before it.

    Attributes:
      groups: (number of dimensions, the global sizes that replace them), in order.
      held: per group, the sharded dimension of the result; () selects the first dimension
        that is longer than 1 in every group.
    """

    groups: tuple[tuple[int, tuple[int, ...]], ...]
    held: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The global shape of the result."""
        return tuple(size for _, sizes in self.groups for size in sizes)

    def shape(self, before: tuple[int, ...]) -> tuple[int, ...]:
        """Return the local shape of the result for a local shape of the operand.

        >>> Regroup(((1, (5,)), (2, (4, 3)))).shape((5, 1, 6))
        (5, 2, 3)
        """
        new_shape: list[int] = []
        for (count, sizes), first in zip(self.groups, self.held_dims, strict=True):
            group_sizes, before = before[:count], before[count:]
            if len(sizes) == count == 1:
                new_shape += group_sizes
                continue
            # A run of elements in row-major order is a block only if all dimensions behind `first`
            # are whole and those before it have one element.
            minor_sizes = sizes[first + 1 :]
            new_shape += [1] * first + [
                math.prod(group_sizes) // math.prod(minor_sizes),
                *minor_sizes,
            ]
        return tuple(new_shape)

    @property
    def held_dims(self) -> tuple[int, ...]:
        """For each entry of `groups`, the dimension among its new sizes that is sharded."""
        return self.held or tuple(leading(sizes) for _, sizes in self.groups)

    def text(self, mesh: Mesh) -> str:
        groups = (f"{'*'.join('d' * n)} as {'*'.join(map(str, sizes))}" for n, sizes in self.groups)
        return "regroup " + ", ".join(groups)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        """Return the regrouped shape, or None if the groups do not fit the operand's shape."""
        counts = [count for count, _ in self.groups]
        # Each group replaces at least one dimension, and all dimensions belong to groups.
        if min(counts, default=1) < 1 or sum(counts) != len(first):
            return None
        if not all(sizes for _, sizes in self.groups):
            return None
        # `shape` indexes each group's sizes by `held`, which a loaded program may have wrong.
        if self.held and not (
            len(self.held) == len(self.groups)
            and all(0 <= k < len(n) for k, (_, n) in zip(self.held, self.groups, strict=True))
        ):
            return None
        new_shape = self.shape(first)
        return new_shape if math.prod(new_shape) == math.prod(first) else None


def leading(sizes: tuple[int, ...]) -> int:
    """Return the first dimension that is longer than 1, or the last one if none is.

    >>> leading((1, 4, 3)), leading((1, 1))
    (1, 1)
    """
    return next((k for k, size in enumerate(sizes) if size > 1), len(sizes) - 1)
