"""What follows from a row: classes of the loops and of the row, loops of a dimension, flops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

from shardalg.algebra.affine import Index
from shardalg.ops.rule import PICK, USER, Rule
from shardalg.sizes.formula import Formula, FormulaError
from shardalg.sizes.maximum import larger, smaller

PASS, CONTRACTING, WINDOW, SHIFTED = "pass", "contracting", "window", "shifted"
COMPOUND, PREFIX, SELECTED = "compound", "prefix", "selected"
BROADCAST, WHOLE = "broadcast", "whole"
LOOP_CLASSES = (
    PASS, CONTRACTING, WINDOW, SHIFTED, COMPOUND, PREFIX, SELECTED, BROADCAST, WHOLE,
)  # fmt: skip


def covers(rule: Rule, tensor: int, dim: int) -> bool:
    """Whether that dimension is one loop, unchanged, over its full size (`slice[0:k]` is not)."""
    index, shape = rule.indices(tensor)[dim], rule.shape(tensor)
    loop = index.loop
    return loop in rule.extents and (shape is None or shape[dim] == rule.extents[loop])


@lru_cache(maxsize=65536)
def dim_loops(rule: Rule, tensor: int, dim: int) -> tuple[tuple[str, int], ...]:
    """Loops (with extents) that make up a dimension, major to minor.

    One for a plain index; several where the index nests them, as `n*i + j` with j in [0, n) does;
    none for every other index: such a dimension carries no sharding by itself.

    Args:
      tensor: operand number, or `~r` for result r (-1 is result 0).

    >>> from shardalg.ops.rows import rules
    >>> from shardalg.graph.ir import Signature, ValueType
    >>> operand, result = ValueType((6, 5), "float32"), ValueType((2, 3, 5), "float32")
    >>> row, = rules(Signature("reshape", (("dimensions", None),), (operand,), (result,)))
    >>> dim_loops(row, 0, 0), dim_loops(row, -1, 2)
    ((('i', 2), ('j', 3)), (('k', 5),))
    """
    index = rule.indices(tensor)[dim]
    if index.loop in rule.extents:
        return ((index.loop, rule.extents[index.loop]),) if covers(rule, tensor, dim) else ()
    shape = rule.shape(tensor)
    return _nested(index, rule.extents, shape[dim] if shape else None)


def _nested(
    index: Index, extents: Mapping[str, int], size: int | None
) -> tuple[tuple[str, int], ...]:
    is_sum = index.div == 1 and not index.mod and not index.constant and index.terms
    if not is_sum or any(name not in extents for name in index.variables):
        return ()
    terms = sorted(index.terms, key=lambda term: (-term[1], -extents[term[0]]))
    expected = math.prod(extents[name] for name, _ in terms)
    if size not in (None, expected):
        return ()
    for name, coefficient in terms:
        expected = expected // extents[name] if extents[name] else 0
        if coefficient != expected:
            return ()
    return tuple((name, extents[name]) for name, _ in terms)


@lru_cache(maxsize=65536)
def moved(rule: Rule) -> frozenset[str]:
    """Loops in an index that is not just one loop over its full dimension."""
    return frozenset(
        name
        for tensor in rule.tensors
        for dim, index in enumerate(rule.indices(tensor))
        if not covers(rule, tensor, dim)
        for name in index.variables
        if name in rule.extents
    )


@lru_cache(maxsize=65536)
def loop_class(rule: Rule, loop: str) -> str:
    """How completion and partitioning treat a loop, read off the maps (never off the primitive).

    whole: delivered as a block. prefix: cumulated. contracting: in no result. selected: named by a
    run-time guard. broadcast: in a result only. pass: its loop alone in every index.
    compound: in an index with another result loop, or divided. window: with a reduced loop.
    shifted: alone in an index, scaled or offset, or over another extent.
    """
    for name, holds in _SPECIAL:
        if holds(rule, loop):
            return name
    return _moved_class(rule, loop) if loop in moved(rule) else PASS


def _is_selected(rule: Rule, loop: str) -> bool:
    if loop in rule.result_loops:
        return loop not in rule.operand_loops and loop in rule.guarded
    is_target = any(guard.loop.loop == loop for guard in rule.guards)
    return is_target or (loop in rule.guarded and rule.combine == PICK)


_SPECIAL = (
    (WHOLE, lambda rule, loop: loop in rule.whole),
    (PREFIX, lambda rule, loop: rule.prefix is not None and loop == rule.prefix[0]),
    (SELECTED, _is_selected),
    (CONTRACTING, lambda rule, loop: loop not in rule.result_loops),
    (BROADCAST, lambda rule, loop: loop not in rule.operand_loops),
)


def _moved_class(rule: Rule, loop: str) -> str:
    maps = [i for t in rule.tensors for i in rule.indices(t) if loop in i.variables]
    others = {v for i in maps for v in i.variables if v != loop and v in rule.extents}
    divided = any(i.mod or (i.div > 1 and not i.exact) for i in maps)
    if divided or others & rule.result_loops:
        return COMPOUND
    return WINDOW if others else SHIFTED


@lru_cache(maxsize=65536)
def row_class(rule: Rule) -> str:
    """Class of the whole row, by which completion orders its propagation.

    gather: run-time indices in vectors (scatter too). dynamic_slice: run-time numbers.
    convolution, contraction: two operands with contracting loops, with or without windows.
    window: one operand with windows, shifts, prefixes or whole loops (slice, pad, sort, cumsum).
    reduce: one operand with contracting loops. broadcast: loops only in the result.
    layout: the same elements in other dimensions. pointwise: every index is the result's own.
    """
    if rule.symbols:
        return "gather" if any(symbol.dims for symbol in rule.symbols) else "dynamic_slice"
    classes = {loop_class(rule, name) for name, extent in rule.loops if extent > 1}
    joins = rule.combine == USER
    factors = 1 if joins else max((len(term) for term in rule.terms), default=0)
    for name, holds in _ROW_CLASSES:
        if holds(classes, factors):
            return name
    own = all(not dims or _is_own(dims, rule.results[0]) for dims in rule.operands.values())
    return "pointwise" if own else "layout"


def _is_own(dims: tuple[Index, ...], result: tuple[Index, ...]) -> bool:
    """Whether an operand is read at the result's own index, but for broadcast dimensions."""
    pairs = zip(dims, result, strict=False)
    return len(dims) == len(result) and all(a == b or not a.terms for a, b in pairs)


