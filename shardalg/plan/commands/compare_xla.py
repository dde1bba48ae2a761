"""`shardalg compare-xla`: a function's plan beside what XLA's partitioner makes of it."""

from __future__ import annotations

import argparse

from shardalg.plan.commands.function import add_function, machine_data, planned
from shardalg.plan.commands.messages import add_json, print_json, records

HELP = "a function's plan beside the layouts and collectives of XLA's own partitioner"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_function(parser)
    add_json(parser)
    parser.add_argument(
        "--partitioner", choices=("gspmd", "shardy"), help="default: that of the installed jax"
    )


def run(options: argparse.Namespace) -> int:
    """Print the comparison."""
    plan = planned(options)
    found = plan.compare_xla(options.partitioner)
    if options.json:
        sent = {"wire_bytes": found.wire_bytes, "xla_wire_bytes": found.xla_wire_bytes}
        on = machine_data(plan.overview(options.hardware).priced, plan.mesh)
        rows = {"rows": records(found.table)}
        print_json({"partitioner": found.partitioner, **sent, **on, **rows})
    else:
        print(found)
    return 0
