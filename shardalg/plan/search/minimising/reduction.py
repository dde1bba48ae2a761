"""Exact reduction of a factor graph: labels and variables that cannot matter are removed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from shardalg.errors import StrategyError
from shardalg.plan.search.minimising.factor_graph import FactorGraph, Matrix, Vector

MOST_COMPARISONS = 3e7
"""Comparisons of labels of one variable beyond which its dominated labels are not looked for."""
MOST_ENTRIES = 4e8
"""Additions for the elimination of one variable beyond which it stays."""


class Eliminated(NamedTuple):
    """A variable that was minimised away.

    Attributes:
      variable: its number.
      labels: the numbers of its labels in the whole factor graph.
      costs: the cost of each label.
      near: per neighbour, its number, its labels, and the costs of pairs of labels.
    """

    variable: int
    labels: np.ndarray
    costs: Vector
    near: tuple[tuple[int, np.ndarray, Matrix], ...]


class ReducedGraph:
    """A factor graph that becomes smaller while its minimum stays.

    Attributes:
      costs: per variable that is left, the costs of its labels.
      labels: per variable, the numbers of its labels in the whole factor graph.
      near: per variable and neighbour, the costs of pairs of labels, a row per own label.
      constant: picoseconds that every solution costs.
      steps: (variable, label, other label) for each label that another one dominates, by numbers
        in the whole factor graph; (variable,) for each elimination; in their order.
    """

    def __init__(self, factors: FactorGraph) -> None:
        self.costs: dict[int, Vector] = dict(enumerate(factors.costs))
        self.labels = {n: np.arange(len(costs)) for n, costs in self.costs.items()}
        self.near: dict[int, dict[int, Matrix]] = {n: {} for n in self.costs}
        for (one, other), matrix in factors.edges.items():
            self.near[one][other], self.near[other][one] = matrix, matrix.T
        self.constant = 0.0
        self.steps: list[tuple[int, ...]] = []
        self._eliminated: list[Eliminated] = []

    def copy(self) -> ReducedGraph:
        """Return a copy of which labels can be removed; the arrays are shared."""
        made = ReducedGraph(FactorGraph())
        made.costs, made.labels = dict(self.costs), dict(self.labels)
        made.near = {variable: dict(near) for variable, near in self.near.items()}
        made.constant, made.steps = self.constant, [*self.steps]
        made._eliminated = self._eliminated
        return made

    def keep(self, variable: int, mask: np.ndarray) -> bool:
        """Keep only the labels of a mask; return whether any was removed."""
        if mask.all():
            return False
        self.labels[variable] = self.labels[variable][mask]
        self.costs[variable] = self.costs[variable][mask]
        for other, matrix in self.near[variable].items():
            self.near[variable][other] = matrix[mask]
            self.near[other][variable] = self.near[variable][other].T
        return True

    def make_consistent(self) -> None:
        """Remove every label that has no finite partner in some neighbour.

        Raises:
          StrategyError: a variable has no label left, so that there is no solution.
        """
        waiting = set(self.costs)
        while waiting:
            variable = waiting.pop()
            mask = np.isfinite(self.costs[variable])
            for matrix in self.near[variable].values():
                mask &= np.isfinite(matrix).any(1)
            if not mask.any():
                raise StrategyError(
                    "no assignment of layouts is possible: some operator or value has no layout "
                    "that its neighbours accept. Remove a pin or a ban."
                )
            if self.keep(variable, mask):
                waiting.update(self.near[variable])

    def remove_dominated(self, variable: int) -> bool:
        """Remove labels that cost at least as much as another one, whatever the neighbours choose.

        Returns whether any label was removed.
        """
        costs, near = self.costs[variable], self.near[variable]
        count = len(costs)
        width = sum(matrix.shape[1] for matrix in near.values())
        if count == 1 or count * count * width > MOST_COMPARISONS:
            return False
        # Entry (k, q) is the most by which label q can cost more than label k.
        # It is not a number, and removes nothing, if infinite costs leave it undecided.
        with np.errstate(invalid="ignore"):
            excess = costs[None, :] - costs[:, None]
            for matrix in near.values():
                difference = matrix[None, :, :] - matrix[:, None, :]
                # Two impossible pairs do not tell the labels apart.
                difference[np.isnan(difference)] = -math.inf
                excess = excess + difference.max(2)
        np.fill_diagonal(excess, math.inf)
        mask = np.ones(count, bool)
        # The most expensive labels go first, so that of two equal labels one stays.
        for label in np.argsort(-costs):
            better = np.flatnonzero(mask & (excess[label] <= 0))
            if len(better):
                names = self.labels[variable]
                self.steps.append((variable, int(names[label]), int(names[better[0]])))
                mask[label] = False
                excess[:, label] = math.inf
        return self.keep(variable, mask)

    def eliminate(self, variable: int) -> None:
        """Minimise away a variable with at most two neighbours.

        Its least cost for each pair of labels of the neighbours is added to these.
        """
        costs, near = self.costs[variable], [*self.near[variable].items()]
        places = tuple((other, self.labels[other], matrix) for other, matrix in near)
        self.steps.append((variable,))
        self._eliminated.append(Eliminated(variable, self.labels[variable], costs, places))
        for other, _ in near:
            del self.near[other][variable]
        if not near:
            self.constant += float(costs.min())
        elif len(near) == 1:
            ((other, matrix),) = near
            self.costs[other] = self.costs[other] + (costs[:, None] + matrix).min(0)
        else:
            (one, first), (other, second) = near
            rows = (first + costs[:, None]).T
            least = np.stack([(row[:, None] + second).min(0) for row in rows])
            held = self.near[one].get(other)
            self.near[one][other] = least if held is None else held + least
            self.near[other][one] = self.near[one][other].T
        del self.costs[variable], self.near[variable]

    def reduce(self) -> None:
        """Remove dominated labels and eliminate variables until neither is possible."""
        self.make_consistent()
        waiting = set(self.costs)
        while waiting:
            changed: set[int] = set()
            # Small variables first: their eliminations make dominated labels of others visible.
            for variable in sorted(waiting, key=lambda n: (len(self.costs[n]), n)):
                if variable in self.costs and self.remove_dominated(variable):
                    changed |= {variable, *self.near[variable]}
            changed |= self._eliminate_all()
            waiting = {variable for variable in changed if variable in self.costs}

    def _eliminate_all(self) -> set[int]:
        """Eliminate variables with at most two neighbours; return the neighbours of these."""
        changed: set[int] = set()
        found = [variable for variable in self.costs if len(self.near[variable]) <= 2]
        while found:
            variable = found.pop()
            if variable not in self.costs or len(self.near[variable]) > 2:
                continue
            near = [*self.near[variable]]
            sizes = [len(self.costs[other]) for other in (variable, *near)]
            if len(near) == 2 and math.prod(sizes) > MOST_ENTRIES:
                continue
            self.eliminate(variable)
            changed |= {*near}
            found += [other for other in near if len(self.near[other]) <= 2]
        return changed

    def solution(self, chosen: Mapping[int, int]) -> list[int]:
        """Return the label of every variable of the whole factor graph.

        Args:
          chosen: the label, as a number in the whole factor graph, of each variable that is left.
        """
        taken = dict(chosen)
        # A variable depends on neighbours that were eliminated later, or that are left.
        for step in reversed(self._eliminated):
            costs = step.costs.copy()
            for other, labels, matrix in step.near:
                costs = costs + matrix[:, np.searchsorted(labels, taken[other])]
            taken[step.variable] = int(step.labels[costs.argmin()])
        return [taken[variable] for variable in sorted(taken)]