_MOVING = {WINDOW, SHIFTED, PREFIX, WHOLE, SELECTED}
_ROW_CLASSES = (
    ("convolution", lambda c, n: n > 1 and CONTRACTING in c and c & {WINDOW, SHIFTED, COMPOUND}),
    ("contraction", lambda c, n: n > 1 and CONTRACTING in c),
    ("window", lambda c, n: bool(c & _MOVING)),
    ("reduce", lambda c, n: CONTRACTING in c),
    ("broadcast", lambda c, n: BROADCAST in c),
)


def flops(
    rule: Rule, sizes: Mapping[str, Any] | None = None, shapes: Sequence[Sequence[Any]] = ()
) -> Any:
    """Floating-point operations: `rule.flops` times the iterations that exist.

    Loops that a guard determines do not count; whole ones as the largest block. Where an index may
    leave its dimension (padding, dilation), only iterations inside count. Without `shapes` a loop
    of another size than the row's is a part of it: it reads a halo, so that all iterations count.

    Args:
      sizes: of the loops, as a device runs them: numbers or formulas. A loop that is not in it has
        the extent of the row.
      shapes: of the operands that loops of these sizes read; () for those of the row.
    Source: XLA's cost analysis, which agrees on dot, and on convolutions of every kind.

    >>> from shardalg.ops.rows import rules
    >>> from shardalg.graph.ir import Signature, ValueType
    >>> f = lambda *shape: ValueType(shape, "float32")
    >>> dims = ("dimension_numbers", (((1,), (0,)), ((), ())))
    >>> row, = rules(Signature("dot_general", (dims,), (f(64, 128), f(128, 32)), (f(64, 32),)))
    >>> flops(row) == 2 * 64 * 128 * 32, flops(row, {"m": 8})
    (True, 65536)
    """
    if not rule.flops:
        return 0
    loops = {**rule.extents, **(sizes or {})}
    count, counted = rule.flops, {guard.loop.loop for guard in rule.guards}
    for index, operand, dim in _partial(rule):
        names = [n for n in index.variables if n in loops]
        known = bool(shapes) or all(loops[n] == rule.extents[n] for n in names)
        if known and not counted & set(names) and len(names) == len(index.variables):
            size = (shapes or rule.operand_shapes)[operand][dim]
            count *= inside(index, {n: loops[n] for n in names}, size)
            counted.update(names)
    counted |= rule.whole
    free = (n for name, n in loops.items() if name not in counted)
    return count * math.prod(loops[name] for name in _largest_block(rule)) * math.prod(free)


