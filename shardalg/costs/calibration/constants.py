"""Constants that turn a data sheet's seconds into the seconds of real steps.

A constant belongs to a chip and its software stack ("xla", "pytorch"), never to a model. Each has
a source: a fit on published steps, a data sheet, or a value that several chips share. The chip's
file (`costs/chips/`) has the values, the rows that they were fitted on, and the error of every row
when all other rows were fitted (leave-one-out).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from shardalg.errors import HardwareError

DATASHEET = "datasheet"
SKIPPED = 0.5
"""Share of an attention kernel's products that a causal mask hides; the kernel skips them."""
# A chip that has the constants of another chip is predicted worse, so its errors are multiplied.
BORROWED = 2.0


class Meaning(NamedTuple):
    """Definition of a calibration constant.

    Attributes:
      unit: "1" for a share, or "s".
      default: the value that does not change the data sheet's seconds.
      least, most: bounds of the value.
      text: description for users.
    """

    unit: str
    default: float
    least: float
    most: float
    text: str


CONSTANTS: Mapping[str, Meaning] = {
    "matrix_efficiency": Meaning("1", 1.0, 0.1, 1.0, "share of its peak that products reach"),
    "kernel_efficiency": Meaning(
        "1", 1.0, 0.02, 1.5, "the same of attention kernels, for the half that a causal mask keeps"
    ),
    "traffic": Meaning(
        "1", 1.0, 0.0, 5.0, "memory time of products and their neighbours, to bytes / bandwidth"
    ),
    "passes": Meaning(
        "1", 1.0, 0.0, 5.0, "the same of operators apart from products: norms, softmax, update"
    ),
    "link_efficiency": Meaning(
        "1", 1.0, 0.1, 1.0, "share of the data sheet's rate that links reach, measured alone"
    ),
    "start_s": Meaning("s", 0.0, 0.0, 1e-3, "seconds until a collective starts, measured alone"),
    "exposed_weights": Meaning(
        "1", 1.0, 0.0, 4.0, "share of weight gathers and gradient scatters that nothing hides"
    ),
    "exposed_data": Meaning(
        "1", 1.0, 0.0, 4.0, "the same of all-reduces of gradients (data parallelism)"
    ),
    "exposed_tensor": Meaning(
        "1", 1.0, 0.0, 4.0, "the same of collectives on activations (tensor parallelism)"
    ),
    "exposed_network": Meaning("1", 1.0, 0.0, 4.0, "the same of bytes between islands of GPUs"),
    "exposed_slices": Meaning(
        "1", 1.0, 0.0, 8.0, "time of bytes between slices, to bytes / data sheet's bandwidth"
    ),
    "exposed_per_slice": Meaning(
        "1", 0.0, 0.0, 4.0, "the same, in addition for each slice that the collective joins"
    ),
    "pipelined": Meaning(
        "1", 1.0, 0.5, 3.0, "computation of a step with pipelined layers, to the same elsewhere"
    ),
}
PIPELINED = "pipelined"
EXPOSED = tuple(n for n in CONSTANTS if n.startswith("exposed_") and n != "exposed_per_slice")
"""Shares that replace each other; "exposed_per_slice" is added to "exposed_slices" instead."""


