"""Rows of operators that only place elements: broadcast, transpose, reshape, concatenate, iota.

Docstrings show a row as `operand indices -> result indices`, one index per dimension.
The index maps of a reshape come from the common factors of both shapes (`factor`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.graph.ops.families.building import (
    Builder,
    access,
    indices,
    is_number,
    largest_counted,
    names,
)
from shardalg.graph.ops.rule import PICK, Rule

LETTERS = "ijklmnpqtuvwxyz"


def broadcast_in_dim(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a broadcast, such as `[d1] -> [d0, d1]`.

    A repeated operand dimension of size 1 has the index 0.
    """
    shape, source = signature.results[0].shape, signature.operands[0].shape
    loops = names("d", len(shape))
    targets = signature.param("broadcast_dimensions")
    # A repeated dimension must have no loop: a loop would have to be both of size 1 and of size n.
    dims = [0 if n == 1 != shape[t] else loops[t] for n, t in zip(source, targets, strict=True)]
    return (_layout(signature, dict(zip(loops, shape, strict=True)), dims, loops),)


def transpose(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a transpose: `[d0, d1] -> [d1, d0]`."""
    shape = signature.operands[0].shape
    loops = names("d", len(shape))
    target = [loops[d] for d in signature.param("permutation")]
    return (_layout(signature, dict(zip(loops, shape, strict=True)), loops, target),)


def squeeze(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a squeeze, such as `[d0, 0] -> [d0]`: removed dimensions have index 0."""
    shape = signature.operands[0].shape
    # Negative numbers count from the last dimension.
    removed_dims = {d % len(shape) for d in signature.param("dimensions")}
    loops = {d: f"d{d}" for d in range(len(shape)) if d not in removed_dims}
    extents = {name: shape[d] for d, name in loops.items()}
    dims = [loops.get(d, 0) for d in range(len(shape))]
    return (_layout(signature, extents, dims, loops.values()),)


def tile(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a tile, such as `[d0, d1] -> [d0, n*r1+d1]`.

    d1 counts the elements of a dimension of size n, and r1 its repetitions. For example, a tile of
    (2, 3) to (2, 6) has `3*r1+d1`, with r1 below 2.
    """
    shape, source = signature.results[0].shape, signature.operands[0].shape
    loops = names("d", len(shape))
    extents, result_indices = dict(zip(loops, source, strict=True)), list(map(Index.of, loops))
    for dim, (n, size) in enumerate(zip(source, shape, strict=True)):
        # Element j of the result is element j mod n of the operand.
        if n != size:
            extents[f"r{dim}"] = size // n
            result_indices[dim] = result_indices[dim] + Index.of(f"r{dim}") * n
    row = _layout(signature, extents, loops, result_indices)
    return (replace(row, family="tile"),)


def iota(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of an iota, such as `-> [d0, d1]`: it has loops but no operand.

    A result element is the position along the parameter `dimension`. If the result's type cannot
    represent all numbers, the loop is local: a number is rounded once, which the sum of a local
    number and a block start would not reproduce.
    """
    (value,), dim = signature.results, signature.param("dimension")
    loops = names("d", len(value.shape))
    # `largest_counted` is None for integers, which wrap around: local numbers plus a start are
    # exact.
    most = largest_counted(value.dtype)
    counts = most is None or value.shape[dim] <= most
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, value.shape, strict=True)),
            ((),),
            (indices(loops),),
            local=frozenset(() if counts else (loops[dim],)),
            family="iota",
        ),
    )


