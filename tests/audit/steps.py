"""Training and decoding steps with their layouts: functions, argument types and shardings."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import with_sharding_constraint as constrained
from jax.sharding import PartitionSpec as P

MESH = {"x": 2, "y": 4}
B, S, D, HEADS, F, V = 4, 8, 16, 4, 32, 64


def norm(x):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def attention(x, w):
    q, k, v = (jnp.einsum("bsd,dhk->bshk", norm(x), w[name]) for name in "qkv")
    scores = jnp.einsum("bshk,bthk->bhst", q, k)
    rows, columns = (lax.broadcasted_iota(jnp.int32, (x.shape[1],) * 2, d) for d in (0, 1))
    weights = jax.nn.softmax(jnp.where(rows >= columns, scores, -1e9), -1)
    return x + jnp.einsum("bhst,bthk,hkd->bsd", weights, v, w["o"])


def layer(x, w, spec):
    x = constrained(attention(x, w), spec)
    return constrained(x + jax.nn.relu(norm(x) @ w["in"]) @ w["out"], spec)


def weights(dtype, *, fsdp=False, lead=()):
    """Return the types and specs of a layer's weights, sharded along y, and along x if fsdp."""
    k = D // HEADS
    rows = {
        "q": ((D, HEADS, k), (None, "y", None)), "k": ((D, HEADS, k), (None, "y", None)),
        "v": ((D, HEADS, k), (None, "y", None)), "o": ((HEADS, k, D), ("y", None, None)),
        "in": ((D, F), (None, "y")), "out": ((F, D), ("y", None)),
    }  # fmt: skip
    made = {}
    for name, (shape, spec) in rows.items():
        if fsdp:
            at = spec.index(None)
            spec = (*spec[:at], "x", *spec[at + 1 :])
        spec = P(*(None,) * len(lead), *spec)
        made[name] = (jax.ShapeDtypeStruct((*lead, *shape), dtype), spec)
    return made


def step(layers, *, dtype="float32", fsdp=False, scan=False, remat=False, adam=False):
    """Return a training step of a Transformer."""
    spec = P("x", None, None)
    one = weights(dtype, fsdp=fsdp, lead=(layers,) if scan else ())
    given = one if scan else [one] * layers
    is_pair = lambda pair: isinstance(pair, tuple)  # noqa: E731
    types, specs = (jax.tree.map(lambda p, n=n: p[n], given, is_leaf=is_pair) for n in (0, 1))

    def loss(w, x):
        if scan:
            body = lambda x, w: (layer(x, w, spec), None)  # noqa: E731
            x, _ = lax.scan(jax.checkpoint(body) if remat else body, x, w)
        else:
            for one in w:
                x = layer(x, one, spec)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def update(w, g):
        return jax.tree.map(lambda w, g: w - (0.1 * g).astype(w.dtype), w, g)

    def plain(x, w):
        value, g = jax.value_and_grad(loss)(w, x)
        return value, update(w, g)

    def with_adam(x, w, m, v):
        value, g = jax.value_and_grad(loss)(w, x)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        move = lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8)  # noqa: E731
        return value, jax.tree.map(move, w, m, v), m, v

    x = jax.ShapeDtypeStruct((B, S, D), dtype)
    if adam:
        return (
            with_adam,
            (x, types, types, types),
            (spec, specs, specs, specs),
            (P(), specs, specs, specs),
        )
    return plain, (x, types), (spec, specs), (P(), specs)


