"""A plan at other sizes: the validity of its decisions and its costs.

Planning records every question that it puts to a named size (`planner.guards`). Where all answers
are the same, the formulas hold and nothing is planned again; elsewhere the function is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shardalg.costs.topology import PlacedTopology, Topology, machine, machine_text
from shardalg.errors import ShardalgError, StrategyError
from shardalg.plan.planning import refuse_fallbacks
from shardalg.planner.stages import NO_CHANGES, planned_at, priced
from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.algebra.dims import Size
    from shardalg.algebra.mesh import Mesh
    from shardalg.costs.analyses.sweep import StepFormulas, Sweep, Sweeper
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.symbolic import Symbolised
    from shardalg.plan.plan import Plan
    from shardalg.sizes.facts import Fact

PRICES = ("peak", "formula")
"""At other sizes these kinds of changes concern prices, not decisions."""

_KEPT = 8
"""Building the formulas of a sweep is slow, so a plan keeps those of this many sweeps."""


def symbolised(plan: Plan) -> Symbolised | None:
    """Return the program with a formula for each of its sizes; None for a plan in numbers."""
    if not plan._stages.is_named:
        return None
    from shardalg.costs.symbolic import Sizes, symbolise
    from shardalg.planner.guards import recorded_shapes

    sizes = Sizes.of(plan._symbols.lifted, plan.mesh.sizes)
    recorded = partial(recorded_shapes, plan._stages, plan.options, sizes)
    return symbolise(plan.program, plan.graph, sizes, recorded)


def symbolised_or_none(plan: Plan) -> Symbolised | None:
    """Return the program with a formula for each of its sizes, or None.

    None means that the plan is in numbers, or that a size of the program has no formula.
    """
    from shardalg.sizes.formula import FormulaError

    try:
        return plan._symbolised
    except FormulaError:
        return None


def sizes_of(plan: Plan) -> dict[str, Size]:
    """Return every named size with its hint, the number at which the plan was made.

    The dict is empty for a plan in numbers.
    """
    if not plan.is_symbolic:
        return {}
    from shardalg.sizes.symbolic.symbols import named_sizes

    return named_sizes(plan._symbols, plan.mesh)


def hints_text(plan: Plan, names: Iterable[str]) -> str:
    """Return text such as "B=64, S=128": named sizes with the numbers at which they are planned."""
    return ", ".join(f"{name}={plan.sizes[name].hint}" for name in names)


def plan_at(plan: Plan, sizes: Mapping[str, int]) -> Plan:
    """Return the plan of the same function for other sizes; see `Plan.at`.

    Raises:
      SymbolError: no size of that name, or a size below 1.
      StrategyError: `strict=True`, and a decision is another one there.
    """
    from shardalg.sizes.symbolic.symbols import point_of

    point = point_of(plan.sizes, sizes)
    if guards_hold(plan, point):
        # No decision changes at this point, so `changes` is known without planning. The program is
        # planned only if the user asks for it.
        return replace(
            plan,
            _make=lambda: planned_at(plan._stages, point, plan.options)[0],
            changes=NO_CHANGES,
            _since_saved=(),
        )
    here = planned_there(plan, point)
    decided = [row for row in here.changes if row["kind"] not in PRICES]
    if plan.options.strict and decided:
        raise StrategyError(
            f"strict=True, and {len(decided)} decisions at {point} are others than at the "
            f"hints:\n{here.changes}\nPlan at these sizes, or allow it."
        )
    return here


def planned_there(plan: Plan, point: Mapping[str, int]) -> Plan:
    """Return a new plan for other sizes, with its differences from `plan` as `changes`.

    The plan of the last call is kept, because `holds` and `at` often ask for the same sizes.

    Args:
      point: the number for each named size.
    """
    key = tuple(point.items())
    # A plan can be large, so only the last one is kept.
    if key not in plan._last_made:
        from shardalg.plan.explain import decisions

        stages, constant = planned_at(plan._stages, point, plan.options)
        refuse_fallbacks(stages, plan.options)
        changes = decisions.changes(
            plan._stages, stages, plan._named, point=point, constant=constant
        )
        plan._last_made.clear()
        plan._last_made[key] = replace(
            plan,
            options=plan.options.where(named=stages.is_named),
            _make=lambda: stages,
            changes=changes,
            _since_saved=(),
        )
    return plan._last_made[key]


def guards_hold(plan: Plan, point: Mapping[str, int]) -> bool:
    """Return whether planning would make the same decisions for other sizes.

    Planning records each question that it asks about a size (a guard), such as "is B > 8?". True
    means that all of them have the same answers at `point`. False also means that they are not
    known.
    """
    guards = plan._guards
    return guards is not None and guards.hold(point)


def holds(plan: Plan, sizes: Mapping[str, int]) -> bool:
    """Return whether no decision changes at other sizes; see `Plan.holds`.

    Raises:
      SymbolError: no size of that name, or a size below 1.
    """
    from shardalg.sizes.symbolic.symbols import point_of

    point = point_of(plan.sizes, sizes)
    if guards_hold(plan, point):
        return True
    # Comparing needs a plan at the point, which takes as long as planning: the answer is kept.
    key = tuple(point.items())
    if key not in plan._compared:
        plan._compared[key] = _is_same_at(plan, point)
    return plan._compared[key]


def _is_same_at(plan: Plan, point: Mapping[str, int]) -> bool:
    """Return whether a plan made at the point has the decisions and costs of the formulas.

    Peak memory is compared on the plan's own chip only.
    """
    from shardalg.plan.pricing import cost_on
    from shardalg.planner.guards import formulas_hold

    if not plan.is_symbolic:
        return False
    try:
        here = planned_there(plan, point)
    except ShardalgError:
        # The function is another program there, or a loaded plan has no function to trace.
        return False
    # A row "peak" is about chips with and without rebuilt values. `formulas_hold` below compares
    # the peak only for the plan's own chip, which is the one that counts.
    if any(row["kind"] != "peak" for row in here.changes):
        return False
    named = plan._named
    if named is None:
        return False
    chip = machine(plan.options.hardware)
    return formulas_hold(named, (cost_on(plan, chip), cost_on(here, chip)), here.program, point)


def conditions_table(plan: Plan) -> Table:
    """Return the conditions on named sizes under which a plan stays the same, a row each.

    The table is empty for a plan in numbers.
    """
    from shardalg.plan import plan_conditions

    if plan._symbolised is None:
        return plan_conditions.NO_CONDITIONS
    return plan_conditions.conditions(plan._symbolised, plan._guards, plan.options)


def sweep(
    plan: Plan,
    hardware: str | Hardware | Topology | None,
    overlap: str | None,
    sizes: Mapping[str, Any],
) -> Sweep:
    """Return step time, peak memory and validity at arrays of named sizes; see `Plan.sweep`.

    Raises:
      SymbolError: no size of that name, or arrays that are no sizes or do not broadcast.
      HardwareError: an unknown chip. FormulaError: overlap="dependences".
    """
    from shardalg.costs.analyses.sweep import Sweep
    from shardalg.sizes.symbolic.symbols import points_of

    # A formula with fewer names is faster at each point, so single numbers are put in once.
    known, swept = points_of(plan.sizes, sizes)
    hardware = plan.options.hardware if hardware is None else hardware
    chip = machine(hardware)
    # Chip, overlap and fixed sizes are part of the formulas; swept arrays are only their arguments.
    key = (chip, overlap, tuple(known.items()))
    sweepers = plan._sweepers
    if key not in sweepers:
        # The oldest entry goes first: dicts keep the order of insertion.
        while len(sweepers) >= _KEPT:
            sweepers.pop(next(iter(sweepers)))
        sweepers[key] = _sweeper(plan, chip, overlap, known)
    # A swept mesh axis has many sizes, so the number of devices is written as a product of names.
    axes = [name for name in plan.mesh.axis_names if name in swept]
    devices = "*".join(plan.mesh.axis_names) if axes else plan.mesh.size
    on = machine_text(hardware, devices)
    seconds, peak, holds, doubtful = sweepers[key].at(swept)
    return Sweep(chip.chip, swept, seconds, peak, holds, doubtful, on)


def _sweeper(
    plan: Plan, chip: Hardware | Topology, overlap: str | None, known: dict[str, int]
) -> Sweeper:
    """Return the formulas that `sweep` evaluates: seconds, peak memory, and validity of the plan.

    The plan is valid at sizes that fulfil its conditions (comparisons that planning made).

    Args:
      chip, overlap: the machine and the mode of overlap for the seconds, as in `Plan.cost`.
      known: the sizes that are the same at all points; they are put into the formulas.
    """
    from shardalg.costs.analyses.sweep import Sweeper
    from shardalg.sizes.formula import Formula

    cost = plan.cost(chip, overlap=overlap)
    totals = cost.totals
    peaks = totals.peaks() if totals.peaks else (Formula.of(totals.peak_bytes),)
    return Sweeper(cost._time(totals), peaks, asked_facts(plan, chip), known)


def asked_facts(plan: Plan, chip: Hardware | Topology) -> tuple[list[Fact], list[Fact]]:
    """Return two lists of facts about sizes, which are true where a plan's formulas are valid.

    Where a fact of the first list is false, the plan is another one. Where only facts of the second
    list are false, functions that planning calls may still have the same results.
    """
    from shardalg.sizes.facts import NONZERO, ZERO, Fact
    from shardalg.sizes.formula import Formula, symbol

    guards = plan._guards
    if guards is None:
        # 0 != 0 never holds. Without recorded guards, the plan could change at any other size, so
        # no point may be reported as certain.
        return [Fact(Formula({}), NONZERO)], []
    # `decisive` leaves out questions about reuse of memory, which change no other decision.
    own = [*guards.whole.facts]
    called = [fact for fact in guards.decisive if fact not in guards.whole.facts]
    if isinstance(chip, Topology) and plan.mesh.symbolic:
        # The links under an axis depend on the sizes of all axes: the formulas have the links of
        # the mesh of the hints.
        own += [Fact(symbol(name) - size, ZERO) for name, size in plan.mesh.axes]
    return own, [*called, *guards.traced]


def step_formulas(
    plan: Plan, chip: Hardware | Topology, overlap: str | None, links: Mesh | None
) -> StepFormulas:
    """Return formulas of seconds, peak memory and sent bytes in all named sizes of a plan.

    Args:
      links: on a topology, the mesh at whose axis sizes the formulas are used.

    Raises:
      FormulaError: `overlap` is a schedule.
    """
    from shardalg.costs.analyses.sweep import StepFormulas
    from shardalg.sizes.formula import Formula

    assert plan._symbolised is not None, "a plan in numbers has no formulas"
    # On a topology, the links under an axis depend on the sizes of all axes, so `links` fixes them.
    on: Any = chip
    if links is not None and isinstance(chip, Topology):
        on = PlacedTopology(chip, links)
    cost = priced(plan._traced, plan._symbolised, on, overlap=overlap)
    totals = cost.totals
    peaks = totals.peaks() if totals.peaks else (Formula.of(totals.peak_bytes),)
    return StepFormulas(cost._time(totals), peaks, totals.sum("wire_bytes"))
