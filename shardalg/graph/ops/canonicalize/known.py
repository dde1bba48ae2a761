"""What is known of a graph's values without running it: numbers, vectors of them, fills.

Numbers known without running the program: rank-0 results of exact arithmetic on literals.

Nodes replaced one for one: what passes over a graph have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite

import numpy as np

from shardalg.graph.ir import ITEM_SIZES, Graph, Node
from shardalg.graph.ops.families.pointwise import is_subnormal

# Only operations that IEEE 754 and two's complement fix to the last bit: folding changes nothing.
EXACT: dict[str, Callable[..., np.generic]] = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "square": np.square,
    "sqrt": np.sqrt,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "copy": np.array,
    "convert_element_type": np.array,
}
FLOATING_ONLY = {"div": np.divide}
BY_PARTS = frozenset({"add", "add_any", "sub", "neg", "eq", "ne", "copy", "convert_element_type"})
"""What IEEE 754 fixes of complex numbers, too: their parts apart from one another."""


def folded(graph: Graph) -> dict[int, np.ndarray]:
    """Value to number, for every rank-0 result whose operands are all literal numbers.

    A size such as `1 / (B * S)` or a step `0.9 * 0.1` is then a constant that no plan moves.
    """
    known = dict(numbers(graph))
    found: dict[int, np.ndarray] = {}
    for node in graph.nodes:
        if not node.operands or node.operands[0] not in known or node.bodies:
            continue
        array = _number(node, [known.get(v) for v in node.operands])
        if array is not None:
            known[node.results[0]] = found[node.results[0]] = array
    return found


def numbers(graph: Graph) -> Iterator[tuple[int, np.ndarray]]:
    """The constants that are rank-0 numbers (no keys, no arrays)."""
    for index, array in graph.constants:
        kind = graph.values[index].type
        if not kind.shape and kind.dtype in ITEM_SIZES:
            yield index, np.asarray(array)


def _number(node: Node, operands: Sequence[object]) -> np.ndarray | None:
    kind = node.signature.results[0]
    floating = kind.dtype.startswith(("float", "bfloat"))
    table = EXACT | FLOATING_ONLY if floating else EXACT
    function = table.get(node.primitive)
    if function is None or kind.shape or any(v is None for v in operands):
        return None
    dtype, arrays = _dtype(node, operands), [np.asarray(v) for v in operands]
    if dtype is None or not _is_within(arrays[0], dtype) or not _is_told(node.primitive, arrays):
        return None
    with np.errstate(all="ignore"):
        made = np.asarray(function(*arrays)).astype(dtype)
    return None if _is_subnormal(made) else made


def _is_told(primitive: str, arrays: Sequence[np.ndarray]) -> bool:
    """Whether IEEE 754 says what an operator makes of these, in numpy and in XLA."""
    if any(array.dtype.kind == "c" for array in arrays):
        return primitive in BY_PARTS
    same = primitive in ("max", "min") and arrays[0] == arrays[1]
    is_signed_zero = same and arrays[0].tobytes() != arrays[1].tobytes()
    return not is_signed_zero and not any(map(_is_subnormal, arrays))


def _is_subnormal(array: np.ndarray) -> bool:
    """Whether XLA may put zero for it."""
    return is_subnormal(array.item(), str(array.dtype))


def _is_within(array: np.ndarray, dtype: np.dtype) -> bool:
    """Whether an integer type holds a float, cut off: beyond its ends numpy wraps, XLA stays."""
    if dtype.kind not in "iu" or array.dtype.kind in "biu":
        return True
    info, value = np.iinfo(dtype), float(array.astype(complex).real)
    return isfinite(value) and info.min <= int(value) <= info.max  # whole: floats would round ends


def _dtype(node: Node, operands: Sequence[object]) -> np.dtype | None:
    """Type of the result; bfloat16 only where an operand brings it, for numpy does not know it."""
    name = node.signature.results[0].dtype
    brought = {np.asarray(v).dtype.name: np.asarray(v).dtype for v in operands}
    try:
        return brought.get(name) or np.dtype(name)
    except TypeError:
        return None


Rewrite = Callable[[Node], Node | None]
"""What stands in place of a node; None where it stays."""


def rewritten(graph: Graph, table: Mapping[str, Rewrite]) -> Graph:
    """The graph with nodes of some primitives replaced; the same object where none is.

    Args:
      table: per primitive, the rewrite; nodes are asked in order of execution.
    """
    found = {}
    for node in graph.nodes_of(table):
        made = table[node.primitive](node)
        if made is not None:
            found[node.index] = made
    return with_nodes(graph, found)


def with_nodes(graph: Graph, found: Mapping[int, Node]) -> Graph:
    """The graph with other nodes in place of some, which no equation of JAX's binds then."""
    if not found:
        return graph
    nodes, bindings = list(graph.nodes), list(graph.bindings)
    for number, node in found.items():
        nodes[number] = node
        if bindings:
            bindings[number] = None
    return replace(graph, nodes=tuple(nodes), bindings=tuple(bindings))


