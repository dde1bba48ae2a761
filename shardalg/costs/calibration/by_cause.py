"""Seconds of a program at the data sheet's rates, by cause; chains of fused operators.

A chain consists of pointwise operators and reductions whose intermediate values are never in
memory. If a chain has no reduction and is next to a product, it runs together with the product,
while the matrix unit works. Every other chain is a kernel of its own. For example, a softmax or
a norm must end its reduction before it reads its operand again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from shardalg.costs.analyses.overlap import combined_all_reduces
from shardalg.costs.calibration.constants import SKIPPED, Calibration
from shardalg.costs.collectives import axis_names, moves, seconds_by_cause, wire_bytes
from shardalg.costs.compute import multiplies, operand_type, shaped_flops
from shardalg.costs.cost import FORMATTING, MATRIX, MEMORY, Item, measured_step_s
from shardalg.costs.fusion import (
    casts,
    fuses,
    is_view,
    kernel_bytes,
    on_chip,
    reduces,
    traffic,
    values_not_in_memory,
    view_pairs,
)
from shardalg.costs.hardware import Hardware
from shardalg.costs.kernels.causal_mask import causal_products
from shardalg.costs.kernels.fused_attention import with_recomputed
from shardalg.costs.kernels.kernel_price import is_kernel
from shardalg.costs.matrix_unit import padded_flops, product_peak
from shardalg.costs.network.collective_seconds import slices_joined
from shardalg.costs.network.placement import UnplacedAxes, Wiring
from shardalg.costs.pipelines.loops import pipeline_loops
from shardalg.costs.topology import Topology
from shardalg.costs.walk import Execution, sent_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.graph.union_find import UnionFind
from shardalg.pause import collection_paused
from shardalg.sizes.amounts import times
from shardalg.spmd.instruction import Collective, Instruction
from shardalg.spmd.instructions import Apply, Control
from shardalg.spmd.program import SpmdProgram


@dataclass(frozen=True)
class Chains:
    """Chains of fused operators in a program.

    Attributes:
      with_products: for the `id` of each instruction in a chain, whether the chain runs together
        with a product.
    """

    with_products: Mapping[int, bool]

    def along(self, instruction: Instruction) -> bool:
        """Return False if an instruction is in a chain that runs apart from products, else True.

        A chain is a sequence of operators that XLA fuses. Matrix products themselves are in no
        chain.
        """
        return self.with_products.get(id(instruction), True)


def chains(program: SpmdProgram, graph: Graph, inside: frozenset[int]) -> Chains:
    """Return the chains of fused operators in a program.

    Args:
      inside: values that are never in memory (`costs.fusion.values_not_in_memory`).
    """
    steps = [step.instruction for step in walk(program)]
    fusing = [ins for ins in steps if fuses(ins, graph)]
    products = [ins for ins in steps if type(ins.attributes) is Apply and not fuses(ins, graph)]
    # Two instructions are in one chain if a value between them is never in memory, or is a view.
    producer = {value: place for place, ins in enumerate(fusing) for value in ins.results}
    joined = UnionFind(len(fusing))
    for place, ins in enumerate(fusing):
        for value in ins.operands:
            if value in producer and (value in inside or is_view(fusing[producer[value]])):
                joined.join(place, producer[value])
    # The kernel of a product can run a chain next to it, too: one that reads the product's result
    # or a view of it, or that computes an operand, which the product may read through a view.
    product_results = {v for ins in products for v in ins.results}
    product_operands = {v for ins in products for v in ins.operands}
    views = [ins for ins in fusing if is_view(ins)]
    for ins in views:
        product_results.update(
            result for value, result in view_pairs(ins) if value in product_results
        )
    for ins in reversed(views):
        product_operands.update(
            value for value, result in view_pairs(ins) if result in product_operands
        )
    chains_at_products = {
        joined.root(place)
        for place, ins in enumerate(fusing)
        if not product_results.isdisjoint(ins.operands)
        or not product_operands.isdisjoint(ins.results)
    }
    # A reduction must end before its result is read, so a chain that has one cannot run inside of
    # a product's kernel.
    chains_with_sums = {
        joined.root(place) for place, ins in enumerate(fusing) if reduces(ins, graph)
    }
    chains_in_products = chains_at_products - chains_with_sums
    return Chains(
        {id(i): joined.root(place) in chains_in_products for place, i in enumerate(fusing)}
    )


LOCAL = ("matrix", "kernel", "traffic", "passes")
MOVED = ("link", "network", "dcn", "latency")
SLICES, STARTS = "slices", "starts"
CAUSES = (*LOCAL, *MOVED)
"""Causes of time, each with a calibration constant of its own.

