"""Pointwise operators: each result element reads the operand elements at its own index."""

from __future__ import annotations

from functools import lru_cache

from shardalg.graph.ir import Signature, ValueType
from shardalg.ops.families.build import FLOATS, Builder, access, indices, is_number, names
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
# Primitive to (operands in which the result is linear, whether they are added up); None: all.
LINEAR: dict[str, tuple[tuple[int, ...] | None, bool]] = {
    "add": (None, True),
    "add_any": (None, True),
    "sub": (None, True),
    "complex": (None, True),
    "mul": (None, False),
    "div": ((0,), False),
    "neg": ((0,), False),
    "real": ((0,), False),
    "imag": ((0,), False),
    "conj": ((0,), False),
}


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
    linear, added = linearity(signature)
    reads = tuple(operand_map(k, v.shape, result) for k, v in enumerate(signature.operands))
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, result.shape, strict=True)),
            (reads,),
            (indices(loops),) * len(signature.results),
            linear=linear,
            addends=linear if added else frozenset(),
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


def linearity(signature: Signature) -> tuple[frozenset[int], bool]:
    """Operands in which the result is linear, and whether they are added up."""
    operands = frozenset(range(len(signature.operands)))
    dtype = signature.results[0].dtype
    if signature.primitive == "select_n":
        return (operands - {0}, True) if is_number(dtype) else (frozenset(), False)
    positions, added = LINEAR.get(signature.primitive, ((), False))
    truncates = signature.primitive == "div" and dtype not in FLOATS and "complex" not in dtype
    if truncates or not is_number(dtype):
        return frozenset(), False
    return (operands if positions is None else frozenset(positions)), added


def copies(signature: Signature) -> tuple[Rule, ...]:
    """A row per pair of operand and result; loops of different pairs have different names."""
    pairs = zip(signature.operands, signature.results, strict=True)
    return tuple(_copy(signature, k, pair) for k, pair in enumerate(pairs))


def _copy(signature: Signature, k: int, pair: tuple[ValueType, ValueType]) -> Rule:
    source, target = pair
    prefix = "d" if len(signature.results) == 1 else f"v{k}d"
    loops = names(prefix, len(target.shape))
    exact = is_exact(source.dtype, target.dtype)
    return Rule(
        signature.primitive,
        tuple(zip(loops, target.shape, strict=True)),
        ((access(k, loops),),),
        (indices(loops),),
        linear=frozenset({k} if exact else ()),
    )


def is_exact(source: str, target: str) -> bool:
    """Whether a conversion is linear: the same numbers, or floats in a type that holds them all.

    >>> is_exact("bfloat16", "float32"), is_exact("bfloat16", "float16")
    (True, False)
    """
    if source == target:
        return is_number(source)
    pairs = zip(FLOATS.get(source, (99, 99)), FLOATS.get(target, (0, 0)), strict=True)
    return all(s <= t for s, t in pairs)


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
