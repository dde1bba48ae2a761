"""Boxes at starts that are known are slices and pads, whatever they are written as.

The two ends of one value side by side are one move: a rotation.

Taps at the ends of a kernel that read nothing but padding are cut off, where XLA does it too.

XLA swaps image and kernel where the kernel is the larger (`SwapConvOperands` of its algebraic
simplifier, xla/hlo/transforms/simplifiers/algebraic_simplifier.cc; gradients by a kernel are such):
what is padded is the kernel then, by less than nothing where no position reads it, so that an
infinite or NaN tap leaves no trace. Of a block of taps, with the padding of its image written out,
it would be multiplied by 0. Other kernels stay: there XLA multiplies padding or leaves it out, by
the sizes that it meets. Not held: a tap that some positions read and others not, if by the cut, or
by a split, the kernel is not the larger one any more (strict xfails in tests/ops).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod

from shardalg.graph.ir import Graph, Node, Params, Signature, ValueType
from shardalg.graph.ops.canonicalize.known import KnownValues, rewritten
from shardalg.graph.ops.families.contraction import DimensionNumbers, numbers_of, window_of
from shardalg.graph.ops.families.indexing import applies_code, mode, numbers, scatter_mode
from shardalg.graph.ops.families.window import Taps
from shardalg.graph.ops.rule import CLIP

Starts = Sequence[int] | None
"""Where a box begins in each dimension; None where that is not known."""


def starts_written(graph: Graph) -> Graph:
    """The graph in which boxes at constant starts are slices of one value and pads of another.

        dynamic_slice(x, 1, 0), gather(x, [1])                               x[1:1+n]
        dynamic_update_slice(full(c), x, 1, 0), scatter(full(c), [1], x)     pad(x, c)

    A box is read or written where it happens to lie; of a slice or pad a device fetches what it
    lacks. JAX writes `zeros.at[1:].set(x)` and its gradient so.
    """
    known = KnownValues(graph)
    return rewritten(graph, {name: partial(write, known) for name, write in _WRITTEN.items()})


def _dynamic_slice(known: KnownValues, node: Node) -> Node | None:
    starts = known.integers(node.operands[1:])
    if starts is None:
        return None
    return _slice(node, _clamped(node, starts, node.signature.results[0].shape))


def _gather(known: KnownValues, node: Node) -> Node | None:
    """Of one start, and all dimensions kept."""
    signature = node.signature
    if signature.param("slice_sizes") != signature.results[0].shape:
        return None
    clips = mode(signature.param("mode")) == CLIP
    return _slice(node, _starts(known, node, signature.results[0].shape, clips=clips))


def _slice(node: Node, starts: Starts) -> Node | None:
    if starts is None:
        return None
    limits = tuple(a + n for a, n in zip(starts, node.signature.results[0].shape, strict=True))
    params = (("limit_indices", limits), ("start_indices", tuple(starts)), ("strides", None))
    return _rewritten(node, "slice", params, node.operands[:1])


def _dynamic_update_slice(known: KnownValues, node: Node) -> Node | None:
    found = known.integers(node.operands[2:])
    if found is None:
        return None
    starts = _clamped(node, found, node.signature.operands[1].shape)
    return _pad(known, node, node.operands[1], starts)


def _scatter(known: KnownValues, node: Node) -> Node | None:
    """Of one update, and all its dimensions kept."""
    update = node.signature.operands[2].shape
    whole = len(numbers(node.signature).window) == len(node.signature.results[0].shape)
    if not whole or applies_code(node.signature):
        return None
    clips = scatter_mode(node.signature.param("mode")) == CLIP
    return _pad(known, node, node.operands[2], _starts(known, node, update, clips=clips))


def _pad(known: KnownValues, node: Node, update: int, starts: Starts) -> Node | None:
    """What is put into a fill stands between its numbers."""
    fill = known.fill(node.operands[0], node.region)
    if fill is None or starts is None:
        return None
    sizes = known.graph.values[update].type.shape, node.signature.results[0].shape
    config = tuple((a, whole - a - n, 0) for a, n, whole in zip(starts, *sizes, strict=True))
    values = known.graph.values
    types = (values[update].type, values[fill].type)
    signature = Signature("pad", (("padding_config", config),), types, node.signature.results)
    return replace(node, signature=signature, operands=(update, fill))


def _starts(known: KnownValues, node: Node, box: tuple[int, ...], *, clips: bool) -> Starts:
    """The starts of a gather or scatter of one box; None where they lie outside, and drop it."""
    found = known.vector(node.operands[1]) if len(node.signature.operands[1].shape) == 1 else None
    selected = numbers(node.signature).selected
    if found is None or len(found) != len(selected) or len(box) < 1:
        return None
    starts = [0] * len(box)
    for dim, start in zip(selected, found, strict=True):
        starts[dim] = start
    inside = _clamped(node, starts, box)
    return inside if clips or inside == starts else None


def _clamped(node: Node, starts: list[int], box: tuple[int, ...]) -> list[int]:
    """The starts at which a box lies inside."""
    whole = node.signature.operands[0].shape
    return [max(0, min(a, n - b)) for a, n, b in zip(starts, whole, box, strict=True)]


def _rewritten(node: Node, primitive: str, params: Params, operands: tuple[int, ...]) -> Node:
    types = node.signature.operands[: len(operands)]
    signature = Signature(primitive, params, types, node.signature.results)
    return replace(node, signature=signature, operands=operands)


_WRITTEN: dict[str, Callable[[KnownValues, Node], Node | None]] = {
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "dynamic_update_slice": _dynamic_update_slice,
    "scatter": _scatter,
}


def ends_joined(graph: Graph) -> Graph:
    """The graph in which `concatenate(x[a:], x[:a])` reads x itself.

    A device then fetches what it lacks of x once, where both slices would be brought into blocks of
    their own first. Of other ends the size of the result would lose its name. The gradient of a
    rotation is one, too, which JAX writes as a sum: each end of x in its new place, beside zeros.
    """
    turned_back = partial(_turned_back, KnownValues(graph))
    table = {"concatenate": partial(_joined, graph), "add": turned_back, "add_any": turned_back}
    return rewritten(graph, table)


def _rotated(graph: Graph, node: Node) -> int | None:
    """The value that a concatenation of two slices rotates; None if it does not."""
    dim, type_ = node.signature.param("dimension"), node.signature.results[0]
    if len(node.operands) != 2 or 0 in type_.shape:
        return None
    first, second = (_cut(graph, (value, node.region), dim) for value in node.operands)
    if first is None or second is None:
        return None
    (end, start, whole), (beginning, zero, stop) = first, second
    fits = end == beginning and (zero, start) == (0, stop) and whole == type_.shape[dim]
    fits &= 0 < start < whole  # an empty part is dropped
    return end if fits and graph.values[end].type == type_ else None


def _cut(graph: Graph, place: tuple[int, int], dim: int) -> tuple[int, int, int] | None:
    """(value, start, limit) of which `place` is a slice along a dimension, and whole else.

    Args:
      place: a value, and the region where it is read.
    """
    value, region = place
    producer = graph.producer[value]
    node = None if producer is None else graph.nodes[producer]
    if node is None or node.primitive != "slice" or node.region != region:
        return None
    shape, param = node.signature.operands[0].shape, node.signature.param
    starts, limits = param("start_indices"), param("limit_indices")
    others = [
        a == 0 and b == n
        for d, (a, b, n) in enumerate(zip(starts, limits, shape, strict=True))
        if d != dim
    ]
    plain = set(param("strides") or (1,)) == {1} and all(others)
    return (node.operands[0], starts[dim], limits[dim]) if plain else None


def _joined(graph: Graph, node: Node) -> Node | None:
    source, dim = _rotated(graph, node), node.signature.param("dimension")
    if source is None:
        return None
    return _ends(node, source, dim, tuple([v.shape[dim] for v in node.signature.operands]))


def _turned_back(known: KnownValues, node: Node) -> Node | None:
    """`pad(x[a:]) + pad(x[:a])`, each end in the other's place and zeros around it."""
    found = sorted(
        [p for v in node.operands if (p := _placed(known, (v, node.region))) is not None]
    )
    if len(found) != 2:
        return None
    (low, x, dim, start, limit), (after, other, along, zero, stop) = found
    (made,) = node.signature.results
    size = made.shape[dim]
    fits = (x, dim, limit, stop) == (other, along, size, start) and low == zero == 0
    fits &= after == size - start and known.graph.values[x].type == made
    return _ends(node, x, dim, (size - start, start)) if fits else None


