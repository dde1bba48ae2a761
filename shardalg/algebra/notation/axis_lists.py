"""Dimensions as lists of named axes, `[{'x', 'y':(2)2, ?}, {}]`, in HLO text and in Shardy's.

Both refuse a sub-axis that is the whole axis, neighbours that are one, and classes that are not in
the order of the mesh; so do we, so that every sharding has one text.

Source: xla/hlo/ir/mesh_and_axis.cc, named_sharding.cc; shardy/dialect/sdy/ir/verifiers.cc.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.layout import Layout
from shardalg.algebra.mesh import AxisRef, Mesh
from shardalg.algebra.notation.reader import MAX_DEVICES, Reader
from shardalg.algebra.notation.stated import Dim
from shardalg.errors import MeshError, ShardingError


@dataclass(frozen=True)
class Lists:
    """The grammar of one notation: its quotation mark, and whether dimensions have priorities."""

    quote: str
    priorities: bool

    def mesh_axes(self, reader: Reader) -> tuple[tuple[str, int], ...]:
        """`['x'=2,'y'=4]`, names and sizes."""
        start = reader.skip()
        reader.expect("[")
        pairs = reader.items(lambda: self._mesh_axis(reader), "]")
        if math.prod(size for _, size in pairs) > MAX_DEVICES:
            raise reader.error(f"a mesh of more than {MAX_DEVICES} devices", start)
        return pairs

    def dims(self, reader: Reader, mesh: Mesh, rank: int) -> tuple[Dim, ...]:
        """`[{'x'}, {?}]`, one entry per dimension of the tensor."""
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
        """`, replicated={'z'}, unreduced={'w'}`; each kind at most once."""
        held: dict[str, Digits] = {}
        while (start := reader.skip()) < len(reader.text) and reader.word(","):
            left = [kind for kind in kinds if kind not in held]
            kind = next((kind for kind in left if reader.word(kind)), None)
            if kind is None:
                reader.at = start
                break
            reader.expect("=")
            reader.expect("{")
            held[kind] = self._class(reader, mesh)
        return held

    def dims_text(self, sharding: Layout) -> str:
        """The list of dimensions, printed."""
        rounds = sharding.priorities or (0,) * len(sharding.dims)
        shown = []
        for i, digits in enumerate(sharding.dims):
            names = self._names(digits, sharding)
            names += ["?"] if i in sharding.unspecified_dims else []
            suffix = f"p{rounds[i]}" if rounds[i] and self.priorities else ""
            shown.append(f"{{{', '.join(names)}}}{suffix}")
        return f"[{', '.join(shown)}]"

    def class_text(self, kind: str, digits: Digits, sharding: Layout) -> str:
        """`, replicated={'z'}`, or nothing where there are no such axes."""
        in_order = tuple(sorted(digits, reverse=True))
        names = self._names(in_order, sharding)
        return f", {kind}={{{', '.join(names)}}}" if names else ""

    def quoted(self, name: str) -> str:
        """An axis name in quotation marks."""
        if not name or self.quote in name or "\\" in name or not name.isprintable():
            raise ShardingError(
                f"the axis name {name!r} cannot stand between {self.quote}: rename the axis."
            )
        return f"{self.quote}{name}{self.quote}"

    def _names(self, digits: Digits, sharding: Layout) -> list[str]:
        try:
            refs = sharding.mesh.refs(digits)
        except MeshError as error:
            raise ShardingError(f"{sharding.text()} has no text that names axes: {error}") from None
        return [self.quoted(ref.name) + _sub_axis(ref) for ref in refs]

    def _mesh_axis(self, reader: Reader) -> tuple[str, int]:
        reader.one_more_axis(reader.skip())
        name = reader.quoted(self.quote, "an axis name")
        reader.expect("=")
        start = reader.skip()
        size = reader.number("the size of the axis")
        if size < 1:
            raise reader.error(f"axis {name!r} has size {size}, and sizes are at least 1", start)
        return name, size

    def _dim(self, reader: Reader, mesh: Mesh) -> Dim:
        start = reader.skip()
        reader.expect("{")
        refs, is_open, closed = [], False, reader.word("}")
        while not closed:
            is_open = reader.word("?")
            if not is_open:
                refs.append(self._axis(reader, mesh))
            closed = reader.expect("}" if is_open else ",", "}") == "}"
        digits = self._digits(reader, mesh, tuple(refs), start)
        return Dim(digits, is_open, self._priority(reader) if self.priorities else 0)

    def _priority(self, reader: Reader) -> int:
        if not reader.word("p"):
            return 0
        start = reader.at
        number = reader.number("a priority")
        if reader.text[start].isspace() or (reader.text[start] == "0" and reader.at > start + 1):
            raise reader.error("a priority is written p1, without space and leading zeros", start)
        return number

    def _class(self, reader: Reader, mesh: Mesh) -> Digits:
        start = reader.skip()
        refs = reader.items(lambda: self._axis(reader, mesh), "}")
        digits = self._digits(reader, mesh, refs, start)
        names = list(mesh.axis_names)
        places = [(names.index(ref.name), ref.pre) for ref in refs]
        if sorted(places) != places:
            raise reader.error(f"these axes stand in the order of {mesh!r}", start)
        return digits

    def _axis(self, reader: Reader, mesh: Mesh) -> AxisRef:
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
        size = mesh.shape[name]
        if ref.pre < 1 or ref.size in (0, 1, size) or size % (ref.pre * (ref.size or 1)):
            what = f"{ref!r} is no proper part of {name!r}, whose size is {size}"
            raise reader.error(what, start)
        return ref

    def _digits(self, reader: Reader, mesh: Mesh, refs: tuple[AxisRef, ...], start: int) -> Digits:
        digits = tuple(mesh.ref_digit(ref) for ref in refs)
        joined = mesh.refs(digits)
        if joined != refs:
            what = f"neighbouring sub-axes that are {', '.join(map(repr, joined))}"
            raise reader.error(what, start)
        return digits


def _sub_axis(ref: AxisRef) -> str:
    return "" if ref.size is None else f":({ref.pre}){ref.size}"
