"""Regrouping: an instruction that gives the same elements other dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Attributes, Shape


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
