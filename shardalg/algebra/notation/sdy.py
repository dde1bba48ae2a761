"""Shardy's text: `#sdy.sharding<@mesh, [{"x", "y":(2)2, ?}p1, {}], replicated={"z"}>`.

The mesh is a symbol, or stands there itself: `mesh<["x"=2, "y"=4], device_ids=[...]>`. A mesh
without axes and with one id is that device alone.

Source: shardy/dialect/sdy/ir/attrs.td, parsers.cc, printers.cc.
"""

from __future__ import annotations

from shardalg.algebra.layout import Layout
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation.axis_lists import Lists
from shardalg.algebra.notation.reader import Reader
from shardalg.algebra.notation.stated import layout_of, on_device, stated
from shardalg.errors import MeshError, ShardingError

LISTS = Lists('"', priorities=True)
KINDS = ("replicated", "unreduced")
_EXAMPLE = '#sdy.sharding<@mesh, [{"x", "y":(2)2, ?}p1, {}], replicated={"z"}, unreduced={"w"}>'


def from_sdy(text: str, shape: tuple[int, ...], mesh: Mesh | None = None) -> Layout:
    """The sharding that Shardy's text gives a tensor of `shape`.

    Args:
      mesh: what `@mesh` stands for; a mesh that the text states is restated on it.

    >>> mesh = Mesh({"x": 2, "y": 8})
    >>> from_sdy('#sdy.sharding<@mesh, [{"x", "y":(2)2, ?}p1, {}]>', (8, 8), mesh)
    Sharding([(x, y:(2)2, ?)p1, None], shape=(8, 8), Mesh(x=2, y=8))

    Raises:
      NotationError: malformed text, with the column, or text that does not fit shape or mesh.
    """
    reader = Reader(text, "Shardy's sharding", _EXAMPLE)
    reader.word("#sdy.sharding")
    reader.expect("<")
    own = _mesh(reader, mesh)
    reader.expect(",")
    rank = 0 if own.is_device else len(shape)
    dims = LISTS.dims(reader, own, rank)
    held = LISTS.classes(reader, own, KINDS)
    reader.expect(">")
    reader.end()
    if own.is_device:
        return on_device(reader, own.order[0], tuple(shape), mesh)
    return stated(reader, layout_of(own, tuple(shape), dims, held), mesh)


def to_sdy(sharding: Layout, mesh_name: str | None = "mesh") -> str:
    """Shardy's text of a sharding.

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
      ShardingError: manual axes (they stand on Shardy's manual computations, not on values),
        digits that are no axes, or a mesh without axis names.
    """
    if sharding.manual:
        raise ShardingError(
            f"{sharding!r} has manual axes, for which Shardy's sharding of a value has no word: "
            "they belong to its manual_computation. Print it as HLO text."
        )
    if sharding.mesh.is_unnamed:
        raise ShardingError(f"{sharding!r} has no axis names, and Shardy's text needs them.")
    where = f"mesh<{mesh_text(sharding.mesh)}>" if mesh_name is None else f"@{mesh_name}"
    dims = "[]" if sharding.is_maximal else LISTS.dims_text(sharding)
    held = "".join(LISTS.class_text(kind, getattr(sharding, kind), sharding) for kind in KINDS)
    return f"#sdy.sharding<{where}, {dims}{held}>"


def mesh_text(mesh: Mesh) -> str:
    """Axes and device ids as Shardy states them.

    >>> mesh_text(Mesh({"x": 2, "y": 4}))
    '["x"=2, "y"=4]'
    """
    axes = ", ".join(f"{LISTS.quoted(name)}={size}" for name, size in mesh.axes)
    order = "" if mesh.device_ids is None else f", device_ids={list(mesh.device_ids)}"
    return f"[{axes}]{order}"


def _mesh(reader: Reader, given: Mesh | None) -> Mesh:
    """The mesh that stands here, or the one that its symbol means."""
    start = reader.skip()
    if reader.take(r'@(?:[A-Za-z_][A-Za-z0-9_$.]*|"[^"\\]+")'):
        if given is None:
            raise reader.error("this symbol needs its mesh; give one, or state it here", start)
        return given
    reader.expect("mesh", "@")
    reader.expect("<")
    axes = LISTS.mesh_axes(reader)
    order = None
    if reader.word(","):
        for word in ("device_ids", "=", "["):
            reader.expect(word)
        order = reader.numbers("a device id", "]")
    reader.expect(">")
    try:
        return Mesh(axes, order)
    except MeshError as error:
        raise reader.error(str(error), start) from None
