"""Points of a sweep side by side: meshes, policies of rematerialisation, and named sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.errors import TableError
from shardalg.graph.tracing.remat import check_policy, policy_text
from shardalg.plan.comparing.given import mesh_text, meshes_of, page_path
from shardalg.plan.comparing.ranking import least_memory, ranked, unbeaten
from shardalg.plan.comparing.step_figures import StepFigures
from shardalg.tables import Answer, Parts, Table, bytes_text, counted, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.plan.plan import Plan
    from shardalg.show.sweep_points import SweepDot

FORMULA, PLAN = "formula", "plan"
COLUMNS = (
    "source",
    "step_s",
    "seconds_per_sample",
    "wire_bytes",
    "peak_bytes",
    "capacity_bytes",
    "fits",
    "refused",
)
MOST_SHOWN = 20
"""Rows of the printed table: the best ones."""


@dataclass(frozen=True, eq=False)
class SweptPoint:
    """One point of a sweep: its figures, or the reason why there are none.

    Attributes:
      mesh: the axis sizes, as text.
      remat: the policy of rematerialisation, as text; "as written" if it was not changed.
      sizes: the swept sizes.
      figures: seconds and bytes of a step; None if the point is refused or was not finished.
      source: "formula" if formulas were evaluated, "plan" if a plan was made; "" without figures.
      refused: the reason why there are no figures; "" otherwise.
      capacity_bytes: bytes of a device that a step may use.
      samples: samples of a step of all devices; None if unknown.
    """

    mesh: str
    remat: str
    sizes: Mapping[str, int]
    figures: StepFigures | None
    source: str
    refused: str
    capacity_bytes: float
    samples: int | None
    _make: Callable[[], Plan]

    @cached_property
    def plan(self) -> Plan:
        """The plan at this point, which is made on first use.

        Raises:
          TableError: the point is refused, with its reason.
        """
        if self.refused:
            raise TableError(f"{self.name} has no plan: {self.refused}")
        return self._make()

    @property
    def name(self) -> str:
        """The mesh, the policy and the swept sizes, as text."""
        sizes = [f"{name}={size}" for name, size in self.sizes.items()]
        remat = [] if self.remat == "as written" else [f"remat {self.remat}"]
        return ", ".join([self.mesh, *sizes, *remat])

    @property
    def has_figures(self) -> bool:
        """True unless the point is refused or was not finished."""
        return self.figures is not None

    @property
    def step_s(self) -> float:
        """Seconds of a step; infinite without figures."""
        return float("inf") if self.figures is None else self.figures.step_s

    @property
    def order(self) -> float:
        """Seconds by which points are ranked: per sample if samples are known, or per step."""
        return self.step_s / (self.samples or 1)

    @property
    def peak_bytes(self) -> float:
        """Peak memory of a device in bytes; infinite without figures."""
        return float("inf") if self.figures is None else self.figures.peak_bytes

    @property
    def fits(self) -> bool:
        """True if there are figures, and the peak is within the capacity."""
        return self.peak_bytes <= self.capacity_bytes

    def dot(self) -> SweepDot:
        """Return the quantities that the figure shows."""
        from shardalg.show.sweep_points import SweepDot

        sizes = (self.order, self.peak_bytes, self.capacity_bytes)
        return SweepDot(self.name, self.remat, *sizes, self.fits)

    def record(self) -> dict[str, Any]:
        """Return the row of the table in numbers: mesh, policy, sizes, source, seconds, bytes.

        A point without figures has only the reason, in "refused".
        """
        row = {"mesh": self.mesh, "remat": self.remat, **self.sizes, "source": self.source}
        if self.figures is None:
            return {**row, "fits": False, "refused": self.refused}
        return {
            **row,
            "step_s": self.step_s,
            "seconds_per_sample": self.order if self.samples else None,
            "wire_bytes": self.figures.wire_bytes,
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "refused": "",
        }

    def shown(self) -> dict[str, Any]:
        """Return the row of the printed table as text with units: 12 ms, 3.8 GB.

        A point without figures has no amounts. "fits" names the capacity if the point does not fit.
        """
        row = {"mesh": self.mesh, "remat": self.remat, **self.sizes, "source": self.source}
        if self.figures is None:
            return {**row, "step": "none", "fits": "no"}
        per_sample = seconds_text(self.order) if self.samples else ""
        return {
            **row,
            "step": seconds_text(self.step_s),
            "per_sample": per_sample,
            "sent": bytes_text(self.figures.wire_bytes),
            "peak": bytes_text(self.peak_bytes),
            "fits": "yes" if self.fits else f"no: {bytes_text(self.capacity_bytes)}",
        }

    def __repr__(self) -> str:
        if self.figures is None:
            return f"{self.name}: {self.refused}"
        held = f"peak {bytes_text(self.peak_bytes)} of {bytes_text(self.capacity_bytes)}"
        return f"{self.name}: step {seconds_text(self.step_s)}, {held} ({self.source})"


@dataclass(frozen=True, eq=False, repr=False)
class SweepComparison(Answer):
    """Points of a sweep, ranked: those that fit first, the fastest first.

    The order is by seconds per sample if the samples of a step are known, else by seconds per step.

    Attributes:
      rows: the points in their order; those without figures last.
      machine: text that names the chip with its links, or the topology.
      unfinished: the number of points that an interruption left without figures.
    """

    rows: tuple[SweptPoint, ...]
    machine: str
    unfinished: int = 0

    @staticmethod
    def of(rows: Iterable[SweptPoint], machine: str, unfinished: int = 0) -> SweepComparison:
        """Rank points that are given in any order, and return their comparison."""
        return SweepComparison(ranked(rows), machine, unfinished)

    @cached_property
    def table(self) -> Table:
        """A row per point in numbers: mesh, policy, sizes, source, seconds, bytes."""
        return Table.from_records(
            (row.record() for row in self.rows), ("mesh", "remat", *self._sizes, *COLUMNS)
        )

    @property
    def _sizes(self) -> tuple[str, ...]:
        """The names of the swept sizes."""
        return tuple(self.rows[0].sizes) if self.rows else ()

    @property
    def best(self) -> SweptPoint:
        """The fastest point that fits.

        Raises:
          TableError: no point fits; the error names the one that needs the least memory.
        """
        # The rows are ranked: all that fit come first, the fastest of them first.
        if self.rows[0].fits:
            return self.rows[0]
        # The nearest miss says most: the point that needs the least memory; None without figures.
        least = least_memory(self.rows)
        if least is None:
            raise TableError(f"no point has a plan. {self.rows[0].name}: {self.rows[0].refused}")
        raise TableError(
            f"no point fits. {least.name} needs the least memory, {bytes_text(least.peak_bytes)} "
            f"of {bytes_text(least.capacity_bytes)} per device. Sweep more devices, a smaller "
            "batch, or remat."
        )

    def at(self, **values: Any) -> SweptPoint:
        """Return the point with these values: sizes, mesh={"data": 4, "model": 2}, remat="...".

        Meshes and policies may be given as to `Plan.sweep`, or as texts of the table.

        Raises:
          TableError: no point or several ones have them, or a name is unknown. StrategyError: the
            mesh is none.
        """
        known = ("mesh", "remat", *self._sizes)
        wrong = [name for name in values if name not in known]
        if wrong:
            raise TableError(f"{', '.join(wrong)} was not swept: there are {', '.join(known)}.")
        # Rows have meshes and policies as text, so values of other types become this text.
        if not isinstance(mesh := values.get("mesh", ""), str):
            values["mesh"] = ", ".join(map(mesh_text, meshes_of(mesh, what="mesh")))
        if not isinstance(remat := values.get("remat", ""), str):
            values["remat"] = policy_text(None if remat is None else check_policy(remat))

        def value(row: SweptPoint, name: str) -> Any:
            """Return the value of a point that has this name."""
            return row.sizes[name] if name in row.sizes else getattr(row, name)

        found = [row for row in self.rows if all(value(row, n) == v for n, v in values.items())]
        if len(found) != 1:
            request = ", ".join(f"{name}={value!r}" for name, value in values.items())
            swept_values = {
                name: sorted({value(row, name) for row in self.rows}) for name in values
            }
            # Only names whose value no point has; else each value occurs, but not together.
            hints = [
                f"{name} has {', '.join(map(str, swept_values[name][:MOST_SHOWN]))}"
                for name, given in values.items()
                if given not in swept_values[name]
            ]
            raise TableError(
                f"{counted(len(found), 'point')} of {len(self.rows)} have {request or 'no value'}: "
                f"{'; '.join(hints) or '`.table` lists all points'}."
            )
        return found[0]

    def pareto(self) -> SweepComparison:
        """Return the Pareto front of time and memory: the points that no other one beats.

        A point beats another one if it needs no more time and no more memory, and less of at least
        one. For example, of (1 s, 8 GB), (2 s, 4 GB) and (2 s, 9 GB), the last one is left out.
        """
        return SweepComparison(unbeaten(self.rows), self.machine)

    def draw(self) -> Figure:
        """Draw time against memory, a dot per point, and the line of those that nothing beats."""
        from shardalg.show.sweep_points import draw_sweep

        dots, best = ([row.dot() for row in rows] for rows in (self.rows, self.pareto().rows))
        return draw_sweep(dots, best, self._unit)

    def page(self, path: str | Path) -> Path:
        """Write the sweep as one HTML file: conclusion, picture and table; return its path.

        Raises:
          TableError: the path is neither text nor a `Path`.
          OSError: the folder does not exist or is not writable, or the path is a folder.
        """
        from shardalg.show.sweep_points import write_sweep

        sections = (
            ("Not beaten in both time and memory", self.pareto()._ranking),
            ("All points", self._ranking),
        )
        return write_sweep(self.draw(), self.conclusion, sections, page_path(path))

    @property
    def _unit(self) -> str:
        """The unit of the ranking."""
        return "sample" if any(row.samples for row in self.rows) else "step"

    @property
    def conclusion(self) -> str:
        """One or two sentences: the best point, how many fit, and what was not finished."""
        planned = [row for row in self.rows if row.figures is not None]
        # Figures are from formulas, or from a plan that was made at the point.
        num_formulas = sum(row.source == FORMULA for row in planned)
        num_plans = sum(row.source == PLAN for row in planned)
        counts = f"{num_formulas:,} by formula and {num_plans:,} by a plan"
        text = f"{counted(len(self.rows), 'point')} on {self.machine}: {counts}."
        if self.unfinished:
            text += f" Interrupted: {counted(self.unfinished, 'point')} not finished."
        if not planned:
            return f"{text} No point has a plan."
        num_fitting = sum(row.fits for row in planned)
        if not num_fitting:
            least = least_memory(planned) or planned[0]
            memory = f"{bytes_text(least.peak_bytes)} of {bytes_text(least.capacity_bytes)}"
            return (
                f"{text} No point fits: {least.name} needs the least memory, {memory} per device."
            )
        # The rows are ranked: the first one is the fastest that fits.
        best = self.rows[0]
        memory = f"{bytes_text(best.peak_bytes)} of {bytes_text(best.capacity_bytes)} per device"
        time = f"{seconds_text(best.step_s)} per step"
        if best.samples:
            time += f", {seconds_text(best.order)} per sample"
        fastest = f"Fastest per {self._unit}: {best.name}, {time}, {memory}."
        return f"{text} {num_fitting:,} fit. {fastest}"

    @property
    def _ranking(self) -> Table:
        """A row per point in units that people say."""
        names = (*self._sizes, "source", "step", "per_sample", "sent", "peak", "fits")
        columns = ("mesh", "remat", *names)
        shown = Table.from_records((row.shown() for row in self.rows), columns)
        # A column in which no row has a value, or all rows are as written, is left out.
        used = [n for n in columns if any(shown[n]) and {*shown[n]} != {"as written"}]
        return Table.from_records(iter(shown), used)

    def parts(self) -> Parts:
        """Return the conclusion, the best points, and the reasons of those without figures.

        At most `MOST_SHOWN` points and five different reasons are included.
        """
        ranking = self._ranking
        best = Table(ranking.columns, ranking.rows[:MOST_SHOWN])
        more = len(ranking.rows) - len(best.rows)
        # Each reason occurs once. Reversed, so that its first point is the one that stays.
        reasons = {row.refused: row for row in reversed(self.rows) if row.refused}
        return (
            self.conclusion,
            best,
            *([f"and {counted(more, 'point')} more: `.table` has all."] if more else []),
            *(f"{row.name}: {reason}" for reason, row in list(reasons.items())[:5]),
        )
