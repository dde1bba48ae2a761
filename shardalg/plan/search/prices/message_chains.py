"""All-reduces that are never sent as one message, so that each of them pays its latency.

Independent all-reduces along equal axes are one message (`costs.analyses.overlap`). Of a chain of
values, each of which depends on all before it, no two all-reduces are independent. So the latency
of every all-reduce of a chain is part of a plan's price.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from shardalg.costs.walk import walk
from shardalg.graph.ir import Graph
from shardalg.spmd.instruction import is_a
from shardalg.spmd.instructions import AllReduce
from shardalg.spmd.program import SpmdProgram

LatencyShares = Mapping[AllReduce | None, Mapping[int, float]]
"""Per kind and axes of all-reduces, the share of the latency that each value pays.

The key None is for all-reduces without an entry. Shares are means over chains, so that those of
one message add up to at most 1.
"""


def longest_chain(graph: Graph, weights: Mapping[int, float]) -> frozenset[int]:
    """Return the values of the heaviest chain in each block of a graph.

    Args:
      weights: the weights of values; 0 for others.
    """
    block = {region.index: region.index for region in graph.regions}
    for region in graph.regions:
        if region.kind == "remat" and region.parent is not None:
            # Its nodes are instructions of the parent's block.
            block[region.index] = block[region.parent]
    heaviest = [0.0] * len(graph.values)
    before: list[int | None] = [None] * len(graph.values)
    last: dict[int, int] = {}
    for node in graph.nodes:
        source = max(node.operands, key=heaviest.__getitem__, default=None)
        for value in node.results:
            heaviest[value] = weights.get(value, 0.0)
            if source is not None:
                heaviest[value] += heaviest[source]
            before[value] = source
            end = last.get(block[node.region])
            if end is None or heaviest[value] > heaviest[end]:
                last[block[node.region]] = value
    found = set()
    for end in last.values():
        at: int | None = end
        while at is not None:
            found.add(at)
            at = before[at]
    return frozenset(found)


def message_chains(programs: Sequence[SpmdProgram], graph: Graph) -> LatencyShares:
    """Return the means of the chains that pay most latency in each of some programs."""
    every: dict[AllReduce | None, list[frozenset[int]]] = defaultdict(list)
    for program in programs:
        for step, chain in _chains_of(program, graph).items():
            every[step].append(chain)
    return {
        step: {
            value: count / len(chains)
            for value, count in Counter(itertools.chain.from_iterable(chains)).items()
        }
        for step, chains in every.items()
    }


def _chains_of(program: SpmdProgram, graph: Graph) -> dict[AllReduce, frozenset[int]]:
    """Return, per kind and axes of all-reduces, the chain of a program that pays most latency.

    Each all-reduce is one of a graph value, or is inside of the operator that makes it.
    """
    weights: dict[AllReduce, dict[int, float]] = defaultdict(dict)
    for step in walk(program):
        one = step.instruction
        if is_a(one, AllReduce) and one.attributes.sends > 0:
            value = program.locals[one.operands[0]].origin
            if value is None:
                value = program.locals[one.results[0]].origin
            if value is not None:
                weights[one.attributes][value] = float(step.count)
    return {step: longest_chain(graph, found) for step, found in weights.items()}
