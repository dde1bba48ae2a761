"""Candidates of one step on one mesh, planned and priced together.

The candidates differ in batch and microbatches. The step of one candidate is planned on recorded
sizes (`sizes.recorded`), which gives guards: conditions on the sizes under which the plan holds. A
candidate whose sizes fulfil the guards has the same plan, and the plan's formulas at these sizes
give its price. Then one of the other candidates is planned, and so on.
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
      limit: the cause with the most seconds, a key of `Cost.seconds_by_cause`.
    """

    step_time_s: float
    peak_memory_bytes: int
    limit: str


@dataclass(eq=False)
class CandidatePricing:
    """The pricing of candidates, which plans once for all candidates with the same decisions.

    Attributes:
      planned: the number of plans made for groups of candidates so far.
      alone: the number of candidates that were planned separately, because no group had their plan.
      templates: by key of a training step, the traced step from which other sizes are interpolated;
        None for a step from which this is not possible.
    """

    planned: int = 0
    alone: int = 0
    templates: dict[Any, Template | None] = field(default_factory=dict)

    def prices(
        self, found: Sequence[Candidate], on: Hardware | Topology
    ) -> Iterator[tuple[Candidate, Price]]:
        """Yield the prices of candidates on one mesh, whose steps are traced in the same form.

        `template.kind_of` tells which candidates these are.
        """
        for group, templates in self.together(found):
            # Measured rates depend on the size class of an operator, which no formula gives: with
            # them each candidate needs a plan in numbers.
            if templates and not on.chip.operators.figures:
                yield from self._parted(group, templates, on)
                continue
            self.alone += len(group)
            for one in group:
                yield one, price(one.cost(on))

    def together(
        self, found: Sequence[Candidate], fixed: frozenset[str] = frozenset()
    ) -> Iterator[tuple[Sequence[Candidate], Mapping[int, Template]]]:
        """Yield groups of candidates that share a program, each with templates by number of layers.

        A group without templates (an empty mapping) must be planned candidate by candidate.

        Args:
          fixed: names of sizes that are equal in all of `found`. Templates are traced at the
            candidates' own values of these sizes.
        """
        templates = {} if found[0].model.remat == OFFLOADED else self.of(found[0], fixed)
        # Interpolation needs the templates of both depths, so that one of them alone is useless.
        usable = {depth: one for depth, one in templates.items() if one}
        if not usable or len(usable) < len(templates):
            yield found, {}
            return
        same: dict[Any, list[Candidate]] = {}
        for one in found:
            sizes = sizes_of(one)
            # Sizes at which two scalars coincide give another program, because equal scalars are
            # one value. `names` has these sizes, and `more` those that no template has fixed yet.
            names = frozenset().union(*(t.together(sizes) for t in usable.values()))
            more = tuple((name, sizes[name]) for name in sorted(names - fixed))
            same.setdefault((bool(names), more), []).append(one)
        for (is_other, more), group in same.items():
            # A template that is traced at the coinciding values has the program with the shared
            # scalar. A group of one candidate needs no template: it is planned by itself. If sizes
            # coincide that are fixed already (`is_other`), no template has the program.
            if more and len(group) > 1:
                yield from self.together(group, fixed | dict(more).keys())
            else:
                yield group, {} if is_other else usable

    def of(self, one: Candidate, fixed: Set[str]) -> dict[int, Template | None]:
        """Return the templates of a candidate's step by number of layers; None if there is none.

        A deep model has two entries, for the numbers of layers in `SHALLOW`. Other models have one
        entry, for their own number of layers.
        """
        layers, sizes = one.model.layers, sizes_of(one)
        # A pipeline is one loop over its stages at any depth: tracing all layers costs no more.
        is_planned_whole = one.strategy == PIPELINED or layers <= max(SHALLOW)
        templates_by_depth = {}
        for depth in (layers,) if is_planned_whole else SHALLOW:
            shallow = replace(one, model=replace(one.model, layers=depth))
            # Candidates with equal keys share a template, which is traced once.
            key = kind_of(shallow), tuple((name, sizes[name]) for name in sorted(fixed))
            if key not in self.templates:
                self.templates[key] = _template(shallow, fixed)
            templates_by_depth[depth] = self.templates[key]
        return templates_by_depth

    def _parted(
        self, found: Sequence[Candidate], templates: Mapping[int, Template], on: Hardware | Topology
    ) -> Iterator[tuple[Candidate, Price]]:
        """Yield the prices of candidates, each with the plan of one of them.

        The first one is planned. The planner's comparisons of sizes are the guards of the plan. All
        candidates whose sizes fulfil the guards have the same plan, and get their prices from it.
        This is repeated with the rest. If planning fails on sizes that record comparisons, a
        candidate is planned in numbers, for itself.
        """
        remaining = list(found)
        while remaining:
            self.planned += 1
            points = [_points(one) for one in remaining]
            first = points[0]
            # Only the sizes that differ are recorded: numbers are faster and give no guards.
            names = [name for name in first if any(at[name] != first[name] for at in points)]
            try:
                plan = _planned(remaining[0], templates, on, names)
                is_held_at = plan.guards.holding(points).tolist()
            except (ArithmeticError, LookupError, TypeError, ValueError):
                # If no size was recorded, the recording cannot be the cause of the error.
                if not names:
                    raise
                plan = _planned(remaining[0], templates, on, ())
                is_held_at = [at == first for at in points]
            assert is_held_at[0], "a plan holds at the sizes that it was planned for"
            held_points = [at for at, is_held in zip(points, is_held_at, strict=True) if is_held]
            priced = [one for one, is_held in zip(remaining, is_held_at, strict=True) if is_held]
            yield from zip(priced, plan.prices(held_points), strict=True)
            remaining = [
                one for one, is_held in zip(remaining, is_held_at, strict=True) if not is_held
            ]


