"""Times of the algebra's decisions and closed forms, compared with sympy."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import merges, windows
from benchmarks.result import Result
from shardalg.tables import Table

ABOUT = f"""Processor time of one call, median of five passes.
{merges.ABOUT}
{windows.ABOUT}"""


def run(
    say: Callable[[str], None], count: int = windows.COUNT, *, devices: int = merges.LARGE
) -> Result:
    say("merging and proving")
    rows = list(merges.rows(devices))
    say(f"deriving the halos of {count} windows")
    rows += windows.rows(count)
    summary = {f"{row['what']}, microseconds": row["us"] for row in rows}
    return Result("algebra", ABOUT, Table.from_records(rows), summary)
