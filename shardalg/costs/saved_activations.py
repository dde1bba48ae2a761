"""Choice of the activations that stay in memory from the forward to the backward pass.

The backward pass recomputes cheap values from these instead of keeping them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from shardalg.costs.fusion import (
    APART,
    CONTRACTS,
    FUSES,
    REDUCES,
    casts,
    held_back,
    inside_kernels,
    traits,
    without_aliases,
)
from shardalg.graph.ir import Graph
from shardalg.sizes.decided import decided
from shardalg.sizes.recorded import least_sum
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.program import SpmdProgram

_REPEATS = FUSES | REDUCES
"""Mask of `traits`. An instruction whose masked bits equal `FUSES` is repeated in each reader."""
NOTHING: frozenset[int] = frozenset()
Instructions = tuple[Instruction, ...]


def last_uses(instructions: Instructions, results: tuple[int, ...]) -> dict[int, int]:
    """Return, for each value, the position of the last instruction that reads it.

    The values in `results`, which the block returns, are needed after the last instruction. They
    have the position `len(instructions)`.
    """
    last = {value: i for i, ins in enumerate(instructions) for value in ins.operands}
    last.update(dict.fromkeys(results, len(instructions)))
    return last


@dataclass(frozen=True)
class Lifetimes:
    """Lifetimes of the values of a program or a loop body, under a compiler with fusion.

    Attributes:
      last: the last instruction that needs each value, directly or through values that are never
        in memory; one past the end for a result.
      kept: values of the forward pass that stay in memory for the backward pass.
      sources: for each value that is never in memory, the values in memory that it is computed
        from.
      reduced: values that a reduction reads, directly or through fused operators. Their memory is
        not overwritten.
    """

    last: Mapping[int, int]
    kept: frozenset[int]
    sources: Mapping[int, frozenset[int]]
    reduced: frozenset[int]


def lifetimes(program: SpmdProgram, graph: Graph, block: Block) -> Lifetimes:
    """Return when the values of a block are in memory, if its backward pass recomputes cheap ones.

    The backward pass does not keep every value that it reads. It keeps a **minimum vertex cut**:
    the fewest bytes from which pointwise and layout operators compute all these values. A compiler
    with fusion does so, because it repeats such operators inside their readers. It does not repeat
    reductions: the compiler of TPU v3 keeps sums. With repeated reductions, the peaks of the twelve
    recorded programs would be 0.05 to 0.15 % smaller, nine of them further from the compiler's.
    Values that follow from the arguments by such operators alone are free. A value that collectives
    or loops of both passes read is written once and kept. A value between fused operators is
    computed in each reader, so its sources live until the last reader.

    The steps are: choose the kept values; find the values that are never in memory; find the last
    instruction that needs each value, in both passes; end the life of recomputed values with the
    forward pass.
    """
    barred = held_back(block)
    block, same = without_aliases(block)
    instructions, bits = block.instructions, traits(block, graph)
    border = _border(instructions)
    # The values that the backward pass keeps are chosen first: a kept value is in memory, and
    # whether other values are depends on it.
    kept = _values_to_keep(program, block, bits, border)
    # Values that are never in memory: values between fused operators, except sums (reductions are
    # not repeated), plus products whose epilogue writes the result instead. A barrier's operands
    # are in memory.
    sums = (ins for ins, bit in zip(instructions, bits, strict=True) if bit & REDUCES)
    summed = {v for ins in sums for v in ins.results}
    # A product reads the value before a cast, so the cast's result is never in memory either.
    unwritten = inside_kernels(block, graph).union(casts(program, graph).read) - kept - summed
    products, ends = _epilogues(program, block, bits)
    unwritten = (unwritten | products.difference(kept, block.results)) - ends
    unwritten -= {same.get(v, v) for v in barred}
    # A value in memory lives as long as values without memory are recomputed from it.
    forward, backward = _last_readers(instructions, border, kept, unwritten)
    sources, reduced = _sources(instructions, bits, unwritten)
    last = {**forward, **{v: max(forward.get(v, at), at) for v, at in backward.items()}}
    # The backward pass computes such a value again, so its memory is freed after its last use in
    # the forward pass.
    for at, instruction in enumerate(instructions[:border]):
        for value in instruction.results:
            if value in backward and value not in kept:
                last[value] = forward.get(value, at)
    last.update(dict.fromkeys(block.results, len(instructions)))
    # An alias is as long in memory as the value that it is, and has the same sources.
    last.update({alias: last[value] for alias, value in same.items() if value in last})
    sources.update({v: sources.get(of, frozenset((of,))) for v, of in same.items()})
    return Lifetimes(last, kept, sources, reduced)


def saved_values(program: SpmdProgram, graph: Graph) -> tuple[int, ...]:
    """Return the local values that are in memory from the forward to the backward pass.

    They are the values of the minimum cut (`lifetimes`), and the arguments that both passes need:
    data and weights. If the program is a single layer, its input is such an argument.
    """
    block = program.block
    border, last = _border(block.instructions), lifetimes(program, graph, block).last
    block, _ = without_aliases(block)
    there = {v: None for i in block.instructions[:border] for v in (*i.operands, *i.results)}
    return tuple(v for v in there if border <= last[v] < len(block.instructions))


def _border(instructions: Instructions) -> int:
    """Return the number of the first instruction of the backward pass.

    Without a backward pass, it is the number of instructions.
    """
    phases = [instruction.phase for instruction in instructions]
    return phases.index("backward") if "backward" in phases else len(phases)


def _values_to_keep(program: SpmdProgram, block: Block, bits: bytes, border: int) -> frozenset[int]:
    """Return the values of the forward pass that stay in memory for the backward pass.

    A value that the backward pass reads is kept, or computed again from kept values by operators
    that fuse with its readers. The kept values are the minimum cut, in bytes, of the graph of these
    operators (`_ForwardSpan`).

    Args:
      bits: the result of `traits` for the block.
      border: number of the first instruction of the backward pass.
    """
    forward, backward = block.instructions[:border], block.instructions[border:]
    made = {
        # Fused operators without a sum are repeated in each reader: those may compute a value
        # again.
        value: (ins, bit & _REPEATS == FUSES)
        for ins, bit in zip(forward, bits, strict=False)
        for value in ins.results
    }
    crossing = frozenset(v for ins in backward for v in ins.operands if v in made)
    if not crossing:
        return crossing
    read_forward, read_backward = (
        {value for ins in part if type(ins.attributes) in APART for value in ins.operands}
        for part in (forward, backward)
    )
    # Collectives and loops of both passes read these values from memory, so they are kept anyway.
    # For the cut they cost nothing.
    again = crossing & read_forward & read_backward
    span = _ForwardSpan(made, crossing, again)
    sizes = [0 if v in span.free else program.locals[v].bytes for v in span.values]
    return again | _least_cut(span, tuple(sizes))


def _epilogues(
    program: SpmdProgram, block: Block, bits: bytes
) -> tuple[frozenset[int], frozenset[int]]:
    """Return products that are never written, and the values that their kernels write instead.

    Pointwise operators directly after a product are part of its kernel if nothing else reads
    the product. The kernel writes the last result that has no more bytes than the product.
    """
    reads = Counter(chain.from_iterable([{*ins.operands} for ins in block.instructions]))
    # A pointwise operator continues the kernel of a product only if it reads the kernel's newest
    # value, so that value is the key to the product.
    product_of: dict[int, int] = {}
    last: dict[int, int] = {}
    for instruction, bit in zip(block.instructions, bits, strict=True):
        # Only pointwise operators directly after a product are part of its kernel, so any other
        # instruction ends it.
        if bit & _REPEATS != FUSES:
            product_of = {v: v for v in instruction.results} if bit & CONTRACTS else {}
            continue
        if not product_of:
            continue
        for operand in instruction.operands:
            if operand in product_of and reads[operand] == 1:
                product, result = product_of.pop(operand), instruction.results[0]
                product_of[result] = product
                if program.locals[result].bytes <= program.locals[product].bytes:
                    last[product] = result
    return frozenset(last), frozenset(last.values())


def _last_readers(
    instructions: Instructions, border: int, kept: frozenset[int], unwritten: frozenset[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return for each value the last instruction that needs it, in two dictionaries.

    The first is for the forward pass, the second for the backward pass. A value is needed by the
    instructions that read it. If such an instruction has a result without memory (`unwritten`), the
    result is computed inside of its readers, so that the value is needed until the last of these.
    If the backward pass computes a result again, it needs the operands of that result. One scan
    from the last instruction to the first finds all of this.

    Args:
      border: number of the first instruction of the backward pass.
      kept: values of the forward pass that stay in memory for the backward pass.
      unwritten: values that are never in memory.
    """
    forward: dict[int, int] = {}
    backward: dict[int, int] = {}
    # Backwards, so that the need of a result is known before it is passed on to its operands.
    for at in reversed(range(len(instructions))):
        results, operands = instructions[at].results, instructions[at].operands
        needs, until, again = backward, at, at
        through = unwritten.issuperset(results)
        if at < border:
            needs = forward
            # If the backward pass recomputes a result, its operands are needed as long as that
            # result. The scan goes backwards, so that all recorded places are at or after `at`.
            for result in results:
                if result in backward and result not in kept:
                    again = max(again, backward[result])
        # A result that is never in memory is computed inside of its readers, so its operands are
        # needed until the last of these.
        if through and results:
            until = max([needs.get(result, at) for result in results])
        for operand in operands:
            if needs.get(operand, at) <= until:
                needs[operand] = until
            if again > at and backward.get(operand, at) <= again:
                backward[operand] = again
    return forward, backward


