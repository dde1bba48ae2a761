"""In which order the axes of a mesh fill the links of a machine best.

Idle axes: products that several devices compute alike, as an axis is on none of their loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np

from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.algebra.mesh import Mesh
from shardalg.costs.compute import contracts, signature_local_flops
from shardalg.costs.topology import Topology
from shardalg.costs.walk import Execution, walk
from shardalg.errors import HardwareError
from shardalg.graph.ir import Graph
from shardalg.sizes.amounts import quotient
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table


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


@dataclass(frozen=True)
class Idle:
    """A product that is executed with axes on none of its loops.

    Attributes:
      node: of the graph; axes: the mesh axes that are idle; digits: theirs.
      count: executions per step.
      flops: of a device per step, over all executions; redundant_flops: those of them that other
        devices along the axes do as well, `flops * (1 - 1/devices along the axes)`.
    """

    node: int
    axes: tuple[str, ...]
    digits: Digits
    count: int
    flops: int

    @property
    def redundant_flops(self) -> int | Fraction:
        """What would not be done if the axes divided a loop evenly."""
        devices = parts(self.digits)
        return quotient(self.flops * (devices - 1), devices)


def idle(program: SpmdProgram, graph: Graph) -> tuple[Idle, ...]:
    """Matrix products and convolutions that repeat work along an axis, in program order."""
    found = (_idle(program, graph, step) for step in walk(program))
    return tuple(one for one in found if one is not None)


def redundant_flops(found: Iterable[Idle]) -> int | Fraction:
    """Of a device per step."""
    return sum(one.redundant_flops for one in found)


def _idle(program: SpmdProgram, graph: Graph, step: Execution) -> Idle | None:
    attributes, node = step.instruction.attributes, step.instruction.node
    if type(attributes) is not Apply or node is None:
        return None
    signature = graph.nodes[node].signature
    if attributes.primitive != signature.primitive or not contracts(signature):
        return None
    mesh, used = program.mesh, [d for _, digits in attributes.loops for d in digits]
    own = graph.manual_axes(graph.nodes[node].region)
    digits = {name: mesh.digit(name) for name, n in mesh.axes if n > 1 and name not in own}
    free = {n: d for n, d in digits.items() if not any(overlap(d, other) for other in used)}
    flops = signature_local_flops(signature, attributes.loops) * step.count
    return Idle(node, tuple(free), tuple(free.values()), step.count, flops) if free else None
