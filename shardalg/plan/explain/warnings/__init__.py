"""The rows of `plan.warnings()`, a file per kind of row, each with its cost and a remedy.

A remedy that names an annotation was planned before it is printed. The files: operators without a
row and effects that are left out (`roundabout`), axes along which devices compute the same
(`idle`), operators that every device computes whole (`whole`), padding and parameters that every
device holds (`held`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan
    from shardalg.tables import DataFrame


def warnings_frame(plan: Plan) -> DataFrame:
    """Return the warnings of a plan with the wire bytes of one execution; see `Plan.warnings`."""
    table = plan._warnings_table
    single: list[Any] = []
    for total, executions in zip(table["wire_bytes_per_step"], table["executions"], strict=True):
        # A loop that never runs sends nothing: dividing by 1 avoids a division by 0.
        times = max(executions, 1)
        # Bytes stay whole numbers if they can, so that they are printed without a point.
        single.append(total / times if total % times else total // times)
    return table.whole_df.assign(wire_bytes=single)


def warnings_table(plan: Plan) -> Table:
    """Return the warnings of a plan: first the differences from its file, last `jax.jit`.

    A row has the operator, its source line, executions, wire bytes, the warning, a remedy, and the
    redundant flops.
    """
    from shardalg.plan.explain.warnings import roundabout
    from shardalg.plan.explain.warnings.held import held_rows
    from shardalg.plan.explain.warnings.idle import idle_rows, stack_rows
    from shardalg.plan.explain.warnings.whole import whole_rows

    program, graph, trials = plan.program, plan.graph, plan._trials
    saved = [("plan file", "", 1, 0, text, "save the plan again", 0) for text in plan._since_saved]
    fallbacks = roundabout.warnings(program, graph)
    quiet = (*roundabout.unread(graph).rows, *roundabout.left_out(graph).rows)
    loop_rows = roundabout.unknown_trips(program, graph).rows
    jit_rows = plan._own_jit.warnings().rows
    memory_rows = held_rows(trials)
    idle_and_whole = (*idle_rows(trials), *whole_rows(trials))
    stacked = stack_rows(trials)
    # The order in print: lost or useless work comes first, the comparison with `jax.jit` last.
    rows = (
        *saved,
        *fallbacks.rows,
        *quiet,
        *loop_rows,
        *idle_and_whole,
        *memory_rows,
        *stacked,
        *jit_rows,
    )
    return Table(fallbacks.columns, rows)
