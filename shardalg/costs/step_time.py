"""Time of one call of a program on a chip or topology, in numbers or in formulas."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import zip_longest
from typing import Any, NamedTuple

from shardalg.costs.analyses.overlap import (
    RingTimes,
    check_overlap,
    combined_all_reduces,
    ring_times,
    scheduled_s,
)
from shardalg.costs.analyses.peaks import candidate_peaks
from shardalg.costs.calibration.by_cause import Chains, chains
from shardalg.costs.calibration.constants import NOTHING, SKIPPED, Calibration
from shardalg.costs.calibration.operator_rates import operator_class, size_class
from shardalg.costs.collectives import axis_names, moves, seconds_by_cause, wire_bytes
from shardalg.costs.compute import (
    Shapes,
    multiplies,
    operand_type,
    shaped_flops,
    signature_flops,
    windows,
)
from shardalg.costs.cost import (
    FORMATTING,
    MATRIX,
    MEASURED,
    MEMORY,
    Cost,
    Item,
    Totals,
    exposed_s,
)
from shardalg.costs.fusion import (
    NO_CASTS,
    Casts,
    casts,
    kernel_bytes,
    on_chip,
    traffic,
    values_not_in_memory,
)
from shardalg.costs.hardware import Hardware
from shardalg.costs.kernels.causal_mask import causal_products
from shardalg.costs.kernels.expert_load import of_named_groups
from shardalg.costs.kernels.fused_attention import fused_attention, with_recomputed
from shardalg.costs.kernels.kernel_price import is_kernel
from shardalg.costs.matrix_unit import padded_flops, product_peak
from shardalg.costs.memory import liveness
from shardalg.costs.network.collective_seconds import (
    COLLECTIVES,
    LATENCY,
    slices_joined,
)
from shardalg.costs.network.placement import LINK, UnplacedAxes, Wiring
from shardalg.costs.pipelines.loops import pipeline_loops
from shardalg.costs.symbolic import Sizes, Symbolised
from shardalg.costs.topology import Topology
from shardalg.costs.walk import Execution, sent_bytes, walk
from shardalg.graph.ir import Graph, Node, Signature
from shardalg.graph.ops.rule import Rule
from shardalg.pause import collection_paused
from shardalg.sizes.amounts import number, over, quotient
from shardalg.sizes.amounts import times as multiplied
from shardalg.sizes.formula import Formula
from shardalg.sizes.maximum import larger
from shardalg.sizes.recorded import summed, total
from shardalg.spmd.instruction import Collective, Instruction, is_a
from shardalg.spmd.instructions import Apply, CollectiveMatmul, Control
from shardalg.spmd.program import SpmdProgram


@collection_paused()
def estimate(
    program: SpmdProgram | Symbolised,
    graph: Graph,
    hardware: Hardware | Topology,
    *,
    roles: Sequence[str] | None = None,
    donated: Sequence[int] = (),
    overlap: str | None = None,
) -> Cost:
    """Return the time and memory of one call of a program on devices of one kind.

    With the constants of a chip (`Hardware.calibration`) a contraction takes
    `flops / (peak * efficiency) + weight * bytes / memory bandwidth`; at the data sheet's rates it
    takes the longer of both. Other operators are fused into chains, of which only the ends move
    bytes to and from memory. A collective takes its ring bytes over the link's bandwidth, plus the
    latency of its hops.

    Args:
      program: a program in numbers, or the result of `costs.symbolic.symbolise` for formulas.
      roles: role of each graph value, for the classes of memory; None gives "unknown".
      donated: positions of the flattened arguments whose buffers the program may take over.
      overlap: how far compute hides communication. "measured", the default if the chip has
        constants, exposes the shares of communication that the constants give. "none", otherwise
        the default, runs one instruction after the other. "dependences" runs collectives during
        compute that does not need their results. "asynchronous" does so only for collectives that
        the chip's compiler starts ahead (`analyses.overlap`). "full" takes the longer of compute
        and communication.

    Raises:
      HardwareError: the overlap is unknown, or the mesh does not tile the topology.
    """
    has_constants = not hardware.chip.calibration.is_datasheet
    has_constants = has_constants and not hardware.chip.operators.figures
    overlap = overlap or (MEASURED if has_constants else "none")
    check_overlap(overlap)
    named = program if isinstance(program, Symbolised) else None
    hints = program.hints if isinstance(program, Symbolised) else program
    hardware = hardware.shared(hints.mesh.size)
    chip = _of_step(hardware.chip, graph)
    held = liveness(hints, graph, roles=roles, donated=donated, rebuild=chip.rebuilds)
    numbers = pricing(hints, graph, hardware)
    formulas = numbers
    if named:
        formulas = replace(numbers, program=named.program, sizes=named.sizes, rows=named.rows)
    runs = formulas.runs()
    prices = numbers.prices(runs)
    is_schedule = overlap not in (MEASURED, "none", "full")
    scheduled = numbers.scheduled_s(overlap) if is_schedule else None
    at_hints = Totals(numbers.items(runs, prices), *numbers.useful(), hints.mesh.size, held)
    if named is None:
        steps = partial(_timed, numbers)
        return Cost(chip, at_hints, at_hints, overlap=overlap, scheduled_s=scheduled, timed=steps)
    # Formulas cannot be compared. So the numbers at the hints decide which values are alive at the
    # peak, and whether memory traffic or arithmetic bounds an operator.
    peak = held.priced(named.program)
    prices = formulas.prices(runs, [price.by_traffic for price in prices])
    peaks = partial(candidate_peaks, named, donated=donated, rebuild=chip.rebuilds)
    items = formulas.items(runs, prices)
    totals = Totals(items, *formulas.useful(), named.devices, peak, cache(peaks))
    return Cost(chip, totals, at_hints, named.sizes, overlap=overlap, scheduled_s=scheduled)


def _of_step(chip: Hardware, graph: Graph) -> Hardware:
    """Return the chip, whose constants are changed if the graph has a pipeline of layers.

    Measured steps with a pipeline compute and communicate at other rates (`Calibration.pipelined`).
    """
    if not pipeline_loops(graph):
        return chip
    return replace(chip, calibration=chip.calibration.pipelined())


class Timed(NamedTuple):
    """An instruction and the seconds of one execution on one device.

    Attributes:
      step: the instruction, and how often it runs.
      kind: "contraction", "other compute", "formatting", or the kind of a collective.
      axes: mesh axes of a collective; () for local operators.
      seconds: seconds of one execution.
      exposed_s: the part of `seconds` that no computation hides, by the chip's constants.
      memory_s: the part of `seconds` that is traffic to and from a device's own memory.
    """

    step: Execution
    kind: str
    axes: tuple[str, ...]
    seconds: float
    exposed_s: float
    memory_s: float


def timed(program: SpmdProgram, graph: Graph, hardware: Hardware | Topology) -> tuple[Timed, ...]:
    """Return every instruction of a program in numbers with its seconds, in the order of `walk`.

    Loops and branches are left out, because the instructions in their bodies have the seconds. The
    sum of `seconds * step.count` is the step time of `estimate` without overlap. The sum of
    `exposed_s * step.count` is the step time with overlap "measured", unless communication alone is
    longer.
    """
    return _timed(pricing(program, graph, hardware))


def _timed(priced: Pricing) -> tuple[Timed, ...]:
    """Return the result of `timed` from existing prices.

    Each step has its kind, mesh axes, seconds, exposed seconds and seconds of memory traffic.
    """
    # A deep program has about a hundred distinct prices, whatever its length.
    runs = priced.runs()
    price_by_place: dict[int, tuple[Item, float, float, float]] = {}
    for place, price in zip(runs, priced.prices(runs), strict=True):
        item = priced.priced_alone(price)
        waiting_s = exposed_s(item, priced.hardware.calibration)
        exposed = waiting_s if item.is_communication else item.time_s
        memory = float(dict(item.seconds).get(MEMORY, 0.0))
        price_by_place[place] = item, float(item.time_s), float(exposed), memory
    return tuple(
        Timed(
            step,
            price_by_place[first_place][0].kind,
            price_by_place[first_place][0].axes,
            *price_by_place[first_place][1:],
        )
        for step, first_place in zip(priced.steps, priced.first_alike, strict=True)
    )


def pricing(program: SpmdProgram, graph: Graph, hardware: Hardware | Topology) -> Pricing:
    """Return a `Pricing`, which computes the prices of a program's instructions, in numbers."""
    hardware = hardware.shared(program.mesh.size)
    inside, wiring = values_not_in_memory(program, graph), hardware.wiring(program.mesh)
    chip = _of_step(hardware.chip, graph)
    return Pricing(program, graph, chip, inside, wiring, casts=casts(program, graph))


