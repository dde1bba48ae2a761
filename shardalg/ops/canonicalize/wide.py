"""Sums of narrow floats, made in float32 and rounded behind the last addition.

A device adds up its part of a bfloat16 or float16 sum in float32 and rounds it, as XLA does, and
the rounded parts are sent. Here the parts are sent as they were added up (`Switches.wide_sums`).
Products by groups (`ragged_dot`) stay: JAX has no public primitive of them to make anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shardalg.graph.ir import Params, Signature, ValueType
from shardalg.ops.rows import rules

WIDE = "float32"
NARROW = frozenset({"bfloat16", "float16"})
TOLD = frozenset({"dot_general", "conv_general_dilated"})
"""Contractions, which say as a parameter what type they give."""
ADDED = frozenset({"reduce_sum", "cumsum", "scatter-add", "scatter-sub"})
"""What adds numbers of one type up in it: sums, prefixes, gradients of lookups in a table."""


@dataclass(frozen=True)
class Wide:
    """What stands for a sum of narrow floats.

    Attributes:
      reads: per operand how it is made wide; None where it is read as it is.
      added, rounded: the sum in float32, and what it is behind it.
    """

    reads: tuple[Signature | None, ...]
    added: Signature
    rounded: Signature


@lru_cache(maxsize=1 << 14)
def wide_sum(signature: Signature) -> Wide | None:
    """The same sum in float32; None where the operator adds up no narrow floats.

    >>> x, y = ValueType((4, 8), "bfloat16"), ValueType((4,), "bfloat16")
    >>> wide = wide_sum(Signature("reduce_sum", (("axes", (1,)),), (x,), (y,)))
    >>> for step in (*wide.reads, wide.added, wide.rounded):
    ...     print(step.primitive, *step.operands, *step.results)
    convert_element_type bf16[4,8] f32[4,8]
    reduce_sum f32[4,8] f32[4]
    convert_element_type f32[4] bf16[4]
    """
    contracts = signature.primitive in TOLD
    if not (contracts or signature.primitive in ADDED):
        return None
    (given,) = signature.results
    if given.dtype not in NARROW or (contracts and not _reduces(signature)):
        return None
    params = dict(signature.params)
    read = signature.operands
    if contracts:
        params |= {"preferred_element_type": WIDE}
    else:
        read = tuple(ValueType(x.shape, WIDE) if x.dtype in NARROW else x for x in read)
    pairs = zip(signature.operands, read, strict=True)
    reads = tuple(None if old == new else _converted(old, new) for old, new in pairs)
    made = ValueType(given.shape, WIDE)
    added = Signature(signature.primitive, tuple(params.items()), read, (made,))
    return Wide(reads, added, _converted(made, given))


def _reduces(signature: Signature) -> bool:
    rows = rules(signature)
    return bool(rows and (rows[0].reduced or rows[0].local))


def _converted(source: ValueType, target: ValueType) -> Signature:
    params: Params = (("new_dtype", target.dtype), ("sharding", None), ("weak_type", False))
    return Signature("convert_element_type", params, (source,), (target,))
