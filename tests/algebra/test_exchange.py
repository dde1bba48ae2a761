"""Exchanges: the pieces that a device receives are exactly its interval, and no more are sent."""

from collections import Counter

import numpy as np
import pytest

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digit, partition_id, parts
from shardalg.algebra.halos.exchange import Exchange, exchange
from shardalg.algebra.halos.halo import halo
from shardalg.algebra.halos.intervals import (
    Interval,
    concatenate,
    reshape_interval,
    reverse_interval,
    touched,
)
from shardalg.algebra.halos.window import pad_window, slice_window
from shardalg.errors import ShardingError

from .window_cases import deliver, split

SEED = 210504663
P = Index.of("p")


def delivered(want, values, parts, block=None):
    """Return the exchange and each device's elements, checked against the array."""
    step = exchange(want, size=len(values), count=parts, block=block)
    rows = deliver(step, split(values, parts, step.block))
    for p, row in enumerate(rows):
        start, end = want.at({"p": p})
        inside = slice(max(start, 0), max(min(end, len(values)), 0))
        np.testing.assert_array_equal(
            row[inside.start - start :][: len(values[inside])], values[inside]
        )
    return step, rows


def existing(want, rows, size):
    """Rows with nan wherever the interval leaves the dimension."""
    for p, row in enumerate(rows):
        place = np.arange(*want.at({"p": p}))
        yield np.where((place >= 0) & (place < size), row, np.nan)


def sliced(values, n, rng):
    start = int(rng.integers(0, len(values)))
    limit, stride = int(rng.integers(start + 1, len(values) + 1)), int(rng.integers(1, 4))
    found = halo(slice_window(start, limit, stride, size=len(values)), size=len(values), parts=n)
    step, rows = delivered(found.interval, values, n)
    return step, [row[::stride] for row in rows], values[start:limit:stride]


def padded(values, n, rng):
    low, high = (int(x) for x in rng.integers(0, 5, 2))
    found = halo(pad_window(low, high), size=len(values), parts=n)
    step, rows = delivered(found.interval, values, n)
    rows = [np.nan_to_num(row, nan=7.0) for row in existing(found.interval, rows, len(values))]
    return step, rows, np.pad(values, (low, high), constant_values=7.0)


def reversed_(values, n, rng):
    step, rows = delivered(reverse_interval(len(values), n), values, n)
    return step, [row[::-1] for row in rows], values[::-1]


def concatenated(values, n, rng):
    cut = sorted({int(x) for x in rng.integers(1, len(values) + 1, 2)} | {len(values)})
    pieces = np.split(values, cut[:-1])
    held = [
        (piece, *delivered(want, piece, n))
        for want, piece in zip(concatenate([len(x) for x in pieces], n), pieces, strict=True)
    ]
    total = np.full((n, held[0][1].want.length), np.nan)
    for piece, step, rows in held:
        found = np.array(list(existing(step.want, rows, len(piece))))
        assert not (~np.isnan(total) & ~np.isnan(found)).any()
        total = np.where(np.isnan(found), total, found)
    return held[0][1], list(total), values


