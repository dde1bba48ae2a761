"""The Plan: one JAX function on one mesh under one strategy, and all that can be asked of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.matrix_unit import check_products
from shardalg.costs.topology import OF_OPTIONS, chip_text, machine, machine_text
from shardalg.errors import LoweringError, PlanFileError, ShardalgError, StrategyError
from shardalg.graph.ir import Graph
from shardalg.graph.tracing.parts import installed_partitioner
from shardalg.graph.user_frames import passed_on
from shardalg.plan import plan_file
from shardalg.planner.calls.meshes import placed
from shardalg.planner.calls.user_call import opened
from shardalg.planner.propagate.options import Options, options_from
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.propagate.strategy import Annotations, Strategy, resolve, strategy_from
from shardalg.planner.stages import NO_CHANGES, Stages, planned, planned_at, priced, restated
from shardalg.planner.traced import Traced, trace_call, with_own
from shardalg.planner.trips import while_loops
from shardalg.renamed import also_without_call
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table, bytes_text, counted, seconds_text

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
    from shardalg.show.figures import DrawnPlan
    from shardalg.show.html import Listing
    from shardalg.show.timeline import Timeline
    from shardalg.sizes.decided import Guards
    from shardalg.sizes.symbolic.symbols import Symbols
    from shardalg.spmd.instruction import Instruction
    from shardalg.tables import DataFrame
    from shardalg.verify.report import Report
    from shardalg.xla.aot_answer import BesideCompiler


OLD_NAMES = frozenset({
    "traced", "annotations", "sharded", "symbols", "symbolised", "named",
    "collectives_table", "conditions_table", "warnings_table",
})  # fmt: skip

"""What a plan is made of, once without an underscore; still found so for one version."""

AT_THE_BORDER = "arguments and results"


def _per_execution(total: Any, executions: int) -> Any:
    """Return bytes of one execution: whole where they divide."""
    executions = max(executions, 1)
    return total / executions if total % executions else total // executions


_KEPT = 8

"""Sweeps of other sizes, chips or fixed sizes whose programs a plan keeps."""


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
        if not self._stages.is_named:
            return None
        from shardalg.costs.symbolic import Sizes, symbolise
        from shardalg.planner.guards import recorded_shapes

        sizes = Sizes.of(self._symbols.lifted, self.mesh.sizes)
        recorded = partial(recorded_shapes, self._stages, self.options, sizes)
        return symbolise(self.program, self.graph, sizes, recorded)

    @property
    def _named(self) -> Symbolised | None:
        """The same as `_symbolised`; None also where some size has no formula."""
        from shardalg.sizes.formula import FormulaError

        try:
            return self._symbolised
        except FormulaError:
            return None

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

    def _bound(self, fn: Callable[..., Any] | None, args: Sequence[Any] | None) -> Traced:
        if self._traced.call is not None and fn is None:
            return self._traced
        if fn is None:
            raise LoweringError(
                "a loaded plan has no function to run: pass it, as plan.lower(fn=train_step)."
            )
        return self._traced.bound(fn, args, self.mesh.shape)

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
        options = options_from(options or self.options)
        if strategy is not None:
            if mesh is not None:
                raise StrategyError(
                    "replan() takes a strategy, which has a mesh, or a mesh: give one of both."
                )
            strategy = strategy_from(strategy)
            traced = self._traced.on(strategy.mesh, before=self.mesh)
            return _planned(traced, strategy, options)
        if mesh is None:
            return from_annotations(self._traced, self._annotations, options)
        there = mesh if isinstance(mesh, Mesh) else Mesh.from_jax(mesh)
        traced = self._traced.on(there, before=self.mesh)
        asked = restated((self.graph, traced.graph), self._annotations, there, traced.first_mesh)
        return from_annotations(traced, asked, options)

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
        from shardalg.sizes.symbolic.symbols import point_of

        point = point_of(self.sizes, sizes)
        if self._guarded(point):
            return Plan(self.options, lambda: planned_at(self._stages, point, self.options)[0])
        here = self._planned_at(point)
        found = here.changes
        decided = [row for row in found if row["kind"] not in ("peak", "formula")]
        if self.options.strict and decided:
            raise StrategyError(
                f"strict=True, and {len(decided)} decisions at {point} are others than at the "
                f"hints:\n{found}\nPlan at these sizes, or allow it."
            )
        return here

    def _planned_at(self, point: Mapping[str, int]) -> Plan:
        """Return the plan there, with its changes; of the last point it is kept."""
        key = tuple(point.items())
        if key not in self._last_made:
            self._last_made.clear()
            self._last_made[key] = self._made_at(point)
        return self._last_made[key]

    @cached_property
    def _last_made(self) -> dict[tuple[tuple[str, int], ...], Plan]:
        """The plan at the last point, for `holds` and `at` ask one after the other."""
        return {}

    def _made_at(self, point: Mapping[str, int]) -> Plan:
        stages, constant = planned_at(self._stages, point, self.options)
        here = _checked(stages, self.options)
        both = self._stages, stages
        from shardalg.plan.explain import decisions

        found = decisions.changes(*both, self._named, point=point, constant=constant)
        return replace(here, changes=found)

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
        from shardalg.sizes.symbolic.symbols import point_of

        point = point_of(self.sizes, sizes)
        if self._guarded(point):
            return True
        key = tuple(point.items())
        if key not in self._compared:
            self._compared[key] = self._is_same_at(point)
        return self._compared[key]

    @cached_property
    def _compared(self) -> dict[tuple[tuple[str, int], ...], bool]:
        """The points at which a plan was made and compared."""
        return {}

    def _is_same_at(self, point: Mapping[str, int]) -> bool:
        """Return whether a plan made at the point decides and costs the same as the formulas say.

        The place of the peak is no decision: it may change if its bytes do not.
        """
        from shardalg.planner.guards import formulas_hold

        if not self.is_symbolic:
            return False
        try:
            here = self._planned_at(point)
        except ShardalgError:
            # The function is another program there, or a loaded plan has no function to trace.
            return False
        if any(row["kind"] != "peak" for row in here.changes):
            return False
        named = self._named
        if named is None:
            return False
        chip = machine(self.options.hardware)
        return formulas_hold(named, (self._cost(chip), here._cost(chip)), here.program, point)

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
        return _from_bytes, (self._file.text.encode(),)

    def __deepcopy__(self, memo: object = None) -> Plan:
        """A plan never changes: its copy is itself."""
        return self

    __copy__ = __deepcopy__

    def __repr__(self) -> str:
        from shardalg.show import tables

        table = tables.collectives(self.program, self.graph)
        moved = sum(row["wire_bytes_per_step"] for row in table)
        hints = self._hints(n for n in self.sizes if n not in self.mesh.axis_names)
        notes = [f"at the hints {hints}"] if hints else []
        # Prices differ because decisions do: such rows are counted where no decision is.
        decided = [row for row in self.changes if row["kind"] not in ("peak", "formula")]
        if decided:
            notes += [f"{counted(len(decided), 'decision')} changed"]
        elif len(self.changes):
            notes += [f"{counted(len(self.changes), 'formula')} changed"]
        unknown = [loop for loop in while_loops(self.graph) if loop.iterations is None]
        notes += [f"one iteration of {loop.text} ({loop.name})" for loop in unknown]
        sizes = ((len(self.graph.nodes), "node"), (len(table), "collective"))
        counts = ", ".join(counted(n, what) for n, what in sizes)
        whose = self.options.followed
        chip = chip_text(self.options.hardware, self.mesh.size, OF_OPTIONS)
        return (
            f"Plan on {self.mesh!r} for {chip}, layouts {whose}: {counts}, "
            f"{bytes_text(moved)} sent per device and step, "
            f"{', '.join([self._verified(), *notes])}"
        )

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
        from shardalg.plan.overview import Overview

        text = self._machine_text(hardware)
        if hardware is not None:
            return Overview(self, self.cost(hardware), hardware, text)
        chip = self.options.hardware
        return Overview(self, self._cost(machine(chip)), chip, text)

    def _repr_html_(self) -> str:
        from shardalg.show.program_view import ProgramView

        key = f"p{id(self):x}"
        view = ProgramView(self.program, self.graph, self.listing(), self._path, key)
        return f"{self.overview()._repr_html_()}\n{view.to_html()}"

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
        from shardalg.show.figures import draw_plans

        drawn = self._drawn_plan()
        title = drawn.note if module is None else f"{module} of {drawn.note}"
        return draw_plans({title: drawn}, show=show, module=module, letters=letters)

    def _drawn_plan(self) -> DrawnPlan:
        from shardalg.show.figures import DrawnPlan

        cost = self._cost(machine(self.options.hardware))
        numbers = cost.at_hints
        note = (
            f"{self.mesh!r}: {bytes_text(numbers.wire_bytes)} sent per device and step, "
            f"{seconds_text(numbers.step_time_s)} on {cost.machine_text}"
        )
        return DrawnPlan(self.program, self.graph, note)

    @staticmethod
    def _drawn(things: Mapping[str, Plan], **options: Any) -> Figure:
        from shardalg.show.figures import draw_plans

        return draw_plans({name: each._drawn_plan() for name, each in things.items()}, **options)

    def _path(self, instruction: Instruction) -> tuple[str, ...]:
        """Where an instruction belongs: its phase, the modules, and the line that it is for."""
        from shardalg.graph.modules import modules

        if instruction.node is None:
            return (AT_THE_BORDER,)
        node = self.graph.nodes[instruction.node]
        module = modules(self.graph)[node.index]
        return tuple(filter(None, (instruction.phase, *module.split("/"), node.source)))

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
        from shardalg.plan.explain.listing import program_listing

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
        from shardalg.show import tables
        from shardalg.show.formatting import with_borders
        from shardalg.show.tables import check_by

        if check_by(by):
            return tables.collectives_by_module(self._collectives_table).df
        found = self._collectives_table
        made = found if self._stages.is_named else with_borders(found, self.program, self.graph)
        return made.df

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
        from shardalg.show.formatting import formatting

        cost = None if hardware is None else priced(self._traced, self.program, hardware)
        return formatting(self.program, self.graph, cost).df

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
        chip = machine(hardware)  # type: ignore[arg-type]  # None is named there
        check_products(self.graph, chip.chip)
        return self._cost(chip, overlap=overlap, text=self._machine_text(hardware))

    def _cost(
        self, chip: Hardware | Topology, *, overlap: str = "none", text: str | None = None
    ) -> Cost:
        """The same, where products of a type without a peak take the chip's slowest one.

        Args:
          text: names the machine and its source; None is the machine of the plan's options.
        """
        from shardalg.show.tables import costs_by_module

        program = self._symbolised or self.program
        made = priced(self._traced, program, chip, overlap=overlap)
        from shardalg.costs.cost import Elsewhere

        elsewhere = Elsewhere(lambda point: self._fits(chip, point))
        by_module = partial(costs_by_module, self._stages, chip)
        text = self._machine_text(None) if text is None else text
        return replace(made, by_module=by_module, elsewhere=elsewhere, machine=text)

    def _fits(self, chip: Hardware | Topology, point: Mapping[str, int]) -> bool:
        """Whether a device holds the plan at other sizes; False where there is none."""
        try:
            here, _ = planned_at(self._stages, point, self.options)
            return bool(priced(here.traced, here.program, chip).fits)
        except ShardalgError:
            return False

    def timeline(self, hardware: str | Hardware | Topology | None = None) -> Timeline:
        """What the devices of each pipeline stage do when: a table, a figure, a Chrome trace.

        One instruction after the other, bubbles as what they are; of a plan with named sizes, at
        the hints. A row per stage; without a pipeline one row stands for every device.

        Args:
          hardware: the chip; None: the one of the plan's options. The timeline's text says which.

        Raises:
          HardwareError: as `cost` does.
        """
        from shardalg.costs.pipelines.events import events
        from shardalg.show.timeline import Timeline

        given = machine(self.options.hardware if hardware is None else hardware)
        check_products(self.graph, given.chip)
        of = f"predicted on {self._machine_text(hardware)}"
        return Timeline(events(self.program, self.graph, given), str(self.program.mesh), of)

    def _machine_text(self, hardware: object) -> str:
        """Return the chip, the number of devices, and where both come from."""
        if hardware is not None:
            return machine_text(hardware, self.mesh.size)  # type: ignore[arg-type]
        return machine_text(self.options.hardware, self.mesh.size, OF_OPTIONS)

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
        from shardalg.plan.explain.collective import explain_collective
        from shardalg.plan.explain.explained import explanation

        if isinstance(what, str):
            return explanation(self._sharded, what)
        return explain_collective(self._trials, self._collectives_table, what, thorough=thorough)

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
        table = self._warnings_table
        steps = zip(table["wire_bytes_per_step"], table["executions"], strict=True)
        return table.whole_df.assign(wire_bytes=[_per_execution(*pair) for pair in steps])

    @cached_property
    def _warnings_table(self) -> Table:
        """The table behind `warnings()`."""
        from shardalg.plan.explain.warnings import roundabout
        from shardalg.plan.explain.warnings.held import held_rows
        from shardalg.plan.explain.warnings.idle import idle_rows, stack_rows
        from shardalg.plan.explain.warnings.whole import whole_rows

        fallbacks = roundabout.warnings(self.program, self.graph)
        quiet = (*roundabout.unread(self.graph).rows, *roundabout.left_out(self.graph).rows)
        own = self._own_jit.warnings()
        held = held_rows(self._trials)
        idle = (*idle_rows(self._trials), *whole_rows(self._trials))
        stacked = stack_rows(self._trials)
        trips = roundabout.unknown_trips(self.program, self.graph).rows
        saved = [
            ("plan file", "", 1, 0, text, "save the plan again", 0) for text in self._since_saved
        ]
        found = (
            *saved, *fallbacks.rows, *quiet, *trips, *idle, *held, *stacked, *own.rows
        )  # fmt: skip
        return Table(fallbacks.columns, found)

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
        told = self._told.get(installed_partitioner())
        return self._under_jit if told is None else replace(self._under_jit, asked=told)

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
        from shardalg.plan.compare_xla import compare
        from shardalg.xla.dump import ask

        traced = self._bound(fn, args)
        # XLA is asked for the function as it is written: not for its transforms in stages
        graph = traced.whole or traced.graph
        whose = installed_partitioner() if partitioner is None else partitioner
        asked = (graph, self._annotations, whose)
        told = ask(*asked, () if apart else None)
        found = compare(self._trials, told, partial(ask, *asked, ()))
        self._told[whose] = found.xla_wire_bytes
        return found

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
        from shardalg.costs.topology import machine
        from shardalg.plan.own_jit import xla_prices

        told = self.compare_xla(partitioner).told
        return xla_prices(told.collectives, told.mesh, machine(hardware)).df

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
        if not self.is_symbolic:
            return {}
        from shardalg.sizes.symbolic.symbols import named_sizes

        return named_sizes(self._symbols, self.mesh)

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
        from shardalg.plan import plan_conditions

        if self._symbolised is None:
            return plan_conditions.NO_CONDITIONS
        return plan_conditions.conditions(self._symbolised, self._guards, self.options)

    @property
    def unguarded(self) -> str:
        """Return why `at` and `holds` know other sizes only by planning there; "" if not so.

        If a parameter of an operator is another one in a second trace and has no formula, the text
        names the operator, the parameter and the source line. Sizes of axes are known all the same.
        """
        return self._recorded[1]

    def _guarded(self, point: Mapping[str, int]) -> bool:
        return self._guards is not None and self._guards.hold(point)

    @property
    def _guards(self) -> Guards | None:
        """What planning asked of the sizes; None where that is not known."""
        return self._recorded[0]

    @cached_property
    def _recorded(self) -> tuple[Guards | None, str]:
        from shardalg.planner.guards import guards

        return guards(self._stages, self.options, lambda: self._symbolised)

    def _hints(self, names: Iterable[str]) -> str:
        return ", ".join(f"{name}={self.sizes[name].hint}" for name in names)

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
        from shardalg.costs.analyses.sweep import Sweep
        from shardalg.sizes.symbolic.symbols import points_of

        known, swept = points_of(self.sizes, sizes)
        chip = machine(hardware)
        key = (chip, overlap, tuple(known.items()))
        if key not in self._sweepers:
            while len(self._sweepers) >= _KEPT:
                self._sweepers.pop(next(iter(self._sweepers)))
            self._sweepers[key] = self._sweeper(chip, overlap, known)
        axes = [name for name in self.mesh.axis_names if name in swept]
        devices = "*".join(self.mesh.axis_names) if axes else self.mesh.size
        on = machine_text(hardware, devices)
        seconds, peak, holds, doubtful = self._sweepers[key].at(swept)
        return Sweep(chip.chip, swept, seconds, peak, holds, doubtful, on)

    @cached_property
    def _sweepers(self) -> dict[Any, Sweeper]:
        return {}

    def _sweeper(self, chip: Hardware | Topology, overlap: str, known: dict[str, int]) -> Sweeper:
        """The formulas and facts of a chip, with the sizes that are not swept in them."""
        from shardalg.costs.analyses.sweep import Sweeper
        from shardalg.sizes.facts import NONZERO, Fact
        from shardalg.sizes.formula import Formula

        cost = self.cost(chip, overlap=overlap)
        totals = cost.totals
        peaks = totals.peaks() if totals.peaks else (Formula.of(totals.peak_bytes),)
        guards = self._guards
        if guards is None:
            asked: Any = ((Fact(Formula({}), NONZERO),), ())
        else:
            # What is written over what in memory decides nothing else.
            own = guards.whole.facts
            called = [fact for fact in guards.decisive if fact not in own]
            asked = ([*own], [*called, *guards.traced])
        return Sweeper(cost._time(totals), peaks, asked, known)

    def verify(self, program: SpmdProgram | None = None) -> Report:
        """Every claim on which the program's equality with the function rests, with its proof.

        `.ok` only if each claim is proved or trusted.

        Args:
          program: another program for the same function, such as `plan.program` with a change.
        """
        return self._report if program is None else self._judged(program)

    @cached_property
    def _report(self) -> Report:
        return self._judged(self.program)

    def _judged(self, program: SpmdProgram) -> Report:
        from shardalg.verify.verify import verify

        switches = self.options.switches
        report = verify(
            self._sharded,
            program,
            finite=switches.finite_sums,
            finite_in_loops=switches.defer_in_loops,
        )
        return replace(report, hints=self._hints(self.sizes))

    def _verified(self) -> str:
        """How far the plan was verified, in words."""
        return self._report.summary() if "_report" in self.__dict__ else "not verified"

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
        from shardalg.verify.report import refuse_refuted

        traced = self._bound(fn, args)
        refuse_refuted(self.verify())
        made = self._executable(traced, devices)
        hints = self._hints(self.sizes)
        at = f", at the hints {hints}" if hints else ""
        made = replace(made, verified=self._verified() + at)
        return made if traced.call is None else replace(made, call=traced.call)

    def compare_runs(self, args: Sequence[Any], expected: Any, *, repeats: int = 20) -> Comparison:
        """The plan and XLA's own partitioning of the function, run in turns beside one device.

        Args:
          args: the arguments, in numbers.
          expected: what the function gives for them on one device, such as `jax.jit(fn)(*args)`.
          repeats: timed runs of each.

        Raises:
          LoweringError: a loaded plan, too few devices, a refuted claim.
        """
        from shardalg.lower.three_ways import compare

        lowered = self.lower()
        return compare(lowered, args, expected, repeats=repeats, verified=self._verified())

    def one_shard(self, device: Any = None) -> OneShard:
        """What one device does, on one device, to measure compute and memory of a large plan.

        Collectives become local stand-ins of the same shapes: `measure()` gives times and memory,
        and there is no result. `device`: None takes the first.

        Raises:
          LoweringError: a loaded plan, a `while` that ends by its values, a refuted claim.
        """
        from shardalg.lower.axes import first_device
        from shardalg.lower.isolated import OneShard
        from shardalg.verify.report import refuse_refuted

        refuse_refuted(self.verify())
        chosen = first_device() if device is None else device
        traced = self._bound(None, None)
        return OneShard(self._executable(traced, None, chosen.platform), chosen)

    def _executable(
        self, traced: Traced, devices: Sequence[Any] | None, platform: str | None = None
    ) -> Lowered:
        """The program on devices; with a platform, on none of that one."""
        from shardalg.algebra.jax_meshes import mesh_to_abstract
        from shardalg.lower import lower
        from shardalg.show.timeline import Timeline

        pairs = zip(traced.graph.sites, self._annotations.sites, strict=True)
        sites = {site.node: sharding for site, sharding in pairs if sharding is not None}
        mesh = None if platform is None else mesh_to_abstract(self.mesh)
        made = lower(
            self.program, traced.graph, devices, donate=traced.donated, mesh=mesh, sites=sites
        )
        return replace(made, platform=platform, drawn=partial(Timeline, of="measured"))

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
        from shardalg.costs.topology import Topology
        from shardalg.planner.stages import priced
        from shardalg.show.tables import collectives
        from shardalg.xla.aot import target_of
        from shardalg.xla.aot_answer import Figures, beside_compiler

        where = Topology.parse(topology) if isinstance(topology, str) else topology
        target = target_of(where, self.mesh)
        traced = self._bound(fn, args)
        cost = priced(traced, self.program, where.hardware)
        sent = collectives(self.program, traced.graph)
        planned = Figures.of(self.program, cost, sent, target.platform)
        return beside_compiler(self._executable(traced, None, target.platform), planned, target)

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
        if self.graph.trees is None:
            raise LoweringError(
                "a loaded plan has no pytrees. Plan the function again, or read plan.shardings()."
            )
        made = self._executable(self._traced, devices)
        outer = ([b.outer for b in side] for side in (made.arguments, made.results))
        pairs = zip(self.graph.trees, outer, strict=True)
        entering, leaving = (tree.unflatten(leaves) for tree, leaves in pairs)
        return entering, leaving

    def jit_kwargs(self, devices: Sequence[Any] | None = None) -> dict[str, Any]:
        """What `jax.jit` of the function is to be given to have this plan's layouts at its border.

        `in_shardings`, `out_shardings` and `donate_argnums`: `jax.jit(fn, **plan.jit_kwargs())`.
        Collectives inside are then XLA's own; `lower` runs the plan's.

        Raises:
          LoweringError: as of `named_shardings`.
        """
        entering, leaving = self.named_shardings(devices)
        donated, last, given = set(self._traced.donated), 0, []
        for number, argument in enumerate(self.graph.trees[0].children()):
            first, last = last, last + argument.num_leaves
            if last > first and donated.issuperset(range(first, last)):
                given.append(number)
        return {
            "in_shardings": entering,
            "out_shardings": leaving,
            "donate_argnums": tuple(given),
        }

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
        from shardalg.xla.dump import shardy_text

        graph, given = self.graph, self._annotations
        layouts = self._sharded.shardings
        completed = replace(
            given,
            arguments=tuple(layouts[v] for v in graph.arguments),
            results=tuple(layouts[v] for v in graph.results),
        )
        return shardy_text(self._bound(None, None).graph, completed)

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, atomically; `load_plan` reads it.

        The file holds the inputs of planning (the graph, the annotations and the options), the
        versions that the plan was made with, and a summary: a digest of the program, shardings,
        collectives by module, the peak of memory by class, and seconds of a step. The chip's
        figures are not in it, nor the partitioner that policy "jit" asks the installed jax for.
        """
        plan_file.write(path, self._file)

    @property
    def _file(self) -> plan_file.PlanFile:
        """Return the content of the plan's file."""
        from shardalg.plan.explain.plan_summary import bare_text, summary

        content = plan_file.PlanFile(self._inputs(), plan_file.versions(self.options))
        made = summary(self._stages, content.sealed(bare_text(self._stages)))
        return replace(content, summary=made.to_json())

    def _inputs(self) -> dict[str, Any]:
        """Return the inputs of planning, as plain data."""
        return plan_file.inputs(self._traced, self._annotations, self.options)


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
        raise StrategyError(_unknown(unknown))
    if strategy is None:
        # None until the arguments are read: then it is the mesh that they bring.
        strategy = Strategy(mesh, in_shardings, out_shardings)
    elif not (mesh is None and in_shardings is None and out_shardings is None):
        raise StrategyError(
            "plan() takes a strategy, or mesh and shardings, not both: put them into the Strategy."
        )
    strategy, options = strategy_from(strategy), options_from(options or Options())
    try:
        return _traced_and_planned(
            fn, (args, kwargs or {}), roles, donate_argnums, strategy, options
        )
    except ShardalgError:
        raise
    except Exception as error:
        raise passed_on(fn, error)  # noqa: B904  # the same exception, with the user's frames


