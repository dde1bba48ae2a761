"""The lower bound of a plan: the cheapest division of every operator, added up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from shardalg.algebra.digits import Digit, overlap, parts
from shardalg.costs.collectives import Traffic
from shardalg.graph.ir import Graph, Node
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.stages import Stages
from shardalg.xla.least.divisions import (
    Dims,
    Loops,
    OperatorDivision,
    Reads,
    lacking,
    lengths,
    missing,
    plain_rule,
)
from shardalg.xla.least.value_facts import Values, dims_of, is_branch

# On a larger mesh operands count as 0, because the blocks of all devices are enumerated.
MOST_DEVICES = 1 << 14


class Division(NamedTuple):
    """The bytes that a device receives if an operator is divided in one of the possible ways.

    Attributes:
      copies: for each value that the operator reads, the received bytes.
      results: the received bytes of the result and of its partial sums.
    """

    copies: Mapping[int, float]
    results: float


def least_sent(stages: Stages) -> int:
    """Return a lower bound of the bytes that XLA's program sends per device and step.

    It is the sum of the bytes that each operator needs in its cheapest division (`_Least`). For a
    function with a `shard_map`, it is the bytes of the user's own collectives.
    """
    graph = stages.graph
    explicit = sum(_explicit(graph, stages.traffic, stages.mesh.size))
    # In a `shard_map` the user has divided the operators, so their divisions are no choice of XLA.
    if graph.block_axes or any(r.kind == "shard_map" for r in graph.regions):
        return math.floor(explicit)
    return math.floor(_Least(graph, stages.sharded).bytes)


def _explicit(graph: Graph, traffic: Traffic, devices: int) -> Iterator[float]:
    """Yield the bytes of the user's collectives in a `shard_map`; equal ones count once."""
    # XLA computes equal operators once, and one branch of a condition may never run.
    seen = set()
    for moved in traffic.collectives:
        number = moved.step.instruction.node
        # A region that was rewritten to whole values has no collectives of the user any more.
        if number is None or graph.block_axes:
            continue
        node = graph.nodes[number]
        manual = _manual_axes(graph, node.region)
        key = (node.signature, node.operands)
        if manual and key not in seen and not is_branch(graph, node.region):
            seen.add(key)
            # Completion may divide the collective's work along all axes that are not manual, so
            # the bound counts the share of one of these devices.
            yield float(moved.step.count * moved.wire_bytes) * manual / devices


def _manual_axes(graph: Graph, region: int | None) -> int:
    """Return the number of devices along the manual axes of a region, 0 where it has none.

    Regions may be nested: the axes of every `shard_map` around the operator are multiplied.
    """
    device_count = 0
    while region is not None:
        region_of = graph.regions[region]
        if region_of.kind == "shard_map" and region_of.node is not None:
            axes = graph.nodes[region_of.node].signature.param("axes", ())
            # 0 marks no manual region so far, and 1 is the neutral factor.
            device_count = max(device_count, 1) * math.prod(int(size) for _, size in axes)
        region = region_of.parent
    return device_count


