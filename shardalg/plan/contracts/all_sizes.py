"""Statements about all sizes: proved in a region, refuted at a point, or not decided.

A plan with named sizes makes the same decisions wherever the recorded questions of planning have
the same answers (`planner.guards`). There the collectives are those of the plan, and their bytes
are its formulas. This is the region of a proof. At sizes next to the hints that are not in it,
plans are made to look for a refutation.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardalg.errors import ContractError, ShardalgError
from shardalg.plan.contracts.inequalities import Claims, Inequality
from shardalg.plan.contracts.size_proofs import follows
from shardalg.sizes.checked import Checked
from shardalg.sizes.facts import WHOLE, Fact

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan
    from shardalg.sizes.decided import Guards

Point = Mapping[str, int]

LEAST_POINTS = 50
"""A proof for fewer points than this is not reported as one for all sizes."""
MOST_POINTS = 120
ROUNDS = 8
WIDTH = 24
"""Points whose neighbours are tried in one round."""
SEED = 20261128


@dataclass(frozen=True, eq=False)
class SizeScope:
    """The sizes that a contract is about.

    Attributes:
      plan: a plan with named sizes.
      free: the names that vary; other named sizes have their hints.
      domain: the conditions of the user.

    Raises:
      ContractError: the hints do not fulfil a condition.
    """

    plan: Plan
    free: tuple[str, ...]
    domain: tuple[Fact, ...]

    def __post_init__(self) -> None:
        """Check the user's conditions at the hints, where every proof starts."""
        for fact in self.domain:
            if not fact.holds(self.hints):
                raise ContractError(
                    f"the condition {fact_text(fact)!r} is false at the hints of the plan "
                    f"({point_text(self.hints)}): plan with hints that fulfil it."
                )

    @cached_property
    def hints(self) -> dict[str, int]:
        """The number of each named size at which the plan was made."""
        return {name: size.hint for name, size in self.plan.sizes.items()}

    @cached_property
    def fixed(self) -> dict[str, int]:
        """The named sizes that do not vary, with their hints."""
        return {name: hint for name, hint in self.hints.items() if name not in self.free}

    def region(self, *, with_memory: bool) -> SameDecisions | None:
        """Return the region in which planning decides as at the hints.

        None means that the questions of planning are not known.

        Args:
          with_memory: whether the peak memory must be at the same instruction, too.
        """
        if with_memory not in self._regions:
            guards = self.plan._guards
            found = None if guards is None else SameDecisions(self, guards, with_memory)
            self._regions[with_memory] = found
        return self._regions[with_memory]

    @cached_property
    def _regions(self) -> dict[bool, SameDecisions | None]:
        """The regions so far, by `with_memory`."""
        return {}

    @cached_property
    def next_points(self) -> list[dict[str, int]]:
        """Points of the domain that differ from the hints in one size: twice it, and half of it.

        E.g. hints B=8, X=2 -> B=16; B=4; X=4. A half of 1 or of an odd size is left out.
        """
        points = []
        for name in self.free:
            hint = self.hints[name]
            # A dimension of size 1 is special, because it broadcasts, so 2 is not halved.
            sizes = [2 * hint, *([hint // 2] if hint % 2 == 0 and hint > 2 else [])]
            points += [{**self.hints, name: size} for size in sizes]
        return [point for point in points if self.has(point)]

    def has(self, point: Point) -> bool:
        """Return whether a point fulfils the user's conditions."""
        return all(fact.holds(point) for fact in self.domain)

    @cached_property
    def _made(self) -> dict[tuple[int, ...], Plan | None]:
        """The plans that were made at points; None where the function has no plan."""
        return {}

    def made_at(self, point: Point) -> Plan | None:
        """Return the plan of the function with numbers as sizes; None if it has no plan there.

        Each plan is made once and kept, because every statement of the contract asks for it.

        Args:
          point: a number for each named size, such as {"B": 16, "X": 2}.
        """
        key = tuple(point.values())
        if key not in self._made:
            try:
                plan = self.plan.at(**point)
                # A plan makes its program on first use. It is used here, so that a failure of this
                # step counts as "no plan", too.
                _ = plan.program
                self._made[key] = plan
            except ShardalgError:
                self._made[key] = None
        return self._made[key]


@dataclass(frozen=True, eq=False)
class SameDecisions:
    """The sizes of a scope at which planning decides as at the hints.

    Attributes:
      scope: the sizes that the contract is about.
      guards: the questions that planning asked about sizes.
      with_memory: whether the peak memory is at the same instruction, too.
    """

    scope: SizeScope
    guards: Guards
    with_memory: bool

    @cached_property
    def points(self) -> list[dict[str, int]]:
        """Some points of the region: the hints, and neighbours of points that are in it.

        A neighbour has one or two other sizes (`_neighbours`). The seed is fixed, so that a
        contract has the same answer in each run. At most about `MOST_POINTS` points are collected.
        """
        generator, hints = random.Random(SEED), dict(self.scope.hints)
        # Breadth-first search from the hints. Points are identified by their sizes in order.
        found = {tuple(hints.values()): hints}
        tried = set(found)
        front = [hints]
        for _ in range(ROUNDS):
            # The front grows with each round, so only a sample of it is extended.
            starts = front if len(front) <= WIDTH else generator.sample(front, WIDTH)
            near: dict[tuple[int, ...], dict[str, int]] = {}
            for point in starts:
                for other in _neighbours(point, hints, self.scope.free):
                    key = tuple(other.values())
                    if key not in tried and self.scope.has(other):
                        tried.add(key)
                        near[key] = other
            # All new neighbours are checked in one call. Only those inside are extended further.
            points = list(near.values())
            holds = self.guards.holding(points, with_memory=self.with_memory) if points else ()
            front = list(itertools.compress(points, holds))
            found.update((tuple(point.values()), point) for point in front)
            if not front or len(found) >= MOST_POINTS:
                break
        return list(found.values())

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The size of each name at the points."""
        names = self.scope.hints
        return {name: np.array([point[name] for point in self.points]) for name in names}

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """Facts that hold in the whole region: the user's conditions, and answers of planning.

        A memoised call may have its result for other reasons than the recorded ones, so the facts
        of calls need not hold.
        """
        known = dict.fromkeys((*self.scope.domain, *self.guards.whole.facts, *self.guards.traced))
        fixed = self.scope.fixed
        found = dict.fromkeys(Fact(fact.formula.subs(fixed), fact.relation) for fact in known)
        return tuple(fact for fact in found if fact.formula.number is None)

    @property
    def is_large(self) -> bool:
        """Whether it has enough points, and several values of each name that varies."""
        several = all(len(set(self.arrays[name].tolist())) > 1 for name in self.scope.free)
        return several and len(self.points) >= LEAST_POINTS

    @cached_property
    def text(self) -> str:
        """The user's conditions, and the points that were found in the region."""
        domain = [fact_text(fact) for fact in self.scope.domain]
        where = [*domain, f"planning decides as at {point_text(self.scope.hints)}"]
        columns = {name: self.arrays[name] for name in self.scope.free}
        ranges = ", ".join(f"{name} {c.min()} to {c.max()}" for name, c in columns.items())
        return f"all sizes where {', '.join(where)}; {len(self.points)} points tried: {ranges}"


def _neighbours(point: Point, hints: Point, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield points in which one size is larger or smaller, or two sizes are twice as large.

    Args:
      point: the size of each name. hints: the sizes at which the plan was made.
      names: the names whose sizes vary.
    """
    for name in names:
        size, hint = point[name], hints[name]
        yield {**point, name: 2 * size}
        yield {**point, name: 3 * size}
        if size % 2 == 0 and size > 2:
            yield {**point, name: size // 2}
        # Smaller steps stay inside a region that ends before twice the hint. E.g. a hint of 8 has
        # steps of 4 and 2.
        for divisor in (2, 4, 16, 64):
            if hint % divisor == 0:
                yield {**point, name: size + hint // divisor}
    # A quotient of two sizes, such as the share of a device, stays the same in these.
    for one, other in itertools.combinations(names, 2):
        yield {**point, one: 2 * point[one], other: 2 * point[other]}


def point_text(point: Point) -> str:
    """Return sizes as text, such as "B=8, X=2"."""
    return ", ".join(f"{name}={size}" for name, size in point.items())


def fact_text(fact: Fact) -> str:
    """Return a condition on sizes as text for users.

    >>> from shardalg.sizes.formula import symbols
    >>> B, X = symbols("B X")
    >>> fact_text(Fact(B / X, WHOLE)), fact_text(Fact(X - 2, ">= 0"))
    ('X divides B', 'X - 2 >= 0')
    """
    if fact.relation == WHOLE:
        above, below = fact.formula.fraction
        return f"{below} divides {above}"
    return str(fact)


@dataclass(frozen=True)
class Refutation:
    """A point at which a plan that was made there breaks a statement.

    Attributes:
      point: the size of each name.
      plan: the plan in numbers.
      claim: the inequality that fails.
    """

    point: Mapping[str, int]
    plan: Plan
    claim: Inequality


Asked = Callable[["Plan", Mapping[str, int]], Claims]
"""Returns the claims of a statement about a plan: one with named sizes if the point is {}."""


def refuted(scope: SizeScope, claims: Claims, asked: Asked) -> Refutation | None:
    """Return a point at which a statement is false; None if none was found.

    Points of the region at which formulas say so come first, then the points next to the hints.
    Each is confirmed by a plan that is made there.

    Args:
      claims: the claims of the statement about the plan with named sizes.
      asked: returns the claims of the statement about a plan that is made at a point.
    """
    for point in _suspects(scope, claims):
        plan = scope.made_at(point)
        # Where the function has no plan, the statement says nothing.
        if plan is None:
            continue
        # The claims of a plan in numbers have no names, so each holds or fails.
        claims_here = asked(plan, point)
        broken_claim = next(
            (claim for claim in claims_here.claims if not claim.fact.holds({})), None
        )
        if broken_claim is not None:
            return Refutation(point, plan, broken_claim)
    return None


def _suspects(scope: SizeScope, claims: Claims) -> Iterator[Point]:
    """Yield points at which a statement may be false.

    First the points of the region at which a formula exceeds its bound, one per claim; then the
    points next to the hints, where the formulas need not hold.
    """
    region = scope.region(with_memory=claims.about_memory)
    if region is not None:
        for claim in claims.claims:
            holds = Checked([claim.fact], {}).hold(region.arrays)
            yield from [region.points[number] for number in np.flatnonzero(~holds)[:1]]
    yield from scope.next_points


def undecided(scope: SizeScope, claims: Claims) -> str:
    """Return why a statement that was not refuted is not proved either; "" if it is proved.

    Args:
      claims: the claims of the statement about the plan with named sizes.
    """
    region = scope.region(with_memory=claims.about_memory)
    if region is None:
        return f"the questions of planning are not known ({scope.plan.unguarded})"
    if not region.is_large:
        return f"a proof would cover too few sizes: {region.text}"
    if claims.unknown:
        return claims.unknown
    # Each claim must follow from the conditions of the user and the recorded answers of planning.
    for claim in claims.claims:
        difference = Fact(claim.fact.formula.subs(scope.fixed), claim.fact.relation)
        if not follows(difference, region.facts):
            return (
                f"{claim.amount} is at most {claim.bound} at all tried points, which is not proved "
                f"for {region.text}"
            )
    return ""
