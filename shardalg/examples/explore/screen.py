"""A report as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from shardalg.io.table import Table
from shardalg.report.html import Listing, Page, Picture, Section

# Columns that a terminal is too narrow for, and how many characters of them it shows.
WIDTH = 96
NARROW = {"why": 60, "smt2": 40, "remedy": 60}


def page_text(page: Page) -> str:
    """The page's words and tables, long cells cut; pictures by the name of their file."""
    return "\n\n".join(_section(section) for section in page.sections)


def _section(section: Section) -> str:
    title = f"{section.title}\n{'=' * len(section.title)}"
    return "\n\n".join((title, *(_TEXT[type(part)](part) for part in section.parts)))


def _table(table: Table) -> str:
    """The table, its long cells cut.

    >>> print(_table(Table(("why",), (("because " * 9,),))))
    why
    because because because because because because because bec…
    """
    widths = [NARROW.get(name) for name in table.columns]
    rows = (
        tuple(_cut(cell, width) for cell, width in zip(row, widths, strict=True))
        for row in table.rows
    )
    return repr(Table(table.columns, tuple(rows)))


def _cut(cell: object, width: int | None) -> object:
    text = str(cell)
    return cell if width is None or len(text) <= width else text[: width - 1] + "…"


_TEXT: dict[type, Callable[[Any], str]] = {
    str: lambda text: textwrap.fill(text, WIDTH),
    Table: _table,
    Picture: lambda picture: f"({picture.name}.png: {picture.caption})",
    Listing: lambda listing: listing.text,
}
