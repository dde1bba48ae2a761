"""Which local values a kernel keeps on the chip: what is annotated so, and what it computes of it.

`annotate(scores, "on_chip")` says that the operators around a value are one kernel that makes it
block by block and never writes it, as attention kernels do with scores (arXiv:2205.14135). Such
values take no memory and no traffic; what is computed of them, forward and backward, still counts.
"""

from __future__ import annotations

from shardalg.costs.fusion import APART, fuses
from shardalg.costs.walk import walk
from shardalg.graph.ir import Graph
from shardalg.spmd.program import SpmdProgram

ON_CHIP = "on_chip"
"""The name of the sites that mark them."""


def on_chip(program: SpmdProgram, graph: Graph) -> frozenset[int]:
    """Marked local values, and those of their shape that pointwise operators make of them.

    What a collective or a loop reads is in memory, marked or not.
    """
    marked = {site.node for site in graph.sites if site.name == ON_CHIP}
    if not marked:
        return frozenset()
    found: set[int] = set()
    read: set[int] = set()
    for step in walk(program):
        instruction = step.instruction
        if instruction.node in marked:
            found.update((*instruction.operands, *instruction.results))
        elif type(instruction.attributes) in APART:
            read.update(instruction.operands)
        elif fuses(instruction, graph):
            shapes = {program.locals[v].shape for v in instruction.operands if v in found}
            found.update(v for v in instruction.results if program.locals[v].shape in shapes)
    return frozenset(found - read)