def _sources(
    instructions: Instructions, bits: bytes, unwritten: frozenset[int]
) -> tuple[dict[int, frozenset[int]], frozenset[int]]:
    """Return the values in memory from which others are computed, and those that are reduced.

    The first result has, for each value without memory, the values in memory that it is computed
    from. The second has the values that a reduction reads, except results of collectives and loops.

    Args:
      bits: the result of `traits` for the instructions.
      unwritten: values that are never in memory.
    """
    sources: dict[int, frozenset[int]] = {}
    reduced: set[int] = set()
    transferred = {v for ins in instructions if type(ins.attributes) in APART for v in ins.results}
    for instruction, bit in zip(instructions, bits, strict=True):
        unwritten_results = () if unwritten.isdisjoint(instruction.results) else instruction.results
        if not unwritten_results and not bit & REDUCES:
            continue
        memory_values = NOTHING.union(*[sources.get(v, (v,)) for v in instruction.operands])
        # Of the bits `FUSES` and `REDUCES`, a pointwise operator has the first one alone. Any other
        # operator, such as a product, does not write over its operands, so its result has no
        # sources to overwrite.
        overwritable = memory_values if bit & _REPEATS == FUSES else NOTHING
        for value in unwritten_results:
            if value in unwritten:
                sources[value] = overwritable
        if bit & REDUCES:
            reduced |= memory_values - transferred
    return sources, frozenset(reduced)