@dataclass(frozen=True)
class Calibration:
    """Constants that turn the data sheet's seconds on a chip into the seconds of real steps.

    Attributes:
      software: the software stack: "xla", "pytorch", a name of the user's own, or "datasheet" for
        no constants.
      values: pairs (name in `CONSTANTS`, value); a missing constant has its default.
      provenance: JSON object with the source, the fitted constants, and for each measured step its
        error and its leave-one-out error. It is ignored by comparisons.
      borrowed: the chip whose measured steps gave the constants; "" for the chip itself.
      was_chosen: whether the user asked for the constants (`Hardware.on`). Otherwise they are
        dropped if a figure of the chip is replaced.

    Raises:
      HardwareError: a constant is unknown, or a value is outside its bounds.
    """

    software: str = DATASHEET
    values: tuple[tuple[str, float], ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    borrowed: str = ""
    was_chosen: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raise HardwareError if a constant is unknown or outside of its range."""
        for name, value in self.values:
            if name not in CONSTANTS:
                raise HardwareError(
                    f"calibration {self.software!r} has the constant {name!r}: the constants are "
                    f"{', '.join(CONSTANTS)}."
                )
            least, most = CONSTANTS[name].least, CONSTANTS[name].most
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not least <= value <= most:
                raise HardwareError(
                    f"calibration {self.software!r}: {name} is {value!r}; write {least} to {most}."
                )

    @property
    def is_datasheet(self) -> bool:
        """True if there are no constants, so that prices are those of the data sheet alone."""
        return self.software == DATASHEET

    def __getitem__(self, name: str) -> float:
        """Return the value of the constant with a name, or its default.

        Raises:
          HardwareError: there is no constant of this name.
        """
        for constant, value in self.values:
            if constant == name:
                return value
        # A constant that was not fitted has its default; any other name is a mistake.
        if name not in CONSTANTS:
            close_names = get_close_matches(str(name), list(CONSTANTS), 1)
            hint = (
                f"did you mean {close_names[0]!r}?"
                if close_names
                else f"there are {', '.join(CONSTANTS)}."
            )
            raise HardwareError(f"no constant has the name {name!r:.40}: {hint}")
        return CONSTANTS[name].default

    def changed(self, **values: float) -> Calibration:
        """Return the calibration with other values of some constants, and without `provenance`.

        >>> Calibration("xla", (("traffic", 1.5),)).changed(passes=0.5).values
        (('traffic', 1.5), ('passes', 0.5))
        """
        return replace(self, values=tuple({**dict(self.values), **values}.items()), provenance={})

    def pipelined(self) -> Calibration:
        """Return the constants of a step whose layers are stages of a pipeline.

        Its computation takes longer by the constant "pipelined". Its communication is not hidden
        and has the data sheet's seconds. A calibration without this constant is returned unchanged.

        >>> both = (("exposed_tensor", 2.0), ("pipelined", 1.5))
        >>> Calibration("xla", both).pipelined()["exposed_tensor"]
        1.0
        """
        if PIPELINED not in dict(self.values):
            return self
        slower = self[PIPELINED]
        # An efficiency is a share of a rate and is divided; traffic and passes are factors of
        # seconds.
        efficiencies = {n: self[n] / slower for n in ("matrix_efficiency", "kernel_efficiency")}
        traffic = {n: self[n] * slower for n in ("traffic", "passes")}
        exposed = dict.fromkeys(EXPOSED, 1.0)
        other_constants = {n: v for n, v in self.values if n != PIPELINED}
        constants = {**other_constants, **exposed, **traffic, **efficiencies}
        return replace(self, values=tuple(constants.items()))

    def exposed(self, kind: str, role: str) -> float:
        """Return the share of a collective's seconds on links that no computation hides.

        Args:
          kind: kind of the collective, such as "all_gather".
          role: role of the value that it moves, such as "weight", "gradient" or "activation".

        >>> one = Calibration("xla", (("exposed_weights", 0.3), ("exposed_tensor", 0.9)))
        >>> one.exposed("all_gather", "weight"), one.exposed("all_gather", "activation")
        (0.3, 0.9)
        """
        # ZeRO gathers weights and scatters gradients along one axis, ahead of or behind the layer
        # that needs them; plain data parallelism reduces gradients; the rest is on the critical
        # path of the layers.
        if role == "weight" or (role == "gradient" and kind == "reduce_scatter"):
            return self["exposed_weights"]
        return self["exposed_data" if role == "gradient" else "exposed_tensor"]

    @property
    def errors(self) -> tuple[float, float] | None:
        """Pair (median, worst) of the leave-one-out errors of the step time.

        They are shares of the measured time. None if the constants were not fitted on steps.
        """
        rows = self.provenance.get("rows", {})
        found = [abs(row["left_out"]) for row in rows.values()]
        if not found:
            return None
        wider = BORROWED if self.borrowed else 1.0
        return wider * statistics.median(found), wider * max(found)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads."""
        return {"values": dict(self.values), "provenance": dict(self.provenance)}


NOTHING = Calibration()
"""Every constant has its default, which leaves the data sheet's seconds unchanged."""


def from_json(data: Any, software: str, where: str = "calibration") -> Calibration:
    """Return a `Calibration` from parsed JSON.

    The data is `{"values": {constant: value}, "provenance": {...}}`.

    Args:
      software: the software stack that the constants are for.
      where: name of the file, for error messages.

    Raises:
      HardwareError: a key is missing, a constant is unknown, or a value is outside its bounds.

    >>> from_json({"values": {"traffic": 1.5}, "provenance": {}}, "xla")["traffic"]
    1.5
    """
    entry = '{"values": {constant: number}, "provenance": {...}}'
    values, provenance = (
        (data.get("values"), data.get("provenance")) if isinstance(data, dict) else (None, None)
    )
    if not isinstance(values, dict) or not isinstance(provenance, dict):
        raise HardwareError(f"{where}: calibration {software!r} is {data!r:.80}; write {entry}.")
    rows = provenance.get("rows", {})
    good = isinstance(rows, dict) and all(
        isinstance(row, dict) and isinstance(row.get("left_out"), int | float)
        for row in rows.values()
    )
    if not good:
        raise HardwareError(
            f'{where}: calibration {software!r} has rows without a number "left_out".'
        )
    # The constructor refuses unknown constants and values outside of their bounds.
    return Calibration(software, tuple(values.items()), provenance)
