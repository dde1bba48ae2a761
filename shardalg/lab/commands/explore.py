"""`shardalg explore`: the strategies of a Transformer, planned, drawn, run and proved."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.plan.commands.function import machine_data
from shardalg.plan.commands.messages import add_json, print_json, records
from shardalg.show.html import Page, Picture
from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.lab.explore.explore import Exploration
    from shardalg.plan.plan import Plan

HELP = "the strategies of a Transformer: collectives, drawings, a run on CPU devices, proofs"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    option = parser.add_argument
    option("--model", default="small", metavar="NAME", help="tiny, small (default) or wide-64b")
    option("--sizes", default="", metavar="B=8,S=64,...", help="change sizes of the model")
    option("--mesh", default="X=2,Y=4", help="two axes with their sizes (default %(default)s)")
    option(
        "--strategy",
        action="append",
        metavar="NAME",
        help="'attempt 1', 'attempt 2' or 'finalized'; repeat for several (default: all three)",
    )
    option(
        "--devices",
        type=int,
        default=8,
        metavar="N",
        help="run plans for up to N CPU devices; 0 runs nothing (default %(default)s)",
    )
    option("--quick", action="store_true", help="fewer timed runs, no whole train steps")
    option(
        "--out",
        type=Path,
        default=Path("out/explore"),
        metavar="FOLDER",
        help="where the report goes (default %(default)s)",
    )
    option(
        "--figures",
        type=Path,
        metavar="FOLDER",
        help="only draw the pictures that need no run, into FOLDER",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write the report; with --figures, write only the pictures that need no device; return 0."""
    # The report runs plans on CPU devices only, so JAX need not take hold of an accelerator.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # These modules load jax. Importing them only now keeps `--version` and wrong options fast.
    from shardalg.algebra.notation.read import mesh_of
    from shardalg.lab.explore.explore import (
        Exploration,
        Progress,
        page_text,
        write_figures,
        write_report,
    )
    from shardalg.lab.explore.settings import STRATEGIES, Settings, config_of

    settings = Settings(
        config=config_of(options.model, options.sizes),
        mesh=mesh_of(options.mesh),
        strategies=tuple(options.strategy or STRATEGIES),
        devices=options.devices,
        quick=options.quick,
        out=options.out,
    )
    # With --json standard output has only the JSON document, so progress goes to standard error.
    say = Progress(partial(print, file=sys.stderr, flush=True)) if options.json else Progress()
    if options.figures is not None:
        drawn = write_figures(settings, options.figures, say)
        if options.json:
            print_json({"files": list(map(str, drawn))})
        return 0
    exploration = Exploration(settings, say)
    page, files = write_report(exploration)
    if options.json:
        print_json(_data(exploration, page, files))
    else:
        print(f"\n{page_text(page)}", flush=True)
    return 0


def _data(exploration: Exploration, page: Page, files: Sequence[Path]) -> dict[str, Any]:
    """Return the report as plain data: the price of each strategy, the sections and the files."""
    plans = exploration.priced.items()
    return {
        "title": page.title,
        "lead": page.lead,
        "strategies": [{"strategy": name, **_price(plan)} for name, plan in plans],
        "sections": [
            {
                "title": section.title,
                "text": [part for part in section.parts if isinstance(part, str)],
                "tables": [records(part) for part in section.parts if isinstance(part, Table)],
                "pictures": [part.name for part in section.parts if isinstance(part, Picture)],
                "conclusion": section.conclusion,
            }
            for section in page.sections
        ],
        "files": list(map(str, files)),
    }


def _price(plan: Plan) -> dict[str, Any]:
    """Return step time, memory and the machine of a plan's price, as plain data."""
    cost = plan.overview().priced
    return {**machine_data(cost, plan.mesh), **dict(cost.hints.named())}
