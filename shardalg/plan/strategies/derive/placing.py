"""The state of a recipe that is applied to one function: its layouts, axes and limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from shardalg.algebra.mesh import Mesh
from shardalg.graph.ops.roles import PARAMETERS
from shardalg.plan.strategies.derive.parallel_products import (
    NamedGraph,
    residual_classes,
    tensor_classes,
)
from shardalg.plan.strategies.derive.recipe_parts import ArrayLayout, Axes, Part, Wishes, matches

BATCH_PARTS = ("data", "fsdp", "zero", "expert")


@dataclass(eq=False)
class Placing:
    """A recipe that is applied to one function on one mesh.

    Attributes:
      named: the function's graph.
      parts: the parts of the recipe, such as `fsdp`, each with its mesh axes.
      wishes: shardings of arguments that the user demands (pins), and axes that may not shard some
        arguments (bans).
      layouts: the layout of each flat argument, which the other modules fill.
    """

    named: NamedGraph
    parts: Sequence[Part]
    wishes: Wishes
    mesh: Mesh

    def __post_init__(self) -> None:
        """Create a layout without axes for each argument."""
        graph = self.named.graph
        rows = zip(graph.arguments, graph.argument_paths, self.named.argument_roles, strict=True)
        self.layouts = [
            ArrayLayout(place, path, role, repr(type_), [()] * len(type_.shape))
            for place, (value, path, role) in enumerate(rows)
            for type_ in (graph.values[value].type,)
        ]

    def of_kind(self, kind: str) -> list[Part]:
        """Return the parts of one kind."""
        return [part for part in self.parts if part.kind == kind]

    def parts_axes(self, kind: str) -> Axes:
        """Return the axes of the recipe's parts of one kind.

        For the kind "tensor", they include the second axis of `two_d`, which is tensor parallelism,
        too.
        """
        found = [axis for part in self.of_kind(kind) for axis in part.axes]
        if kind == "tensor":
            found += [part.axes[1] for part in self.of_kind("two_d")]
        return self.divided(found)

    def divided(self, axes: Iterable[str]) -> Axes:
        """Return the axes of `axes` that have more than one device."""
        return tuple(axis for axis in axes if self.mesh.shape[axis] > 1)

    def count(self, axes: Iterable[str]) -> int:
        """Return the number of blocks along some axes."""
        return math.prod(self.mesh.shape[axis] for axis in axes)

    @cached_property
    def batch_axes(self) -> Axes:
        """The axes that shard the batch, in the order of the recipe."""
        axes: list[str] = []
        for part in self.parts:
            if part.kind in BATCH_PARTS:
                axes += part.axes
            elif part.kind == "two_d":
                # Of the two axes of `two_d`, only the first one shards the batch.
                axes.append(part.axes[0])
        # Two parts may share an axis, as `expert` and `fsdp` do; it counts once.
        return self.divided(dict.fromkeys(axes))

    @property
    def residual_axes(self) -> Axes:
        """The axes on which `two_d` shards the residual's features in activations."""
        return self.parts_axes("tensor") if self.of_kind("two_d") else ()

    @cached_property
    def tensor_classes(self) -> frozenset[int]:
        """The numbers of the dimension classes that tensor parallelism shards.

        One mesh axis shards all dimensions of a class (see `DimensionClasses`). Empty if the recipe
        has no tensor parallelism.
        """
        axes = self.parts_axes("tensor")
        return tensor_classes(self.named, self.count(axes)) if axes else frozenset()

    @cached_property
    def residual(self) -> frozenset[int]:
        """The classes of the features between the products, with or without tensor parallelism."""
        chosen = self.tensor_classes or tensor_classes(self.named, 1)
        return residual_classes(self.named, chosen)

    def value(self, layout: ArrayLayout) -> int:
        """Return the index of the graph value of an argument."""
        return self.named.graph.arguments[layout.place]

    def open(self, role: str) -> list[ArrayLayout]:
        """Return the layouts of the arrays of one role, without pinned ones and scalars."""
        return [a for a in self.layouts if a.role == role and not a.pinned and a.dims]

    def allowed(self, layout: ArrayLayout, axes: Axes) -> Axes:
        """Return the axes that no ban of the recipe excludes; `layout` records the others.

        A ban is a glob of argument paths with an axis that must not shard these arguments.
        """
        banned = {
            axis
            for pattern, axis in self.wishes.bans
            if axis in axes and matches(pattern, layout.path)
        }
        for axis in sorted(banned):
            layout.refuse((axis,), "banned")
        return tuple(axis for axis in axes if axis not in banned)

    def dividing(self, layout: ArrayLayout, dims: Iterable[int], axes: Axes) -> list[int]:
        """Return the dimensions out of `dims` that the axes could shard evenly.

        They have no axis yet, and no loop iterates over them. E.g. shape (6, 8) and 4 devices ->
        dimension 1.
        """
        value, parts = self.value(layout), self.count(axes)
        shape = self.named.shape(value)
        return [
            dim
            for dim in dims
            if not layout.dims[dim]
            and shape[dim]
            and shape[dim] % parts == 0
            and not self.named.classes.is_iterated(value, dim)
        ]

    def shard_largest(self, layout: ArrayLayout, axes: Axes, reason: str) -> None:
        """Shard the largest dimension that the axes divide; without one, note a refusal.

        Of equally large dimensions, features of the residual stream are preferred, then the first
        one.

        Args:
          reason: the text that the layout keeps as its reason.
        """
        value = self.value(layout)
        shape, names = self.named.shape(value), self.named.classes.of(value)
        dims = self.dividing(layout, range(len(shape)), axes)
        if dims:
            dim = max(dims, key=lambda d: (shape[d], names[d] in self.residual, -d))
            layout.put(dim, axes, reason)
        else:
            layout.refuse(axes, f"no free dimension that {self.count(axes)} divides")

    def is_vector(self, layout: ArrayLayout) -> bool:
        """Return whether an array is a scale or a bias: small, and read by no product.

        Gathering each of them costs the latency of a collective and saves next to nothing. A bias
        of attention has two dimensions, heads and their features, and counts as well.
        """
        value = self.value(layout)
        shape, rank = self.named.shape(value), len(layout.dims)
        # A dimension that a loop walks through, such as that of stacked layers, does not count.
        free = [d for d in range(rank) if not self.named.classes.is_iterated(value, d)]
        if len(free) < 2:
            return True
        # An array is small if it has at most as many elements as the longest dimension of all
        # parameters that products read (`_longest`).
        is_read = any((value, dim) in self.named.uses.kinds for dim in range(rank))
        size = math.prod(shape[dim] for dim in free)
        return layout.role == PARAMETERS and not is_read and size <= self._longest

    @cached_property
    def _longest(self) -> int:
        """The size of the longest dimension of a parameter that products read."""
        sizes = [self.named.shape(value)[dim] for value, dim in self.named.uses.kinds]
        return max(sizes, default=0)

    def gradient_dims(self, layout: ArrayLayout, part: Part) -> list[Axes]:
        """Return the axes per dimension of a gradient, sharded further than its parameter.

        Args:
          layout: the layout of the parameter, which does not change.
          part: a part `zero`, whose axes shard the gradient's largest free dimension in addition.
        """
        copy = replace(layout, dims=list(layout.dims), reasons=[], refused=[])
        axes = self.divided(part.axes)
        free = tuple(axis for axis in self.allowed(copy, axes) if axis not in copy.axes)
        if free and copy.dims and not self.is_vector(copy):
            self.shard_largest(copy, free, "a gradient")
        return copy.dims
