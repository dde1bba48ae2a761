"""The page of an audit: verdict, refuted instructions with both sides, and all rows folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardalg.show.html import Folded, Listing, Page, Part, Section
from shardalg.tables import Table
from shardalg.xla.audit.audited_rows import AuditedInstruction

MOST_REFUTED = 20


def audit_page(
    verdict: str, rows: Sequence[AuditedInstruction], devices: int, table: Table
) -> Page:
    """Return the page of an audit.

    Args:
      table: the table with all rows, which is folded.
    """
    counts = Counter(row.status for row in rows)
    shares = Table(("status", "instructions"), tuple(sorted(counts.items())))
    refuted = [row for row in rows if row.status == "refuted"]
    lead = f"{verdict}: {len(rows)} instructions on {devices} devices."
    sections = [Section("Verdict", (f"**{verdict}**", shares))]
    sections += [Section(_title(row), _parts(row)) for row in refuted[:MOST_REFUTED]]
    if len(refuted) > MOST_REFUTED:
        words = f"{len(refuted) - MOST_REFUTED} more are in the table of all instructions."
        sections.append(Section("More refuted instructions", (words,)))
    open_ = Counter((r.opcode, r.why) for r in rows if r.status == "not understood")
    if open_:
        idioms = tuple((opcode, why, n) for (opcode, why), n in open_.most_common())
        part = Table(("opcode", "idiom", "instructions"), idioms)
        sections.append(Section("Not understood", (part,)))
    sections.append(Section("All instructions", (Folded(f"{len(rows)} rows", table),)))
    return Page("Is XLA's program right?", lead, tuple(sections))


def _title(row: AuditedInstruction) -> str:
    return f"Refuted: {row.opcode} `{row.instruction}`"


def _parts(row: AuditedInstruction) -> tuple[Part, ...]:
    """Return the reason, the line, the witness and both sides of a refuted instruction."""
    place = f"device {row.device}"
    if row.element:
        place += f", element {list(row.element)}"
    parts: list[Part] = [f"**{row.why}**"]
    if row.source or row.op:
        parts.append(f"Source: {row.source or 'unknown'}, `{row.op or 'no name'}`")
    witness = ("place", "expected", "found")
    parts.append(Table(witness, ((place, row.expected, row.found),)))
    if row.issue:
        parts.append(f"Known issue with this idiom: {row.issue}")
    for name, text in (("Before partitioning:", row.before), ("On the devices:", row.after)):
        if text:
            parts += [name, Listing(text)]
    return tuple(parts)
