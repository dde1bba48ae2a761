"""The graph as Shardy's propagation visits it: operators, and edges of values with one sharding.

The operators are those of the module that XLA hands to Shardy, in its order.

A value that a loop carries is one edge: from its initial value and the body's result to the body's
argument and the loop's result. A value that a loop only reads is read from outside, because
`stablehlo.while` is canonicalised so. An annotated one is read through an open copy
(`open_while_free_vars_sharding.cc`). Branches read everything from outside.

Values made of constants alone, or full of one number, are no tensors here. Shardy gives every
reader a copy of its own (`constant_or_scalar_splitter.cc`), so that nothing passes through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardalg.graph.ir import Graph, once_per_graph
from shardalg.planner.propagate.gspmd.index import Rules, SweepIndex, Visit, assembled
from shardalg.planner.propagate.operator_classes import OperatorClass, edge
from shardalg.planner.propagate.shardy.shardy_module import (
    Given,
    ShardyModuleBuilder,
    ShardyOperator,
)


def edge_index(graph: Graph, rules: Rules, given: Given = (frozenset(), ())) -> SweepIndex:
    """Return the steps of a graph in the order in which Shardy visits them.

    Args:
      given: the annotated values and sites, as `border.visiting_facts` returns them.
    """
    return _edge_index(graph, rules, given)


@once_per_graph
def _edge_index(graph: Graph, rules: Rules, given: Given) -> SweepIndex:
    builder = ShardyModuleBuilder(graph, rules, *given)
    operators = [*builder.region(0), *builder.exits()]
    return _IndexBuilder(builder, operators).index()


@dataclass(eq=False)
class _IndexBuilder:
    """The builder of the index of Shardy's steps, from all operators of its module.

    Attributes:
      absent: values made of constants alone, or full of one number: Shardy copies them per reader.
      instead: per carried value with an annotated copy, (the copy, its node). Readers of the value
        read the copy.
      seeded: values that have the annotation of a node that reads them, with this node.
      uses: per value, the number of operators that read it.
    """

    builder: ShardyModuleBuilder
    operators: list[ShardyOperator]

    def __post_init__(self) -> None:
        """Find the values whose reader annotates them, and count the readers of each value.

        A sharding constraint (site) is an operator that reads the annotated value. If Shardy's
        rules allow it, the value itself starts with the constraint's sharding. Such values are in
        `seeded`, except carries of loops: these are in `instead`, with an annotated copy.
        """
        builder = self.builder
        self.absent = builder.numbers | builder.full
        # A site's annotation is also that of the value which the site reads if the value has none
        # of its own, and if all sites that read it agree and leave no dimension open (Shardy's
        # `shouldApply`).
        site_of: dict[int, int] = {}
        for value, rows in builder.site_rows.items():
            is_free = value not in builder.annotated and value < len(builder.graph.values)
            agree = len({number for _, number, _ in rows}) == 1
            node, _, is_closed = rows[0]
            if is_free and value not in self.absent and agree and is_closed:
                site_of[value] = node
        # A carry shares its sharding with the whole loop. The annotation stays on a copy of the
        # carry, which the carry's readers read instead.
        self.instead = {
            v: (builder.graph.nodes[node].results[0], node)
            for v, node in site_of.items()
            if is_carried(builder, v)
        }
        self.seeded = {v: node for v, node in site_of.items() if v not in self.instead}
        self.operators = [*map(self._redirected, self.operators)]
        # `uses` has the number of readers of each value, on which Shardy's first stage depends.
        # `found` has the number of each operator class.
        self.uses = Counter(v for o in self.operators if not o.is_edge for v in o.operands)
        self.found: dict[OperatorClass, int] = {}
        # Operators of equal layers share one class object, so its identity finds their number.
        self.numbered: dict[tuple[int, tuple[bool, ...], bool], int] = {}

    def _redirected(self, made: ShardyOperator) -> ShardyOperator:
        """Return an operator that reads a value's annotated copy in place of the value.

        `instead` has, per value, its copy and the node that makes the copy. This node itself must
        read the value.
        """
        return made._replace(
            operands=tuple(
                self.instead[v][0] if v in self.instead and self.instead[v][1] != made.node else v
                for v in made.operands
            )
        )

    def index(self) -> SweepIndex:
        """Return the steps, and the steps to visit after a change of each value."""
        builder = self.builder
        # Operators without a class only count as readers, which `uses` has counted already.
        kept = [(*row, made) for made in self.operators if (row := self._step(made)) is not None]
        steps: list[Visit] = [
            (kind, self._tensors(values), made.node) for kind, values, made in kept
        ]
        places = (builder.names, builder.shapes)
        index = assembled(builder.graph, [*self.found], steps, places=places)
        notified = self._notified([values for _, values, _ in kept], [made for _, _, made in kept])
        # `related` has the values that share one sharding, and `seeded` has, for a value, the site
        # whose annotation it gets.
        return replace(index, notified=notified, related=self._aliases(), seeded=self.seeded)

    def _step(self, made: ShardyOperator) -> tuple[int, tuple[int, ...]] | None:
        """Return how Shardy propagates through an operator; None if nothing propagates.

        The result is (number of the operator's class, values). Operators of one class have the same
        rule of propagation, which is stored once under this number. The values are the operands
        that are no constants, then the results.
        """
        kind = made.kind
        if kind is None:
            return None
        # Constants have no sharding in Shardy, so they neither give nor take one.
        known = tuple(v for v in made.operands if v not in self.absent)
        # An edge joins a loop's result with its initial value and the body's result: all of them
        # must have one sharding.
        if made.is_edge:
            if not known:
                return None
            count = len(known)
            kind = edge(self.builder.shape(made.results[0]), count, 1, role=kind.role, alone=True)
            return self._number(kind), (*known, *made.results)
        # A constant operand stays in the class, without loops, so that the other operands keep
        # their numbers.
        gone = (*(v in self.absent for v in made.operands), *(False for _ in made.results))
        # Shardy's first stage visits an operator only if no operand has another user. Scalars do
        # not count.
        alone = all(self.uses[v] == 1 for v in known if self.builder.shape(v))
        key = id(kind), gone, alone
        if key not in self.numbered:
            maps = tuple(
                ((),) * len(dims) if is_gone else dims
                for dims, is_gone in zip(kind.maps, gone, strict=True)
            )
            self.numbered[key] = self._number(replace(kind, maps=maps, alone=alone))
        return self.numbered[key], (*made.operands, *made.results)

    def _number(self, kind: OperatorClass) -> int:
        return self.found.setdefault(kind, len(self.found))

    def _tensors(self, values: Iterable[int]) -> tuple[int, ...]:
        """Return the values, each body argument of a carry replaced by the loop's result.

        Both share one sharding, which is kept at the loop's result.
        """
        return tuple(self.builder.target.get(v, v) for v in values)

    def _notified(
        self, read: list[tuple[int, ...]], kept: list[ShardyOperator]
    ) -> dict[int, list[int]]:
        """Return, for each value, a stack of the steps to visit after its sharding has changed.

        The last step of a stack is visited first. Readers are visited in program order. The readers
        of a loop's result are visited in the opposite order: Shardy replaces the uses of such a
        result by those of a new operator (`addDataFlowEdges`, replaceAllUsesExcept).

        Args:
          read: for each step, the values of its operands and results.
          kept: the operator of each step.
        """
        makers: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        for step, (values, made) in enumerate(zip(read, kept, strict=True)):
            count = len(values) - len(made.results)
            makers.update(dict.fromkeys(values[count:], step))
            for value in values[:count]:
                readers.setdefault(value, []).append(step)
        # `inner` has, per loop result, the body arguments that share its sharding. Their readers
        # are visited after the result's own. The last step of a stack is visited first, so a stack
        # has the readers of `inner`, then the producer, then the value's own readers.
        notified = {}
        inner = self.builder.inner
        for value in dict.fromkeys((*makers, *readers)):
            own = readers.get(value, [])
            before = [s for v in inner.get(value, ()) for s in reversed(readers.get(v, []))]
            maker = [makers[value]] if value in makers else []
            notified[value] = [*before, *maker, *(own if value in inner else own[::-1])]
        return notified

    def _aliases(self) -> dict[int, tuple[int, ...]]:
        """Return, for each value, the values that are the same value or share its sharding.

        For example, an argument of a loop's body shares the sharding of the loop's result.
        """
        found: dict[int, tuple[int, ...]] = {}
        for value in range(len(self.builder.graph.values)):
            (one,) = self._tensors((self._known(value),))
            if one != value:
                found[one] = (*found.get(one, ()), value)
        return found

    def _known(self, value: int) -> int:
        """Return the value in Shardy's module that corresponds to a value of the graph.

        Some values of the graph are a second name of another value. An argument of a loop that only
        reads it is replaced by the value outside of the loop, or, if that value is annotated, by
        the copy that Shardy makes for the loop.
        """
        builder = self.builder
        while value in builder.same or value in builder.captured:
            if value in builder.same:
                value = builder.same[value]
            else:
                call, outside = builder.captured[value]
                outer = self._known(outside)
                return builder.copies.get((call, outer), outer)
        return value


def is_carried(builder: ShardyModuleBuilder, value: int) -> bool:
    """Return whether a value shares its sharding with others, as a loop's carry does."""
    return value in builder.target or value in builder.inner