def struct(shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def vocabulary():
    """Return a step with an embedding and a loss whose vocabulary is sharded along y."""

    def loss(e, w, t):
        scores = constrained(jnp.tanh(e[t] @ w) @ e.T, P("x", None, "y"))
        picked = jnp.take_along_axis(jax.nn.log_softmax(scores), jnp.roll(t, -1, 1)[..., None], -1)
        return -jnp.mean(picked)

    args = struct((V, D)), struct((D, D)), struct((B, S), "int32")
    return jax.value_and_grad(loss, (0, 1)), args, (P("y"), P(None, "y"), P("x")), None


def images():
    """Return a step of two convolutions with batch statistics; rows of images along y."""

    def convolved(x, k):
        return lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(a, b, w, x):
        h = convolved(x, a)
        h = jax.nn.relu((h - h.mean((0, 1, 2))) * lax.rsqrt(h.var((0, 1, 2)) + 1e-5))
        h = jax.nn.relu(convolved(h, b))
        return jnp.mean((h.mean((1, 2)) @ w) ** 2)

    args = struct((3, 3, 4, 8)), struct((3, 3, 8, 8)), struct((8, 4)), struct((4, 16, 8, 4))
    return jax.value_and_grad(loss, (0, 1, 2)), args, (P(), P(), P(), P("x", "y")), None


def accumulated():
    """Return gradients that are added over microbatches in a loop."""

    def step(w, xs):
        grad = jax.grad(lambda w, x: jnp.mean((jax.nn.gelu(x @ w[0]) @ w[1]) ** 2))
        body = lambda c, x: (jax.tree.map(jnp.add, c, grad(w, x)), None)  # noqa: E731
        return lax.scan(body, jax.tree.map(jnp.zeros_like, w), xs)[0]

    specs = (P("x", "y"), P("y", "x"))
    return step, ((struct((D, F)), struct((F, D))), struct((4, 8, D))), (specs, P(None, "x")), specs


def decoded():
    """Return a decoding step with a cache of keys and values, sharded by head."""

    def step(x, k, v, at, w):
        q, new_k, new_v = (jnp.einsum("bd,dhk->bhk", x, w[name]) for name in "qkv")
        k = lax.dynamic_update_slice(k, new_k[:, None], (0, at, 0, 0))
        v = lax.dynamic_update_slice(v, new_v[:, None], (0, at, 0, 0))
        scores = jnp.einsum("bhk,bthk->bht", q, k)
        scores = jnp.where(jnp.arange(S) <= at, scores, -1e9)
        out = jnp.einsum("bht,bthk,hkd->bd", jax.nn.softmax(scores, -1), v, w["o"])
        return x + out, k, v

    w = weights("float32")
    w = {name: w[name] for name in "qkvo"}
    cache = struct((B, S, HEADS, D // HEADS))
    specs = P("x", None, "y")
    args = struct((B, D)), cache, cache, struct((), "int32"), {n: t for n, (t, _) in w.items()}
    return (
        step,
        args,
        (P("x"), specs, specs, P(), {n: s for n, (_, s) in w.items()}),
        (P("x"), specs, specs),
    )


def experts():
    """Return a step of a mixture of experts, one group of experts per device of y."""

    def loss(w, x):
        gates = jax.nn.softmax(x @ w["gate"], -1)
        inside = jnp.einsum("bse,bsd->ebsd", gates, x)
        inside = constrained(inside, P("y", "x"))
        h = jax.nn.relu(jnp.einsum("ebsd,edf->ebsf", inside, w["in"]))
        out = jnp.einsum("ebsf,efd->bsd", h, w["out"])
        return jnp.mean((x + constrained(out, P("x"))) ** 2)

    types = {"gate": struct((D, 8)), "in": struct((8, D, F)), "out": struct((8, F, D))}
    specs = {"gate": P(), "in": P("y"), "out": P("y")}
    return jax.value_and_grad(loss), (types, struct((B, S, D))), (specs, P("x")), (P(), specs)


def ring():
    """Return a shifted sum along a sharded dimension: halo exchanges without a convolution."""

    def step(x):
        return x[1:-1] - 0.5 * (x[:-2] + x[2:]), jnp.roll(x, 1, 0)

    return step, (struct((32, 8)),), (P("y", "x"),), (P(None, "x"), P("y", "x"))


STEPS = {
    "tensor": lambda: step(2),
    "adam": lambda: step(1, adam=True),
    "fsdp": lambda: step(2, fsdp=True),
    "scan": lambda: step(3, scan=True),
    "scan_remat_bf16": lambda: step(3, scan=True, remat=True, dtype="bfloat16"),
    "scan_fsdp": lambda: step(2, scan=True, fsdp=True),
    "vocabulary": vocabulary,
    "images": images,
    "accumulated": accumulated,
    "decoded": decoded,
    "experts": experts,
    "ring": ring,
}
