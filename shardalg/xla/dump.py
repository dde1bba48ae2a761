"""XLA's own completion of a graph: the sharding of every instruction, and the collectives.

XLA's dump before SPMD partitioning has every sharding completed, by GSPMD's propagation or by
Shardy's; CPU devices suffice (`shardalg.host_devices`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from shardalg.algebra.jax_meshes import mesh_to_abstract
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import LoweringError
from shardalg.graph.abstract import item_type
from shardalg.graph.evaluate import evaluate
from shardalg.graph.ir import Graph, Node, Site
from shardalg.graph.tracing.parts import SWITCH
from shardalg.lower.arrays import even_prefix
from shardalg.lower.axes import Axes, axes_of
from shardalg.lower.xla_dump.hlo_collectives import (
    Dump,
    Dumping,
    HloCollective,
    collectives,
    layout,
)
from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule, Told, parse
from shardalg.planner.propagate.strategy import Annotations
from shardalg.planner.trips import while_loops, with_trips
from shardalg.xla.apart import Request, compile_apart

_NODE = "node"
_CALLBACKS = ("pure_callback", "io_callback")


@dataclass(frozen=True, eq=False)
class Completion:
    """The shardings that XLA's partitioner completes for one function, and its collectives.

    Attributes:
      partitioner: "gspmd" or "shardy".
      module: the program as it enters partitioning, every sharding completed.
      results: sharding per result; None if digits of the mesh cannot express it.
      collectives: the collectives that partitioning inserted.
      log: XLA's messages; None if XLA compiled in this process and wrote to its log.
      graph: the compiled graph, whose nodes XLA's instructions name; None for another program.
      flops: floating-point operations of one device, as XLA counts them; None without a count.
    """

    partitioner: str
    mesh: Mesh
    module: HloModule
    results: tuple[Sharding | None, ...]
    collectives: tuple[HloCollective, ...]
    log: str | None = None
    graph: Graph | None = None
    flops: float | None = None


def partitioners() -> tuple[str, ...]:
    """Return the partitioners that this JAX can use.

    >>> "shardy" in partitioners()
    True
    """
    return ("gspmd", "shardy") if hasattr(jax.config, SWITCH) else ("shardy",)


@contextmanager
def using(partitioner: str) -> Iterator[None]:
    """Make JAX lower for this partitioner inside of the context.

    Raises:
      LoweringError: this version of JAX does not have the partitioner.
    """
    if partitioner not in partitioners():
        raise LoweringError(
            f"jax {jax.__version__} has no partitioner {partitioner!r}, only {partitioners()}. "
            "Compare with one of these, or install a version of jax that has it."
        )
    # Versions of JAX without the option have Shardy only, so there is nothing to switch.
    if not hasattr(jax.config, SWITCH):
        yield
        return
    before = getattr(jax.config, SWITCH)
    jax.config.update(SWITCH, partitioner == "shardy")
    try:
        yield
    finally:
        # The switch is global to the process, so it is restored even after an error.
        jax.config.update(SWITCH, before)


def ask(
    graph: Graph,
    annotations: Annotations,
    partitioner: str = "gspmd",
    devices: Sequence[jax.Device] | None = None,
) -> Completion:
    """Ask XLA to complete a graph under the same annotations.

    XLA compiles the user's manual regions over some axes (`shard_map`) as the user wrote them.
    Instructions inside of them have no node, and a strategy's shardings inside are not used.

    Args:
      devices: devices to compile for. None means CPU devices of this process; if it has too few,
        another process with enough CPU devices compiles.

    Raises:
      LoweringError: this JAX lacks the partitioner, XLA ends without an answer, one device leaves
        nothing to partition, a callback needs more devices than this process has, or an annotation
        has another device order.
    """
    if annotations.orders:
        raise LoweringError(
            "some annotations have another device order than the mesh, and jax.jit takes one order "
            "per program, so XLA cannot compile them. Leave those annotations out."
        )
    mesh = annotations.mesh
    if devices is None:
        # GSPMD aborts on some regions over a part of the axes, and would end this process.
        devices = () if graph.as_written is not None else jax.devices("cpu")
    graph, annotations = _as_written(graph, annotations)
    with using(partitioner):
        stage = _stage(graph, annotations)
        # Devices of this process avoid the start of another one, which imports JAX again.
        if len(devices) >= mesh.size:
            # JAX raises ValueError if no PartitionSpec expresses a layout that XLA chose.
            with suppress(ValueError):
                first = tuple(devices[: mesh.size])
                made = read(stage, mesh, partitioner, first, loops=iterations_in(graph))
                return replace(made, graph=graph)
    # XLA may choose the sharding of each argument and result without annotation. The last argument
    # is the probe of `_lowered`, which has one.
    arguments, results = annotations.arguments, annotations.results
    open_ends = [s is None for s in arguments] + [False], [s is None for s in results]
    with Dumping(is_run=False) as dumping:
        apart = compile_apart(stage, dumping, Request(partitioner, mesh.size, *open_ends))
        shaped = zip(apart.shardings, _shapes(stage), strict=True)
        loops = iterations_in(graph)
        made = _completion(dumping.read(), partitioner, mesh, shaped, loops=loops)
        return replace(made, log=apart.log, graph=graph, flops=apart.flops)


def _as_written(graph: Graph, annotations: Annotations) -> tuple[Graph, Annotations]:
    """Return the graph with the user's manual regions as written, and their annotations.

    The graph as written has each `shard_map` as one operator. A site that only it has gets no
    sharding (None). A graph without such regions is returned unchanged.
    """
    if graph.as_written is None:
        return graph, annotations
    written = graph.as_written()
    iterations = {loop.node.source: loop.iterations for loop in while_loops(graph)}
    sources = {loop.node.source for loop in while_loops(written)}
    known_iterations = {
        source: n for source, n in iterations.items() if n is not None and source in sources
    }
    # Loops in the graph as written get the trip counts that the planned graph has.
    written = with_trips(written, known_iterations)
    # Node numbers differ between the two graphs, so sites are matched by their position in the
    # source. Sites with the same key are taken in order.
    shardings_by_site: dict[object, list[Sharding | None]] = {}
    for site, sharding in zip(graph.sites, annotations.sites, strict=True):
        shardings_by_site.setdefault(_site_key(graph, site), []).append(sharding)
    candidates = [shardings_by_site.get(_site_key(written, site), []) for site in written.sites]
    sites = tuple(rows.pop(0) if rows else None for rows in candidates)
    return written, replace(annotations, sites=sites)


def _site_key(graph: Graph, site: Site) -> object:
    """Return a key by which an annotated place of the function is found in another graph of it.

    It does not depend on node numbers.
    """
    node = graph.nodes[site.node]
    return node.source, node.signature.results, replace(site, node=0)


def shardy_text(graph: Graph, annotations: Annotations) -> str:
    """Return the StableHLO text of a graph with Shardy's shardings at its border and its sites.

    The locations name source lines.

    Args:
      annotations: annotations of every argument and result.

    Raises:
      LoweringError: an annotation has another device order than the mesh.
    """
    if annotations.orders:
        raise LoweringError(
            "some annotations have another device order than the mesh, and a JAX program has one "
            "order. Leave those annotations out."
        )
    with using("shardy"):
        return str(_stage(graph, annotations, probe=False).as_text(debug_info=True))


def read(
    stage: Any,
    mesh: Mesh,
    partitioner: str,
    devices: tuple[jax.Device, ...] | None = None,
    *,
    loops: Told = lambda loop: None,
) -> Completion:
    """Compile a lowered JAX program, and read the partitioner's input and its collectives.

    Args:
      stage: `jax.jit(f).lower(...)`; lower and compile it inside of `using(partitioner)`.
      devices: devices of a program that was lowered for none.
      loops: iterations of a while loop, if they are known before compilation; else None.

    Raises:
      LoweringError: XLA has no code for an operator on these devices.
    """
    with Dumping(is_run=False) as dumping:
        options = dumping.options
        try:
            compiled = stage.compile(compiler_options=options, device_assignment=devices)
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("UNIMPLEMENTED"):
                raise
            raise LoweringError(
                f"XLA does not compile this function for the devices of this process ({error}), so "
                "that its program cannot be compared. plan.cost and plan.verify need no compiler."
            ) from None
        # XLA chooses the shardings of results without annotation, so the executable is asked.
        result_shardings = zip(
            jax.tree.leaves(compiled.output_shardings), _shapes(stage), strict=True
        )
        texts = [(str(s._to_xla_hlo_sharding(len(shape))), shape) for s, shape in result_shardings]
        completion = _completion(dumping.read(), partitioner, mesh, texts, loops=loops)
        return replace(completion, flops=(compiled.cost_analysis() or {}).get("flops"))


def _shapes(stage: Any) -> list[tuple[int, ...]]:
    """Return the shapes of a lowered program's results."""
    return [leaf.shape for leaf in jax.tree.leaves(stage.out_info)]


