"""Halos: the closed forms equal the windows' reads, for every window and every partition."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shardalg.algebra.affine import Index, Quotient
from shardalg.algebra.halos.exchange import exchange
from shardalg.algebra.halos.halo import halo
from shardalg.algebra.halos.intervals import touched
from shardalg.algebra.halos.window import Window, pad_window, slice_window
from shardalg.algebra.offset import partition_symbol
from shardalg.errors import ShardingError

from .window_cases import (
    CONVOLUTION,
    MAX_POOLING,
    deliver,
    dilated,
    padded,
    random_case,
    reads,
    split,
    windows,
)

SEED = 210504663


def faults(found):
    """Return the faults of a halo, by enumeration of every position and every read."""
    window, n = found.window, found.parts
    base, out_block = window.base_dilation, found.out_block
    first = window.stride * out_block * np.arange(n) - window.padding_low
    end = first + window.stride * (out_block - 1) + window.span
    # every multiple of the dilation near the windows of each partition
    elements = np.arange(first[0] // base - 1, end[-1] // base + 2)
    after = elements[None, :] * base >= first[:, None]
    beyond = elements[None, :] * base >= end[:, None]
    start, limit = elements[after.argmax(1)], elements[beyond.argmax(1)]
    p, block = np.arange(n), found.block
    if (found.left.at(p) != p * block - start).any() or (found.start.at(p) != start).any():
        yield "left"
    if (found.right.at(p) != limit - (p + 1) * block).any() or (found.limit.at(p) != limit).any():
        yield "right"
    if found.max_left != (p * block - start).max():
        yield "max_left"
    if found.max_right != (limit - (p + 1) * block).max():
        yield "max_right"
    if found.length != (limit - start).max() or found.interval != _touched(window, found):
        yield "interval"
    low, high = found.padding_low(p), [found.padding_high(int(q)) for q in p]
    if (low != start * base - first).any() or found.max_padding_low != low.max():
        yield "padding_low"
    if (high != end - ((limit - 1) * base + 1)).any():
        yield "padding_high"
    yield from _read_faults(found, [start, limit])


def _touched(window, found):
    """Return the interval from the index map of the operator."""
    index = Index.of("p") * window.stride + Index.of("tap") * window.window_dilation
    return touched(
        (index - window.padding_low).over(window.base_dilation),
        blocks={"p": found.out_block, "tap": window.size},
        parts={"p": found.parts},
    )


def _read_faults(found, box):
    """Return the faults of the actual reads: exact, inside the box, and within the margins."""
    needed = [0, 0]
    for p, read in enumerate(reads(found.window, found.size, found.parts)):
        if found.reads(p) != read:
            yield f"reads({p})"
        if read:
            if not box[0][p] <= read[0] < read[1] <= box[1][p]:
                yield f"outside the box of {p}"
            needed[0] = max(needed[0], p * found.block - read[0])
            needed[1] = max(needed[1], read[1] - (p + 1) * found.block)
    if [found.needed_left, found.needed_right] != needed:
        yield "needed"
    if needed[0] > found.margin_left or needed[1] > found.margin_right:
        yield "margin"


@pytest.mark.slow
@pytest.mark.parametrize("count", [5000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_random_windows_against_enumeration(count, show):
    rng, seen = np.random.default_rng(SEED), Counter()
    for _ in range(count):
        window, size, parts = random_case(rng)
        found = halo(window, size=size, parts=parts)
        wrong = list(faults(found))
        assert not wrong, (SEED, window, size, parts, wrong)
        seen[f"case {found.case}"] += 1
        seen["several hops"] += max(found.hops) > 1
        seen["uneven"] += size % parts > 0
        seen["empty shards"] += (parts - 1) * found.block >= size
        seen["width depends on p"] += not (found.left.is_constant and found.right.is_constant)
        seen["window wider than a shard"] += window.span > found.block
        seen["partitions"] += parts
        seen["elements exchanged"] += found.exchanged_left + found.exchanged_right
        seen["elements needed"] += found.needed_left + found.needed_right
    assert min(seen[f"case {c}"] for c in (1, 2, 3)) > count / 20
    show(f"{count} windows: {dict(sorted(seen.items()))}")


def partitioned(algebra, found, values, taps, *, mask=True):
    """One program for all devices: exchange, mask, and a local operator of static shapes."""
    window, parts = found.window, found.parts
    want = exchange(found.interval, size=len(values), count=parts)
    held = deliver(want, split(values, parts, found.block))
    kernel, outputs = dilated(window, taps, algebra.fill), []
    for p, local in enumerate(held):
        start, end = want.want.at({"p": p})
        place = np.arange(start, end)
        inside = (place >= 0) & (place < len(values))
        masked = np.where(inside, local, algebra.fill) if mask else np.nan_to_num(local, nan=1e30)
        outputs.append(_local(algebra, found, masked, kernel, low=found.padding_low(p)))
    return np.concatenate(outputs)[: found.out_size]


def _local(algebra, found, values, kernel, *, low):
    """Return one of the paper's three cases; only `low` differs between devices."""
    window, count, most = found.window, found.out_block, found.max_padding_low
    base = np.full(most + max((len(values) - 1) * window.base_dilation + 1, 0), algebra.fill)
    base[most :: window.base_dilation][: len(values)] = values
    base = np.concatenate([base, np.full(found.reach + most, algebra.fill)])
    if found.case == 1:
        assert low == most
        return windows(algebra, base, kernel, window.stride, count)
    if found.case == 2:
        surplus = windows(algebra, base, kernel, 1, count + most)
        return surplus[most - low :][:count]
    room = np.pad(kernel, most, constant_values=algebra.fill)
    placed = room[low : low + len(kernel) + most]
    return windows(algebra, base, placed, window.stride, count)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["convolution", "max pooling"])
