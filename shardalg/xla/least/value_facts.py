"""Facts of a completed graph's values: equal values, copies, loop invariants and readers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from shardalg.algebra.digits import Digit
from shardalg.algebra.sharding import Sharding
from shardalg.graph.ir import Graph
from shardalg.graph.ops.rule import Rule
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.xla.least.divisions import Dims, plain_rule

_FORMATTING = "annotate convert_element_type copy copy_p reduce_precision reshape rev squeeze"
FORMATTING = frozenset((*_FORMATTING.split(), "transpose"))
"""Operators that XLA may move across a collective."""


@dataclass(frozen=True, eq=False)
class Values:
    """Facts of the values of a completed graph, each as a sequence with an entry per value."""

    graph: Graph
    sharded: ShardedGraph

    @cached_property
    def layouts(self) -> tuple[Dims, ...]:
        """Per value, the digits of its dimensions."""
        return tuple(map(dims_of, self.sharded.shardings))

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Per value, the first value that is equal: the same operator on equal operands."""
        # XLA computes equal values once. A constant of a loop is the value outside.
        first_equal = list(range(len(self.graph.values)))
        results_by_key: dict[object, tuple[int, ...]] = {}
        for tie in self.graph.region_arguments:
            if tie.kind == "const":
                first_equal[tie.target] = first_equal[tie.source]

        def first(value: int) -> int:
            """Return the first value that is equal, at the end of the chain of equal values."""
            while first_equal[value] != value:
                value = first_equal[value]
            return value

        # Nodes come after their operands, so that equal operands have equal numbers already. A loop
        # or branch is never equal to another.
        for node in self.graph.walk():
            if not node.bodies:
                key = (node.signature, tuple(map(first, node.operands)))
                for value, same in zip(
                    node.results, results_by_key.setdefault(key, node.results), strict=True
                ):
                    first_equal[value] = same
        return tuple(map(first, range(len(first_equal))))

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """Per value, the value that it is a copy of after operators of `FORMATTING`, or itself."""
        root = list(range(len(self.graph.values)))
        for node in self.graph.walk():
            # A root is in `root` already, because nodes come after their operands.
            if node.primitive in FORMATTING and len(node.operands) == len(node.results) == 1:
                for value in node.results:
                    root[value] = root[self.numbers[node.operands[0]]]
        return tuple(root)

    @cached_property
    def item_sizes(self) -> tuple[int, ...]:
        """Per value, the bytes of an element in the narrowest type in which XLA may send it.

        Operators of `FORMATTING` convert the value to this type or from it.
        """
        types = [value.type for value in self.graph.values]
        sizes = [t.itemsize for t in types]
        # XLA may convert a value before or after it is sent, whichever type is narrower. So sizes
        # pass from operands to results, and then from results back to operands.
        nodes = [n for n in self.graph.walk() if n.primitive in FORMATTING and len(n.operands) == 1]
        for node in nodes:
            sizes[node.results[0]] = min(sizes[node.results[0]], sizes[node.operands[0]])
        for node in reversed(nodes):
            sizes[node.operands[0]] = min(sizes[node.results[0]], sizes[node.operands[0]])
        return tuple(sizes)

    @cached_property
    def is_known(self) -> bytearray:
        """Per value, 1 if a device may have the whole of it without a copy.

        These values are constants and broadcasts, which XLA computes anew on each device;
        arguments without an annotation, whose layout XLA chooses; and results of operators that XLA
        may compute whole because it cannot divide them, such as a triangular solve.
        """
        # Formatting and operators of known values give known values: a device computes them itself.
        graph = self.graph
        known = bytearray(len(graph.values))
        for one in graph.values:
            known[one.index] = one.kind == "constant"
        for value, annotation in zip(
            graph.arguments, self.sharded.annotations.arguments, strict=True
        ):
            known[value] = annotation is None
        for node in graph.walk():
            has_known_operands = all(known[v] for v in node.operands) and not node.bodies
            is_broadcast = node.primitive == "broadcast_in_dim"
            if node.primitive in FORMATTING:
                may_be_whole = all(known[v] for v in node.operands)
            else:
                may_be_whole = not node.bodies and plain_rule(node.signature) is None
            for value in node.results:
                known[value] = has_known_operands or is_broadcast or may_be_whole
        return known

    @cached_property
    def runs(self) -> tuple[int, ...]:
        """Per value, its executions in a step if loop-invariant values are hoisted.

        The number is 0 inside of a branch.
        """
        # `depth` is the number of regions around each region.
        graph, depth = self.graph, self._depths
        level = [0] * len(graph.values)
        ties: dict[int, list[tuple[str, int]]] = {}
        for tie in graph.region_arguments:
            ties.setdefault(tie.target, []).append((tie.kind, tie.source))
        # `level` is the region in which a value is computed after XLA has hoisted it. An argument
        # of a body that every iteration returns unchanged has the level of the value outside.
        for region in graph.regions:
            for value in region.arguments:
                level[value] = region.index
        for region in graph.regions:
            for value in region.arguments:
                outer = [
                    source_value
                    for kind, source_value in ties.get(value, ())
                    if kind in ("const", "init")
                ]
                carried = [
                    source_value
                    for kind, source_value in ties.get(value, ())
                    if kind not in ("const", "init")
                ]
                if outer and all(source == value for source in carried):
                    level[value] = level[outer[0]]
        # An operator is computed as far outside as its innermost operand allows.
        for node in graph.walk():
            innermost = max((level[v] for v in node.operands), key=depth.__getitem__, default=0)
            for value in node.results:
                level[value] = node.region if node.bodies else innermost
        return tuple(
            0 if is_branch(graph, region) else int(graph.regions[region].trip_count)
            for region in level
        )

    @cached_property
    def _depths(self) -> tuple[int, ...]:
        """Per region, the number of regions around it."""
        depths: list[int] = []
        for region in self.graph.regions:
            depths.append(0 if region.parent is None else depths[region.parent] + 1)
        return tuple(depths)

    @cached_property
    def splits(self) -> tuple[frozenset[Digit], ...]:
        """Per value, the digits along which each of its readers takes only a part."""
        graph = self.graph
        every = frozenset(d for s in self.sharded.shardings for dim in s.dims for d in dim)
        # A value starts with all digits. Each reader then removes those along which it reads all
        # elements of the value; only the digits common to all readers are left.
        split = [every] * len(graph.values)

        def read(value: int, digits: frozenset[Digit]) -> None:
            """Record a reader that takes a part of the value along these digits only."""
            split[value] &= digits

        for value, layout in zip(graph.results, self.sharded.results, strict=True):
            read(value, _all(dims_of(layout)))
        for tie in graph.region_arguments:
            read(tie.source, _all(self.layouts[tie.target]))
        # Readers come after their operands, so in reverse order a value's own readers are complete
        # before formatting passes them on to its operand.
        for node in reversed(list(graph.walk())):
            if node.bodies:
                continue
            result_digits = frozenset[Digit]().union(*(_all(self.layouts[v]) for v in node.results))
            rule = plain_rule(node.signature)
            layouts = tuple(self.layouts[v] for v in (*node.operands, *node.results))
            # XLA may divide an operator without a row in an unknown way, so such an operator counts
            # as a reader of parts along all digits of its operands and results.
            for operand, value in enumerate(node.operands):
                if node.primitive in FORMATTING:
                    read(value, result_digits | split[node.results[0]])
                elif rule is None or operand not in rule.operands:
                    read(
                        value, result_digits.union(*(_all(self.layouts[v]) for v in node.operands))
                    )
                else:
                    read(value, _parts_read(rule, operand, layouts))
        return tuple(split)


