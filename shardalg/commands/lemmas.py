"""`shardalg lemmas`: the theorems that the library rests on, proved here and now."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardalg.errors import ProofError
from shardalg.files import write_whole
from shardalg.merge.lemmas import LEMMAS
from shardalg.merge.lemmas.lemma import Lemma
from shardalg.merge.prove import Proof, prove
from shardalg.table import Table

HELP = "the theorems that the library rests on, each proved by z3 for all values"
COLUMNS = ("lemma", "status", "ms", "statement")


@dataclass(frozen=True)
class Judged:
    """What z3 said of one statement, with every seed, and what it must say."""

    statement: Lemma
    wanted: str
    proofs: tuple[Proof, ...]

    @property
    def status(self) -> str:
        """What must be said, if all seeds say it; else what one of them says instead."""
        return next((p.status for p in self.proofs if p.status != self.wanted), self.wanted)

    @property
    def ms(self) -> float:
        """The longest time of all seeds, milliseconds."""
        return round(max(proof.ms for proof in self.proofs), 1)


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
    option("--mutants", action="store_true", help="also the wrong variants, which z3 must refute")
    option("--smt2", type=Path, metavar="FOLDER", help="write each formula to FOLDER/NAME.smt2")


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 if all lemmas are proved and all mutants refuted, else 1."""
    if options.seeds < 1:
        raise ProofError(f"--seeds {options.seeds}: give a number of at least 1.")
    if options.smt2 is not None:  # a folder that cannot be made is said before the proofs
        options.smt2.mkdir(parents=True, exist_ok=True)
    judged = list(judge(options.seeds, mutants=options.mutants))
    if options.smt2 is not None:
        write(judged, options.smt2)
    rows = ((j.statement.name, j.status, j.ms, j.statement.text()) for j in judged)
    print(Table(COLUMNS, tuple(rows)))
    print(f"\n{summary(judged)}")
    return int(any(j.status != j.wanted for j in judged))


def judge(seeds: int = 1, *, mutants: bool = False) -> Iterator[Judged]:
    """Every lemma, below it its mutants, sent to z3 once per seed."""
    for known in LEMMAS:
        wrong = known.mutated() if mutants else ()
        for statement, wanted in ((known, "proved"), *((w, "refuted") for w in wrong)):
            proofs = tuple(prove(statement, seed=seed) for seed in range(seeds))
            yield Judged(statement, wanted, proofs)


def summary(judged: Iterable[Judged]) -> str:
    """How many are as they must be, which are not, and which took longest."""
    rows = list(judged)
    lines = []
    for wanted, what in (("proved", "lemmas"), ("refuted", "mutants")):
        known = [j for j in rows if j.wanted == wanted]
        failed = [j.statement.name for j in known if j.status != wanted]
        if known:
            slowest = max(known, key=lambda j: j.ms)
            lines.append(
                f"{len(known) - len(failed)} of {len(known)} {what} {wanted}, the slowest "
                f"({slowest.statement.name}) in {slowest.ms} ms"
                + (f"; not {wanted}: {', '.join(failed)}" if failed else "")
            )
    return "\n".join(lines)


def write(judged: Iterable[Judged], folder: Path) -> None:
    """One file per statement: SMT-LIB text of which every check must be `unsat` for a proof."""
    for j in judged:
        write_whole(folder / f"{j.statement.name.replace('/', '.')}.smt2", j.proofs[0].smt2)