def iterations_in(graph: Graph) -> Told:
    """Return a function from a `while` instruction of XLA to its trip count in the graph."""
    known = {loop.node.index: loop.iterations for loop in while_loops(graph)}

    def trip_count(loop: HloInstruction) -> int | None:
        node = node_of(loop.op_name)
        return None if node is None else known.get(node)

    return trip_count


def _completion(
    dump: Dump,
    partitioner: str,
    mesh: Mesh,
    results: Iterable[tuple[str, tuple[int, ...]]],
    *,
    loops: Told,
) -> Completion:
    """Read the completion from a dump.

    Args:
      results: the HLO sharding and the shape of each result of the function.
      loops: returns the trip count of a `while` instruction if it is known, else None.

    Raises:
      LoweringError: the dump has no program from before or after partitioning.
    """
    if dump.before is None or dump.after is None:
        raise LoweringError(
            f"XLA partitioned nothing on {mesh!r}: there is no dump of its partitioner. Compare a "
            "plan for two devices or more."
        )
    result_layouts = tuple(layout(text, shape, mesh) for text, shape in results)
    sent_collectives = collectives(dump.after, mesh, told=loops)
    return Completion(partitioner, mesh, parse(dump.before), result_layouts, sent_collectives)


def _stage(graph: Graph, annotations: Annotations, *, probe: bool = True) -> Any:
    """Return JAX's lowered program of a graph with its annotations.

    The program is lowered for no devices, so that partition ids are positions in the mesh. JAX
    lowers callbacks for existing devices only: then the first CPU devices are used, in the order
    of the positions.
    """
    mesh = annotations.mesh
    try:
        return _lowered(graph, annotations, mesh_to_abstract(mesh), probe=probe)
    except ValueError as error:
        # JAX has no own class for this error, so its text tells it from other errors.
        if "require devices" not in str(error):
            raise
    devices = jax.devices("cpu")
    if len(devices) < mesh.size:
        called = (n for n in graph.walk() if n.primitive in _CALLBACKS)
        named = ", ".join(f"{n.primitive} at {n.source or 'an unknown line'}" for n in called)
        raise LoweringError(
            f"JAX lowers callbacks ({named}) for existing devices only, and this process has "
            f"{len(devices)} of {mesh.size}. Call shardalg.host_devices({mesh.size}) before JAX "
            "starts, or leave the callbacks out."
        )
    concrete = Mesh(dict(mesh.axes)).to_jax(devices[: mesh.size])
    return _lowered(graph, annotations, concrete, probe=probe)


