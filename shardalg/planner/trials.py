"""Trials: the prices of plans of one traced function under other annotations.

A trial plans the function by `stages.planned`, as `plan.replan` does, and keeps the figures of the
plan. Named sizes have their hints.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from shardalg.algebra.digits import Digits
from shardalg.costs.topology import OF_OPTIONS, chip_text
from shardalg.planner.padded_samples import by_layer
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.strategy import Annotations
from shardalg.planner.stages import Stages, planned
from shardalg.tables import bytes_text


@dataclass(frozen=True, eq=False)
class TrialOutcome:
    """The figures of a plan, per device and step: bytes sent, memory, time.

    Attributes:
      collectives: the number of collective instructions.
      wire_bytes: the bytes that a device sends in all their executions.
      peak_memory_bytes, step_time_s, fits: memory peak, time, and whether the memory suffices, on
        the chip of the plan's options.
      sent: bytes sent, by (node index or None, moved value).
      runs: executions of collectives, by (kind, digits along which they run).
    """

    collectives: int
    wire_bytes: int | float
    peak_memory_bytes: int | float
    sent: Mapping[tuple[int | None, int], int | float]
    runs: Mapping[tuple[str, Digits], int]
    step_time_s: float = 0.0
    fits: bool = True

    @property
    def price(self) -> tuple[bool, float, int | float]:
        """A tuple that ranks plans; the smallest is the best.

        Its entries are: whether the memory overflows, seconds rounded to four significant figures
        (rounding errors then do not decide), bytes held.
        """
        return not self.fits, float(f"{self.step_time_s:.4g}"), self.peak_memory_bytes

    def __str__(self) -> str:
        sent, held = bytes_text(self.wire_bytes), bytes_text(self.peak_memory_bytes)
        return f"{self.collectives} collectives, {sent} sent, peak {held}"

    @staticmethod
    def of(stages: Stages, *, is_priced: bool = True) -> TrialOutcome:
        """Return the figures of a plan; seconds and memory are nan if `is_priced` is False.

        They are the number of collectives, the bytes that a device sends in a step, in all and per
        place in the program, and how often each kind of collective runs.
        """
        sent: Counter[tuple[int | None, int]] = Counter()
        runs: Counter[tuple[str, Digits]] = Counter()
        # A collective in a loop is executed `count` times in a step.
        for moved in stages.traffic.collectives:
            sent[moved.place] += moved.step.count * moved.wire_bytes
            runs[moved.alike] += moved.step.count
        count, total = len(stages.traffic.collectives), stages.traffic.wire_bytes
        if not is_priced:
            return TrialOutcome(
                collectives=count,
                wire_bytes=total,
                peak_memory_bytes=math.nan,
                sent=sent,
                runs=runs,
                step_time_s=math.nan,
            )
        # Computing the cost takes most of the time of a trial.
        cost = stages.cost
        return TrialOutcome(
            collectives=count,
            wire_bytes=total,
            peak_memory_bytes=cost.peak_memory_bytes,
            sent=sent,
            runs=runs,
            step_time_s=cost.step_time_s,
            fits=cost.fits,
        )


@dataclass(frozen=True, eq=False)
class Trials:
    """A plan, and the figures of other plans of the same traced function.

    The figures of each plan are computed once. The other plans themselves are not kept.

    Attributes:
      stages: the plan.
      options: its options, which the other plans share.
    """

    stages: Stages
    options: Options
    _outcomes: dict[Annotations, TrialOutcome] = field(default_factory=dict, repr=False)
    _unpriced: dict[Annotations, TrialOutcome] = field(default_factory=dict, repr=False)

    @property
    def machine(self) -> str:
        """A text for reports: the chip of all figures, its source, and the number of devices."""
        return chip_text(self.options.hardware, self.stages.mesh.size, OF_OPTIONS)

    def under(self, annotations: Annotations) -> Stages:
        """Return the plan of the function under these annotations."""
        if annotations == self.stages.annotations:
            return self.stages
        return self._planned(annotations, self.options)

    def _planned(self, annotations: Annotations, options: Options) -> Stages:
        """Return the plan of the function with other annotations, priced in the same way."""
        made = planned(self.stages.traced, annotations, options)
        return replace(made, has_own_links=self.stages.has_own_links)

    def outcome(self, annotations: Annotations) -> TrialOutcome:
        """Return the figures of the plan under these annotations, from the cache if possible."""
        if annotations not in self._outcomes:
            self._outcomes[annotations] = TrialOutcome.of(self.under(annotations))
        return self._outcomes[annotations]

    def traffic(
        self, annotations: Annotations, is_priced: Callable[[TrialOutcome], bool]
    ) -> TrialOutcome:
        """Return the figures under these annotations, without time and memory if not needed.

        Computing time and memory takes about as long as planning.

        Args:
          is_priced: takes figures without time and memory; returns whether these are needed.
        """
        # The plan is dropped afterwards, so a price is computed while it is at hand.
        known = self._outcomes.get(annotations) or self._unpriced.get(annotations)
        if known is None:
            stages = self.under(annotations)
            known = self._unpriced[annotations] = TrialOutcome.of(stages, is_priced=False)
            if is_priced(known):
                self._outcomes[annotations] = TrialOutcome.of(stages)
        return self.outcome(annotations) if is_priced(known) else known

    @cached_property
    def deferred(self) -> TrialOutcome:
        """The figures of the plan that reduces sums of loops once, after the loop.

        It has the same annotations, and `Switches.defer_in_loops` on.
        """
        options = Options.of({**self.options.settings, "defer_in_loops": True})
        return TrialOutcome.of(self._planned(self.stages.annotations, options))

    @cached_property
    def other_layers(self) -> TrialOutcome | None:
        """The figures of the plan with the opposite of this plan's `Options.stream_layers`.

        A loop over a stack of layers fetches one layer per iteration, or gathers the stack before
        it starts. None if the layers of no stack are divided among devices, and for named sizes.
        """
        stages = self.stages
        # A streamed plan has a stack that is divided; for another plan, `by_layer` looks for one.
        if stages.is_named or not (stages.streams or by_layer(stages.sharded)):
            return None
        options = replace(self.options, stream_layers=not stages.streams)
        return TrialOutcome.of(self._planned(stages.annotations, options))

    @property
    def now(self) -> TrialOutcome:
        """The figures of the plan `stages` itself."""
        return self.outcome(self.stages.annotations)
