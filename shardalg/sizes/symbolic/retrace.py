"""Comparison of a function's graph at the hints with its graph at other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from shardalg.graph.ir import Graph, Node, Signature


@dataclass(frozen=True)
class Difference:
    """A difference between the graphs of a function at two sizes that formulas do not explain.

    Attributes:
      kind: "graph" (another program, as after `if size > 64`), "size" (a named size differs from
        its formula), "constant" (a size that Python computed differs), "blocks" (a manual mesh axis
        has another size).
      node: number of the first graph's node that differs; None if there is no such node.
      source: the user's line, "" if unknown.
      text: description for error messages.
    """

    kind: str
    node: int | None
    source: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Retrace:
    """Normalised graph of a function that was traced at other sizes than the hints.

    Attributes:
      graph: the graph.
      values: the number of each named size in this trace.
    """

    graph: Graph
    values: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{name}={number}" for name, number in self.values.items())


@dataclass(frozen=True, eq=False)
class Alignment:
    """Correspondence between the values of two graphs of one function, traced at different sizes.

    Attributes:
      first: the graph at the hints.
      second: the graph at other sizes.
    """

    first: Graph
    second: Graph

    @cached_property
    def partner(self) -> tuple[int, ...]:
        """For each value of the first graph, the corresponding value of the second; -1 for none.

        Values correspond if they are the same argument, or the same result of nodes with one index.
        Both graphs come from one function, so that their nodes are in the same order.
        """
        partner_of = [-1] * len(self.first.values)
        for pair in self._pairs():
            for a, b in zip(*pair, strict=False):
                partner_of[a] = b
        constants = {i for i, _ in self.second.constants}
        for ours, theirs in zip(self.first.nodes, self.second.nodes, strict=False):
            for a, b in zip(ours.operands, theirs.operands, strict=False):
                # A literal is matched through the operators that read it, because it has no place
                # of its own.
                if partner_of[a] < 0 and b in constants:
                    partner_of[a] = b
        return tuple(partner_of)

    def _pairs(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield pairs of tuples of values that correspond: arguments, and results of each node."""
        first, second = self.first, self.second
        yield first.arguments, second.arguments
        for here, there in zip(first.regions, second.regions, strict=False):
            yield here.arguments, there.arguments
        for ours, theirs in zip(first.nodes, second.nodes, strict=False):
            yield ours.results, theirs.results

    @cached_property
    def difference(self) -> Difference | None:
        """The first node at which the graphs differ; None if only sizes and literals differ.

        Two nodes agree if they have the same operator and read corresponding values.
        """
        first_constants = {i for i, _ in self.first.constants}
        second_constants = {i for i, _ in self.second.constants}
        for ours, theirs in zip(self.first.nodes, self.second.nodes, strict=False):
            if not self._agree(ours, theirs, (first_constants, second_constants)):
                text = f"{_words(ours)} at the hints, {_words(theirs)} at other sizes"
                return Difference("graph", ours.index, ours.source, text)
        return self._leftover()

    def _agree(self, ours: Node, theirs: Node, constants: tuple[set[int], set[int]]) -> bool:
        """Return whether two nodes apply the same operator to corresponding values.

        Sizes, parameters and literals may differ. `partner` gives, for each value of the first
        graph, the corresponding value of the second one.

        Args:
          constants: the literals of the first and of the second graph.
        """
        if ours.region != theirs.region or not _same_except_numbers(
            ours.signature, theirs.signature
        ):
            return False
        partner, (shared, constant) = self.partner, constants
        for a, b in zip(ours.operands, theirs.operands, strict=True):
            # Literals may differ: sizes that Python computed are compared later, by `compare`.
            if partner[a] != b and not (a in shared and b in constant):
                return False
        return True

    def _leftover(self) -> Difference | None:
        """Return the first node that only one of the graphs has.

        The result is None if both have the same number of nodes.
        """
        counts = len(self.first.nodes), len(self.second.nodes)
        if counts[0] == counts[1]:
            return None
        # All common nodes agree, so the first additional node is the difference.
        longer = self.first if counts[0] > counts[1] else self.second
        node = longer.nodes[min(counts)]
        where = "at the hints" if longer is self.first else "at other sizes"
        message = f"{_words(node)} only {where} ({counts[0]} nodes against {counts[1]})"
        index = node.index if longer is self.first else None
        return Difference("graph", index, node.source, message)


def other_blocks(first: Graph, second: Graph, sizes: Mapping[str, int]) -> Difference | None:
    """Return the difference of two graphs that were traced at different sizes of manual mesh axes.

    Inside a `shard_map`, a trace has the shapes of blocks, so that it is valid only at these sizes.
    None if the graphs print equally.

    Args:
      first: the graph at the hints.
      second: the graph at `sizes`.
      sizes: the size of each axis in the second trace.
    """
    if str(first) == str(second):
        return None
    # Only the axes that the trace depends on are named.
    axes = ", ".join(f"{name}={sizes[name]}" for name in sorted(second.traced_axes & sizes.keys()))
    node_difference = Alignment(first, second).difference
    text = f"traced for blocks of {axes}" + (f": {node_difference}" if node_difference else "")
    return Difference("blocks", None, node_difference.source if node_difference else "", text)


@lru_cache(maxsize=65536)
def _same_except_numbers(first: Signature, second: Signature) -> bool:
    """Return whether two operators have equal primitives, item types and ranks.

    Sizes and parameters may differ.
    """
    pairs = (first.operands, second.operands), (first.results, second.results)
    if first.primitive != second.primitive or any(len(a) != len(b) for a, b in pairs):
        return False
    types = (pair for sides in pairs for pair in zip(*sides, strict=True))
    return all(len(a.shape) == len(b.shape) and a.dtype == b.dtype for a, b in types)


def _words(node: Node) -> str:
    """Return text for messages: a node's primitive, its operand types and its source line."""
    operands = ", ".join(map(str, node.signature.operands))
    return f"{node.primitive}({operands}) at {node.source or 'an unknown line'}"
