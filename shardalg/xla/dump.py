"""XLA asked for its own completion: shardings of every instruction, and collectives.

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
    """XLA's completion of one function.

    Attributes:
      partitioner: "gspmd" or "shardy".
      module: the program as it enters partitioning, every sharding completed.
      results: layout per result; None where no digits of the mesh say it.
      collectives: what partitioning made.
      log: what XLA wrote meanwhile; None where it compiled in this process, whose log it shares.
      graph: that XLA was asked about, whose nodes it names; None where it was no graph.
    """

    partitioner: str
    mesh: Mesh
    module: HloModule
    results: tuple[Sharding | None, ...]
    collectives: tuple[HloCollective, ...]
    log: str | None = None
    graph: Graph | None = None


def partitioners() -> tuple[str, ...]:
    """Return the partitioners that this JAX can use.

    >>> "shardy" in partitioners()
    True
    """
    return ("gspmd", "shardy") if hasattr(jax.config, SWITCH) else ("shardy",)


@contextmanager
def using(partitioner: str) -> Iterator[None]:
    """JAX lowers for this partitioner inside.

    Raises:
      LoweringError: this JAX does not have it.
    """
    if partitioner not in partitioners():
        raise LoweringError(
            f"jax {jax.__version__} has no partitioner {partitioner!r}, only {partitioners()}. "
            "Compare with one of these, or install a version of jax that has it."
        )
    if not hasattr(jax.config, SWITCH):
        yield
        return
    before = getattr(jax.config, SWITCH)
    jax.config.update(SWITCH, partitioner == "shardy")
    try:
        yield
    finally:
        jax.config.update(SWITCH, before)


def ask(
    graph: Graph,
    annotations: Annotations,
    partitioner: str = "gspmd",
    devices: Sequence[jax.Device] | None = None,
) -> Completion:
    """Ask XLA to complete a graph under the same annotations.

    It is asked about the user's regions over some axes (`shard_map`) as they are written: what it
    makes inside has no node, and layouts that a strategy gives to names inside are not told to it.

    Args:
      devices: to compile for; None: CPU devices of this process, or where it has too few, of one of
        its own.

    Raises:
      LoweringError: this JAX lacks the partitioner, XLA ends without an answer, one device leaves
        nothing to partition, a callback asks for more devices than this process has, or something
        is annotated in another order of the devices.
    """
    if annotations.orders:
        raise LoweringError(
            "annotations order the devices otherwise than the mesh: jax.jit takes one order per "
            "program, so there is nothing to compare with. Leave those annotations out."
        )
    mesh = annotations.mesh
    if devices is None:
        # GSPMD aborts on some regions over a part of the axes, and would end this process.
        devices = () if graph.as_written is not None else jax.devices("cpu")
    graph, annotations = _as_written(graph, annotations)
    with using(partitioner):
        stage = _stage(graph, annotations)
        if len(devices) >= mesh.size:
            with suppress(ValueError):  # of JAX, which has no spec for some layouts of XLA's
                first = tuple(devices[: mesh.size])
                made = read(stage, mesh, partitioner, first, loops=iterations_in(graph))
                return replace(made, graph=graph)
    arguments, results = annotations.arguments, annotations.results
    open_ends = [s is None for s in arguments] + [False], [s is None for s in results]
    with Dumping(is_run=False) as dumping:
        texts, log = compile_apart(stage, dumping, Request(partitioner, mesh.size, *open_ends))
        shaped = zip(texts, _shapes(stage), strict=True)
        loops = iterations_in(graph)
        made = _completion(dumping.read(), partitioner, mesh, shaped, loops=loops)
        return replace(made, log=log, graph=graph)


def _as_written(graph: Graph, annotations: Annotations) -> tuple[Graph, Annotations]:
    """Return the graph with the user's manual regions as written, and their annotations."""
    if graph.as_written is None:
        return graph, annotations
    written = graph.as_written()
    counted = {loop.node.source: loop.iterations for loop in while_loops(graph)}
    sources = {loop.node.source for loop in while_loops(written)}
    given = {at: n for at, n in counted.items() if n is not None and at in sources}
    written = with_trips(written, given)
    known: dict[object, list[Sharding | None]] = {}
    for site, asked in zip(graph.sites, annotations.sites, strict=True):
        known.setdefault(_said(graph, site), []).append(asked)
    found = [known.get(_said(written, site), []) for site in written.sites]
    sites = tuple(rows.pop(0) if rows else None for rows in found)
    return written, replace(annotations, sites=sites)


