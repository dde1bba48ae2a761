"""A function as planning sees it (`Traced`): its graph, roles and own shardings of arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.kernels.expert_load import with_expert_load
from shardalg.costs.kernels.kernel_price import KernelPrice
from shardalg.costs.kernels.softmax_attention import with_softmax_attention
from shardalg.errors import LoweringError, PlanFileError, StrategyError
from shardalg.files import read, values
from shardalg.graph.ir import Graph
from shardalg.graph.ops.canonicalize.normalise import (
    Padding,
    in_stages,
    normalise,
    unread,
    with_padding,
)
from shardalg.graph.ops.canonicalize.transforms import Order
from shardalg.graph.ops.roles import roles
from shardalg.graph.ops.rows import BUILDERS
from shardalg.graph.serial import from_json, graph_hash, to_json
from shardalg.graph.tracing.trace import Explicit, jaxpr_on, trace
from shardalg.planner.calls.call import Call, Given, Inner, result_paths
from shardalg.planner.calls.meshes import flat_layouts
from shardalg.planner.calls.user_call import opened
from shardalg.planner.kernel_prices import (
    with_given_prices,
    with_pallas_prices,
    without_given_prices,
)
from shardalg.planner.propagate.other_mesh import check_sizes, is_another, sharding_on_mesh
from shardalg.planner.propagate.strategy import Annotations, Strategy
from shardalg.planner.trips import Trips, with_trips, without_trips

if TYPE_CHECKING:
    from shardalg.algebra.dims import Expr
    from shardalg.graph.tracing.symbolic_trace import JaxprTracer
    from shardalg.sizes.symbolic.symbols import Symbols

_Roles = tuple[Literal["parameters", "optimizer_state", "data"] | None, ...]
Axes = Mapping[str, int] | None
"""The size of each mesh axis by name, for PartitionSpecs in the function; None without a mesh."""


@dataclass(frozen=True, eq=False)
class Traced:
    """A function, traced once and planned many times, on any mesh.

    Attributes:
      graph: the traced graph, normalised and with the rewrites of `orders`.
      argument_roles: per flattened argument, "parameters", "optimizer_state", "data" or None.
      own_shardings: per flattened argument, the NamedSharding of the array that the user passed, or
        None.
      donated: indices of flattened arguments whose memory the step may reuse.
      call: the function's call, with the conversion of the user's arguments; None in a loaded plan.
      symbols: the formulas of its sizes; None if all are numbers.
      first_mesh: the mesh on which it was planned first. Shardings that the function states on this
        mesh are translated to the plan's mesh by axis names.
      narrow: the graph as it was traced, if sums of `graph` are in float32 (`Switches.wide_sums`).
      orders: the rewrites of `graph` in their order. Each is a tuple of (node, stages) of Fourier
        transforms, or the padding of samples.
      whole: the graph before these rewrites; None if there was none.
      again: a function that traces it for other sizes of mesh axes. None if the graph does not
        depend on them (it has no `shard_map`), and in a loaded plan.
      changed: a function that traces it with another function in place of the user's. Its argument
        takes the user's function and returns the other one. None in a loaded plan.
    """

    graph: Graph
    argument_roles: tuple[str | None, ...]
    own_shardings: tuple[Any, ...] = ()
    donated: tuple[int, ...] = ()
    call: Call | None = None
    symbols: Symbols | None = None
    first_mesh: Mesh | None = None
    narrow: Graph | None = None
    orders: tuple[tuple[tuple[int, Order], ...] | Padding, ...] = ()
    whole: Graph | None = None
    again: Callable[[Axes], Traced] | None = None
    changed: Callable[[Callable[[Inner], Inner]], Traced] | None = None

    def __post_init__(self) -> None:
        count = len(self.graph.arguments)
        beyond = [leaf for leaf in self.donated if not 0 <= leaf < count]
        if beyond:
            raise StrategyError(f"{beyond} cannot be donated: there are {count} flat arguments.")

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The role of every value: "parameters", "data", "activation", "gradient" and so on."""
        return roles(self.graph, self.argument_roles)

    def with_sums(self, *, wide: bool) -> Traced:
        """Return the function with sums of bfloat16 and float16 in float32, or as it was traced.

        Args:
          wide: whether the sums are in float32 (`Switches.wide_sums`).

        Raises:
          StrategyError: `wide` is True, and sizes have names.
        """
        # `narrow` is None exactly if the sums have the types of the trace.
        if not wide:
            return self if self.narrow is None else replace(self, graph=self.narrow, narrow=None)
        if self.narrow is not None:
            return self
        if self.symbols is not None:
            raise StrategyError(
                "wide_sums=True is for plans in numbers, but sizes of this plan have names. Leave "
                "it out, or plan with the numbers of plan.at."
            )
        return replace(self, graph=normalise(self.graph, wide_sums=True), narrow=self.graph)

    def unstaged(self) -> Traced:
        """Return the function with its graph before the rewrites of `staged`.

        These rewrites compute Fourier transforms in stages, or pad samples.
        """
        if self.whole is None:
            return self
        return replace(self, graph=self.whole, whole=None, orders=())

    def staged(self, orders: tuple[tuple[int, Order], ...] | Padding) -> Traced:
        """Return the function with one more rewrite of its graph.

        Args:
          orders: (node, stages) of Fourier transforms to run in stages, or the padding of samples.
        """
        if isinstance(orders, Padding):
            graph = with_padding(self.graph, orders)
        else:
            graph = in_stages(self.graph, dict(orders))
        whole = self.graph if self.whole is None else self.whole
        return replace(self, graph=graph, whole=whole, orders=(*self.orders, orders))

    @property
    def original(self) -> Graph:
        """The graph as it was traced, without rewrites, given trip counts and given prices."""
        return without_given_prices(without_trips(self.narrow or self.whole or self.graph))

    def on(self, mesh: Mesh, *, before: Mesh) -> Traced:
        """Return the function for another mesh.

        It is traced again if it has a `shard_map` along an axis whose size changes. Otherwise it is
        returned as it is.

        Args:
          mesh: the other mesh.
          before: the mesh of the present graph.

        Raises:
          StrategyError: it has to be traced again, but a loaded plan does not have the function.
        """
        both = sorted(self.graph.traced_axes & before.shape.keys() & mesh.shape.keys())
        other = [name for name in both if before.shape[name] != mesh.shape[name]]
        if not other:
            return self
        if self.again is None:
            sizes = ", ".join(f"{n}={mesh.shape[n]}, not {before.shape[n]}" for n in other)
            raise StrategyError(
                f"a loaded plan has no function to trace at {sizes}: a region is manual along "
                "these axes, so that its blocks change. Plan the function again, or change other "
                "axes."
            )
        # Roles, call and donation do not depend on the mesh; graph and formulas do.
        made = self.again(mesh.shape)
        return replace(self._of(made.graph), symbols=made.symbols)

    def _of(self, graph: Graph) -> Traced:
        """Return the function with the graph of a new trace, and forget the old graph's rewrites.

        The rewrites were made for the nodes of the old graph.
        """
        return replace(self, graph=graph, narrow=None, whole=None, orders=())

    def with_trips(self, trips: Trips) -> Traced:
        """Return the function with these numbers of iterations of its `while` loops.

        Raises:
          StrategyError: `trips` names a loop that the function does not have.
        """
        made = with_trips(self.graph, trips)
        return self if made is self.graph else replace(self, graph=made)

    def with_prices(self, prices: Mapping[str, KernelPrice]) -> Traced:
        """Return the function with the user's prices of kernels (`Options.prices`).

        Raises:
          StrategyError: `prices` names a kernel that the function does not call.
        """
        made = with_given_prices(self.graph, prices)
        return self if made is self.graph else replace(self, graph=made)

    def with_attention(self, *, fused: bool) -> Traced:
        """Return the function with its softmax attention marked as fused kernels, or unmarked.

        Args:
          fused: whether it is marked (`Options.fuse_attention`).
        """
        made = with_softmax_attention(self.graph, fused=fused)
        return self if made is self.graph else replace(self, graph=made)

    def with_load(self, load: float | str) -> Traced:
        """Return the function with this load factor of its ragged operators.

        The load factor is `Options.expert_load`.
        """
        made = with_expert_load(self.graph, load)
        return self if made is self.graph else replace(self, graph=made)

    @cached_property
    def hash(self) -> str:
        """The hash of the traced graph: functions with equal hashes can use one saved plan."""
        return graph_hash(self.original)

    def bound(self, fn: Callable[..., Any], args: Sequence[Any] | None, axes: Axes) -> Traced:
        """Return a loaded plan's `Traced`, joined with the Python function that it was made for.

        The function is traced and its graph compared with the loaded one.

        Args:
          fn: the function.
          args: its arguments as they were planned; None if each is a single array.
          axes: the sizes of the mesh's axes.

        Raises:
          LoweringError: its graph, the formulas of its sizes or its donated arguments differ, or it
            does not take these arguments.
        """
        from shardalg.graph.arguments import planned_arguments

        given = planned_arguments(
            self.graph, args, None if self.symbols is None else self.symbols.dims
        )
        try:
            call = opened(fn, tuple(given), {})
            made = trace_call(call, axes, given=(tuple(given), {}), roles=None)
        except TypeError as error:
            raise LoweringError(
                f"{fn!r:.80} does not take the planned arguments: {error} Pass the function that "
                "was planned, and args=... where its arguments are pytrees."
            ) from None
        if made.hash != self.hash:
            # JAX promotes Python numbers unlike arrays, and a file does not tell them apart.
            numbers = "" if args else " If a number of Python was an argument, pass args=... too."
            raise LoweringError(
                f"the function's graph is {made.hash[:12]}, the plan was made for "
                f"{self.hash[:12]}: it is another function, or another jax. Plan it again.{numbers}"
            )
        if made.symbols and self.symbols and made.symbols.to_json() != self.symbols.to_json():
            raise LoweringError(
                "the function's sizes follow from the arguments' by other formulas than the plan "
                "has. Plan it again."
            )
        # A function that donates nothing itself may still be run with the plan's donation.
        own = call.donated
        if own and own != self.donated:
            raise LoweringError(
                f"the function donates its flat arguments {list(own)}, the plan was made to donate "
                f"{list(self.donated)}. Plan it again with donate_argnums, or pass it without."
            )
        # The new trace has no rewrites yet. Those of the saved plan are repeated in their order,
        # because each one names nodes of the graph that the earlier ones made.
        bound = replace(self._of(made.graph), call=made.call)
        bound = bound.with_sums(wide=self.narrow is not None)
        for orders in self.orders:
            bound = bound.staged(orders)
        # Given trip counts (`Options.trips`) are in the regions of the loaded graph alone.
        if bound.graph.regions == self.graph.regions:
            return bound
        return replace(bound, graph=replace(bound.graph, regions=self.graph.regions))

    def with_layouts(self, strategy: Strategy) -> Strategy:
        """Return a strategy whose shardings of arguments and results have one entry per leaf.

        The user may give prefixes of the pytrees. If the strategy gives none, those of `jax.jit`
        are used.

        Raises:
          StrategyError: a prefix does not fit the function's arguments or results.
        """
        call = self.call
        if call is None:
            return strategy
        entered, left = flat_layouts(call, self.graph.trees, strategy)
        return replace(strategy, in_shardings=entered, out_shardings=left)

    def to_json(self) -> dict[str, Any]:
        """Return all fields except the Python function as data that JSON can store.

        A trace that is read back can be planned, but neither run nor traced again. Fields that are
        not set become None.
        """
        return {
            "graph": to_json(self.original),
            "symbols": None if self.symbols is None else self.symbols.to_json(),
            "argument_roles": list(self.argument_roles),
            "donated": list(self.donated),
            "home": self.first_mesh and values(self.first_mesh, Mesh),
        }


