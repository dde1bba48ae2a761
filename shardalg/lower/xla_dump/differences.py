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

        Args:
          other: the compiled collectives of the same instruction.
        """
        near = abs(self.wire_bytes - other.wire_bytes) <= _TOLERANCE * max(1, len(other.kinds))
        if not near or set(self.kinds) != set(other.kinds):
            return False
        if self.kinds == ("collective_permute",):
            # A permute has pairs, no groups: an axis counts if one pair differs along it.
            return {_axis(name) for name in other.axes} <= {_axis(name) for name in self.axes}
        return _digits(self.axes, mesh) == _digits(other.axes, mesh)

    def cells(self) -> tuple[str, str, int]:
        """Return the cells of a table row: kinds, axes and bytes."""
        return ", ".join(dict.fromkeys(self.kinds)), ",".join(self.axes), self.wire_bytes


NOTHING = Sent((), (), 0)


def _axis(name: str) -> str:
    """Return the mesh axis of a name; a sub-axis such as "X:(2)4" is part of axis "X"."""
    return name.partition(":(")[0]


def _digits(names: Sequence[str], mesh: Mesh) -> Digits | None:
    """Return the digits of axes and sub-axes in canonical form; None if one is unknown."""
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
    """Return the collective of each instruction that sends bytes.

    A key is the number of the instruction's first result.
    """
    found = {}
    for step in walk(program):
        what = step.instruction.attributes
        if is_collective(what):
            sent = int(wire_bytes(what, sent_bytes(program, step.instruction)))
            if sent:
                axes = tuple(program.mesh.texts(what.digits))
                found[step.instruction.results[0]] = Sent((what.sent_as,), axes, sent)
    return found


def compiled_collectives(text: str, program: SpmdProgram) -> dict[int | None, Sent]:
    """Return the compiled collectives of each instruction of the program.

    A key is the number of the instruction's first result. The key None has the collectives that
    belong to no instruction.

    Args:
      text: the compiled program as HLO text.
    """
    found: dict[int | None, list[HloCollective]] = defaultdict(list)
    for one in collectives(text, program.mesh, is_final=True):
        names = _NAME.findall(one.op_name)
        found[int(names[-1]) if names else None].append(one)
    together = {}
    for local, records in found.items():
        axes = tuple(dict.fromkeys(axis for one in records for axis in one.axes))
        sent = sum(int(one.wire_bytes) for one in records)
        together[local] = Sent(tuple(one.kind for one in records), axes, sent)
    return together


def differences(program: SpmdProgram, text: str) -> Table:
    """Return a table with a row per instruction whose compiled collectives are not as planned.

    Args:
      text: the compiled program as HLO text, `lowered.compiled.as_text()`.
    """
    ours, theirs = planned_collectives(program), compiled_collectives(text, program)
    rows = []
    # The key None has collectives that XLA added for no planned instruction: nothing is expected.
    for local in dict.fromkeys([*ours, *theirs]):
        here = ours.get(local, NOTHING) if local is not None else NOTHING
        there = theirs.get(local, NOTHING)
        if not here.equals(there, program.mesh):
            reason = _reason(here, there, (ours, theirs))
            name = "" if local is None else f"%{local}"
            rows.append((name, *here.cells(), *there.cells(), reason))
    return Table(COLUMNS, tuple(rows))


def _reason(here: Sent, there: Sent, every: tuple[dict[int, Sent], dict[int | None, Sent]]) -> str:
    """Return why the planned collective `here` differs from the compiled ones, `there`.

    Args:
      every: all planned collectives, and all compiled ones, by the instruction's first result.
    """
    ours, theirs = every
    if not there.kinds:
        # XLA combines collectives of the same kind and axes: a larger one has this one's bytes.
        kinds = set(here.kinds)
        sums = [s for s in theirs.values() if set(s.kinds) == kinds and s.axes == here.axes]
        if any(other.wire_bytes > here.wire_bytes for other in sums):
            return COMBINED
        # If the plan has the same collective several times, and XLA kept at least one of these, the
        # other ones were merged into it.
        alike = [local for local, other in ours.items() if other == here]
        return MERGED if len(alike) > 1 and any(local in theirs for local in alike) else REMOVED
    if not here.kinds:
        return ADDED
    if set(here.kinds) != set(there.kinds):
        return KIND
    return COMBINED if there.wire_bytes > here.wire_bytes else OTHER_BYTES
