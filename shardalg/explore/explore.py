"""The whole exploration: plans, drawings, runs and proofs, as one page."""

from __future__ import annotations

from collections.abc import Callable

from shardalg.explore import strategies
from shardalg.explore.progress import Progress
from shardalg.explore.screen import page_text
from shardalg.explore.settings import Settings
from shardalg.report.html import Page

Say = Callable[[str], None]


def explore(settings: Settings, say: Say) -> Page:
    """Plan, draw, run and prove what the settings name; `say` hears what begins."""
    config, mesh = settings.config, settings.mesh
    say(f"planning one layer under {', '.join(settings.strategies)}")
    plans = strategies.plans_of(settings, strategies.LAYER)
    sizes = ", ".join(f"{k}={getattr(config, k)}" for k in "BSMHNDVL")
    return Page(
        "A Transformer, partitioned",
        f"Sizes {sizes}; activations {config.dtype}; {mesh!r}.",
        strategies.sections(plans),
    )


def run(settings: Settings) -> None:
    """Explore, show the report on screen and write its files."""
    say = Progress()
    page = explore(settings, say)
    print(f"\n{page.title}\n{page.lead}\n\n{page_text(page)}\n", flush=True)
    files = page.write(settings.out)
    say(f"wrote {', '.join(str(path) for path in files[:2])} and {len(files) - 2} more files")
