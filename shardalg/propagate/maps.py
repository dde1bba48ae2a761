"""From a row's index expressions to the loops that carry the digits of a tensor dimension."""

from __future__ import annotations

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.ops.rule import Rule

Loops = tuple[tuple[str, int], ...]
"""Loops of a dimension, major first, each with the extent that its digits must divide (0: any)."""
Map = tuple[Loops, ...]


def row_maps(
    signature: Signature, rules: tuple[Rule, ...], blocks: frozenset[str] = frozenset()
) -> tuple[Map, ...]:
    """Per tensor (operands first) and dimension, its loops. Several rows make one result each.

    Args:
      blocks: loops that are taken whole and carry digits all the same.
    """
    operands: list[Map] = [((),) * len(t.shape) for t in signature.operands]
    for rule in reversed(rules):
        for position, dims in rule.operands.items():
            if len(dims) == len(operands[position]):
                operands[position] = tuple(dim_loops(rule, index, blocks) for index in dims)
            else:
                # A run-time number is one element of its operand: the index names all but the last
                # dimension.
                rest = len(operands[position]) - len(dims)
                operands[position] = (
                    tuple(dim_loops(rule, index, blocks) for index in dims) + ((),) * rest
                )
    results = [
        tuple(dim_loops(rule, index, blocks) for index in dims)
        for rule in rules
        for dims in rule.results
    ]
    return (*operands, *results)


def dim_loops(rule: Rule, index: Index, blocks: frozenset[str] = frozenset()) -> Loops:
    """The loops whose digits partition a dimension with this index.

    A plain or shifted loop takes any digits. `n*i + j` over full extents is (i, j), each within its
    extent. In a window map `s*o + r` the loop of larger extent places the blocks; the other one
    only widens the read.

    >>> i, j = Index.of("i"), Index.of("j")
    >>> rule = Rule("reshape", (("i", 4), ("j", 8)), (), ((i, j),))
    >>> dim_loops(rule, i * 8 + j), dim_loops(rule, i + 3)
    ((('i', 4), ('j', 8)), (('i', 0),))
    """
    terms = [
        (name, coefficient) for name, coefficient in index.terms if rule.extents.get(name, 0) != 1
    ]
    if (
        index.mod
        or not terms
        or any(name in rule.whole - blocks or name not in rule.extents for name, _ in terms)
    ):
        return ()
    if index.div > 1 and not index.exact:
        size = -(-rule.extents[terms[0][0]] // index.div)
        return ((terms[0][0], size),) if len(terms) == 1 and not index.constant else ()
    nest = _nest(rule, index, terms)
    if nest:
        return nest
    free = [name for name, _ in terms if name not in rule.local]
    owner = max(
        free, key=lambda name: (rule.extents[name], name in rule.result_loops), default=None
    )
    return () if owner is None else ((owner, 0),)


def _nest(rule: Rule, index: Index, terms: list[tuple[str, int]]) -> Loops:
    """The loops of an index that counts through them like digits; () of others and of windows."""
    slides = any(name in rule.local or name not in rule.result_loops for name, _ in terms)
    if len(terms) == 1 or index.div > 1 or index.constant or slides:
        return ()
    by_stride = sorted(terms, key=lambda term: -term[1])
    stride = 1
    for name, coefficient in reversed(by_stride):
        if coefficient != stride:
            return ()
        stride *= rule.extents[name]
    return tuple((name, rule.extents[name]) for name, _ in by_stride)
