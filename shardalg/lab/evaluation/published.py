"""The paper's measurements: 39 columns with 143 values, each with its configuration, as data.

`paper_tables.json` in this folder holds every number of section 5 of GSPMD (arXiv:2105.04663), read
from its LaTeX source: Table 1 under "symbolic_table", Tables 2 to 8 under "columns", figures of the
text under "text_facts". Facts that the paper does not state are null. Consequences of its numbers
are under "derived", doubtful numbers under "caveats".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from shardalg.errors import TableError

PARAMETER_UNIT = 2**30
"""The paper's billion of parameters, derived: 32 of its layers are 64 * 2**30 exactly."""
NUMBERS = {
    "dense-bench": 2,
    "narrow-bench": 3,
    "narrow-pipe-bench": 4,
    "conformer-pipe-bench": 5,
    "sparse-bench": 6,
    "hybrid-bench": 7,
    "unet-bench": 8,
}
"""The paper's table numbers, by the names of the tables in its LaTeX source."""
_UNITS = {"B": 1, "T": 1024}


@dataclass(frozen=True)
class Column:
    """A column of Tables 2 to 8: a configuration and its measured values.

    Attributes:
      id: "dense-bench.c1": the table's name in the paper's source, and the column's place in it.
      facts: the configuration in the paper's letters; None where the paper does not state it.
      measured: quantity to value, as printed: GB are 1e9 bytes, shares are in per cent.
    """

    id: str
    facts: Mapping[str, Any] = field(hash=False)
    measured: Mapping[str, float] = field(hash=False)

    @property
    def table(self) -> int:
        """The number of the column's table in the paper.

        >>> column("hybrid-bench.c1").table
        7
        """
        return NUMBERS[self.facts["table"]]

    @property
    def kind(self) -> str:
        """The kind of sharding: "dense2d", "pipeline", "moe1d", "hybrid" or "spatial"."""
        return str(self.facts["kind"])

    @property
    def mesh(self) -> dict[str, int]:
        """Mesh axes with their sizes; empty where the paper does not state them.

        >>> column("narrow-pipe-bench.c4").mesh
        {'L': 8, 'X': 16, 'Y': 2}
        """
        return dict(zip(self.facts.get("mesh_axes", ()), self.facts["mesh"] or (), strict=False))

    @property
    def mesh_text(self) -> str:
        """The mesh as the paper prints it, "(8,16)"; "" if the paper does not."""
        return f"({','.join(map(str, self.mesh.values()))})" if self.mesh else ""

    @property
    def stated_parameters(self) -> float | None:
        """The parameter count in the head of the column; None if the paper does not state one.

        The paper's billion is `PARAMETER_UNIT`.

        >>> column("dense-bench.c7").stated_parameters == 1024 * PARAMETER_UNIT
        True
        """
        text = self.facts["param_count"]
        return text and float(text[:-1]) * _UNITS[text[-1]] * PARAMETER_UNIT


@cache
def tables() -> Mapping[str, Any]:
    """Return the content of `paper_tables.json`: columns, Table 1, numbers of the text, caveats.

    >>> len(tables()["columns"]), tables()["n_measured_values"]
    (39, 143)
    """
    found: dict[str, Any] = json.loads(Path(__file__).with_name("paper_tables.json").read_text())
    return found


@cache
def columns(table: int | None = None) -> tuple[Column, ...]:
    """Return all columns in the paper's order, or the columns of one table.

    >>> [len(columns(number)) for number in NUMBERS.values()]
    [7, 6, 5, 6, 4, 4, 7]

    Raises:
      TableError: the paper has no measured table of that number.
    """
    if table not in (None, *NUMBERS.values()):
        raise TableError(
            f"the paper has no table {table} of measurements: Tables 2 to 8 are measured, Table 1 "
            "is of symbols (`shardalg explore` derives it)."
        )
    found = (Column(c["id"], c, c["meas"]) for c in tables()["columns"])
    return tuple(c for c in found if table in (None, c.table))


def column(name: str) -> Column:
    """Return the column with this id.

    >>> column("dense-bench.c1").measured["step_time_s"]
    5.74

    Raises:
      TableError: the paper has no such column.
    """
    found = {c.id: c for c in columns()}
    if name not in found:
        counts = (f"{table}.c1 to c{len(columns(n))}" for table, n in NUMBERS.items())
        raise TableError(f"the paper has no column {name!r}; write one of {', '.join(counts)}.")
    return found[name]


def chosen(table: int | None = None, name: str | None = None) -> tuple[Column, ...]:
    """Return all columns, the columns of a table, or the column with this id.

    >>> [c.id for c in chosen(name="unet-bench.c7")]
    ['unet-bench.c7']

    Raises:
      TableError: no such table or column, or a column of another table.
    """
    found = columns(table)
    if name is None:
        return found
    named = column(name)
    if named not in found:
        raise TableError(f"{name} is of Table {named.table}, not of Table {table}; leave one out.")
    return (named,)
