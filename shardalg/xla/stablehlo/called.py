"""Operators of StableHLO and CHLO, as calls of the functions of `lax` that they come from.

Text that is lowered for CPUs has calls of LAPACK, which are read as JAX's own operators. Each has
the results that JAX's lowering expects (jax/_src/lax/linalg.py). The last is the status, 0 for
success.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shardalg.xla.stablehlo import block_region, contracted, reduced
from shardalg.xla.stablehlo import block_region as control
from shardalg.xla.stablehlo import block_region as shardy_moves
from shardalg.xla.stablehlo.text_layouts import constrained
from shardalg.xla.stablehlo.text_step import TextStep, array_type, literal

_TARGET = re.compile(r"lapack_[sdcz](\w+)_ffi")


def called(target: str) -> Callable[..., Any] | None:
    """Return the function that computes a call of LAPACK by `jax.lax`; None if there is none.

    Args:
      target: name of the called function.

    >>> called("lapack_spotrf_ffi").__name__, called("lapack_sgeqrf_ffi"), called("my_kernel")
    ('_cholesky', None, None)
    """
    name = _TARGET.fullmatch(target)
    return _CALLS.get(name[1]) if name else None


def _said(step: TextStep, name: str) -> str:
    """Return the option `name` of a LAPACK call, a letter such as L or U for the triangle."""
    config = step.op.attributes["mhlo.backend_config"] if step.has("mhlo.backend_config") else {}
    if name not in config:
        raise step.refused(f" of LAPACK without {name}")
    return chr(config[name].value)


def _well(x: Any) -> Any:
    """Return LAPACK's status for success, 0, for every matrix of `x`."""
    return jnp.zeros(x.shape[:-2], jnp.int32)


def _cholesky(step: TextStep, x: Any) -> Any:
    """Return the lower Cholesky factor and the status, as LAPACK's `potrf` does."""
    if _said(step, "uplo") != "L":
        raise step.refused(" of the upper triangle")
    # LAPACK reads the lower triangle only, so the operand is not made symmetric first.
    factor = lax.linalg.cholesky(x, symmetrize_input=False)
    # JAX fills a failed factorisation with NaN, and LAPACK reports it in its status.
    return factor, jnp.isnan(factor).any((-2, -1)).astype(jnp.int32)


def _triangular_solve(step: TextStep, a: Any, b: Any) -> Any:
    """Compute LAPACK's `trsm`, which solves with a triangular matrix `a`, by `jax.lax`."""
    how = _said(step, "trans_x")
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=_said(step, "side") == "L",
        lower=_said(step, "uplo") == "L",
        transpose_a=how != "N",
        conjugate_a=how == "C",
        unit_diagonal=_said(step, "diag") == "U",
    )


def _lu(step: TextStep, x: Any) -> Any:
    """Return the factors in one matrix, the pivots and the status, as LAPACK's `getrf` does."""
    factors, pivots, _ = lax.linalg.lu(x)
    # `lax.linalg.lu` numbers rows from 0, and LAPACK from 1.
    return factors, pivots + 1, _well(x)


def _eigh(step: TextStep, x: Any) -> Any:
    vectors, values = lax.linalg.eigh(x, lower=_said(step, "uplo") == "L", symmetrize_input=False)
    return vectors, values, _well(x)


def _svd(step: TextStep, x: Any) -> Any:
    """Return the operand, the singular values, both factors and the status, as `gesdd` does."""
    mode = _said(step, "mode")
    if mode == "N":
        values = lax.linalg.svd(x, full_matrices=False, compute_uv=False)
        # The call has results for both factors even in this mode, which computes neither.
        left, right = (jnp.zeros(*array_type(step.op.results[i].type)) for i in (2, 3))
    else:
        left, values, right = lax.linalg.svd(x, full_matrices=mode == "A")
    return x, values, left, right, _well(x)


_CALLS: Mapping[str, Callable[..., Any]] = {
    "potrf": _cholesky,
    "trsm": _triangular_solve,
    "getrf": _lu,
    "syevd": _eigh,
    "heevd": _eigh,
    "gesdd": _svd,
}


Reading = Callable[..., Any]
"""Reads an operator: (step, *operands) -> the result, or a tuple of the results."""

_POINTWISE = (
    "abs add atan2 cbrt ceil complex div=divide exp=exponential expm1=exponential_minus_one floor "
    "cos=cosine clz=count_leading_zeros imag is_finite log log1p=log_plus_one logistic max=maximum "
    "min=minimum mul=multiply neg=negate bitwise_not=not population_count=popcnt pow=power real "
    "rem=remainder rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin=sine sqrt "
    "sub=subtract tan tanh bitwise_and=and bitwise_or=or bitwise_xor=xor clamp"
)
_CHLO = (
    "square erf erf_inv erfc lgamma digamma acos acosh asin asinh atan atanh cosh sinh tan conj "
    "bessel_i1e nextafter=next_after zeta polygamma"
)


