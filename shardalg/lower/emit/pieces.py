"""All-to-all on CPU devices, where XLA's own is slow along any dimension but the leading one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from shardalg.algebra.digits import Digits, parts
from shardalg.spmd.instructions import AllToAll

Array = Any


def all_to_all(x: Array, names: tuple[str, ...], a: AllToAll) -> Array:
    """Split along one dimension, concatenated along another."""
    sent = pieces(x, a.split_dim, parts(a.digits))
    if a.concat_dim == 0 and not a.arriving and 1 not in sent.shape:
        # What arrives is joined in its place. Where that is the result, and of 1 MiB or more, XLA
        # keeps pieces in the result's memory until then (openxla issue 15207: temporary memory is
        # 0.219 of the tensor, else 0.250 and a table of pointers for each all-to-all).
        return lax.all_to_all(x, names, a.split_dim, 0, tiled=True)
    sent = _by_member(sent, a.digits, a.arriving or a.digits)
    senders = jnp.moveaxis(swapped(sent, names), 0, a.concat_dim)
    return lax.collapse(senders, a.concat_dim, a.concat_dim + 2)


def pieces(x: Array, dim: int, n: int) -> Array:
    """`x` cut in `n` along `dim`, the pieces on a new leading dimension."""
    cut = x.reshape(*x.shape[:dim], n, x.shape[dim] // n, *x.shape[dim + 1 :])
    return jnp.moveaxis(cut, dim, 0)


def swapped(sent: Array, names: tuple[str, ...]) -> Array:
    """Piece `k` goes to member `k`; those that arrive, by their senders.

    Pieces with dimensions of size 1 may get different layouts, which XLA's verifier then refuses
    (jaxlib 0.10.2, where one exchange reads another): on one dimension there is no choice.
    """
    if 1 not in sent.shape:
        return lax.all_to_all(sent, names, 0, 0, tiled=True)
    return lax.all_to_all(sent.reshape(-1), names, 0, 0, tiled=True).reshape(sent.shape)


def _by_member(sent: Array, digits: Digits, cut: Digits) -> Array:
    """Pieces in the order of their takers' ids in `digits`, from that of their ids in `cut`."""
    if cut == digits:
        return sent
    grid = sent.reshape(*(digit.size for digit in cut), *sent.shape[1:])
    order = [*map(cut.index, digits), *range(len(cut), grid.ndim)]
    return grid.transpose(order).reshape(sent.shape)
