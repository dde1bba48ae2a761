"""`sizes.points.lanes`: code on many points at once gives what it gives at each, exactly."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardalg.errors import MeshError
from shardalg.sizes.points.between import chosen, one_answer
from shardalg.sizes.points.lanes import (
    Lanes,
    Points,
    largest,
    least,
    real,
)
from shardalg.sizes.points.parted import parted
from shardalg.sizes.points.rejoined import rejoined

NUMBERS = st.one_of(st.integers(-9, 9), st.integers(-(1 << 70), 1 << 70), st.fractions(-9, 9))
TWO = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4)
ARITHMETIC = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: Fraction(a) / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "reversed": lambda a, b: 3 - a * 2 + b,
    "largest": lambda a, b: max(a, b),
    "least": lambda a, b: min(a, b),
    "float": lambda a, b: float(a) * 1.7 + float(b),
}
ON_LANES = {
    **ARITHMETIC,
    "/": lambda a, b: a / b if Lanes in (type(a), type(b)) else Fraction(a) / b,
    "largest": lambda a, b: largest((a, b)),
    "least": lambda a, b: least((a, b)),
    "float": lambda a, b: real(a) * 1.7 + real(b),
}


def at(number, place):
    return number.values[place] if type(number) is Lanes else number


@pytest.mark.parametrize("name", ARITHMETIC)
@given(pairs=TWO)
def test_arithmetic_is_that_of_each_point(name, pairs):
    """Of integers of any size and of fractions; floats to the last bit."""
    if name in ("/", "//", "%"):
        pairs = [(a, b or 1) for a, b in pairs]
    points = Points(len(pairs))
    made = ON_LANES[name](*(points.of(list(side)) for side in zip(*pairs, strict=True)))
    for place, (a, b) in enumerate(pairs):
        assert at(made, place) == ARITHMETIC[name](a, b)


def collatz(n):
    """Steps, and the way: code whose course depends on its number."""
    way = []
    while n != 1 and len(way) < 40:
        way.append(bool(n % 2))
        n = 3 * n + 1 if way[-1] else n // 2
    return n, tuple(way)


@given(numbers=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_points_that_go_another_way_are_run_again(numbers):
    seen = []
    for places, (number, way) in parted([{"n": n} for n in numbers], lambda s: collatz(s["n"])):
        for inside, place in enumerate(places):
            assert (at(number, inside), way) == collatz(numbers[place])
        seen += places.tolist()
    assert sorted(seen) == list(range(len(numbers)))


def test_a_run_ends_where_some_leave():
    """It is made again of each part: a number that is left alone is one, which code may look up."""
    ends = []

    def work(sizes):
        odd = bool(sizes["b"] % 2)
        ends.append(sizes["b"])
        return {7: "seven", 8: "eight"}[sizes["b"]] if odd else sizes["b"] * 2

    points = [{"b": n} for n in (7, 8, 10)]
    found = [(p.tolist(), made) for p, made in parted(points, work)]
    assert found[0] == ([0], "seven")
    assert repr(found[1:]) == "[([1, 2], Lanes(16, 20))]"
    assert [type(b) for b in ends] == [int, Lanes]


def test_numbers_that_differ_only_where_points_left_are_one_key():
    """Code that counts what is different, as a program's groups of devices or values shared."""

    def work(sizes):
        same = bool(sizes["b"] == sizes["c"])
        return same, len({sizes["b"], sizes["c"]})

    points = [{"b": 8, "c": 8}, {"b": 16, "c": 16}, {"b": 24, "c": 32}]
    found = [(p.tolist(), made) for p, made in parted(points, work)]
    assert found == [([0, 1], (True, 1)), ([2], (False, 2))]


def test_an_error_of_one_point_is_that_point_s():
    def work(sizes):
        if sizes["b"] < 8:
            raise MeshError("too small")
        return sizes["b"] + 1

    runs = parted([{"b": n} for n in (8, 9, 7)], work)
    places, made = next(runs)
    assert places.tolist() == [0, 1]
    assert repr(made) == "Lanes(9, 10)"
    with pytest.raises(MeshError, match="too small"):
        next(runs)
    with pytest.raises(MeshError, match="too small"):
        list(parted([{"b": n} for n in (6, 7, 9)], work))


