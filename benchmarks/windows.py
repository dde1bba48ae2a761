"""Halos in closed form: how fast they are derived, and how fast sympy derives the same."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import sympy

from shardalg.algebra.halos.halo import halo
from shardalg.algebra.halos.window import Window
from shardalg.algebra.offset import block_size, partition_symbol

COUNT = 2000
SEED = 210504663
ABOUT = """`halo`: the left and the right width of a random window (size, stride, padding, both
dilations, uneven split) as closed forms in the partition id; `all figures` adds the largest widths,
what XLA exchanges, the case of base dilation, the largest low padding and the static local size.
sympy builds the same two widths with `floor` and `ceiling` and evaluates their largest values."""


def rows(count: int = COUNT) -> Iterator[dict[str, object]]:
    cases = list(windows(count))
    slow = microseconds(by_sympy, cases[: max(count // 40, 1)], passes=1)
    for what, derive in (("halo", derived), ("halo, all figures", all_figures)):
        us = microseconds(derive, cases)
        yield {"what": what, "us": us, "sympy_us": slow, "sympy_ratio": slow / us}


def windows(count: int) -> Iterator[tuple[Window, int, int]]:
    rng = np.random.default_rng(SEED)
    while count:
        size, stride, low, high, base, dilation = (
            int(n) for n in rng.integers((1, 1, -3, -3, 1, 1), (8, 5, 8, 8, 5, 4))
        )
        window = Window(size, stride, low, high, base, dilation)
        elements, parts = (int(n) for n in rng.integers((1, 2), (4096, 257)))
        if window.out_size(elements):
            count -= 1
            yield window, elements, parts


def derived(window: Window, size: int, parts: int) -> object:
    return halo(window, size=size, parts=parts)


def all_figures(window: Window, size: int, parts: int) -> object:
    h = halo(window, size=size, parts=parts)
    widths = h.max_left, h.max_right, h.exchanged_left, h.exchanged_right
    return *widths, h.case, h.hops, h.max_padding_low, h.length


def by_sympy(window: Window, size: int, parts: int) -> object:
    p, base = partition_symbol(), sympy.Integer(window.base_dilation)
    block, out_block = block_size(size, parts), block_size(window.out_size(size), parts)
    first = window.stride * out_block * p - window.padding_low
    reach = window.stride * (out_block - 1) + window.span
    left = p * block - sympy.ceiling(first / base)
    right = sympy.ceiling((first + reach) / base) - (p + 1) * block
    return left, right, [max(form.subs(p, 0), form.subs(p, parts - 1)) for form in (left, right)]


def microseconds(
    derive: Callable[..., object], cases: list[tuple[Window, int, int]], *, passes: int = 5
) -> float:
    spent = []
    for _ in range(passes):
        start = time.process_time()
        for case in cases:
            derive(*case)
        spent.append(time.process_time() - start)
    return statistics.median(spent) / len(cases) * 1e6
