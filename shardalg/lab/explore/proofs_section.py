"""The report's section with the proofs of the plans."""

from __future__ import annotations

from collections.abc import Mapping

from shardalg.plan.plan import Plan
from shardalg.show.html import Section
from shardalg.show.proofs import by_claim, statements
from shardalg.tables import Table
from shardalg.verify.report import Report

INTRODUCTION = """A plan rests on claims: that two shardings merge, that every iteration is
computed by equally many devices, that each local operator reads, writes and combines the elements
that it should, that masks cover what padding added, that collectives deliver what the next
operator expects. z3 judges them without reading the planner: merges for **all** mesh sizes of at
least 2, the others at the sizes of the plan. {verdict}"""
OK = "Every claim of {plans} is proved, or trusted."
OPEN = "**Open or refuted: claims of {plans}.**"
TRUSTED = "Trusted claims, and the tests that replace their proofs:"
MOST_STATEMENTS = 8
COLUMNS = ("plan", "merges", "merges_proved", "proofs_ms", "all_claims")


def section(plans: Mapping[str, Plan]) -> Section:
    """Return a section with the claims per plan, and the proofs of the last plan in detail."""
    reports = {name: plan.verify() for name, plan in plans.items()}
    last, report = list(reports.items())[-1]
    slowest = statements(report.cells)
    return Section(
        "Proofs",
        (
            INTRODUCTION.format(verdict=_verdict(reports)),
            Table(COLUMNS, tuple((name, *_merges(r), r.summary()) for name, r in reports.items())),
            f"The claims of **{last}**, and z3's time for the distinct statements in milliseconds:",
            by_claim(report.cells),
            TRUSTED,
            report.cells.where(status="trusted").select("claim", "statement"),
            "Its slowest statements, as z3 receives them:",
            Table(slowest.columns, slowest.rows[:MOST_STATEMENTS]),
        ),
        conclusion=f"{_verdict(reports)} {sum(len(r.cells) for r in reports.values()):,} claims.",
    )


def _verdict(reports: Mapping[str, Report]) -> str:
    """Return a sentence with the verdicts on all claims."""
    open_ = [name for name, report in reports.items() if not report.ok]
    return (OPEN if open_ else OK).format(plans=", ".join(open_ or reports))


def _merges(report: Report) -> tuple[int, int, float]:
    """Return the number of merges, of proved ones, and z3's milliseconds for distinct merges."""
    status = report.cells.where(claim="merge")["status"]
    return len(status), status.count("proved"), round(sum(p.ms for p in report.merges), 3)
