"""Split of Fourier transforms into stages, and sums of bfloat16 and float16 in float32.

A Fourier transform of several dimensions is separable: it equals one transform per dimension, in
any order. The exceptions are real transforms: the last dimension is the first stage of a real
transform and the last stage of an inverse real transform.

A device adds its part of a bfloat16 or float16 sum in float32 and rounds it, as XLA does. The
rounded parts are then sent. With `Switches.wide_sums` the parts are sent in float32, and the sum is
rounded once at the end. Grouped products (`jax.lax.ragged_dot`) stay: JAX has no public primitive
that could be bound with other types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

from shardalg.graph.ir import Params, Signature, ValueType
from shardalg.graph.ops.rows import rules

Order = tuple[tuple[int, ...], ...]
"""The dimensions that each stage of a Fourier transform transforms, in order of the stages.

The planner chooses the order and `normalise.in_stages` applies it.
"""
# The values of `jax.lax.FftType`, repeated here because this module does not import jax.
FORWARD, INVERSE, REAL, INVERSE_REAL = range(4)

_DTYPES = {
    (REAL, "float32"): "complex64",
    (REAL, "float64"): "complex128",
    (INVERSE_REAL, "complex64"): "float32",
    (INVERSE_REAL, "complex128"): "float64",
}


def transformed_dims(signature: Signature) -> tuple[int, ...]:
    """Return the dimensions along which an `fft` transforms: the last ones of its operand."""
    rank, count = len(signature.operands[0].shape), len(signature.param("fft_lengths"))
    return tuple(range(rank - count, rank))


def stage_order(signature: Signature, split: Collection[int]) -> Order:
    """Return the order in which to transform the dimensions of a sharded operand.

    `signature` is an `fft`, and `split` has the sharded dimensions of its operand. Dimensions that
    every device has whole come first, then the sharded ones, one at a time. Each exchange then
    moves a sharding to a dimension that is already transformed. The order is empty for a transform
    of one dimension, or if no transformed dimension is sharded.

    >>> z = ValueType((4, 8, 16), "complex64")
    >>> how = (("fft_lengths", (4, 8, 16)), ("fft_type", FORWARD))
    >>> stage_order(Signature("fft", how, (z,), (z,)), {0})
    ((1, 2), (0,))
    """
    dims = transformed_dims(signature)
    *others, last = dims
    if len(dims) < 2 or not any(dim in split for dim in dims):
        return ()
    kind = signature.param("fft_type")
    if kind == REAL and last in split:
        # A real transform must begin with the last dimension. The exchange that brings it together
        # decides which other dimension is sharded afterwards, so their order is left open here.
        return ((last,), tuple(others))
    # An inverse real transform needs complex operands everywhere except at its end: the dimension
    # that becomes real is transformed last.
    ends = last if kind == INVERSE_REAL else None
    whole = tuple(dim for dim in dims if dim not in split and dim != ends)
    one_by_one = [(dim,) for dim in reversed(dims) if dim in split and dim != ends]
    tail = [] if ends is None else [(ends,)]
    return tuple(stage for stage in (whole, *one_by_one, *tail) if stage)


def stages_of(signature: Signature, order: Order) -> Iterator[Signature]:
    """Yield the operators that compute an `fft` in stages; each reads the result of the one before.

    They are transforms and transposes. The transposes move the dimensions of a stage to the end,
    because an `fft` transforms the last dimensions.

    Args:
      signature: the `fft` to replace.
      order: the dimensions of each stage.
    """
    current = signature.operands[0]
    # A stage may transpose the value, so `places` has the original dimension at each position.
    places = tuple(range(len(current.shape)))
    for number, stage in enumerate(order):
        stage_order = (*(dim for dim in range(len(places)) if dim not in stage), *stage)
        # The order within a stage matters only for its last dimension, which a real transform
        # treats in another way.
        if set(places[-len(stage) :]) != set(stage) or places[-1] != stage[-1]:
            yield (step := _transpose(current, tuple(places.index(dim) for dim in stage_order)))
            places, current = stage_order, step.results[0]
        length_of_dim = dict(
            zip(transformed_dims(signature), signature.param("fft_lengths"), strict=True)
        )
        sizes = tuple(length_of_dim[dim] for dim in places[-len(stage) :])
        # Only the first stage of a real transform, and the last of an inverse one, is real.
        kind = signature.param("fft_type")
        if kind == REAL and number > 0:
            kind = FORWARD
        elif kind == INVERSE_REAL and number < len(order) - 1:
            kind = INVERSE
        shape = list(current.shape)
        if kind in (REAL, INVERSE_REAL):
            shape[-1] = signature.results[0].shape[stage[-1]]
        result = ValueType(tuple(shape), _DTYPES.get((kind, current.dtype), current.dtype))
        params = (("fft_lengths", sizes), ("fft_type", kind))
        yield Signature("fft", params, (current,), (result,))
        current = result
    # Restore the original order of dimensions.
    if places != tuple(range(len(places))):
        yield _transpose(current, tuple(places.index(dim) for dim in range(len(places))))


def _transpose(type_: ValueType, permutation: tuple[int, ...]) -> Signature:
    """Return the signature of a transpose of a value of this type."""
    result = ValueType(tuple(type_.shape[dim] for dim in permutation), type_.dtype)
    return Signature("transpose", (("permutation", permutation),), (type_,), (result,))


WIDE = "float32"
NARROW = frozenset({"bfloat16", "float16"})
CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated"})
"""Contractions, whose parameter `preferred_element_type` is the type of their result."""
SUMS = frozenset({"reduce_sum", "cumsum", "scatter-add", "scatter-sub"})
"""Operators that add numbers of one type: sums, prefix sums, gradients of table lookups."""


@dataclass(frozen=True)
class WideSum:
    """Replacement of a sum of bfloat16 or float16 numbers by a sum in float32.

    Attributes:
      reads: per operand the conversion to float32, or None if it is read as it is.
      added: the sum in float32.
      rounded: the conversion of the sum to the original type.
    """

    reads: tuple[Signature | None, ...]
    added: Signature
    rounded: Signature


@lru_cache(maxsize=1 << 14)
def wide_sum(signature: Signature) -> WideSum | None:
    """Return a sum in float32 that replaces an operator that adds bfloat16 or float16 numbers.

    None for any other operator.

    >>> x, y = ValueType((4, 8), "bfloat16"), ValueType((4,), "bfloat16")
    >>> wide = wide_sum(Signature("reduce_sum", (("axes", (1,)),), (x,), (y,)))
    >>> for step in (*wide.reads, wide.added, wide.rounded):
    ...     print(step.primitive, *step.operands, *step.results)
    convert_element_type bf16[4,8] f32[4,8]
    reduce_sum f32[4,8] f32[4]
    convert_element_type f32[4] bf16[4]
    """
    contracts = signature.primitive in CONTRACTIONS
    if not (contracts or signature.primitive in SUMS):
        return None
    (narrow,) = signature.results
    if narrow.dtype not in NARROW:
        return None
    # A product without a contracting loop, such as an outer product, adds nothing.
    if contracts and not ((rows := rules(signature)) and (rows[0].reduced or rows[0].local)):
        return None
    params = dict(signature.params)
    # A product of narrow operands can have a wide result by a parameter. A sum has the type of its
    # operands, so these are converted first.
    read_types = signature.operands
    if contracts:
        params |= {"preferred_element_type": WIDE}
    else:
        read_types = tuple(ValueType(x.shape, WIDE) if x.dtype in NARROW else x for x in read_types)
    pairs = zip(signature.operands, read_types, strict=True)
    reads = tuple(None if old == new else _conversion(old, new) for old, new in pairs)
    wide_type = ValueType(narrow.shape, WIDE)
    addition = Signature(signature.primitive, tuple(params.items()), read_types, (wide_type,))
    return WideSum(reads, addition, _conversion(wide_type, narrow))


def _conversion(source: ValueType, target: ValueType) -> Signature:
    """Return the signature of a conversion from the dtype of `source` to the dtype of `target`."""
    params: Params = (("new_dtype", target.dtype), ("sharding", None), ("weak_type", False))
    return Signature("convert_element_type", params, (source,), (target,))
