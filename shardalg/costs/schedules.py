"""Pipeline schedules in closed form: iterations, bubbles, what is stashed, what is sent.

A device holds one of L stages; M microbatches pass, R rounds long (each stage then has R pieces, a
piece being the layers that it runs in one iteration). The unit of time is the forward pass of one
piece on one microbatch, the backward pass takes two of it; the unit of memory is what one piece
keeps of one microbatch for its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardalg.errors import PipelineError


@dataclass(frozen=True)
class Schedule:
    """Stages, microbatches and rounds of a pipeline, numbers or sympy symbols.

    With one round it is GPipe, with more the circular schedule: both are loops that every device
    runs alike, so that in bubbles a device computes on padded data.

    Attributes:
      stages: L, partitions of the layers.
      microbatches: M, parts of the batch.
      rounds: R, how often the layers go round the stages.

    Raises:
      PipelineError: a number below 1, or fewer microbatches than stages in more than one round.

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
        for name in ("stages", "microbatches", "rounds"):
            value = getattr(self, name)
            if isinstance(value, bool) or isinstance(value, int | float | str | None):
                _check_count(name, value)
        if isinstance(self.rounds, int) and self.rounds > 1 and self.microbatches < self.stages:
            raise PipelineError(
                f"{self.microbatches} microbatches, {self.stages} stages, {self.rounds} rounds: "
                "a microbatch begins its second round when it has left the last stage, so the "
                f"circular schedule needs at least as many microbatches as stages. Take "
                f"microbatches={self.stages}, fewer stages, or rounds=1."
            )

    @property
    def name(self) -> str:
        """The schedule is "gpipe", or "circular" with more than one round."""
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
        """Pieces that a device keeps at the peak: one per iteration, those on padding too."""
        return self.iterations

    @property
    def permutes(self) -> Any:
        """Shifts of one microbatch that a device sends forward; as many go backward."""
        return self.iterations

    def layers_per_round(self, layers: int) -> int:
        """Layers that a stage runs in one iteration.

        Raises:
          PipelineError: stages times rounds do not divide the layers.

        >>> Schedule(4, 8, rounds=2).layers_per_round(16)
        2
        """
        pieces = self.stages * self.rounds
        if layers < 1 or layers % pieces:
            raise PipelineError(
                f"{layers} layers are not divisible by {self.stages} stages x {self.rounds} rounds "
                f"= {pieces}: every stage runs as many layers in every round. Take "
                f"{max(1, layers // pieces) * pieces} or {(layers // pieces + 1) * pieces} layers, "
                "or other stages and rounds."
            )
        return layers // pieces

    def microbatch_size(self, batch: int) -> int:
        """Samples of one microbatch.

        Raises:
          PipelineError: the microbatches do not divide the batch.

        >>> Schedule(4, 8).microbatch_size(32)
        4
        """
        if batch < 1 or batch % self.microbatches:
            near = [n for n in range(1, batch + 1) if batch % n == 0]
            raise PipelineError(
                f"a batch of {batch} is not divisible by {self.microbatches} microbatches: take "
                f"one of {near[-8:]} microbatches, or another batch."
            )
        return batch // self.microbatches


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PipelineError(f"{name} must be an integer of at least 1, got {value!r}.")
