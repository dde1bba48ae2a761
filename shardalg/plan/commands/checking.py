"""`shardalg check FILE...`: plan files and contract files, as lock files of a repository."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardalg.algebra.notation.read import mesh_of
from shardalg.errors import CommandError, ContractError, ShardalgError, TraceError
from shardalg.plan.commands.function import loaded, plan_of
from shardalg.plan.commands.messages import (
    PROGRAM_FAILED,
    WRONG_USE,
    Command,
    UserProgramError,
    add_json,
    failed,
    print_json,
)

if TYPE_CHECKING:
    from shardalg.plan.contracts.contract import ContractReport, StatementVerdict
    from shardalg.plan.contracts.contract_file import ContractFile
    from shardalg.plan.plan import Plan

HELP = "check contract files and plan files, for CI"
BROKEN, UNDECIDED = 1, 4
EXAMPLE = """\
A contract is a TOML file; the function's module defines args() and shardings, as for `plan`:

  version = 1
  function = "model.py:step"
  mesh = "data=8,model=4"

  [[statement]]
  no = "all_gather"
  axis = "model"
  phase = "backward"

  [[statement]]
  at_most = "peak_bytes"
  bound = 60e9

  [[statement]]
  unchanged = "step.plan.json"

A plan file (`plan.save`) is planned again: its decisions must be those that were saved.
exit status: 0 all hold or are proved, 1 one is refuted or a plan differs, 4 one is not decided
"""


@dataclass(frozen=True)
class CheckedFile:
    """The outcome of one file.

    Attributes:
      path: the file.
      report: the verdicts of a contract; None for a plan file.
      differences: for a plan file, the parts that differ from what was saved.
      updated: the plan files that were written again.
      error: the exit status and the message of an error that left the file unchecked; None: none.
    """

    path: Path
    report: ContractReport | None = None
    differences: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    error: tuple[int, str] | None = None

    @property
    def status(self) -> int:
        """The exit status: 0, `BROKEN`, `UNDECIDED`, or the status of an error.

        A refuted statement counts more than one that is not decided.
        """
        if self.error is not None:
            return self.error[0]
        # Without a report it is a plan file. Differences that --update has saved are no failure.
        if self.report is None:
            return BROKEN if self.differences and not self.updated else 0
        verdicts = [one.verdict for one in self.report.verdicts]
        return BROKEN if "refuted" in verdicts else UNDECIDED if "not decided" in verdicts else 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLE
    option = parser.add_argument
    option(
        "files", nargs="+", type=Path, metavar="FILE", help="contracts (.toml) and plans (.json)"
    )
    option("--hlo", type=Path, metavar="FILE", help="check contracts on this text of XLA instead")
    option("--github", action="store_true", help="print annotations of GitHub's workflows")
    option("--update", action="store_true", help="write plan files again, and print what changed")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Check the files, print the outcome of each, and return the exit status.

    The status is that of the worst file: an error that left it unchecked, then a refuted statement
    or a changed plan, then a statement that is not decided, then 0.

    Raises:
      ContractError, PlanFileError: a file that cannot be read, or that fits nothing.
      CommandError: the function of a contract cannot be loaded or fails; or --hlo and --update.
    """
    # Planning needs no accelerator, and starting one takes seconds.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if options.hlo is not None and options.update:
        raise CommandError("--update writes plan files, which --hlo does not make: omit one.")
    checked = [_outcome(path, options) for path in options.files]
    if options.json:
        print_json({"files": [_data(one) for one in checked]})
    else:
        for one in checked:
            print("\n".join(_github(one) if options.github else _lines(one)))
    # A file that could not be checked says most, then a broken statement.
    statuses = {one.status for one in checked}
    failures = {one.status for one in checked if one.error is not None}
    return max(failures) if failures else BROKEN if BROKEN in statuses else max(statuses)


def _outcome(path: Path, options: argparse.Namespace) -> CheckedFile:
    """Return the outcome of one file; an error in it leaves the other files to be checked.

    Raises:
      ShardalgError: as in `run`, if there is no other file and the answer is text for a person.
    """
    try:
        return _checked(path, options)
    except (ShardalgError, OSError) as error:
        # A program that reads the output needs an entry for each file, also for a single one.
        if len(options.files) == 1 and not (options.json or options.github):
            raise
        # The user's own function failed: its traceback is shown, not the error around it.
        if isinstance(error, UserProgramError):
            words = failed(error.__cause__ or error, str(error))
            return CheckedFile(path, error=(PROGRAM_FAILED, words))
        status = PROGRAM_FAILED if isinstance(error, TraceError) else WRONG_USE
        return CheckedFile(path, error=(status, str(error)))


def _checked(path: Path, options: argparse.Namespace) -> CheckedFile:
    """Return the outcome of a plan file (.json) or a contract file (.toml).

    A contract is checked on the plan of its function, or on the text of XLA that --hlo names.

    Raises:
      ContractError: another kind of file, or a contract without a function.
    """
    if path.suffix == ".json":
        return _plan_file(path, update=options.update)
    if path.suffix != ".toml":
        raise ContractError(f"{path}: give contracts (.toml) and plans (.json).")
    from shardalg.plan.contracts.contract_file import read_file

    given = read_file(path)
    try:
        if options.hlo is not None:
            return CheckedFile(path, _on_hlo(given, options.hlo, path))
        plan = planned(given, path)
        updated = tuple(_update(given, plan)) if options.update else ()
        return CheckedFile(path, given.contract.check(plan), updated=updated)
    except ContractError as error:
        # Errors about statements do not know the file that they come from.
        if str(path) in str(error):
            raise
        raise ContractError(f"{path}: {error}") from None


