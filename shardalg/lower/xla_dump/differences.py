"""Differences between the collectives of a compiled program and the planned ones, with reasons.

Each instruction of a program is lowered under a name, "at_v7" for the one with result 7. XLA keeps
the names of its operators, so that each compiled collective belongs to one instruction. An
instruction may be lowered as several collectives; they are compared together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from shardalg.algebra.digits import Digit, Digits, canonical
from shardalg.algebra.mesh import Mesh
from shardalg.costs.collectives import is_collective, wire_bytes
from shardalg.costs.walk import sent_bytes, walk
from shardalg.lower.emit.emitter import SCOPE
from shardalg.lower.xla_dump.hlo_collectives import HloCollective, collectives
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table

COLUMNS = (
    "instruction", "kind", "mesh_axes", "wire_bytes", "compiled_kind", "compiled_mesh_axes",
    "compiled_wire_bytes", "reason",
)  # fmt: skip
MERGED = "merged: XLA computes equal operators once"
COMBINED = "combined: XLA sends several values as one"
KIND = "turned into another kind"
REMOVED = "removed: XLA found it redundant"
ADDED = "added by XLA"
OTHER_BYTES = "sends other bytes"
_PART = re.compile(r":\((\d+)\)(\d+)$")
_NAME = re.compile(rf"{SCOPE}(\d+)\b")
_TOLERANCE = 1
"""Allowed difference in bytes per compiled collective, because each one's bytes are rounded."""


@dataclass(frozen=True)
class Sent:
    """The collectives of one instruction; bytes are the sum per device and execution."""

    kinds: tuple[str, ...]
    axes: tuple[str, ...]
    wire_bytes: int

    def equals(self, other: Sent, mesh: Mesh) -> bool:
        """Return whether compiled collectives have the kinds, axes and bytes of these planned ones.

        XLA may split one collective into several, so only the set of kinds counts, and the sum of
        the bytes.

        Args:
          other: the compiled collectives of the same instruction.
          mesh: the mesh of the axes' names.
        """
        # Bytes of each collective are rounded, so the error grows with the number of collectives.
        difference = abs(self.wire_bytes - other.wire_bytes)
        has_same_bytes = difference <= _TOLERANCE * max(1, len(other.kinds))
        if not has_same_bytes or set(self.kinds) != set(other.kinds):
            return False
        if self.kinds == ("collective_permute",):
            # A permute has pairs, no groups: an axis counts if one pair differs along it.
            return {_axis(name) for name in other.axes} <= {_axis(name) for name in self.axes}
        # Names differ where one axis is written as several sub-axes; their digits do not.
        return _digits(self.axes, mesh) == _digits(other.axes, mesh)

    def cells(self) -> tuple[str, str, int]:
        """Return the cells of a table row: kinds, axes and bytes."""
        return ", ".join(dict.fromkeys(self.kinds)), ",".join(self.axes), self.wire_bytes


NOTHING = Sent((), (), 0)


def _axis(name: str) -> str:
    """Return the mesh axis of a name; a sub-axis such as "X:(2)4" is part of axis "X"."""
    return name.partition(":(")[0]


