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
        # Errors point at the opening bracket.
        start = reader.skip()
        reader.expect("[")
        pairs = reader.items(lambda: self._mesh_axis(reader), "]")
        # A few characters can state a huge mesh, and later code lists its devices one by one.
        if math.prod(size for _, size in pairs) > MAX_DEVICES:
            raise reader.error(f"a mesh of more than {MAX_DEVICES} devices", start)
        return pairs

    def dims(self, reader: Reader, mesh: Mesh, rank: int) -> tuple[Dim, ...]:
        """Read the `rank` dimensions of a sharding, such as `[{'x'}, {?}]`."""
        # Refuse a dimension beyond the rank before it is read, so that long texts cost nothing.
        start, count = reader.skip(), 0

        def dim() -> Dim:
            """Read one dimension; raise NotationError if it is one too many."""
            nonlocal count
            count += 1
            if count > rank:
                raise reader.error(f"more dimensions than the {rank} of the shape")
            return self._dim(reader, mesh)

        reader.expect("[")
        dims = reader.items(dim, "]")
        if len(dims) != rank:
            what = f"{len(dims)} dimensions, and the shape has {rank}"
            raise reader.error(what, start)
        return dims

    def classes(self, reader: Reader, mesh: Mesh, kinds: tuple[str, ...]) -> dict[str, Digits]:
        """Read axes that split no dimension, such as `, replicated={'z'}, unreduced={'w'}`.

        Return the digits of the axes by kind, here {"replicated": ..., "unreduced": ...}. A digit
        is the part of a device's position that one axis states. The text may have none of the
        `kinds`, and each kind at most once.
        """
        digits_of_kind: dict[str, Digits] = {}
        while (start := reader.skip()) < len(reader.text) and reader.word(","):
            # A kind that was read is no candidate any more, so that a second one ends the loop.
            unread_kinds = [kind for kind in kinds if kind not in digits_of_kind]
            kind = next((kind for kind in unread_kinds if reader.word(kind)), None)
            # The comma belongs to the text after the classes, such as metadata. Go back to it, so
            # that the caller reads it.
            if kind is None:
                reader.at = start
                break
            reader.expect("=")
            reader.expect("{")
            digits_of_kind[kind] = self._class(reader, mesh)
        return digits_of_kind

    def dims_text(self, sharding: Layout) -> str:
        """Return the dimensions of a sharding as text, such as `[{'x'}, {?}]`."""
        priorities = sharding.priorities or (0,) * len(sharding.dims)
        shown = []
        for i, digits in enumerate(sharding.dims):
            names = self._names(digits, sharding)
            names += ["?"] if i in sharding.unspecified_dims else []
            # Only Shardy's text has priorities (`self.priorities`), and 0 is the default there.
            suffix = f"p{priorities[i]}" if priorities[i] and self.priorities else ""
            # For example `{'x', ?}p1`: the doubled braces print one brace each.
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
        """Return the text of each axis or sub-axis that the digits state, major first.

        A digit is `floor(position / stride) mod size` of a device's position in the mesh, for
        example an axis. A whole axis has its name as text, such as `'x'`. A sub-axis also has the
        number of parts above it and its size, such as `'x':(2)4`.

        Raises:
          ShardingError: the digits are not made of axes and sub-axes.
        """
        try:
            refs = sharding.mesh.refs(digits)
        except MeshError as error:
            raise ShardingError(f"{sharding.text()} has no text that names axes: {error}") from None
        # `ref.size` is None for a whole axis, whose text is the name alone.
        sub_axis_texts = ["" if ref.size is None else f":({ref.pre}){ref.size}" for ref in refs]
        return [
            self.quoted(ref.name) + part for ref, part in zip(refs, sub_axis_texts, strict=True)
        ]

    def _mesh_axis(self, reader: Reader) -> tuple[str, int]:
        """Read one axis of a mesh, such as `'x'=2`; return its name and its size."""
        # The reader limits how many axes one text has, because later checks compare pairs of axes.
        reader.one_more_axis(reader.skip())
        name = reader.quoted(self.quote, "an axis name")
        reader.expect("=")
        # An error about the size points at the number, not behind it.
        start = reader.skip()
        size = reader.number("the size of the axis")
        if size < 1:
            raise reader.error(f"axis {name!r} has size {size}, and sizes are at least 1", start)
        return name, size

    def _dim(self, reader: Reader, mesh: Mesh) -> Dim:
        """Read one dimension, such as `{'x', ?}p1`; the `?` of an open dimension is last."""
        start = reader.skip()
        reader.expect("{")
        # A list of axes ends with `}`. `?` may only be its last entry, so `}` must follow it
        # directly.
        refs, is_open, is_closed = [], False, reader.word("}")
        while not is_closed:
            is_open = reader.word("?")
            if not is_open:
                refs.append(self._axis(reader, mesh))
            is_closed = reader.expect("}" if is_open else ",", "}") == "}"
        # HLO text has no priorities, so `p1` would be an error there: do not read it.
        digits = self._digits(reader, mesh, tuple(refs), start)
        return Dim(digits, is_open, self._priority(reader) if self.priorities else 0)

    def _priority(self, reader: Reader) -> int:
        """Read the priority of a dimension, such as `p1`; return 0 if there is none."""
        if not reader.word("p"):
            return 0
        start = reader.at
        number = reader.number("a priority")
        # `reader.number` skips space and reads leading zeros, but each sharding has only one text.
        # Refuse `p 1` and `p01` here.
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
        # A set of axes has no order of its own. In mesh order, with the major sub-axis of an axis
        # (the smaller `pre`) first, each set has only one text.
        axis_order = [(names.index(ref.name), ref.pre) for ref in refs]
        if sorted(axis_order) != axis_order:
            raise reader.error(f"write these axes in the order of {mesh!r}", start)
        return digits

    def _axis(self, reader: Reader, mesh: Mesh) -> AxisRef:
        """Read an axis or a sub-axis of the mesh, such as `'x'` or `'x':(2)4`.

        `'x':(2)4` is the part of size 4 of axis x that has 2 parts above it (`pre`): on an axis of
        size 8, the minor part `position mod 4`.
        """
        start = reader.skip()
        reader.one_more_axis(start)
        name = reader.quoted(self.quote, "an axis name")
        if name not in mesh.shape:
            fault = f"axis {name!r} is not on {mesh!r}"
            raise reader.error(f"{fault}; its axes are {list(mesh.axis_names)}", start)
        # Without a colon it is the whole axis.
        if not reader.word(":"):
            return AxisRef(name)
        reader.expect("(")
        pre = reader.number("the number of parts above the sub-axis")
        reader.expect(")")
        ref = AxisRef(name, pre, reader.number("the size of the sub-axis"))
        # A sub-axis of size 1 splits nothing, and one that is the whole axis has a shorter text.
        # The parts above it and its own parts must divide the axis.
        size = mesh.shape[name]
        if ref.pre < 1 or ref.size in (0, 1, size) or size % (ref.pre * (ref.size or 1)):
            fault = f"{ref!r} is no proper part of {name!r}, whose size is {size}"
            raise reader.error(fault, start)
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
    """Read an HLO sharding of version 3 after its opening brace; return its layout.

    The text is, for example, `mesh['x'=2,'y'=4], [{'x'}, {?}], unreduced={'y'}`. The layout is on
    `mesh`, or on the mesh in the text if `mesh` is None. The closing brace is left to the caller.
    """
    # `maximal_mesh[device_id=3]`: the whole tensor is on one device.
    if reader.word("maximal_mesh"):
        for word in ("[", "device_id", "="):
            reader.expect(word)
        on_one_device = on_device(reader, reader.number("a device id"), shape, mesh)
        reader.expect("]")
        return on_one_device
    # The mesh comes first, because axis names have a meaning only on it.
    reader.expect("mesh")
    start = reader.skip()
    axes = HLO_LISTS.mesh_axes(reader)
    text_mesh = _mesh(reader, axes, _device_ids(reader), start)
    reader.word(",")
    # Either one word describes all axes ("replicated"), or dimensions and classes follow.
    layout = _whole(reader, text_mesh, shape)
    if layout is None:
        dims = HLO_LISTS.dims(reader, text_mesh, len(shape))
        layout = layout_of(text_mesh, shape, dims, HLO_LISTS.classes(reader, text_mesh, HLO_KINDS))
    # XLA may append the source of the operator, which does not change the sharding.
    if reader.word(","):
        for word in ("metadata", "=", "{"):
            reader.expect(word)
        reader.metadata()
    return stated(reader, layout, mesh)


