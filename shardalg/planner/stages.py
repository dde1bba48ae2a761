"""Planning: from a traced function and annotations to shardings and a program.

`planned` is the main function; `Stages` holds its results. The module also translates annotations
from one mesh to another one, by the names of the axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.algebra.derived_layouts import plain
from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.collectives import Traffic
from shardalg.costs.kernels.expert_load import loads
from shardalg.costs.kernels.softmax_attention import fused_lines
from shardalg.costs.matrix_unit import assumed_products
from shardalg.costs.topology import machine
from shardalg.errors import MeshError, StrategyError
from shardalg.graph.ir import Graph
from shardalg.graph.ops.canonicalize.transforms import Order, stage_order
from shardalg.pause import collection_paused
from shardalg.planner.kernel_prices import unpriced
from shardalg.planner.padded_samples import by_layer, padding_of_samples
from shardalg.planner.partition.partition import NONE, Kept
from shardalg.planner.partition.unreached import joined_whole, shard_unreached
from shardalg.planner.pipeline import partition
from shardalg.planner.propagate import propagate
from shardalg.planner.propagate.options import CompletionOptions, Options
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.propagate.stage_axes import exclude_stage_axes
from shardalg.planner.propagate.strategy import Annotations, Strategy, resolve
from shardalg.planner.traced import Traced
from shardalg.planner.trips import while_loops
from shardalg.sizes.symbolic.retrace import Difference, other_blocks
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.costs.cost import Cost
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.memory import Liveness
    from shardalg.costs.symbolic import Symbolised
    from shardalg.costs.topology import Topology
    from shardalg.sizes.symbolic.symbols import Symbols


def annotations_on_mesh(
    graphs: tuple[Graph, Graph], given: Annotations, there: Mesh, first_mesh: Mesh | None
) -> Annotations:
    """Return the annotations of a plan for another mesh: each names the same axes there.

    Args:
      graphs: the graphs of the function on the plan's mesh and on the other mesh. They differ if
        the function has a `shard_map`.
      given: the plan's annotations.
      there: the other mesh.
      first_mesh: the mesh on which the function was planned first; shardings that the function
        itself states are on this mesh.

    Raises:
      StrategyError: the mesh does not have an axis, or a sharding has another order of devices.
    """
    if given.orders:
        raise StrategyError(
            f"{len(given.orders)} shardings of the plan have another order of the devices of "
            f"{given.mesh!r}, which {there!r} does not have. Give a Strategy for that mesh."
        )
    meshes = (given.mesh, there)
    was, here = (
        resolve(graph, Strategy(mesh), first_mesh).sites
        for graph, mesh in zip(graphs, meshes, strict=True)
    )
    pairs = zip(was, given.sites, strict=True)
    # Shardings that the function itself states are resolved on the other mesh already (`here`), so
    # only those that the user added are translated.
    changed = [None if old == new else (new,) for old, new in pairs]
    # On a mesh with other blocks the function is traced again, and its sites have other numbers.
    places = _partners(graphs, [i for i, new in enumerate(changed) if new], there)
    moved = [None if i is None else changed[i] for i in places]
    try:
        sites = tuple(None if new is None else new[0] for new in moved)
        made = annotations_at(replace(given, sites=sites), graphs[1], there)
    except MeshError as error:
        raise StrategyError(
            f"the annotations on {given.mesh!r} cannot be expressed on {there!r}: {error} Give a "
            "Strategy with shardings for that mesh."
        ) from None
    # All other sites keep the shardings that the function states on the other mesh.
    rows = zip(moved, here, made.sites, strict=True)
    return replace(made, sites=tuple(own if new is None else site for new, own, site in rows))


def annotations_at(annotations: Annotations, graph: Graph, mesh: Mesh) -> Annotations:
    """Return annotations that name the same axes, for the shapes of `graph` and the given mesh.

    The graph is that of the same function at other sizes. It must have as many arguments, results
    and sites as the annotations. A value without an annotation stays without one.
    """
    # A site marks the result of its node, whose shape may differ at other sizes.
    sites = [graph.nodes[site.node].results[0] for site in graph.sites]
    sides = (
        (annotations.arguments, graph.arguments),
        (annotations.results, graph.results),
        (annotations.sites, sites),
    )

    def at_new_shape(sharding: Sharding, value: int) -> Sharding:
        """Return the sharding along the same axes for the shape that the value has in `graph`."""
        return _sharding_by_names(sharding, mesh, graph.values[value].type.shape)

    arguments, results, site_layouts = (
        tuple(
            None if sharding is None else at_new_shape(sharding, value)
            for sharding, value in zip(layouts, values, strict=True)
        )
        for layouts, values in sides
    )
    named_values = tuple(
        (value, at_new_shape(sharding, value)) for value, sharding in annotations.values
    )
    return Annotations(mesh, arguments, results, site_layouts, named_values)


def _sharding_by_names(sharding: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """Return the sharding on another mesh whose dimensions have axes of the same names.

    Args:
      mesh: the other mesh; the sizes of its axes may differ.
      shape: the shape of the tensor there.
    """

    # A digit is a stride and a size, which change with the mesh; the name of its axis does not.
    def digits(group: Digits) -> Digits:
        refs = (ref for digit in group for ref in sharding.mesh.axis_refs(digit))
        return tuple(mesh.ref_digit(ref) for ref in refs)

    return Sharding(
        mesh,
        shape,
        tuple(digits(group) for group in sharding.dims),
        sharding.unspecified_dims,
        digits(sharding.unreduced),
        digits(sharding.replicated),
        digits(sharding.manual),
    )


def _partners(graphs: tuple[Graph, Graph], moved: Sequence[int], there: Mesh) -> list[int | None]:
    """Return per site of the second graph the number of the corresponding site in the first one.

    A site is a place of the function where a sharding may be given. Two sites correspond if both
    are the n-th site with one name. None for a site of the second graph whose partner is not in
    `moved`.

    Args:
      moved: numbers of the sites of the first graph to find.
      there: the mesh of the second graph, for the error's text.

    Raises:
      StrategyError: there are more or fewer sites of such a name in the second graph.
    """
    if graphs[0] is graphs[1]:
        return [i if i in moved else None for i in range(len(graphs[1].sites))]
    # Two traces number sites differently, but both meet the sites of one name in the same order.
    found: list[int | None] = [None] * len(graphs[1].sites)
    for name in dict.fromkeys(graphs[0].sites[i].name for i in moved):
        first, second = ([i for i, s in enumerate(g.sites) if s.name == name] for g in graphs)
        if len(first) != len(second):
            raise StrategyError(
                f"site {name or '(no name)'} occurs {len(second)} times in the function on "
                f"{there!r}, {len(first)} times here: a manual axis has other blocks there. "
                "Give a Strategy for that mesh."
            )
        for old, new in zip(first, second, strict=True):
            found[new] = old if old in moved else None
    return found


# `plan/explain/decisions.py` fills these columns. They are here so that an empty table needs none
# of its imports.
CHANGE_COLUMNS = ("kind", "place", "source", "at_hints", "here")
NO_CHANGES = Table(CHANGE_COLUMNS, ())


@dataclass(frozen=True, eq=False)
class Stages:
    """The results of planning a function, one per stage.

    Attributes:
      traced: the traced function.
      annotations: the user's annotations on a mesh.
      sharded: the completed graph.
      program: the partitioned program.
      hardware: the chip by whose seconds and memory plans are compared (`Options.hardware`).
      streams: whether loops fetch one layer of a stack per iteration (`Options.stream_layers`).
      kept: gathered copies that stay for the backward pass (`Switches.keep_below_peak`).
      has_own_links: whether prices assume that each mesh axis has links of its own, if only a chip
        is named and no topology. That is so for axes of named size, and for plans at values of
        these: no arrangement of chips fits all sizes of an axis.
    """

    traced: Traced
    annotations: Annotations
    sharded: ShardedGraph
    program: SpmdProgram
    hardware: str
    streams: bool = False
    kept: Kept = NONE
    has_own_links: bool = False

    def machine(self, hardware: str | Hardware | Topology | None = None) -> Hardware | Topology:
        """Return the machine by which the plan is priced.

        If the hardware is a chip, the machine has as many chips as the mesh needs. They are linked
        in the vendor's arrangement, except if `has_own_links` is True.

        Args:
          hardware: a chip or topology; None is the chip of the options.
        """
        from shardalg.costs.topology import arranged, machine

        given = self.hardware if hardware is None else hardware
        return machine(given) if self.has_own_links else arranged(given, self.mesh)

    @property
    def graph(self) -> Graph:
        """The graph of the traced function."""
        return self.traced.graph

    @property
    def mesh(self) -> Mesh:
        """The mesh for which the function is planned."""
        return self.annotations.mesh

    @property
    def is_named(self) -> bool:
        """True if sizes of arguments or of mesh axes are named sizes, not numbers."""
        return is_named(self.traced, self.annotations)

    @cached_property
    def cost(self) -> Cost:
        """The cost on the chip of the options: seconds of a step, memory, bytes and flops.

        Named sizes have their hints.
        """
        return priced(self.traced, self.program, self.machine())

    @cached_property
    def data_sheet_cost(self) -> Cost:
        """The cost at the rates of the chip's data sheet, by which the planner compares plans.

        Decisions do not depend on fitted constants, so that a new fit never changes a plan.
        """
        from shardalg.costs.topology import machine

        return priced(self.traced, self.program, machine(self.hardware).on(DATASHEET))

    @property
    def peak_memory_bytes(self) -> int:
        """The largest number of bytes that a device holds at one time, on the options' chip."""
        from shardalg.costs.memory import liveness
        from shardalg.costs.topology import machine

        chip, traced = machine(self.hardware).chip, self.traced
        border: dict[str, Any] = {"roles": traced.roles, "donated": traced.donated}
        return liveness(self.program, self.graph, rebuild=chip.rebuilds, **border).peak_bytes

    @cached_property
    def as_written(self) -> Liveness:
        """The memory of a device if no forward value is computed again in the backward pass."""
        from shardalg.costs.memory import liveness

        roles, donated = self.traced.roles, self.traced.donated
        return liveness(self.program, self.graph, roles=roles, donated=donated)

    @cached_property
    def traffic(self) -> Traffic:
        """The program's collectives, with the producers and readers of their values."""
        return Traffic(self.program, self.graph)

    @property
    def symbols(self) -> Symbols:
        """The sizes of all values as formulas of named sizes, or as numbers if none has a name."""
        from shardalg.sizes.symbolic.symbols import numbers_only

        return self.traced.symbols or numbers_only(self.graph)


