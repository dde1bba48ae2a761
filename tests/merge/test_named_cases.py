"""The named cases: every answer as written, proved for all sizes, every witness evaluated."""

import statistics

import pytest

from shardalg.merge.compatible import equal, merge
from shardalg.merge.proofs.prove import prove

from . import brute
from .named_cases import CASES, sharding


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answers(case):
    verdict = case.verdict()
    if case.answer.startswith("!"):
        kind, *places = case.answer[1:].split()
        assert verdict.failure is not None
        assert (verdict.failure.kind, [str(p) for p in verdict.failure.dims]) == (kind, places)
        brute.check_witness(verdict)
        return
    assert verdict, verdict.reason
    if case.relation == "merge":
        expected = sharding(case.answer)
        assert equal(verdict.sharding, expected)
        assert verdict.sharding.replicated == expected.replicated
        assert verdict.sharding.unspecified_dims == expected.unspecified_dims
        searched = merge(*case.operands, policy=case.policy, decide="z3")
        assert equal(searched.sharding, expected)


def test_every_case_is_proved_for_all_sizes(record_property):
    assert len(CASES) >= 100
    proofs = {case.name: prove(case.verdict(), case.sizes) for case in CASES}
    limited = [case.name for case in CASES if case.sizes != "all"]
    assert limited == ["the order of axes matters", "a gap does not refine"]
    assert {name: p.reason for name, p in proofs.items() if p.status != "proved"} == {}
    times = [proof.ms for proof in proofs.values()]
    slowest = max(proofs, key=lambda name: proofs[name].ms)
    record_property(
        "shown",
        f"{len(times)} named cases for all sizes: median {statistics.median(times):.2f} ms, "
        f"at most {max(times):.2f} ms ({slowest})",
    )
