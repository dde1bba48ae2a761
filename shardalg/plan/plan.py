"""The Plan: one JAX function on one mesh under one strategy, and all that can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import LoweringError, PlanFileError, ShardalgError, StrategyError
from shardalg.explain import decisions, warned
from shardalg.explain.collective import CollectiveExplanation, explain_collective
from shardalg.explain.difference import PlanDifference, difference
from shardalg.explain.explained import ValueExplanation, explanation
from shardalg.explain.idle import idle_rows
from shardalg.explain.listing import program_listing
from shardalg.explain.switches import gather_table, switch_table
from shardalg.explain.trials import Trials
from shardalg.explain.why_not import WhyNot, why_not
from shardalg.graph.ir import Graph
from shardalg.io.table import Table
from shardalg.planning import plan_file
from shardalg.planning.stages import Stages, planned, planned_at, priced
from shardalg.planning.traced import Traced, own_mesh, trace_arguments, with_own
from shardalg.propagate.options import Options, options_from
from shardalg.propagate.sharded import ShardedGraph
from shardalg.propagate.strategy import Strategy, resolve, strategy_from
from shardalg.report import tables
from shardalg.report.formatting import formatting
from shardalg.report.html import Listing
from shardalg.report.uneven_results import with_borders
from shardalg.spmd.program import SpmdProgram

if TYPE_CHECKING:
    from shardalg.algebra.dims import Size
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.memory import Liveness
    from shardalg.costs.step_time import Cost
    from shardalg.costs.symbolic import Symbolised
    from shardalg.io.table import DataFrame
    from shardalg.lower import Lowered
    from shardalg.propagate.strategy import Annotations
    from shardalg.sizes.decided import Guards
    from shardalg.symbolic.symbols import Symbols
    from shardalg.verify.report import Report
    from shardalg.xla.compare import BesideXla


@dataclass(frozen=True, eq=False)
class Plan:
    """A planned function: completed shardings, the program that every device runs, and its tables.

    Made by `plan` and `load_plan`; `replan` makes another one from the same trace. A plan with
    named sizes is made at their hints, and shardings, program, `verify`, `simulate` and `lower` are
    those of the hints; `at` makes the plan at other sizes.

    Attributes:
      changes: of a plan made by `at`, the decisions that differ from those at the hints.
    """

    options: Options
    _stages: Callable[[], Stages]
    changes: Table = decisions.NO_CHANGES

    @cached_property
    def stages(self) -> Stages:
        """What planning made of the function; of a plan by `at`, made when first asked for."""
        return self._stages()

    @property
    def traced(self) -> Traced:
        """The function as it was traced, and what stands at its border."""
        return self.stages.traced

    @property
    def annotations(self) -> Annotations:
        """What was asked for."""
        return self.stages.annotations

    @property
    def sharded(self) -> ShardedGraph:
        """The completed layouts."""
        return self.stages.sharded

    @property
    def program(self) -> SpmdProgram:
        """What every device runs."""
        return self.stages.program

    @property
    def mesh(self) -> Mesh:
        """The mesh that the plan is for."""
        return self.annotations.mesh

    @property
    def graph(self) -> Graph:
        """The traced function."""
        return self.traced.graph

    def replan(self, strategy: Strategy, *, options: Options | None = None) -> Plan:
        """The same trace under another mesh or strategy.

        >>> import jax, shardalg as sa
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> from jax.sharding import PartitionSpec as P
        >>> first = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"x": 4}), in_shardings=(P("x"),))
        >>> first.collectives()["kind"].tolist()
        ['all_reduce']
        >>> first.replan(sa.Strategy(first.mesh, in_shardings=(P(None, "x"),))).collectives().empty
        True
        """
        return _planned(self.traced, strategy_from(strategy), options_from(options or self.options))

    @property
    def is_symbolic(self) -> bool:
        """Whether sizes have names, so that prices are formulas."""
        return self.stages.is_named

    @cached_property
    def symbols(self) -> Symbols:
        """The formulas of the function's sizes; numbers where no dimension has a name."""
        return self.stages.symbols

    @cached_property
    def sizes(self) -> dict[str, Size]:
        """Every named size, of dimensions and axes, with its hint; empty in a plan in numbers."""
        if not self.is_symbolic:
            return {}
        from shardalg.symbolic.symbols import named_sizes

        return named_sizes(self.symbols, self.mesh)

    @property
    def constants(self) -> DataFrame:
        """Sizes that no argument reaches: they stay numbers in every formula.

        Columns: size, source, value (the first that has it), varies (whether the second trace had
        another size there, so that formulas hold at the hints' size alone).
        """
        return self.symbols.constants.df

    @property
    def conditions(self) -> DataFrame:
        """What ties the formulas to the hints, to read: where one fails, `at` gives another plan.

        A choice is held against what its operator could do instead, along the paths of the hints,
        so that choices may change before their condition fails; `holds` asks everything.

        Columns: kind, condition, margin, where, source, decides, rests_on (earlier operators whose
        choices decide which copies are at hand: where one is another choice, the condition says
        nothing). Kinds: "choice" (of an operator, the nearest at the hints first; `margin` is what
        it saves of the dearer's bytes or devices), "divides" (an even or an uneven split), "part"
        (an axis of which a collective uses a part, held at its hint), "peak" (of memory, without a
        margin).
        """
        return self.conditions_table.df

    @cached_property
    def conditions_table(self) -> Table:
        """The table behind `conditions`; empty in a plan in numbers."""
        if self.symbolised is None:
            return decisions.NO_CONDITIONS
        from shardalg.partition.alternatives import decisions as choices

        found = choices(self.sharded, self.traced.roles, self.options, named=self.symbolised)
        return decisions.conditions(self.symbolised, found, self.memory)

    @property
    def memory(self) -> Liveness:
        """What a device holds at the peak; of a plan with named sizes, at the hints."""
        return self.stages.memory

    def at(self, **sizes: int) -> Plan:
        """The same plan in numbers, where these names have these sizes; others have their hints.

        Everything that planning asked of the sizes is checked there, which takes a millisecond
        (after the first time, when all of it is found out). If it holds, no decision is another
        one: `changes` is empty, the formulas hold, and the function is traced and planned there
        when something but the cost is asked of the plan that comes back. Else that is done at once,
        and `changes` lists the decisions that are others than at the hints, and where the peak of
        memory stands elsewhere.

        Raises:
          SymbolError: a name that the plan does not have, a size below 1, a function that is
            another program there (found when it is traced). StrategyError: `strict`, and a decision
            changed.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> B, M = sa.dims("B M", hint=(64, 16))
        >>> x = jax.ShapeDtypeStruct((B, M), "float32")
        >>> mesh = sa.Mesh({"X": 4}, symbolic=True)
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=mesh, in_shardings=(P("X"),))
        >>> plan.at(B=32, X=2)
        Plan on Mesh(X=2) for tpu_v3: 1 node, 1 collective, 64 wire bytes per device and step, ...
        """
        from shardalg.symbolic.symbols import point_of

        point = point_of(self.sizes, sizes)
        if self._guarded(point):
            return Plan(self.options, lambda: planned_at(self.stages, point, self.options)[0])
        here = self._planned_at(point)
        found = here.changes
        decided = [row for row in found if row["kind"] != "peak"]
        if self.options.strict and decided:
            raise StrategyError(
                f"strict=True, and {len(decided)} decisions at {point} are others than at the "
                f"hints:\n{found}\nPlan at these sizes, or allow it."
            )
        return here

    def _planned_at(self, point: Mapping[str, int]) -> Plan:
        """The plan there, with its changes."""
        stages, constant = planned_at(self.stages, point, self.options)
        here = _checked(stages, self.options)
        found = decisions.changes(self, here, point=point, constant=constant)
        return replace(here, changes=found)

    def holds(self, **sizes: int) -> bool:
        """Whether no decision is another one where these names have these sizes, as far as known.

        True is certain, but for what Python code makes of a size: another program, or two literals
        that become one value. False may be a question that planning asked on the way to the same
        plan; `at` tells, and `unguarded` says why nothing is known. A plan that was chosen by cost
        compares more than is kept: it is planned there, and both plans are compared.

        Raises:
          SymbolError: a name that the plan does not have, a size below 1.
        """
        from shardalg.symbolic.symbols import point_of

        point = point_of(self.sizes, sizes)
        if self.options.policy == "cost":
            return not self._planned_at(point).changes.rows
        return self._guarded(point)

    def _guarded(self, point: Mapping[str, int]) -> bool:
        return self._guards is not None and self._guards.hold(point)

    @property
    def unguarded(self) -> str:
        """Why `at` and `holds` know other sizes only by planning there; "" where they know more."""
        return self._recorded[1]

    @property
    def _guards(self) -> Guards | None:
        """What planning asked of the sizes; None where that is not known."""
        return self._recorded[0]

    @cached_property
    def _recorded(self) -> tuple[Guards | None, str]:
        from shardalg.planning.guards import guards

        return guards(self.stages, self.options, lambda: self.symbolised)

    @property
    def named(self) -> Symbolised | None:
        """The same as `symbolised`; None also where some size has no formula."""
        from shardalg.sizes.formula import FormulaError

        try:
            return self.symbolised
        except FormulaError:
            return None

    def shardings(self) -> DataFrame:
        """Every value: name, shape, completed sharding, local shape, and why it is so."""
        return tables.shardings(self.sharded).df

    def collectives(self) -> DataFrame:
        """Every collective, in order of execution; bytes are per device and execution.

        `count` includes trip counts: a step's wire bytes are the sum of `wire_bytes * count`. Of a
        plan with named sizes, group sizes, counts and bytes are sympy expressions in them. Rows of
        kind "border" come last (not with named sizes): uneven results, which a call of the lowered
        program hands out on the longest even prefix of their axes, and `padded` as they are.
        """
        found = self.collectives_table
        made = found if self.is_symbolic else with_borders(found, self.program, self.graph)
        return made.df

    @cached_property
    def collectives_table(self) -> Table:
        """The table behind `collectives()`: what the program itself sends."""
        return tables.collectives(self.program, self.graph, self.symbolised)

    @cached_property
    def symbolised(self) -> Symbolised | None:
        """The program with a formula for each of its sizes; None in a plan in numbers."""
        if not self.is_symbolic:
            return None
        from shardalg.costs.symbolic import Sizes, symbolise

        return symbolise(self.program, self.graph, Sizes.of(self.symbols.lifted, self.mesh.sizes))

    def warnings(self) -> DataFrame:
        """What costs more than it needs to (operators without a row, idle axes), or is left out.

        An operator without a row, or with a loop that no emission splits, sends `wire_bytes`. A
        product that is executed with an axis on none of its loops repeats `redundant_flops` on
        every device; `remedy` is then the annotation that uses the axis, found by planning again.
        Both per device and step. An effect without a result (a print, a callback) is left out of
        the program, and named with its line.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 8), "float32")
        >>> plan = sa.plan(lambda x, w: x @ w, x, x, mesh=sa.Mesh({"X": 2, "Y": 2}),
        ...                in_shardings=(P("X"), P()))
        >>> plan.warnings()[["warning", "redundant_flops"]].values.tolist()
        [['idle axis Y: 2 devices along it compute the same', 256]]
        """
        return self.warnings_table.df

    @cached_property
    def warnings_table(self) -> Table:
        """The table behind `warnings()`."""
        fallbacks = warned.warnings(self.program, self.graph)
        quiet = warned.left_out(self.graph)
        return Table(fallbacks.columns, (*fallbacks.rows, *quiet.rows, *idle_rows(self._trials)))

    def gathers(self) -> DataFrame:
        """What is brought into a layout more than once, and what it would take to do it once.

        A row per copy that the forward and the backward pass both make (`keep_gathers=True` keeps
        it and what one pass alone makes, which the other may then choose to read; a number keeps as
        many rows as fit in so many bytes), and per constant that a loop brings into its layout in
        every trip (`hoist_gathers=True`). Columns: value, sharding, option, times,
        wire_bytes (of one), saved_wire_bytes (a step), held_bytes (longer, on a device).
        """
        return gather_table(self.sharded, self.traced.roles, self.options).df

    def formatting(self, hardware: str | Hardware | None = None) -> DataFrame:
        """Slices, pads, masks and halos that partitioning adds, and their share of the program.

        A row per kind, the last one for all. Columns: instruction, count, memory_bytes (from and to
        memory, of what nothing fuses), wire_bytes (of halos and permutes), memory_share and
        wire_share (of the whole program's); on a hardware memory_s, and step_share of the step.
        Sizes that have names are at their hints.
        """
        cost = None if hardware is None else priced(self.traced, self.program, hardware)
        return formatting(self.program, self.graph, cost).df

    def switches(self) -> DataFrame:
        """What each switch of `Options` is worth here, one flipped at a time, by planning again.

        Columns: options, collectives, wire_bytes, peak_memory_bytes, local_instructions (those that
        send nothing), formatting_bytes (that formatting moves from and to memory).
        """
        return switch_table(self.stages, self.options).df

    def explain(self, what: object) -> ValueExplanation | CollectiveExplanation:
        """Why a value is sharded as it is, or why a collective is there.

        Of a value: per axis, the steps that brought it, back to the annotations. Of a collective:
        the layout that the value has and the one that is needed, the annotations behind both, and
        the smallest change of one annotation (else of two, or of as many as it takes) that removes
        it, by planning again.

        Args:
          what: a name that `shardings()` prints (`params['w']`, a site's name,
            `dot_general:3@model.py:41`), or a row of `collectives()`, its number, or an instruction
            of `program`.

        Raises:
          StrategyError: no value has that name, or there is no such collective.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
        >>> print(plan.explain(0).change)
        argument x as [None, None] instead of [X, None]
        """
        if isinstance(what, str):
            return explanation(self.sharded, what)
        return explain_collective(self._trials, self.collectives_table, what)

    def why_not(self, value: str, spec: object) -> WhyNot:
        """Why a value does not have a layout, and what would change if it were annotated so.

        Args:
          spec: as `in_shardings` takes it.

        Raises:
          StrategyError: no value has that name, or the spec does not fit it.
        """
        return why_not(self._trials, value, spec)

    def diff(self, other: Plan) -> PlanDifference:
        """Values, collectives, bytes and memory in which another plan differs.

        Raises:
          StrategyError: `other` is no plan.
        """
        if not isinstance(other, Plan):
            raise StrategyError(f"a plan differs from another Plan, got {other!r:.80}.")
        return difference(self, other)

    def compare_xla(
        self,
        partitioner: str | None = None,
        *,
        fn: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
    ) -> BesideXla:
        """XLA's layouts and collectives for the same function and annotations, beside the plan's.

        XLA compiles for CPU devices, in a process of its own where this one has too few.

        Args:
          partitioner: "gspmd" or "shardy"; None: the one that the plan's policy follows.
          fn, args: of a loaded plan, as `lower` takes them.

        Raises:
          LoweringError: this jax lacks the partitioner, XLA ends without an answer, or one device
            leaves nothing to compare.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> print(plan.compare_xla("shardy").kinds)
        kind        axes  count  xla_count  wire_bytes  xla_wire_bytes
        all_reduce  X         1          1          64              64
        all                   1          1          64              64
        """
        from shardalg.xla.compare import compare
        from shardalg.xla.dump import ask

        graph = self._bound(fn, args).graph
        policy = self.options.completing.policy if partitioner is None else partitioner
        asked = (graph, self.annotations, policy)
        return compare(self._trials, ask(*asked), partial(ask, *asked, ()))

    @cached_property
    def _trials(self) -> Trials:
        return Trials(self.stages, self.options)

    def verify(self) -> Report:
        """Every claim on which the program's equality with the function rests, with its proof.

        `.ok` only if each claim is proved or trusted.
        """
        return self._report

    @cached_property
    def _report(self) -> Report:
        from shardalg.verify.verify import verify

        report = verify(self.sharded, self.program, finite=self.options.switches.finite_sums)
        return replace(report, hints=self._hints(self.sizes))

    def cost(self, hardware: str | Hardware) -> Cost:
        """Step time, communication, peak memory and flops on a chip.

        Numbers; of a plan with named sizes, sympy expressions in them.
        """
        return priced(self.traced, self.symbolised or self.program, hardware)

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
        from shardalg.lower import lower
        from shardalg.verify.report import refuse_refuted

        traced = self._bound(fn, args)
        refuse_refuted(self.verify())
        sites = {
            site.node: sharding
            for site, sharding in zip(traced.graph.sites, self.annotations.sites, strict=True)
            if sharding is not None
        }
        made = lower(self.program, traced.graph, devices, donate=traced.donated, sites=sites)
        hints = self._hints(self.sizes)
        at = f", at the hints {hints}" if hints else ""
        return replace(made, verified=self._verified() + at)

    def _bound(self, fn: Callable[..., Any] | None, args: Sequence[Any] | None) -> Traced:
        if self.traced.fn is not None and fn is None:
            return self.traced
        if fn is None:
            raise LoweringError(
                "a loaded plan has no function to run: pass it, as plan.lower(fn=train_step)."
            )
        return self.traced.bound(fn, args, self.mesh.shape)

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, atomically; `load_plan` reads it.

        The file holds the graph, the annotations and the options; the rest is derived again.
        """
        plan_file.write(path, self._content())

    def _content(self) -> dict[str, Any]:
        return plan_file.content(self.traced, self.annotations, self.options, text=self.text())

    def __reduce__(self) -> tuple[Callable[[bytes], Plan], tuple[bytes]]:
        """Pickled, a plan is its file: it comes back as `load_plan` gives it."""
        return _from_bytes, (plan_file.to_bytes(self.save),)

    def __deepcopy__(self, memo: object = None) -> Plan:
        """A plan never changes: its copy is itself."""
        return self

    __copy__ = __deepcopy__

    def text(self) -> str:
        """The program with source lines."""
        return self.program.text(self.graph)

    def listing(self) -> Listing:
        """The same for a notebook, where pointing at a value shows the chain behind its layout."""
        return program_listing(self.program, self.sharded)

    def _verified(self) -> str:
        """How far the plan was verified, in words."""
        return self._report.summary() if "_report" in self.__dict__ else "not verified"

    def _hints(self, names: Iterable[str]) -> str:
        return ", ".join(f"{name}={self.sizes[name].hint}" for name in names)

    def __repr__(self) -> str:
        table = tables.collectives(self.program, self.graph)
        moved = sum(row["count"] * row["wire_bytes"] for row in table)
        hints = self._hints(n for n in self.sizes if n not in self.mesh.axis_names)
        notes = [f"at the hints {hints}"] if hints else []
        notes += [f"{len(self.changes)} decisions changed"] if len(self.changes) else []
        sizes = ((len(self.graph.nodes), "node"), (len(table), "collective"))
        counts = ", ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in sizes)
        return (
            f"Plan on {self.mesh!r} for {self.options.hardware}: {counts}, "
            f"{moved:,.0f} wire bytes per device and step, {', '.join([self._verified(), *notes])}"
        )


def plan(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Mesh | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    roles: Any = None,
    donate_argnums: int | Sequence[int] = (),
    options: Options | None = None,
    strategy: Strategy | None = None,
) -> Plan:
    """Plan a JAX function on a mesh: complete its shardings and make every collective explicit.

    Args:
      fn: any function that jax can trace; a jitted one is unwrapped.
      args: arrays or `jax.ShapeDtypeStruct`s, any pytree. Only shapes and types are used; an
        argument that carries a `NamedSharding` keeps it where `in_shardings` says nothing.
      mesh: devices and axes; None takes the mesh of the arguments' own shardings.
      in_shardings: as in `jax.jit`, a prefix of the tuple of arguments: PartitionSpec, Sharding,
        NamedSharding, or None to let completion decide.
      out_shardings: the same for the result.
      roles: a prefix of "parameters", "optimizer_state" and "data".
      donate_argnums: positional arguments whose memory the step may reuse.
      options: the policy, the chip by whose rates it weighs (a TPU v3, whatever chip `cost` is
        asked of later), and switches.
      strategy: mesh, shardings and sites in one value, in place of the three above.

    Raises:
      TraceError: jax cannot trace the function. StrategyError: a specification does not fit.

    >>> import jax, shardalg as sa
    >>> from jax.sharding import PartitionSpec as P
    >>> x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((64, 16), (16, 64)))
    >>> specs = (P("X", "Y"), P("X", "Y"))
    >>> p = sa.plan(lambda x, w: x @ w, x, w, mesh=sa.Mesh({"X": 2, "Y": 4}), in_shardings=specs)
    >>> p.collectives()[["kind", "axes", "wire_bytes"]].values.tolist()
    [['all_gather', 'Y', 1536], ['all_gather', 'X', 512]]
    """
    if strategy is None:
        strategy = Strategy(mesh, in_shardings=in_shardings, out_shardings=out_shardings)
    elif not (mesh is None and in_shardings is None and out_shardings is None):
        raise StrategyError(
            "plan() takes a strategy, or mesh and shardings, not both: put them into the Strategy."
        )
    strategy, options = strategy_from(strategy), options_from(options or Options())
    axes = strategy.mesh.shape if strategy.mesh is not None else None
    traced = trace_arguments(fn, args, axes, border=(roles, donate_argnums))
    if strategy.mesh is None:
        strategy = replace(strategy, mesh=own_mesh(traced))
    return _planned(replace(traced, home=strategy.mesh), strategy, options)


def _planned(traced: Traced, strategy: Strategy, options: Options) -> Plan:
    annotations = with_own(resolve(traced.graph, strategy, traced.home), traced)
    return from_annotations(traced, annotations, options)


def from_annotations(traced: Traced, annotations: Annotations, options: Options) -> Plan:
    """Complete, partition and check: the one way in which a Plan comes about."""
    return _checked(planned(traced, annotations, options), options)


def _checked(stages: Stages, options: Options) -> Plan:
    made = Plan(options.where(named=stages.is_named), lambda: stages)
    fallbacks = warned.warnings(made.program, made.graph) if options.strict else ()
    if len(fallbacks):
        raise StrategyError(
            f"strict=True, and operators fall back:\n{fallbacks}\nAdd a row, or allow them."
        )
    return made


def load_plan(path: str | Path) -> Plan:
    """Read a plan that `Plan.save` wrote: it prints, costs and verifies.

    `lower` then needs the function again, and checks that its graph is the planned one. No text of
    the file is evaluated. Every value is checked by its type, every operator by JAX's own rules;
    the program is derived again, and the digest compared of all that was asked for and of it.

    Raises:
      PlanFileError: no such file, cut short, edited, of another schema, or made by a version of
        shardalg that plans otherwise.
    """
    content = plan_file.read(path)
    try:
        loaded = from_annotations(*plan_file.parts(content))
    except ShardalgError as error:
        raise PlanFileError(
            f"{path}: its content is no plan ({type(error).__name__}: {error}). Save it again."
        ) from None
    if plan_file.body(loaded._content()) != plan_file.body(content):
        raise PlanFileError(
            f"{path} was edited, or planned by a version of shardalg that decides otherwise: what "
            "it asks for gives another program here. Plan the function again."
        )
    return loaded


def _from_bytes(content: bytes) -> Plan:
    """The plan of a file's content."""
    return plan_file.from_bytes(load_plan, content)
