"""Contractions and reductions: loops that are in an operand and not in the result."""

from __future__ import annotations

from shardalg.graph.ir import Signature
from shardalg.ops.families.build import Builder, access, indices, is_number, letters, names
from shardalg.ops.rule import AND, ARGMAX, ARGMIN, MAX, MIN, OR, PRODUCT, SUM, USER, XOR, Rule

REDUCTIONS = {
    "reduce_sum": SUM,
    "reduce_prod": PRODUCT,
    "reduce_max": MAX,
    "reduce_min": MIN,
    "reduce_and": AND,
    "reduce_or": OR,
    "reduce_xor": XOR,
}
ARGS = {"argmax": ARGMAX, "argmin": ARGMIN}


def dot_general(signature: Signature) -> tuple[Rule, ...]:
    """`[b, m, k], [b, k, n] -> [b, m, n] sum [k]`: b batch, k contracting, m, n non-contracting."""
    (left_k, right_k), (left_b, right_b) = signature.param("dimension_numbers")
    left, right = (value.shape for value in signature.operands)
    batch, contracting = letters("b", len(left_b)), letters("k", len(left_k))
    shared = (*batch, *contracting)
    lhs = dict(zip((*left_b, *left_k), shared, strict=True))
    rhs = dict(zip((*right_b, *right_k), shared, strict=True))
    m = letters("m", len(left) - len(lhs))
    n = letters("n", len(right) - len(rhs))
    lhs |= dict(zip([d for d in range(len(left)) if d not in lhs], m, strict=True))
    rhs |= dict(zip([d for d in range(len(right)) if d not in rhs], n, strict=True))
    extents = {lhs[d]: s for d, s in enumerate(left)} | {rhs[d]: s for d, s in enumerate(right)}
    reads = (
        access(0, (lhs[d] for d in range(len(left)))),
        access(1, (rhs[d] for d in range(len(right)))),
    )
    return (
        Rule(
            signature.primitive,
            tuple((name, extents[name]) for name in (*batch, *m, *n, *contracting)),
            (reads,),
            (indices((*batch, *m, *n)),),
            linear=frozenset({0, 1}) if is_number(signature.results[0].dtype) else frozenset(),
            flops=2,
        ),
    )


def reduction(signature: Signature) -> tuple[Rule, ...]:
    """`[d0, d1] -> [d0] sum [d1]`."""
    rule = _reduced(signature, signature.param("axes"), REDUCTIONS[signature.primitive])
    return (rule,)


def arg(signature: Signature) -> tuple[Rule, ...]:
    """`[d0, d1] -> [d0] argmax [d1]`: the point is value and position, ties to the lowest."""
    return (_reduced(signature, signature.param("axes"), ARGS[signature.primitive]),)


def reduce_by(signature: Signature) -> tuple[Rule, ...]:
    """`[d0, d1], [d0, d1] -> [d0], [d0] user [d1]`: a function of the user joins tuples."""
    count = len(signature.results)
    shape, axes = signature.operands[0].shape, signature.param("dimensions")
    loops = names("d", len(shape))
    kept = indices(name for d, name in enumerate(loops) if d not in axes)
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, shape, strict=True)),
            (tuple(access(k, loops) for k in range(count)),),
            (kept,) * count,
            USER,
            access(count, ()),
            flops=1,
            family="user",
        ),
    )


def _reduced(signature: Signature, axes: tuple[int, ...], combine: str) -> Rule:
    shape = signature.operands[0].shape
    loops = names("d", len(shape))
    return Rule(
        signature.primitive,
        tuple(zip(loops, shape, strict=True)),
        ((access(0, loops),),),
        (indices(name for d, name in enumerate(loops) if d not in axes),),
        combine,
        linear=frozenset({0} if combine == SUM else ()),
        flops=1,
        family="arg" if signature.primitive in ARGS else "same",
    )


ROWS: dict[str, Builder] = {
    "dot_general": dot_general,
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(ARGS, arg),
    "reduce": reduce_by,
}