def _points(one: Candidate) -> dict[str, int]:
    """Return the sizes of a candidate, without the number T of pipeline iterations.

    T follows from the other sizes (`template.with_iterations`).
    """
    return {name: size for name, size in sizes_of(one).items() if name != "T"}


def _template(one: Candidate, fixed: Set[str]) -> Template | None:
    """Return the template of a candidate's step, or None if its numbers have no formulas."""
    try:
        found = template(one, fixed)
        # Graph and scalars are computed on first use: without this use here, a NoTemplateError
        # would come later, where no code catches it.
        found.at(found.points[0])
        _ = found.literals
    except NoTemplateError:
        return None
    return found


def price(cost: Cost) -> Price:
    """Return a cost's step time, peak memory and largest cause of seconds."""
    causes = cost.seconds_by_cause
    limit = max(causes, key=lambda cause: float(causes[cause]))
    return Price(float(cost.step_time_s), int(cost.peak_memory_bytes), limit)


@dataclass(frozen=True, eq=False)
class _StepPlan:
    """A plan of a step as formulas of its sizes, which is valid for several candidates.

    Attributes:
      depth: number of layers of the model.
      guards: the conditions on the sizes under which the plan is the same.
      work: formulas of the amounts of work, by the number of layers of the planned program.
      live_bytes: formulas of the bytes alive at each instruction; the peak is their maximum.
    """

    depth: int
    devices: int
    chip: Hardware
    guards: Guards
    work: Mapping[int, Work]
    live_bytes: Sequence[Any]

    def prices(self, points: Sequence[Mapping[str, int]]) -> Iterator[Price]:
        """Yield the price of the step at each point, equal to that of a plan in numbers.

        Args:
          points: for each candidate, the values of the sizes in this plan's formulas.
        """
        exact = ExactPoints(points)
        done = {layers: work.amounts(exact.each) for layers, work in self.work.items()}
        if self.depth in done:
            amounts = done[self.depth]
        else:
            # Work is linear in the number of layers: share 0 is the work of `low` layers, share 1
            # that of `high` layers.
            low, high = sorted(done)
            share = (self.depth - low) // (high - low)
            amounts = interpolated_amounts(done[low], done[high], share)
        # The instruction with the most live bytes differs from point to point, so the maximum is
        # taken per point.
        peaks = np.maximum.reduce([exact.of(size) for size in self.live_bytes]).tolist()
        # An amount that depends on no recorded size is one number, so it is repeated per point.
        rows = {
            key: {
                name: np.broadcast_to(amount, len(peaks)).tolist() for name, amount in row.items()
            }
            for key, row in amounts.rows.items()
        }
        for place, peak in enumerate(peaks):
            at = {
                key: {name: by_point[place] for name, by_point in row.items()}
                for key, row in rows.items()
            }
            memory = Liveness(peak, None, (), 0, 0)
            yield price(from_amounts(replace(amounts, rows=at), self.devices, memory, self.chip))


def _planned(
    one: Candidate,
    templates: Mapping[int, Template],
    on: Hardware | Topology,
    names: Iterable[str],
) -> _StepPlan:
    """Return the plan of a candidate's train step, with costs as formulas of the sizes in `names`.

    Planning runs on sizes that record every comparison of them; the recorded comparisons are the
    guards of the plan. All sizes that are not in `names` have the candidate's numbers.

    Args:
      templates: the traced step as a template, by number of layers.
      on: the machine whose rates give the seconds.
    """
    point, chip = _points(one), chip_of(on)
    record = recorder({name: point[name] for name in names})
    named = {name: record.size(symbol(name)) for name in names}
    sizes = with_iterations({**point, **named})
    signatures: dict[Signature, Signature] = {}
    done: dict[int, Work] = {}
    programs: dict[int, Shallow] = {}
    for layers, step in templates.items():
        stages = _stages(
            replace(one, model=replace(one.model, layers=layers)), step.at(sizes, signatures)
        )
        program, graph = stages.program, stages.graph
        done[layers] = work(program, graph, on, as_priced=True)
        # Live bytes need no roles (None), only the donated arguments.
        programs[layers] = Shallow(program, graph, None, stages.traced.donated, chip.rebuilds)
    # Only shallow models are planned. The live bytes of a deeper one grow by the same amount with
    # each layer, so they follow from two shallow programs.
    depth = one.model.layers
    if depth in programs:
        live = [instant.bytes for instant in programs[depth].instants]
    else:
        low, high = sorted(programs)
        live, _ = held_bytes(programs[low], programs[high], (depth - low) // (high - low))
    # Layers repeat, so many instants have one formula: the maximum needs each formula only once.
    live_bytes = tuple(dict.fromkeys(map(formula_of, live)))
    return _StepPlan(depth, one.mesh.size, chip, Guards(record), done, live_bytes)


def _stages(one: Candidate, traced: Traced) -> Stages:
    """Return the planned stages of a traced step with the candidate's shardings."""
    strategy = traced.with_layouts(one.laid_out())
    options = ONCE_A_STEP if one.strategy == PIPELINED else Options()
    return planned(traced, resolve(traced.graph, strategy, one.mesh), options)


def by_step(found: Iterable[Candidate]) -> list[list[Candidate]]:
    """Return groups of candidates of one kind on one mesh, which are priced together.

    Groups of one kind are neighbours in the list.
    """
    kinds: dict[Any, dict[Any, list[Candidate]]] = {}
    for one in found:
        key = one.strategy, one.mesh, one.rounds
        kinds.setdefault(kind_of(one), {}).setdefault(key, []).append(one)
    return [group for groups in kinds.values() for group in groups.values()]
