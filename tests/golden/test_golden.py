"""Plans equal the record: a sample of the structures; `make golden` compares all."""

import copy

import pytest

from tests.golden import record
from tests.golden.programs import POLICIES, programs
from tests.golden.structure import instructions, structure

EVERY = 127
"""One of so many programs is planned again here. A prime leaves out no family of programs."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_sample_is_planned_as_recorded(policy):
    before = record.recorded()
    if before is None:
        pytest.skip(f"no structures are recorded for jax {record.VERSION}")
    found = programs(policy)
    assert sorted(found) == sorted(before[policy]), "record the programs again: `make golden`"
    names = sorted(found)[::EVERY]
    now = {name: structure(found[name]) for name in names}
    wrong = [
        f"{name}: {line}"
        for name in names
        for line in record.differences(before[policy][name], now[name])
    ]
    assert not wrong, "\n".join(wrong)


def test_a_difference_is_seen():
    make = programs("gspmd")["pipeline/shifting buffer"]
    now = structure(make)
    other = copy.deepcopy(now)
    kind = next(iter(other["collectives"]))
    other["collectives"][kind] += 1
    assert not list(record.differences(now, now))
    (line,) = record.differences(now, other)
    assert line.startswith("collectives")
    assert len(instructions(make())) > 10
