"""Evaluation of formulas on numpy arrays, by a program that computes shared parts once.

A program (`Code`) is a list of steps, each a numpy operation on results of earlier steps. Equal
steps of several formulas are one. The program runs on arrays that broadcast. A step that depends on
few of the sizes is computed once, on the points of these sizes. All other steps run on blocks of
points that fit into the cache.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Powers = frozenset[tuple[Any, int]]
Step = tuple[Any, ...]
Index = tuple[slice, ...]

BLOCK = 1 << 14
"""Points that are evaluated together: an operand of 8-byte numbers fits into the cache."""
FEWER = 8
"""A step with so many times fewer points than the program has is computed once, before the blocks.

Its result stays in memory, which is worth it only if it is small.
"""
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
    """Program on arrays: a list of steps, in which equal steps are one step.

    Attributes:
      steps: the number of each step. A key is (operation, numbers of the operand steps), or ("name"
        or "number", the name or number). The order is an order of evaluation.

    >>> code = Code()
    >>> x, y = code.name("x"), code.name("y")
    >>> code.sum({frozenset({(x, 1), (y, 2)}): 3, frozenset({(y, 2)}): 1})
    7
    >>> run(code, [7], {"x": np.array([1.0, 2.0]), "y": 2.0})
    [array([16., 28.])]
    """

    def __init__(self) -> None:
        # The dictionary keeps the order of insertion, in which operands come before their readers.
        self.steps: dict[Step, int] = {}

    def step(self, what: str, *operands: Any) -> int:
        """Return the number of the step with an operation and operands; add it if it is new."""
        # Sorted operands make `a + b` and `b + a` one step.
        ordered = tuple(sorted(operands)) if what in _COMMUTE else operands
        return self.steps.setdefault((what, *ordered), len(self.steps))

    def name(self, name: str) -> int:
        """Return the number of the step that reads the array of a named size."""
        return self.step(NAME, name)

    def number(self, number: Any) -> int:
        """Return the number of the step with a constant, in double precision."""
        return self.step(NUMBER, float(number))

    def factor(self, factor: Any) -> int:
        """Return the number of the step that computes a factor of a formula.

        A factor is a name, a ceiling, a maximum or a sum; missing steps are added.
        """
        return self.name(factor) if type(factor) is str else factor.steps(self)

    def polynomial(self, terms: Mapping[Powers, Any]) -> int:
        """Return the number of the step that computes a formula; missing steps are added.

        Args:
          terms: the coefficient of each monomial (`Formula.terms`).
        """
        found: dict[Powers, Any] = {}
        for powers, coefficient in _with_minima(terms).items():
            product: Counter[int] = Counter()
            # Two factors may be one step, such as `max(a, b)` and `max(b, a)`: their powers add.
            for factor, exponent in powers:
                product[self.power(factor, exponent)] += abs(exponent)
            of = frozenset(product.items())
            found[of] = found.get(of, 0) + coefficient
        return self.sum(found)

    def power(self, factor: Any, exponent: int) -> int:
        """Return the number of the step of a factor, or of 1 / factor for a negative exponent."""
        base = self.factor(factor)
        return base if exponent > 0 else self.step("divide", self.number(1), base)

    def sum(self, terms: Mapping[Powers, Any]) -> int:
        """Return the number of the step of a sum of products, by a Horner scheme.

        The factor that most terms share is factored out, for example
        `a*b + a*c + d = a*(b + c) + d`. The sum in the bracket and the rest outside of it are then
        computed in the same way.

        Args:
          terms: coefficients by product; a product is a set of pairs (number of a step, exponent).
        """
        if not terms:
            return self.number(0)
        term_counts = Counter(base for powers in terms for base, _ in powers)
        # Ties go to the later step, so that equal sums are computed in one way.
        base, count = max(term_counts.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
        # No factor is in two terms, so nothing can be factored out.
        if count < 2:
            products = [self.product(powers, c) for powers, c in terms.items()]
            return _fold(self, "add", products)
        # The sum is `inside * base**least + outside`. `inside` has the terms with `base`, divided
        # by its least power, so that this power is multiplied only once.
        least = min(e for powers in terms for b, e in powers if b == base)
        inside = {
            frozenset(
                (f, e - least if f == base else e) for f, e in p if (f, e) != (base, least)
            ): c
            for p, c in terms.items()
            if base in dict(p)
        }
        outside = {p: c for p, c in terms.items() if base not in dict(p)}
        bracket = self.step("multiply", self.sum(inside), self.product(frozenset({(base, least)})))
        return self.step("add", bracket, self.sum(outside)) if outside else bracket

    def product(self, powers: Powers, coefficient: Any = 1) -> int:
        """Return the number of the step of a coefficient times powers of other steps."""
        parts = [base for base, exponent in sorted(powers) for _ in range(exponent)]
        if coefficient != 1 or not parts:
            parts.append(self.number(coefficient))
        return _fold(self, "multiply", parts)


def _fold(code: Code, what: str, parts: Sequence[int]) -> int:
    """Return the number of the step that combines some steps by one operation, left to right."""
    first, *others = parts
    for part in others:
        first = code.step(what, first, part)
    return first


def _with_minima(terms: Mapping[Powers, Any]) -> Mapping[Powers, Any]:
    """Return the terms of a formula with `min(a, b)` in place of `a + b - max(a, b)`.

    Formulas store a minimum in the second form. With a coefficient c and other factors f, the sum
    `c*f*a + c*f*b - c*f*max(a, b)` becomes `c*f*min(a, b)`.

    Args:
      terms: coefficients by monomial, a set of pairs (factor, exponent).
    """
    # The maximum has a negative coefficient -c. The formula contains a minimum only if it also has
    # all terms of a and of b, each with the coefficient c: `side_terms` are these terms.
    new_terms = dict(terms)
    for powers, coefficient in terms.items():
        for factor, exponent in powers:
            sides = () if type(factor) is str or exponent != 1 or coefficient > 0 else factor.pair
            other_factors = powers - {(factor, exponent)}
            side_terms = [
                (_multiply(other_factors, p), -coefficient * c)
                for side in sides
                for p, c in side.items()
            ]
            if (
                side_terms
                and all(new_terms.get(p) == c for p, c in side_terms)
                and powers in new_terms
            ):
                for removed in (powers, *(p for p, _ in side_terms)):
                    del new_terms[removed]
                new_terms[other_factors | {(factor.least, 1)}] = -coefficient
    return new_terms


def _multiply(left: Powers, right: Powers) -> Powers:
    """Return the product of two monomials: exponents add, and an exponent of 0 is left out."""
    powers = Counter(dict(left))
    powers.update(dict(right))
    return frozenset((f, e) for f, e in powers.items() if e)


def run(code: Code, roots: Sequence[int], values: Mapping[str, Any]) -> list[np.ndarray]:
    """Return the results of some steps of a program, given an array for each named size.

    Args:
      roots: numbers of the steps whose results are returned.
    """
    return Points(values).run(code, roots)


def run_row(code: Code, root: int, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the result of one step of a program at a row of points.

    All steps of the program are evaluated.

    Args:
      root: number of the step.
      values: for each named size, its values at the points, a one-dimensional array.
    """
    found: list[Any] = []
    for what, *operands in code.steps:
        if what in (NAME, NUMBER):
            found.append(values[str(operands[0])] if what == NAME else operands[0])
        else:
            found.append(_DO[str(what)](*(found[n] for n in operands)))
    return found[root]


