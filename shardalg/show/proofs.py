"""Tables of proofs: lemmas as z3 judges them now, and the claims about a plan by kind."""

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
    """Verdict of z3 on one statement, for every seed, and the expected verdict.

    Attributes:
      statement: a lemma, or a mutant of a lemma.
      wanted: the expected verdict: "proved" for a lemma, "refuted" for a mutant.
      proofs: one proof per seed of the solver.
    """

    statement: Lemma
    wanted: str
    proofs: tuple[Proof, ...]

    @property
    def status(self) -> str:
        """The expected verdict if all seeds agree; else the first other verdict."""
        return next((p.status for p in self.proofs if p.status != self.wanted), self.wanted)

    @property
    def ms(self) -> float:
        """The longest time over all seeds, in milliseconds."""
        return round(max(proof.ms for proof in self.proofs), 1)


def judge(
    lemmas: Iterable[Lemma] = LEMMAS, *, seeds: int = 1, mutants: bool = False
) -> Iterator[Judged]:
    """Yield the verdict on every lemma, followed by the verdicts on its mutants.

    Args:
      seeds: number of seeds of the solver; z3 proves each statement once per seed.
      mutants: whether wrong variants of each lemma are judged, too.
    """
    for known in lemmas:
        # A mutant is a wrong variant: z3 must refute it, or the lemma says too little.
        wrong = known.mutated() if mutants else ()
        for statement, wanted in ((known, "proved"), *((w, "refuted") for w in wrong)):
            proofs = tuple(prove(statement, seed=seed) for seed in range(seeds))
            yield Judged(statement, wanted, proofs)


@dataclass(frozen=True, repr=False)
class JudgedLemmas(Answer):
    """Verdicts of z3 on all lemmas; true if every verdict is the expected one."""

    judged: tuple[Judged, ...]

    @property
    def table(self) -> Table:
        """A row per statement: name, verdict, milliseconds and text."""
        return table(self.judged)

    def parts(self) -> Parts:
        """Return the summary and the table."""
        return (summary(self.judged), self.table.select("lemma", "status", "statement"))

    def __bool__(self) -> bool:
        return all(each.status == each.wanted for each in self.judged)


def lemmas(*, mutants: bool = False, seeds: int = 1) -> JudgedLemmas:
    """Prove all integer lemmas of the library again with z3.

    Args:
      mutants: whether to check the wrong variants too, which z3 must refute.
      seeds: number of seeds of the solver that are tried.
    """
    return JudgedLemmas(tuple(judge(seeds=seeds, mutants=mutants)))


def table(judged: Iterable[Judged]) -> Table:
    """Return a row per judged statement: name, verdict, milliseconds and text.

    >>> from shardalg.merge.lemmas import lemma
    >>> table(judge([lemma("offset_zero")])).select("lemma", "status", "statement")
    lemma        status  statement
    offset_zero  proved  only the first block has offset 0
    """
    rows = ((j.statement.name, j.status, j.ms, j.statement.text()) for j in judged)
    return Table(COLUMNS, tuple(rows))


def summary(judged: Iterable[Judged]) -> str:
    """Return text: how many statements have the expected verdict, which do not, and the slowest.

    Lemmas must be proved, and mutants (wrong variants of lemmas) refuted: a line for each. Times
    are those of z3.
    """
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
    """Return a row per kind of claim: counts by status, distinct statements, and z3's time.

    Args:
      claims: a table with the columns node, claim, status, ms, smt2, as in `plan.verify()`.

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
        # Equal statements are proved once, so their time counts once.
        found = dict(zip(chosen["smt2"], chosen["ms"], strict=True))
        # Trusted claims have the empty text as their statement, and z3 spends no time on them.
        found.pop("", None)
        counts = (chosen["status"].count(status) for status in present)
        rows.append((kind, len(chosen), len(found), *counts, float(sum(found.values()))))
    return Table(("claim", "claims", "statements", *present, "ms"), tuple(rows))


def statements(claims: Table) -> Table:
    """Return each distinct statement once, with the number of its claims; slowest first.

    Args:
      claims: a table as in `by_claim`; claims without a statement for z3 are left out.
    """
    stated = [row for row in claims if row["smt2"]]
    resting = Counter(row["smt2"] for row in stated)
    # A dict keeps the last row per key. Reversed order makes this the first claim of a statement,
    # whose node the table shows.
    first = {row["smt2"]: row for row in reversed(stated)}
    shown = sorted((first[smt2] for smt2 in resting), key=lambda row: -float(row["ms"]))
    rows = (
        (r["claim"], r["node"], resting[r["smt2"]], r["status"], float(r["ms"]), r["smt2"])
        for r in shown
    )
    return Table(("claim", "first_node", "claims", "status", "ms", "smt2"), tuple(rows))