def test_a_divisor_that_left_does_no_harm():
    """Points at which code would not have divided."""
    points = Points(2)
    n = points.of([2, 0])
    assert n != 0
    assert points.alive.tolist() == [True, False]
    assert at(8 // n, 0) == at(Fraction(8) / n, 0) == 4
    assert at(8 % n, 0) == 0


def test_choices_at_each_point():
    points = Points(3)
    a, b = points.of([1, 2, 3]), points.of([3, 2, 1])
    assert chosen(a, b, (10, b)).values.tolist() == [10, 10, 1]
    assert one_answer([a, b], lambda row: row[0] > row[1]) is False
    assert points.alive.tolist() == [True, True, False]
    assert range(points.of([4, 4, 5]))[-1] == 3
    assert np.array_equal(points.alive, [True, True, False])


def _cheapest(held, sent):
    """A search on sizes that drops most of what it compares, as the planner's do."""
    best = min(held, 3 * sent)
    if best % 2:
        return ("odd", 1), best + 1
    return ("even" if best < 90 else "large", 2), best


@pytest.mark.parametrize("seed", range(5))
def test_a_call_gives_at_each_point_what_it_gives_alone(seed):
    """Points of another value, or of another number that may be a place, leave; no other does."""
    random = np.random.default_rng(seed)
    held, sent = (random.integers(1, 100, 40).tolist() for _ in range(2))
    held[7:9], sent[7:9] = held[:2], sent[:2]
    points = Points(40)
    made = []

    def counted(*sizes):
        made.append(sizes)
        return _cheapest(*sizes)

    kind, size = rejoined(_cheapest, counted, (points.of(held), points.of(sent)), points)
    alone = [_cheapest(*sizes) for sizes in zip(held, sent, strict=True)]
    assert kind == alone[0][0]
    assert points.alive.tolist() == [one[0] == kind for one in alone]
    sizes = size.values if type(size) is Lanes else np.full(40, size)
    assert [s for s, a in zip(sizes, points.alive, strict=True) if a] == [
        one[1] for one in alone if one[0] == kind
    ]
    before = len(made)
    rejoined(_cheapest, counted, (points.of(held), points.of(sent)), points)
    rejoined(_cheapest, counted, (points.of(held), points.of(sent)), points)
    assert len(made) <= 2 * before  # the points that stayed are asked once more, then never again


@pytest.mark.parametrize("seed", range(6))
def test_rows_between_two_of_one_answer_are_not_asked(seed):
    """The least of many sums of numbers: asked at every point, and at few."""
    random = np.random.default_rng(seed)
    points = Points(200)
    b, q = (points.of(random.integers(1, 1000, 200)) for _ in range(2))
    fixed = random.integers(0, 50, (12, 5))
    numbers = [b * 3, b + 7, 40 * b, 9, 2 * q if seed % 2 else 5]
    asked = []

    def least_sum(row):
        asked.append(row)
        return int(np.argmin([sum(c * n for c, n in zip(s, row, strict=True)) for s in fixed]))

    found = one_answer(numbers, least_sum)
    alone = [least_sum([int(at(n, p)) for n in numbers]) for p in range(200)]
    assert found == alone[0]
    assert points.alive.tolist() == [answer == found for answer in alone]
    assert seed % 2 or len(asked) < 200 + 60


def test_fractions_of_any_size_stay_exact():
    """Past 64 bits too, and where a divisor is 0 at points that left."""
    points = Points(2)
    a, b = points.of([1 << 40, 3]), points.of([(1 << 40) - 1, 7])
    ratio = a / b
    assert [at(ratio * ratio * ratio, p) for p in (0, 1)] == [
        Fraction(1 << 40, (1 << 40) - 1) ** 3,
        Fraction(27, 343),
    ]
    zero = points.of([1, 0])
    assert zero > 0
    assert at(ratio / zero, 0) == Fraction(1 << 40, (1 << 40) - 1)
    with pytest.raises(ZeroDivisionError):
        _ = ratio / points.of([0, 5])
