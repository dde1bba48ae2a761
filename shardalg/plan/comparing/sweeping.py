"""`plan.sweep` over meshes, policies of rematerialisation and named sizes: a point per combination.

Formulas are evaluated at all points at which the planner's recorded questions have the same answers
as at the hints (`Guards.holding`). Hints at one of the other points give formulas for more of them,
as long as each such attempt finds several. A plan is made at each point that is left, here or by
the workers of an executor.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from inspect import getsource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardalg.algebra.dims import Size, evaluate
from shardalg.algebra.mesh import Mesh
from shardalg.costs.analyses.overlap import check_overlap
from shardalg.costs.matrix_unit import check_products
from shardalg.costs.topology import OWN_LINKS, Machine, Topology, machine
from shardalg.costs.walk import walk
from shardalg.errors import HardwareError, ShardalgError, StrategyError
from shardalg.graph.tracing.remat import Policy, check_policy, policy_text
from shardalg.plan import plan_file
from shardalg.plan.comparing.given import (
    Progress,
    check_devices,
    check_distinct,
    check_share,
    listed,
    machine_name,
    mesh_text,
    meshes_of,
    reporter,
)
from shardalg.plan.comparing.jobs import (
    Executor,
    Failed,
    PlanInputs,
    check_executor,
    check_failures,
    reason,
    results,
)
from shardalg.plan.comparing.step_figures import StepFigures
from shardalg.plan.comparing.sweep_file import Finished, SweepFile
from shardalg.plan.comparing.sweep_rows import FORMULA, PLAN, SweepComparison, SweptPoint
from shardalg.plan.named_sizes import step_formulas
from shardalg.planner.hints import inputs_with_hints
from shardalg.planner.rematerialised import inputs_with_remat
from shardalg.planner.stages import annotations_on_mesh, inputs_at
from shardalg.sizes.formula import FormulaError
from shardalg.sizes.symbolic.symbols import mesh_at, named_sizes, numbers_only, point_of

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

MOST = 200_000
"""Points of a sweep: each is a row. Arrays of sizes have no such limit (`Sweep`)."""
UNFINISHED = "the sweep was interrupted before this point was finished"
WORTH = 8
"""Formulas of other hints are tried for at least so many points: making them takes that long."""
PLACES = (0.5, 0.2, 0.8, 0.35, 0.65)
"""Where the next hints are taken from the remaining points, as shares of their number."""
ATTEMPTS = 4096
"""Repetitions of a call of the planner, to find where it has the same result (`Guards.holding`)."""
SCHEDULES = ("dependences", "asynchronous")
"""Overlaps without a formula."""


@dataclass(frozen=True)
class SweepSettings:
    """The arguments of `Plan.sweep` except the sizes; see there."""

    hardware: Any = None
    overlap: str | None = None
    mesh: Any = None
    remat: Any = None
    reserve: float = 0.0
    executor: Executor | None = None
    file: str | Path | None = None
    progress: Progress | bool | None = None

    def is_for_arrays(self, sizes: Mapping[str, Any]) -> bool:
        """Return whether the sweep evaluates numpy arrays of sizes, without a row per point.

        False if a size is a list, or if a setting needs a row per point: meshes, policies of
        rematerialisation, an executor, or a file.

        Args:
          sizes: the values of each swept size by its name: a number, a list, or an array.

        Raises:
          StrategyError: a size is an array and another one a list, or a size is a set or iterator.
        """
        # Called only for its error: the values of a set or an iterator have no fixed order.
        for name, given in sizes.items():
            listed(name, given)
        lists = [name for name, given in sizes.items() if isinstance(given, list | tuple | range)]
        # Only arrays have dimensions; a nested list would not be one array.
        others = [name for name in sizes if name not in lists]
        arrays = [name for name in others if np.ndim(sizes[name])]
        if lists and arrays:
            raise StrategyError(
                f"{', '.join(arrays)} is an array and {', '.join(lists)} is a list: lists give a "
                "row per combination, arrays of one shape a Sweep of arrays. Give one of both."
            )
        settings = (self.mesh, self.remat, self.executor, self.file)
        return not lists and all(each is None for each in settings)


def swept(plan: Plan, sizes: Mapping[str, Any], settings: SweepSettings) -> SweepComparison:
    """Return a point per combination of meshes, policies and sizes; see `Plan.sweep`.

    Raises:
      StrategyError: an empty list, a value that occurs twice, a policy that is none or has no place
        in the function, too many points. SymbolError: no size of that name, a value that is no
        size. HardwareError: an unknown chip. PlanFileError: the file is of another sweep.
    """
    check_share(settings.reserve)
    check_executor(settings.executor)
    if settings.overlap is not None:
        check_overlap(settings.overlap)
    on = machine(settings.hardware if settings.hardware is not None else plan.options.hardware)
    check_products(plan.graph, on.chip)
    points = _points(plan, sizes, settings)
    made = _Sweep(plan, on, settings, points)
    made.run()
    return made.comparison()


@dataclass(frozen=True)
class _Point:
    """A combination: a mesh or None, a policy or None, and a value per swept size."""

    mesh: Mesh | None
    remat: Policy | None
    sizes: tuple[tuple[str, int], ...]


def _points(plan: Plan, sizes: Mapping[str, Any], settings: SweepSettings) -> list[_Point]:
    """Return all combinations of policies, meshes and sizes; the last size varies fastest.

    A combination has None for the mesh or the policy if the sweep does not vary it.

    Raises:
      StrategyError, SymbolError: as in `swept`.
    """
    # A list with None alone gives one combination, at the plan's own mesh or policy.
    meshes: list[Any] = [None]
    if settings.mesh is not None:
        meshes = list(meshes_of(settings.mesh, what="mesh"))
        _check_meshes(plan, meshes, sizes)
    policies: list[Any] = [None]
    if settings.remat is not None:
        given = settings.remat
        # A tuple may be one policy with its names, so only a list has several policies.
        several = given if isinstance(given, list) else [given]
        policies = [None if p is None else check_policy(p) for p in listed("remat", several)]
        check_distinct("remat", policies)
    values = {name: _sizes(name, given) for name, given in sizes.items()}
    # Called only for its error: the plan has no such name, or the value is no size.
    for name, found in values.items():
        for value in found:
            point_of(plan.sizes, {name: value})
    # Counted before the points are made, because a product of lists can exceed the memory.
    count = len(meshes) * len(policies) * math.prod(map(len, values.values()))
    if count > MOST:
        raise StrategyError(
            f"the sweep has {count:,} points, and a row each: {MOST:,} are the most. Give numpy "
            "arrays of sizes, which are evaluated without rows."
        )
    grid = [tuple(zip(values, row, strict=True)) for row in itertools.product(*values.values())]
    return [_Point(m, p, row) for p in policies for m in meshes for row in grid]


def _sizes(name: str, given: Any) -> list[int]:
    """Return the values of a swept size as Python integers, from a number, a list or an array.

    Raises:
      StrategyError: the list is empty, or has a value twice.
    """
    several = given.reshape(-1).tolist() if isinstance(given, np.ndarray) else given
    found = [int(v) if isinstance(v, np.integer) else v for v in listed(name, several)]
    check_distinct(name, found)
    return found


def _check_meshes(plan: Plan, meshes: Sequence[Mesh], sizes: Mapping[str, Any]) -> None:
    """Check the meshes of a sweep: their axes have numbers, and `sizes` does not name an axis too.

    Raises:
      StrategyError: a mesh has named sizes, or an axis of it is also in `sizes`.
    """
    for mesh in meshes:
        # A row is one point, so its mesh has numbers, also where a formula gives the figures.
        if mesh.symbolic:
            raise StrategyError(
                f"mesh has {mesh!r} with named sizes: give numbers, as in "
                f"{dict(mesh.axes)!r}; formulas are used where they hold."
            )
        both = [name for name in mesh.axis_names if name in sizes]
        if both:
            raise StrategyError(f"{', '.join(both)} is an axis of mesh=: give its sizes once.")


@dataclass(eq=False)
class _Base:
    """A function with annotations on a mesh, and the points that differ only by its named sizes.

    One traced function, and one set of formulas, can serve all of these points.

    Attributes:
      inputs: the traced function, its annotations and the settings of planning.
      known: the plan if it exists already.
      points: for each point, its number in the sweep, and a number for each named size.
    """

    inputs: PlanInputs
    known: Plan | None = None
    points: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    @cached_property
    def plan(self) -> Plan:
        """The plan at the hints."""
        return self.known or self.inputs.plan

    @property
    def mesh(self) -> Mesh:
        """The mesh, with named sizes if the plan has them."""
        return self.inputs.annotations.mesh

    @cached_property
    def named(self) -> Mapping[str, Size]:
        """The named sizes of the function and of the mesh."""
        traced = self.inputs.traced
        return named_sizes(traced.symbols or numbers_only(traced.graph), self.mesh)

    def add(self, number: int, sizes: Mapping[str, int]) -> dict[str, int]:
        """Add a point, and return a number for each of its named sizes."""
        point = point_of(self.named, sizes)
        self.points.append((number, point))
        return point

    def with_hints(self, point: Mapping[str, int]) -> _Base:
        """Return the same function with the numbers of a point as its hints.

        Raises:
          An exception of the user's function, if it cannot be traced at these sizes.
        """
        given = self.inputs
        traced, annotations = inputs_with_hints(given.traced, given.annotations, point)
        return _Base(replace(given, traced=traced, annotations=annotations))

    def at(self, point: Mapping[str, int]) -> PlanInputs:
        """Return the inputs of the plan at a point, in numbers; the function may be traced.

        Raises:
          An exception of the user's function, if it cannot be traced at these sizes.
        """
        given = self.inputs
        traced, annotations, _ = inputs_at(given.traced, given.annotations, point)
        return replace(given, traced=traced, annotations=annotations)

    def plan_at(self, point: Mapping[str, int]) -> Plan:
        """Return the plan at a point."""
        return self.plan.at(**point) if self.inputs.is_named else self.plan


@dataclass(eq=False)
class _Sweep:
    """A sweep while it runs.

    Attributes:
      found: for each point, what is finished.
      failures: texts of errors of the executor.
    """

    plan: Plan
    machine: Machine
    settings: SweepSettings
    points: list[_Point]
    found: dict[int, Finished] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Open the file, and trace the function under each policy; bases are made when needed."""
        self.say = reporter(self.settings.progress)
        self.bases: dict[Any, _Base | str] = {}
        policies = dict.fromkeys(point.remat for point in self.points)
        self.variants = {policy: self._variant(policy) for policy in policies}
        self.file = SweepFile.opened(self.settings.file, self._made_of())

    @property
    def has_own_links(self) -> bool:
        """Whether each axis of every mesh has links of its own, if the machine is a chip alone."""
        return bool(self.plan.mesh.symbolic or self.plan._stages.has_own_links)

    @property
    def machine_text(self) -> str:
        """The name of the machine, and the links of a chip alone."""
        if isinstance(self.machine, Topology):
            return machine_name(self.machine)
        joined = OWN_LINKS if self.has_own_links else "joined for each mesh as the vendor does"
        return f"{machine_name(self.machine)}, {joined}"

    def run(self) -> None:
        """Find the figures of all points; an interruption leaves the rest without.

        A point takes the first of: the figures in the file of an earlier sweep, the formulas of its
        base (a function whose points differ only by numbers), a plan made at this point.
        """
        try:
            self._take_known()
            for number, point in enumerate(self.points):
                if number not in self.found:
                    self._place(number, point)
            waiting = []
            for base in self.bases.values():
                if isinstance(base, _Base):
                    self._evaluate(base)
                    rest = [pair for pair in base.points if pair[0] not in self.found]
                    waiting += [(base, *pair) for pair in rest]
            self._make(waiting)
        except KeyboardInterrupt:
            # What is finished is the result; the other points say that they are not.
            pass
        finally:
            self.file.write()

    def _variant(self, policy: Policy | None) -> _Base:
        """Return the function with a policy of rematerialisation on the plan's own mesh.

        None is the policy of the plan itself, which is then reused.
        """
        plan = self.plan
        traced, annotations = plan._traced, plan._annotations
        if policy is not None:
            traced, annotations = inputs_with_remat(traced, annotations, policy)
        settings = (self.machine, self.settings.overlap, self.has_own_links)
        inputs = PlanInputs(type(plan), traced, annotations, plan.options, *settings)
        return _Base(inputs, plan if policy is None else None)

    def _made_of(self) -> dict[str, str]:
        """Return all that the figures depend on, as text by name: digests, versions, settings.

        The file of an interrupted sweep is continued only if its text for each name is the same.
        Without a file, the result is empty.
        """
        if self.settings.file is None:
            return {}
        texts = {}
        # The traced function with its annotations differs for each policy of rematerialisation.
        for policy, base in self.variants.items():
            given = base.inputs
            inputs = plan_file.inputs(given.traced, given.annotations, given.options)
            text = plan_file.body(json.loads(json.dumps(inputs)))
            texts[f"function {policy_text(policy)}"] = plan_file.digest(text)
        # Named sizes are traced at their hints. At other sizes Python code may take another
        # branch, so the text of the function counts, too.
        call = self.plan._traced.call
        texts["text of the function"] = plan_file.digest(_source(call.fn if call else None))
        chip = plan_file.digest(plan_file.body(self.machine.chip.to_json()))
        texts["hardware"] = f"{self.machine_text} (figures {chip[:12]})"
        texts["overlap"] = str(self.settings.overlap)
        versions = plan_file.versions(self.plan.options)
        version_texts = (f"{name} {version}" for name, version in versions.items())
        return {**texts, "versions": ", ".join(version_texts)}

    def _key(self, point: _Point) -> str:
        """Return the key of a point in the file: JSON text of its mesh, policy and sizes.

        Sizes that the sweep does not vary are included at their hints, because the figures depend
        on them. The mesh is None for the plan's own mesh.
        """
        mesh = None
        if point.mesh is not None:
            mesh = [*map(list, point.mesh.axes), point.mesh.device_ids]
        sizes = {name: size.hint for name, size in self.plan.sizes.items()} | dict(point.sizes)
        parts = {"mesh": mesh, "remat": policy_text(point.remat), "sizes": sizes}
        return json.dumps(parts, sort_keys=True)

    def _take_known(self) -> None:
        """Copy the figures of points that an earlier sweep has written to the file."""
        for number, point in enumerate(self.points):
            known = self.file.points.get(self._key(point))
            if known is not None:
                self.found[number] = known
        if self.found:
            self._report("points of the file")

    def _place(self, number: int, point: _Point) -> None:
        """Add a point to its base, or finish it as refused.

        It is refused if it has no base, or if its mesh does not have the machine's number of
        devices.

        Args:
          number: the position of the point in `points`.
        """
        base, sizes = self.base_of(point), dict(point.sizes)
        # In place of a base, text is the reason of a refusal.
        if isinstance(base, str):
            self._finish(number, Finished(None, refused=base))
            return
        try:
            # On a mesh with named axis sizes, the mesh of the point is a number for each axis.
            if point.mesh is not None and base.mesh.symbolic:
                sizes |= point.mesh.shape
            check_devices(mesh_at(base.mesh, base.add(number, sizes)), self.machine)
        except ShardalgError as error:
            self._finish(number, Finished(None, refused=reason(error)))

    def base_of(self, point: _Point) -> _Base | str:
        """Return the base of a point, or the reason (text) why there is none.

        A base is a function with annotations on one mesh; the points of a base differ only by the
        numbers of its named sizes.

        A mesh with the axes of a plan with named axis sizes is only another set of sizes. For any
        other mesh, the annotations are moved to it by the names of its axes.
        """
        variant, mesh = self.variants[point.remat], point.mesh
        plan_mesh = variant.mesh
        is_own = mesh is None or mesh == plan_mesh
        # Named axis sizes take any numbers. Device ids are an order, which numbers do not say.
        if mesh is not None and plan_mesh.symbolic and mesh.device_ids is None:
            is_own = is_own or mesh.axis_names == plan_mesh.axis_names
        # One base per policy and mesh, made at the first point that needs it.
        key = (point.remat, None if is_own else mesh)
        if key not in self.bases:
            self.bases[key] = variant
            if mesh is not None and not is_own:
                try:
                    # It fails if the mesh lacks an axis that an annotation names.
                    self.bases[key] = _moved(variant, mesh)
                except ShardalgError as error:
                    self.bases[key] = reason(error)
        return self.bases[key]

    def _evaluate(self, base: _Base) -> None:
        """Finish the points of a base whose figures need no plan of their own.

        These are the points at which formulas in the named sizes hold: those of the plan at the
        hints, then those of plans at a few other points. `_make` plans the points that are left.
        """
        # A pair is the position of a point in the sweep, and its number for each named size.
        points = [pair for pair in base.points if pair[0] not in self.found]
        # One point is planned as fast as the formulas are made.
        if not points or (base.known is None and len(points) < 2):
            return
        # Without named sizes there are no formulas, and the only point is the plan itself.
        if not base.inputs.is_named:
            if base.known is not None:
                self._finish(points[0][0], self._planned(base.inputs, base.known))
            return
        self._take_formulas(base, points)
        places = iter(PLACES)
        # Formulas of other hints hold at other points. An attempt that takes longer than planning
        # the points that it finds is followed by one at another place.
        while (place := next(places, None)) is not None:
            rest = [pair for pair in points if pair[0] not in self.found]
            if len(rest) < WORTH:
                return
            start, before = time.monotonic(), len(self.found)
            try:
                other = base.with_hints(rest[int(place * len(rest))][1])
                _ = other.plan.program
            except Exception:  # the user's function may raise anything at other sizes
                continue
            planned_s = time.monotonic() - start
            self._take_formulas(other, rest)
            if time.monotonic() - start < planned_s * (len(self.found) - before):
                places = iter(PLACES)

    def _take_formulas(self, base: _Base, points: Sequence[tuple[int, Mapping[str, int]]]) -> None:
        """Finish the points at which the formulas of a base hold, with one report of progress."""
        for number, figures in self._by_formula(base, points):
            self._finish(number, Finished(figures, FORMULA), is_told=False)
        self._report("formulas")

    def _by_formula(
        self, base: _Base, points: Sequence[tuple[int, Mapping[str, int]]]
    ) -> Iterator[tuple[int, StepFigures]]:
        """Yield (number, figures) of the points at which the formulas of a base hold.

        A formula holds at a point if planning decides there as at the base's hints. Nothing is
        yielded if there are no formulas: no plan at the hints, no named sizes, or an overlap that
        is a schedule.

        Args:
          points: pairs of a point's number in the sweep and its number for each named size.
        """
        try:
            plan = base.plan
            if plan._named is None or plan._guards is None or self.settings.overlap in SCHEDULES:
                return
        except ShardalgError:
            # It cannot be planned at the hints; each point may still have a plan.
            return
        holds = plan._guards.holding([point for _, point in points], attempts=ATTEMPTS)
        held = [pair for pair, is_held in zip(points, holds, strict=True) if is_held]
        chip = plan._stages.machine(self.machine)
        # Group the points by mesh. On a topology, the links under an axis depend on the sizes of
        # all axes, so each other mesh needs formulas of its own. None is the mesh of the hints.
        links: dict[Mesh | None, list[tuple[int, Mapping[str, int]]]] = {}
        for number, point in held:
            mesh = mesh_at(plan.mesh, point)
            is_other = isinstance(chip, Topology) and mesh.axes != plan.mesh.axes
            links.setdefault(mesh if is_other else None, []).append((number, point))
        routed = any(getattr(s.instruction.attributes, "routes", ()) for s in walk(plan.program))
        for mesh_, group in links.items():
            # The pairs of a permute are devices of the mesh of the hints.
            if mesh_ is not None and routed:
                continue
            try:
                formulas = step_formulas(plan, chip, self.settings.overlap, mesh_)
            except (FormulaError, HardwareError):
                continue
            # Evaluate the formulas once for the whole group, as arrays.
            names = group[0][1]
            arrays = {name: np.array([point[name] for _, point in group]) for name in names}
            rows = zip(*(found.tolist() for found in formulas.at(arrays)), strict=True)
            for (number, _), (seconds, peak, sent) in zip(group, rows, strict=True):
                yield number, StepFigures(seconds, float(peak), float(sent))

    def _make(self, waiting: Sequence[tuple[_Base, int, Mapping[str, int]]]) -> None:
        """Plan the function at points that no formula serves, here or by the executor's workers.

        Args:
          waiting: (base, number of the point in the sweep, its number for each named size).

        Raises:
          StrategyError: the executor fails for all points.
        """
        if self.settings.executor is None:
            for number, inputs in self._inputs(waiting):
                self._finish(number, self._planned(inputs))
            return
        jobs = ((number, inputs.job("step")) for number, inputs in self._inputs(waiting))
        count = 0
        for number, result in results(self.settings.executor, jobs):
            count += 1
            # A worker fails, or returns the figures of a plan, or the reason why there is no plan.
            if isinstance(result, Failed):
                self.failures[number] = str(result)
                self._report(str(result))
            elif isinstance(result, StepFigures):
                self._finish(number, Finished(result, PLAN))
            else:
                self._finish(number, Finished(None, refused=result))
        check_failures([*self.failures.values()], count)

    def _inputs(
        self, waiting: Sequence[tuple[_Base, int, Mapping[str, int]]]
    ) -> Iterator[tuple[int, PlanInputs]]:
        """Yield the inputs of each point in numbers; points that cannot be traced are refused."""
        for base, number, point in waiting:
            try:
                inputs = base.at(point)
            except Exception as error:  # the user's function may raise anything at other sizes
                self._finish(number, Finished(None, refused=reason(error)))
            else:
                yield number, inputs

    def _planned(self, inputs: PlanInputs, known: Plan | None = None) -> Finished:
        """Return the figures of a plan, or the reason why there is none.

        Args:
          inputs: the function and its annotations at one point, in numbers.
          known: the plan at this point if it exists already.
        """
        try:
            if known is not None:
                cost = known.cost(self.machine, overlap=self.settings.overlap)
                return Finished(StepFigures.of(cost), PLAN)
            return Finished(inputs.step(), PLAN)
        except ShardalgError as error:
            return Finished(None, refused=reason(error))

    def _finish(self, number: int, found: Finished, *, is_told: bool = True) -> None:
        """Store the result of a point, also in the file.

        Args:
          number: the position of the point in `points`.
          is_told: whether the user's progress function is called.
        """
        self.found[number] = found
        self.file.add(self._key(self.points[number]), found)
        if is_told:
            self._report(self._name(number))

    def _report(self, name: str) -> None:
        """Call the user's progress function with the number of points that are done, and a name."""
        if self.say is not None:
            self.say(len(self.found) + len(self.failures), len(self.points), name)

    def _name(self, number: int) -> str:
        """Return the text of a point for progress: its mesh, sizes and policy, if they vary."""
        point = self.points[number]
        sizes = [f"{name}={size}" for name, size in point.sizes]
        mesh = [] if point.mesh is None else [mesh_text(point.mesh)]
        remat = [] if point.remat is None else [policy_text(point.remat)]
        return ", ".join([*mesh, *sizes, *remat])

    def comparison(self) -> SweepComparison:
        """Return the ranked points."""
        rows = [self._row(number, point) for number, point in enumerate(self.points)]
        unfinished = len(self.points) - len(self.found) - len(self.failures)
        return SweepComparison.of(rows, self.machine_text, unfinished)

    def _row(self, number: int, point: _Point) -> SweptPoint:
        """Return a point of the sweep with its figures, or with the reason why it has none.

        Args:
          number: the position of the point in `points`.
        """
        found = self.found.get(number)
        # A point without a result failed in the executor, or the sweep was interrupted before it.
        refused = found.refused if found else self.failures.get(number, UNFINISHED)
        sizes = dict(point.sizes)
        # A swept size may be the name of an axis of the plan's mesh.
        axes = {**self.plan.mesh.shape, **sizes}
        plan_mesh = Mesh([(name, axes[name]) for name in self.plan.mesh.axis_names])
        try:
            samples = None if self._lead is None else evaluate(self._lead, sizes)
        except ShardalgError:  # no whole number, so that the function has no plan there either
            samples = None
        capacity = self.machine.chip.hbm_bytes * (1 - self.settings.reserve)
        return SweptPoint(
            mesh_text(point.mesh or plan_mesh),
            policy_text(point.remat),
            sizes,
            found.figures if found else None,
            found.source if found else "",
            refused,
            capacity,
            samples,
            partial(self._plan_of, point),
        )

    def _plan_of(self, point: _Point) -> Plan:
        """Return the plan at a point that has figures; it is made now."""
        base = self.base_of(point)
        assert isinstance(base, _Base), "points without a base are refused"
        sizes = dict(point.sizes)
        # On a mesh with named axis sizes, the mesh of the point is a number for each axis.
        if point.mesh is not None and base.mesh.symbolic:
            sizes |= point.mesh.shape
        return base.plan_at(sizes)

    @cached_property
    def _lead(self) -> Any:
        """The leading dimension of the data arguments: the samples of a step.

        A number, or a formula in the named sizes. None if data arguments differ in it, or if there
        are none.
        """
        traced = self.plan._traced
        shapes = [traced.graph.values[v].type.shape for v in traced.graph.arguments]
        # With named sizes, the declared shapes have formulas in place of numbers.
        declared_shapes = traced.symbols.dims if traced.symbols else shapes
        pairs = zip(declared_shapes, traced.argument_roles, strict=True)
        leading = {shape[0] for shape, role in pairs if role == "data" and len(shape)}
        return leading.pop() if len(leading) == 1 else None


def _moved(variant: _Base, mesh: Mesh) -> _Base:
    """Return a base on another mesh, with its annotations moved by the names of its axes.

    Raises:
      StrategyError: the mesh lacks an axis.
    """
    given = variant.inputs
    traced = given.traced.on(mesh, before=variant.mesh)
    graphs = (given.traced.graph, traced.graph)
    annotations = annotations_on_mesh(graphs, given.annotations, mesh, traced.first_mesh)
    return _Base(replace(given, traced=traced, annotations=annotations))


def _source(fn: Callable[..., Any] | None) -> str:
    """Return the text of a function; "" if Python does not know it."""
    try:
        return "" if fn is None else getsource(fn)
    except (OSError, TypeError):
        return ""
