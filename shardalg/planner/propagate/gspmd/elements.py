"""The elements of the tuples with which loops and branches are called, as in HLO."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from shardalg.graph.ir import Graph, RegionArgument, ValueType
from shardalg.sizes.recorded import equal_key

Places = Callable[[int, tuple[int, ...]], int]
"""A function that adds a place of a tuple: (value that names it, its shape) to its number."""
LOOPS = ("scan", "while", "cond")


@dataclass(eq=False)
class Element:
    """One element of the tuple with which HLO calls a loop or a branch.

    Attributes:
      kind: "carry", "ys" (a stack that trips write), "xs" (a stack that trips read), "const",
        "branch" (a value that branches read) or "made" (a value that branches return).
      outer: the value that is put into the tuple before the call, or None.
      result: the value that is taken out of the tuple after the call, or None.
      tuples: the element's places in the tuples before the call: one place for a loop, one per
        branch with a tuple for a conditional.
      loop: the element's place in the tuple that the call returns.
      parameters, roots: per body, the element's place in the tuple that the body takes, and in the
        tuple that the body returns.
      inside: per body, the value that is taken out of the body's tuple.
      stacks: per body, the place of the whole stack, if the value inside is a slice of a stack.
      numbers: per body, the number of the body's result that becomes the element.
    """

    kind: str
    outer: int | None = None
    result: int | None = None
    tuples: list[int] | None = None
    loop: int | None = None
    parameters: dict[int, int] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)
    inside: dict[int, int] = field(default_factory=dict)
    stacks: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)

    def place_of(self, branch: int) -> int | None:
        """Return the element's place in the tuple of body `branch`; None if it is in no tuple."""
        if self.tuples is None:
            return None
        return dict(zip(self.parameters, self.tuples, strict=True))[branch]

    def related(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (place, other places with the same sharding) for the places of this element.

        A place is an entry of a tuple: before, inside or after the loop or branch. All places of a
        loop's element share one sharding, except the place in the tuple before the loop. The
        results of all branches share one sharding. The argument of a branch has the sharding that
        the tuple before this branch gives it.
        """
        # XLA copies shardings from the tuple before a conditional to the branch's parameter, and
        # never between branches: each branch has a tuple of its own.
        if self.kind == "branch":
            for number, place in enumerate(self.parameters.values()):
                before = self.outer if self.tuples is None else self.tuples[number]
                if before is not None:
                    yield place, (before,)
            return
        one = [*self.parameters.values(), *self.roots.values()]
        one += [] if self.loop is None else [self.loop]
        for place in one:
            yield place, tuple(other for other in one if other != place)


def elements(graph: Graph, place: Places) -> dict[int, list[Element]]:
    """Return, for each loop and conditional, the elements of the tuple that it takes in HLO.

    In HLO a `while` has one operand, a tuple of all values that the loop reads or writes. The order
    of a loop's elements is HLO's: carries, stacked outputs, stacked inputs, constants.

    Args:
      graph: the traced function; its region arguments tie a value outside to one in a body.
      place: creates a number for an entry of a tuple, which is no value of the graph.

    Returns:
      Lists of elements by the index of the loop's or conditional's node.
    """
    # A manual region has no tuple: XLA has its body in the computation around it.
    ties: dict[int, list[RegionArgument]] = defaultdict(list)
    for tie in graph.region_arguments:
        if not tie.is_manual:
            ties[tie.call].append(tie)
    found: dict[int, list[Element]] = {}
    for node in graph.nodes:
        # The bodies of a node have one kind, except the condition and the body of a `while`.
        kinds = {graph.regions[body].kind for body in node.bodies}
        if "cond" in kinds:
            found[node.index] = [*_of_branches(graph, node.index, place)]
        elif kinds & {"scan", "while"}:
            loop = _Loop(graph, node.index, place)
            # Several ties make one element: a carry has an initial value, a next and a final one.
            for tie in ties[node.index]:
                loop.read(tie)
            found[node.index] = loop.elements()
    return found


ORDER = ("carry", "ys", "xs", "const")
"""JAX lowers a scan to a `while` whose tuple has its elements in this order."""


@dataclass(eq=False)
class _Loop:
    """The elements of the tuple that a loop carries in HLO, collected from its region arguments.

    An element is a carry, a stack that the loop writes or reads, or a constant of the loop.

    Attributes:
      carried: the element of each carry; the key is the body's argument for it.
      constants: the element of each constant; the key is the value outside of the loop.
      last: the carry whose result of the body was read last.
      made: how many results of the body were read so far.
    """

    graph: Graph
    call: int
    place: Places

    def __post_init__(self) -> None:
        """Set the loop's bodies, a dictionary from body arguments to bodies, and empty tables.

        If the loop is a `while`, its condition is the first of the bodies, and its body is the
        last.
        """
        graph, bodies = self.graph, self.graph.nodes[self.call].bodies
        self.bodies = bodies
        self.body = bodies[-1]
        self.regions = {v: body for body in bodies for v in graph.regions[body].arguments}
        self.carried: dict[int, Element] = {}
        self.constants: dict[int, Element] = {}
        self.found: list[Element] = []
        self.last: Element | None = None
        self.made = 0

    def read(self, tie: RegionArgument) -> None:
        """Add one region argument (a value outside and its value in the body) to the elements.

        The results of the body are numbered in the order of their region arguments: carries first,
        then stacked outputs.
        """
        match tie.kind:
            case "init":
                element = Element("carry", outer=tie.source, inside={self.body: tie.target})
                self.carried[tie.target] = element
                self.found.append(element)
            case "carry":
                self.last = self.carried[tie.target]
                self.last.numbers[self.body] = self.made
                self.made += 1
            case "result":
                # The region argument of a carry's final value follows that of the carry.
                assert self.last is not None
                self.last.result = tie.target
            case "xs":
                self.found.append(Element("xs", outer=tie.source, inside={self.body: tie.target}))
            case "ys":
                element = Element("ys", result=tie.target, numbers={self.body: self.made})
                self.made += 1
                self.found.append(element)
            case "const":
                # Body and condition may read one value: the tuple has it once. The condition also
                # reads the carries so.
                found = self.carried.get(tie.source) or self.constants.get(tie.source)
                if found is None:
                    found = self.constants[tie.source] = Element("const", outer=tie.source)
                    self.found.append(found)
                found.inside[self.regions[tie.target]] = tie.target
            case kind:
                raise AssertionError(f"a loop has no region argument of kind {kind}")

    def elements(self) -> list[Element]:
        """Return the elements that are not scalars, in HLO's order, and give each its places.

        A place is an entry of one of the loop's tuples, numbered like a value: before the `while`
        (`tuples`), after it (`loop`), as a parameter of its bodies (`parameters`), and at the end
        of its body (`roots`). A body reads or writes one layer of "xs" and "ys", so the whole stack
        has a place in the body, too (`stacks`).
        """
        tensors = []
        for element in sorted(self.found, key=lambda e: ORDER.index(e.kind)):
            # A place is named after the value outside of the loop that it belongs to.
            value = element.outer if element.outer is not None else element.result
            assert value is not None  # a stack that is written has a result
            shape = self.graph.values[value].type.shape
            # A scalar has no dimension to shard.
            if not shape:
                continue
            element.tuples = [self.place(value, shape)]
            element.loop = self.place(value, shape)
            for body in self.bodies:
                element.parameters[body] = self.place(value, shape)
            element.roots[self.body] = self.place(value, shape)
            if element.kind in ("xs", "ys"):
                element.stacks[self.body] = self.place(value, shape)
            tensors.append(element)
        return tensors


def _of_branches(graph: Graph, call: int, place: Places) -> Iterator[Element]:
    """Yield the elements of a conditional: operands that some branch uses, then results.

    In HLO each branch takes one tuple of operands and returns one tuple of results. An element has
    a place (a number like that of a value) in each of these tuples. Scalars are left out, because
    they have no dimension to shard.

    Args:
      call: index of the conditional's node.
      place: creates a place for a value of a shape.
    """
    node = graph.nodes[call]
    # Operand 0 selects the branch, so that no branch has it in its tuple.
    for position, outer in enumerate(node.operands[1:]):
        shape = graph.values[outer].type.shape
        element = Element("branch", outer=outer)
        for body in node.bodies:
            value = graph.regions[body].arguments[position]
            # XLA drops a branch's unused operands from its tuple. An operand is used, too, if the
            # branch only returns it.
            if shape and (graph.users[value] or value in graph.regions[body].results):
                element.inside[body] = value
        if element.inside:
            # Each branch has a tuple of its own, so one operand has a place in several tuples.
            element.tuples = []
            for body in element.inside:
                element.tuples.append(place(outer, shape))
                element.parameters[body] = place(outer, shape)
            yield element
    for position, result in enumerate(node.results):
        shape = graph.values[result].type.shape
        if shape:
            # A result has a place after the conditional and at the end of every branch.
            element = Element("made", result=result, loop=place(result, shape))
            for body in node.bodies:
                element.roots[body] = place(result, shape)
                element.numbers[body] = position
            yield element


Literal = tuple[float, ValueType]
"""A number, and the type of the tensor that is full of it."""


def literals(graph: Graph) -> dict[int, dict[Literal, list[int]]]:
    """Return the tensors that are full of one number: broadcasts of a literal scalar.

    XLA has equal tensors of one computation only once, so they share a sharding.

    Returns:
      Per region (a function or loop body), lists of value indices by (number, type of the tensor).
    """
    numbers = _numbers(graph)
    found: dict[int, dict[Literal, list[int]]] = defaultdict(dict)
    for node in graph.nodes_of(("broadcast_in_dim",)):
        if node.operands[0] in numbers:
            value = node.results[0]
            key = (numbers[node.operands[0]], graph.values[value].type)
            group = found[node.region]
            # `equal_key` returns the key of the group that XLA takes for the same number.
            group.setdefault(equal_key(group, key), []).append(value)
    return found


def read_literals(graph: Graph) -> dict[int, list[Literal]]:
    """Return, by node index, the literal numbers that each elementwise node reads.

    In `x + 1`, XLA makes a tensor of ones with the shape of `x`. A number is therefore given as
    (number, type of this tensor).
    """
    numbers = _numbers(graph)
    found: dict[int, list[Literal]] = {}
    for node in graph.nodes:
        shape = graph.values[node.results[0]].type.shape if node.results else ()
        # Scalars need no tensor; loops, calls and operators of several results read none.
        if not shape or node.bodies or len(node.results) > 1:
            continue
        tensors = [
            (numbers[v], ValueType(shape, graph.values[v].type.dtype))
            for v in node.operands
            if v in numbers
        ]
        # XLA expands `logistic` to 1 / (1 + exp(-x)), which reads a tensor of ones.
        if node.primitive == "logistic":
            tensors.append((1.0, graph.values[node.results[0]].type))
        if tensors:
            found[node.index] = tensors
    return found


def _numbers(graph: Graph) -> dict[int, float]:
    """Return the scalar constants of a graph as numbers, by value."""
    # NumPy gives bfloat16 and the float8 types the kind "V".
    scalars = {v: np.asarray(array) for v, array in graph.constants if np.ndim(array) == 0}
    return {v: float(array) for v, array in scalars.items() if array.dtype.kind in "fiubV"}
