"""Classes of dimensions that one mesh axis shards together, derived from the operators' rows.

Two dimensions are in one class if an operator indexes both by the same loop: the hidden features of
a feed-forward layer, the columns of its first weight, its bias and their optimizer state. A class
is what logical-axis rules call a name ("mlp", "heads", "embed"), found without names.

A dimension that nests several loops (heads times features of a head) is in the class of its major
loop. There are two partitions: `fine` joins dimensions of equal size alone, `coarse` joins a nested
dimension with its major loop as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from shardalg.graph.ir import Graph, Signature, once_per_graph
from shardalg.graph.ops.loops import dim_loops
from shardalg.graph.ops.rows import rules
from shardalg.graph.union_find import UnionFind

Place = tuple[int, int]
"""A tensor of an operator (operands, then results) and a dimension of it."""


class Nest(NamedTuple):
    """A dimension that nests several loops, such as heads times features of a head.

    Attributes:
      place: the dimension.
      loops: per loop, major first: its extent, and the dimension of another tensor of the operator
        that has this loop and no other one; None if no tensor has such a dimension.
    """

    place: Place
    loops: tuple[tuple[int, Place | None], ...]


@lru_cache(maxsize=65536)
def _joins(signature: Signature) -> tuple[tuple[tuple[Place, Place], ...], tuple[Nest, ...]]:
    """Return the pairs of dimensions that one loop indexes, and the dimensions of several loops.

    A pair is (first dimension that the loop indexes, another such dimension). Loops of one
    iteration are left out. E.g. a product `ij,jk->ik`, whose tensors are 0, 1 and 2, has the pairs
    ((0, 1), (1, 0)), ((0, 0), (2, 0)) and ((1, 1), (2, 1)).
    """
    # The first dimension that each loop indexes alone, in the order of the tensors.
    first: dict[str, Place] = {}
    pairs: list[tuple[Place, Place]] = []
    # Dimensions that several loops index, with the name and the extent of each loop.
    nested: list[tuple[Place, tuple[tuple[str, int], ...]]] = []
    for number, rule in enumerate(rules(signature) or ()):
        for tensor in rule.tensors:
            # A row numbers its results -1, -2, ... A node has its results after its operands, and
            # each row of a node is for one of them.
            position = tensor if tensor >= 0 else len(signature.operands) + number + ~tensor
            for dim in range(len(rule.indices(tensor))):
                loops = tuple(loop for loop in dim_loops(rule, tensor, dim) if loop[1] > 1)
                if len(loops) == 1:
                    place = first.setdefault(loops[0][0], (position, dim))
                    if place != (position, dim):
                        pairs.append((place, (position, dim)))
                elif loops:
                    nested.append(((position, dim), loops))
    # Made last, because a loop may index a dimension alone only in a later tensor.
    nests = tuple(
        Nest(place, tuple((extent, first.get(loop)) for loop, extent in loops))
        for place, loops in nested
    )
    return tuple(pairs), nests


@dataclass(frozen=True, eq=False)
class DimensionClasses:
    """The classes of all dimensions of a graph; one mesh axis shards all dimensions of a class.

    Dimensions are numbered over all values.

    Attributes:
      base: per value, the number of its first dimension.
      fine: per dimension, its class of dimensions of equal size.
      coarse: per dimension, its class if a dimension of several loops (heads times features) is in
        the class of its major loop (heads), too.
      iterated: fine classes that a loop walks through (stacked layers, microbatches).
      nests: per fine class, the loops it consists of somewhere: per loop its extent and fine class.
    """

    base: tuple[int, ...]
    fine: tuple[int, ...]
    coarse: tuple[int, ...]
    iterated: frozenset[int]
    nests: dict[int, frozenset[tuple[tuple[int, int | None], ...]]] = field(repr=False)

    def of(self, value: int) -> tuple[int, ...]:
        """Return the class of each dimension of a value; see `coarse`."""
        return self.coarse[self.base[value] : self.base[value + 1]]

    def fine_of(self, value: int) -> tuple[int, ...]:
        """Return, for each dimension of a value, its class of dimensions of equal size (`fine`)."""
        return self.fine[self.base[value] : self.base[value + 1]]

    def is_iterated(self, value: int, dim: int) -> bool:
        """Return whether a loop takes one index of a dimension per iteration (stacked layers)."""
        return self.fine[self.base[value] + dim] in self.iterated

    def refusal(self, fine: int, parts: int, closed: frozenset[int]) -> str:
        """Return why a class does not split into equal parts along its loops, or "".

        A dimension of 8 heads times 64 features splits 8 ways. 16 parts would split the features
        as well, which is refused if these are `closed`: some operator sums over them.

        Args:
          closed: fine classes that must stay whole.
        """
        return self._refusal(fine, parts, closed, frozenset())

    def _refusal(self, fine: int, parts: int, closed: frozenset[int], seen: frozenset[int]) -> str:
        """Return the result of `refusal`: why a class does not split into `parts`, or "".

        A dimension may consist of several loops, such as heads times features. The parts divide the
        major loop first. If it has too few elements, the next loop is split by the rest, which is
        refused if the loop must stay whole. A loop may be a dimension of its own elsewhere, so its
        class is tested in the same way.

        Args:
          fine: the class. closed: classes that must stay whole, as an operator sums over them.
          seen: the classes around this one, which are not visited again.
        """
        if fine in self.iterated:
            return "a loop walks through this dimension"
        for loops in self.nests.get(fine, ()):
            # The parts that are left for the loops from this one on. E.g. 8 heads of 64 features in
            # 16 parts: 8 parts of the heads, and 2 parts of the features.
            remaining_parts = parts
            for number, (extent, inner) in enumerate(loops):
                if remaining_parts == 1:
                    break
                loop_parts = remaining_parts if extent % remaining_parts == 0 else extent
                if remaining_parts % loop_parts:
                    return f"its major part has {extent} elements, which {parts} does not divide"
                if number and (inner is None or inner in closed):
                    return f"its major part has only {loops[0][0]} elements for {parts} parts"
                if inner is not None and inner not in seen | {fine}:
                    why = self._refusal(inner, loop_parts, closed, seen | {fine})
                    if why:
                        return why
                remaining_parts //= loop_parts
        return ""


@once_per_graph
def dimension_classes(graph: Graph) -> DimensionClasses:
    """Return the classes of all dimensions of a graph.

    Two union-finds over all dimensions are built. `fine` joins dimensions that one loop of an
    operator indexes, and dimensions inside and outside of a loop body. `coarse` also joins a
    dimension that nests several loops, such as (heads, features of a head), with the dimension of
    the major loop. `nests` has the nested dimensions, `walked` the stacked ones whose elements a
    loop takes one by one.

    >>> import jax
    >>> from shardalg.graph.tracing.trace import trace
    >>> x, w, v = (jax.ShapeDtypeStruct(s, "float32") for s in ((8, 4), (4, 6), (6, 4)))
    >>> graph = trace(lambda x, w, v: x @ w @ v, x, w, v)
    >>> classes = dimension_classes(graph)
    >>> first, second, third = map(classes.of, graph.arguments)
    >>> first[1] == second[0], second[1] == third[0], first[1] == third[1]
    (True, True, False)
    """
    # Dimension d of value v has the number base[v] + d, as an element of the union-find.
    base = [0]
    for value in graph.values:
        base.append(base[-1] + len(value.type.shape))
    fine = UnionFind(base[-1])
    nests: list[tuple[int, tuple[tuple[int, int | None], ...]]] = []
    for node in graph.nodes:
        # Values of a call are connected through its bodies, by the region arguments below.
        pairs, nested = ((), ()) if node.bodies else _joins(node.signature)
        tensors = node.operands + node.results
        for (i, d), (j, e) in pairs:
            fine.join(base[tensors[i]] + d, base[tensors[j]] + e)
        for (i, d), parts in nested:
            inner = tuple(
                (extent, None if place is None else base[tensors[place[0]]] + place[1])
                for extent, place in parts
            )
            nests.append((base[tensors[i]] + d, inner))
    # A value that enters a loop body loses its leading dimension if the loop takes one index of it
    # per iteration (`source_drop`); the other dimensions correspond in their order.
    walked = set()
    for tie in graph.region_arguments:
        rank = len(graph.values[tie.source].type.shape) - tie.source_drop
        for d in range(rank):
            source = base[tie.source] + tie.source_drop + d
            fine.join(source, base[tie.target] + tie.target_drop + d)
        walked |= {base[tie.source]} if tie.source_drop else set()
        walked |= {base[tie.target]} if tie.target_drop else set()
    roots = fine.roots()
    iterated = frozenset(roots[item] for item in walked)
    coarse = UnionFind(base[-1])
    for item, root in enumerate(roots):
        coarse.join(item, root)
    nests_by_class: dict[int, set[tuple[tuple[int, int | None], ...]]] = {}
    for item, loops in nests:
        classes_of_loops = tuple((extent, None if i is None else roots[i]) for extent, i in loops)
        nests_by_class.setdefault(roots[item], set()).add(classes_of_loops)
        # Of a batch in microbatches, the loop over microbatches is not what an axis splits.
        major = next((i for _, i in classes_of_loops if i not in iterated), None)
        if major is not None:
            coarse.join(item, major)
    frozen = {root: frozenset(loops) for root, loops in nests_by_class.items()}
    return DimensionClasses(tuple(base), roots, coarse.roots(), iterated, frozen)


def matching_dims(
    classes: DimensionClasses, value: int, argument: int, shapes: tuple[tuple[int, ...], ...]
) -> Iterator[tuple[int, int]]:
    """Yield (dimension of a value, same dimension of the argument from which the value is made).

    E.g. a layer of shape (4, 8) of a stack (12, 4, 8) -> (0, 1), (1, 2).

    Args:
      shapes: of the value and of the argument.
    """
    inner, outer = shapes
    # A slice of a stack lacks leading dimensions; all others have the same order.
    drop = len(outer) - len(inner)
    if drop >= 0 and outer[drop:] == inner:
        yield from ((dim, dim + drop) for dim in range(len(inner)))
        return
    # After a transposition or a reshape, the classes of the dimensions tell.
    argument_classes = classes.of(argument)
    for dim, name in enumerate(classes.of(value)):
        yield from ((dim, other) for other, known in enumerate(argument_classes) if known == name)
