"""What is kept from the forward to the backward pass: the fewest bytes that rebuild the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shardalg.costs.fusion import fuses
from shardalg.graph.ir import Graph
from shardalg.sizes.points.lanes import one_answer
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.program import SpmdProgram

_INFINITE = 1 << 30


def last_uses(instructions: tuple[Instruction, ...], results: tuple[int, ...]) -> dict[int, int]:
    """Per value, the last instruction that reads it; one past the end for a result."""
    last = {value: i for i, ins in enumerate(instructions) for value in ins.operands}
    last.update(dict.fromkeys(results, len(instructions)))
    return last


def rebuilt_last_uses(
    program: SpmdProgram, graph: Graph, block: Block | None = None
) -> dict[int, int]:
    """Last uses in a program, or in the body of a loop, whose backward pass rebuilds cheap values.

    Instead of every value that the backward pass reads, those of a **minimum vertex cut** are kept:
    the fewest bytes from which pointwise operators, layout operators and reductions give all of
    them. A fusing compiler does so, since it repeats such operators inside their readers. Values
    that follow from the arguments by such operators alone are free. A value that is not kept ends
    with its last reader in the forward pass; a kept one lives as long as what is rebuilt from it.
    """
    block = program.block if block is None else block
    instructions, results = block.instructions, block.results
    last = last_uses(instructions, results)
    border = _border(instructions)
    end = len(instructions)
    forward = instructions[:border]
    made = {value: ins for ins in forward for value in ins.results}
    crossing = {v: i for v, i in last.items() if v in made and border <= i < end}
    if not crossing:
        return last
    kept = _minimum_cut(program, _Span(graph, made, frozenset(crossing)))
    needed = dict(crossing)
    for instruction in reversed(forward):
        rebuilt = [needed[v] for v in instruction.results if v in needed and v not in kept]
        for operand in instruction.operands if rebuilt else ():
            needed[operand] = max(needed.get(operand, -1), *rebuilt)
    before = last_uses(forward, ())
    last.update({v: before.get(v, made_at) for v, made_at in _dropped(forward, crossing, kept)})
    last.update({v: max(i, last[v]) for v, i in needed.items() if v in kept or v not in made})
    return last


def saved_values(program: SpmdProgram, graph: Graph) -> tuple[int, ...]:
    """Local values that are there in the forward pass and kept for the backward one.

    Those of the minimum cut (`rebuilt_last_uses`), and the arguments that both passes need: the
    data, the weights. In one layer alone, its input is such an argument.
    """
    instructions = program.block.instructions
    border, last = _border(instructions), rebuilt_last_uses(program, graph)
    there = {v: None for i in instructions[:border] for v in (*i.operands, *i.results)}
    return tuple(v for v in there if border <= last[v] < len(instructions))


def _border(instructions: tuple[Instruction, ...]) -> int:
    """The first instruction of the backward pass."""
    phases = [instruction.phase for instruction in instructions]
    return phases.index("backward") if "backward" in phases else len(phases)


def _dropped(
    forward: tuple[Instruction, ...], crossing: dict[int, int], kept: frozenset[int]
) -> list[tuple[int, int]]:
    """(value, where it is made) of what the backward pass reads and rebuilds."""
    at = [(value, i) for i, instruction in enumerate(forward) for value in instruction.results]
    return [(value, i) for value, i in at if value in crossing and value not in kept]


class _Span:
    """The forward values that lead to what the backward pass reads, and where they come from."""

    def __init__(
        self, graph: Graph, made: dict[int, Instruction], crossing: frozenset[int]
    ) -> None:
        self.crossing = crossing
        self.values: dict[int, int] = {}
        self.fixed: set[int] = set()
        self.edges: list[tuple[int, int]] = []
        waiting = list(crossing)
        while waiting:
            value = waiting.pop()
            if value in self.values or value not in made:
                continue
            self.values[value] = len(self.values)
            if not fuses(made[value], graph):
                self.fixed.add(value)
                continue
            sources = [v for v in made[value].operands if v in made]
            self.edges += [(source, value) for source in sources]
            waiting += sources


def _minimum_cut(program: SpmdProgram, span: _Span) -> frozenset[int]:
    """Values to keep. Sizes count by their ratios alone, so that lanes ask once for many points."""
    sizes = [program.locals[value].bytes for value in span.values]
    return one_answer(sizes, lambda row: _cut(span, [n // (math.gcd(*row) or 1) for n in row]))


def _cut(span: _Span, sizes: Sequence[int]) -> frozenset[int]:
    """The cut at some sizes: node 2k is value k before its bytes are paid, 2k+1 after."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    number, n = span.values, len(span.values)
    # scipy counts in 32 bits: a unit such that the sum of all capacities fits.
    unit = 1 + (sum(sizes) >> 28)
    source, sink = 2 * n, 2 * n + 1
    arcs = [(2 * k, 2 * k + 1, -(-sizes[k] // unit)) for k in number.values()]
    arcs += [(source, 2 * number[value], _INFINITE) for value in span.fixed]
    arcs += [(2 * number[a] + 1, 2 * number[b], _INFINITE) for a, b in set(span.edges)]
    arcs += [(2 * number[value] + 1, sink, _INFINITE) for value in span.crossing if value in number]
    rows, columns, capacity = (np.array(column, np.int32) for column in zip(*arcs, strict=True))
    network = csr_array((capacity, (rows, columns)), shape=(2 * n + 2, 2 * n + 2))
    left = network - maximum_flow(network, source, sink).flow
    left.eliminate_zeros()
    reached = set(breadth_first_order(left, source, return_predecessors=False).tolist())
    return frozenset(v for v, k in number.items() if 2 * k in reached and 2 * k + 1 not in reached)


def fused_away(block: Block, fused: frozenset[int], last: dict[int, int]) -> frozenset[int]:
    """The values of a block that fused operators make anew wherever they are read.

    Those between fused operators that the forward pass does not keep for the backward one. What
    they are made of is counted for as long as something else reads it.

    Args:
      fused: as `costs.fusion.fused` gives them; last: as `rebuilt_last_uses` does.
    """
    border = _border(block.instructions)
    made = {v: i for i, ins in enumerate(block.instructions) for v in ins.results}
    kept = {v for v, i in made.items() if i < border <= last.get(v, -1)}
    return fused & made.keys() - kept
