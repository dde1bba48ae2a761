"""`sa.strategies`: all ways to train a model on N devices, by predicted seconds per sample.

Candidates of one step on one mesh are planned and priced together (`groups`); each price is exactly
that of the candidate's own plan. A candidate is refused without a plan if its parameters and data
alone do not fit the memory, or if its axes do not divide its arguments. Of candidates that differ
only in the names of axes, the first is listed.

Pipelined steps on TPU v3 have a constant of their own, fitted to one measured column. No pipelined
step was measured on other chips, so their predicted times are too small compared with other steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.cost import Cost
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology
from shardalg.errors import HardwareError, ShardalgError, StrategyError
from shardalg.models.deeper import chip_of, machine_for
from shardalg.models.dense import DenseTransformer
from shardalg.models.ranking.candidate import Candidate
from shardalg.models.ranking.groups import CandidatePricing, Price, by_step
from shardalg.models.ranking.space import Refused, candidates, chosen, grouped
from shardalg.models.ranking.workers import Done, PricingTask, Workers, cores, done
from shardalg.show.html import Page, Section
from shardalg.svg import MOST_POINTS, PlotPoint, draw_points, drawing_card
from shardalg.tables import MOST_ROWS, Table, bytes_text, repr_part, seconds_text

Progress = Callable[[int, int, str], None]
"""A function called with a candidate's number, the number of candidates, and its text."""


@dataclass(frozen=True)
class Ranked:
    """A candidate that fits the memory, with its price.

    Attributes:
      on: the machine of the price.
    """

    candidate: Candidate
    price: Price
    on: Hardware | Topology = field(repr=False)

    @property
    def cost(self) -> Cost:
        """The cost of the candidate's own plan, equal to `price`."""
        return self.candidate.cost(self.on)

    @property
    def seconds_per_sample(self) -> float:
        """The predicted seconds of a step, divided by the sequences of its batch."""
        return self.price.step_time_s / self.candidate.model.batch

    @property
    def peak_memory_bytes(self) -> int:
        """The largest number of bytes alive at once on one device."""
        return self.price.peak_memory_bytes

    @property
    def limit(self) -> str:
        """The cause with the most seconds of the step, a key of `Cost.seconds_by_cause`."""
        return self.price.limit


