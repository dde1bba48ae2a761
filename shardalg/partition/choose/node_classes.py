"""Nodes that a partitioner cannot tell apart but by their values: found once per graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from shardalg.graph.ir import Graph, Node, Signature
from shardalg.graph.once import once_per_graph
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
      remade: per kind, whether its only result is made from numbers alone (zeros, an iota).
      pick: per node, its values' entries in a list: operands, then results.
    """

    deferrable: tuple[frozenset[int], frozenset[int]]
    numbers: tuple[int | None, ...]
    reads: tuple[tuple[int, ...], ...]
    unread: tuple[tuple[int, ...], ...]
    remade: tuple[bool, ...]
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
    numbers: list[int | None] = []
    for node in graph.nodes:
        if node.bodies or node.signature.primitive in WRITTEN:
            numbers.append(None)
        else:
            key = (node.signature, *_alike(graph, node, outputs))
            numbers.append(found.setdefault(key, len(found)))
    reads, unread, remade = list(zip(*found, strict=True))[1:] or [()] * 3
    once = [v for v, users in enumerate(graph.users) if len(users) == 1]
    linear = [(v, *read) for v in once if (read := _read(graph, v, outputs))]
    always = frozenset(v for v, rule, k in linear if k in rule.passes(finite=False))
    finite = frozenset(v for v, rule, k in linear if k in rule.passes(finite=True))
    pick = tuple(map(_owner_select, graph.nodes))
    return Kinds((always, finite), tuple(numbers), reads, unread, remade, pick)


def _alike(graph: Graph, node: Node, outputs: frozenset[int]) -> tuple[Alike, ...]:
    reads = tuple([node.operands.index(value) for value in node.operands])
    if len(node.results) == 1:
        return reads, (), is_remade(graph, node)
    read = [graph.users[value] or value in outputs for value in node.results]
    return reads, tuple([k for k, is_read in enumerate(read) if not is_read]), False


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


def _owner_select(node: Node) -> itemgetter:
    values = node.operands + node.results
    return itemgetter(*values, values[-1])  # of one value alone it would give no tuple


@lru_cache(maxsize=1 << 12)
def repeats(signature: Signature) -> bool:
    """Whether a node without arithmetic makes its only result of fewer elements.

    >>> from shardalg.graph.ir import ValueType
    >>> row, table = ValueType((8,), "float32"), ValueType((4, 8), "float32")
    >>> how = (("shape", (4, 8)), ("broadcast_dimensions", (1,)), ("sharding", None))
    >>> repeats(Signature("broadcast_in_dim", how, (row,), (table,)))
    True
    """
    if not formats(signature):
        return False
    (read,), (made,) = signature.operands, signature.results
    return math.prod(read.shape) < math.prod(made.shape)


def formats(signature: Signature) -> bool:
    """Whether a node makes its only result of the elements of one operand as they are."""
    rows = rules(signature)
    one = len(signature.operands) == 1 and rows is not None and len(rows) == 1
    return bool(one and rows and not rows[0].flops and not rows[0].reduced)


def is_remade(graph: Graph, node: Node) -> bool:
    """Whether a node makes its only result from numbers alone (zeros, an iota)."""
    signature = node.signature
    if len(signature.results) != 1 or not signature.results[0].shape:
        return False
    if not graph.literals.issuperset(node.operands):
        return False
    return rules(signature) is not None
