"""Random windows, their reads by enumeration, and exchanges run on all devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardalg.algebra.halos.window import Window


def random_case(rng, *, size=60, parts=12, reach=9):
    """(window, size, parts) with at least one output; negative padding and dilation in half."""
    while True:
        window = Window(
            size=int(rng.integers(1, 8)),
            stride=int(rng.choice([1, 1, 2, 3, 4, 5])),
            padding_low=int(rng.integers(-4, reach)),
            padding_high=int(rng.integers(-4, reach)),
            base_dilation=int(rng.choice([1, 1, 2, 3, 4, 6])),
            window_dilation=int(rng.choice([1, 1, 2, 3])),
        )
        elements = int(rng.integers(1, size + 1))
        if window.out_size(elements):
            return window, elements, int(rng.integers(1, parts + 1))


def reads(window, size, parts):
    """Return per partition the first element and the end of its reads, by trying every tap."""
    count = window.out_size(size)
    taps = np.arange(window.size) * window.window_dilation - window.padding_low
    places = (np.arange(count) * window.stride)[:, None] + taps
    elements = places // window.base_dilation
    there = (places % window.base_dilation == 0) & (elements >= 0) & (elements < size)
    lowest = np.where(there, elements, size).min(1)
    highest = np.where(there, elements, -1).max(1)
    step = -(-count // parts)
    for p in range(parts):
        own = slice(p * step, (p + 1) * step)
        first, last = lowest[own].min(initial=size), highest[own].max(initial=-1)
        yield (int(first), int(last) + 1) if last >= 0 else None


def padded(window, values, fill):
    """Return the dilated and padded input, cut where padding is negative."""
    step = window.base_dilation
    base = np.full((len(values) - 1) * step + 1, fill, values.dtype)
    base[::step] = values
    low, high = window.padding_low, window.padding_high
    base = np.concatenate([np.full(max(low, 0), fill), base, np.full(max(high, 0), fill)])
    return base[max(-low, 0) : len(base) + min(high, 0)]


@dataclass(frozen=True)
class Algebra:
    """The combination of a window: the value of padding, and one output from its reads."""

    fill: float
    output: Callable[[np.ndarray, np.ndarray], float]


# A pooling is a convolution in which + is max and * is +: its kernel is 0 at taps, else -inf.
CONVOLUTION = Algebra(0.0, lambda base, kernel: float(base @ kernel))
MAX_POOLING = Algebra(-np.inf, lambda base, kernel: float((base + kernel).max()))


def dilated(window, taps, fill):
    """Return the taps with holes between them."""
    kernel = np.full(window.span, fill)
    kernel[:: window.window_dilation] = taps
    return kernel


def windows(algebra, base, kernel, stride, count):
    """`count` outputs over a padded base."""
    reach = (base[o * stride :][: len(kernel)] for o in range(count))
    return np.array([algebra.output(part, kernel) for part in reach])


def deliver(exchange, blocks):
    """Return every device's interval, from the permutes of the rounds and one slice.

    `blocks` holds a block per position; what no permute brings is garbage (nan).
    """
    buffers = [np.full(exchange.buffer, np.nan) for _ in blocks]
    for step in exchange.rounds:
        number, at = step.number, exchange.place(step.number, step.lower)
        pieces = [np.full(step.upper - step.lower, np.nan) for _ in blocks]
        for position in range(len(blocks)):
            if step.own and exchange.source(position, number) == position:
                pieces[position] = blocks[position][step.lower : step.upper].copy()
        for permute in step.permutes:
            sources, targets = zip(*permute.pairs, strict=True)
            assert len(set(sources)) == len(sources)
            assert len(set(targets)) == len(targets)
            place = slice(permute.lower - step.lower, permute.upper - step.lower)
            for source, target in permute.pairs:
                sent = blocks[source][permute.lower : permute.upper]
                pieces[target][place] = sent
        for buffer, piece in zip(buffers, pieces, strict=True):
            buffer[at : at + len(piece)] = piece
    length = exchange.want.length
    rows = []
    for position, buffer in enumerate(buffers):
        shift = exchange.shift(position)
        assert 0 <= shift <= len(buffer) - length
        rows.append(buffer[shift : shift + length])
    return rows


def split(values, parts, block):
    """Blocks of an uneven array; the padding holds a huge number, as garbage would."""
    whole = np.full(parts * block, 1e30)
    whole[: len(values)] = values
    return list(whole.reshape(parts, block))
