"""Collectives and contractions of a plan run alone, beside what is predicted of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError
from shardalg.lower.isolated import instruction_kinds, table

CHIP = sa.Hardware("toy", (("float32", 1e9),), hbm_bytes_per_s=1e9, link_bytes_per_s=1e9)


def layers(x, w, v):
    def layer(x, w):
        return jnp.tanh(x @ w), None

    x = jax.lax.scan(layer, x, w)[0]
    return (x + x @ v) @ v, x.sum(0), (x * 2).max(0)


ARGS = tuple(np.ones(s, "float32") for s in ((64, 256), (3, 256, 256), (256, 256)))


@pytest.fixture(scope="module")
def lowered():
    specs = P("X", "Y"), P(None, None, "Y"), P("Y")
    mesh = sa.Mesh({"X": 2, "Y": 4})
    return sa.plan(layers, *ARGS, mesh=mesh, in_shardings=specs)


def test_each_is_run_alone_and_none_is_left_out(lowered):
    made = lowered.lower().measure(*ARGS, repeats=2, isolate=True, hardware=CHIP)
    cost = lowered.cost(CHIP)
    assert made.predicted_s == pytest.approx(cost.step_time_s)
    sent = lowered.collectives()
    for kind in set(sent["kind"]):
        mine = [one for one in made.alone if one.kind == kind]
        assert sum(one.count for one in mine) == sent[sent["kind"] == kind]["executions"].sum()
    contractions = [one for one in made.alone if one.kind == "contraction"]
    assert sum(one.count for one in contractions) == 3 + 2  # the scan's, and two
    assert len(contractions) < 4  # those alike are run once
    predicted = sum(i.time_s for i in cost.totals.items if i.kind in {o.kind for o in made.alone})
    assert sum(one.predicted_s for one in made.alone) == pytest.approx(predicted)
    assert all(one.timing.busy_s for one in made.alone)  # CPU devices share cores
    assert sum(one.seconds for one in made.alone) > 0
    split = made.split()
    whole = split.predicted_s + split.rates_s + split.rest_s
    assert whole == pytest.approx(made.ours.step_s)
    assert len(table(made.alone).rows) == len(made.alone)


def test_sums_that_are_sent_as_one_are_run_as_one():
    x = np.ones((8, 16), "float32")
    plan = sa.plan(
        lambda x: (x.sum(0), (x * x).sum(0)), x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),)
    )
    (one,) = instruction_kinds(plan.lower(), {})
    assert (one.kind, one.count, len(one.first)) == ("all_reduce", 1, 2)


def test_nothing_to_split(lowered):
    made = lowered.lower().measure(*ARGS, repeats=1)
    with pytest.raises(LoweringError, match="isolate=True"):
        made.split()
