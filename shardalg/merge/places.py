"""Places of a sharding, dimensions and classes alike: their digits, blocks and offsets."""

from __future__ import annotations

from shardalg.algebra.digits import Digits, partition_id
from shardalg.algebra.sharding import CLASSES, Sharding

DimOrClass = int | str


def digits_at(sharding: Sharding, place: DimOrClass) -> Digits:
    """The canonical digits of a dimension or a class."""
    if isinstance(place, int):
        return sharding.canonical_dims[place]
    return sharding.classes[CLASSES.index(place)]


def block_of(sharding: Sharding, place: DimOrClass) -> int:
    """What one step of the partition id is worth: the block size; 1 for a class.

    A dimension of size 0 has no offsets to compare, so its partition ids are compared.
    """
    return max(1, sharding.shard_shape[place]) if isinstance(place, int) else 1


def offset_at(sharding: Sharding, place: DimOrClass, device: int) -> int:
    """Offset of a dimension, or partition id of a class, on the device with id `device`."""
    position = sharding.mesh.position(device)
    return partition_id(digits_at(sharding, place), position) * block_of(sharding, place)


def escape(fine: Sharding, coarse: Sharding, device: int) -> int | None:
    """The first dimension on which the device's fine block leaves its coarse block."""
    if any(fine.valid_size(device, dim) == 0 for dim in range(len(fine.shape))):
        return None
    pairs = zip(fine.shard_slices(device), coarse.shard_slices(device), strict=True)
    for dim, (a, b) in enumerate(pairs):
        if a.start < b.start or a.stop > b.stop:
            return dim
    return None
