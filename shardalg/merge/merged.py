"""The merged sharding, made from its digits or from a table of partition ids by device.

Tables compare shardings on meshes whose device orders no digits relate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardalg.algebra.digits import Digit, Digits, PositionTable, overlap, partition_ids, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.merge.places import DimOrClass

Ids = np.ndarray


@dataclass(frozen=True, eq=False)
class Rows:
    """The partition ids of every place that is split, on each device, by ascending device id.

    A place is a dimension or a class.

    Attributes:
      size: number of devices.
      parts: number of partitions of each place.
      ids: partition id of each place on each device.
    """

    size: int
    parts: Mapping[DimOrClass, int]
    ids: Mapping[DimOrClass, Ids]

    def only(self, places: Iterable[DimOrClass]) -> Rows:
        """Return a table with only the given dimensions and classes."""
        kept_places = tuple(places)
        return Rows(
            self.size,
            {p: self.parts[p] for p in kept_places},
            {p: self.ids[p] for p in kept_places},
        )

    def is_balanced(self, places: tuple[DimOrClass, ...]) -> bool:
        """Return whether every tile is on the same number of devices.

        A tile is a combination of partition ids on the given dimensions and classes.
        """
        counts = self.counts(places)
        return bool((counts == counts[0]).all()) if len(counts) else False

    def counts(self, places: tuple[DimOrClass, ...]) -> Ids:
        """Return the number of devices of each tile, in row-major order of the tiles.

        A tile is a combination of partition ids on the given dimensions and classes.
        Empty if there are more tiles than devices: then they are not balanced.
        """
        total = math.prod(self.parts[place] for place in places)
        # Some tile is then on no device; the early return also bounds the memory of the counts.
        if total > self.size:
            return np.zeros(0, int)
        tile = np.zeros(self.size, int)
        for place in places:
            tile = tile * self.parts[place] + self.ids[place]
        return np.bincount(tile, minlength=total)


def rows_of(sharding: Sharding) -> Rows:
    """Return the table with a sharding's partition id on each device, for each split dimension.

    Classes of axes, such as "unreduced", are in the table too.
    """
    mesh = sharding.mesh
    places = sharding.split_places
    # Sorted by device id, so that tables of different device orders can be compared.
    positions = np.arange(mesh.size)
    if mesh.device_ids is not None:
        positions = np.argsort(np.array(mesh.device_ids))
    return Rows(
        mesh.size,
        {place: parts(digits) for place, digits in places},
        {place: partition_ids(digits, positions) for place, digits in places},
    )


Clash = tuple[str, tuple[DimOrClass, ...]]
"""The reason why two tables have no merge: the kind of the failure, and its places."""


def join(first: Rows, second: Rows, *, prefixes: bool = False) -> Rows | Clash:
    """Return the merge of two tables of partition ids, or the reason why there is none.

    Each place (a dimension, or a class such as "unreduced") gets the ids of the operand that splits
    it into more parts. For example, one operand splits dimension 0 in 2 parts on 4 devices, and the
    other in 4 parts:

        ids 0 0 1 1 and ids 0 1 2 3: merged to 0 1 2 3 with `prefixes`, because id // 2 is 0 0 1 1
        ids 0 1 0 1 and ids 0 1 2 3: ("offset", (0,)), because id // 2 is 0 0 1 1

    A failure is a pair (kind, places). The kind is "class" if only one operand is a partial sum or
    manual, or if the ids of a class disagree. It is "offset" if the ids of a dimension disagree. It
    is "joint" if the ids of each place agree, but some combination of them is on more devices than
    another.

    Args:
      prefixes: True if one operand may split a dimension of the other further (policy "shardy").
        Otherwise both must split it in equally many parts.
    """
    # A place that only one operand splits has the ids of this operand.
    only_second = [place for place in second.parts if place not in first.parts]
    chosen = {**dict.fromkeys(first.parts, first), **dict.fromkeys(only_second, second)}
    # If only one operand is a partial sum, or is inside a manual region, the devices have different
    # values, so there is no common sharding.
    for kind in CLASSES[:2]:
        if (kind in first.parts) != (kind in second.parts):
            return ("class", (kind,))
    for place in (p for p in first.parts if p in second.parts):
        coarse, fine = first, second
        if first.parts[place] > second.parts[place]:
            coarse, fine = second, first
        # Only a dimension may be split further, and only into equal pieces of each coarse part.
        ratio, remainder = divmod(fine.parts[place], coarse.parts[place])
        may_refine = prefixes and isinstance(place, int)
        is_allowed = remainder == 0 and (ratio == 1 or may_refine)
        # A division by `ratio` removes the minor part of a fine id. The offsets agree exactly if
        # this gives the coarse id.
        if not is_allowed or not np.array_equal(coarse.ids[place], fine.ids[place] // ratio):
            return ("class" if place in CLASSES else "offset", (place,))
        chosen[place] = fine
    # Each combination of parts must be on equally many devices, or no sharding has these ids.
    both = Rows(
        first.size,
        {place: rows.parts[place] for place, rows in chosen.items()},
        {place: rows.ids[place] for place, rows in chosen.items()},
    )
    return both if both.is_balanced(tuple(both.parts)) else ("joint", tuple(both.parts))


def merged_sharding(first: Sharding, second: Sharding, dims: tuple[Digits, ...]) -> Sharding:
    """Return the merge of two shardings, whose dimensions have the digits `dims`.

    The merge is on the mesh of the first one, and keeps its unreduced and manual digits, which both
    share. If an operand is equal to the merge, the operand itself is returned.
    """
    # Digits of one sharding may not overlap, so only the larger of two overlapping digits is kept.
    replicated = first.replicated
    if second.replicated and second.replicated != replicated:
        added = tuple(
            d
            for d in second.replicated
            if not any(overlap(d, e) and d.size <= e.size for e in replicated)
        )
        kept = (d for d in replicated if not any(overlap(d, e) for e in added))
        replicated = (*kept, *added)
    opened = open_dims(first, second)
    # Returning an operand keeps identity, which makes later comparisons fast.
    for operand in (first, second):
        fields = (operand.dims, operand.replicated, operand.unspecified_dims)
        if (dims, replicated, opened) == fields:
            return operand
    classes = (first.unreduced, replicated, first.manual)
    return Sharding(first.mesh, first.shape, dims, opened, *classes)


def open_dims(first: Sharding, second: Sharding) -> tuple[int, ...]:
    """Return the open dimensions of a merge.

    If both operands have open dimensions, these are the ones that are open in both. If only one
    operand has some, they stay open.
    """
    a, b = first.unspecified_dims, second.unspecified_dims
    return tuple(i for i in a if i in b) if a and b else a or b


def from_table(table: Rows, first: Sharding, second: Sharding) -> Sharding:
    """Return the merged sharding of two operands from a table of its partition ids.

    It is on the mesh of an operand if that mesh has axes or sub-axes which give these ids.
    Otherwise it has an unnamed mesh of its own.

    Args:
      table: the partition id of each device, for each split dimension; every tile is on the same
        number of devices.
      first, second: the operands.
    """
    # An operand's own mesh gives the result the axis names that the user wrote.
    for like in (first, second):
        layout = on_mesh(table, like, like.mesh)
        if layout is not None:
            break
    opened = open_dims(first, second)
    return replace(layout or on_own_order(table, first), unspecified_dims=opened)


def on_mesh(rows: Rows, like: Sharding, mesh: Mesh) -> Sharding | None:
    """Return the sharding on `mesh` with the partition ids of a table.

    None if no digits of the positions in `mesh` give these ids.

    Args:
      like: a sharding of the same tensor.
    """
    # For each position of the mesh, the rank of its device id, which is the device's row in the
    # table. A second `argsort` inverts the first one.
    devices = np.argsort(np.argsort(np.array(mesh.order)))
    places = tuple(rows.parts)
    ids = tuple(rows.ids[place][devices] for place in places)
    digits_of_places = PositionTable(tuple(rows.parts.values()), ids).recognize()
    if digits_of_places is None:
        return None
    return _sharding(like, mesh, dict(zip(places, digits_of_places, strict=True)))


def on_own_order(rows: Rows, like: Sharding) -> Sharding:
    """Return a sharding in which each device has the tile that a table gives it.

    Its mesh has no named axes. The devices are in the order of the tiles; each tile has equally
    many.

    Args:
      rows: for each device, the partition id of its tile along each dimension.
      like: the sharding whose shape and devices the result has.
    """
    # `lexsort` sorts by its last key first, so the places are reversed.
    order = np.lexsort(tuple(rows.ids[place] for place in reversed(rows.parts)))
    # In this order each place is one digit, the first place the major one.
    digits, stride = {}, rows.size
    for place, n in rows.parts.items():
        stride //= n
        digits[place] = (Digit(stride, n),)
    ids = np.sort(np.array(like.mesh.order))[order]
    return _sharding(like, Mesh.unnamed(rows.size, ids.tolist()), digits)


def _sharding(like: Sharding, mesh: Mesh, digits: Mapping[DimOrClass, Digits]) -> Sharding:
    """Return a sharding with these digits on its dimensions and classes.

    Args:
      like: gives the shape and the open dimensions.
      digits: by dimension, or by class such as "unreduced"; missing ones are ().
    """
    dims = tuple(digits.get(i, ()) for i in range(len(like.shape)))
    classes = {name: digits.get(name, ()) for name in CLASSES}
    return Sharding(mesh, like.shape, dims, like.unspecified_dims).holding(classes)
