"""The exploration of a Transformer: plans, drawings, runs and proofs, as one page.

The files have the whole page; the terminal shows its short tables and the conclusion. `Progress`
prints a line with the seconds since the start when a part of the work begins.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from shardalg.files import write_whole
from shardalg.lab.explore import drawings, runs, strategies
from shardalg.lab.explore import foreign_section as foreign
from shardalg.lab.explore import paper_section as paper
from shardalg.lab.explore import proofs_section as proofs
from shardalg.lab.explore import table1_section as table1
from shardalg.lab.explore.settings import PAPER, Settings
from shardalg.lab.explore.strategies import NAME
from shardalg.lab.table1 import layer_costs
from shardalg.lower.axes import host_devices
from shardalg.lower.three_ways import Comparison
from shardalg.models.measured.this_machine import known_or_probed
from shardalg.plan.plan import Plan
from shardalg.show.html import Page, Section, tables_tex


def _write(line: str) -> None:
    print(line, flush=True)


@dataclass(frozen=True)
class Progress:
    """A callable that prints the name of the work that begins.

    >>> Progress(clock=lambda: 2.0, start=0.5)("planning")
    [  1.5 s] planning
    """

    write: Callable[[str], None] = _write
    clock: Callable[[], float] = time.perf_counter
    start: float = field(default_factory=time.perf_counter)

    def __call__(self, what: str) -> None:
        """Write a line with the seconds since `start` and the name of the work."""
        self.write(f"[{self.clock() - self.start:5.1f} s] {what}")


WIDTH = 110


def page_text(page: Page) -> str:
    """Return the title, the brief tables of the sections, and the conclusion.

    >>> from shardalg.tables import Table
    >>> from shardalg.show.html import Section
    >>> few = Table(("n",), ((1,),))
    >>> both = Section("Counted", ("Long words.", few), brief=(few,), conclusion="There is one.")
    >>> print(page_text(Page("A report", "It leads.", (both,))))
    A report
    It leads.
    <BLANKLINE>
    Counted
    n
    1
    <BLANKLINE>
    Conclusion
    - There is one.
    """
    shown = [
        "\n".join((section.title, *map(repr, section.brief)))
        for section in page.sections
        if section.brief
    ]
    lines = [
        textwrap.fill(section.conclusion, WIDTH, initial_indent="- ", subsequent_indent="  ")
        for section in page.sections
        if section.conclusion
    ]
    return "\n\n".join((f"{page.title}\n{page.lead}", *shown, "\n".join(("Conclusion", *lines))))


Say = Callable[[str], None]
Plans = Mapping[str, Plan]


@dataclass(frozen=True, eq=False)
class Exploration:
    """A report about the plans of one Transformer; the plans are made on first use.

    Attributes:
      settings: the sizes of the Transformer, its mesh and its strategies.
      say: is called with the name of each part of the work when the part begins.
    """

    settings: Settings
    say: Say

    @cached_property
    def layers(self) -> Plans:
        """The plan of one layer of the Transformer with its gradient, by name of the strategy."""
        self.say(f"planning a layer under {', '.join(self.settings.strategies)}")
        return strategies.plans_of(self.settings, strategies.LAYER)

    @cached_property
    def train_settings(self) -> Settings:
        """The settings with the layers scanned, for whole train steps."""
        return replace(self.settings, config=replace(self.settings.config, scan=True))

    @cached_property
    def steps(self) -> Plans:
        """The plan of the whole train step with scanned layers, by strategy."""
        self.say(f"planning the train step of {self.settings.config.L} scanned layers")
        return strategies.plans_of(self.train_settings, strategies.TRAIN_STEP)

    @cached_property
    def priced(self) -> Plans:
        """The plan of the paper's train step, layers scanned and rematerialised, by strategy."""
        self.say(f"planning the train step of the paper's {NAME}")
        return strategies.plans_of(PAPER, strategies.TRAIN_STEP)

    def page(self) -> Page:
        """Return the report as a page with all sections."""
        config = self.settings.config
        sizes = ", ".join(f"{k}={getattr(config, k)}" for k in "BSMHNDVL")
        return Page(
            "A Transformer, partitioned",
            f"Sizes {sizes}; activations {config.dtype}; {self.settings.mesh!r}.",
            tuple(self.sections()),
        )

    def sections(self) -> Iterator[Section]:
        """Yield the report's sections in order."""
        yield from self.derived()
        yield from strategies.sections(self.layers)
        yield strategies.memory_section(self.steps)
        yield strategies.price_section(self.priced)
        self.say("drawing the feed-forward layer")
        forward = strategies.plans_of(self.settings, drawings.FEED_FORWARD)
        yield drawings.section(self.settings, forward)
        # The claims are proved before the runs, which need proved programs anyway. The report shows
        # them last.
        self.say("proving")
        proved = proofs.section({**self.layers, "train step": self.last_step})
        yield self.ran()
        yield self.foreign()
        yield proved

    def derived(self) -> Iterator[Section]:
        """Yield the report's sections about Table 1 of GSPMD: its formulas, derived from layers.

        Without `quick`, another section has the predicted step of the table's first model.
        """
        chosen = self.settings.strategies
        self.say("deriving the paper's Table 1 from layers with named sizes")
        yield from table1.sections(replace(table1.HINTS, strategies=chosen))
        if not self.settings.quick:
            scanned_cost = self.priced[paper.UNROLLED.strategies[0]].cost(paper.CHIP)
            self.say(f"planning the {paper.UNROLLED.config.L} unrolled layers of the same model")
            yield paper.section(scanned=scanned_cost)

    @property
    def last_step(self) -> Plan:
        """The plan of the train step under the last strategy; this plan is run and saved."""
        return self.steps[self.settings.strategies[-1]]

    def ran(self) -> Section:
        """Return the section of runs: layers under each strategy, and one train step if it fits."""
        settings = self.settings
        obstacle = runs.why_not(settings, {**self.layers, "train step": self.last_step})
        if obstacle:
            return runs.not_run(obstacle)
        self.say("measuring this machine")
        hardware = known_or_probed(host_devices(settings.mesh.size))
        results = list(self.run_layers())
        if not settings.quick:
            self.say("compiling and running the train step, ours and XLA's")
            arguments = runs.sample(self.train_settings, strategies.TRAIN_STEP)
            # Only the last strategy has its train step compiled, because a compile takes long.
            name = f"train step, {settings.strategies[-1]}"
            results.append((name, self.last_step, runs.run(settings, self.last_step, arguments)))
        return runs.section(settings, [runs.ExploredPlan(*ran, hardware) for ran in results])

    def run_layers(self) -> Iterator[tuple[str, Plan, Comparison]]:
        """Yield (name, plan, results) of a layer under each strategy, run on equal arguments."""
        self.say("running a layer on one device")
        arguments = runs.sample(self.settings, strategies.LAYER)
        for name, plan in self.layers.items():
            devices = self.settings.mesh.size
            self.say(f"running it under {name} on {devices} CPU devices, ours and XLA's")
            yield f"layer, {name}", plan, runs.run(self.settings, plan, arguments)

    def foreign(self) -> Section:
        """Return the section of a train step that is built from PyPI packages (flax and optax).

        If the step is left out, the section has the reason.
        """
        reason = foreign.why_not(self.settings)
        if reason:
            return foreign.left_out(reason)
        self.say("planning and running a train step from PyPI")
        return foreign.section(self.settings, foreign.trained(self.settings))


