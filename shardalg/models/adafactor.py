"""Adafactor with factored second moments (arXiv:1804.04235, algorithm 4), written plainly.

A weight counts as a matrix: its contracted dimensions are the rows, the others the columns. For
example, an attention projection (M, N, D) has M rows and N*D columns. The state keeps only the
means of the squared gradients over rows and over columns, sharded like the remaining dimensions:
    R = beta R + (1 - beta) mean_columns(G^2 + 1e-30),    C likewise over rows
    U = G / sqrt(R C / mean(R)),    U = U / max(1, rms(U)),    beta = 1 - step^-0.8
    W = W - max(1e-3, rms(W)) min(1e-2, 1 / sqrt(step)) U
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


@dataclass(frozen=True)
class Factoring:
    """The dimensions of a parameter that are rows of its factored moments.

    Attributes:
      rows: the number of dimensions that are rows; all dimensions after them are columns.
      stacked: the number of leading dimensions that only count independent matrices.

    >>> Factoring(rows=1).split(("X", "Y", None))
    (('X',), ('Y', None))
    >>> Factoring(rows=2, stacked=1).split(("L", "N", "D", "M"))
    (('L', 'N', 'D'), ('L', 'M'))
    """

    rows: int
    stacked: int = 0

    def split(self, dims: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Split a tuple with an entry per dimension into entries of the row and column moments."""
        border = self.stacked + self.rows
        return dims[:border], dims[: self.stacked] + dims[border:]

    def axes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the row dimensions and the column dimensions of a parameter of this rank."""
        border = self.stacked + self.rows
        return tuple(range(self.stacked, border)), tuple(range(border, rank))


def init_moments(params: Any, factoring: Any) -> Any:
    """Return zero moments per parameter: {"row": array, "column": array}.

    `factoring` is a tree like `params` with a `Factoring` at each leaf.
    """

    def zeros(parameter: Array, factors: Factoring) -> dict[str, Array]:
        row, column = factors.split(parameter.shape)
        return {"row": jnp.zeros(row, jnp.float32), "column": jnp.zeros(column, jnp.float32)}

    return jax.tree.map(zeros, params, factoring)


def init_state(params: Any, factoring: Any) -> dict[str, Any]:
    """Return the state before the first step.

    The state is {"step": 0, "moments": {"row", "column"} per parameter}. `factoring` is a tree
    like `params` with a `Factoring` at each leaf.
    """
    return {"step": jnp.zeros((), jnp.int32), "moments": init_moments(params, factoring)}


def apply(params: Any, grads: Any, state: Any, factoring: Any) -> tuple[Any, dict[str, Any]]:
    """Return the parameters and Adafactor's state after one step.

    `factoring` is a tree like `params` with a `Factoring` at each leaf. The state has "step" and
    "moments", which are a tree like `params` with the means of squared gradients at each leaf.
    """
    step = state["step"] + 1
    weights = jax.tree.leaves(params)
    tree: Any = jax.tree.structure(params)
    # A leaf of these trees may be a tree itself, so they are flattened only as far as `params` is.
    moments, factors = tree.flatten_up_to(state["moments"]), tree.flatten_up_to(factoring)
    updated = [
        _update(w, g, moment, step=step, factors=f)
        for w, g, moment, f in zip(weights, jax.tree.leaves(grads), moments, factors, strict=True)
    ]
    params, moments = (tree.unflatten(part) for part in zip(*updated, strict=True))
    return params, {"step": step, "moments": moments}


def _update(
    weight: Array, gradient: Array, moment: dict[str, Array], *, step: Array, factors: Factoring
) -> tuple[Array, dict[str, Array]]:
    """Return a weight after this step, and its new moments {"row", "column"}."""
    rows, columns = factors.axes(weight.ndim)
    time = step.astype(jnp.float32)
    beta = 1.0 - time**-0.8
    # The first step has beta = 0, so the moments need no correction of their zero start.
    square = jnp.square(gradient) + 1e-30
    # Both factors of the second moment are means: a sharded dimension makes them an all-reduce of
    # a vector, not of a matrix.
    row = beta * moment["row"] + (1.0 - beta) * jnp.mean(square, axis=columns)
    column = beta * moment["column"] + (1.0 - beta) * jnp.mean(square, axis=rows)
    update = gradient * _scale(row, column, rows, columns)
    update = update / jnp.maximum(1.0, _rms(update, rows + columns))
    # The step is relative to the weight's own root mean square: section 8 of the paper.
    rate = jnp.minimum(1e-2, lax.rsqrt(time)) * jnp.maximum(1e-3, _rms(weight, rows + columns))
    return weight - rate * update, {"row": row, "column": column}


def _scale(row: Array, column: Array, rows: tuple[int, ...], columns: tuple[int, ...]) -> Array:
    """Return `1 / sqrt(R C / mean(R))` in the weight's shape from the moments R and C.

    `rows` and `columns` are the weight's row dimensions and column dimensions.
    """
    # Two broadcast vectors instead of the matrix R C: XLA fuses both into the update.
    share = row / jnp.mean(row, axis=rows, keepdims=True)
    return jnp.expand_dims(lax.rsqrt(share), columns) * jnp.expand_dims(lax.rsqrt(column), rows)


def _rms(x: Array, dims: tuple[int, ...]) -> Array:
    """Return the root mean square over these dimensions, which stay with size 1."""
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=dims, keepdims=True))
