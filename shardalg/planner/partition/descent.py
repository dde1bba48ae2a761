"""Coordinate descent over what all nodes of a graph do: one problem, by seconds of the whole.

Every unit (a node, or a part of one that is decided alone) takes one of its options. A value is
made in the layout that its unit's option says, lies in a home, and is brought from there into
every distinct layout that a user's option asks for:
    cost = sum over units of their seconds
         + sum over values of min over homes h of
             first_move(made, h) + sum over asked d of move(h, d)
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
"""A value, and a layout of it."""
SWEEPS = 50
NEAR = 3
"""Units that answer a change of one before it is judged."""


@dataclass(frozen=True)
class Option:
    """What a unit may do: layouts that it asks of values, those that it makes, its seconds."""

    asks: tuple[Asked, ...]
    makes: tuple[Asked, ...]
    seconds: float

    @cached_property
    def made(self) -> dict[int, Layout]:
        """Value to the layout that it is made in."""
        return dict(self.makes)

    @cached_property
    def asked(self) -> dict[int, tuple[Layout, ...]]:
        """Value to the layouts that are asked of it."""
        found: dict[int, tuple[Layout, ...]] = {}
        for value, layout in self.asks:
            found[value] = (*found.get(value, ()), layout)
        return found


@dataclass(frozen=True, eq=False)
class UnitProblem:
    """Units with their options, and the values between them.

    Attributes:
      units: the options of each.
      given: layout of values that no unit makes; homes: values whose home is no choice.
      wanted: layouts that are asked of values from outside.
      alone: values with one user that may take their partial sums as they are.
      still: values that lie as they are made.
      move: `(value, source, target) -> seconds`, infinite where it cannot be.
      first_move: the same from where a value is made to its home, writing it included.
      known: homes that were asked for before.
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
        """Value to the unit that makes it."""
        return {v: n for n, options in enumerate(self.units) for v, _ in options[0].makes}

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """Value to the units that read it."""
        found: dict[int, dict[int, None]] = {}
        for n, options in enumerate(self.units):
            for value, _ in options[0].asks:
                found.setdefault(value, {})[n] = None
        return {value: tuple(units) for value, units in found.items()}

    @cached_property
    def outside(self) -> dict[int, tuple[Layout, ...]]:
        """Value to the layouts that are wanted of it."""
        found: dict[int, tuple[Layout, ...]] = {}
        for value, layout in self.wanted:
            found[value] = (*found.get(value, ()), layout)
        return found

    @cached_property
    def values(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(dict.fromkeys((*self.makers, *self.given, *self.users, *self.outside)))

    def made(self, value: int, taken: Sequence[int]) -> Layout:
        """The layout in which a value is made where units take these options."""
        unit = self.makers.get(value)
        if unit is None:
            return self.given[value]
        return self.units[unit][taken[unit]].made[value]

    def asked(self, value: int, taken: Sequence[int]) -> tuple[Layout, ...]:
        """The distinct layouts that are asked of a value."""
        units, users = self.units, self.users.get(value, ())
        asks = [layout for n in users for layout in units[n][taken[n]].asked[value]]
        return tuple(dict.fromkeys([*asks, *self.outside.get(value, ())]))

    def result_sharding(self, value: int, taken: Sequence[int]) -> tuple[float, Layout]:
        """Seconds of all moves of a value, and the home that makes them fewest."""
        key = (value, self.made(value, taken), self.asked(value, taken))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.nearest(*key)
        return found

    def nearest(self, value: int, made: Layout, asked: tuple[Layout, ...]) -> tuple[float, Layout]:
        """`result_sharding` of a value that is made and asked for so."""
        if value in self.alone and asked == (made,):
            return self.first_move(value, made, made), made
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
        """Where a value may lie: as made, without its partial sums, or as a user asks for it."""
        found = (made, *asked)
        return tuple(dict.fromkeys(interned(at.mesh, at.shape, at.dims, ()) for at in found))

    def price(self, value: int, made: Layout, stops: Sequence[Layout]) -> float:
        """Seconds from where a value is made to its home, the first stop, and from there on."""
        result_sharding, *asked = stops
        return self.first_move(value, made, result_sharding) + sum(
            self.move(value, result_sharding, d) for d in asked
        )

    def total(self, taken: Sequence[int]) -> float:
        """Seconds of everything."""
        compute = sum(options[k].seconds for options, k in zip(self.units, taken, strict=True))
        return compute + sum(self.result_sharding(value, taken)[0] for value in self.values)

    @cached_property
    def near(self) -> tuple[tuple[int, ...], ...]:
        """Per unit, the values whose moves depend on its option."""
        return tuple(
            tuple(dict.fromkeys(v for v, _ in (*options[0].asks, *options[0].makes)))
            for options in self.units
        )

    def around(self, unit: int, taken: Sequence[int]) -> float:
        """Seconds of a unit and of the moves that depend on its option."""
        moves = sum(self.result_sharding(value, taken)[0] for value in self.near[unit])
        return self.units[unit][taken[unit]].seconds + moves


def descend(problem: UnitProblem, start: Sequence[int]) -> tuple[int, ...]:
    """Better and better options, one unit at a time, until none is better alone."""
    taken = list(start)
    for _ in range(SWEEPS):
        before = tuple(taken)
        for unit, options in enumerate(problem.units):
            if len(options) > 1:
                _improve(problem, unit, taken)
        if tuple(taken) == before:
            break
    return tuple(taken)


def _improve(problem: UnitProblem, unit: int, taken: list[int]) -> None:
    kept = taken[unit]
    best = problem.around(unit, taken)
    for option in range(len(problem.units[unit])):
        taken[unit] = option
        now = problem.around(unit, taken)
        # A gain below the rounding of sums is none: the sweeps end.
        if now < best * (1 - 1e-12):
            best, kept = now, option
    taken[unit] = kept


def rippled(problem: UnitProblem, start: Sequence[int]) -> tuple[int, ...]:
    """Better options where several units have to change together, as along a chain of operators.

    Every option of every unit is tried with its nearest units answering it, until none is better.
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
                if now < best * (1 - 1e-12):
                    best, taken = now, trial
        if best == before:
            break
    return tuple(taken)


def _nearest(problem: UnitProblem, unit: int) -> tuple[int, ...]:
    """Units that share a value with this one, then those around them: `NEAR` in all."""
    found = [unit]
    for reached in found:
        for value in problem.near[reached]:
            makers = [problem.makers[value]] if value in problem.makers else []
            others = (*problem.users.get(value, ()), *makers)
            found += [n for n in dict.fromkeys(others) if n not in found]
        if len(found) > NEAR:
            break
    return tuple(found[1 : NEAR + 1])


def best_of(problem: UnitProblem, start: Sequence[int], *, more: int) -> tuple[int, ...]:
    """The best of the descents from a start and from `more` random ones, by a fixed seed.

    With random starts, units near each other are then changed together too (`rippled`).
    """
    first = descend(problem, start)
    if not more:
        return first
    draw = random.Random(0)
    summed = [
        [k for k, o in enumerate(options) if not any(at.unreduced for _, at in o.asks)]
        for options in problem.units
    ]
    drawn = [[draw.choice(options) for options in summed] for _ in range(more)]
    found = [first, *(descend(problem, one) for one in drawn)]
    ends = (first, min(found, key=problem.total))
    return min((rippled(problem, end) for end in dict.fromkeys(ends)), key=problem.total)
