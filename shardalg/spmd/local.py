"""One value as a device holds it, and an element number that depends on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, partition_id
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import ITEM_SIZES, SHORT


@dataclass(frozen=True, slots=True)
class Local:
    """One value as a device holds it.

    Attributes:
      shape: local shape, padding included.
      sharding: global shape and layout; `sharding.unreduced` are pending partial sums.
      origin: the graph value of which it is a device's block; None for a value between two steps of
        one operator, which is no value of the graph.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str
    sharding: Sharding
    origin: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes on one device."""
        return _bytes(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"{SHORT.get(self.dtype, self.dtype)}[{','.join(map(str, self.shape))}]"


# A program has few distinct shapes, and a product of symbolic sizes is slow.
@lru_cache(maxsize=1 << 16)
def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape, start=ITEM_SIZES.get(dtype, 4))


@dataclass(frozen=True, slots=True)
class Start:
    """An element number that depends on the device: `index` in partition ids.

    Attributes:
      index: affine in the names of `digits`, possibly divided (rounding down) and taken modulo.
      digits: (name, digits) of every partition id in it.
      more: constant that is added after the division and the modulo; the constant of `index` is
        divided, too.

    >>> from shardalg.algebra.digits import Digit
    >>> start = Start((Index.of("o") * 6 - 1) // 4, (("o", (Digit(1, 4),)),))
    >>> [start.at(position) for position in range(4)]
    [-1, 1, 2, 4]
    """

    index: Index
    digits: tuple[tuple[str, Digits], ...] = ()
    more: int = 0

    def at(self, position: int) -> int:
        """Return the element number on the device at a position."""
        return self.of({name: partition_id(digits, position) for name, digits in self.digits})

    def of(self, ids: Mapping[str, Any]) -> Any:
        """Return the element number on a device: a Python integer, or a traced number.

        Args:
          ids: the device's partition id for each name in `digits`.
        """
        return self.index.at(ids) + self.more

    @property
    def all_digits(self) -> Digits:
        """The digits of all partition ids on which this number depends."""
        return tuple(digit for _, digits in self.digits for digit in digits)

    def text(self, mesh: Mesh) -> str:
        """Return the closed form with `p(X)` for the partition id along X: `(6*p(X)-1)//4`."""
        # Only the printed form names axes: equality compares digits.
        names = {name: f"p({axes_text(mesh, digits)})" for name, digits in self.digits}
        renamed = tuple((names[name], coefficient) for name, coefficient in self.index.terms)
        tail = f"{self.more:+d}" if self.more else ""
        return str(replace(self.index, terms=renamed)) + tail


def axes_text(mesh: Mesh, digits: Digits) -> str:
    """Return the axes of `digits`, major first: `X`, `X,Y`, `X:(2)4`."""
    return ",".join(repr(mesh.axis_ref(digit)) for digit in digits)


Shape = tuple[int, ...]


def scale_dim(shape: Shape, dim: int, *, times: int = 1, over: int = 1) -> Shape:
    """Return the shape with one dimension multiplied by `times` and divided by `over`.

    >>> scale_dim((6, 8), 1, times=2), scale_dim((6, 8), 0, over=3)
    ((6, 16), (2, 8))
    """
    return (*shape[:dim], shape[dim] * times // over, *shape[dim + 1 :])


def resize_dim(shape: Shape, dim: int, size: int) -> Shape:
    """Return the shape with one dimension replaced.

    >>> resize_dim((6, 8), 1, 3)
    (6, 3)
    """
    return (*shape[:dim], size, *shape[dim + 1 :])


def common_shape(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape to which all shapes in a list are equal, or None if two of them differ.

    >>> common_shape([(2,), (2,)]), common_shape([(2,), (3,)])
    ((2,), None)
    """
    return shapes[0] if len(set(shapes)) == 1 else None
