"""One search for all chains of moves: the cheapest first, by a lower bound of what is left (A*).

A `SearchProblem` has the states, the moves from each with their prices, and the bound.
Even blocks, blocks of which a size does not divide, unequal links and all-to-alls in open orders
are one each; closed forms come before all of them (`closed_forms.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)
How = TypeVar("How")
Move = TypeVar("Move", covariant=True)
Cost = tuple[Any, int]
"""Elements that a device sends, and moves that send."""
FREE: Cost = (0, 0)


class SearchProblem(Protocol, Generic[State, Move]):
    """What may be done from a state, and what it costs at least to go on from there."""

    def least(self, state: State) -> Any:
        """Elements that are sent from a state at least, 0 at the goal."""

    def is_goal(self, state: State) -> bool:
        """Whether a way ends here."""

    def onward(self, state: State, cost: Cost) -> Iterable[tuple[Cost, State, Move]]:
        """Every move from a state that costs so much, with its price and where it leads."""


def best_first(
    problem: SearchProblem[State, How],
    starts: Iterable[State],
    *,
    limit: Cost | None = None,
    most: float = inf,
    latest: bool = False,
) -> tuple[State, list[tuple[State, How]]] | None:
    """The cheapest way from any start: where it begins, and each state with the move from it on.

    Args:
      limit: a cost that the way has to stay below.
      most: states after which the search gives up.
      latest: whether of ways that may cost as much the one found last goes on.
    """
    return _SearchQueue(problem, limit, latest=latest).run(starts, most)


class _SearchQueue(Generic[State, How]):
    """States to go on from, the one first from which the goal may be nearest.

    Attributes:
      heap: (what a way by a state costs at least, a number, the cost of the way here, the state).
      came: of each state the one before it, and the move.
    """

    def __init__(
        self, problem: SearchProblem[State, How], limit: Cost | None, *, latest: bool
    ) -> None:
        self.problem, self.limit = problem, limit
        self.best: dict[State, Cost] = {}
        self.came: dict[State, tuple[State, How]] = {}
        self.heap: list[tuple[Any, ...]] = []
        self.numbers = count(0, -1 if latest else 1)

    def run(
        self, starts: Iterable[State], most: float
    ) -> tuple[State, list[tuple[State, How]]] | None:
        """The way to the first goal reached; None without one within `most` states."""
        problem, heap, best = self.problem, self.heap, self.best
        for state in starts:
            self.reach(FREE, state)
        while heap and most > 0:
            _, _, cost, state = heappop(heap)
            if cost != best[state]:
                continue
            if problem.is_goal(state):
                return self.way(state)
            (sent, hops), most = cost, most - 1
            for (price, more), after, move in problem.onward(state, cost):
                if self.reach((sent + price, hops + more), after):
                    self.came[after] = state, move
        return None

    def reach(self, cost: Cost, state: State) -> bool:
        """Whether this is the cheapest way to a state so far, and may lead on to the goal."""
        known = self.best.get(state)
        if known is not None and known <= cost:
            return False
        left = self.problem.least(state)
        turn = cost[0] + left, cost[1] + (left > 0)
        if self.limit is not None and turn >= self.limit:
            return False
        self.best[state] = cost
        heappush(self.heap, (turn, next(self.numbers), cost, state))
        return True

    def way(self, state: State) -> tuple[State, list[tuple[State, How]]]:
        """Back from the goal."""
        way = []
        while state in self.came:
            way.append(self.came[state])
            state = self.came[state][0]
        return state, way[::-1]
