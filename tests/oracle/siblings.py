"""Programs like the recorded ones that nobody chose: a seed draws sizes, mesh, layouts and type.

Each is a template of one topic. A seed is a program; `programs(count, seed)` are as many, the
templates in turn. Arguments are annotated at random (a third is left open), sites inside and
results sometimes; what is left XLA completes, and so do we.
"""

import random
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import with_sharding_constraint as wsc
from jax.sharding import PartitionSpec as P

from tests.oracle import farther

MESHES = (
    {"x": 2, "y": 4}, {"x": 8}, {"x": 2, "y": 2, "z": 2}, {"x": 4, "y": 2}, {"x": 4},
    {"x": 2, "y": 2},
)  # fmt: skip
OPEN, PLACED, SITED = 0.35, 0.7, 0.4


class Draw:
    """The choices of one program."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.mesh = self.rng.choice(MESHES)
        self.dtype = self.rng.choice((jnp.bfloat16, jnp.float32))
        self.arguments, self.sites = {}, []

    def pick(self, *options):
        return self.rng.choice(options)

    def spec(self, shape):
        """Axes at random on dimensions that they divide."""
        dims, left = [[] for _ in shape], list(shape)
        for axis, size in self.mesh.items():
            fits = [d for d, rest in enumerate(left) if rest > 1 and rest % size == 0]
            if fits and self.rng.random() < PLACED:
                dim = self.rng.choice(fits)
                dims[dim].append(axis)
                left[dim] //= size
        return P(*(tuple(axes) or None for axes in dims))

    def given(self, name, *shape, dtype=None):
        """Return an argument, mostly with a sharding."""
        spec = None if self.rng.random() < OPEN else self.spec(shape)
        self.arguments[name] = (shape, dtype or self.dtype, spec)

    def site(self, *shape):
        """Return a constraint on a value of this shape, or none."""
        if self.rng.random() >= SITED:
            return lambda x: x
        spec = self.spec(shape)
        return lambda x: wsc(x, spec)

    def differentiated(self, function, *, often=0.5):
        """Return the function, or its gradient by the floating-point arguments."""
        floats = [k for k, (_, t, _) in enumerate(self.arguments.values()) if t != jnp.int32]
        if self.rng.random() >= often:
            return function

        def total(*arguments):
            leaves = jax.tree.leaves(function(*arguments))
            return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves)

        return jax.grad(total, tuple(floats))


@dataclass(frozen=True)
class Sibling:
    """The program of a seed."""

    topic: str
    seed: int

    @property
    def name(self):
        return f"{self.topic}_{self.seed}"

    @cached_property
    def drawn(self):
        """(draw, function); the draw holds mesh and arguments."""
        draw = Draw(f"{self.topic} {self.seed}")
        return draw, (TEMPLATES | farther.TEMPLATES)[self.topic](draw)

    @property
    def mesh(self):
        return self.drawn[0].mesh

    @property
    def function(self):
        return self.drawn[1]

    @property
    def specs(self):
        return tuple(spec for _, _, spec in self.drawn[0].arguments.values())

    @property
    def types(self):
        given = self.drawn[0].arguments.values()
        return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in given]


def einsum(draw):
    """One or two contractions of random subscripts."""
    text = draw.pick(
        "ab,bc->ac", "abc,cd->abd", "abc,bcd->ad", "abc,dbc->ad", "abcd,cde->abe", "eab,ebc->eac",
        "ab,cb->ca", "abc,abd->cd", "abcd,aebd->acbe",
    )  # fmt: skip
    first, second = text.split("->")[0].split(",")
    result = text.split("->")[1]
    sizes = {letter: draw.pick(8, 16, 32, 64) for letter in sorted({*first, *second})}
    shape = [sizes[letter] for letter in result]
    draw.given("a", *(sizes[n] for n in first))
    draw.given("b", *(sizes[n] for n in second))
    chained, site = draw.pick(True, False), draw.site(*shape)
    if chained:
        draw.given("c", shape[-1], draw.pick(16, 32))

    def run(a, b, *c):
        y = site(jnp.einsum(text, a, b))
        return jnp.tanh(y) @ c[0] if chained else y

    return draw.differentiated(run, often=0.4)


def ffn(draw):
    """Two products with an activation between, a bias, a residual."""
    b, s, m, h = draw.pick(4, 8, 16), draw.pick(8, 16), draw.pick(16, 32), draw.pick(32, 64, 128)
    draw.given("x", b, s, m)
    draw.given("win", m, h)
    draw.given("bias", h)
    draw.given("wout", h, m)
    act, inner, outer = draw.pick(jax.nn.relu, jax.nn.gelu), draw.site(b, s, h), draw.site(b, s, m)
    residual = draw.pick(True, False)

    def run(x, win, bias, wout):
        hidden = inner(act(jnp.einsum("bsm,mh->bsh", x, win) + bias))
        y = outer(jnp.einsum("bsh,hm->bsm", hidden, wout))
        return x + y if residual else y

    return draw.differentiated(run)


def gated(draw):
    """Return a gated layer on normalised rows."""
    b, m, h = draw.pick(16, 32, 64), draw.pick(16, 32, 48), draw.pick(32, 64)
    draw.given("x", b, m)
    draw.given("up", m, h)
    draw.given("gate", m, h)
    draw.given("down", h, m)
    site = draw.site(b, h)

    def run(x, up, gate, down):
        mean = jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True)
        n = (x * lax.rsqrt(mean + 1e-6)).astype(x.dtype)
        return x + site(jax.nn.silu(n @ gate) * (n @ up)) @ down

    return draw.differentiated(run)


def attention(draw):
    """One attention layer, causal or not, with its projections or without."""
    b, s, n, d = draw.pick(2, 4, 8), draw.pick(8, 16), draw.pick(4, 8), draw.pick(4, 8)
    m, causal = draw.pick(16, 32), draw.pick(True, False)
    draw.given("x", b, s, m)
    for name in ("wq", "wk", "wv"):
        draw.given(name, m, n, d)
    draw.given("wo", n, d, m)
    heads, out = draw.site(b, s, n, d), draw.site(b, s, m)

    def run(x, wq, wk, wv, wo):
        q, k, v = (heads(jnp.einsum("bsm,mnd->bsnd", x, w)) for w in (wq, wk, wv))
        scores = jnp.einsum("bsnd,btnd->bnst", q, k).astype(jnp.float32) * d**-0.5
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
        p = jax.nn.softmax(scores, -1).astype(x.dtype)
        return out(jnp.einsum("bsnd,ndm->bsm", jnp.einsum("bnst,btnd->bsnd", p, v), wo))

    return draw.differentiated(run)


def moe(draw):
    """Top-1 dispatch to experts and back."""
    b, s, m, h = draw.pick(8, 16), draw.pick(8, 16), draw.pick(16, 32), draw.pick(16, 32)
    e, c = 8, 4
    draw.given("x", b, s, m)
    draw.given("wg", m, e)
    draw.given("win", e, m, h)
    draw.given("wout", e, h, m)
    sent, made = draw.site(e, b, c, m), draw.site(e, b, c, h)

    def run(x, wg, win, wout):
        gates = jax.nn.softmax(jnp.einsum("bsm,me->bse", x, wg).astype(jnp.float32), -1)
        chosen = jax.nn.one_hot(jnp.argmax(gates, -1), e)
        place = (jnp.cumsum(chosen, 1) * chosen - 1).astype(jnp.int32)
        mask = (jax.nn.one_hot(place, c) * chosen[..., None]).astype(x.dtype)
        d = sent(jnp.einsum("bsm,bsec->ebcm", x, mask))
        hidden = made(jax.nn.relu(jnp.einsum("ebcm,emh->ebch", d, win)))
        y = sent(jnp.einsum("ebch,ehm->ebcm", hidden, wout))
        return jnp.einsum("ebcm,bsec->bsm", y, mask * gates[..., None].astype(x.dtype))

    return draw.differentiated(run, often=0.3)


def stack(draw):
    """Return a scan over stacked layers."""
    layers, b, m, h = draw.pick(2, 3, 4), draw.pick(8, 16), draw.pick(16, 32), draw.pick(32, 64)
    draw.given("x", b, m)
    draw.given("w1", layers, m, h)
    draw.given("w2", layers, h, m)
    site, out, remat = draw.site(b, h), draw.site(b, m), draw.pick(True, False)

    def layer(x, w):
        return x + out(site(jnp.tanh(x @ w[0])) @ w[1]), None

    def run(x, w1, w2):
        body = jax.checkpoint(layer) if remat else layer
        return lax.scan(body, x, (w1, w2))[0]

    return draw.differentiated(run, often=0.6)


def conv(draw):
    """One or two convolutions of one, two or three dimensions."""
    rank, n, cin, cout = (
        draw.pick(1, 2, 2, 3),
        draw.pick(2, 4, 8),
        draw.pick(4, 8),
        draw.pick(8, 16),
    )
    size = {1: draw.pick(16, 32, 64), 2: draw.pick(8, 16), 3: 8}[rank]
    taps, stride = draw.pick(1, 3, 5) if rank < 3 else 3, draw.pick(1, 1, 2)
    padding, second = draw.pick("SAME", "SAME", "VALID"), draw.pick(True, False)
    letters = "DHW"[3 - rank :]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    draw.given("x", n, *[size] * rank, cin)
    draw.given("k", *[taps] * rank, cin, cout)
    draw.given("l", *[1] * rank, cout, cout)

    def one(x, k, stride):
        return lax.conv_general_dilated(x, k, (stride,) * rank, padding, dimension_numbers=numbers)

    def run(x, k, last):
        y = jax.nn.relu(one(x, k, stride))
        return one(y, last, 1) if second else y * last[(0,) * rank][0]

    return draw.differentiated(run)


def pool(draw):
    """Maxima or means over windows, then a product."""
    n, size, c, f = draw.pick(2, 4, 8), draw.pick(8, 16), draw.pick(4, 8), draw.pick(8, 16)
    taps, stride = draw.pick(2, 3), draw.pick(1, 2)
    add, start = draw.pick((lax.add, 0.0), (lax.max, -jnp.inf))
    draw.given("x", n, size, size, c)
    draw.given("w", c, f)

    def run(x, w):
        window = (1, taps, taps, 1), (1, stride, stride, 1), "SAME"
        y = lax.reduce_window(x, np.array(start, x.dtype), add, *window)
        return jnp.mean(y, (1, 2)) @ w

    return draw.differentiated(run)


def pipeline(draw):
    """Return a shifting buffer of stages."""
    stages, steps, b = draw.pick(2, 4), draw.pick(3, 4), draw.pick(4, 8)
    m, h = draw.pick(8, 16), draw.pick(16, 32)
    draw.given("w1", stages, m, h)
    draw.given("w2", stages, h, m)
    draw.given("mb", steps, b, m)
    site = draw.site(stages, b, m)

    def stage(w, x):
        return x + jax.nn.relu(x @ w[0]) @ w[1]

    def run(w1, w2, mb):
        def step(state, t):
            before = jnp.pad(state, ((1, 0), (0, 0), (0, 0)))[:-1]
            fresh = lax.dynamic_index_in_dim(mb, jnp.minimum(t, steps - 1), 0, keepdims=False)
            first = lax.broadcasted_iota(jnp.int32, state.shape, 0) == 0
            state = site(jax.vmap(stage)((w1, w2), jnp.where(first, fresh[None], before)))
            return state, state[-1]

        state = site(jnp.zeros((stages, b, m), mb.dtype))
        return lax.scan(step, state, jnp.arange(steps + stages - 1))[1][stages - 1 :]

    return draw.differentiated(run, often=0.4)


def embedding(draw):
    """Return a lookup, a layer, and the loss over a vocabulary."""
    b, s, v, m = draw.pick(4, 8), draw.pick(8, 16), draw.pick(32, 64), draw.pick(16, 32)
    draw.given("ids", b, s, dtype=jnp.int32)
    draw.given("table", v, m)
    draw.given("w", m, m)
    tied, site = draw.pick(True, False), draw.site(b, s, m)

    def run(ids, table, w):
        x = site(jax.nn.relu(table[ids] @ w))
        if not tied:
            return x
        logits = jnp.einsum("bsm,vm->bsv", x, table).astype(jnp.float32)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)
        return -picked.mean(-1)

    return draw.differentiated(run)


def norm(draw):
    """Normalised rows, by several rules, then a product."""
    b, s, m, f = draw.pick(8, 16), draw.pick(8, 16), draw.pick(16, 32), draw.pick(16, 32)
    draw.given("x", b, s, m)
    draw.given("scale", m)
    draw.given("w", m, f)
    kind, site = draw.pick("layer", "batch", "softmax", "norm"), draw.site(b, s, m)

    def normal(x):
        if kind == "softmax":
            return jax.nn.softmax(x, -1)
        if kind == "norm":
            return x / (1e-3 + jnp.linalg.norm(x, axis=-1, keepdims=True))
        over = (0, 1) if kind == "batch" else (-1,)
        return (x - x.mean(over, keepdims=True)) * lax.rsqrt(x.var(over, keepdims=True) + 1e-5)

    def run(x, scale, w):
        y = normal(x.astype(jnp.float32)).astype(x.dtype) * scale
        return site(y) @ w

    return draw.differentiated(run)


def reduce_sort(draw):
    """Return sums, extrema, running sums, sorts, the best few."""
    n, m, k = draw.pick(16, 24, 32), draw.pick(8, 16), draw.pick(4, 8)
    draw.given("x", n, m, k)
    draw.given("y", m, k)
    kind, axis, site = draw.rng.randrange(6), draw.pick(0, 1, 2), draw.site(n, m, k)
    kinds = (
        lambda x: jnp.sort(x, axis), lambda x: jnp.cumsum(x, axis), lambda x: jnp.max(x, axis),
        lambda x: lax.top_k(x, 2)[0], lambda x: jnp.argmax(x, axis), lambda x: x.sum(axis),
    )  # fmt: skip
    return lambda x, y: kinds[kind](site(jnp.exp(x) * y))


def formatting(draw):
    """Slices, pads, rotations, concatenations, transposes and reshapes in a row."""
    n, m, k = draw.pick(16, 32), draw.pick(8, 16), draw.pick(8, 12)
    draw.given("x", n, m, k)
    draw.given("y", n, m, k)
    first, second, site = draw.rng.randrange(4), draw.rng.randrange(4), draw.site(n, m, k)
    axis, by = draw.pick(0, 1, 2), draw.pick(1, 2, 3)
    ahead = (
        lambda x: jnp.roll(x, by, axis), lambda x: x[::-1], lambda x: x + 1,
        lambda x: jnp.pad(x, [(by, 0) if d == axis else (0, 0) for d in range(3)])[:n, :m, :k],
    )  # fmt: skip
    after = (
        lambda x, y: jnp.concatenate([x, y], axis), lambda x, y: (x * y).reshape(n * m, k),
        lambda x, y: (x + y).transpose(2, 0, 1), lambda x, y: (x - y).reshape(n, m // 2, 2 * k),
    )  # fmt: skip
    return draw.differentiated(lambda x, y: after[second](site(ahead[first](x)), y), often=0.3)


def reshard(draw):
    """Return a value that is needed in two shardings, with little work between."""
    shape = [draw.pick(16, 32) for _ in range(draw.pick(2, 3))]
    draw.given("x", *shape)
    first, second = draw.spec(shape), draw.spec(shape)
    return lambda x: wsc(jnp.tanh(wsc(x * 2, first)) + 1, second) * 3


def completion(draw):
    """Broadcasts and operands that disagree."""
    b, m, f = draw.pick(16, 32), draw.pick(16, 32), draw.pick(16, 64)
    draw.given("x", b, m)
    draw.given("y", b, m)
    draw.given("bias", m)
    draw.given("w", m, f)
    site = draw.site(b, m)

    def run(x, y, bias, w):
        z = site(jnp.exp(x) * y + jnp.tanh(bias))
        return z @ w, z.sum(0), jnp.maximum(z, x).T

    return draw.differentiated(run)


TEMPLATES = {
    template.__name__: template
    for template in (
        einsum, ffn, gated, attention, moe, stack, conv, pool, pipeline, embedding, norm,
        reduce_sort, formatting, reshard, completion,
    )
}  # fmt: skip


def programs(count, seed, templates=TEMPLATES):
    """Yield that many programs, the templates in turn, with seeds from `seed` on."""
    topics = tuple(templates)
    return [Sibling(topics[i % len(topics)], seed + i // len(topics)) for i in range(count)]
