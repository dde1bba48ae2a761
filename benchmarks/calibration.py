"""Predicted beside measured steps of published runs, with every row left out in turn.

`python -m benchmarks.calibration` fits the constants anew and writes them into the chips' files.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from benchmarks.result import Result
from shardalg.costs.calibration.constants import EXPOSED, Calibration
from shardalg.costs.calibration.fit import Fit, Free, Measured, errors_of, fit
from shardalg.costs.hardware import FILES
from shardalg.files import write_whole
from shardalg.lab.evaluation import tpu_v3_constants
from shardalg.lab.evaluation.comparison import compare
from shardalg.lab.evaluation.prediction import HELD_OUT
from shardalg.lab.evaluation.published import columns
from shardalg.lab.evaluation.published_runs import PublishedRun, published_runs
from shardalg.lab.evaluation.two_dimensional import CHIP
from shardalg.tables import Table

ABOUT = """Steps of dense models that others published, beside the price of a plain JAX function
(`lab/evaluation/llama_step.py`): MaxText on TPU v4 to TPU7x and on H100, llm-foundry and
torchtitan on A100 and H100, and the 13 two-dimensional columns of the paper on TPU v3.
`left_out` is the error with constants that were fitted on all other rows of the family; `half_out`
with constants fitted on the other half of the rows of each chip. The first seed in the summary
draws these halves; the summary also has the errors of all draws together. `one_utilisation` is the
error, left out too, of one share of the peak for all rows of a chip. calculon, with its own tables
of efficiencies, was run on the 13 columns and the five of Table 4: ours beside it are the errors
left out of the 13 and of those of Table 4 that nothing was fitted on."""
CALCULON = {"median error": 0.118, "largest error": 0.456}
"""As published for calculon (github.com/calculon-ai/calculon) on the columns of Tables 2 to 4."""
SEEDS = (20261127, 1, 2, 3, 4, 5)
# Half of the rows hardly tell the share of weight gathers from that of products. Without a prior
# the worst of the halves of TPU is off by 19 %, with 2 % by 13 %, and with 4 to 8 % by 10 to 11 %.
PRIOR = 0.05

# A gather of 2048 x 8192 bfloat16 over a line of four v5e chips took 680 us, and one of 256 x 256
# took 8 us: 503 and 5 us at the data sheet's rates.
BOOK = "'How to Scale Your Model', sharding chapter: gathers measured on a v5e"
LINKS = {"link_efficiency": 0.74, "start_s": 2.3e-6}
MEASURED_ALONE = "tpu_v5e"
TORUS = ("tpu_v4", "tpu_v5e", "tpu_v5p")
NEWER = ("tpu_v6e", "tpu_7x")
TPU = (*TORUS, *NEWER)
MEMORY = ("traffic", "passes")
# Instructions of the attention kernels of 2023 on H100 reach this share of the peak that its new
# instructions have: "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture through
# Microbenchmarking" (arXiv:2402.13499), mma beside wgmma.
OLD_INSTRUCTIONS = 0.63


@dataclass(frozen=True)
class Family:
    """Chips under one software stack that are fitted together.

    Attributes:
      free: the constants to fit; at most a quarter of the rows of a chip are its own.
      held: constants that are not fitted, by chip; all others are 1, the data sheet's.
      why: the source of the held constants.
    """

    name: str
    software: str
    chips: tuple[str, ...]
    free: tuple[Free, ...]
    held: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    why: str = ""

    @property
    def base(self) -> dict[str, Calibration]:
        """The constants before the fit."""
        held = {chip: tuple(self.held.get(chip, {}).items()) for chip in self.chips}
        return {chip: Calibration(self.software, values) for chip, values in held.items()}

    @property
    def runs(self) -> tuple[PublishedRun, ...]:
        """The published runs of these chips under this software, without those to skip."""
        found = [r for r in published_runs() if not r.skip and r.software == self.software]
        return tuple(run for run in found if run.machine.chip.name in self.chips)

    @property
    def rows(self) -> list[Measured]:
        """The measured steps with the work of their plans."""
        return [_measured(run.name) for run in self.runs]


@cache
def _measured(name: str) -> Measured:
    return next(run for run in published_runs() if run.name == name).measured()


def families() -> tuple[Family, ...]:
    """Return the families; later ones hold constants that earlier ones fitted."""
    tpu = Family(
        "TPU v4 to TPU7x, XLA",
        "xla",
        TPU,
        (
            Free(("matrix_efficiency",), TORUS),
            Free(("matrix_efficiency",), NEWER),
            Free(MEMORY, TPU),
            Free(("exposed_weights", "exposed_data"), TPU),
            Free(("exposed_per_slice",), TPU),
        ),
    )
    torch = Family(
        "A100 and H100, PyTorch FSDP",
        "pytorch",
        ("a100_80gb", "h100"),
        (
            Free(("matrix_efficiency",), ("a100_80gb",)),
            Free(("matrix_efficiency",), ("h100",)),
            Free(("kernel_efficiency",), ("a100_80gb",)),
            Free(MEMORY, ("a100_80gb", "h100")),
        ),
        {"h100": {"kernel_efficiency": 0.2}},
        f"kernel_efficiency of h100: that of a100_80gb times {OLD_INSTRUCTIONS}, the share of the "
        "peak that mma instructions reach on Hopper (arXiv:2402.13499)",
    )
    return tpu, torch


def h100_family(tpu: Fit, torch: Fit) -> Family:
    """Return H100 under XLA, which shares constants with TPU (XLA) and with PyTorch (the chip)."""
    exposed = tpu.calibrations["tpu_v5e"]["exposed_weights"]
    chip = torch.calibrations["h100"]
    held = {name: chip[name] for name in ("kernel_efficiency", *MEMORY)}
    return Family(
        "H100, XLA",
        "xla",
        ("h100",),
        (Free(("matrix_efficiency",), ("h100",)),),
        {"h100": {**held, "exposed_network": exposed}},
        "kernel_efficiency, traffic and passes: as fitted on h100 under PyTorch; exposed_network: "
        "the exposed_weights of TPU under XLA, whose scheduler hides gathers in the same way",
    )


def all_fits() -> list[tuple[Family, Fit]]:
    """Return all families of published runs with their fitted constants."""
    found = [(family, fitted(family, family.rows)) for family in families()]
    h100 = h100_family(found[0][1], found[1][1])
    return [*found, (h100, fitted(h100, h100.rows))]


def fitted(family: Family, rows: Sequence[Measured]) -> Fit:
    """Return the family's constants by some of its rows."""
    return fit(rows, family.base, family.free, prior=PRIOR)


