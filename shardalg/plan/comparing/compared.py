"""Strategies of one function side by side: step time, memory, communication, and differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.costs.analyses.cause_bars import cause_bar
from shardalg.costs.analyses.limits import EXPOSED, IDLE
from shardalg.costs.link_bytes import KINDS_OF_LINKS
from shardalg.costs.topology import OWN_LINKS
from shardalg.errors import TableError
from shardalg.plan.comparing.given import page_path
from shardalg.plan.comparing.ranking import least_memory, ranked, unbeaten
from shardalg.svg import clip, draw_bars, drawing_card
from shardalg.tables import MOST_ROWS, Answer, Parts, Table, bytes_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.costs.cost import Cost
    from shardalg.plan.comparing.fastest_regions import StrategyRegions
    from shardalg.plan.comparing.largest_batch import BatchSearch
    from shardalg.plan.comparing.step_figures import StrategyFigures
    from shardalg.plan.plan import Plan
    from shardalg.plan.rules.logical_rules import LogicalRules
    from shardalg.planner.propagate.strategy import Strategy
    from shardalg.show.strategy_bars import StrategyBar

COLUMNS = (
    "strategy",
    "mesh",
    "chip",
    "samples",
    "step_s",
    "seconds_per_sample",
    "tokens_per_s",
    "mfu",
    "exposed_s",
    "idle_s",
    "wire_bytes",
    "peak_bytes",
    "capacity_bytes",
    "fits",
    "limited_by",
)
SHOWN = (
    "strategy",
    "mesh",
    "chip",
    "samples",
    "step",
    "tokens_per_s",
    "mfu",
    "largest_cause",
    "exposed",
    "idle",
    "peak",
    "fits",
)
"""Columns of the printed table, with amounts in units that people say."""


@dataclass(frozen=True, eq=False)
class ComparedStrategy:
    """One strategy of a comparison: its plan with the price, or the reason why there is none.

    Attributes:
      name: the name in the comparison.
      mesh, chip: the mesh and the machine, as text.
      plan: None if the strategy is refused. If a worker of an executor made it, it is made again
        here as soon as one of its methods needs the program.
      figures: the numbers of the plan at its price; None if the strategy is refused.
      refused: the reason; "" if there is a plan.
      samples, tokens: samples and tokens of a step of all devices; None if unknown.
      reserve: the share of a device's memory that must stay free.
      on: the chip or topology that the user asked for.
      strategy: the strategy that was planned; None of a plan that existed before.
    """

    name: str
    mesh: str
    chip: str
    plan: Plan | None
    figures: StrategyFigures | None
    refused: str = ""
    samples: int | None = None
    tokens: int | None = None
    reserve: float = 0.0
    on: Any = None
    strategy: Strategy | None = None

    @cached_property
    def cost(self) -> Cost | None:
        """The price of the plan on the chip; None if the strategy is refused."""
        return None if self.plan is None else self.plan.cost(self.on)

    @property
    def has_figures(self) -> bool:
        """True unless the strategy is refused."""
        return self.plan is not None

    @property
    def step_s(self) -> float:
        """Seconds of a step; infinite if the strategy is refused.

        Named sizes have the numbers at which the strategy was planned.
        """
        return float("inf") if self.figures is None else self.figures.step.step_s

    @property
    def order(self) -> float:
        """Seconds by which strategies are ranked: per sample if samples are known, or per step."""
        return self.step_s / (self.samples or 1)

    @property
    def capacity_bytes(self) -> float:
        """Bytes of a device that a step may use: its memory without the reserve."""
        return 0.0 if self.figures is None else self.figures.memory_bytes * (1 - self.reserve)

    @property
    def peak_bytes(self) -> float:
        """Peak memory of a device in bytes."""
        return 0.0 if self.figures is None else self.figures.step.peak_bytes

    @property
    def fits(self) -> bool:
        """True if there is a plan, and its peak is within the capacity."""
        return self.figures is not None and self.peak_bytes <= self.capacity_bytes

    @property
    def exposed_s(self) -> dict[str, float]:
        """Seconds of communication that the step waits for, by mesh axes."""
        return self._seconds_along(EXPOSED)

    @property
    def idle_s(self) -> dict[str, float]:
        """Seconds of matrix products that several devices compute identically, by the mesh axes."""
        return self._seconds_along(IDLE)

    def _seconds_along(self, cause: str) -> dict[str, float]:
        """Return the seconds of a cause of the step's time, by mesh axes."""
        start = f"{cause} along "
        return {
            name.removeprefix(start): seconds
            for name, seconds in self.limits.items()
            if name.startswith(start)
        }

    @property
    def limits(self) -> Mapping[str, float]:
        """Seconds of each cause of the step's time (`Cost.limits`)."""
        return {} if self.figures is None else self.figures.limits.seconds

    def by_axis(self) -> Mapping[str, Mapping[str, float]]:
        """Return executions, bytes and seconds of the collectives along each set of mesh axes.

        The seconds are split by network: "link" within a slice or island, "network" between
        islands, "dcn" between slices, and "latency".
        """
        return {} if self.figures is None else self.figures.by_axis

    def bytes_over(self, axes: str, link: str) -> float:
        """Return the bytes that a device sends along a set of axes over one kind of link.

        Args:
          axes: the axes, as `by_axis` names them.
          link: "link", "network", "dcn", or "chip" between the cores of a chip.
        """
        return 0.0 if self.figures is None else self.figures.by_link.get(axes, {}).get(link, 0.0)

    def rules(self, arrays: Any, **more: Any) -> LogicalRules:
        """Return the logical-axis rules that give the strategy's layouts (`sa.rules_of`).

        Args:
          arrays, more: as of `sa.rules_of`.

        Raises:
          StrategyError: no rules give the layouts. TableError: the row has no strategy, because it
            is refused or is a plan that existed before.
        """
        from shardalg.plan.rules.rule_strategies import rules_of

        if self.strategy is None:
            why = self.refused or "it is a plan; call sa.rules_of with the strategy of the plan"
            raise TableError(f"{self.name!r} has no strategy to write as rules: {why}.")
        return rules_of(self.strategy, arrays, **more)

    @property
    def names(self) -> tuple[str, str, str]:
        """Names by which the comparison finds the row: alone, with the mesh, and with the chip."""
        on = f"{self.name} on {self.mesh}"
        return self.name, on, f"{on} on {self.chip}"

    def record(self) -> dict[str, Any]:
        """Return the row of the comparison's table: a value for each of `COLUMNS`.

        A refused strategy has only its name, mesh and chip, and the reason in "limited_by".
        Amounts per sample or per token are None if their number is unknown.
        """
        row: dict[str, Any] = {"strategy": self.name, "mesh": self.mesh, "chip": self.chip}
        if self.figures is None:
            return {**row, "fits": False, "limited_by": f"refused: {self.refused}"}
        return {
            **row,
            "samples": self.samples,
            "step_s": self.step_s,
            "seconds_per_sample": self.step_s / self.samples if self.samples else None,
            # A program without work takes no time, and has no rate of tokens.
            "tokens_per_s": self.tokens / self.step_s if self.tokens and self.step_s else None,
            "mfu": self.figures.mfu,
            "exposed_s": sum(self.exposed_s.values()),
            "idle_s": sum(self.idle_s.values()),
            "wire_bytes": self.figures.step.wire_bytes,
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "limited_by": repr(self.figures.limits),
        }

    def bar(self) -> StrategyBar:
        """Return the quantities that the figure shows."""
        from shardalg.show.strategy_bars import StrategyBar

        sizes = (self.peak_bytes, self.capacity_bytes)
        who = (self.name, self.mesh, self.refused)
        return StrategyBar(*who, self.fits, self.step_s, self.limits, *sizes)

    def shown(self) -> dict[str, Any]:
        """Return the row of `SHOWN` columns as text with units: 12 ms, 3.8 GB, 41 %."""
        row: dict[str, Any] = {"strategy": self.name, "mesh": self.mesh, "chip": self.chip}
        if self.figures is None:
            return {**row, "step": "refused", "fits": "no"}
        # Not known without tokens; a program without work takes no time, and has no rate.
        rate = self.tokens / self.step_s if self.tokens and self.step_s else None
        # Seconds along each set of mesh axes, such as "data 3 ms, model 1 ms"; zeros are left out.
        exposed, idle = (
            ", ".join(
                f"{axes} {seconds_text(seconds)}" for axes, seconds in by_axes.items() if seconds
            )
            for by_axes in (self.exposed_s, self.idle_s)
        )
        return {
            **row,
            "samples": self.samples or "",
            "step": seconds_text(self.step_s),
            "tokens_per_s": f"{rate:,.0f}" if rate else "",
            "mfu": f"{self.figures.mfu:.0%}",
            # Bytes and memory do not show that devices are idle, but the largest cause does.
            "largest_cause": self.figures.limits.largest,
            "exposed": exposed,
            "idle": idle,
            "peak": bytes_text(self.peak_bytes),
            "fits": "yes" if self.fits else f"no: {bytes_text(self.capacity_bytes)}",
        }

    def __repr__(self) -> str:
        if self.figures is None:
            return f"{self.name} on {self.mesh}: refused, {self.refused}"
        held = f"peak {bytes_text(self.peak_bytes)} of {bytes_text(self.capacity_bytes)}"
        return f"{self.name} on {self.mesh}: step {seconds_text(self.step_s)}, {held}"


