"""What a train step sends and holds, one row per plan: for the levels of weight-update sharding."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from shardalg.io.table import Table
from shardalg.io.units import bytes_text
from shardalg.propagate.sharded import ShardedGraph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.plan.plan import Plan

SENT = ("all_reduce", "reduce_scatter", "all_gather")
HELD = ("parameters", "optimizer_state", "gradients")
COLUMNS = (
    "level", *(f"{kind}_wire_bytes" for kind in SENT), "wire_bytes",
    *(f"{name}_bytes" for name in HELD), "peak_memory_bytes",
)  # fmt: skip


def levels(plans: Mapping[Any, Plan]) -> Table:
    """Wire bytes per device and step by kind of collective, and what a device holds.

    `parameters_bytes` and `optimizer_state_bytes` are alive at the peak; `gradients_bytes` are the
    gradients, all of them at once, as the update reads them (site "gradients").

    Args:
      plans: what stands in the first column, to its plan.
    """
    return Table(COLUMNS, tuple((name, *_row(plan)) for name, plan in plans.items()))


def _row(plan: Plan) -> tuple[float, ...]:
    moved: Counter[str] = Counter()
    memory = plan.memory
    for row in plan._collectives_table:
        moved[row["kind"]] += row["wire_bytes_per_step"]
    sent = [moved[kind] for kind in SENT]
    held = [memory.by_class.get(name, 0) for name in HELD[:2]]
    return (*sent, sum(moved.values()), *held, _gradients(plan._sharded), memory.peak_bytes)


def _gradients(sharded: ShardedGraph) -> int:
    graph = sharded.graph
    sites = [graph.nodes[site.node] for site in graph.sites if site.name == "gradients"]
    values = [node.results[0] for node in sites]
    return sum(
        math.prod(sharded.shardings[v].shard_shape) * graph.values[v].type.itemsize for v in values
    )


def level_bars(table: Table) -> Figure:
    """Two panels: what a device holds of a training state, and what it sends, level by level."""
    from shardalg.io.drawing import Drawing
    from shardalg.report.figures import AXIS_COLORS, KIND_COLORS

    figure = Drawing(figsize=(9.0, 3.2), layout="constrained")
    held, sent = figure.subplots(1, 2)
    names = ["\n".join(wrap(str(level), 14)) for level in table["level"]]
    memory = {f"{name}_bytes": color for name, color in zip(HELD, AXIS_COLORS, strict=False)}
    wires = {f"{kind}_wire_bytes": KIND_COLORS[kind] for kind in SENT}
    for axes, columns, title in (
        (held, memory, "training state on a device"),
        (sent, wires, "sent by a device in a step"),
    ):
        bottom = [0.0] * len(table)
        for column, color in columns.items():
            label = column.removesuffix("_wire_bytes").removesuffix("_bytes").replace("_", " ")
            axes.bar(names, table[column], bottom=bottom, color=color, label=label)
            bottom = [b + n for b, n in zip(bottom, table[column], strict=True)]
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
    return figure
