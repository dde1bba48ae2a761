"""All prices of a step on one mesh, as a factor graph in which equal nodes share one decision.

A variable is one of three things. An operator: its labels are the ways to compute it. A value: its
labels are pairs of a home (the layout in which it stays) and whether it is written to memory. A
copy: its labels are pairs of a value's home and the layout of a gathered copy that several readers
share. All prices are those of `plan.cost` at the rates of the data sheet, without overlap.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.compute import contracts, operand_type
from shardalg.costs.fusion import READS_PART, UPDATES, VIEWS
from shardalg.costs.kernels.fused_attention import fused_attention
from shardalg.costs.matrix_unit import padded_flops, product_peak
from shardalg.costs.topology import Machine
from shardalg.errors import StrategyError
from shardalg.graph.ir import Graph, Node, Signature, ValueType
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import PICK, SUM, Rule
from shardalg.plan.search.equal_nodes import equal_nodes
from shardalg.plan.search.minimising.factor_graph import FactorGraph, Matrix
from shardalg.plan.search.prices.kernel_values import kernel_values
from shardalg.plan.search.prices.layout_moves import (
    PICOSECONDS,
    AxisLayout,
    LayoutMoves,
    MessageShares,
    replicated,
)
from shardalg.plan.search.prices.message_chains import LatencyShares, longest_chain
from shardalg.plan.strategies.derive.recipe_parts import Wishes, matches, spec_text
from shardalg.planner.partition.choose.choices import candidates
from shardalg.planner.partition.choose.component import components, reduced_digits
from shardalg.planner.partition.choose.key import Choice, LoopDigits, NodeKey
from shardalg.planner.partition.choose.node_classes import remade_values
from shardalg.planner.partition.choose.regions import TiedArguments
from shardalg.planner.partition.choose.regions import tied as tied_values
from shardalg.planner.partition.choose.sent import through_windows, window_bytes
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import AllReduce, CollectivePermute

MOST_WAYS = 100_000
"""The largest number of ways to compute one operator. More would take minutes."""


class Way(NamedTuple):
    """One way to compute an operator.

    Attributes:
      loops: per component of the operator, the mesh digits on its loops.
      operands, results: the layout of each operand and of each result.
      inner: the collectives inside the operator, each with the bytes of its operand on a device.
      required: per component, (operand number, the sharding in which it is read).
      reads_memory: whether a view (a reshape) has its operand, and so its result, in memory.
    """

    loops: tuple[LoopDigits, ...]
    operands: tuple[AxisLayout, ...]
    results: tuple[AxisLayout, ...]
    inner: tuple[tuple[Collective, float], ...] = ()
    required: tuple[tuple[tuple[int, Sharding], ...], ...] = ()
    reads_memory: bool = False


class ValueReader(NamedTuple):
    """A node that reads a value, and the position of the value among its operands."""

    node: int
    position: int


@dataclass
class CostTable:
    """The factor graph of a traced step on a mesh, and the meaning of its labels.

    Attributes:
      graph: the traced graph; its only regions are bodies of scans.
      moves: layouts and prices of moves on the mesh.
      tied: for a result of the function (value), the argument whose layout it has.
      keeps: whether all phases share the gathered copies of a value.
      chains: the values whose all-reduces pay the latency of their message (`message_chains`).
      factors: the costs.
      ways: per variable of an operator, its labels.
      homes: per variable of a value, the homes. Its labels are all homes fused, then all homes in
        memory.
      operator_of: the variable of each class of nodes.
      value_of: the variable of each value.
      classes: the class of each node.
      borders: the groups of values that a scan ties at the border of its body.
      refused: the number of layouts and ways that were left out, by kind and reason.
      wanted: for an argument with a pin or ban (value), its pinned layout or None, and the axes
        that may not shard it.
    """

    graph: Graph
    moves: LayoutMoves
    tied: Mapping[int, int]
    keeps: bool = False
    chains: LatencyShares = field(default_factory=dict)
    factors: FactorGraph = field(default_factory=FactorGraph)
    ways: dict[int, tuple[Way, ...]] = field(default_factory=dict)
    homes: dict[int, tuple[AxisLayout, ...]] = field(default_factory=dict)
    operator_of: dict[int, int] = field(default_factory=dict)
    value_of: dict[int, int] = field(default_factory=dict)
    classes: Sequence[int] = ()
    borders: tuple[TiedArguments, ...] = ()
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    wanted: dict[int, tuple[AxisLayout | None, frozenset[int]]] = field(default_factory=dict)
    _first: dict[int, Node] = field(default_factory=dict)
    _alone: dict[int, MessageShares] = field(default_factory=dict)
    _ways: dict[Signature, tuple[Way, ...]] = field(default_factory=dict)
    _products: dict[object, np.ndarray] = field(default_factory=dict)
    _matrices: dict[
        tuple[tuple[AxisLayout, ...], tuple[AxisLayout, ...], int, MessageShares | None], Matrix
    ] = field(default_factory=dict)

    @staticmethod
    def of(
        graph: Graph,
        mesh: Mesh,
        hardware: Machine,
        tied: Mapping[int, int],
        wishes: Wishes | None = None,
        *,
        keeps: bool = False,
    ) -> CostTable:
        """Return the table of a graph on a mesh.

        Args:
          wishes: pins and bans, which `check_wishes` accepts.
          keeps: whether all phases share the gathered copies of a value.

        Raises:
          StrategyError: a pin is no layout of whole axes in their order with even blocks.
        """
        table = CostTable(graph, LayoutMoves(mesh, hardware), tied, keeps)
        table._read_wishes(wishes or Wishes())
        # Equal layers that differ by a pin are decided apart.
        table.classes = equal_nodes(graph, marks=table.wanted)
        table.borders = tied_values(graph)
        return table._filled({None: dict.fromkeys(table._longest_path(), 1.0)})

    def priced_again(self, chains: LatencyShares) -> CostTable:
        """Return the table with latencies of other all-reduces; its labels are the same."""
        made = CostTable(
            self.graph, self.moves, self.tied, self.keeps,
            classes=self.classes, borders=self.borders, wanted=self.wanted,
            _ways=self._ways, _products=self._products,
        )  # fmt: skip
        return made._filled(chains)

    def _filled(self, chains: LatencyShares) -> CostTable:
        """Add all variables and costs, and return the table."""
        self.chains = chains
        self._add_operators()
        self._add_values()
        self._add_borders()
        # Prices are whole picoseconds, rounded down, so that no entry is above the plan's price.
        factors = self.factors
        factors.costs = [np.floor(own) for own in factors.costs]
        factors.edges = {pair: np.floor(matrix) for pair, matrix in factors.edges.items()}
        return self

    def _read_wishes(self, wishes: Wishes) -> None:
        """Find the arguments that pins and bans name."""
        number = {name: axis for axis, name in enumerate(self.moves.axes)}
        for value, path in zip(self.graph.arguments, self.graph.argument_paths, strict=True):
            pins = [dims for pattern, dims in wishes.pins if matches(pattern, path)]
            # An axis of size 1 has no number: it shards nothing.
            banned = frozenset(
                number[axis]
                for pattern, axis in wishes.bans
                if axis in number and matches(pattern, path)
            )
            shape = self.graph.values[value].type.shape
            layout = None
            if pins:
                given = tuple(tuple(number[a] for a in axes if a in number) for axes in pins[0])
                given += ((),) * (len(shape) - len(given))
                layout = AxisLayout(given)
                if len(given) > len(shape) or layout not in self.moves.all_layouts(shape):
                    raise StrategyError(
                        f"the pin of {path}, {spec_text(pins[0])}, is no layout of {shape} on "
                        f"{self.moves.mesh!r} that search decides: blocks are even, and axes of "
                        "one dimension are in the order of the mesh."
                    )
            if layout is not None or banned:
                self.wanted[value] = layout, banned

    # Operators.

    def ways_of(self, signature: Signature) -> tuple[Way, ...]:
        """Return all ways to compute an operator with even blocks of whole axes."""
        found = self._ways.get(signature)
        if found is None:
            found = self._ways[signature] = tuple(self._find_ways(signature))
        return found

    def _find_ways(self, signature: Signature) -> Iterator[Way]:
        """Yield the result of `ways_of`: each mesh axis shards one loop, or none."""
        types = (*signature.operands, *signature.results)
        count, moves = len(signature.operands), self.moves
        whole = [replicated(len(each.shape)) for each in types]
        rows = rules(signature)
        if not rows:
            # An operator without a row of RULES has no loops: every device computes all of it.
            yield Way((), tuple(whole[:count]), tuple(whole[count:]))
            return
        homes = tuple(moves.sharding(w, t.shape) for w, t in zip(whole, types, strict=True))
        parts = [
            candidates(signature, homes, place, moves.hardware)
            for place in range(len(components(rows)))
        ]
        count_ways = math.prod(map(len, parts))
        if count_ways > MOST_WAYS:
            raise StrategyError(
                f"{signature.primitive} of {count} values has {count_ways:,} combinations of "
                f"layouts, and search decides at most {MOST_WAYS:,}. Such an operator comes from "
                "jax.checkpoint: search the function without it, or compare strategies with "
                "sa.compare."
            )
        seen = set()
        for combined in itertools.product(*parts):
            layouts: list[AxisLayout | None] = [*whole]
            for one in combined:
                for number, sharding in one.required_shardings:
                    layouts[number] = moves.layout(sharding)
                for number, sharding in one.produced:
                    layouts[count + number] = moves.layout(sharding)
            known = [each for each in layouts if each is not None]
            # Ways that agree on all layouts cost the same, and the first stands for them.
            if tuple(known) in seen:
                continue
            is_whole = len(known) == len(layouts)
            fits = zip(known, types, strict=False)
            if not is_whole or not all(moves.is_even(at, t.shape) for at, t in fits):
                why = "blocks are not even" if is_whole else "an axis is divided"
                self.refused["ways of operators", why] += 1
                continue
            seen.add(tuple(known))
            loops = tuple(one.loops for one in combined)
            inner = tuple(self._inner(signature, rows, loops, known))
            required = tuple(one.required_shardings for one in combined)
            yield Way(loops, tuple(known[:count]), tuple(known[count:]), inner, required)

    def _product_ps(self, node: Node, ways: Sequence[Way]) -> np.ndarray:
        """Return the picoseconds of a contraction on one device, per way to compute it.

        It is the longer of its arithmetic and its memory traffic. Other operators have 0: they are
        fused with their neighbours, on which their traffic depends, so that edges have it.
        """
        signature, inside = node.signature, kernel_values(self.graph)
        if not contracts(signature):
            return np.zeros(len(ways))
        # A value in memory may have another type than the product, whose kernel casts it.
        values = (*node.operands, *node.results)
        itemsizes = tuple(
            0
            if value in inside.on_chip
            else self.graph.values[inside.stored.get(value, value)].type.itemsize
            for value in values
        )
        again = fused_attention(self.graph).again.get(node.index, 0)
        key = signature, itemsizes, again
        if key not in self._products:
            types, chip = (*signature.operands, *signature.results), self.moves.hardware.chip
            peak, found = product_peak(chip, operand_type(signature)), []
            for way in ways:
                layouts = (*way.operands, *way.results)
                shapes = tuple(
                    self.moves.sharding(layout, t.shape).shard_shape
                    for layout, t in zip(layouts, types, strict=True)
                )
                flops = padded_flops(signature, shapes, chip.matrix_unit) * (1 + again)
                moved = sum(math.prod(s) * size for s, size in zip(shapes, itemsizes, strict=True))
                seconds = max(float(flops) / peak, moved / chip.hbm_bytes_per_s)
                found.append(float(round(seconds * PICOSECONDS)))
            self._products[key] = np.array(found)
        return self._products[key]

    def _inner(
        self,
        signature: Signature,
        rows: Sequence[Rule],
        loops: tuple[LoopDigits, ...],
        layouts: Sequence[AxisLayout],
    ) -> Iterator[tuple[Collective, float]]:
        """Yield the collectives inside an operator, each with the bytes of its operand on a device.

        These exchange halos of windows and shifted slices, and combine results by a maximum or
        another function that is no sum. Pending sums are part of the result's layout.
        """
        merged = tuple(pair for each in loops for pair in each)
        if not merged:
            return
        moves, count = self.moves, len(signature.operands)
        types = (*signature.operands, *signature.results)
        shardings = tuple(moves.sharding(a, t.shape) for a, t in zip(layouts, types, strict=True))
        for rule in rows:
            digits = reduced_digits(rule, dict(merged)) if rule.combine not in (SUM, PICK) else ()
            if digits:
                yield (
                    AllReduce(digits, rule.combine),
                    sum(
                        math.prod(sharding.shard_shape) * t.itemsize
                        for sharding, t in zip(shardings[count:], signature.results, strict=True)
                    ),
                )
        if through_windows(signature):
            rates = moves.hardware.chip.rates(operand_type(signature))
            sources = tuple((sharding,) for sharding in shardings[:count])
            key = NodeKey(signature, tuple(range(count)), sources, shardings[count:], rates)
            sent = window_bytes(key, Choice(merged, shardings[:count], shardings[count:], 1))
            if sent:
                used = tuple(digit for _, digits in merged for digit in digits)
                # Each device sends to its neighbour along the minor axis.
                shift, size = min(digit.stride for digit in used), moves.mesh.size
                pairs = tuple((p, (p + shift) % size) for p in range(size))
                yield CollectivePermute(used, pairs), sent

    def _add_operators(self) -> None:
        """Add a variable per class of nodes, with the costs of all nodes of the class."""
        # A node in the body of a scan runs once per iteration.
        times: Counter[int] = Counter()
        results: dict[int, list[int]] = defaultdict(list)
        for node, number in zip(self.graph.nodes, self.classes, strict=True):
            times[number] += self.graph.trip_count(node)
            results[number] += node.results[:1]
        for node, number in zip(self.graph.nodes, self.classes, strict=True):
            if node.bodies or number in self.operator_of:
                continue
            ways = self.ways_of(node.signature)
            alone, inner = self._alone_of(results[number]), []
            for way in ways:
                inner.append(sum(self.moves.step_ps(step, size, alone) for step, size in way.inner))
            costs = (self._product_ps(node, ways) + np.array(inner)) * times[number]
            if node.primitive in VIEWS:
                # A view of a value that is in memory is in memory, too, so both cases are labels.
                ways = (*ways, *(way._replace(reads_memory=True) for way in ways))
                costs = np.concatenate([costs, costs])
            variable = self.factors.add_variable(costs)
            self.ways[variable] = ways
            self.operator_of[number] = variable
            self._first[number] = node

    # Values.

    def whole(self, value: int) -> AxisLayout:
        """Return the layout of a value that every device has whole."""
        return replicated(len(self.graph.values[value].type.shape))

    def bytes(self, value: int) -> int:
        """Return the bytes of a whole value."""
        type_ = self.graph.values[value].type
        return math.prod(type_.shape) * type_.itemsize

    def _block_ps(self, layout: AxisLayout, type_: ValueType) -> float:
        """Return the picoseconds in which a device reads or writes its block of a value."""
        size = math.prod(type_.shape) * type_.itemsize / self.moves.num_shards(layout)
        return float(round(size / self.moves.hardware.chip.hbm_bytes_per_s * PICOSECONDS))

    def _move_ps(
        self,
        sources: tuple[AxisLayout, ...],
        targets: tuple[AxisLayout, ...],
        size: int,
        alone: MessageShares | None = None,
    ) -> Matrix:
        """Return the prices of all moves from one list of layouts to another, from a cache."""
        key = sources, targets, size, alone
        if key not in self._matrices:
            self._matrices[key] = self.moves.picoseconds(sources, targets, size, alone)
        return self._matrices[key]

    def _longest_path(self) -> frozenset[int]:
        """Return the values on the path with most operators that may have all-reduces."""
        graph, found = self.graph, set[int]()
        for node in graph.nodes:
            ways = () if node.bodies else self.ways_of(node.signature)
            if any(way.inner or any(each.pending for each in way.results) for way in ways):
                found.update(node.results)
        return longest_chain(graph, dict.fromkeys(found, 1.0))

    def _alone_of(self, values: Sequence[int]) -> MessageShares:
        """Return the share of some values whose all-reduces are the first of their message."""
        shares = []
        for step, chain in self.chains.items():
            shares.append((step, sum(chain.get(value, 0.0) for value in values) / len(values)))
        usual = dict(shares).pop(None, 0.0)
        return MessageShares(
            usual, tuple((step, share) for step, share in shares if step is not None)
        )

    def _readers(self, value: int) -> list[ValueReader]:
        """Return the readers of a value."""
        nodes = self.graph.nodes
        return [
            ValueReader(user, position)
            for user in dict.fromkeys(self.graph.users[value])
            if not nodes[user].bodies
            for position, operand in enumerate(nodes[user].operands)
            if operand == value
        ]

    def _add_values(self) -> None:
        """Add a variable per class of values, the copies of its readers, and all edges."""
        graph = self.graph
        constants = {v for v, _ in graph.constants}
        returned = Counter(graph.results)
        result_of = {argument: result for result, argument in self.tied.items()}
        # Values at the border of a scan are in memory: as results of the function are.
        at_border = {v for one in self.borders for v, _ in (*one.asks, *one.makes)}
        outside = self._outside_memory()
        is_read = [bool(users) or bool(returned[v]) for v, users in enumerate(graph.users)]
        # Values of one class have equal makers and readers. Arguments that are updated differ by
        # the operator that makes the new value.
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for value in range(len(graph.values)):
            if value in constants or not (is_read[value] or value in at_border):
                continue
            if value in at_border:
                groups["border", value].append(value)
                continue
            maker = graph.producer[value]
            made = (
                ("argument", graph.values[value].type)
                if maker is None
                else (self.classes[maker], graph.nodes[maker].results.index(value))
            )
            read = Counter((self.classes[r.node], r.position) for r in self._readers(value))
            end = graph.producer[result_of[value]] if value in result_of else None
            last = None if end is None else self.classes[end]
            wanted = self.wanted.get(value)
            groups[made, frozenset(read.items()), returned[value], last, wanted].append(value)
        for members in groups.values():
            is_border = members[0] in at_border and members[0] not in outside
            is_result = returned[members[0]] > 0 or is_border
            variable = self._add_value(members, is_result=is_result)
            self.value_of.update(dict.fromkeys(members, variable))
        # A result that replaces an argument is moved to the argument's home at the end of the step.
        pairs = Counter(
            (self.value_of[result], self.value_of[argument], self.bytes(result))
            for result, argument in self.tied.items()
            if result in self.value_of and argument in self.value_of
        )
        for (result, argument, size), times in pairs.items():
            if result != argument:
                moves = self._move_ps(self.homes[result], self.homes[argument], size)
                self.factors.add_edge(result, argument, np.tile(moves, (2, 2)) * times)

    def _outside_memory(self) -> frozenset[int]:
        """Return the values that a scan reads as constants only: its body computes them again."""
        read: dict[int, bool] = {}
        for node in self.graph.nodes:
            for place, value in enumerate(node.operands if node.bodies else ()):
                is_constant = node.primitive == "scan" and place < node.signature.param(
                    "num_consts"
                )
                read[value] = read.get(value, True) and is_constant
        ends = {v for region in self.graph.regions for v in (*region.arguments, *region.results)}
        made = {v for node in self.graph.nodes if node.bodies for v in node.results}
        return frozenset(v for v, is_constant in read.items() if is_constant) - ends - made

    def _add_value(self, members: Sequence[int], *, is_result: bool) -> int:
        """Add the variable of a class of values with its edges; return its number."""
        graph, value = self.graph, members[0]
        maker, readers = graph.producer[value], self._readers(value)
        node = None if maker is None or graph.nodes[maker].bodies else graph.nodes[maker]
        # Each iteration of a scan makes and reads the values of its body.
        times = len(members) * self._runs[value]
        asked = [
            way.operands[reader.position]
            for reader in readers
            for way in self.ways_of(graph.nodes[reader.node].signature)
        ]
        if node is None:
            homes = tuple(self.moves.all_layouts(graph.values[value].type.shape))
        else:
            place = node.results.index(value)
            made = [way.results[place] for way in self.ways_of(node.signature)]
            # A home in which the value is neither made nor read would only add moves.
            plain = [AxisLayout(each.dims) for each in (*made, *asked)]
            # The only reader may take the value as partial sums.
            alone = len(readers) == 1 and not is_result
            passed = set(made) & set(asked) if alone else set()
            homes = tuple(dict.fromkeys((*plain, *(each for each in made if each in passed))))
        costs = np.zeros(2 * len(homes))
        if node is None or is_result:
            # Arguments and results are in memory.
            costs[: len(homes)] = math.inf
        pinned, banned = self.wanted.get(value, (None, frozenset[int]()))
        for number, home in enumerate(homes):
            is_other = pinned is not None and home != pinned
            if is_other or not banned.isdisjoint(home.used):
                costs[[number, number + len(homes)]] = math.inf
                why = "another layout is pinned" if is_other else "an axis is banned"
                self.refused["layouts of arguments", why] += len(members)
        variable = self.factors.add_variable(costs)
        self.homes[variable] = homes
        is_free = value in remade_values(graph)
        self._alone[variable] = self._alone_of(members)
        if node is not None:
            self._add_maker(variable, value, node, times=times, is_free=is_free)
        by_phase: dict[str, list[ValueReader]] = defaultdict(list)
        for reader in readers:
            # Copies that last serve the readers of all phases.
            by_phase["" if self.keeps else graph.nodes[reader.node].phase].append(reader)
        for group in by_phase.values():
            hub, at, copies = variable, homes, homes
            if len(group) > 1 and len(homes) > 1 and not is_free:
                hub, at, copies = self._add_copy(variable, value, times=times)
            same = Counter((self.classes[reader.node], reader.position) for reader in group)
            for (number, position), uses in same.items():
                reads = (self._first[number], position)
                self._add_reader(hub, value, reads, (at, copies), times * uses, is_free)
        return variable

    @cached_property
    def _runs(self) -> tuple[int, ...]:
        """For each value, the number of times that a step makes it."""
        found = [1] * len(self.graph.values)
        for region in self.graph.regions:
            for value in region.arguments:
                found[value] = region.trip_count
        for node in self.graph.nodes:
            for value in node.results:
                found[value] = self.graph.trip_count(node)
        return tuple(found)

    def _add_borders(self) -> None:
        """Add a variable per group of values that a scan ties to one layout, with its edges.

        A group has the values of one carry, input or output of a scan, inside and outside of the
        body. The labels of its variable are the possible layouts. Arguments of the body and results
        of the scan (`makes`) have the layout of the group. Operands of the scan and results of the
        body (`asks`) are moved to it.

        A member of a group is (value, length): the scan stacks the value along a first dimension of
        this length, or not at all if the length is 0.
        """
        for group in self.borders:
            # The layout of a group is that of one slice, so a stacked value has one dimension more.
            first_value, first_length = (*group.makes, *group.asks)[0]
            shape = self.graph.values[first_value].type.shape
            slice_shape = shape[1:] if first_length else shape
            layouts = tuple(self.moves.all_layouts(slice_shape))
            # A layout costs nothing by itself: only the moves to it do, which are edges.
            variable = self.factors.add_variable(np.zeros(len(layouts)))
            for number, (value, length) in enumerate((*group.makes, *group.asks)):
                # A constant has no variable, because every device has it in all layouts for free.
                if value not in self.value_of:
                    continue
                # The dimension along which a scan stacks its slices is not sharded.
                value_layouts = tuple(AxisLayout(((), *x.dims)) if length else x for x in layouts)
                homes = self.homes[self.value_of[value]]
                # Prices have a row per home of the value, and a column per layout of the group.
                if number < len(group.makes):
                    # The scan makes the value in the group's layout, so all other homes are
                    # excluded.
                    home_numbers = self.moves.numbers(homes)[:, None]
                    is_same = home_numbers == self.moves.numbers(value_layouts)
                    prices = np.where(is_same, 0.0, math.inf)
                else:
                    move_prices = self._move_ps(homes, value_layouts, self.bytes(value))
                    prices = move_prices * self._runs[value]
                    # Every device can compute such a value in any layout.
                    if value in remade_values(self.graph):
                        prices = np.zeros_like(prices)
                # The labels of a value are all homes fused, then all homes in memory. The price of
                # a move is the same for both, so the rows are repeated.
                self.factors.add_edge(self.value_of[value], variable, np.tile(prices, (2, 1)))

    def _add_maker(
        self, variable: int, value: int, node: Node, *, times: int, is_free: bool
    ) -> None:
        """Add the cost to bring a value from where it is made to its home, and to write it.

        Args:
          times: number of values of the class.
          is_free: whether every device can compute the value in any layout.
        """
        graph, homes = self.graph, self.homes[variable]
        type_, operator = graph.values[value].type, self.operator_of[self.classes[node.index]]
        place, ways = node.results.index(value), self.ways[operator]
        inside = kernel_values(graph)
        is_product = contracts(node.signature) and value not in inside.on_chip
        made = tuple(way.results[place] for way in ways)
        move = np.zeros((len(made), len(homes)))
        if not is_free:
            move = self._move_ps(made, homes, self.bytes(value), self._alone[variable])
            phases = {graph.nodes[user].phase for user in graph.users[value]}
            if len(phases) > 1 and not self.keeps:
                # A moved copy is freed at the end of its phase. So the home of a value that two
                # phases read is where it is made, a part of that, or where its sums are reduced.
                shards = [np.array([self.moves.num_shards(x) for x in xs]) for xs in (homes, made)]
                numbers = [self.moves.numbers(xs) for xs in (homes, made)]
                is_wider = shards[0] < shards[1][:, None]
                is_settled = np.array([not layout.pending for layout in made])[:, None]
                barred = is_wider | (is_settled & (numbers[0] != numbers[1][:, None]))
                move = np.where(barred & (move > 0), math.inf, move)
        in_place = node.primitive in UPDATES and not self._may_fuse(node.operands[0])
        # Neither the kernel of a product nor that of an attention writes such a value.
        is_unwritten = value in inside.free or value in inside.on_chip
        written = np.array(
            [
                0.0
                # The price of a product has its writes; a view of memory writes nothing.
                if is_product or in_place or is_unwritten or way.reads_memory
                else self._block_ps(layout, type_)
                for layout, way in zip(made, ways, strict=True)
            ]
        )
        # A collective needs its operand in memory, so a value that moves is not fused.
        fused = np.where(move > 0, math.inf, 0.0)
        if is_product:
            fused = np.full_like(move, math.inf)
        fused[np.array([way.reads_memory for way in ways])] = math.inf
        both = np.concatenate([fused, move + written[:, None]], 1)
        self.factors.add_edge(operator, variable, both * times)

    def _add_copy(
        self, variable: int, value: int, *, times: int
    ) -> tuple[int, tuple[AxisLayout, ...], tuple[AxisLayout, ...]]:
        """Add the variable of a gathered copy that several readers share.

        Returns:
          The variable; and per label (without the bit for memory) the home and the copy's layout.
        """
        homes = self.homes[variable]
        pairs = [
            (number, copy)
            for number, home in enumerate(homes)
            for copy in (self.moves.gathered(home) if not home.pending else (home,))
        ]
        copies = tuple(dict.fromkeys(copy for _, copy in pairs))
        place = {copy: number for number, copy in enumerate(copies)}
        prices = self._move_ps(homes, copies, self.bytes(value), self._alone[variable])
        cost = np.array([prices[home, place[copy]] for home, copy in pairs]) * times
        hub = self.factors.add_variable(np.concatenate([cost, cost]))
        self._alone[hub] = self._alone[variable]
        # A label of the copy fits one home; a copy that is sent fits a home in memory only.
        count, home_of = len(pairs), np.array([home for home, _ in pairs])
        same = np.full((2 * len(homes), 2 * count), math.inf)
        is_home = np.nonzero(cost == 0)[0]
        same[home_of[is_home], is_home] = 0.0
        same[len(homes) + home_of, count + np.arange(count)] = 0.0
        self.factors.add_edge(variable, hub, same)
        return hub, tuple(homes[number] for number, _ in pairs), tuple(copy for _, copy in pairs)

    def _add_reader(
        self,
        hub: int,
        value: int,
        reads: tuple[Node, int],
        layouts: tuple[tuple[AxisLayout, ...], tuple[AxisLayout, ...]],
        times: int,
        is_free: bool,
    ) -> None:
        """Add the cost at which a reader gets an operand, from its home or from a copy.

        Args:
          hub: the variable of the value or of its copy.
          reads: the node, and the position of the operand.
          layouts: per label of `hub` (without the bit for memory), the home and the copy.
          times: number of reads of all values of the class.
          is_free: whether every device can compute the value in any layout.
        """
        (node, position), (at, copies) = reads, layouts
        operator = self.operator_of[self.classes[node.index]]
        ways, size = self.ways[operator], self.bytes(value)
        asked = tuple(way.operands[position] for way in ways)
        alone = self._alone[hub]
        move = self._move_ps(at, asked, size, alone)
        if copies is not at:
            move = np.minimum(move, self._move_ps(copies, asked, size, alone))
        if is_free:
            move = np.zeros_like(move)
        inside = kernel_values(self.graph)
        is_product = contracts(node.signature) and value not in inside.on_chip
        # Readers of one local slice share it.
        count = len(self._readers(value))
        # A cast that a product carries out reads nothing itself.
        is_unread = value in inside.on_chip or not inside.free.isdisjoint(node.results)
        read = np.array([0.0 if is_unread else self._read_ps(node, position, w) for w in ways])
        fused = np.where(move > 0, math.inf, 0.0)
        memory = move + np.zeros(len(ways))
        if node.primitive in UPDATES and position == 0:
            # An update in place of a local slice needs the slice in memory: it is read and written.
            numbers = self.moves.numbers(copies)[:, None], self.moves.numbers(asked)
            type_ = node.signature.operands[0]
            block = np.array([self._block_ps(layout, type_) for layout in asked])
            memory = memory + np.where(
                (move == 0) & (numbers[0] != numbers[1]), 2 * block / count, 0.0
            )
        if is_product:
            # A product reads memory; a local slice of its operand is written for it first.
            numbers = self.moves.numbers(copies)[:, None], self.moves.numbers(asked)
            is_slice = (move == 0) & (numbers[0] != numbers[1])
            fused = np.where(is_slice, read / count, math.inf)
            memory = memory + np.where(is_slice, 2 * read / count, 0.0)
        elif node.primitive in VIEWS:
            in_memory = np.array([way.reads_memory for way in ways])
            fused = np.where(in_memory, math.inf, fused)
            memory = np.where(in_memory, memory, math.inf)
        else:
            numbers = self.moves.numbers(copies)[:, None], self.moves.numbers(asked)
            is_slice = (move == 0) & (numbers[0] != numbers[1])
            memory = memory + np.where(is_slice, read / count, read)
        if is_free and not is_product:
            memory = fused
        self.factors.add_edge(hub, operator, np.concatenate([fused, memory], 0) * times)

    def _may_fuse(self, value: int) -> bool:
        """Return whether a value can stay out of memory, so that no update of it is in place."""
        maker = self.graph.producer[value]
        if maker is None or self.graph.nodes[maker].bodies:
            return False
        return not contracts(self.graph.nodes[maker].signature)

    def _read_ps(self, node: Node, position: int, way: Way) -> float:
        """Return the picoseconds in which a device reads an operand from memory."""
        if node.primitive in READS_PART and position == 0:
            # Of a slice only the result is read.
            return self._block_ps(way.results[0], node.signature.results[0])
        update = UPDATES.get(node.primitive)
        times = 1
        if update is not None and not self._may_fuse(node.operands[0]):
            # An update in place does not read the rest of its first operand.
            times = 0 if position == 0 else 1 + update.times * (position == update.position)
        return times * self._block_ps(way.operands[position], node.signature.operands[position])