@dataclass(frozen=True, eq=False, repr=False)
class StrategyComparison(Answer):
    """Strategies of one function, ranked: first all that fit, the fastest first.

    The order is by seconds per sample if the samples of a step are known, else by seconds per step.

    Attributes:
      rows: the strategies in their order; refused ones last.
      batches: the function with a named batch; None if plans were compared.
    """

    rows: tuple[ComparedStrategy, ...]
    batches: BatchSearch | None = None

    @staticmethod
    def of(rows: Iterable[ComparedStrategy]) -> StrategyComparison:
        """Rank strategies that are given in any order, and return their comparison."""
        return StrategyComparison(ranked(rows))

    @cached_property
    def table(self) -> Table:
        """A row per strategy in numbers: seconds, bytes, and shares."""
        return Table.from_records((row.record() for row in self.rows), COLUMNS)

    @property
    def best(self) -> ComparedStrategy:
        """The fastest strategy that fits.

        Raises:
          TableError: no strategy fits; the error names the one that needs the least memory.
        """
        # The rows are ranked: all that fit come first, the fastest of them first.
        if self.rows and self.rows[0].fits:
            return self.rows[0]
        # The nearest miss says most: the plan that needs the least memory; None without a plan.
        least = least_memory(self.rows)
        if least is None:
            reasons = "; ".join(f"{row.name}: {row.refused}" for row in self.rows)
            raise TableError(f"no strategy has a plan. {reasons}")
        raise TableError(
            f"no strategy fits. {least.name!r} on {least.mesh} needs the least memory, "
            f"{bytes_text(least.peak_bytes)} of {bytes_text(least.capacity_bytes)} per device. "
            "Take more devices or a smaller batch, or rematerialise."
        )

    def __getitem__(self, name: str) -> ComparedStrategy:
        """Return a strategy by its name: "fsdp", "fsdp on data=8", or "fsdp on data=8 on v5p".

        Raises:
          TableError: there is no such strategy, or several meshes or chips have it.
        """
        found = [row for row in self.rows if name in row.names]
        if len(found) == 1:
            return found[0]
        if found:
            # A suggested name should be of one row only, or the next look-up fails as well.
            uses = Counter(name for row in self.rows for name in row.names)
            unique = [min(row.names, key=lambda n: (uses[n], len(n))) for row in found]
            raise TableError(
                f"{name!r} is several rows: ask for one of {', '.join(map(repr, unique))}."
            )
        names = [*dict.fromkeys(row.name for row in self.rows)]
        near = get_close_matches(str(name), names, 3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(names)}."
        raise TableError(f"no strategy {name!r} was compared. {hint}")

    def pareto(self) -> StrategyComparison:
        """Return the Pareto front of time and memory: the strategies that no other one beats.

        A strategy beats another one if it needs no more time and no more peak memory, and less of
        at least one. Time is per sample if the number of samples is known, else per step. For
        example, of (1 s, 8 GB), (2 s, 4 GB) and (2 s, 9 GB), the last one is left out.
        """
        return StrategyComparison(unbeaten(self.rows))

    def by_axis(self) -> Table:
        """Return the communication along each set of mesh axes, a row per strategy and set.

        A row has the number of collectives, the bytes that a device sends, in total and over each
        kind of link, the seconds by network, and the seconds that no computation hides.
        """
        networks = ("link", "network", "dcn", "latency")
        # `sums` has no entry for a network over which nothing is sent.
        records = [
            {
                "strategy": row.name,
                "mesh": row.mesh,
                "chip": row.chip,
                "mesh_axes": axes,
                "executions": sums["executions"],
                "wire_bytes": sums["wire_bytes"],
                **{f"{name}_bytes": row.bytes_over(axes, name) for name in KINDS_OF_LINKS},
                **{f"{name}_s": sums.get(name, 0.0) for name in networks},
                "exposed_s": row.exposed_s.get(axes, 0.0),
            }
            for row in self.rows
            for axes, sums in row.by_axis().items()
        ]
        columns = ("strategy", "mesh", "chip", "mesh_axes", "executions", "wire_bytes")
        return Table.from_records(
            records,
            (
                *columns,
                *(f"{name}_bytes" for name in KINDS_OF_LINKS),
                *(f"{name}_s" for name in networks),
                "exposed_s",
            ),
        )

    def memory(self) -> Table:
        """Return a row per strategy: bytes of each class of buffers at the peak, and the capacity.

        Classes are those of `plan.memory`: parameters, optimizer state, activations, and so on.
        """
        records = []
        # Strategies may have different classes: the columns are all of them, in order of first use.
        classes: dict[str, None] = {}
        for row in self.rows:
            if row.figures is not None:
                class_bytes = {
                    f"{name}_bytes": n for name, n in row.figures.memory_by_class.items()
                }
                classes |= dict.fromkeys(class_bytes)
                place = {"strategy": row.name, "mesh": row.mesh, "chip": row.chip}
                totals = {"peak_bytes": row.peak_bytes, "capacity_bytes": row.capacity_bytes}
                records.append({**place, **class_bytes, **totals})
        columns = ("strategy", "mesh", "chip", *classes, "peak_bytes", "capacity_bytes")
        return Table.from_records(records, columns)

    def why(self, first: str, second: str) -> StrategyDifference:
        """Return the difference of step time by cause, and the collectives of each module in both.

        Raises:
          TableError: an unknown name, or a strategy that was refused (with its reason).
        """
        pair = (self[first], self[second])
        for row in pair:
            if row.plan is None:
                raise TableError(f"{row.name!r} has no plan to compare: {row.refused}")
        return StrategyDifference(*pair)

    def largest_batch(self, name: str) -> int:
        """Return the largest batch of all devices at which a strategy fits; 0 if none does.

        The function is traced once more, with a name for the leading dimension of its data
        arguments, and planned at one batch after the other (`Cost.largest_batch_that_fits`).

        Raises:
          TableError: an unknown name, a refused strategy, plans in place of a function, or data
            arguments without a common leading dimension.
        """
        row = self[name]
        if row.plan is None:
            raise TableError(f"{row.name!r} has no plan: {row.refused}")
        if self.batches is None:
            raise TableError(
                f"{name!r} has no function to plan at other batches: compare strategies of a "
                "function, sa.compare(fn, *args, strategies=...)."
            )
        return self.batches.largest(row, row.plan.options)

    def regions(self, *names: str, overlap: str | None = None, **sizes: Any) -> StrategyRegions:
        """Return which strategy is the fastest that fits, over one or two named sizes.

        Formulas are evaluated where they hold for certain; elsewhere the function is planned.
        Boundaries between regions are inequalities in the named sizes. `limits` of the result says
        where each strategy is compute-bound. Plans with named sizes leave out variants without a
        formula, such as padding blocks to equal sizes.

        An axis of a symbolic mesh is a named size, so that the number of devices varies with it. A
        topology such as "h100:64" is arranged anew for each number of devices.

        Args:
          names: named sizes or axes; their values are the hint times powers of two, 1/16 to 16.
          overlap: as of `plan.cost`; strategies that take equally long win in their order.
          sizes: the same with values of your own, `B=[8, 16, 32]`. All others have their hints.

        Raises:
          TableError: no strategy has named sizes, or a name is unknown.
          FormulaError: the overlap is a schedule, which has no formula.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> B, D = sa.dims("B D", hint=(65536, 4096))
        >>> x, w = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((B, D), (D, D)))
        >>> mesh = sa.Mesh({"X": 16}, symbolic=True)
        >>> rows = {"gather": (P("X"), P("X")), "reduce": (P(None, "X"), P("X"))}
        >>> found = sa.compare(
        ...     lambda x, w: x @ w, x, w, hardware="v5p",
        ...     strategies={name: sa.Strategy(mesh, specs) for name, specs in rows.items()})
        >>> found.regions(B=[1024, 4096, 16384]).at(B=16384)
        'gather'
        """
        from shardalg.plan.comparing.fastest_regions import regions

        return regions(self.rows, names, sizes, overlap)

    def draw(self) -> Figure:
        """Draw a bar per strategy: causes of its step's time, and a mark if it does not fit."""
        from shardalg.show.strategy_bars import draw_comparison

        return draw_comparison([row.bar() for row in self.rows])

    def page(self, path: str | Path) -> Path:
        """Write the comparison as one HTML file: conclusion, picture and tables; return its path.

        Raises:
          TableError: the path is neither text nor a `Path`.
          OSError: the folder does not exist or is not writable, or the path is a folder.
        """
        from shardalg.show.strategy_bars import write_comparison

        sections = (
            ("Ranking", self._ranking),
            ("By mesh axis", self.by_axis()),
            ("Memory at the peak", self.memory()),
        )
        bars = [row.bar() for row in self.rows]
        return write_comparison(bars, self.conclusion, sections, page_path(path))

    @property
    def conclusion(self) -> str:
        """One or two sentences: the best strategy, and how much slower the next one is.

        If no strategy fits in memory, the sentence names the one that needs the least of it.
        """
        planned = [row for row in self.rows if row.plan is not None]
        if not planned:
            return f"No strategy of {len(self.rows)} has a plan."
        # The rows are ranked: all that fit come first, so the first one stands for all.
        first = planned[0]
        if not first.fits:
            least = least_memory(planned) or first
            return (
                f"No strategy fits: {least.name} needs the least memory, "
                f"{bytes_text(least.peak_bytes)} of {bytes_text(least.capacity_bytes)} per device."
            )
        memory = f"{bytes_text(first.peak_bytes)} of {bytes_text(first.capacity_bytes)} per device"
        step = f"{seconds_text(first.step_s)} per step"
        # Steps of different batches are ranked per sample, so the sentence says the batch.
        if len({row.samples for row in planned}) > 1:
            step += f" of {first.samples:,} samples"
        text = f"Fastest that fits: {first.name} on {first.mesh}, {step}, {memory}."
        others = [row for row in planned[1:] if row.fits]
        if others:
            text += f" Next: {others[0].name} on {others[0].mesh}, "
            # A step that takes no time has no share by which another one is slower.
            if first.order:
                text += f"{max(0.0, others[0].order / first.order - 1):.0%} slower."
            else:
                text += f"{seconds_text(others[0].step_s)}."
        return text

    @property
    def _ranking(self) -> Table:
        """A row per strategy in units that people say."""
        shown = Table.from_records((row.shown() for row in self.rows), SHOWN)
        # A column in which no row has a value (tokens of a model without tokens) is left out, and
        # so are the samples if all strategies have the same batch.
        has_one_batch = len({row.samples for row in self.rows if row.plan}) < 2
        constant = {"samples"} if has_one_batch else set()
        columns = tuple(name for name in SHOWN if any(shown[name]) and name not in constant)
        return Table.from_records(iter(shown), columns)

    @property
    def _refused(self) -> list[str]:
        """Strategies without a plan, each with the reason."""
        return [f"{row.name} on {row.mesh}: {row.refused}" for row in self.rows if row.refused]

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a bar per strategy by the causes of its step's time.

        At most `MOST_ROWS` strategies have a bar; refused ones have none. The left edge is green
        if a strategy fits in memory.
        """
        shown = [row.bar() for row in self.rows if row.plan is not None][:MOST_ROWS]
        bars = []
        for row in shown:
            fits = "" if row.fits else ", does not fit"
            text = f"{seconds_text(row.step_s)}, {bytes_text(row.peak_bytes)}{fits}"
            bars.append(cause_bar(row.limits, clip(row.name), text))
        left = len(self.rows) - len(shown)
        note = f"{left} more strategies are in the table or refused." if left else ""
        conclusion, *below = self.parts()
        # The first row is the best one: if it does not fit, no strategy does.
        ok = bool(shown) and shown[0].fits
        return drawing_card(f"{conclusion}", draw_bars(bars), *below, ok=ok, note=note)

    def parts(self) -> Parts:
        """Return the conclusion, the ranked table, and the reasons of refused strategies."""
        refused = self._refused
        reserve = max((row.reserve for row in self.rows), default=0.0)
        reserve_text = "all of a device's memory counts as usable (reserve=0)"
        if reserve:
            reserve_text = f"{reserve:.0%} of a device's memory must stay free"
        # A row on a topology has its text in the column. A row with the chip's name alone assumes
        # no arrangement of chips, but links for each axis, which a sentence says.
        lone_chips = {
            row.chip: None for row in self.rows if row.figures and row.chip == row.on.chip.name
        }
        return (
            self.conclusion,
            self._ranking,
            *(f"Rows on {chip} have {OWN_LINKS}." for chip in lone_chips),
            f"Memory: {reserve_text}.",
            *(f"Refused: {r}" for r in refused),
        )


@dataclass(frozen=True, eq=False, repr=False)
class StrategyDifference(Answer):
    """The reasons why a step of one strategy takes longer than a step of another one."""

    first: ComparedStrategy
    second: ComparedStrategy

    @cached_property
    def causes(self) -> Table:
        """A row per cause of time (`Cost.limits`); the sum is the difference of the step times."""
        first, second = self.first.limits, self.second.limits
        rows = []
        # A cause may occur in one of the strategies only; it takes no time in the other one.
        for name in dict.fromkeys((*first, *second)):
            first_s, second_s = first.get(name, 0.0), second.get(name, 0.0)
            rows.append((name, first_s, second_s, second_s - first_s))
        # The largest difference first, of either sign.
        rows.sort(key=lambda row: -abs(row[3]))
        return Table(("cause", "first_s", "second_s", "difference_s"), tuple(rows))

    @cached_property
    def table(self) -> Table:
        """A row per module, kind of collective and axes whose bytes differ, the largest first."""
        first, second = self._bytes(self.first), self._bytes(self.second)
        rows = []
        # A key is (module, kind, axes). A strategy without such collectives sends nothing.
        for key in dict.fromkeys((*first, *second)):
            (first_count, first_bytes), (second_count, second_bytes) = (
                sums.get(key, (0, 0.0)) for sums in (first, second)
            )
            if (first_count, first_bytes) != (second_count, second_bytes):
                rows.append((*key, first_count, second_count, first_bytes, second_bytes))
        # By the difference of bytes, of either sign.
        rows.sort(key=lambda row: -abs(row[6] - row[5]))
        columns = ("module", "kind", "mesh_axes", "first_executions", "second_executions")
        return Table((*columns, "first_wire_bytes", "second_wire_bytes"), tuple(rows))

    @staticmethod
    def _bytes(row: ComparedStrategy) -> dict[tuple[str, str, str], tuple[int, float]]:
        """Return {(module, kind, axes): (executions, wire bytes per step)} of the collectives.

        Empty if the strategy has no plan. Bytes are those that one device sends.
        """
        from shardalg.show.tables import collectives_by_module

        plan = row.plan
        if plan is None:
            return {}
        return {
            (r["module"], r["kind"], r["mesh_axes"]): (
                int(r["executions"]),
                float(r["wire_bytes_per_step"]),
            )
            for r in collectives_by_module(plan._collectives_table)
        }

    @property
    def sentence(self) -> str:
        """Say which strategy is faster, and because of which cause and collective."""
        fast, slow = sorted((self.first, self.second), key=lambda row: row.step_s)
        # Rows of one name differ by their mesh or chip. The sentence uses the shortest form of the
        # names that tells the two rows apart.
        level = next((n for n in range(3) if fast.names[n] != slow.names[n]), 0)
        fast_name, slow_name = fast.names[level], slow.names[level]
        difference_s = slow.step_s - fast.step_s
        if not difference_s:
            return f"{self.first.name} and {self.second.name} take the same time."
        # Differences in the tables are "second minus first". The sign makes them "slow minus fast".
        sign = 1 if slow is self.second else -1
        cause = max(self.causes, key=lambda row: sign * row["difference_s"])
        loss = seconds_text(sign * cause["difference_s"])
        share = f"{difference_s / slow.step_s:.0%}"
        text = (
            f"{fast_name} is {seconds_text(difference_s)} ({share}) faster than "
            f"{slow_name} per step. {slow_name} loses {loss} more to {cause['cause']}."
        )
        return text + self.more_sent(sign)

    def more_sent(self, sign: int) -> str:
        """Return a sentence about the collective of which the slower strategy sends most more.

        Args:
          sign: 1 if the second strategy is the slower one, -1 if the first one is.
        """
        # The largest difference is the first row.
        for row in self.table:
            more = sign * (row["second_wire_bytes"] - row["first_wire_bytes"])
            if more > 0:
                return (
                    f" It sends {bytes_text(more)} more per device by {row['kind']} along "
                    f"{row['mesh_axes']} in {row['module'] or 'no module'}."
                )
        return ""

    def parts(self) -> Parts:
        """Return the sentence, the causes and the collectives that differ."""
        names = {"first": self.first.name, "second": self.second.name}
        legend = ", ".join(f"{column} = {name}" for column, name in names.items())
        rows = []
        for cause, first_s, second_s, difference in self.causes.rows:
            # Causes that cost both strategies the same explain no difference.
            if difference:
                # `seconds_text` is for amounts; the sign is written in front of it.
                change = f"{'-' if difference < 0 else ''}{seconds_text(abs(difference))}"
                rows.append((cause, seconds_text(first_s), seconds_text(second_s), change))
        shown = Table(("cause", *names, "difference"), tuple(rows))
        return (self.sentence, f"{legend}:", shown, self.table)
