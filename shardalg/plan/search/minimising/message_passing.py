"""A lower bound of a factor graph, by sequential tree-reweighted message passing.

Source: V. Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization",
IEEE TPAMI 28(10), 2006. Each message moves costs from an edge to one of its variables. This changes
no total, so that the sum of the least costs of all variables and edges is always a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardalg.plan.search.minimising.factor_graph import Matrix, Vector
from shardalg.plan.search.minimising.reduction import ReducedGraph

CAP = 1e13
"""Picoseconds in place of an infinite cost, because infinite messages have no differences."""
MOST_DESCENTS = 20
"""Number of passes of the improvement of single labels."""

Dual = dict[tuple[int, int], tuple[Vector, Vector]]
"""Per edge, the costs that move to the labels of its first and of its second variable."""


class MessagePassing:
    """Messages of a reduced factor graph, and the lower bound that they prove.

    Attributes:
      order: the variables in the order in which messages are passed.
      bound: the largest bound so far, in picoseconds.
    """

    def __init__(self, reduced: ReducedGraph) -> None:
        self.order = [*reduced.costs]
        place = {variable: at for at, variable in enumerate(self.order)}
        self._constant = reduced.constant
        self._costs = [np.minimum(reduced.costs[variable], CAP) for variable in self.order]
        self._edges: list[Matrix] = []
        self._ends: list[tuple[int, int]] = []
        # Per place in the order: (edge, place of the other end) of later and of earlier variables.
        self._later: list[list[tuple[int, int]]] = [[] for _ in self.order]
        self._earlier: list[list[tuple[int, int]]] = [[] for _ in self.order]
        for one in self.order:
            for other, matrix in reduced.near[one].items():
                if place[one] < place[other]:
                    self._later[place[one]].append((len(self._edges), place[other]))
                    self._earlier[place[other]].append((len(self._edges), place[one]))
                    self._ends.append((one, other))
                    self._edges.append(np.ascontiguousarray(np.minimum(matrix, CAP)))
        self._turned = [np.ascontiguousarray(matrix.T) for matrix in self._edges]
        self._forward = [np.zeros(matrix.shape[1]) for matrix in self._edges]
        self._backward = [np.zeros(matrix.shape[0]) for matrix in self._edges]
        # Each variable divides its costs among the monotonic chains through it (section 5.2).
        self._share = [
            1 / max(len(later), len(earlier), 1)
            for later, earlier in zip(self._later, self._earlier, strict=True)
        ]
        self._beliefs = [costs.copy() for costs in self._costs]
        self.bound = -np.inf

    def _belief(self, at: int) -> Vector:
        """Return the costs of a variable with all messages to it."""
        found = self._costs[at].copy()
        for edge, _ in self._earlier[at]:
            found += self._forward[edge]
        for edge, _ in self._later[at]:
            found += self._backward[edge]
        return found

    def sweep(self) -> float:
        """Pass messages forward and backward once; return the bound after it."""
        for at in range(len(self.order)):
            part = self._belief(at) * self._share[at]
            for edge, _ in self._later[at]:
                self._forward[edge] = (self._turned[edge] + (part - self._backward[edge])).min(1)
        bound = self._constant
        for at in range(len(self.order) - 1, -1, -1):
            belief = self._beliefs[at] = self._belief(at)
            part = belief * self._share[at]
            for edge, _ in self._earlier[at]:
                self._backward[edge] = (self._edges[edge] + (part - self._forward[edge])).min(1)
            # The share of the chains that end here stays with the variable.
            bound += (1 - len(self._earlier[at]) * self._share[at]) * float(belief.min())
        self.bound = max(self.bound, bound)
        return bound

    def guess(self) -> list[int]:
        """Return one label per variable in the order, by the messages from later variables."""
        taken: list[int] = []
        for at in range(len(self.order)):
            costs = self._costs[at].copy()
            for edge, other in self._earlier[at]:
                costs += self._edges[edge][taken[other]]
            for edge, _ in self._later[at]:
                costs += self._backward[edge]
            taken.append(int(costs.argmin()))
        return taken

    def improved(self, labels: Sequence[int]) -> list[int]:
        """Return labels that no change of a single one improves, by coordinate descent."""
        taken = [*labels]
        for _ in range(MOST_DESCENTS):
            before = [*taken]
            for at in range(len(taken)):
                costs = self._costs[at].copy()
                for edge, other in self._earlier[at]:
                    costs += self._edges[edge][taken[other]]
                for edge, other in self._later[at]:
                    costs += self._turned[edge][taken[other]]
                least = int(costs.argmin())
                if costs[least] < costs[taken[at]]:
                    taken[at] = least
            if taken == before:
                break
        return taken

    def total(self, labels: Sequence[int]) -> float:
        """Return the picoseconds of one label per variable in the order."""
        found = self._constant
        found += sum(float(c[k]) for c, k in zip(self._costs, labels, strict=True))
        for at, later in enumerate(self._later):
            found += sum(float(self._edges[e][labels[at], labels[other]]) for e, other in later)
        return found

    def dual(self) -> Dual:
        """Return the costs that the last sweep moves from each edge to its two variables.

        The first variable of an edge is the one that is earlier in the order.
        """
        found: Dual = {}
        for at, earlier in enumerate(self._earlier):
            for edge, _ in earlier:
                # The first variable gets the message of the backward pass, and the second one the
                # message of the forward pass. The second one also gave its share (`part`) to the
                # edge before the backward pass took the minimum, so this share is subtracted.
                part = self._beliefs[at] * self._share[at]
                found[self._ends[edge]] = self._backward[edge], self._forward[edge] - part
        return found


def bounds_of_labels(reduced: ReducedGraph, dual: Dual) -> tuple[dict[int, Vector], float]:
    """Return a lower bound of all solutions with a given label, per variable, and of all.

    Any dual gives valid bounds. The reparametrised costs are those of the variables with all that
    is moved to them, and those of the edges without it.
    """
    own = {variable: np.minimum(costs, CAP) for variable, costs in reduced.costs.items()}
    rest: dict[tuple[int, int], Matrix] = {}
    for (one, other), (first, second) in dual.items():
        own[one] = own[one] + first
        own[other] = own[other] + second
        matrix = np.minimum(reduced.near[one][other], CAP)
        rest[one, other] = matrix - first[:, None] - second
    bound = reduced.constant + sum(float(costs.min()) for costs in own.values())
    more = {variable: costs - costs.min() for variable, costs in own.items()}
    for (one, other), matrix in rest.items():
        least = float(matrix.min())
        bound += least
        more[one] = more[one] + (matrix.min(1) - least)
        more[other] = more[other] + (matrix.min(0) - least)
    return {variable: bound + costs for variable, costs in more.items()}, bound
