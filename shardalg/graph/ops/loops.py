"""Properties derived from a row (`Rule`): loop classes, the row's class, the loops of a dimension.

No operator is named here: everything is derived from the index maps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.graph.ops.families.pointwise import Number, at_numbers
from shardalg.graph.ops.rule import PICK, USER, Rule

PASS, CONTRACTING, WINDOW, SHIFTED = "pass", "contracting", "window", "shifted"
COMPOUND, PREFIX, SELECTED = "compound", "prefix", "selected"
BROADCAST, WHOLE = "broadcast", "whole"
LOOP_CLASSES = (
    PASS, CONTRACTING, WINDOW, SHIFTED, COMPOUND, PREFIX, SELECTED, BROADCAST, WHOLE,
)  # fmt: skip


def covers(rule: Rule, tensor: int, dim: int) -> bool:
    """Return whether the index of a tensor's dimension is one loop over its full size.

    For example, it is not for the operand of `x[0:k]`, because the loop has a smaller extent.

    Args:
      tensor: operand number, or `~r` for result r (-1 is result 0).
    """
    index, shape = rule.indices(tensor)[dim], rule.shape(tensor)
    loop = index.loop
    return loop in rule.extents and (shape is None or shape[dim] == rule.extents[loop])


@lru_cache(maxsize=65536)
def dim_loops(rule: Rule, tensor: int, dim: int) -> tuple[tuple[str, int], ...]:
    """Return the loops (with extents) that a dimension consists of, major to minor.

    A plain index has one loop. An index that nests loops, such as `n*i + j` with j in [0, n), has
    several. Any other index has none: a sharding of such a dimension does not propagate.

    Args:
      tensor: operand number, or `~r` for result r (-1 is result 0).

    >>> from shardalg.graph.ops.rows import rules
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
    return _mixed_radix_loops(index, rule.extents, shape[dim] if shape else None)


def _mixed_radix_loops(
    index: Index, extents: Mapping[str, int], size: int | None
) -> tuple[tuple[str, int], ...]:
    """Return (loop, extent) for each loop of a mixed-radix index, major to minor; () for others.

    In a mixed radix, each coefficient is the product of the extents of all more minor loops, as in
    `12*i + 4*j + k` for j below 3 and k below 4.

    Args:
      size: the size of the dimension, which the index must cover; None if it is unknown.
    """
    is_sum = index.div == 1 and not index.mod and not index.constant and index.terms
    if not is_sum or any(name not in extents for name in index.variables):
        return ()
    # From major to minor, a loop's coefficient must be the product of the extents after it. A loop
    # of extent 1 has the coefficient of the loop before it, so equal ones are sorted by extent.
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
def loops_without_own_dimension(rule: Rule) -> frozenset[str]:
    """Return the loops that are not the whole index of every dimension that they index.

    They occur in the index of a window, a shift, or a nest of loops such as `4*i + j`, or run over
    a part of a dimension.
    """
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
    """Return the class by which completion and partitioning treat a loop.

    The first matching class is returned: whole: needed as one block. prefix: cumulated. selected:
    compared with a run-time index (a guard, as `k == $t` of a gather). contracting: in no result.
    broadcast: only in results. compound: in an index with another result loop, or in a divided
    index. window: in an index with a reduced loop. shifted: alone in an index, but scaled, offset,
    or over another extent than the dimension's. pass: alone and unchanged in every index.
    """
    if loop in rule.whole:
        return WHOLE
    if rule.prefix is not None and loop == rule.prefix[0]:
        return PREFIX
    if loop in rule.result_loops:
        # Only a run-time guard connects this loop with the operands, as in a gathered window.
        if loop not in rule.operand_loops and loop in rule.guarded:
            return SELECTED
    else:
        # A run-time number picks one iteration: of k in `k == $t` (gather), and of v in
        # `o == v + $t` (a pick). A sum adds all iterations that a guard does not exclude.
        is_target = any(guard.loop.loop == loop for guard in rule.guards)
        if is_target or (loop in rule.guarded and rule.combine == PICK):
            return SELECTED
        return CONTRACTING
    if loop not in rule.operand_loops:
        return BROADCAST
    if loop not in loops_without_own_dimension(rule):
        return PASS
    own_indices = [i for t in rule.tensors for i in rule.indices(t) if loop in i.variables]
    other_loops = {v for i in own_indices for v in i.variables if v != loop and v in rule.extents}
    is_divided = any(i.mod or (i.div > 1 and not i.exact) for i in own_indices)
    if is_divided or other_loops & rule.result_loops:
        return COMPOUND
    return WINDOW if other_loops else SHIFTED


