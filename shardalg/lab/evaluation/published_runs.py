"""Published training steps of dense models, priced by the plan of a plain JAX function.

`published_runs.json` has every run with its source: MaxText on TPU v4 to TPU7x and on H100,
llm-foundry and torchtitan on A100 and H100. A run with a reason under `skip` is listed only: it is
neither priced nor used in a fit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.calibration.fit import Measured
from shardalg.costs.cost import Cost
from shardalg.costs.hardware import load, names
from shardalg.costs.topology import Topology
from shardalg.lab.evaluation.llama_step import LlamaSizes, plan_step
from shardalg.models.deeper import SHALLOW, cost_on, work_of
from shardalg.plan.plan import Plan
from shardalg.tables import Table

FILE = Path(__file__).with_name("published_runs.json")
_SIZES = tuple(field.name for field in fields(LlamaSizes))


@dataclass(frozen=True)
class PublishedRun:
    """A training step that others measured.

    Attributes:
      name: chip, model, sequence length, slices and chips.
      software: "xla" or "pytorch".
      chips: chips of one slice; slices: number of slices.
      mesh: axis sizes. An axis "replica" repeats the weights, "fsdp" splits them.
      step_s: measured seconds of a step.
      skip: the reason why the run is not priced; "" if it is.
      source: where the run was published.
    """

    name: str
    chip: str
    software: str
    chips: int
    slices: int
    mesh: Mapping[str, int]
    sizes: LlamaSizes
    step_s: float
    skip: str
    source: str

    @property
    def machine(self) -> Topology:
        """The slices of TPUs, or the islands of GPUs, that the step ran on."""
        return Topology(self.chip, chips=self.chips, slices=self.slices)

    @property
    def machine_name(self) -> str:
        """The chip's name in the package; the published name if the package has no such chip."""
        return load(self.chip).name if self.chip in names() else self.chip

    @property
    def utilisation(self) -> float:
        """The measured model flops utilisation: `LlamaSizes.step_flops` over the peak."""
        devices = math.prod(self.mesh.values())
        peak = self.machine.chip.peak("bfloat16")
        return self.sizes.step_flops / (devices * peak * self.step_s)

    def plans(self) -> dict[int, Plan]:
        """Return plans of the step by number of layers.

        A deep model has one plan for each number in `SHALLOW`, from which the cost of all layers
        follows. Another model has one plan, with all of its layers.
        """
        depths = (self.sizes.layers,) if self.sizes.layers <= max(SHALLOW) else SHALLOW
        mesh = Mesh(dict(self.mesh))
        return {n: plan_step(replace(self.sizes, layers=n), mesh) for n in depths}

    def cost(self) -> Cost:
        """Return the predicted cost of the step on the machine that it ran on."""
        return cost_on(self.sizes.layers, self.plans(), self.machine.on(self.software))

    def measured(self) -> Measured:
        """Return the measured step with the amounts of work of its plan."""
        done = work_of(self.sizes.layers, self.plans(), self.machine)
        return Measured(self.name, self.machine.chip.name, done, self.step_s)


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return all published runs, including runs that are not priced (`skip`).

    >>> sorted({run.software for run in published_runs()}), all(r.source for r in published_runs())
    (['pytorch', 'xla'], True)
    """
    return tuple(map(_run, json.loads(FILE.read_text())["rows"]))


def _run(row: Mapping[str, Any]) -> PublishedRun:
    """Return the run of a row of `published_runs.json`."""
    given = {name: row[name] for name in _SIZES if name in row}
    lists = {name: tuple(given.get(name, ())) for name in ("saved", "offloaded")}
    rest = {f.name: row[f.name] for f in fields(PublishedRun) if f.name != "sizes"}
    return PublishedRun(**rest, sizes=LlamaSizes(**{**given, **lists}))


def errors_by_chip() -> Table:
    """Return a row per chip and software with the errors of the predicted step times.

    Errors are in per cent. Each run is predicted with constants that were fitted on the other runs.

    >>> row = next(row for row in errors_by_chip() if row["chip"] == "tpu_v6e")
    >>> row["software"], row["runs"], row["median_pct"] < 4
    ('xla', 7, True)
    """
    rows = []
    for key in dict.fromkeys((run.machine_name, run.software) for run in published_runs()):
        runs = [run for run in published_runs() if (run.machine_name, run.software) == key]
        # Skipped runs are only counted; a chip without a priced run has no errors.
        priced = [run for run in runs if not run.skip]
        if not priced:
            continue
        median, worst = load(key[0]).on(key[1]).calibration.errors or (math.nan, math.nan)
        error_percents = (round(100 * median, 1), round(100 * worst, 1))
        rows.append((*key, len(priced), *error_percents, len(runs) - len(priced)))
    columns = ("chip", "software", "runs", "median_pct", "worst_pct", "skipped")
    return Table(columns, tuple(sorted(rows)))


def run_table() -> Table:
    """Return a row per priced run: measured and predicted seconds, and errors in per cent.

    The last column is the error with constants that were fitted on all other runs.
    """
    rows = []
    for run in published_runs():
        if not run.skip:
            run_errors = load(run.chip).on(run.software).calibration.provenance["rows"][run.name]
            error, left_out = run_errors["error"], run_errors["left_out"]
            # The error is relative to the measured time, so this is the predicted one.
            predicted = run.step_s * (1 + error)
            error_percents = (round(100 * error, 1), round(100 * left_out, 1))
            rows.append((run.name, run.software, run.step_s, round(predicted, 3), *error_percents))
    columns = ("run", "software", "measured_s", "predicted_s", "error_pct", "left_out_pct")
    return Table(columns, tuple(rows))
