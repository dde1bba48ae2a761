"""A sum of costs of single variables and of pairs of variables, each with a few labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Vector = np.ndarray
Matrix = np.ndarray


@dataclass
class FactorGraph:
    """Variables with labels, costs of labels, and costs of pairs of labels.

    All costs are whole numbers of picoseconds, or infinite for what is impossible. They are held as
    float64, in which sums below 9,000 seconds are exact.

    Attributes:
      costs: per variable, the cost of each label.
      edges: for a pair of variables, the smaller number first, the cost of each pair of labels.
    """

    costs: list[Vector] = field(default_factory=list)
    edges: dict[tuple[int, int], Matrix] = field(default_factory=dict)

    def add_variable(self, costs: Sequence[float] | Vector) -> int:
        """Add a variable with these costs of its labels; return its number."""
        self.costs.append(np.asarray(costs, float))
        return len(self.costs) - 1

    def add_edge(self, one: int, other: int, matrix: Matrix) -> None:
        """Add costs of pairs of labels; costs of several edges of two variables add up.

        Args:
          matrix: a row per label of `one`, a column per label of `other`. If both are one variable,
            only the diagonal counts.
        """
        if one == other:
            self.costs[one] = self.costs[one] + matrix.diagonal()
            return
        if one > other:
            one, other, matrix = other, one, matrix.T
        held = self.edges.get((one, other))
        self.edges[one, other] = matrix if held is None else held + matrix

    def total(self, labels: Sequence[int]) -> float:
        """Return the sum of all costs for one label per variable."""
        own = sum(float(costs[k]) for costs, k in zip(self.costs, labels, strict=True))
        return own + sum(float(m[labels[i], labels[j]]) for (i, j), m in self.edges.items())
