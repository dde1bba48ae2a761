"""What a value is made of, element by element: it can be made again of that where it is read."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from shardalg.graph.ir import Graph, Signature
from shardalg.graph.once import once_per_graph
from shardalg.ops.rows import rules

KEPT = ("annotate", "optimization_barrier")
"""Identities that hold a value where it is."""
STEPS = 12
"""How many operators at most are computed again in place of a move."""
Dims = tuple[int | None, ...]
"""Per dimension of a value, the dimension of another that it is; None for one that is not."""


class Origin(NamedTuple):
    """A value that another is made of, and which of the other's dimensions its own are."""

    value: int
    dims: Dims


Origins = tuple[Origin, ...]
"""All values that a value is made of."""
Known = dict[int, tuple[int, Origins]]
"""Per value, by how many operators it is made of which origins."""


@once_per_graph
def origins(graph: Graph) -> dict[int, Origins]:
    """Values made element by element of smaller ones, and of at most one that is as large.

    A comparison of indices with an iota (the one-hot vectors of a loss), the distances of all
    pairs, rows times their norms: what is smaller takes less to send, and what is as large may be
    at hand already where the value is not. With two as large a sum of layers would be made of all
    layers before, and no two of them alike.
    """
    free = {*remade_values(graph), *graph.literals, *(value for value, _ in graph.constants)}
    known: Known = {}
    for node in graph.walk():
        if node.bodies or len(node.results) != 1:
            continue
        places = _places(node.signature)
        pairs = [p for p in zip(node.operands, places, strict=False) if p[0] not in free]
        if not pairs:
            continue
        made = [_through(known.get(value), value, dims) for value, dims in pairs]
        steps = 1 + sum([count for count, _ in made])
        found = dict.fromkeys([origin for _, each in made for origin in each])
        size = math.prod(node.signature.results[0].shape)
        large = [o for o in found if math.prod(graph.values[o.value].type.shape) >= size]
        if steps <= STEPS and len(large) <= 1 and len(large) < len(found):
            known[node.results[0]] = steps, tuple(found)
    return {value: made_of for value, (_, made_of) in known.items()}


def _through(known: tuple[int, Origins] | None, value: int, dims: Dims) -> tuple[int, Origins]:
    """The origins of an operand, with the dimensions of the result that they are.

    Args:
      dims: per dimension of the operand, the dimension of the result.
    """
    if known is None:
        return 0, (Origin(value, dims),)
    steps, made_of = known
    places = [tuple([None if d is None else dims[d] for d in one.dims]) for one in made_of]
    return steps, tuple([Origin(o.value, p) for o, p in zip(made_of, places, strict=True)])


@lru_cache(maxsize=1 << 12)
def _places(signature: Signature) -> tuple[Dims, ...]:
    """Per operand and dimension the dimension of the result that it is; () where some are none."""
    if not signature.results[0].shape or not (elementwise(signature) or repeats(signature)):
        return ()
    (row,) = rules(signature) or ()
    places = {index.loop: dim for dim, index in enumerate(row.results[0]) if index.loop}
    indices = [row.indices(operand) for operand in range(len(signature.operands))]
    if any(i.variables and i.loop not in places for dims in indices for i in dims):
        return ()
    return tuple([tuple([places[i.loop] if i.loop else None for i in dims]) for dims in indices])


@lru_cache(maxsize=1 << 12)
def repeats(signature: Signature) -> bool:
    """Whether a node without arithmetic makes its only result of fewer elements.

    >>> from shardalg.graph.ir import ValueType
    >>> row, table = ValueType((8,), "float32"), ValueType((4, 8), "float32")
    >>> how = (("shape", (4, 8)), ("broadcast_dimensions", (1,)), ("sharding", None))
    >>> repeats(Signature("broadcast_in_dim", how, (row,), (table,)))
    True
    """
    if not formats(signature):
        return False
    (read,), (made,) = signature.operands, signature.results
    return math.prod(read.shape) < math.prod(made.shape)


def formats(signature: Signature) -> bool:
    """Whether a node makes its only result of the elements of one operand as they are."""
    rows = rules(signature)
    alone = len(signature.operands) == len(signature.results) == 1
    one = alone and rows is not None and len(rows) == 1
    return bool(one and rows and not rows[0].flops and not rows[0].reduced)


@once_per_graph
def remade_values(graph: Graph) -> frozenset[int]:
    """Values that any layout can be made of again for nothing: of numbers and constants alone.

    Zeros and an iota, and what is worked out of them element by element (a causal mask, positions).
    """
    known = {*graph.literals, *(value for value, _ in graph.constants)}
    found = set()
    for node in graph.walk():
        if node.bodies or len(node.results) != 1 or not known.issuperset(node.operands):
            continue
        alone = graph.literals.issuperset(node.operands) and rules(node.signature) is not None
        if alone or elementwise(node.signature):
            known.add(node.results[0])
            if node.signature.results[0].shape:
                found.add(node.results[0])
    return frozenset(found)


@lru_cache(maxsize=1 << 12)
def elementwise(signature: Signature) -> bool:
    """Whether an element of the result is made of one element of each operand."""
    rows = rules(signature) or ()
    if len(rows) != 1 or signature.primitive in KEPT:
        return False
    row = rows[0]
    indices = (index for tensor in row.tensors for index in row.indices(tensor))
    loops = {name for name, _ in row.loops}
    marked = row.guards or row.symbols or row.whole or row.local or row.prefix
    plain = all(index.loop or not index.variables for index in indices)
    return plain and not marked and row.result_loops == loops
