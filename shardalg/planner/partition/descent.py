"""Coordinate descent: one option per unit of a graph, so that a whole step takes fewest seconds.

A unit is a node, or a part of a node that is decided separately. It uses one of its options. The
option determines in which sharding the unit computes its results and reads its operands. A computed
value is moved to its result sharding once, and from there to every distinct sharding in which the
options of its readers read it:
    cost = sum over units of their seconds
         + sum over values of min over result shardings h of
             first_move(made, h) + sum over required d of move(h, d)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.sharding import Sharding

Layout = Sharding
Asked = tuple[int, Layout]
"""A value, and a sharding in which a unit computes or reads it."""
SWEEPS = 50
"""The largest number of sweeps over all units. Sweeps usually end much earlier, at a minimum."""
NEAR = 3
"""The number of neighbours that take their best options after a trial has changed one unit.

The total is compared only then, because a change often pays only if the neighbours follow.
"""


@dataclass(frozen=True)
class Option:
    """One way to compute a unit, which is a node or a part of one that is decided separately.

    Attributes:
      asks: (value, sharding in which the unit reads it).
      makes: (value, sharding in which the unit computes it).
      seconds: the time of the unit itself, without moves of its operands and results.
    """

    asks: tuple[Asked, ...]
    makes: tuple[Asked, ...]
    seconds: float

    @cached_property
    def made(self) -> dict[int, Layout]:
        """A dictionary from each value that the unit computes to its computed sharding."""
        return dict(self.makes)

    @cached_property
    def asked(self) -> dict[int, tuple[Layout, ...]]:
        """A dictionary from each value that the unit reads to its required shardings."""
        found: dict[int, tuple[Layout, ...]] = {}
        for value, layout in self.asks:
            found[value] = (*found.get(value, ()), layout)
        return found


@dataclass(frozen=True, eq=False)
class UnitProblem:
    """The problem to minimise: units with their options, and prices of moves between shardings.

    A unit is an operator, or a group of values that share a sharding. An option gives the shardings
    in which the unit reads and computes values. A move is a reshard. A solution (`taken`) is a
    sequence with the number of the chosen option of every unit.

    Attributes:
      units: the options of each unit.
      given: the sharding of each value that no unit computes.
      value_shardings: the result sharding of each value for which it is fixed, so that it is not
        searched.
      wanted: (value, sharding) that readers other than units require, for example the function's
        results.
      alone: values with one reader, which may read their partial sums.
      still: values whose result sharding must be the one in which they are computed, so that only
        their readers move them.
      move: `(value, source, target) -> seconds`; infinite if the move does not exist.
      first_move: like `move`, for the move from the computed sharding to the result sharding. Its
        seconds include writing the value.
      known: a cache of `result_sharding`.
    """

    units: tuple[tuple[Option, ...], ...]
    given: Mapping[int, Layout]
    value_shardings: Mapping[int, Layout]
    wanted: tuple[Asked, ...]
    alone: frozenset[int]
    move: Callable[[int, Layout, Layout], float]
    first_move: Callable[[int, Layout, Layout], float]
    still: frozenset[int] = frozenset()
    known: dict[tuple[object, ...], tuple[float, Layout]] = field(default_factory=dict)

    @cached_property
    def makers(self) -> dict[int, int]:
        """A dictionary from each computed value to the number of the unit that computes it."""
        # All options of a unit make and read the same values, so the first option names them all.
        return {v: n for n, options in enumerate(self.units) for v, _ in options[0].makes}

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """A dictionary from each value to the numbers of the units that read it.

        A unit is a node, a part of it, or a group of values that share a sharding.
        """
        found: dict[int, dict[int, None]] = {}
        for n, options in enumerate(self.units):
            for value, _ in options[0].asks:
                found.setdefault(value, {})[n] = None
        return {value: tuple(units) for value, units in found.items()}

    @cached_property
    def outside(self) -> dict[int, tuple[Layout, ...]]:
        """The entries of `wanted` by value: the shardings that readers require of each value."""
        found: dict[int, tuple[Layout, ...]] = {}
        for value, layout in self.wanted:
            found[value] = (*found.get(value, ()), layout)
        return found

    @cached_property
    def values(self) -> tuple[int, ...]:
        """The values that units compute or read, and all other values of the problem, each once."""
        return tuple(dict.fromkeys((*self.makers, *self.given, *self.users, *self.outside)))

    def made(self, value: int, taken: Sequence[int]) -> Layout:
        """Return the sharding in which a value is computed.

        Args:
          taken: the number of the chosen option of every unit.
        """
        unit = self.makers.get(value)
        if unit is None:
            return self.given[value]
        return self.units[unit][taken[unit]].made[value]

    def asked(self, value: int, taken: Sequence[int]) -> tuple[Layout, ...]:
        """Return the distinct shardings in which the readers of a value read it.

        Args:
          value: index of the value.
          taken: for each unit (a node, or a group of values that share a sharding), the number of
            its chosen option. The option says in which sharding the unit reads its operands.
        """
        # Equal shardings of several readers are moved to once.
        units, users = self.units, self.users.get(value, ())
        asks = [layout for n in users for layout in units[n][taken[n]].asked[value]]
        return tuple(dict.fromkeys([*asks, *self.outside.get(value, ())]))

    def result_sharding(self, value: int, taken: Sequence[int]) -> tuple[float, Layout]:
        """Return (seconds, sharding): the result sharding of a value that costs the least moves.

        The moves lead from the sharding in which the value is computed to the result sharding, and
        from there to the sharding that each reader requires. The seconds are those of all of them.

        Args:
          taken: the number of the chosen option of every unit.
        """
        key = (value, self.made(value, taken), self.asked(value, taken))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.nearest(*key)
        return found

    def nearest(self, value: int, made: Layout, asked: tuple[Layout, ...]) -> tuple[float, Layout]:
        """Return the seconds of a value's moves and its best result sharding, without a cache.

        The value is moved from the sharding in which it is computed to its result sharding, and
        from there to each reader. The result sharding is fixed, or the cheapest of `places`: the
        computed one, and those of the readers.

        Args:
          made: the sharding in which the value is computed.
          asked: the shardings in which it is read.
        """
        # A single reader (`alone`) takes the value as it is made, even as partial sums.
        if value in self.alone and asked == (made,):
            return self.first_move(value, made, made), made
        # Values in `still` keep the sharding in which they are computed: only readers move them.
        others = () if value in self.still else asked
        value_shardings = (
            (self.value_shardings[value],)
            if value in self.value_shardings
            else self.places(made, others)
        )
        prices = [
            self.price(value, made, (result_sharding, *asked))
            for result_sharding in value_shardings
        ]
        least = min(prices)
        return least, value_shardings[prices.index(least)]

    def places(self, made: Layout, asked: Sequence[Layout]) -> tuple[Layout, ...]:
        """Return the candidate result shardings of a value: its computed and its read shardings.

        Partial sums are removed, because a result sharding is reduced.
        """
        # All other shardings are excluded: a value would be moved to one of them only to be moved
        # again for each reader.
        found = (made, *asked)
        return tuple(dict.fromkeys(interned(at.mesh, at.shape, at.dims, ()) for at in found))

    def price(self, value: int, made: Layout, stops: Sequence[Layout]) -> float:
        """Return the seconds of all moves of a value, for a given result sharding.

        Args:
          made: the sharding in which the value is computed.
          stops: the result sharding, then the shardings in which the value is read.
        """
        result_sharding, *asked = stops
        return self.first_move(value, made, result_sharding) + sum(
            self.move(value, result_sharding, d) for d in asked
        )

    def total(self, taken: Sequence[int]) -> float:
        """Return the seconds of one step: of all units, and of the moves of values between them.

        A unit is an operator, or a group of values that share a sharding. A move is a reshard.

        Args:
          taken: for each unit, the number of its chosen option (a way to shard it).
        """
        compute = sum(options[k].seconds for options, k in zip(self.units, taken, strict=True))
        return compute + sum(self.result_sharding(value, taken)[0] for value in self.values)

    @cached_property
    def near(self) -> tuple[tuple[int, ...], ...]:
        """Per unit, its operands and results: the values whose moves depend on its option."""
        return tuple(
            tuple(dict.fromkeys(v for v, _ in (*options[0].asks, *options[0].makes)))
            for options in self.units
        )

    def around(self, unit: int, taken: Sequence[int]) -> float:
        """Return the seconds of a unit, and of the moves of its operands and results.

        Args:
          taken: the number of the chosen option of every unit.
        """
        moves = sum(self.result_sharding(value, taken)[0] for value in self.near[unit])
        return self.units[unit][taken[unit]].seconds + moves


def descend(problem: UnitProblem, start: Sequence[int]) -> tuple[int, ...]:
    """Return options (one number per unit) that no change of a single unit improves.

    A unit is a node, or another thing that is decided at once. Each has several options.

    Args:
      start: the options to begin with.
    """
    taken = list(start)
    # No change raises the total, so the sweeps end at a local minimum; `SWEEPS` bounds the time.
    for _ in range(SWEEPS):
        before = tuple(taken)
        for unit, options in enumerate(problem.units):
            if len(options) > 1:
                _improve(problem, unit, taken)
        if tuple(taken) == before:
            break
    return tuple(taken)


def _improve(problem: UnitProblem, unit: int, taken: list[int]) -> None:
    """Set `taken[unit]` to the unit's best option, if all other units keep theirs."""
    kept = taken[unit]
    best = problem.around(unit, taken)
    for option in range(len(problem.units[unit])):
        taken[unit] = option
        now = problem.around(unit, taken)
        # A gain below the rounding of sums does not count, or the sweeps would not end.
        if now < best * (1 - 1e-12):
            best, kept = now, option
    taken[unit] = kept


