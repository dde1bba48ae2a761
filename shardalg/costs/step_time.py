"""How long one call of a program takes on a `Hardware`, in numbers or in formulas."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from shardalg.costs.collectives import KINDS, axis_names, seconds, wire_bytes
from shardalg.costs.compute import contracts, node_flops, operand_type, shaped_flops
from shardalg.costs.cost import Cost, Item, Totals
from shardalg.costs.formula import Formula
from shardalg.costs.fusion import fused
from shardalg.costs.hardware import Hardware, over
from shardalg.costs.memory import liveness
from shardalg.costs.symbolic import Sizes, Symbolised
from shardalg.costs.walk import Step, local_bytes, walk
from shardalg.graph.ir import Graph, Signature
from shardalg.spmd.program import Apply, Instruction, Loop, SpmdProgram


def estimate(
    program: SpmdProgram | Symbolised,
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
      program: in numbers; or one that `costs.symbolic.symbolise` made, for formulas.
      roles: per graph value, for the classes of memory; None reads "unknown".
      donated: positions of the flattened arguments whose buffers the program may take over.
    """
    named = program if type(program) is Symbolised else None
    hints = program.hints if named else program
    held = liveness(hints, graph, roles=roles, donated=donated, rebuild=hardware.rebuilds)
    pricing = _Pricing(hints, graph, hardware, fused(hints, graph))
    sides = pricing.sides()
    numbers = Totals(pricing.items(sides), *pricing.useful(), hints.mesh.size, held)
    if named is None:
        return Cost(hardware, numbers, numbers)
    pricing = replace(pricing, program=named.program, sizes=named.sizes)
    peak = held.priced(named.program)
    totals = Totals(pricing.items(sides), *pricing.useful(), named.devices, peak)
    return Cost(hardware, totals, numbers, named.sizes)


class _Key(NamedTuple):
    kind: str
    axes: tuple[str, ...]
    role: str
    phase: str


Price = tuple[Any, Any, Any, Any]
"""Executions, flops, wire bytes, seconds."""


@dataclass(frozen=True)
class _Pricing:
    """Prices of single instructions.

    Attributes:
      fused: local values that never reach memory.
      sizes: formulas of the graph's sizes; None to price in numbers.
    """

    program: SpmdProgram
    graph: Graph
    hardware: Hardware
    fused: frozenset[int]
    sizes: Sizes | None = None

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every instruction but the loops, whose bodies are priced."""
        steps = walk(self.program)
        return tuple(s for s in steps if type(s.instruction.attributes) is not Loop)

    def lift(self, amount: Any) -> Any:
        """A formula, also of a number, where prices are formulas: a rate divides it exactly."""
        return amount if self.sizes is None else Formula.of(amount)

    def items(self, sides: Sequence[bool]) -> tuple[Item, ...]:
        """The prices of all instructions, those of one kind together.

        Args:
          sides: per step, whether memory bounds it, rather than arithmetic.
        """
        sums: dict[_Key, list[Any]] = defaultdict(lambda: [0, 0, 0, 0])
        for step, by_traffic in zip(self.steps, sides, strict=True):
            moves = type(step.instruction.attributes) in KINDS
            price = self.moved if moves else self.computed
            key, prices = price(step.instruction, by_traffic)
            for place, amount in enumerate(prices):
                sums[key][place] += amount * step.count
        return tuple(Item(*key, *prices) for key, prices in sums.items() if any(prices[1:]))

    def moved(self, instruction: Instruction, by_traffic: bool) -> tuple[_Key, Price]:
        """The price of a collective."""
        attributes, mesh = instruction.attributes, self.program.mesh
        size = self.lift(local_bytes(self.program, instruction.operands))
        time_s = seconds(attributes, size, mesh=mesh, hardware=self.hardware)
        axes = axis_names(mesh, attributes.digits)
        key = _Key(KINDS[type(attributes)], axes, instruction.role, instruction.phase)
        return key, (1, 0, wire_bytes(attributes, size), time_s)

    def computed(self, instruction: Instruction, by_traffic: bool) -> tuple[_Key, Price]:
        """The price of a local operator."""
        signature, flops = self.arithmetic(instruction)
        kind = "contraction" if signature and contracts(signature) else "other compute"
        time_s = self.seconds(instruction)[by_traffic]
        return _Key(kind, (), "", instruction.phase), (1, flops, 0, time_s)

    def sides(self) -> tuple[bool, ...]:
        """Per step, whether memory bounds it."""
        steps = (step.instruction for step in self.steps)
        times = (None if type(i.attributes) in KINDS else self.seconds(i) for i in steps)
        return tuple(pair is not None and pair[1] > pair[0] for pair in times)

    def arithmetic(self, instruction: Instruction) -> tuple[Signature | None, Any]:
        """The operator that an instruction runs, if it runs one, and its flops on local shapes."""
        if type(instruction.attributes) is not Apply or instruction.node is None:
            return None, 0
        signature = self.graph.nodes[instruction.node].signature
        values = (*instruction.operands, *instruction.results)
        return signature, shaped_flops(
            signature, tuple(self.program.locals[v].shape for v in values)
        )

    def seconds(self, instruction: Instruction) -> tuple[Any, Any]:
        """Of a local operator: of its arithmetic, and of its memory traffic."""
        signature, flops = self.arithmetic(instruction)
        moved = dict.fromkeys((*instruction.operands, *instruction.results))
        traffic = local_bytes(self.program, tuple(v for v in moved if v not in self.fused))
        peak = self.hardware.peak(operand_type(signature)) if signature else math.inf
        bandwidth = self.hardware.hbm_bytes_per_s
        return over(self.lift(flops), peak), over(self.lift(traffic), bandwidth)

    def useful(self) -> tuple[Any, Any]:
        """Flops on global shapes, and their seconds at the peak of one device."""
        total, time_s = 0, 0
        for node in self.graph.walk():
            flops = node_flops(self.graph, node, self.sizes)
            if flops:
                total += flops
                peak = self.hardware.peak(operand_type(node.signature))
                time_s += over(self.lift(flops), peak)
        return total, time_s
