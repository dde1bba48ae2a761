"""A program of any structure gets a verdict: `verify` refuses what is malformed, and says where."""

import re
from dataclasses import fields, replace

import pytest

from shardalg.algebra.digits import Digit
from shardalg.algebra.halos.classes import Classes, PairRun, Runs
from shardalg.spmd import instructions as p
from tests.partition.planned import instructions
from tests.verify import test_indexed_mutations, test_moving_mutations, test_mutations
from tests.verify.mutating import changed

CASES = {
    "step": test_mutations.CASES["step"],
    "moved": test_mutations.CASES["moved"],
    "dilated": test_moving_mutations.CASES["dilated"],
    "joined": test_moving_mutations.CASES["joined"],
    "best": test_moving_mutations.CASES["best"],
    "written": test_indexed_mutations.CASES["written"],
    "folded": test_indexed_mutations.CASES["folded"],
}
WRONG = (
    None,
    -1,
    10**9,
    1.0,
    "nothing",
    (),
    (None,),
    [0],
    object(),
    (Digit(3, 5),),
    p.Slice(0, 0, 1),
)
"""Values that no field, or few, may have."""


def spoiled(program):
    """Yield (change, program with one field of an instruction, a local or a border changed)."""
    steps = list(instructions(program.block))
    for number, step in enumerate(steps):
        value = WRONG[number % len(WRONG)]
        for item, change in ((step, in_step), (step.attributes, in_attributes)):
            for field in fields(item):
                new = change(step, field.name, value)
                yield f"{step} {field.name}", changed(program, step, new)
    for number, local in enumerate(program.locals):
        for field in fields(local):
            new = replace(local, **{field.name: WRONG[number % len(WRONG)]})
            locals_ = (*program.locals[:number], new, *program.locals[number + 1 :])
            yield f"{local} {field.name}", replace(program, locals=locals_)
    for field in fields(program):
        for value in WRONG:
            yield field.name, replace(program, **{field.name: value})


def in_step(step, field, value):
    return replace(step, **{field: value})


def in_attributes(step, field, value):
    return replace(step, attributes=replace(step.attributes, **{field: value}))


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_no_tampering_ends_in_an_exception(name):
    """Fields without meaning for results (`why`, `role`, `phase`) may have any readable value."""
    case = CASES[name]
    seen = 0
    for what, program in spoiled(case.plan.program):
        report = case.verified(program)
        seen += 1
        said = any(word in what for word in (" why", " role", " phase"))
        assert report.refuted or said or case.computes(program), what
    assert seen > 100


FAULTS = {
    "an operand that is not there": (
        lambda step: replace(step, operands=(-1,)), r"instructions\[1\] names %-1",
    ),
    "a dimension that is not there": (
        lambda step: replace(step, attributes=replace(step.attributes, dim=7)),
        "names dimension 7, but there are 2",
    ),
    "a number of another type": (
        lambda step: replace(step, attributes=replace(step.attributes, dim=0.0)),
        r"instructions\[1\].attributes.dim is 0.0, which is no int",
    ),
    "an axis that the mesh lacks": (
        lambda step: replace(step, attributes=replace(step.attributes, digits=(Digit(1, 3),))),
        r"instructions\[1\].attributes.digits is .*Digit\(stride=1, size=3\)",
    ),
    "an axis twice": (
        lambda step: replace(step, attributes=replace(step.attributes, digits=(Digit(1, 4),) * 2)),
        r"instructions\[1\].attributes.digits",
    ),
    "an operand too many": (
        lambda step: replace(step, operands=step.operands * 2), "takes 1 operands, has 2",
    ),
    "a node that is not there": (
        lambda step: replace(step, node=99), r"AllGather \(%\d\): IndexError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_verdict_says_what_and_where(name):
    change, words = FAULTS[name]
    case = test_mutations.CASES["whole"]
    step = case.plan.program.block.instructions[-1]
    report = case.verified(changed(case.plan.program, step, change(step)))
    (claim,) = [claim for claim in report.refuted if claim.claim == "well formed"]
    assert re.search(words, claim.words), claim.words


@pytest.mark.parametrize("wrong", [{"exact": True}, {"div": 0}, {"div": -1}, {"mod": -4}], ids=str)
def test_a_start_is_a_whole_number_on_every_device(wrong):
    """An exact division gives none where it does not come out: the lowering died of it."""
    case = CASES["joined"]
    program = case.mutated(
        p.HaloExchange,
        lambda a: replace(a, readings=tuple(shifted(one, wrong) for one in a.readings)),
    )
    (claim,) = case.verified(program).refuted
    assert "which is no Start" in claim.words


def shifted(reading, wrong):
    source = replace(reading.source, index=replace(reading.source.index, **wrong))
    return replace(reading, source=source)


def test_a_run_names_no_more_devices_than_there_are():
    """Pairs are enumerated, so that a run over too many devices would never end."""
    case = CASES["joined"]
    classes = Classes(case.plan.sharded.mesh.digits("Y"), (), 8, 1, 1)
    runs = Runs(classes, (PairRun(0, 0, 0, 0, 10**6),))

    def longer(fetch):
        first, *rest = fetch.readings
        permutes = (runs,) * max(1, len(first.permutes))
        return replace(fetch, readings=(replace(first, permutes=permutes), *rest))

    (claim,) = case.verified(case.mutated(p.HaloExchange, longer)).refuted
    assert re.search("permutes.*which is no", claim.words)