@lru_cache(maxsize=65536)
def row_class(rule: Rule) -> str:
    """Return the class of the whole row, which orders the propagation of shardings.

    The first matching class is returned:
    convolution, contraction: two operands with contracting loops, with or without windows.
    gather: run-time index vectors (scatter too). dynamic_slice: run-time numbers.
    window: one operand with windows, shifts, prefixes or whole loops (slice, pad, sort, cumsum).
    reduce: one operand with contracting loops. broadcast: loops only in the result.
    pointwise: every operand is read at the result's own index. layout: all other rows.
    """
    classes = {loop_class(rule, name) for name, extent in rule.loops if extent > 1}
    # The operands of a user's reduction are not multiplied with each other.
    factors = 1 if rule.combine == USER else max((len(term) for term in rule.terms), default=0)
    if factors > 1 and CONTRACTING in classes:
        return "convolution" if classes & {WINDOW, SHIFTED, COMPOUND} else "contraction"
    if rule.symbols:
        return "gather" if any(symbol.dims for symbol in rule.symbols) else "dynamic_slice"
    if classes & {WINDOW, SHIFTED, PREFIX, WHOLE, SELECTED}:
        return "window"
    if CONTRACTING in classes:
        return "reduce"
    if BROADCAST in classes:
        return "broadcast"

    def is_result_index(dims: tuple[Index, ...]) -> bool:
        # An index without loops reads a broadcast dimension.
        """Return whether an operand is read at the index of the result, dimension by dimension."""
        pairs = zip(dims, rule.results[0], strict=False)
        return len(dims) == len(rule.results[0]) and all(a == b or not a.terms for a, b in pairs)

    is_elementwise = all(not dims or is_result_index(dims) for dims in rule.operands.values())
    return "pointwise" if is_elementwise else "layout"


OperandDim = tuple[int, int]
"""An operand's position and one of its dimensions, as the key of tables of windows and padding."""


def row_of(rows: Sequence[Rule], result: int) -> tuple[Rule, tuple[Index, ...]]:
    """Return the row that computes result number `result`, and the result's indices in this row.

    Args:
      rows: one row for all results, or one row per result.
    """
    rule = rows[result] if len(rows) > 1 else rows[0]
    return rule, rule.results[0 if len(rows) > 1 else result]


def moves_none(rule: Rule) -> bool:
    """Return whether each result element depends on one element of each operand alone.

    This is the case if no iterations are combined or selected, and there is no start value.
    """
    selects = rule.guards or rule.symbols or rule.whole or rule.local or rule.prefix
    return not selects and rule.init is None and len(rule.terms) == 1 and not rule.reduced


def operands_along(rule: Rule, loop: str) -> dict[int, int | None] | None:
    """Return, per operand, its dimension whose index is the loop, or None if it has none.

    Return None instead of a dictionary if an operand has the loop in two dimensions, or in an index
    other than the plain loop.

    >>> from shardalg.graph.ir import ValueType
    >>> from shardalg.graph.ops.rows import rules
    >>> x = ValueType((4, 8), "float32")
    >>> (row,) = rules(Signature("add", (), (x, ValueType((4, 1), "float32")), (x,)))
    >>> operands_along(row, "d0"), operands_along(row, "d1")
    ({0: 0, 1: 0}, {0: 1, 1: None})
    """
    dim_of_operand: dict[int, int | None] = {}
    for operand, dims in sorted(rule.operands.items()):
        places = [(d, index) for d, index in enumerate(dims) if loop in index.variables]
        if len(places) > 1 or any(index != Index.of(loop) for _, index in places):
            return None
        dim_of_operand[operand] = places[0][0] if places else None
    return dim_of_operand


def number_along(
    signature: Signature,
    along: Mapping[int, int | None],
    numbers: Mapping[int, Number | None],
    fills: Mapping[OperandDim, Number | None],
) -> Number | None:
    """Return the number that a result has in the padding along a loop; None if it is unknown.

    It is known if the operator is elementwise and the padding of its operands has known numbers.

    Args:
      along: the dimension of each operand along the loop (see `operands_along`).
      numbers: the number of each operand whose elements are all equal.
      fills: the number at padded positions, by operand and dimension.
    """
    # An operand without the loop, or with one number everywhere, has the same number in padding.
    given = {
        k: numbers.get(k) if dim is None or numbers.get(k) is not None else fills.get((k, dim))
        for k, dim in along.items()
    }
    known = {k: number for k, number in given.items() if number is not None}
    return at_numbers(signature, known) if len(known) == len(given) and known else None
