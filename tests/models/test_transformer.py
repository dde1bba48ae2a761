"""The model alone, on one device: it learns, its parts agree with plain references."""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardalg.errors import StrategyError
from shardalg.models import adafactor, training, transformer
from shardalg.models.transformer import Config

F32 = Config(dtype="float32")
MOST = 1e-5


def close(got, want, tolerance=MOST):
    got, want = (jax.tree.leaves(tree) for tree in (got, want))
    for a, b in zip(got, want, strict=True):
        a, b = (np.asarray(x, dtype=np.float64) for x in (a, b))
        assert np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max())


@cache
def losses(config, steps=5):
    """Losses of the first steps, parameters and state after them."""
    params, state, tokens, targets = training.part("train_step").random_arguments(config)
    step = jax.jit(partial(training.train_step, config))
    seen = []
    for _ in range(steps):
        params, state, loss = step(params, state, tokens, targets)
        seen.append(float(loss))
    return seen, params, state


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", transformer.DTYPES)
def test_the_loss_falls(dtype):
    seen, _, state = losses(Config(dtype=dtype))
    assert seen[0] == pytest.approx(np.log(Config().V), rel=0.5)
    assert all(after < before for before, after in pairwise(seen))
    assert int(state["step"]) == 5


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "change", [{"scan": True}, {"remat": True}, {"scan": True, "remat": True}, {"jit": True}]
)
def test_every_form_is_the_same_model(change):
    want, params, _ = losses(F32)
    config = replace(F32, **change)
    got, others, _ = losses(config)
    assert got == pytest.approx(want, rel=MOST)
    if config.scan:
        params = {**params, "layers": jax.tree.map(lambda *w: jnp.stack(w), *params["layers"])}
    close(others, params)


def plain_attention(weights, x):
    """Head by head and token by token, in float64."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    y = np.zeros(x.shape)
    for b, n in np.ndindex(x.shape[0], w["w_q"].shape[1]):
        q, k, v = (x[b] @ w[name][:, n] for name in ("w_q", "w_k", "w_v"))
        for s in range(x.shape[1]):
            shares = np.exp(q[s] @ k[: s + 1].T / np.sqrt(q.shape[1]))
            y[b, s] += (shares / shares.sum()) @ v[: s + 1] @ w["w_o"][n]
    return y


def plain_ffn(weights, x):
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    return np.maximum(x @ w["w_in"], 0) @ w["w_out"]


def plain_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def plain_layer(weights, x):
    x = x + plain_attention(weights, plain_norm(x))
    return x + plain_ffn(weights, plain_norm(x))


PLAIN = {"ffn": plain_ffn, "attention": plain_attention, "layer": plain_layer}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PLAIN)
def test_parts_equal_plain_loops(name):
    part = training.part(name)
    weights, x = part.random_arguments(F32)
    close(part.function(F32)(weights, x), PLAIN[name](weights, np.asarray(x, np.float64)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PLAIN)
def test_gradients_equal_finite_differences(name):
    """Along one random direction; the differences are taken of the float64 loops above."""
    part = training.part(f"{name}_gradient")
    weights, x, dy = part.random_arguments(F32, seed=1)
    y, *grads = part.function(F32)(weights, x, dy)
    point = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (weights, x))
    rng = np.random.default_rng(2)
    toward = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), point)
    terms = jax.tree.map(lambda g, t: np.vdot(np.asarray(g, np.float64), t), tuple(grads), toward)
    width = 1e-6
    low, high = (
        np.vdot(PLAIN[name](*jax.tree.map(lambda p, t, end=end: p + end * t, point, toward)), dy)
        for end in (-width, width)
    )
    close(y, PLAIN[name](*point))
    assert (high - low) / (2 * width) == pytest.approx(sum(jax.tree.leaves(terms)), rel=1e-4)


def test_loss_is_the_mean_cross_entropy():
    params, _, tokens, targets = training.part("train_step").random_arguments(F32)
    logits = np.asarray(transformer.forward(F32, params, tokens), np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    picked = np.take_along_axis(shares, np.asarray(targets)[..., None], -1)
    close(transformer.loss(F32, params, tokens, targets), -np.log(picked).mean())


def plain_adafactor(weight, gradient, steps):
    """Algorithm 4 of arXiv:1804.04235 on one matrix, by its full second moment's factors."""
    row, column = np.zeros(weight.shape[0]), np.zeros(weight.shape[1])
    for t in range(1, steps + 1):
        square, beta = gradient**2 + 1e-30, 1 - t**-0.8
        row = beta * row + (1 - beta) * square.sum(1)
        column = beta * column + (1 - beta) * square.sum(0)
        update = gradient / np.sqrt(np.outer(row, column) / row.sum())
        update /= max(1, np.sqrt((update**2).mean()))
        rate = max(1e-3, np.sqrt((weight**2).mean())) * min(1e-2, 1 / np.sqrt(t))
        weight = weight - rate * update
    return weight


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stacked", [0, 1])
def test_adafactor_equals_the_algorithm(stacked):
    rng = np.random.default_rng(3)
    weight, gradient = rng.standard_normal((2, 3, 4, 5))
    factors = adafactor.Factoring(rows=1, stacked=stacked)
    shape = (3, 4, 5) if stacked else (3, 20)
    params, grads = {"w": weight.reshape(shape)}, {"w": gradient.reshape(shape)}
    state = adafactor.init_state(params, {"w": factors})
    for _ in range(3):
        params, state = adafactor.apply(params, grads, state, {"w": factors})
    matrices = [m.reshape(-1, 4, 5) if stacked else m.reshape(1, 3, 20) for m in (weight, gradient)]
    want = [plain_adafactor(w, g, 3) for w, g in zip(*matrices, strict=True)]
    close(params["w"], np.reshape(want, shape))


def test_activations_are_narrow_and_parameters_wide():
    params = transformer.param_types(Config())
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}
    weights, x = training.part("layer").arguments(Config())
    y = jax.eval_shape(training.part("layer").function(Config()), weights, x)
    assert (x.dtype.name, y.dtype.name) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Config(B=0, H=-1), r"\{'B': 0, 'H': -1\}"),
        (lambda: Config(dtype="float8"), r"dtype.*'float8'"),
        (lambda: training.part("mlp"), r"no part 'mlp'.*attention"),
    ],
)
def test_errors(make, message):
    with pytest.raises(StrategyError, match=message):
        make()
