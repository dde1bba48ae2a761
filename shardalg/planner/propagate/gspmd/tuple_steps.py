"""The steps of a graph as XLA's own propagation sweeps it: by computation, with tuples.

In HLO, a loop is one `while`. Its tuple enters the bodies, is returned by them and by the loop.
Each element has one sharding in all these tuples (`related`). Bodies are visited before the
computation around them, each computation forward and then backward. A value in a tuple has a
sharding of its own, beside that of the value that was put in. It is numbered as a place, after the
graph's values and the stand-ins of results. Source: `sharding_propagation.cc`, RunToFixPoint and
MaybeComputationPropagation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from shardalg.graph.ir import Graph, Node, Signature, once_per_graph
from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.elements import Element, Literal, literals, read_literals
from shardalg.planner.propagate.gspmd.index import Rules, Span, SweepIndex, Visit, assembled
from shardalg.planner.propagate.gspmd.instructions import Instructions
from shardalg.planner.propagate.gspmd.step import hlo_class, is_constant_update, source_primitive
from shardalg.planner.propagate.operator_classes import (
    OperatorClass,
    pass_through,
    stack_update_class,
    tuple_class,
)
from shardalg.sizes.recorded import equal_key

Shape = tuple[int, ...]
ARGUMENTS = ("argmax", "argmin")
"""Operators that XLA has as a reduction of several operands to a tuple."""


@dataclass(eq=False)
class Computations(Instructions):
    """The builder of the steps of GSPMD's sweeps, computation by computation of XLA's module.

    A place is an entry of a tuple, numbered like a value, with a sharding of its own.

    Attributes:
      names, shapes: per place, the value that names it in texts, and its shape.
      related: places that share one sharding, because they are one element of a tuple.
      late_backward: results of broadcasts and constants, as in `SweepIndex`.
      put: per body, the (value, place) pairs of the tuple that the body returns: a value of the
        body, and the place of its element in this tuple.
    """

    graph: Graph
    rules: Rules
    results_given: bool
    found: dict[OperatorClass, int] = field(default_factory=dict)
    names: list[int] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    related: dict[int, tuple[int, ...]] = field(default_factory=dict)
    late_backward: set[int] = field(default_factory=set)
    classes: dict[tuple[Signature, str], OperatorClass | None] = field(default_factory=dict)
    put: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    regions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the elements of all tuples, join equal constants, and count the readers."""
        graph = self.graph
        # One list of layouts serves values, stand-ins of results and places. Places are numbered
        # last, so that place n has the shape `shapes[n - first]`.
        self.first = len(graph.values) + len(graph.results)
        self.find_elements(self._place)
        for found in self.elements.values():
            for element in found:
                self.related.update(element.related())
        self._join_literals()
        # Joining sets the initial values of stacks. The loop reads these values, too, so readers
        # are counted only afterwards.
        self.users = self._count_users()

    def _place(self, value: int, shape: Shape) -> int:
        """Add an entry of a tuple and return its number, which continues the numbers of values.

        Args:
          value: the graph value that messages name in place of the entry.
          shape: the shape of the entry.
        """
        self.names.append(value)
        self.shapes.append(shape)
        return self.first + len(self.names) - 1

    def _join_literals(self) -> None:
        """Make equal constants of a computation one, also the zeros with which a loop fills stacks.

        Sets three tables: `read` has the constants that each operator reads as full tensors,
        `first_of` has the constant that stands for each of its equals, and `related` lists for each
        one the others, which share its sharding.
        """
        groups: dict[int, dict[Literal, list[int]]] = literals(self.graph)
        self._join_stacks(groups)
        self.read: dict[int, list[int]] = {}
        for number, keys in read_literals(self.graph).items():
            node = self.graph.nodes[number]
            kind = self._class(node)
            # In XLA, a pointwise operator reads a scalar as a full tensor, which has a sharding of
            # its own. So does a pad that was traced as an update of a full tensor.
            is_pointwise = kind is not None and kind.role == image.POINTWISE
            if is_pointwise or is_constant_update(self.graph, node):
                for key in dict.fromkeys(keys):
                    first = self._first_of(groups[node.region], key, node.results[0])
                    self.read.setdefault(number, []).append(first)
        # Equal constants are one instruction in XLA, so all values of a group share one sharding.
        # A constant takes a sharding from its readers only late in the propagation.
        self.first_of: dict[int, int] = {}
        for group in chain.from_iterable(found.values() for found in groups.values()):
            self.late_backward.update(group)
            self.first_of.update(dict.fromkeys(group, group[0]))
            for value in group if len(group) > 1 else ():
                self.related[value] = tuple(v for v in group if v != value)

    def _join_stacks(self, groups: dict[int, dict[Literal, list[int]]]) -> None:
        """Set the initial value of each stack that a loop writes: a tensor of zeros.

        JAX begins every such stack as zeros. XLA has one constant for all tensors of zeros of one
        type in a computation.

        Args:
          groups: per computation and (number, type), the values that are full of this number.
        """
        # `elements` has the entries of each loop's tuple; those of kind "ys" are written stacks.
        for call, loop_elements in self.elements.items():
            region = self.graph.nodes[call].region
            for element in loop_elements:
                if element.kind == "ys" and element.result is not None:
                    key = (0.0, self.graph.values[element.result].type)
                    element.outer = self._first_of(groups[region], key, element.result)

    def _first_of(self, groups: dict[Literal, list[int]], key: Literal, name: int) -> int:
        """Return the first value whose elements are all one number, or else a new place.

        Args:
          groups: the values with equal elements so far, by (number, type); a new place is added.
          key: the (number, type) that is searched for.
          name: the value after which a new place is named.
        """
        group = groups.setdefault(equal_key(groups, key), [])
        if not group:
            group.append(self._place(name, key[1].shape))
        return group[0]

    def _count_users(self) -> list[int]:
        """Return, for each value, the number of its readers within one XLA computation.

        The tuple that the computation returns does not count as a reader. `elements` has the
        entries of the tuples with which loops and branches are called (`outer` is the value that is
        put in).
        """
        graph = self.graph
        # The numbers below `first` are values and results of the function. Behind them are the
        # entries of tuples (`_place`).
        counts = [0] * (self.first + len(self.names))
        # A node that reads a value twice is one user in XLA, hence the sets below.
        for node in graph.nodes:
            for value in () if node.index in self.elements else set(node.operands):
                counts[value] += 1
        # In XLA, a tuple that has a value several times is one reader of this value. A loop reads
        # one tuple, a conditional one tuple per branch.
        for call, found in self.elements.items():
            put_in = [element for element in found if element.outer is not None]
            tuples = [put_in]
            if found and found[0].kind == "branch":
                bodies = graph.nodes[call].bodies
                tuples = [[e for e in put_in if body in e.parameters] for body in bodies]
            for parts in tuples:
                for value in {e.outer for e in parts if e.outer is not None}:
                    counts[value] += 1
        # The body of a scan with several results is an inlined call in XLA. Its results are in a
        # tuple of the call, which is read, and not in the tuple that the computation returns.
        for region in graph.regions:
            if self._returns_tuple(region.index):
                for value in set(region.results):
                    counts[value] += 1
        # If a result is annotated, every result has a reader of its own in XLA.
        for value in set(graph.results) if self.results_given else ():
            counts[value] += 1
        return counts

    def computations(self, region: int) -> Iterator[list[Visit]]:
        """Yield the steps of each computation of a region, bodies first.

        A computation is a list of steps: the function, a body of a loop, or a branch. XLA sweeps
        the called computations before the one that calls them.
        """
        for node in self._nodes(region):
            # Only loops and conditionals have elements, and computations of their own.
            if node in self.elements:
                # An HLO `while` lists its body before its condition, and XLA visits them so.
                for body in sorted(self.graph.nodes[node].bodies, key=self._is_condition):
                    yield from self.computations(body)
        self.regions.append(region)
        yield [*self._steps(region)]

    def _steps(self, region: int) -> Iterator[Visit]:
        """Yield the steps of one computation; the steps of the function's results come last.

        A step is (number of its class, its tensors, the node or None).
        """
        # `in_order` yields, per instruction, the name of a method of this class and its arguments.
        for method, *numbers in self.in_order(region):
            yield from getattr(self, f"_{method}")(*numbers)
        # Region 0 is the function. The annotation of a result has a number after all values, and a
        # step to the value. A scalar result has no dimension to shard, and needs no step.
        results = self.graph.results if region == 0 else ()
        for number, value in enumerate(results, len(self.graph.values)):
            shape = self.graph.values[value].type.shape
            if shape:
                yield self._numbered(pass_through(shape, False)), (value, number), None

    def _node(self, number: int, _: int) -> Iterator[Visit]:
        """Yield the steps of an operator, and the steps from the constants that it reads."""
        node = self.graph.nodes[number]
        kind = self._class(node)
        if kind is None:
            return
        # Below the level of broadcasts, XLA gives a broadcast no sharding from its readers
        # (`sharding_propagation.cc`, InferShardingFromUsers).
        if kind.role == image.BROADCAST:
            self.late_backward.update(node.results)
        # XLA replaces the sharding of a value with a single reader more readily
        # (`sharding_propagation.cc`, allow_aggressive_resharding).
        kind = replace(kind, single=tuple([self.users[v] == 1 for v in node.results]))
        if node.primitive in ARGUMENTS:
            yield from self._argument(node, kind)
            return
        yield self._numbered(kind), node.operands + node.results, number
        # A constant that is a full tensor in XLA (`_join_literals`) exchanges shardings with the
        # result of its reader.
        for literal in self.read.get(number, ()):
            yield self._tie(image.LOOP, (literal, node.results[0]), number)

    def _argument(self, node: Node, kind: OperatorClass) -> Iterator[Visit]:
        """Yield the steps of an arg-reduce, such as argmax, as XLA propagates through it.

        In XLA, an arg-reduce reads the operand and its positions (an iota), and returns a tuple of
        the largest elements and their positions. Forward, both operands offer their shardings to
        both results. Backward, each result reaches only its own operand.
        """
        (operand,), (result,) = node.operands, node.results
        largest, positions = (
            self._place(result, kind.shapes[1]),
            self._place(operand, kind.shapes[0]),
        )
        self.late_backward.add(positions)
        for target, own in ((largest, operand), (result, positions)):
            for source in (operand, positions):
                # A closed operand takes nothing backward, and gives forward as any other.
                crossed = replace(kind, closed_operands=frozenset((0,)))
                step_class = kind if source == own else crossed
                yield self._numbered(step_class), (source, target), node.index

    def _class(self, node: Node) -> OperatorClass | None:
        """Return a node's class by XLA's levels, or None if nothing propagates through it."""
        # The same primitive may have been traced from several, which XLA treats differently: a pad
        # may come from `dynamic_update_slice`.
        key = node.signature, source_primitive(self.graph, node)
        if key not in self.classes:
            self.classes[key] = hlo_class(node, self.rules, key[1])
        return self.classes[key]

    def _call(self, number: int, _: int) -> Iterator[Visit]:
        """Yield the steps that put the operands of a loop or a conditional into its tuples.

        A loop has one tuple, whose elements then pass their shardings to the loop's result. A
        conditional has one tuple per branch. An element has the value that is put into it
        (`outer`), its places in these tuples (`tuples`), and its place in the loop's result
        (`loop`).
        """
        tuples: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for element in self.elements[number]:
            if element.outer is not None:
                for branch, place in enumerate(element.tuples or ()):
                    tuples[branch].append((element.outer, place))
        for parts in tuples.values():
            yield from self._put_in(parts, number)
        # The tuples before and after a loop have equal shapes, so XLA copies shardings between them
        # in both directions (kWhile).
        for element in self.elements[number]:
            if element.loop is not None and element.tuples is not None:
                yield self._tie(image.WHILE, (element.tuples[0], element.loop), number)

    def _leave(self, value: int, _: int) -> Iterator[Visit]:
        """Yield the step that takes a value out of the tuple that a loop or branch returns."""
        call, element = self.leaving[value]
        if element.loop is not None:
            yield self._tie(image.ELEMENT, (element.loop, value), call)

    def _enter(self, value: int, _: int) -> Iterator[Visit]:
        """Yield the steps that take an argument of a body out of the body's tuple.

        A step relates the shardings of two values: an entry of the tuple and the argument.
        """
        element, region = self.entering[value]
        call = self.graph.regions[region].node
        assert call is not None  # only the function's own region has no call
        # The element's place in the body's tuple; a body that does not take the element has none.
        parameter = element.parameters.get(region)
        if parameter is None:
            return
        if element.kind == "branch":
            place = element.place_of(region)
            if place is None:  # a branch that reads one value alone gets no tuple
                assert element.outer is not None
                yield self._tie(image.LOOP, (element.outer, value), call)
                return
            yield self._tie(image.BRANCH, (place, parameter), call)
        if element.kind != "xs":
            yield self._tie(image.ELEMENT, (parameter, value), call)
            return
        # The tuple has the whole stack. The body takes one layer out of it, so that the stack has
        # one leading dimension more than the argument: drop (1, 0).
        stack = element.stacks[region]
        yield self._tie(image.ELEMENT, (parameter, stack), call)
        shape = self.graph.values[value].type.shape
        kind = pass_through(shape, self.users[value] == 1, (1, 0))
        yield self._numbered(kind), (stack, value), call

    def _tuple(self, region: int, _: int) -> Iterator[Visit]:
        """Yield the steps that put the results of an inlined body into one tuple."""
        call = self.graph.regions[region].node
        parts = [*zip(*self._parts(region), strict=True)]
        yield from self._put_in([p for p in parts if self.graph.values[p[0]].type.shape], call)

    def _put_in(self, parts: list[tuple[int, int]], call: int | None) -> Iterator[Visit]:
        """Yield the steps between values and the places of one tuple in which the values are put.

        Args:
          parts: (value, place) pairs. A step relates one value with all places that have it.
          call: the index of the loop or branch that has the tuple as its operand or result; None if
            there is none.
        """
        # Equal constants are one instruction in XLA, so all places of a group belong to its first
        # value. Backward, the value takes the sharding of the place with the most tiles.
        places: dict[int, list[int]] = defaultdict(list)
        for value, place in parts:
            places[self.first_of.get(value, value)].append(place)
        for value, found in places.items():
            yield self._numbered(tuple_class(self._shape(value), len(found))), (value, *found), call

    def _parts(self, region: int) -> tuple[tuple[int, ...], list[int]]:
        """Return the results of a body, and the places of these in the tuple that computes them.

        A place is an entry of a tuple with a sharding of its own. They are added at the first call.
        """
        results = self.graph.regions[region].results
        if region not in self._tuple_places:
            shapes = [self.graph.values[v].type.shape for v in results]
            found = [self._place(v, shape) for v, shape in zip(results, shapes, strict=True)]
            self._tuple_places[region] = found
        return results, self._tuple_places[region]

    @property
    def _tuple_places(self) -> dict[int, list[int]]:
        known: dict[int, list[int]] = vars(self).setdefault("tuple_places", {})
        return known

    def _part(self, region: int, number: int) -> Iterator[Visit]:
        """Yield the steps of result `number` of a body, up to the tuple that the body returns.

        A step relates the shardings of two values. Here, the result is taken out of the tuple of an
        inlined call, and made ready for the tuple of the loop.
        """
        call = self.graph.regions[region].node
        assert call is not None  # only the function's own region has no call
        values, places = self._parts(region)
        shape = self.graph.values[values[number]].type.shape
        element = self._element_of_result(call, region, number)
        if shape:
            # A scan's body is a call that XLA inlines. A result leaves the call's tuple first, and
            # enters the tuple of the loop afterwards.
            taken = self._place(values[number], shape)
            single = element is not None and element.kind == "ys"
            yield self._tie(image.ELEMENT, (places[number], taken), call, single=single)
            yield from self._return_element(call, region, element, taken)
        else:
            yield from self._return_element(call, region, element, values[number])

    def _element_of_result(self, call: int, region: int, number: int) -> Element | None:
        """Return the tuple element that a result of a loop's or branch's body belongs to.

        None for a scalar result, which has no element, because it cannot be sharded.

        Args:
          call: the index of the node of the loop or branch. region: the index of the body.
          number: the position of the result among the body's results.
        """
        found = [e for e in self.elements[call] if e.numbers.get(region) == number]
        return found[0] if found else None

    def _return_element(
        self, call: int, region: int, element: Element | None, value: int
    ) -> Iterator[Visit]:
        """Yield the steps before a body's result is put into the tuple that the body returns.

        A result of kind "ys" is one layer of a stack. The body takes the stack out of its
        parameter, writes the layer into it, and returns the new stack; these are two steps. Any
        other result is returned as it is, without a step. The value to return and its place are
        added to `put[region]`; `_root` then yields the steps into the tuple.

        Args:
          call: the loop or the conditional. region: its body.
          element: the tuple element that the result belongs to; None, for a scalar, yields nothing.
          value: the result, or the place at which it was taken out of the body's own tuple.
        """
        if element is None or region not in element.roots:
            return
        if element.kind == "ys":
            # In HLO the stacks before and after the write are two values, so two steps are needed:
            # parameter --ELEMENT--> stack --+
            #                      value ----+--> written --> the body's tuple
            stack = element.stacks[region]
            yield self._tie(image.ELEMENT, (element.parameters[region], stack), call)
            shape = self.shapes[stack - self.first]
            # Messages name the new stack after the graph value of the layer. A layer that is itself
            # a place (numbers from `first` on) is no graph value: then the loop's result names it.
            assert element.result is not None  # a stack that is written has a result
            name = value if value < self.first else element.result
            written = self._place(name, shape)
            kind = stack_update_class(shape)
            yield self._numbered(kind), (value, stack, written), call
            value = written
        self.put[region].append((value, element.roots[region]))

    def _root(self, region: int, _: int) -> Iterator[Visit]:
        """Yield the steps that put the results of a body into the tuple that the body returns.

        Nothing is yielded for the function itself. A loop also returns the values that it only
        reads. Of an element of the tuple, `numbers` has the body's result that becomes the element
        (None: the body only reads it), and `roots` the element's place in the returned tuple.
        """
        found = self.graph.regions[region]
        if found.node is None:
            return
        # A body with a tuple of its own was handled result by result in `_part`.
        if not self._returns_tuple(region):
            for number, value in enumerate(found.results):
                element = self._element_of_result(found.node, region, number)
                yield from self._return_element(found.node, region, element, value)
        # Values that a loop only reads are returned unchanged, because an HLO `while` takes and
        # returns the same tuple. Of a stack the whole is returned (`stacks`), not the slice that
        # the body reads (`inside`).
        for element in self.elements[found.node]:
            if element.numbers.get(region) is None and region in element.roots:
                inner = element.stacks.get(region) or element.inside.get(region)
                if inner is not None:
                    self.put[region].append((inner, element.roots[region]))
        yield from self._put_in(self.put[region], found.node)

    def _tie(
        self, role: str, ends: tuple[int, int], call: int | None, *, single: bool = True
    ) -> Visit:
        """Return a step between two places that have the same value, one of them in a tuple.

        Args:
          role: a key of `image.LEVELS`, which decides when the step acts.
          ends: the places (source, target).
          call: the index of the loop or branch, or None.
          single: whether the target may count as a value with exactly one reader.
        """
        source, target = ends
        # With `single`, the step may replace a sharding that it does not refine. Steps along loops
        # never do. Places that are added after `users` was counted have no entry there.
        if role == image.ELEMENT and target < len(self.users):
            single = single and self.users[target] == 1
        kind = pass_through(self._shape(source), single and role != image.LOOP)
        return self._numbered(replace(kind, role=role)), ends, call

    def _shape(self, value: int) -> Shape:
        if value >= self.first:
            return self.shapes[value - self.first]
        values = self.graph.values
        return values[value].type.shape

    def _numbered(self, kind: OperatorClass) -> int:
        return self.found.setdefault(kind, len(self.found))


