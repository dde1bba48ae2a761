"""Rows of elementwise operators: each result element reads the operand elements at its own index.

`at_numbers` evaluates elementwise operators and layouts on known numbers. If padding of the
operands has known numbers, padding of the result has a known number too. Only results without
rounding are returned: compilers may compute the others with more or fewer bits.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from shardalg.graph.ir import Signature, ValueType
from shardalg.graph.ops.families.building import (
    FLOATS,
    Builder,
    access,
    indices,
    is_number,
    names,
    scaling,
)
from shardalg.graph.ops.rule import Access, Rule

COPIES = """
annotate convert_element_type copy layout_constraint name optimization_barrier preduced
reduced_vary_cast_p stop_gradient vary_unreduced_cast_p xla_metadata_value
"""
UNARY = """
abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil clz conj cos cosh digamma erf
erf_inv erfc exp exp2 expm1 floor imag integer_pow is_finite lgamma log log1p log2 logistic neg
not one_minus_square population_count real reduce_precision round rsqrt sign sin sinh sqrt square
tan tanh
"""
MANY = """
add add_any and atan2 clamp complex div eq eq_to ge gt igamma igamma_grad_a igammac le le_to lt
lt_to max min mul mulhi ne nextafter or philox2x32 philox4x32 polygamma pow
regularized_incomplete_beta rem select_n shift_left shift_right_arithmetic shift_right_logical sub
threefry2x32 threefry4x32 xor zeta
"""
ADDED = frozenset("add add_any sub complex".split())
"""Operators that are linear in all operands together: all of these may be partial sums."""
LINEAR = {"mul": (0, 1), "div": (0,), "neg": (0,), "real": (0,), "imag": (0,), "conj": (0,)}
"""By operator, the operands in each of which the result is linear if the others are fixed.

Only one of them may be a partial sum.
"""
SCALING = frozenset({"mul", "div"})


def operand_map(operand: int, shape: tuple[int, ...], result: ValueType) -> Access:
    """Return the indices at which an elementwise operator reads an operand that may be broadcast.

    A repeated dimension of size 1 has the index 0. An operand of rank 0 has no index.

    Args:
      operand: its position.
      shape: its shape.
      result: the type of the result.

    >>> print(operand_map(0, (6, 1), ValueType((6, 7), "float32")))
    [d0, 0]
    """
    if not shape:
        return access(operand, ())
    pairs = zip(names("d", len(shape)), shape, result.shape, strict=True)
    return access(operand, (0 if n == 1 and n != size else name for name, n, size in pairs))


def pointwise(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of an elementwise operator, such as `[d0, d1], [d0, d1] -> [d0, d1]`.

    A row names the operator's loops, here d0 and d1, and per dimension of each tensor the loop that
    indexes it. One row describes all results.
    """
    result = signature.results[0]
    loops = names("d", len(result.shape))
    # An operand may be a scalar, or have size 1 where the result is longer (`operand_map`).
    reads = tuple(operand_map(k, v.shape, result) for k, v in enumerate(signature.operands))
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, result.shape, strict=True)),
            (reads,),
            (indices(loops),) * len(signature.results),
            **linearity(signature),
            flops=1,
        ),
    )


