"""Bars of the causes of a step's time: their order and their colours in all figures."""

from __future__ import annotations

from collections.abc import Mapping

from shardalg.palette import CAUSES
from shardalg.svg import Bar, Segment
from shardalg.tables import seconds_text


def cause_bar(seconds: Mapping[str, float], name: str = "", text: str = "") -> Bar:
    """Return the causes of a step's time as a bar, in the order of all figures.

    Args:
      name, text: texts at the left and at the right end of the bar.
    """
    ordered = sorted(seconds.items(), key=lambda part: place_of(part[0]))
    parts = (Segment(n, float(s), seconds_text(s), limit_color(n)) for n, s in ordered if s > 0)
    return Bar(name, tuple(parts), text)


def place_of(name: str) -> int:
    """Return the order of a cause in figures, from 0: products first, communication last."""
    kind = _kind(name)
    return [*CAUSES].index(kind) if kind in CAUSES else len(CAUSES)


def _kind(name: str) -> str:
    """Return the name of a cause without its mesh axes: "idle devices" of all axes."""
    return name.partition(" along ")[0]


def limit_color(name: str) -> str:
    """Return the colour of a cause in figures, as text; all communication has the same colour."""
    return CAUSES.get(_kind(name), CAUSES["exposed communication"])
