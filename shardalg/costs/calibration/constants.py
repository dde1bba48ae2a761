"""Constants that the datasheet's seconds are multiplied with, per family of chips."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from shardalg.costs.calibration.by_cause import MOVED, ProgramAmounts
from shardalg.errors import HardwareError

SCHEMA = "shardalg.calibration/1"
FILES = Path(__file__).parent / "families"
# Share of an attention kernel's products that a causal mask hides; the kernel skips them.
SKIPPED = 0.5


class Meaning(NamedTuple):
    """Unit, default and bounds of a constant, and a description."""

    unit: str
    default: float
    least: float
    most: float
    text: str


CONSTANTS: Mapping[str, Meaning] = {
    "matrix_efficiency": Meaning("1", 1.0, 0.3, 1.0, "share of its peak that products reach"),
    "reread_bytes": Meaning(
        "B/flop", 0.0, 0.0, 0.2, "traffic on the chip that a product waits for, per operation"
    ),
    "kernel_bytes": Meaning(
        "B/flop", 0.0, 0.0, 0.5, "the same of products that a kernel keeps on the chip"
    ),
    "traffic": Meaning(
        "1",
        1.0,
        0.0,
        5.0,
        "time that products and their neighbours wait for memory, to that of all their bytes",
    ),
    "passes": Meaning(
        "1", 1.0, 0.0, 5.0, "the same of operators that no product can hide: norms, softmax, update"
    ),
    "exposed": Meaning(
        "1",
        1.0,
        0.0,
        4.0,
        "time of bytes on links that nothing hides, to all of it at the link's speed",
    ),
    "hops": Meaning("1", 1.0, 0.0, 3.0, "time of hops that nothing hides, to all of their latency"),
    "pipelined": Meaning(
        "1",
        1.0,
        0.5,
        3.0,
        "time of computation in a step whose layers are pipelined, to that of the same elsewhere",
    ),
}
PIPELINED = "pipelined"
# Largest number of constants of a family.
MOST = 4


@dataclass(frozen=True)
class Calibration:
    """Constants of a family of chips, and where they are from.

    Attributes:
      name: name of the family.
      chips: the chips that share the constants.
      values: value of each constant; a missing constant keeps its default.
      provenance: the fitted constants, the data, the errors, and the leave-one-out errors.

    Raises:
      HardwareError: a constant is unknown, a value is outside its bounds, or there are more than
        four constants.
    """

    name: str
    chips: tuple[str, ...]
    values: Mapping[str, float]
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            raise HardwareError(
                f"calibration {self.name!r} has {self.values!r}: give numbers by constant, as in "
                '{"exposed": 0.5}.'
            )
        unknown = [name for name in self.values if name not in CONSTANTS]
        if unknown or len(self.values) > MOST:
            raise HardwareError(
                f"calibration {self.name!r} has the constants {', '.join(self.values)}: give at "
                f"most {MOST} of {', '.join(CONSTANTS)}."
            )
        for name, value in self.values.items():
            least, most = CONSTANTS[name].least, CONSTANTS[name].most
            if not isinstance(value, int | float) or not least <= value <= most:
                raise HardwareError(
                    f"calibration {self.name!r}: {name} is {value!r}; write {least} to {most}."
                )

    def __getitem__(self, name: str) -> float:
        """Return a constant, or its default."""
        return self.values.get(name, CONSTANTS[name].default)

    def weights(self, done: ProgramAmounts, overlap: str = "measured") -> dict[str, float]:
        """Return the factor of the seconds of each cause.

        A step takes at least as long as its communication, because only computation can hide it.
        If the family has the constant "pipelined", the computation of a pipelined step takes longer
        by this factor, and its communication has the datasheet's seconds.

        Args:
          overlap: "measured" exposes the measured share of communication. "none" exposes all of it,
            or the measured share if that is larger. "full" exposes only the communication that
            takes longer than the computation.

        >>> from shardalg.costs.calibration.by_cause import Key
        >>> done = ProgramAmounts({Key("contraction", (), "", "forward"): {"matrix": 1.0}})
        >>> NOTHING.weights(done)["matrix"], NOTHING.weights(done, "full")["link"]
        (1.0, 0.0)
        """
        apart = done.pipelined and PIPELINED in self.values
        local = self._local(self[PIPELINED] if apart else 1.0)
        seconds = done.by_cause()
        computed = sum(weight * seconds[cause] for cause, weight in local.items())
        moved = sum(seconds[cause] for cause in MOVED)
        measured = CONSTANTS["exposed"].default if apart else self["exposed"]
        wanted = {"measured": measured, "none": max(1.0, measured), "full": 0.0}[overlap]
        # Computation hides at most its own seconds: exposed * moved >= moved - computed.
        exposed = max(wanted, 1 - computed / moved) if moved else wanted
        waits = {"measured": self["hops"], "none": max(1.0, self["hops"]), "full": exposed}
        return {**local, **dict.fromkeys(MOVED, exposed), "latency": waits[overlap]}

    def _local(self, slower: float) -> dict[str, float]:
        """Return the factor of the seconds of each cause of computation."""
        share = slower / self["matrix_efficiency"]
        return {
            "matrix": share,
            "rereads": slower * self["reread_bytes"],
            "kernel": SKIPPED * share,
            "kernel_rereads": slower * self["kernel_bytes"],
            "traffic": slower * self["traffic"],
            "passes": slower * self["passes"],
        }

    def step_time_s(self, done: ProgramAmounts) -> float:
        """Return the seconds of a step: computation and exposed communication."""
        seconds = done.by_cause()
        return sum(weight * seconds[cause] for cause, weight in self.weights(done).items())

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return {"schema": SCHEMA, **asdict(self)}


# No measurements: every constant is its default.
NOTHING = Calibration("datasheet", (), {}, {})


def from_json(data: Any, where: str = "calibration") -> Calibration:
    """Return a `Calibration` from plain data.

    Raises:
      HardwareError: the schema is another one, a key is missing, or `Calibration` refuses a value.

    >>> from_json(NOTHING.to_json()) == NOTHING
    True
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise HardwareError(f"{where}: schema {found!r}, but {SCHEMA!r} is read.")
    names = ("name", "chips", "values", "provenance")
    missing = [name for name in names if name not in data]
    if missing:
        raise HardwareError(f"{where}: {', '.join(missing)} is missing.")
    return Calibration(data["name"], tuple(data["chips"]), data["values"], data["provenance"])


@cache
def families() -> tuple[Calibration, ...]:
    """Return the calibrations of the package."""
    found = sorted(FILES.glob("*.json"))
    return tuple(from_json(json.loads(path.read_text()), str(path)) for path in found)


def calibration_of(chip: str) -> Calibration:
    """Return the calibration of a chip's family, or the datasheet's for an unknown chip."""
    found = (one for one in families() if chip in one.chips)
    return next(found, replace(NOTHING, chips=(chip,)))
