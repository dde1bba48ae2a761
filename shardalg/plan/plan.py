"""The Plan: one JAX function on one mesh under one strategy, with a method for each question.

Bodies are in files that are named by the question: `planning`, `named_sizes`, `pricing`, `running`,
`overview`, `own_jit`, `compare_xla`, `plan_file` and `explain`. They load with the first question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.graph.ir import Graph
from shardalg.plan import plan_file
from shardalg.plan.planning import (
    one_strategy,
    planned_annotations,
    planned_call,
    replanned,
    unknown_keywords,
)
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.propagate.strategy import Annotations, Strategy
from shardalg.planner.stages import NO_CHANGES, Stages
from shardalg.planner.traced import Traced
from shardalg.renamed import also_without_call
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.algebra.dims import Size
    from shardalg.costs.analyses.sweep import Sweep, Sweeper
    from shardalg.costs.cost import Cost
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.memory import Liveness
    from shardalg.costs.symbolic import Symbolised
    from shardalg.costs.topology import Topology
    from shardalg.lower import Lowered
    from shardalg.lower.isolated import OneShard
    from shardalg.lower.three_ways import Comparison
    from shardalg.plan.compare_xla import BesideXla
    from shardalg.plan.explain.collective import CollectiveExplanation
    from shardalg.plan.explain.decisions import PlanDifference
    from shardalg.plan.explain.explained import ValueExplanation
    from shardalg.plan.explain.why_not import WhyNot
    from shardalg.plan.overview import Overview
    from shardalg.plan.own_jit import OwnJit
    from shardalg.plan.plan_file import PlanFile
    from shardalg.planner.pipeline import ProgramStages
    from shardalg.planner.trials import Trials
    from shardalg.show.html import Listing
    from shardalg.show.timeline import Timeline
    from shardalg.sizes.decided import Guards
    from shardalg.sizes.symbolic.symbols import Symbols
    from shardalg.tables import DataFrame
    from shardalg.verify.report import Report
    from shardalg.xla.aot_answer import BesideCompiler


OLD_NAMES = frozenset({
    "traced", "annotations", "sharded", "symbols", "symbolised", "named",
    "collectives_table", "conditions_table", "warnings_table",
})  # fmt: skip
"""Internals that once had names without an underscore, which still work for one version."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A planned function: completed shardings, the program that every device runs, and its tables.

    Made by `plan` and `load_plan`; `replan` makes another one from the same trace. A plan with
    named sizes is made at their hints, and shardings, program, `verify`, `simulate` and `lower` are
    those of the hints; `at` makes the plan at other sizes. Tables are methods, values properties.

    Attributes:
      options: how the plan was made.
      changes: of a plan made by `at`, the decisions that differ from those at the hints.
    """

    options: Options
    _make: Callable[[], Stages]
    changes: Table = NO_CHANGES
    _since_saved: tuple[str, ...] = ()
    """Of a loaded plan, what the version that saved it decided otherwise."""

    @cached_property
    def _stages(self) -> Stages:
        """What planning made of the function; of a plan by `at`, made when first asked for."""
        return self._make()

    @property
    def _traced(self) -> Traced:
        """The function as it was traced, and what stands at its border."""
        return self._stages.traced

    @property
    def _annotations(self) -> Annotations:
        """What was asked for."""
        return self._stages.annotations

    @property
    def _sharded(self) -> ShardedGraph:
        """The completed layouts."""
        return self._stages.sharded

    @cached_property
    def _symbols(self) -> Symbols:
        """The formulas of the function's sizes; numbers where no dimension has a name."""
        return self._stages.symbols

    @cached_property
    def _symbolised(self) -> Symbolised | None:
        """The program with a formula for each of its sizes; None in a plan in numbers."""
        from shardalg.plan.named_sizes import symbolised

        return symbolised(self)

    @property
    def _named(self) -> Symbolised | None:
        """The same as `_symbolised`; None also where some size has no formula."""
        from shardalg.plan.named_sizes import symbolised_or_none

        return symbolised_or_none(self)

    @property
    def program(self) -> SpmdProgram:
        """What every device runs."""
        return self._stages.program

    @property
    def mesh(self) -> Mesh:
        """The mesh that the plan is for."""
        return self._annotations.mesh

    @property
    def graph(self) -> Graph:
        """The traced function."""
        return self._traced.graph

    def __dir__(self) -> list[str]:
        """What can be asked: no internals."""
        return sorted(name for name in super().__dir__() if not name.startswith("_"))

    if not TYPE_CHECKING:  # a checker knows the names that stay

        def __getattr__(self, name: str) -> Any:
            if name in OLD_NAMES:
                return getattr(self, f"_{name}")
            try:  # an error inside a property comes out as it is
                return object.__getattribute__(self, name)
            except AttributeError:
                if name.startswith("_") or hasattr(type(self), name):
                    raise
            near = get_close_matches(name, dir(self), 3)
            hint = f" Did you mean {' or '.join(near)}?" if near else " dir(plan) lists them."
            raise AttributeError(f"a plan does not answer {name!r}.{hint}")

    def replan(
        self, strategy: Strategy | None = None, *, mesh: Any = None, options: Options | None = None
    ) -> Plan:
        """The same trace under another strategy, or on another mesh under the same one.

        The function is traced again where an axis along which it is manual has another size there.

        Args:
          mesh: alone; every layout keeps the names of its axes.

        Raises:
          StrategyError: a strategy and a mesh, a layout that the mesh does not have, or a loaded
            plan whose function is to be traced again.

        >>> import jax, shardalg as sa
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> from jax.sharding import PartitionSpec as P
        >>> first = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"x": 4}), in_shardings=(P("x"),))
        >>> first.collectives()["kind"].tolist()
        ['all_reduce']
        >>> first.replan(sa.Strategy(first.mesh, in_shardings=(P(None, "x"),))).collectives().empty
        True
        """
        return _plan_of(*replanned(self, strategy, mesh, options))

    def at(self, **sizes: int) -> Plan:
        """The same plan in numbers, where these names have these sizes; others have their hints.

        Everything that planning asked of the sizes is checked there, which takes a millisecond
        (after the first time, when all of it is found out). If it holds, no decision is another
        one: `changes` is empty, the formulas hold, and the function is traced and planned there
        when something but the cost is asked of the plan that comes back. Else that is done at once,
        and `changes` lists the decisions that are others than at the hints, and the prices of
        which the formula gives another number than the plan there.

        Raises:
          SymbolError: a name that the plan does not have, a size below 1, a function that is
            another program there (found when it is traced). StrategyError: `strict`, and a decision
            changed; a loaded plan whose function is to be traced again, on other manual axes.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> B, M = sa.dims("B M", hint=(64, 16))
        >>> x = jax.ShapeDtypeStruct((B, M), "float32")
        >>> mesh = sa.Mesh({"X": 4}, symbolic=True)
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=mesh, in_shardings=(P("X"),))
        >>> plan.at(B=32, X=2)
        Plan on Mesh(X=2) for 2 x tpu_v3 (the default chip; devices of the mesh), ...
        """
        from shardalg.plan.named_sizes import plan_at

        return plan_at(self, sizes)

    @cached_property
    def _last_made(self) -> dict[tuple[tuple[str, int], ...], Plan]:
        """The plan at the last point, for `holds` and `at` ask one after the other."""
        return {}

    def holds(self, **sizes: int) -> bool:
        """Return whether no decision changes where these names have these sizes.

        Where it is True, bytes, operations, the peak of memory and seconds by formula equal those
        of a plan made there. Everything that planning asked of the sizes is checked first, which
        takes a millisecond. If an answer differs, the question may not matter: the function is
        planned there, once for each point, and both plans are compared.

        True rests on the formulas of the sizes if the function makes no size in Python
        (`constants`): Python code may still decide on a size that two traces do not show.

        Raises:
          SymbolError: a name that the plan does not have, a size below 1.
        """
        from shardalg.plan.named_sizes import holds

        return holds(self, sizes)

    @cached_property
    def _compared(self) -> dict[tuple[tuple[str, int], ...], bool]:
        """The points at which a plan was made and compared."""
        return {}

    def diff(self, other: Plan) -> PlanDifference:
        """Values, collectives, bytes and memory in which another plan differs.

        Raises:
          StrategyError: `other` is no plan.
        """
        from shardalg.plan.explain.decisions import difference

        if not isinstance(other, Plan):
            raise StrategyError(f"a plan differs from another Plan, got {other!r:.80}.")
        return difference(self._stages, other._stages)

    def __reduce__(self) -> tuple[Callable[[bytes], Plan], tuple[bytes]]:
        """Pickled, a plan is its file: it comes back as `load_plan` gives it."""
        from shardalg.plan.explain.plan_summary import file_of

        return _from_bytes, (file_of(self).text.encode(),)

    def __deepcopy__(self, memo: object = None) -> Plan:
        """A plan never changes: its copy is itself."""
        return self

    __copy__ = __deepcopy__

    def __repr__(self) -> str:
        from shardalg.plan.overview import headline

        return headline(self)

    def overview(self, hardware: str | Hardware | None = None) -> Overview:
        """A sentence, bytes and seconds per axis, what the own `jax.jit` sends, and warnings.

        Another policy is named where it is more than a tenth cheaper. It is looked for in plans of
        at most 400 operators (by cost: 100), so that `overview` of a large model stays cheap.

        Args:
          hardware: the chip that is priced; None: the one that the plan was made for.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> print(plan.overview())
        1 operator on Mesh(X=2), layouts the paper's: a device sends 64 B a step, ...
        mesh_axes  devices  collectives  sent  time
        X                2            1  64 B  ...
        """
        from shardalg.plan.overview import overview

        return overview(self, hardware)

    def _repr_html_(self) -> str:
        from shardalg.plan.overview import plan_page

        return plan_page(self)

    def draw(
        self,
        *,
        show: str | None = None,
        module: str | None = None,
        letters: Mapping[str, int] | None = None,
    ) -> Figure:
        """The program as boxes from left to right; of a large one the bytes that modules send.

        A dimension that is partitioned is written small, with its mesh axes below, `Σ` marks sums
        that are pending along axes; below a collective stand the bytes that each device sends.
        `sa.draw({"one": plan, "other": other})` draws several.

        Args:
          show: "program", or "bytes" for bars; None: the program where it fits on a page.
          module: only the operators of this module, such as "net/layers_0/mlp"; the end of the path
            will do.
          letters: a letter to the size that it stands for, such as `{"B": 64}`.

        Raises:
          TableError: `show` or `module` names nothing that there is.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> figure = plan.draw(letters={"B": 8})
        >>> print(figure.axes[0].texts[0].get_text())
        Mesh(X=2): 64 B sent per device and step, 1 µs on 2 x
        tpu_v3 (the default chip; ...
        """
        from shardalg.plan.overview import draw

        return draw(self, show, module, letters)

    @staticmethod
    def _drawn(things: Mapping[str, Plan], **options: Any) -> Figure:
        from shardalg.plan.overview import draw_several

        return draw_several(things, **options)

    def __str__(self) -> str:
        own = self._own_jit
        return f"{self!r}\n{own}" if own.differs else repr(self)

    def shardings(self) -> DataFrame:
        """Every value: name, shape, completed sharding, local shape, and why it is so."""
        from shardalg.show import tables

        return tables.shardings(self._sharded).df

    def text(self) -> str:
        """The program with source lines."""
        return self.program.text(self.graph)

    def listing(self) -> Listing:
        """The same for a notebook, where pointing at a value shows the chain behind its layout."""
        from shardalg.plan.explain.disagreements import program_listing

        return program_listing(self.program, self._sharded)

    def stages(self) -> ProgramStages:
        """Return the program after each pass, in order; `print` shows the passes that change it.

        The first stage is the program as it was emitted, the last one is `program`. They are made
        again for this call: a plan holds only its last program.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 6), "float32")
        >>> plan = sa.plan(lambda x: x.max(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),),
        ...                out_shardings=P("X"))
        >>> print(plan.stages())
        // after emit
        SpmdProgram on Mesh(X=2), every device runs:
          %0 = f32[4@X,6] argument x
          %1 = f32[6]{U:X} reduce_max [d0@X] %0  # ...
          %2 = f32[6] all_reduce max axes=X %1  # reduce_max combines; ...
          %3 = f32[3@X] dynamic_slice dim=0 at p(X)*3 %2  # ...
          return %3
        // after move_masks: no change
        // after merge_formatting: no change
        // after drop_unread: no change
        // after scatter_reductions
        SpmdProgram on Mesh(X=2), every device runs:
          %0 = f32[4@X,6] argument x
          %1 = f32[6]{U:X} reduce_max [d0@X] %0  # ...
          %3 = f32[3@X] reduce_scatter max dim=0 axes=X %1  # reduce_max combines; ...
          return %3
        // after join_as_bits: no change
        // after collective_matmul: off, Switches(collective_matmul=True) runs it
        """
        from shardalg.planner.pipeline import program_stages

        made = self._stages
        return program_stages(made.sharded, made.traced.roles, self.options, made.kept)

    def collectives(self, by: str | None = None) -> DataFrame:
        """Return every collective, in order of execution; bytes are per device and execution.

        `executions` includes trip counts; `wire_bytes_per_step` is `wire_bytes * executions`. Of a
        plan with named sizes, group sizes, counts and bytes are sympy expressions in them. Rows of
        kind "border" come last (not with named sizes): uneven results, which a call of the lowered
        program hands out on the longest even prefix of their axes, and `padded` as they are.

        Args:
          by: "module": a row per module, kind and axes, with the bytes that it sends in a step
            (`wire_bytes_per_step`); modules that are alike are one, `layers[0:24]/mlp/up`.

        Raises:
          TableError: `by` something else.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> def net(x, w):
        ...     for i in range(3):
        ...         with jax.named_scope(f"layers_{i}"):
        ...             x = jax.numpy.tanh(x @ w)
        ...     return x
        >>> x = jax.ShapeDtypeStruct((8, 8), "float32")
        >>> plan = sa.plan(net, x, x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"), P("X")))
        >>> print(plan.collectives(by="module").to_string(index=False))
             module       kind mesh_axes  executions  wire_bytes_per_step
           layers_0 all_gather         X           1                  128
        """
        from shardalg.plan.pricing import collectives

        return collectives(self, by)

    @cached_property
    def _collectives_table(self) -> Table:
        """The table behind `collectives()`: what the program itself sends."""
        from shardalg.show import tables

        return tables.collectives(self.program, self.graph, self._symbolised)

    def gathers(self) -> DataFrame:
        """What is brought into a layout more than once, and what it would take to do it once.

        A row per copy that the forward and the backward pass both make (`keep_gathers=True` keeps
        it and what one pass alone makes, which the other may then choose to read; a number keeps as
        many rows as fit in so many bytes), and per constant that a loop brings into its layout in
        every trip (`hoist_gathers=True`). Columns: value, sharding, option, times,
        wire_bytes (of one), saved_wire_bytes (a step), held_bytes (longer, on a device).
        """
        from shardalg.plan.explain.switches import gather_table

        return gather_table(self._sharded, self._traced.roles, self.options).df

    def formatting(self, hardware: str | Hardware | None = None) -> DataFrame:
        """Slices, pads, masks and halos that partitioning adds, and their share of the program.

        A row per kind, the last one for all. Columns: instruction, executions, memory_bytes (from
        and to memory, of what nothing fuses), wire_bytes_per_step (of halos and permutes),
        memory_share and wire_share (of the whole program's); on a hardware memory_s, and step_share
        of the step.
        Sizes that have names are at their hints.
        """
        from shardalg.plan.pricing import formatting

        return formatting(self, hardware)

    def cost(
        self, hardware: str | Hardware | Topology | None = None, *, overlap: str = "none"
    ) -> Cost:
        """Step time, communication, peak memory and flops on a chip.

        On a chip alone each axis has links of its own; a `Topology`, or its text such as "v3:8x8",
        says what axes share. `overlap` of compute and collectives is "none", "dependences" (what
        the program allows) or "full". Numbers; of a plan with named sizes, sympy expressions.
        `cost(...).table(by="module")` says what each module takes.

        The peak of memory on CPU devices is estimated as on any chip. XLA's CPU compiler fuses,
        copies and orders operators in its own way: of 44 programs, the estimate was 0.37 to 2.19
        times the bytes that it allocates (median 0.93). `plan.lower().compiled.memory_analysis()`
        compiles the step and returns these bytes.

        Raises:
          HardwareError: an unknown chip, a mesh that does not tile the topology, or products of an
            item type for which the chip has no peak (what a plan prints takes its slowest one).
        """
        from shardalg.plan.pricing import cost

        return cost(self, hardware, overlap)

    def timeline(self, hardware: str | Hardware | Topology | None = None) -> Timeline:
        """What the devices of each pipeline stage do when: a table, a figure, a Chrome trace.

        One instruction after the other, bubbles as what they are; of a plan with named sizes, at
        the hints. A row per stage; without a pipeline one row stands for every device.

        Args:
          hardware: the chip; None: the one of the plan's options. The timeline's text says which.

        Raises:
          HardwareError: as `cost` does.
        """
        from shardalg.plan.pricing import timeline

        return timeline(self, hardware)

    @property
    def memory(self) -> Liveness:
        """What a device holds at the peak, as `cost` has it on the chip of the plan's options.

        Chips whose compiler repeats cheap operators in the backward pass (`Hardware.rebuilds`; all
        that shardalg knows, not a CPU) keep of the forward pass only what those start from. Every
        peak that a plan states is this one. Of a plan with named sizes, at the hints.
        """
        return self._stages.cost.memory

    def explain(
        self, what: object = None, *, thorough: bool = False
    ) -> ValueExplanation | CollectiveExplanation:
        """Why a value is sharded as it is, or why a collective is there.

        Of a value: per axis, the steps that brought it, back to the annotations. Of a collective:
        the layout that the value has and the one that is needed, the annotations behind both, and
        the changes of one annotation (else of two, or of as many as it takes) that remove it, each
        planned again, ranked by seconds and memory of a step on the chip; or that nothing helps.

        Args:
          what: a name that `shardings()` prints (`params['w']`, a site's name,
            `dot_general:3@model.py:41`), or a row of `collectives()`, its number, or an instruction
            of `program`.
          thorough: for a collective, plan every change of one annotation, then more pairs of
            changes. Otherwise planning stops after about half a second, and the text says so.

        Raises:
          StrategyError: no value has that name, or there is no such collective.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
        >>> print(plan.explain(0).change)
        argument x as [None, X] instead of [X, None]
        """
        from shardalg.plan.explain.collective import explain

        return explain(self, what, thorough=thorough)

    def why_not(self, value: str, spec: object) -> WhyNot:
        """Why a value does not have a layout, and what would change if it were annotated so.

        Args:
          spec: as `in_shardings` takes it.

        Raises:
          StrategyError: no value has that name, or the spec does not fit it.
        """
        from shardalg.plan.explain.why_not import why_not

        return why_not(self._trials, value, spec)

    def warnings(self) -> DataFrame:
        """What costs more than it needs to (operators without a row, idle axes), or is left out.

        An operator without a row, or with a loop that no emission splits, sends
        `wire_bytes_per_step`; `wire_bytes` are those of one of its `executions`. A product that is
        executed with an axis on none of its loops repeats `redundant_flops` on every device;
        `remedy` is then the annotation that uses the axis, found by planning again. Both per
        device and step. An effect without a result (a print, a callback) is left out of
        the program, and named with its line; so is a copy to the host (`jax.device_put`, a policy
        of `jax.checkpoint` that offloads), whose value is then in the device's peak of memory. Of a
        loaded plan, rows with the op "plan file" say what the version that saved it decided
        otherwise.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 8), "float32")
        >>> plan = sa.plan(lambda x, w: x @ w, x, x, mesh=sa.Mesh({"X": 2, "Y": 2}),
        ...                in_shardings=(P("X"), P()))
        >>> plan.warnings()[["warning", "redundant_flops"]].values.tolist()
        [['idle axis Y: 2 devices along it compute the same', 256]]
        """
        from shardalg.plan.explain.warnings import warnings_frame

        return warnings_frame(self)

    @cached_property
    def _warnings_table(self) -> Table:
        """The table behind `warnings()`."""
        from shardalg.plan.explain.warnings import warnings_table

        return warnings_table(self)

    def beside_jit(self) -> DataFrame:
        """This plan beside what the same annotations give under the user's own `jax.jit`.

        Columns: program, layouts (whose), wire_bytes and peak_memory_bytes per device and step. The
        second row has a lower bound of the bytes that XLA sends in the layouts of the partitioner
        that the installed jax uses; its peak memory is that of our plan in these layouts. A third
        row has XLA's own bytes after `compare_xla`.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> plan.beside_jit()["wire_bytes"].tolist()
        [64, 64]
        """
        return self._own_jit.table.df

    @property
    def _own_jit(self) -> OwnJit:
        """This plan beside the own `jax.jit`, as far as it is known."""
        from shardalg.plan.own_jit import beside_jit

        return beside_jit(self)

    @cached_property
    def _under_jit(self) -> OwnJit:
        from shardalg.plan.own_jit import OwnJit

        return OwnJit(self._stages, self.options)

    @cached_property
    def _told(self) -> dict[str, int | float]:
        """Wire bytes of XLA's own program, per partitioner that was asked."""
        return {}

    def switches(self) -> DataFrame:
        """What each switch of `Options` is worth here, one flipped at a time, by planning again.

        Columns: options, collectives, wire_bytes, peak_memory_bytes, local_instructions (those that
        send nothing), formatting_bytes (that formatting moves from and to memory).
        """
        from shardalg.plan.explain.switches import switch_table

        return switch_table(self._stages, self.options).whole_df

    def compare_xla(
        self,
        partitioner: str | None = None,
        *,
        apart: bool = False,
        fn: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
    ) -> BesideXla:
        """XLA's layouts and collectives for the same function and annotations, beside the plan's.

        XLA compiles for CPU devices, in a process of its own where this one has too few.

        Args:
          partitioner: "gspmd" or "shardy"; None: the one that the installed jax uses.
          apart: ask XLA in a process of its own in any case: some programs end the one it is in.
          fn, args: of a loaded plan, as `lower` takes them.

        Raises:
          LoweringError: this jax lacks the partitioner, XLA ends without an answer, or one device
            leaves nothing to compare.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> print(plan.compare_xla("shardy").kinds)
        kind        mesh_axes  executions  xla_executions  wire_bytes_per_step  ...
        all_reduce  X                   1               1                   64  ...
        all                             1               1                   64  ...
        """
        from shardalg.plan.compare_xla import compared

        return compared(self, partitioner, apart=apart, fn=fn, args=args)

    def cost_of_xla(
        self, hardware: str | Hardware | Topology, partitioner: str | None = None
    ) -> DataFrame:
        """The collectives of XLA's own program under the prices of `cost`.

        Columns: kind, mesh_axes, executions, wire_bytes_per_step, time_s (a step; None where no
        axes say the groups); the last row is for all. XLA is asked as by `compare_xla`.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> plan.cost_of_xla("tpu_v3")[["kind", "wire_bytes_per_step"]].values.tolist()
        [['all_reduce', 64], ['all', 64]]
        """
        from shardalg.plan.own_jit import cost_of_xla

        return cost_of_xla(self, hardware, partitioner)

    @cached_property
    def _trials(self) -> Trials:
        from shardalg.planner.trials import Trials

        return Trials(self._stages, self.options)

    @property
    def is_symbolic(self) -> bool:
        """Whether sizes have names, so that prices are formulas."""
        return self._stages.is_named

    @cached_property
    def sizes(self) -> dict[str, Size]:
        """Every named size, of dimensions and axes, with its hint; empty in a plan in numbers."""
        from shardalg.plan.named_sizes import sizes_of

        return sizes_of(self)

    @also_without_call
    def constants(self) -> DataFrame:
        """Sizes that no argument reaches: they stay numbers in every formula.

        Columns: dimension, source, value (the first that has it), varies (whether the second trace
        had another size there, so that formulas hold at the hints' size alone).
        """
        return self._symbols.constants.df

    @also_without_call
    def conditions(self) -> DataFrame:
        """What planning found of its sizes: where a row fails, `at` may give another plan.

        The rows are the facts that `holds` asks, comparisons first, the nearest at the hints before
        others; `holds` also checks that the formula of the peak of memory is right. A choice
        "rather than" another one turns as its row says, as long as the paths are those of the
        hints. Other rows of choices, and those of paths ("collectives"), are questions of a search,
        whose outcome may stay the same without them: `holds` asks again there.

        Columns: kind (the part of `changes` in which another answer shows: "choice" of an operator,
        "sharding", "collectives", "divides" for an even or an uneven split, "part" for a
        size held at its hint), condition, margin (by how much of its larger side it holds), place,
        source, decides (what was chosen, rather than what, by time or by bytes), rests_on (earlier
        operators whose choices decide which copies are at hand: where one is another choice, the
        condition says nothing), flips (per size where it turns, the others at their hints). Where
        `unguarded` says that questions are not known, the rows are what the formulas rest on.
        """
        return self._conditions_table.df

    @cached_property
    def _conditions_table(self) -> Table:
        """The table behind `conditions`; empty in a plan in numbers."""
        from shardalg.plan.named_sizes import conditions_table

        return conditions_table(self)

    @property
    def unguarded(self) -> str:
        """Return why `at` and `holds` know other sizes only by planning there; "" if not so.

        If a parameter of an operator is another one in a second trace and has no formula, the text
        names the operator, the parameter and the source line. Sizes of axes are known all the same.
        """
        return self._recorded[1]

    @property
    def _guards(self) -> Guards | None:
        """The questions that planning put to the sizes; None where they are not known."""
        return self._recorded[0]

    @cached_property
    def _recorded(self) -> tuple[Guards | None, str]:
        from shardalg.planner.guards import guards

        return guards(self._stages, self.options, lambda: self._symbolised)

    def sweep(
        self, hardware: str | Hardware | Topology, *, overlap: str = "none", **sizes: Any
    ) -> Sweep:
        """Step time, peak memory, and where the plan holds, at arrays of named sizes.

        Arrays broadcast against each other: a grid, `B=batches[:, None], X=axis`, costs least.
        Other sizes have their hints. The peak is the largest of the bytes at every instruction, so
        that it may stand elsewhere than at the hints; what is alive when is the hints'. Seconds and
        bytes are those of the hints' decisions; `Sweep.holds` says where these are taken: nowhere
        for certain where `unguarded` says that the questions are not known.

        Args:
          overlap: "none" or "full", as in `cost`.

        Raises:
          SymbolError: a name that the plan does not have, arrays that are no sizes or do not
            broadcast. HardwareError: as `cost` does. FormulaError: overlap="dependences".

        >>> import jax, numpy as np, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> B, M = sa.dims("B M", hint=(64, 16))
        >>> x = jax.ShapeDtypeStruct((B, M), "float32")
        >>> mesh = sa.Mesh({"X": 4}, symbolic=True)
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=mesh, in_shardings=(P("X"),))
        >>> found = plan.sweep("tpu_v3", B=np.array([64, 96, 98]), X=np.array([[4], [2]]))
        >>> found.peak_memory_bytes.astype(int).tolist()
        [[1152, 1664, 1696], [2176, 3200, 3264]]
        >>> found.holds.tolist(), found.doubtful.tolist(), plan.holds(B=98, X=2)
        ([[True, True, False], [False, False, False]], [[False, ...], [True, True, True]], True)
        """
        from shardalg.plan.named_sizes import sweep

        return sweep(self, hardware, overlap, sizes)

    @cached_property
    def _sweepers(self) -> dict[Any, Sweeper]:
        return {}

    def verify(self, program: SpmdProgram | None = None) -> Report:
        """Every claim on which the program's equality with the function rests, with its proof.

        `.ok` only if each claim is proved or trusted.

        Args:
          program: another program for the same function, such as `plan.program` with a change.
        """
        from shardalg.plan.running import verified

        return self._report if program is None else verified(self, program)

    @cached_property
    def _report(self) -> Report:
        from shardalg.plan.running import verified

        return verified(self, self.program)

    def lower(
        self,
        devices: Sequence[Any] | None = None,
        *,
        fn: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
    ) -> Lowered:
        """The program as a JAX executable; call it on global arrays. It is verified first.

        Args:
          devices: as many as the mesh has positions; None takes jax's first ones.
          fn: of a loaded plan, the function again; its graph must be the planned one.
          args: with `fn`, the arguments as `plan` took them; needed where they are pytrees.

        Raises:
          LoweringError: a loaded plan without the function or its pytrees, another function, a
            refuted claim.
        """
        from shardalg.plan.running import lowered

        return lowered(self, devices, fn, args)

    def compare_runs(self, args: Sequence[Any], expected: Any, *, repeats: int = 20) -> Comparison:
        """The plan and XLA's own partitioning of the function, run in turns beside one device.

        Args:
          args: the arguments, in numbers.
          expected: what the function gives for them on one device, such as `jax.jit(fn)(*args)`.
          repeats: timed runs of each.

        Raises:
          LoweringError: a loaded plan, too few devices, a refuted claim.
        """
        from shardalg.plan.running import compared_runs

        return compared_runs(self, args, expected, repeats)

    def one_shard(self, device: Any = None) -> OneShard:
        """What one device does, on one device, to measure compute and memory of a large plan.

        Collectives become local stand-ins of the same shapes: `measure()` gives times and memory,
        and there is no result. `device`: None takes the first.

        Raises:
          LoweringError: a loaded plan, a `while` that ends by its values, a refuted claim.
        """
        from shardalg.plan.running import one_shard

        return one_shard(self, device)

    def aot(
        self,
        topology: str | Topology,
        *,
        fn: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
    ) -> BesideCompiler:
        """The plan's memory, flops and collectives beside those of the chip's own compiler.

        The lowered program and XLA's twin are compiled, in another process, for chips that need not
        be here; answers are kept in the user's cache folder by content. A program that does not fit
        the memory is an answer too. A plan with named sizes is compiled at the hints.

        Args:
          topology: "v3:8x8", or a `Topology`.
          fn, args: of a loaded plan, as `lower` takes them.

        Raises:
          DeviceError: the compiler (`libtpu`, a CUDA plugin of jax) is not installed.
          HardwareError: an unknown chip or shape, or a mesh that does not tile it.
          LoweringError: the compiler does not know the topology, or refuses the program.
        """
        from shardalg.plan.running import beside_chip_compiler

        return beside_chip_compiler(self, topology, fn, args)

    def named_shardings(self, devices: Sequence[Any] | None = None) -> tuple[Any, Any]:
        """JAX's shardings of the arguments and of the results, each as a pytree of its own.

        The arguments' is a tuple, one entry per argument: to place arrays, to restore a checkpoint
        into, or for `jax.jit`. An uneven dimension is laid out on the longest even prefix of its
        axes, since JAX arrays cannot be uneven.

        Args:
          devices: as `lower` takes them.

        Raises:
          LoweringError: a loaded plan, which has no pytrees; too few devices.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> w = {"w": jax.ShapeDtypeStruct((8, 4), "float32")}
        >>> specs = ({"w": P("X")},)
        >>> plan = sa.plan(lambda p: p["w"].T, w, mesh=sa.Mesh({"X": 2}), in_shardings=specs)
        >>> (entering,), leaving = plan.named_shardings()
        >>> entering["w"].spec[0], leaving.spec[1]
        ('X', 'X')
        """
        from shardalg.plan.running import named_shardings

        return named_shardings(self, devices)

    def jit_kwargs(self, devices: Sequence[Any] | None = None) -> dict[str, Any]:
        """What `jax.jit` of the function is to be given to have this plan's layouts at its border.

        `in_shardings`, `out_shardings` and `donate_argnums`: `jax.jit(fn, **plan.jit_kwargs())`.
        Collectives inside are then XLA's own; `lower` runs the plan's.

        Raises:
          LoweringError: as of `named_shardings`.
        """
        from shardalg.plan.running import jit_kwargs

        return jit_kwargs(self, devices)

    def shardy(self) -> str:
        """The function as StableHLO with this plan's layouts in Shardy's words.

        The mesh (`sdy.mesh`), a `sdy.sharding` at every argument and result, and a
        `sdy.sharding_constraint` at every annotated site; lines stand in locations. Uneven layouts
        are constraints inside, since a border of JAX divides. `sa.read_stablehlo` reads it.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x + 1, x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> lines = plan.shardy().splitlines()
        >>> [line.strip() for line in lines if "sdy.mesh" in line]
        ['sdy.mesh @mesh = <["X"=2]>...']
        >>> [line.count('#sdy.sharding<@mesh, [{"X"}, {}]>') for line in lines if "@main" in line]
        [2]
        """
        from shardalg.plan.running import shardy_text

        return shardy_text(self)

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, atomically; `load_plan` reads it.

        The file holds the inputs of planning (the graph, the annotations and the options), the
        versions that the plan was made with, and a summary: a digest of the program, shardings,
        collectives by module, the peak of memory by class, and seconds of a step. The chip's
        figures are not in it, nor the partitioner that policy "jit" asks the installed jax for.
        """
        from shardalg.plan.explain.plan_summary import file_of

        plan_file.write(path, file_of(self))


def plan(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    roles: Any = None,
    donate_argnums: int | Sequence[int] | None = None,
    options: Options | None = None,
    strategy: Strategy | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> Plan:
    """Plan a JAX function on a mesh: complete its shardings and make every collective explicit.

    Args:
      fn: any function that jax can trace. One jitted by `jax.jit` brings its shardings, what it
        donates and its static arguments; of `eqx.filter_jit` and `nnx.jit`, and where modules of
        nnx are arguments, state goes in and comes out as the framework splits it. Or the trace that
        `jax.jit(f).trace(...)` gives, without arguments.
      args: arrays or `jax.ShapeDtypeStruct`s, any pytree. Only shapes and types are used; an
        argument that carries a `NamedSharding` keeps it where `in_shardings` says nothing.
      mesh: devices and axes, a mesh of JAX too. None takes that of the arguments' own shardings and
        of the function's, else the one that `jax.set_mesh` has set.
      in_shardings: as in `jax.jit`, a prefix of the tuple of arguments: PartitionSpec, Sharding,
        NamedSharding, text of any notation, or None to let completion decide. Static arguments do
        not count; the dict of keyword arguments may come last.
      out_shardings: the same for the result.
      roles: a prefix of "parameters", "optimizer_state" and "data", or a dict of them by paths of
        arguments, `{"state.params": "parameters"}`. None: as the trees say them, where one holds a
        TrainState, a state of optax or modules of nnx.
      donate_argnums: positional arguments whose memory the step may reuse.
      options: the policy, the chip by whose rates it weighs (a TPU v3, whatever chip `cost` is
        asked of later), and switches.
      strategy: mesh, shardings and sites in one value, in place of the three above.
      kwargs: keyword arguments of the function.

    Raises:
      TraceError: jax cannot trace the function. StrategyError: a specification does not fit.

    >>> import jax, shardalg as sa
    >>> from jax.sharding import PartitionSpec as P
    >>> x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((64, 16), (16, 64)))
    >>> specs = (P("X", "Y"), P("X", "Y"))
    >>> p = sa.plan(lambda x, w: x @ w, x, w, mesh=sa.Mesh({"X": 2, "Y": 4}), in_shardings=specs)
    >>> p.collectives()[["kind", "mesh_axes", "wire_bytes"]].values.tolist()
    [['all_gather', 'Y', 1536], ['all_gather', 'X', 512]]
    """
    if unknown:
        raise unknown_keywords(unknown, signature(plan).parameters)
    strategy = one_strategy(strategy, mesh, in_shardings, out_shardings)
    given = (args, kwargs or {})
    return _plan_of(*planned_call(fn, given, roles, donate_argnums, strategy, options))


def from_annotations(traced: Traced, annotations: Annotations, options: Options) -> Plan:
    """Return the plan of a trace under annotations that fit it."""
    return _plan_of(*planned_annotations(traced, annotations, options))


def _plan_of(stages: Stages, options: Options) -> Plan:
    return Plan(options.where(named=stages.is_named), lambda: stages)


def load_plan(path: str | Path) -> Plan:
    """Read a plan that `Plan.save` wrote, and plan again: it prints, costs and verifies.

    `lower` then needs the function again, and checks that its graph is the planned one. No text of
    the file is evaluated: every value is checked by its type, every operator by JAX's own rules.

    The plan made here is compared with the summary in the file. If another version of shardalg or
    jax, another partitioner (policy "jit") or other figures of the chip made the file, a
    difference is a warning, which `plan.warnings()` repeats; the plan is then the one made here. A
    file of the same version that gives another plan was edited.

    Raises:
      PlanFileError: no such file, cut short, edited, or of another schema.
    """
    return _loaded(plan_file.read(path), path)


def _from_bytes(content: bytes) -> Plan:
    """Return the plan of a file's content: pickled plans name this function."""
    return _loaded(plan_file.parsed(content.decode(), "a pickled plan"), "a pickled plan")


def _loaded(saved: PlanFile, path: object) -> Plan:
    from shardalg.plan.explain.plan_summary import planned_file

    stages, options, found = planned_file(saved, path)
    return replace(_plan_of(stages, options), _since_saved=found)
