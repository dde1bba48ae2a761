"""`shardalg aot`: a function's plan beside what the compiler of a chip makes of it."""

from __future__ import annotations

import argparse
import json

from shardalg.commands.function import add_function, planned
from shardalg.errors import CommandError

HELP = "a function's plan beside the chip's own compiler, as in --hardware v3:8x8; no chip needed"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_function(parser)
    parser.add_argument("--json", action="store_true", help="the tables as plain data")


def run(options: argparse.Namespace) -> int:
    """Compile, and print the comparison."""
    from shardalg.costs.topology import Topology

    if options.hardware is None:
        raise CommandError("what is compiled for? Write a chip and its shape: --hardware v3:8x8.")
    topology = Topology.parse(options.hardware)
    options.hardware = topology.hardware.name
    found = planned(options).aot(topology)
    if options.json:
        data = {"figures": list(found.table), "differences": list(found.differences)}
        print(json.dumps({"where": found.where, **data}, indent=1))
    else:
        print(found)
    return 0