def text(sharding: Layout) -> str:
    """Return a sharding as HLO text of version 3, which cannot express priorities.

    Raises:
      ShardingError: the sharding has digits that are no axes, or a mesh without axis names.
    """
    mesh = sharding.mesh
    # One device holds the whole tensor: no axes and no dimensions are written.
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
    # The axes that split no dimension, such as `, unreduced={'y'}`, are last.
    class_texts = "".join(
        HLO_LISTS.class_text(kind, getattr(sharding, kind), sharding) for kind in HLO_KINDS
    )
    return f"{{mesh[{axes}]{order}, {HLO_LISTS.dims_text(sharding)}{class_texts}}}"


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
    """Read `, device_ids=(...)` if it is next; return the ids by position in the mesh.

    The ids are a list, as in `(2, 0, 1)`, or an iota, as in `([4,2]T(1,0))`. Otherwise return None
    and consume nothing.
    """
    start = reader.skip()
    # The comma may also be followed by dimensions, so look ahead and go back.
    if not (reader.word(",") and reader.word("device_ids")):
        reader.at = start
        return None
    reader.expect("=")
    reader.expect("(")
    start = reader.skip()
    # A bracket begins an iota, XLA's short form. A list has no bracket of its own.
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
    text_mesh = _sdy_mesh(reader, mesh)
    reader.expect(",")
    # A maximal sharding states no dimensions.
    rank = 0 if text_mesh.is_device else len(shape)
    dims = SDY_LISTS.dims(reader, text_mesh, rank)
    digits_of_kind = SDY_LISTS.classes(reader, text_mesh, SDY_KINDS)
    reader.expect(">")
    reader.end()
    if text_mesh.is_device:
        return on_device(reader, text_mesh.order[0], tuple(shape), mesh)
    return stated(reader, layout_of(text_mesh, tuple(shape), dims, digits_of_kind), mesh)


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
    class_texts = "".join(
        SDY_LISTS.class_text(kind, getattr(sharding, kind), sharding) for kind in SDY_KINDS
    )
    return f"#sdy.sharding<{where}, {dims}{class_texts}>"


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

    A symbol refers to a definition outside of the text, which is the mesh `given`. A mesh in full
    is `mesh<["x"=2, "y"=4], device_ids=[...]>`; without `device_ids`, ids are positions.

    Raises:
      NotationError: the text has a symbol and `given` is None, or the mesh is malformed.
    """
    start = reader.skip()
    # The symbol is an MLIR identifier, or a text in quotation marks. Its name is not compared.
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
