"""XLA's recorded programs: right ones are proved, wrong ones refuted, as the referee finds them."""

import gzip
import json
from collections import Counter
from functools import cache

import pytest

import shardalg as sa
from shardalg.xla.audit.program_pair import read_pair
from shardalg.xla.audit.referee.field_verdict import field_verdict
from tests.audit.record_pairs import PAIRS

# XLA partitions it wrongly, as `tests/oracle/test_xla_failures.py` shows for others.
WRONG = "conv2d_feature_and_spatial.shardy"
# XLA's program number 18 is wrong on one device already; its partition is right.
RIGHT = "wrong_18.shardy"
EQUAL_NAMES = ("maxpool_stride2_grad.shardy",)


@cache
def pairs():
    return json.loads(gzip.decompress(PAIRS.read_bytes()))


NAMES = sorted(pairs())
RIGHT_NAMES = [n for n in NAMES if not n.startswith("wrong") and n != WRONG]
WRONG_NAMES = [n for n in NAMES if n.startswith("wrong") and n != RIGHT] + [WRONG]


@cache
def audited(name):
    return sa.audit_hlo(**pairs()[name])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", RIGHT_NAMES)
def test_right_programs_are_proved(name):
    found = audited(name)
    assert found.ok, found
    assert found.verdict == "proved" or name in EQUAL_NAMES


@pytest.mark.slow
def test_the_share_that_is_proved(show):
    counts = Counter()
    for name in RIGHT_NAMES:
        counts.update(audited(name).counts)
    show(f"{len(RIGHT_NAMES)} programs: {dict(counts)}")
    assert counts["proved"] >= 0.99 * counts.total()


def test_a_program_that_is_wrong_on_one_device_has_a_right_partition():
    assert audited(RIGHT).verdict == "proved"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", WRONG_NAMES)
def test_wrong_programs_are_refuted(name):
    found = audited(name)
    assert found.verdict == "refuted"
    assert found.refuted[0].why


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_the_referee_agrees(name):
    pair = read_pair(**pairs()[name])
    verdict = field_verdict(pair)
    assert not verdict.reason or "shard_map" in name
    if not verdict.reason:
        assert verdict.is_equal == (name in RIGHT_NAMES or name == RIGHT)
