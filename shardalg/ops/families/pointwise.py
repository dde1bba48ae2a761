"""Elementwise operators: each result element reads the operand elements at its own index."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from shardalg.graph.ir import Signature, ValueType
from shardalg.ops.families.building import (
    FLOATS,
    Builder,
    access,
    indices,
    is_number,
    names,
    scaling,
)
from shardalg.ops.rule import Access, Rule

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
"""Linear in all operands together."""
LINEAR = {"mul": (0, 1), "div": (0,), "neg": (0,), "real": (0,), "imag": (0,), "conj": (0,)}
"""Operands in each of which the result is linear alone."""
SCALING = frozenset({"mul", "div"})


def operand_map(operand: int, shape: tuple[int, ...], result: ValueType) -> Access:
    """Index of an operand that is broadcast: rank 0 has none, size 1 against n is always 0.

    >>> print(operand_map(0, (6, 1), ValueType((6, 7), "float32")))
    [d0, 0]
    """
    if not shape:
        return access(operand, ())
    pairs = zip(names("d", len(shape)), shape, result.shape, strict=True)
    return access(operand, (0 if n == 1 and n != size else name for name, n, size in pairs))


def pointwise(signature: Signature) -> tuple[Rule, ...]:
    """One row for all results: `[d0, d1], [d0, d1] -> [d0, d1]`."""
    result = signature.results[0]
    loops = names("d", len(result.shape))
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
    """Operands that are repeated along a size-1 dimension, with the shape that they repeat to.

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
    """Operands in which the result is linear, and those of them that are added up, or scaled."""
    primitive, dtype = signature.primitive, signature.results[0].dtype
    truncates = primitive == "div" and dtype not in FLOATS and "complex" not in dtype
    if truncates or not is_number(dtype):
        return {}
    if primitive in SCALING:
        return scaling(signature, *LINEAR[primitive])
    if primitive in ADDED or primitive == "select_n":
        added = frozenset(range(primitive == "select_n", len(signature.operands)))
        return {"linear": added, "addends": added}
    return {"linear": frozenset(LINEAR.get(primitive, ()))}


def copies(signature: Signature) -> tuple[Rule, ...]:
    """A row per pair of operand and result; loops of different pairs have different names."""
    pairs = zip(signature.operands, signature.results, strict=True)
    return tuple(_copy(signature, k, pair) for k, pair in enumerate(pairs))


def _copy(signature: Signature, k: int, pair: tuple[ValueType, ValueType]) -> Rule:
    source, target = pair
    prefix = "d" if len(signature.results) == 1 else f"v{k}d"
    loops = names(prefix, len(target.shape))
    wider = _is_wider(source.dtype, target.dtype)
    same = source.dtype == target.dtype and is_number(source.dtype)
    return Rule(
        signature.primitive,
        tuple(zip(loops, target.shape, strict=True)),
        ((access(k, loops),),),
        (indices(loops),),
        linear=frozenset({k} if same or wider else ()),
        scaled=frozenset({k} if wider else ()),
    )


def _is_wider(source: str, target: str) -> bool:
    """Whether a type has all numbers of another floating type, and more of them."""
    if source not in FLOATS or target not in FLOATS or source == target:
        return False
    return all(wide >= own for wide, own in zip(FLOATS[target], FLOATS[source], strict=True))


def bitcast(signature: Signature) -> tuple[Rule, ...]:
    """Pointwise, not linear; of unequal widths the narrow side has a trailing whole dimension."""
    (source,), (target,) = signature.operands, signature.results
    rank = min(len(source.shape), len(target.shape))
    loops = [(f"d{k}", n) for k, n in enumerate(source.shape[:rank])]
    plain = [name for name, _ in loops]
    extra = [("w", n) for shape in (source.shape, target.shape) for n in shape[rank:]]
    maps = [[*plain, *("w" for _ in v.shape[rank:])] for v in (source, target)]
    return (
        Rule(
            signature.primitive,
            (*loops, *extra),
            ((access(0, maps[0]),),),
            (indices(maps[1]),),
            whole=frozenset(name for name, _ in extra),
        ),
    )


ROWS: dict[str, Builder] = {
    **dict.fromkeys(COPIES.split(), copies),
    **dict.fromkeys((UNARY + MANY).split(), pointwise),
    "bitcast_convert_type": bitcast,
}
