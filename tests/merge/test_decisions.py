"""Three ways to decide a merge that share no code agree: closed form, tables, and z3's search."""

from collections import Counter

import pytest

from shardalg.errors import ShardingError
from shardalg.merge.compatible import equal, merge
from shardalg.merge.merged import Rows, join, rows_of
from shardalg.merge.proofs.prove import prove

from . import brute, random_shardings

CHUNKS, CHUNK = 20, 500


def by_table(first, second, policy):
    """Return True if the tables join, device by device."""
    joint = join(rows_of(first), rows_of(second), prefixes=policy == "shardy")
    if not isinstance(joint, Rows):
        return False
    closed = [
        s.parts[i] != joint.parts.get(i, 1)
        for s in (first, second)
        if s.unspecified_dims
        for i in range(len(s.shape))
        if i not in s.unspecified_dims
    ]
    return not any(closed)


def decide(seed):
    """Decide one pair in all ways; return its kind."""
    first, second, policy = random_shardings.pair(seed)
    try:
        verdict = merge(first, second, policy=policy)
    except ShardingError as error:
        assert "both keep axes explicitly replicated" in str(error)  # noqa: PT017
        return "refused by name"
    searched = merge(first, second, policy=policy, decide="z3")
    assert bool(verdict) == bool(searched), seed
    if not (first.replicated and second.replicated):
        assert bool(verdict) == by_table(first, second, policy), seed
    if verdict:
        assert equal(verdict.sharding, searched.sharding), seed
        assert verdict.sharding.unspecified_dims == searched.sharding.unspecified_dims, seed
        new = verdict.sharding.parts not in (first.parts, second.parts)
        return "merged" if new else "contained"
    for refused in (verdict, searched):
        brute.check_witness(refused)
    return verdict.failure.kind


@pytest.mark.slow
def test_closed_form_tables_and_search_agree(record_property):
    counts = Counter(decide(seed) for seed in range(600))
    record_property("shown", f"600 random pairs: {dict(counts)}")
    assert min(counts[kind] for kind in ("merged", "contained", "overlap", "offset")) >= 15
    assert min(counts[kind] for kind in ("joint", "closed", "class")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_ten_thousand_pairs(chunk, record_property):
    counts = Counter(decide(1000 + seed) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK))
    record_property("shown", str(dict(counts)))
    assert counts["merged"] > 0


def test_every_verdict_is_proved(record_property):
    """Refusals too; pairs of several orders device by device."""
    statuses = Counter()
    for seed in range(120):
        first, second, policy = random_shardings.pair(seed)
        try:
            verdict = merge(first, second, policy=policy)
        except ShardingError:
            continue
        for encoding in ("coordinates", "devices"):
            statuses[prove(verdict, encoding=encoding).status] += 1
    record_property("shown", str(dict(statuses)))
    assert set(statuses) == {"proved"}
