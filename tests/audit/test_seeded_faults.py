"""Faults in XLA's text: a fault that changes a result is never proved."""

import random
from collections import Counter
from functools import cache
from itertools import cycle

import pytest

import shardalg as sa
from shardalg.lower.xla_dump.hlo_text import parse
from shardalg.xla.audit.program_pair import ProgramPair, read_pair, walk_pair
from shardalg.xla.audit.referee import field_interpreter
from shardalg.xla.audit.referee.field_verdict import (
    compared_results,
    field_verdict,
    wanted_results,
)
from shardalg.xla.audit.values.per_device import UnknownError
from tests.audit.seeded_faults import KINDS, faults, mutations
from tests.audit.test_recorded_pairs import RIGHT_NAMES, pairs

SMALL = [
    "attn_final_fwd.shardy", "conv2d_two_axes.shardy", "pad_uneven.shardy", "step_ring.shardy",
    "embedding_feature_sharded.shardy", "reshard_uneven.shardy", "step_decoded.gspmd",
]  # fmt: skip


def verdict(pair):
    _, walked = walk_pair(pair)
    statuses = {row.status for row in walked.rows.values()}
    return next((s for s in ("refuted", "not understood", "behind") if s in statuses), "proved")


def compared(name, text):
    """Return the verdicts of the referee and of the audit on a text after partitioning."""
    whole = read_pair(**pairs()[name])
    pair = ProgramPair(whole.before, parse(text), whole.devices)
    runs = [field_verdict(pair, seed) for seed in (0, 1)]
    if any(run.reason for run in runs):
        return "no answer", verdict(pair)
    return "equal" if all(run.is_equal for run in runs) else "differs", verdict(pair)


def check(names, seed, each, show):
    counts = Counter()
    for name in names:
        text, devices = pairs()[name]["after"], read_pair(**pairs()[name]).devices
        for fault in faults(text, devices, seed, each):
            referee, found = compared(name, fault.text)
            counts[fault.kind, referee, found] += 1
            assert (referee, found) != ("differs", "proved"), (name, fault.kind, fault.name)
    show(f"seed {seed}: {dict(counts)}")
    # A fault in a value that no result reads is refuted, and changes nothing: so does a last
    # iteration that writes what is there already.
    unread = sum(n for (_, *both), n in counts.items() if both == ["equal", "refuted"])
    assert unread <= max(1, 0.02 * counts.total())
    return counts


def test_faults_of_small_programs(show):
    counts = check(SMALL, 1, 1, show)
    changed = [found for (_, referee, found), n in counts.items() for _ in range(n)
               if referee == "differs"]  # fmt: skip
    assert changed.count("refuted") >= 0.75 * len(changed)
    assert {kind for kind, *_ in counts} == set(KINDS)


@pytest.mark.slow
def test_faults_of_all_programs(show):
    counts = check(RIGHT_NAMES, random.randrange(10**6), 2, show)
    assert counts.total() >= 200


LONGEST_LOOP = 32
"""Recorded loops have at most 8 iterations. A mutated condition may hold for much longer."""


@cache
def wanted(name, seed):
    return wanted_results(read_pair(**pairs()[name]).before, seed)


def judged(name, text):
    """Return the verdict on a text after partitioning, or None if it computes the right results.

    The referee decides whether a result changes; a text that it cannot run has the verdict
    "no HLO".
    """
    whole = read_pair(**pairs()[name])
    try:
        after = parse(text)
        runs = [compared_results(wanted(name, seed), after, whole.devices) for seed in (0, 1)]
    except (UnknownError, sa.NotationError):
        return "no HLO"
    if all(run.is_equal for run in runs):
        return None
    return verdict(ProgramPair(whole.before, after, whole.devices))


def mutate(names, seed, count, show):
    """Judge mutations of programs, in turn, until `count` of them change a result.

    Loops that do not end are given up early: they have the verdict "no HLO".
    """
    counts = Counter()
    sources = {name: mutations(pairs()[name]["after"], seed) for name in names}
    judge = cycle(sources.items())
    while counts["refuted"] + counts["not understood"] + counts["behind"] < count:
        name, source = next(judge)
        text = next(source)
        found = judged(name, text)
        counts[found or "the same results"] += 1
        assert found != "proved", (name, seed, text)
    show(f"seed {seed}: {dict(counts)}")
    return counts


@pytest.fixture
def short_loops(monkeypatch):
    monkeypatch.setattr(field_interpreter, "LONGEST_LOOP", LONGEST_LOOP)


def test_random_mutations_of_small_programs(show, short_loops):
    counts = mutate(SMALL[2:4], 1, 10, show)
    assert counts["no HLO"] <= 0.5 * counts.total()


@pytest.mark.slow
def test_2000_random_mutations_of_all_programs(show, short_loops):
    mutate(RIGHT_NAMES, random.randrange(10**6), 2000, show)
