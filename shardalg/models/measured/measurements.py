"""Measured steps of dense Transformers, read from tables: model, machine, strategy and seconds.

A row is a mapping (of a list, a CSV or JSON file, a pandas table). It has the sizes of
`DenseTransformer` by their names, or by those of MaxText's and llm-foundry's tables, a chip,
a mesh, and one of `step_time_s` (seconds), `tokens_per_s` (of all devices) and `tflops_per_chip`
(1e12 per second and chip; 6 flops per parameter and token and 12 L S N D per token, without
rematerialised work). A cell that is empty, None or NaN counts as missing.

`calibrate` fits the constants of chips to such a table.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardalg.costs.calibration.by_cause import amounts
from shardalg.costs.calibration.constants import CONSTANTS, EXPOSED, Calibration
from shardalg.costs.calibration.fit import Fit, Free, Measured, fit
from shardalg.costs.hardware import load
from shardalg.costs.topology import Machine, arranged
from shardalg.errors import HardwareError, ShardalgError, TableError
from shardalg.models.deeper import machine_for, work_of
from shardalg.models.dense import DenseTransformer
from shardalg.models.dense_strategies import mesh_of
from shardalg.plan.plan import Plan

Row = Mapping[str, Any]
MEASURED = ("step_time_s", "tokens_per_s", "tflops_per_chip")
"""The columns of a measurement; a row has exactly one of these."""
_UNITLESS = {"step_time": "step_time_s", "time": "step_time_s", "tokens": "tokens_per_s"}
_NAMES = {
    "d_model": "model_dim",
    "n_layers": "layers",
    "n_heads": "heads",
    "grad_accum": "microbatches",
    "gpu": "chip",
}
_FIELDS = tuple(field.name for field in fields(DenseTransformer))


@dataclass(frozen=True)
class MeasuredStep:
    """A measured training step of a dense Transformer.

    Attributes:
      mesh: size of each axis; strategy: a name for `DenseTransformer.plan`.
      step_time_s: measured seconds of a step.
    """

    name: str
    model: DenseTransformer
    mesh: Mapping[str, int]
    strategy: str
    chip: str
    step_time_s: float


def from_row(row: Row, dims: Mapping[str, Row] | None = None) -> MeasuredStep:
    """Read a measured step from a row of a table.

    Args:
      dims: for each name in the column "model", a mapping of size names to sizes. A row that has
        only the name takes its sizes from here.

    Raises:
      TableError: a size, a chip or a measurement that is missing, not a number, or without unit.
    """
    given = {**_dims_of(row, dims or {}), **row}
    given = {_NAMES.get(name, name): value for name, value in given.items()}
    _check(given)
    # A row without a mesh shards all its devices by FSDP. Slices become a mesh axis of their own,
    # because they are connected by a slower network.
    devices = given.get("gpus", given.get("chips_per_slice", 1) * given.get("slices", 1))
    mesh = dict(given.get("mesh") or {"fsdp": devices})
    if given.get("slices", 1) > 1:
        mesh = {"slice": given["slices"], **mesh}
    model = _model(given, math.prod(mesh.values()))
    return MeasuredStep(
        _name(given, mesh),
        model,
        mesh,
        given.get("strategy", "fsdp_tensor" if "tensor" in mesh else "fsdp"),
        given["chip"],
        _seconds(given, model, math.prod(mesh.values())),
    )


def _name(given: Row, mesh: Mapping[str, int]) -> str:
    """Return the text of a row's chip, model, sequence length and mesh."""
    sizes = ",".join(f"{axis}={size}" for axis, size in mesh.items())
    return f"{given['chip']} {given.get('model', '')} {given['seq']} on {sizes}"


