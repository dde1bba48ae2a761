"""Sums of narrow floats, made in float32 and rounded behind the last addition.

A device adds up its part of a bfloat16 or float16 sum in float32 and rounds it, as XLA does, and
the rounded parts are sent. Here the parts are sent as they were added up (`Switches.wide_sums`).
"""

from __future__ import annotations

from functools import lru_cache

from shardalg.graph.ir import Params, Signature, ValueType
from shardalg.ops.rows import rules

WIDE = "float32"
NARROW = frozenset({"bfloat16", "float16"})
TOLD = frozenset({"dot_general", "conv_general_dilated"})
"""Contractions, which say as a parameter what type they give."""


@lru_cache(maxsize=1 << 14)
def wide_steps(signature: Signature) -> tuple[Signature, ...]:
    """What stands for a sum of narrow floats, each step on the result of the one before.

    Empty where the operator is none: products, convolutions and sums over dimensions are.

    >>> x, y = ValueType((4, 8), "bfloat16"), ValueType((4,), "bfloat16")
    >>> for step in wide_steps(Signature("reduce_sum", (("axes", (1,)),), (x,), (y,))):
    ...     print(step.primitive, *step.operands, *step.results)
    convert_element_type bf16[4,8] f32[4,8]
    reduce_sum f32[4,8] f32[4]
    convert_element_type f32[4] bf16[4]
    """
    contracts = signature.primitive in TOLD
    if not (contracts or signature.primitive == "reduce_sum"):
        return ()
    (rule,), (given,) = rules(signature) or (), signature.results
    if given.dtype not in NARROW or not rule.reduced + tuple(rule.local):
        return ()
    made = ValueType(given.shape, WIDE)
    if contracts:
        params = {**dict(signature.params), "preferred_element_type": WIDE}
        told = Signature(signature.primitive, tuple(params.items()), signature.operands, (made,))
        return told, _converted(made, given)
    (read,) = signature.operands
    wide = ValueType(read.shape, WIDE)
    added = Signature(signature.primitive, signature.params, (wide,), (made,))
    return _converted(read, wide), added, _converted(made, given)


def _converted(source: ValueType, target: ValueType) -> Signature:
    params: Params = (("new_dtype", target.dtype), ("weak_type", False), ("sharding", None))
    return Signature("convert_element_type", params, (source,), (target,))
