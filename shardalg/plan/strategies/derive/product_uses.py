"""How the forward pass uses each dimension of a parameter: the loops of the operators that read it.

A product's loop that a parameter shares with the activation and the result is a batch loop, such as
experts. A loop that both operands share and the result lacks is contracting ("row" of Megatron). A
loop of the parameter and the result alone is non-contracting ("column").
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from shardalg.graph.ir import Graph, Node, once_per_graph
from shardalg.graph.ops.loops import (
    CONTRACTING,
    PASS,
    SELECTED,
    dim_loops,
    loop_class,
    row_class,
)
from shardalg.graph.ops.roles import PARAMETERS, WEIGHT, roles
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import Rule
from shardalg.plan.strategies.derive.dimension_classes import (
    DimensionClasses,
    dimension_classes,
    matching_dims,
)

BATCH, COLUMN, ROW, LOOKUP = "batch", "column", "row", "lookup"
PRODUCTS = ("contraction", "convolution")


@dataclass(frozen=True, eq=False)
class ProductUses:
    """The uses of parameters by the operators of the forward pass.

    Classes of dimensions are those of `DimensionClasses`.

    Attributes:
      kinds: per (argument, dimension), how products and look-ups use it: "batch", "column", "row"
        or "lookup".
      products: per product of a parameter: the argument, and its dimensions by kind.
      sum_bytes: per coarse class, the bytes that sharding it would sum or move in a forward pass.
      product_bytes: bytes of the results of all products of parameters.
      summed: fine classes over which products of two activations sum, such as heads' features.
      closed: the classes in `summed`, and the fine classes along which slices cut activations.
      expert_nodes: products that have a batch loop of a parameter.
      cut: coarse classes of activations that some operator does not pass through.
    """

    kinds: dict[tuple[int, int], frozenset[str]]
    products: tuple[tuple[int, dict[str, tuple[int, ...]]], ...]
    sum_bytes: dict[int, float]
    product_bytes: float
    summed: frozenset[int]
    closed: frozenset[int]
    cut: frozenset[int]
    expert_nodes: frozenset[int]


@once_per_graph
def product_uses(graph: Graph, argument_roles: tuple[str | None, ...]) -> ProductUses:
    """Return the uses of a graph's parameters in its forward pass."""
    return _Reader(graph, argument_roles).read()


