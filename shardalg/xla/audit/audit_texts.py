"""`sa.audit_hlo`: a partitioned program of XLA audited from two texts."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from shardalg.errors import NotationError
from shardalg.xla.audit.audit_report import Audit, source_lines
from shardalg.xla.audit.audited_rows import AuditedInstruction
from shardalg.xla.audit.instruction_walk import InstructionAnswer, Walk
from shardalg.xla.audit.known_issues import known_issue
from shardalg.xla.audit.operators.operator_table import OperatorTable
from shardalg.xla.audit.program_pair import ProgramPair, read_pair, walk_pair
from shardalg.xla.audit.referee.field_verdict import field_verdict
from shardalg.xla.audit.values.per_device import (
    ArrayPool,
    RefutedError,
    Shown,
    UnknownError,
)

MOST_ELEMENTS = 1 << 24
"""Programs with more elements on all devices together are not run on random elements."""
RUNS = 2
SECONDS_APART = 0.2


def audit_hlo(before: str | Path, after: str | Path, *, progress: bool | None = None) -> Audit:
    """Return the verdict on a partitioned program of XLA, from two texts of its dump.

    Every instruction of the partitioned program is proved to hold a block of a value of the program
    before partitioning, or refuted, or named as not understood. XLA writes the texts with
    `--xla_dump_to=FOLDER --xla_dump_hlo_pass_re=spmd --xla_dump_large_constants`.

    Args:
      before: text, or path, of `...before_spmd-partitioning.txt`.
      after: text, or path, of `...after_spmd-partitioning.txt`.
      progress: True for a line with counts on stderr; None for a line if stderr is a terminal.

    An interrupt (Ctrl-C) returns the rows so far; the others have the status "not examined".

    Raises:
      NotationError: a text cannot be read, or is no such program.
    """
    start = time.perf_counter()
    texts = [_text(given, name) for given, name in ((before, "before"), (after, "after"))]
    pair = read_pair(*texts)
    counter = _Counter(pair, sys.stderr.isatty() if progress is None else progress)
    try:
        _, walked = walk_pair(pair, counter)
    except KeyboardInterrupt:
        # While the program before partitioning is read, no instruction is examined yet.
        pool = ArrayPool(pair.devices)
        walked = counter.walk or Walk(pair.after, pool, OperatorTable(pool))
        for name, body in pair.after.computations.items():
            for one in body.values():
                walked.rows.setdefault((name, one.name), InstructionAnswer(one, "not examined"))
    finally:
        counter.end()
    statuses = {row.status for row in walked.rows.values()}
    if statuses & {"not understood", "behind"} and not statuses & {"refuted", "not examined"}:
        with suppress(KeyboardInterrupt):
            decided_by_field(pair, walked)
    lines = source_lines(texts[1])
    rows = tuple(_audited(where, row, lines, walked) for where, row in walked.rows.items())
    rows = tuple(_with_sides(row, pair, texts) for row in rows)
    return Audit(pair.devices, rows, time.perf_counter() - start)


@dataclass(eq=False)
class _Counter:
    """A line on stderr with the number of instructions that are examined."""

    pair: ProgramPair
    is_shown: bool
    walk: Walk | None = None
    printed: float = 0.0

    def __call__(self, walk: Walk) -> None:
        """Print the counts so far, at most every `SECONDS_APART` seconds."""
        self.walk = walk
        now = time.perf_counter()
        if not self.is_shown or now - self.printed < SECONDS_APART:
            return
        self.printed = now
        total = sum(map(len, self.pair.after.computations.values()))
        refuted = sum(row.status == "refuted" for row in walk.rows.values())
        words = f"{len(walk.rows)} of {total} instructions, {refuted} refuted"
        print(f"\r\033[K{words}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self.printed:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _with_sides(
    row: AuditedInstruction, pair: ProgramPair, texts: Sequence[str]
) -> AuditedInstruction:
    """Return a refuted row with its lines of both texts."""
    if row.status != "refuted":
        return row
    name = row.instruction
    if name.startswith("result "):
        root = pair.after.roots[pair.after.entry]
        number = int(name.removeprefix("result "))
        name = root.operands[number] if root.opcode == "tuple" else root.name
    # An instruction of the partitioner's own has no name in JAX; its operand may have one.
    body, at, op = pair.after.computations[row.computation], name, row.op
    while not op and at in body and body[at].operands:
        at = body[at].operands[0]
        op = body[at].op_name if at in body else ""
    same = [
        one.name
        for theirs in pair.before.computations.values()
        for one in theirs.values()
        if op and one.op_name == op and one.opcode != "constant"
    ]
    before = "\n".join(_line(texts[0], other) for other in same[-3:])
    return replace(row, before=before, after=_line(texts[1], name))


def _line(text: str, name: str) -> str:
    """Return the line of an instruction without its metadata."""
    found = re.search(rf"^\s*(?:ROOT )?%?{re.escape(name)} = .*$", text, re.M)
    return re.sub(r", metadata=.*", "", found[0].strip()) if found else ""


def decided_by_field(pair: ProgramPair, walked: Walk) -> None:
    """Decide what the walk does not understand by runs of both programs, for small programs.

    Both programs run on random elements of a finite field. If all results are equal, instructions
    that are not understood have the status "equal". If a result differs, it is refuted, and so is
    the move that gave it a wrong element, if one is found.
    """
    size = sum(
        math.prod(shape)
        for body in pair.after.computations.values()
        for one in body.values()
        for _, shape in one.leaves
    )
    if size * pair.devices > MOST_ELEMENTS:
        return
    for seed in range(RUNS):
        run = field_verdict(pair, seed)
        if run.reason:
            return
        if not run.is_equal:
            # The row of the result names the instruction that computes it, not the tuple.
            root, key = pair.after.roots[pair.after.entry], ("result", f"{run.result}")
            name = root.operands[run.result] if root.opcode == "tuple" else root.name
            old = walked.rows.get(key)
            why = "differs from the program before partitioning on random elements"
            shown = Shown((), run.expected, run.found)
            error = RefutedError(why, run.device, run.element, shown=shown)
            one = pair.after.computations[pair.after.entry][name]
            walked.rows[key] = InstructionAnswer(one, "refuted", error)
            if old is not None and old.finding is not None:
                walked.trace(pair.after.entry, name, old.finding)
            return
    for key, row in walked.rows.items():
        if row.status in ("not understood", "behind"):
            finding = row.finding or UnknownError("equal results on random elements")
            walked.rows[key] = replace(row, status="equal", finding=finding)


def _text(given: str | Path, name: str) -> str:
    """Return a text, read from a file if a path is given.

    Raises:
      NotationError: the file cannot be read.
    """
    if isinstance(given, str) and "\n" in given:
        return given
    try:
        return Path(given).read_text(errors="replace")
    except (OSError, TypeError) as error:
        raise NotationError(
            f"{name}={str(given)[:80]!r} is no HLO text and no file that can be read ({error}). "
            "Pass the text or the path of XLA's dump."
        ) from None


def _audited(
    where: tuple[str, str],
    row: InstructionAnswer,
    lines: Mapping[str, str],
    walked: Walk,
) -> AuditedInstruction:
    """Return the public answer of an instruction, with its source line and, if refuted, a witness.

    Args:
      where: computation and name of the instruction; ("result", number) is a result of the program.
      lines: the source line per stack frame of the text.
    """
    one, finding = row.instruction, row.finding
    frame = re.search(r"stack_frame_id=(\d+)", one.attributes.get("metadata", ""))
    made = AuditedInstruction(
        one.name if where[0] != "result" else f"result {where[1]}",
        one.computation,
        one.opcode,
        row.status,
        finding.why if finding else "",
        op=one.op_name,
        source=lines.get(frame[1], "") if frame else "",
    )
    if row.status != "refuted" or finding is None:
        return made
    # Only a refuted instruction has a place that shows it.
    return replace(
        made,
        device=finding.device,
        element=finding.place,
        expected=walked.table.words(finding.shown.expected),
        found=walked.table.words(finding.shown.found),
        issue=known_issue(finding.why, one, walked.module.computations[one.computation]),
    )
