"""HLO sharding text, read and printed: `{devices=[2,1,4]<=[8]}` and its relatives.

V1 lists the device of every tile; V2 says it as `<=[reshape]T(permutation)` of 0, 1, 2, ...:
that is a tuple of digits of the device id. After the tensor's dimensions the tile array may carry
subgroup dimensions (`last_tile_dim_replicate`, `last_tile_dims={manual, replicated}`).
Numbers in HLO text are device ids: only here do `Mesh.device_ids` matter.

Source: xla/hlo/ir/hlo_sharding.cc, tile_assignment.cc.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardalg.algebra.digits import Digit, Digits, Table, canonical, complement, partition_id
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import NotationError, ShardingError

SUBGROUPS = ("replicated", "manual", "unreduced")


@dataclass(frozen=True)
class HloText:
    """HLO sharding text as it stands.

    Attributes:
      tiles: extents of the tile array, subgroup dimensions last; () without a tile array.
      subgroups: kind of each subgroup dimension; alone, the kind of the whole sharding.
      order: device id of every tile, row-major; None where `digits` say it.
      digits: the tile number as digits of the device id, major first.

    >>> parse("{devices=[2,1,4]<=[2,4]T(1,0) last_tile_dim_replicate}")
    HloText(tiles=(2, 1, 4), subgroups=('replicated',), order=None,
        digits=(Digit(stride=1, size=4), Digit(stride=4, size=2)))
    """

    tiles: tuple[int, ...] = ()
    subgroups: tuple[str, ...] = ()
    order: tuple[int, ...] | None = None
    digits: Digits = ()


def parse(text: str) -> HloText:
    """Read HLO sharding text.

    Raises:
      NotationError: malformed text, with the column; maximal, tuple and named shardings, by name.
    """
    return _Reader(text).sharding()


def from_hlo(text: str, shape: tuple[int, ...], mesh: Mesh | None = None) -> Sharding:
    """The sharding that HLO text gives a tensor of `shape`.

    Args:
      mesh: the mesh to state it on, whose device ids are the numbers in the text. Without it
        positions are device ids; if their order is no digits, the mesh lists that order.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> from_hlo("{devices=[1,2,4]<=[8] last_tile_dim_replicate}", (16, 16), mesh)
    Sharding([None, x], shape=(16, 16), Mesh(x=2, y=4))
    >>> from_hlo("{devices=[4,2]0,4,1,5,2,6,3,7}", (16, 16), mesh)
    Sharding([y, x], shape=(16, 16), Mesh(x=2, y=4))

    Raises:
      NotationError: malformed text, or one that does not fit the shape or the mesh.
    """
    read = parse(text)
    _check_fits(read, text, shape, mesh)
    if not read.tiles:
        return _whole(read, shape, mesh)
    size = math.prod(read.tiles)
    order = _order(read)
    natural = sorted(order) == list(range(size))
    target = mesh or Mesh.unnamed(size, None if natural else order)
    dims = _tile_digits(read, order, target)
    if dims is None and mesh is None:  # the listed order itself is the mesh
        target = Mesh.unnamed(size, order)
        dims = _tile_digits(read, order, target)
    if dims is None:
        raise NotationError(
            f"the device order of {text} is no digits of {target!r}. Read it without a mesh, or "
            f"give one with device_ids={list(order)}."
        )
    rank = len(shape)
    groups = list(zip(read.subgroups, dims[rank:], strict=True))
    unreduced, manual = (
        tuple(d for name, digits in groups if name == kind for d in digits)
        for kind in ("unreduced", "manual")
    )
    return Sharding(target, shape, dims[:rank], unreduced=unreduced, manual=manual)


def to_hlo(sharding: Sharding) -> str:
    """HLO text of a sharding, in device ids: V2 where the order is digits of the id, else V1.

    Unspecified dimensions and explicitly replicated digits have no word in HLO text.

    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> Sharding.from_axes([None, "y"], mesh, (16, 16)).to_hlo()
    '{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}'
    >>> Sharding.from_axes(["y", "x"], mesh, (16, 16)).to_hlo()
    '{devices=[4,2]<=[2,4]T(1,0)}'
    """
    groups = _subgroups(sharding)
    if all(n == 1 for n in sharding.parts) and len(groups) <= 1:
        return f"{{{groups[0][0] if groups else 'replicated'}}}"
    tiles = [*sharding.parts, *(math.prod(d.size for d in digits) for _, digits in groups)]
    flat = tuple(d for digits in (*sharding.dims, *(g for _, g in groups)) for d in digits)
    devices = _devices(flat, sharding.mesh)
    return f"{{devices=[{_listed(tiles)}]{devices}{_tail([kind for kind, _ in groups])}}}"


def _check_fits(read: HloText, text: str, shape: tuple[int, ...], mesh: Mesh | None) -> None:
    """Rank, and the devices of the mesh."""
    rank = len(read.tiles) - len(read.subgroups)
    if read.tiles and rank != len(shape):
        raise NotationError(
            f"{text} tiles {rank} dimensions, and the shape {shape} has {len(shape)}."
        )
    if read.tiles and mesh is not None and set(_order(read)) != set(mesh.order):
        raise NotationError(
            f"{text} is over {math.prod(read.tiles)} devices, and they are not those of {mesh!r}."
        )


def _whole(read: HloText, shape: tuple[int, ...], mesh: Mesh | None) -> Sharding:
    """Replicated, or one class over all devices."""
    made = Sharding(mesh or Mesh.unnamed(1), shape, ((),) * len(shape))
    (kind,) = read.subgroups
    if kind == "replicated":
        return made
    if mesh is None:
        raise NotationError(
            f"{{{kind}}} does not say how many devices there are. Give the mesh: "
            "Sharding.from_hlo(text, shape, mesh)."
        )
    return replace(made, **{kind: (Digit(1, mesh.size),)})


def _order(read: HloText) -> tuple[int, ...]:
    """Device id of every tile, row-major."""
    if read.order is not None:
        return read.order
    ids = [0] * math.prod(read.tiles)
    for device in range(len(ids)):
        ids[partition_id(read.digits, device)] = device
    return tuple(ids)


def _tile_digits(read: HloText, order: tuple[int, ...], mesh: Mesh) -> tuple[Digits, ...] | None:
    """Digits of the mesh position for each extent of the tile array; None if there are none."""
    tile = {device: number for number, device in enumerate(order)}
    numbers = [tile[device] for device in mesh.order]
    rows, below = [], len(numbers)
    for n in read.tiles:
        below //= n
        rows.append(tuple(number // below % n for number in numbers))
    return Table(read.tiles, tuple(rows)).recognize()


def _subgroups(sharding: Sharding) -> list[tuple[str, Digits]]:
    """Kind and digits of the subgroup dimensions, in the order in which XLA prints them."""
    digits = [d for held in (*sharding.dims, sharding.unreduced, sharding.manual) for d in held]
    rest = complement(tuple(digits), sharding.mesh.size)
    if rest is None:
        raise ShardingError(
            f"{sharding!r} splits by digits of different meshes, and what is left of the devices "
            "is no digit: it has no HLO text. Reshard it onto one mesh first."
        )
    kinds = (("manual", sharding.manual), ("unreduced", sharding.unreduced), ("replicated", rest))
    return [(kind, held) for kind, held in kinds if any(d.size > 1 for d in held)]


def _devices(flat: Digits, mesh: Mesh) -> str:
    """The device list: iota digits if the ids allow, in XLA's canonical form."""
    if mesh.device_ids is not None:
        ids = [0] * mesh.size
        for position, device in enumerate(mesh.device_ids):
            number = partition_id(flat, position)
            ids[number] = device
        if sorted(ids) != list(range(mesh.size)):
            return _listed(ids)
        tile = {device: number for number, device in enumerate(ids)}
        row = tuple(tile[device] for device in range(mesh.size))
        found = Table((mesh.size,), (row,)).recognize()
        if found is None:
            return _listed(ids)
        (flat,) = found
    digits = canonical(flat)
    places = sorted(digits, reverse=True)
    if len(places) <= 1:
        return f"<=[{mesh.size}]"
    order = _listed(places.index(d) for d in digits)
    return f"<=[{_listed(d.size for d in places)}]T({order})"


