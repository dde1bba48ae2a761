"""Plans under other annotations, of one trace.

A trial is `stages.planned`, which is what `plan.replan` runs. Every figure is that of the plan that
it gives; with named sizes, at the hints.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardalg.propagate.strategy import Annotations, Options
from shardalg.stages import Stages, planned


@dataclass(frozen=True, eq=False)
class Trials:
    """Plans of the same trace under other annotations, each made once."""

    stages: Stages
    options: Options
    _made: dict[Annotations, Stages] = field(default_factory=dict, repr=False)

    def under(self, annotations: Annotations) -> Stages:
        """The plan under these annotations."""
        if annotations not in self._made:
            self._made[annotations] = planned(self.stages.traced, annotations, self.options)
        return self._made[annotations]
