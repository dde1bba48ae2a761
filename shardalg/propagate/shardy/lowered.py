"""How one operator of JAX is one or several of those that XLA hands to Shardy."""

from __future__ import annotations

from dataclasses import replace

from shardalg.graph.ir import Node
from shardalg.propagate.gspmd import priority
from shardalg.propagate.maps import Map
from shardalg.propagate.operator_classes import OperatorClass, pass_through

Shape = tuple[int, ...]
NOTHING = frozenset(("stop_gradient", "copy", "pvary", "name"))
"""What XLA has no instruction for."""
NUMBERS_THROUGH = frozenset(("broadcast_in_dim", "reshape", "squeeze", "slice"))
"""What keeps numbers numbers, beside what acts on each element (`isConstantPreserving`)."""
LATER = frozenset(
    ("slice", "split", "pad", "rev", "concatenate", "gather", "scatter", "scatter-add", "sort",
     "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax",
     "argmin", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "dot_general", "erf")
)  # fmt: skip
"""Operators that wait as products do, whatever their loops are; an `erf` is a custom call."""


def keeps_numbers(node: Node, kind: OperatorClass | None) -> bool:
    """Whether what an operator makes of numbers alone are numbers alone to Shardy."""
    if node.bodies:
        return False
    if not node.operands:
        return node.primitive == "iota"
    is_pointwise = kind is not None and kind.role == priority.POINTWISE
    scalar = not node.results or all(not t.shape for t in node.signature.results)
    return node.primitive in NUMBERS_THROUGH or is_pointwise or scalar


def as_shardy_has_it(node: Node, kind: OperatorClass) -> OperatorClass:
    """A kind as Shardy ranks it, its operands in XLA's order."""
    if kind.image is not None:
        kind = replace(kind, maps=kind.image.nested(kind.maps))
    if node.primitive in ("dynamic_slice", "dynamic_update_slice"):
        return replace(kind, role=priority.DYNAMIC_SLICE)
    if node.primitive in LATER and kind.role in (priority.POINTWISE, priority.LAYOUT):
        kept = kind.through - _moved(node, kind)
        return replace(kind, role=priority.WINDOW, through=kept)
    if node.primitive == "select_n" and len(node.operands) == 3:
        (a, b, c, *maps), (d, e, f, *shapes) = kind.maps, kind.shapes
        return replace(kind, maps=(a, c, b, *maps), shapes=(d, f, e, *shapes))
    return kind


def _moved(node: Node, kind: OperatorClass) -> frozenset[str]:
    """Loops along which elements change their places, so that neighbours are asked for them."""
    if node.primitive in ("slice", "split", "pad"):
        sizes = zip(kind.shapes[0], kind.shapes[-1], kind.maps[-1], strict=True)
        return frozenset(loop for old, new, at in sizes if old != new for loop, _ in at)
    if node.primitive == "concatenate":
        return frozenset(loop for loop, _ in kind.maps[-1][node.signature.param("dimension")])
    if node.primitive == "rev":
        dims = node.signature.param("dimensions")
        return frozenset(loop for dim in dims for loop, _ in kind.maps[-1][dim])
    return frozenset()


def factors_of(node: Node) -> list[tuple[int, int]]:
    """The products that a power is, each of two values: 0 the operand, then what is made in turn.

    Source: `jax/_src/lax/lax.py`, `_integer_pow` and its lowering.
    """
    power = 2 if node.primitive == "square" else node.signature.param("y", 0)
    if node.primitive not in ("square", "integer_pow") or power in (-1, 0, 1):
        return []
    if power == 3:
        return [(0, 0), (1, 0)]
    found: list[tuple[int, int]] = []
    base, total, rest = 0, -1, abs(power)
    while rest:
        if rest & 1 and total >= 0:
            found.append((total, base))
        if rest & 1:
            total = len(found) if total >= 0 else base
        rest >>= 1
        if rest:
            found.append((base, base))
            base = len(found)
    return found


def sliced(shape: Shape) -> OperatorClass:
    """The kind of one trip's slice of a stack, with a first dimension of one."""
    return replace(_whole_first(shape), role=priority.DYNAMIC_SLICE)


def reshaped(shape: Shape, drop: tuple[int, int]) -> OperatorClass:
    """The kind of a reshape between a tensor and the same with a first dimension of one."""
    return passing(replace(pass_through(shape, False, drop), role=priority.LAYOUT))


def stacked(shape: Shape) -> OperatorClass:
    """The kind of what a trip writes into a stack: the stack, its slice, the stack after it."""
    whole: Map = tuple(((f"d{i}", 0),) for i in range(len(shape)))
    part: Map = ((), *whole[1:])
    kind = pass_through(shape, False)
    return passing(
        replace(
            kind,
            role=priority.DYNAMIC_SLICE,
            maps=(whole, part, whole),
            shapes=(shape, (1, *shape[1:]), shape),
            bytes=(0, 0, 0),
            num_operands=2,
            first=(0, 1),
        )
    )


def widened(small: Shape, wide: Shape, node: Node) -> list[OperatorClass]:
    """The steps before a broadcast that widens dimensions of one: a copy, and one without them."""
    at = node.signature.param("broadcast_dimensions")
    kept = [i for i, size in enumerate(small) if not (size == 1 and wide[at[i]] != 1)]
    if len(kept) == len(small):
        return []
    copy = passing(replace(pass_through(small, False), role=priority.BROADCAST))
    rest = tuple(small[i] for i in kept)
    whole: Map = tuple(((f"d{i}", 0),) if i in kept else () for i in range(len(small)))
    flat: Map = tuple(((f"d{i}", 0),) for i in kept)
    squeeze = replace(copy, role=priority.LAYOUT, maps=(whole, flat), shapes=(small, rest))
    return [copy, squeeze]


def widening(rest: Shape, wide: Shape, node: Node) -> OperatorClass:
    """The broadcast behind them."""
    small = node.signature.operands[0].shape
    at = node.signature.param("broadcast_dimensions")
    dims = [d for size, d in zip(small, at, strict=True) if not (size == 1 and wide[d] != 1)]
    whole: Map = tuple(((f"d{i}", 0),) for i in range(len(wide)))
    kind = pass_through(wide, False)
    found: Map = tuple(whole[d] for d in dims)
    kind = replace(kind, role=priority.BROADCAST, maps=(found, whole), shapes=(rest, wide))
    return passing(kind)


def passing(kind: OperatorClass) -> OperatorClass:
    """A kind whose loops all pass from operands to results."""
    return replace(kind, through=frozenset(kind.sizes))


def _whole_first(shape: Shape) -> OperatorClass:
    inner: Map = ((), *(((f"d{i}", 0),) for i in range(1, len(shape))))
    kind = pass_through(shape, False)
    return passing(replace(kind, maps=(inner, inner), shapes=(shape, (1, *shape[1:]))))
