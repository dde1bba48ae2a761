"""The report's comparison of strategies: collectives of a layer, memory and price of a train step.

`COLUMN` is the paper's column with which the price is compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardalg.costs.hardware import Hardware
from shardalg.costs.step_time import Cost
from shardalg.lab.evaluation.published import PARAMETER_UNIT, column
from shardalg.lab.explore.settings import PAPER, Settings
from shardalg.lab.table1 import plan_part
from shardalg.lab.table1_strategies import STRATEGIES
from shardalg.models.transformer import Config
from shardalg.pictures import png
from shardalg.plan.plan import Plan
from shardalg.show import tables
from shardalg.show.figures import wire_bytes_bars
from shardalg.show.html import Picture, Section
from shardalg.tables import Table, bytes_text, seconds_text

COLUMN = column("dense-bench.c1")
PLACE = f"Table {COLUMN.table}, first column"
NAME = f"{COLUMN.facts['param_count']} model"
MEASURED = {
    "peak_memory_gb": COLUMN.measured["peak_memory_GB"],
    "step_time_s": COLUMN.measured["step_time_s"],
    "flops_utilization": round(COLUMN.measured["flops_util_pct"] / 100, 4),
}
"""The measured values of `COLUMN`, under the strategy `finalized`; the share is a fraction."""


def parameters_text(config: Config) -> str:
    """Return the number of parameters, with the reason why the paper gives a smaller number.

    >>> from shardalg.models.transformer import WIDE_64B
    >>> print(parameters_text(WIDE_64B))
    68.98 billion parameters: 68.72 billion in the layers, which the paper calls 64B because its
    billion is 2**30, and 0.26 billion in the embedding
    """
    counts = config.parameter_counts()
    layers = sum(counts.values()) - counts["embedding"]
    embedding = counts["embedding"]
    total, inside, outside = (number / 1e9 for number in (layers + embedding, layers, embedding))
    return (
        f"{total:.2f} billion parameters: {inside:.2f} billion in the layers, which the paper "
        f"calls {layers / PARAMETER_UNIT:g}B because its\nbillion is 2**30, and {outside:.2f} "
        "billion in the embedding"
    )


LAYER, TRAIN_STEP = "layer_gradient", "train_step"
SENT = tuple(f"{part}wire_bytes_per_step" for part in ("forward_", "backward_", ""))
ANY = Hardware("any")
"""Hardware without figures, for memory, which does not depend on a chip's rates."""
SHOWN = ("phase", "kind", "mesh_axes", "executions", "wire_bytes", "role", "op", "source", "why")
INTRODUCTION = """One Transformer layer (attention, feed-forward, norms, residuals) with its
gradient, planned under each row of the paper's Table 1 (GSPMD, arXiv:2105.04663). Nothing below
is written down per model: shardings are completed from the annotations, and every collective
follows from them. `wire_bytes` is what one device sends in one execution, on a ring;
`wire_bytes_per_step` is what it sends in all executions of a step."""

MEMORY = """Bytes that one device holds at the peak of a whole train step, by our liveness
analysis, by class of value."""

AT_SIZE = "At the paper's size"
PRICE = """The train step of the paper's {name} ({place}: {layers} layers, a batch of {batch},
{mesh}), planned here and priced for {chip}: no overlap, matrix units at their peak. The model has
{parameters}. Here the layers are scanned and rematerialised, so that every strategy can be compared
on one chip: the backward pass computes the forward pass of each layer again. The paper's program
rematerialises nothing. For the finalized strategy the paper measured {step_time_s} s per step,
{peak_memory_gb} GB and {flops_utilization:.1%} of the peak flops{of_finalized}."""


def plans_of(settings: Settings, name: str) -> dict[str, Plan]:
    """Return the plan of a part of the Transformer under each strategy of the settings.

    Args:
      name: the part, one of `training.PARTS`, such as "layer_gradient".
    """
    # Strategies differ in annotations only, so all plans start from one traced graph.
    first, *others = settings.strategies
    plans = {first: plan_part(settings.config, settings.mesh, first, name)}
    for other in others:
        strategy = STRATEGIES[other](settings.mesh, settings.config, name)
        plans[other] = plans[first].replan(strategy)
    return plans


