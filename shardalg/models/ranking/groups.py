"""Candidates of one step on one mesh, planned and priced together.

They differ in batch and microbatches. The step is planned on all of their sizes at once
(`sizes.points.lanes`), so that every number is exactly that of the candidate's own plan; candidates
of which a question of planning or pricing has another answer are planned again, by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from shardalg.costs.calibration.by_cause import Amounts, amounts
from shardalg.costs.calibration.constants import calibration_of
from shardalg.costs.cost import Cost, Totals
from shardalg.costs.hardware import Hardware
from shardalg.costs.memory import Liveness
from shardalg.costs.topology import Topology
from shardalg.graph.ir import Signature
from shardalg.models.deeper import Shallow, deeper_peak
from shardalg.models.dense_cost import SHALLOW, between, calibrated, chip_of
from shardalg.models.published.pipelined import ONCE_A_STEP
from shardalg.models.ranking.candidate import PIPELINED, Candidate
from shardalg.models.ranking.template import (
    NoTemplateError,
    Sizes,
    Template,
    kind_of,
    sizes_of,
    template,
    with_iterations,
)
from shardalg.planning.stages import Stages, planned
from shardalg.planning.traced import Traced
from shardalg.propagate.options import Options
from shardalg.propagate.strategy import resolve
from shardalg.sizes.points.lanes import points_of, spread
from shardalg.sizes.points.parted import parted

OFFLOADED = "minimal_offloaded"


@dataclass(frozen=True)
class Price:
    """What a candidate takes, as its `Candidate.cost` says.

    Attributes:
      limit: the cause of the most seconds.
    """

    step_time_s: float
    peak_memory_bytes: int
    limit: str


@dataclass(eq=False)
class Pricing:
    """Prices of candidates; a step of one form is traced for all of them.

    Attributes:
      planned: how many runs of planning there were.
      alone: candidates that were planned by themselves.
    """

    planned: int = 0
    alone: int = 0
    templates: dict[Any, Template | None] = field(default_factory=dict)

    def prices(
        self, found: Sequence[Candidate], on: Hardware | Topology
    ) -> Iterator[tuple[Candidate, Price]]:
        """Of candidates on one mesh that are of one kind (`template.kind_of`)."""
        for group, templates in self.together(found):
            if templates:
                yield from self._parted(group, templates, on)
                continue
            self.alone += len(group)
            for one in group:
                yield one, price(one.cost(on))

    def together(
        self, found: Sequence[Candidate], held: frozenset[str] = frozenset()
    ) -> Iterator[tuple[Sequence[Candidate], Mapping[int, Template]]]:
        """Those of one program, with its templates by layers; without any, they are on their own.

        Args:
          held: sizes that they have in common, as which their templates are traced.
        """
        templates = {} if found[0].model.remat == OFFLOADED else self.of(found[0], held)
        made = {depth: one for depth, one in templates.items() if one}
        if not made or len(made) < len(templates):
            yield found, {}
            return
        same: dict[Any, list[Candidate]] = {}
        for one in found:
            sizes = sizes_of(one)
            names = frozenset().union(*(t.together(sizes) for t in made.values()))
            more = tuple((name, sizes[name]) for name in sorted(names - held))
            same.setdefault((bool(names), more), []).append(one)
        for (is_other, more), group in same.items():
            if more and len(group) > 1:
                yield from self.together(group, held | dict(more).keys())
            else:
                yield group, {} if is_other else made

    def of(self, one: Candidate, held: Set[str]) -> dict[int, Template | None]:
        """Templates of its step, by layers; None where there is none."""
        layers, sizes = one.model.layers, sizes_of(one)
        whole = one.strategy == PIPELINED or layers <= max(SHALLOW)
        found = {}
        for depth in (layers,) if whole else SHALLOW:
            shallow = replace(one, model=replace(one.model, layers=depth))
            key = kind_of(shallow), tuple((name, sizes[name]) for name in sorted(held))
            if key not in self.templates:
                self.templates[key] = _template(shallow, held)
            found[depth] = self.templates[key]
        return found

    def _parted(
        self, found: Sequence[Candidate], templates: Mapping[int, Any], on: Hardware | Topology
    ) -> Iterator[tuple[Candidate, Price]]:
        points = [sizes_of(one) for one in found]
        bare = [{name: n for name, n in point.items() if name != "T"} for point in points]

        def work(sizes: Sizes) -> _Prices:
            self.planned += 1
            return _prices(found[0], templates, on, with_iterations(sizes))

        for places, made in parted(bare, work):
            yield from zip((found[i] for i in places), made.each(len(places)), strict=True)


def _template(one: Candidate, held: Set[str]) -> Template | None:
    try:
        made = template(one, held)
        made.at(made.points[0])
        _ = made.literals
    except NoTemplateError:
        return None
    return made


def price(cost: Cost) -> Price:
    """The price that a cost says."""
    causes = cost.seconds_by_cause
    limit = max(causes, key=lambda cause: float(causes[cause]))
    return Price(float(cost.step_time_s), int(cost.peak_memory_bytes), limit)


@dataclass(frozen=True)
class _Prices:
    """Prices at all points; numbers or lanes."""

    step_time_s: Any
    peak: Any
    causes: Mapping[str, Any]

    def each(self, count: int) -> Iterator[Price]:
        """Of so many points one by one."""
        causes = tuple(self.causes)
        most = np.argmax([spread(self.causes[name], count) for name in causes], axis=0)
        rows = zip(spread(self.step_time_s, count), spread(self.peak, count), most, strict=True)
        for seconds, peak, cause in rows:
            yield Price(float(seconds), int(peak), causes[cause])


def _prices(
    one: Candidate, templates: Mapping[int, Template], on: Hardware | Topology, sizes: Sizes
) -> _Prices:
    """`dense_cost.cost_on`, at all points."""
    chip, depth, signatures = chip_of(on), one.model.layers, dict[Signature, Signature]()
    done: dict[int, Amounts] = {}
    made: dict[int, Callable[[], Shallow]] = {}
    for layers, step in templates.items():
        traced = step.at(sizes, signatures)
        stages = _planned(replace(one, model=replace(one.model, layers=layers)), traced)
        program, graph, donated = stages.program, stages.graph, stages.traced.donated
        done[layers] = amounts(program, graph, on)
        made[layers] = partial(Shallow, program, graph, None, donated, chip.rebuilds)
    points = points_of(sizes.values())
    ask = partial(_peak, depth, made)
    peak = ask() if points is None else points.each_way(ask)
    if depth in templates:
        work = done[depth]
    else:
        low, high = sorted(templates)
        work = between(done[low], done[high], (depth - low) // (high - low))
    blank = Totals((), 0, 0, one.mesh.size, Liveness(peak, None, (), 0, 0))
    totals = calibrated(work, blank, calibration_of(chip.name), "measured")
    cost = Cost(chip, totals, totals)
    return _Prices(cost.step_time_s, peak, cost.seconds_by_cause)


def _peak(depth: int, made: Mapping[int, Callable[[], Shallow]]) -> Any:
    """The peak of memory of so many layers, made anew for each way that points choose."""
    if depth in made:
        return made[depth]().peak_bytes
    low, high = sorted(made)
    return deeper_peak(made[low](), made[high](), (depth - low) // (high - low))[0]


def _planned(one: Candidate, traced: Traced) -> Stages:
    strategy = traced.with_layouts(one.laid_out())
    options = ONCE_A_STEP if one.strategy == PIPELINED else Options()
    return planned(traced, resolve(traced.graph, strategy, one.mesh), options)


def by_step(found: Iterable[Candidate]) -> list[list[Candidate]]:
    """Candidates that are priced together: of one kind, on one mesh, those of a kind in a row."""
    kinds: dict[Any, dict[Any, list[Candidate]]] = {}
    for one in found:
        key = one.strategy, one.mesh, one.rounds
        kinds.setdefault(kind_of(one), {}).setdefault(key, []).append(one)
    return [group for groups in kinds.values() for group in groups.values()]
