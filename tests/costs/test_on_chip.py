"""On-chip values of a kernel take no memory or traffic; its arithmetic still counts."""

import jax
import jax.numpy as jnp

import shardalg as sa

SHAPE = jax.ShapeDtypeStruct((256, 16), "float32")


def planned(mark):
    def attended(q, k, v):
        scores = mark(q @ k.T)
        return jax.checkpoint(lambda s: mark(jax.nn.softmax(s)) @ v)(scores).sum()

    return sa.plan(
        jax.grad(attended, argnums=(0, 1, 2)), SHAPE, SHAPE, SHAPE, mesh=sa.Mesh({"X": 1})
    )


def test_scores_are_never_in_memory():
    plain = planned(lambda x: x).cost("a100_80gb")
    fused = planned(lambda x: sa.annotate(x, "on_chip")).cost("a100_80gb")
    scores = 256 * 256 * 4
    assert fused.peak_memory_bytes < scores < plain.peak_memory_bytes
    assert fused.flops == plain.flops
    assert fused.compute_s < plain.compute_s


def test_what_a_collective_moves_is_in_memory():
    """Marked, but summed over devices, and handed out: the kernel ends there."""
    P = jax.sharding.PartitionSpec
    x, w = jax.ShapeDtypeStruct((64, 512), "float32"), jax.ShapeDtypeStruct((512, 64), "float32")
    ends = {"in_shardings": (P(None, "X"), P("X")), "out_shardings": P()}

    def held(mark):
        plan = sa.plan(lambda x, w: jnp.exp(mark(x @ w)), x, w, mesh=sa.Mesh({"X": 4}), **ends)
        assert plan.collectives()["kind"].tolist() == ["all_reduce"]
        return plan.cost("a100_80gb").peak_memory_bytes

    assert held(lambda x: sa.annotate(x, "on_chip")) == held(lambda x: x)
