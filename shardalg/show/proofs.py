"""What was proved of a plan: claims counted by kind and status, and the statements themselves.

The lemmas as a table, each judged by z3 when the table is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardalg.merge.lemmas import LEMMAS
from shardalg.merge.lemmas.lemma import Lemma
from shardalg.merge.proofs.prove import Proof, prove
from shardalg.tables import Answer, Parts, Table

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


def judge(
    lemmas: Iterable[Lemma] = LEMMAS, *, seeds: int = 1, mutants: bool = False
) -> Iterator[Judged]:
    """Every lemma, below it its mutants if they are wanted, sent to z3 once per seed."""
    for known in lemmas:
        wrong = known.mutated() if mutants else ()
        for statement, wanted in ((known, "proved"), *((w, "refuted") for w in wrong)):
            proofs = tuple(prove(statement, seed=seed) for seed in range(seeds))
            yield Judged(statement, wanted, proofs)


@dataclass(frozen=True, repr=False)
class JudgedLemmas(Answer):
    """What z3 said of each lemma; true if it is what it must be, of all of them."""

    judged: tuple[Judged, ...]

    @property
    def table(self) -> Table:
        """One row per statement."""
        return table(self.judged)

    def parts(self) -> Parts:
        """How many are as they must be, and each."""
        return (summary(self.judged), self.table.select("lemma", "status", "statement"))

    def __bool__(self) -> bool:
        return all(each.status == each.wanted for each in self.judged)


def lemmas(*, mutants: bool = False, seeds: int = 1) -> JudgedLemmas:
    """The theorems about whole numbers that the library rests on, each sent to z3 now.

    Args:
      mutants: also the wrong variants, which must be refuted.
      seeds: of the solver, each tried.
    """
    return JudgedLemmas(tuple(judge(seeds=seeds, mutants=mutants)))


def table(judged: Iterable[Judged]) -> Table:
    """One row per statement.

    >>> from shardalg.merge.lemmas import lemma
    >>> table(judge([lemma("offset_zero")])).select("lemma", "status", "statement")
    lemma        status  statement
    offset_zero  proved  only the first block has offset 0
    """
    rows = ((j.statement.name, j.status, j.ms, j.statement.text()) for j in judged)
    return Table(COLUMNS, tuple(rows))


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


STATUSES = ("proved", "trusted", "unknown", "refuted", "not_claimed")


def by_claim(claims: Table) -> Table:
    """A row per kind of claim: how many of each status, distinct statements, and z3's time.

    Args:
      claims: columns node, claim, status, ms, smt2, as the table of `plan.verify()` has them.

    >>> rows = (("a", "merge", "proved", 2.0, "(s)"), ("b", "merge", "proved", 2.0, "(s)"),
    ...         ("c", "carry", "trusted", 0.0, ""))
    >>> by_claim(Table(("node", "claim", "status", "ms", "smt2"), rows))
    claim  claims  statements  proved  trusted   ms
    merge       2           1       2        0    2
    carry       1           0       0        1    0
    """
    kinds = tuple(dict.fromkeys(claims["claim"]))
    present = tuple(status for status in STATUSES if status in claims["status"])
    rows = []
    for kind in kinds:
        chosen = claims.where(claim=kind)
        found = dict(zip(chosen["smt2"], chosen["ms"], strict=True))
        found.pop("", None)
        counts = (chosen["status"].count(status) for status in present)
        rows.append((kind, len(chosen), len(found), *counts, float(sum(found.values()))))
    return Table(("claim", "claims", "statements", *present, "ms"), tuple(rows))


def statements(claims: Table) -> Table:
    """Each distinct statement once, with the claims that rest on it; the slowest first."""
    stated = [row for row in claims if row["smt2"]]
    resting = Counter(row["smt2"] for row in stated)
    first = {row["smt2"]: row for row in reversed(stated)}
    shown = sorted((first[smt2] for smt2 in resting), key=lambda row: -float(row["ms"]))
    rows = (
        (r["claim"], r["node"], resting[r["smt2"]], r["status"], float(r["ms"]), r["smt2"])
        for r in shown
    )
    return Table(("claim", "first_node", "claims", "status", "ms", "smt2"), tuple(rows))