class _ForwardSpan:
    """Graph of the forward values from which the backward pass's operands can be recomputed.

    Attributes:
      crossing: forward values that the backward pass reads.
      free: crossing values that are in memory anyway, so that keeping them costs nothing.
      values: for each value of this graph, its number in the graph.
      fixed: values that cannot be recomputed: results of products, reductions and collectives.
      edges: pairs (operand, result) of the operators that can be repeated.
    """

    def __init__(
        self,
        made: dict[int, tuple[Instruction, bool]],
        crossing: frozenset[int],
        free: frozenset[int],
    ) -> None:
        """Build the graph backwards from the crossing values: `values`, `fixed` and `edges`.

        A value that cannot be recomputed is `fixed`, and the values before it are left out.

        Args:
          made: for each forward value, its instruction, and whether it can be repeated.
          crossing, free: see the attributes of the class, as for the three tables.
        """
        self.crossing = crossing
        self.free = free
        self.values: dict[int, int] = {}
        self.fixed: set[int] = set()
        self.edges: list[tuple[int, int]] = []
        # Backwards from the crossing values, so that only values that can replace them are nodes.
        waiting = list(crossing)
        while waiting:
            value = waiting.pop()
            if value in self.values or value not in made:
                continue
            self.values[value] = len(self.values)
            maker, repeats = made[value]
            if not repeats:
                self.fixed.add(value)
                continue
            sources = [v for v in maker.operands if v in made]
            self.edges += [(source, value) for source in sources]
            waiting += sources


