"""Formulas over numpy arrays: one program for several of them, which shares what they share.

A formula becomes steps of numpy, each written down once however many formulas have it. Run on
arrays that broadcast, a step whose sizes span few points is done once on those. What is left runs
on blocks of points that stay in the cache.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Powers = frozenset[tuple[Any, int]]
Step = tuple[Any, ...]
Index = tuple[slice, ...]

# Points that are evaluated together: an operand of 8-byte numbers stays in the cache.
BLOCK = 1 << 14
# What spans so many times fewer points is done once, before the blocks.
FEWER = 8
NAME, NUMBER = "name", "number"
_DO: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "multiply": np.multiply,
    "divide": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "ceil": np.ceil,
}
_COMMUTE = ("add", "multiply", "max", "min")


class Code:
    """Steps in the order in which they can be taken; equal ones are one.

    Attributes:
      steps: (what is done, the numbers of the steps that it is done to) to its number.

    >>> code = Code()
    >>> x, y = code.name("x"), code.name("y")
    >>> code.sum({frozenset({(x, 1), (y, 2)}): 3, frozenset({(y, 2)}): 1})
    7
    >>> run(code, [7], {"x": np.array([1.0, 2.0]), "y": 2.0})
    [array([16., 28.])]
    """

    def __init__(self) -> None:
        self.steps: dict[Step, int] = {}

    def step(self, what: str, *operands: Any) -> int:
        """The number of a step, which is added if it is new."""
        given = tuple(sorted(operands)) if what in _COMMUTE else operands
        return self.steps.setdefault((what, *given), len(self.steps))

    def name(self, name: str) -> int:
        """The values of a size."""
        return self.step(NAME, name)

    def number(self, number: Any) -> int:
        """A number, in double precision."""
        return self.step(NUMBER, float(number))

    def factor(self, factor: Any) -> int:
        """A factor of a monomial: a name, or what writes its own steps."""
        return self.name(factor) if type(factor) is str else factor.steps(self)

    def polynomial(self, terms: Mapping[Powers, Any]) -> int:
        """`sum coefficient * prod factor**exponent`; what divides is inverted, once."""
        found: dict[Powers, Any] = {}
        for powers, coefficient in _with_least(terms).items():
            product: Counter[int] = Counter()
            for factor, exponent in powers:  # two factors may be one step
                product[self.power(factor, exponent)] += abs(exponent)
            of = frozenset(product.items())
            found[of] = found.get(of, 0) + coefficient
        return self.sum(found)

    def power(self, factor: Any, exponent: int) -> int:
        """The factor, or 1 over it where the exponent is negative."""
        base = self.factor(factor)
        return base if exponent > 0 else self.step("divide", self.number(1), base)

    def sum(self, terms: Mapping[Powers, Any]) -> int:
        """The same of steps, by Horner's scheme in several variables.

        The step that most terms share is taken out, inside and outside of the bracket again.
        """
        if not terms:
            return self.number(0)
        shared = Counter(base for powers in terms for base, _ in powers)
        base, users = max(shared.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
        if users < 2:
            parts = [self.product(powers, c) for powers, c in terms.items()]
            return _folded(self, "add", parts)
        least = min(e for powers in terms for b, e in powers if b == base)
        inside = {_without(p, base, least): c for p, c in terms.items() if base in dict(p)}
        outside = {p: c for p, c in terms.items() if base not in dict(p)}
        bracket = self.step("multiply", self.sum(inside), self.product(frozenset({(base, least)})))
        return self.step("add", bracket, self.sum(outside)) if outside else bracket

    def product(self, powers: Powers, coefficient: Any = 1) -> int:
        """A number times powers of steps."""
        parts = [base for base, exponent in sorted(powers) for _ in range(exponent)]
        if coefficient != 1 or not parts:
            parts.append(self.number(coefficient))
        return _folded(self, "multiply", parts)


def _folded(code: Code, what: str, parts: Sequence[int]) -> int:
    first, *rest = parts
    for part in rest:
        first = code.step(what, first, part)
    return first


def _with_least(terms: Mapping[Powers, Any]) -> Mapping[Powers, Any]:
    """The sum with `min(a, b)` for each `a + b - max(a, b)`, which a formula has in its place."""
    found = dict(terms)
    for powers, coefficient in terms.items():
        for factor, exponent in powers:
            pair = () if type(factor) is str or exponent != 1 or coefficient > 0 else factor.pair
            rest = powers - {(factor, exponent)}
            both = [(_times(rest, p), -coefficient * c) for side in pair for p, c in side.items()]
            if both and all(found.get(p) == c for p, c in both) and powers in found:
                for gone in (powers, *(p for p, _ in both)):
                    del found[gone]
                found[rest | {(factor.least, 1)}] = -coefficient
    return found


def _times(left: Powers, right: Powers) -> Powers:
    powers = Counter(dict(left))
    powers.update(dict(right))
    return frozenset((f, e) for f, e in powers.items() if e)


def _without(powers: Powers, factor: Hashable, exponent: int) -> Powers:
    left = ((f, e - exponent if f == factor else e) for f, e in powers)
    return frozenset((f, e) for f, e in left if e)


def run(code: Code, roots: Sequence[int], values: Mapping[str, Any]) -> list[np.ndarray]:
    """The steps `roots` of a program at arrays by name, which broadcast against each other."""
    return Points(values).run(code, roots)


def straight(code: Code, root: int, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """One step of a program whose steps all lead to it, at a row of points."""
    found: list[Any] = []
    for what, *operands in code.steps:
        if what in (NAME, NUMBER):
            found.append(values[str(operands[0])] if what == NAME else operands[0])
        else:
            found.append(_DO[str(what)](*(found[n] for n in operands)))
    return found[root]


class Points:
    """Arrays of sizes that broadcast against each other, and how they are gone through.

    Attributes:
      shape: of the results. inner: as they are gone through. arrays: by name, each with as many
        dimensions.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        arrays = {name: np.asarray(value, dtype=float) for name, value in values.items()}
        self.shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        # Points that are not a grid are a row of them.
        is_row = all(array.shape == self.shape or array.size == 1 for array in arrays.values())
        self.inner = (math.prod(self.shape),) if is_row else self.shape
        self.arrays = {n: _with_dims(a, self.inner, is_row) for n, a in arrays.items()}

    @property
    def count(self) -> int:
        """How many points there are."""
        return math.prod(self.inner)

    def run(self, code: Code, roots: Sequence[int]) -> list[np.ndarray]:
        """The steps `roots` of a program at all points."""
        plan = _StepSchedule(code, roots, self)
        found = [np.empty(self.inner) for _ in roots]
        for index in blocks(self.inner):
            for result, part in zip(found, plan.at(index), strict=True):
                result[index] = part
        return [result.reshape(self.shape) for result in found]