@once_per_graph
def computations(graph: Graph, rules: Rules, results_given: bool = True) -> SweepIndex:
    """Return the steps of a graph in the order in which XLA's GSPMD sweeps them.

    Args:
      results_given: whether some result is annotated; see `index.index` for its effect.
    """
    builder = Computations(graph, rules, results_given)
    # The steps of all computations, in order, become one index with a span per computation.
    step_lists = [*builder.computations(0)]
    index = assembled(
        graph,
        list(builder.found),
        [*chain.from_iterable(step_lists)],
        [len(steps) for steps in step_lists],
        (builder.names, builder.shapes),
    )
    # XLA inlines the call in a scan's body, which changes the order of an argument's readers.
    for region, span in zip(builder.regions, index.spans, strict=True):
        _order_readers(graph, index, region, span)
    return replace(
        index,
        related=builder.related,
        late_backward=frozenset(builder.late_backward),
        tuple_groups=_together(index),
    )


def _together(made: SweepIndex) -> dict[int, tuple[int, ...]]:
    """Return, for each step between two tuples, all steps between the same two tuples.

    XLA puts the operands of a loop or a branch into a tuple. It updates the sharding of a tuple as
    a whole, so that these steps are visited together.
    """
    # A conditional has one tuple per branch, so the key has the number of the computation, too. A
    # span begins with the first step of a computation and the end of its steps.
    pairs: dict[tuple[int, int | None], list[int]] = {}
    for number, (first, end, _, _) in enumerate(made.spans):
        for step in range(first, end):
            if made.kind(step).role in (image.WHILE, image.BRANCH):
                pairs.setdefault((number, made.nodes[step]), []).append(step)
    return {step: tuple(steps) for steps in pairs.values() for step in steps}


def _order_readers(graph: Graph, made: SweepIndex, region: int, span: Span) -> None:
    """Put the readers of each argument of a scan's body in the order in which XLA lists them.

    XLA inlines the body, which was called with these arguments. When it removes the call from a
    list of readers, it puts the last reader in the call's place (`hlo_instruction.cc`,
    Users::RemoveUser). The order of readers decides which of two shardings wins.

    Args:
      region: the body.
      span: the steps and the places (positions of values) of the body's computation.
    """
    body = graph.regions[region]
    arguments = set(body.arguments) if body.kind == "scan" else set()
    # Entries 2 and 3 of a span are the first place of the computation and the end of its places.
    for place in range(span[2], span[3]):
        readers = made.reads[place]
        if len(readers) > 1 and made.order[place] in arguments:
            # The step into the tuple at the body's end is no reader inside of the inlined call.
            root = [
                (step, k)
                for step, k in readers
                if made.nodes[step] == body.node and made.kind(step).role == image.TUPLE
            ]
            inner = [reader for reader in readers if reader not in root]
            made.reads[place] = [*inner[-1:], *root, *inner[:-1]]
