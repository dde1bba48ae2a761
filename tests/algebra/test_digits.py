"""Digits against the functions that they write, by enumeration."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardalg.algebra.digits import (
    Digit,
    PositionTable,
    canonical,
    complement,
    nested,
    overlap,
    partition_id,
    parts,
    split_prefix,
)


def all_digits(size):
    """Every digit of more than one value whose period divides `size`."""
    return [
        Digit(stride, n)
        for stride in range(1, size + 1)
        for n in range(2, size + 1)
        if size % (stride * n) == 0
    ]


def values(digits, size):
    return tuple(partition_id(digits, position) for position in range(size))


@pytest.mark.parametrize("size", [8, 12, 16, 24, 30])
def test_overlap_is_joint_imbalance(size):
    """The gcd condition against counting: every pair of digits, nested or not."""
    pairs = list(itertools.product(all_digits(size), repeat=2))
    wrong = [
        (a, b)
        for a, b in pairs
        if overlap(a, b) == PositionTable.of(((a,), (b,)), size).is_balanced
    ]
    assert not wrong
    crossing = [(a, b) for a, b in pairs if not nested(a, b)]
    assert not any(nested(a, b) and overlap(a, b) for a, b in pairs)
    if size in (12, 24, 30):  # 2 and 3 meet: some pairs coexist without being nested
        assert any(not overlap(a, b) for a, b in crossing)


@pytest.mark.parametrize("size", [8, 12, 16, 24])
def test_canonical_is_unique(size):
    """Equal functions have equal canonical digits, and the function is kept."""
    tuples = [
        row
        for n in (1, 2, 3)
        for row in itertools.product(all_digits(size), repeat=n)
        if not any(overlap(a, b) for a, b in itertools.combinations(row, 2))
    ]
    found = {}
    for row in tuples:
        function = values(row, size)
        assert values(canonical(row), size) == function
        assert found.setdefault((parts(row), function), canonical(row)) == canonical(row)


@pytest.mark.parametrize("size", [8, 12, 16])
def test_tables_of_digits_are_recognized(size):
    rows = [(), *((d,) for d in all_digits(size))]
    rows += [
        (a, b)
        for a, b in itertools.permutations(all_digits(size), 2)
        if nested(a, b) and not overlap(a, b)
    ]
    for row in rows:
        assert PositionTable.of((row,), size).recognize() == (canonical(row),)


@given(st.permutations(range(8)))
def test_recognize_never_invents(order):
    table = PositionTable((8,), (tuple(order),))
    found = table.recognize()
    assert found is None or values(found[0], 8) == tuple(order)


def test_numbers_that_are_no_mixed_radix_are_refused():
    assert PositionTable((4,), ((0, 2, 3, 5),)).recognize() is None
    assert PositionTable((2,), ((0, 3),)).recognize() is None


def test_most_orders_are_no_digits():
    """Only the two of the 24 orders of 4 devices that digits write are recognized."""
    found = [o for o in itertools.permutations(range(4)) if PositionTable((4,), (o,)).recognize()]
    assert found == [(0, 1, 2, 3), (0, 2, 1, 3)]


@pytest.mark.parametrize("size", [8, 12])
def test_split_prefix_is_a_division(size):
    """The coarse id is the fine id divided exactly where a rest is given, and else never."""
    rows = {canonical((d,)) for d in all_digits(size)} | {()}
    rows |= {
        canonical(pair)
        for pair in itertools.permutations(all_digits(size), 2)
        if not overlap(*pair) and nested(*pair)
    }
    for fine, coarse in itertools.product(rows, repeat=2):
        rest = split_prefix(fine, coarse)
        ratio = parts(fine) // parts(coarse)
        divided = parts(fine) % parts(coarse) == 0 and (
            tuple(v // ratio for v in values(fine, size)) == values(coarse, size)
        )
        assert (rest is not None) == divided, (fine, coarse)
        if rest is not None:
            assert canonical((*coarse, *rest)) == canonical(fine)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_complement_tiles_the_positions(sizes, data):
    """Used and unused digits together cover every place of the position once."""
    size, stride, axes = math.prod(sizes), math.prod(sizes), []
    for n in sizes:
        stride //= n
        axes.append(Digit(stride, n))
    used = tuple(data.draw(st.permutations(axes)))[: data.draw(st.integers(0, len(axes)))]
    rest = complement(used, size)
    assert parts(used) * parts(rest) == size
    assert PositionTable.of((used, rest), size).is_balanced


def test_complement_of_two_meshes_is_refused():
    assert complement((Digit(1, 2), Digit(1, 3)), 6) is None
