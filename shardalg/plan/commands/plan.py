"""`shardalg plan`: a function of the user's own, planned and priced."""

from __future__ import annotations

import argparse
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.files import write_whole
from shardalg.plan.commands.function import add_function, machine_data, planned
from shardalg.plan.commands.messages import add_json, plain, print_json, records
from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan
    from shardalg.verify.report import Report

HELP = "plan a function: what it sends, holds and takes on a mesh, and what is worth a look"
REFUTED = 1
SHOWN = ("kind", "mesh_axes", "executions", "wire_bytes", "role", "phase", "op", "source")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_function(parser)
    option = parser.add_argument
    option("--verify", action="store_true", help="prove the program; exit status 1 if refuted")
    option("--html", type=Path, metavar="FILE", help="write the plan as a page to FILE")
    option("--save", type=Path, metavar="FILE", help="write the plan file to FILE")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the overview and the collectives, then write files; returns the exit status."""
    plan = planned(options)
    report = plan.verify() if options.verify else None
    if options.json:
        print_json(_data(plan, options.hardware, report))
    else:
        print(plan.overview(options.hardware), _collectives(plan) or "No collectives.", sep="\n\n")
        if report is not None:
            print(f"\n{report}")
    if options.html is not None:
        write_whole(options.html, page(plan, options.function))
    if options.save is not None:
        plan.save(options.save)
    return REFUTED if report is not None and report.refuted else 0


def page(plan: Plan, title: str) -> str:
    """The plan as an HTML page of its own."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title>'
    return f'<!doctype html>\n<html lang="en">{head}\n<body>{plan._repr_html_()}</body></html>\n'


def _collectives(plan: Plan) -> Table:
    rows = plan.collectives()
    kept = [name for name in SHOWN if name in rows.columns]
    return Table(tuple(kept), tuple(rows[kept].itertuples(index=False, name=None)))


def _data(plan: Plan, hardware: str | None, report: Report | None) -> dict[str, Any]:
    seen = plan.overview(hardware)
    named = {name: plain(value) for name, value in seen.priced.hints.named()}
    return {
        "plan": repr(plan),
        "layouts": plan.options.followed,
        **machine_data(seen.priced, plan.mesh),
        "cost": named,
        "axes": records(seen.numbers),
        "beside_jit": records(plan.beside_jit()),
        "collectives": records(plan.collectives()),
        "warnings": records(plan.warnings()),
        "verify": None if report is None else str(report),
    }