def is_named(traced: Traced, annotations: Annotations) -> bool:
    """Return whether sizes of arguments or of mesh axes are named sizes, not numbers."""
    return traced.symbols is not None or annotations.mesh.symbolic


def planned(
    traced: Traced,
    annotations: Annotations,
    options: Options,
    *,
    known: Completions | None = None,
) -> Stages:
    """Plan a traced function under annotations, and return the results of all stages.

    The best of several plans is returned. Variants run Fourier transforms in stages, pad samples
    while they are merged with features, fetch layers in loops, or keep gathered copies. Those that
    rewrite the graph are not tried if single values are annotated.

    Args:
      options: the user's options.
      known: a cache of completions that several plans of these annotations share.
    """
    # Some switches do not work on formulas.
    options = options.where(named=is_named(traced, annotations))
    known = Completions(annotations) if known is None else known
    # Annotations of single values name values by number, which a rewrite would change.
    if annotations.values:
        return _kept(_streamed(_planned(traced, known, options), options), options)
    # A replanned function may have stages and padding of an earlier plan, which are decided anew.
    traced = traced.unstaged().with_sums(wide=options.switches.wide_sums)
    traced = traced.with_trips(dict(options.trips)).with_prices(dict(options.prices))
    traced = traced.with_attention(fused=options.fuse_attention).with_load(options.expert_load)
    best = made = _planned(traced, known, options)
    # Running one transform in stages changes shardings. The operand of another transform may then
    # be sharded along a transformed dimension, so that this one is run in stages next.
    while options.switches.stage_transforms and (orders := _orders(made.sharded)):
        made = _planned(made.traced.staged(orders), known, options)
        best = min(best, made, key=_sent)
    # The other orders of completion reproduce XLA's shardings, in which samples are not padded.
    if options.switches.pad_blocks and options.way == "paper":
        padding = padding_of_samples(best.sharded)
        if padding is not None:
            made = _planned(best.traced.staged(padding), known, options)
            best = min(best, made, key=_sent)
    return _kept(_streamed(best, options), options)


