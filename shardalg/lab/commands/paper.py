"""`shardalg paper`: the paper's measurements, compared with our predictions."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from shardalg.files import check_place, write_whole
from shardalg.plan.commands.messages import add_json, print_json

HELP = "the paper's 39 measured columns beside what is predicted of them, with errors and goals"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    option = parser.add_argument
    option("--table", type=int, metavar="N", help="one table of the paper, 2 to 8 (default: all)")
    option("--column", metavar="ID", help="one column, such as dense-bench.c1")
    add_json(parser)
    option(
        "--figure",
        type=Path,
        metavar="FILE.png",
        help="draw step times, predicted against measured, with those of other chips",
    )


def run(options: argparse.Namespace) -> int:
    """Print predictions beside the measured values of the GSPMD paper, and return 0.

    Large errors of the predictions do not change the exit status.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # The comparison is slow, so an error about the file must come before it.
    if options.figure is not None:
        check_place(options.figure)
    # These modules load jax. Importing them only now keeps the error about a wrong option fast.
    from shardalg.lab.evaluation.published import chosen

    columns = chosen(options.table, options.column)
    from shardalg.lab.evaluation.comparison import compare, records, text

    values = compare(columns)
    if options.json:
        print_json(records(values))
    else:
        print(text(values))
    if options.figure is not None:
        from shardalg.lab.evaluation.predicted_figure import figure_of

        write_whole(options.figure, figure_of(values))
    return 0
