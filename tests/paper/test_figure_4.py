"""Figure 4: propagation with and without priorities, on a linear layer and a ReLU.

Left is the program, `relu(x @ w)` with x annotated on B and the result on D. Right, above: tensors
are visited in topological order, the product follows x, and the two sides of the ReLU disagree.
Right, below: what is pointwise comes first, and all BD-shaped tensors are alike.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa

B, M, D, X = 64, 16, 512, 4


def planned(priorities, policy="gspmd"):
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((B, M), (M, D)))
    return sa.plan(
        lambda x, w: jnp.maximum(x @ w, 0), x, w,
        mesh=sa.Mesh({"X": X}), in_shardings=(P("X", None), None), out_shardings=P(None, "X"),
        options=sa.Options(policy=policy, switches=sa.Switches(priorities=priorities)),
    )  # fmt: skip


def product(plan):
    (row,) = [r for r in plan.shardings().itertuples() if r.value.startswith("dot_general")]
    return row.sharding


def sent(plan):
    table = plan.collectives()
    return table["kind"].tolist(), int((table["wire_bytes"] * table["executions"]).sum())


@pytest.mark.parametrize("policy", ["gspmd", "shardy"])
def test_with_priorities_all_tensors_of_the_shape_are_alike(policy):
    plan = planned(True, policy)
    assert product(plan) == "[None, X]"
    assert sent(plan) == (["all_gather"], 4 * B * M // X * (X - 1))
    assert plan.verify().ok


@pytest.mark.parametrize("policy", ["gspmd", "shardy"])
def test_without_them_the_two_sides_of_the_relu_disagree(policy, show):
    plan = planned(False, policy)
    assert product(plan) == "[X, None]"
    kinds, wire_bytes = sent(plan)
    assert kinds == ["all_to_all"]
    assert wire_bytes == 4 * B * D // X**2 * (X - 1)
    assert plan.verify().ok
    extra = wire_bytes - sent(planned(True, policy))[1]
    show(f"figure 4, {policy}: without priorities a device sends {extra} bytes more")
    assert extra == 21504
