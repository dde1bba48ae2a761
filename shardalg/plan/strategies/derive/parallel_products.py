"""Which dimensions tensor parallelism shards: a choice without two on one parameter.

Megatron-LM (arXiv:1909.08053) shards the columns of a first product and the rows of the second one,
so that a single sum follows both. Here a class of dimensions (`dimension_classes`) is the unit: its
columns and rows are sharded together. Two classes on one parameter exclude each other. A choice is
worth its share of the parameters' bytes, minus its share of the bytes that products would sum:

    value(c) = parameter_bytes(c) / all parameter bytes - sum_bytes(c) / bytes of all products

The choice with the largest value is taken, and then every other class that does not conflict. In a
Transformer, these are heads, hidden features and vocabulary. The features of the residual would
reach every parameter as well, but every product would sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from shardalg.graph.ir import Graph
from shardalg.graph.ops.roles import DATA, PARAMETERS
from shardalg.plan.strategies.derive.dimension_classes import DimensionClasses, dimension_classes
from shardalg.plan.strategies.derive.product_uses import (
    BATCH,
    COLUMN,
    LOOKUP,
    ROW,
    ProductUses,
    product_uses,
)

MARGIN = 1e-6
"""Raises the value of bytes a little: of equal choices, the one that shards more bytes wins."""
EPSILON = 1e-9
"""The price of one class: of choices that are still equal, the one with fewer classes wins."""
LARGEST_SEARCH = 20_000
"""Above so many sets of open classes, the choice is made one class after the other."""

Values = Mapping[int, float]
Conflicts = Mapping[int, frozenset[int]]


@dataclass(frozen=True, eq=False)
class NamedGraph:
    """A graph with the roles of its arguments, the classes of dimensions and their uses."""

    graph: Graph
    argument_roles: tuple[str | None, ...]

    @cached_property
    def classes(self) -> DimensionClasses:
        """The classes of all dimensions."""
        return dimension_classes(self.graph)

    @cached_property
    def uses(self) -> ProductUses:
        """The uses of parameters in the forward pass."""
        return product_uses(self.graph, self.argument_roles)

    def with_role(self, role: str) -> list[int]:
        """Return the values of the arguments with a role, in order."""
        pairs = zip(self.graph.arguments, self.argument_roles, strict=True)
        return [value for value, found in pairs if found == role]

    def shape(self, value: int) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.graph.values[value].type.shape

    def num_bytes(self, value: int) -> int:
        """Return the bytes of a value."""
        return math.prod(self.shape(value)) * self.graph.values[value].type.itemsize

    @cached_property
    def expert_classes(self) -> frozenset[int]:
        """The classes of experts: batch loops of products that a parameter and its tokens share."""
        found = {
            self.classes.of(value)[dim]
            for (value, dim), kinds in self.uses.kinds.items()
            if BATCH in kinds
        }
        return frozenset(found)

    def is_router(self, value: int) -> bool:
        """Return whether a parameter is a router: the columns of its products are only experts.

        A router's product gives each token a score per expert. False if no product reads it.
        """
        # The classes of all dimensions that are columns in a product of the parameter.
        columns = [
            self.classes.of(origin)[dim]
            for origin, kinds in self.uses.products
            if origin == value
            for dim in kinds.get(COLUMN, ())
        ]
        return bool(columns) and set(columns) <= self.expert_classes

    @cached_property
    def batch_class(self) -> int | None:
        """The class of the batch: the dimension that most data arguments have; None without data.

        Of equally common ones, a class that all operators pass on wins, then the first one.
        """
        # Per class: the number of data arguments that have it, and its first position in one.
        count: dict[int, int] = defaultdict(int)
        first: dict[int, int] = {}
        for value in self.with_role(DATA):
            for dim, name in enumerate(self.classes.of(value)):
                # A dimension that a loop walks through, as in gradient accumulation, is no batch.
                if not self.classes.is_iterated(value, dim):
                    count[name] += 1
                    first[name] = min(first.get(name, dim), dim)
        ranked = sorted(count, key=lambda name: (-count[name], name in self.uses.cut, first[name]))
        return ranked[0] if ranked else None

    @cached_property
    def sequence_classes(self) -> frozenset[int]:
        """The classes of the sequence: the first data dimension after the batch without a sum.

        Several, if data meet through windows: images, and labels of a convolution's results.
        """
        # A product sums over its rows, so a data dimension of such a class is features and not the
        # sequence.
        rows = {
            self.classes.of(value)[dim]
            for (value, dim), kinds in self.uses.kinds.items()
            if kinds & {ROW, LOOKUP}
        }
        found = set()
        for value in self.with_role(DATA):
            names = self.classes.of(value)
            # Data without a batch dimension have no sequence.
            start = names.index(self.batch_class) + 1 if self.batch_class in names else len(names)
            for dim in range(start, len(names)):
                if names[dim] not in rows and not self.classes.is_iterated(value, dim):
                    found.add(names[dim])
                    break
        return frozenset(found)


def refusal(named: NamedGraph, value: int, dim: int, parts: int) -> str:
    """Return why tensor parallelism does not shard a parameter's dimension, or "".

    Args:
      value: the number of the parameter in the graph. dim: its dimension.
      parts: the number of blocks that a sharded dimension would have.
    """
    size = named.shape(value)[dim]
    if size % parts:
        return f"dimension {dim} has {size} elements, which {parts} does not divide"
    fine = named.classes.fine_of(value)[dim]
    why = named.classes.refusal(fine, parts, named.uses.closed)
    return f"dimension {dim} has {size} elements: {why}" if why else ""


def tensor_classes(named: NamedGraph, parts: int) -> frozenset[int]:
    """Return the classes of dimensions that tensor parallelism shards into `parts` blocks.

    Two classes conflict if some parameter has both, because one axis shards one dimension only. Of
    the sets without conflicts, the one with the largest value (see below) is chosen. Classes that
    do not conflict with it are added.
    """
    # Per class: the bytes of the parameters that it would shard, and the classes in conflict.
    bytes_by_class: dict[int, float] = defaultdict(float)
    conflicts: dict[int, set[int]] = defaultdict(set)
    excluded = {*named.expert_classes, named.batch_class}
    total = 0.0
    for value in named.with_role(PARAMETERS):
        total += named.num_bytes(value)
        names = named.classes.of(value)
        # The classes of this parameter that could be sharded. They exclude each other.
        own_classes = {
            name
            for dim, name in enumerate(names)
            if name not in excluded
            and named.shape(value)[dim] > 1
            and not refusal(named, value, dim, parts)
        }
        for name in own_classes:
            bytes_by_class[name] += named.num_bytes(value)
            conflicts[name] |= own_classes - {name}
    sums, products = named.uses.sum_bytes, named.uses.product_bytes or 1.0
    # Vectors alone (scales, biases) are no reason to shard: some product must have the class.
    product_classes = {
        named.classes.of(value)[dim]
        for (value, dim), kinds in named.uses.kinds.items()
        if kinds & {COLUMN, ROW, LOOKUP}
    }
    # The value of a class: the share of the parameter bytes that it shards, less the bytes of sums
    # that it causes, as a share of all results of products.
    values = {
        name: (1 + MARGIN) * size / (total or 1.0) - sums.get(name, 0.0) / products - EPSILON
        for name, size in bytes_by_class.items()
        if name in product_classes
    }
    open_conflicts = {name: frozenset(conflicts[name] & values.keys()) for name in values}
    chosen_classes = set(best_independent(values, open_conflicts))
    # Then the classes that are not worth their sums alone, as a vocabulary of a small model:
    # tensor parallelism is asked for, so that each parameter is sharded if that is possible. Sums
    # of scores stay excluded.
    closed = {named.classes.coarse[item] for item in named.uses.summed}
    for name in sorted(values, key=lambda name: (-values[name], name)):
        if name not in closed and not open_conflicts[name] & chosen_classes:
            chosen_classes.add(name)
    return frozenset(chosen_classes)


def best_independent(values: Values, conflicts: Conflicts) -> frozenset[int]:
    """Return the set of classes of the largest total value in which no two conflict.

    >>> sorted(best_independent({1: 0.5, 2: 0.8, 3: 0.4}, {1: {2}, 2: {1, 3}, 3: {2}}))
    [1, 3]
    >>> sorted(best_independent({1: 0.5, 2: 1.0, 3: 0.4}, {1: {2}, 2: {1, 3}, 3: {2}}))
    [2]
    """
    known: dict[frozenset[int], tuple[float, frozenset[int]]] = {}

    def best(left: frozenset[int]) -> tuple[float, frozenset[int]]:
        """Return the largest value of classes in `left` without conflicts, and these classes.

        The search is exact, with memoised results. After too many of them, it takes the classes by
        falling value.
        """
        if left in known:
            return known[left]
        if len(known) > LARGEST_SEARCH:
            return _greedy(left, values, conflicts)
        choice = (0.0, frozenset[int]())
        # Groups without a conflict between them are independent problems: their values add up.
        groups = _components(left, conflicts)
        if len(groups) > 1:
            choices = [best(group) for group in groups]
            total = sum(value for value, _ in choices)
            choice = total, frozenset().union(*(names for _, names in choices))
        elif left:
            # Either the set has this class, and none in conflict with it, or it does not. The class
            # with most conflicts comes first: without it, the rest falls into several groups.
            name = max(left, key=lambda n: (len(conflicts[n] & left), -n))
            value, names = best(left - conflicts[name] - {name})
            choice = max(
                (value + values[name], names | {name}),
                best(left - {name}),
                key=lambda pair: pair[0],
            )
        known[left] = choice
        return choice

    return best(frozenset(name for name, value in values.items() if value > 0))[1]


def _components(left: frozenset[int], conflicts: Conflicts) -> list[frozenset[int]]:
    """Split the classes `left` into groups; classes of different groups never conflict.

    They are the connected components of the graph whose edges are the conflicts.
    """
    waiting, groups = set(left), []
    while waiting:
        # Breadth-first search from the smallest class, so that the order is the same in each run.
        group, front = set[int](), {min(waiting)}
        while front:
            group |= front
            front = {n for name in front for n in conflicts[name] if n in waiting} - group
        waiting -= group
        groups.append(frozenset(group))
    return groups


def _greedy(
    left: Iterable[int], values: Values, conflicts: Conflicts
) -> tuple[float, frozenset[int]]:
    """Return the total value of a set without conflicts, and the set, taken by falling value.

    A class is taken if it does not conflict with one of a larger value. Among equal values, the
    smaller number comes first, so that the answer is the same in each run.
    """
    taken: set[int] = set()
    for name in sorted(left, key=lambda n: (-values[n], n)):
        if not conflicts[name] & taken:
            taken.add(name)
    return sum(values[name] for name in taken), frozenset(taken)


def residual_classes(named: NamedGraph, chosen: frozenset[int]) -> frozenset[int]:
    """Return the classes of dimensions that tensor parallelism leaves whole between its products.

    A column-parallel product is sharded along its weight's columns; the class of its rows is
    returned. For a row-parallel product it is the class of the columns. A table that is looked up
    counts as a row-parallel product. In a Transformer these are the features of the residual.
    """
    whole_classes: set[int] = set()
    for value, kinds in named.uses.products:
        names = named.classes.of(value)
        # If the product is sharded along the first kind of dimension, the second kind stays whole.
        for sharded_kind, whole_kind in ((COLUMN, ROW), (ROW, COLUMN), (LOOKUP, COLUMN)):
            if any(names[dim] in chosen for dim in kinds.get(sharded_kind, ())):
                whole_classes |= {names[dim] for dim in kinds.get(whole_kind, ())}
    return frozenset(whole_classes - chosen - named.expert_classes)
