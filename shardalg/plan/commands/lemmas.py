"""`shardalg lemmas`: the theorems that the library rests on, proved here and now."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardalg.errors import ProofError
from shardalg.files import write_whole
from shardalg.merge.lemmas import LEMMAS
from shardalg.plan.commands.messages import add_json, print_json, records
from shardalg.show.proofs import judge, summary, table

HELP = "the theorems that the library rests on, each proved by z3 for all values"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    option = parser.add_argument
    option(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="prove each with N random seeds and show the longest time (default %(default)s)",
    )
    add_json(parser)
    option("--mutants", action="store_true", help="also the wrong variants, which z3 must refute")
    option("--smt2", type=Path, metavar="FOLDER", help="write each formula to FOLDER/NAME.smt2")


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 if all lemmas are proved and all mutants refuted, else 1."""
    if options.seeds < 1:
        raise ProofError(f"--seeds {options.seeds}: give a number of at least 1.")
    folder: Path | None = options.smt2
    if folder is not None:  # one that cannot be made is said before the proofs
        folder.mkdir(parents=True, exist_ok=True)
    judged = list(judge(LEMMAS, seeds=options.seeds, mutants=options.mutants))
    if options.json:
        print_json({"summary": summary(judged), "lemmas": records(table(judged))})
    else:
        print(f"{table(judged)}\n\n{summary(judged)}")
    if folder is not None:
        for j in judged:
            name = j.statement.name.replace("/", ".")
            write_whole(folder / f"{name}.smt2", j.proofs[0].smt2)
    return int(any(j.status != j.wanted for j in judged))
