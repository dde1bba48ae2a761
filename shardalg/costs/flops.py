"""Floating-point operations of an operator, from its row in the table of sharding rules.

A row (`Rule`) declares the operator's loops and the index of each tensor dimension in these loops.
The counts are numbers, or formulas if the sizes of the loops are formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

from shardalg.algebra.affine import Index
from shardalg.costs.kernels.expert_load import busiest_flops
from shardalg.graph.ops.loops import covers
from shardalg.graph.ops.rule import Rule
from shardalg.sizes.formula import Formula, FormulaError
from shardalg.sizes.maximum import larger, smaller


def flops(
    rule: Rule, sizes: Mapping[str, Any] | None = None, shapes: Sequence[Sequence[Any]] = ()
) -> Any:
    """Return the floating-point operations of an operator: `rule.flops` per iteration.

    The iterations are the product of the loop sizes, with four exceptions. A loop whose iteration
    is selected by an index that is read at run time (`Rule.guards`, as in a gather) counts once. If
    a device has a part of the groups of a product, its rows are the load factor times this part
    (`kernels/expert_load.py`). Of the loops that cannot be partitioned (`rule.whole`), only those
    of the largest tensor count. If an index may be outside of the operand (padding, dilation), only
    the iterations that read an element count. A partition of such a loop reads a halo from its
    neighbours; therefore all its iterations count, unless `shapes` are given.

    Args:
      sizes: size of each loop on a device, by name, in numbers or formulas. A loop without an entry
        has its size in `rule`.
      shapes: shapes of the operands that loops of these sizes read; () means the shapes in `rule`.
    Source: XLA's cost analysis, which agrees on dot, and on convolutions of every kind.

    >>> from shardalg.graph.ops.rows import rules
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
    # The loop of a guard counts once, so it is among the counted loops from the start.
    count, counted_loops = rule.flops, {guard.loop.loop for guard in rule.guards}
    # Loops that read through one window are counted together: which iterations of one loop read an
    # element depends on the other loop.
    for index, operand, dim in _partial(rule):
        names = [n for n in index.variables if n in loops]
        has_shapes = bool(shapes) or all(loops[n] == rule.extents[n] for n in names)
        if has_shapes and not counted_loops & set(names) and len(names) == len(index.variables):
            size = (shapes or rule.operand_shapes)[operand][dim]
            count *= inside(index, {n: loops[n] for n in names}, size)
            counted_loops.update(names)
    counted_loops |= rule.whole
    free_sizes = (n for name, n in loops.items() if name not in counted_loops)
    count *= math.prod(loops[name] for name in _largest_block(rule)) * math.prod(free_sizes)
    return count if rule.load is None or not sizes else busiest_flops(rule, sizes, count)


def slides(rule: Rule) -> bool:
    """Return whether an operator may read outside of an operand, as a padded convolution does."""
    return bool(rule.flops and _partial(rule))


def read_dims(rule: Rule) -> frozenset[tuple[int, int]]:
    """Return the operand dimensions that an operator may read outside of their bounds.

    Each entry is (number of the operand, number of its dimension).
    """
    return frozenset((operand, dim) for _, operand, dim in _partial(rule))


@lru_cache(maxsize=65536)
def _largest_block(rule: Rule) -> frozenset[str]:
    """Return the names of the unpartitionable loops of the tensor with the most elements in them.

    Unpartitionable loops are those in `rule.whole`; elements along all other loops do not matter.
    """
    # A reduction does one operation per element that it reads, other operators one per element of
    # their largest tensor.
    tensors = rule.operands if rule.reduced else rule.tensors
    blocks = [
        frozenset(index.loop for index in rule.indices(tensor) if index.loop in rule.whole)
        for tensor in tensors
    ]
    return max(blocks, key=lambda names: math.prod(rule.extents[name] for name in names))


@lru_cache(maxsize=65536)
def _partial(rule: Rule) -> tuple[tuple[Index, int, int], ...]:
    """Return the reads that may be outside of their operand.

    Each entry is (index expression, number of the operand, number of the dimension).
    """
    # A row without shapes is a pattern, in which nothing is outside. Only rows with one term are
    # restricted to valid iterations.
    if not rule.operand_shapes or len(rule.terms) != 1:
        return ()
    partial_reads = []
    for access in rule.terms[0]:
        for dim, index in enumerate(rule.indices(access.operand)):
            # Whole loops are counted as blocks (`_largest_block`), not as windows.
            if not covers(rule, access.operand, dim) and not rule.whole & set(index.variables):
                partial_reads.append((index, access.operand, dim))
    return tuple(partial_reads)


