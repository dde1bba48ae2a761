"""Translation of a jaxpr to a `Graph`: calls are inlined, control flow becomes regions.

This module does not import jax. It reads attributes of JAX's objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from shardalg.errors import TraceError
from shardalg.graph.ir import Graph, LeftOut, Node, Plain, PlainMesh, Region, Site
from shardalg.graph.source import Draft, Sources, phases, within
from shardalg.graph.tracing.control_flow import (
    ATTENTION,
    BODY_PARAMS,
    CALLS,
    INDEXED,
    INLINED,
    RAGGED_DOT,
    RegionCall,
    call_params,
    taken_branches,
)
from shardalg.graph.tracing.parts import Parts

if TYPE_CHECKING:
    from shardalg.graph.ir import RegionArgument

HOST_MEMORY = ("MemorySpace.Host", "pinned_host")


@dataclass(slots=True)
class _OpenRegion:
    """A region to which nodes are still added. Its fields are the fields of `Region`."""

    index: int
    kind: str
    parent: int | None
    trip_count: int
    arguments: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    node: int | None = None
    nodes: list[int] = field(default_factory=list)

    def region(self) -> Region:
        """Return the region as an immutable `Region`, after all its nodes were added."""
        ends = (self.node, self.arguments, self.results)
        return Region(self.index, self.kind, self.parent, *ends, tuple(self.nodes), self.trip_count)


class Scope(NamedTuple):
    """The context in which an equation is translated.

    Attributes:
      spans: its region, then the parent regions that list its nodes too (around a remat region).
      source: the source line of the equation, or of the call that it is inlined from.
      flags: see `Draft`.
      module: the named scopes around it, outer calls first.
      kernel: see `Node`.
      manual: axes along which the region is manual.
      opened: the primitives, each with its operand types, whose expansion contains the equation.
      order: all axes of the region's mesh, in the order of the mesh.
    """

    spans: tuple[_OpenRegion, ...]
    source: str = ""
    flags: int = 0
    module: str = ""
    manual: frozenset[str] = frozenset()
    opened: frozenset[object] = frozenset()
    order: tuple[str, ...] = ()
    kernel: str = ""

    @property
    def context(self) -> tuple[str, int, str, str]:
        """Source line, flags, module and kernel: the parts that differ between equations."""
        return self.source, self.flags, self.module, self.kernel


Placing = Callable[["GraphBuilder", Any, list[int], Scope], Sequence[int]]
"""Function of (builder, equation, value indices of the operands, context).