"matrix": operations of products at the peak. "kernel": operations of products in attention
kernels, which reach another share of the peak. "traffic": bytes that products, and chains that run
together with products, move from and to memory. "passes": bytes of all other chains. "link",
"network", "dcn": bytes of collectives over links, between islands and between slices. "latency":
their hops. The quantity "slices" is the number of slices that a collective joins, "starts" the
number of messages.
"""


class Key(NamedTuple):
    """Properties of an instruction; the work of instructions that agree in all is added up.

    The fields are those of `costs.cost.Item`.
    """

    kind: str
    axes: tuple[str, ...]
    role: str
    phase: str


# Most instructions have few causes, so a missing key means 0. Keys are "count", "flops",
# "wire_bytes", "slices", "starts" and the names in `CAUSES`, whose amounts are seconds.
Quantities = Mapping[str, float]


@dataclass(frozen=True)
class ProgramAmounts:
    """Work of one call of a program on one device: flops, bytes, and seconds by cause.

    The seconds are those at the data sheet's rates; constants are applied later.

    Attributes:
      rows: for each kind, axes, role and phase, the amounts of its instructions together.
      pipelined: whether the layers are stages of a pipeline (`costs.pipelines.overheads`).
    """

    rows: Mapping[Key, Quantities]
    pipelined: bool = False

    def __add__(self, other: ProgramAmounts) -> ProgramAmounts:
        """Return the work of two programs together."""
        keys = dict.fromkeys((*self.rows, *other.rows))
        rows = {key: _sum(self.rows.get(key), other.rows.get(key)) for key in keys}
        return ProgramAmounts(rows, self.pipelined or other.pipelined)

    def __mul__(self, factor: float) -> ProgramAmounts:
        """Return the work with all amounts multiplied by a factor."""
        rows = self.rows.items()
        made = {k: {name: factor * n for name, n in row.items()} for k, row in rows}
        return replace(self, rows=made)

    def by_cause(self) -> dict[str, float]:
        """Return the seconds of each cause in `CAUSES`, over all instructions.

        >>> key = Key("contraction", (), "", "forward")
        >>> found = (ProgramAmounts({key: {"matrix": 1.0}}) * 3).by_cause()
        >>> found["matrix"], found["link"]
        (3.0, 0.0)
        """
        return {c: sum(row.get(c, 0.0) for row in self.rows.values()) for c in CAUSES}


def _sum(one: Quantities | None, other: Quantities | None) -> Quantities:
    """Return the sums of equal quantities; None counts as no quantities."""
    first, second = one or {}, other or {}
    names = dict.fromkeys((*first, *second))
    return {name: first.get(name, 0) + second.get(name, 0) for name in names}


@dataclass(frozen=True)
class _Moved:
    """Function from the bytes of a collective and its executions to counts, bytes and seconds.

    XLA sends several all-reduces as one message (`analyses.overlap.combined_all_reduces`). The
    first of them has the seconds of the whole message; the others have no seconds.

    Attributes:
      attributes: the collective.
      wiring: the links under the mesh axes.
    """

    attributes: Collective
    wiring: Wiring | UnplacedAxes

    def __call__(self, size: Any, *together_and_count: Any) -> dict[str, float]:
        """Return the work of all executions: their number, the bytes sent, and seconds by cause.

        Args:
          size: bytes of the operands on one device.
          together_and_count: bytes of each all-reduce in the same message, if any; at last the
            number of executions.
        """
        *message, count = together_and_count
        found = dict(seconds_by_cause(self.attributes, sum(message), wiring=self.wiring))
        # The first all-reduce of a message has the seconds of all, so that the others have none.
        if not message:
            found = {}
        elif found:
            found[STARTS] = 1
        # Published steps grow linearly with the number of slices, at the same bytes per slice.
        if (joined := slices_joined(self.wiring.spans(self.attributes.digits))) != 1:
            found[SLICES] = joined
        sent = {"count": 1, "wire_bytes": wire_bytes(self.attributes, size), **found}
        return {name: float(amount * count) for name, amount in sent.items()}


@dataclass(frozen=True)
class _Computed:
    """Function that computes the work of a local operator from its amounts and its executions.

    Attributes:
      rates: for each amount, (name of its quantity, rate that turns it into seconds). The rate is
        None for a quantity that is not in seconds, such as "flops".
      is_roofline: whether only the longest of the times counts, as at the rates of the data sheet.
    """

    rates: tuple[tuple[str, float | None], ...]
    is_roofline: bool = False

    def __call__(self, *amounts: Any) -> dict[str, float]:
        """Return the work of all executions: their number, flops, and seconds by cause.

        An amount divided by its rate is in seconds; one without a rate is kept, such as flops. On a
        roofline only the cause with the most seconds is kept.

        The arguments are the amounts of one execution, in the order of `rates`, and at last the
        number of executions.
        """
        *step_amounts, count = amounts
        work = {"count": 1.0 * count}
        for (name, rate), amount in zip(self.rates, step_amounts, strict=True):
            work[name] = float(amount * count) if rate is None else float(amount) / rate * count
        if self.is_roofline:
            # On a roofline, arithmetic and traffic overlap fully, so the longer one alone takes
            # time.
            times = [(work.pop(name), name) for name, rate in self.rates if rate is not None]
            longest, name = max(times, default=(0.0, "matrix"))
            work[name] = longest
        return work


class InstructionWork(NamedTuple):
    """Work of one instruction: a function, and the sizes that it is called with.

    Attributes:
      key: kind, axes, role and phase of the instruction.
      quantities: function from `sizes` to the amounts of work, such as seconds by cause.
      sizes: the arguments of the function: numbers, or numbers that record what is computed from
        them, so that it can be evaluated at other sizes.
    """

    key: Key
    quantities: Callable[..., Mapping[str, float]]
    sizes: tuple[Any, ...]


@dataclass(frozen=True)
class Work:
    """Work of one call of a program on one device, per instruction, before it is evaluated.

    Attributes:
      steps: the work of each instruction, as a function and its arguments.
      pipelined: whether the layers are stages of a pipeline.
    """

    steps: tuple[InstructionWork, ...]
    pipelined: bool

    def amounts(self, each: Callable[..., Mapping[str, Any]] | None = None) -> ProgramAmounts:
        """Return the work of all instructions, added up.

        Args:
          each: function that calls another function on sizes. `ExactPoints.each` does so at many
            values of named sizes, so that amounts become arrays. None calls it on numbers.
        """
        rows: dict[Key, dict[str, Any]] = defaultdict(dict)
        for key, quantities, sizes in self.steps:
            row = rows[key]
            quantities_by_name = quantities(*sizes) if each is None else each(quantities, *sizes)
            for name, amount in quantities_by_name.items():
                row[name] = row[name] + amount if name in row else amount
        # A row in which all amounts are 0, such as a view, would only lengthen the tables.
        nonzero_rows = {key: row for key, row in rows.items() if any(map(np.any, row.values()))}
        return ProgramAmounts(nonzero_rows, self.pipelined)


def amounts(program: SpmdProgram, graph: Graph, machine: Hardware | Topology) -> ProgramAmounts:
    """Return the work of one call of a program in numbers on one device."""
    return work(program, graph, machine).amounts()


@collection_paused()
def work(
    program: SpmdProgram, graph: Graph, machine: Hardware | Topology, *, as_priced: bool = False
) -> Work:
    """Return the work of each instruction of a program.

    The sizes of the program are numbers, or numbers that record what is computed from them.

    Args:
      machine: the chip or topology whose rates turn amounts into seconds.
      as_priced: whether an operator on a chip without constants has only the longer of its
        arithmetic and its traffic, as in prices. Otherwise it has both, as fits of constants need.
    """
    split = _Split(program, graph, machine.shared(program.mesh.size), as_priced)
    steps = tuple(
        split.moved(step) if moves(step) else split.computed(step)
        for step in walk(program)
        if not isinstance(step.instruction.attributes, Control)
    )
    return Work(steps, bool(pipeline_loops(graph)))


class _Split:
    """Computation of the work of single instructions of a program.

    Attributes:
      kept: local values that attention kernels keep on the chip.
      inside: local values that are never in memory.
      is_roofline: whether an operator has only the longer of its arithmetic and its traffic.
    """

    def __init__(
        self, program: SpmdProgram, graph: Graph, machine: Hardware | Topology, as_priced: bool
    ) -> None:
        """Compute the tables that all instructions need; the arguments are those of `work`."""
        self.program, self.graph, self.chip = program, graph, machine.chip
        self.kept = on_chip(program, graph)
        self.inside, self.casts = values_not_in_memory(program, graph), casts(program, graph)
        self.chains = chains(program, graph, self.inside)
        self.wiring = machine.wiring(program.mesh)
        self.together = combined_all_reduces(program.block)
        # At the rates of a data sheet, arithmetic and traffic of a kernel run at the same time, so
        # a price has only the longer of both (`step_time`).
        self.is_roofline = as_priced and self.chip.calibration.is_datasheet

    def moved(self, step: Execution[Collective]) -> InstructionWork:
        """Return the work of a collective: its bytes, the bytes of its message, and its executions.

        A message has several collectives that a compiler combines; alone, it is the collective
        itself.
        """
        instruction, attributes = step.instruction, step.instruction.attributes
        axes = axis_names(self.program.mesh, attributes.digits)
        key = Key(attributes.sent_as, axes, instruction.role, instruction.phase)
        size = sent_bytes(self.program, instruction)
        message = self.together.get(id(instruction), (instruction,))
        sizes = (sent_bytes(self.program, one) for one in message)
        return InstructionWork(key, _Moved(attributes, self.wiring), (size, *sizes, step.count))

    def computed(self, step: Execution) -> InstructionWork:
        """Return the work of a local operator: bytes and flops by the constant that scales them.

        Bytes belong to "traffic" or "passes". Flops of products, rounded up to the matrix unit's
        blocks, belong to "matrix", or to "kernel" inside of an attention kernel or another opaque
        one. Plain flops ("flops") are counted, and take no time.
        """
        instruction, planned_locals = step.instruction, self.program.locals
        # Measured steps move bytes at another rate next to products: it has a constant of its own.
        cause = "traffic" if self.chains.along(instruction) else "passes"
        moved = kernel_bytes(self.program, self.graph, instruction)
        if moved is None:
            moved = sum(
                planned_locals[v].bytes for v in traffic(instruction, self.inside, self.casts)
            )
        amount_and_rate: dict[str, tuple[Any, float | None]] = {
            cause: (moved, self.chip.hbm_bytes_per_s)
        }
        kind = FORMATTING
        if type(instruction.attributes) is Apply and instruction.node is not None:
            signature = self.graph.nodes[instruction.node].signature
            values = (*instruction.operands, *instruction.results)
            shapes = tuple([planned_locals[v].shape for v in values])
            flops = shaped_flops(signature, shapes)
            amount_and_rate["flops"] = flops, None
            kind = "other compute"
            is_product, dtype = multiplies(signature), operand_type(signature)
            if is_product or self.is_roofline:
                kind = "contraction" if is_product else kind
                peak = product_peak(self.chip, dtype) if is_product else self.chip.peak(dtype)
                is_in_kernel = is_kernel(signature) or not self.kept.isdisjoint(values)
                padded = padded_flops(signature, shapes, self.chip.matrix_unit)
                # The backward pass of a fused attention kernel computes its scores again.
                flops, padded = (
                    with_recomputed(self.graph, instruction.node, n) for n in (flops, padded)
                )
                amount_and_rate["flops"] = flops, None
                if is_in_kernel and not self.is_roofline:
                    # A causal mask hides half of an attention's products; the kernel skips it.
                    is_half_hidden = instruction.node in causal_products(self.graph)
                    executed = (
                        times(padded, SKIPPED)
                        if is_half_hidden and not is_kernel(signature)
                        else padded
                    )
                    amount_and_rate["kernel"] = executed, peak
                else:
                    amount_and_rate["matrix"] = padded, peak
        # `rates` and `sizes` have one order: an amount per cause. The number of executions is last.
        # A local operator sends nothing, so it has no mesh axes and no role in communication.
        rates = tuple((name, rate) for name, (_, rate) in amount_and_rate.items())
        sizes = (*(amount for amount, _ in amount_and_rate.values()), step.count)
        computed = _Computed(rates, self.is_roofline)
        key = Key(kind=kind, axes=(), role="", phase=instruction.phase)
        return InstructionWork(key, computed, sizes)


def items(done: ProgramAmounts, calibration: Calibration) -> tuple[Item, ...]:
    """Return the items of a cost: the seconds of each cause, multiplied by the constants.

    Shares of communication that computation hides are not applied here.

    Args:
      done: the work of a program, with seconds at the data sheet's rates.
      calibration: the constants of the chip.
    """
    # Products do not reach their peak: the constant is a share of the rate, so seconds are divided.
    weights = {
        "matrix": (MATRIX, 1 / calibration["matrix_efficiency"]),
        "kernel": (MATRIX, 1 / calibration["kernel_efficiency"]),
        "traffic": (MEMORY, calibration["traffic"]),
        "passes": (MEMORY, calibration["passes"]),
    }
    cost_items = []
    for key, row in done.rows.items():
        seconds: dict[str, float] = defaultdict(float)
        # The constant of links scales all causes of an all-reduce, latency too; otherwise the link
        # alone.
        link_weights = {"link": 1 / calibration["link_efficiency"]}
        if key.kind == "all_reduce":
            link_weights = dict.fromkeys(MOVED, 1 / calibration["link_efficiency"])
        for cause in CAUSES:
            if row.get(cause):
                name, weight = weights.get(cause, (cause, link_weights.get(cause, 1.0)))
                seconds[name] += weight * row[cause]
        if row.get(STARTS):
            seconds["latency"] += calibration["start_s"] * row[STARTS]
        count, flops, sent = (row.get(name, 0) for name in ("count", "flops", "wire_bytes"))
        # `row[SLICES]` is summed over executions, so that the division gives the slices of one.
        slices = row.get(SLICES, 0) / count if count and row.get(SLICES) else 1
        cost_items.append(Item(*key, count, flops, sent, tuple(seconds.items()), slices))
    return tuple(cost_items)


def step_time_s(done: ProgramAmounts, calibration: Calibration) -> float:
    """Return the seconds of a step, given its work and the constants of a chip and its software."""
    used = calibration.pipelined() if done.pipelined else calibration
    return float(measured_step_s(items(done, used), used))
