"""Indices that count along a dimension of their own pair it with the operand's: `x[arange(n), i]`.

Written so, a gather or scatter reads as if any place could be meant. Paired, both dimensions are
one batch loop, and where they are split alike nothing moves (XLA finds the same, by its iotas).

What is added to rows of zeros, and then to a table, is added to the table.

Dimensions of a gather that no index selects and the result lacks: only element 0 is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np

from shardalg.graph.ir import Graph, Node, Params, Signature
from shardalg.graph.ops.canonicalize.known import KnownValues, rewritten
from shardalg.graph.ops.families.building import record
from shardalg.graph.ops.families.indexing import COMBINE, GATHER, SCATTER, applies_code, numbers

Answer = TypeVar("Answer")
DROPPED = {"gather": "collapsed_slice_dims", **dict.fromkeys(COMBINE, "inserted_window_dims")}
"""Field of the dimension numbers with the operand dimensions that the value lacks."""
SELECTED = {"gather": "start_index_map", **dict.fromkeys(COMBINE, "scatter_dims_to_operand_dims")}
PAIRED = {
    "gather": "start_indices_batching_dims",
    **dict.fromkeys(COMBINE, "scatter_indices_batching_dims"),
}


def indices_paired(graph: Graph) -> Graph:
    """The graph in which gathers and scatters have batch dimensions for indices that count."""
    counting = _Counting(graph)
    pair = partial(_paired, graph, counting)
    table = dict.fromkeys(SELECTED, pair)
    return rewritten(graph, table | {"gather": lambda n: _in_order(counting, n) or pair(n)})


def _in_order(counting: _Counting, node: Node) -> Node | None:
    """Return a reshape instead of a gather that reads all elements of one dimension in order."""
    found = numbers(node.signature)
    shape, made = node.signature.operands[0].shape, node.signature.results[0].shape
    indices = node.signature.operands[1].shape
    if len(found.selected) != 1 or indices[-1:] != (1,) or found.operand_batching:
        return None
    (dim,) = found.selected
    sizes = tuple(1 if d == dim else n for d, n in enumerate(shape))
    batch = len(indices) - 1
    window = (*range(dim), *range(dim + batch, len(made)))
    is_whole = node.signature.param("slice_sizes") == sizes and found.dropped == (dim,)
    if not is_whole or found.window != window or math.prod(indices) != shape[dim]:
        return None
    if not counting.in_order(node.operands[1]):
        return None
    params = (("dimensions", None), ("new_sizes", made))
    types = node.signature.operands[:1]
    signature = Signature("reshape", params, types, node.signature.results)
    return replace(node, signature=signature, operands=node.operands[:1])


def _paired(graph: Graph, counting: _Counting, node: Node) -> Node | None:
    """The node with its counting components as batch dimensions; None if it has none.

    One that applies code stays: JAX makes that again of no parameters.
    """
    if applies_code(node.signature):
        return None
    pieces = _pieces(graph, node)
    found = numbers(node.signature)
    dims: dict[int, int] = {}
    for component, piece in enumerate(pieces):
        batch = counting.along(piece)
        dim = found.selected[component]
        shape = graph.values[piece].type.shape
        vector = len(shape) - 1  # of one component, which counts along it too: 0
        if batch is None or batch in {*found.index_batching, *dims.values(), vector}:
            continue
        if dim in found.dropped and shape[batch] == _size(graph, node, dim):
            dims[dim] = batch
    rest = [p for p, dim in zip(pieces, found.selected, strict=False) if dim not in dims]
    if not dims or len(rest) != 1:
        return None
    types = list(node.signature.operands)
    types[1] = graph.values[rest[0]].type
    signature = replace(node.signature, params=_params(node, dims), operands=tuple(types))
    return replace(
        node, signature=signature, operands=(node.operands[0], rest[0], *node.operands[2:])
    )


def _size(graph: Graph, node: Node, dim: int) -> int:
    return graph.values[node.operands[0]].type.shape[dim]


def _pieces(graph: Graph, node: Node) -> tuple[int, ...]:
    """A value per component of the index vector, where they are put side by side."""
    indices = node.operands[1]
    producer = graph.producer[indices]
    made = None if producer is None else graph.nodes[producer]
    last = len(graph.values[indices].type.shape) - 1
    if made is None or made.primitive != "concatenate" or made.region != node.region:
        return ()
    single = all(type_.shape[-1] == 1 for type_ in made.signature.operands)
    return made.operands if made.signature.param("dimension") == last and single else ()


def _params(node: Node, dims: dict[int, int]) -> Params:
    """The parameters with (operand dimension, dimension of the indices) as batch dimensions."""
    name = node.primitive
    fields = record(
        node.signature.param("dimension_numbers"), GATHER if name == "gather" else SCATTER
    )
    pairs = dict(zip(fields["operand_batching_dims"], fields[PAIRED[name]], strict=True)) | dims
    changed = {
        DROPPED[name]: tuple(d for d in fields[DROPPED[name]] if d not in dims),
        SELECTED[name]: tuple(d for d in fields[SELECTED[name]] if d not in dims),
        "operand_batching_dims": tuple(sorted(pairs)),
        PAIRED[name]: tuple(pairs[d] for d in sorted(pairs)),
    }
    # pairs come first in the order of indices: sorted ones may not be sorted so
    own = {"dimension_numbers": tuple((fields | changed).items()), "indices_are_sorted": False}
    return tuple((dict(node.signature.params) | own).items())


class _Counting:
    """Along which dimension the elements of a value are 0, 1, 2, ..., alike along all others."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants = dict(graph.constants)
        self.known: dict[int, int | None] = {}

    def along(self, value: int) -> int | None:
        """That dimension; None where it is not seen to count."""
        if value not in self.known:
            producer = self.graph.producer[value]
            if value in self.constants:
                self.known[value] = _counts(np.asarray(self.constants[value]))
            elif producer is None:
                self.known[value] = None
            else:
                node = self.graph.nodes[producer]
                follow = _FOLLOW.get(node.primitive)
                self.known[value] = follow(self, node) if follow else None
        return self.known[value]

    def in_order(self, value: int) -> bool:
        """Return whether the elements of a value are 0, 1, 2, ... in row-major order."""
        shape = self.graph.values[value].type.shape
        if math.prod(shape) < 2:
            return False
        dim = self.along(value)
        if dim is not None and shape[dim] == math.prod(shape):
            return True
        producer = self.graph.producer[value]
        node = None if producer is None else self.graph.nodes[producer]
        if node is None or node.primitive not in _IN_ORDER:
            return False
        if node.primitive == "select_n":
            return bool(self.unwrapped(node, self.in_order))
        source = node.signature.operands[0]
        if node.primitive == "broadcast_in_dim" and math.prod(source.shape) != math.prod(shape):
            return False
        narrow = _unwrapped(node, 0, math.prod(shape)) is None
        return not narrow and self.in_order(node.operands[0])

    def reshaped(self, node: Node) -> int | None:
        """It counts along the dimension of that size with as many elements before it."""
        dim = self.along(node.operands[0])
        before, after = node.signature.operands[0].shape, node.signature.results[0].shape
        if dim is None or node.signature.param("dimensions") is not None:
            return None
        return next(
            (
                d
                for d, size in enumerate(after)
                if size == before[dim] and math.prod(after[:d]) == math.prod(before[:dim])
            ),
            None,
        )

    def squeezed(self, node: Node) -> int | None:
        """Dimensions of one element go: it counts along no such dimension."""
        dim, gone = self.along(node.operands[0]), node.signature.param("dimensions")
        return None if dim is None or dim in gone else dim - sum(d < dim for d in gone)

    def transposed(self, node: Node) -> int | None:
        """It counts along the place of that dimension in the result."""
        dim = self.along(node.operands[0])
        return None if dim is None else node.signature.param("permutation").index(dim)

    def iota(self, node: Node) -> int | None:
        """It counts along the dimension that it names."""
        return _unwrapped(node, node.signature.param("dimension"))

    def converted(self, node: Node) -> int | None:
        """Integers stay what they are."""
        return _unwrapped(node, self.along(node.operands[0]))

    def broadcast(self, node: Node) -> int | None:
        """It counts along the place of that dimension in the result, unless that is repeated."""
        dim, dims = self.along(node.operands[0]), node.signature.param("broadcast_dimensions")
        if dim is None:
            return None
        before, after = node.signature.operands[0].shape, node.signature.results[0].shape
        return dims[dim] if before[dim] == after[dims[dim]] else None

    def wrapped(self, node: Node) -> int | None:
        """`select_n(i < 0, i, i + n)`, as JAX writes negative indices: `i`, where it counts."""
        return self.unwrapped(node, self.along)

    def unwrapped(self, node: Node, ask: Callable[[int], Answer]) -> Answer | None:
        """Return the answer for `i` of `select_n(i < 0, i, i + n)`, or None."""
        return ask(node.operands[1]) if self._keeps(node) else None

    def _keeps(self, node: Node) -> bool:
        """Whether a selection gives its first case wherever that is not negative."""
        which, first, *_ = node.operands
        if which in self.constants:
            return not np.any(self.constants[which])
        producer = self.graph.producer[which]
        if producer is None:
            return False
        test = self.graph.nodes[producer]
        negative = test.primitive == "lt" and test.operands[0] == first
        zero = self.constants.get(test.operands[1]) if negative else None
        return zero is not None and not np.any(zero)


