"""Runs of plans on CPU devices, compared with XLA's partitioning of the same functions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardalg.costs.hardware import Hardware
from shardalg.costs.step_time import Cost
from shardalg.lab.explore.settings import Settings
from shardalg.lower.three_ways import Comparison, compare, one_device
from shardalg.lower.xla_dump.hlo_collectives import table as hlo_table
from shardalg.models.training import part
from shardalg.pictures import png
from shardalg.plan.plan import Plan
from shardalg.show import tables
from shardalg.show.figures import measured_times
from shardalg.show.html import Picture, Section
from shardalg.tables import Table, bytes_text, seconds_text

MOST_BYTES = 2 << 30
"""The largest sum of the peaks of all CPU devices, which share this machine's memory."""
INTRODUCTION = """Each plan ran on {devices} CPU devices of this machine, in turns with the
program that XLA's own partitioner makes of the same function and annotations. `error` is the
largest relative difference of a result from the same function on one device, `xla_error` is
XLA's (where a ReLU's input lies within rounding of 0 its gradient jumps; then both are large).
`wire_bytes_per_step` is what one device sends by our plan, `xla_wire_bytes_per_step` what XLA's
dump says right after its partitioner (an all-reduce of which only a block is kept counts as the
reduce-scatter that it stands for)."""
TIMES = """Medians of {repeats} runs each, in turns, with the quartiles. `estimate_ms` is the
plan's own price from figures of this machine (below), no overlap: those of `shardalg calibrate`
where it was run, else of probes when this report began. {devices} devices share {cores} cores
here: `work_ms` is the processor time of all of them over the cores, which the estimate foretells,
with the error beside it. These times compare the two programs on this machine and say nothing
about a TPU or GPU."""
MEMORY = """Bytes per device: `plan_bytes` by our liveness analysis, beside what the compiler
allots to our program and to XLA's (arguments, results and temporaries, a donated argument
counted once)."""

REGATHERED = """{names}: the same collectives as XLA's but for more all-gathers. {values} values are
gathered again for the backward pass and freed in between, as in the paper;
`Options(keep_gathers=True)` keeps them."""


@dataclass(frozen=True, eq=False)
class Sample:
    """The arguments of a function, and its results on one device as `expected`."""

    arguments: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True)
class ExploredPlan:
    """A plan and the results of its run.

    Attributes:
      compared: errors, collectives and times of our program and XLA's.
      hardware: the figures of the machine of the run.
    """

    name: str
    plan: Plan
    compared: Comparison
    hardware: Hardware

    @cached_property
    def cost(self) -> Cost:
        """The plan's price on this machine."""
        return self.plan.cost(self.hardware)

    @cached_property
    def beside(self) -> Table:
        """A table of our collectives and XLA's, with a row per kind and axes."""
        theirs = hlo_table(self.compared.xla_collectives)
        return tables.beside(self.plan._collectives_table, theirs)

    def summary(self) -> tuple[object, ...]:
        """Return the row of the table `SUMMARY`: errors, and bytes sent by our plan and XLA's."""
        total = next(iter(self.beside.where(kind="all")))
        compared = self.compared
        ours, theirs = total["wire_bytes_per_step"], total["xla_wire_bytes_per_step"]
        # XLA may send nothing, for which no ratio exists.
        ratio = round(ours / theirs, 3) if theirs else None
        errors = compared.relative_error, compared.xla_relative_error
        return (self.name, *(float(f"{e:.1e}") for e in errors), ours, theirs, ratio)

    def brief(self) -> tuple[object, ...]:
        """Return the row of the table `BRIEF`: error, bytes and times in readable units."""
        name, error, _, ours, theirs, _ = self.summary()
        measured = self.compared.measurement
        times = (seconds_text(timing.median_s) for timing in (measured.ours, measured.xla))
        return (name, error, bytes_text(ours), bytes_text(theirs), *times)

    def times(self) -> tuple[object, ...]:
        """Return the row of the table `TIMED`: measured and estimated times in milliseconds."""
        measured = self.compared.measurement
        spreads = (
            round(value * 1e3, 3)
            for timing in (measured.ours, measured.xla)
            for value in (timing.median_s, *timing.quartiles_s)
        )
        work_s, estimate_s = measured.ours.step_s, self.cost.step_time_s
        beside = (round(seconds * 1e3, 3) for seconds in (work_s, estimate_s))
        error = f"{estimate_s / work_s - 1:+.0%}"
        return (self.name, *spreads, round(measured.ratio, 3), *beside, error)

    def memory(self) -> tuple[object, ...]:
        """Return a row of the table `HELD`: the plan's name, and three peaks in bytes per device.

        The first peak is the plan's estimate. The others are the compiled sizes of our program and
        of XLA's own program.
        """
        measured = self.compared.measurement
        compiled = measured.memory.total_bytes, measured.xla_memory.total_bytes
        return (self.name, self.cost.peak_memory_bytes, *compiled)


