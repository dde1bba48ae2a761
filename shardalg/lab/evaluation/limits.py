"""The step times of the columns of Tables 2 and 3 by cause, and on other machines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.costs.compute import contracts, shaped_flops
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology
from shardalg.lab.evaluation.predicted_figure import BAND, COLORS, INK
from shardalg.lab.evaluation.prediction import PEAK, STEP, Compared
from shardalg.lab.evaluation.published import Column
from shardalg.lab.evaluation.two_dimensional import cost, model
from shardalg.spmd.instructions import Apply
from shardalg.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.plan.plan import Plan

CAUSES = {
    "matrix": "matrix products",
    "memory": "memory of norms, softmax, update",
    "link X": "links along X: weights",
    "link Y": "links along Y: activations",
    "latency": "hops",
}


def seconds_by_cause(columns: Iterable[Column]) -> Table:
    """Return a row per column of the paper's tables: the predicted seconds of a step by cause.

    The last entry is the largest cause except matrix products. Constants are the calibrated ones.
    """
    rows = []
    for column in columns:
        seconds = {name: cost(column).seconds_by_cause.get(name, 0.0) for name in CAUSES}
        # Matrix products are work, and every other cause is time that a change could save.
        limit = max((name for name in CAUSES if name != "matrix"), key=lambda name: seconds[name])
        rows.append((column.id, column.mesh_text, *seconds.values(), CAUSES[limit]))
    column_names = (f"{name.replace(' ', '_').lower()}_s" for name in CAUSES)
    return Table(("column", "mesh", *column_names, "limited_by"), tuple(rows))


def stacked(columns: Sequence[Column]) -> Figure:
    """Draw predicted seconds by cause, one bar per column of the paper's tables.

    A dot is the measured time.
    """
    from shardalg.drawing import Drawing

    figure = Drawing(figsize=(9.2, 4.2), layout="constrained")
    panel = figure.subplots()
    places, bottom = range(len(columns)), [0.0] * len(columns)
    for color, (name, text) in zip(COLORS, CAUSES.items(), strict=False):
        seconds = [cost(c).seconds_by_cause.get(name, 0.0) for c in columns]
        panel.bar(places, seconds, 0.7, bottom=bottom, color=color, alpha=0.75, label=text)
        # matplotlib does not stack bars, so each cause starts where the previous one ends.
        bottom = [a + b for a, b in zip(bottom, seconds, strict=True)]
    panel.plot(places, [c.measured[STEP] for c in columns], "o", color=INK, ms=5, label="measured")
    labels = [f"{c.facts['param_count']}\n{c.mesh_text}\n{c.facts['B']}" for c in columns]
    panel.set_xticks(list(places), labels, fontsize=7)
    panel.set_ylabel("seconds per step")
    panel.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.16))
    _plain(panel)
    return figure


def _plain(panel: Any) -> None:
    """Give a panel a light horizontal grid and no top and right border."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color=BAND, lw=0.5)


def compiled_peaks(path: str | Path) -> dict[str, dict[str, float]]:
    """Return peak bytes by column from a record of `make aot`.

    A column has the entries "planned" (our plan), "compiled" (our program after XLA's compiler) and
    "xla" (XLA's own program of the same function), as far as the record has them.
    """
    rows = json.loads(Path(path).read_text())["rows"]
    # A row has a list of figures, at most one of which is the peak; {} stands for a missing one.
    peaks: dict[str, dict[str, float]] = {
        row["column"]: next((f for f in row["figures"] if f["quantity"] == "peak_memory_bytes"), {})
        for row in rows
    }
    names = ("planned", "compiled", "xla")
    return {
        column: {name: figure[name] for name in names if figure.get(name)}
        for column, figure in peaks.items()
    }


def beside(
    values: Sequence[Compared], compiled: Mapping[str, Mapping[str, float]] | None = None
) -> Figure:
    """Draw step time and peak memory per column, predicted and measured; below, compiled peaks.

    Args:
      compiled: peak bytes by column from `compiled_peaks`. The models have only four layers, so
        the bars are compared with plans of four layers, in a panel of their own.
    """
    from shardalg.drawing import Drawing

    figure = Drawing(figsize=(9.2, 7.4 if compiled else 5.0), layout="constrained")
    panels = figure.subplots(3 if compiled else 2, 1)
    for panel, (quantity, unit) in zip(panels, ((STEP, "s"), (PEAK, "GB")), strict=False):
        predicted_values = [v for v in values if v.quantity == quantity and v.prediction]
        bars = {"predicted": [v.prediction.value for v in predicted_values if v.prediction]}
        bars["measured"] = [v.measured for v in predicted_values]
        labels = [f"{v.column.facts['param_count']} {v.column.mesh_text}" for v in predicted_values]
        _bars(panel, bars, labels)
        panel.set_ylabel(f"{quantity.rsplit('_', 1)[0].replace('_', ' ')}, {unit}", fontsize=8)
    # Peaks of other models (four layers) would mislead in the same panel, so they have their own.
    if compiled:
        names = ("planned", "compiled", "xla")
        bars = {n: [c.get(n, math.nan) / 1e9 for c in compiled.values()] for n in names}
        _bars(panels[2], bars, [name.replace("-bench.", " ") for name in compiled])
        panels[2].set_ylabel("peak memory, GB,\nfour layers", fontsize=8)
    return figure


