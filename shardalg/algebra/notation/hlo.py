"""Conversion of shardings from and to HLO text, `{devices=[2,1,4]<=[8]}`.

Version 1 lists the device of every tile. Version 2 writes the list as `<=[reshape]T(permutation)`
of 0, 1, 2, ..., which is a tuple of digits of the device id. After the tensor's dimensions the tile
array may have subgroup dimensions (`last_tile_dim_replicate`, `last_tile_dims={manual}`).
Version 3 names mesh and axes (`axis_lists`). Numbers in HLO text are device ids:
`Mesh.device_ids` matters only here and where two meshes meet. The order of devices that hold the
same tile says nothing about the layout, and is not kept.

Source: xla/hlo/ir/hlo_sharding.cc, tile_assignment.cc; xla/hlo/parser/hlo_parser.cc.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shardalg.algebra.digits import Digit, Digits, canonical, complement
from shardalg.algebra.layout import Layout, restate, spelled
from shardalg.algebra.mesh import Mesh, short_list
from shardalg.algebra.notation import axis_lists
from shardalg.algebra.notation.reader import (
    MAX_DEVICES,
    Reader,
    iota,
    iota_order,
    iota_text,
    listed,
    on_device,
    whole,
)
from shardalg.errors import ShardingError

SUBGROUPS = ("replicated", "manual", "unreduced")
_EXAMPLES = (
    "{devices=[2,1,4]<=[8] last_tile_dim_replicate}, {devices=[2,2]0,1,2,3}, {replicated}, "
    "{manual}, {maximal device=0} or {mesh['x'=2,'y'=4], [{'x'}, {}]}"
)
_REFUSED = {
    "unknown": "an unknown sharding says nothing about the layout",
    "shard_as": "a shard group is a constraint between values, no layout of one",
    "shard_like": "a shard group is a constraint between values, no layout of one",
    "{": "a tuple sharding holds one sharding per element; read it with Sharding.from_hlo_tuple",
}


@dataclass(frozen=True)
class _Tiles:
    """The content of `devices=[...]` in HLO text: an array of devices, one for each tile.

    Attributes:
      extents: the extent of each dimension, subgroup dimensions last.
      subgroups: the kinds of the subgroup dimensions.
      order: the device id of every tile, row-major; None for an iota.
      digits: for an iota, the digits of the device id whose value is the tile number.
    """

    extents: tuple[int, ...]
    subgroups: tuple[str, ...]
    order: tuple[int, ...] | None
    digits: Digits = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """The device id of every tile, row-major."""
        return iota_order(self.digits) if self.order is None else self.order


def from_hlo(text: str, shape: tuple[int, ...], mesh: Mesh | None = None) -> Layout:
    """Return the sharding of a tensor of `shape` that HLO text states.

    Args:
      mesh: the mesh of the result; its device ids are the numbers in the text. Without it,
        positions are device ids; if digits cannot write their order, the mesh lists the order.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> from_hlo("{devices=[1,2,4]<=[8] last_tile_dim_replicate}", (16, 16), mesh)
    Sharding([None, x], shape=(16, 16), Mesh(x=2, y=4))
    >>> from_hlo("{devices=[4,2]0,4,1,5,2,6,3,7}", (16, 16), mesh)
    Sharding([y, x], shape=(16, 16), Mesh(x=2, y=4))

    Raises:
      NotationError: the text is malformed, with the column; it does not fit shape or mesh; or it is
        a tuple sharding, an unknown sharding or a shard group.
    """
    reader = Reader(text, "the HLO sharding", _EXAMPLES)
    layout = _one(reader, tuple(shape), mesh)
    reader.end()
    return layout


def from_hlo_tuple(
    text: str, shapes: Sequence[tuple[int, ...]], mesh: Mesh | None = None
) -> tuple[Layout, ...]:
    """Return the shardings of a tuple's elements, one per shape.

    >>> [s.parts for s in from_hlo_tuple("{{replicated}, {devices=[2]<=[2]}}", [(4,), (4,)])]
    [(1,), (2,)]

    Raises:
      NotationError: see `from_hlo`; or the numbers of elements and shapes differ.
    """
    reader = Reader(text, "the HLO tuple sharding", "{{replicated}, {devices=[2]<=[2]}}")
    reader.expect("{")
    remaining_shapes = iter(shapes)

    def element() -> Layout:
        # Refuse more shardings than shapes as soon as one is found, before the text is read on.
        """Read the sharding of the next element of the tuple."""
        shape = next(remaining_shapes, None)
        if shape is None:
            raise reader.error(f"more shardings than the {len(shapes)} elements of the tuple")
        return _one(reader, tuple(shape), mesh)

    layouts = reader.items(element, "}")
    if len(layouts) != len(shapes):
        raise reader.error(f"{len(layouts)} shardings for the {len(shapes)} elements of the tuple")
    reader.end()
    return layouts


def to_hlo(sharding: Layout, version: int = 2) -> str:
    """Return the HLO text of a sharding, in device ids.

    Versions 1 and 2 cannot express unspecified dimensions and explicitly replicated digits, which
    are dropped. Version 1 lists the device of every tile. Version 2 writes the list as a reshape
    and a transpose of 0, 1, 2, ...; it lists the devices too if there is no such form.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> from shardalg.algebra.sharding import Sharding
    >>> Sharding.from_axes([None, "y"], mesh, (16, 16)).to_hlo()
    '{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}'
    >>> [Sharding.from_axes(["y", "x"], mesh, (16, 16)).to_hlo(version) for version in (1, 3)]
    ['{devices=[4,2]0,4,1,5,2,6,3,7}', "{mesh['x'=2,'y'=4], [{'y'}, {'x'}]}"]

    Raises:
      ShardingError: the sharding has digits of different meshes; the version is not 1, 2 or 3.
    """
    if version not in (1, 2, 3):
        raise ShardingError(f"HLO text has the versions 1, 2 and 3, got {version!r}.")
    if version == 3:
        return axis_lists.text(sharding)
    if sharding.is_maximal:
        return f"{{maximal device={sharding.mesh.order[0]}}}"
    # One class over all devices, and nothing split, is a single word in XLA's text.
    groups = _subgroups(sharding)
    if all(n == 1 for n in sharding.parts) and len(groups) <= 1:
        return f"{{{groups[0][0] if groups else 'replicated'}}}"
    # The tile array has the tensor's dimensions, then one dimension per subgroup, such as the
    # devices that hold the same block.
    tiles = [*sharding.parts, *(math.prod(d.size for d in digits) for _, digits in groups)]
    # The number of a tile, row-major, has these digits of the device's position.
    all_digits = tuple(d for digits in (*sharding.dims, *(g for _, g in groups)) for d in digits)
    # Replicated devices are the last dimension of the tile array.
    num_copies = tiles[-1] if groups and groups[-1][0] == "replicated" else 1
    order = _device_order(canonical(all_digits), sharding.mesh, num_copies)
    iota_form = iota_text(order) if version == 2 else None
    devices = listed(order) if iota_form is None else f"<={iota_form}"
    kinds = [kind for kind, _ in groups]
    tail = f" last_tile_dims={{{', '.join(kinds)}}}" if kinds else ""
    # XLA prints a single replicated subgroup by its older name.
    if kinds == ["replicated"]:
        tail = " last_tile_dim_replicate"
    return f"{{devices=[{listed(tiles)}]{devices}{tail}}}"


def _one(reader: Reader, shape: tuple[int, ...], mesh: Mesh | None) -> Layout:
    """Read one sharding of HLO text, from its opening to its closing brace; return its layout.

    The first word tells the version: a mesh begins version 3, any other word version 1 or 2.
    """
    reader.expect("{")
    start = reader.skip()
    if reader.text.startswith(("mesh", "maximal_mesh"), start):
        layout = axis_lists.read(reader, shape, mesh)
    else:
        layout = _in_braces(reader, shape, mesh)
    _refuse(reader)
    reader.expect("}")
    return layout


def _in_braces(reader: Reader, shape: tuple[int, ...], mesh: Mesh | None) -> Layout:
    """Read a sharding of version 1 or 2 up to its closing brace; return its layout.

    It is a tile array (`devices=...`), one device (`maximal device=3`), or a word for all devices,
    such as `replicated`.
    """
    _refuse(reader)
    start = reader.skip()
    word = reader.take("[a-z_]+")
    if word == "devices":
        layout = _tiled(reader, shape, mesh)
    elif word == "maximal":
        reader.expect("device")
        reader.expect("=")
        layout = on_device(reader, reader.number("a device id"), shape, mesh)
    elif word in SUBGROUPS:
        layout = _whole(reader, word, shape, mesh)
    else:
        expected = f"expected 'devices=', 'maximal' or one of {', '.join(SUBGROUPS)}"
        raise reader.error(f"{expected}, found {word!r}", start)
    # XLA may add the operator's source; it says nothing about the layout.
    if reader.word("metadata"):
        reader.expect("=")
        reader.expect("{")
        reader.metadata()
    return layout


def _refuse(reader: Reader) -> None:
    """Raise NotationError if the next word begins a kind of sharding that cannot be read here.

    These kinds, such as "unknown" and tuples, do not give the layout of a single value.
    """
    for word, reason in _REFUSED.items():
        if reader.text.startswith(word, reader.skip()):
            raise reader.error(reason)


def _tiled(reader: Reader, shape: tuple[int, ...], mesh: Mesh | None) -> Layout:
    """Read the tile array after the word `devices`; return its layout.

    The layout is on `mesh`, if one is given. Otherwise it is on a mesh without axis names.

    Raises:
      NotationError: the array has another rank than the shape, other devices than `mesh`, or an
        order of devices that no digits of `mesh` state.
    """
    reader.expect("=")
    start = reader.skip()
    tiles = _tiles(reader)
    # Subgroup dimensions are last in the tile array and split no dimension of the tensor.
    rank = len(tiles.extents) - len(tiles.subgroups)
    if rank != len(shape):
        raise reader.error(
            f"{rank} dimensions are tiled, the shape {shape} has {len(shape)}", start
        )
    if mesh is not None and set(tiles.devices) != set(mesh.order):
        what = f"{math.prod(tiles.extents)} devices that are not those of {mesh!r}"
        raise reader.error(what, start)
    own_layout = _sharding(tiles, shape)
    # Without a given mesh, use positions as device ids if the ids are 0 to n - 1.
    ids_are_positions = max(tiles.devices) == len(tiles.devices) - 1
    layout = restate(
        own_layout,
        mesh or (Mesh.unnamed(own_layout.mesh.size) if ids_are_positions else own_layout.mesh),
    )
    if layout is None and mesh is not None:
        raise reader.error(
            f"this order of devices is no digits of {mesh!r}; read it without a mesh, or give one "
            f"with device_ids={short_list(tiles.devices)}",
            start,
        )
    return layout or own_layout


def _tiles(reader: Reader) -> _Tiles:
    """Read a tile array after `devices=`; return its extents, its devices and its subgroups.

    For example `[2,1,4]<=[8] last_tile_dim_replicate`: extents (2, 1, 4), the devices 0 to 7, and
    one subgroup, of replicated devices.
    """
    reader.expect("[")
    start = reader.skip()
    extents = reader.numbers("an extent of the tile array", "]")
    size = math.prod(extents)
    if min(extents) < 1 or size > MAX_DEVICES:
        fault = (
            f"the extents {short_list(extents)} must be at least 1 and make at most {MAX_DEVICES}"
        )
        raise reader.error(f"{fault} tiles", start)
    start = reader.skip()
    order: tuple[int, ...] | None = None
    digits: Digits = ()
    # An iota, which begins with `<=`, states digits of the device ids; a list states an order only.
    if reader.word("<="):
        digits = iota(reader)
        count = math.prod(d.size for d in digits)
    else:
        order = _device_list(reader)
        count = len(order)
    if count != size:
        raise reader.error(f"{size} tiles on {count} devices", start)
    subgroups: tuple[str, ...] = ()
    # The devices of a subgroup hold the same block, so its dimensions split no tensor dimension.
    # `last_tile_dim_replicate` is the older text for one replicated subgroup.
    if reader.word("last_tile_dims"):
        reader.expect("=")
        reader.expect("{")
        subgroups = reader.items(lambda: reader.expect(*SUBGROUPS), "}")
    elif reader.word("last_tile_dim_replicate"):
        subgroups = ("replicated",)
    if len(subgroups) > len(extents):
        fault = f"{len(subgroups)} subgroup dimensions of {len(extents)} in all"
        raise reader.error(fault)
    return _Tiles(extents, subgroups, order, digits)


def _device_list(reader: Reader) -> tuple[int, ...]:
    """Read device ids that are separated by commas; raise NotationError if one occurs twice."""
    # Errors point at the first device.
    start = reader.skip()
    order = [reader.number("a device id")]
    while reader.word(","):
        order.append(reader.number("a device id"))
    twice = [device for device, count in Counter(order).items() if count > 1]
    if twice:
        raise reader.error(f"the devices {short_list(twice)} occur more than once", start)
    return tuple(order)


def _sharding(read: _Tiles, shape: tuple[int, ...]) -> Layout:
    """Return the layout that a tile array of HLO text describes, on a mesh without axis names.

    An iota is written in digits of the device id if its digits fit the extents of the array.
    Otherwise the mesh has the order of the list of devices, and the digits are those of the place
    in this list.
    """
    # `rows` has the digits of each dimension of the array; None if they do not fit its extents.
    size, rows = math.prod(read.extents), None
    if read.order is None:
        rows = _cut(read.digits, read.extents)
    if rows is None:
        rows = _cut((Digit(1, size),), read.extents)
        mesh = Mesh.unnamed(size, read.devices)
    else:
        mesh = Mesh.unnamed(size)
    assert rows is not None
    rank = len(shape)
    groups = list(zip(read.subgroups, rows[rank:], strict=True))
    # Replicated subgroups are the devices that no other digit uses; they are not stored.
    digits_of_kind = {
        kind: tuple(d for name, digits in groups if name == kind for d in digits)
        for kind in ("unreduced", "manual")
    }
    return Layout(mesh, shape, rows[:rank]).holding(digits_of_kind)


def _cut(digits: Digits, extents: tuple[int, ...]) -> tuple[Digits, ...] | None:
    """Return the digits in groups, one per extent: the sizes of a group's digits multiply to it.

    Digits are taken in order, major first, and split if necessary. None if an extent would split a
    digit unevenly.

    >>> _cut((Digit(1, 4), Digit(4, 3)), (2, 6))
    ((Digit(stride=2, size=2),), (Digit(stride=1, size=2), Digit(stride=4, size=3)))
    >>> _cut((Digit(1, 4), Digit(4, 3)), (3, 4)) is None
    True
    """
    # The tile array is row-major, so the first extent takes the major digits. If it needs only the
    # major part of a digit, the minor part is left for the next extent.
    other_digits, rows = list(reversed(canonical(digits))), []
    for extent in extents:
        row: list[Digit] = []
        while extent > 1:
            head = other_digits.pop()
            taken = math.gcd(head.size, extent)
            below = head.size // taken
            # In any other case, the extent would end inside of a digit at a place that does not
            # divide it, for example 3 of 4, and no digits describe the order.
            if taken not in (head.size, extent):
                return None
            row.append(Digit(head.stride * below, taken))
            if below > 1:
                other_digits.append(Digit(head.stride, below))
            extent //= taken
        rows.append(tuple(row))
    return tuple(rows)


def _whole(reader: Reader, kind: str, shape: tuple[int, ...], mesh: Mesh | None) -> Layout:
    """Return the layout for the word "replicated", "manual" or "unreduced" in place of tiles.

    Args:
      kind: the word, which holds for all devices.

    Raises:
      NotationError: the word is not "replicated", and `mesh` is None.
    """
    layout = whole(mesh or Mesh.unnamed(1), shape)
    if kind == "replicated":
        return layout
    if mesh is None:
        raise reader.error(f"{{{kind}}} does not say how many devices there are; give the mesh")
    return layout.holding({kind: spelled((Digit(1, mesh.size),), mesh)})


def _subgroups(sharding: Layout) -> list[tuple[str, Digits]]:
    """Return the kind and the digits of each subgroup dimension, in the order of XLA's text.

    A subgroup dimension numbers devices that hold the same block of each dimension: manual,
    unreduced or replicated ones. Replicated are the digits that are left; a kind without digits is
    left out.

    Raises:
      ShardingError: no digits can state the devices that are left.
    """
    used_digits = [d for row in (*sharding.dims, sharding.unreduced, sharding.manual) for d in row]
    unused_digits = complement(tuple(used_digits), sharding.mesh.size)
    if unused_digits is None:
        raise ShardingError(
            f"{sharding!r} splits by digits of different meshes, and no digits can write the other "
            "devices: it has no HLO text. Reshard it onto one mesh first."
        )
    # XLA lists the kinds in this order.
    kinds = (
        ("manual", sharding.manual),
        ("unreduced", sharding.unreduced),
        ("replicated", unused_digits),
    )
    return [(kind, held) for kind, held in kinds if any(d.size > 1 for d in held)]


def _device_order(flat: Digits, mesh: Mesh, copies: int) -> tuple[int, ...]:
    """Return the device id of every tile, row-major.

    Args:
      flat: the digits of the tile number.
      copies: number of devices with the same tile, which XLA lists in ascending order.
    """
    order = iota_order(flat)
    if mesh.device_ids is None:
        return order
    # `order` has positions in the mesh, and the text has device ids.
    tile_ids = [mesh.device_ids[position] for position in order]
    # Each run of `copies` devices holds one tile; their order says nothing about the layout.
    sorted_tiles = (sorted(tile_ids[at : at + copies]) for at in range(0, len(tile_ids), copies))
    return tuple(device for tile in sorted_tiles for device in tile)
