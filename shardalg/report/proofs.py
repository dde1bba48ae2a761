"""What was proved of a plan: claims counted by kind and status, and the statements themselves."""

from __future__ import annotations

from collections import Counter

from shardalg.io.table import Table

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
