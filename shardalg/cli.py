"""The command `shardalg`: options, and errors as one readable line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from shardalg import __version__
from shardalg.commands import (
    aot,
    calibrate,
    compare_xla,
    explain,
    explore,
    lemmas,
    paper,
    plan,
    prove,
    rank_strategies,
    run,
    timeline,
)
from shardalg.errors import ShardalgError

COMMANDS = {
    "plan": plan,
    "explain": explain,
    "compare-xla": compare_xla,
    "aot": aot,
    "timeline": timeline,
    "run": run,
    "calibrate": calibrate,
    "explore": explore,
    "strategies": rank_strategies,
    "paper": paper,
    "prove": prove,
    "lemmas": lemmas,
}
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
    for name, module in COMMANDS.items():
        module.add_options(commands.add_parser(name, allow_abbrev=False, help=module.HELP))
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        return COMMANDS[options.command].run(options)
    except (ShardalgError, OSError) as error:
        message = " ".join(_said(error).split())
        print(f"shardalg {options.command}: error: {message}", file=sys.stderr)
        return WRONG_USE


def _said(error: ShardalgError | OSError) -> str:
    """What an error says; of the system's about a file, what to write instead."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    return (
        f"{error.filename}: {error.strerror}. Give a file that can be read or written, in a folder "
        "that exists."
    )
