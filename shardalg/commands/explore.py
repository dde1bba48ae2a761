"""`shardalg explore`: the strategies of a Transformer, planned, drawn, run and proved."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

HELP = "the strategies of a Transformer: collectives, drawings, a run on CPU devices, proofs"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
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


def run(options: argparse.Namespace) -> int:
    """Write the report, or only the pictures that need no run."""
    # The report is of CPU devices, also where there are others.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # jax is loaded with these, so `--version` and a wrong option do not wait for it.
    from shardalg.algebra.notation.command_line import mesh_of
    from shardalg.examples.explore.explore import run as explored
    from shardalg.examples.explore.explore import write_figures
    from shardalg.examples.explore.settings import STRATEGIES, Settings, config_of

    settings = Settings(
        config=config_of(options.model, options.sizes),
        mesh=mesh_of(options.mesh),
        strategies=tuple(options.strategy or STRATEGIES),
        devices=options.devices,
        quick=options.quick,
        out=options.out,
    )
    if options.figures is None:
        explored(settings)
    else:
        write_figures(settings, options.figures)
    return 0