def descend_together(problem: UnitProblem, start: Sequence[int]) -> tuple[int, ...]:
    """Return options that no change of one unit improves, even if its neighbours adapt.

    Each trial sets another option of one unit, then lets its nearest units choose their best
    options. In a chain of operators a change may help only if the whole chain changes.

    Args:
      start: the option of each unit to begin with.
    """
    taken, best = list(start), problem.total(start)
    for _ in range(SWEEPS):
        before = best
        for unit, options in enumerate(problem.units):
            answering = _nearest(problem, unit)
            for option in range(len(options) if len(options) > 1 else 0):
                trial = [*taken[:unit], option, *taken[unit + 1 :]]
                for other in answering:
                    _improve(problem, other, trial)
                now = problem.total(trial)
                # A difference by rounding is no improvement; the sweeps might not end.
                if now < best * (1 - 1e-12):
                    best, taken = now, trial
        if best == before:
            break
    return tuple(taken)


def _nearest(problem: UnitProblem, unit: int) -> tuple[int, ...]:
    """Return the `NEAR` units of a graph that are nearest to a unit, the nearest first.

    A unit is an operator, or a part of one, that is decided on its own. Two units are at distance
    one if both compute or read one value.
    """
    # Breadth-first search: `reached` grows while it is read, so that nearer units come first.
    reached = [unit]
    for current in reached:
        for value in problem.near[current]:
            # An argument of the function has readers, but no unit that computes it.
            makers = [problem.makers[value]] if value in problem.makers else []
            neighbours = (*problem.users.get(value, ()), *makers)
            reached += [n for n in dict.fromkeys(neighbours) if n not in reached]
        if len(reached) > NEAR:
            break
    # Entry 0 is the unit itself.
    return tuple(reached[1 : NEAR + 1])


def best_of(problem: UnitProblem, start: Sequence[int], *, more: int) -> tuple[int, ...]:
    """Return the best options that coordinate descent finds: an option number per unit.

    The descent runs from `start` and from `more` random points; the seed is fixed. If `more` is not
    0, `descend_together` improves the end of the first descent and the best end. It also tries
    changes of one unit after which the neighbours adapt.
    """
    first = descend(problem, start)
    if not more:
        return first
    draw = random.Random(0)
    # An option that reads partial sums costs infinitely much unless another one makes them. Random
    # points therefore take only options that read no partial sum (`asks`: operands' shardings).
    finite = [
        [
            number
            for number, option in enumerate(options)
            if not any(layout.unreduced for _, layout in option.asks)
        ]
        for options in problem.units
    ]
    starts = [[draw.choice(numbers) for numbers in finite] for _ in range(more)]
    minima = [first, *(descend(problem, one) for one in starts)]
    # Joint changes cost far more time than a descent, so only two minima are improved by them. The
    # first one is nearest to completion.
    ends = (first, min(minima, key=problem.total))
    return min((descend_together(problem, end) for end in dict.fromkeys(ends)), key=problem.total)
