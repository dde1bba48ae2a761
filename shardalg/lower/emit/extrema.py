"""The largest and smallest float of a group of devices: XLA's own collective loses a NaN."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

EXTREMA = {"max": (lax.pmax, "max"), "min": (lax.pmin, "min")}
"""Way to combine to the collective, and to the end of the integers at which a NaN stands."""


def extremum(x: Array, names: tuple[str, ...], combine: str) -> Array:
    """`pmax` or `pmin` over mesh axes that gives NaN where a device has one, as one device does.

    XLA's collectives on CPU keep what compares as larger or smaller, which a NaN never does (jaxlib
    0.10.2). So the collective is of integers in the order of the floats: their bits, those of
    negative numbers mirrored, and for a NaN the end of the integers that wins.
    """
    if jnp.finfo(x.dtype).bits < 8:  # what a byte holds exactly
        return extremum(x.astype("float8_e4m3fn"), names, combine).astype(x.dtype)
    collective, end = EXTREMA[combine]
    kind = jnp.iinfo(f"int{8 * x.dtype.itemsize}")

    def mirrored(bits: Array) -> Array:
        return jnp.where(bits < 0, bits ^ kind.max, bits)  # the way there and the way back

    order = mirrored(lax.bitcast_convert_type(x, kind.dtype))
    order = jnp.where(jnp.isnan(x), jnp.asarray(getattr(kind, end), kind.dtype), order)
    return lax.bitcast_convert_type(mirrored(collective(order, names)), x.dtype)
