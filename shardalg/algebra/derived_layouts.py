"""Layouts that follow from another one: the whole tensor, what divides."""

from __future__ import annotations

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.interned import interned
from shardalg.algebra.sharding import Sharding


def whole(like: Sharding) -> Sharding:
    """The layout in which every device holds all of the tensor."""
    return interned(like.mesh, like.shape, ((),) * len(like.shape), ())


def even_prefix(sharding: Sharding) -> Sharding:
    """`sharding` on the longest prefix of each dimension's axes that divides the dimension.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 3})
    >>> even_prefix(Sharding(mesh, (10,), (mesh.digits("xy"),))).text()
    '[x]'
    """
    dims = zip(sharding.shape, sharding.dims, strict=True)
    return sharding.with_dims(tuple(_prefix(size, digits) for size, digits in dims))


def _prefix(size: int, digits: Digits) -> Digits:
    best: Digits = ()
    for k in range(1, len(digits) + 1):
        if size % parts(digits[:k]):
            break
        best = digits[:k]
    return best
