"""Data formatting: broadcast, transpose, squeeze, reshape, tile, iota: no arithmetic.

Tensors side by side: concatenate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.graph.ops.families.building import Builder, access, counted, indices, is_number, names
from shardalg.graph.ops.rule import PICK, Rule

LETTERS = "ijklmnpqtuvwxyz"


def broadcast_in_dim(signature: Signature) -> tuple[Rule, ...]:
    """`[d1] -> [d0, d1]`; an operand dimension of size 1 against n has index 0."""
    shape, source = signature.results[0].shape, signature.operands[0].shape
    loops = names("d", len(shape))
    targets = signature.param("broadcast_dimensions")
    dims = [0 if n == 1 != shape[t] else loops[t] for n, t in zip(source, targets, strict=True)]
    return (_layout(signature, dict(zip(loops, shape, strict=True)), dims, loops),)


def transpose(signature: Signature) -> tuple[Rule, ...]:
    """`[d0, d1] -> [d1, d0]`."""
    shape = signature.operands[0].shape
    loops = names("d", len(shape))
    target = [loops[d] for d in signature.param("permutation")]
    return (_layout(signature, dict(zip(loops, shape, strict=True)), loops, target),)


def squeeze(signature: Signature) -> tuple[Rule, ...]:
    """`[d0, 0] -> [d0]`."""
    shape = signature.operands[0].shape
    dropped = {d % len(shape) for d in signature.param("dimensions")}
    loops = {d: f"d{d}" for d in range(len(shape)) if d not in dropped}
    extents = {name: shape[d] for d, name in loops.items()}
    dims = [loops.get(d, 0) for d in range(len(shape))]
    return (_layout(signature, extents, dims, loops.values()),)


def tile(signature: Signature) -> tuple[Rule, ...]:
    """`[d0, d1] -> [d0, n*r1+d1]`: repetition r of a dimension of n; one without is plain."""
    shape, source = signature.results[0].shape, signature.operands[0].shape
    loops = names("d", len(shape))
    extents, target = dict(zip(loops, source, strict=True)), list(map(Index.of, loops))
    for dim, (n, size) in enumerate(zip(source, shape, strict=True)):
        if n != size:
            extents[f"r{dim}"] = size // n
            target[dim] = target[dim] + Index.of(f"r{dim}") * n
    row = _layout(signature, extents, loops, target)
    return (replace(row, family="tile"),)


def iota(signature: Signature) -> tuple[Rule, ...]:
    """`-> [d0, d1]`: the point is the position on the loop of `dimension`.

    A float that cannot count so far rounds each position once, from the first element on.
    """
    (value,), dim = signature.results, signature.param("dimension")
    loops = names("d", len(value.shape))
    most = counted(value.dtype)
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
    """`[], [] -> [d0, d1], [d0, d1]`: the point is the position, from a start per dimension."""
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
    """`-> [d0, d1]`: no element has a value that anybody may rely on."""
    shape = signature.results[0].shape
    loops = names("d", len(shape))
    extents = tuple(zip(loops, shape, strict=True))
    return (Rule(signature.primitive, extents, ((),), (indices(loops),), family="shape"),)


def reshape(signature: Signature) -> tuple[Rule, ...]:
    """`[2*i+j, k] -> [i, j, k]`, with a transpose first if `dimensions` says so.

    Where the factors of both sides do not nest, one flat loop with floor and modulo:
    `[i//4, i%4] -> [i//6, i%6]` for (6, 4) -> (4, 6).
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
    """A row that moves elements: one read, linear."""
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
    """Dimensions `range(start, stop)` of one side of a reshape, with their sizes."""

    start: int
    sizes: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements of the span that one step of each dimension skips."""
        return tuple(math.prod(self.sizes[k + 1 :]) for k in range(len(self.sizes)))


def factor(source: list[int], target: list[int]) -> tuple[dict[str, int], list[Index], list[Index]]:
    """Loops, and the index per dimension of both sides of a row-major reshape.

    >>> loops, read, write = factor([6, 5], [2, 3, 5])
    >>> loops, list(map(str, read)), list(map(str, write))
    ({'i': 2, 'j': 3, 'k': 5}, ['3*i+j', 'k'], ['i', 'j', 'k'])
    """
    extents: dict[str, int] = {}
    read, write = [Index()] * len(source), [Index()] * len(target)
    for left, right in groups(source, target) if 0 not in source else ():
        cuts = _cuts(left, right)
        nested = all(a % b == 0 for a, b in itertools.pairwise(cuts))
        fill = _nested if nested else _flat
        fill(extents, cuts, ((left, read), (right, write)))
    return extents, read, write


def groups(source: list[int], target: list[int]) -> list[tuple[DimensionRange, DimensionRange]]:
    """The shortest runs of dimensions with equal products on both sides."""
    found, i, j = [], 0, 0
    while i < len(source) or j < len(target):
        start = (i, j)
        left, right = math.prod(source[i : i + 1]), math.prod(target[j : j + 1])
        i, j = min(i + 1, len(source)), min(j + 1, len(target))
        while left != right:
            if left < right:
                left, i = left * source[i], i + 1
            else:
                right, j = right * target[j], j + 1
        spans = (
            DimensionRange(start[0], tuple(source[start[0] : i])),
            DimensionRange(start[1], tuple(target[start[1] : j])),
        )
        found.append(spans)
    return found


def _cuts(left: DimensionRange, right: DimensionRange) -> list[int]:
    total = math.prod(left.sizes)
    return sorted({total, 1, *left.strides, *right.strides}, reverse=True)


Sides = tuple[tuple[DimensionRange, list[Index]], ...]


def _name(extents: dict[str, int]) -> str:
    count = len(extents)
    return LETTERS[count] if count < len(LETTERS) else f"l{count}"


def _nested(extents: dict[str, int], cuts: list[int], sides: Sides) -> None:
    """One loop between two neighbouring strides; a dimension sums those between its own two."""
    for high, low in itertools.pairwise(cuts):
        name = _name(extents)
        extents[name] = high // low
        for span, maps in sides:
            for k, (size, stride) in enumerate(zip(span.sizes, span.strides, strict=True)):
                if high <= stride * size and low >= stride and size > 1:
                    maps[span.start + k] += Index.of(name) * (low // stride)


def _flat(extents: dict[str, int], cuts: list[int], sides: Sides) -> None:
    name = _name(extents)
    extents[name] = cuts[0]
    for span, maps in sides:
        for k, (size, stride) in enumerate(zip(span.sizes, span.strides, strict=True)):
            index = Index.of(name) // stride
            major = math.prod(span.sizes[:k]) == 1
            maps[span.start + k] = index if major else index % size


SHAPED = {"broadcast_in_dim", "reshape"}


def concatenate(signature: Signature) -> tuple[Rule, ...]:
    """`[d0] | [d0-10] -> [d0]`: the operands are alternatives, one of which exists."""
    axis = signature.param("dimension")
    return (_joined(signature, tuple(value.shape[axis] for value in signature.operands)),)


def join_ends(signature: Signature) -> tuple[Rule, ...]:
    """`[d0+7] | [d0-3] -> [d0]`: the end of the first operand, the start of the last one."""
    return (_joined(signature, signature.param("sizes")),)


def _joined(signature: Signature, sizes: tuple[int, ...]) -> Rule:
    """Args: sizes: how much of each operand is taken: of the first one its end."""
    shape, axis = signature.results[0].shape, signature.param("dimension")
    loops = names("d", len(shape))
    skipped = signature.operands[0].shape[axis] - sizes[0]
    starts = (-skipped, *accumulate(sizes[:-1]))
    terms = tuple(
        (access(k, [Index.of(n) - start if d == axis else n for d, n in enumerate(loops)]),)
        for k, start in enumerate(starts)
    )
    every = frozenset(range(len(sizes)) if is_number(signature.results[0].dtype) else ())
    return Rule(
        signature.primitive,
        tuple(zip(loops, shape, strict=True)),
        terms,
        (indices(loops),),
        PICK,
        linear=every,
        addends=every,
        family="terms",
    )


def joined_operands(signature: Signature) -> tuple[int, ...]:
    """Operands that hold elements: of what is joined, an empty one is no part.

    Gradients of a split have such operands where one of its parts is empty.
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
