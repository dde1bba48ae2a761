"""Values of a graph that are known before it runs, and functions that replace nodes of a graph.

Known values are rank-0 results of exact arithmetic on literals, vectors of such numbers, and fills
(arrays that repeat one number in all elements).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite

import numpy as np

from shardalg.graph.ir import ITEM_SIZES, Graph, Node
from shardalg.graph.ops.families.pointwise import is_subnormal

# Only operations that IEEE 754 and two's complement define to the last bit, so that the folded
# number equals the number that the program would compute.
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
# Operations that are exact on complex numbers too, because they act on each part separately.
BY_PARTS = frozenset({"add", "add_any", "sub", "neg", "eq", "ne", "copy", "convert_element_type"})


def computed_numbers(graph: Graph) -> dict[int, np.ndarray]:
    """Return, by value index, the number of every rank-0 result that depends on literals alone.

    A literal is a number in the function's code. A factor such as `1 / (B * S)` or `0.9 * 0.1` is
    then a constant, which needs no communication.
    """
    known_numbers = dict(numbers(graph))
    new_numbers: dict[int, np.ndarray] = {}
    for node in graph.nodes:
        # The test of the first operand is quick and excludes most nodes.
        if not node.operands or node.operands[0] not in known_numbers or node.bodies:
            continue
        array = _folded_number(node, [known_numbers.get(v) for v in node.operands])
        if array is not None:
            known_numbers[node.results[0]] = new_numbers[node.results[0]] = array
    return new_numbers


def numbers(graph: Graph) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (value, number) for the constants of rank 0, except random keys."""
    for index, array in graph.constants:
        kind = graph.values[index].type
        if not kind.shape and kind.dtype in ITEM_SIZES:
            yield index, np.asarray(array)


def _folded_number(node: Node, operands: Sequence[object]) -> np.ndarray | None:
    """Return the number that a node computes from known numbers, or None if it is not exact.

    The number is computed by numpy. It is not exact if XLA may compute another bit pattern.

    Args:
      operands: the number of each operand; None for an operand that is not known.
    """
    type_ = node.signature.results[0]
    floating = type_.dtype.startswith(("float", "bfloat"))
    exact_functions = EXACT | FLOATING_ONLY if floating else EXACT
    function = exact_functions.get(node.primitive)
    if function is None or type_.shape or any(v is None for v in operands):
        return None
    arrays = [np.asarray(v) for v in operands]
    # numpy itself has no bfloat16: this type is known only if an operand has it.
    dtypes = {array.dtype.name: array.dtype for array in arrays}
    try:
        dtype = dtypes.get(type_.dtype) or np.dtype(type_.dtype)
    except TypeError:
        return None
    if dtype.kind in "iu" and arrays[0].dtype.kind not in "biu":
        # A float beyond the range of an integer type: numpy wraps around and XLA saturates.
        info, value = np.iinfo(dtype), float(arrays[0].astype(complex).real)
        # Compare integers: the ends of a 64-bit range would be rounded as floats.
        if not isfinite(value) or not info.min <= int(value) <= info.max:
            return None
    if not _is_defined(node.primitive, arrays):
        return None
    # Overflow and division by zero have defined results in IEEE 754; they are no errors here.
    with np.errstate(all="ignore"):
        result = np.asarray(function(*arrays)).astype(dtype)
    # XLA may replace a subnormal number by zero, so such a result is not exact.
    return None if _is_subnormal(result) else result


def _is_defined(primitive: str, arrays: Sequence[np.ndarray]) -> bool:
    """Return whether numpy and XLA compute the same bits for these operands.

    They may differ for subnormal numbers, for the sign of zero, and for complex products.
    """
    # Complex numbers are exact only for operators on the parts separately, such as addition.
    if any(array.dtype.kind == "c" for array in arrays):
        return primitive in BY_PARTS
    # The maximum of -0.0 and 0.0 may have either sign.
    are_equal = primitive in ("max", "min") and arrays[0] == arrays[1]
    is_signed_zero = are_equal and arrays[0].tobytes() != arrays[1].tobytes()
    return not is_signed_zero and not any(map(_is_subnormal, arrays))


def _is_subnormal(array: np.ndarray) -> bool:
    """Return whether a number is so small (subnormal) that XLA may replace it by zero."""
    return is_subnormal(array.item(), str(array.dtype))


Rewrite = Callable[[Node], Node | None]
"""A function from a node to the node that replaces it, or to None if the node is not changed."""


def producing_node(graph: Graph, value: int) -> Node | None:
    """Return the node that computes a value; None for arguments and constants."""
    producer = graph.producer[value]
    return None if producer is None else graph.nodes[producer]