def _said(graph: Graph, site: Site) -> object:
    """Return a key of a site that does not depend on its number."""
    node = graph.nodes[site.node]
    return node.source, node.signature.results, replace(site, node=0)


def shardy_text(graph: Graph, annotations: Annotations) -> str:
    """StableHLO of a graph with Shardy's shardings at its border and its sites; lines in locations.

    Args:
      annotations: of every argument and result.

    Raises:
      LoweringError: something is annotated in another order of the devices.
    """
    if annotations.orders:
        raise LoweringError(
            "annotations order the devices otherwise than the mesh, and a program of JAX has one "
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
    """Compile a lowered JAX program, and read what its partitioner was given and made.

    Args:
      stage: `jax.jit(f).lower(...)`, lowered and to be compiled `using` the partitioner.
      devices: of a program that was lowered for none.
      loops: iterations of loops that are known before XLA is asked.
    """
    with Dumping(is_run=False) as dumping:
        options = dumping.options
        compiled = stage.compile(compiler_options=options, device_assignment=devices)
        given = zip(jax.tree.leaves(compiled.output_shardings), _shapes(stage), strict=True)
        texts = [(str(s._to_xla_hlo_sharding(len(shape))), shape) for s, shape in given]
        return _completion(dumping.read(), partitioner, mesh, texts, loops=loops)


def _shapes(stage: Any) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in jax.tree.leaves(stage.out_info)]


def iterations_in(graph: Graph) -> Told:
    """Return a function from a while of XLA's to the iterations that the graph has for it."""
    known = {loop.node.index: loop.iterations for loop in while_loops(graph)}

    def told(loop: HloInstruction) -> int | None:
        node = node_of(loop.op_name)
        return None if node is None else known.get(node)

    return told


def _completion(
    dump: Dump,
    partitioner: str,
    mesh: Mesh,
    results: Iterable[tuple[str, tuple[int, ...]]],
    *,
    loops: Told,
) -> Completion:
    """Read the completion from a dump; `results` are their layouts and shapes."""
    if dump.before is None or dump.after is None:
        raise LoweringError(
            f"XLA partitioned nothing on {mesh!r}: there is no dump of its partitioner. Compare a "
            "plan for two devices or more."
        )
    known = tuple(layout(text, shape, mesh) for text, shape in results)
    made = collectives(dump.after, mesh, told=loops)
    return Completion(partitioner, mesh, parse(dump.before), known, made)


def _stage(graph: Graph, annotations: Annotations, *, probe: bool = True) -> Any:
    """JAX's lowered program of a graph with its annotations, uneven ones right inside.

    It is lowered for no devices, so that partition ids are positions in the mesh. JAX lowers a
    callback for devices only: then for the first CPU devices, in the order of the positions.
    """
    mesh = annotations.mesh
    try:
        return _lowered(graph, annotations, mesh_to_abstract(mesh), probe=probe)
    except ValueError as error:
        if "require devices" not in str(error):
            raise
    devices = jax.devices("cpu")
    if len(devices) < mesh.size:
        called = (n for n in graph.walk() if n.primitive in _CALLBACKS)
        named = ", ".join(f"{n.primitive} at {n.source or 'an unknown line'}" for n in called)
        raise LoweringError(
            f"JAX lowers callbacks ({named}) for devices at hand only, and this process has "
            f"{len(devices)} of {mesh.size}. Ask for them first, with "
            f"shardalg.host_devices({mesh.size}), or leave the callbacks out."
        )
    concrete = Mesh(dict(mesh.axes)).to_jax(devices[: mesh.size])
    return _lowered(graph, annotations, concrete, probe=probe)


