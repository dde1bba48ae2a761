"""The mutation engine itself, and a sample of `make mutate`."""

import random
from contextlib import suppress
from dataclasses import fields, replace

import pytest

from shardalg.algebra.affine import Index
from shardalg.algebra.sharding import Sharding
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import (
    AllGathers,
    AllReduce,
    AllToAlls,
    Direction,
    Reading,
    ReduceScatter,
    ReduceScatters,
)
from shardalg.spmd.instructions.collectives import RaggedAllToAll
from shardalg.spmd.local import Local, Start
from shardalg.spmd.program import SpmdProgram
from shardalg.verify.verify import verify
from tests.mutate.drawn import drawn_case, drawn_names
from tests.mutate.fields import KINDS, at, changed
from tests.mutate.judge import REFUTED, SAME, Judge
from tests.mutate.programs import CASES
from tests.mutate.tampering import UNMADE

JUDGES = {name: Judge(case) for name, case in CASES.items()}


def reached(subject, rng):
    """(class, field) of everything in which a tampered value was put."""
    for found in subject.kinds.values():
        for place in rng.sample(found, min(3, len(found))):
            new = subject.other(rng).value(place, at(subject.program, place.steps))
            with suppress(*UNMADE):
                if new is not None and changed(subject.program, place.steps, new):
                    yield from place.owners


# CPU devices cannot run these; `tests/partition/test_ragged_exchange.py` tampers with them.
UNRUN = {RaggedAllToAll}


def test_every_kind_of_instruction_and_every_field_of_each_is_tampered_with():
    """The fields are found by walking dataclasses: a new kind must only occur in some program."""
    subjects = [judge.subject for judge in JUDGES.values()]
    occur = {type(step.attributes) for subject in subjects for _, step in subject.instructions}
    assert set(KINDS) - occur == UNRUN
    found = {owner for subject in subjects for owner in reached(subject, random.Random(0))}
    of_all = (
        *KINDS,
        Instruction,
        Block,
        Local,
        Sharding,
        Start,
        Reading,
        Direction,
        Index,
        SpmdProgram,
    )
    tampered = {
        (kind, f.name) for kind in of_all if kind not in UNRUN for f in fields(kind) if f.init
    }
    assert tampered == found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_no_emitted_program_is_refused(name):
    """Programs of every policy and switch are accepted; `make mutate` also runs them."""
    plan = CASES[name].plan
    report = verify(plan.sharded, plan.program)
    assert report.ok, report.refuted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["reshaped", "padded", "ordered", "by hand"])
def test_what_verify_accepts_computes_the_function(name):
    """A sample of `make mutate`, with a seed that it was not run with before."""
    judge = JUDGES[name]
    for number in range(30):
        made = judge.mutant(name, 99, number)
        verdict = judge.verdict(made.program)
        assert verdict.status in (REFUTED, SAME), (number, made.kinds, verdict)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", drawn_names(98)[::5])
def test_what_verify_accepts_of_a_random_operator_computes_it(name):
    """`make mutate` draws one of every group of rows, with its seed."""
    judge = Judge(drawn_case(name))
    assert judge.verdict(judge.case.plan.program).status == SAME
    for number in range(12):
        made = judge.mutant(name, 98, number)
        verdict = judge.verdict(made.program)
        assert verdict.status in (REFUTED, SAME), (number, made.kinds, verdict)


def test_what_computes_something_else_is_seen():
    """Omissions change results, so that a judge without eyes would not pass."""
    judge = JUDGES["by hand"]
    program = judge.subject.program
    sums = [steps for steps, step in judge.subject.instructions
            if isinstance(step.attributes, AllReduce | ReduceScatter)]  # fmt: skip
    for steps in sums:
        attributes = at(program, (*steps, "attributes"))
        other = "max" if attributes.combine == "sum" else "sum"
        wrong = changed(program, (*steps, "attributes"), replace(attributes, combine=other))
        assert judge.fault(wrong)


def test_a_mutant_is_made_again_by_its_name():
    judge = JUDGES["padded"]
    made = [judge.mutant("padded", 3, number) for number in range(20)]
    assert [m.program for m in made] == [judge.mutant("padded", 3, n).program for n in range(20)]
    assert all(m.program != judge.subject.program for m in made)


def test_collectives_of_several_dimensions_are_refused_with_other_digits_or_dimensions():
    judge = JUDGES["gathered at once"]
    program = judge.subject.program
    several = [(steps, step.attributes) for steps, step in judge.subject.instructions
               if isinstance(step.attributes, AllGathers | ReduceScatters)]  # fmt: skip
    assert {type(attributes) for _, attributes in several} == {AllGathers, ReduceScatters}
    for steps, attributes in several:
        (dim, digits), (other, more) = attributes.along
        for along in (
            ((dim, digits),),
            ((dim, more), (other, digits)),
            ((dim, digits), (dim, more)),
            ((dim, digits), (other, digits)),
            ((dim, digits + more),),
        ):
            wrong = changed(program, (*steps, "attributes"), replace(attributes, along=along))
            assert judge.verdict(wrong).status == REFUTED, along


def test_exchanges_of_several_cuts_are_refused_with_other_digits_or_dimensions():
    judge, rng = JUDGES["cuts moved"], random.Random(5)
    program = judge.subject.program
    exchanges = [(steps, step.attributes) for steps, step in judge.subject.instructions
                 if isinstance(step.attributes, AllToAlls)]  # fmt: skip
    assert exchanges
    for steps, attributes in exchanges:
        a, b = attributes.exchanges
        wrong = [
            (a,),
            (replace(a, digits=b.digits), replace(b, digits=a.digits)),
            (replace(a, split_dim=a.concat_dim, concat_dim=a.split_dim), b),
            (replace(a, concat_dim=b.concat_dim), replace(b, concat_dim=a.concat_dim)),
            (replace(a, split_dim=b.split_dim), replace(b, split_dim=a.split_dim)),
            (replace(a, digits=b.digits), b),
            (a, a),
        ]
        for found in wrong:
            tampered = changed(program, (*steps, "attributes", "exchanges"), found)
            for mutant in (tampered, judge.subject.settled(rng, tampered)):
                assert judge.verdict(mutant).status == REFUTED, found
        other_order = changed(program, (*steps, "attributes", "exchanges"), (b, a))
        assert judge.verdict(other_order).status == SAME