def _traced_and_planned(
    fn: Callable[..., Any],
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    roles: Any,
    donate_argnums: Any,
    strategy: Strategy,
    options: Options,
) -> Plan:
    """Open the call with its arguments, trace it, and plan it."""
    call = opened(fn, *given)
    given = call.given or given
    if donate_argnums is not None:
        call = replace(call, donated=call.donates(donate_argnums))
    strategy, explicit = placed(call, strategy, given)
    traced = trace_call(call, strategy.mesh.shape, given=given, roles=roles, explicit=explicit)
    if roles is None and any(traced.argument_roles) and options.keep_gathers is None:
        # What the trees say names bytes; what stays for the backward pass is the user's to say.
        options = replace(options, keep_gathers=True)
    return _planned(replace(traced, first_mesh=strategy.mesh), strategy, options)


def _unknown(given: Mapping[str, Any]) -> str:
    """What to do about keywords that `plan` does not have."""
    known = [name for name in signature(plan).parameters if name not in ("fn", "args", "unknown")]
    near = [(name, get_close_matches(name, known, 1)) for name in given]
    said = [f"{name}={given[name]!r:.40}" + (f" (near {n[0]})" if n else "") for name, n in near]
    return (
        f"plan() has no keyword {', '.join(said)}: its keywords are {', '.join(known)}. Keyword "
        "arguments of the function are given as kwargs={'name': value}."
    )


