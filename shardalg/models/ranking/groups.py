"""Candidates of one step on one mesh, planned and priced together.

They differ in batch and microbatches. The step of one candidate is planned on recorded sizes
(`sizes.recorded`): wherever its guards hold, the plan is the candidate's own, and its price is that
of the candidate's numbers in the plan's formulas. Of the others one is planned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shardalg.costs.calibration.by_cause import Work, work
from shardalg.costs.cost import Cost
from shardalg.costs.hardware import Hardware
from shardalg.costs.memory import Liveness
from shardalg.costs.topology import Topology
from shardalg.graph.ir import Signature
from shardalg.models.deeper import (
    SHALLOW,
    Shallow,
    chip_of,
    from_amounts,
    held_bytes,
    interpolated_amounts,
)
from shardalg.models.published.pipelined import ONCE_A_STEP
from shardalg.models.ranking.candidate import PIPELINED, Candidate
from shardalg.models.ranking.template import (
    NoTemplateError,
    Template,
    kind_of,
    sizes_of,
    template,
    with_iterations,
)
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.strategy import resolve
from shardalg.planner.stages import Stages, planned
from shardalg.planner.traced import Traced
from shardalg.sizes.decided import Guards, recorder
from shardalg.sizes.exact import ExactPoints
from shardalg.sizes.formula import symbol
from shardalg.sizes.recorded import formula_of

OFFLOADED = "minimal_offloaded"


@dataclass(frozen=True)
class Price:
    """The price of a candidate, equal to its `Candidate.cost`.

    Attributes:
      limit: the cause of the most seconds.
    """

    step_time_s: float
    peak_memory_bytes: int
    limit: str


@dataclass(eq=False)
class CandidatePricing:
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
        """Yield the prices of candidates of one kind (`template.kind_of`) on one mesh."""
        for group, templates in self.together(found):
            # Candidates with a template are priced by formulas; the others are planned one by one.
            # Measured rates of operators are priced by classes of sizes, which no formula has.
            if templates and not on.chip.operators.figures:
                yield from self._parted(group, templates, on)
                continue
            self.alone += len(group)
            for one in group:
                yield one, price(one.cost(on))

    def together(
        self, found: Sequence[Candidate], held: frozenset[str] = frozenset()
    ) -> Iterator[tuple[Sequence[Candidate], Mapping[int, Template]]]:
        """Yield candidates of one program with its templates by layers; without templates, alone.

        Args:
          held: sizes that they have in common, as which their templates are traced.
        """
        templates = {} if found[0].model.remat == OFFLOADED else self.of(found[0], held)
        # A step without a template at any depth cannot be interpolated.
        made = {depth: one for depth, one in templates.items() if one}
        if not made or len(made) < len(templates):
            yield found, {}
            return
        same: dict[Any, list[Candidate]] = {}
        for one in found:
            sizes = sizes_of(one)
            # Sizes at which two scalars coincide give another program, because equal scalars are
            # one value.
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
        self, found: Sequence[Candidate], templates: Mapping[int, Template], on: Hardware | Topology
    ) -> Iterator[tuple[Candidate, Price]]:
        """Plan the first candidate, and price it with all for which its plan holds.

        Where planning computes what a record cannot follow, it is planned in numbers, by itself.
        """
        left = list(found)
        while left:
            self.planned += 1
            points = [_points(one) for one in left]
            first = points[0]
            names = [name for name in first if any(at[name] != first[name] for at in points)]
            try:
                plan = _planned(left[0], templates, on, names)
                holds = plan.guards.holding(points).tolist()
            except (ArithmeticError, LookupError, TypeError, ValueError):
                if not names:
                    raise
                plan = _planned(left[0], templates, on, ())
                holds = [at == first for at in points]
            assert holds[0], "a plan holds where it was made"
            here = [at for at, is_held in zip(points, holds, strict=True) if is_held]
            priced = [one for one, is_held in zip(left, holds, strict=True) if is_held]
            yield from zip(priced, plan.prices(here), strict=True)
            left = [one for one, is_held in zip(left, holds, strict=True) if not is_held]


def _points(one: Candidate) -> dict[str, int]:
    """Return the independent sizes of a candidate."""
    return {name: size for name, size in sizes_of(one).items() if name != "T"}


def _template(one: Candidate, held: Set[str]) -> Template | None:
    try:
        made = template(one, held)
        made.at(made.points[0])
        _ = made.literals
    except NoTemplateError:
        return None
    return made


def price(cost: Cost) -> Price:
    """Return the price in a cost."""
    causes = cost.seconds_by_cause
    limit = max(causes, key=lambda cause: float(causes[cause]))
    return Price(float(cost.step_time_s), int(cost.peak_memory_bytes), limit)


@dataclass(frozen=True, eq=False)
class _StepPlan:
    """A plan of a step in recorded sizes, which holds at the sizes of other candidates too.

    Attributes:
      depth: layers of the model. work: by layers of the programs that were planned.
      held: bytes alive at each instant, of which the most are the peak.
    """

    depth: int
    devices: int
    chip: Hardware
    guards: Guards
    work: Mapping[int, Work]
    held: Sequence[Any]

    def prices(self, points: Sequence[Mapping[str, int]]) -> Iterator[Price]:
        """`dense_cost.cost_on` of each point."""
        exact = ExactPoints(points)
        done = {layers: work.amounts(exact.each) for layers, work in self.work.items()}
        if self.depth in done:
            amounts = done[self.depth]
        else:
            low, high = sorted(done)
            share = (self.depth - low) // (high - low)
            amounts = interpolated_amounts(done[low], done[high], share)
        peaks = np.maximum.reduce([exact.of(size) for size in self.held]).tolist()
        rows = {
            key: {name: np.broadcast_to(n, len(peaks)).tolist() for name, n in row.items()}
            for key, row in amounts.rows.items()
        }
        for place, peak in enumerate(peaks):
            at = {k: {name: n[place] for name, n in row.items()} for k, row in rows.items()}
            memory = Liveness(peak, None, (), 0, 0)
            yield price(from_amounts(replace(amounts, rows=at), self.devices, memory, self.chip))


def _planned(
    one: Candidate,
    templates: Mapping[int, Template],
    on: Hardware | Topology,
    names: Iterable[str],
) -> _StepPlan:
    """Plan and price a candidate's step; named sizes record the questions about them."""
    point, chip = _points(one), chip_of(on)
    asked = recorder({name: point[name] for name in names})
    named = {name: asked.size(symbol(name)) for name in names}
    sizes = with_iterations({**point, **named})
    signatures: dict[Signature, Signature] = {}
    done: dict[int, Work] = {}
    made: dict[int, Shallow] = {}
    for layers, step in templates.items():
        stages = _stages(
            replace(one, model=replace(one.model, layers=layers)), step.at(sizes, signatures)
        )
        program, graph = stages.program, stages.graph
        done[layers] = work(program, graph, on, as_priced=True)
        made[layers] = Shallow(program, graph, None, stages.traced.donated, chip.rebuilds)
    depth = one.model.layers
    if depth in made:
        held = [instant.bytes for instant in made[depth].instants]
    else:
        # Instants of the deeper model follow from two shallow ones.
        low, high = sorted(made)
        held, _ = held_bytes(made[low], made[high], (depth - low) // (high - low))
    kept = tuple(dict.fromkeys(map(formula_of, held)))
    return _StepPlan(depth, one.mesh.size, chip, Guards(asked), done, kept)


def _stages(one: Candidate, traced: Traced) -> Stages:
    strategy = traced.with_layouts(one.laid_out())
    options = ONCE_A_STEP if one.strategy == PIPELINED else Options()
    return planned(traced, resolve(traced.graph, strategy, one.mesh), options)


def by_step(found: Iterable[Candidate]) -> list[list[Candidate]]:
    """Group candidates that are priced together: of one kind, on one mesh; kinds are adjacent."""
    kinds: dict[Any, dict[Any, list[Candidate]]] = {}
    for one in found:
        key = one.strategy, one.mesh, one.rounds
        kinds.setdefault(kind_of(one), {}).setdefault(key, []).append(one)
    return [group for groups in kinds.values() for group in groups.values()]
