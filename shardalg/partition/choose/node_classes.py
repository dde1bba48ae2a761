"""Nodes that a partitioner cannot tell apart but by their values: found once per graph."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from shardalg.graph.ir import Graph, Node
from shardalg.graph.once import once_per_graph
from shardalg.ops.origins import Origins, origins, remade_values
from shardalg.ops.rows import rules
from shardalg.ops.rule import SUM, Rule
from shardalg.spmd.manual import WRITTEN

Alike = tuple[int, ...] | bool
"""What two nodes of one kind have in common beside their signature."""


@dataclass(frozen=True, eq=False)
class Kinds:
    """The kind of every node.

    Attributes:
      deferrable: values whose partial sums may wait behind their only user (`Rule.passes`): of all
        numbers, and of finite ones.
      numbers: per node, the number of its kind; None for calls and collectives of the user's.
      reads: per kind, of each operand the first one that is the same value.
      unread: per kind, results that nobody reads, and so nobody brings home.
      remade: per kind, whether its only result is made from numbers alone (`remade_values`).
      shared: per kind, operands of a product that a later product of the region reads too.
      origins: per node, the origins of its operands (`origins`), none where no operand has any.
      pick: per node, its values' entries in a list: operands, results, then origins.
    """

    deferrable: tuple[frozenset[int], frozenset[int]]
    numbers: tuple[int | None, ...]
    reads: tuple[tuple[int, ...], ...]
    unread: tuple[tuple[int, ...], ...]
    remade: tuple[bool, ...]
    shared: tuple[tuple[int, ...], ...]
    origins: tuple[tuple[Origins, ...], ...]
    pick: tuple[itemgetter, ...]

    def number(self, node: Node) -> int:
        """The kind of an operator's node."""
        number = self.numbers[node.index]
        assert number is not None, f"{node.primitive} is no operator"
        return number


@once_per_graph
def kinds(graph: Graph) -> Kinds:
    """The kinds of a graph's nodes."""
    inner = (v for region in graph.regions for v in region.results)
    outputs = frozenset([*graph.results, *inner])
    found: dict[tuple[Any, ...], int] = {}
    again, later, smaller = remade_values(graph), _read_later(graph), origins(graph)
    numbers: list[int | None] = []
    made_of = [tuple([smaller.get(v, ()) for v in node.operands]) for node in graph.nodes]
    made_of = [found if any(found) else () for found in made_of]
    for node in graph.nodes:
        if node.bodies or node.signature.primitive in WRITTEN:
            numbers.append(None)
        else:
            also = later.get(node.index, ())
            key = (node.signature, *_alike(graph, node, (outputs, again)), also)
            if made_of[node.index]:
                key = (*key, _pattern(graph, made_of[node.index]))
            numbers.append(found.setdefault(key, len(found)))
    same = [key[1:5] for key in found]
    reads, unread, remade, shared = list(zip(*same, strict=True)) or ((),) * 4
    once = [v for v, users in enumerate(graph.users) if len(users) == 1]
    linear = [(v, *read) for v in once if (read := _read(graph, v, outputs))]
    always = frozenset(v for v, rule, k in linear if k in rule.passes(finite=False))
    finite = frozenset(v for v, rule, k in linear if k in rule.passes(finite=True))
    pick = tuple(map(_owner_select, graph.nodes, made_of))
    classes = (reads, unread, remade, shared, tuple(made_of), pick)
    return Kinds((always, finite), tuple(numbers), *classes)


def _pattern(graph: Graph, found: tuple[Origins, ...]) -> tuple[Any, ...]:
    """What nodes of one kind have in common in what their operands are made of."""
    values = [origin.value for each in found for origin in each]
    return tuple(
        [
            tuple([(values.index(o.value), graph.values[o.value].type, o.dims) for o in each])
            for each in found
        ]
    )


def _alike(
    graph: Graph, node: Node, sets: tuple[frozenset[int], frozenset[int]]
) -> tuple[Alike, ...]:
    """Args: sets: what regions give back, and what can be made again."""
    outputs, again = sets
    reads = tuple([node.operands.index(value) for value in node.operands])
    if len(node.results) == 1:
        return reads, (), node.results[0] in again
    read = [graph.users[value] or value in outputs for value in node.results]
    return reads, tuple([k for k, is_read in enumerate(read) if not is_read]), False


def _read_later(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Per product its operands that a later product of its region reads too.

    Of products only: on how many devices they are computed at least is known (`matches`).
    """
    found: dict[int, tuple[int, ...]] = {}
    for region in graph.regions:
        behind: set[int] = set()
        for index in reversed(region.nodes):
            node = graph.nodes[index]
            if node.primitive == "dot_general":
                found[index] = tuple([k for k, v in enumerate(node.operands) if v in behind])
                behind.update(node.operands)
    return found


def _read(graph: Graph, value: int, outputs: frozenset[int]) -> tuple[Rule, int] | None:
    """The row of a value's only user, in the region of its node and summing, and as which operand.

    None where there is no such user.
    """
    made = graph.producer[value]
    if made is None or value in outputs:
        return None
    user = graph.nodes[graph.users[value][0]]
    rows = rules(user.signature)
    if user.region != graph.nodes[made].region or not rows or len(rows) > 1:
        return None
    positions = [i for i, v in enumerate(user.operands) if v == value]
    alone = rows[0].combine == SUM and len(positions) == 1
    return (rows[0], positions[0]) if alone else None


def _owner_select(node: Node, made_of: tuple[Origins, ...]) -> itemgetter:
    values = [*node.operands, *node.results, *[o.value for each in made_of for o in each]]
    return itemgetter(*values, values[-1])  # of one value alone it would give no tuple