def _lowered(
    graph: Graph, annotations: Annotations, jax_mesh: JaxMesh | AbstractMesh, *, probe: bool
) -> Any:
    """Return JAX's lowered program of a graph on a JAX mesh.

    Args:
      probe: whether the program gets one more argument, which names the mesh.
    """
    stated_shardings = [
        s for s in (*annotations.arguments, *annotations.sites, *annotations.results) if s
    ]
    digits = {digit for sharding in stated_shardings for dim in sharding.dims for digit in dim}
    axes = axes_of(annotations.mesh, digits, jax_mesh)
    sites = zip(graph.sites, annotations.sites, strict=True)
    constrained = _ConstrainedFunction(
        graph, axes, annotations, {site.node: s for site, s in sites if s is not None}
    )
    types = [graph.values[value].type for value in graph.arguments]
    # JAX takes the mesh from the border's shardings, and perhaps none is annotated. The probe is an
    # unused replicated argument that names the mesh.
    everywhere = [NamedSharding(axes.mesh, PartitionSpec())] * probe
    jitted = jax.jit(
        constrained.function,
        in_shardings=(*map(constrained.border, annotations.arguments), *everywhere),
        out_shardings=tuple(map(constrained.border, annotations.results)),
        keep_unused=True,
    )
    argument_types = [jax.ShapeDtypeStruct(t.shape, item_type(t.dtype)) for t in types]
    argument_types += [jax.ShapeDtypeStruct((), "bool")] * probe
    with jax.sharding.use_abstract_mesh(axes.mesh.abstract_mesh):
        return jitted.trace(*argument_types).lower(lowering_platforms=("cpu",))