@dataclass(frozen=True, repr=False)
class Ranking:
    """Candidates by predicted seconds per sample, the fastest first, and the rejected ones.

    Attributes:
      ranked: the candidates that fit the memory.
      refused: pairs of a rejected candidate's text and the reason.
      left: the number of candidates that an interrupted search did not price.
      planned: the number of plans that the search made.
    """

    ranked: tuple[Ranked, ...]
    refused: tuple[Refused, ...]
    left: int = 0
    planned: int = 0

    @cached_property
    def pareto(self) -> tuple[Ranked, ...]:
        """The Pareto front of time per sample and memory, the fastest first."""
        best: list[Ranked] = []
        for one in self.ranked:
            # The candidates are sorted by time, so one comparison suffices: the last candidate on
            # the front has the least memory of all faster ones.
            if not best or one.peak_memory_bytes < best[-1].peak_memory_bytes:
                best.append(one)
        return tuple(best)

    def table(self, top: int | None = None) -> Table:
        """Return a table with a row for each of the `top` fastest candidates; None returns all.

        The column "pareto" is True for candidates on the Pareto front of time and memory.
        """
        front = set(map(id, self.pareto))
        rows = [tuple(_record(one, front).values()) for one in self.ranked[:top]]
        return Table(_COLUMNS, tuple(rows))

    def by_batch(self) -> Table:
        """Return a table with the fastest candidate of each batch size.

        A change of the best one is a crossover.

        Columns: those of `table`, and `since`: the smallest batch from which on the fastest
        candidate has the same mesh, strategy, rounds, remat and optimizer.
        """
        # `ranked` is in order of time per sample, so the first candidate of a batch is its fastest.
        best: dict[int, Ranked] = {}
        for one in self.ranked:
            best.setdefault(one.candidate.model.batch, one)
        front, rows = set(map(id, self.pareto)), []
        previous_choice: tuple[Any, ...] = ()
        since = 0
        for batch in sorted(best):
            fastest = best[batch].candidate
            # Batch and microbatches change with the batch, and are no part of the choice.
            schedule = fastest.rounds, fastest.model.remat, fastest.model.optimizer
            current_choice = fastest.strategy, fastest.mesh, *schedule
            since = since if current_choice == previous_choice else batch
            previous_choice = current_choice
            rows.append((*_record(best[batch], front).values(), since))
        return Table((*_COLUMNS, "since"), tuple(rows))

    def page(self, top: int = 100) -> Page:
        """Return a page: the best, the front, the best of each batch, and the rejected candidates.

        Args:
          top: the largest number of rows in the first table and in the table of refused ones.
        """
        front = set(map(id, self.pareto))
        pareto = Table(_COLUMNS, tuple(tuple(_record(o, front).values()) for o in self.pareto))
        refused = Table(("candidate", "reason"), self.refused[:top])
        return Page(
            "Ways to train a model, ranked",
            f"{self.summary()}.",
            (
                Section(
                    "By predicted seconds per sample", (*_shown(self.ranked, top), self.table(top))
                ),
                Section("Least time or least memory: what no other beats in both", (pareto,)),
                Section("The fastest of each batch", (self.by_batch(),)),
                Section("What was refused", (*_shown(self.refused, top), refused)),
            ),
        )

    def __repr__(self) -> str:
        return f"{self.summary()}\n{repr_part(self.table(MOST_ROWS))}"

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks: time against memory, and the fastest candidates."""
        front = set(map(id, self.pareto))
        points = [
            PlotPoint(one.seconds_per_sample, one.peak_memory_bytes, id(one) in front)
            for one in self.ranked[:MOST_POINTS]
        ]
        names = "seconds per sample", "peak memory"
        canvas = draw_points(points, names, (seconds_text, bytes_text))
        table = self.table(MOST_ROWS)
        # A candidate on the Pareto front is marked; no other one is better in both time and memory.
        title = f"{self.summary()}."
        if self.ranked:
            best = self.ranked[0]
            title = (
                f"Fastest: {best.candidate}, {seconds_text(best.seconds_per_sample)} per sample, "
                f"{bytes_text(best.peak_memory_bytes)} at the peak.\n{title}"
            )
        more = (
            ()
            if len(self.ranked) <= MOST_ROWS
            else (f"... and {len(self.ranked) - MOST_ROWS} more rows.",)
        )
        return drawing_card(title, canvas, table, *more)

    def summary(self) -> str:
        """Return a sentence with the numbers of priced and remaining candidates."""
        text = f"{len(self.ranked)} fit, {len(self.refused)} do not fit or divide"
        return f"{text}; interrupted with {self.left} left" if self.left else text

    def verified(self, top: int = 10) -> Table:
        """Return a table with the proof of the plan of each of the `top` fastest candidates.

        Columns: candidate, seconds_per_sample, verdict (the text of the report).
        """
        rows = (
            (str(one.candidate), one.seconds_per_sample, str(one.candidate.plan().verify()))
            for one in self.ranked[:top]
        )
        return Table(("candidate", "seconds_per_sample", "verdict"), tuple(rows))

    def to_json(self) -> dict[str, Any]:
        """Return the ranking as plain data: "ranked", "refused" and "left"."""
        front = set(map(id, self.pareto))
        ranked = [_record(one, front) for one in self.ranked]
        refused = [{"candidate": what, "reason": why} for what, why in self.refused]
        return {"ranked": ranked, "refused": refused, "left": self.left}


_COLUMNS = (
    "strategy", "mesh", "batch", "microbatches", "rounds", "remat", "optimizer",
    "seconds_per_sample", "step_time_s", "peak_memory_gb", "limited_by", "pareto",
)  # fmt: skip


def _shown(found: Sequence[Any], top: int) -> tuple[str, ...]:
    """Return ("The first ... of ...",) for a table with more than `top` rows, otherwise ()."""
    return (f"The first {top:,} of {len(found):,}.",) if len(found) > top else ()


def _record(one: Ranked, front: Set[int]) -> dict[str, Any]:
    """Return the entries of a candidate's row in `Ranking.table`, by column.

    Args:
      front: ids of the candidates on the Pareto front.
    """
    # The order is that of `_COLUMNS`.
    candidate, model = one.candidate, one.candidate.model
    values = (
        candidate.strategy,
        ",".join(f"{name}={size}" for name, size in candidate.mesh.shape.items()),
        model.batch,
        model.microbatches,
        candidate.rounds,
        model.remat or "none",
        model.optimizer,
        one.seconds_per_sample,
        one.price.step_time_s,
        one.peak_memory_bytes / 1e9,
        one.limit,
        id(one) in front,
    )
    return dict(zip(_COLUMNS, values, strict=True))


def strategies(
    model: DenseTransformer,
    devices: int,
    hardware: str | Hardware | Topology,
    *,
    choices: Mapping[str, Sequence[Any]] | None = None,
    memory_bytes: float | None = None,
    progress: Progress | None = None,
    processes: int | None = None,
) -> Ranking:
    """Return all ways to train a model on `devices` devices, by predicted seconds per sample.

    Args:
      devices: the number of devices; all meshes of this size are tried.
      hardware: a chip by any of its names, in the vendor's shape for this number of devices, or a
        `Topology`, or its text.
      choices: lists to choose from, by name: "strategy" (default all: "finalized", "fsdp",
        "fsdp_tensor", "pipelined"), "batch", "microbatches" (of pipelines 1, 2 and 4 per stage),
        "rounds" of pipelines, "remat", "optimizer" (what the model has), "order" of the axes on the
        devices ("given" or "all").
      memory_bytes: the memory of one device, a limit for the peak; default: the chip's memory.
      progress: called for each mesh of a step, with the number of its first candidate; Ctrl-C ends
        the search and keeps the ranking so far.
      processes: the largest number of processes that price candidates, with this one (default: the
        number of usable cores, at most 8). Others start after a second. The result does not
        depend on this number.

    Raises:
      StrategyError: an unknown choice; no candidate fits the memory (the text gives the smallest
        memory that suffices); no mesh divides the model. HardwareError: an unknown chip, no slice
        of so many devices, a topology with another number of devices.

    >>> model = DenseTransformer(2, 64, 256, 4, 16, 128, 32, 16)
    >>> found = strategies(model, 4, "h100", choices={"strategy": ["fsdp"], "batch": [16, 32]})
    >>> [(one.candidate.model.batch, one.limit) for one in found.ranked]
    [(32, 'latency'), (16, 'latency')]
    """
    if type(devices) is not int or devices < 1:
        raise StrategyError(f"devices={devices!r}: give a number of at least 1.")
    if processes is not None and (type(processes) is not int or processes < 1):
        raise StrategyError(f"processes={processes!r}: give a number of at least 1.")
    if memory_bytes is not None and not (_is_number(memory_bytes) and memory_bytes > 0):
        raise StrategyError(f"memory_bytes={memory_bytes!r}: give a number above 0.")
    on = _machine(devices, hardware)
    # Devices may share a core and its memory, as on a CPU, so the memory of one is a part.
    chip_memory = chip_of(on.shared(devices)).hbm_bytes
    memory = chip_memory if memory_bytes is None else memory_bytes
    slices = on.slices if isinstance(on, Topology) else 1
    grouped_candidates = grouped(candidates(model, devices, slices, chosen(model, choices or {})))
    search = _CandidateSearch(on, memory, progress, processes or cores())
    ranking = search.over(grouped_candidates)
    if not ranking.ranked and not ranking.left:
        raise search.nothing(devices, ranking.refused)
    return ranking


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _machine(devices: int, hardware: str | Hardware | Topology) -> Hardware | Topology:
    """Return the machine with this number of devices, in the vendor's shape for the chip."""
    on = machine_for(Mesh({"X": devices}), hardware)
    if isinstance(on, Topology) and on.devices != devices:
        raise HardwareError(
            f"{on!r} has {on.devices} devices, not {devices}: give devices={on.devices}, or "
            "another topology."
        )
    return on


