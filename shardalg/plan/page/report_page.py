"""The living report: formulas and guards of plans as one page that computes in the browser."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.costs.cost import MEASURED, Cost
from shardalg.costs.hardware import Hardware
from shardalg.costs.matrix_unit import check_products
from shardalg.costs.topology import Topology
from shardalg.errors import HardwareError, StrategyError
from shardalg.plan.named_sizes import asked_facts
from shardalg.plan.page.plan_html import function_name
from shardalg.plan.plan_conditions import reasons
from shardalg.planner.stages import priced
from shardalg.show.pages.document import CHARTS, FORMULAS, html_document, page_element
from shardalg.show.pages.formula_program import FormulaProgram
from shardalg.sizes.conditions import words
from shardalg.sizes.facts import Fact
from shardalg.sizes.formula import Formula
from shardalg.sizes.recorded import total

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

CHIPS = ("tpu_v5e", "tpu_v5p", "tpu_v6e", "h100", "b200")
"""Chips of a report in addition to that of the plan, if the user names none."""
OVERLAPS = {
    MEASURED: "as measured on published steps",
    "none": "none: one after the other",
    "full": "full: the longer of both",
}
"""Assumptions about overlap that are formulas; the others are schedules of one size."""
_SCRIPT = Path(__file__).with_name("report.js")


def report_document(
    plans: Mapping[str, Plan], hardware: str | Hardware | Topology | Sequence[Any] | None = None
) -> str:
    """Return the report of plans as a complete HTML file that loads nothing.

    Args:
      plans: plans by name, the first one first.
      hardware: a chip or a list of chips; None: the chip of the first plan, and `CHIPS`.

    Raises:
      StrategyError: a plan has no named sizes, or an entry is not a plan.
      HardwareError: a chip is unknown, or has no peak for a product's type.
    """
    for name, plan in plans.items():
        if not hasattr(plan, "_symbolised"):
            raise StrategyError(f"plan.report() compares with plans, got {plan!r:.80} as {name!r}.")
        if not plan.is_symbolic:
            raise StrategyError(
                f"All sizes of the plan {name!r} are fixed, so its report has nothing to change. "
                'Name sizes with sa.dims, or the axes with sa.Mesh({"X": 4}, symbolic=True).'
            )
    first = next(iter(plans.values()))
    title = function_name(first)
    sizes = ", ".join({name: None for plan in plans.values() for name in plan.sizes})
    body = (
        f"<header><h1>{html.escape(title)}: time and memory at other sizes</h1>"
        f"<p>{html.escape(_about(plans))}</p></header>"
        f"<noscript><p>This page computes with JavaScript, which is off. Named sizes: "
        f"{html.escape(sizes)}.</p></noscript>"
        '<section class="card"><div class="controls" data-part="sizes"></div>'
        '<div class="tools"><button type="button" data-reset>Back to the planned sizes</button>'
        '<span class="small faint" data-part="devices"></span></div></section>'
        '<div class="banner" data-part="valid" aria-live="polite"></div>'
        '<div class="banner" data-part="winner" aria-live="polite"></div>'
        '<div class="figures" data-part="figures"></div>'
        '<div class="scroll" data-part="plans"></div>'
        '<div class="row2"><section class="card" data-part="curve"></section>'
        '<section class="card" data-part="map"></section></div>'
        '<section class="card" data-part="formulas"></section>'
    )
    element = page_element(body, report_data(plans, hardware), scripts=[CHARTS, FORMULAS, _SCRIPT])
    return html_document(f"{title}: report", element)


def report_data(
    plans: Mapping[str, Plan], hardware: str | Hardware | Topology | Sequence[Any] | None
) -> dict[str, Any]:
    """Return the data of a report: one program with the formulas of all plans on all chips."""
    first = next(iter(plans.values()))
    program = FormulaProgram()
    chips, found = _chips(plans, hardware)
    sizes: dict[str, dict[str, Any]] = {}
    for plan in plans.values():
        axes = {*plan.mesh.axis_names} if plan.mesh.symbolic else set()
        for name, size in plan.sizes.items():
            sizes.setdefault(name, {"name": name, "hint": size.hint, "axis": name in axes})
    return {
        # Dimensions come first, because they are changed most often.
        "sizes": sorted(sizes.values(), key=lambda one: bool(one["axis"])),
        "chips": [
            {"name": label, "hbm": min(chip.chip.hbm_bytes, 2.0**100)} for label, chip in chips
        ],
        "overlaps": OVERLAPS,
        "schedules": "Overlap by dependences and asynchronous overlap are schedules of one size. "
        'They have no formula: plan.at(...).cost(chip, overlap="dependences").',
        "plans": [
            {
                "name": name,
                "mesh": repr(plan.mesh),
                "on": [_on_chip(program, plan, cost) for cost in found[name]],
                "formulas": _texts(found[name][0]),
            }
            for name, plan in plans.items()
        ],
        "asked": _guards(program, plans, [chip for _, chip in chips]),
        "hints": {name: one["hint"] for name, one in sizes.items()},
        "planned": chips[0][0],
        "mesh": [*first.mesh.axis_names],
        # Last, because the entries above add steps.
        "program": program.data(),
    }


def _about(plans: Mapping[str, Plan]) -> str:
    """Return the first sentences of a report: the plans, and the validity of formulas."""
    first = next(iter(plans.values()))
    hints = ", ".join(f"{name}={size.hint}" for name, size in first.sizes.items())
    which = f"{len(plans)} plans" if len(plans) > 1 else f"The plan on {first.mesh!r}"
    return (
        f"{which}, made at {hints}. All numbers are predicted, per device and step. Formulas hold "
        "where planning decides as at these sizes; other sizes are grey."
    )


def _chips(
    plans: Mapping[str, Plan], hardware: Any
) -> tuple[list[tuple[str, Hardware | Topology]], dict[str, list[Cost]]]:
    """Return the chips with their labels, and the costs of each plan on each chip.

    Raises:
      HardwareError: a chip that the user names is unknown, or has no peak for a product's type.
    """
    first = next(iter(plans.values()))
    listed = [*hardware] if isinstance(hardware, list | tuple) else [hardware]
    wanted = [first.options.hardware, *CHIPS] if hardware is None else listed
    chips: dict[str, Hardware | Topology] = {}
    for one in wanted:
        machine = first._stages.machine(one)
        try:
            for plan in plans.values():
                check_products(plan.graph, machine.chip)
        except HardwareError:
            # A chip that nobody asked for is left out if it has no rate for the products.
            if hardware is not None:
                raise
            continue
        label = machine.text if isinstance(machine, Topology) else machine.name
        chips.setdefault(label, machine)
    if not chips:
        raise HardwareError(
            "no chip of the report has a peak rate for the products of the plan: "
            "give hardware=, a chip or a list of chips."
        )
    costs = {}
    for name, plan in plans.items():
        named = plan._symbolised
        assert named is not None, "a plan with named sizes has formulas"
        costs[name] = [priced(plan._traced, named, chip, overlap="none") for chip in chips.values()]
    return [*chips.items()], costs


def _on_chip(program: FormulaProgram, plan: Plan, cost: Cost) -> dict[str, Any]:
    """Return the steps of a plan's quantities on a chip.

    "time" has seconds by overlap; "waits" the seconds of communication alone, by mesh axes; "sent"
    bytes by mesh axes.
    """
    totals, calibration = cost.totals, cost.hardware.calibration
    peaks = totals.peaks() if totals.peaks else (totals.peak_bytes,)
    has_constants = not calibration.is_datasheet and not cost.hardware.operators.figures
    known = [name for name in OVERLAPS if name != MEASURED or has_constants]
    sent: dict[str, list[Any]] = {}
    for item in totals.items:
        if item.is_communication:
            sent.setdefault(",".join(item.axes), []).append(item.wire_bytes)
    return {
        "time": {
            name: program.formula(replace(cost, overlap=name)._time(totals)) for name in known
        },
        "compute": program.formula(totals.sum("time_s", communication=False)),
        "peak": program.largest(peaks),
        "wire": program.formula(totals.sum("wire_bytes")),
        "sent": {axes: program.formula(total(amounts)) for axes, amounts in sent.items()},
        "devices": program.formula(totals.devices),
        "note": f"constants fitted on published steps ({calibration.software})"
        if has_constants
        else "rates of the data sheet",
    }


def _texts(cost: Cost) -> list[tuple[str, str]]:
    """Return the quantities of a plan with their formulas as text; long ones are cut off."""
    found = []
    for name, formula in cost.totals.named():
        text = str(Formula.of(formula))
        found.append((name, text if len(text) <= 1200 else f"{text[:1200]} …"))
    return found


def _guards(
    program: FormulaProgram, plans: Mapping[str, Plan], chips: Iterable[Hardware | Topology]
) -> list[list[dict[str, Any]]]:
    """Return the guards of each plan on each chip.

    "own" has the facts of planning itself, and "calls" the functions that it calls. A call has its
    recorded result where its facts "f" are true and the calls "u" that it reads have theirs, or
    where all facts of one list of "a" are true. "used" has the calls that planning reads.
    """
    machines, found = [*chips], []
    for plan in plans.values():
        guards = plan._guards
        why = {} if guards is None else reasons(plan.graph, guards)
        others = {} if guards is None else guards.alternatives(_points(plan))
        per_chip = []
        for chip in machines:
            places: dict[Fact, int] = {}

            def numbered(facts: Iterable[Fact], places: dict[Fact, int] = places) -> list[int]:
                return [places.setdefault(fact, len(places)) for fact in facts]

            own, _ = asked_facts(plan, chip)
            made: dict[str, Any] = {"own": numbered(own), "calls": [], "used": []}
            if guards is not None:
                made["own"] += numbered(guards.traced)
                order = {call: place for place, call in enumerate(guards.calls[:-1])}
                made["calls"] = [
                    {
                        "f": numbered(call.facts),
                        "u": [order[used] for used in call.uses],
                        "a": [numbered(facts) for facts in others.get(call, ())],
                    }
                    for call in order
                ]
                made["used"] = [order[used] for used in guards.whole.uses]
            made["facts"] = [program.fact(fact) for fact in places]
            made["reasons"] = [_reason(fact, why) for fact in places]
            per_chip.append(made)
        found.append(per_chip)
    return found


def _points(plan: Plan) -> list[dict[str, int]]:
    """Return the points at which calls of planning are recorded again: near the hints."""
    hints = {name: size.hint for name, size in plan.sizes.items()}
    found = [hints]
    for name, hint in hints.items():
        sizes = {max(1, hint * 2**power // 64) for power in range(0, 13, 2)}
        found += [{**hints, name: size} for size in sorted(sizes)]
    axes = [name for name in plan.mesh.axis_names if name in hints]
    for first, second in combinations(axes, 2):
        grid = product((1, 2, 4, 8), repeat=2)
        found += [{**hints, first: one, second: other} for one, other in grid]
    return found


def _reason(fact: Fact, why: Mapping[Fact, tuple[str, str]]) -> tuple[str, str, str]:
    """Return a guard in words, the decision that depends on it, and the source line."""
    if fact.formula.number is not None:
        return "no guards are known", "planning again decides", ""
    return (words(fact), *why.get(fact, ("the links of the mesh axes", "")))
