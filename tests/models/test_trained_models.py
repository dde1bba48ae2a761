"""The paper's other models: proved, simulated = lowered = one device, trained for ten steps."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest

import shardalg as sa
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.models.published.conformer import PIPELINED, Conformer
from shardalg.models.published.encoder_decoder import FIGURE_2, EncoderDecoder
from shardalg.models.published.moe import HYBRID, SPARSE, MoEConfig
from shardalg.models.published.unet3d import SPATIAL, UNet3D
from shardalg.spmd.host.simulate import simulate

MOE = MoEConfig(dtype="float32")
CASES = {
    "sparse MoE": (MOE, SPARSE, {"X": 8}),
    "3D U-Net": (UNet3D(dtype="float32"), SPATIAL, {"X": 2, "Y": 4}),
    "hybrid MoE": (MOE, HYBRID, {"X": 4, "Y": 2}),
    "Conformer": (Conformer(Schedule(2, 4), dtype="float32"), PIPELINED, {"L": 2, "X": 2}),
    "circular Conformer": (
        Conformer(Schedule(2, 2, 2), L=4, dtype="float32"), PIPELINED, {"L": 2, "X": 2}
    ),
    "encoder-decoder": (
        EncoderDecoder(MoEConfig(B=8, L=4, E=4, dtype="float32"), 2, Schedule(2, 2)),
        FIGURE_2, {"X": 2, "Y": 4},
    ),
}  # fmt: skip
QUICK = ("3D U-Net",)


def planned(name):
    config, layout, mesh = CASES[name]
    return config.model, config.model.plan(sa.Mesh(mesh), layout)


def close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_trains(name):
    model, plan = planned(name)
    assert plan.verify().ok
    params, state, *data = model.random_arguments()
    one = jax.jit(model.train_step)(params, state, *data)
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves((params, state, *data))]
    close(simulate(plan.program, plan.graph, *flat), one)
    step, losses = plan.lower(), []
    for _ in range(10):
        params, state, loss = step(params, state, *data)
        if not losses:
            close((params, state, loss), one)
        losses.append(float(loss))
    assert all(after < before for before, after in itertools.pairwise(losses)), losses


def moves(plan, kind, phase):
    rows = plan.collectives().to_dict("records")
    return [r for r in rows if r["kind"] == kind and r["phase"] == phase]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["sparse MoE", "hybrid MoE"])
def test_two_all_to_alls_per_layer_each_way(name):
    _, plan = planned(name)
    for phase in ("forward", "backward"):
        assert [
            r["executions"] for r in moves(plan, "all_to_all", phase) if r["mesh_axes"] == "X"
        ] == [1, 1]


def test_gradients_of_experts_are_not_reduced():
    """Section 5.4: there is no data parallelism in the experts."""
    model, plan = planned("sparse MoE")
    experts = {"w_in", "w_out"}
    kept = {
        leaf[-1].key
        for leaf, _ in jax.tree_util.tree_leaves_with_path(model.types()["layers"]["moe"])
    } - experts
    dense = jax.tree.leaves(model.types()["layers"]["dense"])
    reduced = moves(plan, "all_reduce", "backward")
    # of every weight that all devices have, once, and of nothing else
    assert len(reduced) == len(kept) + len(dense) + 1
    shapes = [np.prod(t.shape[1:]) for t in dense]
    sent = sorted(r["wire_bytes"] for r in reduced)
    assert sent[-1] <= 4 * 2 * 7 / 8 * max(*shapes, model.sizes["V"] * model.sizes["M"])


def test_a_token_beyond_the_capacity_is_left_out_and_one_expert_has_each_place():
    from shardalg.models.published.moe import gating

    config = replace(MOE, C=2)
    x = np.random.default_rng(0).standard_normal((config.B, config.S, config.M), np.float32)
    gate = np.random.default_rng(1).standard_normal((config.M, config.E), np.float32)
    weights, balance = gating(config, gate, x)
    used = np.asarray(weights) > 0
    assert used.sum(1).max() == 1
    assert used.any((2, 3)).mean() < 1
    assert used.sum((2, 3)).max() == 2
    roomy, _ = gating(replace(config, C=config.S), gate, x)
    np.testing.assert_allclose(np.asarray(roomy).sum((2, 3)), 1, rtol=1e-6)
    assert balance.shape == (config.B,)


def test_the_input_annotation_reaches_every_convolution():
    """Section 5.6: annotations are needed for the inputs alone."""
    _, plan = planned("3D U-Net")
    assert plan._annotations.sites == ()
    convolved = plan.graph.nodes_of(["conv_general_dilated"])
    forward = [n for n in convolved if n.phase == "forward"]
    assert len(forward) == 7
    for node in forward:
        assert plan._sharded.shardings[node.results[0]].dims[1], node
    kinds = {r["kind"] for r in plan.collectives().to_dict("records")}
    assert kinds == {"collective_permute", "all_reduce"}


@pytest.mark.slow
def test_spatial_partitioning_scales():
    """Section 5.6 measured 15.7 on 16 partitions."""
    model = UNet3D(batch=4, size=128, width=128, levels=4).model
    one, many = (
        model.plan(sa.Mesh({"X": 1, "Y": y}), SPATIAL)
        .cost("tpu_v3", software="datasheet")
        .step_time_s
        for y in (1, 16)
    )
    assert one / many >= 13.5


def test_circular_at_a_quarter_of_the_batch_has_the_bubbles_of_gpipe():
    """Section 5.3."""
    gpipe, circular = Schedule(8, 64), Schedule(8, 16, 4)
    assert circular.bubble_ratio == gpipe.bubble_ratio


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MoEConfig(L=3), "L=3 layers.*alternate"),
        (lambda: MoEConfig(E=1), "a token goes to two experts"),
        (lambda: MoEConfig(C=0), r"at least 1, got \{'C': 0\}"),
        (lambda: UNet3D(size=6, levels=3), "6 is not divisible by 4"),
        (lambda: UNet3D(levels=9), "at most 8 levels, got 9"),
        (lambda: Conformer(Schedule(2, 4), N=3), r"N heads divide M features.*\(16, 3\)"),
    ],
)
def test_sizes_that_cannot_be(make, message):
    with pytest.raises(sa.StrategyError, match=message):
        make()