def inside(index: Index, extents: Mapping[str, Any], size: Any) -> Any:
    """Return how many iterations of some loops have `0 <= index < size`.

    If the index is an exact division, iterations with a remainder do not count. All loops except
    one are enumerated. Along the last loop the valid iterations are an interval with a constant
    step, so they are counted in closed form. That loop is the longest one, or the loop whose extent
    is a formula.

    Args:
      extents: the number of iterations of each loop in the index.

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
    """Return the number of iterations with `0 <= index < size`, for plain integers (see `inside`).

    All loops except the longest are enumerated at once, in an array. Along the longest loop, the
    valid iterations are an interval, or every `step`-th iteration of one if the index is an exact
    division.
    """
    import numpy as np

    if not index.terms:
        whole, left = divmod(index.constant, index.div)
        return int(0 <= whole < size and not (index.exact and left))

    *rest, (longest, slope) = sorted(index.terms, key=lambda term: extents[term[0]])
    count = extents[longest]
    # `begin` has one entry per iteration of all other loops: the least index along the longest.
    # A loop of negative slope is run backwards, so that indices increase from `begin`.
    begin = np.asarray(index.constant + min(slope, 0) * (count - 1))
    for name, coefficient in rest:
        begin = np.add.outer(begin, coefficient * np.arange(extents[name]))
    assert not index.mod, f"{index} has a remainder, which no window has"
    slope, by = abs(slope), index.div if index.exact else 1
    low = np.maximum(-(begin // slope), 0)
    high = np.minimum((size * index.div - 1 - begin) // slope, count - 1)
    # `by` divides `slope*i + begin` only if gcd(slope, by) divides `begin`. Then i has one residue
    # `first` modulo `step`, by the inverse of slope / gcd.
    common = math.gcd(slope, by)
    step = by // common
    first = -begin // common * pow(slope // common, -1, step) % step
    found = (high - first) // step - (low - 1 - first) // step
    return int(np.where((begin % common == 0) & (low <= high), found, 0).sum())


def _inside_named(index: Index, extents: Mapping[str, Any], size: Any) -> Any:
    """Return the number of iterations with `0 <= index < size`, if some sizes are no integers.

    Sizes are formulas, or recorded sizes: numbers that record each comparison as a condition. Two
    loops with formulas may have a closed form (`_inside_pair`). Otherwise all loops with integer
    extents are enumerated, and the valid iterations of the remaining loop are an interval, whose
    length is a formula (`_hits`).
    """
    named_loops = [name for name, _ in index.terms if type(extents[name]) is not int]
    # With an exact division, only multiples of the divisor are iterations.
    divisor = index.div if index.exact else 1
    if len(named_loops) == len(index.terms) == 2 and divisor == 1:
        count = _inside_pair(index, extents, size * index.div)
        if count is not None:
            return count
    if len(named_loops) > 1 and any(type(extents[name]) is Formula for name in named_loops):
        sizes = " and ".join(str(extents[name]) for name in named_loops)
        raise FormulaError(
            f"a window of {index} slides over loops of {sizes} iterations: how many of them read "
            "an element has no formula. Give the size of the window or of the image as a number."
        )
    # The loop with a formula comes last, because only its iterations are counted as an interval.
    *enumerated_loops, (interval_loop, slope) = sorted(
        index.terms, key=lambda term: term[0] in named_loops[:1]
    )
    count = 0
    for point in product(*(range(extents[name]) for name, _ in enumerated_loops)):
        begin = index.constant + sum(
            c * i for (_, c), i in zip(enumerated_loops, point, strict=True)
        )
        count = count + _hits((slope, extents[interval_loop]), begin, divisor, size * index.div)
    return count


def _inside_pair(index: Index, extents: Mapping[str, Any], end: Any) -> Any:
    """Return the number of iterations of two loops with `0 <= index < end`, as a formula.

    One of the loops must have slope 1 or -1; otherwise the result is None.

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
    # The least index: loops of negative slope are run backwards, so that all slopes are positive.
    start = index.constant
    for name, each in index.terms:
        start = start + (each * (extents[name] - 1) if each < 0 else 0)
    outer, inner, step = extents[wide], extents[narrow], abs(slope)

    def below(bound: Any) -> Any:
        """Return the sum of `max(0, bound - step*o)` over `o = 0, ..., outer - 1`."""
        count = larger(0, smaller(outer, -_floor(-bound, step)))
        pairs = count * (count - 1)  # an even number
        half = pairs * Fraction(1, 2) if type(pairs) is Formula else pairs // 2
        return count * bound - step * half

    def points(bound: Any) -> Any:
        """Return the number of iterations whose index, counted from `start`, is below `bound`."""
        return below(bound) - below(bound - inner)

    # Indices below `end`, without those below 0.
    return points(end - start) - points(-start)


def _hits(loop: tuple[int, Any], begin: Any, by: int, end: Any) -> Any:
    """Return how many iterations i of a loop have a valid index `slope*i + begin`.

    A valid index is a multiple of `by` in `[0, end)`. The iterations with multiples of `by` are
    `first + step*k` for k = 0, 1, .... Those with an index in `[0, end)` are a range of k, whose
    length is the result.

    Args:
      loop: the loop's slope and its number of iterations.
    """
    slope, count = loop
    # A loop of negative slope is run backwards, so that indices increase from `begin`.
    if slope < 0:
        slope, begin = -slope, begin + slope * (count - 1)
    common = math.gcd(slope, by)
    step = by // common
    first = 0
    # `by` divides `slope*i + begin` only if gcd(slope, by) divides `begin`. Then i has one residue
    # `first` modulo `step`, by the inverse of slope / gcd.
    if by > 1:
        if type(begin) is Formula:
            raise FormulaError(
                f"a window starts at {begin} between elements that are {by} apart: which of its "
                "reads meet one has no formula. Give the padding or the dilation as a number."
            )
        if int(begin) % common:
            return 0
        first = -int(begin) // common * pow(slope // common, -1, step) % step
    # `low` is the first iteration with an index of at least 0: ceil(-begin / slope).
    low = larger(0, -_floor(begin, slope))
    # Both the number of iterations and the end of the operand limit the last valid iteration.
    bounds = (count - 1 - first, step), (end - 1 - begin - slope * first, slope * step)
    # Both limits are in units of k. The k before the first valid one is subtracted from the last.
    last = smaller(*(_floor(above, below) for above, below in bounds))
    return larger(0, last - _floor(low - 1 - first, step))


def _floor(above: Any, below: int) -> Any:
    """Return `above // below`, or `above` itself if `below` is 1."""
    # A division by 1 would write a floor or a ceiling into the formula.
    return above if below == 1 else above // below