def _kept(made: Stages, options: Options) -> Stages:
    """Return a plan that keeps gathered copies for the backward pass, if that is better.

    It must send less and must not raise the memory peak. Otherwise `made` is returned. By default,
    a copy that the forward pass gathers is freed, and the backward pass gathers it again.
    """
    traced, chip = made.traced, machine(made.hardware).chip
    # Without roles all gathered copies are kept already; an explicit `keep_gathers` decides itself.
    is_open = options.keep_gathers is None and options.keeping(traced.roles) is False
    if not (is_open and options.switches.keep_below_peak and options.switches.share_gathers):
        return made
    from shardalg.planner.partition.kept_copies import below_peak

    # `below_peak` judges each copy on the first program; the second program decides in the end.
    copies = below_peak(made.program, made.graph, donated=traced.donated, rebuild=chip.rebuilds)
    if not copies:
        return made
    program = partition(made.sharded, traced.roles, options, kept=copies)
    with_copies = replace(made, program=program, kept=copies)
    is_no_larger = with_copies.peak_memory_bytes <= made.peak_memory_bytes
    return with_copies if is_no_larger and _sent(with_copies) < _sent(made) else made


@dataclass(frozen=True, eq=False)
class Completions:
    """A cache of graphs that were completed from one set of annotations, under several options."""

    annotations: Annotations
    _made: dict[Any, tuple[Graph, ShardedGraph]] = field(default_factory=dict, repr=False)

    def of(
        self, graph: Graph, options: CompletionOptions, turned: frozenset[int] = frozenset()
    ) -> ShardedGraph:
        """Return the completed graph, from the cache if these arguments were completed before.

        Args:
          turned: the matrix products at which the sharding of the second operand wins.
        """
        # The entry holds the graph, so that no other graph gets the same id.
        key = id(graph), options, turned
        if key not in self._made:
            self._made[key] = graph, completed(graph, self.annotations, options, turned=turned)
        return self._made[key][1]