def _lowered(
    graph: Graph, annotations: Annotations, jax_mesh: JaxMesh | AbstractMesh, *, probe: bool
) -> Any:
    given = [s for s in (*annotations.arguments, *annotations.sites, *annotations.results) if s]
    digits = {digit for sharding in given for dim in sharding.dims for digit in dim}
    axes = axes_of(annotations.mesh, digits, jax_mesh)
    sites = zip(graph.sites, annotations.sites, strict=True)
    asked = _ConstrainedFunction(
        graph, axes, annotations, {site.node: s for site, s in sites if s is not None}
    )
    types = [graph.values[value].type for value in graph.arguments]
    # JAX asks the borders alone for the mesh, and none of them may be annotated.
    everywhere = [NamedSharding(axes.mesh, PartitionSpec())] * probe
    jitted = jax.jit(
        asked.function,
        in_shardings=(*map(asked.border, annotations.arguments), *everywhere),
        out_shardings=tuple(map(asked.border, annotations.results)),
        keep_unused=True,
    )
    structs = [jax.ShapeDtypeStruct(t.shape, item_type(t.dtype)) for t in types]
    structs += [jax.ShapeDtypeStruct((), "bool")] * probe
    with jax.sharding.use_abstract_mesh(axes.mesh.abstract_mesh):
        return jitted.trace(*structs).lower(lowering_platforms=("cpu",))


@dataclass(frozen=True, eq=False)
class _ConstrainedFunction:
    """A graph as a function of flat arguments, constrained where it is annotated."""

    graph: Graph
    axes: Axes
    annotations: Annotations
    sites: dict[int, Sharding]

    def function(self, *leaves: jax.Array) -> tuple[jax.Array, ...]:
        """Compute the results of the arguments; an additional, unused argument is allowed."""
        annotations = self.annotations
        inside = map(self._uneven, leaves, annotations.arguments)
        results = evaluate(self.graph, *inside, annotate=self._at_site, scope=_named)
        return tuple(map(self._uneven, results, annotations.results))

    def border(self, sharding: Sharding | None) -> NamedSharding | None:
        """JAX's sharding of an argument or a result, which divides it."""
        return None if sharding is None else self._named(even_prefix(sharding))

    def _uneven(self, x: jax.Array, sharding: Sharding | None) -> jax.Array:
        if sharding is None or sharding.is_even:
            return x
        return jax.lax.with_sharding_constraint(x, self._named(sharding))

    def _at_site(self, node: Node, x: jax.Array) -> jax.Array:
        sharding = self.sites.get(node.index)
        if sharding is None:
            return x
        return jax.lax.with_sharding_constraint(x, self._named(sharding))

    def _named(self, sharding: Sharding) -> NamedSharding:
        spec = list(self.axes.spec(sharding))
        for dim in sharding.unspecified_dims:
            spec[dim] = _opened(spec[dim])
        return NamedSharding(self.axes.mesh, PartitionSpec(*spec))


def _named(node: Node) -> Any:
    """XLA calls what it makes of a node so."""
    return jax.named_scope(f"{_NODE}{node.index}")


def node_of(op_name: str, graph: Graph | None = None) -> int | None:
    """Return the node that an instruction of XLA was made from; None if its name has none.

    What moves an argument may be named for it, and is then the first node's of `graph` that reads
    the argument.

    >>> node_of("jit(function)/while/body/node12/dot_general"), node_of("copy")
    (12, None)
    """
    found = re.findall(rf"\b{_NODE}(\d+)\b", op_name)
    if found:
        return int(found[-1])
    argument = re.fullmatch(r"leaves\[(\d+)\]", op_name)
    if graph is None or argument is None:
        return None
    return next(iter(graph.users[graph.arguments[int(argument[1])]]), None)


def _opened(entry: object) -> object:
    """Return an open dimension; JAX cannot express one that is open behind given axes."""
    return PartitionSpec.UNCONSTRAINED if entry is None else entry
