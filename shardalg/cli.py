"""The command `shardalg`: options, and errors as one readable line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from shardalg import __version__
from shardalg.errors import ShardalgError

WRONG_USE = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, without the usage above it."""
        self.exit(WRONG_USE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The options of all subcommands."""
    top = Parser(
        "shardalg",
        allow_abbrev=False,
        description="Plan, explain, prove and run partitioned JAX programs.",
    )
    top.add_argument("--version", action="version", version=f"shardalg {__version__}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser)
    explore = commands.add_parser(
        "explore",
        allow_abbrev=False,
        help="the strategies of a Transformer: collectives, drawings, a run on CPU devices, proofs",
    )
    _explore_options(explore)
    return top


def _explore_options(found: argparse.ArgumentParser) -> None:
    option = found.add_argument
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


def _explore(options: argparse.Namespace) -> None:
    # The report is of CPU devices, also where there are others.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # jax is loaded with these, so `--version` and a wrong option do not wait for it.
    from shardalg.explore.explore import run, write_figures
    from shardalg.explore.settings import STRATEGIES, Settings, config_of, mesh_of

    settings = Settings(
        config=config_of(options.model, options.sizes),
        mesh=mesh_of(options.mesh),
        strategies=tuple(options.strategy or STRATEGIES),
        devices=options.devices,
        quick=options.quick,
        out=options.out,
    )
    if options.figures is None:
        run(settings)
    else:
        write_figures(settings, options.figures)


COMMANDS = {"explore": _explore}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        COMMANDS[options.command](options)
    except (ShardalgError, OSError) as error:
        message = " ".join(str(error).split())
        print(f"shardalg {options.command}: error: {message}", file=sys.stderr)
        return WRONG_USE
    return 0
