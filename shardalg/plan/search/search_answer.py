"""The answer of `sa.search`: the best plan, the proved bound, and a row per mesh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.topology import arranged
from shardalg.errors import BudgetError, StrategyError, TableError
from shardalg.plan.comparing.compared import ComparedStrategy
from shardalg.plan.comparing.given import page_path
from shardalg.plan.comparing.largest_batch import BatchSearch
from shardalg.plan.comparing.ranking import least_memory, ranked, unbeaten
from shardalg.plan.comparing.step_figures import StrategyFigures
from shardalg.plan.plan import Plan, plan_of
from shardalg.plan.planning import planned_strategy
from shardalg.plan.search.bound_certificate import Certificate
from shardalg.plan.search.mesh_search import MeshFigures, MeshSearch
from shardalg.plan.search.search_difference import SearchDifference
from shardalg.plan.strategies.derive.deriving import spec_trees
from shardalg.plan.strategies.recipes import Recipe
from shardalg.planner.propagate.strategy import PerLeaf, Strategy
from shardalg.tables import Answer, Parts, Table, bytes_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.plan.rules.logical_rules import LogicalRules
    from shardalg.show.strategy_bars import StrategyBar

COLUMNS = ("mesh", "step_s", "table_s", "bound_s", "peak_bytes", "fits", "note")


CLOSE = 0.005
"""Share by which the table may exceed the price of the plan without a remark."""


@dataclass(frozen=True, eq=False)
class SearchedMesh:
    """The result of the search on one mesh.

    Attributes:
      search: the inputs of the search.
      figures: the solution in numbers; None if the mesh was refused.
      refused: the reason why the mesh has no plan; "" if it has one.
      made: the plan if it exists already.
    """

    mesh: Mesh
    search: MeshSearch | None = None
    figures: MeshFigures | None = None
    refused: str = ""
    made: Plan | None = None

    @cached_property
    def plan(self) -> Plan | None:
        """The best plan that was found; None if the mesh was refused."""
        if self.made is None and self.figures is not None and self.search is not None:
            return self.search.plan(self.figures.labels)
        return self.made

    @cached_property
    def certificate(self) -> Certificate | None:
        """The proof of a bound; None if the mesh was refused.

        With a memory budget that decides, the costs have a price per byte of the arguments.
        """
        if self.figures is None or self.search is None:
            return None
        return self.search.certificate(self.figures)

    @property
    def has_figures(self) -> bool:
        """True unless the mesh was refused."""
        return self.figures is not None

    @property
    def step_s(self) -> float:
        """Seconds of the plan at the rates of the data sheet, without overlap."""
        return math.inf if self.figures is None else self.figures.step_s

    @property
    def table_s(self) -> float:
        """Seconds of its layouts by the table of prices."""
        return math.inf if self.figures is None else self.figures.table_s

    @property
    def bound_s(self) -> float:
        """Seconds that no layouts on this mesh undercut, by the table."""
        return 0.0 if self.figures is None else self.figures.bound_s

    @property
    def peak_bytes(self) -> float:
        """Peak memory of a device."""
        return 0.0 if self.figures is None else self.figures.peak_bytes

    @property
    def limit_bytes(self) -> float:
        """The memory budget of a device."""
        return math.inf if self.search is None else self.search.budget

    @property
    def fits(self) -> bool:
        """True if there is a plan, and it is within the memory budget."""
        return self.has_figures and self.peak_bytes <= self.limit_bytes

    @property
    def order(self) -> float:
        """Seconds by which meshes are ranked."""
        return self.step_s

    @property
    def preference(self) -> tuple[bool, float]:
        """Key by which plans are preferred: the fastest that fits, or the smallest."""
        return (
            (True, math.inf) if self.figures is None else self.figures.preference(self.limit_bytes)
        )

    @property
    def note(self) -> str:
        """The reason why the mesh has no plan that fits; "" if it has one."""
        if self.refused:
            return f"refused: {self.refused}"
        stopped = "" if self.figures is None else self.figures.stopped
        if self.fits:
            return stopped
        return f"needs {bytes_text(self.peak_bytes)}" + (f", {stopped}" if stopped else "")

    def __repr__(self) -> str:
        if not self.has_figures:
            return f"{self.mesh!r}: {self.note}"
        more = f", {self.note}" if self.note else ""
        return f"{self.mesh!r}: {seconds_text(self.step_s)}{more}"


@dataclass(frozen=True, eq=False, repr=False)
class SearchAnswer(Answer):
    """The fastest plan of a family, with a lower bound of all its plans.

    Attributes:
      rows: the meshes, the fastest first; refused ones last.
      memory_bytes: the memory budget per device.
      unfinished: the meshes that the end of the time or an interruption left out.
      batches: the function with a named batch.
    """

    rows: tuple[SearchedMesh, ...]
    memory_bytes: float = math.inf
    unfinished: tuple[Mesh, ...] = ()
    batches: BatchSearch | None = None

    @staticmethod
    def of(
        rows: Iterable[SearchedMesh], memory_bytes: float, unfinished: Iterable[Mesh] = ()
    ) -> SearchAnswer:
        """Rank the meshes of a search.

        Raises:
          StrategyError: no mesh has a plan.
          BudgetError: no plan fits; the error has the plan that needs the least memory.
        """
        found = SearchAnswer(ranked(rows), memory_bytes, tuple(unfinished))
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
        raise BudgetError(
            f"no plan was found within {bytes_text(memory_bytes)} per device. The smallest budget "
            f"with a plan that was found is {bytes_text(least.peak_bytes)}, on {least.mesh!r}: it "
            f"takes {seconds_text(least.step_s)} per step, and is the `plan` of this error. Give "
            "memory_bytes= at least that, take more devices or a smaller batch, or rematerialise "
            "(jax.checkpoint).",
            least.peak_bytes,
            least.plan,
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
        """Seconds that no plan of the searched meshes undercuts, by the tables of prices."""
        return min(row.bound_s for row in self.rows if row.has_figures)

    @property
    def memory_price_s_per_gb(self) -> float:
        """Seconds of a step that one more GB per device would save; 0 if memory does not decide.

        It is the slope between the answer and the next faster solution, which needs more memory.
        """
        figures = self.rows[0].figures
        return 0.0 if figures is None else figures.s_per_gb

    @property
    def runner_up(self) -> SearchedMesh | None:
        """The fastest plan that fits on another mesh; None if there is none."""
        return next((row for row in self.rows[1:] if row.fits), None)

    @cached_property
    def refused(self) -> Table:
        """A row per mesh and reason: the number of candidates that were left out."""
        rows = []
        for row in self.rows:
            mesh = repr(row.mesh)
            if row.refused:
                rows.append((mesh, "mesh", row.refused, 1))
            elif row.has_figures and not row.fits:
                rows.append((mesh, "mesh", "no plan fits", 1))
            rows += [(mesh, *each) for each in (row.figures.refusals if row.figures else ())]
        rows += [(repr(mesh), "mesh", "not searched", 1) for mesh in self.unfinished]
        return Table(("mesh", "candidates", "reason", "count"), tuple(rows))

    @property
    def largest_batch(self) -> int:
        """The largest batch of all devices at which the layouts of the best plan fit; 0 if none.

        The function is traced once more, with a name for the leading dimension of its data
        arguments. Values between the arguments and results are completed anew.

        Raises:
          TableError: the data arguments have no common leading dimension, or roles are not known.
        """
        if self.batches is None:
            raise TableError("the answer has no function to plan at other batches.")
        compared = self._compared(self.best)
        assert compared.figures is not None  # it has a plan
        # The budget takes the place of the chip's memory.
        room = min(self.memory_bytes, compared.figures.memory_bytes)
        figures = replace(compared.figures, memory_bytes=room)
        row = replace(compared, strategy=self._border, figures=figures)
        return self.batches.largest(row, self.best.options)

    @property
    def _border(self) -> Strategy:
        """The specs of the best plan's arguments and results, as trees of the function."""
        annotations, traced = self.best._annotations, self.best._traced
        specs = (
            [None if sharding is None else sharding.to_spec() for sharding in side]
            for side in (annotations.arguments, annotations.results)
        )
        return Strategy(self.best.mesh, *spec_trees(traced, *specs))

    def rules(self, arrays: Any, **more: Any) -> LogicalRules:
        """Return the logical-axis rules that give the layouts of the best plan (`sa.rules_of`).

        Args:
          arrays, more: as of `sa.rules_of`.

        Raises:
          StrategyError: no rules give the layouts.
        """
        from shardalg.plan.rules.rule_strategies import rules_of

        return rules_of(self._border, arrays, **more)

    def jit_kwargs(self, devices: Sequence[Any] | None = None) -> dict[str, Any]:
        """Return the shardings of the best plan as arguments of `jax.jit` (`Plan.jit_kwargs`)."""
        return self.best.jit_kwargs(devices)

    def pareto(self, solves: int = 8) -> SearchAnswer:
        """Return plans of the best mesh that no other one beats in both time and memory.

        The table is solved at several prices of memory. A solution between two others is found if
        it costs less than both at one price (the lower convex hull).

        Args:
          solves: number of solutions, at least 2. Each takes as long as the last step of a search.

        Raises:
          StrategyError: `solves` is no whole number from 2 on.
        """
        if type(solves) is not int or solves < 2:
            raise StrategyError(f"solves is {solves!r:.40}: give a whole number from 2 on.")
        search = self.rows[0].search
        assert search is not None  # only rows without a plan have none
        free = replace(search, budget=math.inf)
        rows: dict[tuple[float, float], SearchedMesh] = {}
        for figures, plan in free.frontier(solves):
            key = figures.step_s, figures.peak_bytes
            rows.setdefault(key, SearchedMesh(search.mesh, free, figures, made=plan))
        return replace(self, rows=unbeaten([*rows.values()]), memory_bytes=math.inf, unfinished=())

    def why_not(self, other: Any) -> SearchDifference:
        """Return how much slower or faster another strategy or plan is, and why.

        Args:
          other: a `Plan` of the function; or a `Strategy`, or a recipe on the axes of the best
            mesh, which is planned for the function.

        Raises:
          StrategyError: `other` is none of these, or does not fit the function.
        """
        search, best = self.rows[0].search, self.best
        assert search is not None  # only rows without a plan have none
        if isinstance(other, Recipe):
            other = other.strategy_of(search.traced, best.mesh)
        if isinstance(other, Strategy):
            traced = search.traced.on(other.mesh, before=best.mesh)
            other = plan_of(*planned_strategy(traced, other, search.options))
        if not isinstance(other, Plan):
            raise StrategyError(f"{other!r:.60} is no strategy: give a Strategy, recipe or Plan.")
        known = (*(row.mesh for row in self.rows), *self.unfinished)
        pair = (self._compared(best), self._compared(other, "the given strategy"))
        return SearchDifference(*pair, other.mesh in known, self.bound_s)

    def _compared(self, plan: Plan, name: str = "the best plan") -> ComparedStrategy:
        """Return a plan as the row of a comparison, at the rates of the search."""
        search = self.rows[0].search
        assert search is not None  # only rows without a plan have none
        place = search.place if plan.mesh == search.mesh else arranged(search.place.chip, plan.mesh)
        on = place.on(DATASHEET)
        figures = StrategyFigures.of(plan, on, overlap="none")
        texts = ", ".join(f"{axis}={size}" for axis, size in plan.mesh.axes), repr(place)
        return ComparedStrategy(name, *texts, plan, figures, on=on, strategy=None)

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
                    "step_s": row.step_s if row.has_figures else None,
                    "table_s": row.table_s if row.has_figures else None,
                    "bound_s": row.bound_s,
                    "peak_bytes": row.peak_bytes if row.has_figures else None,
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
        if self.unfinished:
            bound += f" Not searched: {', '.join(map(repr, self.unfinished))}."
        if self.gap < -CLOSE:
            bound = (
                f"The table overestimates this program by {-self.gap:.0%}, so that its bound says "
                "nothing: other layouts can be faster. Compare with sa.compare."
            )
        if self.memory_price_s_per_gb:
            price = seconds_text(self.memory_price_s_per_gb)
            bound += f" One more GB per device would save {price} per step."
        return (
            f"Fastest of {len(self.rows)} meshes with layouts{within}: {best.mesh!r}, "
            f"{seconds_text(best.step_s)} per step at the rates of the data sheet without overlap, "
            f"peak {bytes_text(best.peak_bytes)}. {bound} Equal layers were decided alike."
        )

    def draw(self) -> Figure:
        """Draw a bar per mesh: causes of its step's time, and a mark if it does not fit."""
        from shardalg.show.strategy_bars import draw_comparison

        return draw_comparison(self._bars)

    def page(self, path: str | Path) -> Path:
        """Write the answer as one HTML file: conclusion, picture and tables; return its path.

        Raises:
          TableError: the path is neither text nor a `Path`.
          OSError: the folder does not exist or is not writable, or the path is a folder.
        """
        from shardalg.show.strategy_bars import write_comparison

        found = self.best.shardings()[["value", "global_shape", "sharding", "local_shape"]]
        layouts = Table(tuple(found.columns), tuple(map(tuple, found.values.tolist())))
        sections = (("Meshes", self.table), ("Layouts of the fastest plan", layouts))
        return write_comparison(
            self._bars, self.sentence, sections, page_path(path), title="Fastest layouts"
        )

    @property
    def _bars(self) -> list[StrategyBar]:
        """A bar per mesh for the picture."""
        from shardalg.show.strategy_bars import StrategyBar

        return [
            StrategyBar(
                ", ".join(f"{name}={size}" for name, size in row.mesh.axes),
                *("", row.refused, row.fits, row.step_s, row.figures.limits if row.figures else {}),
                *(row.peak_bytes, row.limit_bytes),
            )
            for row in self.rows
        ]

    def parts(self) -> Parts:
        """Return the sentence and the table."""
        return self.sentence, self.table
