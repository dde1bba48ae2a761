"""Taps at the ends of a kernel that read nothing but padding are cut off, where XLA does it too.

XLA swaps image and kernel where the kernel is the larger (`SwapConvOperands` of its algebraic
simplifier, xla/hlo/transforms/simplifiers/algebraic_simplifier.cc; gradients by a kernel are such):
what is padded is the kernel then, by less than nothing where no position reads it, so that an
infinite or NaN tap leaves no trace. Of a block of taps, with the padding of its image written out,
it would be multiplied by 0. Other kernels stay: there XLA multiplies padding or leaves it out, by
the sizes that it meets. Not held: a tap that some positions read and others not, if by the cut, or
by a split, the kernel is not the larger one any more (strict xfails in tests/ops).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from shardalg.graph.ir import Signature, ValueType
from shardalg.ops.families.convolution import DimensionNumbers, numbers_of, window_of
from shardalg.ops.families.window import Taps


@dataclass(frozen=True)
class Cut:
    """What stands for a convolution: a slice of its kernel, and the convolution by that."""

    kernel: Signature
    rest: Signature


@lru_cache(maxsize=1 << 14)
def unread_cut(signature: Signature) -> Cut | None:
    """The same convolution without the taps at both ends that read no element of the image.

    None where every end reads one, where no tap does, and where the kernel is not the larger.

    >>> image, kernel = ValueType((4, 1, 1), "float32"), ValueType((1, 1, 3), "float32")
    >>> numbers = (("lhs_spec", (0, 1, 2)), ("rhs_spec", (0, 1, 2)), ("out_spec", (0, 1, 2)))
    >>> said = {"dimension_numbers": numbers, "window_strides": (1,), "padding": ((1, 1),)}
    >>> said |= {"lhs_dilation": (1,), "rhs_dilation": (1,)}
    >>> said |= {"feature_group_count": 1, "batch_group_count": 1}
    >>> convolution = "conv_general_dilated", tuple(said.items()), (image, kernel), (image,)
    >>> cut = unread_cut(Signature(*convolution))
    >>> cut.kernel.param("start_indices"), *cut.kernel.results, cut.rest.param("padding")
    ((0, 0, 1), f32[1,1,1], ((0, 0),))
    """
    if signature.primitive != "conv_general_dilated" or _is_grouped(signature):
        return None
    layout, (image, kernel) = numbers_of(signature), signature.operands
    if not _extent(kernel, layout.rhs) > _extent(image, layout.lhs) > 0:
        return None
    windows = [window_of(signature, layout, k) for k in range(len(layout.rhs) - 2)]
    sizes = [(image.shape[a], signature.results[0].shape[b]) for a, b in _spatial(layout)]
    kept = [_read(window, *size) for window, size in zip(windows, sizes, strict=True)]
    if not all(kept) or all(len(r) == w.count for r, w in zip(kept, windows, strict=True)):
        return None
    return _cut(signature, layout, kept)


def _is_grouped(signature: Signature) -> bool:
    return max(signature.param("feature_group_count"), signature.param("batch_group_count")) > 1


def _extent(operand: ValueType, places: tuple[int, ...]) -> int:
    return prod(operand.shape[d] for d in places[2:])


def _spatial(layout: DimensionNumbers) -> zip[tuple[int, int]]:
    return zip(layout.lhs[2:], layout.out[2:], strict=True)


def _read(window: Taps, size: int, positions: int) -> range:
    """From the first tap that reads an element at some position to the last one."""

    def reads(tap: int) -> bool:
        first = window.dilation * tap - window.low  # at position 0
        begin = max(0, -(first // window.stride))
        end = min(positions - 1, ((size - 1) * window.base - first) // window.stride)
        some = range(begin, min(end + 1, begin + window.base))  # remainders come again then
        return any((window.stride * o + first) % window.base == 0 for o in some)

    taps = range(window.count)
    first = next(filter(reads, taps), None)
    return range(0) if first is None else range(first, next(filter(reads, reversed(taps))) + 1)


def _cut(signature: Signature, layout: DimensionNumbers, kept: list[range]) -> Cut:
    kernel, param = signature.operands[1], signature.param
    starts, limits, padding = [0] * len(kernel.shape), list(kernel.shape), []
    rows = zip(layout.rhs[2:], kept, param("rhs_dilation"), param("padding"), strict=True)
    for dim, taps, dilation, (low, high) in rows:
        starts[dim], limits[dim] = taps.start, taps.stop
        behind = kernel.shape[dim] - taps.stop
        padding.append((low - dilation * taps.start, high - dilation * behind))
    shape = tuple(b - a for a, b in zip(starts, limits, strict=True))
    made = ValueType(shape, kernel.dtype)
    ends = ("limit_indices", tuple(limits)), ("start_indices", tuple(starts))
    params = tuple((k, tuple(padding) if k == "padding" else v) for k, v in signature.params)
    return Cut(
        Signature("slice", (*ends, ("strides", None)), (kernel,), (made,)),
        Signature(signature.primitive, params, (signature.operands[0], made), signature.results),
    )
