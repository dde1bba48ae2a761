"""The user's own hardware, fitted to saved measurements, with the errors of the fit.

A file of `measurement.save` has the measured step. With `isolate=True` it also has each distinct
contraction and collective, measured alone. Each of these is one row of the fit: its seconds, and
its amount of work for every figure. The figures are the rates of contractions by element type and
size class, of memory and of pointwise operators; and for collectives, by kind and axes, a time per
execution and bytes per second.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardalg.costs.calibration.fit import CoreFit, CoreTime, core_fit
from shardalg.costs.hardware import ALL_UNITS, Hardware, Source
from shardalg.errors import TableError
from shardalg.lower.measure import SCHEMA
from shardalg.models.measured.this_machine import calibrated
from shardalg.tables import Table

_PLAIN = (
    "device",
    "mesh",
    "digest",
    "devices",
    "device_bytes",
    "cores",
    "amounts",
    "ours",
    "alone",
)


@dataclass(frozen=True)
class Calibrated:
    """The figures and errors from saved measurements.

    Attributes:
      hardware: the machine with the fitted figures; fit: the fit and its errors.
      rows: the seconds of each measured row by its name, summed over all devices.
      untold: figures that these measurements do not determine; they are left out of the fit.
    """

    hardware: Hardware
    fit: CoreFit
    rows: Mapping[str, float]
    untold: tuple[str, ...]

    def table(self) -> Table:
        """Return a table with a row per step and per operator that was measured alone.

        Errors are predicted / measured - 1.
        """
        fit = self.fit
        rows = ((n, s, fit.errors[n], fit.left_out[n]) for n, s in self.rows.items())
        return Table(("measured", "busy_s", "error", "left_out_error"), tuple(rows))

    def __repr__(self) -> str:
        """Return the table, with the median and the worst error of left-out rows."""
        # Each row is left out once and predicted from the others, so that the errors are of unseen
        # rows.
        errors = sorted(map(abs, self.fit.left_out.values()))
        untold = f"; not told apart: {', '.join(self.untold)}" if self.untold else ""
        return (
            f"{self.table()}\neach foretold by the others: median error "
            f"{statistics.median(errors):.1%}, worst {errors[-1]:.1%}{untold}"
        )


def from_saved(paths: Sequence[str | Path]) -> Calibrated:
    """Fit a device's figures from files of `measurement.save`, all of one kind of device.

    Raises:
      TableError: a file that is no measurement or is cut short; a missing field or an invalid
        number; files of two kinds of devices; not more rows than figures.
    """
    content_by_path = {Path(path): _read(Path(path)) for path in paths}
    files = list(content_by_path.values())
    if not files:
        raise TableError("no measurements: name files that measurement.save(path) wrote.")
    kinds = {_kind(file): str(path) for path, file in content_by_path.items()}
    if len(kinds) > 1:
        kind_text = "; ".join(
            f"{path}: {kind}, {cores} cores" for (kind, cores), path in kinds.items()
        )
        raise TableError(
            f"measurements of more than one machine ({kind_text}): fit each by itself."
        )
    all_rows = [
        row
        for path, file in content_by_path.items()
        for row in _rows(str(path.with_suffix("")), file)
    ]
    # Figures that these rows do not determine are left out of the fit: `untold` has their names.
    rows, untold = _told_apart(all_rows)
    figures = _names(rows)
    if len(rows) <= len(figures):
        raise TableError(
            f"{len(rows)} measured rows cannot tell {len(figures)} figures apart and leave one "
            "out: measure more plans, and with isolate=True, which adds each operator alone."
        )
    fit = core_fit(rows)
    return Calibrated(
        calibrated(_machine(files[0]), fit), fit, {row.name: row.seconds for row in rows}, untold
    )


def _kind(file: Mapping[str, Any]) -> tuple[str, float]:
    """Return the device's name and its processor cores; infinity unless CPU time was measured."""
    return file["device"], file["cores"] if file["ours"]["busy_s"] else math.inf


def _machine(file: Mapping[str, Any]) -> Hardware:
    """Return hardware with the name, memory and cores of a file: no fit is needed for these."""
    name, cores = _kind(file)
    memory, how = file["device_bytes"], f"measured on {file['devices']} x {name}, {file['date']}"
    sources = [Source("hbm_bytes", memory, how)]
    sources += [Source("cores", cores, how)] if math.isfinite(cores) else []
    return Hardware(name, hbm_bytes=memory, cores=cores, sources=tuple(sources))


