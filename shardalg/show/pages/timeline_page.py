"""The page of one or two timelines: tracks per stream, zoom, and seconds per collective."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.costs.pipelines.events import COMPUTE, StageEvent
from shardalg.show.pages.document import html_document, page_element
from shardalg.tables import seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardalg.show.timeline import Timeline

_SCRIPT = Path(__file__).with_name("timeline.js")
MOST_TRACKS = 32
"""Stages that a page shows; the first ones."""


def timeline_document(timeline: Timeline, beside: Timeline | None = None) -> str:
    """Return the page of a timeline as a complete HTML file that loads nothing.

    Args:
      beside: another timeline, drawn below on the same axis.
    """
    sides = [timeline, *([] if beside is None else [beside])]
    lines = "".join(
        f"<p>{html.escape(f'One step {side.of}, {side.mesh}')}: "
        f"<b>{html.escape(seconds_text(side.step_s))}</b></p>"
        for side in sides
    )
    body = (
        f"<header><h1>Timeline of a step</h1>{lines}</header>"
        '<p class="tools"><label data-part="overlap" hidden><input type="checkbox" checked '
        'aria-label="overlap of communication"> overlap: collectives have only the time that '
        "computation does not hide</label>"
        '<button type="button" data-zoom="0.5">Zoom in</button>'
        '<button type="button" data-zoom="2">Zoom out</button>'
        '<button type="button" data-zoom="0">Whole step</button>'
        '<span class="faint small">Wheel zooms, dragging moves; keys + − ← → 0.</span></p>'
        '<section class="card"><div class="chart" data-part="tracks" tabindex="0"'
        ' role="application" aria-label="timeline: plus and minus zoom, arrow keys move"></div>'
        '<div data-part="legend"></div></section>'
        '<section class="card"><h2>Seconds by kind</h2>'
        '<div class="scroll" data-part="table"></div></section>'
    )
    data: dict[str, Any] = {"sides": [_side(side) for side in sides]}
    if beside is not None:
        data["differences"] = [list(row) for row in timeline.differences(beside).rows]
    element = page_element(body, data, scripts=[_SCRIPT])
    return html_document(f"Timeline {timeline.of}", element)


def _side(timeline: Timeline) -> dict[str, Any]:
    """Return the tracks of a timeline with overlap, and without it if that is known."""
    return {
        "name": timeline.of,
        "tracks": _tracks(timeline.events, timeline.stages),
        "alone": _tracks(timeline.alone, timeline.stages) if timeline.alone else None,
    }


def _tracks(events: Iterable[StageEvent], stages: int) -> list[dict[str, Any]]:
    """Return two tracks per stage, computation and communication, without empty ones."""
    found: dict[tuple[int, bool], list[list[Any]]] = {}
    for event in events:
        if event.stage < MOST_TRACKS:
            is_sent = event.kind not in (COMPUTE, "bubble")
            text = ", ".join(filter(None, (event.phase, f"along {','.join(event.axes)}"
                             if event.axes else "", f"trip {event.trip}"
                             if event.trip is not None else "")))  # fmt: skip
            row = [event.start_s, event.seconds, event.kind, text]
            found.setdefault((event.stage, is_sent), []).append(row)
    return [
        {
            "name": (f"stage {stage} " if stages > 1 else "")
            + ("communication" if is_sent else "compute"),
            "events": found[stage, is_sent],
        }
        for stage, is_sent in sorted(found)
    ]
