"""Equivalence classes of nodes: nodes of one class are partitioned in the same way.

They have the same operator on the same shapes, and differ in the values that they read. Classes
are found once per graph. The module also prices copies that a step gathers several times.
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
"""A graph value, and the sharding of a gathered copy of it. A value can have several copies."""


@dataclass(frozen=True)
class Copied:
    """A copy of a value in another sharding that a training step makes several times.

    Attributes:
      value: the graph value.
      before: the sharding from which the copy is made.
      after: the sharding of the copy.
      option: the name of the option that makes it less often ("keep_gathers", "hoist_gathers").
      times, fewest: executions per step without the option, and with it.
    """

    value: int
    before: Sharding
    after: Sharding
    option: str
    times: int
    fewest: int


@dataclass(frozen=True)
class GatherChoice:
    """A copy of a value that a step makes several times, with its price in bytes and memory.

    Attributes:
      value, layout: the graph value, and the sharding of the copy.
      option: the name of the option that makes it less often ("keep_gathers", "hoist_gathers").
      times, fewest: executions per step without the option, and with it.
      wire_bytes: bytes that a device sends for one copy.
      held_bytes: bytes that a device holds longer with the option.
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
        """The bytes that the option saves a device from sending in one step."""
        return self.wire_bytes * (self.times - self.fewest)


def gather_choices(graph: Graph, copies: Iterable[Copied]) -> Iterator[GatherChoice]:
    """Yield a `GatherChoice` for each copy of a value that needs communication.

    It has the value, the sharding of the copy, how the copy is made, the bytes that a device sends
    for it, and the bytes of the device's block of it.
    """
    for copied in copies:
        type_, elements = graph.values[copied.value].type, prod(copied.after.shard_shape)
        sent_bytes = reshard_price(copied.before, copied.after) * type_.itemsize
        # A copy that is sliced from a block on the same device costs nothing, so it is no choice.
        if sent_bytes:
            decision = copied.option, copied.times, copied.fewest
            held_bytes = type_.itemsize * elements
            yield GatherChoice(copied.value, copied.after, *decision, sent_bytes, held_bytes)


def copies_within_budget(choices: Iterable[GatherChoice], budget_bytes: int) -> frozenset[Copy]:
    """Return the copies to keep in memory, which together need at most `budget_bytes`.

    Copies that save the most bytes sent per byte held are chosen first.
    """
    # A knapsack problem. The greedy order is not always optimal, but it needs no search.
    kept: list[Copy] = []
    for choice in sorted(choices, key=lambda c: (-c.saved_wire_bytes / c.held_bytes, c.value)):
        if choice.held_bytes <= budget_bytes:
            kept.append((choice.value, choice.layout))
            budget_bytes -= choice.held_bytes
    return frozenset(kept)


KEPT = ("annotate", "optimization_barrier")
"""Operators whose result always has its completed sharding, because the user asked for it.

Other operators without communication may be computed in the sharding of an operand's copy.
"""


