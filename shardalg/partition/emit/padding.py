"""Uneven sizes: what is padded before a move, stripped after it, and masked before a combine."""

from __future__ import annotations

from collections.abc import Iterator

from shardalg.algebra.digits import parts
from shardalg.algebra.sharding import Sharding
from shardalg.spmd.program import (
    AllGather,
    AllToAll,
    Attributes,
    DynamicSlice,
    ReduceScatter,
    Resize,
)

Shape = tuple[int, ...]


def padded_move(
    shape: Shape, source: Sharding, attributes: Attributes, layout: Sharding
) -> Iterator[tuple[Attributes, Shape, Sharding]]:
    """The move with a `Resize` before (so that blocks divide) and after it (so that padding goes).

    With each, the local shape that it leaves and the layout in which the elements then lie.

    A dimension that is cut into `m` blocks of the target is padded to `m * block` first; one that
    becomes whole is stripped to its size.
    """
    cut = _cut_dim(attributes)
    if cut is not None:
        dim, count = cut
        padded = layout.shard_shape[dim] * count
        if padded != shape[dim]:
            shape = _resized(shape, dim, padded)
            yield Resize(dim, padded), shape, source
    joined = _joined_dim(attributes)
    if joined is None:
        yield attributes, layout.shard_shape, layout
        return
    dim, count = joined
    whole = _resized(layout.shard_shape, dim, source.shard_shape[dim] * count)
    yield attributes, whole, layout
    if whole != layout.shard_shape:
        yield Resize(dim, layout.shard_shape[dim]), layout.shard_shape, layout


def _cut_dim(attributes: Attributes) -> tuple[int, int] | None:
    if isinstance(attributes, DynamicSlice | ReduceScatter):
        return attributes.dim, parts(attributes.digits)
    if isinstance(attributes, AllToAll):
        return attributes.split_dim, parts(attributes.digits)
    return None


def _joined_dim(attributes: Attributes) -> tuple[int, int] | None:
    if isinstance(attributes, AllGather):
        return attributes.dim, parts(attributes.digits)
    if isinstance(attributes, AllToAll):
        return attributes.concat_dim, parts(attributes.digits)
    return None


def _resized(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])
