"""Seconds of a program at the datasheet's rates, by what takes them.

Chains of operators that a compiler fuses: which go along with a product.

A chain is what pointwise operators, and reductions, make of each other without memory between
them. One without a reduction that stands before or behind a product is carried out with it, while
the matrix unit works. A reduction must end before what it gives is spread over its operand again:
such a chain is a kernel of its own (softmax, norms), and so is one that is next to no product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from shardalg.algebra.digits import Digits
from shardalg.costs.collectives import axis_names, moves, seconds_by_cause, wire_bytes
from shardalg.costs.compute import contracts, operand_type, shaped_flops
from shardalg.costs.cost import FORMATTING
from shardalg.costs.fusion import fuses, is_view, on_chip, reduces, traffic, unwritten, viewed
from shardalg.costs.hardware import Hardware
from shardalg.costs.matrix_unit import padded_flops, product_peak
from shardalg.costs.network.placement import DigitSpan
from shardalg.costs.pipelines.overheads import pipeline_loops
from shardalg.costs.topology import Topology
from shardalg.costs.walk import Execution, sent_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.pause import collection_paused
from shardalg.spmd.instruction import Collective, Instruction
from shardalg.spmd.instructions import Apply, Control
from shardalg.spmd.program import SpmdProgram


@dataclass(frozen=True)
class Chains:
    """What is fused in a program.

    Attributes:
      with_products: by the identity of an instruction, whether its chain goes along with a product.
    """

    with_products: Mapping[int, bool]

    def along(self, instruction: Instruction) -> bool:
        """Whether an instruction is a product, or is carried out with one."""
        return self.with_products.get(id(instruction), True)


def chains(program: SpmdProgram, graph: Graph, inside: frozenset[int]) -> Chains:
    """The chains of a program; `inside` as `costs.fusion.fused` and `on_chip` give it."""
    steps = [step.instruction for step in walk(program)]
    fusing = [ins for ins in steps if fuses(ins, graph)]
    products = [ins for ins in steps if _is_product(ins, graph)]
    made = {value: place for place, ins in enumerate(fusing) for value in ins.results}
    joined = _UnionFind(len(fusing))
    for place, ins in enumerate(fusing):
        for value in ins.operands:
            if value in made and (value in inside or is_view(fusing[made[value]])):
                joined.join(place, made[value])
    by_product = {v for ins in products for v in ins.results}
    for_product = {v for ins in products for v in ins.operands}
    views = [ins for ins in fusing if is_view(ins)]
    for ins in views:
        by_product.update(made for value, made in viewed(ins) if value in by_product)
    for ins in reversed(views):
        for_product.update(value for value, made in viewed(ins) if made in for_product)
    touches = {
        joined.first(place)
        for place, ins in enumerate(fusing)
        if not by_product.isdisjoint(ins.operands) or not for_product.isdisjoint(ins.results)
    }
    summing = {joined.first(place) for place, ins in enumerate(fusing) if reduces(ins, graph)}
    along = {id(ins): joined.first(place) in touches - summing for place, ins in enumerate(fusing)}
    return Chains(along)


class _UnionFind:
    """Numbers that were joined, directly or through others, have one first number."""

    def __init__(self, count: int) -> None:
        self.above = list(range(count))

    def first(self, number: int) -> int:
        """Of those that a number was joined with."""
        while self.above[number] != number:
            self.above[number] = number = self.above[self.above[number]]
        return number

    def join(self, one: int, other: int) -> None:
        """Make two numbers, and all that they were joined with, one."""
        self.above[self.first(one)] = self.first(other)


def _is_product(instruction: Instruction, graph: Graph) -> bool:
    return type(instruction.attributes) is Apply and not fuses(instruction, graph)


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
class ProgramAmounts:
    """What a program does, and the datasheet's seconds of it by cause.

    Attributes:
      rows: by kind, axes, role and phase.
      pipelined: whether its layers are stages of a pipeline (`costs.pipelines.overheads`).
    """

    rows: Mapping[Key, Quantities]
    pipelined: bool = False

    def __add__(self, other: ProgramAmounts) -> ProgramAmounts:
        """Both together."""
        keys = dict.fromkeys((*self.rows, *other.rows))
        rows = {key: _sum(self.rows.get(key), other.rows.get(key)) for key in keys}
        return ProgramAmounts(rows, self.pipelined or other.pipelined)

    def __mul__(self, factor: float) -> ProgramAmounts:
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


@dataclass(frozen=True)
class _Moved:
    """Quantities of a collective that is executed so often, by the bytes that a device holds."""

    attributes: Collective
    spans: Callable[[Digits], tuple[DigitSpan, ...]]

    def __call__(self, size: Any, count: Any) -> dict[str, float]:
        found = seconds_by_cause(self.attributes, size, spans=self.spans)
        sent = {"count": 1, "wire_bytes": wire_bytes(self.attributes, size), **found}
        return {name: float(amount * count) for name, amount in sent.items()}


@dataclass(frozen=True)
class _Computed:
    """Quantities of a local operator that is executed so often, by its operations and bytes.

    Attributes:
      rates: per amount its quantity, and what it is divided by to be seconds; None if it is none.
    """

    rates: tuple[tuple[str, float | None], ...]

    def __call__(self, *amounts: Any) -> dict[str, float]:
        *given, count = amounts
        found = {"count": 1.0 * count}
        for (name, rate), amount in zip(self.rates, given, strict=True):
            found[name] = float(amount * count) if rate is None else float(amount) / rate * count
        return found


class InstructionWork(NamedTuple):
    """An instruction's part of a program's work: a function of numbers, and the sizes for it."""

    key: Key
    quantities: Callable[..., Mapping[str, float]]
    sizes: tuple[Any, ...]


@dataclass(frozen=True)
class Work:
    """What one call of a program does on one device, step by step, in the program's own sizes.

    Attributes:
      pipelined: as in `ProgramAmounts`.
    """

    steps: tuple[InstructionWork, ...]
    pipelined: bool

    def amounts(self, each: Callable[..., Mapping[str, Any]] | None = None) -> ProgramAmounts:
        """Sum the quantities of all steps.

        Args:
          each: calls a function on sizes; at many points of a program in formulas it is
            `ExactPoints.each`, and the quantities are arrays. Default: sizes are numbers.
        """
        rows: dict[Key, dict[str, Any]] = defaultdict(dict)
        for key, quantities, sizes in self.steps:
            row = rows[key]
            found = quantities(*sizes) if each is None else each(quantities, *sizes)
            for name, amount in found.items():
                row[name] = row[name] + amount if name in row else amount
        made = {key: row for key, row in rows.items() if any(map(np.any, row.values()))}
        return ProgramAmounts(made, self.pipelined)


def amounts(program: SpmdProgram, graph: Graph, machine: Hardware | Topology) -> ProgramAmounts:
    """What one call of a program in numbers does on one device, which may share its cores."""
    return work(program, graph, machine).amounts()


@collection_paused()
def work(program: SpmdProgram, graph: Graph, machine: Hardware | Topology) -> Work:
    """The work of a program, whose sizes are numbers or recorded."""
    split = _Split(program, graph, machine.shared(program.mesh.size))
    steps = tuple(
        split.moved(step) if moves(step) else split.computed(step)
        for step in walk(program)
        if not isinstance(step.instruction.attributes, Control)
    )
    return Work(steps, bool(pipeline_loops(graph)))


class _Split:
    """Steps of single instructions."""

    def __init__(self, program: SpmdProgram, graph: Graph, machine: Hardware | Topology) -> None:
        self.program, self.graph, self.chip = program, graph, machine.chip
        self.kept = on_chip(program, graph)
        self.inside = unwritten(program, graph)
        self.chains = chains(program, graph, self.inside)
        self.spans = machine.wiring(program.mesh).spans

    def moved(self, step: Execution[Collective]) -> InstructionWork:
        """Of a collective."""
        instruction, attributes = step.instruction, step.instruction.attributes
        axes = axis_names(self.program.mesh, attributes.digits)
        key = Key(attributes.sent_as, axes, instruction.role, instruction.phase)
        size = sent_bytes(self.program, instruction)
        return InstructionWork(key, _Moved(attributes, self.spans), (size, step.count))

    def computed(self, step: Execution) -> InstructionWork:
        """Of a local operator."""
        instruction, held = step.instruction, self.program.locals
        cause = "traffic" if self.chains.along(instruction) else "passes"
        moved = sum(held[v].bytes for v in traffic(instruction, self.inside))
        found: dict[str, tuple[Any, float | None]] = {cause: (moved, self.chip.hbm_bytes_per_s)}
        kind = FORMATTING
        if type(instruction.attributes) is Apply and instruction.node is not None:
            signature = self.graph.nodes[instruction.node].signature
            values = (*instruction.operands, *instruction.results)
            shapes = tuple([held[v].shape for v in values])
            flops = shaped_flops(signature, shapes)
            found["flops"] = flops, None
            kind = "other compute"
            if contracts(signature):
                kind, peak = "contraction", product_peak(self.chip, operand_type(signature))
                kept = not self.kept.isdisjoint(values)
                arithmetic, rereads = (
                    ("kernel", "kernel_rereads") if kept else ("matrix", "rereads")
                )
                whole = padded_flops(signature, shapes, self.chip.matrix_unit)
                found |= {arithmetic: (whole, peak), rereads: (flops, self.chip.sram_bytes_per_s)}
        rates = tuple((name, rate) for name, (_, rate) in found.items())
        sizes = (*(amount for amount, _ in found.values()), step.count)
        return InstructionWork(Key(kind, (), "", instruction.phase), _Computed(rates), sizes)
