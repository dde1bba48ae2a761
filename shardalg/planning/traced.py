"""What planning needs of a function: its graph, and what stands at its border."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import LoweringError, PlanFileError, StrategyError
from shardalg.graph.ir import Graph
from shardalg.graph.serial import from_json, graph_hash, to_json
from shardalg.graph.tracing.trace import trace
from shardalg.io.records import read, values
from shardalg.ops.canonicalize.normalise import normalise
from shardalg.ops.roles import roles
from shardalg.ops.rows import BUILDERS
from shardalg.propagate.other_mesh import is_another, placed
from shardalg.propagate.strategy import Annotations

if TYPE_CHECKING:
    from shardalg.symbolic.symbols import Symbols

_Roles = tuple[Literal["parameters", "optimizer_state", "data"] | None, ...]
Axes = Mapping[str, int] | None
"""Axis sizes of a mesh; None without one."""


@dataclass(frozen=True, eq=False)
class Traced:
    """What planning needs of a function, on any mesh: traced once, planned many times.

    Attributes:
      graph: normalised.
      argument_roles: per flattened argument, "parameters", "optimizer_state", "data" or None.
      own_shardings: per flattened argument, the NamedSharding it already carries, or None.
      donated: indices of flattened arguments whose memory the step may reuse.
      fn: the function; None in a loaded plan.
      symbols: the formulas of its sizes; None where all are numbers.
      first_mesh: on which it was planned first; layouts that bring this mesh follow the plan's.
      narrow: the graph as it was traced, where sums of `graph` were made wide.
    """

    graph: Graph
    argument_roles: tuple[str | None, ...]
    own_shardings: tuple[Any, ...] = ()
    donated: tuple[int, ...] = ()
    fn: Callable[..., Any] | None = None
    symbols: Symbols | None = None
    first_mesh: Mesh | None = None
    narrow: Graph | None = None

    def __post_init__(self) -> None:
        count = len(self.graph.arguments)
        beyond = [leaf for leaf in self.donated if not 0 <= leaf < count]
        if beyond:
            raise StrategyError(f"{beyond} cannot be donated: there are {count} flat arguments.")

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """Role of every value."""
        return roles(self.graph, self.argument_roles)

    def with_sums(self, *, wide: bool) -> Traced:
        """The same with sums of narrow floats in float32 (`Switches.wide_sums`), or as traced.

        Raises:
          StrategyError: they are to be wide, and sizes have names.
        """
        if not wide:
            return self if self.narrow is None else replace(self, graph=self.narrow, narrow=None)
        if self.narrow is not None:
            return self
        if self.symbols is not None:
            raise StrategyError(
                "wide_sums=True is for plans in numbers, and sizes of this one have names. Leave "
                "it out, or plan with the numbers of plan.at."
            )
        return replace(self, graph=normalise(self.graph, wide_sums=True), narrow=self.graph)

    @cached_property
    def hash(self) -> str:
        """Of the graph: tells whether a function is the one that was planned."""
        return graph_hash(self.narrow or self.graph)

    def bound(self, fn: Callable[..., Any], args: Sequence[Any] | None, axes: Axes) -> Traced:
        """A loaded plan's function, given again.

        Args:
          args: as they were planned; None where each is a single array.
          axes: of the mesh.

        Raises:
          LoweringError: its graph, the formulas of its sizes or what it donates are others, or it
            does not take these arguments.
        """
        from shardalg.graph.arguments import donated_by_jit, planned_arguments

        given = planned_arguments(
            self.graph, args, None if self.symbols is None else self.symbols.dims
        )
        try:
            made = trace_arguments(fn, tuple(given), axes, border=(None, ()))
        except TypeError as error:
            raise LoweringError(
                f"{fn!r:.80} does not take the planned arguments: {error}. Pass the function that "
                "was planned, and args=... where its arguments are pytrees."
            ) from None
        if made.hash != self.hash:
            raise LoweringError(
                f"the function's graph is {made.hash[:12]}, the plan was made for "
                f"{self.hash[:12]}: it is another function, or another jax. Plan it again."
            )
        if made.symbols and self.symbols and made.symbols.to_json() != self.symbols.to_json():
            raise LoweringError(
                "the function's sizes follow from the arguments' by other formulas than the plan "
                "has. Plan it again."
            )
        own = donated_by_jit(fn, given)
        if own and own != self.donated:
            raise LoweringError(
                f"the function donates its flat arguments {list(own)}, the plan was made to donate "
                f"{list(self.donated)}. Plan it again with donate_argnums, or pass it without."
            )
        bound = replace(self, graph=made.graph, fn=fn, narrow=None)
        return bound.with_sums(wide=self.narrow is not None)

    def to_json(self) -> dict[str, Any]:
        """All but the function, as plain data."""
        return {
            "graph": to_json(self.narrow or self.graph),
            "symbols": None if self.symbols is None else self.symbols.to_json(),
            "argument_roles": list(self.argument_roles),
            "donated": list(self.donated),
            "home": self.first_mesh and values(self.first_mesh, Mesh),
        }


def trace_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...], axes: Axes, *, border: tuple[Any, Any]
) -> Traced:
    """Trace a function as `plan` takes it, with the formulas of its sizes where they have names.

    Args:
      axes: of the mesh, for constraints by bare specs.
      border: prefix of the roles, and donated positions.
    """
    from shardalg.graph.arguments import declared_dims, donated_leaves, own_shardings, types_of
    from shardalg.graph.tracing.trace import flatten_prefix

    named, donate_argnums = border
    own = own_shardings(args)
    donated = donated_leaves(args, donate_argnums)
    leaf_roles = tuple(flatten_prefix(named, args, "roles"))
    declared = declared_dims(args)
    if declared is None:
        return Traced(_graph(fn, args, axes), leaf_roles, own, donated, fn)
    from shardalg.symbolic.symbols import name_sizes

    tracer = _tracer(fn, types_of(args), axes)
    graph = tracer({})
    return Traced(graph, leaf_roles, own, donated, fn, name_sizes(graph, declared, tracer))


def _tracer(
    fn: Callable[..., Any], args: tuple[Any, ...], axes: Axes
) -> Callable[[Mapping[str, int]], Graph]:
    """Traces the function where names have the sizes of a point, the others their hints."""
    from shardalg.algebra.dims import evaluate
    from shardalg.graph.arguments import with_shapes

    def tracer(point: Mapping[str, int]) -> Graph:
        return _graph(fn, with_shapes(args, lambda size: evaluate(size, point)), axes)

    return tracer


def _graph(fn: Callable[..., Any], args: Sequence[Any], axes: Axes) -> Graph:
    return normalise(trace(fn, *args, mesh_shape=axes, rows=BUILDERS))


def read_traced(content: Mapping[str, Any]) -> Traced:
    """What `Traced.to_json` wrote, without the function.

    Raises:
      PlanFileError: values that their types do not allow, a graph that no trace makes, or a
        function that JAX does not have.
    """
    from shardalg.graph.judged import check_types

    graph, named = from_json(content["graph"]), content["symbols"]
    check_types(graph)
    argument_roles = read(_Roles, content["argument_roles"], "argument_roles")
    donated = read(tuple[int, ...], content["donated"], "donated")
    if len(argument_roles) != len(graph.arguments) or len(set(donated)) != len(donated):
        raise PlanFileError(f"{argument_roles}, {donated}: a role per argument, each donated once.")
    first_mesh = read(Mesh | None, content["home"], "home")
    made = Traced(graph, argument_roles, donated=donated, first_mesh=first_mesh)
    if named is None:
        return made
    from shardalg.symbolic import symbols

    return replace(made, symbols=symbols.from_json(graph, named))


def own_mesh(traced: Traced) -> Mesh:
    """The mesh of the shardings that the arguments carry.

    Raises:
      StrategyError: there is none, or there are several.
    """
    meshes = {Mesh.from_jax(s.mesh) for s in traced.own_shardings if s is not None}
    if len(meshes) != 1:
        raise StrategyError(
            f"plan() needs a mesh: the arguments carry shardings on {len(meshes)} meshes. "
            "Pass mesh=sa.Mesh({'X': 8, 'Y': 16}) or a Strategy."
        )
    return meshes.pop()


def with_own(annotations: Annotations, traced: Traced) -> Annotations:
    """An argument's own NamedSharding counts where the strategy says nothing."""
    types = [traced.graph.values[v].type for v in traced.graph.arguments]
    own = traced.own_shardings or (None,) * len(types)
    arguments = tuple(
        given
        if given is not None or carried is None
        else _own_layout(carried, type_.shape, annotations.mesh, first_mesh=traced.first_mesh)
        for given, carried, type_ in zip(annotations.arguments, own, types, strict=True)
    )
    sides = (arguments, annotations.results, annotations.sites)
    return Annotations.of(annotations.mesh, *sides, orders=annotations.orders)


def _own_layout(
    carried: Any, shape: tuple[int, ...], mesh: Mesh, *, first_mesh: Mesh | None
) -> Sharding:
    """By the names of its axes, or on the mesh that it is on where that is another one."""
    there = Sharding.from_named(carried, shape)
    axes = {ref.name for dim in there.dims for ref in there.mesh.refs(dim)}
    if is_another(there.mesh, mesh, axes=axes, first_mesh=first_mesh or mesh):
        return placed(there, mesh, shape)
    return Sharding.from_named(carried, shape, mesh)
