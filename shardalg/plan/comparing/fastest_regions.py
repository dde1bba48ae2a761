"""Regions of named sizes in which each strategy is the fastest, with boundaries as formulas."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shardalg.costs.analyses.crossing import compute_minus_communication
from shardalg.errors import TableError
from shardalg.plan.comparing.region_prices import GridPrices, grid_prices
from shardalg.sizes.boundary import inequality
from shardalg.sizes.formula import Formula
from shardalg.tables import Answer, Parts, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.costs.cost import Cost
    from shardalg.plan.comparing.compared import ComparedStrategy

POWERS = range(-4, 5)
"""Default sizes are the hint times 2**p for these p."""
COLUMNS = ("faster", "slower", "where", "because", "at")
LIMIT_COLUMNS = ("strategy", "where", "at")
EVERYWHERE, NOWHERE = "at all points", "at no point"

Place = tuple[int, ...]
"""A point of the grid, as an index into the values of each size."""


@dataclass(frozen=True, eq=False, repr=False)
class StrategyRegions(Answer):
    """The fastest strategy that fits, at each point of a grid of one or two named sizes.

    Attributes:
      sizes: the values of each named size; a point of the grid has one value of each.
      strategies: the compared strategies.
      prices: the prices of each strategy at each point.
    """

    sizes: Mapping[str, np.ndarray]
    strategies: tuple[ComparedStrategy, ...]
    prices: tuple[GridPrices, ...]

    @cached_property
    def step_s(self) -> np.ndarray:
        """Seconds of a step, by strategy and then by the sizes in their order.

        They are infinite where the function has no plan.
        """
        return np.stack([one.step_s for one in self.prices])

    @cached_property
    def fits(self) -> np.ndarray:
        """Whether the step fits in a device's memory, in the order of `step_s`."""
        return np.stack([one.fits for one in self.prices])

    @cached_property
    def formula_holds(self) -> np.ndarray:
        """Whether a formula gives the prices, in the order of `step_s`; else a plan was made."""
        return np.stack([one.formula_holds for one in self.prices])

    @cached_property
    def computes(self) -> np.ndarray:
        """Whether computation takes at least as long as communication, in the order of `step_s`."""
        return np.stack([one.computes for one in self.prices])

    @cached_property
    def winner(self) -> np.ndarray:
        """Number of the fastest strategy that fits at each point; -1 where none fits."""
        time = np.where(self.fits, self.step_s, np.inf)
        return np.where(np.isfinite(time).any(axis=0), time.argmin(axis=0), -1)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the strategies, with the mesh or chip where several have one name."""
        every = Counter(name for row in self.strategies for name in row.names)
        return tuple(min(row.names, key=lambda n: (every[n], len(n))) for row in self.strategies)

    def at(self, **sizes: int) -> str | None:
        """Return the name of the fastest strategy at a point of the grid; None if none fits.

        Args:
          sizes: a value of each named size of the grid, as in `at(B=4096, X=16)`.

        Raises:
          TableError: the point is not on the grid, or a size is missing or unknown.
        """
        if sizes.keys() != self.sizes.keys():
            given = ", ".join(f"{name}={size!r}" for name, size in sizes.items()) or "nothing"
            raise TableError(
                f"a point of these regions has the sizes {', '.join(self.sizes)}; at() got {given}."
            )
        # The index of each size among the values of the grid.
        place = []
        for name, values in self.sizes.items():
            matches = np.flatnonzero(values == sizes.get(name))
            if not len(matches):
                raise TableError(
                    f"{name}={sizes.get(name)} is no point of the grid: {name} has the values "
                    f"{', '.join(map(str, values))}."
                )
            place.append(int(matches[0]))
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

    @cached_property
    def limits(self) -> Table:
        """A row per strategy: where computation takes at least as long as communication.

        There the step is compute-bound: communication can be hidden behind computation. The
        inequality is as in `table`, near the point in the last column.
        """
        return Table(LIMIT_COLUMNS, tuple(map(self._limit, range(len(self.strategies)))))

    def _limit(self, number: int) -> tuple[str, str, str]:
        """Return the row of `LIMIT_COLUMNS` of a strategy: where it computes longer than it sends.

        The limit is between neighbouring points of the grid of which only one fulfils this. The row
        has an inequality from formulas that hold at both points, or the two points themselves.

        Args:
          number: the position of the strategy in `strategies`.
        """
        name, prices = self.names[number], self.prices[number]
        planned = np.isfinite(prices.step_s)
        if not planned.any():
            return name, "no plan", ""
        # Pairs (point inside, point outside) of neighbours on the two sides of the limit.
        pairs = [
            (here, there) if prices.computes[here] else (there, here)
            for here, there in _neighbours(planned.shape)
            if planned[here] and planned[there] and prices.computes[here] != prices.computes[there]
        ]
        # Without such a pair, no limit crosses the grid.
        if not pairs:
            return name, EVERYWHERE if prices.computes[planned].all() else NOWHERE, ""
        # Of the pairs with formulas, the middle one stands for the whole limit.
        with_formulas = [pair for pair in pairs if self._formulas((number,), pair)] or pairs
        inside, outside = with_formulas[len(with_formulas) // 2]
        inside_text = _text(self._point(inside))
        costs = self._formulas((number,), (inside, outside))
        if costs is None:
            outside_text = _text(self._point(outside))
            return name, f"at {inside_text}, not at {outside_text}", inside_text
        difference = compute_minus_communication(costs[0].totals)
        return name, self._inequality(difference, costs, inside), inside_text

    def _boundaries(self) -> Iterator[tuple[str, ...]]:
        """Yield a row of `COLUMNS` per pair of strategies that win at neighbouring grid points."""
        borders: dict[tuple[int, int], list[tuple[Place, Place]]] = defaultdict(list)
        for here, there in _neighbours(self.winner.shape):
            one, other = int(self.winner[here]), int(self.winner[there])
            # -1 is no winner: a border to points where nothing fits is no boundary of two.
            if one != other and min(one, other) >= 0:
                # Both directions across a boundary are one pair: the smaller number comes first.
                points = (here, there) if one < other else (there, here)
                borders[min(one, other), max(one, other)].append(points)
        for (one, other), pairs in sorted(borders.items()):
            # A boundary may consist of several pieces. Only a pair of points with formulas on both
            # sides gives an inequality; the middle one of these pairs stands for all.
            pairs_with_formulas = [
                pair for pair in pairs if self._formulas((one, other), pair)
            ] or pairs
            at_one, at_other = pairs_with_formulas[len(pairs_with_formulas) // 2]
            yield self._boundary((one, at_one), (other, at_other))

    def _boundary(self, first: tuple[int, Place], second: tuple[int, Place]) -> tuple[str, ...]:
        """Return the row of `COLUMNS` for two neighbouring grid points with different winners.

        Args:
          first, second: the number of the strategy that wins, and its point as grid indices.
        """
        (one, at_one), (other, at_other) = first, second
        point_text, beyond_text = _text(self._point(at_one)), _text(self._point(at_other))
        names = (self.names[one], self.names[other])
        costs = self._formulas((one, other), (at_one, at_other))
        unknown = f"at {point_text}, not at {beyond_text}: no formula holds at both points"
        for number, at, rest in ((one, at_other, other), (other, at_one, one)):
            # The winner here is faster there too, but it does not fit there.
            if not self.fits[(number, *at)]:
                fitting_costs = self._formulas((number,), (at_one, at_other))
                where = self._fitting(number, fitting_costs[0], at) if fitting_costs else unknown
                return self.names[number], self.names[rest], where, "memory", point_text
        if costs is None:
            # The point at which the other strategy wins, because no inequality says the side.
            return (*names, unknown, "time", point_text)
        fast, slow = (Formula.of(cost._time(cost.totals)) for cost in costs)
        # With full overlap both may be compute-bound here, so that the steps are equal. Then the
        # other point tells them apart.
        ties = self.step_s[(one, *at_one)] == self.step_s[(other, *at_one)]
        near = at_other if ties else at_one
        return (*names, self._inequality(slow - fast, costs, near), "time", point_text)

    def _formulas(
        self, strategies: Sequence[int], points: Sequence[Place]
    ) -> tuple[Cost, ...] | None:
        """Return a cost per strategy whose formulas hold at all of some points, or None.

        None if a strategy has no formula for one of the points, or different ones for them.

        Args:
          strategies: numbers of the strategies; the result has a cost of each.
          points: points of the grid, as indices into the values of each size.
        """
        costs = []
        for prices in (self.prices[number] for number in strategies):
            # Formulas hold on parts of the grid, and a cost serves the points of one part.
            parts = {int(prices.part[point]) for point in points}
            if len(parts) > 1 or not all(prices.formula_holds[point] for point in points):
                return None
            costs.append(prices.costs[parts.pop()])
        return tuple(costs)

    def _inequality(self, difference: Formula, costs: Sequence[Cost], place: Place) -> str:
        """Return the inequality of sizes under which a difference is positive, near a point.

        Args:
          difference: a formula in the named sizes of `costs`.
          place: the point, as an index into the values of each size.
        """
        point = self._point(place)
        text = inequality(difference, (*self.sizes,), self._all(costs, point))
        # If a topology was arranged for the mesh, sizes of axes are numbers in the formulas. The
        # inequality is then for these numbers, so that its text names them.
        named = {name for cost in costs if cost.sizes for name in cost.sizes.hints}
        fixed_sizes = {name: size for name, size in point.items() if name not in named}
        return f"{text}, at {_text(fixed_sizes)}" if fixed_sizes else text

    def _fitting(self, number: int, cost: Cost, place: Place) -> str:
        """Return the inequality of sizes under which a strategy's peak fits in a device's memory.

        Args:
          place: a point; of several peak formulas, the largest one there counts.
        """
        peaks = cost.totals.peaks() if cost.totals.peaks else (cost.totals.peak_bytes,)
        values = self._all((cost,), self._point(place))
        peak = max(map(Formula.of, peaks), key=lambda formula: formula.at(values))
        capacity = int(self.strategies[number].capacity_bytes)
        return self._inequality(capacity - peak, (cost,), place)

    def _point(self, place: tuple[int, ...]) -> dict[str, int]:
        """Return the size of each name at a point of the grid, given as an index per name."""
        pairs = zip(self.sizes.items(), place, strict=True)
        return {name: int(values[i]) for (name, values), i in pairs}

    @staticmethod
    def _all(costs: Sequence[Cost], point: Mapping[str, int]) -> dict[str, int]:
        """Return the hints of all sizes of some costs, with those of a point in their place."""
        hints: dict[str, int] = {}
        for cost in costs:
            hints |= cost.sizes.hints if cost.sizes else {}
        return {**hints, **point}

    def draw(self, *, measured: Mapping[Any, Mapping[str, float]] | None = None) -> Figure:
        """Draw the map of the fastest strategies over the grid, with logarithmic axes.

        Cells in which the fastest strategy takes longer to communicate than to compute are hatched.

        Args:
          measured: seconds of a step by strategy, `{(4096, 16): {"fsdp": 0.012, "data": 0.015}}`.
            A key has the sizes of a measured point in the order of `sizes`; one size may be a
            number. Each point is a dot in the colour of the strategy that was measured fastest,
            and a cross if the map has another strategy there.

        Raises:
          TableError: a point is outside of the grid, or a strategy or its seconds are not known.
        """
        from shardalg.show.strategy_regions import draw_regions

        # Whether the winner of a cell is bound by communication. A cell without a winner (-1) reads
        # strategy 0 only to have a valid index.
        by_cell = np.moveaxis(self.computes, 0, -1)
        waits = ~np.take_along_axis(by_cell, np.maximum(self.winner, 0)[..., None], -1)[..., 0]
        points = self._measured(measured or {})
        return draw_regions(self.sizes, self.winner, self.names, waits=waits, measured=points)

    def _measured(self, given: Mapping[Any, Mapping[str, float]]) -> dict[tuple[float, ...], int]:
        """Return {sizes of a point: number of the strategy that was measured fastest there}.

        Args:
          given: seconds by strategy of each point, as in `draw`.

        Raises:
          TableError: as `draw` does.
        """
        if not isinstance(given, Mapping):
            raise TableError(
                f"measured is {given!r:.60}: give the seconds of strategies by the sizes of a "
                'point, as in {(4096, 16): {"fsdp": 0.012}}.'
            )
        winners = {}
        ranges = {name: (values.min(), values.max()) for name, values in self.sizes.items()}
        for key, seconds in given.items():
            # A point of one size may be given as a number.
            point = key if isinstance(key, tuple) else (key,)
            # A measured point may be between the points of the grid, but not outside of it.
            is_inside = len(point) == len(ranges) and all(
                isinstance(size, int | float) and low <= size <= high
                for size, (low, high) in zip(point, ranges.values(), strict=True)
            )
            if not is_inside:
                span = ", ".join(f"{name} from {a} to {b}" for name, (a, b) in ranges.items())
                raise TableError(f"measured has the point {key!r}: give values of {span}.")
            if not isinstance(seconds, Mapping) or not seconds:
                raise TableError(
                    f'measured[{key!r}] is {seconds!r:.60}: give seconds, as in {{"fsdp": 0.012}}.'
                )
            for name, step_s in seconds.items():
                if name not in self.names:
                    raise TableError(
                        f"measured[{key!r}] names {name!r}, which is none of the strategies "
                        f"{', '.join(self.names)}."
                    )
                if not (isinstance(step_s, int | float) and step_s > 0):
                    raise TableError(f"measured[{key!r}][{name!r}] is {step_s!r}: give seconds.")
            winners[point] = self.names.index(min(seconds, key=lambda name: seconds[name]))
        return winners

    @property
    def sentence(self) -> str:
        """Say at how many points each strategy is the fastest, and at how many nothing fits."""
        count = self.winner.size
        wins = [(int((self.winner == n).sum()), name) for n, name in enumerate(self.names)]
        # The strategy with the most points first; one without points is left out.
        texts = [f"{name} at {points} of {count}" for points, name in sorted(wins)[::-1] if points]
        num_empty = int((self.winner < 0).sum())
        rest = f"; no strategy has a plan that fits at {num_empty}" if num_empty else ""
        text = ", ".join(texts) or "none"
        return f"Fastest that fits over {', '.join(self.sizes)}: {text}{rest}."

    @property
    def refused(self) -> dict[str, str]:
        """The number of points without a plan, and the reason at the first one, by strategy."""
        texts = {}
        for name, prices in zip(self.names, self.prices, strict=True):
            # The time is infinite where there is no plan.
            num_missing = int((~np.isfinite(prices.step_s)).sum())
            if num_missing:
                point, why = prices.refused[0]
                texts[name] = f"no plan at {num_missing} points; at {_text(point)}: {why}"
        return texts

    def parts(self) -> Parts:
        """Return the sentence, the boundaries, what limits each strategy, and missing plans."""
        refused = (f"{name}: {why}" for name, why in self.refused.items())
        return (
            self.sentence,
            self.table,
            "Where each strategy is compute-bound:",
            self.limits,
            *refused,
        )


def _text(point: Mapping[str, int]) -> str:
    """Return a point as text, as in "B=64, X=4"."""
    return ", ".join(f"{name}={size}" for name, size in point.items())


def _neighbours(shape: tuple[int, ...]) -> Iterator[tuple[Place, Place]]:
    """Yield pairs of points of a grid that differ by one in one coordinate."""
    for place in itertools.product(*map(range, shape)):
        for axis, length in enumerate(shape):
            if place[axis] + 1 < length:
                yield place, (*place[:axis], place[axis] + 1, *place[axis + 1 :])


def regions(
    rows: Sequence[ComparedStrategy],
    names: Sequence[str],
    given: Mapping[str, Any],
    overlap: str | None = None,
) -> StrategyRegions:
    """Return the regions of strategies over one or two named sizes; see `StrategyComparison`.

    Args:
      rows: the compared strategies; those without named sizes are left out.
      names: sizes whose values are the hint times powers of two.
      given: values of further sizes by name.

    Raises:
      TableError: no strategies in named sizes, unknown names, or not one or two of them.
      FormulaError: the overlap is a schedule, which has no formula.
    """
    planned = [row for row in rows if row.plan is not None and row.plan.is_symbolic]
    known = {n: size for row in planned for n, size in (row.plan.sizes if row.plan else {}).items()}
    size_names = tuple(str(name) for name in dict.fromkeys((*names, *given)))
    unknown = [name for name in size_names if name not in known]
    refused = "; ".join(f"{row.name}: {row.refused}" for row in rows if row.refused)
    if refused and all(row.plan is None for row in rows):
        raise TableError(f"regions over {', '.join(size_names)}. No strategy has a plan: {refused}")
    # A map has one or two dimensions.
    if not planned or unknown or not 1 <= len(size_names) <= 2:
        raise TableError(
            f"regions over {', '.join(size_names) or 'no sizes'}: give one or two of the named "
            f"sizes {', '.join(known) or '(none: use sa.dims, or a Mesh with symbolic=True)'}."
        )
    sizes = {name: _values(name, given.get(name), int(known[name].hint)) for name in size_names}
    grids = dict(zip(sizes, np.meshgrid(*sizes.values(), indexing="ij"), strict=True))
    prices = tuple(grid_prices(row, grids, overlap) for row in planned)
    return StrategyRegions(sizes, tuple(planned), prices)


def _values(name: str, given: Any, hint: int) -> np.ndarray:
    """Return the values of a named size on the grid, sorted: `given`, or powers of two of the hint.

    E.g. nothing given and a hint of 4 -> 1, 2, 4, 8, 16, 32, 64. Values below 1 are left out.

    Raises:
      TableError: a value is no size.
    """
    if given is None:
        # A negative power divides, rounded down, so that values stay whole.
        sizes = (hint * 2**k if k >= 0 else hint // 2**-k for k in POWERS)
        return np.unique([size for size in sizes if size >= 1])
    values = np.unique(np.atleast_1d(np.asarray(given)))
    if values.dtype.kind not in "iu" or not len(values) or values.min() < 1:
        raise TableError(f"{name}={given!r:.60}: give whole numbers from 1 on.")
    return values
