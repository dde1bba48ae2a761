"""`shardalg compare-xla`: a function's plan beside what XLA's partitioner makes of it."""

from __future__ import annotations

import argparse

from shardalg.commands.function import add_function, planned

HELP = "a function's plan beside the layouts and collectives of XLA's own partitioner"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_function(parser)
    parser.add_argument(
        "--partitioner", choices=("gspmd", "shardy"), help="default: that of the installed jax"
    )


def run(options: argparse.Namespace) -> int:
    """Print the comparison."""
    print(planned(options).compare_xla(options.partitioner))
    return 0
