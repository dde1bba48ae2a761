"""Check of a certificate of `sa.search` in whole numbers, without a solver.

A certificate has the costs of a factor graph in whole picoseconds, one solution, and a proof that
no solution costs less than a bound. The proof has two parts. Its steps remove labels and variables
without changing the minimum, and each is checked here. Its duals move costs from pairs of labels to
single labels. This changes no total, so that the sum of all least costs is a lower bound, whatever
the dual is. Labels of which the bound exceeds the solution's cost are removed before the next dual.
Branches divide the labels of a variable in two sets: the least bound of both parts holds for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shardalg.errors import CertificateError

IMPOSSIBLE = 10**15
"""Picoseconds (a thousand seconds) that stand for an impossible label or pair."""
CAP = 10**13
"""Bounds take costs above this number as this number, which can only lower them."""


class ProvedBound(NamedTuple):
    """The cost of the solution, and the bound below which no solution is, in picoseconds."""

    cost_ps: int
    bound_ps: int


def check(content: dict[str, Any]) -> ProvedBound:
    """Return the cost and the bound that a certificate proves.

    Raises:
      CertificateError: a step is wrong, or an entry is missing or has another form.
    """
    try:
        return _ProofCheck(content).run()
    except CertificateError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise CertificateError(
            f"an entry of the certificate is missing or malformed: {type(error).__name__}: {error}."
        ) from None


def _whole(numbers: Any) -> np.ndarray:
    """Return whole numbers as an array; None is `IMPOSSIBLE`."""
    rows = [[IMPOSSIBLE if n is None else n for n in row] for row in numbers]
    if not all(type(n) is int and 0 <= n <= IMPOSSIBLE for row in rows for n in row):
        raise CertificateError("costs are not all whole numbers from 0 on.")
    return np.array(rows, np.int64)


class _ProofCheck:
    """The factor graph while its steps are repeated. Masks say which labels are left."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.costs = {n: _whole([row])[0] for n, row in enumerate(content["costs"])}
        self.left = {n: costs < IMPOSSIBLE for n, costs in self.costs.items()}
        matrices = [_whole(rows) for rows in content["matrices"]]
        self.near: dict[int, dict[int, np.ndarray]] = {n: {} for n in self.costs}
        for one, other, number in content["edges"]:
            matrix = matrices[number]
            if matrix.shape != (len(self.costs[one]), len(self.costs[other])) or one == other:
                raise CertificateError(f"the costs of variables {one} and {other} do not fit.")
            self.near[one][other], self.near[other][one] = matrix, matrix.T
        self.constant = 0
        self.cost = self._cost(content["solution"])

    def _cost(self, solution: list[int]) -> int:
        """Return the cost of the solution; every entry is a label."""
        if len(solution) != len(self.costs) or min(solution) < 0:
            raise CertificateError("the solution has not one label per variable.")
        found = sum(int(self.costs[n][label]) for n, label in enumerate(solution))
        for one, near in self.near.items():
            found += sum(int(m[solution[one], solution[o]]) for o, m in near.items() if one < o)
        return found

    def run(self) -> ProvedBound:
        """Repeat all steps and duals."""
        self._remove_impossible()
        for step in self.content["steps"]:
            (self._remove_dominated if len(step) == 3 else self._eliminate)(*step)
        bound = self.constant if not self.costs else -IMPOSSIBLE
        for dual in self.content["duals"]:
            bound = max(bound, self._branch([dual]))
        if self.content.get("tree") is not None:
            bound = max(bound, self._branch(self.content["tree"]))
        bound = min(bound, self.cost)
        cost, claimed = self.content["cost_ps"], self.content["bound_ps"]
        if cost != self.cost or bound < claimed:
            proved = f"proves {self.cost} and {bound} ps"
            raise CertificateError(f"it claims {cost} and the bound {claimed}, and {proved}.")
        return ProvedBound(self.cost, bound)

    def _branch(self, tree: list[Any]) -> int:
        """Return the bound of a leaf [dual], or of [variable, labels, part with them, rest]."""
        if not all(mask.any() for mask in self.left.values()):
            return self.cost  # all other solutions cost more than the given one
        if len(tree) == 1:
            return self._apply(tree[0])
        one, labels, *parts = tree
        left, bounds = self.left, []
        for part, is_taken in zip(parts, (True, False), strict=True):
            mask = np.isin(np.arange(len(self.costs[one])), labels) == is_taken
            self.left = {n: each.copy() for n, each in left.items()}
            self.left[one] &= mask
            self._remove_impossible()
            bounds.append(self._branch(part))
        self.left = left
        return min(bounds)

    def _remove_impossible(self) -> None:
        """Remove labels without a possible partner in some neighbour."""
        waiting = {*self.costs}
        while waiting:
            one = waiting.pop()
            before = self.left[one].copy()
            for other, matrix in self.near[one].items():
                self.left[one] &= (matrix[:, self.left[other]] < IMPOSSIBLE).any(1)
            if (before != self.left[one]).any():
                waiting |= {*self.near[one]}

    def _remove_dominated(self, one: int, label: int, other: int) -> None:
        """Remove a label that costs at least as much as another one, whatever the neighbours do."""
        # A negative number would be a label counted from the end.
        is_left = min(label, other) >= 0 and self.left[one][label] and self.left[one][other]
        if not is_left or label == other:
            raise CertificateError(f"label {label} of variable {one} cannot go for {other}.")
        more = int(self.costs[one][other]) - int(self.costs[one][label])
        for neighbour, matrix in self.near[one].items():
            rows = matrix[:, self.left[neighbour]]
            possible = rows[label] < IMPOSSIBLE
            if not possible.any():  # the label is part of no solution
                more = -IMPOSSIBLE
                break
            if (rows[other][possible] >= IMPOSSIBLE).any():
                more = 10**6 * IMPOSSIBLE
            more += int((rows[other] - rows[label])[possible].max())
        if more > 0:
            raise CertificateError(f"label {other} of variable {one} can cost more than {label}.")
        self.left[one][label] = False

    def _eliminate(self, one: int) -> None:
        """Minimise a variable with at most two neighbours away."""
        near = [*self.near.pop(one).items()]
        costs = np.where(self.left.pop(one), self.costs.pop(one), IMPOSSIBLE)
        for other, _ in near:
            del self.near[other][one]
        if not near:
            self.constant += int(costs.min())
        elif len(near) == 1:
            ((other, matrix),) = near
            least = np.minimum((costs[:, None] + matrix).min(0), IMPOSSIBLE)
            self.costs[other] = np.minimum(self.costs[other] + least, IMPOSSIBLE)
            self.left[other] &= self.costs[other] < IMPOSSIBLE
        elif len(near) == 2:
            (first, left), (second, right) = near
            left = (left + costs[:, None]).T
            least = np.stack([(row[:, None] + right).min(0) for row in left])
            held = self.near[first].get(second, 0)
            self.near[first][second] = np.minimum(np.minimum(least, IMPOSSIBLE) + held, IMPOSSIBLE)
            self.near[second][first] = self.near[first][second].T
        else:
            raise CertificateError(f"variable {one} has {len(near)} neighbours and must stay.")

    def _apply(self, dual: list[list[Any]]) -> int:
        """Return the bound of a dual, and remove labels with a bound above the solution's cost."""
        own = {n: np.minimum(costs, CAP) for n, costs in self.costs.items()}
        pairs = ((one, other) for one, near in self.near.items() for other in near if one < other)
        rest = {pair: np.minimum(self.near[pair[0]][pair[1]], CAP) for pair in pairs}
        for one, other, *sides in dual:
            first, second = (np.array(side, np.int64) for side in sides)
            if max(map(abs, (*first.tolist(), *second.tolist())), default=0) > IMPOSSIBLE:
                raise CertificateError("a dual has a number that is too large.")
            own[one] = own[one] + first
            own[other] = own[other] + second
            rest[one, other] = rest[one, other] - first[:, None] - second
        bound = self.constant
        more: dict[int, np.ndarray] = {}
        for n, costs in own.items():
            least = int(costs[self.left[n]].min())
            bound += least
            more[n] = costs - least
        for (one, other), matrix in rest.items():
            rows, columns = self.left[one], self.left[other]
            least = int(matrix[np.ix_(rows, columns)].min())
            bound += least
            more[one] = more[one] + (matrix[:, columns].min(1) - least)
            more[other] = more[other] + (matrix[rows].min(0) - least)
        for n, excess in more.items():
            self.left[n] &= bound + excess <= self.cost
        self._remove_impossible()
        return bound