def test_partitioned_windows(name, show):
    """Garbage in all padding, offsets that depend on p, every base dilation: the same result."""
    algebra = {"convolution": CONVOLUTION, "max pooling": MAX_POOLING}[name]
    rng, seen = np.random.default_rng(SEED), Counter()
    for _ in range(500):
        window, size, parts = random_case(rng, size=40, parts=8)
        values, taps = rng.normal(size=size), rng.normal(size=window.size)
        base = padded(window, values, algebra.fill)
        if len(base) < window.span:  # negative padding cuts more than there is
            continue
        found = halo(window, size=size, parts=parts)
        kernel = dilated(window, taps, algebra.fill)
        expected = windows(algebra, base, kernel, window.stride, window.out_size(size))
        got = partitioned(algebra, found, values, taps)
        np.testing.assert_allclose(got, expected, atol=1e-9, err_msg=f"{window} {size} {parts}")
        seen[found.case] += 1
    assert min(seen.values()) > 20
    show(f"{name}, windows per case of base dilation: {dict(seen)}")


def test_the_appendix_example():
    """GSPMD, appendix: right halos 1, 2, 3, 4, that is `partition_id + 1`."""
    found = halo(Window(2, padding_low=1, padding_high=4), size=12, parts=4)
    assert repr(found.right) == "p + 1"
    assert [found.right.at(p) for p in range(4)] == [1, 2, 3, 4]
    assert (found.max_right, found.exchanged_right) == (4, 3)
    assert str(found.right.expr) == "p + 1"


@pytest.mark.parametrize(
    ("window", "size", "parts", "left", "right", "case"),
    [
        (Window(3, padding_low=1, padding_high=1), 64, 8, "1", "1", 1),
        (Window(2, 2), 64, 8, "0", "0", 1),
        (Window(7, 2, 3, 3), 224, 4, "3", "2", 1),
        (Window(3, padding_low=1, padding_high=1), 63, 8, "1", "1", 1),
        (Window(1, padding_low=1, padding_high=-1), 4, 4, "1", "-1", 1),  # the pipeline's shift
        (Window(4, 1, 2, 2, 2), 30, 4, "floor(p/2) + 1", "-p + floor((p + 1)/2)", 2),
        (Window(3, 2, 1, 1, 3), 10, 4, "floor((p + 1)/3)", "-p + floor((2*p + 1)/3)", 3),
    ],
)
def test_widths(window, size, parts, left, right, case):
    found = halo(window, size=size, parts=parts)
    assert found.case == case
    assert (repr(found.left), repr(found.right)) == (left, right)
    for form in (found.left, found.right):
        assert all(form.expr.subs(partition_symbol(), p) == form.at(p) for p in range(parts))


