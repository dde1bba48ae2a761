"""In which order the axes of a mesh fill the links of a machine best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from shardalg.algebra.mesh import Mesh
from shardalg.costs.topology import Topology
from shardalg.errors import HardwareError
from shardalg.io.table import Table


def rank_device_orders(
    mesh: Mesh, topology: Topology | str, *, sent_bytes: Mapping[str, float] | None = None
) -> Table:
    """What each order of axes costs: seconds of gathers along all of them, the fastest first.

    The order says which axis fills the links from the outside; the first row may be JAX's own
    placement, whose order reads "as JAX lays it". Each axis has a column with the bytes that
    a device receives per second in a gather along this axis.

    Args:
      topology: or its text.
      sent_bytes: per axis, bytes that a device receives in a step along it, such as those of
        `plan.collectives()`; without it 1 GB along each.

    Raises:
      HardwareError: the mesh does not tile the topology in any order, an unknown axis, or bytes
        that are no numbers from 0.

    >>> print(rank_device_orders(Mesh({"X": 8, "Y": 16}), "v3:8x8"))
    order             seconds  X_bytes_per_s  Y_bytes_per_s
    Y, X            0.0295984       9.68e+10       5.19e+10
    as JAX lays it   0.035345       4.15e+10       8.89e+10
    """
    given = Topology.parse(topology) if isinstance(topology, str) else topology
    if not isinstance(mesh, Mesh) or not isinstance(given, Topology):
        raise HardwareError(
            f"rank_device_orders takes a sa.Mesh and a topology such as 'v3:8x8', got {mesh!r:.80} "
            f"and {given!r:.80}."
        )
    weights = _weights(mesh, sent_bytes)
    found = []
    for order in ((), *permutations(mesh.axis_names)):
        try:
            speeds = {
                row["axis"]: row["bytes_per_s"] for row in replace_order(given, order).axes(mesh)
            }
        except HardwareError:
            if not order and len(mesh.axis_names) < 2:
                raise
            continue
        found.append((", ".join(order) or "as JAX lays it", speeds))
    if not found:
        given.axes(mesh)
    rows = {tuple(speeds.values()): (order, speeds) for order, speeds in reversed(found)}
    timed = [
        (order, sum(n / speeds[name] for name, n in weights.items()), *speeds.values())
        for order, speeds in rows.values()
    ]
    speeds_of = (f"{name}_bytes_per_s" for name in mesh.axis_names)
    return Table(("order", "seconds", *speeds_of), tuple(sorted(timed, key=lambda r: r[1])))


def _weights(mesh: Mesh, sent_bytes: Any) -> dict[str, float]:
    """Bytes along each axis that has any."""
    if sent_bytes is None:
        return dict.fromkeys(mesh.axis_names, 1e9)
    good = isinstance(sent_bytes, Mapping) and all(map(_is_amount, sent_bytes.values()))
    if not good or not all(name in mesh.axis_names for name in sent_bytes):
        raise HardwareError(
            f"sent_bytes={sent_bytes!r}: give bytes, numbers from 0, by the axes "
            f"{list(mesh.axis_names)}."
        )
    return dict(sent_bytes)


def _is_amount(value: Any) -> bool:
    number = isinstance(value, int | float | np.number)
    return bool(number and math.isfinite(value) and value >= 0)


def replace_order(topology: Topology, order: Sequence[str]) -> Topology:
    """The same machine, its links filled by axes in this order, outermost first."""
    return Topology(
        topology.hardware,
        topology.shape,
        slices=topology.slices,
        order=order,
        network_axes=topology.network_axes,
    )
