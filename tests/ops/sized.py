"""Functions with the formulas of their sizes, as text."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from jax import lax

from shardalg.algebra.dims import dims, evaluate
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.tracing.trace import trace
from shardalg.sizes.symbolic.retrace import Retrace

HINTS = {"B": 6, "S": 40, "D": 14, "M": 64, "H": 58, "E": 8, "V": 50, "C": 4, "F": 10, "K": 3}


@dataclass(frozen=True)
class Function:
    """A function, the dimensions of its arguments as text, and the formulas of its results.

    `divides` says that it can only be traced where sizes divide as they do at the hints.
    `constants`: sizes left as numbers, True for those that change with the arguments.
    """

    fn: object
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    constants: tuple[tuple[int, bool], ...] = ()
    divides: bool = False
    integers: tuple[int, ...] = ()

    def symbols(self, hints=HINTS):
        words = sympy.sympify(f"[{','.join(filter(None, self.arguments))}]", locals=RAW)
        names = sorted({str(s) for e in words for s in getattr(e, "free_symbols", ())})
        return dict(zip(names, dims(" ".join(names), hint=[hints[n] for n in names]), strict=True))

    def declared(self, hints=HINTS):
        known = self.symbols(hints)
        return [parsed(text, known) for text in self.arguments]

    def graph(self, values, hints=HINTS):
        shapes = [[evaluate(size, values) for size in shape] for shape in self.declared(hints)]
        kinds = ["int32" if k in self.integers else "float32" for k in range(len(shapes))]
        pairs = zip(shapes, kinds, strict=True)
        return normalise(trace(self.fn, *(jax.ShapeDtypeStruct(*pair) for pair in pairs)))

    def retraced(self, values, hints=HINTS):
        return Retrace(self.graph(values, hints), values)


RAW = {name: sympy.Symbol(name) for name in HINTS}  # S and E are something else to sympy


def parsed(text, known):
    found = sympy.sympify(f"({text},)" if text else "()", locals=known)
    return tuple(int(e) if e.is_Integer else e for e in found)


def split_heads(x, w):
    return (x @ w).reshape(*x.shape[:2], 8, -1).sum(1)


def sized_heads(x, w):
    return (x @ w).reshape(*x.shape[:2], -1, 16).sum(1)


def rope(x):
    first, second = jnp.split(x, 2, -1)
    turned = jnp.concatenate([-second, first], -1)
    return turned * jnp.cos(jnp.arange(x.shape[1], dtype=x.dtype))[None, :, None]


def halves_by_index(x):
    half = x.shape[1] // 2
    return jnp.split(x, [half, half + 4], 1)


def mixture(x, gate, w):
    """Experts with a capacity that Python computes."""
    experts = gate.shape[1]
    capacity = 2 * x.shape[1] // experts
    chosen = jax.nn.one_hot(jnp.argmax(x @ gate, -1), experts)
    place = (jnp.cumsum(chosen, 1) * chosen).sum(-1).astype(jnp.int32)
    sent = chosen[..., None] * jax.nn.one_hot(place, capacity)[..., None, :]
    return jnp.einsum("gsec,gsm->egcm", sent, x) @ w[:, None]


def conv(x, k, padding="SAME", stride=2):
    return lax.conv_general_dilated(x, k, (stride,), padding)


def attention_gradient(q, k, v):
    attend = partial(jax.nn.dot_product_attention, is_causal=True)
    return jax.grad(lambda q: attend(q, k, v).sum())(q)


def masked(x):
    size = x.shape[1]
    return jnp.where(np.tril(np.ones((size, size), bool)), x[:, :, None], 0.0)


def row_by_row(x):
    def add(i, y):
        return y + lax.dynamic_slice_in_dim(x, i, 1, 0)[0]

    return lax.fori_loop(0, x.shape[0], add, x[0])


def shifted(x):
    return x[:, :-1] * x[:, 1:], x[:, ::2], x[:, :10], x[:, 5:], x[:, -3:], x[:, : x.shape[1] // 2]


def moved(x):
    return jnp.flip(x, 1), jnp.tile(x, (1, 3)), jnp.pad(x, ((0, 0), (2, 1))), jnp.roll(x, 3, 1)


def whole(x):
    return lax.top_k(x, 4)[0], jnp.sort(x, 1), jnp.cumsum(x, 1), jnp.fft.rfft(x), jnp.fft.irfft(x)


VALID = partial(conv, padding="VALID")
X = ("B,S",)
SEVERAL = {
    "python numbers": Function(
        lambda x: x * x.shape[-1] ** -0.5 / np.sqrt(x.shape[0]), X, ("B,S",)
    ),
    "attention": Function(attention_gradient, ("B,S,C,D",) * 3, ("B,S,C,D",)),
    "flatten": Function(lambda x, w: x.reshape(-1, x.shape[-1]) @ w, ("B,S,M", "M,H"), ("B*S,H",)),
    "split heads": Function(
        split_heads, ("B,S,M", "M,M"), ("B,8,M/8",), ((8, False),), divides=True
    ),
    "sized heads": Function(
        sized_heads, ("B,S,M", "M,M"), ("B,M/16,16",), ((16, False),), divides=True
    ),
    "rope": Function(rope, ("B,S,D",), ("B,S,D",), divides=True),
    "rope of 2D": Function(rope, ("B,S,2*D",), ("B,S,2*D",)),
    "microbatches": Function(
        lambda x: x.reshape(2, -1, x.shape[1]).sum(1), X, ("2,S",), ((2, False),), divides=True
    ),
    "shifted": Function(
        shifted,
        X,
        ("B,S-1", "B,floor(S/2+1/2)", "B,10", "B,S-5", "B,3", "B,S/2"),
        ((10, False), (3, False)),
        divides=True,
    ),
    "moved": Function(moved, X, ("B,S", "B,3*S", "B,S+3", "B,S"), ()),
    "flip": Function(lambda x: x + jnp.flip(jnp.arange(x.shape[1])), X, ("B,S",)),
    "next token": Function(lambda x: x[:, :-1] * x[:, 1:], X, ("B,S-1",)),
    "whole": Function(whole, X, ("B,4", "B,S", "B,S", "B,floor(S/2)+1", "B,2*S-2"), ((4, False),)),
    "pieces": Function(
        halves_by_index, X, ("B,S/2", "B,4", "B,S/2-4"), ((4, False),), divides=True
    ),
    "concatenate": Function(
        lambda x: jnp.concatenate([jnp.zeros((x.shape[0], 10)), x, x], 1),
        X,
        ("B,2*S+10",),
        ((10, False),),
    ),
    "convolution": Function(conv, ("B,C,S", "F,C,K"), ("B,F,floor(S/2+1/2)",)),
    "valid convolution": Function(VALID, ("B,C,S", "F,C,3"), ("B,F,floor(S/2-1/2)",)),
    "valid convolution, even": Function(
        VALID, ("B,C,S", "F,C,3"), ("B,F,floor(S/2-1/2)",), divides=True
    ),
    "gradient of a kernel": Function(
        jax.grad(lambda k, x: conv(x, k).sum()), ("F,C,K", "B,C,S"), ("F,C,K",)
    ),
    "pooling": Function(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 2), "SAME"),
        X,
        ("B,floor(S/2+1/2)",),
    ),
    "cond": Function(
        lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x, x)[:, None], X, ("B,1,S",)
    ),
    "embedding": Function(
        lambda e, t: e[t] + e[jnp.arange(t.shape[1])], ("V,M", "B,S"), ("B,S,M",), integers=(1,)
    ),
    "mask of numpy": Function(masked, X, ("B,S,S",)),
    "loop over rows": Function(row_by_row, X, ("S",)),
    "run-time window": Function(
        lambda x: lax.dynamic_slice_in_dim(x, x.sum().astype(int), x.shape[1] - 3, 1),
        X,
        ("B,S-3",),
    ),
    "not nested": Function(
        lambda x: x.reshape(6, -1), ("C,9",), ("6,3*C/2",), ((6, False),), divides=True
    ),
    "vmap": Function(jax.vmap(lambda x: jnp.outer(x, x)), X, ("B,S,S",)),
    "declared number": Function(lambda x, w: x @ w, ("B,12", "12,H"), ("B,H",)),
}
