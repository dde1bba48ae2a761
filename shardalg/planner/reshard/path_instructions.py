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
    """Return the instructions of the cheapest path, including the padding of uneven sizes.

    Each has its attributes, the block shape and the sharding after it, and, if it sends elements,
    the shardings between which it moves the value.

    Args:
      links, padded, joined: see `reshard_path`.
    """
    found: list[PathMove] = []
    # The shape of a device's block, which may be padded between two steps.
    shape = source.shard_shape
    for step in reshard_path(source, target, links, padded, joined).steps:
        # Reports explain communication by the shardings before and after; a local step needs none.
        is_sent = isinstance(step.attributes, (Collective, Retile))
        path = (source, step.layout) if is_sent else None
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
    dimension that becomes whole is stripped to its size afterwards. For example, 10 elements are
    padded to 12 before they are cut into 4 blocks of 3.

    Args:
      shape: the shape of a device's block before the move.
      source, layout: the shardings before and after the move.
    """
    # `cut` is (dimension, digits) of a move that cuts blocks, such as a slice; None otherwise.
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
    joined_shape = _resize(layout.shard_shape, dim, joined_size)
    yield attributes, joined_shape, layout
    if joined_shape != layout.shard_shape:
        yield Resize(dim, layout.shard_shape[dim]), layout.shard_shape, layout


def _resize(shape: Shape, dim: int, size: int) -> Shape:
    """Return the shape with another size of one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])
