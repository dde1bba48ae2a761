"""Answers that count ratios alone: asked at few points, known at all between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from shardalg.sizes.points.lanes import SAFE, Lanes, spread

Found = TypeVar("Found")


def one_answer(
    numbers: Sequence[Any], ask: Callable[[tuple[int, ...]], Found], most: int = 0
) -> Found:
    """What a function of numbers gives that counts their ratios alone.

    Of lanes it is asked once for each ratio that there is; of rows whose sum is at most `most` not
    even that: there it says which of many sums of them is the least (of equal ones the same), so
    that what is so of two rows is so of all between them.

    >>> from shardalg.sizes.points.lanes import Points
    >>> b = Points(2).of([8, 16])
    >>> one_answer([b, 3 * b], max), one_answer([5, 2], max)
    (3, 5)
    """
    lanes = next((n for n in numbers if type(n) is Lanes), None)
    if lanes is None:
        return ask(tuple(numbers))
    rows = np.array([spread(n, lanes) for n in numbers], np.int64).T
    shared = np.gcd.reduce(rows, axis=1)[:, None]
    known, place = np.unique(rows // np.maximum(shared, 1), axis=0, return_inverse=True)
    answers = _Between(known, ask, known.sum(axis=1) <= most).answers()
    label = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
    chosen = lanes.points.choice(np.array([label[answer] for answer in answers])[place.ravel()])
    return list(label)[chosen]


class _Between:
    """Answers of rows of numbers: those between two rows of one answer have it too."""

    def __init__(self, rows: np.ndarray, ask: Callable[..., Any], small: np.ndarray) -> None:
        self.rows, self.ask = rows, ask
        self.found: list[Any] = [None] * len(rows)
        self.order = self.sorted(np.flatnonzero(small))
        for row in np.flatnonzero(~small):
            self.asked(int(row))

    def sorted(self, places: np.ndarray) -> np.ndarray:
        """Rows by how much of them is what differs the most between the first and the last."""
        if len(places) < 3:
            return places
        share = self.rows[places] / self.rows[places].sum(axis=1)[:, None].clip(1)
        return places[np.argsort(share[:, np.argmax(np.ptp(share, axis=0))], kind="stable")]

    def answers(self) -> list[Any]:
        """That of each row."""
        waiting = [(0, len(self.order) - 1)] if len(self.order) else []
        while waiting:
            low, high = waiting.pop()
            first, last = (self.asked(int(self.order[at])) for at in (low, high))
            inside = self.order[low + 1 : high]
            if first == last and self.between(inside, self.order[low], self.order[high]):
                for row in inside:
                    self.found[row] = first
            elif len(inside):
                middle = (low + high) // 2
                waiting += [(low, middle), (middle, high)]
        return self.found

    def asked(self, row: int) -> Any:
        """The function itself."""
        if self.found[row] is None:
            self.found[row] = self.ask(tuple(self.rows[row].tolist()))
        return self.found[row]

    def between(self, inside: np.ndarray, low: int, high: int) -> bool:
        """Whether rows are sums of two others, each a number of times that is not negative.

        With the determinant of two columns, `d*row = m*low + n*high`; what is no more than 2**28 in
        each makes differences below 2**63 of floats, and those of integers are exact up to 2**64.
        """
        a, b, rows = self.rows[low], self.rows[high], self.rows[inside]
        p = int(np.argmax(a / max(a.sum(), 1) - b / max(b.sum(), 1)))
        q = int(np.argmin(a / max(a.sum(), 1) - b / max(b.sum(), 1)))
        d = a[p] * b[q] - a[q] * b[p]
        m, n = rows[:, p] * b[q] - rows[:, q] * b[p], a[p] * rows[:, q] - a[q] * rows[:, p]
        if d <= 0 or (m < 0).any() or (n < 0).any():
            return False
        sides = d * rows, m[:, None] * a + n[:, None] * b
        near = float(d) * rows - (m[:, None] * a.astype(float) + n[:, None] * b.astype(float))
        return bool((sides[0] == sides[1]).all() and (abs(near) < SAFE).all())
