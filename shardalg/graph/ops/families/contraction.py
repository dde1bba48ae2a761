"""Rows of contractions, reductions and convolutions, whose operands have loops that are summed.

Docstrings show a row as `operand indices -> result indices`, one index per dimension, and then the
operation that combines the loops in brackets.

A convolution is `[n, i, (stride*o + dilation*r - low)/base], [f, i, r] -> [n, f, o]`, perhaps with
groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Plain, Signature
from shardalg.graph.ops.families.building import (
    Builder,
    access,
    indices,
    largest_counted,
    letters,
    load_factor,
    names,
    record,
    rounds_whole,
    scaling,
)
from shardalg.graph.ops.families.pointwise import integers
from shardalg.graph.ops.families.window import Taps, window_index
from shardalg.graph.ops.rule import (
    AND,
    ARGMAX,
    ARGMIN,
    DROP,
    MAX,
    MIN,
    OR,
    PRODUCT,
    SUM,
    USER,
    XOR,
    Guard,
    Rule,
    Symbol,
)

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
    """Return the row of a matrix product: `[b, m, k], [b, k, n] -> [b, m, n] sum [k]`.

    b are batch loops, k contracting, m and n non-contracting. If the sum of floats is converted to
    integers, k is whole: truncation does not distribute over partial sums.
    """
    loops = dot_loops(signature, signature.param("dimension_numbers"))
    whole = frozenset(loops.contracting if rounds_whole(signature) else ())
    return (_product(signature, loops.maps, loops.result, whole),)


@dataclass(frozen=True)
class DotLoops:
    """The loops of a matrix product.

    Attributes:
      maps: for the left and the right operand, the loop of each dimension.
      batch: loops in both operands and the result.
      left, right: loops in one operand and the result.
      contracting: loops in both operands, over which the product is summed.
    """

    maps: tuple[tuple[str, ...], ...]
    batch: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    contracting: tuple[str, ...]

    @property
    def result(self) -> tuple[str, ...]:
        """Loops of the result: batch, then non-contracting of the left and the right operand."""
        return self.batch + self.left + self.right


def dot_loops(signature: Signature, numbers: Plain, groups: tuple[int, ...] = ()) -> DotLoops:
    """Return the loops of a matrix product.

    Args:
      numbers: JAX's dimension numbers ((contracting), (batch)), each for both operands.
      groups: dimensions of the right operand that select its matrix in a grouped product.
    """
    contracted, batched = numbers
    batch, contracting = letters("b", len(batched[0])), letters("k", len(contracted[0]))
    # Batch and contracting loops are shared by both operands, so they get their names first. Every
    # other dimension has a loop of its own, m on the left and n on the right.
    maps, free_loops = [], []
    for letter, side, group_dims in (("m", 0, ()), ("n", 1, groups)):
        dims = (*batched[side], *contracted[side])
        loop_of = dict(zip(dims, (*batch, *contracting), strict=True)) | dict.fromkeys(
            group_dims, "g"
        )
        free_dims = [d for d in range(len(signature.operands[side].shape)) if d not in loop_of]
        free_loops.append(letters(letter, len(free_dims)))
        loop_of |= dict(zip(free_dims, free_loops[-1], strict=True))
        maps.append(tuple(loop_of[d] for d in sorted(loop_of)))
    left, right = free_loops
    return DotLoops(tuple(maps), batch, left, right, contracting)


def _product(
    signature: Signature,
    maps: tuple[tuple[str, ...], ...],
    result: tuple[str, ...],
    whole: frozenset[str] = frozenset(),
) -> Rule:
    """Return the row of a product: it multiplies operands and sums over loops not in the result.

    Args:
      maps: for each operand, the loop of each of its dimensions.
      result: the loop of each dimension of the result.
      whole: loops that no device may have only a part of.

    The product of `[m, k]` and `[k, n]` has the maps `(("m", "k"), ("k", "n"))`, the result
    `("m", "n")`, and sums over `k`.
    """
    tensors = zip((*signature.operands, *signature.results), (*maps, result), strict=True)
    extents = {
        name: n for value, loops in tensors for name, n in zip(loops, value.shape, strict=True)
    }
    # The loops of the result come first.
    order = dict.fromkeys((*result, *extents))
    return Rule(
        signature.primitive,
        loops=tuple((name, extents[name]) for name in order),
        terms=(tuple(access(k, loops) for k, loops in enumerate(maps)),),
        results=(indices(result),),
        whole=whole,
        **scaling(signature, 0, 1),
        flops=2,
    )


def ragged_dot_general(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a grouped product: `[m, k], [g, k, n], [g] -> [m, n] sum [k] whole [g, m]`.

    The group of row m selects its matrix. The ragged dimension may also be contracting
    (`[m, k], [k, n], [g] -> [g, m, n]`) or a batch. It and the groups are whole, because the sizes
    of groups are known only at run time.
    """
    values = record(signature.param("ragged_dot_dimension_numbers"), RAGGED)
    (ragged_dim,), groups = values["lhs_ragged_dimensions"], values["rhs_group_dimensions"]
    dot = dot_loops(signature, values["dot_dimension_numbers"], groups)
    ragged = dot.maps[0][ragged_dim]
    # Group sizes have the dimensions that are more major than the ragged one, then the group.
    roles = (dot.batch, dot.left, dot.contracting)
    ragged_group = next(names for names in roles if ragged in names)
    batch_loops = () if ragged_group is dot.batch else dot.batch
    prefix = (*batch_loops, *ragged_group[: ragged_group.index(ragged)], "g")
    # JAX also accepts group sizes without the leading ones of these dimensions.
    sizes = prefix[-len(signature.operands[2].shape) :]
    result = ("g", *dot.result) if ragged_group is dot.contracting else dot.result
    rounded = dot.contracting if rounds_whole(signature) else ()
    whole = frozenset({"g", ragged, *rounded})
    return (_product(signature, (*dot.maps, sizes), result, whole),)


