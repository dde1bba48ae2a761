"""Contractions, reductions and convolutions: loops that are in an operand and not in the result.

Convolution: `[n, i, (stride*o + dilation*r - low)/base], [f, i, r] -> [n, f, o]`, and groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Plain, Signature
from shardalg.graph.ops.families.building import (
    Builder,
    access,
    counted,
    indices,
    letters,
    names,
    record,
    rounds_whole,
    scaling,
)
from shardalg.graph.ops.families.pointwise import integers
from shardalg.graph.ops.families.window import Taps, window_index
from shardalg.graph.ops.rule import AND, ARGMAX, ARGMIN, MAX, MIN, OR, PRODUCT, SUM, USER, XOR, Rule

REDUCTIONS = {
    "reduce_sum": SUM,
    "reduce_prod": PRODUCT,
    "reduce_max": MAX,
    "reduce_min": MIN,
    "reduce_and": AND,
    "reduce_or": OR,
    "reduce_xor": XOR,
}
RAGGED = "dot_dimension_numbers lhs_ragged_dimensions rhs_group_dimensions"
ARGS = {"argmax": ARGMAX, "argmin": ARGMIN}


def dot_general(signature: Signature) -> tuple[Rule, ...]:
    """`[b, m, k], [b, k, n] -> [b, m, n] sum [k]`: b batch, k contracting, m, n non-contracting.

    Of floats given as whole numbers k is whole: what is cut off is cut off the sum, not its parts.
    """
    found = dot_loops(signature, signature.param("dimension_numbers"))
    whole = frozenset(found.contracting if rounds_whole(signature) else ())
    return (_product(signature, found.maps, found.result, whole),)


@dataclass(frozen=True)
class DotLoops:
    """Loops of a product: of each dimension of both operands, and by their role."""

    maps: tuple[tuple[str, ...], ...]
    batch: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    contracting: tuple[str, ...]

    @property
    def result(self) -> tuple[str, ...]:
        """Batch loops, then the non-contracting ones of the left and of the right operand."""
        return self.batch + self.left + self.right


def dot_loops(signature: Signature, numbers: Plain, groups: tuple[int, ...] = ()) -> DotLoops:
    """Loops of a product by its dimension numbers.

    Args:
      groups: dimensions of the right operand that choose one of several right operands.
    """
    contracted, batched = numbers
    batch, contracting = letters("b", len(batched[0])), letters("k", len(contracted[0]))
    maps, free = [], []
    for letter, side, own in (("m", 0, ()), ("n", 1, groups)):
        dims = (*batched[side], *contracted[side])
        known = dict(zip(dims, (*batch, *contracting), strict=True)) | dict.fromkeys(own, "g")
        rest = [d for d in range(len(signature.operands[side].shape)) if d not in known]
        free.append(letters(letter, len(rest)))
        known |= dict(zip(rest, free[-1], strict=True))
        maps.append(tuple(known[d] for d in sorted(known)))
    left, right = free
    return DotLoops(tuple(maps), batch, left, right, contracting)


def _product(
    signature: Signature,
    maps: tuple[tuple[str, ...], ...],
    result: tuple[str, ...],
    whole: frozenset[str] = frozenset(),
) -> Rule:
    """Products of two operands, summed over the loops that the result lacks."""
    tensors = zip((*signature.operands, *signature.results), (*maps, result), strict=True)
    extents = {name: n for value, own in tensors for name, n in zip(own, value.shape, strict=True)}
    order = dict.fromkeys((*result, *extents))
    return Rule(
        signature.primitive,
        tuple((name, extents[name]) for name in order),
        (tuple(access(k, own) for k, own in enumerate(maps)),),
        (indices(result),),
        whole=whole,
        **scaling(signature, 0, 1),
        flops=2,
    )


def ragged_dot_general(signature: Signature) -> tuple[Rule, ...]:
    """`[m, k], [g, k, n], [g] -> [m, n] sum [k] whole [g, m]`: row m's group chooses its matrix.

    The ragged dimension may also contract (`[m, k], [k, n], [g] -> [g, m, n]`) or be a batch; it
    and the groups are whole, since their sizes are known at run time only.
    """
    values = record(signature.param("ragged_dot_dimension_numbers"), RAGGED)
    (at,), groups = values["lhs_ragged_dimensions"], values["rhs_group_dimensions"]
    found = dot_loops(signature, values["dot_dimension_numbers"], groups)
    ragged = found.maps[0][at]
    roles = (found.batch, found.left, found.contracting)
    own = next(names for names in roles if ragged in names)
    before = () if own is found.batch else found.batch
    prefix = (*before, *own[: own.index(ragged)], "g")
    sizes = prefix[-len(signature.operands[2].shape) :]
    result = ("g", *found.result) if own is found.contracting else found.result
    rounded = found.contracting if rounds_whole(signature) else ()
    whole = frozenset({"g", ragged, *rounded})
    return (_product(signature, (*found.maps, sizes), result, whole),)


def scaled_dot(signature: Signature) -> tuple[Rule, ...]:
    """`[m, k], [k, n], [m, kl], [kr, n] -> [m, n] whole [k, kl, kr]`: scales of runs of k."""
    found = dot_loops(signature, signature.param("dimension_numbers"))
    scales = tuple(
        tuple(f"{name}{side}" if name in found.contracting else name for name in own)
        for side, own in zip("lr", found.maps, strict=True)
    )
    whole = {n for own in (*found.maps, *scales) for n in own} - {*found.result}
    row = _product(signature, (*found.maps, *scales), found.result, frozenset(whole))
    return (replace(row, linear=frozenset(), scaled=frozenset()),)


def reduction(signature: Signature) -> tuple[Rule, ...]:
    """`[d0, d1] -> [d0] sum [d1]`."""
    rule = _reduced(signature, signature.param("axes"), REDUCTIONS[signature.primitive])
    return (rule,)


def arg(signature: Signature) -> tuple[Rule, ...]:
    """`[d0, d1] -> [d0] argmax [d1]`: the point is value and position, ties to the lowest.

    Positions to which the type of the result does not count wrap around: of equals the lowest may
    then be any, and the number of a block's best names another one of its places.
    """
    row = _reduced(signature, signature.param("axes"), ARGS[signature.primitive])
    (value,), (place,) = signature.operands, signature.results
    most = integers(place.dtype).stop or counted(place.dtype) or 0
    counts = all(value.shape[axis] <= most for axis in signature.param("axes"))
    return (replace(row, local=frozenset(() if counts else row.reduced)),)


def reduce_by(signature: Signature) -> tuple[Rule, ...]:
    """`[d0, d1], [d0, d1] -> [d0], [d0] user [d1]`: a function of the user joins tuples."""
    count = len(signature.results)
    shape, axes = signature.operands[0].shape, signature.param("dimensions")
    loops = names("d", len(shape))
    kept = indices(name for d, name in enumerate(loops) if d not in axes)
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, shape, strict=True)),
            (tuple(access(k, loops) for k in range(count)),),
            (kept,) * count,
            USER,
            access(count, ()),
            flops=1,
            family="user",
        ),
    )


def _reduced(signature: Signature, axes: tuple[int, ...], combine: str) -> Rule:
    shape = signature.operands[0].shape
    loops = names("d", len(shape))
    return Rule(
        signature.primitive,
        tuple(zip(loops, shape, strict=True)),
        ((access(0, loops),),),
        (indices(name for d, name in enumerate(loops) if d not in axes),),
        combine,
        linear=frozenset({0} if combine == SUM else ()),
        flops=1,
        family="arg" if signature.primitive in ARGS else "same",
    )


@dataclass(frozen=True)
class DimensionNumbers:
    """Dimensions of image, kernel and result: batch (or f), features, then the spatial ones."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]


