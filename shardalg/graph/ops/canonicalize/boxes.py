"""Rewrites of boxes at known starts, of rotations, and of kernel taps that read only padding.

A box is a contiguous part of a tensor, given by a start and a size in each dimension. A tap is one
spatial position of a convolution's kernel.

- `starts_written`: gathers, scatters and dynamic slices at constant starts become slices and pads.
- `ends_joined`: a concatenation of the two ends of one value becomes one node, a rotation.
- `unread_cut`: taps at the ends of a kernel that read only padding are cut off.

The last rewrite follows XLA. XLA swaps image and kernel if the kernel is larger
(`SwapConvOperands`, xla/hlo/transforms/simplifiers/algebraic_simplifier.cc). The gradient of a
convolution by its kernel is such a case. After the swap the kernel is padded, by a negative width
at taps that no position reads. An infinite or NaN tap therefore has no effect on the result. In a
block of taps with written-out image padding, such a tap would be multiplied by 0, which gives NaN.

Smaller kernels stay: XLA multiplies their padding or omits it, depending on the sizes. One case is
not covered: some positions read a tap and others do not, and after the cut or the split the kernel
is no longer larger than the image (strict xfails in tests/ops).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod

from shardalg.graph.ir import Graph, Node, Signature, ValueType
from shardalg.graph.ops.canonicalize.known import KnownValues, producing_node, replace_nodes
from shardalg.graph.ops.families.contraction import DimensionNumbers, numbers_of, window_of
from shardalg.graph.ops.families.indexing import applies_code, mode, numbers, scatter_mode
from shardalg.graph.ops.families.window import Taps
from shardalg.graph.ops.rule import CLIP

Starts = Sequence[int] | None
"""Start of a box in each dimension; None if a start is unknown."""


def starts_written(graph: Graph) -> Graph:
    """Return the graph with boxes at constant starts written as slices and pads.

        dynamic_slice(x, 1, 0), gather(x, [1])                               x[1:1+n]
        dynamic_update_slice(full(c), x, 1, 0), scatter(full(c), [1], x)     pad(x, c)

    For a slice or a pad, a device fetches only the elements that its block lacks. A box at a start
    that is known only at run time needs communication over the whole dimension. JAX writes
    `zeros.at[1:].set(x)` and its gradient as such boxes.
    """
    known = KnownValues(graph)
    rewrites = {name: partial(rewrite, known) for name, rewrite in _BOX_REWRITES.items()}
    return replace_nodes(graph, rewrites)


def _gather(known: KnownValues, node: Node) -> Node | None:
    """Return a slice that computes the same as a gather of one box, or None if there is none.

    The gather must read one box with all dimensions of the operand, at a constant start.
    """
    signature = node.signature
    if signature.param("slice_sizes") != signature.results[0].shape:
        return None
    clips = mode(signature.param("mode")) == CLIP
    return _slice(node, _starts(known, node, signature.results[0].shape, clips=clips))


def _slice(node: Node, starts: Starts) -> Node | None:
    """Return a slice of the node's first operand that replaces the node.

    The slice has the sizes of the node's result. None if `starts` is None.

    Args:
      starts: the slice's first element in each dimension.
    """
    if starts is None:
        return None
    limits = tuple(a + n for a, n in zip(starts, node.signature.results[0].shape, strict=True))
    params = (("limit_indices", limits), ("start_indices", tuple(starts)), ("strides", None))
    signature = node.signature
    sliced = Signature("slice", params, signature.operands[:1], signature.results)
    return replace(node, signature=sliced, operands=node.operands[:1])


def _scatter(known: KnownValues, node: Node) -> Node | None:
    """Return a pad that computes the same as a scatter of one box, or None if there is none.

    The scatter must write one box with all dimensions, at a constant start, into a value that
    repeats one number. It must not combine updates by a function of the user.
    """
    update = node.signature.operands[2].shape
    writes_all_dims = len(numbers(node.signature).window) == len(node.signature.results[0].shape)
    if not writes_all_dims or applies_code(node.signature):
        return None
    clips = scatter_mode(node.signature.param("mode")) == CLIP
    return _pad(known, node, node.operands[2], _starts(known, node, update, clips=clips))


def _pad(known: KnownValues, node: Node, update: int, starts: Starts) -> Node | None:
    """Return a pad of `update` that replaces a node that writes `update` into its first operand.

    None if the first operand does not repeat one number in all elements, or if `starts` is None.

    Args:
      update: value index of the box that is written.
      starts: the place of the box's first element in the node's result.
    """
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
    """Return the start, per dimension, of the one box that a gather or scatter reads or writes.

    None if there are several boxes, if a start is not known before the program runs, or if the box
    is out of range and the mode drops it.

    Args:
      box: the box's shape.
      clips: whether the mode moves a box that is out of range into the operand.
    """
    index = known.vector(node.operands[1]) if len(node.signature.operands[1].shape) == 1 else None
    selected = numbers(node.signature).selected
    if index is None or len(index) != len(selected) or len(box) < 1:
        return None
    # By JAX's definition of gather and scatter, a box starts at 0 where no index component selects.
    starts = [0] * len(box)
    for dim, start in zip(selected, index, strict=True):
        starts[dim] = start
    inside = _clamp_starts(node, starts, box)
    # A mode that does not clip drops a box out of range, which no slice does.
    return inside if clips or inside == starts else None


def _clamp_starts(node: Node, starts: list[int] | None, box: tuple[int, ...]) -> list[int] | None:
    """Return the starts of a box, moved so that the box is inside the node's first operand.

    None if `starts` is None.

    Args:
      box: the box's shape.
    """
    if starts is None:
        return None
    whole = node.signature.operands[0].shape
    return [max(0, min(a, n - b)) for a, n, b in zip(starts, whole, box, strict=True)]


_BOX_REWRITES: dict[str, Callable[[KnownValues, Node], Node | None]] = {
    # XLA clamps the starts of dynamic slices and updates, so that the box is always inside.
    "dynamic_slice": lambda known, node: _slice(
        node,
        _clamp_starts(node, known.integers(node.operands[1:]), node.signature.results[0].shape),
    ),
    "gather": _gather,
    "dynamic_update_slice": lambda known, node: _pad(
        known,
        node,
        node.operands[1],
        _clamp_starts(node, known.integers(node.operands[2:]), node.signature.operands[1].shape),
    ),
    "scatter": _scatter,
}


def ends_joined(graph: Graph) -> Graph:
    """Return the graph in which `concatenate(x[a:], x[:a])` is one node, a rotation of x.

    A device then fetches the elements of x that it lacks once. Otherwise each slice would be
    resharded to blocks of its own first. Two slices that are not the whole of x stay: the size of
    their result would lose its name. The gradient of a rotation is a rotation too. JAX writes it as
    a sum of two pads, with each end of x in its new place among zeros.
    """
    gradient = partial(_rotation_of_sum, KnownValues(graph))
    rotation = partial(_rotation_of_concatenation, graph)
    return replace_nodes(graph, {"concatenate": rotation, "add": gradient, "add_any": gradient})


def _rotation_of_concatenation(graph: Graph, node: Node) -> Node | None:
    """Return `concatenate(x[a:], x[:a])` as a rotation of x; None for any other concatenation.

    A rotation is one node, for which a device sends only the elements that cross its border.
    `jnp.roll` makes such a concatenation.
    """
    dim, type_ = node.signature.param("dimension"), node.signature.results[0]
    if len(node.operands) != 2 or 0 in type_.shape:
        return None
    first, second = (_slice_bounds(graph, value, node.region, dim) for value in node.operands)
    if first is None or second is None:
        return None
    (x, start, whole), (other, zero, stop) = first, second
    is_rotation = x == other and (zero, start) == (0, stop) and whole == type_.shape[dim]
    # A rotation by 0 has an empty part, which `joined_operands` drops.
    is_rotation &= 0 < start < whole
    if not is_rotation or graph.values[x].type != type_:
        return None
    return _rotation(node, x, dim, tuple([v.shape[dim] for v in node.signature.operands]))


def _slice_bounds(graph: Graph, value: int, region: int, dim: int) -> tuple[int, int, int] | None:
    """Return (operand, start, limit) of the slice along one dimension that produces `value`.

    `operand` is the value index of the sliced value. None if no slice produces `value`, or if the
    slice is in another region, has a stride, or cuts another dimension.
    """
    node = producing_node(graph, value)
    if node is None or node.primitive != "slice" or node.region != region:
        return None
    shape, param = node.signature.operands[0].shape, node.signature.param
    starts, limits = param("start_indices"), param("limit_indices")
    keeps_dim = [
        a == 0 and b == n
        for d, (a, b, n) in enumerate(zip(starts, limits, shape, strict=True))
        if d != dim
    ]
    is_plain = set(param("strides") or (1,)) == {1} and all(keeps_dim)
    return (node.operands[0], starts[dim], limits[dim]) if is_plain else None


def _rotation_of_sum(known: KnownValues, node: Node) -> Node | None:
    """Return `pad(x[a:]) + pad(x[:a])` as a rotation of x; None for any other sum.

    Each end of x must be in the place of the other end, and zero elsewhere. An entry of `ends` is
    (zeros in front, x, dimension, start and limit of the slice).
    """
    ends = sorted([e for v in node.operands if (e := _padded_slice(known, v, node.region))])
    if len(ends) != 2:
        return None
    # `sorted` compares the zeros in front first. x[a:] has none, because it moves to the front, so
    # it is the first one, and x[:a] is the second one.
    (low, x, dim, start, limit), (after, other, along, zero, stop) = ends
    (type_,) = node.signature.results
    size = type_.shape[dim]
    fits = (x, dim, limit, stop) == (other, along, size, start) and low == zero == 0
    fits &= after == size - start and known.graph.values[x].type == type_
    return _rotation(node, x, dim, (size - start, start)) if fits else None


def _padded_slice(
    known: KnownValues, value: int, region: int
) -> tuple[int, int, int, int, int] | None:
    """Return (zeros before, x, dimension, start, limit) if `value` is a slice of x padded by zeros.

    For example, a pad of `x[1:4]` by two zeros in front gives (2, x, 0, 1, 4), x by its value
    index. The slice and the pad are along one dimension. None for any other value, and if zeros are
    also inserted between the elements.
    """
    node = producing_node(known.graph, value)
    if node is None or node.primitive != "pad" or node.region != region:
        return None
    config = node.signature.param("padding_config")
    padded_dims = [(dim, low) for dim, (low, high, gap) in enumerate(config) if low or high or gap]
    zero = known.number(node.operands[1])
    has_gaps = any(gap for _, _, gap in config)
    if len(padded_dims) != 1 or has_gaps or zero is None or zero:
        return None
    ((dim, low),) = padded_dims
    # `bounds` is (x, start, limit), so the dimension is inserted behind its first entry.
    bounds = _slice_bounds(known.graph, node.operands[0], region, dim)
    return bounds and (low, bounds[0], dim, *bounds[1:])


def _rotation(node: Node, source: int, dim: int, sizes: tuple[int, ...]) -> Node:
    """Return a `join_ends` that replaces the node: last elements of a value, then its first ones.

    Args:
      source: value index of the rotated value.
      sizes: the number of last elements and of first elements.
    """
    (type_,) = node.signature.results
    # `join_ends` takes the last sizes[0] elements of the first operand, the first of the second.
    params = (("dimension", dim), ("sizes", sizes))
    signature = Signature("join_ends", params, (type_, type_), node.signature.results)
    return replace(node, signature=signature, operands=(source, source))


@dataclass(frozen=True)
class KernelSlice:
    """Replacement of a convolution by a convolution with a smaller kernel.

    Attributes:
      kernel: a slice of the kernel.
      rest: the convolution of the image with this slice.
    """

    kernel: Signature
    rest: Signature


@lru_cache(maxsize=1 << 14)
def unread_cut(signature: Signature) -> KernelSlice | None:
    """Return the replacement of a convolution by one without taps that never read the image.

    Such taps are cut off at both ends of the kernel. None if both end taps read an element, if no
    tap does, or if the kernel is not larger than the image.

    >>> image, kernel = ValueType((4, 1, 1), "float32"), ValueType((1, 1, 3), "float32")
    >>> numbers = (("lhs_spec", (0, 1, 2)), ("rhs_spec", (0, 1, 2)), ("out_spec", (0, 1, 2)))
    >>> params = {"dimension_numbers": numbers, "window_strides": (1,), "padding": ((1, 1),)}
    >>> params |= {"lhs_dilation": (1,), "rhs_dilation": (1,)}
    >>> params |= {"feature_group_count": 1, "batch_group_count": 1}
    >>> convolution = "conv_general_dilated", tuple(params.items()), (image, kernel), (image,)
    >>> cut = unread_cut(Signature(*convolution))
    >>> cut.kernel.param("start_indices"), *cut.kernel.results, cut.rest.param("padding")
    ((0, 0, 1), f32[1,1,1], ((0, 0),))
    """
    if signature.primitive != "conv_general_dilated":
        return None
    if max(signature.param("feature_group_count"), signature.param("batch_group_count")) > 1:
        return None
    layout, (image, kernel) = numbers_of(signature), signature.operands
    # XLA swaps the operands only if the kernel has more spatial elements than the image.
    kernel_size = prod(kernel.shape[dim] for dim in layout.rhs[2:])
    image_size = prod(image.shape[dim] for dim in layout.lhs[2:])
    if not kernel_size > image_size > 0:
        return None
    windows = [window_of(signature, layout, k) for k in range(len(layout.rhs) - 2)]
    spatial = zip(layout.lhs[2:], layout.out[2:], strict=True)
    sizes = [(image.shape[a], signature.results[0].shape[b]) for a, b in spatial]
    kept_taps = [_taps_read(window, *size) for window, size in zip(windows, sizes, strict=True)]
    if not all(kept_taps) or all(
        len(r) == w.count for r, w in zip(kept_taps, windows, strict=True)
    ):
        return None
    return _cut_taps(signature, layout, kept_taps)


def _taps_read(window: Taps, size: int, positions: int) -> range:
    """Return the taps from the first to the last one that ever reads an element of the image.

    Taps are numbered along one spatial dimension. A tap outside of this range reads only padding.

    Args:
      size: the image's size.
      positions: the number of positions of the window, which is the result's size.
    """

    def reads(tap: int) -> bool:
        """Return whether a tap reads an element of the image at some position of the window."""
        # At position o, the tap reads the place stride*o + first of the dilated image. An element
        # of the image is there if the base dilation divides the place.
        first = window.dilation * tap - window.low
        begin = max(0, -(first // window.stride))
        end = min(positions - 1, ((size - 1) * window.base - first) // window.stride)
        # stride * o + first modulo base is periodic in o, so one period of positions is enough.
        period = range(begin, min(end + 1, begin + window.base))
        return any((window.stride * o + first) % window.base == 0 for o in period)

    taps = range(window.count)
    first = next(filter(reads, taps), None)
    return range(0) if first is None else range(first, next(filter(reads, reversed(taps))) + 1)


def _cut_taps(signature: Signature, layout: DimensionNumbers, kept: list[range]) -> KernelSlice:
    """Return the convolution with a kernel that has only some taps, and the slice of the kernel.

    The result is the same, because the other taps read only padding.

    Args:
      layout: the order of the dimensions of image, kernel and result.
      kept: the taps that remain in each spatial dimension.
    """
    kernel, param = signature.operands[1], signature.param
    starts, limits, padding = [0] * len(kernel.shape), list(kernel.shape), []
    spatial_dims = zip(layout.rhs[2:], kept, param("rhs_dilation"), param("padding"), strict=True)
    for dim, taps, dilation, (low, high) in spatial_dims:
        starts[dim], limits[dim] = taps.start, taps.stop
        # Each tap that is cut makes the padding on its side smaller by one dilation step.
        cut_behind = kernel.shape[dim] - taps.stop
        padding.append((low - dilation * taps.start, high - dilation * cut_behind))
    shape = tuple(b - a for a, b in zip(starts, limits, strict=True))
    sliced = ValueType(shape, kernel.dtype)
    slice_params = ("limit_indices", tuple(limits)), ("start_indices", tuple(starts))
    params = tuple((k, tuple(padding) if k == "padding" else v) for k, v in signature.params)
    return KernelSlice(
        Signature("slice", (*slice_params, ("strides", None)), (kernel,), (sliced,)),
        Signature(signature.primitive, params, (signature.operands[0], sliced), signature.results),
    )
