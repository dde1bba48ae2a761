"""Nodes that a partitioner cannot tell apart but by their values: found once per graph.

Copies that are made more than once: what keeping one, or making it before a loop, would save.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import itemgetter
from typing import Any

from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph, Node, Signature, once_per_graph
from shardalg.graph.ops.families.pointwise import ROWS as POINTWISE
from shardalg.graph.ops.families.pointwise import pointwise
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import SUM, Rule
from shardalg.planner.reshard.paths import reshard_price
from shardalg.spmd.manual import USER_COLLECTIVES

Copy = tuple[int, Sharding]
"""A value in a layout that is not its home."""


@dataclass(frozen=True)
class Copied:
    """A copy of a value that is made more than once.

    Attributes:
      before, after: the layout that it is made from, and its own.
      option: the switch that makes it less often.
      times: executions per step without the switch; fewest: with it.
    """

    value: int
    before: Sharding
    after: Sharding
    option: str
    times: int
    fewest: int


@dataclass(frozen=True)
class GatherChoice:
    """A copy of a value, and its price in bytes and in memory.

    Attributes:
      value, layout: of the graph, and the layout that is brought.
      option: the switch that makes it less often.
      times: executions per step without the switch; fewest: with it.
      wire_bytes: that a device sends for one; held_bytes: that it holds longer with the switch.
    """

    value: int
    layout: Sharding
    option: str
    times: int
    fewest: int
    wire_bytes: Any
    held_bytes: int

    @property
    def saved_wire_bytes(self) -> Any:
        """Per device and step."""
        return self.wire_bytes * (self.times - self.fewest)


def gather_choices(graph: Graph, copies: Iterable[Copied]) -> Iterator[GatherChoice]:
    """The copies for which something is sent, with their prices."""
    for copied in copies:
        type_, size = graph.values[copied.value].type, prod(copied.after.shard_shape)
        sent = reshard_price(copied.before, copied.after) * type_.itemsize
        if sent:
            how = copied.option, copied.times, copied.fewest
            held = type_.itemsize * size
            yield GatherChoice(copied.value, copied.after, *how, sent, held)


def within(choices: Iterable[GatherChoice], budget_bytes: int) -> frozenset[Copy]:
    """The copies to keep in so many bytes: those that save most per byte held first."""
    kept: list[Copy] = []
    for choice in sorted(choices, key=lambda c: (-c.saved_wire_bytes / c.held_bytes, c.value)):
        if choice.held_bytes <= budget_bytes:
            kept.append((choice.value, choice.layout))
            budget_bytes -= choice.held_bytes
    return frozenset(kept)


KEPT = ("annotate", "optimization_barrier")
"""Identities that hold a value where it is."""
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
      read_again: per kind, whether its result is a pointwise float that several nodes read.
      pick: per node, its values' entries in a list: operands, then results.
    """

    deferrable: tuple[frozenset[int], frozenset[int]]
    numbers: tuple[int | None, ...]
    reads: tuple[tuple[int, ...], ...]
    unread: tuple[tuple[int, ...], ...]
    remade: tuple[bool, ...]
    shared: tuple[tuple[int, ...], ...]
    read_again: tuple[bool, ...]
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
    again, later = remade_values(graph), _read_later(graph)
    numbers: list[int | None] = []
    for node in graph.nodes:
        if node.bodies or node.signature.primitive in USER_COLLECTIVES:
            numbers.append(None)
        else:
            also = later.get(node.index, ())
            alike = _alike(graph, node, (outputs, again))
            key = (node.signature, *alike, also, _is_read_again(graph, node))
            numbers.append(found.setdefault(key, len(found)))
    reads, unread, remade, shared, read_again = list(zip(*found, strict=True))[1:] or ((),) * 5
    once = [v for v, users in enumerate(graph.users) if len(users) == 1]
    linear = [(v, *read) for v in once if (read := _read(graph, v, outputs))]
    always = frozenset(v for v, rule, k in linear if k in rule.passes(finite=False))
    finite = frozenset(v for v, rule, k in linear if k in rule.passes(finite=True))
    pick = tuple(map(_owner_select, graph.nodes))
    waiting = always, finite
    return Kinds(waiting, tuple(numbers), reads, unread, remade, shared, read_again, pick)


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


def _is_read_again(graph: Graph, node: Node) -> bool:
    """Return whether several nodes read a node's pointwise float result, such as an activation."""
    result = node.results[0]
    return (
        len(graph.users[result]) > 1
        and "float" in graph.values[result].type.dtype
        and POINTWISE.get(node.primitive) is pointwise
    )


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
    alone = len(signature.operands) == len(signature.results) == 1
    one = alone and rows is not None and len(rows) == 1
    return bool(one and rows and not rows[0].flops and not rows[0].reduced)


@once_per_graph
def remade_values(graph: Graph) -> frozenset[int]:
    """Values that any layout can be made of again for nothing: of numbers and constants alone.

    Zeros and an iota, and what is worked out of them element by element (a causal mask, positions).
    """
    known = {*graph.literals, *(value for value, _ in graph.constants)}
    found = set()
    for node in graph.walk():
        if node.bodies or len(node.results) != 1 or not known.issuperset(node.operands):
            continue
        alone = graph.literals.issuperset(node.operands) and rules(node.signature) is not None
        if alone or elementwise(node.signature):
            known.add(node.results[0])
            if node.signature.results[0].shape:
                found.add(node.results[0])
    return frozenset(found)


@lru_cache(maxsize=1 << 12)
def elementwise(signature: Signature) -> bool:
    """Whether an element of the result is made of one element of each operand."""
    rows = rules(signature) or ()
    if len(rows) != 1 or signature.primitive in KEPT:
        return False
    row = rows[0]
    indices = (index for tensor in row.tensors for index in row.indices(tensor))
    loops = {name for name, _ in row.loops}
    marked = row.guards or row.symbols or row.whole or row.local or row.prefix
    plain = all(index.loop or not index.variables for index in indices)
    return plain and not marked and row.result_loops == loops