def trace_call(
    call: Call, axes: Axes, *, given: Given, roles: Any, explicit: Explicit | None = None
) -> Traced:
    """Trace a call of a user's function and return it as a `Traced`.

    If sizes of the arguments have names, all sizes of the graph become formulas.

    Args:
      axes: the sizes of the mesh's axes, for constraints by PartitionSpecs.
      given: the user's positional arguments, and a dictionary of the named ones.
      roles: the roles of the arguments, as in `Call.roles`.
      explicit: the types of values along explicit mesh axes, as in `trace`.
    """
    from shardalg.graph.arguments import declared_dims, own_shardings, types_of

    # The call keeps types in place of arrays, so that a plan does not hold the user's memory.
    leaf_roles = call.roles(roles)
    declared, symbols = declared_dims(call.args), None
    own, kept = own_shardings(call.args), replace(call, args=types_of(call.args))
    hints = _Hints(axes, call.paths, explicit)
    if declared is None:
        graph = call.inside(lambda *arrays: _graph(call, arrays, hints), *given)
    else:
        from shardalg.sizes.symbolic.symbols import name_sizes

        # One trace shows numbers only. Formulas in named sizes are found by comparing it with
        # traces at other sizes.
        tracer = _tracer(kept, _types(given), hints)
        graph = tracer({})
        jaxpr_at = _jaxpr_tracer(kept, _types(given), hints)
        symbols = name_sizes(graph, declared, tracer, jaxpr_at)
    made = Traced(graph, leaf_roles, own, call.donated, kept, symbols)
    later = partial(trace_call, given=_types(given), roles=roles, explicit=explicit)
    made = replace(made, changed=lambda change: later(replace(kept, fn=change(kept.fn)), axes))
    # A `shard_map` fixes the sizes of its axes in the graph; only then is a mesh traced again.
    return replace(made, again=partial(later, kept)) if graph.traced_axes else made


