"""The loops of operators: which dimensions of operands and results are one loop.

An operator on blocks is the operator before partitioning if every loop runs over the same indices
in all operands. A reduced loop may run over a part of the indices: the result is then pending. A
loop that is needed whole runs over all indices, in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardalg.lower.xla_dump.hlo_text import HloInstruction
from shardalg.xla.audit.hlo_attributes import integers, window_of

Shapes = Sequence[tuple[int, ...]]

POINTWISE = frozenset({
    "abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "clz", "compare",
    "complex", "convert", "cosine", "divide", "erf", "exponential", "exponential-minus-one",
    "floor", "imag", "is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum",
    "multiply", "negate", "not", "or", "popcnt", "power", "real", "reduce-precision", "remainder",
    "round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left",
    "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "stochastic-convert",
    "subtract", "tan", "tanh", "xor",
})  # fmt: skip
COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})


@dataclass(frozen=True)
class OperatorLoops:
    """The loops of an operator.

    Attributes:
      operands: per operand, the loop of each dimension.
      results: per result, the loop of each dimension.
      reduced: the loops that are reduced and whose reduction may be pending.
      whole: the loops that need all indices, in order.
      windows: per window dimension, the loops of the image, the kernel and the output. A
        reduce-window has no kernel, and -1 in its place.
    """

    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    reduced: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()
    windows: tuple[tuple[int, int, int], ...] = ()


def loops_of(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    """Return the loops of an operator; an unknown operator needs all its dimensions whole.

    Args:
      shapes: the shape of each operand.
    """
    if instruction.opcode in POINTWISE or instruction.opcode == "all-reduce":
        return _pointwise(instruction, shapes)
    return _LOOPS.get(instruction.opcode, _whole)(instruction, shapes)


def _pointwise(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    own = tuple(range(len(instruction.leaves[0][1])))
    return OperatorLoops(tuple(own if shape else () for shape in shapes), (own,))


def _whole(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    count, operands, results = 0, [], []
    for rank in (len(shape) for shape in shapes):
        operands.append(tuple(range(count, count + rank)))
        count += rank
    for rank in (len(shape) for _, shape in instruction.leaves):
        results.append(tuple(range(count, count + rank)))
        count += rank
    return OperatorLoops(tuple(operands), tuple(results), whole=tuple(range(count)))


def _dot(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    a = instruction.attributes
    names = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
    left_batch, right_batch, left_sum, right_sum = (integers(a.get(name)) for name in names)
    left, right = [-1] * len(shapes[0]), [-1] * len(shapes[1])
    batch = list(range(len(left_batch)))
    reduced = list(range(len(batch), len(batch) + len(left_sum)))
    for loop, (i, j) in enumerate(
        zip((*left_batch, *left_sum), (*right_batch, *right_sum), strict=True)
    ):
        left[i] = right[j] = loop
    count, free = len(batch) + len(reduced), []
    for operand in (left, right):
        for dim, loop in enumerate(operand):
            if loop < 0:
                operand[dim] = count
                free.append(count)
                count += 1
    return OperatorLoops((tuple(left), tuple(right)), ((*batch, *free),), tuple(reduced))


def _reduce(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    gone = tuple(integers(instruction.attributes["dimensions"]))
    own = tuple(range(len(shapes[0])))
    kept = tuple(loop for loop in own if loop not in gone)
    half = len(shapes) // 2
    operands = (own,) * half + ((),) * half
    if half > 1:  # for example argmax, whose parts no collective of XLA combines
        return OperatorLoops(operands, (kept,) * half, whole=gone)
    return OperatorLoops(operands, (kept,), gone)


def _along(dims: Callable[[HloInstruction, int], Sequence[int]]) -> Callable[..., OperatorLoops]:
    """Return the loops of an operator that needs some dimensions whole and keeps the others."""

    def loops(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
        rank = len(shapes[0])
        needed = set(dims(instruction, rank))
        own = tuple(range(rank))
        operands = tuple(own if len(shape) == rank else () for shape in shapes)
        # A dimension whose size changes is another loop in the result.
        results = tuple(
            tuple(rank + d if n != shapes[0][d] else d for d, n in enumerate(shape))
            for _, shape in instruction.leaves
        )
        extra = {loop for result in results for loop in result if loop >= rank}
        return OperatorLoops(operands, results, whole=tuple(sorted(needed | extra)))

    return loops


def _dynamic_slice(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    rank, shape = len(shapes[0]), instruction.leaves[0][1]
    changed = [d for d in range(rank) if shape[d] != shapes[0][d]]
    result = tuple(rank + d if d in changed else d for d in range(rank))
    needed = (*changed, *(rank + d for d in changed))
    return OperatorLoops((tuple(range(rank)), *((),) * rank), (result,), whole=needed)


def _dynamic_update(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    rank = len(shapes[0])
    changed = [d for d in range(rank) if shapes[1][d] != shapes[0][d]]
    update = tuple(rank + d if d in changed else d for d in range(rank))
    own = tuple(range(rank))
    needed = (*changed, *(rank + d for d in changed))
    return OperatorLoops((own, update, *((),) * rank), (own,), whole=needed)


def _concatenate(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    (dim,) = integers(instruction.attributes["dimensions"])
    rank = len(shapes[0])
    operands = tuple(
        tuple(rank + k if d == dim else d for d in range(rank)) for k in range(len(shapes))
    )
    return OperatorLoops(
        operands, (tuple(range(rank)),), whole=(dim, *(rank + k for k in range(len(shapes))))
    )


def _convolution(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    match = re.match(r"(\w+)_(\w+)->(\w+)", instruction.attributes["dim_labels"])
    assert match is not None
    left, right, out = match.groups()
    places = [c for c in out if c.isdigit()]
    count = len(places)
    loops = {"b": 0, "f": 1, "i": 1, "o": 2}
    image, kernel, output = ({c: 3 + count * k + n for n, c in enumerate(places)} for k in range(3))
    grouped = [
        int(instruction.attributes.get(name, 1)) > 1
        for name in ("feature_group_count", "batch_group_count")
    ]
    whole: tuple[int, ...] = ()
    if any(grouped):
        # Groups number the features, so these stay whole; inputs per group are another loop.
        loops["i"] = 3 + 3 * count
        whole = (1, 2, loops["i"]) if grouped[0] else (0, 2)
    if grouped[1]:
        loops["i"] = 1
    results = {**loops, "f": 2, "b": 4 + 3 * count if grouped[1] else 0}
    return OperatorLoops(
        (
            tuple((loops | image)[c] for c in left),
            tuple((loops | kernel)[c] for c in right),
        ),
        (tuple((results | output)[c] for c in out),),
        reduced=() if grouped[0] else (1,),
        whole=(*whole, *((results["b"],) if grouped[1] else ())),
        windows=tuple((image[c], kernel[c], output[c]) for c in sorted(places)),
    )


def _select_and_scatter(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    rank = len(shapes[0])
    moved = _window_dims(instruction, rank)
    own = tuple(range(rank))
    source, result = (
        tuple(number * rank + d if d in moved else d for d in own) for number in (1, 2)
    )
    windows = tuple((d, rank + d, 2 * rank + d) for d in moved)
    return OperatorLoops((own, source, ()), (result,), windows=windows)


def _reduce_window(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    rank = len(shapes[0])
    if len(shapes) > 2:
        return _along(_window_dims)(instruction, shapes)
    moved = _window_dims(instruction, rank)
    result = tuple(rank + d if d in moved else d for d in range(rank))
    windows = tuple((d, -1, rank + d) for d in moved)
    return OperatorLoops((tuple(range(rank)), ()), (result,), windows=windows)


_PART = 200
"""Added to a dimension's number: the number of the loop over the part of it that is selected.

