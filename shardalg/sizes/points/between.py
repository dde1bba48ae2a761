"""Which of several is the least, at many points; of sums asked at few, known at all between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from shardalg.sizes.points.lanes import Lanes, spread

Found = TypeVar("Found")


def chosen(first: Any, second: Any, parts: tuple[Any, Any]) -> Any:
    """Of two `parts` the first where `first <= second`, at each point.

    >>> from shardalg.sizes.points.lanes import Points
    >>> points = Points(2)
    >>> chosen(points.of([1, 5]), 3, (10, 20)), chosen(1, 3, (10, 20))
    (Lanes(10, 20), 10)
    """
    lanes = next((n for n in (first, second, *parts) if type(n) is Lanes), None)
    if lanes is None:
        return parts[0] if first <= second else parts[1]
    one, other, here, there = (spread(n, len(lanes.values)) for n in (first, second, *parts))
    return lanes.points.of(np.where(one <= other, here, there))


def place_of_least(ranks: Sequence[tuple[Any, ...]], lanes: Lanes) -> int:
    """The place of the first of the least ranks; points at which it is another one leave.

    >>> from shardalg.sizes.points.lanes import Points
    >>> b = Points(2).of([8, 16])
    >>> place_of_least([(b, 1), (b - 1, 2), (3 * b, 0)], b)
    1
    """
    columns = [[spread(number, len(lanes.values)) for number in rank] for rank in ranks]
    place, best = np.zeros(len(lanes.values), int), columns[0]
    for number, rank in enumerate(columns[1:], 1):
        before, same = np.zeros(len(place), bool), np.ones(len(place), bool)
        for mine, theirs in zip(rank, best, strict=True):
            before |= same & (mine < theirs)
            same &= mine == theirs
        place[before] = number
        best = [np.where(before, m, t) for m, t in zip(rank, best, strict=True)]
    return int(lanes.points.answer(place))


def one_answer(numbers: Sequence[Any], ask: Callable[[tuple[int, ...]], Found]) -> Found:
    """What a function of numbers gives that says which of many sums of them is the least.

    Each sum takes every number a number of times, and of equal sums the same one is said. So it
    counts their ratios alone; and what is so of two rows of numbers is so of all between them, at
    which it is not asked.

    >>> from shardalg.sizes.points.lanes import Points
    >>> b = Points(3).of([8, 16, 24])
    >>> least = lambda row: row.index(min(row))
    >>> one_answer([b, 3 * b], least), one_answer([5, 2], least)
    (0, 1)
    """
    lanes = next((n for n in numbers if type(n) is Lanes), None)
    if lanes is None:
        return ask(tuple(numbers))
    kinds = {number: at for at, number in enumerate(dict.fromkeys(numbers))}
    where = [kinds[number] for number in numbers]
    rows = np.array([spread(n, len(lanes.values)) for n in kinds], np.int64).T
    shared = np.gcd.reduce(rows, axis=1)[:, None]
    known, place = np.unique(rows // np.maximum(shared, 1), axis=0, return_inverse=True)
    answers = _Between(known, lambda row: ask(tuple([row[at] for at in where]))).answers()
    label = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
    chosen = lanes.points.choice(np.array([label[answer] for answer in answers])[place.ravel()])
    return list(label)[chosen]


class _Between:
    """Answers of rows of numbers: those between two rows of one answer have it too."""

    def __init__(self, rows: np.ndarray, ask: Callable[[list[int]], Any]) -> None:
        self.rows, self.ask = rows, ask
        self.found: list[Any] = [None] * len(rows)
        self.shares = rows / rows.sum(axis=1)[:, None].clip(1)

    def answers(self) -> list[Any]:
        """That of each row."""
        order = np.argsort(self.shares[:, np.argmax(np.ptp(self.shares, axis=0))], kind="stable")
        waiting = [(0, len(order) - 1)]
        while waiting:
            low, high = waiting.pop()
            ends = int(order[low]), int(order[high])
            first, last = map(self.asked, ends)
            inside = order[low + 1 : high]
            if first == last and self.between(inside, *ends):
                for row in inside:
                    self.found[row] = first
            elif len(inside):
                middle = (low + high) // 2
                waiting += [(low, middle), (middle, high)]
        return self.found

    def asked(self, row: int) -> Any:
        """The function itself."""
        if self.found[row] is None:
            self.found[row] = self.ask(self.rows[row].tolist())
        return self.found[row]

    def between(self, inside: np.ndarray, low: int, high: int) -> bool:
        """Whether rows are sums of two others, each a number of times that is not negative.

        With the determinant of two columns, `d*row = m*low + n*high`, in integers of any size.
        """
        apart = self.shares[low] - self.shares[high]
        p, q = int(np.argmax(apart)), int(np.argmin(apart))
        a, b, rows = (self.rows[at].astype(object) for at in (low, high, inside))
        d = a[p] * b[q] - a[q] * b[p]
        m, n = rows[:, p] * b[q] - rows[:, q] * b[p], a[p] * rows[:, q] - a[q] * rows[:, p]
        if d <= 0 or (m < 0).any() or (n < 0).any():
            return False
        return bool((d * rows == m[:, None] * a + n[:, None] * b).all())
