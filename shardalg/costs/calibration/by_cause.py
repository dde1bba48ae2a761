"""Seconds of a program at the datasheet's rates, by what takes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shardalg.costs.calibration.fused_chains import chains
from shardalg.costs.collectives import axis_names, moves, seconds_by_cause, wire_bytes
from shardalg.costs.compute import contracts, operand_type, shaped_flops
from shardalg.costs.cost import FORMATTING
from shardalg.costs.fusion import on_chip, traffic, unwritten
from shardalg.costs.hardware import Hardware
from shardalg.costs.matrix_unit import padded_flops, product_peak
from shardalg.costs.pipelines.overheads import pipeline_loops
from shardalg.costs.topology import Topology
from shardalg.costs.walk import Execution, sent_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.pause import collection_paused
from shardalg.sizes.points.lanes import Lanes, real
from shardalg.spmd.instruction import Collective, Instruction
from shardalg.spmd.instructions import Apply, Control
from shardalg.spmd.program import SpmdProgram

LOCAL = ("matrix", "rereads", "kernel", "kernel_rereads", "traffic", "passes")
MOVED = ("link", "network", "dcn", "latency")
CAUSES = (*LOCAL, *MOVED)
"""What takes time: operations of products at the peak; a byte of the memory beside the arithmetic
per operation of a product; both of products that a kernel keeps on the chip
(`costs.fusion.on_chip`); bytes that products, and pointwise operators before and behind them, move
from and to memory; those of chains that reduce; what collectives send over links, between hosts and
between slices; their hops.
"""


class Key(NamedTuple):
    """What is priced together, as in `costs.cost.Item`."""

    kind: str
    axes: tuple[str, ...]
    role: str
    phase: str


Quantities = Mapping[str, float]
"""Of "count", "flops", "wire_bytes" and `CAUSES`; what is not there is 0."""


@dataclass(frozen=True)
class Amounts:
    """What a program does, and the datasheet's seconds of it by cause.

    Attributes:
      rows: by kind, axes, role and phase.
      pipelined: whether its layers are stages of a pipeline (`costs.pipelines.overheads`).
    """

    rows: Mapping[Key, Quantities]
    pipelined: bool = False

    def __add__(self, other: Amounts) -> Amounts:
        """Both together."""
        keys = dict.fromkeys((*self.rows, *other.rows))
        rows = {key: _sum(self.rows.get(key), other.rows.get(key)) for key in keys}
        return Amounts(rows, self.pipelined or other.pipelined)

    def __mul__(self, factor: float) -> Amounts:
        """So many times."""
        rows = self.rows.items()
        made = {k: {name: factor * n for name, n in row.items()} for k, row in rows}
        return replace(self, rows=made)

    def by_cause(self) -> dict[str, float]:
        """Seconds of each cause.

        >>> key = Key("contraction", (), "", "forward")
        >>> found = (Amounts({key: {"matrix": 1.0}}) * 3).by_cause()
        >>> found["matrix"], found["link"]
        (3.0, 0.0)
        """
        return {c: sum(row.get(c, 0.0) for row in self.rows.values()) for c in CAUSES}


def _sum(one: Quantities | None, other: Quantities | None) -> Quantities:
    first, second = one or {}, other or {}
    names = dict.fromkeys((*first, *second))
    return {name: first.get(name, 0) + second.get(name, 0) for name in names}


@collection_paused()
def amounts(program: SpmdProgram, graph: Graph, machine: Hardware | Topology) -> Amounts:
    """What one call of a program in numbers does on one device, which may share its cores."""
    work = _Split(program, graph, machine.shared(program.mesh.size))
    rows: dict[Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for step in walk(program):
        if isinstance(step.instruction.attributes, Control):
            continue
        key, quantities = work.moved(step) if moves(step) else work.computed(step.instruction)
        for name, amount in quantities:
            rows[key][name] += real(amount * step.count)
    made = {key: dict(row) for key, row in rows.items() if any(map(_is_some, row.values()))}
    return Amounts(made, pipelined=bool(pipeline_loops(graph)))


def _is_some(amount: Any) -> bool:
    """Whether it is not 0; lanes are 0 at some points at most."""
    return type(amount) is Lanes or bool(amount)


class _Split:
    """Quantities of single instructions."""

    def __init__(self, program: SpmdProgram, graph: Graph, machine: Hardware | Topology) -> None:
        self.program, self.graph, self.chip = program, graph, machine.chip
        self.kept = on_chip(program, graph)
        self.inside = unwritten(program, graph)
        self.chains = chains(program, graph, self.inside)
        self.spans = machine.wiring(program.mesh).spans

    def moved(self, step: Execution[Collective]) -> tuple[Key, Iterator[tuple[str, float]]]:
        """Of a collective."""
        instruction, attributes = step.instruction, step.instruction.attributes
        size = sent_bytes(self.program, instruction)
        found = seconds_by_cause(attributes, size, spans=self.spans)
        axes = axis_names(self.program.mesh, attributes.digits)
        key = Key(attributes.sent_as, axes, instruction.role, instruction.phase)
        sent = ("count", 1), ("wire_bytes", wire_bytes(attributes, size))
        return key, iter((*sent, *found.items()))

    def computed(self, instruction: Instruction) -> tuple[Key, Iterator[tuple[str, float]]]:
        """Of a local operator."""
        found = {"count": 1.0, **self.traffic(instruction)}
        if type(instruction.attributes) is not Apply or instruction.node is None:
            return Key(FORMATTING, (), "", instruction.phase), iter(found.items())
        signature = self.graph.nodes[instruction.node].signature
        values = (*instruction.operands, *instruction.results)
        shapes = tuple([self.program.locals[v].shape for v in values])
        flops = found["flops"] = shaped_flops(signature, shapes)
        kind = "other compute"
        if contracts(signature):
            kind, peak = "contraction", product_peak(self.chip, operand_type(signature))
            kept = not self.kept.isdisjoint(values)
            arithmetic, rereads = ("kernel", "kernel_rereads") if kept else ("matrix", "rereads")
            whole = padded_flops(signature, shapes, self.chip.matrix_unit)
            found |= {arithmetic: real(whole) / peak, rereads: flops / self.chip.sram_bytes_per_s}
        return Key(kind, (), "", instruction.phase), iter(found.items())

    def traffic(self, instruction: Instruction) -> dict[str, float]:
        """Seconds of the bytes that a local operator moves from and to memory."""
        held, speed = self.program.locals, self.chip.hbm_bytes_per_s
        moved = sum(held[v].bytes for v in traffic(instruction, self.inside))
        cause = "traffic" if self.chains.along(instruction) else "passes"
        return {cause: moved / speed}
