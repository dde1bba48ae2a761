"""Drawings of halos show what the definition of a window reads, and who holds it."""

import random
from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digit
from shardalg.algebra.halos import intervals
from shardalg.algebra.halos.exchange import Exchange, exchange
from shardalg.algebra.halos.halo import halo
from shardalg.algebra.halos.intervals import Interval
from shardalg.algebra.halos.window import Window, pad_window, slice_window
from shardalg.errors import ShardingError
from shardalg.pictures import draw

A2 = halo(Window(2, padding_low=1, padding_high=4), size=12, parts=4)
THIRD = halo(
    Window(3, stride=2, padding_low=1, padding_high=1, base_dilation=3), size=9, parts=4
)  # case 3 of base dilation


def halos(seed, count=60):
    """Halos of 2 to 8 partitions over 4 to 40 elements."""
    rng = random.Random(seed)
    while count:
        low, high, stride, base, dilation = (rng.randint(*r) for r in [(-2, 4)] * 2 + [(1, 3)] * 3)
        window = Window(rng.randint(1, 5), stride, low, high, base, dilation)
        size, parts = rng.randint(4, 40), rng.randint(2, 8)
        if window.out_size(size) >= parts:
            count -= 1
            yield halo(window, size=size, parts=parts)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel_placement", [False, True])
def test_taps_stand_below_what_they_read(seed, kernel_placement):
    """Output o reads k at tap r by definition if base*k = stride*o + dilation*r - low."""
    for read in halos(seed):
        w, shown = read.window, read.picture(kernel_placement=kernel_placement)
        drawn = {}
        for row in shown.rows:
            assert row.start == read.start.at(row.partition)
            for nth, first in enumerate(row.windows):
                output = row.partition * len(row.windows) + nth
                assert (nth < row.outputs) == (output < read.out_size), read
                drawn[output] = {first + tap for tap in shown.taps}
                hit = {at // shown.dilation for at in drawn[output] if at % shown.dilation == 0}
                assert hit <= set(range(row.start, row.limit)), (read.window, read, output)
        for o in range(read.out_size):
            taps = {w.stride * o + w.window_dilation * r - w.padding_low for r in range(w.size)}
            assert drawn[o] == taps, (read.window, read, o)


@pytest.mark.parametrize("seed", range(3))
def test_cells_are_sent_by_their_holders(seed):
    for read in halos(seed):
        shown = read.picture()
        for row in shown.rows:
            cells = [(k, holder) for a, b, holder in shown.sent(row) for k in range(a, b)]
            exist = range(max(row.start, 0), min(row.limit, read.size))
            assert cells == [(k, k // read.block) for k in exist], (read.window, read)


@pytest.mark.parametrize("seed", range(3))
def test_no_window_lies_upon_another(seed):
    for read in halos(seed):
        shown = read.picture(kernel_placement=True)
        low, high = shown.bounds
        for row in shown.rows:
            before, after = row.zeros
            spans = [(first - before, first + shown.span + after) for first in row.windows]
            assert all(low <= a < b <= high for a, b in spans)
            for lane in range(shown.lanes):
                pairs = combinations(spans[lane :: shown.lanes], 2)
                assert all(a[1] <= b[0] for a, b in pairs), (read.window, read)


def test_placed_kernels_start_at_the_same_low_padding():
    """The partitions' windows start 1, 2, 0 and 1 holes ahead with base dilation 3."""
    plain, placed = THIRD.picture(), THIRD.picture(kernel_placement=True)
    before = [3 * row.start - row.windows[0] for row in plain.rows]
    assert before == [1, 2, 0, 1]
    assert [row.zeros for row in placed.rows] == [(1, 1), (0, 2), (2, 0), (1, 1)]
    starts = {3 * row.start - (row.windows[0] - row.zeros[0]) for row in placed.rows}
    assert starts == {THIRD.max_padding_low} == {2}


@pytest.mark.parametrize(
    "read",
    [
        exchange(intervals.reverse_interval(10, 4), size=10, count=4),
        exchange(
            intervals.reshape_interval((3, 2), (6,), parts=2).interval, size=6, count=2, block=4
        ),
        exchange(halo(pad_window(3, 1), size=12, parts=4).interval, size=12, count=4),
    ],
)
def test_an_exchange_draws_what_its_permutes_deliver(read):
    delivered = set()
    for round_ in read.rounds:
        for permute in round_.permutes:
            for source, target in permute.pairs:
                whole = (source * read.block + k for k in range(permute.lower, permute.upper))
                start, limit = read.want.at({"p": target})
                delivered |= {(k, source, target) for k in whole if start <= k < limit}
    shown = read.picture()
    drawn = {
        (k, holder, row.partition)
        for row in shown.rows
        for a, b, holder in shown.sent(row)
        for k in range(a, b)
        if holder != row.partition
    }
    assert drawn == {triple for triple in delivered if triple[0] < read.size}


def test_the_appendix_is_drawn():
    figure = draw({"A.2": A2, "slice": halo(slice_window(5, 10, size=16), size=16, parts=4)})
    first, second = ([text.get_text() for text in axes.texts] for axes in figure.axes)
    assert first[:2] == [
        "A.2",
        "elements: left(p) = 1 - p, at most 1,   right(p) = p + 1, at most 4",
    ]
    widths = [f"left {1 - p}, right {p + 1}" for p in range(4)]
    assert [text for text in first if text.startswith("left ")] == widths
    assert second[1] == "elements: left(p) = 2*p - 5, at most 1,   right(p) = 3 - 2*p, at most 3"
    keys = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "of an output past the end" in keys
    assert "tap of 0" not in keys


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("parts", "size", "base"), [(2, 4, 1), (8, 40, 1), (8, 40, 3)])
def test_no_text_leaves_the_figure_or_meets_the_next(parts, size, base):
    window = Window(5, 2, 4, 4, base, 2)
    figure = draw({"a halo": halo(window, size=size, parts=parts)}, kernel_placement=True)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (axes,) = figure.axes
    texts = [*axes.texts, *figure.legends[0].get_texts()]
    boxes = [text.get_window_extent() for text in texts]
    assert all(figure.bbox.x0 <= b.x0 and b.x1 <= figure.bbox.x1 for b in boxes)
    assert all(figure.bbox.y0 <= b.y0 and b.y1 <= figure.bbox.y1 for b in boxes)
    first, second = (axes.patches[i].get_window_extent() for i in (0, 1))
    numbers = [b for t, b in zip(texts, boxes, strict=True) if t.get_text().isdigit()]
    assert len(numbers) >= size
    assert all(b.width <= second.x0 - first.x0 for b in numbers)


def test_only_one_row_of_devices_is_drawn():
    rows = (Digit(1, 2),)
    of_four = Exchange(Interval(Index.of("p") * 5 - 1, 6), 10, 5, rows, (("p", rows),), 4)
    with pytest.raises(ShardingError, match="one row of devices"):
        draw({"": of_four})


def test_one_is_drawn_with_its_title():
    assert A2.draw().axes[0].texts[0].get_text() == "A window of 2 over 12 elements in 4 partitions"
    reversal = exchange(intervals.reverse_interval(10, 4), size=10, count=4)
    title, note = (text.get_text() for text in reversal.draw().axes[0].texts[:2])
    assert title == "3 of 10 elements for each of 4 partitions"
    assert note.startswith("p reads 3 elements from 7 - 3*p on;")
