"""Colours of all drawings, each with one meaning.

The colours are those of Okabe and Ito, which readers who confuse red and green can distinguish
(M. Okabe, K. Ito: Color Universal Design, 2008). Dark ones name mesh axes and are readable as text
on white (contrast of at least 4.5 to 1). Light ones fill areas on which dark text is written. Red
alone marks a refusal or a limit. `docs/drawings.md` shows the palette.
"""

from __future__ import annotations

INK, FAINT, LINE, PAPER = "#22262b", "#8a9099", "#c9ced4", "#ffffff"
"""Colours of text, of secondary text, of thin lines, and of the background."""

OK, REFUSED, NEUTRAL = "#2e7d32", "#c62828", "#90a4ae"
"""Edges of an answer: it holds, it is refused, or it is neither."""
CLASH = "#f4b6b0"
"""Fill of a tile that two shardings dispute; its frame is `REFUSED`."""

AXES = ("#0072b2", "#a34700", "#00775a", "#9c3f78", "#7a5c00", "#4a5568")
"""Colours of mesh axes by their position in the mesh, the major axis first."""

SKY, ORANGE, GREEN, PURPLE = "#8ecbf0", "#f7d48a", "#8fd0b5", "#eec7dd"
BLUE, YELLOW, VERMILION, GREY = "#7fb0d8", "#f8f2a0", "#eaa27c", "#d5d8dc"

BLOCKS = (SKY, ORANGE, GREEN, PURPLE, BLUE, YELLOW, VERMILION, GREY)
"""Colours of blocks of a tensor by their number; neighbours also differ in brightness."""

COLLECTIVES = {
    "all_gather": ORANGE,
    "reduce_scatter": GREEN,
    "all_reduce": VERMILION,
    "all_to_all": PURPLE,
    "collective_permute": SKY,
    "collective_matmul": YELLOW,
}
"""Colours of kinds of collectives; other kinds have `YELLOW`."""

SLATE, PALE = "#b3bdc9", "#eceff2"

TIME = {"compute": SLATE, "bubble": PALE}
"""Colours of intervals in which no collective runs."""

CAUSES = {
    "matrix products": SLATE,
    "memory traffic": BLUE,
    "recomputation": PURPLE,
    "pipeline bubbles": PALE,
    "padding": YELLOW,
    "idle devices": VERMILION,
    "exposed communication": ORANGE,
    "computation": SLATE,
    "communication": ORANGE,
}
"""Colours of the causes of a step's time."""

MEMORY = {
    "parameters": BLUE,
    "optimizer_state": SKY,
    "gradients": VERMILION,
    "activations": ORANGE,
    "transients": PURPLE,
    "data": GREEN,
    "results": YELLOW,
    "constants": GREY,
    "unknown": "#b8bec6",
}
"""Colours of classes of memory."""


def axis_color(position: int) -> str:
    """Return the colour of the mesh axis at a position, the major axis first.

    >>> axis_color(0), axis_color(6)
    ('#0072b2', '#0072b2')
    """
    return AXES[position % len(AXES)]


def kind_color(kind: str) -> str:
    """Return the colour of a kind of collective, of computation, or of a bubble.

    >>> kind_color("all_reduce"), kind_color("compute"), kind_color("ragged_all_to_all")
    ('#eaa27c', '#b3bdc9', '#f8f2a0')
    """
    return TIME.get(kind) or COLLECTIVES.get(kind, YELLOW)
