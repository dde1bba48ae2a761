"""Best-first search (A*): the cheapest chain of moves by a lower bound of the remaining cost.

A `SearchProblem` defines the states, the moves with their prices, and the bound. Even blocks,
uneven blocks, unequal links and all-to-alls in open orders are one problem each. Closed forms are
tried before all of them (`closed_forms.py`).
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
"""Elements (or seconds) that a device sends, and the number of moves that send."""
FREE: Cost = (0, 0)


class SearchProblem(Protocol, Generic[State, Move]):
    """The moves from a state, and a lower bound of the remaining cost."""

    def least(self, state: State) -> Any:
        """Return a lower bound of the cost from a state to the goal; 0 at the goal."""

    def is_goal(self, state: State) -> bool:
        """Return whether a state is a goal."""

    def onward(self, state: State, cost: Cost) -> Iterable[tuple[Cost, State, Move]]:
        """Yield every move from a state of this cost: its price, the next state, and the move."""


def best_first(
    problem: SearchProblem[State, How],
    starts: Iterable[State],
    *,
    limit: Cost | None = None,
    most: float = inf,
    latest: bool = False,
) -> tuple[State, list[tuple[State, How]]] | None:
    """Return the cheapest path from any start: its start, and each state with the move from it.

    None if there is no path below the limit, or if the search gives up.

    Args:
      limit: a cost that the path must stay below.
      most: the number of states after which the search gives up.
      latest: whether among paths of equal bounds the one found last is continued first.
    """
    return _SearchQueue(problem, limit, latest=latest).run(starts, most)


class _SearchQueue(Generic[State, How]):
    """The queue of states, ordered by the lower bound of a path through each of them.

    Attributes:
      heap: (bound of a path through the state, a number, the cost up to the state, the state).
      numbers: counts up or down, and so orders the states of equal bounds.
      best: per state, the cost of the cheapest known path to it.
      came: state to the state before it and the move between.
    """

    def __init__(
        self, problem: SearchProblem[State, How], limit: Cost | None, *, latest: bool
    ) -> None:
        """Make an empty queue; the arguments are those of `best_first`."""
        self.problem, self.limit = problem, limit
        self.best: dict[State, Cost] = {}
        self.came: dict[State, tuple[State, How]] = {}
        self.heap: list[tuple[Any, ...]] = []
        # Of equal bounds the heap gives the state with the lowest number: with `latest` the newest.
        self.numbers = count(0, -1 if latest else 1)

    def run(
        self, starts: Iterable[State], most: float
    ) -> tuple[State, list[tuple[State, How]]] | None:
        """Return the path to the first goal; None if no goal is among the first `most` states."""
        problem, heap, best = self.problem, self.heap, self.best
        for state in starts:
            self.reach(FREE, state)
        while heap and most > 0:
            _, _, cost, state = heappop(heap)
            # A cheaper path to this state was found after it was queued. The heap keeps the old
            # entry, because removing it would take linear time.
            if cost != best[state]:
                continue
            # The bound never exceeds the true cost, so the first goal that leaves the heap is
            # cheapest.
            if problem.is_goal(state):
                return self.way(state)
            (sent, hops), most = cost, most - 1
            for (price, more), after, move in problem.onward(state, cost):
                if self.reach((sent + price, hops + more), after):
                    self.came[after] = state, move
        return None

    def reach(self, cost: Cost, state: State) -> bool:
        """Queue a state, and return whether it was queued.

        A state is not queued if a path of at most this cost to it is known, or if the bound of all
        paths through it is not below the limit.
        """
        known = self.best.get(state)
        if known is not None and known <= cost:
            return False
        left = self.problem.least(state)
        # If anything has to be sent, at least one more move sends.
        bound = cost[0] + left, cost[1] + (left > 0)
        if self.limit is not None and bound >= self.limit:
            return False
        self.best[state] = cost
        heappush(self.heap, (bound, next(self.numbers), cost, state))
        return True

    def way(self, state: State) -> tuple[State, list[tuple[State, How]]]:
        """Return the start of the path to a state, and its (state, move) pairs in order."""
        way = []
        while state in self.came:
            way.append(self.came[state])
            state = self.came[state][0]
        return state, way[::-1]