def _with_dims(array: np.ndarray, shape: tuple[int, ...], is_row: bool) -> np.ndarray:
    if is_row:
        return array.reshape(-1)
    return array.reshape((1,) * (len(shape) - array.ndim) + array.shape)


def blocks(shape: tuple[int, ...], most: int = BLOCK) -> Iterator[Index]:
    """Where the blocks of an array are, of no more than so many points.

    >>> list(blocks((2, 3))), len(list(blocks((3, 5000), 4096)))
    ([(slice(0, 2, None),)], 6)
    """
    if not shape:
        yield ()
        return
    inside = math.prod(shape[1:])
    rows = max(1, most // max(1, inside))
    for start in range(0, shape[0], rows):
        own = slice(start, min(start + rows, shape[0]))
        for rest in blocks(shape[1:], most) if inside > most else ((),):
            yield (own, *rest)


class _StepSchedule:
    """Which steps are taken once, and which ones at every block.

    Attributes:
      sizes: per step, the sizes that it depends on.
      once: number of a step to its array over the points that its sizes span.
      here: the steps of a block. frees: per step of these, what it reads last.
    """

    def __init__(self, code: Code, roots: Sequence[int], points: Points) -> None:
        self.roots, self.points = roots, points
        self.all: list[Step] = list(code.steps)
        self.sizes: list[frozenset[str]] = []
        for what, *operands in self.all:
            is_leaf = what in (NAME, NUMBER)
            own = operands if what == NAME else ()
            found = own if is_leaf else frozenset().union(*(self.sizes[n] for n in operands))
            self.sizes.append(frozenset(found))
        self.once: dict[int, Any] = {}
        self.here = self._needed()
        last = {n: at for at, number in enumerate(self.here) for n in self._operands(number)}
        self.frees: list[list[int]] = [[] for _ in self.here]
        for number, at in last.items():
            if number not in roots:
                self.frees[at].append(number)

    def _operands(self, number: int) -> tuple[Any, ...]:
        what, *operands = self.all[number]
        return () if what in (NAME, NUMBER) else tuple(operands)

    def _needed(self) -> list[int]:
        """The steps of a block; what is taken once is taken."""
        needed, here = set(self.roots), []
        for number in range(len(self.all) - 1, -1, -1):
            if number in needed and not self._done_once(number):
                needed.update(self._operands(number))
                here.append(number)
        return here[::-1]

    def _done_once(self, number: int) -> bool:
        """Take a step that spans few points; whether that is so."""
        names, points = self.sizes[number], self.points
        shape = np.broadcast_shapes(*(points.arrays[name].shape for name in names))
        if math.prod(shape) * FEWER > points.count and names and points.count > 1:
            return False
        self._taken(number)
        return True

    def _taken(self, number: int) -> Any:
        """A step at all points that its sizes span."""
        if number not in self.once:
            what, *operands = self.all[number]
            if what in (NAME, NUMBER):
                self.once[number] = operands[0] if what == NUMBER else self._name(operands[0])
            else:
                self.once[number] = _DO[str(what)](*map(self._taken, operands))
        return self.once[number]

    def _name(self, name: Any) -> np.ndarray:
        return self.points.arrays[name]

    def at(self, index: Index) -> list[Any]:
        """The results at a block."""
        held: dict[Any, Any] = {}

        def value(number: Any) -> Any:
            if number not in held:
                held[number] = self._part(number, index)
            return held[number]

        for number, free in zip(self.here, self.frees, strict=True):
            what, *operands = self.all[number]
            if what == NAME:
                held[number] = rows_of(self._name(operands[0]), index)
            else:
                held[number] = _DO[str(what)](*map(value, operands))
                for done in free:
                    held.pop(done, None)
        return [value(root) for root in self.roots]

    def _part(self, number: int, index: Index) -> Any:
        """A block of what was done once."""
        known = self.once[number]
        return rows_of(known, index) if isinstance(known, np.ndarray) else known


def rows_of(array: np.ndarray, index: Index) -> np.ndarray:
    """The block of an array; of what is repeated along a dimension, its one row."""
    if array.size == 1:
        return array
    own = (slice(None) if n == 1 else at for n, at in zip(array.shape, index, strict=False))
    return array[tuple(own)]