It adds the nodes of the equation to the graph, and returns the value indices of the results.
"""


class GraphBuilder:
    """Translation of equations to nodes, regions, region arguments and sites.

    Args:
      primitives: JAX's primitives for nodes without an equation ("annotate",
        "optimization_barrier"), for `Graph.bindings`.
      reader: returns the function that reads the equations of a primitive.
      written_out: returns a jaxpr that expands an equation, or None.
      wrapped: returns a jaxpr that builds captured random keys from their words, or None for other
        arrays.
      mesh_of: returns the mesh that the user gave a sharding, as plain data.

    Attributes:
      block_axes: axes of the regions that were rewritten to whole values (`subgroups.py`).
    """

    def __init__(
        self,
        primitives: Mapping[str, object],
        reader: Callable[[Any], Placing],
        *,
        written_out: Callable[[Any], Any | None],
        wrapped: Callable[[Any], Any | None],
        mesh_of: Callable[[Any], PlainMesh | None],
    ) -> None:
        """Start with an empty graph; the arguments are those of the class.

        Nodes are drafts until all equations were read, because their phases depend on later nodes.
        """
        self.primitives = primitives
        self.reader = reader
        self.written_out = written_out
        self.wrapped = wrapped
        self.mesh_of = mesh_of
        self.parts = Parts()
        self.region_arguments: list[RegionArgument] = []
        self.sites: list[Site] = []
        self.left_out: list[LeftOut] = []
        self.block_axes: set[str] = set()
        self._sources = Sources()
        self._drafts: list[Draft] = []
        self._bindings: list[object] = []
        # The regions in the order in which they were opened; region 0 is the program.
        self._spans = [_OpenRegion(0, "root", None, 1)]

    def graph(self, closed: Any, argument_paths: Sequence[str], paths: Sequence[str]) -> Graph:
        """Return the graph of a closed jaxpr.

        Args:
          closed: the jaxpr.
          argument_paths, paths: the path of each input and of each output, such as `params['w']`.
        """
        root = self._spans[0]
        inputs = zip(getattr(closed, "jaxpr", closed).invars, argument_paths, strict=True)
        input_types = [(self.parts.type_of(variable.aval), path) for variable, path in inputs]
        root.arguments = tuple(self.parts.value(t, "argument", path) for t, path in input_types)
        # Region 0 is the program. `run` adds the nodes of its equations and of all bodies inside.
        root.results = tuple(self.run(closed, root.arguments, Scope((root,))))
        return Graph(
            values=tuple(self.parts.values),
            nodes=self._nodes(),
            regions=tuple(span.region() for span in self._spans),
            region_arguments=tuple(self.region_arguments),
            arguments=root.arguments,
            results=root.results,
            argument_paths=tuple(argument_paths),
            result_paths=tuple(paths),
            sites=tuple(self.sites),
            constants=tuple(self.parts.constants),
            bindings=tuple(self._bindings),
            left_out=tuple(self.left_out),
            block_axes=tuple(sorted(self.block_axes)),
        )

    def _nodes(self) -> tuple[Node, ...]:
        """Return the nodes with their phases, after all equations were read.

        The phase of a node is forward, backward or update.
        """
        # A node's phase depends on nodes after it, so phases come last.
        node_phases = phases(self._drafts, {span.index: span.results for span in self._spans})
        return tuple(
            Node(
                *(i, d.signature, d.operands, d.results, d.source, phase, d.region, d.bodies),
                *(d.module, d.kernel),
            )
            for i, (d, phase) in enumerate(zip(self._drafts, node_phases, strict=True))
        )

    def run(self, body: Any, arguments: Iterable[int], place: Scope) -> list[int]:
        """Add the nodes of a jaxpr's equations; return the value indices of its results.

        Args:
          body: the jaxpr, closed or open.
          arguments: the value index of each of its inputs.
          place: the context of the equation that contains it.
        """
        jaxpr = getattr(body, "jaxpr", body)
        value_of = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, array in zip(jaxpr.constvars, getattr(body, "consts", ()), strict=True):
            # Captured random keys become plain numbers, which files can store.
            key = self.wrapped(array)
            value_of[var] = (
                self.run(key, (), place)[0] if key else self.parts.constant(var.aval, array)
            )
        # Consecutive equations often share their context, so the object is reused.
        context = place
        for equation in jaxpr.eqns:
            operands = self._read(equation.invars, value_of)
            source = self._sources.line(equation.source_info.traceback, place.source)
            name_flags, scopes = self._sources.scope(equation.source_info.name_stack)
            flags, module = place.flags | name_flags, within(place.module, scopes)
            kernel = place.kernel or self._sources.kernel(equation.source_info.traceback)
            # Source line, flags, module and kernel are the context of an equation.
            if (source, flags, module, kernel) != context.context:
                context = place._replace(source=source, flags=flags, module=module, kernel=kernel)
            # The function that adds the nodes of this primitive; it returns one value index per
            # result.
            handler = self.reader(equation.primitive)
            value_of.update(
                zip(equation.outvars, handler(self, equation, operands, context), strict=True)
            )
        return self._read(jaxpr.outvars, value_of)

    def _read(self, atoms: Iterable[Any], env: Mapping[Any, int]) -> list[int]:
        """Return the value indices of a jaxpr's variables and literals."""
        # A literal has the attribute `val`, and cannot be a key.
        return [self.parts.constant(a.aval, a.val) if hasattr(a, "val") else env[a] for a in atoms]

    def open(self, kind: str, parent: _OpenRegion, trips: int = 1) -> _OpenRegion:
        """Add a new region without nodes inside `parent`, which executes it `trips` times."""
        span = _OpenRegion(len(self._spans), kind, parent.index, parent.trip_count * trips)
        self._spans.append(span)
        return span

    def node(
        self,
        primitive: Any,
        params: Mapping[str, object],
        operands: Sequence[int],
        results: tuple[int, ...],
        *,
        place: Scope,
        bodies: tuple[int, ...] = (),
    ) -> int:
        """Add a node, with its parameters as plain data; return its index.

        Args:
          primitive, params: JAX's primitive and parameters.
          operands, results: value indices.
          bodies: the regions of a call.
        """
        plain_params = call_params(primitive.name, params) if bodies else params
        params_data = self.parts.plain(primitive.name, plain_params)
        signature = self.parts.signature(
            primitive.name, params_data, operands=operands, results=results
        )
        context = (
            place.source,
            place.flags,
            place.spans[0].index,
            bodies,
            place.module,
            place.kernel,
        )
        index = len(self._drafts)
        self._drafts.append(Draft(signature, tuple(operands), results, *context))
        # JAX's own parameters are kept too, because code in them has no plain form.
        self._bindings.append((primitive, params))
        # A remat region is inlined in the regions around it: they list its nodes in their own order
        # of execution too.
        for span in place.spans:
            span.nodes.append(index)
        return index


