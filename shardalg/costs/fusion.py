"""Which local values a compiler that fuses pointwise operators never writes to memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from shardalg.costs.compute import contracts
from shardalg.costs.walk import walk
from shardalg.graph.ir import Graph, Signature
from shardalg.ops.table import rules
from shardalg.spmd.program import COLLECTIVES, Apply, Block, Instruction, Loop, SpmdProgram


def fuses(instruction: Instruction, graph: Graph) -> bool:
    """Whether an instruction is neither a contraction, a collective nor a loop."""
    attributes = instruction.attributes
    if type(attributes) is not Apply:
        return type(attributes) not in (*COLLECTIVES, Loop)
    return instruction.node is None or not contracts(graph.nodes[instruction.node].signature)


def expands(instruction: Instruction, graph: Graph) -> bool:
    """Whether an instruction repeats its operand along a loop of the result (broadcast, iota)."""
    if type(instruction.attributes) is not Apply or instruction.node is None:
        return False
    return _expands(graph.nodes[instruction.node].signature)


@lru_cache(maxsize=65536)
def _expands(signature: Signature) -> bool:
    return any(r.result_loops - r.operand_loops and not r.guards for r in rules(signature) or ())


def materialised(block: Block, graph: Graph) -> frozenset[int]:
    """Values of a block that a contraction, a collective, a loop or its outside reads.

    Not what a loop only reads as its constant: a broadcast is made again inside the loop.
    """
    read: set[int] = set(block.results)
    for instruction in block.instructions:
        if not fuses(instruction, graph):
            read.update(instruction.operands[_constants(instruction) :])
    return frozenset(read)


def _constants(instruction: Instruction) -> int:
    """Leading operands that are the constants of a loop."""
    loop = instruction.attributes
    return loop.num_consts if type(loop) is Loop else 0


def fused(program: SpmdProgram, graph: Graph) -> frozenset[int]:
    """Values that pointwise instructions make and only such instructions read: never in memory."""
    made: set[int] = set()
    kept = set(materialised(program.block, graph))
    for step in walk(program):
        if fuses(step.instruction, graph):
            made.update(step.instruction.results)
    for body in _bodies(program):
        kept |= materialised(body, graph)
    return frozenset(made - kept)


def _bodies(program: SpmdProgram) -> Iterable[Block]:
    loops = (s.instruction.attributes for s in walk(program))
    return (loop.body for loop in loops if type(loop) is Loop)
