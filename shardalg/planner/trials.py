"""Plans of one trace under other annotations.

A trial is `stages.planned`, which `plan.replan` runs, too. Every figure is that of the plan which
it returns; with named sizes, at the hints.
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
    """The bytes sent and held, and the time, of a plan, per device and step.

    Attributes:
      collectives: the number of instructions; wire_bytes: the bytes of all their executions.
      step_time_s, peak_memory_bytes, fits: on the chip of the plan's options.
      sent: bytes per place (the operator and the value that is moved to or from it).
      runs: executions per kind and digits.
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
        """The key that ranks plans: whether the memory overflows, seconds, bytes held.

        Seconds have four significant figures, so that rounding does not decide.
        """
        return not self.fits, float(f"{self.step_time_s:.4g}"), self.peak_memory_bytes

    def __str__(self) -> str:
        sent, held = bytes_text(self.wire_bytes), bytes_text(self.peak_memory_bytes)
        return f"{self.collectives} collectives, {sent} sent, peak {held}"

    @staticmethod
    def of(stages: Stages, *, is_priced: bool = True) -> TrialOutcome:
        """Return the figures of a plan; seconds and memory are nan if `is_priced` is False."""
        sent: Counter[tuple[int | None, int]] = Counter()
        runs: Counter[tuple[str, Digits]] = Counter()
        # A collective inside a loop runs once per iteration (`step.count`).
        for moved in stages.traffic.collectives:
            sent[moved.place] += moved.step.count * moved.wire_bytes
            runs[moved.alike] += moved.step.count
        count, total = len(stages.traffic.collectives), stages.traffic.wire_bytes
        if not is_priced:
            return TrialOutcome(count, total, math.nan, sent, runs, math.nan)
        cost = stages.cost
        held = cost.peak_memory_bytes
        return TrialOutcome(count, total, held, sent, runs, cost.step_time_s, cost.fits)


@dataclass(frozen=True, eq=False)
class Trials:
    """A plan, and outcomes of plans of the same trace under other annotations.

    Each outcome is computed once; the other plans are not kept.
    """

    stages: Stages
    options: Options
    _outcomes: dict[Annotations, TrialOutcome] = field(default_factory=dict, repr=False)
    _unpriced: dict[Annotations, TrialOutcome] = field(default_factory=dict, repr=False)

    @property
    def machine(self) -> str:
        """Text that names the chip of all outcomes, the number of devices, and their source."""
        return chip_text(self.options.hardware, self.stages.mesh.size, OF_OPTIONS)

    def under(self, annotations: Annotations) -> Stages:
        """Return the plan under these annotations."""
        if annotations == self.stages.annotations:
            return self.stages
        return self._planned(annotations, self.options)

    def _planned(self, annotations: Annotations, options: Options) -> Stages:
        """Return the plan under other annotations or options, priced on the same links."""
        made = planned(self.stages.traced, annotations, options)
        return replace(made, has_own_links=self.stages.has_own_links)

    def outcome(self, annotations: Annotations) -> TrialOutcome:
        """Return the outcome of the plan under these annotations."""
        if annotations not in self._outcomes:
            self._outcomes[annotations] = TrialOutcome.of(self.under(annotations))
        return self._outcomes[annotations]

    def traffic(
        self, annotations: Annotations, is_priced: Callable[[TrialOutcome], bool]
    ) -> TrialOutcome:
        """Return the outcome under these annotations, without a price if none is needed.

        A price takes about as long as a plan.

        Args:
          is_priced: takes an outcome without a price; returns whether a price is needed.
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
        """The outcome of the plan that defers sums out of loops (`Switches.defer_in_loops`)."""
        options = Options.of({**self.options.settings, "defer_in_loops": True})
        return TrialOutcome.of(self._planned(self.stages.annotations, options))

    @cached_property
    def other_layers(self) -> TrialOutcome | None:
        """The outcome of the plan whose loops read stacks of layers in the other way.

        A loop fetches one layer per iteration, or gathers the stack before it starts
        (`Options.stream_layers`). None if the layers of no stack are divided among devices.
        """
        stages = self.stages
        # A streamed plan has a stack that is divided; for another plan, `by_layer` looks for one.
        if stages.is_named or not (stages.streams or by_layer(stages.sharded)):
            return None
        options = replace(self.options, stream_layers=not stages.streams)
        return TrialOutcome.of(self._planned(stages.annotations, options))

    @property
    def now(self) -> TrialOutcome:
        """The outcome of the plan itself."""
        return self.outcome(self.stages.annotations)
