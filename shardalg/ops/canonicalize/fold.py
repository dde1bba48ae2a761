"""Numbers known without running the program: rank-0 results of exact arithmetic on literals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shardalg.graph.ir import ITEM_SIZES, Graph, Node

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
    dtype = _dtype(node, operands)
    if dtype is None or not _is_within(operands[0], dtype):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*map(np.asarray, operands))).astype(dtype)


def _is_within(number: object, dtype: np.dtype) -> bool:
    """Whether an integer type holds a float, cut off: beyond its ends numpy wraps, XLA stays."""
    array = np.asarray(number)
    if dtype.kind not in "iu" or array.dtype.kind in "biu":
        return True
    info, value = np.iinfo(dtype), array.astype(complex).real
    return bool(info.min <= np.trunc(value) <= info.max)


def _dtype(node: Node, operands: Sequence[object]) -> np.dtype | None:
    """Type of the result; bfloat16 only where an operand brings it, for numpy does not know it."""
    name = node.signature.results[0].dtype
    brought = {np.asarray(v).dtype.name: np.asarray(v).dtype for v in operands}
    try:
        return brought.get(name) or np.dtype(name)
    except TypeError:
        return None
