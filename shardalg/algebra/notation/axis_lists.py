"""Dimensions as lists of named axes, `[{'x', 'y':(2)2, ?}, {}]`, in HLO text and in Shardy's text.

XLA and Shardy refuse a sub-axis that is the whole axis, neighbours that are one sub-axis, and
classes that are not in the order of the mesh. So does this module: every sharding has one text.

Source: xla/hlo/ir/mesh_and_axis.cc, named_sharding.cc; shardy/dialect/sdy/ir/verifiers.cc.

HLO sharding text of version 3: `{mesh['x'=2,'y'=4], [{'x'}, {?}], unreduced={'y'}}`.

Device ids follow the mesh as a list or as an iota, `device_ids=([4,2]T(1,0))`. A layout with one
class over all axes is the word alone, `{mesh['x'=2], manual}`.

Source: xla/hlo/ir/mesh_and_axis.cc, named_sharding.cc; xla/hlo/parser/hlo_parser.cc.

Shardy's text: `#sdy.sharding<@mesh, [{"x", "y":(2)2, ?}p1, {}], replicated={"z"}>`.

The mesh is a symbol, or is written in full: `mesh<["x"=2, "y"=4], device_ids=[...]>`. A mesh
without axes and with one id is the device with this id.

Source: shardy/dialect/sdy/ir/attrs.td, parsers.cc, printers.cc.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.layout import Layout
from shardalg.algebra.mesh import AxisRef, Mesh
from shardalg.algebra.notation.reader import (
    MAX_DEVICES,
    Dim,
    Reader,
    iota,
    iota_order,
    iota_text,
    layout_of,
    listed,
    on_device,
    stated,
    whole,
)
from shardalg.errors import MeshError, ShardingError


@dataclass(frozen=True)
class Lists:
    """Reader and printer of lists of axes, in HLO's or in Shardy's notation.

    Attributes:
      quote: the quotation mark around axis names.
      priorities: whether dimensions may have priorities.
    """

    quote: str
    priorities: bool

    def mesh_axes(self, reader: Reader) -> tuple[tuple[str, int], ...]:
        """Read the axes of a mesh, such as `['x'=2,'y'=4]`; return (name, size) pairs."""
        start = reader.skip()
        reader.expect("[")
        pairs = reader.items(lambda: self._mesh_axis(reader), "]")
        if math.prod(size for _, size in pairs) > MAX_DEVICES:
            raise reader.error(f"a mesh of more than {MAX_DEVICES} devices", start)
        return pairs

    def dims(self, reader: Reader, mesh: Mesh, rank: int) -> tuple[Dim, ...]:
        """Read the `rank` dimensions of a sharding, such as `[{'x'}, {?}]`."""
        # Refuse a dimension beyond the rank before it is read, so that long texts cost nothing.
        start, count = reader.skip(), 0

        def dim() -> Dim:
            nonlocal count
            count += 1
            if count > rank:
                raise reader.error(f"more dimensions than the {rank} of the shape")
            return self._dim(reader, mesh)

        reader.expect("[")
        found = reader.items(dim, "]")
        if len(found) != rank:
            what = f"{len(found)} dimensions, and the shape has {rank}"
            raise reader.error(what, start)
        return found

    def classes(self, reader: Reader, mesh: Mesh, kinds: tuple[str, ...]) -> dict[str, Digits]:
        """Read axes that split no dimension, such as `, replicated={'z'}, unreduced={'w'}`.

        Return their digits by kind. Each of the `kinds` may occur once, or not at all.
        """
        held: dict[str, Digits] = {}
        while (start := reader.skip()) < len(reader.text) and reader.word(","):
            left = [kind for kind in kinds if kind not in held]
            kind = next((kind for kind in left if reader.word(kind)), None)
            # The comma belongs to what follows the classes, such as metadata.
            if kind is None:
                reader.at = start
                break
            reader.expect("=")
            reader.expect("{")
            held[kind] = self._class(reader, mesh)
        return held

    def dims_text(self, sharding: Layout) -> str:
        """Return the dimensions of a sharding as text, such as `[{'x'}, {?}]`."""
        priorities = sharding.priorities or (0,) * len(sharding.dims)
        shown = []
        for i, digits in enumerate(sharding.dims):
            names = self._names(digits, sharding)
            names += ["?"] if i in sharding.unspecified_dims else []
            # Only Shardy's text has priorities (`self.priorities`), and 0 is the default there.
            suffix = f"p{priorities[i]}" if priorities[i] and self.priorities else ""
            shown.append(f"{{{', '.join(names)}}}{suffix}")
        return f"[{', '.join(shown)}]"

    def class_text(self, kind: str, digits: Digits, sharding: Layout) -> str:
        """Return axes that split no dimension as text, such as `, replicated={'z'}`, or "".

        Args:
          kind: the word before the equals sign.
          digits: the digits of the axes.
        """
        in_order = tuple(sorted(digits, reverse=True))
        names = self._names(in_order, sharding)
        return f", {kind}={{{', '.join(names)}}}" if names else ""

    def quoted(self, name: str) -> str:
        """Return an axis name in quotation marks.

        Raises:
          ShardingError: the name has characters that need escapes.
        """
        if not name or self.quote in name or "\\" in name or not name.isprintable():
            raise ShardingError(
                f"the axis name {name!r} cannot be written between {self.quote}: rename the axis."
            )
        return f"{self.quote}{name}{self.quote}"

    def _names(self, digits: Digits, sharding: Layout) -> list[str]:
        """Return the text of each axis or sub-axis of the digits.

        Raises:
          ShardingError: the digits are not made of axes and sub-axes.
        """
        try:
            refs = sharding.mesh.refs(digits)
        except MeshError as error:
            raise ShardingError(f"{sharding.text()} has no text that names axes: {error}") from None
        parts = ["" if ref.size is None else f":({ref.pre}){ref.size}" for ref in refs]
        return [self.quoted(ref.name) + part for ref, part in zip(refs, parts, strict=True)]

    def _mesh_axis(self, reader: Reader) -> tuple[str, int]:
        """Read one axis of a mesh, such as `'x'=2`; return its name and its size."""
        reader.one_more_axis(reader.skip())
        name = reader.quoted(self.quote, "an axis name")
        reader.expect("=")
        start = reader.skip()
        size = reader.number("the size of the axis")
        if size < 1:
            raise reader.error(f"axis {name!r} has size {size}, and sizes are at least 1", start)
        return name, size

    def _dim(self, reader: Reader, mesh: Mesh) -> Dim:
        """Read one dimension, such as `{'x', ?}p1`; the `?` of an open dimension is last."""
        start = reader.skip()
        reader.expect("{")
        # Only a closing brace may follow `?`.
        refs, is_open, closed = [], False, reader.word("}")
        while not closed:
            is_open = reader.word("?")
            if not is_open:
                refs.append(self._axis(reader, mesh))
            closed = reader.expect("}" if is_open else ",", "}") == "}"
        digits = self._digits(reader, mesh, tuple(refs), start)
        return Dim(digits, is_open, self._priority(reader) if self.priorities else 0)

    def _priority(self, reader: Reader) -> int:
        """Read the priority of a dimension, such as `p1`; return 0 if there is none."""
        if not reader.word("p"):
            return 0
        start = reader.at
        number = reader.number("a priority")
        if reader.text[start].isspace() or (reader.text[start] == "0" and reader.at > start + 1):
            raise reader.error("a priority is written p1, without space and leading zeros", start)
        return number

    def _class(self, reader: Reader, mesh: Mesh) -> Digits:
        """Read a set of axes up to its closing brace; return their digits.

        The axes must be in the order of the mesh.
        """
        start = reader.skip()
        refs = reader.items(lambda: self._axis(reader, mesh), "}")
        digits = self._digits(reader, mesh, refs, start)
        names = list(mesh.axis_names)
        places = [(names.index(ref.name), ref.pre) for ref in refs]
        if sorted(places) != places:
            raise reader.error(f"write these axes in the order of {mesh!r}", start)
        return digits

    def _axis(self, reader: Reader, mesh: Mesh) -> AxisRef:
        """Read an axis or a sub-axis of the mesh, such as `'x'` or `'x':(2)4`."""
        start = reader.skip()
        reader.one_more_axis(start)
        name = reader.quoted(self.quote, "an axis name")
        if name not in mesh.shape:
            what = f"axis {name!r} is not on {mesh!r}"
            raise reader.error(f"{what}; its axes are {list(mesh.axis_names)}", start)
        if not reader.word(":"):
            return AxisRef(name)
        reader.expect("(")
        pre = reader.number("the number of parts above the sub-axis")
        reader.expect(")")
        ref = AxisRef(name, pre, reader.number("the size of the sub-axis"))
        # A sub-axis of size 1 splits nothing, and one that is the whole axis has a shorter text.
        size = mesh.shape[name]
        if ref.pre < 1 or ref.size in (0, 1, size) or size % (ref.pre * (ref.size or 1)):
            what = f"{ref!r} is no proper part of {name!r}, whose size is {size}"
            raise reader.error(what, start)
        return ref

    def _digits(self, reader: Reader, mesh: Mesh, refs: tuple[AxisRef, ...], start: int) -> Digits:
        """Return the digits of axes; raise NotationError if two of them could be one sub-axis.

        Args:
          start: the place in the text that the error points at.
        """
        # `refs` merges neighbours: a text that it would print otherwise is not canonical.
        digits = tuple(mesh.ref_digit(ref) for ref in refs)
        joined = mesh.refs(digits)
        if joined != refs:
            what = f"neighbouring sub-axes that are {', '.join(map(repr, joined))}"
            raise reader.error(what, start)
        return digits


HLO_LISTS = Lists("'", priorities=False)
HLO_KINDS = ("replicated", "unreduced", "manual")


def read(reader: Reader, shape: tuple[int, ...], mesh: Mesh | None) -> Layout:
    """Read an HLO sharding of version 3 after its opening brace.

    Return it on `mesh`, or on the mesh in the text if `mesh` is None.
    """
    if reader.word("maximal_mesh"):
        for word in ("[", "device_id", "="):
            reader.expect(word)
        made = on_device(reader, reader.number("a device id"), shape, mesh)
        reader.expect("]")
        return made
    reader.expect("mesh")
    start = reader.skip()
    axes = HLO_LISTS.mesh_axes(reader)
    own = _mesh(reader, axes, _device_ids(reader), start)
    reader.word(",")
    found = _whole(reader, own, shape)
    if found is None:
        dims = HLO_LISTS.dims(reader, own, len(shape))
        found = layout_of(own, shape, dims, HLO_LISTS.classes(reader, own, HLO_KINDS))
    if reader.word(","):
        for word in ("metadata", "=", "{"):
            reader.expect(word)
        reader.metadata()
    return stated(reader, found, mesh)


def text(sharding: Layout) -> str:
    """Return a sharding as HLO text of version 3, which cannot express priorities.

    Raises:
      ShardingError: the sharding has digits that are no axes, or a mesh without axis names.
    """
    mesh = sharding.mesh
    if sharding.is_maximal:
        return f"{{maximal_mesh[device_id={mesh.order[0]}]}}"
    if mesh.is_unnamed:
        raise ShardingError(
            f"{sharding!r} has no axis names, and HLO text of version 3 needs them."
        )
    axes = ",".join(f"{HLO_LISTS.quoted(name)}={size}" for name, size in mesh.axes)
    order = ""
    if mesh.device_ids is not None:
        # XLA prints the short form of an iota if there is one.
        order = f", device_ids=({iota_text(mesh.device_ids) or listed(mesh.device_ids)})"
    held = "".join(
        HLO_LISTS.class_text(kind, getattr(sharding, kind), sharding) for kind in HLO_KINDS
    )
    return f"{{mesh[{axes}]{order}, {HLO_LISTS.dims_text(sharding)}{held}}}"


def _mesh(
    reader: Reader,
    axes: tuple[tuple[str, int], ...],
    order: tuple[int, ...] | None,
    start: int,
) -> Mesh:
    """Return the mesh with axes and a device order that were read.

    Raises:
      NotationError: there is no such mesh; the message points at `start`.
    """
    try:
        return Mesh(axes, order)
    except MeshError as error:
        raise reader.error(str(error), start) from None


def _device_ids(reader: Reader) -> tuple[int, ...] | None:
    """Read `, device_ids=(...)` if it is next; otherwise return None and consume nothing."""
    start = reader.skip()
    # The comma may also be followed by dimensions, so look ahead and go back.
    if not (reader.word(",") and reader.word("device_ids")):
        reader.at = start
        return None
    reader.expect("=")
    reader.expect("(")
    start = reader.skip()
    if reader.text.startswith("[", start):
        order = iota_order(iota(reader))
        reader.expect(")")
    else:
        order = reader.numbers("a device id", ")")
    return order


def _whole(reader: Reader, mesh: Mesh, shape: tuple[int, ...]) -> Layout | None:
    """Read the word "replicated", "unreduced" or "manual" in place of dimensions.

    It holds for all axes of the mesh. Return None if none of the words is next.
    """
    kind = next((kind for kind in HLO_KINDS if reader.word(kind)), None)
    if kind is None:
        return None
    digits: Digits = () if kind == "replicated" else mesh.digits(mesh.axis_names)
    return whole(mesh, shape, **{kind: digits})


SDY_LISTS = Lists('"', priorities=True)
SDY_KINDS = ("replicated", "unreduced")
_EXAMPLE = '#sdy.sharding<@mesh, [{"x", "y":(2)2, ?}p1, {}], replicated={"z"}, unreduced={"w"}>'


def from_sdy(text: str, shape: tuple[int, ...], mesh: Mesh | None = None) -> Layout:
    """Return the sharding of a tensor of `shape` that Shardy's text states.

    Args:
      mesh: the mesh that `@mesh` means; if the text states a mesh, the layout is restated on this.

    >>> mesh = Mesh({"x": 2, "y": 8})
    >>> from_sdy('#sdy.sharding<@mesh, [{"x", "y":(2)2, ?}p1, {}]>', (8, 8), mesh)
    Sharding([(x, y:(2)2, ?)p1, None], shape=(8, 8), Mesh(x=2, y=8))

    Raises:
      NotationError: the text is malformed, with the column; or it does not fit shape or mesh.
    """
    reader = Reader(text, "Shardy's sharding", _EXAMPLE)
    reader.word("#sdy.sharding")
    reader.expect("<")
    own = _sdy_mesh(reader, mesh)
    reader.expect(",")
    # A maximal sharding states no dimensions.
    rank = 0 if own.is_device else len(shape)
    dims = SDY_LISTS.dims(reader, own, rank)
    held = SDY_LISTS.classes(reader, own, SDY_KINDS)
    reader.expect(">")
    reader.end()
    if own.is_device:
        return on_device(reader, own.order[0], tuple(shape), mesh)
    return stated(reader, layout_of(own, tuple(shape), dims, held), mesh)


def to_sdy(sharding: Layout, mesh_name: str | None = "mesh") -> str:
    """Return Shardy's text of a sharding.

    Args:
      mesh_name: the symbol of the mesh; None states the mesh itself.

    >>> mesh = Mesh({"x": 2, "y": 4}, [0, 4, 1, 5, 2, 6, 3, 7])
    >>> from shardalg.algebra.sharding import Sharding
    >>> sharding = Sharding.from_axes(["y", "?"], mesh, (8, 8), replicated=["x"])
    >>> to_sdy(sharding)
    '#sdy.sharding<@mesh, [{"y"}, {?}], replicated={"x"}>'
    >>> to_sdy(sharding, mesh_name=None)
    '#sdy.sharding<mesh<["x"=2, "y"=4], device_ids=[0, 4, 1, 5, 2, 6, 3, 7]>, [{"y"}, {?}], ...>'

    Raises:
      ShardingError: the sharding has manual axes (in Shardy an attribute of manual computations,
        not of values), digits that are no axes, or a mesh without axis names.
    """
    if sharding.manual:
        raise ShardingError(
            f"{sharding!r} has manual axes, which Shardy's sharding of a value cannot express: "
            "they belong to its manual_computation. Print it as HLO text."
        )
    if sharding.mesh.is_unnamed:
        raise ShardingError(f"{sharding!r} has no axis names, and Shardy's text needs them.")
    where = f"mesh<{mesh_text(sharding.mesh)}>" if mesh_name is None else f"@{mesh_name}"
    dims = "[]" if sharding.is_maximal else SDY_LISTS.dims_text(sharding)
    held = "".join(
        SDY_LISTS.class_text(kind, getattr(sharding, kind), sharding) for kind in SDY_KINDS
    )
    return f"#sdy.sharding<{where}, {dims}{held}>"


def mesh_text(mesh: Mesh) -> str:
    """Return the axes and the device ids of a mesh as Shardy's text.

    >>> mesh_text(Mesh({"x": 2, "y": 4}))
    '["x"=2, "y"=4]'
    """
    axes = ", ".join(f"{SDY_LISTS.quoted(name)}={size}" for name, size in mesh.axes)
    order = "" if mesh.device_ids is None else f", device_ids={list(mesh.device_ids)}"
    return f"[{axes}]{order}"


def _sdy_mesh(reader: Reader, given: Mesh | None) -> Mesh:
    """Read the mesh of a sharding in Shardy's text: the mesh itself, or a symbol such as `@mesh`.

    A symbol means the mesh `given`.
    """
    start = reader.skip()
    if reader.take(r'@(?:[A-Za-z_][A-Za-z0-9_$.]*|"[^"\\]+")'):
        if given is None:
            raise reader.error("this symbol needs its mesh; give one, or state it here", start)
        return given
    reader.expect("mesh", "@")
    reader.expect("<")
    axes = SDY_LISTS.mesh_axes(reader)
    order = None
    if reader.word(","):
        for word in ("device_ids", "=", "["):
            reader.expect(word)
        order = reader.numbers("a device id", "]")
    reader.expect(">")
    return _mesh(reader, axes, order, start)
