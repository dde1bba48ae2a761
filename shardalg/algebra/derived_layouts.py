"""Functions from a sharding to a related one, and the paper's `mesh_split` for a shape.

`interned` makes one object per layout: planning compares layouts often, and comparing one object
with itself is an identity test.

Values that are keys of caches store their hash when they are built (`_hash` of a Sharding, a Mesh,
a Signature, a Rule, a Number of claims). A mesh may have thousands of device ids. Hashing at every
look-up would make a replan of 64 unrolled layers 4 % slower for layouts. For signatures it would
make a first plan 5 % slower, JAX's own tracing excluded (medians of pairs in one process, processor
time).
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
    """Return a sharding, the same object for equal arguments.

    Args:
      dims: the digits of each dimension.
      unreduced: the digits whose devices hold partial sums.

    No argument has a default, because a call without the argument would be another cache key.

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
    """Return the sharding of GSPMD's `mesh_split`: dimension i is split along `dims_mapping[i]`.

    Args:
      dims_mapping: for each dimension the number (or name) of a mesh axis, or several ones, major
        first; -1 (or None) for a dimension that is not partitioned.
      unspecified_dims: dimensions that completion may still refine.

    Raises:
      MeshError: the mesh has no such axis.
      ShardingError: the mapping and the shape have different ranks, or an axis is used twice.

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
    # `from_axes` has the mark "?" for an open dimension, and a `dims_mapping` does not: there, open
    # dimensions are a separate argument, and may have axes too.
    closed = Sharding.from_axes(dims_mapping, mesh, shape)
    return replace(closed, unspecified_dims=tuple(sorted(unspecified_dims)))


def check_mapping(mesh: object, dims_mapping: object, unspecified_dims: object = ()) -> None:
    """Raise ShardingError if an argument of `mesh_split` has a wrong type.

    Raises:
      ShardingError: `mesh` is no `Mesh`, or another argument is no sequence.
    """
    # The arguments are checked in their order, so that the first wrong one is named.
    checks = {"mesh": (mesh, isinstance(mesh, Mesh), "a shardalg.Mesh")}
    lists = {"dims_mapping": dims_mapping, "unspecified_dims": unspecified_dims}
    checks |= {n: (v, isinstance(v, Iterable), "a list as [0, -1]") for n, v in lists.items()}
    for name, (value, fits, expected) in checks.items():
        if not fits:
            raise ShardingError(
                f"mesh_split(x, mesh, dims_mapping) needs {expected} as its {name}, got "
                f"{value!r:.60}. Write mesh_split(x, Mesh({{'X': 2}}), [0, -1])."
            )


def whole(like: Sharding) -> Sharding:
    """Return the replicated sharding of the same tensor: every device holds the whole tensor."""
    return interned(like.mesh, like.shape, ((),) * len(like.shape), ())


def plain(like: Sharding) -> Sharding:
    """Return the sharding with the same blocks, without all that does not change a block.

    Axes of size 1, open dimensions, priorities and pending sums are dropped.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 1})
    >>> plain(Sharding(mesh, (10, 3), (mesh.digits("xy"), mesh.digits("y")))).text()
    '[x, None]'
    """
    dims = tuple([tuple([d for d in dim if d.size > 1]) for dim in like.dims])
    return interned(like.mesh, like.shape, dims, ())


def even_prefix(sharding: Sharding) -> Sharding:
    """Return `sharding` without the axes that divide a dimension unevenly.

    Each dimension keeps the longest prefix of its axes whose number of devices divides its size.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 3})
    >>> even_prefix(Sharding(mesh, (10,), (mesh.digits("xy"),))).text()
    '[x]'
    """
    dims: list[Digits] = []
    for size, digits in zip(sharding.shape, sharding.dims, strict=True):
        counts = range(1, len(digits) + 1)
        # If a prefix divides the size, so do all shorter ones: stop at the first that does not.
        uneven = (count for count in counts if size % parts(digits[:count]))
        dims.append(digits[: next(uneven, len(digits) + 1) - 1])
    return sharding.with_dims(tuple(dims))


def undivided(sharding: Sharding, *, among: Digits | None = None) -> Sharding:
    """Return `sharding` without axes on dimensions of size 1, which an axis cannot split.

    No device holds more elements than before.

    Args:
      among: change only dimensions that are split by these digits alone; None: all dimensions.

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
    # The same object, if nothing changes: layouts are compared by identity first.
    return sharding if dims == sharding.dims else sharding.with_dims(dims)


def opened(sharding: Sharding, shape: tuple[int, ...], added: tuple[int, ...]) -> Sharding:
    """Return `sharding` for a tensor with additional dimensions, which completion may shard.

    Args:
      shape: the new shape, which includes the added dimensions.
      added: the numbers of the added dimensions in the new shape.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 3})
    >>> opened(Sharding(mesh, (6, 4), (mesh.digits("y"), ())), (6, 8, 4), (1,)).text()
    '[y, ?, None]'
    """
    if not added:
        return sharding
    # `added` counts in the new shape, so the old dimensions have the other places, in their order.
    places = [dim for dim in range(len(shape)) if dim not in added]
    dims = dict(zip(places, sharding.dims, strict=True))
    # Missing priorities are 0, so the tuple may be shorter.
    priorities = dict(zip(places, sharding.priorities, strict=False))
    return replace(
        sharding,
        shape=shape,
        dims=tuple([dims.get(dim, ()) for dim in range(len(shape))]),
        unspecified_dims=tuple(sorted([*added, *(places[d] for d in sharding.unspecified_dims)])),
        priorities=tuple([priorities.get(dim, 0) for dim in range(len(shape))]),
    )