def _digits(names: Sequence[str], mesh: Mesh) -> Digits | None:
    """Return the digits of axes and sub-axes in canonical form; None if one is unknown.

    A digit is (stride, size) in the device position. On X=8, Y=2 the sub-axis `X:(2)4` has the
    stride 2 and the size 4.

    Args:
      names: axes such as "X", and sub-axes such as "X:(2)4".
    """
    found = []
    for name in names:
        part = _PART.search(name)
        if _axis(name) not in mesh.axis_names:
            return None
        digit = mesh.digit(_axis(name))
        # `X:(2)4` is the factor of size 4 after the major factor 2 of axis X.
        if part:
            before, size = int(part[1]), int(part[2])
            digit = Digit(digit.stride * digit.size // (before * size), size)
        found.append(digit)
    return canonical(tuple(sorted(found, reverse=True)))


def planned_collectives(program: SpmdProgram) -> dict[int, Sent]:
    """Return the kind, axes and bytes of each collective of the program that sends bytes.

    A key is the number of the instruction's first result.
    """
    found = {}
    for step in walk(program):
        attributes = step.instruction.attributes
        if is_collective(attributes):
            sent = int(wire_bytes(attributes, sent_bytes(program, step.instruction)))
            # A permute in which all devices keep their blocks sends nothing, and XLA removes it.
            if sent:
                axes = tuple(program.mesh.texts(attributes.digits))
                found[step.instruction.results[0]] = Sent((attributes.sent_as,), axes, sent)
    return found


def compiled_collectives(text: str, program: SpmdProgram) -> dict[int | None, Sent]:
    """Return the kinds, axes and bytes of the compiled collectives of each planned instruction.

    A key is the number of the instruction's first result. The key None has the collectives that
    belong to no instruction.

    Args:
      text: the compiled program as HLO text.
    """
    # The lowered program gives each operation a name with the number of the instruction's result.
    # XLA keeps the name; the innermost one is the last.
    records_of: dict[int | None, list[HloCollective]] = defaultdict(list)
    for one in collectives(text, program.mesh, is_final=True):
        names = _NAME.findall(one.op_name)
        records_of[int(names[-1]) if names else None].append(one)
    # One instruction may be compiled to several collectives, whose bytes are added.
    found = {}
    for local, records in records_of.items():
        axes = tuple(dict.fromkeys(axis for one in records for axis in one.axes))
        sent = sum(int(one.wire_bytes) for one in records)
        found[local] = Sent(tuple(one.kind for one in records), axes, sent)
    return found


def differences(program: SpmdProgram, text: str) -> Table:
    """Return a table with a row per instruction whose compiled collectives are not as planned.

    A row has the instruction, the planned and the compiled kinds, axes and bytes, and the reason.

    Args:
      text: the compiled program as HLO text, `lowered.compiled.as_text()`.
    """
    all_planned, all_compiled = planned_collectives(program), compiled_collectives(text, program)
    rows = []
    # The key None has collectives that XLA added for no planned instruction: nothing is expected.
    for local in dict.fromkeys([*all_planned, *all_compiled]):
        planned = all_planned.get(local, NOTHING) if local is not None else NOTHING
        compiled = all_compiled.get(local, NOTHING)
        if not planned.equals(compiled, program.mesh):
            reason = _reason(planned, compiled, (all_planned, all_compiled))
            name = "" if local is None else f"%{local}"
            rows.append((name, *planned.cells(), *compiled.cells(), reason))
    return Table(COLUMNS, tuple(rows))


def _reason(
    planned: Sent, compiled: Sent, every: tuple[dict[int, Sent], dict[int | None, Sent]]
) -> str:
    """Return a text that says why an instruction's compiled collectives differ from the plan.

    Args:
      planned, compiled: the collectives of the instruction; either may be empty.
      every: all planned collectives, and all compiled ones, by the instruction's first result.
    """
    all_planned, all_compiled = every
    if not compiled.kinds:
        # XLA combines collectives of the same kind and axes: a larger one has this one's bytes.
        kinds = set(planned.kinds)
        same_kind = [
            other
            for other in all_compiled.values()
            if set(other.kinds) == kinds and other.axes == planned.axes
        ]
        if any(other.wire_bytes > planned.wire_bytes for other in same_kind):
            return COMBINED
        # If the plan has the same collective several times, and XLA kept at least one of these, the
        # other ones were merged into it.
        equal = [local for local, other in all_planned.items() if other == planned]
        is_merged = len(equal) > 1 and any(local in all_compiled for local in equal)
        return MERGED if is_merged else REMOVED
    if not planned.kinds:
        return ADDED
    if set(planned.kinds) != set(compiled.kinds):
        return KIND
    # More bytes than planned include those of a combined collective.
    return COMBINED if compiled.wire_bytes > planned.wire_bytes else OTHER_BYTES