def _unwrapped(node: Node, dim: int | None, count: int | None = None) -> int | None:
    """The dimension, where the integers of the result are wide enough to count along it.

    Args:
      count: how far they count; None: along the dimension.
    """
    made = node.signature.results[0]
    if dim is None or "int" not in made.dtype:
        return None
    value_bits = int(made.dtype.strip("uint")) - (not made.dtype.startswith("u"))
    return dim if (made.shape[dim] if count is None else count) <= 1 << value_bits else None


def _counts(array: np.ndarray) -> int | None:
    if array.dtype.kind not in "iu" or array.size < 2:
        return None
    for dim, size in enumerate(array.shape):
        places = np.arange(size).reshape([-1 if d == dim else 1 for d in range(array.ndim)])
        if size > 1 and np.array_equal(array, np.broadcast_to(places, array.shape)):
            return dim
    return None


_FOLLOW: dict[str, Callable[[_Counting, Node], int | None]] = {
    "iota": _Counting.iota,
    "convert_element_type": _Counting.converted,
    "broadcast_in_dim": _Counting.broadcast,
    "reshape": _Counting.reshaped,
    "select_n": _Counting.wrapped,
    "squeeze": _Counting.squeezed,
    "transpose": _Counting.transposed,
}
_IN_ORDER = frozenset(
    ("broadcast_in_dim", "convert_element_type", "reshape", "select_n", "squeeze")
)
"""Operators that keep the order of elements, if they keep their number."""


