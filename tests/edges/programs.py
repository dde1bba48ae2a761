"""Programs at the edges, each from a seed: some steps, in control flow or not, or a gradient."""

import warnings
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.edges.steps import STEPS, pick
from tests.edges.values import EXTREME, FINITE, KINDS, NOT_FINITE, some_array, some_shape


@dataclass(frozen=True)
class Program:
    """A function of flat arguments with flat results, and the words for how it was drawn."""

    seed: int
    words: str
    fn: object
    arguments: tuple

    def __str__(self):
        shapes = ", ".join(f"{a.dtype}{list(np.shape(a))}" for a in self.arguments)
        return f"program {self.seed}: {self.words} of {shapes}"


def program(seed):
    """Return the program of a seed."""
    rng = np.random.default_rng((seed, 2022))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            made = _drawn(rng, seed)
            if made is not None and _runs(made):
                return made


def _drawn(rng, seed):
    x = some_array(rng, some_shape(rng), pick(rng, *KINDS))
    chain, rest, words = [], [], []
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    for _ in range(int(rng.integers(1, 5))):
        step, more, name, shape = _step(rng, shape)
        if step is None:
            break
        chain.append((step, len(rest), len(rest) + len(more)))
        rest += more
        words.append(name)
    numbers = pick(rng, *[FINITE] * 6, NOT_FINITE, NOT_FINITE, EXTREME)
    arguments = [x, *rest]
    if numbers != FINITE:
        drawn = (some_array(rng, a.shape, a.dtype, numbers) for a in arguments)
        arguments = [
            b if jnp.issubdtype(a.dtype, jnp.floating) or k == 0 else a
            for k, (a, b) in enumerate(zip(arguments, drawn, strict=True))
        ]
        words.append(f"({numbers})")

    def fn(x, *rest):
        for step, first, last in chain:
            x = step(x, *rest[first:last])
        return x

    around, wrapped = pick(rng, *AROUND)(rng, fn, arguments)
    if chain and wrapped is not None:
        fn, arguments = wrapped
        return Program(seed, f"{around}[{' '.join(words)}]", fn, tuple(map(np.asarray, arguments)))
    return None


def _step(rng, shape):
    for _ in range(20):
        maker = pick(rng, *STEPS)
        try:
            step, more = maker(rng, shape)
            made = jax.eval_shape(step, shape, *more)
        except Exception:  # what JAX refuses is no program
            continue
        if np.prod(made.shape) <= 2000:
            return step, list(more), maker.__name__, made
    return None, [], "", shape


def _runs(made):
    try:
        jax.eval_shape(made.fn, *made.arguments)
        jax.jit(made.fn).lower(*made.arguments)
    except Exception:  # what JAX refuses is no program
        return False
    return True


def plainly(rng, fn, arguments):
    return "", (fn, arguments)


def differentiated(rng, fn, arguments):
    """Differentiate by all floats among the arguments."""
    by = tuple(k for k, a in enumerate(arguments) if jnp.issubdtype(a.dtype, jnp.floating))
    made = jax.eval_shape(fn, *arguments)
    if not by or not jnp.issubdtype(made.dtype, jnp.floating):
        return "", None
    return "grad", (jax.grad(lambda *a: (fn(*a) * 2).sum().astype(jnp.float32), by), arguments)


def in_scan(rng, fn, arguments):
    """Over the leading dimension or over none, or one; a carry that is the sum so far."""
    length = pick(rng, 0, 1, 2, 3)
    first, *rest = arguments
    rows = np.stack([first] * length) if length else np.zeros((0, *first.shape), first.dtype)
    back = bool(rng.integers(2))

    def scanned(rows, *rest):
        def step(carry, row):
            y = fn(row, *rest)
            return carry + y.astype(jnp.float32).sum(), y

        return lax.scan(step, jnp.float32(0), rows, reverse=back)

    return f"scan {length}", (scanned, [rows, *rest])


def of_elements(rng, fn, arguments):
    """Return a loop of each row under `vmap`, with a trip count of its own."""
    first, *rest = arguments
    counts = rng.integers(0, 4, first.shape[:1]).astype(np.int32)
    if not first.ndim:
        return "", None

    def looped(first, counts, *rest):
        y = fn(first, *rest)

        def one(row, count):
            def step(state):
                i, row = state
                return i + 1, jnp.where(row > 0, row, row + row)

            return lax.while_loop(lambda s: s[0] < count, step, (0, row))

        return jax.vmap(one)(first, counts), y

    return "while under vmap", (looped, [first, counts, *rest])


def in_branches(rng, fn, arguments):
    """One way or the other, by a number that may be out of range."""
    which = np.int32(pick(rng, -3, 0, 1, 2, 9))

    def branched(which, *arguments):
        made = jax.eval_shape(fn, *arguments)
        ways = (fn, lambda *a: jnp.zeros(made.shape, made.dtype), lambda *a: fn(*a))
        return lax.switch(which, ways, *arguments)

    return "switch", (branched, [which, *arguments])


def repeated(rng, fn, arguments):
    """Return a loop of zero to three trips that contains a branch."""
    trips = np.int32(pick(rng, -1, 0, 1, 3))

    def looped(trips, *arguments):
        made = jax.eval_shape(fn, *arguments)

        def body(i, y):
            return lax.cond(i % 2 == 0, lambda y: fn(*arguments), lambda y: y[::-1], y)

        return lax.fori_loop(0, trips, body, jnp.zeros(made.shape, made.dtype))

    return f"loop {trips}", (looped, [trips, *arguments])


def mapped(rng, fn, arguments):
    """Under `vmap`, of one row or none or several."""
    count = pick(rng, 0, 1, 3)
    first, *rest = arguments
    rows = np.stack([first] * count) if count else np.zeros((0, *first.shape), first.dtype)
    return f"vmap {count}", (
        jax.vmap(fn, in_axes=(0, *[None] * len(rest))),
        [rows, *rest],
    )


AROUND = (
    plainly, plainly, plainly, plainly, differentiated, differentiated, differentiated, in_scan,
    of_elements, in_branches, repeated, mapped,
)  # fmt: skip