def sections(plans: Mapping[str, Plan]) -> tuple[Section, ...]:
    """Return a section with the totals of all strategies, and a section of collectives for each."""
    found = {name: plan._collectives_table for name, plan in plans.items()}
    summed = tables.strategies(found)
    bars = Picture(
        "wire_bytes",
        png(wire_bytes_bars(summed)),
        "Bytes that each device sends in one layer, by strategy, phase and kind of collective.",
    )
    sent = (
        (row["strategy"], row["collectives"], *(bytes_text(row[name]) for name in SENT))
        for row in tables.totals(found)
    )
    brief = Table(("strategy", "collectives", "forward", "backward", "layer sends"), tuple(sent))
    totals = Section(
        "Three strategies",
        (INTRODUCTION, tables.totals(found), bars, summed),
        brief=(brief,),
        conclusion=_least(found),
    )
    return (
        totals,
        *(Section(f"Collectives of {n}", (table.select(*SHOWN),)) for n, table in found.items()),
    )


def _least(found: Mapping[str, Table]) -> str:
    """Return a sentence with the strategy that sends the fewest bytes in a layer."""
    sent = {row["strategy"]: row["wire_bytes_per_step"] for row in tables.totals(found)}
    least = min(sent, key=lambda name: sent[name])
    others = ", ".join(f"{n} {bytes_text(sent[n])}" for n in sent if n != least)
    beside = f" ({others})" if others else ""
    return (
        f"A layer and its gradient send {bytes_text(sent[least])} a device under {least}{beside}."
    )


def memory_section(plans: Mapping[str, Plan]) -> Section:
    """Return a section with the peak memory of the train step by strategy and class of value."""
    peaks = {name: plan.cost(ANY).memory for name, plan in plans.items()}
    classes = tuple(dict.fromkeys(kind for peak in peaks.values() for kind in peak.by_class))
    rows = (
        (name, peak.peak_bytes, *(peak.by_class.get(kind, 0) for kind in classes))
        for name, peak in peaks.items()
    )
    columns = ("strategy", "peak_bytes", *(f"{kind}_bytes" for kind in classes))
    return Section("Memory of a train step", (MEMORY, Table(columns, tuple(rows))))


def price_section(plans: Mapping[str, Plan], chip: str = "tpu_v3") -> Section:
    """Return a section with the predicted time and memory of a step on a chip, by strategy."""
    columns = (
        "strategy", "step_time_s", "compute_s", "communication_s", "peak_memory_gb",
        "flops_utilization", "fits",
    )  # fmt: skip
    rows = tuple((name, *_price(plan.cost(chip))) for name, plan in plans.items())
    table = Table(columns, rows)
    words = _price_words(plans, chip)
    return Section(AT_SIZE, (words, table), (table,), _priced_as(plans, chip))


def _priced_as(plans: Mapping[str, Plan], chip: str) -> str:
    """Return a sentence with the strategies that fit the chip, and the fastest of these."""
    costs = {name: plan.cost(chip) for name, plan in plans.items()}
    # A fast step that does not fit the memory cannot run, so fitting counts before time.
    best = min(costs, key=lambda name: (not costs[name].fits, costs[name].step_time_s))
    cost, fit = costs[best], [name for name in costs if costs[name].fits]
    peak, took = bytes_text(cost.peak_memory_bytes), seconds_text(cost.step_time_s)
    if not fit:
        what = f"no strategy fits; the fastest is {best}"
    elif len(costs) == 1:
        what = f"{best} fits"
    elif len(fit) == len(costs):
        what = f"all {len(costs)} strategies fit; the fastest is {best}"
    else:
        what = f"{len(fit)} of {len(costs)} strategies fit ({', '.join(fit)}); of these the fastest"
        what += f" is {best}"
    return (
        f"The paper's {NAME} on {chip}, layers rematerialised: {what}, {took} a step and {peak} a "
        "device."
    )


def _price_words(plans: Mapping[str, Plan], chip: str) -> str:
    """Return the introduction of the section that predicts time and memory at the paper's size."""
    config, finalized = PAPER.config, plans.get("finalized")
    return PRICE.format(
        name=NAME,
        place=PLACE,
        parameters=parameters_text(config),
        layers=config.L,
        batch=config.B,
        mesh=repr(PAPER.mesh),
        chip=chip,
        of_finalized="" if finalized is None else f"; here {of_measured(finalized.cost(chip))}",
        **MEASURED,
    )


def of_measured(cost: Cost) -> str:
    """Return the predicted step time of the paper's model as a share of the measured time."""
    return f"{cost.step_time_s / MEASURED['step_time_s']:.0%} of the measured time"


def _price(cost: Cost) -> tuple[object, ...]:
    """Return the entries of a cost in the table: seconds, gigabytes, utilization, if it fits."""
    seconds = (cost.step_time_s, cost.compute_s, cost.communication_s)
    rounded = (round(s, 2) for s in seconds)
    share = f"{cost.flops_utilization:.1%}"
    return (*rounded, round(cost.peak_memory_bytes / 1e9, 2), share, "yes" if cost.fits else "no")