def replace_nodes(graph: Graph, table: Mapping[str, Rewrite]) -> Graph:
    """Return the graph with nodes of some primitives replaced, or the same object if none changes.

    Args:
      table: the rewrite of each primitive. Nodes are visited in order of execution.
    """
    replacements = {}
    for node in graph.nodes_of(table):
        replacement = table[node.primitive](node)
        if replacement is not None:
            replacements[node.index] = replacement
    return with_nodes(graph, replacements)


def with_nodes(graph: Graph, replacements: Mapping[int, Node]) -> Graph:
    """Return the graph with some nodes replaced; the same object if there are none.

    A replacement has no binding, because it has no equation of the traced program.
    """
    if not replacements:
        return graph
    nodes, bindings = list(graph.nodes), list(graph.bindings)
    for number, node in replacements.items():
        nodes[number] = node
        if bindings:
            bindings[number] = None
    return replace(graph, nodes=tuple(nodes), bindings=tuple(bindings))


@dataclass(frozen=True)
class KnownValues:
    """Queries of the values of one graph that are known before it runs."""

    graph: Graph

    @cached_property
    def numbers(self) -> Mapping[int, np.ndarray]:
        """By value index, the number of each rank-0 value that is known before the program runs."""
        return dict(numbers(self.graph)) | computed_numbers(self.graph)

    @cached_property
    def arrays(self) -> Mapping[int, object]:
        """By value index, the array of each constant of the graph, of any rank."""
        return dict(self.graph.constants)

    def vector(self, value: int) -> tuple[int, ...] | None:
        """Return the integers of a rank-1 value, such as `(1, 0)`.

        Return None if they are not known before the program runs.
        """
        # In a loop's body, a constant of the loop is only another name of the value outside.
        value = self._outermost(value)
        if value in self.arrays:
            return tuple(int(n) for n in np.asarray(self.arrays[value]))
        node = producing_node(self.graph, value)
        if node is None:
            return None
        if node.primitive == "broadcast_in_dim" and node.operands[0] in self.numbers:
            number = int(self.numbers[node.operands[0]])
            return (number,) * node.signature.results[0].shape[0]
        # JAX makes the index vector of `x.at[1, 0].set(y)` by a concatenation of broadcast numbers.
        if node.primitive != "concatenate":
            return None
        pieces = [part for v in node.operands if (part := self.vector(v)) is not None]
        return tuple(n for p in pieces for n in p) if len(pieces) == len(node.operands) else None

    def integers(self, values: Sequence[int]) -> list[int] | None:
        """Return the integer of each rank-0 value in `values`.

        Return None if one of them is not known before the program runs.
        """
        numbers = [n for n in map(self.number, values) if n is not None]
        return list(map(int, numbers)) if len(numbers) == len(values) else None

    def fill(self, value: int, region: int) -> int | None:
        """Return the index of the scalar that all elements of `value` repeat, or None.

        A value that is computed outside the region, as a constant of a loop, must repeat a literal:
        any other scalar is not available in the region. The result is None for keys, because JAX
        cannot pad them.

        Args:
          region: the region in which the scalar is needed.
        """
        if self.graph.values[value].type.dtype.startswith("key<"):
            return None
        node = producing_node(self.graph, self._outermost(value))
        if node is None or node.primitive != "broadcast_in_dim" or node.signature.operands[0].shape:
            return None
        (number,) = node.operands
        return number if node.region == region or number in self.numbers else None

    def number(self, value: int) -> np.ndarray | None:
        """Return the number of a rank-0 value if it is known before the program runs, or None.

        The argument of a body that receives a constant has the constant's number.
        """
        return self.numbers.get(self._outermost(value))

    def same(self, one: int, other: int) -> bool:
        """Return whether two scalars are one value, or known numbers with the same bits.

        Args:
          one, other: value indices.
        """
        if one == other:
            return True
        # Bytes are compared, because 0.0 equals -0.0 as a number, and NaN does not equal itself.
        first, second = self.number(one), self.number(other)
        if first is None or second is None:
            return False
        return first.dtype == second.dtype and first.tobytes() == second.tobytes()

    @cached_property
    def _outer_value(self) -> Mapping[int, int]:
        """For each body argument that is constant in its loop, the value outside that it equals."""
        arguments = self.graph.region_arguments
        return {tie.target: tie.source for tie in arguments if tie.kind == "const"}

    def _outermost(self, value: int) -> int:
        """Return the value outside of all loops that `value` receives as a constant.

        Return any other value unchanged.
        """
        while value in self._outer_value:
            value = self._outer_value[value]
        return value
