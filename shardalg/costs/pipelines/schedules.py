"""Pipeline schedules in closed form: iterations, bubbles, stashed activations, permutes.

A device holds one of L stages. M microbatches pass in R rounds. In each round a stage runs one of
R pieces of its layers. Bubbles are shares of the time in which the pipeline runs. The unit of
`stash` is the memory that a whole stage keeps of one microbatch for its backward pass. The unit of
`permutes` is the activations of one microbatch.

GPipe and the circular schedule are loops in which all devices run the same program
(`models.pipeline`). In the other schedules each device has its own program. shardalg does not
lower these; they are for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardalg.errors import PipelineError
from shardalg.tables import Table


@dataclass(frozen=True)
class Schedule:
    """Schedule of a pipeline by its stages, microbatches and rounds: integers or sympy symbols.

    One round is GPipe; more rounds are the circular schedule. Both are loops in which all devices
    run the same program, so that a device computes on padded data during a bubble.

    Attributes:
      stages: L, partitions of the layers.
      microbatches: M, parts of the batch.
      rounds: R, the number of times that a microbatch passes all stages.

    Raises:
      PipelineError: a number is below 1, or there are several rounds and fewer microbatches than
        stages.

    >>> Schedule(stages=4, microbatches=16).bubble_ratio
    0.15789473684210525
    >>> import sympy
    >>> Schedule(*sympy.symbols("L M R")).bubble_ratio
    (L - 1)/(L + M*R - 1)

    Source: GSPMD (arXiv:2105.04663) section 3.3.
    """

    stages: Any
    microbatches: Any
    rounds: Any = 1

    def __post_init__(self) -> None:
        """Raise PipelineError for a number below 1, or several rounds with too few microbatches."""
        for name in ("stages", "microbatches", "rounds"):
            value = getattr(self, name)
            # A symbol has no value to compare, so only plain values are checked.
            is_plain = isinstance(value, int | float | str | None)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if is_plain and (not is_integer or value < 1):
                raise PipelineError(f"{name} must be an integer of at least 1, got {value!r}.")
        if isinstance(self.rounds, int) and self.rounds > 1 and self.microbatches < self.stages:
            raise PipelineError(
                f"{self.microbatches} microbatches, {self.stages} stages, {self.rounds} rounds: "
                "a microbatch begins its second round when it has left the last stage, so the "
                f"circular schedule needs at least as many microbatches as stages. Take "
                f"microbatches={self.stages}, fewer stages, or rounds=1."
            )

    @property
    def name(self) -> str:
        """Name of the schedule: "gpipe", or "circular" with more than one round."""
        return "gpipe" if self.rounds == 1 else "circular"

    @property
    def iterations(self) -> Any:
        """Trips of the loop, `R M + L - 1`: the last microbatch enters after R M - 1 of them."""
        return self.rounds * self.microbatches + self.stages - 1

    @property
    def bubble_ratio(self) -> Any:
        """Share of the loop in which a device computes on padded data, `(L - 1) / iterations`."""
        return (self.stages - 1) / self.iterations

    @property
    def stash(self) -> Any:
        """Activations that a device keeps at the peak for the backward pass: `iterations / rounds`.

        The unit is the activations of one microbatch in a whole stage. Each iteration keeps those
        of one piece, 1 / rounds of a stage, also when it computes on padding.
        """
        return self.iterations / self.rounds

    @property
    def permutes(self) -> Any:
        """Number of times that a device sends a microbatch's activations to the next stage.

        Gradients go backward as many times.
        """
        return self.iterations

    def layers_per_round(self, layers: int) -> int:
        """Return the number of a model's layers that a stage runs in one iteration.

        Raises:
          PipelineError: the number of layers is no multiple of stages times rounds.

        >>> Schedule(4, 8, rounds=2).layers_per_round(16)
        2
        """
        pieces = self.stages * self.rounds
        if layers < 1 or layers % pieces:
            below, above = layers // pieces * pieces, (layers // pieces + 1) * pieces
            raise PipelineError(
                f"{layers} layers are not divisible by {self.stages} stages x {self.rounds} rounds "
                f"= {pieces}: every stage runs as many layers in every round. Take "
                f"{f'{below} or ' if below > 0 else ''}{above} layers, or other stages and rounds."
            )
        return layers // pieces

    def microbatch_size(self, batch: int) -> int:
        """Return the number of samples in one microbatch.

        Raises:
          PipelineError: the batch is empty, or no multiple of the number of microbatches.

        >>> Schedule(4, 8).microbatch_size(32)
        4
        """
        if batch < 1:
            raise PipelineError("a batch without samples has no microbatches: pass some samples.")
        if batch % self.microbatches:
            divisors = [n for n in range(1, batch + 1) if batch % n == 0]
            raise PipelineError(
                f"a batch of {batch} is not divisible by {self.microbatches} microbatches: take "
                f"one of {divisors[-8:]} microbatches, or another batch."
            )
        return batch // self.microbatches

    def microbatches_per_stage(self) -> int:
        """Return the number of microbatches that each stage stores with `stream_io`.

        With `stream_io`, the microbatches are distributed over all stages.

        Raises:
          PipelineError: the number of microbatches is no multiple of the number of stages.

        >>> Schedule(4, 8).microbatches_per_stage()
        2
        """
        if self.microbatches % self.stages:
            # The next multiple of the number of stages, e.g. 8 for 6 microbatches and 4 stages.
            next_multiple = -(-self.microbatches // self.stages) * self.stages
            raise PipelineError(
                f"{self.microbatches} microbatches are not divisible by {self.stages} stages: "
                f"stream_io shards them evenly over the stages. Take "
                f"microbatches={next_multiple}, or stream_io=False."
            )
        return self.microbatches // self.stages


@dataclass(frozen=True)
class Mpmd(Schedule):
    """A schedule in which every device runs a different program (MPMD); for comparison only.

    shardalg does not lower it.

    Attributes:
      kind: a key of the dictionary `MPMD`, such as "1f1b".

    >>> Mpmd(4, 16, kind="zero-bubble H1").bubble_ratio
    0.058823529411764705

    Raises:
      PipelineError: the kind is unknown.
    """

    kind: str = "1f1b"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in MPMD:
            raise PipelineError(f"no schedule {self.kind!r}: write one of {', '.join(MPMD)}.")

    @property
    def name(self) -> str:
        """Name of the schedule: its `kind`."""
        return self.kind

    @property
    def bubble_ratio(self) -> Any:
        """Share of the time in which a device is idle."""
        # The unit is one forward pass. A backward pass takes two, so a microbatch takes three.
        waits = MPMD[self.kind].waits * (self.stages - 1)
        return waits / (3 * self.rounds * self.microbatches + waits)

    @property
    def stash(self) -> Any:
        """Activations, in microbatches of a whole stage, on the device that keeps the most.

        There must be at least as many microbatches as the pipeline holds at one time.
        """
        return MPMD[self.kind].stash(self.stages, self.rounds)

    @property
    def permutes(self) -> Any:
        """Number of times that a device sends a microbatch's activations to the next stage.

        Gradients go backward as many times.
        """
        return self.rounds * self.microbatches


@dataclass(frozen=True)
class _Kind:
    """Closed forms of one MPMD schedule.

    Attributes:
      waits: idle time of a device per other stage, in forward passes of one piece.
      stash: function of (stages, rounds) that returns `Schedule.stash`.
      source: the paper.
    """

    waits: int
    stash: Callable[[Any, Any], Any]
    source: str


MPMD = {
    "1f1b": _Kind(3, lambda stages, rounds: stages, "PipeDream-Flush, arXiv:2006.09503"),
    "interleaved": _Kind(
        3, lambda stages, rounds: stages + (stages - 1) / rounds, "arXiv:2104.04473, 2205.05198"
    ),
    "zero-bubble H1": _Kind(1, lambda stages, rounds: stages, "arXiv:2401.10241"),
    "zero-bubble H2": _Kind(0, lambda stages, rounds: 2 * stages - 1, "arXiv:2401.10241"),
}
"""Schedules for comparison. Zero-bubble schedules have one round and delay weight gradients."""


def compared(stages: Any, microbatches: Any, rounds: Any = 1) -> Table:
    """Return a table with a row per schedule: bubble ratio, stash and permutes.

    The columns are the properties of `Schedule`, as numbers or sympy formulas.

    Raises:
      PipelineError: a number is below 1, or there are several rounds and fewer microbatches than
        stages.

    >>> table = compared(4, 16, 2)
    >>> list(zip(table["schedule"], table["stash"]))[:3]
    [('gpipe', 19.0), ('circular', 17.5), ('1f1b', 4)]
    """
    schedules = [Schedule(stages, microbatches)]
    schedules += [Schedule(stages, microbatches, rounds)] if rounds != 1 else []
    for kind in MPMD:
        schedules.append(Mpmd(stages, microbatches, rounds if kind == "interleaved" else 1, kind))
    rows = []
    for schedule in schedules:
        # Schedules with another program per stage are only computed here, from their source.
        lowered = "yes"
        if isinstance(schedule, Mpmd):
            lowered = f"not lowered here ({MPMD[schedule.kind].source})"
        rows.append(
            (
                schedule.name,
                schedule.rounds,
                schedule.bubble_ratio,
                schedule.stash,
                schedule.permutes,
                lowered,
            )
        )
    return Table(
        ("schedule", "rounds", "bubble_ratio", "stash", "permutes", "lowered"), tuple(rows)
    )