def _streamed(made: Stages, options: Options) -> Stages:
    """Return the plan with loops that fetch one layer of a stack per iteration, or `made`.

    If `Options.stream_layers` is True or False, it decides between the two plans. If it is None,
    the better plan is returned, except that policies with XLA's shardings keep `made`. A plan
    without a loop over a sharded stack is returned unchanged.
    """
    # By default, the policies with XLA's shardings gather the stack, because XLA does.
    follows_xla = options.way != "paper"
    if options.stream_layers is False or (options.stream_layers is None and follows_xla):
        return made
    sharded = by_layer(made.sharded)
    if sharded is None:
        return made
    # Which of the two programs is faster is known only from their prices.
    program = partition(sharded, made.traced.roles, options)
    other = replace(made, sharded=sharded, program=program, streams=True)
    return other if options.stream_layers or _is_better(other, made) else made


def _is_better(other: Stages, made: Stages) -> bool:
    """Return whether the plan `other` is better than `made`.

    If `made` does not fit in memory, the plan with the lower peak is better. Otherwise `other` must
    fit, be faster, and send no more bytes.
    """
    # A plan that does not fit in memory cannot run, whatever its time.
    held = [one.data_sheet_cost.peak_memory_bytes for one in (other, made)]
    fits = [machine(made.hardware).chip.hbm_bytes >= size for size in held]
    if not fits[1]:
        return held[0] < held[1]
    faster = other.data_sheet_cost.step_time_s < made.data_sheet_cost.step_time_s
    return fits[0] and faster and _sent(other) <= _sent(made)


