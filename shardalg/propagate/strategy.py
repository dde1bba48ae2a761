"""What a user says about shardings: a strategy, and its resolution against a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardalgError, StrategyError
from shardalg.graph.ir import Graph, Site

POLICIES = ("gspmd",)


@dataclass(frozen=True)
class Options:
    """How a plan is made.

    Attributes:
      policy: which completion: "gspmd".
      strict: a primitive without a rule, or a broken condition, is an error rather than a warning.
      keep_gathers: gathered operands of the forward pass stay for the backward pass.
      priorities: False lets every operator act at once (to see what the priorities do).

    Raises:
      StrategyError: an unknown policy.
    """

    policy: str = "gspmd"
    strict: bool = False
    keep_gathers: bool = False
    priorities: bool = True

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise StrategyError(
                f"policy {self.policy!r} is not one of {list(POLICIES)}. "
                "Use Options(policy='gspmd'), or leave it out."
            )


@dataclass(frozen=True, eq=False)
class Strategy:
    """A mesh and what is annotated on it; everything else is completed.

    Attributes:
      in_shardings: prefix of the tuple of arguments, of `PartitionSpec`, `Sharding`,
      `NamedSharding` or None (complete it). out_shardings: prefix of the result, likewise.
      sites: name of an `annotate` site to its spec; it replaces a spec that the site carries
        itself.
    """

    mesh: Mesh
    in_shardings: object = None
    out_shardings: object = None
    sites: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Annotations:
    """A strategy on one graph: a sharding or None for each argument, result and site (`graph.sites`)."""

    mesh: Mesh
    arguments: tuple[Sharding | None, ...]
    results: tuple[Sharding | None, ...]
    sites: tuple[Sharding | None, ...]


def resolve(graph: Graph, strategy: Strategy) -> Annotations:
    """The strategy's annotations, one per flat argument, result and site of the graph.

    Raises:
      StrategyError: trees that do not match, unknown sites, and per value every spec that does not
        fit it: unknown
        axes, axes used twice, more entries than dimensions. All of them in one message.
    """
    trees = graph.trees or (None, None)
    given = _flat(strategy.in_shardings, trees[0], (graph.argument_paths, "in_shardings"))
    wanted = _flat(strategy.out_shardings, trees[1], (graph.result_paths, "out_shardings"))
    faults: list[str] = []
    mesh = strategy.mesh
    arguments = [
        _sharding(spec, mesh, (graph, v, f"argument {path}"), faults)
        for spec, v, path in zip(given, graph.arguments, graph.argument_paths, strict=True)
    ]
    results = [
        _sharding(spec, mesh, (graph, v, f"result {path or '(the only one)'}"), faults)
        for spec, v, path in zip(wanted, graph.results, graph.result_paths, strict=True)
    ]
    faults += _unknown_sites(graph.sites, strategy.sites)
    sites = [_site(site, strategy, graph, faults) for site in graph.sites]
    if faults:
        raise StrategyError(
            "\n".join([f"the annotations do not fit the function on {mesh!r}:", *faults])
        )
    return Annotations(mesh, tuple(arguments), tuple(results), tuple(sites))


def _flat(prefix: object, tree: object, where: tuple[Sequence[str], str]) -> list[object]:
    """One spec per leaf; `where` is the leaves' paths and the name of the parameter."""
    paths, what = where
    if prefix is None:
        return [None] * len(paths)
    if tree is None:
        leaves = list(prefix) if isinstance(prefix, list | tuple) else [prefix] * len(paths)
        if len(leaves) != len(paths):
            raise StrategyError(
                f"{what} has {len(leaves)} entries for {len(paths)} values {list(paths)}. "
                "A loaded graph takes one spec per flat value."
            )
        return leaves
    from shardalg.graph.trace import flatten_prefix

    return flatten_prefix(prefix, tree.unflatten(range(tree.num_leaves)), what)


Place = tuple[Graph, int, str]
"""Graph, value and name of an annotated value, for messages."""


def _sharding(spec: object, mesh: Mesh, place: Place, faults: list[str]) -> Sharding | None:
    """A spec as a sharding of the value; a fault is noted rather than raised, so that all are named at once."""
    if spec is None:
        return None
    graph, value, name = place
    kind = graph.values[value].type
    try:
        return _READERS.get(type(spec).__name__, _from_entries)(spec, mesh, kind.shape)
    except ShardalgError as error:
        faults.append(f"  {name} {kind!r}: {error}")
        return None


def _from_entries(spec: object, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    from shardalg.algebra.jax_types import from_spec

    return from_spec(spec, mesh, shape)


def _from_named(spec: object, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    from shardalg.algebra.jax_types import from_spec, mesh_from_jax

    theirs = mesh_from_jax(spec.mesh)
    if theirs.axes != mesh.axes:
        raise StrategyError(
            f"its mesh is {theirs!r}, the plan's is {mesh!r}. Use one mesh for both."
        )
    return from_spec(spec.spec, mesh, shape)


def _own(spec: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    if spec.shape != shape:
        raise StrategyError(
            f"{spec!r} is of shape {spec.shape}, not {shape}. Make it for this shape."
        )
    if spec.mesh.size != mesh.size:
        raise StrategyError(
            f"{spec!r} is on {spec.mesh.size} devices, the plan on {mesh.size}. Use one mesh for both."
        )
    return Sharding(
        mesh, shape, spec.dims, spec.unspecified_dims, spec.unreduced, spec.replicated, spec.manual
    )


_READERS: dict[str, Callable[[object, Mesh, tuple[int, ...]], Sharding]] = {
    "NamedSharding": _from_named,
    "Sharding": _own,
}


def _unknown_sites(sites: Sequence[Site], given: Mapping[str, object]) -> list[str]:
    names = list(dict.fromkeys(site.name for site in sites if site.name))
    faults = []
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            faults.append(f"  no site is called {name!r}; the function's sites are {names}.{hint}")
    return faults


def _site(site: Site, strategy: Strategy, graph: Graph, faults: list[str]) -> Sharding | None:
    node = graph.nodes[site.node]
    value, name = (
        node.results[0],
        f"site {site.name or 'without a name'}{f' ({node.source})' if node.source else ''}",
    )
    place = (graph, value, name)
    if site.name is not None and strategy.sites.get(site.name) is not None:
        return _sharding(strategy.sites[site.name], strategy.mesh, place, faults)
    if site.spec is None:
        return None
    kind = graph.values[value].type
    try:
        dims = tuple(strategy.mesh.digits(axes) for axes in site.spec)
        return Sharding(strategy.mesh, kind.shape, dims, site.unspecified_dims)
    except ShardalgError as error:
        faults.append(f"  {name} {kind!r}: {error}")
        return None