def write_report(exploration: Exploration) -> tuple[Page, tuple[Path, ...]]:
    """Write the files of the report; return the page and the paths.

    Raises:
      DeviceError: jax has started with fewer devices than the mesh needs.
    """
    settings, say = exploration.settings, exploration.say
    # The report takes minutes. An error about the folder or the number of devices must come first.
    settings.out.mkdir(parents=True, exist_ok=True)
    if settings.can_run:
        host_devices(settings.mesh.size)
    page = exploration.page()
    files = page.write(settings.out)
    plan_file, tables_file = settings.out / "plan.json", settings.out / "tables.tex"
    exploration.last_step.save(plan_file)
    write_whole(tables_file, tables_tex(page))
    names = ", ".join(str(path) for path in (*files[:2], tables_file, plan_file))
    say(f"wrote {names} and {len(files) - 2} pictures")
    return page, (*files, tables_file, plan_file)


def write_figures(settings: Settings, folder: Path, say: Say | None = None) -> tuple[Path, ...]:
    """Write the pictures that need no run into `folder`; return their paths.

    They are the same on every machine, so documentation can hold them.
    """
    say = say or Progress()
    exploration = Exploration(settings, say)
    totals_section, *_ = strategies.sections(exploration.layers)
    forward_plans = strategies.plans_of(settings, drawings.FEED_FORWARD)
    tiles_section = drawings.section(settings, forward_plans)
    curves = table1.curves(layer_costs())
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture in Page("", "", (totals_section, tiles_section, curves)).pictures():
        paths.append(folder / f"{picture.name}.png")
        write_whole(paths[-1], picture.png)
        say(f"wrote {paths[-1]}")
    return tuple(paths)