def _types(given: Given) -> Given:
    """Return the user's positional and named arguments with a shape and dtype for each array."""
    from shardalg.graph.arguments import types_of

    return types_of(given[0]), *types_of([given[1]])


class _Hints(NamedTuple):
    """Keyword arguments that are passed on to `trace`."""

    mesh_shape: Axes
    paths: tuple[str, ...]
    explicit: Explicit | None


def _tracer(call: Call, given: Given, hints: _Hints) -> Callable[[Mapping[str, int]], Graph]:
    """Return a function that traces the call at other sizes.

    It takes a dictionary from names of sizes to numbers; absent names have their hints.
    """
    from shardalg.algebra.dims import evaluate
    from shardalg.graph.arguments import with_shapes

    # `call.inside` converts the user's arguments to arrays, so the sizes are replaced afterwards.
    def tracer(point: Mapping[str, int]) -> Graph:
        def traced(*arrays: Any) -> Graph:
            return _graph(call, with_shapes(arrays, lambda size: evaluate(size, point)), hints)

        return call.inside(traced, *given)

    return tracer


def _jaxpr_tracer(call: Call, given: Given, hints: _Hints) -> JaxprTracer:
    """Return a function that traces the call at other sizes, or at symbolic dimensions of JAX.

    A function that needs explicit mesh axes cannot be traced so.

    Args:
      call: the user's function and its arguments.
      given: the abstract arguments, whose sizes may be expressions in names.
    """
    from sympy import lambdify

    from shardalg.algebra.dims import sizes_of
    from shardalg.graph.arguments import with_shapes

    def jaxpr_at(point: Mapping[str, Any]) -> Any:
        """Return the jaxpr of the call; `point` has a size, or a symbol of JAX, per name."""

        def size(expression: Expr) -> Any:
            """Return a declared size at the point."""
            named = sizes_of([expression])
            return lambdify([*named.values()], expression)(*(point[name] for name in named))

        def traced(*arrays: Any) -> Any:
            """Return the jaxpr for arguments in which the declared sizes have their values."""
            return jaxpr_on(hints.mesh_shape, call.fn, *with_shapes(arrays, size))

        return call.inside(traced, *given)

    return jaxpr_at


