"""The instructions of a path: its moves, and the padding before and after each of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from shardalg.algebra.digits import parts
from shardalg.algebra.sharding import Sharding
from shardalg.planner.reshard.exchanges import Retile
from shardalg.planner.reshard.links import Links
from shardalg.planner.reshard.paths import reshard_path
from shardalg.spmd.instruction import Attributes, Collective
from shardalg.spmd.instructions import AllGather, AllToAll, Resize

Shape = tuple[int, ...]


class PathMove(NamedTuple):
    """One move of a path between two shardings, with the local shape and sharding after it.

    Attributes:
      attributes: the instruction, or a `Retile`: a change of the block size of one dimension, which
        becomes several instructions.
      shape, layout: the shape of a device's block and the sharding, after the move.
      path: the shardings before and after a collective; None for local instructions.
    """

    attributes: Attributes | Retile
    shape: tuple[int, ...]
    layout: Sharding
    path: tuple[Sharding, Sharding] | None


@lru_cache(maxsize=1 << 16)
def moves(
    source: Sharding,
    target: Sharding,
    links: Links | None = None,
    padded: bool = True,
    joined: bool = True,
) -> tuple[PathMove, ...]:
    """Return the instructions of the cheapest path, including the padding of uneven sizes."""
    found: list[PathMove] = []
    shape = source.shard_shape
    for step in reshard_path(source, target, links, padded, joined).steps:
        # Reports explain communication by the shardings before and after; a local step needs none.
        moving = isinstance(step.attributes, (Collective, Retile))
        path = (source, step.layout) if moving else None
        for attributes, after, layout in padded_move(shape, source, step.attributes, step.layout):
            found.append(PathMove(attributes, after, layout, path))
            shape = after
        source = step.layout
    return tuple(found)


def padded_move(
    shape: Shape, source: Sharding, attributes: Attributes | Retile, layout: Sharding
) -> Iterator[tuple[Attributes | Retile, Shape, Sharding]]:
    """Yield a move with the `Resize` before and after it, each with its local shape and sharding.

    A dimension that is cut into `m` blocks of the target is padded to `m * block` first. A
    dimension that becomes whole is stripped to its size afterwards.
    """
    if isinstance(attributes, Attributes) and attributes.cut is not None:
        dim, digits = attributes.cut
        padded = layout.shard_shape[dim] * parts(digits)
        if padded != shape[dim]:
            shape = _resize(shape, dim, padded)
            yield Resize(dim, padded), shape, source
    # Only these two moves put blocks next to each other, so that the dimension can become longer
    # than the target's block.
    if isinstance(attributes, AllGather):
        dim = attributes.dim
    elif isinstance(attributes, AllToAll):
        dim = attributes.concat_dim
    else:
        yield attributes, layout.shard_shape, layout
        return
    joined_size = source.shard_shape[dim] * parts(attributes.digits)
    whole = _resize(layout.shard_shape, dim, joined_size)
    yield attributes, whole, layout
    if whole != layout.shard_shape:
        yield Resize(dim, layout.shard_shape[dim]), layout.shard_shape, layout


def _resize(shape: Shape, dim: int, size: int) -> Shape:
    """Return the shape with another size of one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])