def _planned(traced: Traced, known: Completions, options: Options) -> Stages:
    """Return the better of two plans that resolve conflicts at products differently.

    A product is contested if both operands want one mesh axis for different dimensions of the
    result. By default completion lets the first one win. The other plan lets the second one win.
    """
    # Only the prices of whole plans tell which operand of a contested product should win.
    made = _joined(_completed_plan(traced, known, options), options)
    # `contested` has only products for which the other plan may be better: a value that is read
    # together with their result agrees with the operand that lost.
    lost = made.sharded.contested
    if not (lost and options.switches.turn_products and options.policy != "cost"):
        return made
    with collection_paused():
        sharded = known.of(traced.graph, CompletionOptions.of(options), lost)
        program = partition(sharded, traced.roles, options)
    other = replace(made, sharded=sharded, program=program)
    return other if _is_better(other, made) else made


def _joined(made: Stages, options: Options) -> Stages:
    """Return a plan that gathers the parts of concatenations, if it is faster and sends less.

    Otherwise, for named sizes, and under other policies than the paper's, `made` is returned. The
    parts of a concatenation along a sharded dimension are small; a gather can cost less than the
    exchange of their borders.
    """
    # With named sizes, prices are formulas, which have no order.
    if options.policy != "paper" or made.is_named:
        return made
    # None if the graph has no concatenation to which this applies.
    sharded = joined_whole(made.sharded)
    if sharded is None:
        return made
    program = partition(sharded, made.traced.roles, options)
    gathered = replace(made, sharded=sharded, program=program)
    return gathered if _is_better(gathered, made) and _sent(gathered) < _sent(made) else made


def _completed_plan(traced: Traced, known: Completions, options: Options) -> Stages:
    """Return the plan that one completion and partitioning give, or the search of policy "cost".

    No variants are compared.
    """
    # The objects that planning builds stay, so collecting garbage only costs time (`pause.py`).
    with collection_paused():
        made = [known.of(traced.graph, CompletionOptions.of(own)) for own in options.completions]
        if options.policy == "cost":
            from shardalg.planner.partition.by_cost import by_cost

            sharded, program = by_cost(made, traced.roles, options)
        else:
            (sharded,) = made
            program = partition(sharded, traced.roles, options)
    return Stages(traced, known.annotations, sharded, program, options.hardware)


def _orders(sharded: ShardedGraph) -> tuple[tuple[int, Order], ...]:
    """Return (node index, stages) for each Fourier transform along a sharded dimension.

    Stages are groups of dimensions that are transformed one after the other. A device transforms
    only dimensions that it has whole, so the value is resharded between the stages.
    """
    orders = []
    for node in sharded.graph.nodes_of(["fft"]):
        dims = plain(sharded.shardings[node.operands[0]]).dims
        sharded_dims = {dim for dim, digits in enumerate(dims) if digits}
        # The order is empty if no transformed dimension is sharded, or if stages do not help.
        order = stage_order(node.signature, sharded_dims)
        if order:
            orders.append((node.index, order))
    return tuple(orders)


def _sent(stages: Stages) -> float:
    """Return the bytes that a device sends in one training step of a plan."""
    return float(stages.traffic.wire_bytes)


def completed(
    graph: Graph,
    annotations: Annotations,
    options: CompletionOptions,
    *,
    turned: frozenset[int] = frozenset(),
) -> ShardedGraph:
    """Return the graph with a sharding for every value, completed from the annotations.

    If a loop is a pipeline whose stages are divided along a mesh axis, its body uses this axis for
    nothing else. By the paper's policy, values that no annotation reaches get the sharding in which
    they are computed.

    Args:
      turned: node indices of products in which both operands want one mesh axis for different
        dimensions of the result, and the second operand gets it.
    """
    # The stages of a pipeline are known only after a completion, so the graph is completed again.
    sharded = propagate(graph, annotations, options, turned=turned)
    # The excluded axes are annotations of single values (`values`) for this completion only. The
    # result has the user's annotations, with which it may be planned again.
    excluded = exclude_stage_axes(sharded, meetings=options.order == "paper")
    if excluded:
        more = replace(annotations, values=(*annotations.values, *excluded))
        again = propagate(graph, more, options, turned=turned)
        sharded = replace(again, annotations=annotations)
    if options.order != "paper":
        return sharded
    chip = machine(options.hardware).chip
    return shard_unreached(sharded, chip, padded=options.pad_blocks, finite=options.finite_sums)


