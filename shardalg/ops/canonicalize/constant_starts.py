"""Boxes at starts that are known are slices and pads, whatever they are written as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from shardalg.graph.ir import Graph, Node, Params, Signature
from shardalg.ops.canonicalize.known import Known
from shardalg.ops.canonicalize.rewrite import rewritten
from shardalg.ops.families.indexing import applies_code, mode, numbers, scatter_mode
from shardalg.ops.rule import CLIP

Starts = Sequence[int] | None
"""Where a box begins in each dimension; None where that is not known."""


def starts_written(graph: Graph) -> Graph:
    """The graph in which boxes at constant starts are slices of one value and pads of another.

        dynamic_slice(x, 1, 0), gather(x, [1])                               x[1:1+n]
        dynamic_update_slice(full(c), x, 1, 0), scatter(full(c), [1], x)     pad(x, c)

    A box is read or written where it happens to lie; of a slice or pad a device fetches what it
    lacks. JAX writes `zeros.at[1:].set(x)` and its gradient so.
    """
    known = Known(graph)
    return rewritten(graph, {name: partial(write, known) for name, write in _WRITTEN.items()})


def _dynamic_slice(known: Known, node: Node) -> Node | None:
    starts = known.integers(node.operands[1:])
    if starts is None:
        return None
    return _slice(node, _clamped(node, starts, node.signature.results[0].shape))


def _gather(known: Known, node: Node) -> Node | None:
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


def _dynamic_update_slice(known: Known, node: Node) -> Node | None:
    found = known.integers(node.operands[2:])
    if found is None:
        return None
    starts = _clamped(node, found, node.signature.operands[1].shape)
    return _pad(known, node, node.operands[1], starts)


def _scatter(known: Known, node: Node) -> Node | None:
    """Of one update, and all its dimensions kept."""
    update = node.signature.operands[2].shape
    whole = len(numbers(node.signature).window) == len(node.signature.results[0].shape)
    if not whole or applies_code(node.signature):
        return None
    clips = scatter_mode(node.signature.param("mode")) == CLIP
    return _pad(known, node, node.operands[2], _starts(known, node, update, clips=clips))


def _pad(known: Known, node: Node, update: int, starts: Starts) -> Node | None:
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


def _starts(known: Known, node: Node, box: tuple[int, ...], *, clips: bool) -> Starts:
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


_WRITTEN: dict[str, Callable[[Known, Node], Node | None]] = {
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "dynamic_update_slice": _dynamic_update_slice,
    "scatter": _scatter,
}
