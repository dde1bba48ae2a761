"""`sa.strategies`: every way to train a model on so many devices, by predicted seconds per sample.

Each candidate has a plan of its own, so that its numbers are those of that plan; a candidate whose
parameters alone exceed the memory, or whose arguments do not divide, is refused without one. Of
equal layers two or three are planned (`models.dense_cost`), a step is traced once for all its
meshes, and of candidates that differ in the names of axes alone the first is listed.

Pipelined steps of TPU v3 have a constant of their own, from one measured column; of other chips
none was measured, so that they are predicted too fast beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.cost import Cost
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology
from shardalg.errors import HardwareError, ShardalgError, StrategyError
from shardalg.io.table import Table
from shardalg.io.units import bytes_text
from shardalg.models.dense import DenseTransformer
from shardalg.models.dense_cost import chip_of, machine_for
from shardalg.models.ranking.candidate import Candidate
from shardalg.models.ranking.shared_traces import SharedTraces
from shardalg.models.ranking.space import Refused, candidates, chosen, grouped

Progress = Callable[[int, int, str], None]
"""Called with the number of a candidate, of how many, and its text."""


@dataclass(frozen=True)
class Ranked:
    """A candidate that fits, with its cost."""

    candidate: Candidate
    cost: Cost

    @property
    def seconds_per_sample(self) -> float:
        """Predicted seconds of a step, per sequence of its batch."""
        return float(self.cost.step_time_s) / self.candidate.model.batch

    @property
    def limit(self) -> str:
        """What takes the most of its seconds, by `Cost.seconds_by_cause`."""
        found = self.cost.seconds_by_cause
        return max(found, key=lambda cause: float(found[cause]))


@dataclass(frozen=True)
class Ranking:
    """Candidates by predicted seconds per sample, the fastest first, and what was refused.

    Attributes:
      refused: what does not fit or divide, with the reason.
      left: candidates that an interrupted search did not come to.
    """

    ranked: tuple[Ranked, ...]
    refused: tuple[Refused, ...]
    left: int = 0

    @cached_property
    def pareto(self) -> tuple[Ranked, ...]:
        """Those that no other beats in both time per sample and memory, the fastest first."""
        best: list[Ranked] = []
        for one in self.ranked:
            if not best or one.cost.peak_memory_bytes < best[-1].cost.peak_memory_bytes:
                best.append(one)
        return tuple(best)

    def table(self, top: int | None = None) -> Table:
        """A row per candidate; `pareto` marks those of the front of time against memory."""
        rows = [tuple(_record(one, self.pareto).values()) for one in self.ranked[:top]]
        return Table(_COLUMNS, tuple(rows))

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        ranked = [_record(one, self.pareto) for one in self.ranked]
        refused = [{"candidate": what, "reason": why} for what, why in self.refused]
        return {"ranked": ranked, "refused": refused, "left": self.left}


_COLUMNS = (
    "strategy", "mesh", "batch", "microbatches", "rounds", "remat", "optimizer",
    "seconds_per_sample", "step_time_s", "peak_memory_gb", "limited_by", "pareto",
)  # fmt: skip


def _record(one: Ranked, front: Sequence[Ranked]) -> dict[str, Any]:
    made, model = one.candidate, one.candidate.model
    values = (
        made.strategy,
        ",".join(f"{name}={size}" for name, size in made.mesh.shape.items()),
        model.batch,
        model.microbatches,
        made.rounds,
        model.remat or "none",
        model.optimizer,
        one.seconds_per_sample,
        float(one.cost.step_time_s),
        float(one.cost.peak_memory_bytes) / 1e9,
        one.limit,
        any(one is other for other in front),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def strategies(
    model: DenseTransformer,
    devices: int,
    hardware: str | Hardware | Topology,
    *,
    choices: Mapping[str, Sequence[Any]] | None = None,
    memory_bytes: float | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Every way to train a model on so many devices, ranked by predicted seconds per sample.

    Args:
      devices: of the mesh; all meshes of so many are tried.
      hardware: a chip by any of its names, in the vendor's shape for so many devices, or a
        `Topology`, or its text.
      choices: lists to choose from, by name: "strategy" (default all: "finalized", "fsdp",
        "fsdp_tensor", "pipelined"), "batch", "microbatches" (of pipelines 1, 2 and 4 per stage),
        "rounds" of pipelines, "remat", "optimizer" (what the model has).
      memory_bytes: of one device, for the peak; default: what the chip has.
      progress: called before each candidate; Ctrl-C ends the search and keeps what is ranked.

    Raises:
      StrategyError: an unknown choice, nothing fits the memory (with the least that does), no mesh
        divides the model. HardwareError: an unknown chip, no slice of so many devices, a
        topology of another number.

    >>> model = DenseTransformer(2, 64, 256, 4, 16, 128, 32, 16)
    >>> found = strategies(model, 4, "h100", choices={"strategy": ["fsdp"], "batch": [16, 32]})
    >>> [(one.candidate.model.batch, one.cost.fits) for one in found.ranked]
    [(32, True), (16, True)]
    """
    if type(devices) is not int or devices < 1:
        raise StrategyError(f"devices={devices!r}: give a number of at least 1.")
    on = _machine(devices, hardware)
    memory = chip_of(on).hbm_bytes if memory_bytes is None else memory_bytes
    slices = on.slices if isinstance(on, Topology) else 1
    found = grouped(candidates(model, devices, slices, chosen(model, choices or {})))
    search = _Search(on, memory, progress)
    ranking = search.over(found)
    if not ranking.ranked and not ranking.left:
        raise search.nothing(devices, ranking.refused)
    return ranking