def half_out(family: Family, seed: int) -> dict[str, float]:
    """Return the error of each row with constants fitted on the other half of its chip's rows."""
    draw = random.Random(seed)
    halves: tuple[list[Measured], list[Measured]] = ([], [])
    for chip in family.chips:
        rows = [row for row in family.rows if row.chip == chip]
        draw.shuffle(rows)
        for place, row in enumerate(rows):
            halves[place % 2].append(row)
    found = {}
    for train, test in (halves, halves[::-1]):
        found |= errors_of(fitted(family, train).calibrations, test)
    return found


def one_utilisation(runs: Sequence[PublishedRun]) -> dict[str, float]:
    """Errors, each left out, of one share of the peak per chip: the median of its other rows."""
    found = {}
    for run in runs:
        others = [r.utilisation for r in runs if r.chip == run.chip and r.name != run.name]
        if others:
            found[run.name] = run.utilisation / statistics.median(others) - 1
    return found


def of_table_4() -> list[float]:
    """Errors of the pipelined columns that no constant was fitted on."""
    values = compare(columns(4))
    found = [v for v in values if v.quantity == "step_time_s" and v.prediction is not None]
    return [v.prediction.value / v.measured - 1 for v in found if v.prediction.how == HELD_OUT]


def spread(errors: Iterable[float]) -> dict[str, float]:
    """Median and largest of the absolute errors."""
    sizes = [abs(error) for error in errors]
    return {"median error": statistics.median(sizes), "largest error": max(sizes)}