def _graph(call: Call, args: Sequence[Any], hints: _Hints) -> Graph:
    """Trace a call and return its normalised graph, with the user's names of its results.

    Args:
      hints: more keyword arguments of `trace`.
    """
    made = trace(call.fn, *args, rows=BUILDERS, **hints._asdict())
    # The user's names of results follow from their pytree, the second one of `made.trees`.
    paths = result_paths(call, made.trees[1], made.result_paths)
    made = with_pallas_prices(made)
    return replace(normalise(made), result_paths=paths, unread=unread(made, call.lost))


def read_traced(content: Mapping[str, Any]) -> Traced:
    """Return the `Traced` that `to_json` wrote; it has no Python function.

    Raises:
      PlanFileError: a value has a wrong type, no trace could give the graph, or the graph has an
        operator that JAX does not have.
    """
    from shardalg.graph.ops.judged import check_operators

    # A file may be from anybody: operators, roles and donation are checked as if a user gave them.
    graph, named = from_json(content["graph"]), content["symbols"]
    check_operators(graph)
    argument_roles = read(_Roles, content["argument_roles"], "argument_roles")
    donated = read(tuple[int, ...], content["donated"], "donated")
    if len(argument_roles) != len(graph.arguments) or len(set(donated)) != len(donated):
        raise PlanFileError(f"{argument_roles}, {donated}: a role per argument, each donated once.")
    first_mesh = read(Mesh | None, content["home"], "home")
    made = Traced(graph, argument_roles, donated=donated, first_mesh=first_mesh)
    if named is None:
        return made
    from shardalg.sizes.symbolic import symbols

    return replace(made, symbols=symbols.from_json(graph, named))