def slides(rule: Rule) -> bool:
    """Whether an iteration may read outside of an operand, as those of a padded window do."""
    return bool(rule.flops and _partial(rule))


def read_dims(rule: Rule) -> frozenset[tuple[int, int]]:
    """Operand and dimension of the reads that an iteration may miss."""
    return frozenset((operand, dim) for _, operand, dim in _partial(rule))


@lru_cache(maxsize=65536)
def _largest_block(rule: Rule) -> frozenset[str]:
    """The whole loops of the tensor with the most elements of them; windows are no blocks."""
    # what is combined is counted where it is read
    tensors = rule.operands if rule.reduced else rule.tensors
    blocks = [frozenset(i.loop for i in rule.indices(t) if i.loop in rule.whole) for t in tensors]
    return max(blocks, key=lambda names: math.prod(rule.extents[name] for name in names))


@lru_cache(maxsize=65536)
def _partial(rule: Rule) -> tuple[tuple[Index, int, int], ...]:
    """Index, operand and dimension of each read that an iteration may miss; no blocks."""
    if not rule.operand_shapes or len(rule.terms) != 1:
        return ()
    reads = [(a.operand, d) for a in rule.terms[0] for d in range(len(a.dims))]
    moving = [(k, d) for k, d in reads if not covers(rule, k, d)]
    found = ((rule.indices(k)[d], k, d) for k, d in moving)
    return tuple((i, k, d) for i, k, d in found if not rule.whole & set(i.variables))


def inside(index: Index, extents: Mapping[str, Any], size: Any) -> Any:
    """Points of the box of `extents` at which `index` is in `[0, size)` and its division comes out.

    Of the longest loop they are counted, for each point of the others: those of an interval, or of
    one residue class in it. Extents, sizes and constants may be formulas or recorded sizes: then
    the loop that is counted is the one whose extent is no plain number.

    >>> inside(Index.of("o") + "r" - 1, {"o": 4, "r": 3}, 4)
    10
    >>> inside((Index.of("o") - "r").over(3), {"o": 10**9, "r": 2}, 10**9)
    666666667
    >>> [inside(Index.of(element), {}, 4) for element in (-1, 3)]
    [0, 1]
    >>> from shardalg.sizes.formula import symbol
    >>> H = symbol("H")
    >>> inside(Index.of("o") + "r" - 1, {"o": H, "r": 3}, H)
    3*H - 2

    Raises:
      FormulaError: two loops of the index have formulas for extents.
    """
    numbers = (size, index.constant, *(extents[name] for name, _ in index.terms))
    if not all(type(number) is int for number in numbers):
        return _inside_named(index, extents, size)
    return _inside_numbers(index, extents, size)


