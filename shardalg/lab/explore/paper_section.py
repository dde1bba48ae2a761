"""The predicted cost of the paper's 64B model, compared with the paper's measured values."""

from __future__ import annotations

import re
from dataclasses import replace

from shardalg.costs.memory import Liveness
from shardalg.costs.step_time import Cost
from shardalg.lab.explore.settings import PAPER, Settings
from shardalg.lab.explore.strategies import (
    AT_SIZE,
    MEASURED,
    NAME,
    PLACE,
    TRAIN_STEP,
    of_measured,
    parameters_text,
)
from shardalg.lab.table1 import plan_part
from shardalg.models.transformer import WIDE_64B
from shardalg.show.html import Section
from shardalg.tables import Table

# Unrolled and without rematerialisation, because the paper's two-dimensional configurations
# rematerialise nothing: other forms of the model have other costs.
UNROLLED = replace(PAPER, config=WIDE_64B, strategies=("finalized",))
CHIP = "tpu_v3"
INTRODUCTION = """The train step of {layers} unrolled layers with a batch of {batch} on {mesh},
under the strategy `{strategy}`, compared with the paper's {place}. The model has {parameters}.
Nothing is fitted. Nothing is rematerialised, as in the paper. Of the forward pass only a minimum
cut is kept, since XLA rebuilds pointwise operators for TPUs. The time has no overlap, no
inefficiency of matrix units and rings at full speed: {share}."""
SCANNED = """The section "{title}" prices another program of the same model: {scanned_s:.2f} s
instead of {unrolled_s:.2f} s. It scans the layers and rematerialises them. It executes {flops:.2f}
times the flops, because the backward pass computes the forward pass of each layer again. It holds
{scanned_gb:.2f} GB instead of {unrolled_gb:.2f} GB."""
ALIVE = """What one core holds at the peak, while `{op}` runs; values of one source line
together:"""
WIRE = "What one core sends in one step, {total:.1f} GB in all:"
MOST_LINES = 12


def section(settings: Settings = UNROLLED, scanned: Cost | None = None) -> Section:
    """Return a section that compares the plan of the paper's first model with its measurement.

    The section has memory, the values alive at the peak, wire bytes and time.

    Args:
      scanned: the cost of the same model with scanned layers. If it is given, a sentence explains
        why the two step times differ.
    """
    plan = plan_part(settings.config, settings.mesh, settings.strategies[0], TRAIN_STEP)
    cost, config = plan.cost(CHIP), settings.config
    introduction = INTRODUCTION.format(
        layers=config.L,
        parameters=parameters_text(config),
        place=PLACE,
        strategy=settings.strategies[0],
        batch=config.B,
        mesh=repr(settings.mesh),
        share=of_measured(cost),
    )
    # The peak can be at the arguments, before any instruction; then no operator is named.
    peak = cost.memory
    instruction = peak.instruction
    operator_text = ""
    if instruction is not None and instruction.node is not None:
        node = plan.graph.nodes[instruction.node]
        operator_text = f"{node.primitive} at {node.source} ({instruction.phase})"
    alive_text = ALIVE.format(op=operator_text)
    sent = WIRE.format(total=float(cost.wire_bytes) / 1e9)
    why = () if scanned is None else (_why_two_times(cost, scanned),)
    parts = (
        introduction,
        *why,
        beside_paper(cost),
        by_class(peak),
        alive_text,
        alive(peak),
        sent,
        moved(cost),
    )
    return Section(f"The paper's {NAME}", parts)


def _why_two_times(unrolled: Cost, scanned: Cost) -> str:
    """Return a sentence that explains why the scanned program takes another time."""
    return SCANNED.format(
        title=AT_SIZE,
        scanned_s=scanned.step_time_s,
        unrolled_s=unrolled.step_time_s,
        flops=float(scanned.flops / unrolled.flops),
        scanned_gb=scanned.peak_memory_bytes / 1e9,
        unrolled_gb=unrolled.peak_memory_bytes / 1e9,
    )


def beside_paper(cost: Cost) -> Table:
    """Return a row per quantity: the estimate, the paper's measurement, the difference."""
    ours = {
        "peak_memory_gb": cost.peak_memory_bytes / 1e9,
        "step_time_s": cost.step_time_s,
        "flops_utilization": cost.flops_utilization,
    }
    rows = (
        (name, round(value, 3), MEASURED[name], f"{value / MEASURED[name] - 1:+.1%}")
        for name, value in ours.items()
    )
    return Table(("quantity", "estimated", "measured", "difference"), tuple(rows))


def by_class(peak: Liveness) -> Table:
    """Return a row per class of value with its GB at the peak, the largest first."""
    ordered = sorted(peak.by_class.items(), key=lambda pair: -pair[1])
    rows = ((name, round(size / 1e9, 4), f"{size / peak.peak_bytes:.1%}") for name, size in ordered)
    return Table(("memory_class", "gb", "share"), tuple(rows))


def alive(peak: Liveness) -> Table:
    """Return a row per class and source line with the values at the peak, the largest first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for value in peak.alive:
        key = (value.memory_class, without_number(value.name))
        groups.setdefault(key, []).append(value.bytes)
    ordered = sorted(groups.items(), key=lambda group: -sum(group[1]))
    shown = [(*key, len(sizes), round(sum(sizes) / 1e9, 4)) for key, sizes in ordered]
    rest = shown[MOST_LINES:]
    summed = ("", "all others", sum(row[2] for row in rest), round(sum(row[3] for row in rest), 4))
    rows = (*shown[:MOST_LINES], *([summed] if rest else []))
    return Table(("memory_class", "value", "arrays", "gb"), rows)


def without_number(name: str) -> str:
    """Return a value's name without the number that distinguishes equal ones.

    >>> without_number("dot_general:3@model.py:41"), without_number("params['layers'][7]['w']")
    ('dot_general@model.py:41', "params['layers'][*]['w']")
    """
    unnumbered = re.sub(r"(?:#\d+$|(?<=[a-z_]):[\d.]+(?=@))", "", name)
    return re.sub(r"\[\d+\]", "[*]", unnumbered)


def moved(cost: Cost) -> Table:
    """Return a row per kind of collective with its GB and seconds per step, most bytes first."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    for item in cost.items:
        if item.is_communication:
            key = (item.kind, ",".join(item.axes), item.role)
            total = sums.setdefault(key, [0, 0.0, 0.0])
            for place, amount in enumerate((item.count, item.wire_bytes, item.time_s)):
                total[place] += float(amount)
    ordered = sorted(sums.items(), key=lambda entry: -entry[1][1])
    rows = (
        (*key, int(count), round(sent / 1e9, 4), round(time_s, 4))
        for key, (count, sent, time_s) in ordered
    )
    return Table(("kind", "mesh_axes", "role", "executions", "gb", "time_s"), tuple(rows))
