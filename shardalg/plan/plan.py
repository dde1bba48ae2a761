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
from typing import TYPE_CHECKING, Any, overload

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.files import check_place, write_whole
from shardalg.graph.ir import Graph
from shardalg.plan import plan_file
from shardalg.plan.planning import (
    one_strategy,
    planned_annotations,
    planned_strategy,
    replanned,
    traced_call,
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
    import numpy as np
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
    from shardalg.plan.comparing.given import Progress
    from shardalg.plan.comparing.jobs import Executor
    from shardalg.plan.comparing.sweep_rows import SweepComparison
    from shardalg.plan.contracts.contract import ContractReport
    from shardalg.plan.contracts.statements import Statement
    from shardalg.plan.explain.collective import CollectiveExplanation
    from shardalg.plan.explain.decisions import PlanDifference
    from shardalg.plan.explain.explained import ValueExplanation
    from shardalg.plan.explain.why_not import WhyNot
    from shardalg.plan.overview import Overview
    from shardalg.plan.own_jit import OwnJit
    from shardalg.plan.patching.explicit_edits import ExplicitPatch
    from shardalg.plan.patching.patch import Patch
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


# These internals once had names without an underscore; the old names work for one more version.
OLD_NAMES = frozenset({
    "traced", "annotations", "sharded", "symbols", "symbolised", "named",
    "collectives_table", "conditions_table", "warnings_table",
})  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A planned function: completed shardings, the program that every device runs, and its tables.

    `plan` and `load_plan` make a plan; `replan` makes another one from the same trace. A plan with
    named sizes is made at their hints: its shardings, program, proofs and lowered program have the
    sizes of the hints. `at` makes the plan at other sizes. Tables are methods, values properties.

    Attributes:
      options: the options of planning.
      changes: the decisions that differ from those of the plan on which `at` was called, a row
        each; empty for other plans.
    """

    options: Options
    _make: Callable[[], Stages]
    changes: Table = NO_CHANGES
    _since_saved: tuple[str, ...] = ()
    """For a loaded plan: a text per decision that differs from the version that saved it."""

    @cached_property
    def _stages(self) -> Stages:
        """The results of the planning passes, such as the program; computed on first use."""
        return self._make()

    @property
    def _traced(self) -> Traced:
        """The traced function with its arguments, roles and donations."""
        return self._stages.traced

    @property
    def _annotations(self) -> Annotations:
        """The mesh and the shardings that the user gave."""
        return self._stages.annotations

    @property
    def _sharded(self) -> ShardedGraph:
        """The graph with a completed sharding for each value."""
        return self._stages.sharded

    @cached_property
    def _symbols(self) -> Symbols:
        """The formulas of the function's sizes; numbers if no dimension has a name."""
        return self._stages.symbols

    @cached_property
    def _symbolised(self) -> Symbolised | None:
        """The program with a formula for each of its sizes; None for a plan in numbers."""
        from shardalg.plan.named_sizes import symbolised

        return symbolised(self)

    @property
    def _named(self) -> Symbolised | None:
        """The program with a formula for each of its sizes, or None.

        None means that the plan is in numbers, or that a size has no formula.
        """
        from shardalg.plan.named_sizes import symbolised_or_none

        return symbolised_or_none(self)

    @property
    def program(self) -> SpmdProgram:
        """The program that every device runs."""
        return self._stages.program

    @property
    def mesh(self) -> Mesh:
        """The mesh that the plan is made for."""
        return self._annotations.mesh

    @property
    def graph(self) -> Graph:
        """The traced function."""
        return self._traced.graph

    def __dir__(self) -> list[str]:
        """Return the public names."""
        # The error about an unknown name refers to dir(plan), which therefore lists public names
        # alone.
        return sorted(name for name in super().__dir__() if not name.startswith("_"))

    # Hidden from type checkers: with it, they would accept every name.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the attribute with an old name, or raise an error with similar names."""
            if name in OLD_NAMES:
                return getattr(self, f"_{name}")
            # Python calls this method too if a property raises AttributeError: that error is kept.
            try:
                return object.__getattribute__(self, name)
            except AttributeError:
                if name.startswith("_") or hasattr(type(self), name):
                    raise
            near = get_close_matches(name, dir(self), 3)
            hint = f" Did you mean {' or '.join(near)}?" if near else " dir(plan) lists them."
            raise AttributeError(f"a plan has no attribute {name!r}.{hint}")

    def replan(
        self, strategy: Strategy | None = None, *, mesh: Any = None, options: Options | None = None
    ) -> Plan:
        """Plan the same trace under another strategy, on another mesh, or with other options.

        The function is traced again only if a manual axis (`shard_map`) has another size there.

        Args:
          mesh: given without a strategy; every sharding keeps the names of its axes.

        Raises:
          StrategyError: both a strategy and a mesh, a sharding that the mesh does not have, or a
            loaded plan whose function must be traced again.

        >>> import jax, shardalg as sa
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> from jax.sharding import PartitionSpec as P
        >>> first = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"x": 4}), in_shardings=(P("x"),))
        >>> first.collectives()["kind"].tolist()
        ['all_reduce']
        >>> first.replan(sa.Strategy(first.mesh, in_shardings=(P(None, "x"),))).collectives().empty
        True
        """
        return plan_of(*replanned(self, strategy, mesh, options))

    def at(self, **sizes: int) -> Plan:
        """Return the plan in numbers at these sizes; other named sizes have their hints.

        First it is checked whether the planner makes the same decisions at these sizes. This takes
        about 1 ms after the first call. If it does, `changes` is empty, all formulas hold, and the
        function is planned only when its program is asked for. Otherwise the function is planned at
        once. `changes` then lists the decisions that differ from those at the hints, and the prices
        whose formulas give another number.

        Raises:
          SymbolError: no such name, a size below 1, or a function that is another program at these
            sizes (found when it is traced). StrategyError: `strict=True`, and a decision changed;
            or a loaded plan that must be traced again because a manual axis has another size.

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
        """The plan that `at` or `holds` made last, by its sizes; at most one entry."""
        return {}

    def holds(self, **sizes: int) -> bool:
        """Return whether the planner would decide the same at these sizes.

        If True, bytes, operations, peak memory and seconds by formula equal those of a plan made
        there. The recorded questions of planning are checked first, in about 1 ms. If an answer
        differs, the function is planned there, once per point, and both plans are compared.

        True is reliable unless your Python code branches on a size: two traces may not show that.
        `constants` lists the sizes that Python code makes.

        Raises:
          SymbolError: no such name, or a size below 1.
        """
        from shardalg.plan.named_sizes import holds

        return holds(self, sizes)

    @cached_property
    def _compared(self) -> dict[tuple[tuple[str, int], ...], bool]:
        """Points at which a plan was made, each with True if its decisions were the same."""
        return {}

    def diff(self, other: Plan) -> PlanDifference:
        """Return the values, collectives, bytes and memory in which another plan differs.

        Raises:
          StrategyError: `other` is not a plan.
        """
        from shardalg.plan.explain.decisions import difference

        if not isinstance(other, Plan):
            raise StrategyError(
                f"plan.diff() compares with another plan, got {other!r:.80}. Pass a Plan."
            )
        return difference(self._stages, other._stages)

    def require(
        self,
        *statements: Statement,
        where: Sequence[str] = (),
        for_all: Sequence[str] | None = None,
    ) -> ContractReport:
        """Raise an error unless all statements about the plan are true; return the report.

        A plan with named sizes is checked for all sizes that fulfil `where`: a statement is proved
        where planning decides as at the hints, and the report prints this region. A statement that
        is refuted has a point at which a plan breaks it, the collective with its source line and
        annotations, and the cheapest repair. A plan in numbers is checked at these numbers.

        Args:
          statements: made by `sa.no`, `sa.some`, `sa.at_most`, `sa.sharded`, `sa.no_idle_devices`
            and `sa.unchanged`.
          where: conditions on named sizes, such as ["X divides B", "X >= 2"].
          for_all: the named sizes that vary; None: all. Others have their hints.

        Raises:
          ContractError: a statement is refuted or not decided, or names something that the plan
            does not have.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
        >>> plan.require(sa.no("all_gather"), sa.at_most(executions=1)).ok
        True
        """
        from shardalg.plan.contracts.contract import require

        return require(self, statements, where, for_all)

    def __reduce__(self) -> tuple[Callable[[bytes], Plan], tuple[bytes]]:
        """Pickle a plan as the content of its file; it is restored as by `load_plan`."""
        from shardalg.plan.explain.plan_summary import file_of

        return _from_bytes, (file_of(self).text.encode(),)

    def __deepcopy__(self, memo: object = None) -> Plan:
        """Return the plan itself, because a plan never changes."""
        return self

    __copy__ = __deepcopy__

    def __repr__(self) -> str:
        from shardalg.plan.overview import headline

        return headline(self)

    def overview(self, hardware: str | Hardware | None = None) -> Overview:
        """Return the plan on one screen: time, memory, bytes per axis, your `jax.jit`, warnings.

        A policy that is more than a tenth cheaper is named. To keep the overview of a large model
        cheap, other policies are planned only for at most 400 operators, and policy "cost" only for
        a small search (100 operators on 8 devices).

        Args:
          hardware: the chip whose prices are used; None: the chip of the plan's options.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> print(plan.overview())
        Step 0.711 ns on 2 x tpu_v3 ... Sent 64 B per device and step. 1 operator on ...
        mesh_axes  devices  collectives  sent  time
        X                2            1  64 B  ...
        """
        from shardalg.plan.overview import overview

        return overview(self, hardware)

    def _repr_html_(self) -> str:
        from shardalg.plan.page.plan_html import function_name, plan_element

        return plan_element(self.overview(), function_name(self))

    def page(self, path: str | Path, hardware: str | Hardware | None = None) -> None:
        """Write the plan as one HTML file that loads nothing and opens in any browser.

        It shows step time, memory and bytes with their limits, the source with seconds and bytes
        per line, the modules with repeated layers folded, and the mesh. A click on a line or a
        module shows its collectives and the shardings of its values on the mesh, with their
        reasons. The address of the page keeps the selection.

        Args:
          path: the file, which is written atomically.
          hardware: the chip whose prices are shown; None: the chip of the plan's options.

        Raises:
          HardwareError: as `cost` does.
          OSError: the folder does not exist, or is not writable.
        """
        from shardalg.plan.page.plan_html import plan_document

        check_place(Path(path))
        write_whole(Path(path), plan_document(self, hardware=hardware))

    def report(
        self,
        path: str | Path,
        hardware: str | Hardware | Topology | Sequence[Any] | None = None,
        *,
        others: Mapping[str, Plan] | None = None,
    ) -> None:
        """Write a page that computes time, memory and bytes at other sizes in the browser.

        The formulas of a plan with named sizes, and the conditions under which they hold, are in
        the file. Sliders change dimensions and mesh axes; chip and overlap are chosen. The page
        shows the fastest plan, the sizes at which another plan becomes faster, and the regions
        where a condition fails, in grey with the reason. Only overlaps that are formulas are
        offered: "measured", "none" and "full".

        Args:
          path: the file, which is written atomically.
          hardware: a chip or a list of chips; None: the chip of the plan's options and others.
          others: plans to compare with, by name.

        Raises:
          StrategyError: a plan has no named sizes.
          FormulaError: a size of a plan has no formula.
          HardwareError: as `cost` does.
          OSError: the folder does not exist, or is not writable.
        """
        from shardalg.plan.page.report_page import report_document

        check_place(Path(path))
        plans = {"this plan": self, **(others or {})}
        write_whole(Path(path), report_document(plans, hardware))

    def draw(
        self,
        *,
        show: str | None = None,
        module: str | None = None,
        letters: Mapping[str, int] | None = None,
    ) -> Figure:
        """Draw the program as boxes from left to right, or the bytes per module of a large one.

        A partitioned dimension is a small letter with its mesh axes below. `Σ` marks sums that are
        pending along axes. Below a collective are the bytes that each device sends.
        `sa.draw({"one": plan, "other": other})` draws several plans.

        Args:
          show: "program", or "bytes" for bars; None: the program if it fits on a page.
          module: draw only the operators of this module, such as "net/layers_0/mlp"; the end of
            the path is enough.
          letters: the size that each letter denotes, such as `{"B": 64}`.

        Raises:
          TableError: `show` is unknown, or no module has this name.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> figure = plan.draw(letters={"B": 8})
        >>> print(figure.axes[0].texts[0].get_text())
        Mesh(X=2): 64 B sent per device and step, 0.711 ns on 2 x
        tpu_v3 (the default chip; ...
        """
        from shardalg.plan.overview import draw

        return draw(self, show, module, letters)

    @staticmethod
    def _drawn(things: Mapping[str, Plan], **options: Any) -> Figure:
        from shardalg.plan.overview import draw_several

        return draw_several(things, **options)

    def __str__(self) -> str:
        # A user may run `jax.jit` without this plan's shardings. The second line warns that its
        # costs differ by more than a tenth.
        own = self._own_jit
        return f"{self!r}\n{own}" if own.differs else repr(self)

    def shardings(self) -> DataFrame:
        """Return a row per value: name, shape, completed sharding, shard shape, and the reason."""
        from shardalg.show import tables

        return tables.shardings(self._sharded).df

    def text(self) -> str:
        """Return the program as text, with source lines."""
        return self.program.text(self.graph)

    def listing(self) -> Listing:
        """Return the program for a notebook; pointing at a value shows why it is sharded so."""
        from shardalg.plan.explain.disagreements import program_listing

        return program_listing(self.program, self._sharded)

    def stages(self) -> ProgramStages:
        """Return the program after each pass, in order; `print` shows the passes that change it.

        The first stage is the program as it was emitted, the last one is `program`. The passes run
        again for this call, because a plan keeps only its last program.

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

        `executions` includes trip counts; `wire_bytes_per_step` is `wire_bytes * executions`. With
        named sizes, group sizes, counts and bytes are sympy expressions. The last rows have the
        kind "border" (only in numbers): uneven results, which JAX arrays cannot have. A call of the
        lowered program returns them on the longest even prefix of their axes, and `lowered.padded`
        returns them with their padding.

        Args:
          by: "module": one row per module, kind and axes, with the bytes that it sends per step
            (`wire_bytes_per_step`). Equal modules share a row, `layers[0:24]/mlp/up`.

        Raises:
          TableError: `by` is neither None nor "module".

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
        """The collectives inside the program, without resharding of its arguments and results."""
        from shardalg.show import tables

        return tables.collectives(self.program, self.graph, self._symbolised)

    def gathers(self) -> DataFrame:
        """Return the copies that are made more than once, and the price of making them once.

        One kind of row is a copy that the forward and the backward pass both make.
        `keep_gathers=True` keeps these copies, and copies of one pass that the other may read; a
        number keeps as many rows as fit in that many bytes. The other kind is a loop constant that
        is resharded in every iteration (`hoist_gathers=True`). Columns: value, sharding, option,
        times, wire_bytes (of one copy), saved_wire_bytes (per step), held_bytes (kept longer, per
        device).
        """
        from shardalg.plan.explain.switches import gather_table

        return gather_table(self._sharded, self._traced.roles, self.options).df

    def formatting(self, hardware: str | Hardware | None = None) -> DataFrame:
        """Return the slices, pads, masks and halos that partitioning adds, with their share.

        A row per kind, and a last row for the sum. Columns: instruction, executions, memory_bytes
        (from and to memory, of instructions that nothing fuses), wire_bytes_per_step (of halos and
        permutes), memory_share and wire_share (of the whole program). With a chip also memory_s,
        and step_share of the step. Named sizes have the numbers at which the plan was made.
        """
        from shardalg.plan.pricing import formatting

        return formatting(self, hardware)

    def cost(
        self,
        hardware: str | Hardware | Topology | None = None,
        *,
        overlap: str | None = None,
        software: str | None = None,
    ) -> Cost:
        """Return step time, communication, peak memory and flops on a chip.

        With the name of a chip, each mesh axis has its own links. A `Topology`, or its text such as
        "v3:8x8", says which axes share links. With named sizes, values are sympy expressions.
        `cost(...).table(by="module")` has a row per module.

        The peak memory on CPU devices is estimated as on any chip. XLA's CPU compiler fuses, copies
        and orders operators in its own way: for 44 programs, the estimate was 0.37 to 2.19 times
        the bytes that it allocates (median 0.93). `plan.lower().compiled.memory_analysis()`
        compiles the step and returns these bytes.

        Prices use the constants that were fitted for the chip on published steps. A chip without
        such steps has the constants of the most similar chip, and wider expected errors.

        Args:
          overlap: of compute and collectives: "measured" (the share of communication that was found
            exposed), "none", "dependences" (as far as the program allows), "asynchronous" or
            "full". None is "measured" if the chip has constants, else "none".
          software: the software stack: "xla" (the default of every chip that has it), "pytorch"
            (FSDP), or "datasheet" for the rates of the data sheet without constants.

        Raises:
          HardwareError: an unknown chip or software, a mesh that does not tile the topology, or
            a product of an item type for which the chip has no peak. (`overview` uses the slowest
            peak instead.)
        """
        from shardalg.plan.pricing import cost

        return cost(self, hardware, overlap, software)

    def timeline(self, hardware: str | Hardware | Topology | None = None) -> Timeline:
        """Return the events of each pipeline stage: a table, a figure, a Chrome trace.

        Instructions run one after the other, and bubbles are shown. Named sizes have the numbers at
        which the plan was made.
        There is a row per stage; without a pipeline, one row for all devices.

        Args:
          hardware: the chip; None: the chip of the plan's options. The timeline's text names it.

        Raises:
          HardwareError: as `cost` does.
        """
        from shardalg.plan.pricing import timeline

        return timeline(self, hardware)

    @property
    def memory(self) -> Liveness:
        """The live buffers of a device at the peak, on the chip of the plan's options.

        Every peak that a plan prints is this one. If the chip's compiler repeats cheap operators in
        the backward pass (`Hardware.rebuilds`: all known chips except CPUs), only the inputs of
        these operators are kept from the forward pass. Named sizes have the numbers at which the
        plan was made.
        """
        return self._stages.cost.memory

    def explain(
        self, what: object = None, *, thorough: bool = False
    ) -> ValueExplanation | CollectiveExplanation:
        """Explain why a value has its sharding, or why a collective is in the program.

        For a value: the propagation steps of each axis, back to the annotations. For a collective:
        the sharding that the value has, the sharding that is needed, and the annotations from which
        both come. Then the changes of annotations that would remove it: of one annotation,
        otherwise of two or more. Each change is planned again; they are ranked by step time and
        memory.

        Args:
          what: a name from `shardings()` (`params['w']`, a site's name,
            `dot_general:3@model.py:41`), a row of `collectives()`, its number, or an instruction
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
        """Explain why a value does not have a sharding, and show the effect of annotating it so.

        Args:
          spec: the sharding, in any form that `in_shardings` accepts.

        Raises:
          StrategyError: no value has that name, or the spec does not fit it.
        """
        from shardalg.plan.explain.why_not import why_not

        return why_not(self._trials, value, spec)

    def warnings(self) -> DataFrame:
        """Return a row per avoidable cost or left-out effect of the plan, each with a remedy.

        An operator that cannot be partitioned sends `wire_bytes_per_step`; `wire_bytes` is the
        share of one of its `executions`. A product that leaves a mesh axis unused repeats
        `redundant_flops` on every device; `remedy` is an annotation that uses the axis and was
        planned. Bytes and flops are per device and step. An effect without a result (a print, a
        callback) is left out of the program and has a row with its line. So has a copy to the host
        (`jax.device_put`, an offloading policy of `jax.checkpoint`): its value counts in the peak
        memory. Rows with the op "plan file" name decisions that differ since a plan was saved.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 8), "float32")
        >>> plan = sa.plan(lambda x, w: x @ w, x, x, mesh=sa.Mesh({"X": 2, "Y": 2}),
        ...                in_shardings=(P("X"), P()))
        >>> plan.warnings()[["warning", "redundant_flops"]].values.tolist()
        [['idle axis Y: its 2 devices repeat the same work', 256]]
        """
        from shardalg.plan.explain.warnings import warnings_frame

        return warnings_frame(self)

    @cached_property
    def _warnings_table(self) -> Table:
        """The table behind `warnings()`."""
        from shardalg.plan.explain.warnings import warnings_table

        return warnings_table(self)

    def beside_jit(self) -> DataFrame:
        """Compare this plan with the same annotations under your own `jax.jit`.

        Columns: program, layouts (the policy), wire_bytes and peak_memory_bytes per device and
        step. The second row is a lower bound of the bytes that XLA sends, in the shardings of the
        partitioner that the installed jax uses. Its peak memory is the peak of our plan in these
        shardings. After `compare_xla`, a third row has the bytes of XLA's program.

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
        """The comparison with your own `jax.jit`, with XLA's bytes if they are known."""
        from shardalg.plan.own_jit import beside_jit

        return beside_jit(self)

    @cached_property
    def _under_jit(self) -> OwnJit:
        """The comparison with your own `jax.jit`, without XLA's own bytes."""
        from shardalg.plan.own_jit import OwnJit

        return OwnJit(self._stages, self.options)

    @cached_property
    def _told(self) -> dict[str, int | float]:
        """Wire bytes of XLA's program, by partitioner, from calls of `compare_xla`."""
        return {}

    def switches(self) -> DataFrame:
        """Plan again with each switch of `Options` flipped, one at a time, and show the effect.

        Columns: options, collectives, wire_bytes, peak_memory_bytes, local_instructions (they send
        nothing), formatting_bytes (memory traffic of slices, pads and masks).
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
        """Compare the plan with XLA's shardings and collectives for the same annotations.

        XLA compiles for CPU devices, in another process if this one has too few.

        Args:
          partitioner: "gspmd" or "shardy"; None: the one that the installed jax uses.
          apart: always run XLA in another process, because some programs crash it.
          fn, args: for a loaded plan, as in `lower`.

        Raises:
          LoweringError: this jax lacks the partitioner, XLA crashes, or the mesh has one device.

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

    def patch(
        self,
        *,
        hardware: str | Hardware | Topology | None = None,
        partitioner: str | None = None,
        trials: int = 200,
        progress: bool | None = None,
        explicit: bool = False,
    ) -> Patch | ExplicitPatch:
        """Return the fewest sharding constraints in your source under which XLA does as the plan.

        Every expression of your functions may get constraints: the forms that its value has in the
        plan. XLA is asked about sets of them, from all down to the fewest (delta debugging), then
        about sets of up to four. The answer has a unified diff that `git apply` accepts, the worth
        of each line in bytes and seconds, constraints that save bytes and cost time, and `check()`.
        Your functions run with other code while they are traced, and JAX's caches are cleared.
        XLA compiles for CPU devices: `sa.host_devices(n)` first makes it many times faster.

        Args:
          hardware: the chip or topology that prices seconds; None: that of the options.
          partitioner: as in `compare_xla`.
          trials: most sets that XLA compiles.
          progress: whether a line on stderr shows the trials; None: if stderr is a terminal.
          explicit: give the edits (`out_sharding=`, `jax.reshard`) under which JAX types the
            function on a mesh with explicit axes. XLA is not asked, and `trials` is not read.

        Raises:
          PatchError: a loaded plan, a plan with named sizes, or no source of the function.
          LoweringError: as in `compare_xla`.
        """
        from shardalg.plan.patching.patch import patch

        return patch(
            self,
            hardware=hardware,
            partitioner=partitioner,
            trials=trials,
            progress=progress,
            explicit=explicit,
        )

    def cost_of_xla(
        self, hardware: str | Hardware | Topology, partitioner: str | None = None
    ) -> DataFrame:
        """Return the collectives of XLA's own program with the prices of `cost`.

        Columns: kind, mesh_axes, executions, wire_bytes_per_step, time_s (per step; None if the
        groups are not along mesh axes). The last row is the sum. XLA runs as in `compare_xla`.

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
        """Plans of the same function under other annotations, made when a remedy is tried."""
        from shardalg.planner.trials import Trials

        return Trials(self._stages, self.options)

    @property
    def is_symbolic(self) -> bool:
        """True if the plan has named sizes, so that prices are formulas."""
        return self._stages.is_named

    @cached_property
    def sizes(self) -> dict[str, Size]:
        """The named sizes of dimensions and axes, with their hints; empty for a plan in numbers."""
        from shardalg.plan.named_sizes import sizes_of

        return sizes_of(self)

    @also_without_call
    def constants(self) -> DataFrame:
        """Return the sizes that Python code makes: they stay numbers in every formula.

        Columns: dimension, source, value (the first one with it), varies (whether a second trace
        had another size there, so that formulas are valid only at the hint).
        """
        return self._symbols.constants.df

    @also_without_call
    def conditions(self) -> DataFrame:
        """Return the guards of the plan: if one fails, `at` may give another plan.

        The rows are the facts that `holds` checks, comparisons first, those with the smallest
        margin before others. `holds` also checks the formula of the peak memory. A choice "rather
        than" another one changes exactly where its row fails, as long as reshard paths are those of
        the hints. Other rows of choices, and rows of paths ("collectives"), are questions of a
        search. Its outcome may be the same although such a row fails: `holds` then plans again.

        Columns: kind (where a change would show: "choice" of an operator, "sharding",
        "collectives", "divides" for an even or uneven split, "part" for a size fixed at its hint),
        condition, margin (as a share of its larger side), place, source, decides (the choice, the
        rejected choice, and whether time or bytes decided), rests_on (earlier operators whose
        choices decide which copies are available: if one changes, the condition says nothing),
        flips (per size where the condition changes, with the other sizes at their hints). If
        `unguarded` has a reason, the rows are only the conditions of the formulas.
        """
        return self._conditions_table.df

    @cached_property
    def _conditions_table(self) -> Table:
        """The conditions under which the plan stays the same; empty for a plan in numbers."""
        from shardalg.plan.named_sizes import conditions_table

        return conditions_table(self)

    @property
    def unguarded(self) -> str:
        """Return why `at` and `holds` must plan again at all other sizes; "" if they need not.

        The reason is a parameter of an operator that differs in a second trace and has no formula.
        The text names the operator, the parameter and the source line. Other sizes of mesh axes are
        checked by guards in any case.
        """
        return self._recorded[1]

    @property
    def _guards(self) -> Guards | None:
        """The questions about sizes that planning asked, such as "is B > 8?"; None if not known."""
        return self._recorded[0]

    @cached_property
    def _recorded(self) -> tuple[Guards | None, str]:
        """The comparisons of sizes that planning made, as guards of the plan, and "".

        If there are none, (None, the reason).
        """
        from shardalg.planner.guards import guards

        return guards(self._stages, self.options, lambda: self._symbolised)

    @overload
    def sweep(
        self,
        hardware: str | Hardware | Topology | None = None,
        *,
        overlap: str | None = None,
        **sizes: np.ndarray | int,
    ) -> Sweep: ...
    @overload
    def sweep(
        self,
        hardware: str | Hardware | Topology | None = None,
        *,
        overlap: str | None = None,
        mesh: Any = None,
        remat: Any = None,
        reserve: float = 0.0,
        executor: Executor | None = None,
        file: str | Path | None = None,
        progress: Progress | bool | None = None,
        **sizes: Any,
    ) -> SweepComparison: ...
    def sweep(
        self,
        hardware: Any = None,
        *,
        overlap: Any = None,
        mesh: Any = None,
        remat: Any = None,
        reserve: Any = 0.0,
        executor: Any = None,
        file: Any = None,
        progress: Any = None,
        **sizes: Any,
    ) -> Any:
        """Return step time and memory at many meshes, policies of rematerialisation, and sizes.

        Lists give a row per combination, a `SweepComparison`: ranked, with `.best`, `.pareto()`,
        `.at(B=64)`, `.table`, `.draw()` and `.page(path)`. Numpy arrays of named sizes alone give
        arrays, a `Sweep`, for millions of points.

        A row has the source "formula" if all questions of planning have the same answers as at the
        hints: its seconds and bytes equal those of a plan made there. Otherwise a plan is made, and
        the source is "plan". A point without a plan is a row with the reason. Rows that fit come
        first, the fastest first, per sample if the data arguments have a role. Ctrl-C returns what
        is finished; `file` resumes it. Formulas over meshes need a plan on a mesh with named sizes,
        `Mesh(..., symbolic=True)`.

        In a `Sweep`, arrays broadcast against each other: a grid, `B=batches[:, None], X=axis`, is
        cheapest. Other sizes have their hints. Seconds and bytes belong to the decisions at the
        hints. `Sweep.holds` says where the planner decides the same; it is False everywhere if
        `unguarded` has a reason. The peak is the largest number of bytes at any instruction, with
        the live buffers of the hints.

        Args:
          hardware: a chip or a topology; None is that of the plan's options.
          overlap: "measured", "none" or "full", as in `cost`.
          mesh: a list of meshes or axis sizes, `[{"data": 8, "model": 4}, ...]`.
          remat: a list of names in `jax.checkpoint_policies`, of tuples such as
            `("save_only_these_names", "attention")`, and of None for the function as it is
            written. A policy replaces that of each `jax.checkpoint` in the function. If there is
            none, it is put around each `jax.lax.scan` that the function differentiates.
          reserve: share of a device's memory that must stay free, 0 to 1.
          executor: plans are made by its workers, for example those of a
            `concurrent.futures.ProcessPoolExecutor`. Only `submit` and `result` are called. The
            function is traced here, and need not be known to the workers.
          file: a JSON file that keeps finished points; a later call goes on from there.
          progress: called with the number of finished points, of all, and a name. True prints a
            line to stderr; None does so if stderr is a terminal.
          sizes: lists, arrays or numbers, by the names of sizes.

        Raises:
          SymbolError: no such name, or arrays that are not sizes or do not broadcast.
            HardwareError: as in `cost`. FormulaError: overlap="dependences" for arrays.
            StrategyError: an empty list, a value that is given twice, an unknown policy, or one
            that has no place in the function. PlanFileError: the file is broken or is of another
            sweep.

        >>> import jax, numpy as np, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> B, M = sa.dims("B M", hint=(64, 16))
        >>> x = jax.ShapeDtypeStruct((B, M), "float32")
        >>> mesh = sa.Mesh({"X": 4}, symbolic=True)
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=mesh, in_shardings=(P("X"),))
        >>> found = plan.sweep("tpu_v3", mesh=[{"X": 4}, {"X": 2}], B=[64, 98])
        >>> found.table.select("mesh", "B", "source", "peak_bytes").rows
        (('X=2', 64, 'formula', 2176.0), ('X=2', 98, ...), ..., ('X=4', 98, 'plan', 1728.0))
        >>> found = plan.sweep("tpu_v3", B=np.array([64, 96, 98]), X=np.array([[4], [2]]))
        >>> found.peak_memory_bytes.astype(int).tolist()
        [[1152, 1664, 1696], [2176, 3200, 3264]]
        >>> found.holds.tolist(), found.doubtful.tolist(), plan.holds(B=98, X=2)
        ([[True, True, False], [False, False, False]], [[False, ...], [True, True, True]], True)
        """
        from shardalg.plan.comparing.sweeping import SweepSettings, swept
        from shardalg.plan.named_sizes import sweep

        settings = SweepSettings(hardware, overlap, mesh, remat, reserve, executor, file, progress)
        if settings.is_for_arrays(sizes):
            return sweep(self, hardware, overlap, sizes)
        return swept(self, sizes, settings)

    @cached_property
    def _sweepers(self) -> dict[Any, Sweeper]:
        """The formulas of the last sweeps, by chip, overlap and fixed sizes."""
        return {}

    def verify(self, program: SpmdProgram | None = None) -> Report:
        """Prove that the program computes the function, claim by claim.

        The report is ok only if each claim is proved, or trusted because it is tested.

        Args:
          program: another program for the same function, such as `plan.program` with a change.
        """
        from shardalg.plan.running import verified

        # A plan never changes, so the proof of its own program can be kept. Another program is
        # proved at each call, because keeping all of them would fill the memory.
        return self._report if program is None else verified(self, program)

    @cached_property
    def _report(self) -> Report:
        """The proofs about the plan's own program, made on first use."""
        from shardalg.plan.running import verified

        return verified(self, self.program)

    def lower(
        self,
        devices: Sequence[Any] | None = None,
        *,
        fn: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
    ) -> Lowered:
        """Verify the program, and return it as a JAX executable that is called on global arrays.

        Args:
          devices: as many as the mesh has; None: the first devices of jax.
          fn: for a loaded plan, the function; it must have the planned graph.
          args: with `fn`, the arguments as given to `plan`; needed if they are pytrees.

        Raises:
          LoweringError: a loaded plan without the function or its pytrees, another function, or a
            refuted claim.
        """
        from shardalg.plan.running import lowered

        return lowered(self, devices, fn, args)

    def compare_runs(self, args: Sequence[Any], expected: Any, *, repeats: int = 20) -> Comparison:
        """Run the plan and XLA's own partitioning in turns, and compare them with one device.

        Args:
          args: the arguments, as arrays.
          expected: the result on one device, such as `jax.jit(fn)(*args)`.
          repeats: the number of timed runs of each.

        Raises:
          LoweringError: a loaded plan, too few devices, a refuted claim.
        """
        from shardalg.plan.running import compared_runs

        return compared_runs(self, args, expected, repeats)

    def one_shard(self, device: Any = None) -> OneShard:
        """Return the program of one device, to measure compute and memory of a large plan.

        Collectives become local operations of the same shapes: `measure()` returns times and
        memory; results are meaningless. `device`: None takes the first.

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
        """Compare memory, flops and collectives with the results of the chip's own compiler.

        The lowered program, and the function as XLA partitions it, are compiled in another process.
        No chip is needed. Results are cached in the user's cache folder by content. "Does not fit
        the memory" is a result, too. A plan with named sizes is compiled at the hints.

        Args:
          topology: "v3:8x8", or a `Topology`.
          fn, args: for a loaded plan, as in `lower`.

        Raises:
          DeviceError: the compiler (`libtpu`, a CUDA plugin of jax) is not installed.
          HardwareError: an unknown chip or shape, or a mesh that does not tile it.
          LoweringError: the compiler does not know the topology, or refuses the program.
        """
        from shardalg.plan.running import beside_chip_compiler

        return beside_chip_compiler(self, topology, fn, args)

    def named_shardings(self, devices: Sequence[Any] | None = None) -> tuple[Any, Any]:
        """Return JAX's shardings of the arguments and of the results, as two pytrees.

        The first one is a tuple with one entry per argument. Use it to place arrays, to restore a
        checkpoint, or for `jax.jit`. An uneven dimension is sharded along the longest even prefix
        of its axes, because JAX arrays cannot be uneven.

        Args:
          devices: as in `lower`.

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
        """Return `in_shardings`, `out_shardings` and `donate_argnums` for `jax.jit`.

        `jax.jit(fn, **plan.jit_kwargs())` has the plan's shardings at its border. XLA chooses the
        collectives inside; `lower` runs those of the plan.

        Raises:
          LoweringError: as in `named_shardings`.
        """
        from shardalg.plan.running import jit_kwargs

        return jit_kwargs(self, devices)

    def shardy(self) -> str:
        """Return the function as StableHLO with this plan's shardings in the Shardy dialect.

        It has the mesh (`sdy.mesh`), a `sdy.sharding` at every argument and result, and a
        `sdy.sharding_constraint` at every annotated site. Source lines are in the locations. An
        uneven sharding at the border becomes a constraint inside, because JAX requires even ones
        there. `sa.read_stablehlo` reads the text.

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

    def to_dict(self, hardware: str | Hardware | Topology | None = None) -> dict[str, float]:
        """Return the main figures as plain numbers by name, for an experiment tracker.

        Names have their units. Named sizes have the numbers at which the plan was made.

        Args:
          hardware: the chip; None: the chip of the plan's options.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
        >>> figures = plan.to_dict("tpu_v3")
        >>> figures["wire_bytes_per_step"], figures["peak_memory_bytes"], figures["devices"]
        (96, 256, 4)
        """
        from shardalg.plan.pricing import exported_numbers

        return exported_numbers(self, hardware)

    def model_explorer(
        self,
        path: str | Path | None = None,
        hardware: str | Hardware | Topology | None = None,
    ) -> dict[str, Any]:
        """Return the program as a graph for Model Explorer, with seconds and bytes per node.

        The keys are "graph" (a graph collection), "seconds" and "wire_bytes" (node data).

        Args:
          path: a file for the graph, such as "plan.json". The node data are written beside it, to
            "plan.seconds.json" and "plan.wire_bytes.json". None writes no file.
          hardware: the chip; None: the chip of the plan's options.

        Raises:
          OSError: the folder does not exist or is not writable, or the path is a folder.
        """
        from shardalg.plan.pricing import exported_graph

        return exported_graph(self, hardware, path)

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, atomically; `load_plan` reads it.

        The file holds the inputs of planning (the graph, the annotations and the options), the
        versions that the plan was made with, and a summary: a digest of the program, shardings,
        collectives by module, peak memory by class, and step time. It does not hold the figures of
        the chip, nor the partitioner of the installed jax that policy "jit" follows.
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
      fn: any function that jax can trace. A function jitted by `jax.jit` brings its shardings,
        donations and static arguments. For `eqx.filter_jit` and `nnx.jit`, and for arguments with
        nnx modules, state is split as the framework splits it. `jax.jit(f).trace(...)` is accepted
        too, without arguments.
      args: arrays or `jax.ShapeDtypeStruct`s, any pytree. Only shapes and types are used. An
        argument with a `NamedSharding` keeps it if `in_shardings` gives none.
      mesh: a `Mesh`, or a mesh of JAX. None: the mesh of the shardings of arguments and function,
        otherwise the one that `jax.set_mesh` has set.
      in_shardings: as in `jax.jit`, a prefix of the tuple of arguments: PartitionSpec, Sharding,
        NamedSharding, text in any notation, or None to let completion decide. Static arguments do
        not count; the dict of keyword arguments may come last.
      out_shardings: the same for the result.
      roles: a prefix of "parameters", "optimizer_state" and "data", or a dict from paths of
        arguments, `{"state.params": "parameters"}`. None: read from the trees, if one holds a
        TrainState, a state of optax or modules of nnx.
      donate_argnums: positional arguments whose memory the step may reuse.
      options: the policy, the switches, and the chip whose rates decide between choices (default: a
        TPU v3; `cost` accepts any other chip later).
      strategy: mesh, shardings and sites in one value, instead of the three arguments above.
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
    # Misspelled keywords arrive here, so that the error can suggest the nearest one.
    if unknown:
        raise unknown_keywords(unknown, signature(plan).parameters)
    strategy = one_strategy(strategy, mesh, in_shardings, out_shardings)
    given = (args, kwargs or {})
    called = traced_call(fn, given, roles, donate_argnums, strategy, options)
    return plan_of(*planned_strategy(*called))


def from_annotations(traced: Traced, annotations: Annotations, options: Options) -> Plan:
    """Return the plan of a traced function.

    Args:
      annotations: the mesh and the user's shardings, already checked against the traced graph.
    """
    return plan_of(*planned_annotations(traced, annotations, options))


def plan_of(stages: Stages, options: Options) -> Plan:
    """Return a plan from the results of all planning passes (`stages`)."""
    # These stages exist already; `at` gives a function that plans on first use instead.
    return Plan(options.where(named=stages.is_named), lambda: stages)


def load_plan(path: str | Path) -> Plan:
    """Read a file that `Plan.save` wrote, and plan its graph again.

    `lower` then needs the function, and checks that it has the planned graph. No text of the file
    is evaluated: every value is checked by its type, every operator by JAX's own rules.

    The new plan is compared with the summary in the file. If another version of shardalg or jax,
    another partitioner (policy "jit") or other figures of the chip made the file, a difference is a
    warning, which `plan.warnings()` repeats. A difference under the same versions means that the
    file was edited.

    Raises:
      PlanFileError: no such file, cut short, edited, or of another schema.
    """
    return _loaded(plan_file.read(path), path)


def _from_bytes(content: bytes) -> Plan:
    """Return the plan of a file's content: pickled plans name this function."""
    return _loaded(plan_file.parsed(content.decode(), "a pickled plan"), "a pickled plan")


def _loaded(saved: PlanFile, path: object) -> Plan:
    """Return the plan of a file's content, with its differences from the file's summary.

    Args:
      path: names the file in errors and warnings.
    """
    from shardalg.plan.explain.plan_summary import planned_file

    stages, options, found = planned_file(saved, path)
    return replace(plan_of(stages, options), _since_saved=found)