def scatters_added(graph: Graph) -> Graph:
    """The graph in which `x + scatter_add(zeros, i, u)` is `scatter_add(x, i, u)`.

    A loop that adds up so what a slice of its constants gives (the weights of a round of a circular
    pipeline) then reads its carry as a sum alone, which may wait until the loop is over, and holds
    no second table. Only where no two updates meet in one element: `x + (u + v)` would be
    `(x + u) + v`, which rounds otherwise.
    """
    added = partial(_added, KnownValues(graph))
    return rewritten(graph, {"add": added, "add_any": added})


def _added(known: KnownValues, node: Node) -> Node | None:
    """The scatter into the one operand that the other, a scatter into zeros, is."""
    for x, other in (node.operands, node.operands[::-1]):
        scatter = _into_zeros(known, node, other)
        if scatter is not None and known.graph.values[x].type == scatter.signature.results[0]:
            operands = (x, *scatter.operands[1:])
            return replace(node, signature=scatter.signature, operands=operands)
    return None


def _into_zeros(known: KnownValues, node: Node, value: int) -> Node | None:
    """The scatter into zeros that a value is, read by this node alone; None if it is none.

    It may stand in a remat span of the node's body, which hands its values out directly.
    """
    graph = known.graph
    producer = graph.producer[value]
    scatter = None if producer is None else graph.nodes[producer]
    if scatter is None or scatter.primitive != "scatter-add":
        return None
    if scatter.index not in graph.regions[node.region].nodes:
        return None
    fill = known.fill(scatter.operands[0], scatter.region)
    zero = None if fill is None else known.number(fill)
    leaves = value in (*graph.regions[node.region].results, *graph.results)
    is_alone = list(graph.users[value]) == [node.index] and not leaves
    return scatter if zero is not None and not zero and is_alone and _apart(scatter) else None