def reshaped(values, n, rng):
    minor = int(rng.integers(1, 5))
    flat = np.repeat(values, minor) + np.tile(np.arange(minor) / 10, len(values))
    divisors = [d for d in range(1, len(flat) + 1) if len(flat) % d == 0]
    rows = int(rng.choice(divisors))
    found = reshape_interval((len(values), minor), (rows, len(flat) // rows), parts=n)
    for p in range(n):
        start = p * found.block - found.left.at(p), (p + 1) * found.block + found.right.at(p)
        assert start == found.interval.at({"p": p})
    return *delivered(found.interval, flat, n, found.block), flat


REALIGNED = [sliced, padded, reversed_, concatenated, reshaped]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("realigned", REALIGNED)
def test_data_formatting_by_exchange(realigned, show):
    rng, total = np.random.default_rng(SEED), Counter()
    for _ in range(200):
        n, values = int(rng.integers(1, 9)), rng.normal(size=int(rng.integers(1, 60)))
        step, rows, expected = realigned(values, n, rng)
        np.testing.assert_array_equal(np.concatenate(rows)[: len(expected)], expected)
        total["rounds"] += step.elements
        total["hops"] += step.hop_elements
        total["gather"] += step.gather_elements
    show(f"elements sent per device, {realigned.__name__}: {dict(total)}")


def test_the_reshape_of_the_paper():
    """Section 4.3: (3, 2) to (6,), two ways: the second device lacks one element on the left."""
    found = reshape_interval((3, 2), (6,), parts=2)
    assert (repr(found.left), repr(found.right)) == ("p", "-p - 1")


def test_several_partition_ids_on_a_mesh():
    """A start in two ids, held by another order of digits, with devices that only look on."""
    rng = np.random.default_rng(SEED)
    x, y, z = Digit(12, 2), Digit(4, 3), Digit(1, 4)  # a mesh of 2 * 3 * 4
    for held, ids in [
        ((z, x), (("o", (x,)), ("r", (z,)))),
        ((y,), (("o", (x,)), ("r", (y,)))),
        ((x, y), (("o", (z,)),)),
        ((y, x), (("o", (y, x)), ("r", (z,)))),
        ((), (("o", (z,)),)),
    ]:
        for _ in range(40):
            size = int(rng.integers(1, 50))
            block = -(-size // parts(held))
            a, b, c = (int(v) for v in rng.integers((-5, -5, -20), (6, 6, 40)))
            start = (Index.of("o") * a + Index.of("r") * b + c) // int(rng.integers(1, 4))
            start = start if len(ids) > 1 else (Index.of("o") * a + c)
            want = Interval(start, int(rng.integers(0, 12)))
            step = Exchange(want, size, block, held, ids, 24)
            values = rng.normal(size=size)
            blocks = split(values, parts(held), block)
            rows = deliver(step, [blocks[partition_id(held, d)] for d in range(24)])
            for d, row in enumerate(rows):
                place = np.arange(*want.at({n: partition_id(digits, d) for n, digits in ids}))
                inside = (place >= 0) & (place < size)
                np.testing.assert_array_equal(row[inside], values[place[inside]])


def test_as_few_permutes_as_the_busiest_source_needs():
    """Half the devices want each block twice: two permutes, each of half the devices."""
    step = exchange(Interval(P // 2, 1), size=8, count=8)
    assert [permute.pairs for permute in step.rounds[0].permutes] == [
        ((0, 1), (1, 2), (2, 4), (3, 6)),
        ((1, 3), (2, 5), (3, 7)),
    ]
    everyone = exchange(Interval(Index(), 8), size=8, count=8)
    assert [len(r.permutes) for r in everyone.rounds] == [7] * 8
    assert sum(p.elements for r in everyone.rounds for p in r.permutes) == 56
    # a device that sends its block in one round sends nothing in the others: they share permutes
    assert (everyone.elements, everyone.gather_elements) == (7, 7)


def test_hops_are_the_case_of_slope_one():
    rng = np.random.default_rng(SEED)
    for _ in range(200):
        block, n = int(rng.integers(1, 8)), int(rng.integers(2, 9))
        left, right = (int(x) for x in rng.integers(0, 2 * block, 2))
        want = Interval(P * block - left, block + left + right)
        step = exchange(want, size=block * n, count=n)
        assert all(len(r.permutes) <= 1 for r in step.rounds)
        assert step.buffer == want.length
        by_rounds = sum(permute.elements for r in step.rounds for permute in r.permutes)
        assert by_rounds == step.hop_elements >= step.elements


def test_touched_is_the_box_of_an_index():
    rng = np.random.default_rng(SEED)
    for _ in range(500):
        blocks = {name: int(n) for name, n in zip("or", rng.integers(1, 6, 2), strict=True)}
        counts = {name: int(rng.integers(1, 6)) for name in "or" if rng.integers(2)}
        a, b, c, m = (int(v) for v in rng.integers((-4, -4, -9, 1), (5, 5, 10, 7)))
        index = Index.of("o") * a + Index.of("r") * b + c
        index = index.over(m) if rng.integers(2) else index // m
        want = touched(index, blocks=blocks, parts=counts)
        lengths = []
        for ids in np.ndindex(*(counts.get(name, 1) for name in "or")):
            at = dict(zip("or", ids, strict=True))
            low, high = _box(index, blocks, at)
            assert want.start.at(at) == low, (index, blocks, counts, at)
            lengths.append(high - low)
        assert want.length == max(lengths), (index, blocks, counts)


def _box(index, blocks, ids):
    """First quotient at or after the smallest numerator, end after the largest one."""
    loops = [range(ids[name] * n, (ids[name] + 1) * n) for name, n in blocks.items()]
    whole = Index(index.terms, index.constant)
    found = [whole.at(dict(zip("or", (o, r), strict=True))) for o in loops[0] for r in loops[1]]
    low, high, m = min(found), max(found), index.div
    return (-(-low // m) if index.exact else low // m), high // m + 1


@pytest.mark.parametrize("delta", [-1, 1])
def test_a_moved_start_is_seen(delta):
    """A start that is off by one delivers other elements."""
    values = np.arange(12.0)
    wrong = Interval(P * 3 - 1 + delta, 5)
    rows = deliver(exchange(wrong, size=12, count=4), split(values, 4, 3))
    right = [values[max(3 * p - 1, 0) : 3 * p + 4] for p in range(4)]
    assert any(
        row[1:4].tolist() != want[1:4].tolist() for row, want in zip(rows, right, strict=True)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: exchange(Interval(P, 1), size=10, count=4, block=2),
            "10 elements in 4 blocks of 2",
        ),
        (lambda: exchange(Interval(P, 1), size=10, count=0), "count=0"),
        (lambda: over(4, Index.of("q"), ()), r"missing: \['q'\]"),
        (lambda: over(1, P, (Digit(1, 2),)), "over 1 devices: .*reach beyond them"),
        (lambda: over(4, Index(), (Digit(1, 2), Digit(1, 4))), "split the dimension twice"),
        (lambda: Interval(P.over(2), 3), "write `//`"),
        (lambda: Interval(P, -1), "not negative"),
        (lambda: touched(P % 4, blocks={"p": 2}, parts={}), "it is no interval"),
        (lambda: reshape_interval((3, 2), (5,), parts=2), "a reshape keeps their number"),
        (lambda: reverse_interval(0, 2), "size=0 in parts=2"),
    ],
)
def test_what_cannot_be(make, message):
    with pytest.raises(ShardingError, match=message):
        make()


def over(devices, start, held):
    return Exchange(Interval(start, 1), 4, 4, held, (("p", held),), devices)
