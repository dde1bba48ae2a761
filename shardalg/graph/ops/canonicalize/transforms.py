"""A Fourier transform of several dimensions in stages: some dimensions first, then the others.

A transform is separable: it is a transform of each of its dimensions after another, in any order,
except that the last dimension of a real transform is the first stage, and the last dimension of
an inverse real transform is the last stage.

Sums of narrow floats, made in float32 and rounded behind the last addition.

A device adds up its part of a bfloat16 or float16 sum in float32 and rounds it, as XLA does, and
the rounded parts are sent. Here the parts are sent as they were added up (`Switches.wide_sums`).
Products by groups (`ragged_dot`) stay: JAX has no public primitive of them to make anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

from shardalg.graph.ir import Params, Signature, ValueType
from shardalg.graph.ops.rows import rules

Order = tuple[tuple[int, ...], ...]
"""The dimensions of each stage."""
FORWARD, INVERSE, REAL, INVERSE_REAL = range(4)
"""The numbers of `jax.lax.FftType`."""

_DTYPES = {
    (REAL, "float32"): "complex64",
    (REAL, "float64"): "complex128",
    (INVERSE_REAL, "complex64"): "float32",
    (INVERSE_REAL, "complex128"): "float64",
}


def transformed(signature: Signature) -> tuple[int, ...]:
    """Return the dimensions that a transform acts on, which are the trailing ones."""
    rank, count = len(signature.operands[0].shape), len(signature.param("fft_lengths"))
    return tuple(range(rank - count, rank))


def stage_order(signature: Signature, split: Collection[int]) -> Order:
    """Return the stages of a transform whose operand is sharded along some dimensions.

    Dimensions that every device has whole come first, then the sharded ones, one at a time: each
    exchange then moves a sharding to a dimension that is done. Of one dimension, or where no
    transformed dimension is sharded, the order is empty.

    >>> z = ValueType((4, 8, 16), "complex64")
    >>> how = (("fft_lengths", (4, 8, 16)), ("fft_type", FORWARD))
    >>> stage_order(Signature("fft", how, (z,), (z,)), {0})
    ((1, 2), (0,))
    """
    dims = transformed(signature)
    *others, last = dims
    if len(dims) < 2 or not any(dim in split for dim in dims):
        return ()
    kind = signature.param("fft_type")
    if kind == REAL and last in split:
        return ((last,), tuple(others))  # the exchange for the last one says how the rest is split
    ends = last if kind == INVERSE_REAL else None
    whole = tuple(dim for dim in dims if dim not in split and dim != ends)
    one_by_one = [(dim,) for dim in reversed(dims) if dim in split and dim != ends]
    tail = [] if ends is None else [(ends,)]
    return tuple(stage for stage in (whole, *one_by_one, *tail) if stage)


def staged(signature: Signature, order: Order) -> Iterator[Signature]:
    """Yield the operators that a transform is in stages; each reads the result of the one before.

    Between stages the dimensions are transposed, because an operator transforms trailing ones.
    """
    held = signature.operands[0]
    places = tuple(range(len(held.shape)))
    for number, stage in enumerate(order):
        wanted = (*(dim for dim in range(len(places)) if dim not in stage), *stage)
        if set(places[-len(stage) :]) != set(stage) or places[-1] != stage[-1]:
            yield (step := _transposed(held, tuple(places.index(dim) for dim in wanted)))
            places, held = wanted, step.results[0]
        is_last = number == len(order) - 1
        own = dict(zip(transformed(signature), signature.param("fft_lengths"), strict=True))
        sizes = tuple(own[dim] for dim in places[-len(stage) :])
        kind = _kind(signature.param("fft_type"), number, is_last=is_last)
        shape = list(held.shape)
        if kind in (REAL, INVERSE_REAL):
            shape[-1] = signature.results[0].shape[stage[-1]]
        given = ValueType(tuple(shape), _DTYPES.get((kind, held.dtype), held.dtype))
        how = (("fft_lengths", sizes), ("fft_type", kind))
        yield Signature("fft", how, (held,), (given,))
        held = given
    if places != tuple(range(len(places))):
        yield _transposed(held, tuple(places.index(dim) for dim in range(len(places))))


def _kind(kind: int, number: int, *, is_last: bool) -> int:
    """Return the type of a stage: only one stage of a real transform is real."""
    if kind == REAL:
        return kind if number == 0 else FORWARD
    if kind == INVERSE_REAL:
        return kind if is_last else INVERSE
    return kind


def _transposed(held: ValueType, permutation: tuple[int, ...]) -> Signature:
    made = ValueType(tuple(held.shape[dim] for dim in permutation), held.dtype)
    return Signature("transpose", (("permutation", permutation),), (held,), (made,))


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