def planned(given: ContractFile, path: Path) -> Plan:
    """Return the plan of the function that a contract file names.

    Raises:
      ContractError: the file names none. CommandError: it cannot be loaded, or fails.
    """
    words = given.function
    if "function" not in words:
        raise ContractError(f"{path} names no function: write function = 'model.py:step'.")
    # Files are relative to the contract, modules to the place where Python finds them.
    module, colon, name = words["function"].rpartition(":")
    if module.endswith(".py"):
        module = str(path.parent / module)
    specs = path.parent / words["args"] if "args" in words else None
    options = argparse.Namespace(
        function=f"{module}{colon}{name}",
        args=specs,
        mesh=words.get("mesh"),
        hardware=words.get("hardware"),
        policy=words.get("policy", "paper"),
    )
    return plan_of(*loaded(options), options)


def _on_hlo(given: ContractFile, hlo: Path, path: Path) -> ContractReport:
    """Return the report about XLA's text.

    Raises:
      ContractError: the text cannot be read or is of another function, or the contract has no
        mesh.
    """
    if "mesh" not in given.function:
        raise ContractError(f"{path} has no mesh, which --hlo needs: mesh = 'data=8,model=4'.")
    text, mesh = hlo.read_text(errors="replace"), mesh_of(given.function["mesh"])
    report = given.contract.hlo(text, mesh)
    # The text may be of another function, whose program says nothing about this one.
    if "function" in given.function:
        from shardalg.plan.contracts.hlo_contract import check_border

        check_border(text, planned(given, path))
    return report


def _update(given: ContractFile, plan: Plan) -> Iterator[str]:
    """Write the plan files that a contract names, and yield a text per file that changed.

    A statement `unchanged = "step.plan.json"` names a file. The text has the first five changes.
    """
    from shardalg.plan.contracts.inequalities import Place, claims_of
    from shardalg.plan.contracts.statements import Unchanged

    for statement in given.contract.statements:
        if isinstance(statement, Unchanged):
            path = given.contract.folder / statement.path
            if path.exists():
                # A claim is a decision of the saved plan that the new plan does not make.
                claims = claims_of(statement, plan, Place(given.contract.folder)).claims
                changes = [claim.at for claim in claims]
            else:
                changes = ["new file"]
            if changes:
                plan.save(path)
                yield f"{path}: {'; '.join(changes[:5])}"


def _plan_file(path: Path, *, update: bool) -> CheckedFile:
    """Return whether a plan file's inputs still give the plan that was saved."""
    from shardalg.plan.plan import load_plan

    with warnings.catch_warnings():
        # The differences are printed below, so that they need no warning.
        warnings.simplefilter("ignore")
        plan = load_plan(path)
    found = plan._since_saved
    if found and update:
        plan.save(path)
        return CheckedFile(path, differences=found, updated=(f"{path}: {'; '.join(found)}",))
    return CheckedFile(path, differences=found)


def _lines(one: CheckedFile) -> Iterator[str]:
    """Yield the lines that a user reads about a file: its error, verdicts or differences."""
    # A contract file has a report, a plan file has differences.
    if one.error is not None:
        yield f"{one.path}: error: {one.error[1]}"
    elif one.report is not None:
        yield f"{one.path}: {one.report}"
    else:
        yield f"{one.path}: " + ("; ".join(one.differences) or "the plan is the one that was saved")
    for text in one.updated:
        yield f"updated {text}"


def _github(one: CheckedFile) -> Iterator[str]:
    """Yield GitHub's workflow commands: an error per failure; if there is none, a notice."""
    verdicts = () if one.report is None else one.report.verdicts
    for verdict in verdicts:
        if not verdict.ok:
            yield f"::error file={_escaped(str(one.path))}::{_escaped(str(verdict))}"
    # Differences that --update has saved are no failures any more.
    failures = [] if one.updated else list(one.differences)
    if one.error is not None:
        failures.append(one.error[1])
    for text in failures:
        yield f"::error file={_escaped(str(one.path))}::{_escaped(text)}"
    for text in one.updated:
        yield f"::notice file={_escaped(str(one.path))}::updated {_escaped(text)}"
    if one.status == 0 and not one.updated:
        yield f"::notice file={_escaped(str(one.path))}::holds"


def _escaped(text: str) -> str:
    """Return text in which a workflow command may not end."""
    for char in "%\r\n":
        text = text.replace(char, f"%{ord(char):02X}")
    return text.replace(":", "%3A") if os.sep in text and " " not in text else text


def _data(one: CheckedFile) -> dict[str, object]:
    """Return the outcome of a file as plain data for --json.

    "ok" is False also for a statement that is not decided. "error" is "" without an error.
    """
    verdicts = () if one.report is None else one.report.verdicts
    return {
        "file": str(one.path),
        "ok": not one.status,
        "statements": [_verdict_data(verdict) for verdict in verdicts],
        "differences": list(one.differences),
        "updated": list(one.updated),
        "error": "" if one.error is None else one.error[1],
    }


def _verdict_data(verdict: StatementVerdict) -> dict[str, object]:
    """Return the verdict of one statement as plain data.

    "at" is the place of the instruction that decides it, "" if there is none.
    """
    return {
        "statement": str(verdict.statement),
        "verdict": verdict.verdict,
        "where": verdict.where,
        "at": "" if verdict.claim is None else verdict.claim.at,
        "amount": verdict.amount,
        "annotations": verdict.annotations,
        "repair": verdict.repair,
    }


CHECK = Command(HELP, add_options, run)