@dataclass(frozen=True, eq=False)
class _ConstrainedFunction:
    """A graph as a function of flat arguments, constrained where it is annotated."""

    graph: Graph
    axes: Axes
    annotations: Annotations
    sites: dict[int, Sharding]

    def function(self, *leaves: jax.Array) -> tuple[jax.Array, ...]:
        """Compute the results for flat arguments, with all sharding constraints of the annotations.

        The program may have one more argument than the graph, which is not used and only names the
        mesh.
        """
        annotations = self.annotations

        def at_site(node: Node, x: jax.Array) -> jax.Array:
            # XLA decides the sharding of a site that the strategy does not annotate.
            if (sharding := self.sites.get(node.index)) is None:
                return x
            return jax.lax.with_sharding_constraint(x, self._named(sharding))

        inside = map(self._uneven, leaves, annotations.arguments)
        results = evaluate(self.graph, *inside, annotate=at_site, scope=_named)
        return tuple(map(self._uneven, results, annotations.results))

    def border(self, sharding: Sharding | None) -> NamedSharding | None:
        """Return the sharding of an argument or result for JAX, without its uneven part; or None.

        JAX accepts only even shardings there. So only the leading axes that divide each dimension
        are kept; `_uneven` adds the full sharding inside of the function. Return None for no
        sharding.
        """
        return None if sharding is None else self._named(even_prefix(sharding))

    def _uneven(self, x: jax.Array, sharding: Sharding | None) -> jax.Array:
        if sharding is None or sharding.is_even:
            return x
        return jax.lax.with_sharding_constraint(x, self._named(sharding))

    def _named(self, sharding: Sharding) -> NamedSharding:
        """Return a sharding in JAX's form, in which the compiler may shard the open dimensions."""
        spec = list(self.axes.spec(sharding))
        for dim in sharding.unspecified_dims:
            # JAX cannot express a dimension that is open behind given axes; it keeps the axes only.
            spec[dim] = PartitionSpec.UNCONSTRAINED if spec[dim] is None else spec[dim]
        return NamedSharding(self.axes.mesh, PartitionSpec(*spec))


def _named(node: Node) -> Any:
    """Return the scope that puts a node's number into the names of its XLA instructions."""
    return jax.named_scope(f"{_NODE}{node.index}")


def node_of(op_name: str, graph: Graph | None = None) -> int | None:
    """Return the node that an instruction of XLA was made from; None if its name has none.

    An instruction that moves an argument may have the argument's name. It then belongs to the first
    node of `graph` that reads the argument.

    >>> node_of("jit(function)/while/body/node12/dot_general"), node_of("copy")
    (12, None)
    """
    # Names nest from the outermost loop inwards, so the last number is the node's own.
    found = re.findall(rf"\b{_NODE}(\d+)\b", op_name)
    if found:
        return int(found[-1])
    argument = re.fullmatch(r"leaves\[(\d+)\]", op_name)
    if graph is None or argument is None:
        return None
    return next(iter(graph.users[graph.arguments[int(argument[1])]]), None)
