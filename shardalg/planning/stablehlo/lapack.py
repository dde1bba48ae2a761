"""Calls of LAPACK, which stand in text that is lowered for CPUs, as JAX's own operators.

Each gives what JAX's lowering expects of the call (jax/_src/lax/linalg.py): its last result is the
status, 0 where all is well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardalg.planning.stablehlo.text_step import Step, array_type

_TARGET = re.compile(r"lapack_[sdcz](\w+)_ffi")


def called(target: str) -> Callable[..., Any] | None:
    """The reading of a call; None of one that has none.

    >>> called("lapack_spotrf_ffi").__name__, called("lapack_sgeqrf_ffi"), called("my_kernel")
    ('_cholesky', None, None)
    """
    name = _TARGET.fullmatch(target)
    return _CALLS.get(name[1]) if name else None


def _said(step: Step, name: str) -> str:
    """A letter of LAPACK, such as L or U for the triangle."""
    said = step.op.attributes["mhlo.backend_config"] if step.has("mhlo.backend_config") else {}
    if name not in said:
        raise step.refused(f" of LAPACK without {name}")
    return chr(said[name].value)


def _well(x: Any) -> Any:
    return jnp.zeros(x.shape[:-2], jnp.int32)


def _cholesky(step: Step, x: Any) -> Any:
    if _said(step, "uplo") != "L":
        raise step.refused(" of the upper triangle")
    made = lax.linalg.cholesky(x, symmetrize_input=False)
    return made, jnp.isnan(made).any((-2, -1)).astype(jnp.int32)


def _triangular_solve(step: Step, a: Any, b: Any) -> Any:
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


def _lu(step: Step, x: Any) -> Any:
    """LAPACK numbers rows from 1."""
    made, pivots, _ = lax.linalg.lu(x)
    return made, pivots + 1, _well(x)


def _eigh(step: Step, x: Any) -> Any:
    vectors, values = lax.linalg.eigh(x, lower=_said(step, "uplo") == "L", symmetrize_input=False)
    return vectors, values, _well(x)


def _svd(step: Step, x: Any) -> Any:
    mode = _said(step, "mode")
    if mode == "N":
        values = lax.linalg.svd(x, full_matrices=False, compute_uv=False)
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