SENT = ("wire_bytes_per_step", "xla_wire_bytes_per_step")
SUMMARY = ("plan", "error", "xla_error", *SENT, "ratio")
BRIEF = ("plan", "error", "sends", "XLA sends", "median time", "XLA's median")
QUARTILES = ("median_ms", "quartile_1_ms", "quartile_3_ms")
TIMED = ("plan", *QUARTILES, *(f"xla_{name}" for name in QUARTILES), "ratio")
TIMED += ("work_ms", "estimate_ms", "estimate_error")
HELD = ("plan", "plan_bytes", "compiled_bytes", "xla_compiled_bytes")


def not_run(reason: str) -> Section:
    """Return a section with the reason why nothing was run."""
    sentence = f"The plans were not run: {reason}."
    return Section("Not run", (sentence,), conclusion=sentence)


def why_not(settings: Settings, plans: Mapping[str, Plan]) -> str:
    """Return the reason why the plans are not run on this machine; "" if they are run."""
    needed = settings.mesh.size
    if not settings.can_run:
        return f"the mesh has {needed} devices and --devices allows {settings.devices}"
    # All CPU devices are in one process and share the host's memory, so their peaks add up.
    peaks = [plan.cost(Hardware("any")).peak_memory_bytes for plan in plans.values()]
    total_bytes = max(peaks) * needed
    if total_bytes > MOST_BYTES:
        return f"all devices together would hold {total_bytes:,} bytes, more than {MOST_BYTES:,}"
    return ""


def sample(settings: Settings, name: str) -> Sample:
    """Return random arguments of a part of the model, and its results on one device."""
    chosen = part(name)
    args = chosen.random_arguments(settings.config, settings.seed)
    return Sample(args, one_device(chosen.function(settings.config))(*args))


def run(settings: Settings, plan: Plan, data: Sample) -> Comparison:
    """Return the results of a verified plan's runs on `data`, compared with XLA's."""
    verified = plan.verify().summary()
    lowered, repeats = plan.lower(), settings.repeats
    return compare(lowered, data.arguments, data.expected, repeats=repeats, verified=verified)


def _ran(devices: int, runs: Sequence[ExploredPlan]) -> str:
    """Return a sentence with the largest error of all runs, and our bytes as a share of XLA's."""
    worst = max(r.compared.relative_error for r in runs)
    totals = [next(iter(r.beside.where(kind="all"))) for r in runs]
    ours, theirs = (sum(total[n] for total in totals) for n in SENT)
    share = f"{ours / theirs:.0%} of the bytes that XLA sends" if theirs else "XLA sends nothing"
    return f"On {devices} CPU devices: errors of at most {worst:.0e} against one device; {share}."


def regathered(runs: Sequence[ExploredPlan]) -> tuple[str, ...]:
    """Return a text about runs that gather more often than XLA; empty if none does."""
    found = {r.name: r.plan.gathers()["option"].eq("keep_gathers").sum() for r in runs if _more(r)}
    if not any(found.values()):
        return ()
    counts = " and ".join(map(str, found.values()))
    return (REGATHERED.format(names=", ".join(found), values=counts),)


def _more(run: ExploredPlan) -> bool:
    """Return True if a plan's collectives are XLA's except for additional all-gathers."""
    kinds: dict[str, int] = {}
    for row in run.beside:
        kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["executions"] - row["xla_executions"]
    more = kinds.pop("all_gather", 0)
    # The row "all" is the sum of the other rows, so it differs whenever all-gathers do.
    kinds.pop("all")
    return more > 0 and not any(kinds.values())


def section(settings: Settings, runs: Sequence[ExploredPlan]) -> Section:
    """Return a section with errors, bytes, times, memory and collectives of all runs."""
    devices, hardware = settings.mesh.size, runs[0].hardware
    timed = {r.name: r.compared.measurement.table() for r in runs}
    times = Picture(
        "times",
        png(measured_times(timed)),
        "Milliseconds per step on CPU devices: median, and quartiles of the runs.",
    )
    few = Table(BRIEF, tuple(r.brief() for r in runs))
    kinds = [(f"Collectives of **{r.name}** in one step, beside XLA's:", r.beside) for r in runs]
    return Section(
        f"Run on {devices} CPU devices",
        (
            INTRODUCTION.format(devices=devices),
            Table(SUMMARY, tuple(r.summary() for r in runs)),
            TIMES.format(repeats=settings.repeats, devices=devices, cores=os.cpu_count()),
            Table(TIMED, tuple(r.times() for r in runs)),
            times,
            MEMORY,
            Table(HELD, tuple(r.memory() for r in runs)),
            *regathered(runs),
            *(part for pair in kinds for part in pair),
            f"This machine, as measured ({hardware.name}):",
            hardware.table().select("figure", "value", "unit", "source"),
        ),
        (few,),
        _ran(devices, runs),
    )
