"""What a plan says of communication: collectives, what is gathered twice, formatting."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from shardalg.io.table import Table
from shardalg.plan.planned import Planned
from shardalg.planning.stages import priced

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware
    from shardalg.io.table import DataFrame


class CollectiveAnswers(Planned):
    """What is sent, and what is done around it."""

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
        from shardalg.report import tables
        from shardalg.report.modules.by_module import check_by
        from shardalg.report.uneven_results import with_borders

        if check_by(by):
            return tables.collectives_by_module(self._collectives_table).df
        found = self._collectives_table
        made = found if self._stages.is_named else with_borders(found, self.program, self.graph)
        return made.df

    @cached_property
    def _collectives_table(self) -> Table:
        """The table behind `collectives()`: what the program itself sends."""
        from shardalg.report import tables

        return tables.collectives(self.program, self.graph, self._symbolised)

    def gathers(self) -> DataFrame:
        """What is brought into a layout more than once, and what it would take to do it once.

        A row per copy that the forward and the backward pass both make (`keep_gathers=True` keeps
        it and what one pass alone makes, which the other may then choose to read; a number keeps as
        many rows as fit in so many bytes), and per constant that a loop brings into its layout in
        every trip (`hoist_gathers=True`). Columns: value, sharding, option, times,
        wire_bytes (of one), saved_wire_bytes (a step), held_bytes (longer, on a device).
        """
        from shardalg.explain.switches import gather_table

        return gather_table(self._sharded, self._traced.roles, self.options).df

    def formatting(self, hardware: str | Hardware | None = None) -> DataFrame:
        """Slices, pads, masks and halos that partitioning adds, and their share of the program.

        A row per kind, the last one for all. Columns: instruction, executions, memory_bytes (from
        and to memory, of what nothing fuses), wire_bytes_per_step (of halos and permutes),
        memory_share and wire_share (of the whole program's); on a hardware memory_s, and step_share
        of the step.
        Sizes that have names are at their hints.
        """
        from shardalg.report.formatting import formatting

        cost = None if hardware is None else priced(self._traced, self.program, hardware)
        return formatting(self.program, self.graph, cost).df
