"""What the mutation engine found that was verified and wrong: refuted, and seen."""

from dataclasses import replace

import pytest

from shardalg.spmd import program as p
from tests.verify import test_moving_mutations as moving

CASES = {"reshaped": moving.CASES["reshaped"]}


def longer(regroup):
    """The first group has a dimension more than there is."""
    (count, sizes), *rest = regroup.groups
    return replace(regroup, groups=((count + 1, sizes), *rest))


# The program, and what is changed in which instruction of a kind.
MUTATIONS = {
    "a group of more dimensions than there are": ("reshaped", p.Regroup, longer, -1),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_verify_refutes_it(name):
    program, kind, change, which = MUTATIONS[name]
    case = CASES[program]
    assert case.verified(case.mutated(kind, change, which)).refuted


@pytest.mark.parametrize("name", MUTATIONS)
def test_simulate_sees_it(name):
    program, kind, change, which = MUTATIONS[name]
    case = CASES[program]
    assert not case.computes(case.mutated(kind, change, which))