def _bars(panel: Any, bars: Mapping[str, Sequence[float]], labels: Sequence[str]) -> None:
    """Draw groups of bars: one group per label, with one bar per entry of `bars`."""
    width = 0.8 / len(bars)
    for number, ((name, heights), color) in enumerate(zip(bars.items(), COLORS, strict=False)):
        # The bars of a group are centred at its label: with two bars, at -0.2 and +0.2.
        places = [i + (number - (len(bars) - 1) / 2) * width for i in range(len(heights))]
        panel.bar(places, heights, width * 0.92, color=color, alpha=0.8, label=name)
    panel.set_xticks(range(len(labels)), labels, fontsize=6.5)
    # The legend is inside the axes and would cover the highest bars without this room.
    panel.set_ylim(top=1.15 * panel.get_ylim()[1])
    panel.legend(frameon=False, fontsize=7, ncols=len(bars), loc="upper right")
    _plain(panel)


def products(plan: Plan, chip: Hardware) -> Table:
    """Return a row per matrix product of a plan, with its flops per byte on a device.

    The column "bound_by" is "arithmetic" or "memory": the slower of both at the datasheet's rates.
    """
    rows = []
    for instruction in plan.program.block.instructions:
        if type(instruction.attributes) is not Apply or instruction.node is None:
            continue
        signature = plan.graph.nodes[instruction.node].signature
        if not contracts(signature):
            continue
        blocks = [plan.program.locals[v] for v in (*instruction.operands, *instruction.results)]
        flops = shaped_flops(signature, tuple([v.shape for v in blocks]))
        # A kernel that tiles badly reads blocks again. Counting each block once gives the least
        # traffic, so a product that is memory-bound by this count is so in any kernel.
        moved = sum(v.bytes for v in blocks)
        arithmetic, traffic = flops / chip.peak("bfloat16"), moved / chip.hbm_bytes_per_s
        bound = "arithmetic" if arithmetic >= traffic else "memory"
        shape = " x ".join(map(str, blocks[-1].shape))
        rows.append((shape, instruction.phase, flops, moved, flops / moved, bound))
    columns = ("result", "phase", "flops", "moved_bytes", "flops_per_byte", "bound_by")
    # Every layer has the same products: without removing equal rows each would be listed per layer.
    return Table(columns, tuple(dict.fromkeys(rows)))


def roofline(found: Table, chip: Hardware) -> Figure:
    """Draw the roofline of a chip, with the matrix products of `products` as points on it.

    The roof is the most flops per second that peak and memory allow at an intensity (flops per
    byte).
    """
    from shardalg.drawing import Drawing

    figure = Drawing(figsize=(6.2, 3.6), layout="constrained")
    panel = figure.subplots()
    peak, speed = chip.peak("bfloat16"), chip.hbm_bytes_per_s
    # The roof bends at `peak / speed` flops per byte: below this intensity memory is the limit.
    ends = [peak / speed / 16, 2 * max(found["flops_per_byte"])]
    panel.plot([ends[0], peak / speed, ends[1]], [ends[0] * speed, peak, peak], color=INK)
    for phase, color in (("forward", COLORS[0]), ("backward", COLORS[1])):
        intensities = [row["flops_per_byte"] for row in found if row["phase"] == phase]
        attainable = [min(peak, intensity * speed) for intensity in intensities]
        panel.scatter(intensities, attainable, color=color, s=26, label=phase, zorder=3)
    panel.set(xscale="log", yscale="log", xlabel="flops per byte", ylabel="flops per second")
    panel.axvline(peak / speed, color=BAND, lw=1)
    panel.legend(frameon=False, fontsize=8)
    _plain(panel)
    return figure


def elsewhere(column: Column, machines: Iterable[str | Topology]) -> Table:
    """Return a row per machine with predictions for the step of a column of the paper's tables.

    The entries are seconds, utilisation, peak memory, and whether the step fits the memory.
    """
    transformer = model(column)
    rows = []
    for name in machines:
        cost = transformer.cost(column.mesh, name, strategy="finalized")
        share, peak = 100 * cost.flops_utilization, cost.peak_memory_bytes / 1e9
        rows.append((str(name), cost.step_time_s, share, peak, bool(cost.fits)))
    names = ("machine", "step_time_s", "flops_utilization_pct", "peak_memory_gb", "fits")
    return Table(names, tuple(rows))
