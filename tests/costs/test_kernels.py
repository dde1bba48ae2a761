"""Prices of kernels: casts that are parts of products, fused attention, Pallas calls."""

import doctest
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.walk import walk

BF16 = jnp.bfloat16
ONE = sa.Mesh({"X": 1})
CHIP = "tpu_v5e"


def shape(*dims, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(dims, dtype)


def moved_bytes(fn, *args, mesh=ONE, **kwargs):
    """Bytes from and to memory, as the plan's own table of formatting counts them on one device."""
    from shardalg.costs.step_time import pricing
    from shardalg.costs.topology import machine

    plan = sa.plan(fn, *args, mesh=mesh, **kwargs)
    priced = pricing(plan.program, plan.graph, machine(CHIP))
    steps = [s for s in walk(plan.program) if s in priced.steps]
    local = (s for s in steps if s.instruction.attributes.__class__.__name__ == "Apply")
    return sum(s.count * sum(priced.traffic(s.instruction)[0]) for s in local)


M, K, N = 64, 512, 256
CASTS = {
    # name: function, arguments, bytes read and written per element of (x, weight, result)
    "widened weight": (lambda x, w: x @ w.astype(BF16), shape(K, N, dtype="int8"), (2, 1, 2)),
    "narrowed weight": (lambda x, w: x @ w.astype(BF16), shape(K, N, dtype="float32"), (2, 4, 2)),
    "transposed before": (lambda x, w: x @ w.T.astype(BF16), shape(N, K, dtype="int8"), (2, 1, 2)),
    "transposed after": (lambda x, w: x @ w.astype(BF16).T, shape(N, K, dtype="int8"), (2, 1, 2)),
    "reshaped between": (
        lambda x, w: x @ w.astype(BF16).reshape(K, N), shape(K, N // 4, 4, dtype="int8"), (2, 1, 2)
    ),
    "result": (
        lambda x, w: jnp.dot(x, w, preferred_element_type="float32").astype(BF16),
        shape(K, N), (2, 2, 2),
    ),
    "result, then a fused operator": (
        lambda x, w: jnp.tanh(jnp.dot(x, w, preferred_element_type="float32").astype(BF16)),
        shape(K, N), (2, 2, 2 + 2 + 2),
    ),
    "widened result is written as the product makes it": (
        lambda x, w: jnp.exp((x @ w).astype("float32")), shape(K, N), (2, 2, 2 + 2 + 4)
    ),
    "a cast of a fused value is written": (
        lambda x, w: x @ jnp.tanh(w).astype(BF16), shape(K, N, dtype="float32"), (2, 4 + 2 + 2, 2)
    ),
    "a cast behind a barrier is written": (
        lambda x, w: x @ jax.lax.optimization_barrier(w.astype(BF16)),
        shape(K, N, dtype="float32"), (2, 4 + 2 + 2, 2),
    ),
    "read once by the fused operator and once by the product": (
        lambda x, w: (x @ w.astype(BF16), jnp.sum(w.astype(BF16))),
        shape(K, N, dtype="int8"), (2, 1 + 1, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASTS)
def test_a_product_reads_and_writes_the_stored_type(name):
    fn, weight, (x, w, y) = CASTS[name]
    expected = x * M * K + w * K * N + y * M * N
    # A sum has a scalar result.
    assert moved_bytes(fn, shape(M, K), weight) == pytest.approx(expected, abs=8)


def test_a_cast_that_leaves_the_function_is_written():
    """The product reads the result in bfloat16, which is in memory anyway."""

    def fn(x, w):
        cast = w.astype(BF16)
        return x @ cast, cast

    moved = moved_bytes(fn, shape(M, K), shape(K, N, dtype="int8"))
    assert moved == 2 * M * K + (1 + 2 + 2) * K * N + 2 * M * N


def test_each_of_two_products_reads_the_stored_type():
    moved = moved_bytes(
        lambda x, z, w: (x @ w.astype(BF16), z @ w.astype(BF16).T),
        shape(M, K), shape(M, N), shape(K, N, dtype="int8"),
    )  # fmt: skip
    assert moved == 2 * (M * K + M * N) + 2 * 1 * K * N + 2 * (M * N + M * K)


def test_a_gathered_cast_is_in_memory():
    """The collective moves the cast value, so that it is written before and read after."""
    rows, mesh = 64 * K, sa.Mesh({"X": 4})
    moved = moved_bytes(
        lambda x, w: x @ w.astype(BF16), shape(rows, K), shape(K, N, dtype="float32"), mesh=mesh,
        in_shardings=(P("X"), P("X")),
    )  # fmt: skip
    assert moved == 2 * (rows // 4) * (K + N) + (4 + 2) * K * N // 4 + 2 * K * N


@pytest.mark.parametrize("chip", ["tpu_v5e", "h100"])
def test_a_value_that_is_not_written_is_not_in_memory(chip):
    """Peaks with and without the fused copies, from the types alone."""
    x, w = shape(M, K), shape(K, N, dtype="int8")
    peak = sa.plan(lambda x, w: x @ w.astype(BF16), x, w, mesh=ONE).cost(chip).peak_memory_bytes
    assert peak == 2 * M * K + K * N + 2 * M * N

    def twice(x, w):
        made = jnp.dot(x, w, preferred_element_type="float32").astype(BF16)
        return jnp.einsum("mn,kn->mk", made, w)

    peak = sa.plan(twice, x, shape(K, N), mesh=ONE).cost(chip).peak_memory_bytes
    assert peak == 2 * M * K + 2 * K * N + 2 * M * N + 2 * M * K


def test_the_stored_type_lives_until_the_product_reads_it():
    """A donated weight of int8 is not overwritten between its cast and its product."""

    def fn(x, w):
        cast = w.astype(BF16)
        for _ in range(3):
            x = jnp.tanh(x @ x)
        return x @ cast

    x, w = shape(N, N), shape(N, N, dtype="int8")
    for chip in ("tpu_v5e", "h100"):
        peak = sa.plan(fn, x, w, mesh=ONE, donate_argnums=(1,)).cost(chip).peak_memory_bytes
        # The argument x, the weight, a product's operand and its result.
        assert peak == 2 * N * N + N * N + 2 * 2 * N * N


LAYERS, D, F, HEADS, KV, HEAD, VOCAB, BATCH, CACHE = 80, 8192, 28672, 64, 8, 128, 128256, 32, 8192


def decode(params, caches, x):
    """One decode step of a dense model of 70 billion parameters, attention as one kernel."""

    def layer(x, here):
        w, (keys, values) = here
        q = (x @ w["q"].astype(BF16)).reshape(BATCH, KV, HEADS // KV, HEAD)
        k, v = ((x @ w[n].astype(BF16)).reshape(BATCH, KV, HEAD) for n in "kv")
        scores = sa.annotate(jnp.einsum("bkgh,bskh->bkgs", q, keys.astype(BF16)), "on_chip")
        weights = jax.nn.softmax(scores.astype("float32")).astype(BF16)
        o = jnp.einsum("bkgs,bskh->bkgh", weights, values.astype(BF16)).reshape(BATCH, HEADS * HEAD)
        x = x + o @ w["o"].astype(BF16)
        h = jax.nn.silu(x @ w["g"].astype(BF16)) * (x @ w["u"].astype(BF16))
        return x + h @ w["d"].astype(BF16), (k, v)

    x, new = jax.lax.scan(layer, x, (params["layers"], caches))
    return x @ params["out"].astype(BF16), new


@pytest.mark.parametrize("devices", [8, 16])
def test_a_decode_step_in_int8_takes_as_long_as_its_bytes(devices):
    """'How to Scale Your Model', applied inference: bytes over bandwidth, 17 ms on 8 chips.

    70e9 bytes of weights, and `2 * 8 * 128 * 80 * 8192 * 32` of caches; 8.1e11 bytes per second.
    """
    sizes = {"q": (D, HEADS * HEAD), "k": (D, KV * HEAD), "v": (D, KV * HEAD), "g": (D, F)}
    sizes |= {"u": (D, F), "o": (HEADS * HEAD, D), "d": (F, D)}
    layers = {n: shape(LAYERS, *dims, dtype="int8") for n, dims in sizes.items()}
    cut = {n: P(None, ("Y", "X"), None) if n in "od" else P(None, None, ("Y", "X")) for n in sizes}
    cache = shape(LAYERS, BATCH, CACHE, KV, HEAD, dtype="int8")
    by_heads = P(None, "X", None, "Y")
    plan = sa.plan(
        decode,
        {"layers": layers, "out": shape(D, VOCAB, dtype="int8")},
        (cache, cache),
        shape(BATCH, D),
        mesh=sa.Mesh({"Y": 8, "X": devices // 8}),
        in_shardings=({"layers": cut, "out": P(None, ("Y", "X"))}, (by_heads, by_heads), P()),
    )
    # The book's time is that of the bytes at the data sheet's bandwidth.
    cost = plan.cost(CHIP, overlap="full", software="datasheet")
    by_hand = (70e9 + 2 * KV * HEAD * LAYERS * CACHE * BATCH) / devices
    assert cost.step_time_s == pytest.approx(by_hand / 8.1e11, rel=0.1)
    assert cost.peak_memory_bytes == pytest.approx(by_hand, rel=0.1)


B, T, HEADS_, SIZE = 2, 2048, 4, 64
QKV = shape(B, T, HEADS_, SIZE)
SCORES = B * HEADS_ * T * T
PRODUCT = 2 * SCORES * SIZE
IMPLEMENTATIONS = ["xla", "cudnn"]


def attention(implementation, wrap=lambda f: f, **kwargs):
    return wrap(
        lambda q, k, v: jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=implementation, **kwargs
        )
    )


def squared(fn):
    return lambda *args: (fn(*args).astype("float32") ** 2).sum()


def layers(fn):
    """Run the same attention in four layers of a loop."""

    def run(q, k, v):
        return jax.lax.scan(lambda c, _: (fn(c, k, v), None), q, None, 4)[0]

    return run


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_scores_of_an_attention_function_are_never_in_memory(implementation):
    """Forward: two products; the peak has the arguments and the result."""
    plan = sa.plan(attention(implementation), QKV, QKV, QKV, mesh=ONE)
    cost = plan.cost("h100")
    assert plan.warnings()["op"].tolist() == []
    assert cost.flops == pytest.approx(2 * PRODUCT, rel=0.15)
    assert cost.peak_memory_bytes == pytest.approx(4 * 2 * B * T * HEADS_ * SIZE, rel=0.1)
    assert moved_bytes(attention(implementation), QKV, QKV, QKV) < 6 * 2 * B * T * HEADS_ * SIZE


@pytest.mark.parametrize("in_loop", [False, True], ids=["alone", "in a loop"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_backward_pass_computes_the_scores_again(implementation, in_loop):
    """FlashAttention-2: two products forward, five backward. The softmax adds under a tenth."""
    fn = layers(attention(implementation)) if in_loop else attention(implementation)
    plan = sa.plan(jax.value_and_grad(squared(fn), (0, 1, 2)), QKV, QKV, QKV, mesh=ONE)
    cost = plan.cost("h100")
    assert type(cost.flops) is int
    times = 4 if in_loop else 1
    assert cost.flops == pytest.approx(7 * PRODUCT * times, rel=0.1)
    # Scores of one layer in two bytes are more than everything that is in memory.
    assert cost.peak_memory_bytes < 2 * SCORES
    # The function as a single device runs it has four products backward; cuDNN's has five.
    assert cost.useful_flops == pytest.approx(
        (6 if implementation == "xla" else 7) * PRODUCT * times, rel=0.1
    )


def test_a_rematerialised_attention_computes_its_own_scores_once():
    """The recomputation of the function gives the weights to the backward pass alone."""
    fn = jax.value_and_grad(squared(attention("xla", jax.checkpoint)), (0, 1, 2))
    cost = sa.plan(fn, QKV, QKV, QKV, mesh=ONE).cost("h100")
    assert cost.flops == pytest.approx(7 * PRODUCT, rel=0.1)
    assert cost.peak_memory_bytes < 2 * SCORES


def test_scores_that_a_collective_sums_are_in_memory():
    """The size of a head is sharded, so that scores are partial sums."""
    by_size = P(None, None, None, "X")
    plan = sa.plan(
        attention("xla"), QKV, QKV, QKV, mesh=sa.Mesh({"X": 2}), in_shardings=by_size,
        out_shardings=by_size,
    )  # fmt: skip
    assert plan.collectives()["kind"].tolist() == ["all_reduce"]
    assert plan.cost("h100").peak_memory_bytes > 2 * 4 * SCORES


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_attention_in_a_shard_map_is_a_kernel(implementation):
    mesh = jax.make_mesh((2,), ("X",), axis_types=(AxisType.Auto,))
    fn = jax.shard_map(
        attention(implementation), mesh=mesh, in_specs=P("X"), out_specs=P("X"), check_vma=False
    )
    fn = jax.value_and_grad(squared(fn), (0, 1, 2))
    cost = sa.plan(fn, QKV, QKV, QKV, mesh=mesh, in_shardings=P("X")).cost("h100")
    assert cost.flops == pytest.approx(7 * PRODUCT / 2, rel=0.1)
    assert cost.peak_memory_bytes < 2 * SCORES / 2


TRIANGLE = np.tril(np.ones((T, T), bool))


def written_out(mask):
    """Return attention with marked scores, under a mask of queries by keys."""

    def run(q, k, v):
        scores = sa.annotate(jnp.einsum("bqhd,bkhd->bhqk", q, k), "on_chip").astype("float32")
        weights = sa.annotate(jax.nn.softmax(mask(scores)).astype(BF16), "on_chip")
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    return run


def masked(seen):
    """Return written attention in which `seen(queries, keys)` says which scores are visible."""
    place = jnp.arange
    return written_out(lambda s: jnp.where(seen(place(T)[:, None], place(T)[None]), s, -1e9))


def fused(**options):
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)


def masked_sum(q, k, v):
    """Return attention whose mask is a number that is added, without a select."""
    place = jnp.arange(T)
    hidden = (place[:, None] < place[None]).astype("float32")
    return written_out(lambda s: s - 1e9 * hidden)(q, k, v)


# name -> attention, share of the scores that its kernel computes
MASKS = {
    "none, xla": (fused(), 1.0),
    "none, cudnn": (fused(implementation="cudnn"), 1.0),
    "none, written out": (written_out(lambda s: s), 1.0),
    "causal, xla": (fused(is_causal=True), 0.5),
    "causal, cudnn": (fused(is_causal=True, implementation="cudnn"), 0.5),
    "order of positions": (masked(lambda q, k: q >= k), 0.5),
    "order, from the other side": (masked(lambda q, k: ~(k > q)), 0.5),
    "tril": (masked(lambda q, k: jnp.tril(jnp.ones((T, T), bool))), 0.5),
    "added": (written_out(lambda s: s - 1e9 * ~jnp.tril(jnp.ones((T, T), bool))), 0.5),
    "added in numbers": (masked_sum, 0.5),
    "captured triangle": (masked(lambda q, k: TRIANGLE), 0.5),
    "captured, all visible": (masked(lambda q, k: TRIANGLE | True), 1.0),
    "lengths": (masked(lambda q, k: k < T - 9), 1.0),
    "every second": (masked(lambda q, k: (q + k) % 2 == 0), 1.0),
}


@pytest.mark.sampled(22)
@pytest.mark.parametrize("where", ["alone", "in a loop", "backward"])
@pytest.mark.parametrize("mask", MASKS)
def test_only_a_causal_mask_hides_half_of_the_scores(mask, where):
    """Without it a kernel computes every score: two products forward, and five backward.

    The derivative of a function that is written out has four products backward. JAX's own
    derivative has two products of float32 operands, whose peak is half of that of bfloat16.
    """
    fn, share = MASKS[mask]
    products = 2
    if where == "in a loop":
        fn, products = layers(fn), 4 * 2
    if where == "backward":
        fn = jax.value_and_grad(squared(fn), (0, 1, 2))
        products = {"xla": 7 + 2, "cudnn": 7}.get(mask.split(", ")[-1], 6)
    cost = sa.plan(fn, QKV, QKV, QKV, mesh=ONE).cost("h100")
    rate = cost.hardware.peak("bfloat16") * cost.hardware.calibration["kernel_efficiency"]
    by_hand = share * products * PRODUCT / rate
    assert cost.seconds_by_cause["matrix"] == pytest.approx(by_hand, rel=0.02)


def test_positions_and_masks_that_are_arguments():
    """One argument of positions, as rows and as columns, is causal; a mask may hide nothing."""

    def by_place(q, k, v, place):
        return masked(lambda *_: place[:, None] >= place[None])(q, k, v)

    def by_mask(q, k, v, mask):
        return jax.nn.dot_product_attention(q, k, v, mask=mask)

    for fn, given, share in (
        (by_place, shape(T, dtype="int32"), 0.5),
        (by_mask, shape(1, 1, T, T, dtype="bool"), 1.0),
    ):
        cost = sa.plan(fn, QKV, QKV, QKV, given, mesh=ONE).cost("h100")
        rate = cost.hardware.peak("bfloat16") * cost.hardware.calibration["kernel_efficiency"]
        by_hand = share * 2 * PRODUCT / rate
        assert cost.seconds_by_cause["matrix"] == pytest.approx(by_hand, rel=0.02)


PATTERNS = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "local_window_size": (7, 0)},
    "lengths": {
        "query_seq_lengths": jnp.array([16, 9], "int32"),
        "key_value_seq_lengths": jnp.array([11, 16], "int32"),
    },
    "bias": {"bias": jnp.linspace(-1, 1, 16 * 16).reshape(1, 1, 16, 16).astype(BF16)},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_cudnns_attention_has_the_values_of_xlas(pattern):
    """Forward and backward, two query heads per key head, on two CPU devices."""
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (
        jax.random.normal(key, (2, 16, n, 8), BF16) for key, n in zip(keys, (4, 2, 2), strict=True)
    )
    options = PATTERNS[pattern]
    bias = options.get("bias", jnp.zeros((1, 1, 16, 16), BF16))
    rest = {n: x for n, x in options.items() if n != "bias"}

    def loss(implementation):
        def fn(q, k, v, bias):
            given = bias if "bias" in options else None
            out = jax.nn.dot_product_attention(
                q, k, v, given, implementation=implementation, **rest
            )
            # Rows beyond a query's length are padding, which implementations fill differently.
            kept = rest.get("query_seq_lengths", jnp.array([16, 16]))
            seen = jnp.arange(16)[None, :, None, None] < kept[:, None, None, None]
            return jnp.sum(jnp.where(seen, out.astype("float32"), 0.0) ** 2)

        return jax.value_and_grad(fn, (0, 1, 2, 3))

    want = jax.jit(loss("xla"))(q, k, v, bias)
    plan = sa.plan(
        loss("cudnn"),
        q,
        k,
        v,
        bias,
        mesh=jax.make_mesh((2,), ("X",)),
        in_shardings=(P("X"), P("X"), P("X"), P()),
    )
    got = plan.lower()(q, k, v, bias)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.float32(one), np.float32(other), rtol=0.05, atol=0.05)


def test_a_saved_plan_knows_its_kernels(tmp_path):
    plan = sa.plan(attention("cudnn"), QKV, QKV, QKV, mesh=ONE)
    plan.save(tmp_path / "plan.json")
    assert (
        sa.load_plan(tmp_path / "plan.json").cost("h100").peak_memory_bytes
        == plan.cost("h100").peak_memory_bytes
    )


def blocked_product(x_ref, w_ref, o_ref, sum_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    sum_ref[...] += jnp.dot(x_ref[...], w_ref[...], preferred_element_type="float32")

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = sum_ref[...].astype(o_ref.dtype)


BLOCK = 128


def matmul(x, w, **kwargs):
    """Multiply in blocks; the grid is (rows, columns, sum), the sum innermost."""
    (m, k), n = x.shape, w.shape[1]
    ways = (lambda i, j, s: (i, s)), (lambda i, j, s: (s, j)), (lambda i, j, s: (i, j))
    left, right, out = (pl.BlockSpec((BLOCK, BLOCK), way) for way in ways)
    return pl.pallas_call(
        blocked_product, out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // BLOCK, n // BLOCK, k // BLOCK), in_specs=[left, right], out_specs=out,
        scratch_shapes=[pltpu.VMEM((BLOCK, BLOCK), jnp.float32)], **kwargs,
    )(x, w)  # fmt: skip


PALLAS_X, PALLAS_W = shape(512, 256), shape(256, 1024)


def test_a_pallas_call_has_the_flops_of_its_grid_and_the_bytes_of_its_blocks():
    """4 by 8 by 2 steps: each copies a block of both operands, and 32 write a block."""
    cost = sa.plan(matmul, PALLAS_X, PALLAS_W, mesh=ONE).cost(CHIP)
    product = 2 * 512 * 256 * 1024
    assert product <= cost.flops < 1.02 * product
    assert cost.useful_flops == cost.flops
    assert moved_bytes(matmul, PALLAS_X, PALLAS_W) == 2 * BLOCK**2 * (64 + 64 + 32)
    plain = sa.plan(lambda x, w: x @ w, PALLAS_X, PALLAS_W, mesh=ONE).cost(CHIP)
    assert plain.compute_s < cost.compute_s < 4 * plain.compute_s
    assert [item.kind for item in cost.items] == ["contraction"]


def test_a_cost_estimate_is_the_price():
    estimate = pl.CostEstimate(flops=12345, bytes_accessed=678, transcendentals=0)
    fn = partial(matmul, cost_estimate=estimate)
    assert sa.plan(fn, PALLAS_X, PALLAS_W, mesh=ONE).cost(CHIP).flops == 12345
    assert moved_bytes(fn, PALLAS_X, PALLAS_W) == 678


def test_a_block_whose_index_stays_is_copied_once():
    """The weight does not depend on the grid; a row does not change over the inner axis."""

    def fn(x, w):
        def kernel(x_ref, w_ref, o_ref):
            o_ref[...] = x_ref[...] + w_ref[...]

        row = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
        return pl.pallas_call(
            kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(x.shape[0] // 8, 4),
            in_specs=[row, pl.BlockSpec((8, 128), lambda i, j: (0, 0))], out_specs=row,
        )(x, w)  # fmt: skip

    x, w = shape(64, 128, dtype="float32"), shape(8, 128, dtype="float32")
    assert moved_bytes(fn, x, w) == 4 * 128 * (64 + 8 + 64)
    cost = sa.plan(fn, x, w, mesh=ONE).cost(CHIP)
    # One addition per element and grid step.
    assert cost.flops == 64 * 128 * 4
    assert [item.kind for item in cost.items] == ["other compute"]


def test_a_pallas_call_on_a_device_is_priced_by_its_block():
    mesh = jax.make_mesh((2,), ("X",), axis_types=(AxisType.Auto,))
    fn = jax.shard_map(matmul, mesh=mesh, in_specs=(P("X"), P()), out_specs=P("X"), check_vma=False)
    cost = sa.plan(fn, PALLAS_X, PALLAS_W, mesh=mesh, in_shardings=(P("X"), P())).cost(CHIP)
    whole = sa.plan(matmul, PALLAS_X, PALLAS_W, mesh=ONE).cost(CHIP)
    assert cost.flops == whole.flops // 2
    assert cost.useful_flops == whole.flops


def test_values_around_a_kernel_are_in_memory():
    """Nothing is fused with a kernel: its operand is written and its result is read."""

    def fn(x, w):
        return jnp.tanh(matmul(jnp.tanh(x), w))

    moved = moved_bytes(fn, PALLAS_X, PALLAS_W)
    assert moved == moved_bytes(matmul, PALLAS_X, PALLAS_W) + 2 * 2 * (512 * 256 + 512 * 1024)


def test_a_saved_plan_has_the_prices_of_its_kernels(tmp_path):
    plan = sa.plan(matmul, PALLAS_X, PALLAS_W, mesh=ONE)
    plan.save(tmp_path / "plan.json")
    assert sa.load_plan(tmp_path / "plan.json").cost(CHIP).flops == plan.cost(CHIP).flops


HEADS_FIRST = shape(B, HEADS_, T, 128)


def splash(q, k, v):
    mask = splash_attention_mask.MultiHeadMask(
        [splash_attention_mask.FullMask((T, T)) for _ in range(HEADS_)]
    )
    kernel = splash_attention_kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
    return jax.vmap(kernel)(q, k, v)


@pytest.mark.parametrize("fn", [flash_attention, splash], ids=["flash", "splash"])
def test_pallas_attention_is_a_fused_kernel(fn):
    """Forward two products; backward two kernels: of keys and values (four), of queries (three)."""
    product = 2 * B * HEADS_ * T * T * 128
    cost = sa.plan(fn, *[HEADS_FIRST] * 3, mesh=ONE).cost(CHIP)
    assert cost.flops == pytest.approx(2 * product, rel=0.05)
    assert cost.peak_memory_bytes < 2 * SCORES
    both = jax.value_and_grad(squared(fn), (0, 1, 2))
    cost = sa.plan(both, *[HEADS_FIRST] * 3, mesh=ONE).cost(CHIP)
    assert cost.flops == pytest.approx((2 + 4 + 3) * product, rel=0.05)
    assert cost.peak_memory_bytes < 2 * SCORES


FFI_X = shape(64, 128, dtype="float32")


def through_ffi(x):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.ffi.ffi_call("my_kernel", out)(jnp.tanh(x))


def on_host(x):
    return np.asarray(x)


def through_callback(x):
    return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def priced_ffi(price, fn=through_ffi, target="my_kernel", **kwargs):
    return sa.plan(fn, FFI_X, mesh=ONE, options=sa.Options(prices={target: price}), **kwargs)


@pytest.mark.parametrize(
    ("fn", "text"),
    [(through_ffi, "ffi_call 'my_kernel'"), (through_callback, "pure_callback 'on_host'")],
)
def test_a_kernel_without_a_price_is_named(fn, text):
    cost = sa.plan(fn, FFI_X, mesh=ONE).cost("h100")
    assert f"no price is known for {text} at test_kernels.py:" in str(cost)
    assert len(cost.unpriced) == 1


@pytest.mark.parametrize(
    ("fn", "target"), [(through_ffi, "my_kernel"), (through_callback, "on_host")]
)
def test_a_kernel_has_the_price_that_the_user_gives(fn, target):
    without = sa.plan(fn, FFI_X, mesh=ONE).cost("h100", software="datasheet")
    plan = priced_ffi(sa.KernelPrice(flops=10**9, bytes=10**7), fn, target)
    cost = plan.cost("h100", software="datasheet")
    assert cost.flops - without.flops == 10**9
    assert cost.unpriced == ()
    assert "no price" not in str(cost)
    # The longer of arithmetic and traffic: 1e9 flops take less time than 1e7 bytes.
    speed = cost.hardware.hbm_bytes_per_s
    moved = moved_bytes(fn, FFI_X) - 2 * 4 * 64 * 128
    assert cost.compute_s == pytest.approx((10**7 + moved) / speed, rel=0.01)


def test_a_price_may_be_a_function_of_the_local_shapes():
    """Within a shard_map a device's block, outside of one the whole operand."""
    seen = []

    def flops(x):
        seen.append(x)
        return 1000 * x[0]

    price = sa.KernelPrice(flops=flops)
    whole = priced_ffi(price).cost("h100")
    mesh = jax.make_mesh((2,), ("X",), axis_types=(AxisType.Auto,))
    inside = jax.shard_map(
        through_ffi, mesh=mesh, in_specs=P("X"), out_specs=P("X"), check_vma=False
    )
    plan = sa.plan(
        inside,
        FFI_X,
        mesh=mesh,
        in_shardings=P("X"),
        options=sa.Options(prices={"my_kernel": price}),
    )
    assert set(seen) == {(64, 128), (32, 128)}
    tanh = 64 * 128
    assert (whole.flops, plan.cost("h100").flops) == (64_000 + tanh, 32_000 + tanh // 2)
    # Without bytes, operands and results move once.
    assert moved_bytes(through_ffi, FFI_X) == 4 * 4 * 64 * 128


def test_a_price_of_a_pallas_call_replaces_that_of_its_code():
    options = sa.Options(prices={"pallas_call": sa.KernelPrice(flops=7, bytes=8)})
    plan = sa.plan(matmul, PALLAS_X, PALLAS_W, mesh=ONE, options=options)
    assert plan.cost(CHIP).flops == 7
    assert plan.replan(options=sa.Options()).cost(CHIP).flops > 10**6


def test_a_plan_with_prices_is_saved_in_numbers(tmp_path):
    path = tmp_path / "plan.json"
    plan = priced_ffi(sa.KernelPrice(flops=10**9))
    plan.save(path)
    loaded = sa.load_plan(path)
    assert loaded.options == plan.options
    assert loaded.cost("h100").flops == plan.cost("h100").flops
    with pytest.raises(sa.PlanFileError, match="price of 'my_kernel' is a function"):
        priced_ffi(sa.KernelPrice(flops=lambda x: 1)).save(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sa.KernelPrice(flops=-1), "flops=-1.* is no amount"),
        (lambda: sa.KernelPrice(flops=float("nan")), "is no amount"),
        (lambda: sa.KernelPrice(flops=1, bytes="2"), "bytes='2'.* is no amount"),
        (lambda: sa.KernelPrice(flops=True), "is no amount"),
        (lambda: sa.Options(prices={"my_kernel": 3}), "Give a dict from the target"),
        (lambda: sa.Options(prices=[1]), "Give a dict from the target"),
        (lambda: priced_ffi(sa.KernelPrice(flops=1), target="other"), "does not call.*my_kernel"),
        (lambda: priced_ffi(sa.KernelPrice(flops=lambda x, y: 1)), "raises TypeError"),
        (lambda: priced_ffi(sa.KernelPrice(flops=lambda x: "a")), "gives 'a', which is no amount"),
    ],
)
def test_wrong_prices_are_refused(make, message):
    with pytest.raises(sa.StrategyError, match=f"(?s){message}"):
        make()


def naive(q, k, v):
    """Attention as textbooks write it: causal, heads second, a softmax in float32."""
    scores = jnp.einsum("bnth,bnsh->bnts", q, k).astype("float32") / 8.0
    length = q.shape[2]
    seen = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
    return jnp.einsum("bnts,bnsh->bnth", weights.astype(q.dtype), v)


def by_hand(q, k, v):
    """Attention whose weights are divided by their sum after the product with the values."""
    scores = jnp.einsum("bnth,bnsh->bnts", q, k, preferred_element_type="float32")
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    made = jnp.einsum("bnts,bnsh->bnth", weights.astype(q.dtype), v)
    return (made / weights.sum(-1)[..., None]).astype(q.dtype)


HEADS_SECOND = shape(B, HEADS_, T, SIZE)
FUSED = sa.Options(fuse_attention=True)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint, layers], ids=["", "remat", "scan"])
@pytest.mark.parametrize("fn", [naive, by_hand])
def test_softmax_attention_is_priced_as_a_kernel_on_request(fn, wrap):
    """Products as FlashAttention-2: two forward, five backward; with scores in memory otherwise."""
    times = 4 if wrap is layers else 1
    # With the division at the end, the recomputation needs the result: both products run again.
    products = 9 if (fn, wrap) == (by_hand, jax.checkpoint) else 7
    step = jax.value_and_grad(squared(wrap(fn)), (0, 1, 2))
    plain = sa.plan(step, *[HEADS_SECOND] * 3, mesh=ONE)
    assert plain.cost("h100").peak_memory_bytes > 2 * SCORES
    plan = plain.replan(options=FUSED)
    cost = plan.cost("h100")
    assert cost.peak_memory_bytes < 2 * SCORES
    assert cost.flops == pytest.approx(products * PRODUCT * times, rel=0.1)
    assert "softmax attention at test_kernels.py:" in str(cost)
    assert "fused" not in str(plain.cost("h100"))
    # The program is the same, and so is its price without the option.
    assert str(plan.program) == str(plain.program)
    assert plan.replan(options=sa.Options()).cost("h100").flops == plain.cost("h100").flops


def test_a_forward_pass_of_softmax_attention_moves_no_scores():
    cost = sa.plan(naive, *[HEADS_SECOND] * 3, mesh=ONE, options=FUSED).cost("h100")
    assert cost.flops == pytest.approx(2 * PRODUCT, rel=0.15)
    assert cost.peak_memory_bytes < 6 * 2 * B * T * HEADS_ * SIZE


def loss_of_logits(x, w, labels):
    """Compute the loss of a softmax over a vocabulary."""
    logits = (x @ w).astype("float32")
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -chosen.mean()


def gated(x, w1, w2):
    """Compute an MLP with an exponential and no sum."""
    h = jnp.exp(x @ w1)
    return h @ w2


TOKENS, VOCABULARY = 4096, 8192
NOT_ATTENTION = {
    "loss": (
        jax.value_and_grad(loss_of_logits, (0, 1)),
        (shape(TOKENS, 64), shape(64, VOCABULARY), shape(TOKENS, dtype="int32")),
    ),
    "exponential": (gated, (shape(TOKENS, 64), shape(64, VOCABULARY), shape(VOCABULARY, 64))),
}


@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_is_no_attention_is_not_fused(name):
    fn, args = NOT_ATTENTION[name]
    plain, fused = (
        sa.plan(fn, *args, mesh=ONE, options=options).cost("h100")
        for options in (sa.Options(), FUSED)
    )
    assert fused.fused == ()
    assert (fused.flops, fused.peak_memory_bytes) == (plain.flops, plain.peak_memory_bytes)


def test_a_wrong_switch_of_attention_is_refused():
    with pytest.raises(sa.StrategyError, match="fuse_attention is 'yes'"):
        sa.Options(fuse_attention="yes")


def test_the_guide_about_kernels_runs():
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "kernels", None, 0)
    told = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)
    assert result.attempted > 8
    assert not result.failed, "".join(told)