def _read(path: Path) -> dict[str, Any]:
    """Return the checked content of a file of `measurement.save`, or raise a `TableError`."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TableError(f"{path}: no measurement ({error}). Is the file cut short?") from None
    schema = content.get("schema") if isinstance(content, dict) else type(content).__name__
    if schema != SCHEMA:
        raise TableError(f"{path}: schema {schema!r}, but {SCHEMA!r} is read: measurement.save's.")
    # The schema has no version for optional fields, so each field is looked for.
    missing = [name for name in _PLAIN if name not in content]
    if missing:
        raise TableError(f"{path}: {', '.join(missing)} is missing: measure and save it again.")
    _check(path, content)
    return content


def _check(path: Path, content: Mapping[str, Any]) -> None:
    """Raise a `TableError` unless times and amounts are numbers, and all figures have a unit.

    A file has the measured step ("ours") and, in "alone", single operators ("timing").
    """
    parts = [("step", content), *((str(one.get("name")), one) for one in content["alone"])]
    for name, part in parts:
        timing = part.get("ours" if part is content else "timing") or {}
        if not {"seconds", "busy_s"} <= timing.keys():
            raise TableError(
                f"{path}: {name} has no 'seconds' and 'busy_s', which say their unit: found "
                f"{', '.join(timing) or 'nothing'}. Save it with measurement.save."
            )
        amounts = part.get("amounts") or {}
        unknown = [figure for figure in amounts if figure.partition(".")[0] not in ALL_UNITS]
        if unknown or not amounts:
            raise TableError(f"{path}: {name} takes {unknown or 'nothing'}: measure it again.")
        measured_times = [(unit, s) for unit in ("seconds", "busy_s") for s in timing[unit]]
        bad_numbers = [
            f"{quantity} = {n!r}"
            for quantity, n in (*amounts.items(), *measured_times)
            if not _is_amount(n)
        ]
        if bad_numbers or not timing["seconds"]:
            reason = ", ".join(bad_numbers) or "no runs"
            raise TableError(f"{path}: {name}: {reason}; all are finite numbers from 0.")


def _is_amount(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


def _rows(name: str, file: Mapping[str, Any]) -> Iterable[CoreTime]:
    """Yield the times of the step and of each operator alone; programs without time are skipped.

    Amounts and seconds are sums over all devices. Seconds are processor time on CPU devices, and
    the clock's time on others.
    """
    devices, (_, cores) = file["devices"], _kind(file)
    parts = [(f"{name}: step", file["ours"], file["amounts"])]
    parts += [
        (f"{name}: {one['kind']} {one['name']}", one["timing"], one["amounts"])
        for one in file["alone"]
    ]
    for row_name, timing, amounts in parts:
        median_s = statistics.median(timing["busy_s"] or timing["seconds"])
        # `busy_s` of CPU devices is processor time divided by the number of shared cores, so the
        # factor gives the processor time. Other devices are each busy for the whole step.
        seconds = median_s * (cores if math.isfinite(cores) else devices)
        if seconds:
            yield CoreTime(row_name, {n: a * devices for n, a in amounts.items()}, seconds)


def _names(rows: Sequence[CoreTime]) -> list[str]:
    """Return the figures that the rows determine: rates first, then seconds per execution."""
    found = {name for row in rows for name, amount in row.amounts.items() if amount}
    return sorted(found, key=lambda name: (ALL_UNITS[name.partition(".")[0]] == "s", name))


def _told_apart(rows: Sequence[CoreTime]) -> tuple[list[CoreTime], tuple[str, ...]]:
    """Return the rows with only the figures that a fit can determine, and the other figures.

    A figure is left out if its amounts are a linear combination of other figures' amounts in every
    row. For example, the time per execution is left out if all executions had one size.
    """
    names = _names(rows)
    kept: list[str] = []
    # The fit minimises relative errors, so a row's amounts count per measured second.
    weights = {
        name: np.array([row.amounts.get(name, 0.0) / row.seconds for row in rows]) for name in names
    }
    for name in names:
        # Amounts of flops and of bytes differ by orders of magnitude. Divided by their largest
        # entry, all figures have one scale and need one tolerance.
        scaled = [weights[figure] / weights[figure].max() for figure in (*kept, name)]
        columns = np.stack(scaled)
        if np.linalg.matrix_rank(columns, tol=1e-6) > len(kept):
            kept.append(name)
    kept_rows = []
    for row in rows:
        amounts = {name: row.amounts.get(name, 0.0) for name in kept}
        kept_rows.append(CoreTime(row.name, amounts, row.seconds))
    return kept_rows, tuple(name for name in names if name not in kept)
