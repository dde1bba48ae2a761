"""The page of compared strategies: time against memory, with filters and a summary per strategy."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.costs.analyses.cause_bars import limit_color, place_of
from shardalg.show.pages.document import CHARTS, html_document, page_element
from shardalg.tables import Table

if TYPE_CHECKING:
    from shardalg.show.strategy_bars import StrategyBar

_SCRIPT = Path(__file__).with_name("explorer.js")


def explorer_document(
    rows: Sequence[StrategyBar],
    conclusion: str,
    sections: Iterable[tuple[str, Table]],
    *,
    title: str,
) -> str:
    """Return the page of compared strategies as a complete HTML file that loads nothing.

    Args:
      rows: the strategies in their order, refused ones included.
      conclusion: text below the title.
      sections: titles and tables at the end; the first one is open, and empty ones are left out.
    """
    tables = "".join(
        f"<details{' open' if place == 0 else ''}><summary>{html.escape(name)}</summary>"
        f'<div class="scroll">{table.to_html()}</div></details>'
        for place, (name, table) in enumerate((n, t) for n, t in sections if len(t))
    )
    refused = "".join(
        f'<li class="faint">{html.escape(text, quote=False)}</li>'
        for text in (f"{row.name} on {row.mesh}: {row.refused}" for row in rows if row.refused)
    )
    body = (
        f"<header><h1>{html.escape(title)}</h1>"
        f"<p>{html.escape(conclusion, quote=False)}</p></header>"
        '<p class="tools"><label>Name or mesh <input type="search" data-part="filter" '
        'aria-label="filter by name or mesh"></label><label><input type="checkbox" '
        'data-part="fits" aria-label="only strategies that fit"> only what fits</label>'
        '<label><input type="checkbox" data-part="front" aria-label="only the Pareto front"> only '
        'the Pareto front</label><span class="small faint" data-part="count"></span></p>'
        '<div class="row2"><section class="card"><h2>Step time against peak memory</h2>'
        '<div class="chart" data-part="scatter"></div><div data-part="legend"></div></section>'
        '<section class="card" data-part="detail" aria-live="polite"></section></div>'
        + (f'<section class="card"><h2>Refused</h2><ul>{refused}</ul></section>' if refused else "")
        + f'<section class="card">{tables}</section>'
    )
    element = page_element(body, _data(rows), scripts=[CHARTS, _SCRIPT])
    return html_document(title, element)


def _data(rows: Sequence[StrategyBar]) -> dict[str, Any]:
    """Return the strategies with a plan: amounts, and the causes of their step's time."""
    found = []
    for row in rows:
        if row.refused or not math.isfinite(row.step_s):
            continue
        causes = sorted(row.limits.items(), key=lambda part: place_of(part[0]))
        found.append({
            "name": row.name,
            "mesh": row.mesh,
            "fits": row.fits,
            "s": row.step_s,
            "b": row.peak_bytes,
            "most": row.capacity_bytes if math.isfinite(row.capacity_bytes) else 0,
            "causes": [[name, seconds, limit_color(name)] for name, seconds in causes if seconds],
        })  # fmt: skip
    return {"rows": found}