def _inside_numbers(index: Index, extents: Mapping[str, int], size: int) -> int:
    """Return the count of `inside` where all sizes are plain numbers."""
    import numpy as np

    if not index.terms:
        whole, left = divmod(index.constant, index.div)
        return int(0 <= whole < size and not (index.exact and left))

    *rest, (longest, slope) = sorted(index.terms, key=lambda term: extents[term[0]])
    count = extents[longest]
    begin = np.asarray(index.constant + min(slope, 0) * (count - 1))  # of the loop run upwards
    for name, coefficient in rest:
        begin = np.add.outer(begin, coefficient * np.arange(extents[name]))
    assert not index.mod, f"{index} has a remainder, which no window has"
    slope, by = abs(slope), index.div if index.exact else 1
    low = np.maximum(-(begin // slope), 0)
    high = np.minimum((size * index.div - 1 - begin) // slope, count - 1)
    common = math.gcd(slope, by)
    step = by // common
    first = -begin // common * pow(slope // common, -1, step) % step
    found = (high - first) // step - (low - 1 - first) // step
    return int(np.where((begin % common == 0) & (low <= high), found, 0).sum())


def _inside_named(index: Index, extents: Mapping[str, Any], size: Any) -> Any:
    """Return the count of `inside` where some sizes are formulas or recorded sizes."""
    named = [name for name, _ in index.terms if type(extents[name]) is not int]
    by = index.div if index.exact else 1
    if len(named) == len(index.terms) == 2 and by == 1:
        found = _inside_pair(index, extents, size * index.div)
        if found is not None:
            return found
    if len(named) > 1 and any(type(extents[name]) is Formula for name in named):
        sizes = " and ".join(str(extents[name]) for name in named)
        raise FormulaError(
            f"a window of {index} slides over loops of {sizes} iterations: how many of them read "
            "an element has no formula. Give the size of the window or of the image as a number."
        )
    *rest, (counted, slope) = sorted(index.terms, key=lambda term: term[0] in named[:1])
    found = 0
    for point in product(*(range(extents[name]) for name, _ in rest)):
        begin = index.constant + sum(c * i for (_, c), i in zip(rest, point, strict=True))
        found = found + _hits((slope, extents[counted]), begin, by, size * index.div)
    return found


def _inside_pair(index: Index, extents: Mapping[str, Any], end: Any) -> Any:
    """Return the count of `inside` for two loops of which one has slope 1 or -1, else None.

    With positive slopes, the index is `s*o + r + c`, and `r` has K values. For one value of `o`,
    `s*o + r < n` holds for `min(K, max(0, n - s*o))` of them. This number is the difference of
    `max(0, n - s*o)` and `max(0, n - K - s*o)`. Over all `o`, each term is an arithmetic series.

    >>> from shardalg.sizes.formula import symbol
    >>> index, H, K = Index.of("o") * 2 + "r" - 1, symbol("H"), symbol("K")
    >>> count = inside(index, {"o": H, "r": K}, 2 * H)
    >>> [count.at({"H": n, "K": k}) == inside(index, {"o": n, "r": k}, 2 * n)
    ...     for n, k in ((4, 3), (3, 9), (1, 1))]
    [True, True, True]
    """
    (wide, slope), (narrow, unit) = sorted(index.terms, key=lambda term: -abs(term[1]))
    if abs(unit) != 1:
        return None
    start = index.constant
    for name, each in index.terms:
        start = start + (each * (extents[name] - 1) if each < 0 else 0)
    outer, inner, step = extents[wide], extents[narrow], abs(slope)

    def below(bound: Any) -> Any:
        """Return the sum of `max(0, bound - step*o)` over the outer loop."""
        count = larger(0, smaller(outer, -_floor(-bound, step)))
        pairs = count * (count - 1)  # an even number
        half = pairs * Fraction(1, 2) if type(pairs) is Formula else pairs // 2
        return count * bound - step * half

    def points(bound: Any) -> Any:
        return below(bound) - below(bound - inner)

    return points(end - start) - points(-start)


def _hits(loop: tuple[int, Any], begin: Any, by: int, end: Any) -> Any:
    """Return how many multiples of `by` in `[0, end)` are `slope*i + begin`, for i in a loop.

    With i upwards, those are `first, first + step, ...` between the first i at or above 0 and the
    last one below `end`.
    """
    slope, count = loop
    if slope < 0:
        slope, begin = -slope, begin + slope * (count - 1)
    common = math.gcd(slope, by)
    step = by // common
    first = 0
    if by > 1:
        if type(begin) is Formula:
            raise FormulaError(
                f"a window starts at {begin} between elements that are {by} apart: which of its "
                "reads meet one has no formula. Give the padding or the dilation as a number."
            )
        if int(begin) % common:
            return 0
        first = -int(begin) // common * pow(slope // common, -1, step) % step
    low = larger(0, -_floor(begin, slope))
    bounds = (count - 1 - first, step), (end - 1 - begin - slope * first, slope * step)
    last = smaller(*(_floor(above, below) for above, below in bounds))
    return larger(0, last - _floor(low - 1 - first, step))


def _floor(above: Any, below: int) -> Any:
    """Return `above // below`, without a ceiling where nothing divides."""
    return above if below == 1 else above // below