def plain_node(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add one node for an equation; return the value indices of its results.

    If the equation has a parameter `out_sharding`, its results are annotated with this sharding.
    """
    parts, primitive = builder.parts, equation.primitive
    types = [parts.type_of(var.aval) for var in equation.outvars]
    results = parts.results(types, parts.label(primitive.name, place.source))
    builder.node(primitive, equation.params, operands, results, place=place)
    sharding = equation.params.get("out_sharding", equation.params.get("sharding"))
    # On explicit axes the user states the result's sharding in the operator. It becomes a site.
    if getattr(sharding, "spec", None) and any(sharding.spec):
        return _with_sites(builder, results, [sharding], place)
    return results


def _inline(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add the nodes of a call's body; return the value indices of its results."""
    params = equation.params
    return builder.run(next(params[n] for n in BODY_PARAMS if n in params), operands, place)


def _write_out(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add the nodes of an equation's expansion (`written.py`), or one node if it has none."""
    body = builder.written_out(equation)
    if body is None:
        return plain_node(builder, equation, operands, place)
    return builder.run(body, operands, place)


def _linear_solve(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add the nodes of a `custom_linear_solve`.

    Only its solver is needed: JAX uses the other functions for derivatives, before tracing ends.
    """
    # The operands are the constants of matvec, vecmat, solve and its transpose, then the values.
    counts, bodies = equation.params["const_lengths"], equation.params["jaxprs"]
    start = counts.matvec + counts.vecmat
    given = operands[start : start + counts.solve] + operands[sum(counts) :]
    return builder.run(bodies.solve, given, place)


def _jit(builder: GraphBuilder, equation: Any, operands: list[int], place: Scope) -> Sequence[int]:
    """Add the nodes of a jitted function's body.

    The function's `in_shardings` and `out_shardings` become annotations of its operands and
    results.
    """
    params = equation.params
    operands = _with_sites(builder, operands, params.get("in_shardings", ()), place)
    results = _inline(builder, equation, operands, place)
    return _with_sites(builder, results, params.get("out_shardings", ()), place)


def _with_sites(
    builder: GraphBuilder, values: Sequence[int], shardings: Sequence[object], place: Scope
) -> list[int]:
    """Annotate each value whose sharding has a spec; return the values after the annotations.

    Args:
      shardings: a sharding or another object for each value; may be shorter.
    """
    annotated = []
    for value, sharding in zip_longest(values, shardings):
        if getattr(sharding, "spec", None) is not None:
            (value,) = _constrained(builder, value, sharding, place)
        annotated.append(value)
    return annotated


def _scan(builder: GraphBuilder, equation: Any, operands: list[int], place: Scope) -> Sequence[int]:
    """Add a scan, whose body becomes a region; return the value indices of its results."""
    params = equation.params
    # JAX 0.11 stores the numbers of constants and carries as trees.
    if "ft_in" in params:
        constants, carry, _ = params["ft_in"].unpack()
        counts = (len(constants), len(carry))
    else:
        counts = (params["num_consts"], params["num_carry"])
    counted = dict(zip(("num_consts", "num_carry"), counts, strict=True))
    total = len(_open_jaxpr(params["jaxpr"]).invars)
    bodies = [(params["jaxpr"], _border_labels(*counts, total=total))]
    return call(builder, equation, operands, place, Bodies(bodies, counts, counted))


def _while(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a while loop, whose condition and body become regions; return its results."""
    params = equation.params
    # Under `vmap` the condition has an element per batch element. A loop of JAX needs one flag, so
    # the loop is expanded to one that runs while any element continues.
    if params["cond_jaxpr"].out_avals[0].shape:
        return _write_out(builder, equation, operands, place)
    counts = (params["cond_nconsts"], params["body_nconsts"])
    carried = len(operands) - sum(counts)
    # Both regions have arguments such as "carry0", so that labels begin with the region's name.
    bodies = [
        (
            params[name],
            [f"{part}/{label}" for label in _border_labels(n, carried, total=n + carried)],
        )
        for part, name, n in zip(
            ("condition", "body"), ("cond_jaxpr", "body_jaxpr"), counts, strict=True
        )
    ]
    return call(builder, equation, operands, place, Bodies(bodies, counts))


def _cond(builder: GraphBuilder, equation: Any, operands: list[int], place: Scope) -> Sequence[int]:
    """Add a `cond`, whose branches become regions; return its results.

    If only one branch can be taken, its nodes are added instead.
    """
    branches = taken_branches(equation.params)
    if len(branches) == 1:
        return builder.run(branches[0], operands[1:], place)
    # Operand 0 is the number of the branch, which the branches do not receive.
    labels = range(len(operands) - 1)
    bodies = [(b, [f"branch{k}/operand{i}" for i in labels]) for k, b in enumerate(branches)]
    return call(builder, equation, operands, place, Bodies(bodies, ()))


class Bodies(NamedTuple):
    """The bodies of a call (scan, while, cond, shard_map), as `call` needs them.

    Attributes:
      bodies: per body, its jaxpr and the labels of its arguments.
      counts: numbers of (constants, carries) of a scan, or numbers of constants of (the condition,
        the body) of a while loop.
      counted: parameters that the node has in addition to the equation's parameters.
    """

    bodies: list[tuple[Any, list[str]]]
    counts: tuple[int, ...]
    counted: Mapping[str, Plain] = MappingProxyType({})


def call(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope, inside: Bodies
) -> Sequence[int]:
    """Add a call (a loop or a branch): its regions, its node, and its region arguments.

    Each body becomes a region. Region arguments connect the operands and results of the call with
    the arguments and results of its bodies. Return the value indices of the call's results.

    Args:
      inside: the bodies of the call, with a label for each of their arguments.
    """
    parts, params, kind = builder.parts, equation.params, equation.primitive.name
    name, line = parts.label(kind, place.source)
    spans = []
    for jaxpr, labels in inside.bodies:
        span = builder.open(kind, place.spans[0], int(params.get("length", 1)))
        span.arguments = tuple(
            parts.value(parts.type_of(var.aval), "region_argument", f"{name}{line}/{label}")
            for var, label in zip(_open_jaxpr(jaxpr).invars, labels, strict=True)
        )
        # `spans` has only the body: the regions around it list the call, which runs these nodes.
        span.results = tuple(builder.run(jaxpr, span.arguments, place._replace(spans=(span,))))
        spans.append(span)
    results = parts.results([parts.type_of(var.aval) for var in equation.outvars], (name, line))
    # The node of the call comes right after the nodes of its bodies, as `phases` requires.
    all_params = {**params, **inside.counted}
    bodies = tuple(span.index for span in spans)
    node = builder.node(
        equation.primitive, all_params, operands, results, place=place, bodies=bodies
    )
    # A region refers to its call, whose number is known only now.
    for span in spans:
        span.node = node
    body_values = [span.arguments for span in spans], [span.results for span in spans]
    call = RegionCall(node, inside.counts, operands, *body_values, results)
    builder.region_arguments.extend(CALLS[kind](call))
    return results


def _open_jaxpr(jaxpr: Any) -> Any:
    """Return the open jaxpr of a closed one, or the open jaxpr itself."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _border_labels(constants: int, carried: int, *, total: int) -> list[str]:
    """Return the labels of a loop's body arguments, such as "const0", "carry0" and "xs0".

    Args:
      constants, carried: the number of constants and of carries.
      total: the number of all arguments; the rest are "xs".
    """
    runs = (("const", constants), ("carry", carried), ("xs", total - constants - carried))
    return [f"{kind}{i}" for kind, count in runs for i in range(count)]


def _annotation(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add the node and the site of an `annotate` in the user's function; return its result."""
    return site(builder, operands, equation.params, place)


def _constraint(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a `with_sharding_constraint` as an annotation; return its result.

    Its site has the axis names of the spec, and the mesh of the sharding.

    Raises:
      TraceError: the sharding has no spec.
    """
    params = equation.params
    sharding = params.get("sharding", params.get("dst_sharding"))
    if getattr(sharding, "spec", None) is None:
        raise TraceError(
            f"the constraint at {place.source or 'an unknown line'} names devices and no axes: "
            f"{sharding}. Constrain with a PartitionSpec or a NamedSharding."
        )
    return _constrained(builder, operands[0], sharding, place)


def _constrained(builder: GraphBuilder, value: int, sharding: Any, place: Scope) -> Sequence[int]:
    """Annotate a value with the spec and the mesh of a sharding; return the annotated value."""
    params = site_params(sharding.spec, len(builder.parts.values[value].type.shape))
    return site(builder, [value], params, place, mesh=builder.mesh_of(sharding))


def _reshard(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a `jax.reshard` as an annotation, except for a reshard that JAX adds in broadcasts.

    JAX adds it, and its transpose, with an empty spec on automatic axes or on no mesh.
    """
    sharding = equation.params["dst_sharding"]
    automatic = sharding.mesh.empty or sharding.mesh.are_all_axes_auto
    if automatic and not any(sharding.spec):
        return operands
    return _constraint(builder, equation, operands, place)


def _device_put(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a `device_put` as annotations of its operands; return the annotated values.

    A target without axis names has no effect. A plan covers only the memory of devices, so a copy
    to the host is omitted and recorded in `left_out`.
    """
    places = equation.params["devices"]
    if any(str(getattr(at, "memory_kind", None) or at) in HOST_MEMORY for at in places):
        name = equation.primitive.name
        builder.left_out.append(LeftOut(name, place.source, place.spans[0].trip_count))
    return _with_sites(builder, operands, places, place)


def site_params(spec: Iterable[object], rank: int) -> dict[str, Any]:
    """Return the parameters of an `annotate` equation for a PartitionSpec.

    An entry that is neither None, nor an axis, nor a tuple of axes, makes its dimension open.

    >>> site_params(("x", None, ("y", "z")), 4)["spec"]
    (('x',), (), ('y', 'z'), ())
    """
    entries = [*spec, *[None] * rank][:rank]
    axes = [e if isinstance(e, tuple) else (e,) if isinstance(e, str) else () for e in entries]
    open_dims = [i for i, e in enumerate(entries) if not (e is None or isinstance(e, str | tuple))]
    return {"name": None, "spec": tuple(axes), "unspecified_dims": tuple(open_dims)}


def site(
    builder: GraphBuilder,
    operands: list[int],
    params: Mapping[str, Any],
    place: Scope,
    *,
    mesh: PlainMesh | None = None,
) -> Sequence[int]:
    """Add an `annotate` node and its `Site`; return the value index of the result.

    A site is a named place at which a strategy may set the sharding of a value.

    Args:
      operands: the annotated value, as a list of one.
      params: the parameters of the annotation.
      mesh: the mesh of the annotation, if the parameters have none.

    Raises:
      TraceError: the annotation is named, or names a manual axis, inside of a manual region.
    """
    parts, name = builder.parts, params["name"]
    mesh = params.get("mesh") or mesh
    label = parts.label("annotate", place.source)
    types = [parts.values[operands[0]].type]
    # A strategy could give a named site any axes, so it is refused inside of manual regions.
    manual_names = place.manual.intersection(chain.from_iterable(params["spec"] or ()))
    if manual_names or (name and place.manual):
        raise TraceError(
            f"the annotation {name or params['spec']} at {place.source or 'an unknown line'} "
            f"is inside a shard_map over {sorted(place.manual)}, where each device has its own "
            "values. Use the in_specs and out_specs of the shard_map, or annotate outside of it."
        )
    results = parts.results(types, (name, "") if name else label)
    # The mesh is stored in the site, not in the node.
    node_params = {key: value for key, value in params.items() if key != "mesh"}
    node = builder.node(builder.primitives["annotate"], node_params, operands, results, place=place)
    builder.sites.append(Site(node, name, params["spec"], params["unspecified_dims"], mesh))
    return results


HANDLERS: dict[str, Placing] = {
    **dict.fromkeys(INLINED, _inline),
    "custom_linear_solve": _linear_solve,
    **dict.fromkeys("iota_2x32_shape random_bits rotate split stack unstack".split(), _write_out),
    **dict.fromkeys(INDEXED, _write_out),
    **dict.fromkeys((*ATTENTION, RAGGED_DOT), _write_out),
    "jit": _jit,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "annotate": _annotation,
    "sharding_constraint": _constraint,
    "reshard": _reshard,
    "device_put": _device_put,
}
