"""The claims of a plan: what z3 proves, what it refutes when the program is wrong."""

from collections import Counter
from dataclasses import replace
from functools import cache

import jax
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.verify.apply import iteration_claim
from shardalg.verify.verify import verify
from shardalg.spmd import program as p
from tests.partition.planned import MESH, numbers, planned


@cache
def plan():
    """A sum over an uneven dimension, a lookup, a scan: one of each kind of claim."""

    def fn(x, w):
        def body(carry, row):
            return carry + (row @ w).sum(), None

        return jax.lax.scan(body, 0.0, x)[0] + x.sum()

    arguments = numbers(3, 6, 9), numbers(9, 8)
    return planned(fn, arguments, (P(None, "X", "Y"), P("Y", "X")))


def with_masks(change):
    """The program with all masks changed, those of loop bodies too."""

    def changed(block):
        return replace(block, instructions=tuple(map(step, block.instructions)))

    def step(instruction):
        attributes = instruction.attributes
        if isinstance(attributes, p.Mask):
            attributes = change(attributes)
        elif isinstance(attributes, p.Loop):
            attributes = replace(attributes, body=changed(attributes.body))
        return replace(instruction, attributes=attributes)

    program = plan().program
    return replace(program, block=changed(program.block))


def statuses(program, kind):
    report = verify(plan().sharded, program)
    return Counter(claim.status for claim in report.claims if claim.claim == kind)


def test_every_claim_of_a_right_program_is_proved_trusted_or_left_open():
    report = plan().verify()
    kinds = {claim.claim for claim in report.claims}
    assert kinds >= {"iterations", "mask", "reads", "writes", "combine", "emitted", "carry"}
    open_kinds = {c.claim for c in report.claims if c.status == "not_claimed"}
    assert open_kinds == {"reads", "writes", "combine", "emitted", "delivers"}
    assert not report.ok
    assert replace(report, claims=tuple(c for c in report.claims if c.claim == "mask")).ok


@pytest.mark.parametrize(
    "change",
    [
        lambda mask: replace(mask, size=mask.size + 1),
        lambda mask: replace(mask, size=mask.size - 1),
        lambda mask: replace(mask, block=mask.block + 1),
        lambda mask: replace(mask, block=mask.block - 1),
        lambda mask: replace(mask, digits=MESH.digits("X")),
    ],
    ids=["wider", "narrower", "larger blocks", "smaller blocks", "another axis"],
)
def test_a_wrong_mask_is_refuted(change):
    assert statuses(plan().program, "mask")["refuted"] == 0
    found = statuses(with_masks(change), "mask")
    assert found["refuted"] == sum(found.values()) > 0


def test_loops_that_are_split_together_are_claimed():
    """One split loop cannot clash; two make the claim that their joint split is a merge."""
    x, y = MESH.digits("X"), MESH.digits("Y")
    assert iteration_claim(MESH, (("m", x),)) is None
    claim = iteration_claim(MESH, (("m", x), ("n", y)))
    assert claim.result.dims == (x, y)
