"""The Transformer with pipelined layers: trained on devices, and the work of its steps."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest

import shardalg as sa
from shardalg.costs.pipelines.overheads import overheads
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.costs.topology import arranged
from shardalg.models import transformer
from shardalg.models.published.pipelined import GATHERED, TABLE_4, Pipelined
from shardalg.models.transformer import Config

SMALL = Config(B=8, S=4, M=16, H=32, N=8, D=4, V=16, L=4, dtype="float32")
NARROW = Config(B=256, S=1024, M=4096, H=16384, N=64, D=128, V=32000, L=64)
MESH = sa.Mesh({"L": 2, "X": 2, "Y": 2})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rounds", [1, 2])
def test_is_the_model_without_a_pipeline(rounds):
    made = Pipelined(SMALL, Schedule(2, 4, rounds))
    params, _, *data = made.model.random_arguments()
    layers = made.pipe.unstack(params["layers"])
    plain = {**params, "layers": [{k: w[i] for k, w in layers.items()} for i in range(4)]}
    got, want = jax.jit(made.loss)(params, *data), transformer.loss(SMALL, plain, *data)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.slow
def test_ten_steps_on_devices():
    made = Pipelined(replace(SMALL, L=2), Schedule(2, 4)).model
    plan = made.plan(MESH, TABLE_4)
    assert plan.verify().ok
    params, state, *data = made.random_arguments()
    step, alone, losses = plan.lower(), jax.jit(made.train_step), []
    one = alone(params, state, *data)
    for _ in range(10):
        params, state, loss = step(params, state, *data)
        if not losses:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), params, one[0])
        losses.append(float(loss))
    assert all(b < a for a, b in itertools.pairwise(losses)), losses


@pytest.mark.slow
def test_weights_sharded_along_the_data_axis_are_gathered_for_every_microbatch():
    """Section 5.2: why the paper does not shard them so."""
    plain, sharded = (narrow("layer", 8, layout) for layout in (TABLE_4, GATHERED))

    def gathered(plan):
        rows = plan.collectives().to_dict("records")
        kept = (r for r in rows if r["kind"] == "all_gather" and r["mesh_axes"] == "X")
        return sum(r["executions"] * r["wire_bytes"] for r in kept if r["executions"] > 1)

    layer = sum(np.prod(shape) for shape in NARROW.weight_shapes().values())
    trips, weights = Schedule(4, 8).iterations * NARROW.L // 4, 2 * layer / 4
    assert gathered(plain) == 0
    # three quarters of every weight, in bfloat16, at least once forward and once backward
    assert gathered(sharded) >= 2 * trips * weights * 3 / 4
    assert sharded.cost("tpu_v3").communication_s > plain.cost("tpu_v3").communication_s


def narrow(remat, batches, layout):
    model = Pipelined(NARROW, Schedule(4, batches), remat).model
    return model.plan(sa.Mesh({"L": 4, "X": 4, "Y": 4}), layout)


def full(stages, batches, mesh):
    config = Config(B=1024, S=1024, M=4096, H=16384, N=64, D=128, V=32000, L=64)
    return Pipelined(config, Schedule(stages, batches)).model.plan(sa.Mesh(mesh), TABLE_4)


def test_shares_of_the_whole_step():
    plan = full(8, 32, {"L": 8, "X": 16, "Y": 2})
    cost = plan.cost("tpu_v3")
    spent = overheads(plan.program, plan.graph, arranged("tpu_v3", plan.mesh))
    assert spent.step_s == pytest.approx(cost.step_time_s, rel=1e-9)
    formula = Schedule(8, 32).bubble_ratio
    assert spent.bubble_s / spent.pipelined_s == pytest.approx(formula, rel=1e-9)
    # embedding, softmax and optimizer have no bubbles
    assert 0.9 * formula < spent.bubbles < formula
    assert 0.1 < spent.recompute < 0.25


@pytest.mark.slow
def test_rematerialization_lets_more_microbatches_fit_and_bubbles_shrink():
    """Section 5.2."""

    def peak(remat, batches):
        return narrow(remat, batches, TABLE_4).cost("tpu_v3")

    kept, again = peak("none", 8), peak("layer", 8)
    assert again.peak_memory_bytes < kept.peak_memory_bytes / 4
    assert peak("layer", 32).peak_memory_bytes < kept.peak_memory_bytes
    assert Schedule(4, 32).bubble_ratio < Schedule(4, 8).bubble_ratio
