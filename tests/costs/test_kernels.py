"""Prices of kernels: casts that are parts of products, and fused attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
    cost = plan.cost(CHIP, overlap="full")
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
