"""What a plan says of its reasons: why and why not, warnings, and what would change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from shardalg.graph.tracing.installed import installed_partitioner
from shardalg.io.table import Table
from shardalg.plan.ask_collectives import CollectiveAnswers

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology
    from shardalg.explain.collective import CollectiveExplanation
    from shardalg.explain.explained import ValueExplanation
    from shardalg.explain.trials import Trials
    from shardalg.explain.why_not import WhyNot
    from shardalg.io.table import DataFrame
    from shardalg.xla.compare import BesideXla
    from shardalg.xla.own_jit import OwnJit


class WhyAnswers(CollectiveAnswers):
    """Why it is so, and what another choice is worth."""

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
        from shardalg.explain.collective import explain_collective
        from shardalg.explain.explained import explanation

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
        from shardalg.explain.why_not import why_not

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
        from shardalg.explain.warnings import roundabout
        from shardalg.explain.warnings.gathered_layers import stack_rows
        from shardalg.explain.warnings.held import held_rows
        from shardalg.explain.warnings.idle import idle_rows
        from shardalg.explain.warnings.whole import whole_rows

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
        from shardalg.xla.own_jit import OwnJit

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
        from shardalg.explain.switches import switch_table

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
        from shardalg.xla.compare import compare
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
        from shardalg.xla.priced import xla_prices

        told = self.compare_xla(partitioner).told
        return xla_prices(told.collectives, told.mesh, machine(hardware)).df

    @cached_property
    def _trials(self) -> Trials:
        from shardalg.explain.trials import Trials

        return Trials(self._stages, self.options)


def _per_execution(total: Any, executions: int) -> Any:
    """Return bytes of one execution: whole where they divide."""
    executions = max(executions, 1)
    return total / executions if total % executions else total // executions