@dataclass(frozen=True)
class Groups:
    """Features and batch in groups: a dimension `G*E` is the index `E*g + e`.

    Attributes:
      count: groups; by_batch: whether the batch is grouped (`batch_group_count`) or the features.
    """

    count: int
    by_batch: bool

    def index(self, loop: str, extent: int) -> Index:
        """Index of a dimension of `count * extent` elements."""
        if self.count == 1:
            return Index.of(loop)
        return Index.of("g") * max(extent, 1) + (loop if extent != 1 else 0)

    def alone(self, loop: str, extent: int) -> Index:
        """Index of a dimension of `extent` elements that another tensor has in groups."""
        return Index.of(loop) if self.count == 1 or extent != 1 else Index.of(0)


def conv_general_dilated(signature: Signature) -> tuple[Rule, ...]:
    """`[n, i, o+r-1], [f, i, r] -> [n, f, o] sum [i, r]`; its gradients are of this form too."""
    layout = numbers_of(signature)
    kernel = signature.operands[1].shape
    result = signature.results[0].shape
    by_feature = signature.param("feature_group_count")
    by_batch = signature.param("batch_group_count")
    groups = Groups(max(by_feature, by_batch), by_batch > 1)
    n, f, i = result[layout.out[0]], kernel[layout.rhs[0]] // groups.count, kernel[layout.rhs[1]]
    batch = groups.index("n", n) if groups.by_batch else Index.of("n")
    features = Index.of("i") if groups.by_batch else groups.index("i", i)
    inner = Index.of("i") if groups.by_batch else groups.alone("i", i)
    outer = groups.index("f", f)
    result_batch = groups.alone("n", n) if groups.by_batch else Index.of("n")
    windows, taps, extents = _spatial(signature, layout)
    maps = (
        _place(layout.lhs, (batch, features, *windows)),
        _place(layout.rhs, (outer, inner, *taps)),
        _place(layout.out, (result_batch, outer, *map(Index.of, extents["o"]))),
    )
    used = {v for dims in maps for index in dims for v in index.variables}
    sizes = {"n": n, "g": groups.count, "f": f, **extents["o"], "i": i, **extents["r"]}
    return (
        Rule(
            signature.primitive,
            tuple((name, size) for name, size in sizes.items() if name in used),
            ((access(0, maps[0]), access(1, maps[1])),),
            (maps[2],),
            **scaling(signature, 0, 1),
            flops=2,
            family="window",
        ),
    )


