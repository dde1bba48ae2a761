"""The commands that plan a function of the user and print tables of the plan.

`shardalg plan`, `explain`, `compare-xla`, `timeline` and `aot`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.errors import CommandError
from shardalg.files import check_place, write_whole
from shardalg.plan.commands.function import add_function, machine_data, planned
from shardalg.plan.commands.messages import (
    Command,
    add_json,
    by_quantity,
    plain,
    print_json,
    records,
)
from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.costs.topology import Topology
    from shardalg.plan.plan import Plan
    from shardalg.verify.report import Report
    from shardalg.xla.aot_answer import BesideCompiler

REFUTED = 1
SHOWN = ("kind", "mesh_axes", "executions", "wire_bytes", "role", "phase", "op", "source")


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shardalg plan` to its parser."""
    add_function(parser)
    option = parser.add_argument
    option(
        "--verify", action="store_true", help="prove the program; exit status 1 if it is refuted"
    )
    option("--html", type=Path, metavar="FILE", help="write the plan as an HTML page to FILE")
    option("--save", type=Path, metavar="FILE", help="write the plan file to FILE")
    add_json(parser)


def run_plan(options: argparse.Namespace) -> int:
    """Print the overview and the collectives, write files, and return the exit status.

    The status is 1 if a proof was asked for and the program is refuted, else 0.
    """
    plan = planned(options)
    report = plan.verify() if options.verify else None
    if options.json:
        print_json(_plan_data(plan, options.hardware, report))
    else:
        rows = plan.collectives()
        # The table has more columns than a terminal is wide; --json prints all of them.
        shown = [name for name in SHOWN if name in rows.columns]
        collectives = Table(tuple(shown), tuple(rows[shown].itertuples(index=False, name=None)))
        print(plan.overview(options.hardware), collectives or "No collectives.", sep="\n\n")
        if report is not None:
            print(f"\n{report}")
    if options.html is not None:
        plan.page(options.html, options.hardware)
    if options.save is not None:
        plan.save(options.save)
    return REFUTED if report is not None and report.refuted else 0


def _plan_data(plan: Plan, hardware: str | None, report: Report | None) -> dict[str, Any]:
    """Return the overview, collectives, warnings and proof of a plan as plain data for JSON.

    Args:
      hardware: the chip or topology for prices; None for the plan's own.
      report: the proof; None if the user did not ask for one.
    """
    overview = plan.overview(hardware)
    # Named sizes have their hints, because JSON has no formulas.
    cost = {name: plain(value) for name, value in overview.priced.hints.named()}
    return {
        "plan": repr(plan),
        "layouts": plan.options.followed,
        **machine_data(overview.priced, plan.mesh),
        "cost": cost,
        "axes": records(overview.numbers),
        "beside_jit": records(plan.beside_jit()),
        "collectives": records(plan.collectives()),
        "warnings": records(plan.warnings()),
        "verify": None if report is None else str(report),
    }


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shardalg explain` to its parser."""
    add_function(parser)
    add_json(parser)
    parser.add_argument(
        "what", help="the number of a collective in `shardalg plan`, or a value's name"
    )


def run_explain(options: argparse.Namespace) -> int:
    """Print why a collective is there, or why a value has its sharding; return 0."""
    what = options.what
    plan = planned(options)
    # A number is a collective, as `shardalg plan` counts them; other text is the name of a value.
    answer = plan.explain(int(what) if what.isdecimal() else what)
    if options.json:
        machine = machine_data(plan.overview(options.hardware).priced, plan.mesh)
        print_json({"what": what, "text": str(answer), **machine, "rows": records(answer.table)})
    else:
        print(answer)
    return 0


def add_compare_xla_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shardalg compare-xla` to its parser."""
    add_function(parser)
    add_json(parser)
    parser.add_argument(
        "--partitioner", choices=("gspmd", "shardy"), help="default: the one of the installed jax"
    )


def run_compare_xla(options: argparse.Namespace) -> int:
    """Print the plan compared with XLA's partitioning of the function; return 0."""
    plan = planned(options)
    comparison = plan.compare_xla(options.partitioner)
    if options.json:
        sent = {"wire_bytes": comparison.wire_bytes, "xla_wire_bytes": comparison.xla_wire_bytes}
        machine = machine_data(plan.overview(options.hardware).priced, plan.mesh)
        rows = {"rows": records(comparison.table)}
        print_json({"partitioner": comparison.partitioner, **sent, **machine, **rows})
    else:
        print(comparison)
    return 0


