"""The twenty steps that `benchmarks/searching.py` searches, as functions and argument types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shardalg.costs.pipelines.schedules import Schedule
from shardalg.models import Pipelined
from shardalg.models.training import opt_state_types, train_step
from shardalg.models.transformer import Config, param_types

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and the types of its arguments."""


def struct(*shape: int, dtype: str = "bfloat16") -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def ids(*shape: int) -> Any:
    return struct(*shape, dtype="int32")


def mean_square(y: Any) -> Any:
    return (y.astype("float32") ** 2).mean()


def descent(loss: Callable[..., Any], params: Any, *data: Any) -> Step:
    """Return a step of gradient descent of a loss, and its arguments."""

    def step(params: Any, *data: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(params, *data)
        return value, jax.tree.map(lambda w, g: w - (0.1 * g).astype(w.dtype), params, slopes)

    return step, (params, *data)


def adam(loss: Callable[..., Any], params: Any, *data: Any) -> Step:
    """Return a step of Adam of a loss, and its arguments."""

    def step(params: Any, first: Any, second: Any, *data: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(params, *data)
        slopes = jax.tree.map(lambda g: g.astype("float32"), slopes)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slopes)
        second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, second, slopes)
        params = jax.tree.map(
            lambda p, m, v: p - (1e-3 * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype),
            *(params, first, second),
        )
        return value, params, first, second

    moments = jax.tree.map(lambda w: struct(*w.shape, dtype="float32"), params)
    return step, (params, moments, moments, *data)


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype("float32")
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def attended(w: Any, x: Any, source: Any, *, is_causal: bool) -> Any:
    """Return attention with grouped heads: w["q"] is (m, groups, queries of a group, size)."""
    q = jnp.einsum("bsm,mkgd->bskgd", x, w["q"])
    k, v = (jnp.einsum("bsm,mkd->bskd", source, w[name]) for name in "kv")
    scores = jnp.einsum("bskgd,btkd->bkgst", q, k).astype("float32")
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    share = jax.nn.softmax(scores, -1).astype(x.dtype)
    return jnp.einsum("bkgst,btkd,kgdm->bsm", share, v, w["o"])


