"""Result types of primitives, by JAX's abstract evaluation: no array is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from shardalg.algebra.halos.window import Window
from shardalg.graph.evaluate import Binding, apply
from shardalg.graph.ir import Params, ValueType

Types = tuple[ValueType, ...]
# JAX has no public function from the name of a key type to its dtype, so these are tried in turn.
_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


@cache
def item_type(name: str) -> Any:
    """Return the JAX dtype with this name, which may be a dtype of typed random keys.

    >>> item_type("bfloat16"), item_type("key<fry>")
    (dtype(bfloat16), key<fry>)
    """
    if not name.startswith("key<"):
        return jax.numpy.dtype(name)
    keys = (jax.eval_shape(partial(jax.random.key, impl=impl), 0).dtype for impl in _KEYS)
    return next(dtype for dtype in keys if str(dtype) == name)


def zeros(shape: Sequence[int], name: str) -> Any:
    """Return an array of zeros of the named dtype; for a key dtype, keys whose words are all 0.

    >>> zeros((0, 2), "key<fry>").shape
    (0, 2)
    """
    item = item_type(name)
    return np.zeros(shape, item) if isinstance(item, np.dtype) else jax.lax.full(shape, 0, item)


def result_types(
    primitive: str, binding: Binding | None, params: Params, operands: Sequence[ValueType]
) -> tuple[ValueType, ...]:
    """Return the shape and dtype of each result of a primitive, without running it.

    Args:
      binding, params: see `evaluate.apply`.
      operands: shape and dtype of each operand.

    >>> x = ValueType((8, 4), "bfloat16")
    >>> result_types("reduce_sum", None, (("axes", (1,)),), [x])
    (bf16[8],)

    Raises:
      TraceError: see `evaluate.apply`.
      TypeError, ValueError: JAX does not accept such operands or parameters.
    """
    # Otherwise 64-bit types would become 32-bit types, depending on the caller's configuration.
    with jax.enable_x64(True):
        structs = [jax.ShapeDtypeStruct(t.shape, item_type(t.dtype)) for t in operands]
        results = jax.eval_shape(lambda *xs: apply(primitive, binding, params, xs), *structs)
    return tuple(ValueType(result.shape, str(result.dtype)) for result in results)


def _windows(params: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return, per dimension, the number of windows that fit into an operand of this shape.

    Args:
      params: the parameters of a windowed primitive, such as `reduce_window`.

    >>> params = {"window_dimensions": (3,), "window_strides": (2,), "padding": ((1, 0),)}
    >>> _windows(params, (8,)), _windows({**params, "base_dilation": (2,)}, (8,))
    ((4,), (7,))
    """
    # A `select_and_scatter` has no dilations.
    ones = (1,) * len(shape)
    spaced = [params.get(name, ones) for name in ("base_dilation", "window_dilation")]
    given = (params["window_dimensions"], params["window_strides"], params["padding"], *spaced)
    return tuple(
        Window(taps, stride, *padding, *dilations).out_size(size)
        for size, taps, stride, padding, *dilations in zip(shape, *given, strict=True)
    )


def _has_a_source_per_window(
    params: Mapping[str, Any], source: ValueType, windowed: ValueType
) -> bool:
    """Return whether `source` has one element for each window of `windowed`.

    These are operands of `select_and_scatter`, which adds each element of `source` to one element
    of a window.
    """
    return source.shape == _windows(params, windowed.shape)


def _one_shape(_: Mapping[str, Any], operands: Types, results: Types) -> bool:
    """Return whether all arrays that a reduction reads have the same shape.

    A reduction with n results reads n arrays and then n start values.
    """
    return len({type_.shape for type_ in operands[: len(results)]}) <= 1


# JAX's abstract evaluation accepts these faults, or cannot run a user's function that a file does
# not store. Without these checks only XLA would reject a damaged plan file.
LEFT_TO_THE_COMPILER: Mapping[str, Callable[[Mapping[str, Any], Types, Types], bool]] = {
    "reduce": _one_shape,
    # JAX's rule cannot run, because the user's function is code, which a file does not store.
    "reduce_window": lambda p, o, r: (
        _one_shape(p, o, r) and {type_.shape for type_ in r} == {_windows(p, o[0].shape)}
    ),
    # JAX's shape rule returns `new_sizes` and does not compare the numbers of elements.
    "reshape": lambda _, o, r: math.prod(o[0].shape) == math.prod(r[0].shape),
    "select_and_scatter_add": lambda p, o, _: _has_a_source_per_window(p, o[0], o[1]),
    "select_and_scatter": lambda p, o, _: _has_a_source_per_window(p, o[1], o[0]),
}
"""By primitive, a function of (parameters, operand types, result types): whether the types fit."""
