"""Forty statements for all sizes: true ones proved, false ones refuted, against plans made anew."""

import random

import pytest

import shardalg as sa
from tests.contracts.forty import PROGRAMS

POINTS = 50


def checked(name, count, seed):
    """Check the verdicts of a program's statements; compare proofs with plans at some points."""
    program = PROGRAMS[name]
    plan = program.named()
    contract = sa.contract(*program.true, *program.false, where=program.where)
    verdicts = contract.check(plan).verdicts
    true, false = verdicts[: len(program.true)], verdicts[len(program.true) :]
    assert [one.verdict for one in true] == ["proved"] * len(true), [str(one) for one in true]
    assert [one.verdict for one in false] == ["refuted"] * len(false), [str(one) for one in false]
    # A refutation names a plan that breaks the statement.
    for one in false:
        assert one.plan is not None
    # New plans, in numbers, at points of the region of the proofs.
    points = contract._scope(plan).region(with_memory=True).points
    assert len(points) >= POINTS
    print("seed", seed)
    for point in random.Random(seed).sample(points, count):
        there = program.at(point)
        numbers = [program.number(statement, point) for statement in program.true]
        found = sa.contract(*numbers).check(there).verdicts
        assert all(one.verdict == "holds" for one in found), (point, [str(one) for one in found])


def test_the_statements_are_enough():
    true = [statement for program in PROGRAMS.values() for statement in program.true]
    false = [statement for program in PROGRAMS.values() for statement in program.false]
    assert len(true) >= 20
    assert len(false) >= 20
    kinds = {type(each).__name__ for each in (*true, *false)}
    kinds |= {getattr(each, "measure", None) for each in (*true, *false)}
    for each in (*true, *false):
        subject = getattr(each, "subject", None)
        kinds |= set() if subject is None else {n for n in vars(subject) if getattr(subject, n)}
    named = "kind axis phase role region sent_bytes largest_bytes executions peak_bytes held_bytes"
    assert kinds >= {*named.split(), "step_time_s", "ShardedAlong", "NoIdleDevices"}


def test_a_scan():
    checked("scan", 3, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_programs(name):
    checked(name, POINTS, seed=7)


def test_a_class_of_values_inside_has_no_answer_for_all_sizes():
    """The formula of a class is for the instruction that is the peak at the hints."""
    program = PROGRAMS["data"]
    contract = sa.contract(
        sa.at_most(held_bytes=2**60, memory_class="activations"),
        sa.at_most(held_bytes=1, memory_class="activations"),
        where=program.where,
    )
    found = contract.check(program.named()).verdicts
    assert [one.verdict for one in found] == ["not decided", "refuted"]
    assert "the peak at the hints" in found[0].where
