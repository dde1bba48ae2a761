"""The collectives of XLA's own program, under the prices that a plan's have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import AxisRef, Mesh
from shardalg.costs.hardware import Hardware
from shardalg.costs.network.collective_seconds import collective_s
from shardalg.costs.topology import Topology
from shardalg.io.table import Table
from shardalg.lower.xla_dump.hlo_collectives import HloCollective
from shardalg.sizes.sums import total

COLUMNS = ("kind", "mesh_axes", "executions", "wire_bytes_per_step", "time_s")
_SUB_AXIS = re.compile(r"(?P<name>.+):\((?P<pre>\d+)\)(?P<size>\d+)")
UNNAMED = "?"


def xla_prices(
    collectives: Iterable[HloCollective], mesh: Mesh, hardware: Hardware | Topology
) -> Table:
    """A row per kind and axes, and one for all: executions, wire bytes and seconds of a step.

    An all-reduce of which each device keeps a block is priced as the reduce-scatter that TPUs and
    GPUs make of it. Groups that no axes of the mesh say have bytes and no seconds: the last row is
    then a lower bound.
    """
    spans = hardware.wiring(mesh).spans
    sums: dict[tuple[str, str], list[Any]] = {}
    for one in collectives:
        kind = "reduce_scatter" if one.is_scattered else one.kind
        row = sums.setdefault((kind, ",".join(one.axes)), [0, 0, 0.0])
        row[0] += one.count
        row[1] += one.count * one.wire_bytes
        if row[2] is not None and UNNAMED not in one.axes:
            taken = collective_s(kind, spans(_digits(mesh, one.axes)), one.operand_bytes)
            row[2] += one.count * float(total(taken.values()))
        else:
            row[2] = None
    return Table(COLUMNS, tuple(_rows(sums)))


def _rows(sums: dict[tuple[str, str], list[Any]]) -> Iterator[tuple[Any, ...]]:
    yield from ((*key, *row) for key, row in sums.items())
    count, sent, time_s = (
        sum(row[at] for row in sums.values() if row[at] is not None) for at in range(3)
    )
    yield "all", "", count, sent, time_s


def _digits(mesh: Mesh, axes: Iterable[str]) -> Digits:
    return tuple(mesh.ref_digit(_ref(text)) for text in axes)


def _ref(text: str) -> AxisRef:
    found = _SUB_AXIS.fullmatch(text)
    return AxisRef(text) if found is None else AxisRef(found["name"], int(found[2]), int(found[3]))