def _placed(known: KnownValues, place: tuple[int, int]) -> tuple[int, int, int, int, int] | None:
    """(before, x, dimension, start, limit) of `x[start:limit]` with so many zeros before it.

    None where zeros stand between its elements, too.
    """
    graph, (value, region) = known.graph, place
    producer = graph.producer[value]
    node = None if producer is None else graph.nodes[producer]
    if node is None or node.primitive != "pad" or node.region != region:
        return None
    around = list(enumerate(node.signature.param("padding_config")))
    padded = [(dim, low) for dim, (low, high, between) in around if low or high or between]
    zero = known.number(node.operands[1])
    is_spread = any(between for _, (_, _, between) in around)
    if len(padded) != 1 or is_spread or zero is None or zero:
        return None
    ((dim, low),) = padded
    cut = _cut(graph, (node.operands[0], region), dim)
    return cut and (low, cut[0], dim, *cut[1:])


def _ends(node: Node, source: int, dim: int, sizes: tuple[int, ...]) -> Node:
    """The node as the two ends of one value side by side, of these sizes."""
    (type_,) = node.signature.results
    params = (("dimension", dim), ("sizes", sizes))
    signature = Signature("join_ends", params, (type_, type_), node.signature.results)
    return replace(node, signature=signature, operands=(source, source))


@dataclass(frozen=True)
class KernelSlice:
    """What stands for a convolution: a slice of its kernel, and the convolution by that."""

    kernel: Signature
    rest: Signature


@lru_cache(maxsize=1 << 14)
def unread_cut(signature: Signature) -> KernelSlice | None:
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
    return _cut_taps(signature, layout, kept)


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


def _cut_taps(signature: Signature, layout: DimensionNumbers, kept: list[range]) -> KernelSlice:
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
    return KernelSlice(
        Signature("slice", (*ends, ("strides", None)), (kernel,), (made,)),
        Signature(signature.primitive, params, (signature.operands[0], made), signature.results),
    )
