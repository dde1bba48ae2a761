"""Local shapes with one dimension changed."""

from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]


def scaled(shape: Shape, dim: int, *, times: int = 1, over: int = 1) -> Shape:
    """With a dimension that is longer or shorter by a factor.

    >>> scaled((6, 8), 1, times=2), scaled((6, 8), 0, over=3)
    ((6, 16), (2, 8))
    """
    return (*shape[:dim], shape[dim] * times // over, *shape[dim + 1 :])


def sized(shape: Shape, dim: int, size: int) -> Shape:
    """With a dimension of another size.

    >>> sized((6, 8), 1, 3)
    (6, 3)
    """
    return (*shape[:dim], size, *shape[dim + 1 :])


def alike(shapes: Sequence[Shape]) -> Shape | None:
    """The one shape that all have; None where they differ.

    >>> alike([(2,), (2,)]), alike([(2,), (3,)])
    ((2,), None)
    """
    return shapes[0] if len(set(shapes)) == 1 else None