class _CandidateSearch:
    """A search over candidates: it refuses, prices and ranks them.

    `memory` is the limit of the peak in bytes. `large` has the candidates that are refused because
    of their arguments, `peaks` those refused because of the peak of their plan.
    """

    def __init__(
        self,
        on: Hardware | Topology,
        memory: float,
        progress: Progress | None,
        processes: int,
    ) -> None:
        """Start with no results.

        Args:
          on: the machine that candidates are priced for.
          memory: the limit of the peak in bytes.
          progress: called for each group of candidates before it is priced; None for no calls.
          processes: the largest number of processes that price candidates.
        """
        self.on, self.memory, self.progress = on, memory, progress
        self.processes, self.pricing = processes, CandidatePricing()
        self.ranked: list[Ranked] = []
        self.refused: list[Refused] = []
        self.large: list[tuple[int, Candidate]] = []
        self.peaks: list[tuple[int, str]] = []

    def over(self, found: Sequence[Candidate | Refused]) -> Ranking:
        """Return the ranking of the candidates that fit; if interrupted, of those priced so far.

        Args:
          found: candidates, and those that are refused already because no plan can be made of them.
        """
        # Candidates of a group share a traced step, so they are priced together, in one task.
        groups = by_step(self.dividing(found))
        # Progress counts all candidates, so the first priced one comes after the refused ones.
        first, unpriced_count = len(found) - sum(map(len, groups)) + 1, 0
        first_numbers = list(accumulate(map(len, groups), initial=first))
        tasks = [self.task(group) for group in groups]

        def begun(place: int) -> None:
            if self.progress is not None:
                self.progress(first_numbers[place], len(found), str(groups[place][0]))

        work = Workers(tasks, begun, self.processes, self.pricing)
        # An interrupted search still ranks the tasks that are done; `left` counts the others.
        with suppress(KeyboardInterrupt):
            work.run()
        for place, task in enumerate(tasks):
            if place in work.done:
                self.rank(task, work.done[place])
            else:
                unpriced_count += len(task.group)
        fastest_first = sorted(self.ranked, key=lambda one: one.seconds_per_sample)
        planned = sum(one.planned for one in work.done.values())
        return Ranking(tuple(fastest_first), tuple(self.refused), unpriced_count, planned)

    def refuse(self, what: Candidate, why: object) -> None:
        """Record a rejected candidate with the reason."""
        self.refused.append((str(what), " ".join(str(why).split())))

    def dividing(self, found: Sequence[Candidate | Refused]) -> Iterator[Candidate]:
        """Yield the candidates whose axes divide batch and layers; refuse the others.

        Items of another type than `Candidate` are refused already, with their reason.
        """
        for one in found:
            if not isinstance(one, Candidate):
                self.refused.append(one)
                continue
            try:
                # This call needs no plan, and raises for a batch or layers that the axes do not
                # divide.
                one.data_bytes()
            except ShardalgError as error:
                self.refuse(one, error)
            else:
                yield one

    def task(self, group: Sequence[Candidate]) -> PricingTask:
        """Return the task that prices a group's candidates; those that cannot fit are rejected."""
        try:
            # The group's candidates differ only in batch and microbatches, on which parameters and
            # state do not depend: one check serves all.
            state = group[0].state_bytes()
        except ShardalgError as error:
            for one in group:
                self.refuse(one, error)
            group = ()
        else:
            group = list(self.holding(group, state))
        return PricingTask(group, machine_for(group[0].mesh, self.on) if group else self.on)

    def rank(self, task: PricingTask, result: Done) -> None:
        """Add the task's candidates that fit to `ranked`, and refuse the others with a reason."""
        # A plan that cannot be made is refused for all candidates of the task, which share a step.
        if result.refused:
            for one in task.group:
                self.refuse(one, result.refused)
            return
        for one, price in zip(task.group, result.prices, strict=True):
            if price.peak_memory_bytes <= self.memory:
                self.ranked.append(Ranked(one, price, self.on))
                continue
            # The peak is kept, so that `least` can say which memory would suffice.
            peak = price.peak_memory_bytes
            self.peaks.append((peak, str(one)))
            capacity_text = bytes_text(self.memory)
            self.refuse(one, f"its peak is {bytes_text(peak)}, a device has {capacity_text}.")

    def holding(self, group: Sequence[Candidate], state: int) -> Iterator[Candidate]:
        """Yield the candidates whose arguments fit the memory; refuse the others.

        `state` is the bytes of a device's parameters and optimizer state.
        """
        for one in group:
            needed = state + one.data_bytes()
            if needed <= self.memory:
                yield one
                continue
            self.large.append((needed, one))
            self.refuse(
                one,
                f"parameters, optimizer state and data take {bytes_text(needed)} of the "
                f"{bytes_text(self.memory)} of a device.",
            )

    def least(self) -> tuple[int, str] | None:
        """Return (bytes, candidate) of the smallest peak among all candidates that are too large.

        None if no candidate was refused because of its size.
        """
        # `peaks` are of plans that did not fit. Candidates in `large` were refused without a plan,
        # because of the bytes of their arguments.
        best = min(self.peaks, default=None)
        needed = {id(one): size for size, one in self.large}
        groups = by_step(one for _, one in self.large)
        for group in sorted(groups, key=lambda group: min(needed[id(one)] for one in group)):
            # A peak contains at least the arguments. So a candidate whose arguments alone are
            # larger than the best peak needs no plan.
            hopeful = [one for one in group if best is None or needed[id(one)] < best[0]]
            result = done(PricingTask(hopeful, machine_for(group[0].mesh, self.on)), self.pricing)
            for one, price in zip(hopeful, result.prices, strict=True):
                found = price.peak_memory_bytes, str(one)
                best = min(best or found, found)
        return best

    def nothing(self, devices: int, refused: Sequence[Refused]) -> StrategyError:
        """Return the error for an empty ranking: the reason, and the options to change.

        Args:
          devices: the number of devices. refused: the candidates with their reasons.
        """
        # If any plan exists, only the memory was too small, and the smallest peak says how much is
        # needed.
        if best := self.least():
            below = "" if self.peaks else " is below parameters and optimizer state, and"
            return StrategyError(
                f"a memory of {bytes_text(self.memory)} a device{below} holds none of "
                f"{len(refused)} candidates; the smallest that fits is {best[0]} bytes, of "
                f"{best[1]}: give a memory of {best[0]} bytes or more, or more devices."
            )
        if not refused:
            return StrategyError(
                f"no mesh of {devices} devices suits these strategies: give a number of devices "
                "that shares factors with layers, or another strategy."
            )
        # All candidates failed for another reason; the first reason is shown.
        what, why = refused[0]
        return StrategyError(
            f"no mesh of {devices} devices divides this model and batch; the first of "
            f"{len(refused)} candidates, {what}: {why}"
        )