def _pointwise(dialect: str, names: str) -> dict[str, Reading]:
    """Return a dictionary from names of elementwise operators to functions that compute them.

    Args:
      names: names of functions of `lax`, each with "=" and the operator's name if that is another.
    """
    pairs = (name.partition("=") for name in names.split())
    return {f"{dialect}.{theirs or ours}": _plain(ours) for ours, _, theirs in pairs}


def _plain(name: str) -> Reading:
    """Return a function that computes an operator by the function `name` of `lax`."""
    function = getattr(lax, name)
    return lambda step, *operands: function(*operands)


def _constant(step: TextStep) -> Any:
    """Return a constant: a scalar as a literal, equal elements as a broadcast."""
    value = literal(step.op)
    # A broadcast keeps a large constant of equal elements out of the traced program.
    same = value.size > 1 and bool((value == value.flat[0]).all())
    return lax.full(value.shape, value.flat[0]) if same else value


def _broadcast(step: TextStep, x: Any) -> Any:
    """Return the broadcast operand; the operand itself if it has the result's shape."""
    # A broadcast to the same shape would hide constants from the tests for a reduction's identity.
    if np.shape(x) == step.shape:
        return x
    return lax.broadcast_in_dim(x, step.shape, step.ints("broadcast_dimensions"))


def _slice(step: TextStep, x: Any) -> Any:
    return lax.slice(x, *(step.ints(n) for n in ("start_indices", "limit_indices", "strides")))


def _pad(step: TextStep, x: Any, value: Any) -> Any:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return lax.pad(x, value, tuple(zip(*map(step.ints, names), strict=True)))


def _custom_call(step: TextStep, *operands: Any) -> Any:
    """Compute a custom call: a sharding constraint of HLO, or a function of LAPACK.

    Raises:
      TraceError: the call is of any other function.
    """
    target = str(step.op.attributes["call_target_name"].value)
    of_lapack = called(target)
    if of_lapack is not None:
        return of_lapack(step, *operands)
    if target != "Sharding" or not step.has("mhlo.sharding"):
        raise step.refused(f" @{target}")
    # HLO writes a sharding constraint as a call with its operand as the result.
    sharding = step.op.attributes["mhlo.sharding"].value
    return constrained(operands[0], step.layout(sharding, step.shape))


def _random_bits(step: TextStep, state: Any) -> Any:
    """Return the generator's state afterwards, and random bits of the second result's type."""
    bits = step.op.results[1].type
    shape, dtype = tuple(bits.shape), np.dtype(f"uint{bits.element_type.width}")
    algorithm = lax.RandomAlgorithm[f"RNG_{step.word('rng_algorithm')}"]
    # JAX without 64 bits has such a state as pairs of 32 bits, which the generator takes flat.
    after, found = lax.rng_bit_generator(state.reshape(-1), shape, dtype, algorithm=algorithm)
    return after.reshape(state.shape), found


OPERATORS: Mapping[str, Reading] = {
    **_pointwise("stablehlo", _POINTWISE),
    **_pointwise("chlo", _CHLO),
    "stablehlo.constant": _constant,
    "sdy.constant": _constant,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.compare": lambda s, x, y: getattr(lax, s.word("comparison_direction").lower())(x, y),
    "stablehlo.select": lambda s, which, yes, no: lax.select(which, yes, no),
    "stablehlo.convert": lambda s, x: lax.convert_element_type(x, s.dtype),
    "stablehlo.bitcast_convert": lambda s, x: lax.bitcast_convert_type(x, s.dtype),
    "stablehlo.reshape": lambda s, x: lax.reshape(x, s.shape),
    "stablehlo.transpose": lambda s, x: lax.transpose(x, s.ints("permutation")),
    "stablehlo.reverse": lambda s, x: lax.rev(x, s.ints("dimensions")),
    "stablehlo.concatenate": lambda s, *xs: lax.concatenate(xs, s.number("dimension")),
    "stablehlo.iota": lambda s: lax.broadcasted_iota(s.dtype, s.shape, s.number("iota_dimension")),
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.dynamic_slice": lambda s, x, *at: lax.dynamic_slice(x, at, s.ints("slice_sizes")),
    "stablehlo.dynamic_update_slice": lambda s, x, new, *at: lax.dynamic_update_slice(x, new, at),
    "stablehlo.round_nearest_afz": lambda s, x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "stablehlo.round_nearest_even": lambda s, x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "stablehlo.reduce_precision": lambda s, x: lax.reduce_precision(
        x, s.number("exponent_bits"), s.number("mantissa_bits")
    ),
    "stablehlo.optimization_barrier": lambda s, *xs: tuple(lax.optimization_barrier(xs)),
    "stablehlo.rng_bit_generator": _random_bits,
    "stablehlo.custom_call": _custom_call,
    "chlo.top_k": lambda s, x: tuple(lax.top_k(x, s.number("k"))),
    **contracted.OPERATORS,
    **reduced.OPERATORS,
    **control.CONTROL_OPERATORS,
    **block_region.OPERATORS,
    **shardy_moves.SHARDY_OPERATORS,
}
"""The function that reads each operator."""
