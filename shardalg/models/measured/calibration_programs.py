"""Small programs for the calibration of a machine: each one measures one class of operators.

No program is one of the package's models, so that estimates of the models are predictions. Sizes
grow with the number of devices, so that the work per device is the same on one and on eight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.algebra.mesh import Mesh
from shardalg.graph.annotate import annotate
from shardalg.plan.plan import Plan, plan
from shardalg.planner.propagate.strategy import Strategy

Array = jax.Array
AXIS = "X"
ROWS, WHOLE, COLUMNS = P(AXIS), P(), P(None, AXIS)
_NAMES = {2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


@dataclass(frozen=True)
class CalibrationProgram:
    """A function, the shapes of its arguments, and their shardings on a mesh with one axis.

    Attributes:
      layouts: shardings of the arguments; out: shardings of the results, None if not given.
      sites: shardings of annotated values by the name of the annotation.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[P, ...]
    sites: dict[str, P] = field(default_factory=dict)
    out: Any = None
    dtype: str = "float32"

    def arguments(self) -> tuple[Array, ...]:
        """Return arrays of normal random numbers, with the same seed in each call."""
        rng = np.random.default_rng(0)
        drawn = (rng.standard_normal(shape, np.float32) for shape in self.shapes)
        return tuple(jnp.asarray(x, self.dtype) for x in drawn)

    def plan(self, devices: int) -> Plan:
        """Return the program's plan on a mesh of one axis with this number of devices."""
        structs = [jax.ShapeDtypeStruct(shape, self.dtype) for shape in self.shapes]
        mesh = Mesh({AXIS: devices})
        return plan(
            self.function,
            *structs,
            strategy=Strategy(mesh, self.layouts, self.out, sites=self.sites),
        )


def programs(devices: int) -> tuple[CalibrationProgram, ...]:
    """Return all calibration programs with the sizes for this number of devices."""
    return (*_products(devices), *_convolutions(devices), *_pointwise(devices), *_moves(devices))


def _products(n: int) -> tuple[CalibrationProgram, ...]:
    """Return programs of contractions, with sizes for `n` devices."""
    sharded = (ROWS, WHOLE, WHOLE)
    large, small = ((256 * n, 256), (256, 512), (512, 256)), ((64 * n, 64), (64, 128), (128, 64))
    # The smallest programs tell the constant time of a product from the time of its flops.
    tiny = ((16 * n, 32), (32, 64), (64, 32))
    heads = (ROWS, WHOLE, WHOLE, WHOLE)
    return (
        CalibrationProgram("large products", _gradient(_mlp), large, sharded),
        CalibrationProgram("small products", _gradient(_mlp), small, sharded),
        CalibrationProgram("tiny products", _gradient(_mlp), tiny, sharded),
        CalibrationProgram("bfloat16 products", _gradient(_mlp), large, sharded, dtype="bfloat16"),
        CalibrationProgram(
            "attention", _gradient(_attention), ((2 * n, 64, 64), *[(64, 4, 16)] * 3), heads
        ),
        CalibrationProgram(
            "tiny attention", _gradient(_attention), ((n, 32, 64), *[(64, 4, 16)] * 3), heads
        ),
    )


def _convolutions(n: int) -> tuple[CalibrationProgram, ...]:
    """Return programs of plain and dilated convolutions, with sizes for `n` devices."""
    flat = ((2 * n, 32, 32, 16), (3, 3, 16, 32), (3, 3, 32, 32))
    deep = ((n, 8, 16, 16, 8), (3, 3, 3, 8, 8), (3, 3, 3, 8, 16))
    doubled = ((n, 8, 8, 8, 16), (2, 2, 2, 16, 8))
    layouts = (ROWS, WHOLE, WHOLE)
    return (
        CalibrationProgram("2D convolutions", _gradient(partial(_convolved, 2)), flat, layouts),
        CalibrationProgram("3D convolutions", _gradient(partial(_convolved, 3)), deep, layouts),
        CalibrationProgram("dilated convolutions", _gradient(_doubled), doubled, layouts[:2]),
    )


def _pointwise(n: int) -> tuple[CalibrationProgram, ...]:
    """Return programs of norms, activations, softmax and Adam, with sizes for `n` devices."""
    tokens = ((256 * n, 256), (256,))
    matrices = ((128 * n, 512),) * 4
    return (
        CalibrationProgram("norms", _gradient(_normed), tokens, (ROWS, WHOLE)),
        CalibrationProgram("activations", _gradient(_activated), tokens, (ROWS, WHOLE)),
        CalibrationProgram("softmax", _gradient(_softmax), ((8 * n, 8, 64, 64),), (ROWS,)),
        CalibrationProgram("optimizer", _adam, matrices, (ROWS,) * 4),
    )