def is_branch(graph: Graph, region: int | None) -> bool:
    """Return whether a region is inside a branch of a condition."""
    while region is not None:
        if graph.regions[region].kind == "cond":
            return True
        region = graph.regions[region].parent
    return False


@lru_cache(maxsize=1 << 14)
def _parts_read(rule: Rule, operand: int, layouts: tuple[Dims, ...]) -> frozenset[Digit]:
    """Return the digits along which a device reads only a part of an operand.

    XLA may divide the operator's loops along these digits, so that a device does not need all
    elements of the operand.

    Args:
      layouts: the layouts of the operands, then of the result.
    """
    part_digits: set[Digit] = set()
    result_loops = {index.variables for index in rule.results[0]}
    tensors = [(layouts[-1], rule.results[0], True)]
    tensors += [(layouts[k], dims, False) for k, dims in rule.operands.items()]
    # XLA may divide a loop along the digits of any tensor that it indexes. A loop of the result is
    # divided along the result's digits only.
    for index in rule.operands[operand]:
        for layout, dims, is_result in tensors:
            for digits, other_index in zip(layout, dims, strict=True):
                shared = set(index.variables) & set(other_index.variables)
                if shared and (is_result or index.variables not in result_loops):
                    part_digits.update(digits)
    return frozenset(part_digits)


@lru_cache(maxsize=1 << 14)
def _all(dims: Dims) -> frozenset[Digit]:
    """Return the digits of all dimensions."""
    return frozenset(digit for digits in dims for digit in digits)


def dims_of(layout: Sharding) -> Dims:
    """Return the digits of each dimension except digits of size 1."""
    return tuple(tuple(d for d in digits if d.size > 1) for digits in layout.dims)
