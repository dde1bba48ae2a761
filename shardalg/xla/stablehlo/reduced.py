"""Reductions, windows and sorts of StableHLO: operators with a computation of scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive

from shardalg.graph.evaluate import find_primitive
from shardalg.xla.stablehlo.text_step import TextStep

_MONOIDS = {
    "add": lax.add,
    "multiply": lax.mul,
    "minimum": lax.min,
    "maximum": lax.max,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}
_RUNNING = {
    "add": lax.cumsum,
    "multiply": lax.cumprod,
    "maximum": lax.cummax,
    "minimum": lax.cummin,
}


def _computation(step: TextStep) -> Any:
    """Return the function of two elements that a reduction combines with.

    It is a function of `lax`, such as `lax.add`, if the region computes one; otherwise a function
    that runs the region.
    """
    # The planner has cheaper collectives for these functions than for an unknown region.
    known = _MONOIDS.get(step.only())
    if known is not None:
        return known
    run, count = step.region(0), len(step.op.operands) // 2

    def call(x: Any, y: Any) -> Any:
        if count == 1:
            return run(x, y)[0]
        return run(*x, *y)

    return call


_MOST_KEYS = 3
"""The most keys of a sort whose comparison is tried: 3 to the sixth cases."""


def _reduce(step: TextStep, *operands: Any) -> Any:
    """Compute a reduction by `lax`; the operands are its values, then as many initial values."""
    half = len(operands) // 2
    dims = step.ints("dimensions")
    # An argmax has a rule of its own in the planner, which a reduction of pairs has not.
    arg_reduction = _arg_reduce(step, operands, dims)
    if arg_reduction is not None:
        return arg_reduction
    xs, inits = operands[:half], operands[half:]
    if half == 1:
        return lax.reduce(xs[0], inits[0], _computation(step), dims)
    return tuple(lax.reduce(tuple(xs), tuple(inits), _computation(step), dims))


def _arg_reduce(step: TextStep, operands: tuple[Any, ...], dims: tuple[int, ...]) -> Any:
    """Return the values and places of an `argmax` or `argmin` of JAX; None for other reductions.

    JAX lowers them to a reduction of the values and an iota, which keeps the first extreme value.
    """
    # As `argmax`, the operator has the planner's rule for it, unlike a reduction by a region.
    if len(operands) != 4 or len(dims) != 1:
        return None
    # The second operand must number the elements along the reduced dimension.
    iota = step.op.operands[1].owner
    if getattr(iota, "name", "") != "stablehlo.iota":
        return None
    if int(iota.attributes["iota_dimension"].value) != dims[0]:
        return None
    x, index = operands[:2]
    for arg_primitive, reduce_primitive in (
        (lax.argmax, lax.reduce_max),
        (lax.argmin, lax.reduce_min),
    ):
        if _keeps_first(step, arg_primitive, (x.dtype, index.dtype)):
            return reduce_primitive(x, dims), arg_primitive(x, dims[0], index.dtype)
    return None


def _keeps_first(step: TextStep, kept: Callable[..., Any], types: tuple[Any, Any]) -> bool:
    """Return True if a reduction of (value, place) pairs keeps the same place as `kept`.

    Both functions run on all pairs of a few values and places. Pairs of two NaNs are left out,
    because JAX keeps the left one, whose place is the first in the order of a reduction.

    Args:
      step: the reduction. kept: `lax.argmax` or `lax.argmin`.
      types: the types of values and places.
    """
    values = [0, 1, 2, *([np.nan] if np.issubdtype(types[0], np.inexact) else [])]
    # Two elements of one reduction never have the same place.
    all_pairs = product(values, (0, 1), values, (0, 1))
    distinct = np.array([each for each in all_pairs if each[1] != each[3]])
    cases = distinct[~np.isnan(distinct[:, [0, 2]]).all(1)]
    a, b = (cases[:, column].astype(types[0]) for column in (0, 2))
    i, j = (cases[:, column].astype(types[1]) for column in (1, 3))
    with jax.ensure_compile_time_eval():
        found_places = jax.vmap(step.region(0))(a, i, b, j)[1]
        # `kept` returns an index, which is the place if the values are in the order of the places.
        ordered_values = np.where((i < j)[:, None], np.stack([a, b], 1), np.stack([b, a], 1))
        expected_places = kept(ordered_values, 1, types[1])
    return bool(np.array_equal(found_places, expected_places))


def _window(step: TextStep, x: Any, init: Any) -> Any:
    """Compute a reduction over windows by `lax`.

    JAX writes cumulative operators, such as `cumsum`, as such reductions; these are recognised.
    """
    rank = x.ndim
    ones = (1,) * rank
    sizes, padding = step.ints("window_dimensions"), step.pairs("padding", rank)
    strides, base, dilation = (
        step.ints(name, ones) for name in ("window_strides", "base_dilations", "window_dilations")
    )
    # JAX's cumulative operators may appear as a window as long as the dimension, padded on one
    # side. Read as `cumsum`, they have the planner's rule for prefixes.
    cumulative = _RUNNING.get(step.only())
    window_dims = [dim for dim, size in enumerate(sizes) if size > 1]
    if cumulative and len(window_dims) == 1 and {*strides, *base, *dilation} == {1}:
        (dim,), size = window_dims, x.shape[window_dims[0]]
        is_padded_once = all(pads == (0, 0) for d, pads in enumerate(padding) if d != dim)
        if is_padded_once and sizes[dim] == size and padding[dim] in ((size - 1, 0), (0, size - 1)):
            return cumulative(x, dim, reverse=padding[dim][0] == 0)
    return lax.reduce_window(x, init, _computation(step), sizes, strides, padding, base, dilation)


_SELECTS = {"GE": "ge", "LE": "le"}


def _select_and_scatter(step: TextStep, x: Any, source: Any, init: Any) -> Any:
    """Compute a select-and-scatter by JAX, as in the gradient of a maximum over windows."""
    # The direction of a comparison is read from its text, `#stablehlo<comparison_direction GE>`.
    compare = step.op.regions[0].blocks[0].operations[0].operation
    direction = str(compare.attributes["comparison_direction"])[-3:-1] if compare.operands else ""
    # JAX has this operator only for sums that begin with 0 at the largest or smallest element.
    if (
        direction not in _SELECTS
        or step.only(0) != "compare"
        or step.only(1) != "add"
        or not _is_zero(init)
    ):
        raise step.refused(" of computations other than ge or le, and add")
    primitive: Primitive = find_primitive("select_and_scatter_add")
    return primitive.bind(
        source,
        x,
        select_prim=find_primitive(_SELECTS[direction]),
        window_dimensions=step.ints("window_dimensions", (1,) * x.ndim),
        window_strides=step.ints("window_strides", (1,) * x.ndim),
        padding=step.pairs("padding", x.ndim),
    )


def _is_zero(value: Any) -> bool:
    """Return True if a value is a constant 0."""
    return not isinstance(value, jax.core.Tracer) and not np.any(value)


def _sort(step: TextStep, *operands: Any) -> Any:
    """Sort ascending by the operands that the comparison reads; the others move with them.

    An operator that sorts downwards, or by operands that are not the first, is refused.
    """
    # The comparison has two arguments per operand, and uses only those of the keys.
    block = step.op.regions[0].blocks[0]
    key_count = sum(bool(list(argument.uses)) for argument in block.arguments[::2])
    if not _is_upwards(step, key_count, [x.dtype for x in operands]):
        raise step.refused(" downwards, or by operands that are not the first,")
    dim = step.number("dimension")
    stable = step.has("is_stable") and bool(step.op.attributes["is_stable"].value)
    return tuple(lax.sort(operands, dimension=dim, is_stable=stable, num_keys=key_count))


def _is_upwards(step: TextStep, keys: int, types: Sequence[Any]) -> bool:
    """Return True if the comparison, tried on values, sorts ascending by the first operands.

    Args:
      keys: number of operands by which it sorts. types: type of each operand.
    """
    if not 1 <= keys <= _MOST_KEYS:
        return False
    # For each key, the cases have every order of two values: less, equal and greater.
    cases = list(product((0, 1, 2), repeat=2 * keys))
    # Each case has the left and the right value of the first key, then those of the next one.
    want = [case[::2] < case[1::2] for case in cases]
    columns = [*np.array(cases).T, *[np.zeros(len(cases))] * (2 * (len(types) - keys))]
    arrays = [c.astype(types[n // 2]) for n, c in enumerate(columns)]
    with jax.ensure_compile_time_eval():
        return bool(np.array_equal(jax.vmap(step.region(0))(*arrays)[0], want))


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.sort": _sort,
}
