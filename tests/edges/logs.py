"""Bounds of running sums of exponentials of complex numbers, compared by order of summation."""

import jax.numpy as jnp
import numpy as np

ULPS = 8
"""What elementary functions of XLA may be off, in units in the last place."""


def of_running_log(operand, made, axis, *, reverse):
    """Errors of `log(sum(exp(x[:k])))` of complex numbers, one per element of the result.

    With `s` the sum of the moduli `exp(re x)` over the modulus of their sum, of `k` numbers in any
    order the logarithm is off by `k*s*(1 + |x|)` roundings and `s` times what `x` is off. Unbounded
    is what goes by the order: numbers of which some sum overflows (`a + b` is taken to find a NaN),
    and angles at the end of their range.

    >>> x = np.array([1, 2, 3.4e38, 1], np.complex64)
    >>> of_running_log((x, np.zeros(4)), x, 0, reverse=False)[[0, 2, 3]].tolist()[1:]
    [inf, inf]
    """
    value, error = operand
    flip = (lambda x: np.flip(x, axis)) if reverse else lambda x: x
    x, error = flip(value.astype(np.complex128)), flip(error)
    with np.errstate(all="ignore"):
        largest = np.maximum.accumulate(x.real, axis)
        moduli = np.exp(np.logaddexp.accumulate(x.real, axis) - largest)
        spread = moduli / np.exp(flip(made).real.astype(np.float64) - largest)
        count = np.cumsum(np.ones(x.shape), axis)
        info = jnp.finfo(value.dtype)
        size = np.maximum.accumulate(abs(x), axis)
        each = ULPS * count * float(info.eps) * (1 + size) + np.maximum.accumulate(error, axis)
        off = spread * each
        is_known = np.cumsum(abs(x), axis) * 2 <= float(info.max)
        is_known &= abs(flip(made).imag) + off < np.pi
    return flip(np.where(is_known & np.isfinite(off), off, np.inf))