class _Reader:
    """A pass over the nodes of a forward pass that collects the fields of `ProductUses`."""

    def __init__(self, graph: Graph, argument_roles: tuple[str | None, ...]) -> None:
        """Start with one empty table for each field of `ProductUses`, and two tables of values.

        `origins` has, per value, the parameter that it is a copy or a slice of (None: no
        parameter). `sources` has, per argument of a loop's body, the value outside that it
        receives.

        Args:
          argument_roles: the role of each argument, such as "parameters".
        """
        self.graph = graph
        self.classes: DimensionClasses = dimension_classes(graph)
        self.roles = roles(graph, argument_roles)
        self.origins: dict[int, int | None] = {}
        pairs = zip(graph.arguments, argument_roles, strict=True)
        for value, role in pairs:
            self.origins[value] = value if role == PARAMETERS else None
        self.sources = {
            tie.target: tie.source for tie in graph.region_arguments if tie.kind != "carry"
        }
        # From here on, the fields of `ProductUses`, which explains them (`sums` is `sum_bytes`).
        self.kinds: dict[tuple[int, int], set[str]] = defaultdict(set)
        self.products: dict[tuple, tuple[int, dict[str, tuple[int, ...]]]] = {}
        self.sums: dict[int, float] = defaultdict(float)
        self.product_bytes = 0.0
        self.summed: set[int] = set()
        self.closed: set[int] = set()
        self.cut: set[int] = set()
        self.expert_nodes: set[int] = set()

    def read(self) -> ProductUses:
        """Return how the nodes of the forward pass use parameters, outside and inside of loops."""
        for node in self.graph.nodes:
            # A loop itself uses nothing: the nodes of its body are in the graph, too.
            if node.phase == "forward" and not node.bodies:
                for number, rule in enumerate(rules(node.signature) or ()):
                    self._read(node, rule, number)
        # Classes over which products of two activations sum are closed as well: to shard one would
        # cost a sum after each of these products.
        return ProductUses(
            {place: frozenset(kinds) for place, kinds in self.kinds.items()},
            tuple(self.products.values()),
            dict(self.sums),
            self.product_bytes,
            frozenset(self.summed),
            frozenset(self.closed | self.summed),
            frozenset(self.cut),
            frozenset(self.expert_nodes),
        )

    def _origin(self, value: int) -> int | None:
        """Return the parameter that a value is a copy, cast, slice or reshape of, or None.

        The answer is memoised. It follows the value back to a parameter, out of loop bodies too.
        """
        if value in self.origins:
            return self.origins[value]
        producer = self.graph.producer[value]
        source = self.sources.get(value)
        found: int | None = None
        # Only these roles are computed from parameters alone; an activation has no origin.
        if self.roles[value] in (WEIGHT, PARAMETERS):
            if source is not None:
                found = self._origin(source)
            elif producer is not None and not self.graph.nodes[producer].bodies:
                # A cast or a reshape has one operand from a parameter. With two parameters, the
                # value is a combination of them and no copy of either.
                above = {self._origin(v) for v in self.graph.nodes[producer].operands}
                known = above - {None}
                found = known.pop() if len(known) == 1 else None
        self.origins[value] = found
        return found

    def _read(self, node: Node, rule: Rule, number: int) -> None:
        """Record how an operator uses parameters, and the bytes that sharding its loops would send.

        A row of an operator declares its loops, and how they index its operands and its result.

        Args:
          rule: one row of RULES of the node.
          number: the position of the row, and of the result that it computes.
        """
        result = node.results[min(number, len(node.results) - 1)]
        # A cast or a slice of a weight is no use of it; its readers are.
        if self.roles[result] in (WEIGHT, PARAMETERS):
            return
        kind = self.graph.values[result].type
        times = float(self.graph.trip_count(node))
        result_bytes = math.prod(kind.shape) * kind.itemsize * times
        # `owned` has, for operands that are a copy or a slice of a parameter, this parameter.
        weights = {k: self._origin(node.operands[k]) for k in rule.operands}
        owned = {k: origin for k, origin in weights.items() if origin is not None}
        is_product = row_class(rule) in PRODUCTS
        if is_product and owned:
            self.product_bytes += result_bytes
        for operand in rule.operands:
            origin = owned.get(operand)
            if origin is not None:
                used = self._uses(rule, operand, is_product)
                self._record(node, operand, origin, used)
            self._costs(node, rule, operand, result_bytes, is_product=is_product and bool(owned))
            if is_product and owned and origin is None:
                self._close_minor(node, rule, operand)

    def _uses(self, rule: Rule, operand: int, is_product: bool) -> Iterator[tuple[int, str]]:
        """Yield (dimension, kind of use) for the dimensions of an operand that is a parameter.

        Kinds are those of `ProductUses.kinds`. A dimension that is used in no such way is left out.

        Args:
          rule: the row of RULES of the operator that reads the parameter.
          operand: the number of the operand.
          is_product: whether the operator is a product.
        """
        # A pass-through loop that another operand has as well is a batch loop, such as experts.
        others = {
            name
            for k, dims in rule.operands.items()
            if k != operand
            for index in dims
            for name in index.variables
        }
        for dim in range(len(rule.indices(operand))):
            for loop, extent in dim_loops(rule, operand, dim)[:1]:
                kind = loop_class(rule, loop)
                if extent == 1:
                    continue
                if kind == SELECTED:
                    yield dim, LOOKUP
                elif is_product and kind == CONTRACTING:
                    yield dim, ROW
                elif is_product and kind == PASS:
                    yield dim, BATCH if loop in others else COLUMN

    def _record(
        self, node: Node, operand: int, origin: int, used: Iterator[tuple[int, str]]
    ) -> None:
        """Record the uses of an operand for the parameter that it is a copy or a slice of.

        `kinds` collects the uses by (parameter, dimension), `products` the uses by product, and
        `expert_nodes` the products with a batch loop of a parameter (one matrix per expert).

        Args:
          origin: the parameter. used: (dimension of the operand, kind of use), as of `_uses`.
        """
        value = node.operands[operand]
        shapes = self.graph.values[value].type.shape, self.graph.values[origin].type.shape
        # Per dimension of the operand, the same dimensions of the parameter.
        parameter_dims: dict[int, list[int]] = defaultdict(list)
        for inner, outer in matching_dims(self.classes, value, origin, shapes):
            parameter_dims[inner].append(outer)
        by_kind: dict[str, tuple[int, ...]] = {}
        for dim, kind in used:
            for outer in parameter_dims[dim]:
                self.kinds[origin, outer].add(kind)
                by_kind[kind] = (*by_kind.get(kind, ()), outer)
        if BATCH in by_kind:
            self.expert_nodes.add(node.index)
        # Layers repeat the same product, so equal uses of one parameter are recorded once.
        if by_kind:
            self.products[origin, tuple(sorted(by_kind.items()))] = origin, by_kind

    def _costs(
        self, node: Node, rule: Rule, operand: int, result_bytes: float, *, is_product: bool
    ) -> None:
        """Add to `sums` the bytes that sharding each dimension of an operand would reduce or move.

        Also record the classes of dimensions that the operator sums (`summed`) or does not pass
        through (`cut`, `closed`), see `ProductUses`. Classes are numbers of `DimensionClasses`.

        Args:
          is_product: whether the operator multiplies an activation with a parameter.
        """
        value = node.operands[operand]
        kind = self.graph.values[value].type
        is_activation = self.origins.get(value) is None
        own_bytes = float(math.prod(kind.shape) * kind.itemsize * self.graph.trip_count(node))
        first_item = self.classes.base[value]
        for dim in range(len(rule.indices(operand))):
            item = first_item + dim
            name = self.classes.coarse[item]
            loops = dim_loops(rule, operand, dim)
            if kind.shape[dim] == 1:
                continue
            if not loops:
                # A slice or a window: an axis would exchange only the borders of blocks, taken as
                # an eighth of the operand.
                if is_activation:
                    self.sums[name] += own_bytes / 8
                    self._close(item)
                continue
            loop_kind = loop_class(rule, loops[0][0])
            if loop_kind in (CONTRACTING, SELECTED):
                # Both operands of a product have the loop; it is counted with the activation.
                if is_activation or loop_kind == SELECTED:
                    self.sums[name] += result_bytes
                    self.cut.add(name)
                # A product of two activations, such as the scores of attention.
                if not is_product and row_class(rule) in PRODUCTS:
                    self.summed.add(self.classes.fine[item])
            # Any other loop, such as a sorted one, is not passed on: taken as half of the operand.
            elif loop_kind not in (PASS, "broadcast", "compound") and is_activation:
                self.sums[name] += own_bytes / 2
                self._close(item)

    def _close_minor(self, node: Node, rule: Rule, operand: int) -> None:
        """Add to `closed` the minor dimensions along which a product sums an operand.

        If a product sums several dimensions, such as heads and the features of a head, tensor
        parallelism may shard only the first one (heads). If both are merged in one dimension, its
        minor loops are closed.

        Args:
          rule: the einsum-like row of the product.
          operand: the number of the operand.
        """
        base = self.classes.base[node.operands[operand]]
        summed = [
            self.classes.fine[base + dim]
            for dim in range(len(rule.indices(operand)))
            for loop, _ in dim_loops(rule, operand, dim)[:1]
            if loop_class(rule, loop) == CONTRACTING
        ]
        self.closed |= set(summed[1:])
        # If heads and features are one dimension, its minor loops are the features.
        for loops in self.classes.nests.get(summed[0], ()) if len(summed) == 1 else ():
            self.closed |= {inner for _, inner in loops[1:] if inner is not None}

    def _close(self, item: int) -> None:
        self.closed.add(self.classes.fine[item])
        self.cut.add(self.classes.coarse[item])