def routed(w: Any, x: Any) -> Any:
    """Return the sum of all experts' results, weighted by a router."""
    shares = jax.nn.softmax((x @ w["router"]).astype("float32"), -1).astype(x.dtype)
    hidden = jax.nn.silu(jnp.einsum("bsm,emf->bsef", x, w["up"]))
    return jnp.einsum("bsef,efm,bse->bsm", hidden, w["down"], shares)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder or an encoder whose layers are scanned.

    Attributes:
      kv: heads of keys and values; None for those of queries.
      experts: number of experts of a layer; 0 for a dense layer.
      is_tied: whether the head is the embedding.
    """

    layers: int
    model: int
    heads: int
    hidden: int
    vocabulary: int = 0
    kv: int | None = None
    head: int = 0
    experts: int = 0
    is_gated: bool = True
    is_tied: bool = False
    is_causal: bool = True
    batch: int = 16
    length: int = 2048

    def layer_types(self, *, is_crossed: bool = False) -> dict[str, Any]:
        """Return the types of the stacked weights of all layers."""
        m, f, n = self.model, self.hidden, self.layers
        d, kv = self.head or m // self.heads, self.kv or self.heads
        attention = {
            "q": struct(n, m, kv, self.heads // kv, d),
            "k": struct(n, m, kv, d),
            "v": struct(n, m, kv, d),
            "o": struct(n, kv, self.heads // kv, d, m),
        }
        found: dict[str, Any] = {**attention, "first": struct(n, m), "second": struct(n, m)}
        lead = (n, self.experts) if self.experts else (n,)
        found |= {"up": struct(*lead, m, f), "down": struct(*lead, f, m)}
        if self.experts:
            found["router"] = struct(n, m, self.experts)
        elif self.is_gated:
            found["gate"] = struct(n, m, f)
        if is_crossed:
            found |= {"across": attention, "third": struct(n, m)}
        return found

    def types(self) -> dict[str, Any]:
        found = {"layers": self.layer_types(), "last": struct(self.model)}
        found["table"] = struct(self.vocabulary, self.model)
        if not self.is_tied:
            found["head"] = struct(self.model, self.vocabulary)
        return found

    def run(self, layers: Any, x: Any, source: Any = None) -> Any:
        """Return the result of all layers."""

        def layer(x: Any, w: Any) -> tuple[Any, None]:
            h = norm(x, w["first"])
            x = x + attended(w, h, h, is_causal=self.is_causal)
            if source is not None:
                x = x + attended(w["across"], norm(x, w["third"]), source, is_causal=False)
            h = norm(x, w["second"])
            if self.experts:
                return x + routed(w, h), None
            wide = jax.nn.silu(h @ w["gate"]) * (h @ w["up"]) if self.is_gated else None
            return x + (jax.nn.gelu(h @ w["up"]) if wide is None else wide) @ w["down"], None

        return jax.lax.scan(layer, x, layers)[0]

    def loss(self, params: Any, tokens: Any, source: Any = None) -> Any:
        """Return the mean cross entropy of the tokens."""
        x = norm(self.run(params["layers"], params["table"][tokens], source), params["last"])
        head = params["table"].T if self.is_tied else params["head"]
        return cross_entropy(x @ head, tokens)

    @property
    def tokens(self) -> Any:
        return ids(self.batch, self.length)


def cross_entropy(logits: Any, targets: Any) -> Any:
    wide = jax.nn.log_softmax(logits.astype("float32"), -1)
    picked = targets[..., None] == jnp.arange(logits.shape[-1])
    return -jnp.where(picked, wide, 0).sum(-1).mean()


def decoder(sizes: Sizes) -> Step:
    return adam(sizes.loss, sizes.types(), sizes.tokens)


def mlp() -> Step:
    def loss(w: Any, x: Any) -> Any:
        return mean_square(jax.nn.relu(x @ w["up"]) @ w["down"])

    return descent(
        loss, {"up": struct(4096, 16384), "down": struct(16384, 4096)}, struct(8192, 4096)
    )


def two_attentions() -> Step:
    sizes = Sizes(2, 2048, 16, 8192)
    names = "qkvo"
    types = {name: sizes.layer_types()[name] for name in names}
    one = {name: struct(*types[name].shape[1:]) for name in names}

    def loss(layers: Any, x: Any) -> Any:
        for w in layers:
            x = x + attended(w, x, x, is_causal=True)
        return mean_square(x)

    return descent(loss, [one, one], struct(16, 2048, 2048))


def convolved(x: Any, w: Any, stride: int = 1) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=dims)


def resnet_block() -> Step:
    def loss(w: Any, x: Any) -> Any:
        y = jax.nn.relu(convolved(x, w["first"]))
        y = jax.nn.relu(convolved(y, w["second"]))
        return mean_square(x + convolved(y, w["third"]))

    w = {"first": struct(1, 1, 1024, 256), "second": struct(3, 3, 256, 256)}
    return descent(loss, {**w, "third": struct(1, 1, 256, 1024)}, struct(256, 32, 32, 1024))


def unet_level() -> Step:
    def loss(w: Any, x: Any) -> Any:
        y = jax.nn.relu(convolved(x, w["down"], 2))
        y = jax.nn.relu(convolved(y, w["inside"]))
        y = y.repeat(2, 1).repeat(2, 2)
        return mean_square(convolved(jnp.concatenate([x, y], -1), w["up"]))

    w = {"down": struct(3, 3, 256, 512), "inside": struct(3, 3, 512, 512)}
    return descent(loss, {**w, "up": struct(3, 3, 768, 256)}, struct(64, 64, 64, 256))


def moe_step() -> Step:
    def loss(w: Any, x: Any) -> Any:
        return mean_square(x + routed(w, x))

    w = {"up": struct(8, 2048, 8192), "down": struct(8, 8192, 2048), "router": struct(2048, 8)}
    return descent(loss, w, struct(8, 2048, 2048))


def embedding_and_head() -> Step:
    def loss(w: Any, tokens: Any) -> Any:
        return cross_entropy(w["table"][tokens] @ w["head"], tokens)

    return descent(loss, {"table": struct(32768, 2048), "head": struct(2048, 32768)}, ids(16, 2048))


def lstm() -> Step:
    size = 2048

    def loss(w: Any, x: Any) -> Any:
        def cell(state: Any, x: Any) -> tuple[Any, Any]:
            h, c = state
            i, f, g, o = jnp.split(x @ w["x"] + h @ w["h"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros(x.shape[1:], x.dtype)
        return mean_square(jax.lax.scan(cell, (start, start), x)[1])

    w = {"x": struct(size, 4 * size), "h": struct(size, 4 * size)}
    return descent(loss, w, struct(128, 512, size))


def encoder_decoder() -> Step:
    encoder = Sizes(6, 1024, 16, 4096, is_gated=False, is_causal=False)
    other = Sizes(6, 1024, 16, 4096, vocabulary=32768, is_gated=False, is_tied=True)
    types = {**other.types(), "layers": other.layer_types(is_crossed=True)}

    def loss(params: Any, source: Any, tokens: Any) -> Any:
        encoded = encoder.run(params["encoder"], params["table"][source])
        return other.loss(params, tokens, encoded)

    params = {**types, "encoder": encoder.layer_types()}
    return adam(loss, params, encoder.tokens, other.tokens)


def vit() -> Step:
    sizes = Sizes(24, 1024, 16, 4096, is_gated=False, is_causal=False, batch=128, length=256)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        b = images.shape[0]
        patches = images.reshape(b, 16, 16, 16, 16, 3).transpose(0, 1, 3, 2, 4, 5)
        x = patches.reshape(b, 256, 768) @ params["patch"] + params["place"]
        x = sizes.run(params["layers"], x).mean(1)
        return cross_entropy(x @ params["head"], labels)

    params = {"patch": struct(768, 1024), "place": struct(256, 1024), "head": struct(1024, 1024)}
    params["layers"] = sizes.layer_types()
    return adam(loss, params, struct(128, 256, 256, 3), ids(128))


def diffusion_block() -> Step:
    sizes = Sizes(1, 1280, 20, 5120)
    types = {n: struct(*t.shape[1:]) for n, t in sizes.layer_types().items()}

    def loss(w: Any, x: Any, time: Any) -> Any:
        y = convolved(jax.nn.silu(x), w["conv"]) + (jax.nn.silu(time) @ w["time"])[:, None, None]
        b, h, v, m = x.shape
        y = (x + convolved(jax.nn.silu(y), w["again"])).reshape(b, h * v, m)
        z = norm(y, w["first"])
        y = y + attended(w, z, z, is_causal=False)
        y = y + jax.nn.gelu(norm(y, w["second"]) @ w["up"]) @ w["down"]
        return mean_square(y)

    convs = {"conv": struct(3, 3, 1280, 1280), "again": struct(3, 3, 1280, 1280)}
    w = {n: t for n, t in types.items() if n != "gate"} | convs
    return descent(
        loss, {**w, "time": struct(320, 1280)}, struct(64, 16, 16, 1280), struct(64, 320)
    )


def gpipe() -> Step:
    sizes = Config(B=64, S=1024, M=2048, H=8192, N=16, D=128, V=32768, L=8)
    model = Pipelined(sizes, Schedule(stages=4, microbatches=8), remat="none").model
    return model.train_step, model.arguments()


def lora() -> Step:
    """Return a step in which only matrices of rank 16 beside two frozen products are trained."""

    def loss(small: Any, frozen: Any, x: Any) -> Any:
        def product(x: Any, name: str) -> Any:
            return x @ frozen[name] + (x @ small[name][0]) @ small[name][1]

        return mean_square(product(jax.nn.silu(product(x, "up")), "down"))

    def step(small: Any, frozen: Any, x: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(small, frozen, x)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, small, slopes)

    frozen = {"up": struct(4096, 16384), "down": struct(16384, 4096)}
    small = {n: (struct(w.shape[0], 16), struct(16, w.shape[1])) for n, w in frozen.items()}
    return step, (small, frozen, struct(8192, 4096))


def decode() -> Step:
    """Return a step that computes one token of each of 128 sequences with a cache."""
    batch, length, m, kv, group, d = 128, 4096, 4096, 8, 4, 128

    def step(w: Any, keys: Any, values: Any, x: Any, at: Any) -> Any:
        q = jnp.einsum("bm,mkgd->bkgd", x, w["q"])
        k, v = (jnp.einsum("bm,mkd->bkd", x, w[name])[:, None] for name in "kv")
        keys = jax.lax.dynamic_update_slice(keys, k, (0, at, 0, 0))
        values = jax.lax.dynamic_update_slice(values, v, (0, at, 0, 0))
        scores = jnp.einsum("bkgd,btkd->bkgt", q, keys).astype("float32")
        scores = jnp.where(jnp.arange(length) <= at, scores, -1e9)
        share = jax.nn.softmax(scores, -1).astype(x.dtype)
        x = x + jnp.einsum("bkgt,btkd,kgdm->bm", share, values, w["o"])
        x = x + (jax.nn.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]
        return x, keys, values

    w = {n: struct(m, kv, d) for n in "kv"} | {n: struct(m, 14336) for n in ("gate", "up")}
    w |= {"q": struct(m, kv, group, d), "o": struct(kv, group, d, m), "down": struct(14336, m)}
    cache = struct(batch, length, kv, d)
    return step, (w, cache, cache, struct(batch, m), ids())


def paper() -> Step:
    sizes = Config(B=16, S=1024, M=4096, H=16384, N=32, D=128, V=32000, L=4)

    def step(*args: Any) -> Any:
        return train_step(sizes, *args)

    tokens = ids(sizes.B, sizes.S)
    return step, (param_types(sizes), opt_state_types(sizes), tokens, tokens)


MODELS: dict[str, Callable[[], Step]] = {
    "MLP": mlp,
    "two layers of attention": two_attentions,
    "ResNet block": resnet_block,
    "U-Net level": unet_level,
    "mixture of experts": moe_step,
    "embedding and head": embedding_and_head,
    "LSTM": lstm,
    "GPT-2 124M": lambda: decoder(
        Sizes(12, 768, 12, 3072, 50304, is_gated=False, is_tied=True, batch=64, length=1024)
    ),
    "Llama 1B": lambda: decoder(Sizes(16, 2048, 32, 8192, 128256, kv=8, is_tied=True)),
    "Llama 8B": lambda: decoder(Sizes(32, 4096, 32, 14336, 128256, kv=8)),
    "Llama 70B": lambda: decoder(Sizes(80, 8192, 64, 28672, 128256, kv=8)),
    "Gemma 2B": lambda: decoder(Sizes(18, 2048, 8, 16384, 256000, kv=1, head=256, is_tied=True)),
    "Mixtral": lambda: decoder(Sizes(32, 4096, 32, 14336, 32000, kv=8, experts=8)),
    "encoder-decoder": encoder_decoder,
    "ViT": vit,
    "diffusion block": diffusion_block,
    "GPipe": gpipe,
    "LoRA": lora,
    "decoding with a cache": decode,
    "the paper's Transformer": paper,
}
