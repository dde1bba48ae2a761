"""What the datasheet's seconds are multiplied with: named constants per family of chips."""

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
SKIPPED = 0.5
"""Of the products of a kernel that a causal mask hides, which it does not execute."""


class Meaning(NamedTuple):
    """Of a constant: its unit, what it is without measurements, and what it may be."""

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
MOST = 4
"""Constants that a family may have."""


@dataclass(frozen=True)
class Calibration:
    """Constants of a family of chips, and where they are from.

    Attributes:
      name: of the family; chips: those that share the constants.
      values: constant to value; what is not there keeps its default.
      provenance: which constants were fitted and on what, the errors, and how well each row is
        foretold by the others.

    Raises:
      HardwareError: an unknown constant, a value outside its bounds, more than four.
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
        """A constant, or its default."""
        return self.values.get(name, CONSTANTS[name].default)

    def weights(self, done: ProgramAmounts, overlap: str = "measured") -> dict[str, float]:
        """What the seconds of each cause are multiplied with.

        No more communication is hidden than there is computation to hide it: a step takes at least
        as long as its communication. Of a family with the constant "pipelined", computation of a
        pipelined step takes so much longer, and its communication what the datasheet says.

        Args:
          overlap: "measured" for the share of communication that was exposed; "none" for all of it,
            and no less than was measured; "full" for what takes longer than the computation.

        >>> from shardalg.costs.calibration.by_cause import Key
        >>> done = Amounts({Key("contraction", (), "", "forward"): {"matrix": 1.0}})
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
        exposed = max(wanted, 1 - computed / moved) if moved else wanted
        waits = {"measured": self["hops"], "none": max(1.0, self["hops"]), "full": exposed}
        return {**local, **dict.fromkeys(MOVED, exposed), "latency": waits[overlap]}

    def _local(self, slower: float) -> dict[str, float]:
        """What the seconds of computation are multiplied with."""
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
        """Seconds of a step: computation, and the communication that it does not hide."""
        seconds = done.by_cause()
        return sum(weight * seconds[cause] for cause, weight in self.weights(done).items())

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        return {"schema": SCHEMA, **asdict(self)}


NOTHING = Calibration("datasheet", (), {}, {})
"""No measurements: every constant is its default."""


def from_json(data: Any, where: str = "calibration") -> Calibration:
    """A `Calibration` from plain data.

    Raises:
      HardwareError: another schema, a name that is missing, or what `Calibration` raises.

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
    """The calibrations that come with the package."""
    found = sorted(FILES.glob("*.json"))
    return tuple(from_json(json.loads(path.read_text()), str(path)) for path in found)


def calibration_of(chip: str) -> Calibration:
    """The one of a chip's family; `NOTHING` for a chip that none was fitted for."""
    found = (one for one in families() if chip in one.chips)
    return next(found, replace(NOTHING, chips=(chip,)))
