"""How long one call of a program takes on a `Hardware`, in numbers or in formulas."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
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
from shardalg.costs.sums import summed
from shardalg.costs.symbolic import Sizes, Symbolised
from shardalg.costs.walk import Step, local_bytes, walk
from shardalg.graph.ir import Graph
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
        tallies: dict[_Key, Counter[tuple[Price, Any]]] = defaultdict(Counter)
        for step, by_traffic in zip(self.steps, sides, strict=True):
            moves = type(step.instruction.attributes) in KINDS
            price = self.moved if moves else self.computed
            key, prices = price(step.instruction, by_traffic)
            tallies[key][prices, step.count] += 1
        items = (Item(*key, *summed(tally)) for key, tally in tallies.items())
        return tuple(item for item in items if any((item.flops, item.wire_bytes, item.time_s)))

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
        flops, peak = self.arithmetic(instruction)
        node = instruction.node if type(instruction.attributes) is Apply else None
        is_contraction = node is not None and contracts(self.graph.nodes[node].signature)
        kind = "contraction" if is_contraction else "other compute"
        bound = self.traffic(instruction) if by_traffic else (flops, peak)
        key = _Key(kind, (), "", instruction.phase)
        return key, (1, flops, 0, over(self.lift(bound[0]), bound[1]))

    def sides(self) -> tuple[bool, ...]:
        """Per step, whether memory bounds it."""
        return tuple(self.is_bound_by_traffic(step.instruction) for step in self.steps)

    def is_bound_by_traffic(self, instruction: Instruction) -> bool:
        """Whether memory bounds a local operator, rather than arithmetic; in numbers only."""
        if type(instruction.attributes) in KINDS:
            return False
        return over(*self.traffic(instruction)) > over(*self.arithmetic(instruction))

    def arithmetic(self, instruction: Instruction) -> tuple[Any, float]:
        """Flops of a local operator on its local shapes, and how many the device does a second."""
        if type(instruction.attributes) is not Apply or instruction.node is None:
            return 0, math.inf
        signature = self.graph.nodes[instruction.node].signature
        held, values = self.program.locals, (*instruction.operands, *instruction.results)
        flops = shaped_flops(signature, tuple([held[v].shape for v in values]))
        return flops, self.hardware.peak(operand_type(signature))

    def traffic(self, instruction: Instruction) -> tuple[Any, float]:
        """Bytes that a local operator moves from and to memory, and how many go a second."""
        moved = dict.fromkeys((*instruction.operands, *instruction.results))
        kept = tuple(v for v in moved if v not in self.fused)
        return local_bytes(self.program, kept), self.hardware.hbm_bytes_per_s

    def useful(self) -> tuple[Any, Any]:
        """Flops on global shapes, and their seconds at the peak of one device."""
        tally: Counter[tuple[tuple[Any, Any], Any]] = Counter()
        for node in self.graph.walk():
            flops = node_flops(self.graph, node, self.sizes)
            peak = self.hardware.peak(operand_type(node.signature))
            tally[(flops, over(self.lift(flops), peak)), 1] += 1
        return summed(tally) if tally else (0, 0)
