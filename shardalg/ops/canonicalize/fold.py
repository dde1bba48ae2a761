"""Numbers known without running the program: rank-0 results of exact arithmetic on literals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite

import numpy as np

from shardalg.graph.ir import ITEM_SIZES, Graph, Node
from shardalg.ops.families.numbers import is_subnormal

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