def _tail(kinds: list[str]) -> str:
    if not kinds:
        return ""
    if kinds == ["replicated"]:
        return " last_tile_dim_replicate"
    return f" last_tile_dims={{{', '.join(kinds)}}}"


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


_REFUSED = {
    "maximal": "a maximal sharding puts the whole value on one device, which no mesh sharding is",
    "unknown": "an unknown sharding says nothing about the layout",
    "mesh": "a named sharding carries its own mesh; print it with its tile array instead",
    "{": "a tuple sharding holds one sharding per element; read each of them alone",
}


class _Reader:
    """Reads one sharding from the left; `at` is the column."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def sharding(self) -> HloText:
        """The whole text."""
        self.expect("{")
        self.refuse()
        word = self.take(r"[a-z]+")
        if word == "devices":
            read = self.tile_array()
        elif word in SUBGROUPS:
            read = HloText(subgroups=(word,))
        else:
            raise self.error(f"expected 'devices=', 'replicated' or 'manual', found {word!r}")
        if self.take(r"\s*metadata=\{"):
            self.skip_metadata()
        self.expect("}")
        if self.text[self.at :].strip():
            raise self.error("the sharding ends here")
        return read

    def refuse(self) -> None:
        for word, reason in _REFUSED.items():
            if self.text.startswith(word, self.at):
                raise self.error(reason)

    def tile_array(self) -> HloText:
        self.expect("=[")
        tiles = self.numbers("an extent of the tile array")
        self.expect("]")
        size, start = math.prod(tiles), self.at
        if min(tiles) < 1:
            raise self.error(f"the extents {list(tiles)} must be at least 1")
        order, digits = None, ()
        if self.take("<="):
            digits = self.iota()
            count = math.prod(d.size for d in digits)
        else:
            order = self.numbers("a device id")
            count = len(order)
            if len(set(order)) != count:
                raise self.error(f"the devices {list(order)} are not all different", start)
        if count != size:
            raise self.error(f"{size} tiles on {count} devices", start)
        subgroups = self.subgroups()
        if len(subgroups) > len(tiles):
            raise self.error(f"{len(subgroups)} subgroup dimensions of {len(tiles)} in all")
        return HloText(tiles, subgroups, order, digits)

    def iota(self) -> Digits:
        """`[2,4]T(1,0)`: the tile number as digits of the device id, major first."""
        self.expect("[")
        sizes = self.numbers("an extent")
        self.expect("]")
        order = tuple(range(len(sizes)))
        if self.take(r"T\("):
            start = self.at
            order = self.numbers("a dimension")
            if sorted(order) != list(range(len(sizes))):
                raise self.error(f"{list(order)} is no permutation of {len(sizes)} numbers", start)
            self.expect(")")
        strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        return tuple(Digit(strides[i], sizes[i]) for i in order)

    def subgroups(self) -> tuple[str, ...]:
        if self.take(r"\s+last_tile_dim_replicate"):
            return ("replicated",)
        if not self.take(r"\s+last_tile_dims=\{"):
            return ()
        kinds = [self.kind()]
        while self.take(r"\s*,\s*"):
            kinds.append(self.kind())
        self.expect("}")
        return tuple(kinds)

    def kind(self) -> str:
        word = self.take("[a-z]+")
        if word not in SUBGROUPS:
            raise self.error(f"expected one of {', '.join(SUBGROUPS)}, found {word!r}")
        return word

    def skip_metadata(self) -> None:
        depth = 1
        while depth and self.at < len(self.text):
            depth += {"{": 1, "}": -1}.get(self.text[self.at], 0)
            self.at += 1

    def numbers(self, what: str) -> tuple[int, ...]:
        found = []
        while True:
            number = self.take(r"\d+")
            if not number:
                raise self.error(f"expected {what}, found {self.text[self.at : self.at + 1]!r}")
            found.append(int(number))
            if not self.take(","):
                return tuple(found)

    def take(self, pattern: str) -> str:
        """The text that matches here, consumed; "" if none does."""
        match = re.compile(pattern).match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match[0]

    def expect(self, word: str) -> None:
        if not self.text.startswith(word, self.at):
            found = self.text[self.at : self.at + 1] or "the end"
            raise self.error(f"expected {word!r}, found {found!r}")
        self.at += len(word)

    def error(self, what: str, at: int | None = None) -> NotationError:
        column = self.at if at is None else at
        return NotationError(
            f"column {column + 1} of the HLO sharding: {what}.\n  {self.text}\n  {' ' * column}^\n"
            "Write it as {devices=[2,1,4]<=[8] last_tile_dim_replicate}, {devices=[2,2]0,1,2,3}, "
            "{replicated} or {manual}."
        )
