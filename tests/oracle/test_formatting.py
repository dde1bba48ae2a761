"""Data formatting as users write it: right, proved, and no dearer than XLA's."""

import jax
import numpy as np
import pytest

import shardalg as sa
from benchmarks.oracle_bytes import our_wire_bytes
from shardalg.spmd.host.simulate import simulate
from tests.oracle import formatting
from tests.partition.planned import numbers

FACTS = formatting.recorded()
XLA = FACTS["wire_bytes"]
# Where ours sends more than XLA, and why; a program that gets better must leave this list.
MORE_BYTES = {
    "tile": "a repeated dimension is gathered; XLA gathers it in halves",
}
# Where ours executes more instructions that cut, pad, join or select than XLA, and why.
CHOSEN = "a place is chosen from either piece, where XLA cuts one buffer"
FEWER_BYTES = "pieces come by themselves, in fewer bytes"
MORE_INSTRUCTIONS = {
    **dict.fromkeys(("roll", "roll by blocks", "halves swapped", "concatenate"), CHOSEN),
    **dict.fromkeys(
        ("roll uneven", "shift of two", "insert", "stencil", "not nested", "concatenate uneven"),
        FEWER_BYTES,
    ),
    "tile": "a repeated dimension is gathered, and its block cut out",
}


# Programs whose gradients are here too.
FORWARD = {name.removesuffix(", gradient") for name in formatting.PROGRAMS if ", gradient" in name}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in FORWARD else ())
        for name in formatting.PROGRAMS
    ],
)
def test_right_proved_and_no_dearer_than_xlas(name):
    function, types, layouts = formatting.program(name)
    plan = sa.plan(function, *types, mesh=formatting.MESH, **layouts)
    values = [numbers(*t.shape, seed=seed) for seed, t in enumerate(types)]
    wants = jax.tree.leaves(formatting.PROGRAMS[name][0](*values))
    for got, want in zip(simulate(plan.program, plan.graph, *values), wants, strict=True):
        # an element is a sum of numbers as large as the largest one is, in 24 bits
        atol = max(1e-4, 1e-6 * np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=atol)
    assert plan.verify().ok, plan.verify().refuted
    sent = float(our_wire_bytes(plan.program))
    assert (sent > XLA[name]) == (name in MORE_BYTES), (sent, XLA[name])
    made, theirs = formatting.our_instructions(plan), sum(FACTS["instructions"][name].values())
    assert (made > theirs) == (name in MORE_INSTRUCTIONS), (made, theirs)
