"""A finished benchmark: its table, its summary, and its files."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardalg.files import write_whole
from shardalg.tables import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Result:
    """One table with its conclusions.

    Attributes:
      name: of the benchmark and of its files.
      about: what is measured, and how.
      summary: figure to value: what the table comes to.
    """

    name: str
    about: str
    table: Table
    summary: Mapping[str, float | str]

    def markdown(self) -> str:
        lines = [f"- {figure}: {shown(value)}" for figure, value in self.summary.items()]
        machine = ", ".join(f"{key} {value}" for key, value in this_machine().items())
        body = ("\n".join(lines), rounded(self.table).to_markdown(), f"Measured on: {machine}.")
        return "\n\n".join((f"# {self.name}", self.about, *body)) + "\n"

    def json(self) -> str:
        content = {
            "name": self.name,
            "machine": this_machine(),
            "summary": {figure: _significant(value) for figure, value in self.summary.items()},
            "rows": list(rounded(self.table)),
        }
        return json.dumps(content, indent=1, default=str) + "\n"

    def save(self, folder: Path = RESULTS) -> tuple[Path, Path]:
        """Write `<name>.json` and `<name>.md`; their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = folder / f"{self.name}.json", folder / f"{self.name}.md"
        for path, text in zip(paths, (self.json(), self.markdown()), strict=True):
            write_whole(path, text)
        return paths


def this_machine() -> dict[str, object]:
    """Return the facts about the machine that a reader needs; no host name, no path."""
    import jax

    return {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
    }


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of ratios.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def printed(result: Result) -> None:
    """Print the table and its summary."""
    print(f"\n{result.about}\n\n{rounded(result.table)}\n")
    for figure, value in result.summary.items():
        print(f"{figure}: {shown(value)}")


def rounded(table: Table) -> Table:
    """Return the same table with four significant digits."""
    return Table(table.columns, [tuple(map(_significant, row)) for row in table.rows])


def _significant(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def shown(value: object) -> str:
    """Return a figure with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