def planned_at(
    hints: Stages, point: Mapping[str, int], options: Options
) -> tuple[Stages, Difference | None]:
    """Return the plan of the function at other sizes, and a difference that its formulas miss.

    The difference is the first constant of the graph that changes with the sizes: a size that
    Python computed, or a block size of a `shard_map`. It is None if there is no such constant.

    Args:
      hints: the plan with named sizes.
      point: the number for each name.

    Raises:
      SymbolError: the function is another program there, or cannot be traced there.
      StrategyError: an axis is manual, and the function is not available (a loaded plan).
    """
    has_own_links = hints.mesh.symbolic or hints.has_own_links
    traced, annotations, constant = inputs_at(hints.traced, hints.annotations, point)
    there = replace(planned(traced, annotations, options), has_own_links=has_own_links)
    return there, constant


def inputs_at(
    traced: Traced, annotations: Annotations, point: Mapping[str, int]
) -> tuple[Traced, Annotations, Difference | None]:
    """Return a traced function and its annotations at other sizes, and the difference.

    The difference is that of `planned_at`.

    Raises:
      SymbolError, StrategyError: as in `planned_at`.
    """
    from shardalg.sizes.symbolic.symbols import mesh_at

    mesh = mesh_at(annotations.mesh, point)
    there = traced.on(mesh, before=annotations.mesh)
    made, constant = _traced_at(there, point)
    # Within one trace, annotations move by axis names. A new trace has sites of its own.
    if there is traced:
        return made, annotations_at(annotations, made.graph, mesh), constant
    graphs = traced.graph, made.graph
    moved = annotations_on_mesh(graphs, annotations, mesh, made.first_mesh)
    return made, moved, other_blocks(*graphs, mesh.shape) or constant


def _traced_at(traced: Traced, point: Mapping[str, int]) -> tuple[Traced, Difference | None]:
    """Return the function with a number for each named size, and a difference or None.

    The difference is the first constant of the graph (a size that Python computed) that has another
    value at these numbers.

    Args:
      point: the number of each named size.
    """
    from shardalg.sizes.symbolic.symbols import numbers_only

    # `again` traces the function for other mesh axes. After that, the sizes must be named anew.
    symbols, again = traced.symbols or numbers_only(traced.graph), traced.again
    graph, constant = symbols.graph_at(point)
    again_at_point = again and (lambda axes: _traced_at(again(axes), point)[0])
    return replace(traced, graph=graph, symbols=None, again=again_at_point), constant


def priced(
    traced: Traced,
    program: Symbolised | SpmdProgram,
    hardware: str | Hardware | Topology,
    *,
    overlap: str | None = None,
) -> Cost:
    """Return the cost of a program on a machine: seconds, memory, bytes and flops.

    Args:
      traced: the function that the program computes.
      program: the program, with sizes as numbers or formulas.
      hardware: a chip or a topology. If it is a chip, each mesh axis has links of its own.
      overlap: as in `costs.step_time.estimate`.
    """
    from shardalg.costs.step_time import estimate
    from shardalg.costs.topology import machine

    given, graph = machine(hardware), traced.graph
    settings: dict[str, Any] = {"roles": traced.roles, "donated": traced.donated}
    made = estimate(program, graph, given, overlap=overlap, **settings)
    # A while loop whose number of iterations is unknown is priced as one iteration. The cost lists
    # these loops, so that a user does not take its seconds for the whole.
    unknown = tuple(loop.key for loop in while_loops(graph) if loop.iterations is None)
    placed = program if isinstance(program, SpmdProgram) else program.hints
    return replace(
        made,
        counted_once=unknown,
        unpriced=unpriced(graph),
        fused=fused_lines(graph),
        loads=loads(placed, graph),
        assumed=assumed_products(graph, given.chip),
    )
