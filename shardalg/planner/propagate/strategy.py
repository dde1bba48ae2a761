"""The user's annotations: a strategy, and its resolution against a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import chain
from typing import Any

from shardalg.algebra.derived_layouts import opened
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardalgError, StrategyError
from shardalg.graph.ir import Graph, Site
from shardalg.planner.propagate.other_mesh import (
    SIDES,
    Orders,
    check_sizes,
    is_another,
    order_faults,
    sharding_on_mesh,
    split_orders,
)
from shardalg.tables import Table, card


@dataclass(frozen=True, eq=False)
class Strategy:
    """A mesh and the annotations on it; all other shardings are completed.

    Attributes:
      in_shardings: prefix of the tuple of arguments, of `PartitionSpec`, `Sharding`,
        `NamedSharding` or None (complete it).
      out_shardings: prefix of the result, likewise.
      sites: name of an `annotate` site to its spec, also as a tuple of axis names; it replaces a
        spec that the site carries itself.
      values: name of a value of the traced function, as `plan.shardings()` has it
        (`dot_general:3@model.py:41`), to its spec. `sa.search` gives one for every value.

    Raises:
      StrategyError: the mesh is neither a `shardalg.Mesh` nor a mesh of JAX.
    """

    mesh: Mesh
    in_shardings: object = None
    out_shardings: object = None
    sites: Mapping[str, object] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        sides = (("arguments", self.in_shardings), ("results", self.out_shardings))
        rows = (*sides, *self.sites.items(), *self.values.items())
        shown = tuple((name, repr(spec)) for name, spec in rows if spec is not None)
        return card(f"Strategy on {self.mesh!r}.", Table(("what", "layout"), shown))

    def __post_init__(self) -> None:
        """Raise StrategyError unless the mesh is one of shardalg's or of JAX's, or None."""
        # JAX's classes are recognised by name, so that this module need not import JAX. Only JAX's
        # meshes have `axis_types`; shardalg's class has the same name.
        has_jax_name = type(self.mesh).__name__ in ("Mesh", "AbstractMesh")
        if has_jax_name and hasattr(self.mesh, "axis_types"):
            return  # `plan` converts it
        if not isinstance(self.mesh, Mesh | None):
            raise StrategyError(
                f"mesh is a {type(self.mesh).__name__}, {self.mesh!r:.80}, not a shardalg.Mesh. "
                "Pass shardalg.Mesh({'X': 2, 'Y': 4}), or shardalg.Mesh.from_jax(mesh)."
            )


class PerLeaf(tuple[object, ...]):
    """A tuple with one sharding per leaf of the arguments or of the results.

    It is given in place of a prefix of their pytree.
    """


@dataclass(frozen=True)
class Annotations:
    """A strategy on one graph: a sharding or None per argument, result and site (`graph.sites`).

    Attributes:
      values: annotations of single values: (index of the value, sharding).
      orders: the annotations in another device order; their shardings are on the plan's mesh.
    """

    mesh: Mesh
    arguments: tuple[Sharding | None, ...]
    results: tuple[Sharding | None, ...]
    sites: tuple[Sharding | None, ...]
    values: tuple[tuple[int, Sharding], ...] = ()
    orders: Orders = ()

    @staticmethod
    def of(mesh: Mesh, *sides: Sequence[Sharding | None], orders: Orders = ()) -> Annotations:
        """Return the annotations of arguments, results and sites, with their device orders."""
        split = [split_orders(*row, mesh) for row in zip(SIDES, sides, strict=True)]
        more = chain.from_iterable(found for _, found in split)
        arguments, results, sites = (plain for plain, _ in split)
        return Annotations(mesh, arguments, results, sites, orders=(*orders, *more))


def strategy_from(given: object) -> Strategy:
    """Return the argument if it is a strategy.

    Raises:
      StrategyError: it is something else.
    """
    if not isinstance(given, Strategy):
        raise StrategyError(
            f"strategy is {given!r:.80}, not a Strategy. Pass one, as in Strategy(mesh, "
            "in_shardings=...). For another mesh alone, call plan.replan(mesh=...)."
        )
    return given


def resolve(graph: Graph, strategy: Strategy, first_mesh: Mesh | None = None) -> Annotations:
    """Return the strategy's annotations, one per flat argument, result and site of the graph.

    Args:
      first_mesh: the mesh on which the function was planned first; None: the strategy's.

    Raises:
      StrategyError: trees that do not match, unknown sites, and every spec that does not fit its
        value (unknown axes, axes used twice, more entries than dimensions), all in one message.

    >>> import jax
    >>> from shardalg.graph.tracing.trace import trace
    >>> P, x = jax.sharding.PartitionSpec, jax.ShapeDtypeStruct((8, 16), "float32")
    >>> graph = trace(lambda x: x + 1, x)
    >>> resolve(graph, Strategy(Mesh({"X": 2}), (P("X"),))).arguments
    (Sharding([X, None], shape=(8, 16), Mesh(X=2)),)
    >>> resolve(graph, Strategy(Mesh({"X": 2}), (P("Y"),)))
    Traceback (most recent call last):
      ...
    shardalg.errors.StrategyError: the annotations do not fit the function on Mesh(X=2):
      argument x f32[8,16]: ... names 'Y' ..., which the mesh does not have. Its axes are ['X'].
    """
    trees = graph.trees or (None, None)
    given = _flat(strategy.in_shardings, trees[0], graph.argument_paths, "in_shardings")
    wanted = _flat(strategy.out_shardings, trees[1], graph.result_paths, "out_shardings")
    reader = _SpecReader(graph, strategy.mesh)
    arguments = [
        reader.of_border(spec, value, f"argument {path}")
        for spec, value, path in zip(given, graph.arguments, graph.argument_paths, strict=True)
    ]
    results = [
        reader.of_border(spec, value, path)
        for spec, value, path in zip(wanted, graph.results, graph.result_paths, strict=True)
    ]
    # Faults are collected and raised together, so that one run names all wrong annotations.
    reader.faults += _unknown_sites(graph.sites, strategy.sites)
    reader.faults += _other_regions(graph, strategy.mesh)
    first_mesh = first_mesh or strategy.mesh
    sites = [_read_site(reader, site, strategy.sites, first_mesh) for site in graph.sites]
    values = _read_values(reader, strategy.values)
    if reader.faults:
        where = f"the annotations do not fit the function on {strategy.mesh!r}:"
        raise StrategyError("\n  ".join([where, *dict.fromkeys(reader.faults)]))
    return replace(Annotations.of(strategy.mesh, arguments, results, sites), values=values)


def _read_values(
    reader: _SpecReader, given: Mapping[str, object]
) -> tuple[tuple[int, Sharding], ...]:
    """Return (value index, sharding) for each value that the user's strategy names.

    A name that no value has is a fault. Faults are added to `reader.faults`, so that one error
    lists them all.

    Args:
      given: specs by the name of the value, in any form that a strategy takes.
    """
    # A large graph has many values, so the table is built only if a name must be looked up.
    index_of = {value.name: value.index for value in reader.graph.values} if given else {}
    found = []
    for name, spec in given.items():
        if name not in index_of:
            near = get_close_matches(name, index_of, 1)
            hint = f" Did you mean {near[0]!r}?" if near else " plan.shardings() lists them."
            reader.faults.append(f"no value of the function is called {name!r}.{hint}")
            continue
        # The reader returns None for a spec that does not fit, and notes the fault.
        layout = reader.read(spec, index_of[name], name)
        if layout is not None:
            found.append((index_of[name], layout))
    return tuple(found)


def check_fit(graph: Graph, annotations: Annotations, first_mesh: Mesh | None = None) -> None:
    """Raise unless `resolve` can give these annotations for the graph.

    Args:
      first_mesh: the mesh on which the function was planned first; None: that of the annotations.

    Raises:
      StrategyError: another number of layouts than of values, layouts of other shapes, manual
        regions of another mesh, or a site without a name whose layout is not the one it carries.
    """
    mesh, faults = annotations.mesh, []
    # A site is a place in the function at which the user annotates a value: its node's result.
    sites = [graph.nodes[site.node].results[0] for site in graph.sites]
    given = (annotations.arguments, annotations.results, annotations.sites)
    # Each list of layouts has one entry per value, None for a value without an annotation.
    for layouts, values in zip(given, (graph.arguments, graph.results, sites), strict=True):
        shapes = [graph.values[value].type.shape for value in values]
        fits = [s is None or s.shape == n for s, n in zip(layouts, shapes, strict=False)]
        if len(layouts) != len(shapes) or not all(fits):
            faults.append(f"{len(layouts)} shardings do not fit values of the shapes {shapes[:8]}")
    # Named values are given by index, and an index may be out of range.
    for value, sharding in annotations.values:
        if not 0 <= value < len(graph.values) or sharding.shape != graph.values[value].type.shape:
            faults.append(f"{sharding!r} does not fit value {value}")
    faults += _other_regions(graph, mesh)
    faults += order_faults(given, annotations.orders, mesh)
    reader = _SpecReader(graph, mesh)
    # A site in another device order has its axes on the plan's mesh. It gets its own order back
    # before it is compared with the spec that it carries.
    own_orders = {number: order for side, number, order in annotations.orders if side == "sites"}
    for number, (site, layout) in enumerate(zip(graph.sites, annotations.sites, strict=False)):
        if layout is not None and number in own_orders:
            layout = replace(layout, mesh=own_orders[number])
        # A site with a name takes any layout; one without has the layout that its function gives.
        if site.name is None and layout != _read_site(reader, site, {}, first_mesh or mesh):
            faults.append(f"{layout!r} is not the sharding of the site, which carries {site.spec}")
    if faults:
        raise StrategyError(f"the annotations do not fit on {mesh!r}: {'; '.join(faults[:5])}.")


def layout_of(graph: Graph, mesh: Mesh, value: int, spec: object) -> Sharding:
    """Return a spec, in any form that a strategy takes, as a sharding of one value.

    Args:
      value: index of the value in the graph.

    Raises:
      StrategyError: the spec does not fit the value.
    """
    reader, described = _SpecReader(graph, mesh), graph.values[value]
    sharding = reader.read(spec, value, described.name)
    if sharding is None:
        # The reader takes None as "no annotation", without a fault. Here it is one.
        faults = reader.faults or [
            f"{described.name} {described.type!r}: None is not a sharding; P() replicates"
        ]
        raise StrategyError(f"the spec does not fit on {mesh!r}: {faults[0]}")
    return sharding


def _flat(prefix: object, tree: Any, paths: Sequence[str], what: str) -> list[object]:
    """Return one spec per flat argument or result, from a prefix of their tree.

    Args:
      paths: the names of the leaves.
      what: the name of the parameter, for messages.

    Raises:
      StrategyError: the prefix does not fit the values.
    """
    if prefix is None:
        return [None] * len(paths)
    if isinstance(prefix, PerLeaf):
        return list(prefix)
    if tree is not None:
        # Imported late, because a plan from a file has no trees and does not need jax.
        from shardalg.graph.tracing.trace import flatten_prefix

        return flatten_prefix(prefix, tree.unflatten(range(tree.num_leaves)), what)
    leaves = list(prefix) if isinstance(prefix, list | tuple) else [prefix] * len(paths)
    if len(leaves) != len(paths):
        raise StrategyError(
            f"{what} has {len(leaves)} entries for {len(paths)} values {list(paths)}. "
            "A graph without its function takes one spec per flat value."
        )
    return leaves


@dataclass(eq=False)
class _SpecReader:
    """A reader of specs for values. It collects all faults, so that one error names them all."""

    graph: Graph
    mesh: Mesh
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the memo of specs that were read already."""
        self._known: dict[object, Sharding] = {}

    def of_border(self, spec: object, value: int, name: str) -> Sharding | None:
        """Return the sharding that a spec means for an argument or a result of the function.

        None if there is no spec, or if it does not fit. Partial sums are a fault: they are allowed
        inside of a function only. Faults are added to `self.faults`.

        Args:
          value: index of the value in the graph.
          name: name of the value in a message.
        """
        sharding = self.read(spec, value, name)
        if sharding is not None and sharding.unreduced:
            self.faults.append(
                f"{name} {self.graph.values[value].type!r}: {sharding.text()} has partial sums, "
                "which a plan neither takes nor returns. Leave out the unreduced axes."
            )
        return sharding

    def read(
        self, spec: object, value: int, name: str, *, added: tuple[int, ...] = ()
    ) -> Sharding | None:
        """Return a spec as a sharding of the value, or None if there is no spec or it does not fit.

        Args:
          added: dimensions that `vmap` gave the value, which the spec does not count: they are
            open.
        """
        if spec is None:
            return None
        kind = self.graph.values[value].type
        # Under `vmap`, the function wrote the spec for one example, without the batch dimension.
        written = tuple([n for dim, n in enumerate(kind.shape) if dim not in added])
        try:
            return opened(self._parsed(spec, written), kind.shape, added)
        except (ShardalgError, TypeError) as error:
            under = f", written for shape {written} under vmap" if added else ""
            self.faults.append(f"{name} {kind!r}{under}: {error}")
            return None

    def _parsed(self, spec: object, shape: tuple[int, ...]) -> Sharding:
        """Return a spec as a sharding of a tensor of this shape; equal specs are read once.

        Raises:
          ShardalgError, TypeError: the spec does not fit the shape or the mesh.
        """
        # The class is part of the key, because a PartitionSpec may equal a tuple.
        key = (type(spec), spec, shape)
        try:
            known = self._known.get(key)
        except TypeError:  # a list is not hashable
            return Sharding.from_spec(spec, self.mesh, shape)
        if known is None:
            read = _READERS.get(type(spec).__name__, Sharding.from_spec)
            known = self._known[key] = read(spec, self.mesh, shape)
        return known


