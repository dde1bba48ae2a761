"""Ranking of the orders in which mesh axes can be placed on links; products with idle mesh axes.

An axis is idle in a product if it shards none of the product's loops. All devices along the axis
then repeat the same work.
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
    """Return a table with a row per order of the mesh axes on the links, the fastest first.

    The first axis of an order is on the outermost links. JAX's own placement is the row "as JAX
    lays it". The column "seconds" is the time to receive `sent_bytes` along all axes. Each axis has
    a column with the bytes that a device receives per second in an all-gather along this axis.

    Args:
      topology: the topology or its text.
      sent_bytes: for each axis, bytes that a device receives along the axis per step, for example
        from `plan.collectives()`. The default is 1 GB along each axis.

    Raises:
      HardwareError: the mesh does not tile the topology in any order, an axis is unknown, or
        the bytes are negative or no finite numbers.

    >>> print(rank_device_orders(Mesh({"X": 8, "Y": 16}), "v3:8x8"))
    order             seconds  X_bytes_per_s  Y_bytes_per_s
    Y, X            0.0295984       9.68e+10       5.19e+10
    as JAX lays it   0.035345       4.15e+10       8.89e+10
    """
    machine = Topology.parse(topology) if isinstance(topology, str) else topology
    if not isinstance(mesh, Mesh) or not isinstance(machine, Topology):
        raise HardwareError(
            f"rank_device_orders takes a sa.Mesh and a topology such as 'v3:8x8', got {mesh!r:.80} "
            f"and {machine!r:.80}."
        )
    weights = _weights(mesh, sent_bytes)
    speeds_by_order = []
    for order in ((), *permutations(mesh.axis_names)):
        # An order that does not tile the topology has no row.
        try:
            speeds = {
                row["axis"]: row["bytes_per_s"] for row in replace_order(machine, order).axes(mesh)
            }
        except HardwareError:
            # A mesh of one axis has a single order, so its own error is the most precise one.
            if not order and len(mesh.axis_names) < 2:
                raise
            continue
        speeds_by_order.append((", ".join(order) or "as JAX lays it", speeds))
    if not speeds_by_order:
        machine.axes(mesh)  # raises the error of JAX's placement
    # Orders of equal speeds take equal time, so one row names the first of them.
    rows = {tuple(speeds.values()): (order, speeds) for order, speeds in reversed(speeds_by_order)}
    timed_rows = [
        (order, sum(n / speeds[name] for name, n in weights.items()), *speeds.values())
        for order, speeds in rows.values()
    ]
    speeds_of = (f"{name}_bytes_per_s" for name in mesh.axis_names)
    return Table(("order", "seconds", *speeds_of), tuple(sorted(timed_rows, key=lambda r: r[1])))


def _weights(mesh: Mesh, sent_bytes: Any) -> dict[str, float]:
    """Return the bytes that a device receives along each axis; 1 GB each if none are given.

    Axes that `sent_bytes` does not name are left out.

    Raises:
      HardwareError: a name is no axis of the mesh, or a number of bytes is negative or not finite.
    """
    if sent_bytes is None:
        return dict.fromkeys(mesh.axis_names, 1e9)

    def is_amount(value: Any) -> bool:
        """Return whether a value is a finite number from 0 on."""
        is_number = isinstance(value, int | float | np.number)
        return bool(is_number and math.isfinite(value) and value >= 0)

    is_valid = isinstance(sent_bytes, Mapping) and all(map(is_amount, sent_bytes.values()))
    if not is_valid or not all(name in mesh.axis_names for name in sent_bytes):
        raise HardwareError(
            f"sent_bytes={sent_bytes!r}: give bytes, numbers from 0, by the axes "
            f"{list(mesh.axis_names)}."
        )
    return dict(sent_bytes)


def replace_order(topology: Topology, order: Sequence[str]) -> Topology:
    """Return the same machine, on which mesh axes are placed in another order, outermost first."""
    return Topology(
        topology.hardware,
        topology.shape,
        slices=topology.slices,
        order=order,
        network_axes=topology.network_axes,
    )


@dataclass(frozen=True)
class Idle:
    """A product with idle mesh axes: axes along which all devices compute the same result.

    Attributes:
      node: number of the product's graph node.
      axes: names of the idle mesh axes.
      digits: the idle axes as digits of device positions.
      count: executions per step.
      flops: flops of one device per step, over all executions.
    """

    node: int
    axes: tuple[str, ...]
    digits: Digits
    count: int
    flops: int

    @property
    def redundant_flops(self) -> int | Fraction:
        """Flops that an even sharding along the axes would save: `flops * (1 - 1/devices)`."""
        devices = parts(self.digits)
        return quotient(self.flops * (devices - 1), devices)


def idle(program: SpmdProgram, graph: Graph) -> tuple[Idle, ...]:
    """Return the matrix products and convolutions with idle mesh axes, in order of execution."""
    found = (_idle(program, graph, step) for step in walk(program))
    return tuple(one for one in found if one is not None)


def redundant_flops(found: Iterable[Idle]) -> int | Fraction:
    """Return the flops per step that one device repeats in vain, summed over some products.

    Args:
      found: the products, each with axes along which all devices compute the same.
    """
    return sum(one.redundant_flops for one in found)


def _idle(program: SpmdProgram, graph: Graph, step: Execution) -> Idle | None:
    """Return the idle axes of an instruction; None if it is no product or has no idle axis."""
    attributes, node = step.instruction.attributes, step.instruction.node
    if type(attributes) is not Apply or node is None:
        return None
    signature = graph.nodes[node].signature
    # Other instructions of the node are no product themselves.
    if attributes.primitive != signature.primitive or not contracts(signature):
        return None
    # A manual region shards its axes by itself, so these axes are never idle in it.
    mesh, manual_axes = program.mesh, graph.manual_axes(graph.nodes[node].region)
    used_digits = [digit for _, digits in attributes.loops for digit in digits]
    idle_digits = {}
    for name, size in mesh.axes:
        digit = mesh.digit(name)
        if (
            size > 1
            and name not in manual_axes
            and not any(overlap(digit, other) for other in used_digits)
        ):
            idle_digits[name] = digit
    flops = signature_local_flops(signature, attributes.loops) * step.count
    return (
        Idle(node, tuple(idle_digits), tuple(idle_digits.values()), step.count, flops)
        if idle_digits
        else None
    )
