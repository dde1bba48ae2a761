"""The command `shardalg`: its options, error messages and exit statuses."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from shardalg import __version__
from shardalg.errors import ShardalgError, TraceError
from shardalg.graph.source import Sources
from shardalg.graph.user_frames import user_lines
from shardalg.lab.commands import calibrate, explore, paper, rank_strategies
from shardalg.plan.commands import run
from shardalg.plan.commands.auditing import AUDIT
from shardalg.plan.commands.certificates import CERTIFICATE
from shardalg.plan.commands.checking import CHECK
from shardalg.plan.commands.comparing import COMPARE
from shardalg.plan.commands.messages import (
    PROGRAM_FAILED,
    WRONG_USE,
    Command,
    UserProgramError,
    failed,
    in_options,
)
from shardalg.plan.commands.proving import LEMMAS_COMMAND, PROVE
from shardalg.plan.commands.questions import AOT, COMPARE_XLA, EXPLAIN, PLAN, TIMELINE
from shardalg.plan.commands.rules import RULES
from shardalg.plan.commands.searching import SEARCH

COMMANDS = {
    "plan": PLAN,
    "explain": EXPLAIN,
    "compare": COMPARE,
    "search": SEARCH,
    "compare-xla": COMPARE_XLA,
    "aot": AOT,
    "audit": AUDIT,
    "timeline": TIMELINE,
    "run": Command.of(run),
    "calibrate": Command.of(calibrate),
    "explore": Command.of(explore),
    "strategies": Command.of(rank_strategies),
    "paper": Command.of(paper),
    "prove": PROVE,
    "lemmas": LEMMAS_COMMAND,
    "rules": RULES,
    "certificate": CERTIFICATE,
    "check": CHECK,
}
OWN_FAULT = 70
STATUSES = """\
exit status: 0 success, 1 a claim is refuted or rules have findings, 2 wrong use of the command,
3 your own program fails, 4 a claim could not be proved, 70 an internal error of shardalg
"""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message in one line, without the usage."""
        self.exit(WRONG_USE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser with the options of all subcommands.

    Options cannot be abbreviated, so that a later option never changes the meaning of a script.
    """
    top = Parser(
        "shardalg",
        allow_abbrev=False,
        description="Plan, explain, prove and run partitioned JAX programs.",
        epilog=STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"shardalg {__version__}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, command in COMMANDS.items():
        command.add_options(commands.add_parser(name, allow_abbrev=False, help=command.help))
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand of `shardalg` and return the exit status.

    Args:
      arguments: the words after `shardalg`; None takes them from the command line.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    # argparse would call a missing command an error, but a user who types only `shardalg` asks for
    # help.
    if not given:
        parser().print_help()
        return 0
    options = parser().parse_args(given)
    try:
        return COMMANDS[options.command].run(options)
    # A program that calls sys.exit(0) must not look like a command that found everything in order.
    except SystemExit as error:
        words = f"your program ends the process with {error!r}"
        print(f"shardalg {options.command}: error: {words}", file=sys.stderr)
        return PROGRAM_FAILED
    # A traceback through shardalg would hide the message from the user, so `_reported` gives one
    # only for internal errors.
    except Exception as error:
        status, words = _reported(error, options)
        print(f"shardalg {options.command}: error: {words}", file=sys.stderr)
        return status


def _reported(error: Exception, options: argparse.Namespace) -> tuple[int, str]:
    """Return the exit status for an error, and its message.

    An error is one of the user's program (with the user's lines), a wrong use of the command (one
    line), or a bug of shardalg (the whole traceback).
    """
    if isinstance(error, UserProgramError):
        return PROGRAM_FAILED, failed(error.__cause__ or error, str(error))
    # An error that a line of the user's program raised, such as a missing file, is no wrong use of
    # the command. It is reported below, with the user's lines.
    if isinstance(error, ShardalgError | OSError) and not _is_users(error):
        status = PROGRAM_FAILED if isinstance(error, TraceError) else WRONG_USE
        text = str(error)
        # An error of the operating system names only the file and the fault, so add the remedy.
        if isinstance(error, OSError) and error.filename is not None:
            text = (
                f"{error.filename}: {error.strerror}. Give a file that can be read or written, in "
                "a folder that exists."
            )
        return status, in_options(text, options)
    if user_lines(error):
        return PROGRAM_FAILED, failed(error, "your program fails")
    # No line of the user is in the traceback, so it is our own bug: show all of it.
    return OWN_FAULT, "".join(traceback.format_exception(error)).rstrip()


def _is_users(error: Exception) -> bool:
    """Return whether the user's own code raised the error."""
    # The last frame of a traceback raised the error; the frames before it only called this one.
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return Sources().is_own(frame.f_code.co_filename)