def _planned(traced: Traced, strategy: Strategy, options: Options) -> Plan:
    flat = traced.with_layouts(strategy)
    annotations = with_own(resolve(traced.graph, flat, traced.first_mesh), traced)
    return from_annotations(traced, annotations, options)


def from_annotations(traced: Traced, annotations: Annotations, options: Options) -> Plan:
    """Complete, partition and check: the one way in which a Plan comes about."""
    return _checked(planned(traced, annotations, options), options)


def _checked(stages: Stages, options: Options) -> Plan:
    from shardalg.plan.explain.warnings import roundabout

    made = Plan(options.where(named=stages.is_named), lambda: stages)
    fallbacks = roundabout.warnings(made.program, made.graph) if options.strict else ()
    if len(fallbacks):
        raise StrategyError(
            f"strict=True, and operators fall back:\n{fallbacks}\nAdd a row, or allow them."
        )
    return made


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
    from shardalg.plan import plan_file

    return _loaded(plan_file.read(path), path)


def _from_bytes(content: bytes) -> Plan:
    """The plan of a file's content."""
    from shardalg.plan import plan_file

    return _loaded(plan_file.parsed(content.decode(), "a pickled plan"), "a pickled plan")


def _loaded(saved: PlanFile, path: object) -> Plan:
    """Plan again, and compare; `path` names the file in errors and warnings."""
    from shardalg.plan import plan_file
    from shardalg.plan.explain.plan_summary import read_summary, since_saved

    try:
        loaded = from_annotations(*plan_file.read_inputs(saved))
        told = None if saved.summary is None else read_summary(saved.summary)
    except Exception as error:  # a stage takes for granted what tracing guarantees
        raise PlanFileError(
            f"{path}: its content is no plan ({type(error).__name__}: {error}). Save it again."
        ) from (None if isinstance(error, ShardalgError) else error)
    here = plan_file.versions(loaded.options)
    found = since_saved(saved, told, loaded._stages, here)
    if found and saved.versions == here:
        raise PlanFileError(
            f"{path} was edited, or saved by other code of this version: its inputs give another "
            f"plan than its summary says: {'; '.join(found)}. Plan the function again."
        )
    if found:
        warnings.warn(f"{path}: {'; '.join(found)}. Save the plan again.", stacklevel=3)
    return replace(loaded, _since_saved=found)