def with_own_shardings(annotations: Annotations, traced: Traced) -> Annotations:
    """Return the annotations, extended by shardings of the arrays that the user passed.

    An argument without an annotation gets the NamedSharding of its array, if it has one.
    """
    types = [traced.graph.values[v].type for v in traced.graph.arguments]
    # The user's annotation wins over the sharding that the array has by chance.
    array_shardings = traced.own_shardings or (None,) * len(types)
    arguments = tuple(
        annotated
        if annotated is not None or carried is None
        else _own_layout(carried, type_.shape, annotations.mesh, first_mesh=traced.first_mesh)
        for annotated, carried, type_ in zip(
            annotations.arguments, array_shardings, types, strict=True
        )
    )
    sides = (arguments, annotations.results, annotations.sites)
    # `Annotations.of` finds the arguments whose mesh has another order of the devices.
    extended = Annotations.of(annotations.mesh, *sides, orders=annotations.orders)
    return replace(extended, values=annotations.values)


def _own_layout(
    carried: Any, shape: tuple[int, ...], mesh: Mesh, *, first_mesh: Mesh | None
) -> Sharding:
    """Return the NamedSharding of an array as a sharding for the plan.

    It is translated to the plan's mesh by axis names, unless the array is on a mesh of its own.
    Then it keeps the array's blocks on their devices.

    Args:
      carried: the array's NamedSharding.
      first_mesh: the mesh on which the function was planned first.
    """
    # Only the axes that the sharding uses decide: an array may be on a mesh with more axes.
    there = Sharding.from_named(carried, shape)
    axes = {ref.name for dim in there.dims for ref in there.mesh.refs(dim)}
    if is_another(there.mesh, mesh, axes=axes, first_mesh=first_mesh or mesh):
        check_sizes(there.mesh, mesh)
        return sharding_on_mesh(there, mesh, shape)
    return Sharding.from_named(carried, shape, mesh)
