"""One object per layout: planning looks layouts up all the time, which then is an identity test."""

from __future__ import annotations

from functools import lru_cache

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding

Dims = tuple[Digits, ...]


@lru_cache(maxsize=1 << 16)
def interned(mesh: Mesh, shape: tuple[int, ...], dims: Dims, unreduced: Digits) -> Sharding:
    """The sharding that says no more than where blocks lie and along what sums are pending.

    No argument has a default: a call without it would be another key of the cache.

    >>> mesh = Mesh({"x": 2})
    >>> interned(mesh, (4,), ((),), ()) is interned(mesh, (4,), ((),), ())
    True
    """
    return Sharding(mesh, shape, dims, unreduced=unreduced)


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