class Points:
    """Points at which a program is evaluated, given by arrays that broadcast against each other.

    Attributes:
      shape: the broadcast shape, which results have.
      inner: the shape during the evaluation: `shape`, or one row if the arrays are no grid.
      arrays: for each named size, its array, with the rank of `inner`.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Convert the values, a number or an array for each named size, to arrays of one rank."""
        arrays = {name: np.asarray(value, dtype=float) for name, value in values.items()}
        self.shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        # Arrays of the full shape form no grid, so their points are visited as one row.
        is_row = all(array.shape == self.shape or array.size == 1 for array in arrays.values())
        self.inner = (math.prod(self.shape),) if is_row else self.shape
        # All arrays get the rank of `inner`: numpy adds dimensions of size 1 in front.
        self.arrays = {
            name: array.reshape(-1)
            if is_row
            else array.reshape((1,) * (len(self.inner) - array.ndim) + array.shape)
            for name, array in arrays.items()
        }

    @property
    def count(self) -> int:
        """Number of points."""
        return math.prod(self.inner)

    def run(self, code: Code, roots: Sequence[int]) -> list[np.ndarray]:
        """Return the results of the steps `roots` at all points, in the shape of the points.

        The points are visited in blocks that fit into the cache.
        """
        plan = _StepSchedule(code, roots, self)
        results = [np.empty(self.inner) for _ in roots]
        for index in blocks(self.inner):
            for result, block_result in zip(results, plan.at(index), strict=True):
                result[index] = block_result
        return [result.reshape(self.shape) for result in results]


