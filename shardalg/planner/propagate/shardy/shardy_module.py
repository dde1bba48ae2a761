"""The operators of the module that XLA hands to Shardy, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardalg.graph.ir import Graph, Node, Signature
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.elements import Element
from shardalg.planner.propagate.gspmd.index import Rules
from shardalg.planner.propagate.gspmd.instructions import Instructions, read
from shardalg.planner.propagate.gspmd.step import BOXES, box_class, source_primitive
from shardalg.planner.propagate.operator_classes import (
    OperatorClass,
    edge,
    operator_class,
    pass_through,
)
from shardalg.planner.propagate.shardy import lowered

Given = tuple[frozenset[int], tuple[tuple[int, int, bool], ...]]
"""The annotated values, and (node, number, whether all dimensions are closed) per annotated site.

Equal annotations share a number.
"""
Carried = tuple[int | None, list[int], int]
"""A carry of a loop: (initial value, the results of the bodies, the result of the loop)."""


class ShardyOperator(NamedTuple):
    """One operator of the module that XLA hands to Shardy.

    Without an operator class, it only counts as a reader of its operands.

    Attributes:
      operands, results: the values as they are read and made; of an edge, its sources and its
        target.
      node: the node or the call.
      is_edge: whether it is an edge between values that share a sharding.
    """

    kind: OperatorClass | None
    operands: tuple[int, ...]
    results: tuple[int, ...]
    node: int | None
    is_edge: bool = False


@dataclass(eq=False)
class ShardyModuleBuilder(Instructions):
    """The builder of the operators of the module that XLA hands to Shardy.

    The module has operators that the graph lacks, for example copies of loop constants and slices
    of stacks. Values are numbered as in the graph; values of the module alone get numbers behind.

    Attributes:
      same: for a value that only renames another value, the other value.
      captured: for a loop's argument that is a constant of the loop: (the loop, the value outside).
      target: for an argument of a body, the loop's result with which it shares one sharding.
      inner: for such a result, the arguments of bodies, in the order in which they are notified.
      copies: for (loop, value outside), the copy with open dimensions that the body reads instead.
      opened: for each loop, the operators that make its copies, in order.
      numbers: values that are computed from constants alone; full: values whose elements all equal
        one number.
      site_rows: for each value that annotated sites read, these sites.
      shared: broadcasts of which every reader has its own copy, and whether a first reader was
        found.
      written: for each result of a body that is put into a stack, the stack before and after.
      kinds: the class of each signature in each role, as a cache.
    """

    graph: Graph
    rules: Rules
    annotated: frozenset[int]
    given: tuple[tuple[int, int, bool], ...]
    names: list[int] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    same: dict[int, int] = field(default_factory=dict)
    captured: dict[int, tuple[int, int]] = field(default_factory=dict)
    target: dict[int, int] = field(default_factory=dict)
    inner: dict[int, list[int]] = field(default_factory=dict)
    copies: dict[tuple[int, int], int] = field(default_factory=dict)
    opened: dict[int, list[ShardyOperator]] = field(default_factory=dict)
    full: set[int] = field(default_factory=set)
    site_rows: dict[int, list[tuple[int, int, bool]]] = field(default_factory=dict)
    shared: dict[int, tuple[Node, bool]] = field(default_factory=dict)
    written: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    kinds: dict[tuple[Signature, str | None], OperatorClass | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = len(self.graph.values) + len(self.graph.results)
        self.find_elements(lambda *_: 0)
        self.numbers = {value for value, _ in self.graph.constants}
        self.sites = {row[0]: row for row in self.given}

    def shape(self, value: int) -> tuple[int, ...]:
        """Return the shape of a value, of a result's stand-in or of a place."""
        if value >= self.first:
            return self.shapes[value - self.first]
        count = len(self.graph.values)
        number = self.graph.results[value - count] if value >= count else value
        return self.graph.values[number].type.shape

    def place(self, value: int, shape: tuple[int, ...]) -> int:
        """Add a value that only Shardy's module has, and return its number.

        The number continues those of the graph's values.

        Args:
          value: the graph value that messages name in place of this value.
          shape: the shape of this value.
        """
        self.names.append(value if value < self.first else self.names[value - self.first])
        self.shapes.append(shape)
        return self.first + len(self.names) - 1

    def region(self, number: int) -> Iterator[ShardyOperator]:
        """Yield a computation's operators in order, also the operators of its bodies.

        The reader of the computation's results comes last.
        """
        # Each kind of instruction has the method that makes its operators, as `_call` for "call".
        for what, *numbers in self.in_order(number):
            yield from getattr(self, f"_{what}")(*numbers)

    def exits(self) -> Iterator[ShardyOperator]:
        """Yield an edge per result of the function, from its value to the result's annotation.

        An edge is a step between values that share one sharding.
        """
        for stand_in, value in enumerate(self.graph.results, len(self.graph.values)):
            shape = self.shape(value)
            if shape:
                kind = edge(shape, 1, 1, role=image.EXIT, alone=True)
                yield ShardyOperator(kind, (self.read(value),), (stand_in,), None)

    def read(self, value: int) -> int:
        """Return the value that stands for a value of the graph in Shardy's module.

        Shardy's module has no node for some identities: their readers read the operand. Inside a
        loop, a value of the outer computation is read through the loop's own copy.
        """
        while True:
            if value in self.same:
                value = self.same[value]
            elif value in self.captured:
                value = self._outside(*self.captured[value])
            else:
                return value

    def _outside(self, call: int, value: int) -> int:
        """Return the value that a loop's body reads in place of a value outside of the loop.

        For an annotated value, it is a copy with an open sharding, which propagation in the body
        may change. A copy that an outer loop reads is copied again. Any other value, and a scalar,
        is read itself.

        Args:
          call: the node of the loop.
        """
        outer = self.read(value)
        is_copy = any(outer == copy for copy in self.copies.values())
        if not (is_copy or outer in self.annotated) or not self.shape(outer):
            return outer
        # One loop has one copy of a value, which all readers in its body share.
        if (call, outer) not in self.copies:
            shape = self.shape(outer)
            copy = self.copies[call, outer] = self.place(outer, shape)
            # The copy is a pointwise operator, through which shardings pass in both directions.
            kind = replace(pass_through(shape, False), role=image.POINTWISE)
            operator = ShardyOperator(lowered.with_all_passing(kind), (outer,), (copy,), call)
            self.opened.setdefault(call, []).append(operator)
        return self.copies[call, outer]

    def _node(self, number: int, _: int) -> Iterator[ShardyOperator]:
        """Yield the operators of Shardy's module for one node of the graph, or none.

        There is none for a node without an instruction in XLA, for constants, and for broadcasts of
        numbers. Shardy copies constants for each reader, so they get no sharding of their own. A
        broadcast that JAX repeats for each reader is yielded later, at its readers. Such nodes are
        recorded in `same`, `numbers`, `full` and `shared` (see the class).
        """
        node = self.graph.nodes[number]
        # A node without an instruction in XLA only gives its operand a second name.
        if node.primitive in lowered.NOTHING:
            self.same[node.results[0]] = node.operands[0]
            return
        operands = tuple(self.read(value) for value in read(node))
        # A barrier passes each operand to the result of the same number, and to no other result.
        if node.primitive == "optimization_barrier":
            yield ShardyOperator(None, operands, (), number)
            for operand, result in zip(operands, node.results, strict=True):
                yield from self._edge((operand,), result, number)
        # An operator that reads only constants, and copies them, is a constant itself.
        elif (
            self.numbers.issuperset(operands)
            and number not in self.sites
            and lowered.keeps_numbers(node, self._kind(node))
        ):
            self.numbers.update(node.results)
        # The broadcast of a scalar is a tensor full of one number.
        elif node.primitive == "broadcast_in_dim" and not self.shape(operands[0]):
            self.full.update(node.results)
        elif node.primitive == "broadcast_in_dim" and self._is_shared(node):
            self.shared[node.results[0]] = (node, False)
        # Loops and branches (nodes with bodies) are built elsewhere.
        elif not node.bodies:
            yield from self._operator(node, operands)

    def _operator(self, node: Node, operands: tuple[int, ...]) -> Iterator[ShardyOperator]:
        """Yield the operators that Shardy's module has for one node of the graph.

        Most nodes have one operator. XLA lowers some nodes to several, such as an integer power to
        a chain of products. The class of an operator says how shardings pass through it.

        Args:
          node: a node without a region, so no loop or branch.
          operands: the values that the node reads in Shardy's module.
        """
        # Shardy applies a site's annotation to the value that the site reads, so sites are noted.
        kind = self._kind(node)
        if node.index in self.sites:
            self.site_rows.setdefault(operands[0], []).append(self.sites[node.index])
        # An integer power becomes a chain of products.
        if products := lowered.power_products(node):
            yield from self._power(node, operands[0], products)
            return
        if node.primitive == "broadcast_in_dim" and kind is not None:
            yield from self._widened(node, operands, node.results[0], kind)
            return
        # JAX makes some broadcasts anew for each reader, and the graph has one node for all. So
        # this reader gets a copy of its own, whose sharding does not depend on other readers.
        for position, value in enumerate(operands):
            if value in self.shared:
                operands, copies = self._own_copy(operands, position)
                yield from copies
        yield ShardyOperator(kind, operands, node.results, node.index)

    def _widened(
        self, node: Node, operands: tuple[int, ...], result: int, kind: OperatorClass
    ) -> Iterator[ShardyOperator]:
        """Yield a broadcast's operators: three if it widens dimensions of size 1, as in XLA.

        XLA's broadcast only adds dimensions. To widen (4, 1) to (4, 8), it first removes the
        dimension of size 1 in two steps, and then broadcasts (4,) to (4, 8).

        Args:
          operands: the operand, as a tuple of one value.
          result: the value that the last operator returns.
          kind: the class of the broadcast if it widens nothing.
        """
        shape = self.shape(node.results[0])
        steps = lowered.widening_steps(self.shape(operands[0]), shape, node)
        # Each step reads the result of the one before it. `shapes` has (operand, result) of a step.
        for step in steps:
            place = self.place(result, step.shapes[1])
            yield ShardyOperator(step, operands, (place,), node.index)
            operands = (place,)
        kind = lowered.widening_broadcast(steps[-1].shapes[1], shape, node) if steps else kind
        yield ShardyOperator(kind, operands, (result,), node.index)

    def _own_copy(
        self, operands: tuple[int, ...], position: int
    ) -> tuple[tuple[int, ...], list[ShardyOperator]]:
        """Return the operands with a copy of a shared broadcast, and the copy's operators.

        JAX makes such a broadcast anew for each reader.
        """
        value = operands[position]
        node, first = self.shared[value]
        # The first reader takes the broadcast itself, every later one a new place.
        own = self.place(value, self.shape(value)) if first else value
        self.shared[value] = (node, True)
        kind = self._kind(node)
        assert kind is not None  # a broadcast always has a row of RULES
        copies = [*self._widened(node, (self.read(node.operands[0]),), own, kind)]
        return (*operands[:position], own, *operands[position + 1 :]), copies

    def _is_shared(self, node: Node) -> bool:
        """Return whether the readers of a broadcast have a copy of it each in JAX's program.

        JAX widens dimensions of size 1 anew for every operator that reads them. The graph has one
        node for all readers.
        """
        graph, value = self.graph, node.results[0]
        # A broadcast that adds no dimension maps each operand dimension to the same number.
        dims = node.signature.param("broadcast_dimensions")
        adds_no_dim = dims == tuple(range(len(self.shape(value))))
        readers = graph.users[value]
        # Calls, annotations and the ends of regions read the value itself instead of a copy.
        are_operators = all(not graph.nodes[n].bodies and n not in self.sites for n in readers)
        is_region_result = any(value in region.results for region in graph.regions)
        return adds_no_dim and len(readers) > 1 and are_operators and not is_region_result

    def _power(
        self, node: Node, operand: int, products: list[tuple[int, int]]
    ) -> Iterator[ShardyOperator]:
        """Yield the products of a power; a negative power also divides by the last product.

        Args:
          products: the factors of each product, as `lowered.power_products` returns them.
        """
        # Each product is a value of its own in XLA's module. The graph has the last one only.
        (result,) = node.results
        shape, made = self.shape(result), [operand]
        is_divided = node.signature.param("y", 2) < 0
        for number, (left, right) in enumerate(products, 1):
            is_last = number == len(products) and not is_divided
            made.append(result if is_last else self.place(result, shape))
            # A product has 2 operands and 1 result of this shape, and the division below 1 and 1.
            kind = edge(shape, 2, 1, role=image.POINTWISE, alone=False)
            yield ShardyOperator(kind, (made[left], made[right]), (made[-1],), node.index)
        if is_divided:
            kind = edge(shape, 1, 1, role=image.POINTWISE, alone=False)
            yield ShardyOperator(kind, (made[-1],), (result,), node.index)

    def _kind(self, node: Node) -> OperatorClass | None:
        """Return a node's operator class as Shardy has it, or None if nothing passes through it."""
        role = BOXES.get((node.primitive, source_primitive(self.graph, node)))
        key = node.signature, role
        if key not in self.kinds:
            self.kinds[key] = self._kind_in_role(node, role)
        return self.kinds[key]

    def _kind_in_role(self, node: Node, role: str | None) -> OperatorClass | None:
        """Return a node's operator class for Shardy, or None if nothing passes through the node.

        Args:
          role: for a slice or a pad that is a slice, an update, a gather or a scatter of a box in
            XLA's module, its role there; None for any other node.
        """
        rows = self.rules(node.signature) if node.signature.operands else None
        if not rows:
            return None
        kind = operator_class(node.signature, rows, ())
        if role is None:
            return lowered.shardy_class(node, kind)
        # Shardy visits updates of a box together with slices; GSPMD has a role of its own for them.
        is_window = role == image.WINDOW
        return replace(box_class(node, kind), role=role if is_window else image.DYNAMIC_SLICE)

    def _edge(self, sources: tuple[int, ...], result: int, call: int) -> Iterator[ShardyOperator]:
        """Yield the step by which a loop's or branch's result shares the sharding of its sources.

        Yields nothing for a scalar.
        """
        shape = self.shape(result)
        self.inner.setdefault(result, [])
        if shape:
            kind = edge(shape, len(sources), 1, role=image.LOOP, alone=True)
            yield ShardyOperator(kind, sources, (result,), call, True)

    def _call(self, number: int, _: int) -> Iterator[ShardyOperator]:
        """Yield the operators of a loop or a conditional in the order of the module.

        First come the copies of annotated values that the bodies read, then the operators of the
        bodies (of a condition before the others), then the call itself, and an edge per result. An
        edge lets the initial value, the values that the bodies return, and the result share one
        sharding.
        """
        node = self.graph.nodes[number]
        regions = [self.graph.regions[body] for body in node.bodies]
        if regions[0].kind != "cond":
            carried: list[Carried] = [*self._carried(number)]
        else:
            # The branches of `stablehlo.case` have no arguments: they read the operands from
            # outside. Operand 0 selects the branch.
            for region in regions:
                self.same.update(zip(region.arguments, node.operands[1:], strict=True))
            carried = [
                (None, [region.results[position] for region in regions], result)
                for position, result in enumerate(node.results)
            ]
        # The operators of the bodies are collected first. They open copies of annotated values,
        # which are in front of the loop.
        bodies = sorted(node.bodies, key=lambda body: not self._is_condition(body))
        inside = [made for body in bodies for made in self.region(body)]
        yield from self.opened.pop(number, ())
        yield from inside
        # The loop itself counts as a reader of the initial values.
        starts = [self.read(start) for start, _, _ in carried if start is not None]
        yield ShardyOperator(None, tuple(starts), (), number)
        for start, returned, result in carried:
            first = () if start is None else (self.read(start),)
            yield from self._edge((*first, *map(self.read, returned)), result, number)

    def _carried(self, call: int) -> Iterator[Carried]:
        """Yield (initial value, body results, loop result) for each value that a loop carries.

        Values that the loop only reads are recorded in `captured` instead. In `stablehlo.while`, a
        carry that the body returns unchanged is also only read.
        """
        graph = self.graph
        body = graph.nodes[call].bodies[-1]
        # A scalar has no sharding: its argument in the body is only a second name.
        for tie in graph.region_arguments:
            if tie.call == call and tie.kind == "const" and not self.shape(tie.source):
                self.same[tie.target] = tie.source
        for element in self.elements[call]:
            # `inner` orders the readers that Shardy visits: those in a `while`'s condition first,
            # because its region precedes the body in the module.
            inside = [v for _, v in sorted(element.inside.items(), key=lambda row: row[0] == body)]
            if element.kind == "ys":
                yield self._stacked(element, body)
            elif (
                element.kind == "carry"
                # A carry that is returned unchanged is only read, as `stablehlo.while` has it.
                and graph.regions[body].results[element.numbers[body]] != element.inside[body]
            ):
                assert element.result is not None  # a carry always has a value after the loop
                # The carry in the body and its result share one sharding, named by the result.
                self.target.update(dict.fromkeys(inside, element.result))
                self.inner[element.result] = inside
                returned = graph.regions[body].results[element.numbers[body]]
                yield element.outer, [returned], element.result
            elif element.kind != "xs":
                assert element.outer is not None  # only written stacks have no value before a loop
                self.captured.update(dict.fromkeys(inside, (call, element.outer)))
                # The result of an unchanged carry is its initial value.
                if element.result is not None:
                    self.same[element.result] = element.outer

    def _stacked(self, element: Element, body: int) -> Carried:
        """Return the `Carried` of a stacked output (ys of a scan), which the loop body updates.

        It is (initial value, body results, loop result). Two new places stand for the stack in the
        body: before and after the body writes one slice. The place before the write shares the
        sharding of the loop's result. JAX creates the stack as zeros, which have no sharding in
        Shardy: the initial value is None.
        """
        assert element.result is not None  # a stack that a loop writes is a result of the loop
        shape = self.shape(element.result)
        stack, written = self.place(element.result, shape), self.place(element.result, shape)
        self.target[stack], self.inner[element.result] = element.result, [stack]
        self.written[body, element.numbers[body]] = (stack, written)
        return None, [written], element.result

    def _enter(self, value: int, _: int) -> Iterator[ShardyOperator]:
        """Yield the operators that take one iteration's slice out of a stack that a loop reads.

        None for a value that is no such slice.

        Args:
          value: the slice, an argument of the loop's body.
        """
        element, region = self.entering[value]
        call = self.graph.regions[region].node
        if element.kind != "xs" or call is None or element.outer is None:
            return
        stack, shape = self._outside(call, element.outer), self.shape(element.outer)
        # A slice of a vector is a scalar: it only counts as a reader of the stack.
        if len(shape) == 1:
            yield ShardyOperator(None, (stack,), (), call)
            return
        part = self.place(value, (1, *shape[1:]))
        yield ShardyOperator(lowered.slice_class(shape), (stack,), (part,), call)
        yield ShardyOperator(lowered.reshape_class(shape[1:], (1, 0)), (part,), (value,), call)

    def _leave(self, *_: int) -> Iterator[ShardyOperator]:
        yield from ()

    _tuple = _leave

    def _part(self, region: int, number: int) -> Iterator[ShardyOperator]:
        """Yield the operators by which one iteration of a loop writes a layer into a stack.

        They are a reshape of the layer to (1, ...), and a `dynamic_update_slice` of the stack.
        There are none if the result is not stacked.

        Args:
          region: the body of the loop.
          number: the number of the layer among the body's results.
        """
        # JAX lowers the write to a reshape of the slice and a `dynamic_update_slice`. The slice of
        # a vector is a scalar, which has no sharding to pass on.
        if (region, number) in self.written:
            stack, written = self.written[region, number]
            made = self.read(self.graph.regions[region].results[number])
            shape, call = self.shape(stack), self.graph.regions[region].node
            part = self.place(made, (1, *shape[1:]))
            if len(shape) > 1:
                yield ShardyOperator(
                    lowered.reshape_class(shape[1:], (0, 1)), (made,), (part,), call
                )
            yield ShardyOperator(lowered.stack_class(shape), (stack, part), (written,), call)

    def _root(self, region: int, _: int) -> Iterator[ShardyOperator]:
        """Yield the operator that returns a computation's results.

        It has no operator class, so it passes no sharding on. It counts as a reader of the results:
        Shardy's first stage visits only operators whose operands have no other reader.

        Args:
          region: the computation, which is the function or the body of a loop or branch.
        """
        # `_part` makes the operators that write a result into its stack. The computation then
        # returns the written stack. It does not return a value that a loop only reads (`captured`).
        results = self.graph.regions[region].results
        if not self._returns_tuple(region):
            for number in range(len(results)):
                yield from self._part(region, number)
        reads = []
        for number, value in enumerate(results):
            if (region, number) in self.written:
                reads.append(self.written[region, number][1])
            elif not self.captured.get(value):
                reads.append(self.read(value))
        yield ShardyOperator(None, tuple(reads), (), None)
