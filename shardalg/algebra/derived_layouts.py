"""Layouts that follow from another one: the whole tensor, what divides, more dimensions.

One object per layout: planning looks layouts up all the time, which then is an identity test.

What serves as a key of memos holds its hash, computed as it is made (`_hash` of a Sharding, a Mesh,
a Signature, a Rule, a Number of claims). Computed at every look-up, those of layouts would take 4 %
more of a replan of 64 unrolled layers, and those of signatures 5 % more of a first plan beside
JAX's own tracing (medians of pairs in one process, processor time); a mesh may have thousands of
device ids.

The paper's `mesh_split` on a shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation.axis_names import Entry, entries_text
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError

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


def mesh_split(
    shape: Sequence[int],
    mesh: Mesh,
    dims_mapping: Sequence[Entry],
    unspecified_dims: Iterable[int] = (),
) -> Sharding:
    """The paper's `mesh_split` on a shape: dimension `i` is split along axis `dims_mapping[i]`.

    Args:
      dims_mapping: per dimension the number (or name) of a mesh axis, several of them major first,
        or -1 (or None) for a dimension that is not partitioned.
      unspecified_dims: dimensions that completion may still refine.

    Raises:
      MeshError: an axis that the mesh does not have.
      ShardingError: a mapping of another rank than the shape, or an axis used twice.

    >>> mesh_split((64, 1024, 8192), Mesh({"X": 8, "Y": 16}), [0, -1, 1])
    Sharding([X, None, Y], shape=(64, 1024, 8192), Mesh(X=8, Y=16))

    GSPMD (arXiv:2105.04663), section 3.1.
    """
    check_mapping(mesh, dims_mapping, unspecified_dims)
    if len(dims_mapping) != len(shape):
        raise ShardingError(
            f"dims_mapping {entries_text(tuple(dims_mapping))} has {len(dims_mapping)} entries "
            f"for the {len(shape)} dimensions of shape {tuple(shape)}. Give one axis, or -1, per "
            "dimension."
        )
    closed = Sharding.from_axes(dims_mapping, mesh, shape)
    return replace(closed, unspecified_dims=tuple(sorted(unspecified_dims)))


def check_mapping(mesh: object, dims_mapping: object, unspecified_dims: object = ()) -> None:
    """Raise unless these are what `mesh_split` takes.

    Raises:
      ShardingError: no mesh, or no sequences.
    """
    given = {"mesh": (mesh, isinstance(mesh, Mesh), "a shardalg.Mesh")}
    lists = {"dims_mapping": dims_mapping, "unspecified_dims": unspecified_dims}
    given |= {n: (v, isinstance(v, Iterable), "a list as [0, -1]") for n, v in lists.items()}
    for name, (value, fits, wanted) in given.items():
        if not fits:
            raise ShardingError(
                f"mesh_split(x, mesh, dims_mapping) needs {wanted} as its {name}, got "
                f"{value!r:.60}. Write mesh_split(x, Mesh({{'X': 2}}), [0, -1])."
            )


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
