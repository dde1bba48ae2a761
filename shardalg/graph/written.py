"""Primitives that hide what they do, written out in others that partition, while tracing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import jax
from jax import lax

from shardalg.graph.random import bits_of, positions_of


def written_out(equation: Any) -> Any | None:
    """What computes the results of an equation, as a closed jaxpr; None where it is not known."""
    return _WRITTEN[equation.primitive.name](equation)


def _body(function: Callable[..., Any], equation: Any) -> Any:
    given = (var.aval for var in equation.invars)
    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(v.shape, v.dtype) for v in given))


def _split(equation: Any) -> Any:
    """A slice per piece."""
    axis, sizes = equation.params["axis"], equation.params["sizes"]
    ends = tuple(accumulate(sizes))

    def slices(x: Any) -> list[Any]:
        pairs = zip(sizes, ends, strict=True)
        return [lax.slice_in_dim(x, end - size, end, axis=axis) for size, end in pairs]

    return _body(slices, equation)


def _stack(equation: Any) -> Any:
    """Tensors with one more dimension, side by side along it."""
    axis = equation.params["axis"]
    return _body(
        lambda *xs: lax.concatenate([lax.expand_dims(x, (axis,)) for x in xs], axis), equation
    )


def _unstack(equation: Any) -> Any:
    """A slice of one element per result, without its dimension."""
    axis = equation.params["axis"]
    return _body(
        lambda x: [
            lax.index_in_dim(x, k, axis, keepdims=False) for k in range(len(equation.outvars))
        ],
        equation,
    )


_WRITTEN: dict[str, Callable[[Any], Any | None]] = {
    "iota_2x32_shape": positions_of,
    "random_bits": bits_of,
    "split": _split,
    "stack": _stack,
    "unstack": _unstack,
}
