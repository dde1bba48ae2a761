"""What follows from a row: classes of the loops and of the row, loops of a dimension, flops.

Which rows make a result element of the operands' elements of one index: no operators here.
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


OperandDim = tuple[int, int]
"""A dimension of an operand."""


def row_of(rows: Sequence[Rule], result: int) -> tuple[Rule, tuple[Index, ...]]:
    """The row that makes a result, and the result's indices."""
    rule = rows[result] if len(rows) > 1 else rows[0]
    return rule, rule.results[0 if len(rows) > 1 else result]


def moves_none(rule: Rule) -> bool:
    """Whether every result element is made of one element of each operand, and of nothing else."""
    selects = rule.guards or rule.symbols or rule.whole or rule.local or rule.prefix
    return not selects and rule.init is None and len(rule.terms) == 1 and not rule.reduced


def operands_along(rule: Rule, loop: str) -> dict[int, int | None] | None:
    """Per operand the dimension that is read at the loop's own number, None where none is.

    None for all if one is read elsewhere, or twice.

    >>> from shardalg.graph.ir import ValueType
    >>> from shardalg.graph.ops.rows import rules
    >>> x = ValueType((4, 8), "float32")
    >>> (row,) = rules(Signature("add", (), (x, ValueType((4, 1), "float32")), (x,)))
    >>> operands_along(row, "d0"), operands_along(row, "d1")
    ({0: 0, 1: 0}, {0: 1, 1: None})
    """
    found: dict[int, int | None] = {}
    for operand, dims in sorted(rule.operands.items()):
        places = [(d, index) for d, index in enumerate(dims) if loop in index.variables]
        if len(places) > 1 or any(index != Index.of(loop) for _, index in places):
            return None
        found[operand] = places[0][0] if places else None
    return found


def number_along(
    signature: Signature,
    along: Mapping[int, int | None],
    numbers: Mapping[int, Number | None],
    fills: Mapping[OperandDim, Number | None],
) -> Number | None:
    """What stands in the result where operands have no element along a loop.

    Args:
      along: as `operands_along` gives it.
      numbers: operands all of whose elements are one number.
      fills: numbers that stand at places without elements.
    """
    given = {
        k: numbers.get(k) if dim is None or numbers.get(k) is not None else fills.get((k, dim))
        for k, dim in along.items()
    }
    known = {k: number for k, number in given.items() if number is not None}
    return at_numbers(signature, known) if len(known) == len(given) and known else None