@dataclass(frozen=True, eq=False)
class _Least:
    """The least bytes that any program with these completed shardings receives on a device.

    A lower bound for every partitioner. Operators whose inputs to the bound are equal share one
    result.
    """

    graph: Graph
    sharded: ShardedGraph
    _known: dict[object, tuple[_Sent, ...]] = field(default_factory=dict)

    @cached_property
    def values(self) -> Values:
        """Facts of the graph's values."""
        return Values(self.graph, self.sharded)

    @cached_property
    def bytes(self) -> float:
        """The lower bound: the bytes of the cheapest division of every operator, added up.

        Operators that read the same value may share one received copy, so its bytes must not be
        counted for each of them. Bytes of a value that every division of some operator needs are
        counted once per value. Further bytes are divided by the number of operators that may need
        them. The shares of one value then add up to no more than its received bytes.
        """
        # If one division of an operator receives no bytes, the lower bound of the operator is 0.
        divided_operators = [
            ways
            for ways in self._divisions()
            if ways and all(w.results > 0 or any(b > 0 for b in w.copies.values()) for w in ways)
        ]
        certain_bytes: dict[int, float] = {}
        for ways in divided_operators:
            for value in ways[0].copies:
                least = min(way.copies.get(value, 0.0) for way in ways)
                certain_bytes[value] = max(certain_bytes.get(value, 0.0), least)

        def beyond(way: Division) -> dict[int, float]:
            """Return the bytes per value that a division receives beyond the certain ones."""
            sent = {v: amount - certain_bytes.get(v, 0.0) for v, amount in way.copies.items()}
            return {v: amount for v, amount in sent.items() if amount > 0}

        further_bytes = [[beyond(way) for way in ways] for ways in divided_operators]
        sharing = Counter(v for rows in further_bytes for v in {v for row in rows for v in row})
        total = sum(certain_bytes.values())
        for ways, rows in zip(divided_operators, further_bytes, strict=True):
            shares = [sum(sent / sharing[v] for v, sent in row.items()) for row in rows]
            total += min(w.results + share for w, share in zip(ways, shares, strict=True))
        return total

    def _divisions(self) -> Iterator[tuple[Division, ...]]:
        """Yield, for each operator, the bytes that a device would receive in each of its divisions.

        A division assigns digits of the mesh to the operator's loops. Equal operators on equal
        operands count once, because XLA computes them once. After the operators come the moves to
        the shardings of the function's results.
        """
        values, seen = self.values, set()
        for node in self.graph.nodes:
            # Equal values have one number, so the key is equal for equal operators.
            key = tuple(values.numbers[v] for v in node.results)
            if key not in seen and not node.bodies:
                seen.add(key)
                yield self._of_node(node)
        for value, layout in zip(self.graph.results, self.sharded.results, strict=True):
            sent = self._missing(self._fact(value), dims_of(layout))
            # Copies of a value, such as casts, count for the value that they are copies of.
            yield (Division({values.roots[values.numbers[value]]: sent}, 0.0),)

    def _fact(self, value: int) -> _Fact:
        """Return the properties of a value that determine its bytes."""
        values, devices = self.values, int(self.sharded.mesh.size)
        shape = tuple(int(n) for n in self.graph.values[value].type.shape)
        size = values.item_sizes[value] * values.runs[value]
        counted = 0 if values.is_known[value] or devices > MOST_DEVICES else size
        return _Fact(shape, values.layouts[value], size, counted)

    def _of_node(self, node: Node) -> tuple[Division, ...]:
        """Return the bytes to receive for each division of an operator; () if no bytes are counted.

        A division assigns mesh digits to the loops of the operator.
        """
        rule = plain_rule(node.signature)
        if rule is None:
            return ()
        values, result = self.values, node.results[0]
        facts = tuple(map(self._fact, (*node.operands, result)))
        # `splits` has the digits along which every reader takes only a part of the result.
        key = (node.signature, facts, values.splits[result])
        if key not in self._known:
            # Whether each device has the block of the sharding alone, for all operands. Operands
            # whose bytes are not counted may be on a device already.
            settled = all(facts[k].counted for k in rule.operands)
            loops = Loops(rule, tuple(fact.layout for fact in facts), settled)
            ways = (
                self._sent(OperatorDivision(loops, *way), facts, values.splits[result])
                for way in loops.ways
            )
            self._known[key] = tuple(ways)
        # Operands that are copies of one value can be cut out of one received copy, so of these
        # only the largest need counts.
        roots = [values.roots[values.numbers[v]] for v in node.operands]
        made = []
        for copies, results in self._known[key]:
            least: dict[int, float] = {}
            for operand, sent in copies:
                least[roots[operand]] = max(least.get(roots[operand], 0.0), sent)
            made.append(Division(least, results))
        return tuple(made)

    def _sent(
        self, way: OperatorDivision, facts: tuple[_Fact, ...], split: frozenset[Digit]
    ) -> _Sent:
        """Return the bytes that a device receives for one division of an operator.

        They are pairs (operand, bytes of its missing elements), and the bytes for the result. If n
        devices have parts of a sum and m of them need it, the result takes `(n + m - 2)/n` times
        its block (`shardalg/xla/least/__init__.py` has the argument).

        Args:
          way: the division. facts: shape, layout and bytes of the operands, then of the result.
          split: digits along which every reader takes only a part of the result.
        """
        rule, result = way.loops.rule, facts[-1]
        copies = tuple((k, self._copied(facts[k], way.reads(k))) for k in rule.operands)
        result_layout = tuple(way.place.get(index.loop or "", ()) for index in rule.results[0])
        sum_digits = tuple(digit for digits in way.sums.values() for digit in digits)
        # Without a sum the result is complete, and only elements of its own layout may be missing.
        if not sum_digits:
            return copies, self._missing(result._replace(layout=result_layout), result.layout)
        result_digits, wanted_digits = (
            {d for digits in dims for d in digits} for dims in (result_layout, result.layout)
        )
        elements = math.prod(map(float, result.shape)) / parts(tuple(result_digits))
        # Only a part of the sum is sent if all readers slice it along other digits.
        sliced_digits = [
            d
            for d in split
            if d not in result_digits and not any(overlap(d, a) for a in sum_digits)
        ]
        elements /= parts(tuple(sliced_digits))
        needed_digits = [
            d
            for d in sum_digits
            if d not in wanted_digits and not any(overlap(d, s) for s in split)
        ]
        # If the sum has another layout than the result, only the messages that add it up are
        # certain: the rule for sending it on to its readers does not hold.
        needing_parts = (
            parts(tuple(needed_digits)) if result_digits == wanted_digits - set(sum_digits) else 1
        )
        summing_parts = parts(sum_digits)
        # `n - 1` messages add the parts up and `m - 1` spread the sum, each 1/n of the block.
        return copies, elements * result.size * (summing_parts + needing_parts - 2) / summing_parts

    def _missing(self, fact: _Fact, wanted: Dims) -> float:
        """Return the most bytes that a device lacks of its block in another sharding.

        Args:
          fact: shape, present sharding and element bytes of a value.
          wanted: the digits of each dimension in the other sharding.
        """
        if not fact.counted or fact.layout == wanted:
            return 0.0
        devices = int(self.sharded.mesh.size)
        return missing(fact.shape, fact.layout, wanted, devices) * fact.counted

    def _copied(self, fact: _Fact, reads: Reads) -> float:
        """Return the largest number of bytes that a device reads of an operand and does not have.

        Along most dimensions, the elements that each device reads are known, and are compared with
        its block. Along a summed loop that is divided, a device may sum any part. There only
        numbers count: a device reads the share `1/n` of the elements for n devices, and holds at
        most the share that the digits of its block and of the division leave.

        Args:
          fact: the layout of the operand and the bytes of an element.
          reads: the part of the operand that a device reads.
        """
        # For values with `counted` 0, the bound leaves out the bytes that bring them to readers.
        if not fact.counted:
            return 0.0
        # Along summed loops only shares are known: `need` of the elements are read, `both` of them
        # are read and held.
        devices, need, both = int(self.sharded.mesh.size), 1.0, 1.0
        found = []
        for size, own, index in zip(fact.shape, fact.layout, reads.dims, strict=True):
            divided = reads.sums.get(index.loop or "")
            if divided is None:
                counted = lengths(size, own, reads.along(index), devices)
            else:
                need /= parts(divided)
                both /= parts(tuple({*divided, *own}))
                counted = lengths(size, (), (), devices)
            if counted is None:
                return 0.0
            found.append(counted)
        return lacking(found, devices, need=need, both=both) * fact.counted


class _Fact(NamedTuple):
    """The properties of a value that determine the bytes that are sent for it.

    Attributes:
      shape, layout: the shape of the value, and the digits of each dimension.
      size: bytes of an element, times the executions in a step.
      counted: `size` if the bound counts the bytes that bring the value to its readers; 0 if it
        does not.
    """

    shape: tuple[int, ...]
    layout: Dims
    size: int
    counted: int


_Sent = tuple[tuple[tuple[int, float], ...], float]
"""Pairs (operand, bytes), and the bytes of the result."""