def _check(given: Row) -> None:
    """Raise a `TableError` unless a row has one measurement, and valid values in all columns.

    Columns that the row lacks are not checked, except chip, seq and vocab, which every row has.
    """
    # A name such as "tokens" could be per step or per second, so a column without a unit is
    # refused, and the error gives the name with the unit.
    measurements = [name for name in MEASURED if name in given]
    unitless = [name for name in _UNITLESS if name in given]
    if len(measurements) != 1:
        reason = (
            f"{unitless[0]!r} has no unit: write {_UNITLESS[unitless[0]]}"
            if unitless
            else f"got {measurements}"
        )
        raise TableError(f"a measured row has one of {', '.join(MEASURED)}; {reason}.")
    if not isinstance(given.get("chip"), str):
        raise TableError(f"a measured row has chip = {given.get('chip')!r}: write its name.")
    # These columns have one check: a finite number above 0.
    for name in ("seq", "vocab", *measurements, *(name for name in _AMOUNTS if name in given)):
        if not _is_amount(given.get(name)):
            raise TableError(
                f"a measured row has {name} = {given.get(name)!r}: write a number above 0."
            )
    # Every other column has its own check and the text that tells a user a valid value.
    for name, (is_valid, valid_text) in _CHOICES.items():
        if name in given and not is_valid(given[name]):
            raise TableError(f"a measured row has {name} = {given[name]!r}: write {valid_text}.")


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 1


_AMOUNTS = ("expansion_ratio", "per_device_batch")
_CHOICES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("gpus", "slices", "chips_per_slice", "model_dim", "heads"),
        (_is_size, "a whole number of at least 1"),
    ),
    "mesh": (
        lambda value: isinstance(value, Mapping) and all(map(_is_size, value.values())),
        "sizes by axis, in text 'data=2,fsdp=8'",
    ),
    "ffn_matrices": (lambda value: type(value) is int and value in (2, 3), "2, or 3 (gated)"),
    "activation_checkpointing": (lambda value: type(value) is bool, "True or False"),
    "strategy": (lambda value: isinstance(value, str), "the name of one"),
}
"""The check of each entry of a row, and the text for the error."""


def _dims_of(row: Row, dims: Any) -> Row:
    """Return the sizes that `dims` has for the model name of a row; {} if it has none."""
    name = row.get("model", "")
    good = isinstance(name, Hashable) and isinstance(dims, Mapping)
    found = dims.get(name, {}) if good else None
    if not isinstance(found, Mapping):
        raise TableError(f"model = {name!r}: write a name, and sizes by name in 'dims'.")
    return found


