"""The partitioned feed-forward layer under each strategy, as in the paper's figure 7."""

from __future__ import annotations

from collections.abc import Mapping

from shardalg.lab.explore.settings import Settings
from shardalg.pictures import png
from shardalg.plan.plan import Plan
from shardalg.show.figures import Panel, draw_programs
from shardalg.show.html import Picture, Section

FEED_FORWARD = "ffn"
INTRODUCTION = """The program that every device runs for `Relu(x W_in) W_out`, drawn from the
program itself. A capital letter is a whole dimension, a small one is partitioned along the mesh
axis below it; `Σ` marks sums that are still pending along an axis. AG gathers, RS sums and
scatters, AR sums; the number below is what each device sends. (Compare GSPMD, arXiv:2105.04663,
figure 7.)"""


def picture(settings: Settings, plans: Mapping[str, Plan]) -> Picture:
    """Return a picture of the plans' programs, one below the other; `plans` is by strategy."""
    panels = [
        Panel(name, made.program, made.graph, dim_names=settings.dim_names)
        for name, made in plans.items()
    ]
    caption = f"The partitioned feed-forward layer under {', '.join(plans)}."
    return Picture("feed_forward", png(draw_programs(panels)), caption)


def section(settings: Settings, plans: Mapping[str, Plan]) -> Section:
    """Return a section with the drawing of all plans, and the last plan's program as text."""
    name, last = list(plans.items())[-1]
    parts = (INTRODUCTION, picture(settings, plans), f"The same of **{name}** as text:")
    return Section("The partitioned feed-forward layer", (*parts, last.listing()))