def _apart(scatter: Node) -> bool:
    """Whether no two updates meet in one element: each has its own, or its own of a batch."""
    signature = scatter.signature
    positions, paired = signature.operands[1].shape[:-1], numbers(signature).index_batching
    rows = prod(n for dim, n in enumerate(positions) if dim not in paired)
    return bool(signature.param("unique_indices")) or rows <= 1


class FirstElements(NamedTuple):
    """A gather of which such dimensions are read explicitly.

    Attributes:
      cut: a slice of the operand that the gather reads instead; None if it reads the operand.
      zeros, joined: index components that are 0, and their concatenation with the given ones;
        None where `cut` is given.
      rest: the gather that is left.
    """

    cut: Signature | None
    zeros: Signature | None
    joined: Signature | None
    rest: Signature


@lru_cache(maxsize=1 << 12)
def first_elements(signature: Signature) -> FirstElements | None:
    """Return the gather with an index, or a slice, in dimensions of which element 0 is read.

    As it is, the gather has no loop along such a dimension, so that each device would need the
    operand whole there. With the index 0 the device that holds element 0 reads it, and sends the
    result. With a slice it sends the slice, which is taken where that is smaller.

    Returns:
      None where the gather has no such dimension of more than one element.
    """
    if signature.primitive != "gather":
        return None
    found, operand, indices = numbers(signature), *signature.operands
    given = {*found.selected, *found.operand_batching}
    free = tuple(
        dim for dim in found.dropped if dim not in given and _is_longer(operand.shape[dim])
    )
    if not free:
        return None
    shape = tuple(1 if dim in free else size for dim, size in enumerate(operand.shape))
    if math.prod(shape) < math.prod(signature.results[0].shape):
        sliced = replace(operand, shape=shape)
        starts = (("start_indices", (0,) * len(shape)), ("strides", None))
        cut = Signature("slice", (("limit_indices", shape), *starts), (operand,), (sliced,))
        return FirstElements(cut, None, None, replace(signature, operands=(sliced, indices)))
    *places, count = indices.shape
    zero, more = (replace(indices, shape=(*places, n)) for n in (len(free), count + len(free)))
    how = (("broadcast_dimensions", ()), ("shape", zero.shape))
    zeros = Signature("broadcast_in_dim", how, (replace(indices, shape=()),), (zero,))
    joined = Signature("concatenate", (("dimension", len(places)),), (indices, zero), (more,))
    fields = record(signature.param("dimension_numbers"), GATHER)
    fields = fields | {"start_index_map": (*found.selected, *free)}
    params = dict(signature.params) | {"dimension_numbers": tuple(fields.items())}
    rest = replace(signature, params=tuple(params.items()), operands=(operand, more))
    return FirstElements(None, zeros, joined, rest)


def _is_longer(size: object) -> bool:
    return type(size) is int and size > 1
