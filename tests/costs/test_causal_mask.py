"""A fused attention kernel skips the half that a causal mask hides, and only that."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import shardalg as sa

T = 2048
QKV = jax.ShapeDtypeStruct((2, T, 8, 128), "bfloat16")
ONE = sa.Mesh({"X": 1})
FUSED = sa.Options(fuse_attention=True)


def gradient(fn):
    return jax.grad(lambda *args: jnp.sum(fn(*args).astype(jnp.float32)), argnums=(0, 1, 2))


def written(masked):
    def attention(q, k, v):
        scores = jnp.einsum("bsnd,btnd->bnst", q, k) * 0.1
        weights = jax.nn.softmax(masked(scores), axis=-1)
        return jnp.einsum("bnst,btnd->bsnd", weights, v)

    return attention


def function(**options):
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)


def with_flax(q, k, v):
    mask = nn.make_causal_mask(jnp.ones((2, T)))
    return nn.dot_product_attention(q, k, v, mask=mask)


def is_lower():
    positions = jnp.arange(T)
    return positions[:, None] >= positions[None, :]


CAUSAL = {
    "function": function(is_causal=True),
    "cuDNN": function(is_causal=True, implementation="cudnn"),
    "where": written(lambda s: jnp.where(is_lower(), s, -1e9)),
    "tril": written(lambda s: jnp.where(jnp.tril(jnp.ones((T, T), bool)), s, -1e9)),
    "added": written(lambda s: s + jnp.where(is_lower(), 0, -1e9).astype(s.dtype)),
    "flax": with_flax,
}
FULL = {
    "function": function(),
    "cuDNN": function(implementation="cudnn"),
    "no mask": written(lambda s: s),
    "one row": written(lambda s: jnp.where(jnp.arange(T) < 7, s, -1e9)),
    "diagonal": written(lambda s: jnp.where(jnp.eye(T, dtype=bool), s, -1e9)),
}


def product_s(fn, *args):
    """Return the seconds of products, which kernels carry out at one rate."""
    cost = sa.plan(fn, *args, mesh=ONE, options=FUSED).cost("h100")
    return sum(dict(i.seconds).get("matrix", 0.0) for i in cost.items if i.kind == "contraction")


@pytest.mark.parametrize("wrap", [lambda fn: fn, gradient], ids=["forward", "gradient"])
def test_a_causal_mask_halves_the_products(wrap):
    whole = product_s(wrap(FULL["no mask"]), QKV, QKV, QKV)
    products = 2 if wrap is not gradient else 5
    flops = products * 2 * 2 * 8 * T * T * 128
    chip = sa.plan(jnp.sin, QKV, mesh=ONE).cost("h100").hardware
    rate = chip.peak("bfloat16") * chip.calibration["kernel_efficiency"]
    assert whole == pytest.approx(flops / rate, rel=1e-6)
    for name in ("where", "tril", "added", "flax"):
        assert product_s(wrap(CAUSAL[name]), QKV, QKV, QKV) == pytest.approx(whole / 2), name
    for name in ("one row", "diagonal"):
        assert product_s(wrap(FULL[name]), QKV, QKV, QKV) == pytest.approx(whole), name


@pytest.mark.parametrize("name", ["function", "cuDNN"])
@pytest.mark.parametrize("wrap", [lambda fn: fn, gradient], ids=["forward", "gradient"])
def test_an_attention_function_says_whether_it_is_causal(name, wrap):
    causal, full = (product_s(wrap(fns[name]), QKV, QKV, QKV) for fns in (CAUSAL, FULL))
    assert causal == pytest.approx(full / 2)


def test_a_mask_of_the_user_hides_an_unknown_share():
    mask = jax.ShapeDtypeStruct((T, T), "bool")

    def masked(q, k, v, mask):
        return written(lambda s: jnp.where(mask, s, -1e9))(q, k, v)

    whole = product_s(FULL["no mask"], QKV, QKV, QKV)
    assert product_s(masked, QKV, QKV, QKV, mask) == pytest.approx(whole)


def test_two_attentions_of_equal_shapes_are_told_apart():
    """An encoder sees all positions, a decoder only earlier ones."""

    def both(q, k, v):
        return CAUSAL["where"](q, k, FULL["no mask"](q, k, v))

    one = product_s(FULL["no mask"], QKV, QKV, QKV)
    assert product_s(both, QKV, QKV, QKV) == pytest.approx(1.5 * one)
    # FlashAttention-2 has two products forward and five backward. The last attention of a sum of
    # results needs no product with its values.
    expected = 7 / 2 * one + 5 / 2 * one / 2
    assert product_s(gradient(both), QKV, QKV, QKV) == pytest.approx(expected, rel=0.01)


def test_scores_in_a_loop_are_masked_by_its_body():
    def layers(q, k, v):
        def body(x, _):
            return CAUSAL["where"](x, k, v), None

        return jax.lax.scan(body, q, None, length=3)[0]

    one = product_s(CAUSAL["where"], QKV, QKV, QKV)
    assert product_s(layers, QKV, QKV, QKV) == pytest.approx(3 * one)
    # Two products forward and five backward; weights are stacked for the backward pass.
    assert product_s(gradient(layers), QKV, QKV, QKV) == pytest.approx(3 * 7 / 2 * one, rel=0.01)
