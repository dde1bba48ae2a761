"""Layouts that follow from another one: the whole tensor, what divides, more dimensions."""

from __future__ import annotations

from dataclasses import replace

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.interned import interned
from shardalg.algebra.sharding import Sharding


def whole(like: Sharding) -> Sharding:
    """The layout in which every device holds all of the tensor."""
    return interned(like.mesh, like.shape, ((),) * len(like.shape), ())


def plain(like: Sharding) -> Sharding:
    """The layout alone, without axes of size 1, which split nothing, and without open dimensions.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 1})
    >>> plain(Sharding(mesh, (10, 3), (mesh.digits("xy"), mesh.digits("y")))).text()
    '[x, None]'
    """
    dims = tuple([tuple([d for d in dim if d.size > 1]) for dim in like.dims])
    return interned(like.mesh, like.shape, dims, ())


def even_prefix(sharding: Sharding) -> Sharding:
    """`sharding` on the longest prefix of each dimension's axes that divides the dimension.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 3})
    >>> even_prefix(Sharding(mesh, (10,), (mesh.digits("xy"),))).text()
    '[x]'
    """
    dims = zip(sharding.shape, sharding.dims, strict=True)
    return sharding.with_dims(tuple(_prefix(size, digits) for size, digits in dims))


def undivided(sharding: Sharding, *, among: Digits | None = None) -> Sharding:
    """`sharding` with its dimensions of one element on all devices: these hold no more of them.

    Args:
      among: of dimensions that are split by these digits alone; None: by any.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 3})
    >>> layout = Sharding(mesh, (1, 6), (mesh.digits("x"), mesh.digits("y")))
    >>> undivided(layout, among=mesh.digits("xy")).text()
    '[None, y]'
    """
    dims = tuple(
        [
            () if n == 1 and (among is None or set(digits) <= set(among)) else digits
            for n, digits in zip(sharding.shape, sharding.dims, strict=True)
        ]
    )
    return sharding if dims == sharding.dims else sharding.with_dims(dims)


def opened(sharding: Sharding, shape: tuple[int, ...], added: tuple[int, ...]) -> Sharding:
    """`sharding` of a tensor of this shape, which has the dimensions `added` beside: open ones.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 3})
    >>> opened(Sharding(mesh, (6, 4), (mesh.digits("y"), ())), (6, 8, 4), (1,)).text()
    '[y, ?, None]'
    """
    if not added:
        return sharding
    places = [dim for dim in range(len(shape)) if dim not in added]
    dims, rounds = (
        dict(zip(places, sharding.dims, strict=True)),
        dict(zip(places, sharding.priorities, strict=False)),  # none stand for 0
    )
    return replace(
        sharding,
        shape=shape,
        dims=tuple([dims.get(dim, ()) for dim in range(len(shape))]),
        unspecified_dims=tuple(sorted([*added, *(places[d] for d in sharding.unspecified_dims)])),
        priorities=tuple([rounds.get(dim, 0) for dim in range(len(shape))]),
    )


def _prefix(size: int, digits: Digits) -> Digits:
    best: Digits = ()
    for k in range(1, len(digits) + 1):
        if size % parts(digits[:k]):
            break
        best = digits[:k]
    return best
