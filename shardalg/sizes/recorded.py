"""Recorded sizes: numbers with a formula that store each comparison as a fact about named sizes.

Planning is ordinary code on integers. It also runs on `Recorded` sizes instead of integers. Every
comparison or division of a size is then stored with its outcome as a `Fact`, such as `M/X is
whole`. At all sizes at which these facts are true, the code takes the same branches again. The
facts are complete, because a `Recorded` returns no plain number without storing a fact.

The file also has sums of many prices. `least_sum` finds the smallest of several sums, and the range
of sizes in which it stays the smallest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from shardalg.sizes.amounts import is_whole, multiple
from shardalg.sizes.conditions import is_positive, primitive
from shardalg.sizes.facts import NONNEGATIVE, NONZERO, POSITIVE, WHOLE, ZERO, Fact
from shardalg.sizes.formula import UNIT, Formula, Number, ceiling

Compared = tuple[Number, Formula]
"""A size as (its number at the hints, its formula).

The number decides comparisons, and the formula is recorded.
"""
Answer = tuple[Any, tuple[Fact, ...]]
"""Pair (result of an operation on sizes, facts that must be true for this result).

The result is a `Compared`, a number or a truth value.
"""


class Answers:
    """Cache of operations on sizes, shared by all recorders of one plan.

    Attributes:
      hints: for each named size, the number at which the plan is computed.
      sides: for each formula, its pair (number at the hints, formula).
      found: results of operations so far.
    """

    def __init__(self, hints: Mapping[str, int]) -> None:
        self.hints = dict(hints)
        self.sides: dict[Formula, Compared] = {}
        self.found: dict[Hashable, Answer] = {}

    def side(self, formula: Formula) -> Compared:
        """Return the pair (number at the hints, formula) of a formula; equal formulas share it."""
        cached = self.sides.get(formula)
        if cached is None:
            cached = self.sides[formula] = (formula.at(self.hints), formula)
        return cached

    def ask(self, name: str, a: Compared, b: Compared | Number) -> Answer:
        """Return the result of an operation on two sizes, with the facts that it depends on.

        Args:
          name: a key of `_DO`, such as "add" or "gt".
          a: the first operand, a result of `side`.
          b: the second operand, a result of `side` or a number.
        """
        # Sides are one object per formula and live as long as the table, so an `id` is a quick key.
        number = None if isinstance(b, tuple) else b
        key = (name, id(a), id(b) if number is None else None, number)
        cached = self.found.get(key)
        if cached is None:
            result, facts = _DO[name](a, b if isinstance(b, tuple) else (b, Formula.of(b)))
            if type(result) is Formula:
                result = result.number if result.number is not None else self.side(result)
            cached = self.found[key] = (result, facts)
        return cached


@dataclass(eq=False)
class Recorder:
    """Store for the facts on which the decisions of one run of planning depend.

    Attributes:
      answers: cache of operations, shared by all runs of the plan.
      facts: the facts in order; each value is the decision that first needed the fact, or None.
      about: the current decision, as the caller describes it, or None.
      host: the calls of decided functions inside the run (`sizes.decided`), or None.
    """

    answers: Answers
    facts: dict[Fact, Any] = field(default_factory=dict)
    about: Any = None
    host: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.known: dict[int, Recorded] = {}
        self.done: dict[Hashable, Any] = {}

    def size(self, formula: Formula | Number) -> Any:
        """Return the recorded size with a formula; a constant formula gives its number.

        Equal formulas give the same object.
        """
        formula = Formula.of(formula)
        number = formula.number
        return self._of(self.answers.side(formula)) if number is None else number

    def _of(self, side: Compared) -> Recorded:
        """Return the recorded size for a pair (number, formula); equal pairs give one object."""
        cached = self.known.get(id(side))
        if cached is None:
            cached = self.known[id(side)] = Recorded(self, side)
        return cached

    def ask(self, name: str, a: Compared, b: Compared | Number) -> Any:
        """Return the result of an operation, and store the facts that it depends on.

        The result is a recorded size of this recorder, a number or a truth value. Arguments as in
        `Answers.ask`.
        """
        result, facts = self.answers.ask(name, a, b)
        self.note(facts)
        return self._of(result) if type(result) is tuple else result

    def note(self, facts: tuple[Fact, ...]) -> None:
        """Store facts, together with the current decision (`about`)."""
        for fact in facts:
            if self.facts.get(fact) is None:
                self.facts[fact] = self.about


def _operator(name: str) -> Callable[[Recorded, Any], Any]:
    """Return the method of `Recorded` for an operation of `_DO`; each recorder caches results.

    Args:
      name: the operation, such as "add".
    """

    def method(self: Recorded, other: Any) -> Any:
        """Return the result of the operation `name` on two sizes, with its facts recorded.

        The result is `NotImplemented` if `other` is no number, or is a size of another run.
        """
        recorder = self.recorder
        if type(other) is Recorded:
            # Sizes of two runs may not be mixed: their facts would be noted in one run only.
            if other.recorder is not recorder:
                return NotImplemented
            key: Hashable = (name, id(self), id(other))
            other = other.side
        elif type(other) in _NUMBERS:
            key = (name, id(self), None, other)
        else:
            return NotImplemented
        result = recorder.done.get(key)
        if result is None:
            result = recorder.done[key] = recorder.ask(name, self.side, other)
        return result

    return method


# The functions below take two pairs (number at the hints, formula). Sums, differences and products
# are formulas at all sizes, so they need no facts; the other results hold only where facts do.
def _sum(a: Compared, b: Compared) -> Answer:
    """Return `a + b`, without facts."""
    return a[1] + b[1], ()


def _difference(a: Compared, b: Compared) -> Answer:
    """Return `a - b`, without facts."""
    return a[1] - b[1], ()


def _product(a: Compared, b: Compared) -> Answer:
    """Return (the formula of `a * b`, ()): a product of sizes needs no facts.

    Args:
      a, b: pairs (number, formula) of both sizes.
    """
    return a[1] * b[1], ()


def _quotient(a: Compared, b: Compared) -> Answer:
    """Return `a / b`; if that is no formula, a number and the facts that fix both operands."""
    ratio = _ratio(a[1], b[1])
    if ratio is None:
        return Fraction(a[0]) / b[0], (*_fixed_facts(*a), *_fixed_facts(*b))
    return ratio, ()


def _floor(a: Compared, b: Compared) -> Answer:
    """Return `a // b`.

    If the quotient is whole at the hints, the result has no floor, and "a/b is whole" is a fact.
    """
    ratio = _ratio(a[1], b[1])
    if ratio is None:
        return a[0] // b[0], (*_fixed_facts(*a), *_fixed_facts(*b))
    # floor(r) = -ceil(-r) is exact at all sizes, so that nothing is noted.
    if a[0] % b[0]:
        return -ceiling(-ratio), ()
    # The sign of the fact follows the numbers, so that equal questions give equal facts.
    facts = () if is_whole(ratio) else (Fact(ratio if a[0] * b[0] > 0 else -ratio, WHOLE),)
    return ratio, facts


def _rest(a: Compared, b: Compared) -> Answer:
    """Return `a % b = a - b * floor(a / b)`, with the facts of the floor."""
    floor, facts = _floor(a, b)
    return (a[1] - b[1] * floor if a[0] % b[0] else 0), facts


def _ratio(above: Formula, below: Formula) -> Formula | None:
    """Return `above / below` as a formula; None if there is none or the divisor may be 0."""
    if not is_positive(below):
        return None
    return above / below if len(below.terms) == 1 else multiple(above, below)


def _fixed_facts(value: Number, formula: Formula) -> tuple[Fact, ...]:
    """Return the fact that a formula equals a number; no fact for a constant formula."""
    return () if formula.number is not None else (Fact(primitive(formula - value), ZERO),)


def _is_above(a: Compared, b: Compared) -> Answer:
    """Return whether `a > b` at the hints, with the fact that makes it so."""
    return _sign_answer(a[1] - b[1], True, a[0] > b[0])


def _is_at_least(a: Compared, b: Compared) -> Answer:
    """Return (whether `a >= b` at the hints, the facts under which the answer stays the same).

    Args:
      a, b: pairs (number at the hints, formula) of both sizes.
    """
    return _sign_answer(a[1] - b[1], False, a[0] >= b[0])


def _sign_answer(difference: Formula, strict: bool, outcome: bool) -> Answer:
    """Return the outcome of comparing a difference with 0, and the fact that makes it true.

    There is no fact if the outcome is the same at all sizes.

    Args:
      strict: whether the comparison is `difference > 0`; else it is `difference >= 0`.
      outcome: the outcome at the hints.
    """
    # not (d > 0) is -d >= 0, and not (d >= 0) is -d > 0.
    if not outcome:
        difference, strict = -difference, not strict
    formula = primitive(difference)
    is_decided = formula.number is not None or is_positive(formula)
    return outcome, () if is_decided else (Fact(formula, POSITIVE if strict else NONNEGATIVE),)


def _is_equal(a: Compared, b: Compared) -> Answer:
    """Return whether `a == b` at the hints, with the fact that makes it so.

    Each of the two is a pair: its number at the hints, and its formula. The facts are () if the
    answer is the same at all sizes.
    """
    outcome, difference = a[0] == b[0], primitive(a[1] - b[1])
    # A difference that is positive at all sizes needs no note: it is never 0.
    known = not outcome and (is_positive(difference) or is_positive(-difference))
    if known or difference.number is not None:
        return outcome, ()
    return outcome, (Fact(difference, ZERO if outcome else NONZERO),)


def _swap_operands(act: Callable[[Compared, Compared], Answer]) -> Callable[..., Answer]:
    """Return an operation that calls `act` with its operands exchanged: `a < b` is `b > a`."""
    return lambda a, b: act(b, a)


_DO: dict[str, Callable[[Compared, Compared], Answer]] = {
    "add": _sum,
    "sub": _difference,
    "rsub": _swap_operands(_difference),
    "mul": _product,
    "truediv": _quotient,
    "rtruediv": _swap_operands(_quotient),
    "floordiv": _floor,
    "rfloordiv": _swap_operands(_floor),
    "mod": _rest,
    "rmod": _swap_operands(_rest),
    "gt": _is_above,
    "lt": _swap_operands(_is_above),
    "ge": _is_at_least,
    "le": _swap_operands(_is_at_least),
    "eq": _is_equal,
}


class Recorded:
    """Number with a formula of named sizes, which records comparisons as facts.

    `Recorder.size` creates it. Arithmetic gives another recorded size. A comparison or a division
    stores a fact in the recorder. Where code needs a plain integer (a `range`, a `gcd`), the fact
    is that the size has this number. The class is no `int`, so that no code reads the number
    without a fact.

    Attributes:
      value: the number at the hints.
      formula: the formula.
      side: the pair (value, formula).

    >>> from shardalg.sizes.formula import symbols
    >>> recorder = Recorder(Answers({"M": 12, "X": 4}))
    >>> M, X = (recorder.size(size) for size in symbols("M X"))
    >>> -(-M // X), max(M, 2 * X) is M, list(recorder.facts)
    (3, True, [M/X is whole, M - 2*X >= 0])
    """

    __slots__ = ("_hash", "formula", "recorder", "side", "value")

    def __init__(self, recorder: Recorder, side: Compared) -> None:
        """Store the run, and the size as a pair: its number at the hints and its formula."""
        self.recorder, self.side = recorder, side
        self.value, self.formula = side
        # The hash includes the run, so that a cache never answers one run with another's facts.
        self._hash = hash((id(recorder), self.formula))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __bool__(self) -> bool:
        return self != 0

    def __neg__(self) -> Any:
        return self * -1

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __index__(self) -> int:
        # Code that needs a plain integer, such as `range`, may depend on it in any way.
        self.recorder.note(_fixed_facts(*self.side))
        return int(self.value)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __eq__(self, other: object) -> bool:
        return True if self is other else _equal(self, other)

    __add__ = __radd__ = _operator("add")
    __mul__ = __rmul__ = _operator("mul")
    __sub__, __rsub__ = _operator("sub"), _operator("rsub")
    __truediv__, __rtruediv__ = _operator("truediv"), _operator("rtruediv")
    __floordiv__, __rfloordiv__ = _operator("floordiv"), _operator("rfloordiv")
    __mod__, __rmod__ = _operator("mod"), _operator("rmod")
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self


_equal = _operator("eq")
_NUMBERS = {int, bool, Fraction}


def first_largest(amounts: Sequence[Any]) -> int:
    """Return the index of the largest amount; if several are equal, of the first.

    If amounts are recorded sizes, only comparisons with the largest become facts. Other amounts may
    change their order with the sizes.

    >>> first_largest([3, 7, 5, 7])
    1
    """
    # Numbers at the hints choose; the comparisons afterwards note why.
    place = max(range(len(amounts)), key=lambda i: _value_of(amounts[i]))
    most = amounts[place]
    if type(most) is Recorded:
        before = all(most > amount for amount in amounts[:place])
        assert before and all(most >= amount for amount in amounts[place:])
    return place


def first_least(
    numbers: Iterable[Any],
    bounds: Sequence[Callable[[], Any]],
    ranks: Sequence[Callable[[], tuple[Any, ...]]],
    about: Callable[[int, int], Any],
) -> int:
    """Return the index of the candidate with the least rank; if several are equal, of the first.

    A rank is a tuple of numbers, compared from left to right. For plain numbers, ranks are computed
    in the order of their bounds, until the remaining bounds exceed the least rank. For recorded
    sizes, all ranks are computed, and only comparisons with the least rank become facts.

    Args:
      numbers: some sizes of the ranks. If ranks have recorded sizes, one must be among them.
      bounds: lower bounds of the first number of each rank.
      ranks: functions that compute the ranks.
      about: function of the indices of the least rank and of another rank. It returns the
        description of this choice for `Recorder.about`.

    >>> from shardalg.sizes.formula import symbols
    >>> recorder = Recorder(Answers({"M": 12, "X": 4}))
    >>> M, X = (recorder.size(size) for size in symbols("M X"))
    >>> ranks = [lambda: (M, 0), lambda: (2 * X, 1), lambda: (M - X, 2)]
    >>> first_least([M], [int] * 3, ranks, lambda *places: places)
    1
    >>> recorder.facts
    {M - 2*X > 0: (1, 0), M - 3*X >= 0: (1, 2)}
    """
    recorder = recorder_of(numbers)
    if recorder is None:
        return _least_number(bounds, ranks)
    rank_of = [rank() for rank in ranks]
    plain_ranks = [tuple(map(_value_of, rank)) for rank in rank_of]
    least = min(range(len(rank_of)), key=plain_ranks.__getitem__)
    outer_about = recorder.about
    for place, rank in enumerate(rank_of):
        if place != least:
            recorder.about = about(least, place)
            # Each comparison is noted. The first different amounts decide, as in tuples.
            for low, high in zip(rank_of[least], rank, strict=True):
                if _value_of(low) != _value_of(high):
                    assert low < high
                    break
                assert low <= high
    recorder.about = outer_about
    return least


def _least_number(
    bounds: Sequence[Callable[[], Any]], ranks: Sequence[Callable[[], tuple[Any, ...]]]
) -> int:
    """Return the index of the least rank, for ranks of plain numbers.

    It is the first of equal ranks. `first_least` does the same for recorded sizes too.

    Args:
      bounds: for each rank, a function that returns a lower bound of its first number.
      ranks: functions that return the ranks; only those are called that may be the least.
    """
    best: tuple[Any, int] | None = None
    for least, place in sorted((bound(), place) for place, bound in enumerate(bounds)):
        # A rank begins with a number of at least its bound, and the bounds ascend: no later rank
        # can be less than the best one.
        if best is not None and least > best[0][0]:
            break
        rank = ranks[place](), place
        best = rank if best is None else min(best, rank)
    assert best is not None, "one rank at least"
    return best[1]


def equal_key(found: Iterable[Any], key: Any) -> Any:
    """Return the first of the keys of a dictionary that equals `key`; `key` itself if none does.

    A dictionary compares only keys with equal hashes. The hash of a recorded size is that of its
    formula, so that `B` and `D` are never compared, and no fact says that they differ. A decision
    that depends on equal shapes therefore looks up its key with this function.

    >>> from shardalg.sizes.formula import symbols
    >>> recorder = Recorder(Answers({"B": 8, "D": 4}))
    >>> B, D = (recorder.size(size) for size in symbols("B D"))
    >>> equal_key({(B, 2): "first"}, (D, 2)) == (D, 2), list(recorder.facts)
    (True, [B - D != 0])
    """
    return next((other for other in found if other == key), key)


def formula_of(size: Any) -> Formula:
    """Return the formula of a recorded size or of a number; a formula is returned unchanged."""
    return size.formula if type(size) is Recorded else Formula.of(size)


def are_numbers(sizes: Iterable[Any]) -> bool:
    """Return whether all sizes are integers, neither formulas nor recorded."""
    return all(type(size) is int for size in sizes)


def recorder_of(numbers: Iterable[Any]) -> Recorder | None:
    """Return the recorder of the first recorded size among some numbers; None without one."""
    return next((number.recorder for number in numbers if type(number) is Recorded), None)


def _value_of(amount: Any) -> Number:
    """Return the number of a recorded size at the hints, and store no fact; a number unchanged."""
    return amount.value if type(amount) is Recorded else amount


def summed(tally: Mapping[tuple[Hashable, Any, Any], int]) -> dict[Any, Any]:
    """Return, for each quantity, the sum of its amounts times their factors.

    Args:
      tally: for each triple (quantity, amount, factor), the number of times that it occurs.

    >>> from shardalg.sizes.formula import symbols
    >>> B, L = symbols("B L")
    >>> summed({("flops", B, L): 3, ("flops", B + 1, 1): 1, ("count", 2, L): 3})
    {'flops': 3*B*L + B + 1, 'count': 6*L}
    """
    amounts: dict[Any, dict[Any, list[tuple[Any, int]]]] = defaultdict(lambda: defaultdict(list))
    for (quantity, amount, factor), times in tally.items():
        amounts[quantity][factor].append((amount, times))
    return {
        quantity: total([weighted_sum(found) * factor for factor, found in factors.items()])
        for quantity, factors in amounts.items()
    }


def total(amounts: Iterable[Any]) -> Any:
    """Return the sum of amounts, which is a formula if at least one amount is a formula.

    >>> from shardalg.sizes.formula import symbol
    >>> total([symbol("B"), 2, symbol("B")]), total([])
    (2*B + 2, 0)
    """
    return weighted_sum((amount, 1) for amount in amounts)


def weighted_sum(amounts: Iterable[tuple[Any, int]]) -> Any:
    """Return the sum of `amount * times` over pairs (amount, times).

    It is a formula if at least one amount is a formula.
    """
    # All terms go into one dictionary: adding formulas one by one would copy the sum each time.
    terms: dict[Any, Any] = {}
    number = 0
    for amount, times in amounts:
        if type(amount) is not Formula:
            number += amount * times
            continue
        for monomial, coefficient in amount.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient * times
    return Formula(terms) + number if terms else number


_FARTHEST = 1 << 10
"""Largest multiple of the number at the hints that `least_sum` checks."""


def least_sum(
    sizes: Sequence[Any], ask: Callable[[tuple[int, ...]], frozenset[int]]
) -> frozenset[int]:
    """Return the set of indices, chosen by `ask`, whose sizes have the least sum.

    If all recorded sizes have the form `a*x + c` with one product x, two facts are stored: the ends
    of the range of x in which the same set has the least sum. The ends suffice. The sum of a set is
    a line in x, and the minimum of lines is concave, so a line that is the minimum at two points is
    the minimum between them. Sizes of another form must keep their numbers, which become facts.

    Args:
      ask: function from the sizes as numbers to the allowed set with the least sum. Of sets with
        equal sums, it returns one that contains no other.

    >>> from shardalg.sizes.formula import symbol
    >>> from shardalg.sizes.recorded import Answers, Recorder
    >>> recorder = Recorder(Answers({"B": 12}))
    >>> smaller = lambda sizes: frozenset({0 if sizes[0] <= sizes[1] else 1})
    >>> least_sum([recorder.size(2 * symbol("B")), 60], smaller), list(recorder.facts)
    (frozenset({0}), [-B + 30 >= 0])
    """
    recorder = recorder_of(sizes)
    formulas = [formula_of(size) for size in sizes]
    monomials = {m for formula in formulas for m in formula.terms if m}
    plain = all(type(f) is str and e > 0 for m in monomials for f, e in m)
    if recorder is None or len(monomials) != 1 or not plain:
        return ask(tuple(map(int, sizes)))
    (monomial,) = monomials
    scale = math.lcm(*(Fraction(c).denominator for f in formulas for c in f.terms.values()))
    lines = [
        tuple(int(f.terms.get(part, 0) * scale) for part in (monomial, UNIT)) for f in formulas
    ]
    # All lines were multiplied by one positive number, so that `ask` compares integers and the set
    # with the least sum is the same.
    x = recorder.size(Formula({monomial: 1}))
    found = ask(tuple(a * x.value + c for a, c in lines))
    # The comparisons are always true here: they are made because `x` stores them as facts.
    assert x <= _range_end(lines, ask, found, (x.value, x.value * _FARTHEST))
    low = _range_end(lines, ask, found, (x.value, 1))
    assert low == 1 or x >= low
    return found


def _range_end(
    lines: Sequence[tuple[int, ...]],
    ask: Callable[[tuple[int, ...]], frozenset[int]],
    found: frozenset[int],
    ends: tuple[int, int],
) -> int:
    """Return the end of the range of x in which the set `found` has the least sum of sizes.

    The range begins at the first of `ends`, and the search comes from the other end. There, `ask`
    returns a set that is better than `found`. Both sums are lines in x, and beyond their crossing
    `found` is not the least. So the search goes on at the crossing, until `ask` returns `found`.

    Args:
      lines: (a, c) for each size `a*x + c`.
      ask: as in `least_sum`.
      found: the set that `ask` returns at the first end.
      ends: the values of x between which the search runs.
    """
    here, far = ends
    step = 1 if far > here else -1
    slope, height = (sum(lines[place][i] for place in found) for i in (0, 1))
    while far != here:
        other = ask(tuple(a * far + c for a, c in lines))
        if other == found:
            break
        # The sums of both sets are lines that cross at `meet`. Beyond it `found` is not the least,
        # so the end of its range is at or before the crossing.
        a, c = (sum(lines[place][i] for place in other) for i in (0, 1))
        meet = Fraction(c - height, slope - a)
        before = math.floor(meet) if step > 0 else math.ceil(meet)
        far = before if before != far else far - step
    return far