@dataclass(frozen=True, eq=False)
class Kinds:
    """The equivalence class of every node of a graph, and properties of each class.

    Two nodes are in one class if they have the same operator, parameters and types, and agree in
    all properties below. The partitioner decides once for a class and equal available copies.

    Attributes:
      deferrable: two sets of values whose partial sums their only reader can pass on
        (`Rule.passes`). The first set is valid for all numbers, the second for finite numbers.
      numbers: per node, the number of its class; None for calls and the user's collectives.
      reads: per class and operand, the number of the first operand that is the same value.
      unread: per class, numbers of the results that no node reads, if there are several results.
      remade: per class, whether its only result is computed from numbers alone (`remade_values`).
      shared: per class, numbers of a product's operands that a later product of the region reads,
        too.
      read_again: per class, whether its result is a pointwise float that several nodes read.
      pick: per node, a function from a list over all values to the entries of the node's operands
        and results.
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
        """Return the class number of a node that has one (no call, no user's collective)."""
        number = self.numbers[node.index]
        assert number is not None, f"{node.primitive} is no operator"
        return number


@once_per_graph
def kinds(graph: Graph) -> Kinds:
    """Return the class of each node of a graph, and the properties of each class.

    Nodes that a decision cannot tell apart, such as the same product in all layers, are one class.
    A node with bodies (a loop or a call) or a collective of the user has the class None.
    """
    region_results = (v for region in graph.regions for v in region.results)
    outputs = frozenset([*graph.results, *region_results])
    # `found` numbers the classes in the order of their first node.
    found: dict[tuple[Any, ...], int] = {}
    remade_set, later = remade_values(graph), _read_later(graph)
    numbers: list[int | None] = []
    # Nodes of one class share one decision. So the tuple of a class must have every property that
    # a decision reads, or one node would get the decision of another one.
    for node in graph.nodes:
        if node.bodies or node.signature.primitive in USER_COLLECTIVES:
            numbers.append(None)
            continue
        reads = tuple([node.operands.index(value) for value in node.operands])
        unread_results: tuple[int, ...] = ()
        if len(node.results) > 1:
            is_read = [graph.users[value] or value in outputs for value in node.results]
            unread_results = tuple([k for k, read in enumerate(is_read) if not read])
        is_remade = len(node.results) == 1 and node.results[0] in remade_set
        read_later = later.get(node.index, ())
        # The entries are the attributes `reads`, `unread`, `remade`, `shared` and `read_again` of
        # `Kinds`. For example, `reads` is (0, 0) for x * x and (0, 1) for x * y.
        key = (
            node.signature,
            reads,
            unread_results,
            is_remade,
            read_later,
            _is_read_again(graph, node),
        )
        numbers.append(found.setdefault(key, len(found)))
    # The keys of `found` are in the order of the class numbers. Each is a signature and the five
    # properties of the class.
    classes = list(zip(*found, strict=True))[1:] or ((),) * 5
    reads_of, unread, remade, shared, is_read_again = classes
    # A value's reader can take its partial sum if it is linear in it; the sum is then reduced
    # later. With two readers, the collective would run once for each of them.
    read_once = [v for v, users in enumerate(graph.users) if len(users) == 1]
    # Entries are (value, rule of its reader, number k of the operand as which it is read).
    linear = [(v, *reader) for v in read_once if (reader := _only_reader(graph, v, outputs))]
    # Some operators are linear for finite numbers only: 0 * inf is nan.
    always = frozenset(v for v, rule, k in linear if k in rule.passes(finite=False))
    finite = frozenset(v for v, rule, k in linear if k in rule.passes(finite=True))
    # A getter reads the entries of all operands and results of a node from a list. The last value
    # is repeated, because a getter of one entry would not return a tuple.
    values = [node.operands + node.results for node in graph.nodes]
    pick = tuple([itemgetter(*each, each[-1]) for each in values])
    return Kinds(
        deferrable=(always, finite),
        numbers=tuple(numbers),
        reads=reads_of,
        unread=unread,
        remade=remade,
        shared=shared,
        read_again=is_read_again,
        pick=pick,
    )


def _is_read_again(graph: Graph, node: Node) -> bool:
    """Return whether several nodes read a node's pointwise float result, such as an activation.

    Such a result is worth a copy in another sharding, because several readers can use the copy.
    """
    result = node.results[0]
    return (
        len(graph.users[result]) > 1
        and "float" in graph.values[result].type.dtype
        and POINTWISE.get(node.primitive) is pointwise
    )


def _read_later(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Return a dictionary from each product's node index to numbers of its operands.

    They are the operands that a later product of the same region reads, too. Other operators are
    excluded: only products have a known minimum of devices (`matches.py`).
    """
    # From the last node backwards: `behind` holds the operands of later products.
    found: dict[int, tuple[int, ...]] = {}
    for region in graph.regions:
        behind: set[int] = set()
        for index in reversed(region.nodes):
            node = graph.nodes[index]
            if node.primitive == "dot_general":
                found[index] = tuple([k for k, v in enumerate(node.operands) if v in behind])
                behind.update(node.operands)
    return found


def _only_reader(graph: Graph, value: int, outputs: frozenset[int]) -> tuple[Rule, int] | None:
    """Return the row of RULES of a value's only reader, and the number of the operand it reads.

    None unless the reader has one rule, combines by sum, and is in the region of the value's node.

    Args:
      value: a value with one reader.
      outputs: results of the graph and of its regions.
    """
    producer = graph.producer[value]
    # The caller of the function, or of a region, reads an output as well. An argument of the
    # function (without a producer) is never a partial sum.
    if producer is None or value in outputs:
        return None
    reader = graph.nodes[graph.users[value][0]]
    rows = rules(reader.signature)
    # Partial sums do not cross the border of a region.
    if reader.region != graph.nodes[producer].region or not rows or len(rows) > 1:
        return None
    # An operator that reads the value twice, such as x * x, is not linear in it.
    positions = [i for i, v in enumerate(reader.operands) if v == value]
    reads_once = rows[0].combine == SUM and len(positions) == 1
    return (rows[0], positions[0]) if reads_once else None


@lru_cache(maxsize=1 << 12)
def repeats(signature: Signature) -> bool:
    """Return whether an operator is a broadcast: it copies elements and returns more than it reads.

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
    """Return whether an operator only copies the elements of its only operand to its only result.

    Examples are a reshape, a transpose and a broadcast.
    """
    rows = rules(signature)
    alone = len(signature.operands) == len(signature.results) == 1
    one = alone and rows is not None and len(rows) == 1
    return bool(one and rows and not rows[0].flops and not rows[0].reduced)


@once_per_graph
def remade_values(graph: Graph) -> frozenset[int]:
    """Return the values that every device can compute in any sharding without communication.

    They depend on numbers and constants alone: zeros and an iota, and elementwise functions of
    these (a causal mask, positions). Scalars are excluded.
    """
    # `known` has all values that depend on numbers and constants alone, scalars included.
    known = {*graph.literals, *(value for value, _ in graph.constants)}
    remade = set()
    # The walk has a node after the nodes that it reads, so one pass finds chains of such nodes.
    for node in graph.walk():
        if node.bodies or len(node.results) != 1 or not known.issuperset(node.operands):
            continue
        # A constant array is whole on every device. Only an elementwise operator computes a block
        # of its result from the same block of it, which each device slices for itself.
        reads_numbers = graph.literals.issuperset(node.operands)
        if (reads_numbers and rules(node.signature) is not None) or elementwise(node.signature):
            known.add(node.results[0])
            # A scalar has one sharding only.
            if node.signature.results[0].shape:
                remade.add(node.results[0])
    return frozenset(remade)


@lru_cache(maxsize=1 << 12)
def elementwise(signature: Signature) -> bool:
    """Return whether each element of the result depends on at most one element of each operand.

    Broadcasts and transposes count; slices, reductions and operators without a rule do not.
    """
    rows = rules(signature) or ()
    # The results of `KEPT` (annotations, barriers) must have their completed sharding.
    if len(rows) != 1 or signature.primitive in KEPT:
        return False
    row = rows[0]
    # Every index must be one loop or a constant, and every loop must index the result: nothing is
    # shifted, selected or summed.
    indices = (index for tensor in row.tensors for index in row.indices(tensor))
    loops = {name for name, _ in row.loops}
    is_special = row.guards or row.symbols or row.whole or row.local or row.prefix
    has_plain_indices = all(index.loop or not index.variables for index in indices)
    return has_plain_indices and not is_special and row.result_loops == loops