def positions(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of `positions`, such as `[], [] -> [d0, d1], [d0, d1]`.

    This operator of shardalg returns two arrays of positions. They are counted from the operands,
    which are a start for each dimension.
    """
    shape = signature.results[0].shape
    loops = names("d", len(shape))
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, shape, strict=True)),
            (tuple(access(k, ()) for k in range(len(shape))),),
            (indices(loops),) * 2,
            family="positions",
        ),
    )


def empty(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of an `empty`, such as `-> [d0, d1]`: an array of undefined elements."""
    shape = signature.results[0].shape
    loops = names("d", len(shape))
    extents = tuple(zip(loops, shape, strict=True))
    return (Rule(signature.primitive, extents, ((),), (indices(loops),), family="shape"),)


def reshape(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a reshape, such as `[2*i+j, k] -> [i, j, k]`.

    The parameter `dimensions` of `lax.reshape` transposes the operand first. If the factors of both
    shapes do not nest, one flat loop is used with floor and modulo: `[i//4, i%4] -> [i//6, i%6]`
    for (6, 4) -> (4, 6).
    """
    (operand,), (result,) = signature.operands, signature.results
    order = signature.param("dimensions") or range(len(operand.shape))
    source = [operand.shape[d] for d in order]
    extents, read, write = factor(source, list(result.shape))
    back = dict(zip(order, read, strict=True))
    dims = [back[d] for d in range(len(source))]
    return (_layout(signature, extents, dims, write),)


Places = Iterable[str | int | Index]


def _layout(signature: Signature, extents: dict[str, int], dims: Places, target: Places) -> Rule:
    """Return a row that copies elements of one operand to other places.

    Args:
      extents: the extent of each loop.
      dims, target: the index of each dimension of the operand, and of the result.
    """
    family = "shape" if signature.primitive in SHAPED else "same"
    return Rule(
        signature.primitive,
        tuple(extents.items()),
        ((access(0, dims),),),
        (indices(target),),
        linear=frozenset({0}),
        family=family,
    )


@dataclass(frozen=True)
class DimensionRange:
    """Consecutive dimensions of the operand or of the result of a reshape.

    Attributes:
      start: the number of the first dimension.
      sizes: the size of each dimension of the range.
    """

    start: int
    sizes: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major stride of each dimension of the range, such as (5, 1) for the sizes (2, 5)."""
        return tuple(math.prod(self.sizes[k + 1 :]) for k in range(len(self.sizes)))


def factor(source: list[int], target: list[int]) -> tuple[dict[str, int], list[Index], list[Index]]:
    """Return (extent by loop, operand's indices, result's indices) of a row-major reshape.

    The dimensions of `source` and `target` are grouped into the shortest ranges with equal numbers
    of elements. In each group, the strides of all dimensions are sorted. If each stride divides the
    one before, each pair of neighbouring strides gives a loop. The index of a dimension is the sum
    of the loops between its stride and the next larger stride of its tensor. The loops' extents are
    quotients of strides.

    Args:
      source, target: the shapes of the operand and of the result.

    >>> loops, read, write = factor([6, 5], [2, 3, 5])
    >>> loops, list(map(str, read)), list(map(str, write))
    ({'i': 2, 'j': 3, 'k': 5}, ['3*i+j', 'k'], ['i', 'j', 'k'])
    """
    extents: dict[str, int] = {}
    read, write = [Index()] * len(source), [Index()] * len(target)
    for left, right in groups(source, target) if 0 not in source else ():
        # Both sides have the same number of elements, so their strides divide one flat range.
        total = math.prod(left.sizes)
        cuts = sorted({total, 1, *left.strides, *right.strides}, reverse=True)
        nested = all(a % b == 0 for a, b in itertools.pairwise(cuts))
        set_indices = _set_nested_indices if nested else _set_flat_indices
        set_indices(extents, cuts, ((left, read), (right, write)))
    return extents, read, write


def groups(source: list[int], target: list[int]) -> list[tuple[DimensionRange, DimensionRange]]:
    """Return pairs of dimension ranges of two shapes that have the same number of elements.

    The ranges are as short as possible: (6, 5) and (2, 3, 5) give ((6,), (2, 3)) and ((5,), (5,)).

    Args:
      source, target: the sizes of two shapes with equally many elements, without sizes of 0.
    """
    pairs, i, j = [], 0, 0
    while i < len(source) or j < len(target):
        starts = (i, j)
        source_product, target_product = math.prod(source[i : i + 1]), math.prod(target[j : j + 1])
        i, j = min(i + 1, len(source)), min(j + 1, len(target))
        # Extend the range with fewer elements: its product must reach the other one.
        while source_product != target_product:
            if source_product < target_product:
                source_product, i = source_product * source[i], i + 1
            else:
                target_product, j = target_product * target[j], j + 1
        spans = (
            DimensionRange(starts[0], tuple(source[starts[0] : i])),
            DimensionRange(starts[1], tuple(target[starts[1] : j])),
        )
        pairs.append(spans)
    return pairs


Sides = tuple[tuple[DimensionRange, list[Index]], ...]
"""For the operand and the result of a reshape: a range of dimensions, and all indices.

The functions below add the indices of the range to the list of all indices.
"""


def _add_loop(extents: dict[str, int], extent: int) -> str:
    """Add a loop of this extent to `extents`, named by the next free letter; return its name."""
    count = len(extents)
    name = LETTERS[count] if count < len(LETTERS) else f"l{count}"
    extents[name] = extent
    return name


def _set_nested_indices(extents: dict[str, int], cuts: list[int], sides: Sides) -> None:
    """Set the indices of a group of dimensions to sums of nested loops.

    Two neighbouring strides in `cuts` make one new loop of `extents`. On each side, the loop
    belongs to the dimension that contains both strides: `[2*i+j] -> [i, j]` for (6,) -> (3, 2).

    Args:
      extents: the extent by loop, to which the new loops are added.
      cuts: strides of both sides, largest first; the first is the group's number of elements.
      sides: for the operand and the result, the group's dimensions and the list that gets indices.
    """
    for high, low in itertools.pairwise(cuts):
        name = _add_loop(extents, high // low)
        for span, maps in sides:
            for k, (size, stride) in enumerate(zip(span.sizes, span.strides, strict=True)):
                # A step of the dimension is `stride` elements of the flat range, and a step of the
                # loop is `low`. So the loop counts in steps of `low // stride`.
                if high <= stride * size and low >= stride and size > 1:
                    maps[span.start + k] += Index.of(name) * (low // stride)


def _set_flat_indices(extents: dict[str, int], cuts: list[int], sides: Sides) -> None:
    """Set the indices of a group of dimensions to floors and modulos of one loop over its elements.

    This is the case of strides that do not divide each other: (6, 4) -> (4, 6) has the new loop i
    of 24 and the indices `[i//4, i%4] -> [i//6, i%6]`.

    Args:
      extents: the extent by loop, to which the new loop is added.
      cuts: strides of both sides, largest first; the first is the group's number of elements.
      sides: for the operand and the result, the group's dimensions and the list that gets indices.
    """
    name = _add_loop(extents, cuts[0])
    for span, maps in sides:
        for k, (size, stride) in enumerate(zip(span.sizes, span.strides, strict=True)):
            index = Index.of(name) // stride
            # The most major dimension needs no modulo: the quotient is smaller than its size.
            major = math.prod(span.sizes[:k]) == 1
            maps[span.start + k] = index if major else index % size


SHAPED = {"broadcast_in_dim", "reshape"}


def concatenate(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a concatenation, such as `[d0] | [d0-10] -> [d0]`.

    The operands are alternatives (`|`): for each d0, the index is inside of exactly one operand.
    """
    axis = signature.param("dimension")
    sizes = tuple(value.shape[axis] for value in signature.operands)
    return (_concatenation_row(signature, sizes),)


def join_ends(signature: Signature) -> tuple[Rule, ...]:
    """Return the row of a `join_ends`, such as `[d0+7] | [d0-3] -> [d0]`.

    This operator of shardalg concatenates the last elements of the first operand and the first
    elements of the second one.
    """
    return (_concatenation_row(signature, signature.param("sizes")),)


def _concatenation_row(signature: Signature, sizes: tuple[int, ...]) -> Rule:
    """Return the row of an operator that concatenates parts of its operands.

    The row reads operand k at `d - start of part k`; in each iteration one of these reads is inside
    its operand. The part of the first operand is at its end (a rotation reads these elements
    first). The parts of all other operands are at their beginning.

    Args:
      sizes: the number of elements of each part.
    """
    shape, axis = signature.results[0].shape, signature.param("dimension")
    loops = names("d", len(shape))
    # The first operand may start before its part: a rotation reads its last elements.
    skipped = signature.operands[0].shape[axis] - sizes[0]
    starts = (-skipped, *accumulate(sizes[:-1]))
    terms = tuple(
        (access(k, [Index.of(n) - start if d == axis else n for d, n in enumerate(loops)]),)
        for k, start in enumerate(starts)
    )
    # The result is linear in all operands together, but not if they are no numbers.
    numeric_operands = frozenset(range(len(sizes)) if is_number(signature.results[0].dtype) else ())
    return Rule(
        signature.primitive,
        loops=tuple(zip(loops, shape, strict=True)),
        terms=terms,
        results=(indices(loops),),
        combine=PICK,
        linear=numeric_operands,
        addends=numeric_operands,
        family="terms",
    )


def joined_operands(signature: Signature) -> tuple[int, ...]:
    """Return the positions of the operands of a concatenation that are not empty, at least one.

    For any other operator, return the positions of all operands. The gradient of a split has an
    empty operand if a part of the split is empty.
    """
    every = tuple(range(len(signature.operands)))
    if signature.primitive != "concatenate":
        return every
    axis = signature.param("dimension")
    return tuple(k for k in every if signature.operands[k].shape[axis]) or every[:1]


ROWS: dict[str, Builder] = {
    "broadcast_in_dim": broadcast_in_dim,
    "empty": empty,
    "empty2": empty,
    "iota": iota,
    "positions": positions,
    "reshape": reshape,
    "squeeze": squeeze,
    "tile": tile,
    "transpose": transpose,
    "concatenate": concatenate,
    "join_ends": join_ends,
}