def run(say: Callable[[str], None]) -> Result:
    records: list[dict[str, Any]] = []
    summary: dict[str, Any] = {
        "seeds of the halves": ", ".join(map(str, SEEDS)),
        "weight of the prior": PRIOR,
    }
    for family, found in all_fits():
        say(f"calibration: {family.name}\n")
        alone = one_utilisation(family.runs)
        draws = [half_out(family, seed) for seed in SEEDS]
        for each in family.runs:
            predicted = each.step_s * (1 + found.errors[each.name])
            records.append(
                {
                    "family": family.name,
                    "row": each.name,
                    "measured_s": each.step_s,
                    "predicted_s": predicted,
                    "error": found.errors[each.name],
                    "left_out": found.left_out[each.name],
                    "half_out": draws[0][each.name],
                    "one_utilisation": alone.get(each.name),
                }
            )
        beside = {
            "left out": found.left_out.values(),
            "half out": draws[0].values(),
            f"half out, {len(SEEDS)} draws": [error for d in draws for error in d.values()],
            "one utilisation": alone.values(),
        }
        for name, errors in beside.items():
            for what, size in spread(errors).items():
                summary[f"{family.name}, {name}, {what}"] = size
        for one in family.free:
            value = found.calibrations[one.chips[0]][one.constants[0]]
            summary[f"{family.name}, {one.constants[0]} of {', '.join(one.chips)}"] = value
    for name, errors in _of_paper(records).items():
        summary |= {f"{CHIP}, {name}, {what}": size for what, size in spread(errors).items()}
    summary |= {f"{CHIP}, 18 columns, calculon's, {what}": x for what, x in CALCULON.items()}
    return Result("calibration", ABOUT, Table.from_records(records), summary)


def _of_paper(records: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Append the paper's two-dimensional columns to the records; return their errors by kind."""
    every = [tpu_v3_constants.measured(column) for column in (*columns(2), *columns(3))]
    found = tpu_v3_constants.fitted(every)
    for row in every:
        records.append(
            {
                "family": f"{CHIP}, the paper",
                "row": row.name,
                "measured_s": row.step_time_s,
                "predicted_s": row.step_time_s * (1 + found.errors[row.name]),
                "error": found.errors[row.name],
                "left_out": found.left_out[row.name],
                "half_out": None,
                "one_utilisation": None,
            }
        )
    left = [*found.left_out.values()]
    return {"left out": left, "18 columns": [*left, *of_table_4()]}


def record() -> None:
    """Fit every family and write its constants into the chips' files."""
    software: dict[str, dict[str, Any]] = {}
    for family, found in all_fits():
        for chip in family.chips:
            # A row is listed with every chip whose constants it had a part in.
            rows = {
                row.name: {"error": found.errors[row.name], "left_out": found.left_out[row.name]}
                for row in family.rows
                if row.chip == chip
            }
            free = [one for one in family.free if chip in one.chips]
            provenance = {
                "source": "; ".join(dict.fromkeys(r.source for r in family.runs)),
                "fitted": {c: list(one.chips) for one in free for c in one.constants},
                "held": family.why,
                "rows": rows,
            }
            one = replace(found.calibrations[chip], provenance=provenance)
            if chip == MEASURED_ALONE:
                one = with_links(one)
            software.setdefault(chip, {})[family.software] = rounded(one.to_json())
    v3 = tpu_v3_constants.shipped()
    software[CHIP] = {v3.software: rounded(v3.to_json())}
    for chip, like in LIKE.items():
        software[chip] = {"like": like}
    for chip, found_here in software.items():
        path = FILES / f"{chip}.json"
        # The constants are the last entry of a file, so that all other lines stay as they are.
        data = path.read_text().rstrip().removesuffix("}").partition(',\n  "software"')[0].rstrip()
        # Prices use the first software of a file unless another one is asked for.
        found_here = dict(sorted(found_here.items(), key=lambda part: part[0] != "xla"))
        text = json.dumps(found_here, indent=1).replace("\n", "\n  ")
        write_whole(path, f'{data},\n  "software": {text}\n}}\n')
        print(
            chip,
            {name: part for name, part in found_here.items() if name == "like"} or [*found_here],
        )


def with_links(fitted: Calibration) -> Calibration:
    """Return constants whose shares of communication are those of the measured rate of links.

    The fit has shares of the data sheet's seconds, which several chips have in common. Seconds at
    the measured rate are longer, so that the same exposed time is a smaller share of them.
    """
    shares = {name: fitted[name] * LINKS["link_efficiency"] for name in EXPOSED_NAMES}
    provenance = {**fitted.provenance, "held": f"link_efficiency, start_s: {BOOK}"}
    return replace(fitted.changed(**LINKS, **shares), provenance=provenance)


# Shares of communication, of which `exposed_slices` is the data sheet's.
EXPOSED_NAMES = (*EXPOSED, "exposed_per_slice")


# Chips without published steps, and the chip whose constants they have.
LIKE = {
    "a100_40gb": "a100_80gb",
    "h200": "h100",
    "b200": "h100",
    "gb200": "h100",
    "tpu_v2": "tpu_v3",
}


def rounded(value: Any) -> Any:
    """Plain data with six digits of every number."""
    if isinstance(value, Mapping):
        return {name: rounded(inner) for name, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    record()