def row_groups(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of `row_groups`: `[], [g] -> [m] whole [g]`.

    The operator computes the group number of each row m of a ragged product. Its operands are the
    number of the first row, a scalar, and the size of each group g. The loop g is needed whole: a
    group begins where all groups before it end.
    """
    loops = (*letters("b", len(signature.results[0].shape) - 1), "m")
    extents = dict(zip(loops, signature.results[0].shape, strict=True))
    reads = access(0, ()), access(1, (*loops[:-1], "g"))
    return (
        Rule(
            signature.primitive,
            (*extents.items(), ("g", signature.operands[1].shape[-1])),
            (reads,),
            (indices(loops),),
            whole=frozenset({"g"}),
            flops=1,
            family="row_groups",
        ),
    )


def grouped_dot(signature: Signature) -> tuple[Rule, ...]:
    """Return the rule of a grouped product: each index m of the left operand selects a matrix g.

    The rule is `[m, k], [g, k, n], [m] -> [m, n] sum [k, g] where g==$t0`.

    `$t0` is the third operand at m, a group number. The slice m of the left operand is multiplied
    by the matrix of this group, which `$t0` selects like the index of a gather. A slice contributes
    nothing if its number is not the number of a group.

    If the ragged dimension m is contracting, the result has a matrix per group. The rule is then
    `[m, k], [m, n], [m] -> [g, k, n] sum [m] where g==$t0`, as in a scatter.
    """
    values = record(signature.param("ragged_dot_dimension_numbers"), RAGGED)
    (ragged_dim,), groups = values["lhs_ragged_dimensions"], values["rhs_group_dimensions"]
    dot = dot_loops(signature, values["dot_dimension_numbers"], groups)
    ragged = dot.maps[0][ragged_dim]
    ragged_group = next(names for names in (dot.left, dot.contracting) if ragged in names)
    prefix = (*dot.batch, *ragged_group[: ragged_group.index(ragged)], ragged)
    # The operand with the groups may lack the leading dimensions, if all of them have equal groups.
    selecting = prefix[-len(signature.operands[2].shape) :]
    result = ("g", *dot.result) if ragged_group is dot.contracting else dot.result
    whole = frozenset(dot.contracting if rounds_whole(signature) else ())
    factors = replace(signature, operands=signature.operands[:2])
    # The group is a loop of a factor or of the result alone: the other tensors do not have it.
    row = _product(factors, dot.maps, result, whole)
    count = signature.param("count")
    symbol = Symbol("$t0", 2, indices(selecting), count - 1, DROP)
    loops = tuple(dict((*row.loops, ("g", count))).items())
    guards = (Guard(Index.of("g"), Index.of("$t0")),)
    load = load_factor(signature)
    return (
        replace(row, loops=loops, guards=guards, symbols=(symbol,), load=load, family="grouped"),
    )


def scaled_dot(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a `scaled_dot`: `[m, k], [k, n], [m, kl], [kr, n] -> [m, n]`.

    The last two operands are scales, each of which multiplies several neighbouring elements along
    k. So kl and kr count fewer elements than k, and a block of k need not be one of kl. Therefore
    k, kl and kr are whole: they are never sharded.
    """
    loops = dot_loops(signature, signature.param("dimension_numbers"))
    # A scale has the loops of its operand, except that k is counted by kl (left) or kr (right).
    scales = tuple(
        tuple(f"{name}{side}" if name in loops.contracting else name for name in operand_loops)
        for side, operand_loops in zip("lr", loops.maps, strict=True)
    )

    # All loops that are not in the result.
    whole = {n for operand_loops in (*loops.maps, *scales) for n in operand_loops} - {*loops.result}
    row = _product(signature, (*loops.maps, *scales), loops.result, frozenset(whole))
    return (replace(row, linear=frozenset(), scaled=frozenset()),)


def reduction(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a reduction, such as `[d0, d1] -> [d0] sum [d1]` of a `reduce_sum`."""
    return (_reduction_row(signature, REDUCTIONS[signature.primitive]),)


def arg(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of an argmax or argmin: `[d0, d1] -> [d0] argmax [d1]`.

    Pairs of a value and its position are combined. Among equal values the lowest position wins. If
    the result's type cannot represent all positions, they wrap around and cannot be compared. The
    reduced loops are then never sharded.
    """
    row = _reduction_row(signature, ARGS[signature.primitive])
    (value,), (position,) = signature.operands, signature.results
    # Positions are exact up to the end of an integer type's range, or up to the largest number
    # below which a floating-point type has all integers.
    most = integers(position.dtype).stop or largest_counted(position.dtype) or 0
    counts = all(value.shape[axis] <= most for axis in signature.param("axes"))
    return (replace(row, local=frozenset(() if counts else row.reduced)),)


def reduce_by(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a `reduce` by a user's function of several operands.

    For two operands it is `[d0, d1], [d0, d1] -> [d0], [d0] user [d1]`: the function combines pairs
    of elements.
    """
    count = len(signature.results)
    shape, axes = signature.operands[0].shape, signature.param("dimensions")
    loops = names("d", len(shape))
    kept_loops = indices(name for d, name in enumerate(loops) if d not in axes)
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, shape, strict=True)),
            (tuple(access(k, loops) for k in range(count)),),
            (kept_loops,) * count,
            USER,
            # A start value is an operand too; the first one has the number after the arrays.
            access(count, ()),
            flops=1,
            family="user",
        ),
    )


def _reduction_row(signature: Signature, combine: str) -> Rule:
    """Return the row of a reduction of one operand along the dimensions in its parameter `axes`.

    For example, a sum of a matrix along dimension 1 is `[d0, d1] -> [d0] sum [d1]`: a loop without
    a place in the result is reduced.

    Args:
      combine: the operation that combines elements, such as SUM.
    """
    shape, axes = signature.operands[0].shape, signature.param("axes")
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
    """The order of dimensions in the image (`lhs`), the kernel (`rhs`) and the result (`out`).

    Each tuple has the batch dimension, the feature dimension, and then the spatial dimensions. In
    place of the batch, the kernel has the output features.
    """

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]


@dataclass(frozen=True)
class Groups:
    """The groups of a grouped convolution.

    A grouped dimension of G groups with E elements has the index `E*g + e`, for group g, element e.

    Attributes:
      count: number of groups.
      by_batch: whether the batch is grouped (`batch_group_count`) or the features.
    """

    count: int
    by_batch: bool

    def index(self, loop: str, extent: int) -> Index:
        """Return the index of a grouped dimension of `count * extent` elements.

        Args:
          loop: the loop inside of a group.
          extent: the number of elements of a group.
        """
        if self.count == 1:
            return Index.of(loop)
        return Index.of("g") * max(extent, 1) + (loop if extent != 1 else 0)

    def alone(self, loop: str, extent: int) -> Index:
        """Return the index of a dimension that has no groups, although its loop has them elsewhere.

        For example, the input features of a kernel run over one group, and those of the image run
        over all groups. If there are several groups, a dimension of size 1 is read at 0.

        Args:
          loop: the loop of the dimension.
          extent: the number of elements of the dimension.
        """
        return Index.of(loop) if self.count == 1 or extent != 1 else Index.of(0)


def conv_general_dilated(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a convolution, such as `[n, i, o+r-1], [f, i, r] -> [n, f, o] sum [i, r]`.

    Gradients of a convolution are convolutions too, with base dilation or batch groups.
    """
    layout = numbers_of(signature)
    kernel = signature.operands[1].shape
    result = signature.results[0].shape
    by_feature = signature.param("feature_group_count")
    by_batch = signature.param("batch_group_count")
    # JAX allows only one of the two counts to exceed 1.
    groups = Groups(max(by_feature, by_batch), by_batch > 1)
    # Group g of the features, or of the batch, contributes only to group g of the output features:
    #     [n, I*g+i], [F*g+f, i] -> [n, F*g+f]   or   [N*g+n, i], [F*g+f, i] -> [n, F*g+f]
    n, f, i = result[layout.out[0]], kernel[layout.rhs[0]] // groups.count, kernel[layout.rhs[1]]
    batch = groups.index("n", n) if groups.by_batch else Index.of("n")
    features = Index.of("i") if groups.by_batch else groups.index("i", i)
    inner = Index.of("i") if groups.by_batch else groups.alone("i", i)
    outer = groups.index("f", f)
    result_batch = groups.alone("n", n) if groups.by_batch else Index.of("n")
    # Without a tap loop, the index of a window of one tap is that of a slice, `stride*o - low`.
    windows, taps = [], []
    positions: dict[str, int] = {}
    counts: dict[str, int] = {}
    for k, dim in enumerate(layout.out[2:]):
        window = window_of(signature, layout, k)
        windows.append(window_index(k, window))
        taps.append(Index.of(f"r{k}" if window.count > 1 else 0))
        positions[f"o{k}"] = result[dim]
        if window.count > 1:
            counts[f"r{k}"] = window.count

    def in_order(spec: tuple[int, ...], indices: tuple[Index, ...]) -> tuple[Index, ...]:
        """Return the indices of a tensor in the order of its dimensions.

        Args:
          spec: the position of its batch, feature and spatial dimensions.
          indices: the indices in the order batch, feature, spatial.
        """
        index_of = dict(zip(spec, indices, strict=True))
        return tuple(index_of[d] for d in range(len(spec)))

    maps = (
        in_order(layout.lhs, (batch, features, *windows)),
        in_order(layout.rhs, (outer, inner, *taps)),
        in_order(layout.out, (result_batch, outer, *map(Index.of, positions))),
    )
    # A loop without an index, such as the group loop of a single group, is left out.
    used_loops = {v for dims in maps for index in dims for v in index.variables}
    sizes = {"n": n, "g": groups.count, "f": f, **positions, "i": i, **counts}
    return (
        Rule(
            signature.primitive,
            tuple((name, size) for name, size in sizes.items() if name in used_loops),
            ((access(0, maps[0]), access(1, maps[1])),),
            (maps[2],),
            **scaling(signature, 0, 1),
            flops=2,
            family="window",
        ),
    )


def numbers_of(signature: Signature) -> DimensionNumbers:
    """Return the order of dimensions in the operands and the result of a convolution."""
    return DimensionNumbers(*record(signature.param("dimension_numbers"), "lhs rhs out").values())


def window_of(signature: Signature, layout: DimensionNumbers, k: int) -> Taps:
    """Return the window of a convolution along its spatial dimension number `k`.

    The window has the kernel's size along this dimension, stride, dilations, and the low padding.
    """
    param = signature.param
    return Taps(
        # A layout lists the position of two other dimensions before the spatial ones.
        signature.operands[1].shape[layout.rhs[2 + k]],
        stride=param("window_strides")[k],
        dilation=param("rhs_dilation")[k],
        low=param("padding")[k][0],
        base=param("lhs_dilation")[k],
    )


ROWS: dict[str, Builder] = {
    "dot_general": dot_general,
    "row_groups": row_groups,
    "grouped_dot": grouped_dot,
    "ragged_dot_general": ragged_dot_general,
    "scaled_dot": scaled_dot,
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(ARGS, arg),
    "reduce": reduce_by,
    "conv_general_dilated": conv_general_dilated,
}
