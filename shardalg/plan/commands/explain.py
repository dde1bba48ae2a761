"""`shardalg explain`: why a collective is there, or why a value is sharded as it is."""

from __future__ import annotations

import argparse

from shardalg.plan.commands.function import add_function, machine_data, planned
from shardalg.plan.commands.messages import add_json, print_json, records

HELP = "why a collective of a function's plan is there, or why a value is sharded as it is"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_function(parser)
    add_json(parser)
    parser.add_argument(
        "what", help="the number of a collective in `shardalg plan`, or a value's name"
    )


def run(options: argparse.Namespace) -> int:
    """Print the explanation."""
    what = options.what
    plan = planned(options)
    found = plan.explain(int(what) if what.isdecimal() else what)
    if options.json:
        on = machine_data(plan.overview(options.hardware).priced, plan.mesh)
        print_json({"what": what, "text": str(found), **on, "rows": records(found.table)})
    else:
        print(found)
    return 0