@lru_cache(maxsize=65536)
def broadcast_operands(signature: Signature) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return (position, repeated shape) of each operand that an elementwise operator broadcasts.

    Operands of rank 0 are left out.

    >>> x, y = ValueType((4, 8), "float32"), ValueType((4, 1), "float32")
    >>> broadcast_operands(Signature("sub", (), (x, y), (x,)))
    ((1, (4, 8)),)
    """
    if ROWS.get(signature.primitive) is not pointwise:
        return ()
    shape = signature.results[0].shape
    shapes = [value.shape for value in signature.operands]
    return tuple((k, shape) for k, own in enumerate(shapes) if own and own != shape)


def linearity(signature: Signature) -> dict[str, Any]:
    """Return fields of the `Rule` of an elementwise operator that say how it treats partial sums.

    They are `linear` (operands that may be a partial sum), `addends` (operands that must be partial
    sums together) and `scaled`, as arguments of `Rule`.
    """
    primitive, dtype = signature.primitive, signature.results[0].dtype
    # An integer quotient is truncated: 1//2 + 1//2 is not (1 + 1)//2.
    truncates = primitive == "div" and dtype not in FLOATS and "complex" not in dtype
    if truncates or not is_number(dtype):
        return {}
    if primitive in SCALING:
        return scaling(signature, *LINEAR[primitive])
    if primitive in ADDED or primitive == "select_n":
        # Operand 0 of `select_n` selects the case, so only the cases may be partial sums.
        added = frozenset(range(primitive == "select_n", len(signature.operands)))
        return {"linear": added, "addends": added}
    return {"linear": frozenset(LINEAR.get(primitive, ()))}


def copies(signature: Signature) -> tuple[Rule, ...]:
    """Return the rows of an operator that copies each operand to the result of the same position.

    Row k describes operand k and result k. Different rows have different loops.
    """
    rows = []
    for k, (source, target) in enumerate(zip(signature.operands, signature.results, strict=True)):
        # Several results need loops of their own, with distinct names.
        prefix = "d" if len(signature.results) == 1 else f"v{k}d"
        loops = names(prefix, len(target.shape))
        same_type = source.dtype == target.dtype and is_number(source.dtype)
        # `FLOATS` has the bits of precision and of exponent of each type. A type with at least as
        # many of both has all numbers of the narrow one.
        is_wider = (
            source.dtype != target.dtype
            and source.dtype in FLOATS
            and target.dtype in FLOATS
            and all(a >= b for a, b in zip(FLOATS[target.dtype], FLOATS[source.dtype], strict=True))
        )
        rows.append(
            Rule(
                signature.primitive,
                tuple(zip(loops, target.shape, strict=True)),
                ((access(k, loops),),),
                (indices(loops),),
                # The copy of a sum is the sum of copies if no number is rounded, so a partial sum
                # may pass.
                linear=frozenset({k} if same_type or is_wider else ()),
                scaled=frozenset({k} if is_wider else ()),
            )
        )
    return tuple(rows)


def bitcast(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a `bitcast_convert_type`, such as `[d0] -> [d0, w]`.

    If the types differ in width, the narrow one has a last dimension with the parts of an element,
    which is whole. The row is not linear: bits of a sum are not the sum of bits.
    """
    (source,), (target,) = signature.operands, signature.results
    # The tensor of lower rank has the wide type; its dimensions are those that both have.
    rank = min(len(source.shape), len(target.shape))
    loops = [(f"d{k}", n) for k, n in enumerate(source.shape[:rank])]
    shared_loops = [name for name, _ in loops]
    part_loops = [("w", n) for shape in (source.shape, target.shape) for n in shape[rank:]]
    loops_of_tensor = [[*shared_loops, *("w" for _ in v.shape[rank:])] for v in (source, target)]
    return (
        Rule(
            signature.primitive,
            (*loops, *part_loops),
            ((access(0, loops_of_tensor[0]),),),
            (indices(loops_of_tensor[1]),),
            whole=frozenset(name for name, _ in part_loops),
        ),
    )


ROWS: dict[str, Builder] = {
    **dict.fromkeys(COPIES.split(), copies),
    **dict.fromkeys((UNARY + MANY).split(), pointwise),
    "bitcast_convert_type": bitcast,
}


Number = int | float | bool
INF = math.inf
MOVES = "broadcast_in_dim reshape squeeze transpose"
"""Operators that only move elements, so that one number in all elements stays this number."""
SAME = frozenset((COPIES + MOVES).split()) - {"convert_element_type"}
ODD = "asin asinh atan atanh cbrt erf erf_inv expm1 log1p sin sinh sqrt tan tanh"
"""Functions that are 0 at 0."""
# These functions are approximated, so that their results are certain only at these points.
POINTS: dict[str, dict[float, float]] = {
    **{name: {0: 0} for name in ODD.split()},
    "cos": {0: 1},
    "exp": {0: 1, -INF: 0},
    "exp2": {0: 1, -INF: 0},
    "logistic": {0: 0.5, -INF: 0, INF: 1},
}
PRODUCTS = ("mul", "square")
EXACT: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "add": operator.add,
    "add_any": operator.add,
    "clamp": lambda low, x, high: min(max(x, low), high),
    "eq": operator.eq,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "max": max,
    "min": min,
    "mul": operator.mul,
    "ne": operator.ne,
    "neg": operator.neg,
    "select_n": lambda which, *cases: cases[which],
    "sign": lambda x: (x > 0) - (x < 0),
    "square": lambda x: x * x,
    "sub": operator.sub,
}


