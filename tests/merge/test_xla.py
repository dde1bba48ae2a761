"""Merging against XLA's GSPMD propagation: `make xla-merges` records, the suite compares."""

import json
from collections import Counter

import pytest

from shardalg.algebra.sharding import Sharding
from shardalg.merge.compatible import equal, merge

from .record_xla import ANSWERS

RECORDED = json.loads(ANSWERS.read_text())


def read(pair):
    """Return the two operands and XLA's answer."""
    shape = (RECORDED["dim"],) * pair["rank"]
    return [Sharding.from_hlo(pair[key], shape) for key in ("first", "second", "xla")]


def test_every_pair_is_answered_as_xla_does():
    """A merge is XLA's sharding of the sum; where there is none, XLA keeps an operand's."""
    counts = Counter()
    for pair in RECORDED["pairs"]:
        first, second, xla = read(pair)
        verdict = merge(first, second)
        kept = any(equal(s, xla) for s in (first, second))
        if verdict:
            assert equal(verdict.sharding, xla), pair
        else:
            assert kept, pair
        counts["merged" if not kept else "kept" if verdict else "refused"] += 1
    print(dict(counts))
    assert sum(counts.values()) >= 500
    assert min(counts["merged"], counts["refused"]) >= 150


@pytest.mark.parametrize("field", ["first", "second"])
def test_a_wrong_operand_would_be_seen(field):
    """Most answers change if one operand's devices are listed backwards."""
    changed = 0
    for pair in RECORDED["pairs"][:120]:
        head, rest = pair[field].split("]", 1)
        ids, _, tail = rest.rstrip("}").partition(" ")
        if "<=" in ids:
            continue
        backwards = ",".join(reversed(ids.split(",")))
        first, second, xla = read(pair | {field: f"{head}]{backwards} {tail}".strip() + "}"})
        verdict = merge(first, second)
        changed += not (verdict and equal(verdict.sharding, xla))
    assert changed > 40
