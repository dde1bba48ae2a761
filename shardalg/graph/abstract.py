"""What a primitive makes of types, by JAX's own abstract evaluation: nothing is computed."""

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
# JAX's kinds of random keys.
_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


@cache
def item_type(name: str) -> Any:
    """JAX's item type of that name, those of random keys among them.

    >>> item_type("bfloat16"), item_type("key<fry>")
    (dtype(bfloat16), key<fry>)
    """
    if not name.startswith("key<"):
        return jax.numpy.dtype(name)
    keys = (jax.eval_shape(partial(jax.random.key, impl=impl), 0).dtype for impl in _KEYS)
    return next(dtype for dtype in keys if str(dtype) == name)


def zeros(shape: Sequence[int], name: str) -> Any:
    """An array of the host, or keys of zeros, of the item type of that name.

    >>> zeros((0, 2), "key<fry>").shape
    (0, 2)
    """
    kind = item_type(name)
    return np.zeros(shape, kind) if isinstance(kind, np.dtype) else jax.lax.full(shape, 0, kind)


def result_types(
    primitive: str, binding: Binding | None, params: Params, operands: Sequence[ValueType]
) -> tuple[ValueType, ...]:
    """The types of what `evaluate.apply` gives for operands of these types.

    >>> x = ValueType((8, 4), "bfloat16")
    >>> result_types("reduce_sum", None, (("axes", (1,)),), [x])
    (bf16[8],)

    Raises:
      TraceError: as `evaluate.apply` does.
      TypeError, ValueError: JAX refuses such operands or parameters.
    """
    # types are stated, so that 64 bits stay 64 bits wherever this runs
    with jax.enable_x64(True):
        structs = [jax.ShapeDtypeStruct(t.shape, item_type(t.dtype)) for t in operands]
        made = jax.eval_shape(lambda *xs: apply(primitive, binding, params, xs), *structs)
    return tuple(ValueType(result.shape, str(result.dtype)) for result in made)


def _windows(params: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """How many windows there are of an operand of this shape, per dimension.

    >>> params = {"window_dimensions": (3,), "window_strides": (2,), "padding": ((1, 0),)}
    >>> _windows(params, (8,)), _windows({**params, "base_dilation": (2,)}, (8,))
    ((4,), (7,))
    """
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
    """One element that is scattered for each window of the other operand."""
    return source.shape == _windows(params, windowed.shape)


def _has_all_windows(params: Mapping[str, Any], operands: Types, results: Types) -> bool:
    """An element for each window; where the code of a user is missing JAX does not count them."""
    made = {type_.shape for type_ in results}
    return _one_shape(params, operands, results) and made == {_windows(params, operands[0].shape)}


def _keeps_elements(params: Mapping[str, Any], operands: Types, results: Types) -> bool:
    """As many elements as are read, also where there are none."""
    return math.prod(operands[0].shape) == math.prod(results[0].shape)


def _one_shape(_: Mapping[str, Any], operands: Types, results: Types) -> bool:
    """What is reduced together is of one shape; the numbers it starts from come last."""
    return len({type_.shape for type_ in operands[: len(results)]}) <= 1


LEFT_TO_THE_COMPILER: Mapping[str, Callable[[Mapping[str, Any], Types, Types], bool]] = {
    "reduce": _one_shape,
    "reduce_window": _has_all_windows,
    "reshape": _keeps_elements,
    "select_and_scatter_add": lambda p, o, _: _has_a_source_per_window(p, o[0], o[1]),
    "select_and_scatter": lambda p, o, _: _has_a_source_per_window(p, o[1], o[0]),
}
"""Per primitive what JAX's abstract evaluation of it does not look at: a function of parameters,
operands and results."""