def at_numbers(signature: Signature, numbers: Mapping[int, Number]) -> Number | None:
    """Return the result of an elementwise operator or a layout for known operand elements.

    None if the result is unknown, or if it could be rounded.

    Args:
      numbers: the number of each operand that the result depends on.

    >>> from shardalg.graph.ir import ValueType
    >>> x = ValueType((4,), "float32")
    >>> at_numbers(Signature("mul", (), (x, x), (x,)), {0: 0.0, 1: 0.5})
    0.0
    >>> at_numbers(Signature("exp", (), (x,), (x,)), {0: 0.5}) is None
    True
    """
    # These operators only move elements, so that one known number stays the same.
    if signature.primitive in SAME:
        return next(iter(numbers.values())) if len(numbers) == 1 else None
    types = {signature.operands[k].dtype for k in numbers} | {signature.results[0].dtype}
    if len(numbers) != len(signature.operands) or any(t.startswith("complex") for t in types):
        return None
    operand_numbers = [numbers[k] for k in sorted(numbers)]
    # Python's comparisons with NaN differ from JAX's.
    if any(map(math.isnan, operand_numbers)):
        return None
    # Some compilers, and XLA on a CPU, replace subnormal numbers by 0.
    if any(is_subnormal(numbers[k], signature.operands[k].dtype) for k in numbers):
        return None
    # A case number out of range is undefined in JAX. Python counts negative ones from the end.
    if signature.primitive == "select_n" and operand_numbers[0] not in range(
        len(operand_numbers) - 1
    ):
        return None
    dtype = signature.results[0].dtype
    if signature.primitive == "convert_element_type":
        # All floating-point types have 0, 1 and infinities; all types have 0 and 1.
        number = operand_numbers[0]
        if dtype in FLOATS:
            return float(number) if number in (0, 1, INF, -INF) else None
        if number not in (0, 1):
            return None
        return bool(number) if dtype == "bool" else int(number)
    if signature.primitive == "integer_pow":
        return (
            operand_numbers[0]
            if operand_numbers[0] in (0, 1) and signature.param("y") > 0
            else None
        )
    if signature.primitive in POINTS:
        return POINTS[signature.primitive].get(operand_numbers[0])
    if signature.primitive not in EXACT:
        return None
    result = EXACT[signature.primitive](*operand_numbers)
    underflows = signature.primitive in PRODUCTS and not result and 0 not in operand_numbers
    if underflows:
        return None
    if dtype == "bool":
        return bool(result)
    if dtype not in FLOATS:
        # The type is tested first, because `in` iterates over a range to find a float.
        return result if isinstance(result, int) and result in integers(dtype) else None
    # Any other result could be rounded by a type with few bits. 0, 1 and the operands themselves,
    # also negated, are exact in the result's type.
    unrounded = {0.0, 1.0, -1.0, *operand_numbers, *(-number for number in operand_numbers)}
    return float(result) if result in unrounded else None


def is_subnormal(number: Number, dtype: str) -> bool:
    """Return whether a number is subnormal in a floating-point type.

    >>> is_subnormal(1e-40, "float32"), is_subnormal(1e-40, "float64")
    (True, False)
    """
    if dtype not in FLOATS or not number:
        return False
    _, exponent = FLOATS[dtype]
    return abs(number) < math.ldexp(1, 2 - 2 ** (exponent - 1))


def integers(dtype: str) -> range:
    """Return the integers that a type represents, as a range; an empty range for non-integer types.

    >>> integers("int8"), integers("float32")
    (range(-128, 128), range(0, 0))
    """
    if not dtype.startswith(("int", "uint")):
        return range(0)
    bits = int(dtype.lstrip("uint"))
    # Signed types represent one more negative number than positive ones (two's complement).
    return (
        range(2**bits) if dtype.startswith("uint") else range(-(2 ** (bits - 1)), 2 ** (bits - 1))
    )
