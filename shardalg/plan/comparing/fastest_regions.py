"""Regions of named sizes in which each strategy is the fastest, with boundaries as formulas."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shardalg.errors import ShardalgError, TableError
from shardalg.sizes.boundary import inequality
from shardalg.sizes.formula import Formula
from shardalg.tables import Answer, Parts, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.plan.comparing.compared import ComparedStrategy

POWERS = range(-4, 5)
"""Default sizes are the hint times 2**p for these p."""
COLUMNS = ("faster", "slower", "where", "because", "at")


@dataclass(frozen=True, eq=False, repr=False)
class StrategyRegions(Answer):
    """The fastest strategy that fits, at each point of a grid of one or two named sizes.

    Attributes:
      sizes: the values of each named size; a point of the grid has one value of each.
      strategies: the compared strategies.
      step_s: seconds of a step, by strategy and then by the sizes in their order; infinite where
        the function cannot be planned.
      fits: whether the step fits, likewise.
      formula_holds: whether the formulas hold for certain, likewise. Elsewhere a plan was made.
    """

    sizes: Mapping[str, np.ndarray]
    strategies: tuple[ComparedStrategy, ...]
    step_s: np.ndarray
    fits: np.ndarray
    formula_holds: np.ndarray

    @cached_property
    def winner(self) -> np.ndarray:
        """Number of the fastest strategy that fits at each point; -1 where none fits."""
        time = np.where(self.fits, self.step_s, np.inf)
        return np.where(np.isfinite(time).any(axis=0), time.argmin(axis=0), -1)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the strategies."""
        return tuple(row.name for row in self.strategies)

    def at(self, **sizes: int) -> str | None:
        """Return the name of the fastest strategy at a point of the grid; None if none fits.

        Raises:
          TableError: the point is not on the grid.
        """
        place = []
        for name, values in self.sizes.items():
            found = np.flatnonzero(values == sizes.get(name))
            if not len(found):
                raise TableError(
                    f"{name}={sizes.get(name)} is no point of the grid: {name} has the values "
                    f"{', '.join(map(str, values))}."
                )
            place.append(int(found[0]))
        number = int(self.winner[tuple(place)])
        return None if number < 0 else self.names[number]

    @cached_property
    def table(self) -> Table:
        """A row per boundary between two regions: the inequality, and a point next to it.

        `because` is "time" where the steps take equally long, and "memory" where the faster one
        stops to fit. Inequalities leave out terms below 1 % at that point, and they take ceilings
        as quotients. Both plans make the same decisions at the point as where they were planned,
        unless `where` says otherwise.
        """
        return Table(COLUMNS, tuple(self._boundaries()))

    def _boundaries(self) -> Iterator[tuple[str, ...]]:
        """Yield a row of `COLUMNS` per pair of strategies that win at neighbouring grid points."""
        borders: dict[tuple[int, int], list[tuple[tuple[int, ...], tuple[int, ...]]]]
        borders = defaultdict(list)
        for here, there in _neighbours(self.winner.shape):
            one, other = int(self.winner[here]), int(self.winner[there])
            if one != other and min(one, other) >= 0:
                # Both directions across a boundary are one pair: the smaller number comes first.
                points = (here, there) if one < other else (there, here)
                borders[min(one, other), max(one, other)].append(points)
        for (one, other), pairs in sorted(borders.items()):
            # A boundary may consist of several pieces. Only a pair of points with formulas on both
            # sides gives an inequality; the middle one of these pairs stands for all.
            both = [pair for pair in pairs if self._has_formulas((one, other), pair)] or pairs
            at_one, at_other = both[len(both) // 2]
            yield self._boundary((one, at_one), (other, at_other))

    def _boundary(
        self, first: tuple[int, tuple[int, ...]], second: tuple[int, tuple[int, ...]]
    ) -> tuple[str, ...]:
        """Return the row of `COLUMNS` for two neighbouring grid points with different winners.

        Args:
          first, second: the number of the strategy that wins, and its point as grid indices.
        """
        (one, at_one), (other, at_other) = first, second
        faster, slower = self.strategies[one], self.strategies[other]
        point = self._point(at_one)
        text = ", ".join(f"{name}={size}" for name, size in point.items())
        names = (faster.name, slower.name)
        for number, at in ((one, at_other), (other, at_one)):
            # Beyond the boundary, this strategy does not fit. It may still be the faster one there,
            # so memory and not time makes the boundary.
            if not self.fits[(number, *at)]:
                row = self.strategies[number]
                where = self._fitting(row, self._point(at))
                rest = slower if row is faster else faster
                return row.name, rest.name, where, "memory", text
        if not self._has_formulas((one, other), (at_one, at_other)):
            # Without an inequality, two points show on which side each strategy wins.
            beyond = ", ".join(f"{n}={size}" for n, size in self._point(at_other).items())
            where = f"at {text}, not at {beyond}: a plan decides otherwise, so there is no formula"
            return (*names, where, "time", text)
        costs = [row.cost for row in (faster, slower)]
        formulas = [Formula.of(cost._time(cost.totals)) for cost in costs if cost is not None]
        difference = formulas[1] - formulas[0]
        return (*names, inequality(difference, (*self.sizes,), self._all(point)), "time", text)

    def _has_formulas(
        self, strategies: tuple[int, int], points: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> bool:
        """Return whether the cost formulas of both strategies hold at both points of the grid."""
        return all(self.formula_holds[(n, *at)] for n in strategies for at in points)

    def _fitting(self, row: ComparedStrategy, point: Mapping[str, int]) -> str:
        """Return the inequality of sizes under which a strategy's peak fits in a device's memory.

        Args:
          point: the size of each name; of several peak formulas, the largest one there counts.
        """
        cost = row.cost
        if cost is None:
            return ""
        peaks = cost.totals.peaks() if cost.totals.peaks else (cost.totals.peak_bytes,)
        values = self._all(point)
        peak = max(map(Formula.of, peaks), key=lambda formula: formula.at(values))
        return inequality(int(row.capacity_bytes) - peak, (*self.sizes,), values)

    def _point(self, place: tuple[int, ...]) -> dict[str, int]:
        """Return the size of each name at a point of the grid, given as an index per name."""
        pairs = zip(self.sizes.items(), place, strict=True)
        return {name: int(values[i]) for (name, values), i in pairs}

    def _all(self, point: Mapping[str, int]) -> dict[str, int]:
        """Return a number for every named size: that of `point`, or that of the plans."""
        hints: dict[str, int] = {}
        for row in self.strategies:
            hints |= row.cost.sizes.hints if row.cost is not None and row.cost.sizes else {}
        return {**hints, **point}

    def draw(self) -> Figure:
        """Draw the map of the fastest strategies over the grid, with logarithmic axes."""
        from shardalg.show.strategy_regions import draw_regions

        return draw_regions(self.sizes, self.winner, self.names)

    @property
    def sentence(self) -> str:
        """Say how many points each strategy wins, and where nothing fits."""
        count = self.winner.size
        wins = [(int((self.winner == n).sum()), name) for n, name in enumerate(self.names)]
        said = ", ".join(f"{name} at {won} of {count}" for won, name in sorted(wins)[::-1] if won)
        none = int((self.winner < 0).sum())
        rest = f"; no strategy has a plan that fits at {none}" if none else ""
        return f"Fastest that fits over {', '.join(self.sizes)}: {said or 'none'}{rest}."

    def parts(self) -> Parts:
        """Return the parts of the printed text: `sentence`, then the table of the boundaries."""
        return self.sentence, self.table


def _neighbours(
    shape: tuple[int, ...],
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield pairs of points of a grid that differ by one in one coordinate."""
    for place in itertools.product(*map(range, shape)):
        for axis, length in enumerate(shape):
            if place[axis] + 1 < length:
                yield place, (*place[:axis], place[axis] + 1, *place[axis + 1 :])


def regions(
    rows: Sequence[ComparedStrategy], names: Sequence[str], given: Mapping[str, Any]
) -> StrategyRegions:
    """Return the regions of strategies over one or two named sizes; see `StrategyComparison`.

    Raises:
      TableError: no strategies in named sizes, unknown names, or not one or two of them.
    """
    planned = [row for row in rows if row.plan is not None and row.plan.is_symbolic]
    known = {n: size for row in planned for n, size in (row.plan.sizes if row.plan else {}).items()}
    wanted = tuple(dict.fromkeys((*names, *given)))
    unknown = [name for name in wanted if name not in known]
    if not planned or unknown or not 1 <= len(wanted) <= 2:
        raise TableError(
            f"regions over {', '.join(wanted) or 'no sizes'}: give one or two of the named sizes "
            f"{', '.join(known) or '(none: use sa.dims, or a Mesh with symbolic=True)'}."
        )
    sizes = {name: _values(name, given.get(name), int(known[name].hint)) for name in wanted}
    shape = tuple(len(values) for values in sizes.values())
    grids = np.meshgrid(*sizes.values(), indexing="ij")
    step, fits, holds = (np.zeros((len(planned), *shape), kind) for kind in (float, bool, bool))
    for number, row in enumerate(planned):
        plan, cost = row.plan, row.cost
        if plan is None or cost is None:
            continue
        # A plan without one of the names is constant along this size, so its results are broadcast.
        arrays = {n: a for n, a in zip(sizes, grids, strict=True) if n in plan.sizes}
        found = plan.sweep(row.on, **arrays)
        step[number] = np.broadcast_to(found.step_time_s, shape)
        fits[number] = np.broadcast_to(found.peak_memory_bytes <= row.capacity_bytes, shape)
        holds[number] = np.broadcast_to(found.holds, shape)
        # Where a decision may differ, the plan that is made there has the last word.
        for place in map(tuple, np.argwhere(~holds[number])):
            point = {name: int(arrays[name][place]) for name in arrays}
            try:
                there = plan.at(**point).cost(row.on)
                step[(number, *place)] = float(there.step_time_s)
                fits[(number, *place)] = float(there.peak_memory_bytes) <= row.capacity_bytes
            except ShardalgError:
                step[(number, *place)] = np.inf
                fits[(number, *place)] = False
    return StrategyRegions(sizes, tuple(planned), step, fits, holds)


def _values(name: str, given: Any, hint: int) -> np.ndarray:
    """Return the values of a named size on the grid: `given`, or `hint` times powers of two.

    Raises:
      TableError: a value is no size.
    """
    if given is None:
        sizes = (hint * 2**k if k >= 0 else hint // 2**-k for k in POWERS)
        return np.unique([size for size in sizes if size >= 1])
    values = np.unique(np.atleast_1d(np.asarray(given)))
    if values.dtype.kind not in "iu" or not len(values) or values.min() < 1:
        raise TableError(f"{name}={given!r:.60}: give whole numbers from 1 on.")
    return values
