"""`shardalg timeline`: what the devices of each pipeline stage do when, in one step."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardalg.files import check_place, write_whole
from shardalg.plan.commands.function import add_function, machine_data, planned
from shardalg.plan.commands.messages import add_json, print_json, records

HELP = "when each pipeline stage of a function computes, waits and sends; a figure, a Chrome trace"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_function(parser)
    add_json(parser)
    option = parser.add_argument
    option("--trace", type=Path, metavar="FILE", help="write a Chrome trace (JSON) to FILE")
    option("--figure", type=Path, metavar="FILE", help="write the figure (PNG) to FILE")
    option("--table", action="store_true", help="print every event")


def run(options: argparse.Namespace) -> int:
    """Print one line, and write what was asked for."""
    from shardalg.pictures import png

    for path in filter(None, (options.trace, options.figure)):  # no plan for nothing
        check_place(path)
    plan = planned(options)
    timeline = plan.timeline(options.hardware)
    if options.json:
        shares = {"step_s": timeline.step_s, "bubble_share": timeline.bubbles}
        on = machine_data(plan.overview(options.hardware).priced, plan.mesh)
        about = {"of": timeline.of, "stages": timeline.stages, **on}
        print_json({**about, **shares, "events": records(timeline.table())})
    else:
        print(timeline)
        if options.table:
            print(timeline.table())
    if options.trace is not None:
        timeline.save(options.trace)
    if options.figure is not None:
        write_whole(options.figure, png(timeline.figure()))
    return 0
