"""Adam (arXiv:1412.6980, algorithm 1), written plainly: two moments in the shape of each weight.

m = 0.9 m + 0.1 G,    v = 0.999 v + 0.001 G^2
W = W - rate * (m / (1 - 0.9^step)) / (sqrt(v / (1 - 0.999^step)) + 1e-8)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

FIRST, SECOND = 0.9, 0.999
"""Decay rates of the first and the second moment per step."""


def init_state(params: Any) -> dict[str, Any]:
    """Return the state before the first step: {"step": 0, "first", "second"}, like `params`.

    Every moment has a buffer of its own, so that the state can be donated.
    """
    first, second = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    return {"step": jnp.zeros((), jnp.int32), "first": first, "second": second}


def apply(params: Any, grads: Any, state: Any, rate: float = 1e-3) -> tuple[Any, dict[str, Any]]:
    """Return the parameters and Adam's state after one step with this learning rate.

    Args:
      state: "step", the number of steps so far, and "first" and "second", the moments of gradients.
    """
    step = state["step"] + 1
    first = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, state["first"], grads)
    second = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, state["second"], grads)
    time = step.astype(jnp.float32)
    # Moments start at 0, so that they are too small in the first steps; these divisors correct
    # them.
    bias_divisors = 1 - FIRST**time, 1 - SECOND**time
    params = jax.tree.map(
        lambda w, m, v: w - rate * (m / bias_divisors[0]) / (jnp.sqrt(v / bias_divisors[1]) + 1e-8),
        params, first, second,
    )  # fmt: skip
    return params, {"step": step, "first": first, "second": second}
