"""Whole operators: the reported cost equals the program's cost."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.tables import bytes_text, seconds_text

MESH = sa.Mesh({"X": 2, "Y": 4})


def singular_values(w):
    return jnp.linalg.svd(w, compute_uv=False)


def plan_of(fn, shape, spec):
    return sa.plan(fn, jax.ShapeDtypeStruct(shape, "float32"), mesh=MESH, in_shardings=(spec,))


def whole(plan):
    rows = plan.warnings()
    return rows[rows["warning"].str.startswith("runs whole")]


@pytest.mark.parametrize(
    ("fn", "shape"), [(singular_values, (512, 256)), (jnp.sort, (8192,)), (jnp.fft.fft, (8192,))]
)
def test_an_operator_without_a_batch_is_said_with_its_bytes(fn, shape):
    plan = plan_of(fn, shape, P("X"))
    (row,) = whole(plan).to_dict("records")
    gathers = plan.collectives().query("kind == 'all_gather'")
    assert row["wire_bytes_per_step"] == gathers.wire_bytes_per_step.sum() > 0
    assert "along X, and 8 devices repeat the same work" in row["warning"]


def test_stacked_operands_are_shared_as_the_remedy_says():
    """No device repeats what another one does, and fewer bytes are sent."""
    plan = plan_of(singular_values, (512, 256), P("X", "Y"))
    (row,) = whole(plan).to_dict("records")
    assert row["redundant_flops"] > 0.8 * plan.cost("tpu_v3").flops
    stacked = plan_of(jax.vmap(singular_values), (8, 512, 256), P(None, "X", "Y"))
    assert whole(stacked).empty
    assert stacked.cost("tpu_v3").flops < 8 * plan.cost("tpu_v3").flops / 4
    eight = 8 * plan.collectives().eval("wire_bytes * executions").sum()
    assert stacked.collectives().eval("wire_bytes * executions").sum() < eight / 2


def test_the_layout_that_is_proposed_does_what_is_said():
    """Each figure equals the figure of the plan with the operand annotated so."""
    plan = plan_of(singular_values, (512, 256), P("X", "Y"))
    (row,) = whole(plan).to_dict("records")
    now, then = (p.cost("tpu_v3") for p in (plan, plan_of(singular_values, (512, 256), P())))
    assert then.step_time_s < now.step_time_s
    assert row["remedy"] == (
        f"annotate w as [None, None]: step {seconds_text(now.step_time_s)} to "
        f"{seconds_text(then.step_time_s)} on 8 x tpu_v3 (the default chip; devices of the mesh), "
        f"sent {bytes_text(now.wire_bytes)} to 0 B, peak memory "
        f"{bytes_text(now.peak_memory_bytes)} to {bytes_text(then.peak_memory_bytes)}"
    )


def test_what_is_small_beside_the_rest_is_not_said():
    def fn(w):
        return jnp.sort(w[:8, 0]), w @ w.T

    assert whole(plan_of(fn, (4096, 4096), P("X", "Y"))).empty
