"""HLO sharding text of version 3: `{mesh['x'=2,'y'=4], [{'x'}, {?}], unreduced={'y'}}`.

Device ids stand behind the mesh as a list or as an iota, `device_ids=([4,2]T(1,0))`; the layout
that holds one class over all axes is the word alone, `{mesh['x'=2], manual}`.

Source: xla/hlo/ir/mesh_and_axis.cc, named_sharding.cc; xla/hlo/parser/hlo_parser.cc.
"""

from __future__ import annotations

from shardalg.algebra.digits import Digits
from shardalg.algebra.layout import Layout
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation.axis_lists import Lists
from shardalg.algebra.notation.iota import iota, iota_order, iota_text, listed
from shardalg.algebra.notation.reader import Reader
from shardalg.algebra.notation.stated import layout_of, on_device, stated, whole
from shardalg.errors import MeshError, ShardingError

LISTS = Lists("'", priorities=False)
KINDS = ("replicated", "unreduced", "manual")


def read(reader: Reader, shape: tuple[int, ...], mesh: Mesh | None) -> Layout:
    """The named sharding that stands here, within its braces; restated where `mesh` is given."""
    if reader.word("maximal_mesh"):
        for word in ("[", "device_id", "="):
            reader.expect(word)
        made = on_device(reader, reader.number("a device id"), shape, mesh)
        reader.expect("]")
        return made
    reader.expect("mesh")
    own = _mesh(reader)
    reader.word(",")
    found = _whole(reader, own, shape)
    if found is None:
        dims = LISTS.dims(reader, own, len(shape))
        found = layout_of(own, shape, dims, LISTS.classes(reader, own, KINDS))
    if reader.word(","):
        for word in ("metadata", "=", "{"):
            reader.expect(word)
        reader.metadata()
    return stated(reader, found, mesh)


def text(sharding: Layout) -> str:
    """HLO text of version 3. It has no word for priorities.

    Raises:
      ShardingError: digits that are no axes, or a mesh without axis names.
    """
    mesh = sharding.mesh
    if sharding.is_maximal:
        return f"{{maximal_mesh[device_id={mesh.order[0]}]}}"
    if mesh.is_unnamed:
        raise ShardingError(
            f"{sharding!r} has no axis names, and HLO text of version 3 needs them."
        )
    axes = ",".join(f"{LISTS.quoted(name)}={size}" for name, size in mesh.axes)
    order = ""
    if mesh.device_ids is not None:
        order = f", device_ids=({iota_text(mesh.device_ids) or listed(mesh.device_ids)})"
    held = "".join(LISTS.class_text(kind, getattr(sharding, kind), sharding) for kind in KINDS)
    return f"{{mesh[{axes}]{order}, {LISTS.dims_text(sharding)}{held}}}"


def _mesh(reader: Reader) -> Mesh:
    start = reader.skip()
    axes = LISTS.mesh_axes(reader)
    order = _device_ids(reader)
    try:
        return Mesh(axes, order)
    except MeshError as error:
        raise reader.error(str(error), start) from None


def _device_ids(reader: Reader) -> tuple[int, ...] | None:
    start = reader.skip()
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
    """One class over all axes, said by its word alone; for "replicated" there are none."""
    kind = next((kind for kind in KINDS if reader.word(kind)), None)
    if kind is None:
        return None
    digits: Digits = () if kind == "replicated" else mesh.digits(mesh.axis_names)
    return whole(mesh, shape, **{kind: digits})