def test_slice_and_pad_are_windows():
    rng = np.random.default_rng(SEED)
    for _ in range(100):
        parts, values = int(rng.integers(1, 6)), rng.normal(size=int(rng.integers(1, 30)))
        start = int(rng.integers(0, len(values)))
        limit, stride = int(rng.integers(start + 1, len(values) + 1)), int(rng.integers(1, 4))
        sliced = slice_window(start, limit, stride, size=len(values))
        assert moved(sliced, values, parts).tolist() == values[start:limit:stride].tolist()
        low, high, interior = (int(x) for x in rng.integers((-2, -2, 0), (4, 4, 3)))
        window = pad_window(low, high, interior)
        if window.out_size(len(values)):
            expected = padded(window, values, 0.0)
            assert moved(window, values, parts).tolist() == expected.tolist()


def moved(window, values, parts):
    found = halo(window, size=len(values), parts=parts)
    return partitioned(CONVOLUTION, found, values, np.ones(1))


MUTATIONS = {
    "left one smaller": lambda h: replace(h, left=h.left.plus(0, -1)),
    "left one larger": lambda h: replace(h, left=h.left.plus(0, 1)),
    "right one smaller": lambda h: replace(h, right=h.right.plus(0, -1)),
    "right one larger": lambda h: replace(h, right=h.right.plus(0, 1)),
    "start grows faster": lambda h: replace(h, left=h.left.plus(-1)),
    "start rounded down": lambda h: replace(h, left=(-rounded_down(h)).plus(h.block)),
}


def rounded_down(found):
    window = found.window
    return Quotient.of(found.step, -window.padding_low, window.base_dilation)


EXAMPLE = halo(Window(5, 2, 4, 4, base_dilation=3), size=19, parts=4)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_halo_is_seen_by_enumeration(name):
    assert not list(faults(EXAMPLE))
    assert list(faults(MUTATIONS[name](EXAMPLE)))


# A right halo that is too wide costs bytes and is no error.
@pytest.mark.parametrize(
    "name", [*(m for m in MUTATIONS if m != "right one larger"), "mask left out"]
)
def test_a_wrong_halo_is_seen_in_the_result(name):
    rng, window = np.random.default_rng(SEED), EXAMPLE.window
    values, taps = rng.normal(size=EXAMPLE.size), rng.normal(size=window.size)
    base, kernel = padded(window, values, 0.0), dilated(window, taps, 0.0)
    expected = windows(CONVOLUTION, base, kernel, window.stride, EXAMPLE.out_size)
    right = partitioned(CONVOLUTION, EXAMPLE, values, taps)
    np.testing.assert_allclose(right, expected, atol=1e-9)
    found = MUTATIONS.get(name, lambda h: h)(EXAMPLE)
    got = partitioned(CONVOLUTION, found, values, taps, mask=name != "mask left out")
    assert not np.allclose(got, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), r"size=0 in Window\(size=0\).*at least 1"),
        (lambda: Window(2, stride=0, base_dilation=-1), "stride=0, base_dilation=-1"),
        (lambda: Window(2, padding_low=0.5), "padding_low=0.5"),
        (lambda: halo(Window(3), size=2, parts=2), "no output over 2 elements"),
        (lambda: halo(Window(3), size=0, parts=2), "size=0"),
        (lambda: halo(Window(3), size=9, parts=0), "parts=0"),
        (lambda: halo(Window(3), size=9.5, parts=2), "size=9.5"),
        (lambda: slice_window(3, 3, size=4), "the slice 3:3:1 of 4 elements"),
    ],
)
def test_what_cannot_be(make, message):
    with pytest.raises(ShardingError, match=message):
        make()
