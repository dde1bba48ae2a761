"""The answer of an audit: a verdict on the program, and one on each of its instructions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from shardalg.errors import TableError
from shardalg.files import write_whole
from shardalg.tables import Table
from shardalg.xla.audit.audit_page import audit_page
from shardalg.xla.audit.audited_rows import AuditedInstruction

PROVED, REFUTED, UNKNOWN, BEHIND = "proved", "refuted", "not understood", "behind"
EQUAL, UNEXAMINED = "equal", "not examined"
_COLUMNS = (
    "instruction", "computation", "opcode", "status", "why", "device", "element", "expected",
    "found", "op", "source", "issue",
)  # fmt: skip
_MOST = 8


@dataclass(frozen=True, repr=False)
class Audit:
    """The verdict on a partitioned program of XLA.

    Attributes:
      devices: number of devices.
      instructions: the answer for each instruction, in the order of the program.
      seconds: the time that the audit took.
    """

    devices: int
    instructions: tuple[AuditedInstruction, ...]
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The worst status: "refuted", "not examined", "not understood", "equal" or "proved"."""
        counts = self.counts
        worst = next(
            (s for s in (REFUTED, UNEXAMINED, UNKNOWN, BEHIND, EQUAL) if counts.get(s)), PROVED
        )
        return UNKNOWN if worst == BEHIND else worst

    @property
    def ok(self) -> bool:
        """True if every instruction is proved, or the results are equal on random elements."""
        return self.verdict in (PROVED, EQUAL)

    @property
    def counts(self) -> dict[str, int]:
        """The number of instructions per status."""
        return dict(Counter(one.status for one in self.instructions))

    @property
    def refuted(self) -> tuple[AuditedInstruction, ...]:
        """The instructions that do not compute a block of the program before partitioning."""
        return tuple(one for one in self.instructions if one.status == REFUTED)

    @property
    def not_understood(self) -> tuple[AuditedInstruction, ...]:
        """The instructions that no rule explains."""
        return tuple(one for one in self.instructions if one.status == UNKNOWN)

    def table(self) -> Table:
        """Return a table with one row per instruction."""
        rows = (
            (
                one.instruction, one.computation, one.opcode, one.status, one.why, one.device,
                ",".join(map(str, one.element)), one.expected, one.found, one.op, one.source,
                one.issue,
            )
            for one in self.instructions
        )  # fmt: skip
        return Table(_COLUMNS, tuple(rows))

    def page(self, path: str | Path) -> Path:
        """Write the answer as one HTML file: verdict, refuted instructions, rows; return its path.

        Raises:
          TableError: the path is neither text nor a `Path`.
          OSError: the folder does not exist or is not writable, or the path is a folder.
        """
        if not isinstance(path, str | Path):
            raise TableError(f"page() writes a file, and its path is {path!r:.60}: give text.")
        page = audit_page(self.verdict, self.instructions, self.devices, self.table())
        write_whole(Path(path), page.to_html())
        return Path(path)

    def to_json(self) -> str:
        """Return the verdict and all instructions as JSON."""
        rows = [asdict(one) for one in self.instructions]
        return json.dumps(
            {"verdict": self.verdict, "devices": self.devices, "counts": self.counts,
             "seconds": self.seconds, "instructions": rows}, indent=1,
        )  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the text: the verdict with counts, then the worst instructions.

        At most `_MOST` refuted instructions, and `_MOST` reasons of those that are not understood.
        """
        total, counts = len(self.instructions), self.counts
        shares = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
        yield f"{self.verdict}: {total} instructions on {self.devices} devices ({shares})"
        for one in self.refuted[:_MOST]:
            yield f"refuted: {one}"
            if one.issue:
                yield f"  known issue with this idiom: {one.issue}"
        for why, n in Counter(
            f"{one.opcode}: {one.why}" for one in self.not_understood
        ).most_common(_MOST):
            yield f"not understood, {n} times: {why}"


def source_lines(text: str) -> Mapping[str, str]:
    r"""Return the innermost source line per stack frame that the head of an HLO text names.

    >>> source_lines('FileNames\n1 "a.py"\n\nFileLocations\n1 {file_name_id=1 line=7}\n\n'
    ...     'StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n')
    {'1': 'a.py:7'}
    """
    parts: dict[str, dict[str, str]] = {}
    section = ""
    for line in text.splitlines():
        word = line.strip()
        if word in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            section = word
            parts[section] = {}
        elif line.startswith(("%", "ENTRY")):
            break
        elif section and (row := re.match(r"(\d+) (.*)", word)):
            parts[section][row[1]] = row[2]
    found = {}
    for frame, content in parts.get("StackFrames", {}).items():
        at = re.search(r"file_location_id=(\d+)", content)
        place = parts.get("FileLocations", {}).get(at[1], "") if at else ""
        name, line_at = re.search(r"file_name_id=(\d+)", place), re.search(r"\bline=(\d+)", place)
        if name and line_at:
            path = parts.get("FileNames", {}).get(name[1], "").strip('"')
            found[frame] = f"{path.rpartition('/')[2]}:{line_at[1]}"
    return found
