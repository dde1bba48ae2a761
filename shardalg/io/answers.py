"""What a plan answers in words and tables: text in a terminal, HTML in a notebook, a DataFrame."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardalg.io.table import Table

if TYPE_CHECKING:
    from shardalg.io.table import DataFrame

Parts = tuple[str | Table, ...]
MOST_ROWS = 20
"""So many rows of a table are printed; `.df` has all."""


class Answer(ABC):
    """Sentences and tables. `table` is what `.df`, iteration and length are of."""

    @property
    @abstractmethod
    def table(self) -> Table:
        """The answer as rows."""

    @abstractmethod
    def parts(self) -> Parts:
        """What is printed, in order; tables without rows are left out."""

    @property
    def df(self) -> DataFrame:
        """The rows as a pandas DataFrame."""
        return self.table.df

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return "\n".join(map(repr_part, self._shown()))

    def _repr_html_(self) -> str:
        return "\n".join(map(html_part, self._shown()))

    def _shown(self) -> Iterator[str | Table]:
        for part in self.parts():
            if isinstance(part, str):
                yield part
            elif len(part):
                yield Table(part.columns, part.rows[:MOST_ROWS])
                if len(part) > MOST_ROWS:
                    yield f"... and {len(part) - MOST_ROWS} more rows."


def repr_part(part: str | Table) -> str:
    """A part of an answer in a terminal."""
    return part if isinstance(part, str) else repr(part)


def html_part(part: str | Table) -> str:
    """A part of an answer in a notebook.

    >>> html_part("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{html.escape(part)}</p>" if isinstance(part, str) else part.to_html()


_TONES = {True: "#2e7d32", False: "#c62828", None: "#90a4ae"}


def card(*parts: str | Table, ok: bool | None = None) -> str:
    """Sentences and tables in a notebook, with a green edge where it holds and a red one if not.

    >>> card("they merge", ok=True)
    '<div style="border-left:4px solid #2e7d32;padding-left:10px"><p>they merge</p></div>'
    """
    style = f"border-left:4px solid {_TONES[ok]};padding-left:10px"
    return f'<div style="{style}">{"".join(map(html_part, parts))}</div>'