class _Key(NamedTuple):
    """Fields of an `Item`; the costs of instructions that agree in all of them are added up."""

    kind: str
    axes: tuple[str, ...]
    role: str
    phase: str


class _KernelPlace(NamedTuple):
    """The kernels that run an instruction, as far as its price depends on them.

    Attributes:
      in_attention: whether a kernel of attention runs the instruction.
      is_half_masked: whether a causal mask hides half of the instruction's result in that kernel.
      with_product: whether the instruction is a matrix product, or runs in the kernel of one.
    """

    in_attention: bool
    is_half_masked: bool
    with_product: bool


class _Price(NamedTuple):
    """Price of one execution of an instruction.

    Attributes:
      key: the item that the price is added to.
      amounts: pairs (field of `Item`, amount), such as ("flops", 512), and pairs ((cause, rate),
        amount), which mean amount / rate seconds of this cause.
      by_traffic: whether memory traffic takes longer than the arithmetic of the instruction.
    """

    key: _Key
    amounts: tuple[tuple[str | tuple[str, float], Any], ...]
    by_traffic: bool = False


@dataclass(frozen=True)
class Pricing:
    """Computation of the prices of a program's instructions on a device.

    Attributes:
      fused: local values that are never in memory.
      wiring: the links under the axes of the mesh.
      sizes: formulas of the graph's sizes; None to price in numbers.
      rows: for prices in formulas, the rule on local shapes of each operator with a sliding window.
        Keys are numbers of the operators' first results.
      casts: the casts that the kernels of products carry out.
    """

    program: SpmdProgram
    graph: Graph
    hardware: Hardware
    fused: frozenset[int]
    wiring: Wiring | UnplacedAxes
    sizes: Sizes | None = None
    rows: Mapping[int, Rule] = field(default_factory=dict)
    casts: Casts = NO_CASTS

    @cached_property
    def steps(self) -> tuple[Execution, ...]:
        """All instructions except loops and branches, whose bodies are priced instead."""
        steps = walk(self.program)
        return tuple(s for s in steps if not isinstance(s.instruction.attributes, Control))

    @property
    def calibration(self) -> Calibration:
        """The constants of the chip; no constants if rates of its operators were measured."""
        return NOTHING if self.hardware.operators.figures else self.hardware.calibration

    @cached_property
    def kernels(self) -> frozenset[int]:
        """Local values that attention kernels keep on the chip, so that they move no bytes."""
        return on_chip(self.program, self.graph)

    @cached_property
    def chains(self) -> Chains | None:
        """Chains of fused operators; None if the constants weigh all memory traffic equally.

        Otherwise traffic of a chain that runs together with a product has another weight.
        """
        if self.calibration["traffic"] == self.calibration["passes"]:
            return None
        return chains(self.program, self.graph, self.fused)

    @cached_property
    def rings(self) -> dict[int, RingTimes]:
        """Seconds of each collective matmul; a key is the `id` of its collective instruction."""
        found = (step.instruction for step in walk(self.program))
        rings = (one for one in found if is_a(one, CollectiveMatmul))
        return {id(ring.attributes.collective): self.ring(ring) for ring in rings}

    def ring(self, ring: Instruction[CollectiveMatmul]) -> RingTimes:
        """Return the seconds of a collective matmul, and of the separate product and collective."""
        spans = self.wiring.spans(ring.attributes.ring)
        return ring_times(self.program, ring, self.alone_s, spans, self.hardware)

    def alone_s(self, program: SpmdProgram, instruction: Instruction) -> float:
        """Return the seconds of one execution of an instruction that no ring overlaps.

        Args:
          program: gives the local shapes of the instruction's values.
        """
        other, step = replace(self, program=program), Execution(instruction, 1)
        sent = other.collective_price(step.instruction) if moves(step) else None
        return float(self.seconds_of(sent or other.local_price(instruction, None)))

    def runs(self) -> dict[int, int]:
        """Return a dictionary from the first step of each distinct price to the number of steps.

        A deep program has few distinct prices, so that each is computed once.
        """
        return dict(Counter(self.first_alike))

    @cached_property
    def first_alike(self) -> list[int]:
        """For each step, the number of the first step that has the same price.

        Layers repeat steps, so each price is computed only once. The key of a step has everything
        that its price depends on: the operator, its role and phase, the number of executions, and
        the shapes and types of its values.
        """
        # Each distinct pair of shape and item type has one number, so that the keys below are
        # short.
        number: dict[Any, int] = {}
        held, cast = self.program.locals, self.casts
        types = [number.setdefault((v.shape, v.dtype), v.index) for v in held]
        # If a product casts an operand or its result, it moves the bytes of another value than its
        # own, which are part of the price.
        for value in {*cast.read, *cast.written, *cast.free}:
            stored = held[cast.stored(value)]
            ends = (types[value], stored.shape, stored.dtype, value in cast.free)
            types[value] = number.setdefault(ends, len(held) + value)
        # A price depends on shapes and types, not on the values. A value that is never in memory
        # has a negative code, because its bytes do not count.
        codes = [~kind if v in self.fused else kind for v, kind in enumerate(types)]
        first: dict[Any, int] = {}
        found: list[int] = []
        # Three tables add to the price of some steps: an all-reduce may share its message with
        # others (`combined`), a collective may overlap with a product (`rings`), and a kernel of
        # attention may compute its scores a second time (`again`).
        combined, rings, nodes = self.together, self.rings, self.operators
        again = fused_attention(self.graph).again
        for place, step in enumerate(self.steps):
            instruction = step.instruction
            values = instruction.operands + instruction.results
            operator = None if instruction.node is None else nodes[instruction.node]
            # The planner may run another instruction for a node, so only `Apply` has its price.
            plain = operator is not None and type(instruction.attributes) is Apply
            key = (
                operator if plain else self.operation(instruction),
                again.get(instruction.node or 0) if again else None,
                *(instruction.role, instruction.phase, step.count),
                self.types_sent_together(instruction, types)
                if id(instruction) in combined
                else None,
                self.kernel_place(instruction),
                rings.get(id(instruction)) if rings else None,
                tuple([codes[v] for v in values]),
                # An operand that is read twice moves once, so equal positions are part of the key.
                None if len({*values}) == len(values) else tuple(map(values.index, values)),
            )
            found.append(first.setdefault(key, place))
        return found

    def is_kernel(self, instruction: Instruction) -> bool:
        """Return whether an instruction calls an opaque kernel."""
        node = instruction.node
        return node is not None and is_kernel(self.graph.nodes[node].signature)

    def kernel_place(self, instruction: Instruction) -> _KernelPlace:
        """Return which kernels run an instruction, as far as its price depends on them."""
        values = instruction.operands + instruction.results
        # `kernels` has the values that attention kernels keep on the chip. An instruction that
        # reads or writes such a value runs in the same kernel.
        in_attention = bool(self.kernels) and not self.kernels.isdisjoint(values)
        is_half_masked = in_attention and instruction.node in causal_products(self.graph)
        # `chains` is None if all memory traffic costs the same per byte. The answer then changes no
        # price, so it is True for every instruction.
        with_product = self.chains is None or self.chains.along(instruction)
        return _KernelPlace(in_attention, is_half_masked, with_product)

    @cached_property
    def operators(self) -> list[int | None]:
        """For each graph node, a number that is equal for nodes with equal signatures.

        It is None for an operator with a sliding window, whose price also depends on its local
        parameters.
        """
        numbers: dict[Signature, int | None] = {}
        for node in self.graph.nodes:
            if node.signature not in numbers:
                numbers[node.signature] = None if windows(node.signature) else len(numbers)
        return [numbers[node.signature] for node in self.graph.nodes]

    @cached_property
    def together(self) -> dict[int, tuple[Instruction, ...]]:
        """For each combined all-reduce, the all-reduces that are sent in its message.

        Keys are the `id` of the all-reduce. The first all-reduce of a message has the tuple of all
        of them, and each other one has (). See `analyses.overlap.combined_all_reduces`.
        """
        return combined_all_reduces(self.program.block)

    def types_sent_together(
        self, instruction: Instruction, types: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the types of everything that is sent together with an all-reduce, sorted.

        Several all-reduces can be one message. Its first all-reduce has the types of the operands
        of all, and each other one has ().

        Args:
          types: for each local value, a number of its shape and item type.
        """
        sent = self.together[id(instruction)]
        return tuple(sorted(types[v] for other in sent for v in other.operands))

    def scheduled_s(self, overlap: str) -> float:
        """Return the seconds of a step in which collectives run at the same time as compute.

        Args:
          overlap: "dependences" or "asynchronous" (see `estimate`).
        """
        places = dict.fromkeys(range(len(self.steps)), 1)
        prices = zip(self.steps, self.prices(places), strict=True)
        found = {id(step.instruction): float(self.seconds_of(price)) for step, price in prices}
        ahead = COLLECTIVES if overlap == "dependences" else self.hardware.interconnect.asynchronous
        return scheduled_s(self.program.block, lambda one: found[id(one)], ahead)

    def operation(self, instruction: Instruction) -> Any:
        """Return a key of the operation alone, without its values.

        It is the signature of an operator, and the attributes of any other instruction. An operator
        with a sliding window also has its local parameters.
        """
        if type(instruction.attributes) is not Apply or instruction.node is None:
            return instruction.attributes
        signature = self.graph.nodes[instruction.node].signature
        return (signature, instruction.attributes.params) if windows(signature) else signature

    def prices(self, runs: Mapping[int, int], sides: Sequence[bool] = ()) -> list[_Price]:
        """Return the price of one execution of each step in `runs`.

        Args:
          runs: the result of the method `runs`; its keys are numbers of steps.
          sides: for each step, whether its memory traffic takes longer than its arithmetic at the
            planned sizes, for prices in formulas. If empty, prices are numbers, and both times are
            compared.
        """
        found = []
        for place, by_traffic in zip_longest(runs, sides):
            step = self.steps[place]
            if moves(step):
                found.append(self.price_beside_product(step.instruction))
            else:
                found.append(self.local_price(step.instruction, by_traffic))
        return found

    def price_beside_product(self, instruction: Instruction[Collective]) -> _Price:
        """Return the price of a collective.

        In a collective matmul, its seconds are the part that the product does not hide.
        """
        price = self.collective_price(instruction)
        if id(instruction) not in self.rings:
            return price
        waits = [((cause, 1.0), taken) for cause, taken in self.rings[id(instruction)].exposed]
        # The first two amounts are count and bytes, which a ring does not change.
        return price._replace(amounts=(*price.amounts[:2], *waits))

    def items(self, runs: Mapping[int, int], prices: Sequence[_Price]) -> tuple[Item, ...]:
        """Return the costs of all instructions, added up per kind, axes, role and phase.

        Args:
          runs: the result of `runs()`.
          prices: the price of each step in `runs`.
        """
        # Equal amounts are counted first and multiplied once, because formulas are slow to add up.
        tallies: dict[_Key, Counter[tuple[Any, Any, Any]]] = defaultdict(Counter)
        for (place, times), price in zip(runs.items(), prices, strict=True):
            tally, count = tallies[price.key], self.steps[place].count
            for quantity, amount in price.amounts:
                tally[quantity, amount, count] += times
        items = (self.item(key, summed(tally)) for key, tally in tallies.items())
        return tuple(item for item in items if any((item.flops, item.wire_bytes, item.time_s)))

    def item(self, key: _Key, sums: dict[Any, Any]) -> Item:
        """Return the `Item` (a row of the cost table) for all instructions with equal properties.

        Args:
          key: the properties: the kind of the instruction, its axes, role and phase.
          sums: the added-up amounts of these instructions. The key of an amount is "count",
            "flops", "wire_bytes" or "slices", or a pair (cause, rate). The amount of a pair takes
            amount / rate seconds, which are due to this cause.
        """
        names = ("count", "flops", "wire_bytes", "slices")
        count, flops, sent, slices = (sums.pop(name, 0) for name in names)
        by_cause: dict[str, list[Any]] = {}
        for (cause, rate), amount in sums.items():
            by_cause.setdefault(cause, []).append(self.seconds(amount, rate))
        seconds = tuple((cause, total(found)) for cause, found in by_cause.items())
        # The slices are summed over the executions, so their mean is the number that one joins.
        slices_per_execution = number(quotient(slices, count)) if slices else 1
        return Item(*key, count, flops, sent, seconds, slices_per_execution)

    def priced_alone(self, price: _Price) -> Item:
        """Return a price as an `Item` of a single execution."""
        return self.item(price.key, summed(Counter((*amount, 1) for amount in price.amounts)))

    def seconds_of(self, price: _Price) -> Any:
        """Return the seconds of one execution, given its price."""
        return self.priced_alone(price).time_s

    def seconds(self, amount: Any, rate: float) -> Any:
        """Return `amount / rate` seconds; a formula if prices are formulas."""
        return over(amount if self.sizes is None else Formula.of(amount), rate)

    def collective_price(self, instruction: Instruction[Collective]) -> _Price:
        """Return the price of a collective, without overlap in a collective matmul.

        A price is a key, by which equal rows of the cost are added up, and amounts: the number of
        executions, bytes sent, and work by cause (link, network, latency). An amount with the name
        (cause, rate) means `amount / rate` seconds of this cause.
        """
        attributes, mesh = instruction.attributes, self.program.mesh
        size = self.sent(instruction)
        # The first of several combined all-reduces has the time of all. The others have an empty
        # tuple here, so they take no time but still count their bytes.
        sent_as_one = self.together.get(id(instruction), (instruction,))
        whole = total(map(self.sent, sent_as_one)) if sent_as_one else None
        taken = {} if whole is None else seconds_by_cause(attributes, whole, wiring=self.wiring)
        axes = axis_names(mesh, attributes.digits)
        key = _Key(attributes.sent_as, axes, instruction.role, instruction.phase)
        sent = wire_bytes(attributes, size)
        # Measured links are slower than their data sheet. All seconds of an all-reduce are scaled,
        # its latency too: formulas do not tell which of its two algorithms is the faster one, and
        # these divide the seconds differently between bytes and hops.
        constants, slower = self.calibration, {LINK}
        if attributes.sent_as == "all_reduce":
            slower = {*taken}
        rates = dict.fromkeys(slower, constants["link_efficiency"])
        amounts: tuple[tuple[Any, Any], ...] = tuple(
            ((cause, rates.get(cause, 1.0)), seconds) for cause, seconds in taken.items()
        )
        if taken and constants["start_s"]:
            amounts += (((LATENCY, 1.0), self.each(constants["start_s"])),)
        # `Item.slices` is the mean over all executions, so an all-reduce that is sent together with
        # another one must count its slices too.
        if (joined := slices_joined(self.wiring.spans(attributes.digits))) != 1:
            amounts += (("slices", joined),)
        measured = self.hardware.operators.collective(attributes.sent_as, axes)
        # Measured rates replace the spans: seconds of each execution, and ring bytes at a rate.
        if measured is not None and whole is not None:
            moving = ((LINK, measured[1]), wire_bytes(attributes, whole))
            amounts = moving, ((LATENCY, 1.0), self.each(measured[0]))
        return _Price(key, (("count", 1), ("wire_bytes", sent), *amounts))

    def sent(self, instruction: Instruction) -> Any:
        """Return the bytes of a collective's operands on one device, a number or a formula."""
        size = sent_bytes(self.program, instruction)
        return size if self.sizes is None else Formula.of(size)

    def local_price(self, instruction: Instruction, by_traffic: bool | None) -> _Price:
        """Return the price of a local operator: its arithmetic, and its traffic to and from memory.

        The rates come from the first of these that the chip has:
        - measured rates of single operators (`as_measured`);
        - constants of measured steps: arithmetic and traffic, each at its rate, are added up;
        - the data sheet: the longer of arithmetic and traffic counts (a roofline).

        For example, a product has 2e9 flops at 1e12 flops/s (2 ms) and moves 1e9 bytes at
        1e12 bytes/s (1 ms). By the data sheet it takes 2 ms. With efficiency 0.5 and traffic
        weight 1 it takes 4 ms + 1 ms.

        Args:
          by_traffic: for prices in formulas, whether traffic takes longer at the hints, the sizes
            for which the program was planned. The time is then the maximum of both, under the cause
            that is longer at the hints. None for prices in numbers.
        """
        flops, padded_flops, peak = self.arithmetic(instruction)
        bytes_of_values, bytes_per_s = self.traffic(instruction)
        # Local operators send nothing, so their rows of the cost have no mesh axes and no role.
        key = _Key(kind=self.kind_of(instruction), axes=(), role="", phase=instruction.phase)
        if self.hardware.operators.figures:
            return self.as_measured(instruction, key)
        counted = (("count", 1), ("flops", flops))
        constants = self.calibration
        amounts: list[tuple[Any, Any]] = []
        # In the amounts below, the name (cause, rate) means `amount / rate` seconds of this cause.
        is_longer_traffic = bool(by_traffic)
        if constants.is_datasheet and by_traffic is None:
            # One kernel computes and moves bytes at the same time, so only the longer of both
            # counts.
            is_longer_traffic = over(sum(bytes_of_values), bytes_per_s) > over(padded_flops, peak)
            if is_longer_traffic:
                amounts = [((MEMORY, bytes_per_s), n) for n in bytes_of_values]
            else:
                amounts = [((MATRIX, peak), padded_flops)]
        elif constants.is_datasheet:
            # Two formulas cannot be compared, so the time is their maximum, in seconds (rate 1).
            compute_s = self.seconds(padded_flops, peak)
            memory_s = self.seconds(total(bytes_of_values), bytes_per_s)
            cause = MEMORY if by_traffic else MATRIX
            amounts = [((cause, 1.0), larger(compute_s, memory_s))]
        else:
            # A sum, not a maximum: measured steps wait for memory in addition to products. Only
            # products count operations, because others take less time for them than for bytes.
            place = self.kernel_place(instruction)
            if key.kind == "contraction":
                is_opaque = self.is_kernel(instruction)
                # A kernel of attention skips the half of its products that a causal mask hides. The
                # flops of an opaque kernel are already those that it computes.
                if place.is_half_masked and not is_opaque:
                    padded_flops = multiplied(padded_flops, SKIPPED)
                kernel = "kernel" if place.in_attention or is_opaque else "matrix"
                amounts = [((MATRIX, peak * constants[f"{kernel}_efficiency"]), padded_flops)]
            # With a weight of 0, as on tpu_v3, this traffic takes no time.
            weight = constants["traffic" if place.with_product else "passes"]
            if weight:
                amounts += [((MEMORY, bytes_per_s / weight), n) for n in bytes_of_values]
        return _Price(key, (*counted, *amounts), is_longer_traffic)

    def as_measured(self, instruction: Instruction, key: _Key) -> _Price:
        """Return the price of a local operator by the measured rates of operators.

        Without a measured rate for the operator's class, item type and size, the peak is used.
        """
        flops, _, peak = self.arithmetic(instruction)
        sizes, speed = self.traffic(instruction)
        rate = peak
        if type(instruction.attributes) is Apply and instruction.node is not None:
            signature = self.graph.nodes[instruction.node].signature
            # Rates are measured for classes of sizes, and a formula has a size only at the hints.
            at_hints = (
                flops if self.sizes is None else float(Formula.of(flops).at(self.sizes.hints))
            )
            measured_rate = self.hardware.operators.flops_per_s(
                operator_class(signature), operand_type(signature), size_class(at_hints)
            )
            rate = peak if measured_rate is None else measured_rate
        amounts: list[tuple[Any, Any]] = [("count", 1), ("flops", flops)]
        # A contraction takes its measured rate and a constant time per operator, which contain its
        # traffic. Any other operator has separate amounts for arithmetic and traffic.
        if key.kind == "contraction":
            per_execution_s = self.each(self.hardware.operators.operator_s)
            amounts += [((MATRIX, rate), flops), ((MATRIX, 1.0), per_execution_s)]
        else:
            amounts += [((MEMORY, rate), flops), *(((MEMORY, speed), n) for n in sizes)]
        return _Price(key, tuple(amounts))

    def each(self, seconds: float) -> Any:
        """Return a constant number of seconds, as a constant formula if prices are formulas."""
        return multiplied(1 if self.sizes is None else Formula.of(1), seconds)

    def kind_of(self, instruction: Instruction) -> str:
        """Return the kind of a local instruction, as in `Item.kind`.

        It is "contraction" or "other compute" for an operator of the graph, else "formatting".
        """
        if type(instruction.attributes) is not Apply or instruction.node is None:
            return FORMATTING
        signature = self.graph.nodes[instruction.node].signature
        return "contraction" if multiplies(signature) else "other compute"

    def arithmetic(self, instruction: Instruction) -> tuple[Any, Any, float]:
        """Return (flops, flops with sizes rounded up to the matrix unit's blocks, peak rate).

        The flops are those of one device, counted on its local shapes. An instruction that is no
        operator of the graph has 0 flops at an infinite rate.
        """
        if type(instruction.attributes) is not Apply or instruction.node is None:
            return 0, 0, math.inf
        signature = self.graph.nodes[instruction.node].signature
        planned_locals, values = self.program.locals, (*instruction.operands, *instruction.results)
        shapes = tuple([planned_locals[v].shape for v in values])
        row = self.rows.get(instruction.results[0]) if instruction.results else None
        params = instruction.attributes.params if windows(signature) else ()
        padded = padded_flops(signature, shapes, self.hardware.matrix_unit, params, row)
        flops = shaped_flops(signature, shapes, params, row)
        node = instruction.node
        # In a grouped product (mixture of experts) with formulas for sizes, the busiest device has
        # a part of the rows that depends on local and global shapes (`global_signature` has the
        # global ones).
        if self.sizes is not None and dict(instruction.attributes.loops):
            global_shapes = self.global_signature(self.graph.nodes[node])[1]
            flops, padded = (
                of_named_groups(signature, (shapes, global_shapes), count)
                for count in (flops, padded)
            )
        # The backward pass of a fused attention kernel computes its scores again.
        flops, padded = (with_recomputed(self.graph, node, count) for count in (flops, padded))
        return flops, padded, self.peak(node)

    def peak(self, node: int) -> float:
        """Return the peak operations per second of a graph node, for its item type."""
        signature = self.graph.nodes[node].signature
        dtype = operand_type(signature)
        if not multiplies(signature) or self.hardware.operators.figures:
            return self.hardware.peak(dtype)
        return product_peak(self.hardware, dtype)

    def traffic(self, instruction: Instruction) -> tuple[list[Any], float]:
        """Return (bytes that a local operator moves to and from memory, bandwidth of the memory).

        The bytes are a list with an entry per value, or one entry for an opaque kernel.
        """
        held, speed = self.program.locals, self.hardware.hbm_bytes_per_s
        kernel = kernel_bytes(self.program, self.graph, instruction)
        if kernel is not None:
            return [kernel], speed
        return [held[v].bytes for v in traffic(instruction, self.fused, self.casts)], speed

    @cached_property
    def manual(self) -> tuple[Mapping[str, int], ...]:
        """For each region of the graph, the sizes of its manual (`shard_map`) mesh axes."""
        return tuple(self.graph.manual_axes(region.index) for region in self.graph.regions)

    def useful(self) -> tuple[Any, Any]:
        """Return (flops of a call on global shapes, their seconds on one device at its peak)."""
        # Equal operators are counted once, because formulas are slow to add up. `global_signature`
        # gives the signature of a node, its global shapes if these are formulas, and its executions
        # per call.
        tally: Counter[tuple[Hashable, Any, Any]] = Counter()
        nodes = Counter(map(self.global_signature, self.graph.walk()))
        for (signature, shapes, trips), times in nodes.items():
            flops = shaped_flops(signature, shapes) if shapes else signature_flops(signature)
            tally[self.hardware.peak(operand_type(signature)), flops, trips] += times
        sums = summed(tally)
        return total(sums.values()), total(self.seconds(n, rate) for rate, n in sums.items())

    def global_signature(self, node: Node) -> tuple[Signature, Shapes, Any]:
        """Return (signature of a node, its global shapes, its executions per call).

        The shapes are formulas; for prices in numbers they are (), because the signature has them.
        """
        # Shapes in a manual region (`shard_map`) are those of one device, so an operator there
        # counts once per device of the region's axes.
        devices = math.prod(self.manual[node.region].values())
        if self.sizes is None:
            return node.signature, (), self.graph.trip_count(node) * devices
        values = (*node.operands, *node.results)
        shapes = tuple([self.sizes.dims[v] for v in values])
        return node.signature, shapes, self.sizes.trips[node.region] * devices