def _moves(n: int) -> tuple[CalibrationProgram, ...]:
    """Return programs of every kind of collective, on `n` devices, with small and large bytes."""
    found = []
    # A collective's time has a constant part and one that grows with the bytes. Two sizes of each
    # kind tell the two parts apart.
    for size, rows in (("small", 8 * n), ("large", 64 * n)):
        two = ((rows, rows),) * 2
        sums = ((2 * n, 64 * rows // n),)
        across = {"there": COLUMNS, "back": ROWS}
        for dim, layout in (("rows", ROWS), ("columns", COLUMNS)):
            whole = {"there": WHOLE, "back": layout}
            pair = (layout, layout)
            name = f"{size} gathers of {dim}"
            found.append(CalibrationProgram(name, _there_and_back, two, pair, whole, layout))
        found += [
            CalibrationProgram(f"{size} sums", _sums, sums, (ROWS,), out=ROWS),
            CalibrationProgram(f"{size} scatters", _scattered, sums, (ROWS,), {"part": ROWS}, ROWS),
            CalibrationProgram(
                f"{size} all-to-alls", _there_and_back, two, (ROWS, ROWS), across, ROWS
            ),
            CalibrationProgram(f"{size} permutes", _rolled, two[:1], (ROWS,), out=ROWS),
        ]
    return tuple(found)


def _gradient(function: Callable[..., Array]) -> Callable[..., Any]:
    """Return a function that computes the gradients of `sum(function(*args)**2)` by all args."""

    def gradient(*args: Array) -> Any:
        every = tuple(range(len(args)))
        return jax.grad(lambda *a: jnp.sum(jnp.square(function(*a))), argnums=every)(*args)

    return gradient


def _mlp(x: Array, w_in: Array, w_out: Array) -> Array:
    return jnp.maximum(x @ w_in, 0) @ w_out


def _attention(x: Array, w_q: Array, w_k: Array, w_v: Array) -> Array:
    q, k, v = (jnp.einsum("bsm,mnd->bsnd", x, w) for w in (w_q, w_k, w_v))
    scores = jax.nn.softmax(jnp.einsum("bsnd,btnd->bnst", q, k))
    return jnp.einsum("bnst,btnd->bsnd", scores, v)


def _convolved(rank: int, x: Array, first: Array, second: Array) -> Array:
    """Return the result of two convolutions, each followed by a ReLU.

    Args:
      rank: the number of spatial dimensions of `x`.
    """
    for kernel in (first, second):
        ones = (1,) * rank
        x = lax.conv_general_dilated(x, kernel, ones, "SAME", dimension_numbers=_NAMES[rank])
        x = jnp.maximum(x, 0)
    return x


def _doubled(x: Array, kernel: Array) -> Array:
    """Return a transposed convolution that doubles each spatial size (base dilation 2)."""
    return lax.conv_transpose(x, kernel, (2, 2, 2), "VALID", dimension_numbers=_NAMES[3])


def _normed(x: Array, scale: Array) -> Array:
    for _ in range(3):
        centred = x - x.mean(-1, keepdims=True)
        x = x + centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-6) * scale
    return x


def _activated(x: Array, scale: Array) -> Array:
    return x + jax.nn.gelu(x * scale) * jax.nn.softmax(x)


def _softmax(x: Array) -> Array:
    return x * jax.nn.softmax(jnp.where(x > -9, x, -1e9))


def _adam(p: Array, m: Array, v: Array, gradient: Array) -> tuple[Array, Array, Array]:
    m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
    return p - 0.1 * m / (jnp.sqrt(v) + 1e-6), m, v


def _sums(x: Array) -> Array:
    """Return `x` after ten rounds with a sum over the sharded dimension (all_reduce)."""
    for _ in range(10):
        x = x + jnp.tanh(x.sum(0))
    return x


def _scattered(x: Array) -> Array:
    """Return `x` after ten rounds with a sum whose result is sharded at the site "part"."""
    for _ in range(10):
        x = x + jnp.tanh(annotate(x.sum(0), "part"))
    return x


def _there_and_back(x: Array, y: Array) -> Array:
    """Return `x + y` after four rounds of resharding `x` at the sites "there" and "back"."""
    for _ in range(4):
        x = jnp.tanh(annotate(jnp.tanh(annotate(x, "there")), "back"))
    return x + y


def _rolled(x: Array) -> Array:
    for _ in range(8):
        x = jnp.tanh(jnp.roll(x, 1, 0)) + x
    return x