def _place(spec: tuple[int, ...], indices: tuple[Index, ...]) -> tuple[Index, ...]:
    """Indices in the order of the tensor's own dimensions."""
    found = dict(zip(spec, indices, strict=True))
    return tuple(found[d] for d in range(len(spec)))


def _spatial(
    signature: Signature, layout: DimensionNumbers
) -> tuple[list[Index], list[Index], dict[str, dict[str, int]]]:
    """Image indices, kernel indices, and extents of the output and tap loops."""
    result = signature.results[0].shape
    windows, taps = [], []
    extents: dict[str, dict[str, int]] = {"o": {}, "r": {}}
    for k, at_result in enumerate(layout.out[2:]):
        window = window_of(signature, layout, k)
        windows.append(window_index(k, window))
        taps.append(Index.of(f"r{k}" if window.count > 1 else 0))
        extents["o"][f"o{k}"] = result[at_result]
        if window.count > 1:
            extents["r"][f"r{k}"] = window.count
    return windows, taps, extents


def numbers_of(signature: Signature) -> DimensionNumbers:
    """Where a convolution has its dimensions."""
    return DimensionNumbers(*record(signature.param("dimension_numbers"), "lhs rhs out").values())


def window_of(signature: Signature, layout: DimensionNumbers, k: int) -> Taps:
    """The window along spatial dimension `k`."""
    param = signature.param
    return Taps(
        signature.operands[1].shape[layout.rhs[2 + k]],
        stride=param("window_strides")[k],
        dilation=param("rhs_dilation")[k],
        low=param("padding")[k][0],
        base=param("lhs_dilation")[k],
    )


ROWS: dict[str, Builder] = {
    "dot_general": dot_general,
    "ragged_dot_general": ragged_dot_general,
    "scaled_dot": scaled_dot,
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(ARGS, arg),
    "reduce": reduce_by,
    "conv_general_dilated": conv_general_dilated,
}
