"""The order in which XLA visits the instructions of a computation, tuples of loops among them."""

from __future__ import annotations

from collections.abc import Iterator

from shardalg.graph.ir import Graph, Node
from shardalg.planner.propagate.gspmd.elements import Element, Places, elements

Key = tuple[str, int, int]
"""An instruction: (kind, the number of its node, value or region, the number of a result).

The kinds are "node", "call", "enter" (an argument of a body), "leave" (a result of a call), "tuple"
(of a body's results), "part" (one of these results) and "root". Only "part" has a last number.
"""


class Instructions:
    """The instructions of a graph in XLA's order (`HloComputation::MakeInstructionPostOrder`).

    XLA has a computation for the function and for each body of a loop or branch. A loop or branch
    receives and returns a tuple in XLA; the graph has no tuples.

    Attributes:
      elements: for each loop or branch, by node index, the elements of its tuple.
      entering: for each argument of a body, its element of the tuple, and the body's index.
      leaving: for each result of a loop or branch, its node index, and the element of the tuple.
    """

    graph: Graph
    elements: dict[int, list[Element]]
    entering: dict[int, tuple[Element, int]]
    leaving: dict[int, tuple[int, Element]]

    def find_elements(self, place: Places) -> None:
        """Set the elements of the tuples with which loops and branches are called.

        Args:
          place: adds an entry of a tuple and returns its number.
        """
        self.elements = elements(self.graph, place)
        # In HLO, a body's argument and a call's result are instructions that read a tuple. So each
        # of these values is found with its element.
        self.entering = {
            value: (element, region)
            for found in self.elements.values()
            for element in found
            for region, value in element.inside.items()
        }
        self.leaving = {
            element.result: (call, element)
            for call, found in self.elements.items()
            for element in found
            if element.result is not None
        }

    def in_order(self, region: int) -> Iterator[Key]:
        """Yield a region's instructions, operands before readers.

        The order goes down from the results; instructions that no result needs come last.
        """
        # The root is on top of the stack, so that everything it needs comes first.
        # An explicit stack, because the depth of a graph exceeds Python's limit of recursion.
        nodes: list[Key] = [self._made_by(node) for node in self._nodes(region)]
        done: set[Key] = set()
        opened: set[Key] = set()
        stack: list[Key] = [*reversed(nodes), ("root", region, 0)]
        while stack:
            key = stack[-1]
            is_new = key not in opened
            missing = [k for k in self._before(key) if k not in done] if is_new else []
            opened.add(key)
            # An instruction that was opened earlier has its operands in order by now. It may be on
            # the stack several times, once for each reader.
            if key in done or not missing:
                stack.pop()
                if key not in done:
                    done.add(key)
                    yield key
            # The first operand is on top of the stack, so it comes first.
            stack += reversed(missing)

    def _returns_tuple(self, region: int) -> bool:
        """Return whether XLA returns a body's results in a tuple: those of a scan with several."""
        found = self.graph.regions[region]
        return found.kind == "scan" and len(found.results) > 1

    def _is_condition(self, region: int) -> bool:
        """Return whether a region is the condition of a while loop."""
        found = self.graph.regions[region]
        node = self.graph.nodes[found.node] if found.node is not None else None
        return node is not None and node.primitive == "while" and node.bodies[0] == region

    def _nodes(self, region: int) -> Iterator[int]:
        """Yield a computation's nodes and the nodes of its manual regions."""
        for node in self.graph.regions[region].nodes:
            yield node
            # Loops and branches, which have an entry in `elements`, are computations of their own.
            if node not in self.elements:
                for body in self.graph.nodes[node].bodies:
                    yield from self._nodes(body)

    def _made_by(self, node: int) -> Key:
        """Return the key of the instruction that XLA has for a node.

        The kind in the key is "call" if the node is a loop or branch with a tuple of operands, and
        "node" for all other operators.
        """
        return ("call" if node in self.elements else "node", node, 0)

    def _key(self, value: int) -> Key | None:
        """Return the XLA instruction that computes a value; None for an argument or a constant.

        The result of a loop or branch is taken out of its tuple by a "leave", an argument of a body
        by an "enter".
        """
        if value in self.leaving:
            return "leave", value, 0
        if value in self.entering:
            return "enter", value, 0
        # A number beyond those of the graph's values is a place in a tuple, which no node makes.
        node = self.graph.producer[value] if value < len(self.graph.values) else None
        return None if node is None else self._made_by(node)

    def _keys(self, values: tuple[int, ...]) -> list[Key]:
        """Return the instructions that compute some values; arguments and constants have none."""
        return [key for value in values if (key := self._key(value)) is not None]

    def _before(self, key: Key) -> list[Key]:
        """Return the instructions whose results an instruction reads.

        An instruction has a kind. A "node" is an operator, and a "call" a loop or branch. "leave"
        takes a value out of the tuple that a call returns. "tuple" has the results of an inlined
        body, "part" takes one of them out, and "root" is the tuple that a body returns.
        """
        # A key is (kind, number of the node, value or region, number among several).
        kind, number, _ = key
        graph = self.graph
        if kind == "node":
            # A manual region is part of the computation around it, so that the node that has the
            # region reads the region's results.
            node = graph.nodes[number]
            inside = [r for body in node.bodies for r in graph.regions[body].results]
            return self._keys((*read(node), *inside))
        if kind == "call":
            # A loop reads the initial values of its tuple.
            outer = (e.outer for e in self.elements[number] if e.outer is not None)
            return self._keys(tuple(outer))
        if kind == "leave":
            return [("call", self.leaving[number][0], 0)]
        if kind == "tuple":
            return self._keys(graph.regions[number].results)
        if kind == "part":
            return [("tuple", number, 0)]
        return self._before_root(number) if kind == "root" else []

    def _before_root(self, region: int) -> list[Key]:
        """Return the instructions that the last tuple of a computation reads.

        The tuple has the results of the body, and those arguments of the body that are elements of
        its tuple, because an HLO `while` returns also what it only reads. An instruction is (kind,
        number, number of a result), as `Key` explains.
        """
        results = self.graph.regions[region].results
        # A body with a tuple of its own is an inlined call, whose results are taken out one by one.
        if self._returns_tuple(region):
            made = [("part", region, k) for k in range(len(results))]
        else:
            made = self._keys(results)
        entered = [("enter", v, 0) for v in self.graph.regions[region].arguments]
        return [*made, *(key for key in entered if key[1] in self.entering)]


def read(node: Node) -> tuple[int, ...]:
    """Return a node's operands in XLA's order: a select reads its true side first."""
    if node.primitive == "select_n" and len(node.operands) == 3:
        which, false, true = node.operands
        return which, true, false
    return node.operands
