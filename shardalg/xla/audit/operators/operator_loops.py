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
    """Return the loops of an elementwise operator: one loop per dimension of the result.

    An operand without dimensions, for example the bound of a `clamp`, has no loop.
    """
    own = tuple(range(len(instruction.leaves[0][1])))
    return OperatorLoops(tuple(own if shape else () for shape in shapes), (own,))


def _whole(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    """Return the loops of an operator without a rule: each dimension is a loop of its own.

    No dimension of an operand is also one of the result, and every loop needs all its indices. So
    the operator matches only if every device has its operands whole.
    """
    count, operands, results = 0, [], []
    for rank in (len(shape) for shape in shapes):
        operands.append(tuple(range(count, count + rank)))
        count += rank
    for rank in (len(shape) for _, shape in instruction.leaves):
        results.append(tuple(range(count, count + rank)))
        count += rank
    return OperatorLoops(tuple(operands), tuple(results), whole=tuple(range(count)))


def _dot(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    """Return the loops of a matrix product: batch loops, then contracting loops, then free loops.

    A free loop is in one operand and the result only. E.g. f32[8,4] times f32[4,16], contracted
    over 4: loop 0 is contracting, loops 1 and 2 are free, and the result has the loops (1, 2).
    """
    a = instruction.attributes
    names = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
    left_batch, right_batch, left_sum, right_sum = (integers(a.get(name)) for name in names)
    left, right = [-1] * len(shapes[0]), [-1] * len(shapes[1])
    batch = list(range(len(left_batch)))
    reduced = list(range(len(batch), len(batch) + len(left_sum)))
    # A batch or a contracting dimension is the same loop in both operands.
    for loop, (i, j) in enumerate(
        zip((*left_batch, *left_sum), (*right_batch, *right_sum), strict=True)
    ):
        left[i] = right[j] = loop
    # The dimensions without a loop yet are free. The result lists those of the left operand first.
    count, free = len(batch) + len(reduced), []
    for operand in (left, right):
        for dim, loop in enumerate(operand):
            if loop < 0:
                operand[dim] = count
                free.append(count)
                count += 1
    return OperatorLoops((tuple(left), tuple(right)), ((*batch, *free),), tuple(reduced))


def _reduce(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    """Return the loops of a reduction: the result has the dimensions that are not reduced.

    The operands are the arrays, then one start value without dimensions per array.
    """
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
        """Return the loops of one instruction, whose first operand has all its dimensions."""
        rank = len(shapes[0])
        # An operand of fewer dimensions is a scalar, for example the padding value.
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
    """Return the loops of a slice at a run-time place; its start indices have no loops."""
    rank, shape = len(shapes[0]), instruction.leaves[0][1]
    # A dimension that is cut needs all indices of the operand, and is another loop in the result.
    changed = [d for d in range(rank) if shape[d] != shapes[0][d]]
    result = tuple(rank + d if d in changed else d for d in range(rank))
    needed = (*changed, *(rank + d for d in changed))
    return OperatorLoops((tuple(range(rank)), *((),) * rank), (result,), whole=needed)


def _dynamic_update(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    """Return the loops of a write of an update into an operand at a run-time place.

    The start indices are scalars without loops.
    """
    rank = len(shapes[0])
    # A dimension of the update that is smaller than the operand's is a loop of its own. It needs
    # all indices on both sides, because the place of the write is a run-time number.
    changed = [d for d in range(rank) if shapes[1][d] != shapes[0][d]]
    update = tuple(rank + d if d in changed else d for d in range(rank))
    own = tuple(range(rank))
    needed = (*changed, *(rank + d for d in changed))
    return OperatorLoops((own, update, *((),) * rank), (own,), whole=needed)


def _concatenate(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    """Return the loops of a concatenation, which has all dimensions but one in common.

    The joined dimension is another loop in each operand and in the result, all of them whole.
    """
    (dim,) = integers(instruction.attributes["dimensions"])
    rank = len(shapes[0])
    operands = tuple(
        tuple(rank + k if d == dim else d for d in range(rank)) for k in range(len(shapes))
    )
    return OperatorLoops(
        operands, (tuple(range(rank)),), whole=(dim, *(rank + k for k in range(len(shapes))))
    )


def _convolution(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    """Return the loops of a convolution, from its labels, e.g. `b01f_01io->b01f`.

    Loop 0 is the batch, 1 the input features (contracting), 2 the output features. Then follow the
    spatial loops of the image, of the kernel and of the output, joined by `windows`. A grouped
    convolution pairs features with each other, so the features need all indices in order.
    """
    match = re.match(r"(\w+)_(\w+)->(\w+)", instruction.attributes["dim_labels"])
    assert match is not None
    left, right, out = match.groups()
    places = [c for c in out if c.isdigit()]
    count = len(places)
    loops = {"b": 0, "f": 1, "i": 1, "o": 2}
    # The n-th spatial dimension is loop 3 + n in the image; the kernel's and the output's follow.
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
    # Batch groups split the batch of the image, so that the result's batch is another loop.
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
    """Return the loops of a select-and-scatter: operand, source (a value per window), start value.

    A dimension without a window is one loop in all arrays. With a window, the operand, the source
    and the result have a loop each, numbered `d`, `rank + d` and `2 * rank + d`.
    """
    rank = len(shapes[0])
    moved = _window_dims(instruction, rank)
    own = tuple(range(rank))
    source, result = (
        tuple(number * rank + d if d in moved else d for d in own) for number in (1, 2)
    )
    windows = tuple((d, rank + d, 2 * rank + d) for d in moved)
    return OperatorLoops((own, source, ()), (result,), windows=windows)


def _reduce_window(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    """Return the loops of a reduction over windows.

    Several arrays that are reduced together, e.g. for an argmax, have all their windows whole.
    """
    rank = len(shapes[0])
    if len(shapes) > 2:
        return _along(_window_dims)(instruction, shapes)
    # A dimension without a window is one loop; with a window, the result has a loop of its own.
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
    """Return the loops of a gather: of the operand, of the indices and of the result.

    The result has the dimensions of the indices (except the index vector) and, at `offset_dims`,
    those of the slice. A slice that takes a dimension whole has the operand's loop there. A part of
    a dimension is another loop, `_PART + d`.
    """
    a, (operand, index) = instruction.attributes, shapes
    sizes = integers(a["slice_sizes"])
    batch = integers(a.get("operand_batching_dims"))
    own = tuple(range(len(operand)))
    indices = _index_loops(operand, index, batch, a.get("start_indices_batching_dims"))
    vector = int(a["index_vector_dim"])
    # The place of a slice that is smaller than the dimension is a run-time number, so that the
    # dimension needs all its indices.
    needed = {d for d in own if d not in batch and sizes[d] != operand[d]}
    needed |= {d for d in integers(a.get("start_index_map")) if sizes[d] != operand[d]}
    # A dimension that is taken whole is one loop; a part of it is another loop in the result.
    gone = {*integers(a.get("collapsed_slice_dims")), *batch}
    window = [d if sizes[d] == operand[d] else _PART + d for d in own if d not in gone]
    offset = integers(a.get("offset_dims"))
    lead = [loop for d, loop in enumerate(indices) if d != vector]
    # The result's dimensions are those of the slice at `offset_dims`, and those of the indices
    # elsewhere, each in order.
    rest, inside = iter(lead), iter(window)
    rank = len(instruction.leaves[0][1])
    result = tuple(next(inside) if d in offset else next(rest) for d in range(rank))
    whole = {*needed, *(loop for loop in window if loop >= _PART)}
    # An index vector is one run-time place, so all its parts are needed.
    if vector < len(index):
        whole.add(indices[vector])
    return OperatorLoops((own, tuple(indices)), (result,), whole=tuple(sorted(whole)))


def _scatter(instruction: HloInstruction, shapes: Shapes) -> OperatorLoops:
    """Return the loops of a scatter of one array; several arrays have no rule and are whole.

    The result has the operand's loops. The updates have the dimensions of the slice at
    `update_window_dims` and the loops of the indices elsewhere. These are reduced: several updates
    may be combined in one element.
    """
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
    # `spans` is the size of the written slice per dimension of the operand.
    spans = {d: update[w] for d, w in zip(kept, window, strict=True)}
    # As in a gather, a part of a dimension is another loop than the dimension.
    inside = iter([d if spans[d] == operand[d] else _PART + d for d in kept])
    lead = [loop for d, loop in enumerate(indices) if d != vector]
    rest = iter(lead)
    updates = tuple(next(inside) if d in window else next(rest) for d in range(len(update)))
    # The place of a smaller slice is a run-time number, so that the dimension needs all indices.
    whole = {d for d in own if d not in batch and spans.get(d) != operand[d]}
    whole |= {loop for loop in updates if loop >= _PART}
    if vector < len(index):
        whole.add(indices[vector])
    # Batch loops of the indices are loops of the operand, in which nothing is combined.
    reduced = tuple(loop for loop in lead if loop not in own)
    return OperatorLoops((own, tuple(indices), updates), (own,), reduced, tuple(sorted(whole)))


def _window_dims(instruction: HloInstruction, rank: int) -> list[int]:
    """Return the dimensions along which a window does more than copy: size, stride or padding."""
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
