"""Numbers that operators go wrong on, for the functions of every group: drawn from a seed.

Infinities, NaN, the largest and the smallest numbers of a type, in wide and narrow types, at every
operand.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

KINDS = ("", "edges", "ends")
FINITE = (0.0, -0.0, -1.0, 1.0, 2.0)
EDGES = (np.nan, np.inf, -np.inf, *FINITE)
"""Numbers that masks, ties and orders go wrong on."""
WITHOUT = {
    "conv_general_dilated": FINITE,
    "select_and_gather_add": EDGES[1:],
    " reduce[": FINITE,
    "triangular_solve": EDGES,
}
"""XLA multiplies padding and gaps of a convolution (0 times infinity) or leaves them out, as its
algorithm for a size does; a NaN loses against the padding behind it in a pooling's tangent; what
`a + b + a*b` of a user starts from, 0, makes a NaN of an infinity."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
PROMISED = ("PROMISE_IN_BOUNDS", "indices_are_sorted=True", "unique_indices=True", "while[")
"""Where whole numbers are promised to be few: indices, and what a loop counts to."""


def ends_of(rng, dtype):
    """Numbers at the ends of a type: small ones of both signs, or one sign of all, or all.

    Sums of one sign overflow in every order.
    """
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return info.min, info.max, 0, 1, info.max // 2
    info = jnp.finfo(dtype)
    tiny = (float(info.tiny), float(info.smallest_subnormal))
    one = (0.0, 1.0, *tiny, float(info.max), np.inf)
    both = (*EDGES, *tiny, *(-number for number in tiny))
    return (one, tuple(-number for number in one), both, (*both, info.max, info.min))[
        rng.integers(4)
    ]


@dataclass(frozen=True)
class Drawn:
    """A function, its arguments, and where the draw came from.

    Attributes:
      seed: of the arguments and of the layouts; number: of the function in its group.
      edges: "" for plain numbers, "edges" for some of `EDGES`, "ends" for those of `ends_of`.
    """

    group: object
    seed: int
    number: int
    fn: object
    arguments: tuple
    edges: str

    def __str__(self):
        shapes = [np.shape(a) for a in self.arguments]
        types = sorted({str(np.asarray(a).dtype) for a in self.arguments})
        of = f" of {self.edges} in {', '.join(types)}" if self.edges else ""
        return f"{self.group.__name__}, seed {self.seed}, number {self.number}, on {shapes}{of}"


def functions(group, seed, *, edges=""):
    """Return the functions of a group, drawn by one seed."""
    draw = {"": lambda rng, fn, arguments: arguments, "edges": at_edges, "ends": at_ends}[edges]
    rng = np.random.default_rng((seed, 1))
    with jax.enable_x64(True):
        for number, (fn, arguments) in enumerate(group(np.random.default_rng(seed))):
            given = draw(rng, fn, arguments)
            yield Drawn(group, seed, number, fn, tuple(map(jnp.asarray, given)), edges)


def at_ends(rng, fn, arguments):
    """Floats of one narrow or wide type, and whole numbers, at the ends of their types."""
    arguments = tuple(map(np.asarray, arguments))
    written = str(jax.make_jaxpr(fn)(*arguments))
    dtype = jnp.dtype(FLOATS[rng.integers(len(FLOATS))])
    given = tuple(x.astype(dtype) if x.dtype.kind == "f" else x for x in arguments)
    try:
        jax.jit(fn).lower(*given)
    except (TypeError, ValueError):  # it has numbers of a type of its own
        given = arguments
    promised = any(word in written for word in PROMISED)
    few = next((numbers for name, numbers in WITHOUT.items() if name in written), None)
    return tuple(_of_ends(rng, x, few, promised) for x in given)


def _of_ends(rng, x, few, promised):
    whole = jnp.issubdtype(x.dtype, jnp.integer)
    if (whole and promised) or not (whole or jnp.issubdtype(x.dtype, jnp.floating)):
        return x
    numbers = ends_of(rng, x.dtype) if whole or few is None else few
    some = rng.choice(len(numbers), size=rng.integers(1, len(numbers) + 1))
    chosen = np.asarray([np.asarray(numbers[k]).astype(x.dtype) for k in some])
    return rng.choice(chosen, size=x.shape).astype(x.dtype)


def at_edges(rng, fn, arguments):
    """Floats of some of the `EDGES` alone, so that a block or a window may be all one of them.

    Not all for the operators in `WITHOUT`.
    """
    arguments = tuple(map(np.asarray, arguments))
    written = str(jax.make_jaxpr(fn)(*arguments))
    numbers = next((few for name, few in WITHOUT.items() if name in written), EDGES)
    some = [rng.choice(numbers, size=rng.integers(1, len(numbers) + 1)) for _ in arguments]
    return tuple(
        rng.choice(few, size=x.shape).astype(x.dtype) if x.dtype.kind == "f" else x
        for few, x in zip(some, arguments, strict=True)
    )


def close(a, b):
    """Return True if values are equal except for the rounding of sums in their type."""
    a, b = np.asarray(a), np.asarray(b)
    rtol = 1e-6
    if jnp.issubdtype(a.dtype, jnp.floating):
        rtol = max(rtol, 4 * float(jnp.finfo(a.dtype).eps))
        a, b = a.astype(np.float64), b.astype(np.float64)
    return np.isclose(a, b, rtol=rtol, atol=1e-7, equal_nan=True)
