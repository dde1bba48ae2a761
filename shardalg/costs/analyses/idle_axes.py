"""Idle axes: products that several devices compute alike, as an axis is on none of their loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from shardalg.algebra.digits import Digits, overlap, parts
from shardalg.costs.compute import contracts, signature_local_flops
from shardalg.costs.walk import Execution, walk
from shardalg.graph.ir import Graph
from shardalg.sizes.amounts import quotient
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram


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
