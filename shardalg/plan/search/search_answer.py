"""The answer of `sa.search`: the best plan, the proved bound, and a row per mesh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError, TableError
from shardalg.plan.comparing.ranking import least_memory, ranked
from shardalg.plan.plan import Plan
from shardalg.plan.search.bound_certificate import Certificate
from shardalg.planner.propagate.strategy import PerLeaf, Strategy
from shardalg.tables import Answer, Parts, Table, bytes_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.show.strategy_bars import StrategyBar

COLUMNS = ("mesh", "step_s", "table_s", "bound_s", "peak_bytes", "fits", "note")


CLOSE = 0.005
"""Share by which the table may exceed the price of the plan without a remark."""


@dataclass(frozen=True, eq=False)
class SearchedMesh:
    """The result of the search on one mesh.

    Attributes:
      plan: the best plan that was found; None if the mesh was refused.
      step_s: seconds of the plan at the rates of the data sheet, without overlap.
      table_s: seconds of its layouts by the table of prices.
      bound_s: no layouts on this mesh take less, by the table.
      peak_bytes: peak memory of a device.
      limit_bytes: the memory budget of a device.
      certificate: the proof of the bound; None if the mesh was refused, or with a memory budget.
      refused: the reason why the mesh has no plan; "" if it has one.
      limits: seconds of each cause of the step's time (`Cost.limits`).
    """

    mesh: Mesh
    plan: Plan | None = None
    step_s: float = math.inf
    table_s: float = math.inf
    bound_s: float = 0.0
    peak_bytes: float = 0.0
    limit_bytes: float = math.inf
    certificate: Certificate | None = None
    refused: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """True if there is a plan, and it is within the memory budget."""
        return self.plan is not None and self.peak_bytes <= self.limit_bytes

    @property
    def has_figures(self) -> bool:
        """True unless the mesh was refused."""
        return self.plan is not None

    @property
    def order(self) -> float:
        """Seconds by which meshes are ranked."""
        return self.step_s

    @property
    def preference(self) -> tuple[bool, float]:
        """Key by which one plan of a mesh is preferred: the fastest that fits, or the smallest."""
        return not self.fits, self.step_s if self.fits else self.peak_bytes

    @property
    def note(self) -> str:
        """The reason why the mesh has no plan that fits; "" if it has one."""
        if self.refused:
            return f"refused: {self.refused}"
        return "" if self.fits else f"needs {bytes_text(self.peak_bytes)}"

    def __repr__(self) -> str:
        if self.plan is None:
            return f"{self.mesh!r}: {self.note}"
        more = f", {self.note}" if self.note else ""
        return f"{self.mesh!r}: {seconds_text(self.step_s)}{more}"


@dataclass(frozen=True, eq=False, repr=False)
class SearchAnswer(Answer):
    """The fastest plan of a family, with a lower bound of all its plans.

    Attributes:
      rows: the meshes, the fastest first; refused ones last.
      memory_bytes: the memory budget per device.
    """

    rows: tuple[SearchedMesh, ...]
    memory_bytes: float = math.inf

    @staticmethod
    def of(rows: Iterable[SearchedMesh], memory_bytes: float) -> SearchAnswer:
        """Rank the meshes of a search.

        Raises:
          StrategyError: no plan fits; the error names the one that needs the least memory.
        """
        found = SearchAnswer(ranked(rows), memory_bytes)
        if found.rows[0].fits:
            return found
        least = least_memory(found.rows)
        if least is None:
            # Meshes of one kind are refused for one reason, which is told once.
            reasons: dict[str, list[str]] = {}
            for row in found.rows:
                reasons.setdefault(row.refused, []).append(repr(row.mesh))
            told = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
            raise StrategyError(f"no mesh of the family has a plan. {told}")
        raise StrategyError(
            f"no plan was found within {bytes_text(memory_bytes)} per device. The smallest "
            f"peak that was found is {bytes_text(least.peak_bytes)}, on {least.mesh!r}. Take more "
            "devices or a smaller batch, or rematerialise (jax.checkpoint)."
        )

    @property
    def best(self) -> Plan:
        """The fastest plan that was found and fits."""
        plan = self.rows[0].plan
        assert plan is not None  # `of` raises if no plan fits
        return plan

    @property
    def strategy(self) -> Strategy:
        """The best plan as a strategy, with the sharding of each value by its name.

        It can be saved with a plan, printed, and planned again: `sa.plan(fn, *args, strategy=...)`
        has the shardings of the answer. Operators choose their loops anew.
        """
        graph, annotations = self.best.graph, self.best._annotations
        return Strategy(
            self.best.mesh,
            PerLeaf(annotations.arguments),
            PerLeaf(annotations.results),
            values={graph.values[value].name: layout for value, layout in annotations.values},
        )

    @property
    def step_s(self) -> float:
        """Seconds of the best plan at the rates of the data sheet, without overlap."""
        return self.rows[0].step_s

    @cached_property
    def bound_s(self) -> float:
        """Seconds that no plan of the family undercuts, by the tables of prices."""
        return min(row.bound_s for row in self.rows if not row.refused)

    @property
    def gap(self) -> float:
        """The seconds of the best plan above the bound, as a share of the bound.

        A negative gap says that the table overestimates this program: its bound is no bound of
        plans.
        """
        above = self.step_s - self.bound_s
        return above / self.bound_s if self.bound_s else (math.inf if above > 0 else 0.0)

    @cached_property
    def table(self) -> Table:
        """A row per mesh: seconds of the plan, by the table, and the bound; peak memory."""
        return Table.from_records(
            (
                {
                    "mesh": repr(row.mesh),
                    "step_s": row.step_s if row.plan else None,
                    "table_s": row.table_s if row.plan else None,
                    "bound_s": row.bound_s,
                    "peak_bytes": row.peak_bytes if row.plan else None,
                    "fits": row.fits,
                    "note": row.note,
                }
                for row in self.rows
            ),
            COLUMNS,
        )

    @property
    def sentence(self) -> str:
        """The best plan, its seconds, the bound and the gap, in words."""
        best = self.rows[0]
        within = ""
        if self.memory_bytes < math.inf:
            within = f" that fit in {bytes_text(self.memory_bytes)}"
        bound = (
            f"By the table of prices no layouts take less than {seconds_text(self.bound_s)}: the "
            f"gap is {self.gap:.2%}."
        )
        if self.gap < -CLOSE:
            bound = (
                f"The table overestimates this program by {-self.gap:.0%}, so that its bound says "
                "nothing: other layouts can be faster. Compare with sa.compare."
            )
        return (
            f"Fastest of {len(self.rows)} meshes with layouts{within}: {best.mesh!r}, "
            f"{seconds_text(best.step_s)} per step at the rates of the data sheet without overlap, "
            f"peak {bytes_text(best.peak_bytes)}. {bound} Equal layers were decided alike."
        )

    def draw(self) -> Figure:
        """Draw a bar per mesh: the causes of its step's time; what does not fit is marked."""
        from shardalg.show.strategy_bars import draw_comparison

        return draw_comparison(self._bars)

    def page(self, path: str | Path) -> Path:
        """Write the answer as one HTML file: conclusion, picture and tables; return its path.

        Raises:
          TableError: the path is neither text nor a `Path`.
          OSError: the folder does not exist or is not writable, or the path is a folder.
        """
        from shardalg.show.strategy_bars import write_comparison

        if not isinstance(path, str | Path):
            raise TableError(f"page() writes a file, and its path is {path!r:.60}: give text.")
        found = self.best.shardings()[["value", "global_shape", "sharding", "local_shape"]]
        layouts = Table(tuple(found.columns), tuple(map(tuple, found.values.tolist())))
        sections = (("Meshes", self.table), ("Layouts of the fastest plan", layouts))
        return write_comparison(
            self._bars, self.sentence, sections, Path(path), title="Fastest layouts"
        )

    @property
    def _bars(self) -> list[StrategyBar]:
        """A bar per mesh for the picture."""
        from shardalg.show.strategy_bars import StrategyBar

        return [
            StrategyBar(
                ", ".join(f"{name}={size}" for name, size in row.mesh.axes),
                *("", row.refused, row.fits, row.step_s, row.limits),
                *(row.peak_bytes, row.limit_bytes),
            )
            for row in self.rows
        ]

    def parts(self) -> Parts:
        """Return the sentence and the table."""
        return self.sentence, self.table
