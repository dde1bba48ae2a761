"""All-to-all on CPU devices, where XLA's own is slow along any dimension but the leading one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from shardalg.algebra.digits import Digits, parts
from shardalg.spmd.program import AllToAll

Array = Any


def all_to_all(x: Array, names: tuple[str, ...], a: AllToAll) -> Array:
    """Split along one dimension, concatenated along another."""
    cut = _cut(x, a.split_dim, parts(a.digits))
    if not a.arriving and 1 not in cut.shape:
        # In place: flat pieces XLA's CPU compiler copies element by element.
        arrived = lax.all_to_all(cut, names, a.split_dim, a.split_dim, tiled=True)
        senders = jnp.moveaxis(arrived, a.split_dim, a.concat_dim)
    else:
        sent = _by_member(pieces(x, a.split_dim, parts(a.digits)), a.digits, a.arriving or a.digits)
        senders = jnp.moveaxis(swapped(sent, names), 0, a.concat_dim)
    return lax.collapse(senders, a.concat_dim, a.concat_dim + 2)


def pieces(x: Array, dim: int, n: int) -> Array:
    """`x` cut in `n` along `dim`, the pieces on a new leading dimension."""
    return jnp.moveaxis(_cut(x, dim, n), dim, 0)


def _cut(x: Array, dim: int, n: int) -> Array:
    """`x` cut in `n` along `dim`, the pieces on a new dimension before it."""
    return x.reshape(*x.shape[:dim], n, x.shape[dim] // n, *x.shape[dim + 1 :])


def swapped(sent: Array, names: tuple[str, ...]) -> Array:
    """Piece `k` goes to member `k`; those that arrive, by their senders.

    On one dimension XLA has no choice of layout: pieces with dimensions of size 1 may get different
    ones, which its verifier then refuses (jaxlib 0.10.2, where one exchange reads another).
    """
    return lax.all_to_all(sent.reshape(-1), names, 0, 0, tiled=True).reshape(sent.shape)


def _by_member(sent: Array, digits: Digits, cut: Digits) -> Array:
    """Pieces in the order of their takers' ids in `digits`, from that of their ids in `cut`."""
    if cut == digits:
        return sent
    grid = sent.reshape(*(digit.size for digit in cut), *sent.shape[1:])
    order = [*map(cut.index, digits), *range(len(cut), grid.ndim)]
    return grid.transpose(order).reshape(sent.shape)
