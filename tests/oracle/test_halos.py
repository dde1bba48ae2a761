"""The halos that XLA exchanges (halos.json, record_halos.py) are the closed forms' widths."""

import json
from collections import Counter

import pytest

from shardalg.algebra.halos.exchange import exchange
from shardalg.algebra.halos.halo import halo
from shardalg.algebra.halos.window import Window
from shardalg.planner.reshard.exchanges import cheaper

from .record_halos import COLUMNS, FACTS


def is_compact(h):
    """Return True if XLA sends pieces of far blocks, not hops (`ExchangeHaloAndGetValidData`).

    It does where a width is more than twice what a partition reads, if every partition's block and
    halo are that long (spmd_partitioner_util.cc).
    """
    longest = max(h.limit.at(p) - h.start.at(p) for p in range(h.parts))
    plain = h.left.at(0) == h.window.padding_low and longest == h.length
    return plain and max(h.max_left, h.max_right) > 2 * h.length


@pytest.fixture(scope="module")
def recorded():
    facts = json.loads(FACTS.read_text())
    assert tuple(facts["columns"]) == COLUMNS
    return [
        (halo(Window(*window), size=size, parts=parts), left, right)
        for parts, size, window, left, right in facts["rows"]
    ]


@pytest.fixture(scope="module")
def by_hops(recorded):
    return [(h, (a, b)) for h, a, b in recorded if a is not None and not is_compact(h)]


def test_widths_are_those_that_xla_exchanges(by_hops, show):
    assert sum(max(widths) > 0 for _, widths in by_hops) >= 1000
    wrong = [
        (h.window, h.size, h.parts, widths)
        for h, widths in by_hops
        if widths != (h.exchanged_left, h.exchanged_right)
    ]
    assert not wrong
    seen = Counter(f"case {h.case}" for h, _ in by_hops)
    seen.update(f"{max(h.hops)} hops" for h, _ in by_hops)
    seen["uneven"] = sum(h.size % h.parts > 0 for h, _ in by_hops)
    sent = sum(sum(widths) for _, widths in by_hops)
    needed = sum(h.needed_left + h.needed_right for h, _ in by_hops)
    show(f"{len(by_hops)} halos as XLA's: {dict(sorted(seen.items()))}")
    show(f"elements: XLA sends {sent}, {needed} are read ({needed / sent:.2f})")


def test_xla_gathers_all_of_case_3(recorded, show):
    """Base dilation that neither divides the step nor has stride 1: XLA exchanges no halo."""
    gathered = Counter(h.case for h, left, _ in recorded if left is None)
    assert gathered[3] >= 50
    assert not [h for h, left, _ in recorded if h.case == 3 and left is not None]
    show(f"XLA gathers instead of a halo, per case of base dilation: {dict(gathered)}")


def test_rounds_send_no_more_than_xla_does_for_far_halos(recorded, show):
    """One of them is a single element worse: XLA fills one permute with pieces of two rounds."""
    far = [(h, left + right) for h, left, right in recorded if left is not None and is_compact(h)]
    ours = [exchange(h.interval, size=h.size, count=h.parts).elements for h, _ in far]
    theirs = [sent for _, sent in far]
    assert len(far) >= 10
    assert sorted(a - b for a, b in zip(ours, theirs, strict=True))[-2:] == [0, 1]
    assert sum(ours) < sum(theirs)
    show(f"{len(far)} far halos, elements sent: {sum(ours)} by rounds, {sum(theirs)} by XLA")


def test_planned_windows_send_no_more_than_xla(recorded, show):
    """A dilated base costs one element more: lengths are the same on all devices."""
    sent = [
        (h, cheaper(exchange(h.interval, size=h.size, count=h.parts)), left + right)
        for h, left, right in recorded
        if left is not None
    ]
    more = [(h, ours.elements - theirs) for h, ours, theirs in sent if ours.elements > theirs]
    assert [h for h, by in more if h.window.base_dilation == 1 and not is_compact(h)] == []
    assert {by for _, by in more} == {1}
    assert len(more) < 0.02 * len(sent)
    turned = [ours for _, ours, _ in sent if ours.lowest is not None]
    assert len(turned) >= 100
    ours, theirs = sum(e.elements for _, e, _ in sent), sum(t for *_, t in sent)
    show(f"{len(sent)} windows, elements sent: {ours}, {theirs} by XLA")


@pytest.mark.parametrize("delta", [(-1, 0), (0, -1), (1, 0), (0, 1)])
def test_another_width_is_not_xlas(by_hops, delta):
    same = [
        (left + delta[0], right + delta[1]) == (h.exchanged_left, h.exchanged_right)
        for h, (left, right) in by_hops
    ]
    assert not any(same)