def _machine(devices: int, hardware: str | Hardware | Topology) -> Hardware | Topology:
    """The machine of so many devices, a chip's in the vendor's shape."""
    on = machine_for(Mesh({"X": devices}), hardware)
    if isinstance(on, Topology) and on.devices != devices:
        raise HardwareError(
            f"{on!r} has {on.devices} devices, not {devices}: give devices={on.devices}, or "
            "another topology."
        )
    return on


class _Search:
    """Prices candidates one after the other."""

    def __init__(self, on: Hardware | Topology, memory: float, progress: Progress | None) -> None:
        self.on, self.memory, self.progress = on, memory, progress
        self.shared = SharedTraces()
        self.ranked: list[Ranked] = []
        self.refused: list[Refused] = []
        self.large: dict[Candidate, int] = {}
        self.peaks: list[tuple[int, str]] = []

    def over(self, found: Sequence[Candidate | Refused]) -> Ranking:
        """Those that fit, by seconds per sample; interrupted, what there is by then."""
        looked = 0
        try:
            for looked, one in enumerate(found):
                if self.progress is not None and isinstance(one, Candidate):
                    self.progress(looked + 1, len(found), str(one))
                self.look(one)
            looked = len(found)
        except KeyboardInterrupt:
            pass
        order = sorted(self.ranked, key=lambda one: one.seconds_per_sample)
        return Ranking(tuple(order), tuple(self.refused), len(found) - looked)

    def look(self, one: Candidate | Refused) -> None:
        """Rank it, or say why not."""
        if not isinstance(one, Candidate):
            self.refused.append(one)
            return
        try:
            needed = one.argument_bytes()
            if needed > self.memory:
                self.large[one] = needed
                raise StrategyError(
                    f"parameters, optimizer state and data take {bytes_text(needed)} of the "
                    f"{bytes_text(self.memory)} of a device."
                )
            self.rank(Ranked(one, self.shared.cost(one, self.on)))
        except ShardalgError as error:
            self.refused.append((str(one), " ".join(str(error).split())))

    def rank(self, one: Ranked) -> None:
        """Keep it if its peak fits."""
        peak = int(one.cost.peak_memory_bytes)
        if peak > self.memory:
            self.peaks.append((peak, str(one.candidate)))
            raise StrategyError(
                f"its peak is {bytes_text(peak)}, a device has {bytes_text(self.memory)}."
            )
        self.ranked.append(one)

    def least(self) -> tuple[int, str] | None:
        """The smallest peak of all candidates that are too large; none is below its arguments."""
        best = min(self.peaks, default=None)
        for one in sorted(self.large, key=lambda one: self.large[one]):
            if best and self.large[one] >= best[0]:
                break
            found = int(self.shared.cost(one, self.on).peak_memory_bytes), str(one)
            best = min(best or found, found)
        return best

    def nothing(self, devices: int, refused: Sequence[Refused]) -> StrategyError:
        """Why no candidate is left, and what to write."""
        if best := self.least():
            below = "" if self.peaks else " is below parameters and optimizer state, and"
            return StrategyError(
                f"a memory of {bytes_text(self.memory)} a device{below} holds none of "
                f"{len(refused)} candidates; the smallest that fits is {best[0]} bytes, of "
                f"{best[1]}: give memory_bytes={best[0]} or more, or more devices."
            )
        if not refused:
            return StrategyError(
                f"no mesh of {devices} devices suits these strategies: give a number of devices "
                "that shares factors with layers, or another strategy."
            )
        what, why = refused[0]
        return StrategyError(
            f"no mesh of {devices} devices divides this model and batch; the first of "
            f"{len(refused)} candidates, {what}: {why}"
        )