def _model(given: Row, devices: int) -> DenseTransformer:
    """Return the model of a row; `devices` turns a batch per device into the global batch.

    Columns of other tables are translated, e.g. `expansion_ratio` 4 with model_dim 64 to hidden_dim
    256.

    Raises:
      TableError: the row lacks a size.
    """
    sizes: dict[str, Any] = {name: given[name] for name in _FIELDS if name in given}
    # Most tables give the heads only. A size that is missing gets 0 here and is reported below.
    sizes.setdefault("head_dim", sizes.get("model_dim", 0) // max(1, sizes.get("heads", 1)))
    if "expansion_ratio" in given:
        sizes["hidden_dim"] = _plain(given["expansion_ratio"] * sizes.get("model_dim", 0))
    if "per_device_batch" in given:
        sizes["batch"] = round(given["per_device_batch"] * devices)
    if "ffn_matrices" in given:
        sizes["gated"] = given["ffn_matrices"] == 3
    if "activation_checkpointing" in given:
        sizes["remat"] = "full" if given["activation_checkpointing"] else False
    # Published tables describe optimizer and attention in free text, so the name is only a part of
    # the cell: comparing whole cells would refuse most tables.
    optimizer_text = str(given.get("optimizer", "adam"))
    sizes["optimizer"] = "adam" if "adamw" in optimizer_text else optimizer_text
    attention_text = str(given.get("attention", "flash"))
    sizes["attention"] = "fused" if "flash" in attention_text else attention_text
    missing_names = [name for name in _REQUIRED if name not in sizes]
    if missing_names:
        raise TableError(f"a measured row lacks {', '.join(missing_names)}.")
    return DenseTransformer(**sizes)


_REQUIRED = ("layers", "model_dim", "hidden_dim", "heads", "vocab", "seq", "batch")


def _seconds(given: Row, model: DenseTransformer, devices: int) -> float:
    """Return the seconds of a step from the row's measurement: one of the columns `MEASURED`.

    Tokens per second are of all devices; `tflops_per_chip` is 1e12 flops per second and device.
    """
    tokens = model.batch * model.seq
    if "step_time_s" in given:
        return float(given["step_time_s"])
    if "tokens_per_s" in given:
        return float(tokens / given["tokens_per_s"])
    # The published rate counts `counted_flops` for a step, so that they give the seconds back.
    return float(model.counted_flops / (devices * given["tflops_per_chip"] * 1e12))


def read(table: Any) -> tuple[MeasuredStep, ...]:
    """Read measurements from rows, a pandas table, or the path of a CSV or JSON file.

    A JSON file is a list of rows, or {"rows": [...], "dims": {name: sizes}}.

    Raises:
      TableError: `table` has another type, or an error of `from_row` with the number of the row.
    """
    data = _loaded(Path(table)) if isinstance(table, str | Path) else table
    if hasattr(data, "to_dict") and not isinstance(data, Mapping):
        # pandas marks an empty cell by NaN. It becomes None, which `_filled_cells` leaves out.
        data = data.astype(object).where(data.notna(), None).to_dict("records")
    # Only the JSON form {"rows", "dims"} has sizes by model name; all other tables are plain rows.
    dims = data.get("dims") if isinstance(data, Mapping) else None
    rows = data.get("rows") if isinstance(data, Mapping) else data
    if not isinstance(rows, Iterable) or isinstance(rows, str):
        raise TableError(
            f"a table of measurements is a list of rows, a pandas table or the path of a .csv or "
            f".json file, got {type(table).__name__}."
        )
    measured_steps = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TableError(f"row {number}: {row!r} is no mapping of names to values.")
        try:
            measured_steps.append(from_row(_filled_cells(row), dims))
        except ShardalgError as error:
            raise TableError(f"row {number}: {error}") from None
    return tuple(measured_steps)


def told_apart(rows: Sequence[MeasuredStep]) -> tuple[MeasuredStep, ...]:
    """Give each measurement a unique name; equal names are extended by the fields that differ.

    >>> sizes = dict(layers=1, model_dim=64, hidden_dim=128, heads=2, vocab=64, seq=16, batch=8)
    >>> one = from_row({"chip": "h100", "model": "small", "gpus": 8, "step_time_s": 1.0, **sizes})
    >>> other = replace(one, model=replace(one.model, optimizer="sgd"))
    >>> for row in told_apart((one, other, other)):
    ...     print(row.name)
    h100 small 16 on fsdp=8, optimizer=adam
    h100 small 16 on fsdp=8, optimizer=sgd
    h100 small 16 on fsdp=8, optimizer=sgd, again 1
    """
    rows_by_name: dict[str, list[MeasuredStep]] = {}
    for row in rows:
        rows_by_name.setdefault(row.name, []).append(row)
    # Only the fields that differ among rows of one name are added: equal fields tell nothing apart.
    differing_fields = {}
    for name, same in rows_by_name.items():
        all_sizes = [_sizes(row) for row in same]
        first = all_sizes[0].items()
        differing_fields[name] = [
            field for field, value in first if any(s[field] != value for s in all_sizes)
        ]
    name_counts: Counter[str] = Counter()
    renamed = []
    for row in rows:
        sizes = [f"{field}={_sizes(row)[field]}" for field in differing_fields[row.name]]
        name = ", ".join((row.name, *sizes))
        # Rows that agree in all fields get a number.
        again = f", again {name_counts[name]}" if name_counts[name] else ""
        name_counts[name] += 1
        renamed.append(replace(row, name=f"{name}{again}"))
    return tuple(renamed)


def _sizes(row: MeasuredStep) -> dict[str, Any]:
    """Return the fields of a row except its chip, mesh and seconds."""
    return {**{name: getattr(row.model, name) for name in _FIELDS}, "strategy": row.strategy}


def _filled_cells(row: Row) -> dict[str, Any]:
    """Return a row without empty cells; a mesh in text is parsed, and 8.0 becomes 8.

    E.g. {"mesh": "data=2, fsdp=8", "gpus": 16.0, "batch": ""} gives {"mesh": {"data": 2, "fsdp":
    8}, "gpus": 16}. A mesh in another form stays text, and `_check` refuses it.
    """
    plain_cells = {name: _plain(value) for name, value in row.items()}
    cells = {name: value for name, value in plain_cells.items() if value is not None}
    mesh = cells.get("mesh")
    if isinstance(mesh, str):
        pairs = (part.partition("=") for part in mesh.replace(" ", "").split(","))
        sizes = {axis: size for axis, _, size in pairs}
        is_parsed = all(size.isdecimal() for size in sizes.values())
        cells["mesh"] = {axis: int(size) for axis, size in sizes.items()} if is_parsed else mesh
    return cells


def _plain(value: Any) -> Any:
    """Return a cell's value: None for an empty cell, an int for a whole number.

    >>> [_plain(cell) for cell in (8.0, 0.5, float("nan"), "", "full", False)]
    [8, 0.5, None, None, 'full', False]
    """
    plain = value.item() if isinstance(value, np.generic) else value
    if plain == "" or (isinstance(plain, float) and math.isnan(plain)):
        return None
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def _loaded(path: Path) -> Any:
    """Return the content of a JSON file, or the rows of a CSV file with parsed cells.

    Raises:
      TableError: the file cannot be read, or a row has more cells than there are columns.
    """
    try:
        text = path.read_text()
        if path.suffix != ".csv":
            return json.loads(text)
    except (OSError, ValueError) as error:
        raise TableError(f"{path}: no table of measurements ({error}).") from None
    rows = list(csv.DictReader(text.splitlines()))
    for number, row in enumerate(rows):
        # `csv.DictReader` puts the cells beyond the last column under the key None.
        if None in row:
            raise TableError(f"{path}: row {number} has more cells than there are columns.")
        for name, cell in row.items():
            # Lower case makes JSON of the "True" that pandas writes. Other text is kept.
            with suppress(ValueError):
                row[name] = json.loads(str(cell).lower())
    return rows


def calibrate(
    table: Any,
    constants: Sequence[str] | None = None,
    *,
    hardware: str | Machine | None = None,
    name: str = "calibrated",
    given: Mapping[str, float] | None = None,
) -> Fit:
    """Fit the constants of chips to measured steps; return them with their errors.

    `calibrate(...).apply(hardware)` is the machine with the fitted constants.

    Args:
      table: pairs of a plan and the measured seconds of its step; or a table for `read`:
        rows with the sizes of a `DenseTransformer`, a chip, a mesh and one of step_time_s,
        tokens_per_s and tflops_per_chip.
      constants: the constants to fit (`costs.calibration.constants.CONSTANTS`). "exposed" fits all
        exposed shares of communication as one constant, "memory" fits traffic and passes as one.
        None chooses one constant for every four steps, first the share of the matrix unit's peak.
      hardware: the chip or topology that the plans ran on; a table names its chips itself.
      name: the name of the software stack.
      given: values of the constants before the fit; None takes the chip's own.

    Raises:
      TableError: a row without a unit or a number, or fewer rows than constants.
      HardwareError: an unknown chip or constant, or plans without hardware.

    >>> import jax, shardalg as sa
    >>> mesh = sa.Mesh({"X": 2})
    >>> sizes = [jax.ShapeDtypeStruct((n, n), "bfloat16") for n in (1024, 2048)]
    >>> plans = [sa.plan(lambda x: x @ x, x, mesh=mesh) for x in sizes]
    >>> found = calibrate([(plans[0], 6e-6), (plans[1], 3.1e-5)], hardware="h100")
    >>> f"{found.apply('h100').calibration['matrix_efficiency']:.1f}"
    '0.7'
    """
    pairs = _pairs(table)
    is_read = isinstance(table, tuple) and all(isinstance(r, MeasuredStep) for r in table)
    rows = told_apart(table if is_read else read(table)) if pairs is None else ()
    # Wrong names and values are found before any step is planned, which takes seconds.
    free = _chosen(constants, len(rows if pairs is None else pairs))
    if given is not None:
        _base("", name, given)
    measured_steps: list[Measured] = []
    if pairs is not None:
        if hardware is None:
            raise HardwareError("calibrate of plans needs hardware=..., the machine they ran on.")
        for number, (plan, seconds) in enumerate(pairs):
            on = arranged(hardware, plan.mesh)
            work = amounts(plan.program, plan.graph, on)
            step = Measured(f"step {number}", on.chip.name, work, float(seconds))
            measured_steps.append(step)
    else:
        for number, row in enumerate(rows):
            # The error keeps its type, so that a caller can catch a HardwareError of one row.
            try:
                measured_steps.append(measured(row))
            except ShardalgError as error:
                raise type(error)(f"row {number}: {error}") from None
    # Constants belong to a chip, so that each chip of the table has values of its own.
    chips = tuple(dict.fromkeys(step.chip for step in measured_steps))
    start_constants = {chip: _base(chip, name, given) for chip in chips}
    result = fit(measured_steps, start_constants, [Free(names, chips) for names in free])
    errors = {
        one: {"error": result.errors[one], "left_out": e} for one, e in result.left_out.items()
    }
    # The fitted constants carry their source: the steps, and the error of each.
    fitted = {constant: list(chips) for names in free for constant in names}
    provenance = {"source": "steps of the user's own", "fitted": fitted, "rows": errors}
    calibrations = {
        c: replace(one, provenance=provenance) for c, one in result.calibrations.items()
    }
    return replace(result, calibrations=calibrations)


TOGETHER: Mapping[str, tuple[str, ...]] = {"exposed": EXPOSED, "memory": ("traffic", "passes")}
"""Names for several constants that are fitted as one."""
_FIRST = ("matrix_efficiency", "exposed", "memory")
"""The default constants, in this order, because a few steps determine the first ones best."""


def _chosen(constants: Any, steps: int) -> list[tuple[str, ...]]:
    """Return the constants to fit for this number of steps; each tuple is fitted as one value.

    Args:
      constants: names of constants, or of groups of them (`TOGETHER`). None chooses by `steps`.

    Raises:
      HardwareError: an unknown name, or no list of names.
    """
    if constants is None:
        # One constant per four steps, because more constants would fit the noise of so few steps.
        constants = _FIRST[: max(1, steps // 4)]
    is_list = isinstance(constants, Sequence) and not isinstance(constants, str)
    known_names = (*CONSTANTS, *TOGETHER)
    if not is_list or not constants or not all(c in known_names for c in constants):
        raise HardwareError(
            f"constants {constants!r}: give some of {', '.join(known_names)}, each once, as in "
            '["matrix_efficiency"].'
        )
    return [TOGETHER.get(name, (name,)) for name in constants]


def _base(chip: str, name: str, given: Mapping[str, float] | None) -> Calibration:
    """Return the constants of a chip before the fit: `given`, or if None the chip's own.

    Raises:
      HardwareError: `given` is no mapping, or has an unknown constant or an impossible value.
    """
    if given is None:
        return Calibration(name, load(chip).calibration.values)
    if not isinstance(given, Mapping):
        raise HardwareError(
            f"calibration {name!r} has {given!r}: give numbers by constant, as in "
            '{"exposed_weights": 0.5}.'
        )
    return Calibration(name, tuple(given.items()))


def _pairs(steps: Any) -> list[tuple[Plan, float]] | None:
    """Return pairs of a plan and its seconds, or None for a table of measurements.

    Raises:
      TableError: the seconds of a pair are no number above 0.
    """
    if not isinstance(steps, Sequence) or isinstance(steps, str) or not steps:
        return None
    if not all(isinstance(s, tuple) and len(s) == 2 and isinstance(s[0], Plan) for s in steps):
        return None
    for number, (_, seconds) in enumerate(steps):
        if not _is_amount(seconds):
            raise TableError(f"step {number} took {seconds!r} s: write a number above 0.")
    return list(steps)


def measured(row: MeasuredStep) -> Measured:
    """Return a row's seconds with the amounts of work of its plan, for the fit."""
    mesh = mesh_of(row.mesh)
    on = machine_for(mesh, row.chip)
    done = work_of(row.model.layers, row.model.shallow_plans(mesh, row.strategy), on)
    return Measured(row.name, on.chip.name, done, row.step_time_s)
