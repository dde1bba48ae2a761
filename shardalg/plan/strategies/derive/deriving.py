"""A recipe applied to a traced function: its strategy, and the reasons for `explain`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardalgError, StrategyError
from shardalg.graph.ir import Graph, Site
from shardalg.graph.ops.loops import row_class
from shardalg.graph.ops.rows import rules
from shardalg.plan.strategies.derive.argument_roles import deduced_roles, next_values
from shardalg.plan.strategies.derive.parallel_products import NamedGraph
from shardalg.plan.strategies.derive.placed_products import (
    place_experts,
    place_pins,
    place_residual,
    place_tensor,
)
from shardalg.plan.strategies.derive.placed_state import (
    check_used,
    place_data,
    place_parameters,
    place_state,
)
from shardalg.plan.strategies.derive.placing import Placing
from shardalg.plan.strategies.derive.recipe_parts import (
    ArrayLayout,
    Axes,
    Part,
    Wishes,
    matches,
    path_text,
)
from shardalg.planner.propagate.strategy import PerLeaf, Strategy
from shardalg.planner.traced import Traced

_PASSING = ("pointwise", "layout", "broadcast")
"""Rows through which an array keeps its dimensions."""
STEPS = (
    place_pins,
    place_experts,
    place_tensor,
    place_residual,
    place_parameters,
    place_state,
    place_data,
    check_used,
)
"""The order in which the parts of a recipe are applied, whatever the order in which they are
written: each step uses only dimensions that the steps before it left free."""


@dataclass(frozen=True, eq=False)
class SiteLayout:
    """The axes of a named site, or the reason why it has none.

    Attributes:
      dims: the axes per dimension, without those that `vmap` added; None leaves it to completion.
    """

    name: str
    type: str
    dims: tuple[Axes, ...] | None
    reason: str


@dataclass(frozen=True, eq=False)
class Derived:
    """A strategy that a recipe derived, with its reasons.

    Attributes:
      layouts: per argument, its axes with the reasons.
      sites: per named site, its axes with the reason.
      notes: sentences about the whole function.
      deduced: positions of the arguments whose role was deduced.
    """

    strategy: Strategy
    layouts: tuple[ArrayLayout, ...]
    sites: tuple[SiteLayout, ...]
    notes: tuple[str, ...]
    deduced: frozenset[int]


def derived(parts: Sequence[Part], wishes: Wishes, traced: Traced, mesh: Mesh) -> Derived:
    """Apply the parts, pins and bans of a recipe to a function.

    Raises:
      StrategyError: a pin or ban that names no argument, pins that conflict, a part that finds
        nothing to shard, or a batch that does not divide. RoleError: roles are not certain.
    """
    graph = traced.graph
    check_wishes(graph, wishes, mesh)
    roles, deduced = deduced_roles(graph, traced.argument_roles)
    placing = Placing(NamedGraph(graph, roles), parts, wishes, mesh)
    for step in STEPS:
        step(placing)
    sites = _sites(placing)
    # An array without a role or a pin, such as a random key, is left to completion (None).
    entered = [
        _spec(layout.dims, mesh, graph.values[graph.arguments[layout.place]].type.shape)
        if layout.role is not None or layout.pinned
        else None
        for layout in placing.layouts
    ]
    given = {site.name: _spec(site.dims, mesh, None) for site in sites if site.dims is not None}
    left = _results(placing, entered)
    strategy = Strategy(mesh, *spec_trees(traced, entered, left), sites=given)
    return Derived(strategy, tuple(placing.layouts), sites, _notes(placing, sites), deduced)


def check_wishes(graph: Graph, wishes: Wishes, mesh: Mesh) -> None:
    """Check the pins and bans of a recipe against a function's arguments and a mesh.

    A pin is a glob of argument paths with mesh axes per dimension that these arguments must have. A
    ban is a glob with an axis that they must not have.

    Raises:
      StrategyError: a pattern matches no argument, two pins or a pin and a ban contradict each
        other, or a pin names an axis that the mesh lacks.
    """
    paths = graph.argument_paths
    for pattern, _ in (*wishes.pins, *wishes.bans):
        if not any(matches(pattern, path) for path in paths):
            near = get_close_matches(pattern, list(map(path_text, paths)), 3, 0.4)
            hint = f" Near: {', '.join(near)}." if near else ""
            raise StrategyError(
                f"{pattern!r} names no argument. Paths have slashes, as in "
                f"{path_text(paths[0])!r}, and * matches any part.{hint}"
            )
    for path in paths:
        # Whether two globs overlap shows only on the paths of this function.
        pins = {dims: pattern for pattern, dims in wishes.pins if matches(pattern, path)}
        if len({_trimmed(dims) for dims in pins}) > 1:
            raise StrategyError(
                f"the pins {', '.join(map(repr, pins.values()))} give {path} different layouts. "
                "Leave one out, or make its glob narrower."
            )
        # All axes along which pins shard this argument.
        axes = {axis for dims in pins for group in dims for axis in group}
        for pattern, axis in wishes.bans:
            if axis in axes and matches(pattern, path):
                raise StrategyError(
                    f"{path} is pinned to {axis!r}, which ban({pattern!r}, {axis!r}) excludes."
                )
        unknown = sorted(axis for axis in axes if axis not in mesh.shape)
        if unknown:
            near = get_close_matches(unknown[0], mesh.axis_names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise StrategyError(
                f"a pin of {path} names {', '.join(unknown)}, which {mesh!r} does not have.{hint}"
            )


def _trimmed(dims: tuple[Axes, ...]) -> tuple[Axes, ...]:
    """Return the mesh axes of each dimension that a pin demands, without empty entries at the end.

    A pin is a sharding that the user of a recipe fixed for some arguments. Pins that differ only in
    empty entries at the end are equal.
    """
    end = len(dims)
    while end and not dims[end - 1]:
        end -= 1
    return dims[:end]


def _spec(dims: Sequence[Axes], mesh: Mesh, shape: tuple[int, ...] | None) -> Any:
    """Return a `PartitionSpec` from the axes of each dimension.

    Args:
      shape: the array's shape; None for a site, whose values can have several shapes.
    """
    # A site has no single shape: any that divides gives the same spec.
    sizes = shape if shape is not None else (mesh.size,) * len(dims)
    entries = [axes or None for axes in dims]
    return Sharding.from_axes(entries, mesh, sizes).to_spec()


def _results(placing: Placing, entered: list[Any]) -> list[Any]:
    """Return a spec or None per result of the function.

    A result that is the new value of an argument, such as a parameter, has the argument's spec. All
    other results are left to completion (None).

    Args:
      entered: a spec or None per flat argument.
    """
    graph, mesh = placing.named.graph, placing.mesh
    specs: list[Any] = [None] * len(graph.results)
    zero_parts = [part for part in placing.parts if part.kind == "zero" and part.level == 2]
    for result, argument in next_values(graph).items():
        specs[result] = entered[argument]
        layout = placing.layouts[argument]
        producer = graph.producer[graph.results[result]]
        # With `zero` 2, a gradient that the function returns is sharded like optimizer state.
        if zero_parts and producer is not None and graph.nodes[producer].phase == "backward":
            shape = graph.values[graph.results[result]].type.shape
            dims = placing.gradient_dims(layout, zero_parts[0])
            specs[result] = _spec(dims, mesh, shape)
    return specs


def spec_trees(traced: Traced, entered: list[Any], left: list[Any]) -> tuple[Any, Any]:
    """Return the specs as two pytrees: of the arguments and of the results.

    They are flat (`PerLeaf`) if specs cannot stand in the places of the arrays, for example inside
    of modules of flax or equinox.

    Args:
      entered, left: a spec per flat argument, and per flat result.
    """
    call, trees = traced.call, traced.graph.trees
    if call is None or trees is None or call.returned is not None:
        return PerLeaf(entered), PerLeaf(left)
    try:
        arguments = trees[0].unflatten(entered)
        if list(call.spread(arguments, "in_shardings")) != entered:
            return PerLeaf(entered), PerLeaf(left)
    except (ShardalgError, TypeError, ValueError):
        # Modules may refuse specs in the place of arrays.
        return PerLeaf(entered), PerLeaf(left)
    return arguments, trees[1].unflatten(left)


def _sites(placing: Placing) -> tuple[SiteLayout, ...]:
    """Return the layouts of the sites that have a name and no spec of their own.

    A site is a place in the user's code that `sa.annotate(x, "name")` marks. A name that occurs at
    places with different dimensions has no axes, because one spec must serve all of them.
    """
    graph = placing.named.graph
    by_name: dict[str, list[SiteLayout]] = defaultdict(list)
    # The gradient of a site has its name, too. Its layout follows from that of the value.
    forward = {site.name for site in graph.sites if graph.nodes[site.node].phase == "forward"}
    for site in graph.sites:
        is_gradient = site.name in forward and graph.nodes[site.node].phase != "forward"
        if site.name is not None and site.spec is None and not is_gradient:
            by_name[site.name].append(_site(placing, site))
    found = []
    for name, layouts in by_name.items():
        if len({layout.dims for layout in layouts}) == 1:
            found.append(layouts[0])
        else:
            kind = layouts[0].type
            found.append(SiteLayout(name, kind, None, "its places have different dimensions"))
    return tuple(found)


def _site(placing: Placing, site: Site) -> SiteLayout:
    """Return the layout of a named `with_sharding_constraint`, with the reason for each axis.

    Each kind of parallelism (expert, tensor, batch, sequence) has mesh axes and classes of
    dimensions: a class has the dimensions of all tensors that operators identify with each other,
    such as all batch dimensions. It shards the first dimension of these classes that has no axes
    yet, if the axes divide it.
    """
    graph, named = placing.named.graph, placing.named
    value = graph.nodes[site.node].results[0]
    names, shape = named.classes.of(value), named.shape(value)
    dims: list[Axes] = [()] * len(shape)
    reasons = []
    batch = frozenset[int]() if named.batch_class is None else frozenset({named.batch_class})
    requests: tuple[tuple[str, frozenset[int], Axes], ...] = (
        ("experts", named.expert_classes, placing.parts_axes("expert")),
        ("products", placing.tensor_classes, placing.parts_axes("tensor")),
        ("batch", batch, placing.batch_axes),
        ("sequence", named.sequence_classes, placing.parts_axes("sequence")),
        ("residual", placing.residual, placing.residual_axes),
    )
    name = site.name or ""
    kind = repr(graph.values[value].type)
    # In a mixture of experts, two neighbouring sites may have dimensions of the batch and of the
    # experts. An all-to-all between them moves the tokens: the site next to the experts' product is
    # sharded by experts, the other one by batch.
    if named.batch_class in names and set(names) & named.expert_classes:
        beside = _is_beside_experts(named, site)
        requests = tuple(row for row in requests if row[0] != ("batch" if beside else "experts"))
    for what, classes, axes in requests:
        # An axis can shard one dimension only, so the earlier request gets it.
        used = {axis for group in dims for axis in group}
        free = tuple(axis for axis in axes if axis not in used)
        candidates = [d for d, n in enumerate(names) if n in classes and not dims[d]]
        if free and candidates and shape[candidates[0]] % placing.count(free) == 0:
            dims[candidates[0]] = free
            reasons.append(f"{what} on {', '.join(free)}")
    # The user's spec does not count the dimensions that `vmap` added.
    added = graph.added_dims(site)
    user_dims = tuple(axes for dim, axes in enumerate(dims) if dim not in added)
    return SiteLayout(name, kind, user_dims, "; ".join(reasons) or "replicated")


def _is_beside_experts(named: NamedGraph, site: Site) -> bool:
    """Return whether a product of experts reads or makes a site, with pointwise steps between.

    Other sites are not looked through: they have layouts of their own.
    """
    # First towards the readers of the site, then towards its producers. One search in both
    # directions would also find operators beside the path, such as other readers of an operand.
    graph, experts = named.graph, named.uses.expert_nodes
    for is_down in (True, False):
        # Search over nodes, from the site through operators that keep the place of each element.
        pending, seen = [site.node], set[int]()
        while pending:
            index = pending.pop()
            node = graph.nodes[index]
            if index in experts:
                return True
            is_other = index != site.node and node.primitive == "annotate"
            rows = () if node.bodies else rules(node.signature) or ()
            passes = bool(rows) and all(row_class(row) in _PASSING for row in rows)
            if index in seen or is_other or not passes:
                continue
            seen.add(index)
            if is_down:
                pending += [n for value in node.results for n in graph.users[value]]
            else:
                producers = (graph.producer[value] for value in node.operands)
                pending += [n for n in producers if n is not None]
    return False


def _notes(placing: Placing, sites: Sequence[SiteLayout]) -> tuple[str, ...]:
    """Return sentences for the user about gaps of a recipe.

    They name unused mesh axes, sites and activations that are left to completion, and gradients.
    """
    notes = []
    # The axes that the recipe uses, in its parts or in pins.
    used_axes = {axis for part in placing.parts for axis in part.axes}
    used_axes |= {axis for _, dims in placing.wishes.pins for axes in dims for axis in axes}
    for axis, size in placing.mesh.axes:
        if size != 1 and axis not in used_axes:
            notes.append(
                f"the recipe does not name mesh axis {axis}, so that the {size} devices along it "
                "repeat the same work. A product may still use the axis, and send along it: where "
                "two of its tensors are sharded along one axis, the partitioner (as XLA's) moves a "
                "tensor to an idle axis of the same size"
            )
    if placing.parts_axes("expert"):
        skipped = [site.name for site in sites if site.dims is None]
        if skipped:
            notes.append(f"sites left to completion: {', '.join(skipped)}")
    # Only these two kinds shard activations that no argument has.
    shards_activations = placing.of_kind("two_d") or placing.of_kind("sequence")
    if shards_activations and not sites:
        notes.append(
            "activations between the products have no site: mark one with "
            'sa.annotate(x, "name"), and the recipe shards it'
        )
    if any(part.kind == "zero" for part in placing.parts):
        notes.append(
            "gradients inside of a step have no layout of their own: completion shards a gradient "
            "as the optimizer state that reads it"
        )
    return tuple(notes)