def _from_named(spec: object, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """Return a NamedSharding of JAX as a sharding on the plan's mesh.

    Raises:
      StrategyError: its mesh has other devices, or an axis of the same name in another size.
    """
    there = Sharding.from_named(spec, shape)
    check_sizes(there.mesh, mesh)
    return sharding_on_mesh(there, mesh, shape)


# The reader of a spec by the name of its class, so that JAX need not be imported. A text may name
# devices in another order than the mesh has them.
_READERS: Mapping[str, Callable[[Any, Mesh, tuple[int, ...]], Sharding]] = {
    "NamedSharding": _from_named,
    "Sharding": sharding_on_mesh,
    "tuple": Sharding.from_axes,
    "str": lambda text, mesh, shape: sharding_on_mesh(
        Sharding.parse(text, shape, mesh), mesh, shape
    ),
}


def _unknown_sites(sites: Sequence[Site], given: Mapping[str, object]) -> list[str]:
    """Return a message for each name in a strategy that no site of the function has.

    A site is a place that the function names with `sa.annotate(value, name)`.

    Args:
      given: the strategy's specs, by name.
    """
    # Several sites may share a name, for example in the layers of a model.
    names = list(dict.fromkeys(site.name for site in sites if site.name))
    faults = []
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else " sa.annotate(value, name) makes one."
            faults.append(f"no site is called {name!r}; the function's sites are {names}.{hint}")
    return faults


def _other_regions(graph: Graph, mesh: Mesh) -> Iterator[str]:
    """Yield a message for each axis of a `shard_map` that has another size on the given mesh.

    The body of a `shard_map` is traced on one device's blocks, so its shapes fit one size of each
    axis only.
    """
    for node in graph.nodes:
        for name, size in node.signature.param("axes") if node.primitive == "shard_map" else ():
            # A mesh of symbols has sizes that are not known yet, which never equal a number.
            if mesh.shape.get(name) != size or mesh.symbolic:
                here = "a symbol" if mesh.symbolic else mesh.shape.get(name, "missing")
                line = node.source or "an unknown line"
                yield f"the shard_map at {line} is traced for {name}={size}, here {name} is {here}"


def _read_site(
    reader: _SpecReader, site: Site, given: Mapping[str, object], first_mesh: Mesh
) -> Sharding | None:
    """Return a site's sharding: the strategy's spec for its name, or the spec that it carries.

    None if there is neither. A spec that does not fit is a fault of the reader.

    Args:
      site: an annotation in the function, such as `with_sharding_constraint`.
      given: the strategy's specs, by the name of the site.
      first_mesh: the mesh on which the function was planned first.
    """
    node = reader.graph.nodes[site.node]
    # The strategy is the later decision, so it overrides the function.
    spec = given.get(site.name) if site.name is not None else None
    # A strategy's spec has no entries for the dimensions that `vmap` added; a site's own spec has.
    added_dims = () if spec is None else reader.graph.added_dims(site)
    if spec is None and site.spec is not None:
        spec = _own_spec(reader, site, first_mesh)
    place = f" at {node.source}" if node.source else ""
    name = f"site {site.name or '(no name)'}{place}"
    return reader.read(spec, node.results[0], name, added=added_dims)


def _own_spec(reader: _SpecReader, site: Site, first_mesh: Mesh) -> object:
    """Return the spec that a site carries: a tuple of axis names, or a sharding on its own mesh.

    A `NamedSharding` in the function has a mesh of its own. Its spec is a tuple of names if the
    plan's mesh is the same or replaces it, and a `Sharding` on the other mesh otherwise.

    Args:
      first_mesh: the mesh on which the function was planned first.
    """
    # A site lists its open dimensions beside its spec; `Sharding.from_axes` reads "?" for them.
    spec = site.spec or ()
    open_dims = site.unspecified_dims
    with_marks = [(*axes, "?") if dim in open_dims else axes for dim, axes in enumerate(spec)]
    entries = tuple(axes or None for axes in with_marks)
    if site.mesh is None:
        return entries
    # A spec on the mesh on which the function was planned first means axes by name on every mesh.
    own_mesh, axis_names = Mesh(*site.mesh), {name for names in spec for name in names}
    if not is_another(own_mesh, reader.mesh, axes=axis_names, first_mesh=first_mesh):
        return entries
    shape = reader.graph.values[reader.graph.nodes[site.node].results[0]].type.shape
    return Sharding.from_axes(entries, own_mesh, shape)