@dataclass(frozen=True)
class KnownValues:
    """The known values of one graph."""

    graph: Graph

    @cached_property
    def numbers(self) -> Mapping[int, np.ndarray]:
        """Values of rank 0."""
        return dict(numbers(self.graph)) | folded(self.graph)

    @cached_property
    def arrays(self) -> Mapping[int, object]:
        """Constants of any rank."""
        return dict(self.graph.constants)

    def vector(self, value: int) -> tuple[int, ...] | None:
        """The integers of a value of rank 1, such as `[1, 0]`; None where they are not known."""
        value = self._outermost(value)
        if value in self.arrays:
            return tuple(int(n) for n in np.asarray(self.arrays[value]))
        node = self._producer(value)
        if node is None:
            return None
        if node.primitive == "broadcast_in_dim" and node.operands[0] in self.numbers:
            number = int(self.numbers[node.operands[0]])
            return (number,) * node.signature.results[0].shape[0]
        if node.primitive != "concatenate":
            return None
        parts = [part for v in node.operands if (part := self.vector(v)) is not None]
        return tuple(n for p in parts for n in p) if len(parts) == len(node.operands) else None

    def integers(self, values: Sequence[int]) -> list[int] | None:
        """The integers that scalars are; None where one of them is not known."""
        found = [n for n in map(self.number, values) if n is not None]
        return list(map(int, found)) if len(found) == len(values) else None

    def fill(self, value: int, region: int) -> int | None:
        """The number that a value read in a region repeats everywhere; None if it is none there.

        One that is made around a loop, and is a constant of it, repeats a literal number. Keys are
        none: JAX pads no array of them.
        """
        if self.graph.values[value].type.dtype.startswith("key<"):
            return None
        node = self._producer(self._outermost(value))
        if node is None or node.primitive != "broadcast_in_dim" or node.signature.operands[0].shape:
            return None
        (number,) = node.operands
        return number if node.region == region or number in self.numbers else None

    def number(self, value: int) -> np.ndarray | None:
        """What a value of rank 0 is, also inside of a loop of which it is a constant."""
        return self.numbers.get(self._outermost(value))

    def same(self, one: int, other: int) -> bool:
        """Whether two values of rank 0 are one number, bit for bit."""
        if one == other:
            return True
        pair = self.number(one), self.number(other)
        if pair[0] is None or pair[1] is None:
            return False
        return pair[0].dtype == pair[1].dtype and pair[0].tobytes() == pair[1].tobytes()

    @cached_property
    def _entering(self) -> Mapping[int, int]:
        """Arguments of bodies that are constants of their calls, and what these are outside."""
        arguments = self.graph.region_arguments
        return {tie.target: tie.source for tie in arguments if tie.kind == "const"}

    def _outermost(self, value: int) -> int:
        while value in self._entering:
            value = self._entering[value]
        return value

    def _producer(self, value: int) -> Node | None:
        producer = self.graph.producer[value]
        return None if producer is None else self.graph.nodes[producer]
