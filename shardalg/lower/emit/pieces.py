"""All-to-all on CPU devices, where XLA's own is slow along any dimension but the leading one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from shardalg.algebra.digits import Digits, parts
from shardalg.spmd.instructions import AllToAll, AllToAlls

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


def all_to_alls(x: Array, names: tuple[str, ...], a: AllToAlls) -> Array:
    """Return the block after several all-to-alls, as one exchange of pieces.

    Each split dimension is cut, and the numbers of the pieces lead, those of the first exchange
    major, as the digits of a member are.
    """
    sizes: list[int] = []
    sent = x
    for one in reversed(a.exchanges):
        count = parts(one.digits)
        dim = one.split_dim + len(sizes)
        cut = sent.reshape(
            *sent.shape[:dim], count, sent.shape[dim] // count, *sent.shape[dim + 1 :]
        )
        lead = jnp.moveaxis(cut, dim, 0)
        sent = _by_member(lead, one.digits, one.arriving or one.digits)
        sizes.insert(0, count)
    arrived = swapped(sent.reshape(-1, *sent.shape[len(sizes) :]), names)
    made = arrived.reshape(*sizes, *sent.shape[len(sizes) :])
    for left, one in reversed([*enumerate(a.exchanges)]):
        dim = one.concat_dim + left
        joined = jnp.moveaxis(made, left, dim)
        made = lax.collapse(joined, dim, dim + 2)
    return made


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
