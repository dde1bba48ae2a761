"""How long one call of a program takes on a `Hardware`, and what it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardalg.costs.collectives import KINDS, axis_names, seconds, wire_bytes
from shardalg.costs.compute import (
    contracts,
    node_flops,
    operand_type,
    signature_local_flops,
    useful_flops,
)
from shardalg.costs.fusion import fused
from shardalg.costs.hardware import Hardware
from shardalg.costs.memory import Liveness, liveness
from shardalg.costs.walk import Step, local_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.spmd.program import Apply, Instruction, Loop, SpmdProgram
from shardalg.table import Table


@dataclass(frozen=True, slots=True)
class Item:
    """What the instructions of one kind, on the same axes, cost together on one device.

    Attributes:
      kind: "contraction", "other compute", or the kind of a collective.
      count: executions, trip counts included; flops, wire_bytes and time_s are of all of them.
    """

    kind: str
    axes: tuple[str, ...]
    role: str
    phase: str
    count: int
    flops: int
    wire_bytes: int | Fraction
    time_s: float

    @property
    def is_communication(self) -> bool:
        """Whether the item is a collective."""
        return self.kind in KINDS.values()


@dataclass(frozen=True, repr=False)
class Cost:
    """Price of one call of a program on one device of each kind of `hardware`.

    Attributes:
      items: compute and collectives by kind, axes, role and phase.
      useful_flops: of one call on global shapes (`costs.compute.useful_flops`).
      useful_s: seconds that these would keep one device at its peak.
      memory: bytes alive at the peak, by class.
    """

    hardware: Hardware
    devices: int
    items: tuple[Item, ...]
    useful_flops: int
    useful_s: float
    memory: Liveness

    @property
    def compute_s(self) -> float:
        """Seconds of the local operators: the longer of arithmetic and memory traffic of each."""
        return sum(item.time_s for item in self.items if not item.is_communication)

    @property
    def communication_s(self) -> float:
        """Seconds of the collectives, one after the other."""
        return sum(item.time_s for item in self.items if item.is_communication)

    @property
    def step_time_s(self) -> float:
        """`compute_s + communication_s`: no overlap."""
        return self.compute_s + self.communication_s

    @property
    def peak_memory_bytes(self) -> int:
        """Most bytes alive at once on one device."""
        return self.memory.peak_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within the memory of a device."""
        return self.peak_memory_bytes <= self.hardware.hbm_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations of one device, padding and repeated work included."""
        return sum(item.flops for item in self.items)

    @property
    def wire_bytes(self) -> int | Fraction:
        """Bytes that one device sends."""
        return sum(item.wire_bytes for item in self.items)

    @property
    def flops_utilization(self) -> float:
        """Useful share of what the devices could do: `useful_s / (devices * step_time_s)`."""
        return self.useful_s / (self.devices * self.step_time_s) if self.step_time_s else 0.0

    def table(self) -> Table:
        """A row per kind, axes, role and phase, the longest first."""
        ordered = sorted(self.items, key=lambda item: -item.time_s)
        rows = (
            (
                *(i.kind, ",".join(i.axes), i.role, i.phase),
                *(i.count, i.flops, number(i.wire_bytes), i.time_s),
            )
            for i in ordered
        )
        names = ("kind", "axes", "role", "phase", "count", "flops", "wire_bytes", "time_s")
        return Table(names, tuple(rows))

    def __repr__(self) -> str:
        full = "" if self.fits else f" (does not fit: {self.hardware.hbm_bytes:.4g} bytes)"
        return (
            f"Cost on {self.devices} x {self.hardware.name}: step {self.step_time_s:.4g} s "
            f"= compute {self.compute_s:.4g} s + communication {self.communication_s:.4g} s, "
            f"peak memory {self.peak_memory_bytes:.4g} bytes{full}, "
            f"flops utilization {self.flops_utilization:.1%}"
        )

    def _repr_html_(self) -> str:
        return f"<p>{self!r}</p>{self.table().to_html()}"


def number(value: int | Fraction) -> int | float:
    """An exact price as a table shows it: an int, or the nearest float."""
    return float(value) if type(value) is Fraction else value


def estimate(
    program: SpmdProgram,
    graph: Graph,
    hardware: Hardware,
    *,
    roles: Sequence[str] | None = None,
    donated: Sequence[int] = (),
) -> Cost:
    """Time and memory of one call of `program` on devices of one kind.

    Every instruction runs after the one before it: **no overlap** of compute and communication, and
    none of collectives on different axes. A contraction takes `max(flops / peak, bytes / memory
    bandwidth)`; other operators are fused into chains, of which only the ends move bytes to and
    from memory. A collective takes its ring bytes over the link plus the latency of its hops.
    Matrix units run at their peak: the estimate is a lower bound until it is calibrated.

    Args:
      roles: per graph value, for the classes of memory; None reads "unknown".
      donated: positions of the flattened arguments whose buffers the program may take over.
    """
    pricing = _Pricing(program, graph, hardware, fused(program, graph))
    sums: dict[tuple[str, tuple[str, ...], str, str], list] = defaultdict(lambda: [0, 0, 0, 0.0])
    steps = (s for s in walk(program) if type(s.instruction.attributes) is not Loop)
    for step in steps:
        key, prices = pricing.price(step)
        for place, price in enumerate(prices):
            sums[key][place] += price * step.count
    peaks = (node_flops(graph, n) / hardware.peak(operand_type(n.signature)) for n in graph.walk())
    return Cost(
        hardware,
        program.mesh.size,
        tuple(Item(*key, *prices) for key, prices in sums.items() if any(prices[1:])),
        useful_flops(graph),
        sum(peaks),
        liveness(program, graph, roles=roles, donated=donated, rebuild=hardware.rebuilds),
    )


Prices = tuple[int, int, int | Fraction, float]


@dataclass(frozen=True)
class _Pricing:
    """Prices of single instructions.

    Attributes:
      fused: local values that never reach memory.
    """

    program: SpmdProgram
    graph: Graph
    hardware: Hardware
    fused: frozenset[int]

    def price(self, step: Step) -> tuple[tuple[str, tuple[str, ...], str, str], Prices]:
        """(kind, axes, role, phase) of an instruction, and (1, flops, wire bytes, seconds)."""
        instruction = step.instruction
        kind = KINDS.get(type(instruction.attributes))
        if kind is None:
            return self.local(instruction)
        attributes, mesh = instruction.attributes, self.program.mesh
        size = local_bytes(self.program, instruction.operands)
        time_s = seconds(attributes, size, mesh=mesh, hardware=self.hardware)
        key = (kind, axis_names(mesh, attributes.digits), instruction.role, instruction.phase)
        return key, (1, 0, wire_bytes(attributes, size), time_s)

    def local(
        self, instruction: Instruction
    ) -> tuple[tuple[str, tuple[str, ...], str, str], Prices]:
        flops, time_s, kind = 0, 0.0, "other compute"
        if type(instruction.attributes) is Apply and instruction.node is not None:
            signature = self.graph.nodes[instruction.node].signature
            flops = signature_local_flops(signature, instruction.attributes.loops)
            time_s = flops / self.hardware.peak(operand_type(signature))
            kind = "contraction" if contracts(signature) else kind
        moved = [*dict.fromkeys(instruction.operands), *instruction.results]
        traffic = local_bytes(self.program, tuple(v for v in moved if v not in self.fused))
        time_s = max(time_s, traffic / self.hardware.hbm_bytes_per_s)
        return (kind, (), "", instruction.phase), (1, flops, 0, time_s)