def add_timeline_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shardalg timeline` to its parser."""
    add_function(parser)
    add_json(parser)
    option = parser.add_argument
    option("--trace", type=Path, metavar="FILE", help="write a Chrome trace (JSON) to FILE")
    option("--figure", type=Path, metavar="FILE", help="write the figure (PNG) to FILE")
    option("--table", action="store_true", help="print every event")


def run_timeline(options: argparse.Namespace) -> int:
    """Print one line, or the table or JSON, and write the files that options name."""
    from shardalg.pictures import png

    # Refuse a bad path before the plan, which can take long.
    for path in filter(None, (options.trace, options.figure)):
        check_place(path)
    plan = planned(options)
    timeline = plan.timeline(options.hardware)
    if options.json:
        shares = {"step_s": timeline.step_s, "bubble_share": timeline.bubbles}
        machine = machine_data(plan.overview(options.hardware).priced, plan.mesh)
        header = {"of": timeline.of, "stages": timeline.stages, **machine}
        print_json({**header, **shares, "events": records(timeline.table())})
    else:
        print(timeline)
        if options.table:
            print(timeline.table())
    if options.trace is not None:
        timeline.save(options.trace)
    if options.figure is not None:
        write_whole(options.figure, png(timeline.figure()))
    return 0


def add_aot_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shardalg aot` to its parser."""
    add_function(parser)
    add_json(parser)


def run_aot(options: argparse.Namespace) -> int:
    """Print the plan compared with the program that the chip's compiler makes; return 0."""
    from shardalg.costs.topology import Topology

    if options.hardware is None:
        raise CommandError("no topology given. Pass a chip and its shape: --hardware v3:8x8.")
    topology = Topology.parse(options.hardware)
    # The plan needs only the chip: its mesh gives the number of devices.
    options.hardware = topology.hardware.name
    plan = planned(options)
    comparison = plan.aot(topology)
    if options.json:
        print_json(_aot_data(comparison, plan, topology))
    else:
        print(comparison)
    return 0


def _aot_data(found: BesideCompiler, plan: Plan, topology: Topology) -> dict[str, Any]:
    """Return a comparison with the chip's compiler as plain data for JSON.

    `fits` is False if the compiler runs out of memory for the plan, `xla_fits` for XLA's program.
    """
    on = machine_data(plan.cost(topology), plan.mesh)
    values = ("planned", "compiled", "xla", "error", "xla_error")
    rows = (
        {**row, "quantity": "flops" if row["kind"] == "flops" else "wire_bytes"}
        for row in found.differences
    )
    return {
        "where": found.where,
        **on,
        "fits": found.compiled.out_of_memory is None,
        "xla_fits": found.xla.out_of_memory is None,
        "figures": by_quantity(found.table, values),
        "differences": by_quantity(rows, ("planned", "its")),
        "notes": list(found.notes),
    }


PLAN = Command(
    "plan a function: its collectives, memory and step time on a mesh, with warnings",
    add_plan_options,
    run_plan,
)
EXPLAIN = Command(
    "explain a collective, or the sharding of a value",
    add_explain_options,
    run_explain,
)
COMPARE_XLA = Command(
    "compare a plan with the shardings and collectives of XLA's own partitioner",
    add_compare_xla_options,
    run_compare_xla,
)
TIMELINE = Command(
    "show when each pipeline stage computes, waits and sends; write a figure or a Chrome trace",
    add_timeline_options,
    run_timeline,
)
AOT = Command(
    "compare a plan with the chip's own compiler (--hardware v3:8x8); no chip needed",
    add_aot_options,
    run_aot,
)
