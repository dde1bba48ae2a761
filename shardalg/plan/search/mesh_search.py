"""The search on one mesh: its table, its solutions at several prices of memory, and its figures."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from shardalg.algebra.mesh import Mesh
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.topology import Machine, arranged, machine
from shardalg.errors import CertificateError, ShardalgError
from shardalg.graph.serial import graph_hash
from shardalg.plan import plan_file
from shardalg.plan.comparing.jobs import reason
from shardalg.plan.plan import Plan, plan_of
from shardalg.plan.search.bound_certificate import Certificate, table_content
from shardalg.plan.search.cost_table import CostTable
from shardalg.plan.search.memory_terms import Terms, memory_terms, with_memory_price
from shardalg.plan.search.minimising.message_passing import CAP
from shardalg.plan.search.minimising.minimum import Clock, Minimum, minimum
from shardalg.plan.search.prices.layout_moves import PICOSECONDS
from shardalg.plan.search.prices.message_chains import message_chains
from shardalg.plan.search.winner import winner
from shardalg.plan.strategies.derive.argument_roles import next_values
from shardalg.plan.strategies.derive.deriving import check_wishes
from shardalg.plan.strategies.derive.recipe_parts import Wishes
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.strategy import Strategy, resolve
from shardalg.planner.traced import Traced

OPEN = 0.002
"""Relative gap above which latencies are priced again, by the all-reduces of the solution."""
ROUNDS = 2
"""Number of times that latencies are priced again."""
MOST_PRICES = 16
"""Number of prices of memory that are tried to meet a budget."""
STEP = 8.0
"""Ratio of two prices while no plan meets the budget."""
SAMPLE_PASSES = 3
"""Passes over all variables in which the labels beside a sampled one are improved."""
GB = 1e9
DOMINATED = ("layouts and ways", "another one is never slower")
"""Kind and reason of the candidates that the exact reduction removes."""


@dataclass(frozen=True)
class MeshFigures:
    """The result of the search on one mesh, in numbers alone.

    Attributes:
      labels: the solution, one label per variable of the table.
      step_s: seconds of the plan at the rates of the data sheet, without overlap.
      table_s: seconds of its layouts by the table of prices.
      bound_s: no layouts on this mesh take less, by the table.
      peak_bytes: peak memory of a device.
      limits: seconds of each cause of the step's time (`Cost.limits`).
      refusals: number of candidates that were left out, by kind and reason.
      price: picoseconds per byte of the arguments at which the bound was proved; 0 if memory does
        not decide.
      s_per_gb: seconds that a step would save per additional GB of each device.
      stopped: why the search ended before its proof: "", "interrupted" or "out of time".
      priced: the solutions whose all-reduces pay latencies in the table that proves the bound
        (`message_chains`); () if those of one path of the graph do.
    """

    labels: tuple[int, ...]
    step_s: float
    table_s: float
    bound_s: float
    peak_bytes: float
    limits: Mapping[str, float] = field(default_factory=dict)
    refusals: tuple[tuple[str, str, int], ...] = ()
    price: float = 0.0
    s_per_gb: float = 0.0
    stopped: str = ""
    priced: tuple[tuple[int, ...], ...] = ()

    def preference(self, budget: float) -> tuple[bool, float]:
        """Return the key by which solutions of a mesh are preferred: fast if it fits, or small."""
        fits = self.peak_bytes <= budget
        return not fits, self.step_s if fits else self.peak_bytes


@dataclass(frozen=True, eq=False)
class MeshSearch:
    """All inputs of the search on one mesh.

    Attributes:
      place: the chips under the mesh.
      budget: the largest peak memory of a device, in bytes.
      wishes: pins and bans of arguments.
      priced: as in `MeshFigures`.
    """

    traced: Traced
    mesh: Mesh
    place: Machine
    options: Options
    budget: float
    wishes: Wishes = field(default=Wishes())
    priced: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def table(self) -> CostTable:
        """The table of prices.

        Raises:
          StrategyError: a pin or ban does not fit the function or the mesh, or an operator has too
            many ways.
        """
        graph = self.traced.graph
        check_wishes(graph, self.wishes, self.mesh)
        tied = {
            graph.results[result]: graph.arguments[argument]
            for result, argument in next_values(graph).items()
        }
        place = self.place.on(DATASHEET)
        made = CostTable.of(graph, self.mesh, place, tied, self.wishes, keeps=self.keeps)
        if not self.priced:
            return made
        programs = [
            winner(made, labels, self.traced, self.options).program for labels in self.priced
        ]
        return made.priced_again(message_chains(programs, graph))

    @property
    def keeps(self) -> bool:
        """Whether all phases share the gathered copies of a value."""
        return self.options.keeping(self.traced.roles) is True

    @cached_property
    def again(self) -> dict[tuple[tuple[int, ...], ...], MeshSearch]:
        """The same search with latencies of the all-reduces of some solutions."""
        return {}

    def priced_by(self, solutions: tuple[tuple[int, ...], ...]) -> MeshSearch:
        """Return the same search with latencies of the all-reduces of some solutions."""
        if solutions == self.priced:
            return self
        if solutions not in self.again:
            self.again[solutions] = replace(self, priced=solutions)
        return self.again[solutions]

    @cached_property
    def terms(self) -> Terms:
        """The bytes of the arguments per label."""
        return memory_terms(self.table)

    @cached_property
    def solved(self) -> dict[float, Minimum]:
        """The minimum of the table at each price of memory that was tried."""
        return {}

    def forget(self) -> None:
        """Free the memory of the table and its solutions, which are made again when needed."""
        for name in ("table", "terms", "solved", "again"):
            self.__dict__.pop(name, None)

    def at_price(self, price: float, clock: Clock | None = None) -> Minimum:
        """Return the minimum at a price of memory in picoseconds per byte."""
        if price not in self.solved:
            factors = self.table.factors
            if price:
                factors = with_memory_price(factors, self.terms, price)
            self.solved[price] = minimum(factors, clock or Clock())
        return self.solved[price]

    def plan(self, labels: Sequence[int]) -> Plan:
        """Return the plan of a solution."""
        return plan_of(winner(self.table, labels, self.traced, self.options), self.options)

    def argument_bytes(self, labels: Sequence[int]) -> float:
        """Return the bytes of all arguments on a device."""
        return sum(float(sizes[labels[variable]]) for variable, sizes in self.terms.items())

    def figures(self, price: float, clock: Clock | None = None) -> tuple[MeshFigures, Plan]:
        """Return the figures of the minimum at a price of memory, and its plan.

        Their bound holds for all layouts whose arguments take at most as many bytes.
        """
        found = self.at_price(price, clock)
        plan = self.plan(found.labels)
        # The table has the rates of the data sheet, and one instruction after the other.
        cost = plan.cost(self.place.on(DATASHEET), overlap="none")
        held = self.argument_bytes(found.labels) if price else 0.0
        dominated = sum(len(step) == 3 for step in found.steps)
        refused = {**self.table.refused, DOMINATED: dominated}
        made = MeshFigures(
            found.labels,
            step_s=float(cost.step_time_s),
            table_s=self.table.factors.total(found.labels) / PICOSECONDS,
            bound_s=max(0.0, found.bound_ps - price * held) / PICOSECONDS,
            peak_bytes=float(plan.cost(self.place).peak_memory_bytes),
            limits=dict(cost.limits.seconds),
            refusals=tuple((*key, count) for key, count in refused.items() if count),
            price=price,
            stopped=found.stopped,
            priced=self.priced,
        )
        return made, plan

    def run(self, clock: Clock | None = None) -> tuple[MeshFigures, Plan]:
        """Return the figures and the plan of the fastest solution within the budget.

        If the fastest plan of all does not fit, a price per byte of the arguments is added to the
        costs (a Lagrange multiplier). It is raised until a plan fits. Then each next price is the
        slope between the fastest solution that fits and its faster neighbour. At this price both
        cost the same, so that a better solution between them is found if there is one.
        """
        clock = clock or Clock()
        tried = [self._closed(clock)]
        large, small = tried[0][0], None
        if large.peak_bytes <= self.budget or large.stopped:
            return tried[0]
        # At this price the memory of the first plan would cost as much as its step.
        price = max(large.table_s, 1e-12) * PICOSECONDS / large.peak_bytes
        while small is None and len(tried) < MOST_PRICES:
            price = min(price, self.last_price)
            tried.append(self.figures(price, clock))
            now = tried[-1][0]
            if now.peak_bytes <= self.budget:
                small = now
            else:
                large = now
                if price == self.last_price or now.stopped:
                    break
                price *= STEP
        while small is not None and len(tried) < MOST_PRICES:
            slope = self._slope(large, small)
            if slope is None or slope in self.solved:
                break
            tried.append(self.figures(slope, clock))
            now = tried[-1][0]
            if now.stopped or now.labels in (large.labels, small.labels):
                break
            if now.peak_bytes <= self.budget:
                small = now
            else:
                large = now
        best = min(tried, key=lambda one: one[0].preference(self.budget))
        # The arguments are part of the peak. So each price p proves the bound of all plans within
        # the budget: the least of `cost + p * bytes`, minus `p * budget`.
        bound, price = max(
            (found.bound_ps - p * self.budget, p) for p, found in self.solved.items()
        )
        # The answer's neighbour on the curve of time against memory saves most per byte.
        s_per_byte = max(
            (
                (best[0].step_s - one.step_s) / (one.peak_bytes - best[0].peak_bytes)
                for one, _ in tried
                if one.peak_bytes > best[0].peak_bytes
            ),
            default=0.0,
        )
        s_per_gb = max(0.0, s_per_byte) * GB
        bound_s = max(0.0, bound) / PICOSECONDS
        return replace(best[0], bound_s=bound_s, price=price, s_per_gb=s_per_gb), best[1]

    def _closed(self, clock: Clock) -> tuple[MeshFigures, Plan]:
        """Return the figures and the plan of the fastest solution without a limit of memory.

        If a gap is left, latencies are priced by the all-reduces of the solutions so far. Each such
        table proves a bound, and the largest one is taken.
        """
        best = proved = self.figures(0.0, clock)
        solutions: tuple[tuple[int, ...], ...] = ()
        for _ in range(ROUNDS):
            is_open = best[0].step_s > proved[0].bound_s * (1 + OPEN)
            is_known = best[0].labels in solutions
            if not is_open or is_known or proved[0].stopped or clock.left_s <= 0:
                break
            solutions = (*solutions, best[0].labels)
            found = self.priced_by(solutions).figures(0.0, clock)
            if found[0].stopped:
                break
            best = min(best, found, key=lambda one: one[0].step_s)
            proved = max(proved, found, key=lambda one: one[0].bound_s)
        bound, priced = proved[0].bound_s, proved[0].priced
        return replace(best[0], bound_s=bound, priced=priced), best[1]

    @property
    def last_price(self) -> float:
        """The largest price, beyond which the costs of arguments would count as impossible."""
        largest = max((float(sizes.max()) for sizes in self.terms.values()), default=1.0)
        return CAP / 100 / max(largest, 1.0)

    def _slope(self, large: MeshFigures, small: MeshFigures) -> float | None:
        """Return the picoseconds per byte between two solutions; None if none is saved."""
        saved = self.argument_bytes(large.labels) - self.argument_bytes(small.labels)
        more = (small.table_s - large.table_s) * PICOSECONDS
        return more / saved if saved > 0 and more > 0 else None

    def frontier(self, count: int) -> Iterator[tuple[MeshFigures, Plan]]:
        """Yield solutions from the fastest to the smallest, at up to `count` prices of memory.

        The first two prices are 0 and the largest. Each next one is the slope between neighbours.
        """
        ends = [self.figures(0.0), self.figures(self.last_price)]
        yield from ends
        waiting = [(ends[0][0], ends[1][0])]
        for _ in range(count - 2):
            if not waiting:
                return
            # The largest gap in memory is halved first.
            waiting.sort(key=lambda pair: pair[0].peak_bytes - pair[1].peak_bytes)
            large, small = waiting.pop()
            slope = self._slope(large, small)
            if slope is None or slope in self.solved:
                continue
            middle = self.figures(slope)
            yield middle
            if middle[0].labels not in (large.labels, small.labels):
                waiting += [(large, middle[0]), (middle[0], small)]

    def certificate(self, figures: MeshFigures) -> Certificate:
        """Return the proof of the bound, with the price of memory at which it was found.

        The bound of plans within the budget is that of the certificate minus price times budget.
        """
        if figures.priced != self.priced:
            return self.priced_by(figures.priced).certificate(figures)
        graph = self.traced.graph
        text = f"{len(graph.nodes)} nodes, graph {graph_hash(graph)}, {self.mesh!r}, {self.place!r}"
        factors = self.table.factors
        if figures.price:
            factors = with_memory_price(factors, self.terms, figures.price)
            text += f", and {figures.price:.6g} ps per byte of the arguments"
        inputs = {
            "mesh": [[name, size] for name, size in self.mesh.axes],
            "hardware": self.options.hardware,
            "price_ps_per_byte": figures.price,
            "budget_bytes": self.budget if figures.price else None,
            "pins": [[path, [list(axes) for axes in dims]] for path, dims in self.wishes.pins],
            "bans": [[path, axis] for path, axis in self.wishes.bans],
            "keeps": self.keeps,
            "priced": [[*labels] for labels in self.priced],
        }
        return Certificate(text, factors, self.at_price(figures.price), inputs)

    @staticmethod
    def of_certificate(content: Mapping[str, Any], traced: Traced, options: Options) -> MeshSearch:
        """Return the search of which a certificate is, for a function that is traced again.

        Raises:
          CertificateError: the certificate does not say of which mesh and hardware it is.
        """
        try:
            given = content["inputs"]
            mesh = Mesh(dict(given["mesh"]))
            wishes = Wishes(
                tuple((path, tuple(map(tuple, dims))) for path, dims in given["pins"]),
                tuple((path, axis) for path, axis in given["bans"]),
            )
            options = replace(options, hardware=given["hardware"], keep_gathers=given["keeps"])
            place = arranged(machine(given["hardware"]), mesh)
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(
                f"the certificate does not say of which mesh and hardware it is ({error}). Search "
                "again, and save it with this version."
            ) from None
        budget, priced = given["budget_bytes"] or math.inf, tuple(map(tuple, given["priced"]))
        return MeshSearch(traced, mesh, place, options, budget, wishes, priced)

    def check_table(self, content: Mapping[str, Any]) -> None:
        """Raise an error unless a certificate has the costs of this search.

        Raises:
          CertificateError: the costs differ; the error counts the variables.
        """
        price, factors = content["inputs"]["price_ps_per_byte"], self.table.factors
        if price:
            factors = with_memory_price(factors, self.terms, price)
        made = table_content(factors)
        if all(made[name] == content[name] for name in made):
            return
        pairs = zip(made["costs"], content["costs"], strict=False)
        apart = sum(ours != theirs for ours, theirs in pairs)
        raise CertificateError(
            f"the certificate has not the table of this function: {len(content['costs'])} "
            f"variables and {len(content['edges'])} edges, and the function has "
            f"{len(made['costs'])} and {len(made['edges'])}; the costs of {apart} variables "
            "differ. Give the function, arguments and version of the search."
        )

    def sample(
        self, content: Mapping[str, Any], count: int, seed: int
    ) -> list[tuple[float, float]]:
        """Return seconds by the table and of the plan, for solutions with one other decision.

        Each gives one value another home, or one operator another way. Labels of all other
        variables are then improved one by one, because the planner decides about memory itself.
        Each solution is planned.

        Args:
          count: number of solutions.
          seed: of the random choice of variables and labels.
        """
        draw, factors = random.Random(seed), self.table.factors
        near: list[list[tuple[int, np.ndarray]]] = [[] for _ in factors.costs]
        for (one, other), matrix in factors.edges.items():
            near[one].append((other, matrix))
            near[other].append((one, matrix.T))
        entries = [
            (variable, label)
            for variable, homes in self.table.homes.items()
            for label in range(len(homes))
        ]
        entries += [
            (variable, label)
            for variable, ways in self.table.ways.items()
            for label, way in enumerate(ways)
            if not way.reads_memory
        ]
        draw.shuffle(entries)
        found: list[tuple[float, float]] = []
        for variable, label in entries:
            if len(found) == count:
                break
            # Each home of a value has two labels: without memory, and in memory (`half` labels
            # later). Both are allowed, because the planner decides about memory itself. A way of an
            # operator has one label, so `half` is 0.
            half = len(self.table.homes.get(variable, ()))
            allowed = np.isin(np.arange(len(factors.costs[variable])), [label, label + half])
            labels = [*content["solution"]]
            if allowed[labels[variable]]:
                continue
            labels[variable] = label
            for _ in range(SAMPLE_PASSES):
                for each, own in enumerate(factors.costs):
                    costs = own + sum(matrix[:, labels[other]] for other, matrix in near[each])
                    if each == variable:
                        costs = np.where(allowed, costs, math.inf)
                    labels[each] = int(np.argmin(costs))
            total = factors.total(labels) / PICOSECONDS
            if math.isfinite(total):
                cost = self.plan(labels).cost(self.place.on(DATASHEET), overlap="none")
                found.append((total, float(cost.step_time_s)))
        return found

    def job(self, seconds: float | None) -> MeshJob:
        """Return the same as a value that can be pickled.

        Args:
          seconds: the time of the search; None without a limit.
        """
        # The strategy leaves all to completion: only the traced graph is needed.
        graph = self.traced.graph
        annotations = resolve(graph, Strategy(self.mesh), self.mesh)
        inputs = json.dumps(plan_file.inputs(self.traced, annotations, self.options))
        settings = (self.mesh, self.place, self.budget, self.wishes, seconds)
        return MeshJob(inputs, plan_file.versions(self.options), settings)


@dataclass(frozen=True)
class MeshJob:
    """The inputs of a search on one mesh as text, for another process.

    Attributes:
      inputs: as a plan file has them.
      versions: of shardalg, jax and the chip's figures here (`plan_file.versions`).
      settings: mesh, place, budget, wishes and seconds, as in `MeshSearch`.
    """

    inputs: str
    versions: dict[str, str]
    settings: tuple[Mesh, Machine, float, Wishes, float | None]

    def run(self) -> Any:
        """Return the figures of the mesh, or a text that says why there are none."""
        saved = plan_file.PlanFile(json.loads(self.inputs), self.versions)
        mesh, place, budget, wishes, seconds = self.settings
        try:
            traced, _, options = plan_file.read_inputs(saved)
            here = plan_file.versions(options)
            if here != self.versions:
                return f"the worker has {here}, and the search is for {self.versions}"
            made = MeshSearch(traced, mesh, place, options, budget, wishes)
            return made.run(Clock.of(seconds))[0]
        except ShardalgError as error:
            return reason(error)
