"""Claims of a program, and the status of each."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from shardalg.errors import LoweringError
from shardalg.merge.proofs.integers import IntegerClaim
from shardalg.merge.proofs.prove import MergeClaim, Proof
from shardalg.tables import Table, card

if TYPE_CHECKING:
    from shardalg.tables import DataFrame

TRUSTED = "trusted"
NOT_HELD = "not_held"
"""Status of an annotation inside the function whose sharding the program never has (allowed)."""
STATUSES = ("proved", TRUSTED, "not_claimed", "unknown", "refuted")


@dataclass(frozen=True)
class Decided:
    """A statement that needs no solver.

    Attributes:
      words: the statement; holds: whether a comparison found it true.
      trusted: whether the user allows by an option to assume it.
    """

    words: str
    holds: bool
    trusted: bool = False

    @property
    def status(self) -> str:
        """The verdict on the statement in a report: "trusted", "proved" or "refuted"."""
        if self.trusted:
            return TRUSTED
        return "proved" if self.holds else "refuted"


Statement = Decided | IntegerClaim | MergeClaim
"""The statement of a claim. z3 proves all kinds except `Decided`."""


@dataclass(frozen=True)
class Claim:
    """One statement about the program, and its status.

    Attributes:
      node: the value or instruction that the claim is about.
      claim: "merge", "iterations", "reads", "padding", "writes", "combine", "emitted", "selected",
        "mask", "delivers", "carry", "manual", "border", "types" or "well formed". Trusted claims
        are "normalisation", "rows", "emission", "collectives", "monoids", "arithmetic" and, by
        an option, "finite". Annotations inside the function (`Report.sites`) are "site".
      status: "proved", "refuted", "unknown", "trusted" (tested instead) or "not_claimed";
        for a site "proved" or "not_held".
      words: the statement; witness: of a refuted one, a case in which it fails.
    """

    node: str
    claim: str
    status: str
    ms: float = 0.0
    smt2: str = ""
    words: str = ""
    witness: object = None

    def of(self, node: str) -> Claim:
        """Return the same claim about another value or instruction.

        `dataclasses.replace` takes three times as long, and a step of 64 layers has 500,000 claims.
        """
        return Claim(node, self.claim, self.status, self.ms, self.smt2, self.words, self.witness)


FACTS = tuple(
    Claim("every plan", kind, TRUSTED, words=words)
    for kind, words in (
        ("normalisation", "the graph computes what was traced: tests/ops evaluate both"),
        ("rows", "a row says what its JAX primitive computes: tests/ops evaluate each"),
        ("emission", "run-time indices are shifted where it says: tests/partition run it"),
        ("collectives", "JAX's collectives do what their names say: tests/lower run each of them"),
        ("monoids", "a reducing function of the user and its start form a monoid, as JAX asks"),
        (
            "arithmetic",
            "sums may be reassociated, a sum that is zero is +0, and 0 times a number of the user "
            "is 0",
        ),
    )
)
"""Assumptions that no claim shows, and the tests that cover them."""


MANUAL = (
    "what a shard_map computes from its blocks is the function's own; results that its out_specs "
    "call alike are alike (jax checks it where check_vma is on)"
)
"""Assumption about a manual region."""


@dataclass(frozen=True)
class Report:
    """All claims of a plan, with their status.

    Attributes:
      hints: the sizes at which a plan of named sizes was verified, in words.
      sites: one claim per annotation inside the function: "proved" if the program has this sharding
        at some point, else "not_held" with the shardings that it has. An annotation inside is a
        wish, so sites are notes: they are not part of the claims, and `ok` ignores them.
    """

    claims: tuple[Claim, ...]
    merges: tuple[Proof, ...] = ()
    hints: str = ""
    sites: tuple[Claim, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every claim is proved or trusted."""
        return all(claim.status in ("proved", TRUSTED) for claim in self.claims)

    @property
    def refuted(self) -> tuple[Claim, ...]:
        """Claims with a counter-example."""
        return tuple(claim for claim in self.claims if claim.status == "refuted")

    @property
    def table(self) -> DataFrame:
        """Return a DataFrame of one row per claim; `report.table()` is the same."""
        return self.df

    @cached_property
    def cells(self) -> Table:
        """The claims as a `Table` with one row per claim."""
        columns = ("node", "claim", "status", "ms", "smt2", "statement")
        rows = ((c.node, c.claim, c.status, c.ms, c.smt2, c.words) for c in self.claims)
        return Table(columns, tuple(rows))

    @property
    def df(self) -> DataFrame:
        """The table as a DataFrame."""
        return self.cells.df

    def _repr_html_(self) -> str:
        """Return the report for a notebook: counts of claims, and claims not proved."""
        counts = Counter((claim.claim, claim.status) for claim in self.claims)
        rows = tuple((*key, count) for key, count in sorted(counts.items()))
        # A faulty plan can have a claim per instruction, more than a page can show, and the first
        # ones usually have the same cause. `table()` has all of them.
        open_ = [c for c in self.claims if c.status not in ("proved", TRUSTED)]
        shown = tuple((c.node, c.claim, c.status, c.words, str(c.witness)) for c in open_[:20])
        faults = (Table(("node", "claim", "status", "statement", "witness"), shown),)
        parts = (repr(self), *(faults if shown else ()), Table(("claim", "status", "claims"), rows))
        return card(*parts, ok=self.ok)

    def summary(self) -> str:
        """Return the number of claims per status: `31 proved, 2 trusted, 120 not_claimed`."""
        counts = Counter(claim.status for claim in self.claims)
        return ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s]) or "no claims"

    def __repr__(self) -> str:
        """Return whether the report is ok, its counts, and notes about sites and hints."""
        at = f", at the hints {self.hints}" if self.hints else ""
        apart = sum(site.status == NOT_HELD for site in self.sites)
        notes = f"; {apart} of {len(self.sites)} sites not held" if apart else ""
        return f"Report({'ok' if self.ok else 'open'}: {self.summary()}{notes}{at})"


def refuse_refuted(report: Report) -> None:
    """Raise if a claim is refuted, and warn if a claim is open.

    Raises:
      LoweringError: a claim is refuted.
    """
    if report.refuted:
        first = report.refuted[0]
        raise LoweringError(
            f"the plan has {len(report.refuted)} refuted claims, the first of "
            f"{first.node}: {first.words}; it fails at {first.witness}. It would compute "
            "something else. plan.verify() lists all of them; please report the function."
        )
    open_ = [claim for claim in report.claims if claim.status in ("unknown", "not_claimed")]
    if open_:
        warnings.warn(
            f"{len(open_)} claims of the plan are open, the first of {open_[0].node}: "
            f"{open_[0].words}. plan.verify() lists them.",
            # The warning must name the user's line, which is behind three frames: this function,
            # `plan.running` and the method of the plan.
            stacklevel=4,
        )