@decided(64, lambda span, sizes: sizes)
def _least_cut(span: _ForwardSpan, sizes: tuple[Any, ...]) -> frozenset[int]:
    """Return the values with the fewest bytes that separate the forward from the backward pass.

    They are a minimum vertex cut (`_cut`). The comparisons of sizes that decide the cut are
    recorded.

    Args:
      sizes: the bytes of each value in `span.values`.
    """
    # `decided` caches the answer with the comparisons of sizes that led to it. A plan that records
    # its comparisons must record these too, even if the answer comes from the cache.
    values = list(span.values)
    places = least_sum(sizes, lambda row: frozenset(span.values[v] for v in _cut(span, row)))
    return frozenset(values[place] for place in places)


def _cut(span: _ForwardSpan, sizes: Sequence[int]) -> frozenset[int]:
    """Return the set of values with the fewest bytes from which all crossing values follow.

    It is a minimum vertex cut; of several, the one nearest to the start of the forward pass. Each
    value k is split into the nodes 2k and 2k+1. The arc between them has the value's bytes.

    Args:
      sizes: bytes of each value in `span.values`.
    """
    index_of, count = span.values, len(span.values)
    # An arc of infinite capacity is never cut: a fixed value cannot be recomputed, and a result
    # needs its operands. More than all bytes together, so that no minimum cut contains such an arc.
    source, sink, infinite = 2 * count, 2 * count + 1, sum(sizes) + 1
    arcs = [(2 * k, 2 * k + 1, sizes[k]) for k in index_of.values()]
    arcs += [(source, 2 * index_of[value], infinite) for value in span.fixed]
    arcs += [(2 * index_of[a] + 1, 2 * index_of[b], infinite) for a, b in set(span.edges)]
    arcs += [
        (2 * index_of[value] + 1, sink, infinite) for value in span.crossing if value in index_of
    ]
    # By max-flow min-cut, the arcs from reachable to unreachable nodes of the residual graph are
    # a minimum cut.
    reached = _reached_beside_flow(arcs, source, sink)
    return frozenset(
        v for v, k in index_of.items() if 2 * k in reached and 2 * k + 1 not in reached
    )


def _reached_beside_flow(arcs: Sequence[tuple[int, int, int]], source: int, sink: int) -> set[int]:
    """Return the nodes that the source reaches by capacity that a maximum flow leaves unused.

    Dinic's method: flow is sent along shortest paths until none is left. Most graphs have few
    nodes, for which scipy takes 40 times longer. Its capacities also have only 32 bits.

    Args:
      arcs: (start node, end node, capacity).
      source, sink: the two largest nodes.
    """
    heads: list[int] = []
    unused: list[int] = []
    # Arc 2i is the i-th given one, and arc 2i + 1 its reverse, which takes flow back.
    arcs_from: list[list[int]] = [[] for _ in range(sink + 1)]
    for start, end, capacity in arcs:
        arcs_from[start].append(len(heads))
        arcs_from[end].append(len(heads) + 1)
        heads += (end, start)
        unused += (capacity, 0)
    while True:
        # Breadth-first search: the level of a node is its distance from the source over unused
        # capacity.
        level = [-1] * len(arcs_from)
        level[source] = 0
        for node in (queue := [source]):
            for arc in arcs_from[node]:
                head = heads[arc]
                if unused[arc] and level[head] < 0:
                    level[head] = level[node] + 1
                    queue.append(head)
        # If no path has unused capacity, the flow is maximal, and the visited nodes are the result.
        if level[sink] < 0:
            return set(queue)
        # Along shortest paths the level grows by 1 per arc. An arc that leads nowhere is passed by
        # for good: `place` is the number of the first arc of a node that may still take flow.
        place = [0] * len(arcs_from)
        path: list[int] = []
        node = source
        while path or place[source] < len(arcs_from[source]):
            if node == sink:
                # The path takes as much flow as its narrowest arc, and is kept up to its first full
                # arc.
                flow = min([unused[arc] for arc in path])
                for arc in path:
                    unused[arc] -= flow
                    unused[arc ^ 1] += flow
                first_full = next(i for i, arc in enumerate(path) if not unused[arc])
                node = heads[path[first_full] ^ 1]
                del path[first_full:]
            elif place[node] == len(arcs_from[node]):
                # A dead end: go back by one arc, and never try this arc again in this phase.
                node = heads[path.pop() ^ 1]
                place[node] += 1
            else:
                arc = arcs_from[node][place[node]]
                if unused[arc] and level[heads[arc]] == level[node] + 1:
                    path.append(arc)
                    node = heads[arc]
                else:
                    place[node] += 1