def blocks(shape: tuple[int, ...], most: int = BLOCK) -> Iterator[Index]:
    """Yield the indices of an array's blocks, each with at most `most` points.

    >>> list(blocks((2, 3))), len(list(blocks((3, 5000), 4096)))
    ([(slice(0, 2, None),)], 6)
    """
    if not shape:
        yield ()
        return
    row_size = math.prod(shape[1:])
    # Consecutive rows are contiguous in memory, so a block has as many of them as fit. A single row
    # that is too large is divided by the recursion.
    rows = max(1, most // max(1, row_size))
    for start in range(0, shape[0], rows):
        row_range = slice(start, min(start + rows, shape[0]))
        for other_ranges in blocks(shape[1:], most) if row_size > most else ((),):
            yield (row_range, *other_ranges)


class _StepSchedule:
    """Evaluation of a program at given points: some steps run once, the others for every block.

    Attributes:
      all: all steps of the program.
      sizes: for each step, the names of the sizes that it depends on.
      once: for the number of each step that runs once, its result.
      per_block: numbers of the steps that run for every block, in order of evaluation.
      frees: for each step in `per_block`, the steps whose results no later step reads.
    """

    def __init__(self, code: Code, roots: Sequence[int], points: Points) -> None:
        """Decide which steps run once, which run per block of points, and when results are freed.

        A step depends on some of the named sizes (`sizes`). `once` has the results of steps that
        are computed once for all blocks. The steps in `per_block` run for every block. After each
        of them, the results in its entry of `frees` are not needed any more.

        Args:
          code: the program. roots: the numbers of the steps with the results.
        """
        self.roots, self.points = roots, points
        self.all: list[Step] = list(code.steps)
        # A step comes after its operands, so the sizes that these depend on are known here.
        self.sizes: list[frozenset[str]] = []
        for what, *operands in self.all:
            is_leaf = what in (NAME, NUMBER)
            own = operands if what == NAME else ()
            found = own if is_leaf else frozenset().union(*(self.sizes[n] for n in operands))
            self.sizes.append(frozenset(found))
        self.once: dict[int, Any] = {}
        self.per_block = self._block_steps()
        # A later reader replaces an earlier one in `last`, so the last reader of a result is left.
        last = {n: at for at, number in enumerate(self.per_block) for n in self._operands(number)}
        self.frees: list[list[int]] = [[] for _ in self.per_block]
        for number, at in last.items():
            if number not in roots:
                self.frees[at].append(number)

    def _operands(self, number: int) -> tuple[Any, ...]:
        """Return the numbers of the steps whose results a step reads."""
        what, *operands = self.all[number]
        return () if what in (NAME, NUMBER) else tuple(operands)

    def _block_steps(self) -> list[int]:
        """Return the numbers of the steps that must run for every block of points, in order.

        The other steps that these read are evaluated here, once for all blocks.
        """
        needed, here = set(self.roots), []
        # From the last step to the first, so that readers are visited before their operands.
        for number in range(len(self.all) - 1, -1, -1):
            if number in needed and not self._evaluate_if_small(number):
                needed.update(self._operands(number))
                here.append(number)
        return here[::-1]

    def _evaluate_if_small(self, number: int) -> bool:
        """Evaluate a step that depends on few of the sizes; return False for any other step.

        Such a step has at least FEWER times fewer points on the grid of its own sizes.
        """
        names, points = self.sizes[number], self.points
        shape = np.broadcast_shapes(*(points.arrays[name].shape for name in names))
        # A step without sizes is a number and is always evaluated once.
        if math.prod(shape) * FEWER > points.count and names and points.count > 1:
            return False
        self._evaluate_once(number)
        return True

    def _evaluate_once(self, number: int) -> Any:
        """Return the result of a step at all points of the sizes that it depends on.

        A step is a number, a named size, or an operation on the results of earlier steps.
        """
        # Several steps and all blocks of points read the result, so it is kept in `once`.
        if number not in self.once:
            operation, *operands = self.all[number]
            if operation == NUMBER:
                self.once[number] = operands[0]
            elif operation == NAME:
                self.once[number] = self._name(operands[0])
            else:
                # The operands depend on no other sizes than the step. Their arrays are therefore at
                # most as large as the result, and are also computed here, not per block.
                self.once[number] = _DO[str(operation)](*map(self._evaluate_once, operands))
        return self.once[number]

    def _name(self, name: Any) -> np.ndarray:
        """Return the array of a named size."""
        return self.points.arrays[name]

    def at(self, index: Index) -> list[Any]:
        """Return the results of the program at one block of the points.

        Args:
          index: the slice of each dimension of the points' arrays.
        """
        block_results: dict[Any, Any] = {}

        def value(number: Any) -> Any:
            """Return the result of a step on the block."""
            if number not in block_results:
                # Steps of a block come before their readers, so a missing one was computed once.
                array = self.once[number]
                is_array = isinstance(array, np.ndarray)
                block_results[number] = rows_of(array, index) if is_array else array
            return block_results[number]

        for number, last_reads in zip(self.per_block, self.frees, strict=True):
            operation, *operands = self.all[number]
            if operation == NAME:
                block_results[number] = rows_of(self._name(operands[0]), index)
            else:
                block_results[number] = _DO[str(operation)](*map(value, operands))
                # Free operands after their last use, so that few arrays fill the cache.
                for operand in last_reads:
                    block_results.pop(operand, None)
        return [value(root) for root in self.roots]


def rows_of(array: np.ndarray, index: Index) -> np.ndarray:
    """Return the part of an array that belongs to a block; it broadcasts like the array.

    Args:
      index: a slice of each dimension of the points.
    """
    if array.size == 1:
        return array
    # A dimension of size 1 is broadcast, so all of it belongs to every block.
    own_index = (slice(None) if n == 1 else at for n, at in zip(array.shape, index, strict=False))
    return array[tuple(own_index)]
