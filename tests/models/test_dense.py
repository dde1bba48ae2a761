"""`models.DenseTransformer`: equal results on eight devices and on one, and its refusals."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

import shardalg as sa

SMALL = sa.models.DenseTransformer(
    layers=1, model_dim=16, hidden_dim=32, heads=4, head_dim=4, vocab=32, seq=6, batch=16,
    dtype="float32",
)  # fmt: skip
FSDP = {"slice": 2, "data": 2, "fsdp": 2}
# strategy, mesh, and what differs from SMALL; each choice stands in one of them.
RUNS = (
    ("finalized", {"X": 2, "Y": 4}, {"remat": "full"}),
    ("fsdp", {"fsdp": 8}, {"optimizer": "adam", "attention": "fused", "microbatches": 2}),
    ("fsdp", FSDP, {"layers": 2, "optimizer": "sgd", "gated": True, "remat": "minimal"}),
    (
        "fsdp_tensor",
        {"fsdp": 4, "tensor": 2},
        {"optimizer": "sgd", "kv_heads": 2, "gated": True, "remat": "minimal_offloaded"},
    ),
)


def arguments(model, seed=0):
    ids = np.random.default_rng(seed).integers(0, model.vocab, (2, model.batch, model.seq))
    return (*model.init(seed), *ids.astype(np.int32))


def close(got, want, bound=2e-5):
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return all(
        np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max()
        <= bound * max(1.0, np.abs(np.asarray(b)).max())
        for a, b in pairs
    )


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("strategy", "mesh", "changed"), RUNS)
def test_eight_devices_are_one(strategy, mesh, changed):
    model = replace(SMALL, **changed)
    given = arguments(model)
    plan = model.plan(mesh, strategy)
    got = plan.lower()(*given)
    # One device offloads nothing: what is kept where does not change the numbers.
    kept = replace(model, remat=False, attention="plain")
    assert close(got, jax.jit(kept.train_step)(*arguments(model)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("one", ["data", "slice"])
def test_an_axis_of_size_1_changes_nothing(one):
    """A strategy may name the axis next to another one; uneven sizes differed before."""
    model = sa.models.DenseTransformer(
        layers=1, model_dim=512, hidden_dim=1365, heads=8, head_dim=64, vocab=32000, seq=1000,
        batch=64, gated=True, optimizer="adam", microbatches=4, kv_heads=4, attention="fused",
    )  # fmt: skip
    tables = [model.plan(m, "fsdp").collectives() for m in ({"fsdp": 32}, {one: 1, "fsdp": 32})]
    rows = [list(zip(*(t[c] for c in ("kind", "role", "wire_bytes")), strict=True)) for t in tables]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_microbatches_kinds_of_attention_and_remat_have_the_same_gradients():
    params, _, *data = arguments(SMALL)
    want = jax.jit(SMALL.gradients)(params, *data)
    for changed in ({"microbatches": 4}, {"attention": "fused", "remat": "full"}):
        got = jax.jit(replace(SMALL, **changed).gradients)(params, *data)
        assert close(got, want), changed


def test_grouped_heads_are_whole_heads_with_equal_keys():
    """Two heads of keys, each repeated, are four heads whose weights agree in pairs."""
    grouped = replace(SMALL, kv_heads=2)
    params, _, tokens, targets = arguments(grouped)
    wide = {"embedding": params["embedding"], "layers": []}
    for layer in params["layers"]:
        pairs = {name: np.repeat(layer[name], 2, axis=1) for name in ("w_k", "w_v")}
        wide["layers"].append({**layer, **pairs})
    wide["layers"] = tuple(wide["layers"])
    (got, _), (want, _) = (
        jax.jit(grouped.gradients)(params, tokens, targets),
        jax.jit(SMALL.gradients)(wide, tokens, targets),
    )
    assert close(got, want)


def test_it_learns():
    model = replace(SMALL, optimizer="adam", param_dtype="float32")
    params, state, tokens, _ = arguments(model)
    step = jax.jit(model.train_step)
    losses = []
    for _ in range(50):
        params, state, loss = step(params, state, tokens, tokens)
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0]


def test_flops_of_matrix_products():
    """6 B S (4 D L M N + 2 D L N S + 2 H L M + M V), as the paper's section 5 counts them."""
    model = replace(SMALL, optimizer="sgd")
    plan = model.plan({"X": 1, "Y": 1}, "finalized")
    products = [i.flops for i in plan.cost("tpu_v3").items if i.kind == "contraction"]
    L, M, H, N, D, V, S, B = (
        getattr(model, name)
        for name in "layers model_dim hidden_dim heads head_dim vocab seq batch".split()
    )
    assert sum(products) == 6 * B * S * (4*D*L*M*N + 2*D*L*N*S + 2*H*L*M + M*V)  # fmt: skip


def test_parameters():
    params, *_ = replace(SMALL, gated=True, kv_heads=2).arguments()
    counted = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    assert counted == replace(SMALL, gated=True, kv_heads=2).parameters


def test_only_gradients_cross_slices():
    """Weights are repeated along `slice`: no gather there, and sums once a step."""
    model = replace(SMALL, optimizer="adam", microbatches=2)
    moved = model.plan({"slice": 2, "fsdp": 4}, "fsdp").collectives()
    across = moved[moved["mesh_axes"].str.contains("slice")]
    assert set(across["role"]) <= {"gradient", "loss"}
    assert not across["kind"].str.contains("gather").any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers": 0}, r"sizes of a model are integers of at least 1, got \{'layers': 0\}"),
        ({"seq": 1.5}, r"integers of at least 1, got \{'seq': 1.5\}"),
        ({"kv_heads": 3}, r"4 heads do not go evenly to 3"),
        ({"optimizer": "adamw"}, r"optimizer 'adamw': write one of adam, adafactor, sgd"),
        ({"remat": "some"}, r"remat 'some': write False or one of full, minimal"),
        ({"attention": "flash"}, r"attention must be one of \('plain', 'fused'\), got 'flash'"),
        ({"dtype": "int8"}, r"dtype must be one of"),
        ({"microbatches": 3}, r"a batch of 16 has no 3 equal microbatches"),
    ],
)
def test_refused_sizes(changed, message):
    with pytest.raises(sa.StrategyError, match=message):
        replace(SMALL, **changed)


@pytest.mark.parametrize(
    ("mesh", "strategy", "message"),
    [
        ({"fsdp": 8}, "zero", r"strategy 'zero': write one of finalized, fsdp, fsdp_tensor"),
        ({"tensor": 8}, "fsdp", r"strategy 'fsdp' has no use for tensor of Mesh\(tensor=8\)"),
        (8, "fsdp", r"mesh is 8: give a sa.Mesh or sizes"),
    ],
)
def test_refused_strategies(mesh, strategy, message):
    with pytest.raises(sa.StrategyError, match=message):
        SMALL.plan(mesh, strategy)
