"""The claims of a plan: z3's proofs, and refutations of wrong programs."""

from collections import Counter
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd import instructions as p
from shardalg.verify.operators.apply import iteration_claim
from shardalg.verify.verify import verify
from tests.partition.planned import MESH, numbers, planned


@cache
def plan():
    """Return a sum over an uneven dimension, a lookup, a scan: one of each kind of claim."""

    def fn(x, w):
        def body(carry, row):
            return carry + (row @ w).sum(), None

        return jax.lax.scan(body, 0.0, x)[0] + x.sum()

    arguments = numbers(3, 6, 9), numbers(9, 8)
    return planned(fn, arguments, (P(None, "X", "Y"), P("Y", "X")))


def with_masks(change):
    """Return the program with all masks changed, also inside loop bodies."""

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


def test_every_claim_of_a_right_program_is_proved():
    report = plan().verify()
    kinds = {claim.claim for claim in report.claims}
    moves = {"delivers", "mask", "border", "carry"}
    assert kinds >= {"iterations", "reads", "padding", "writes", "combine", "emitted"} | moves
    facts = {claim.claim for claim in report.claims if claim.status == "trusted"}
    rows = {"normalisation", "rows", "emission"}
    assert facts == rows | {"collectives", "monoids", "arithmetic"}
    assert {claim.status for claim in report.claims if claim.claim not in facts} == {"proved"}
    assert report.ok
    assert all(claim.words for claim in report.claims)


def test_a_refuted_claim_says_what_and_where():
    """One axis missing in the sum: the claim is in words, and the report is not `ok`."""
    program = with_masks(lambda mask: replace(mask, size=mask.size - 1))
    report = verify(plan().sharded, program)
    assert not report.ok
    claim = report.refuted[0]
    assert claim.words == "the mask keeps exactly the elements that exist of 9"
    assert dict(claim.witness.unknowns).keys() == {"x"}
    assert claim.witness.device in MESH.order


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


def test_two_starts_of_a_function_may_be_one_number():
    """Padding of both tensors is filled with the same value, whichever start that is."""

    def both(x, start):
        return jax.lax.reduce(
            (x, x + 1), (start, start), lambda a, b: (a[0] + b[0], a[1] + b[1]), (0,)
        )

    assert planned(both, (numbers(10), numbers()), (P(("X", "Y")), P())).verify().ok


def test_loops_that_are_split_together_are_claimed():
    """One split loop cannot clash; two make the claim that their joint split is a merge."""
    x, y = MESH.digits("X"), MESH.digits("Y")
    assert iteration_claim(MESH, (("m", x),)) is None
    claim = iteration_claim(MESH, (("m", x), ("n", y)))
    assert claim.result.dims == (x, y)


def test_one_element_is_cut_along_one_axis_and_then_along_another():
    """Found by seed 9050 of the programs at the edges: a block of padding is cut in blocks, too."""
    x, update = np.ones((3, 1, 8), np.float32), np.zeros((2, 1, 4), np.float32)
    plan = sa.plan(
        lambda x, update, i: lax.dynamic_update_slice(x, update, (i, i, i)),
        *(x, update, np.int32(1)),
        mesh=sa.Mesh({"X": 2, "Y": 2}),
        in_shardings=(P(None, ("X", "Y")), P(None, "X", "Y"), P()),
    )
    assert plan.verify().ok


def test_blocks_of_one_number_grow_by_a_piece_that_arrives():
    """All elements are known to be 0; of the piece that a neighbour sends this is not kept."""

    def fn(y):
        zeros = sa.mesh_split(jnp.zeros((6, 4)), MESH, [0, 1])
        return sa.mesh_split(zeros, MESH, [(0, 1), -1]) + y

    plan = planned(fn, (numbers(6, 4),), (P(("X", "Y")),))
    assert "concatenate" in str(plan.program)
    assert plan.verify().ok