Operators have fewer dimensions, so that no other loop has this number.
"""


def _index_loops(
    operand: Sequence[int], index: Sequence[int], batch: Sequence[int], other: str | None
) -> list[int]:
    """Return the loop of each dimension of the indices of a gather or scatter.

    Args:
      batch: batch dimensions of the operand, whose loops the indices share.
      other: the same dimensions of the indices, as the attribute lists them.
    """
    loops = [len(operand) + dim for dim in range(len(index))]
    for dim, place in zip(batch, integers(other), strict=True):
        loops[place] = dim
    return loops


def _gather(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    a, (operand, index) = instruction.attributes, shapes
    sizes = integers(a["slice_sizes"])
    batch = integers(a.get("operand_batching_dims"))
    own = tuple(range(len(operand)))
    indices = _index_loops(operand, index, batch, a.get("start_indices_batching_dims"))
    vector = int(a["index_vector_dim"])
    needed = {d for d in own if d not in batch and sizes[d] != operand[d]}
    needed |= {d for d in integers(a.get("start_index_map")) if sizes[d] != operand[d]}
    # A dimension that is taken whole is one loop; a part of it is another loop in the result.
    gone = {*integers(a.get("collapsed_slice_dims")), *batch}
    window = [d if sizes[d] == operand[d] else _PART + d for d in own if d not in gone]
    offset = integers(a.get("offset_dims"))
    lead = [loop for d, loop in enumerate(indices) if d != vector]
    rest, inside = iter(lead), iter(window)
    rank = len(instruction.leaves[0][1])
    result = tuple(next(inside) if d in offset else next(rest) for d in range(rank))
    whole = {*needed, *(loop for loop in window if loop >= _PART)}
    if vector < len(index):
        whole.add(indices[vector])
    return OperatorLoops((own, tuple(indices)), (result,), whole=tuple(sorted(whole)))


def _scatter(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    if len(shapes) != 3:
        return _whole(instruction, shapes)
    a, (operand, index, update) = instruction.attributes, shapes
    batch = integers(a.get("input_batching_dims"))
    own = tuple(range(len(operand)))
    indices = _index_loops(operand, index, batch, a.get("scatter_indices_batching_dims"))
    vector = int(a["index_vector_dim"])
    gone = {*integers(a.get("inserted_window_dims")), *batch}
    window = integers(a.get("update_window_dims"))
    kept = [d for d in own if d not in gone]
    spans = {d: update[w] for d, w in zip(kept, window, strict=True)}
    inside = iter([d if spans[d] == operand[d] else _PART + d for d in kept])
    lead = [loop for d, loop in enumerate(indices) if d != vector]
    rest = iter(lead)
    updates = tuple(next(inside) if d in window else next(rest) for d in range(len(update)))
    whole = {d for d in own if d not in batch and spans.get(d) != operand[d]}
    whole |= {loop for loop in updates if loop >= _PART}
    if vector < len(index):
        whole.add(indices[vector])
    reduced = tuple(loop for loop in lead if loop not in own)
    return OperatorLoops((own, tuple(indices), updates), (own,), reduced, tuple(sorted(whole)))


def _window_dims(instruction: HloInstruction, rank: int) -> list[int]:
    trivial = (1, 1, 0, 0, 1, 1)
    return [
        d
        for d, w in enumerate(window_of(instruction))
        if (w.size, w.stride, w.low, w.high, w.base_dilation, w.dilation) != trivial
    ]


def padded_dims(instruction: HloInstruction, rank: int) -> list[int]:
    """Return the dimensions that a `pad` changes."""
    parts = instruction.attributes["padding"].split("x")
    return [d for d, part in enumerate(parts) if any(integers(part.replace("_", " ")))]


_LOOPS: dict[str, Callable[[HloInstruction, Shapes], OperatorLoops]] = {
    "dot": _dot,
    "reduce": _reduce,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update,
    "concatenate": _concatenate,
    "sort": _along(lambda i, rank: integers(i.attributes.get("dimensions"))),
    "topk": _along(lambda i, rank: [rank - 1]),
    "convolution": _convolution,
    "gather": _gather,
    "scatter": _scatter,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "pad": _along(padded_dims),
    "fft": _along(
        lambda i, rank: range(rank - len(integers(i.attributes.get("fft_length"))), rank)
    ),
    "cholesky": _along(lambda i, rank: [rank - 2, rank - 1]),
    "triangular-solve": _along(lambda i, rank: [rank - 2, rank - 1]),
}
