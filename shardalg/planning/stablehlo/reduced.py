"""Reductions, windows and sorts of StableHLO: operators with a computation of scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import Primitive

from shardalg.graph.evaluate import find_primitive
from shardalg.planning.stablehlo.text_step import Step

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


def _computation(step: Step) -> Any:
    """The function of `lax` that the region is, else the region; pairs for JAX."""
    known = _MONOIDS.get(step.only())
    if known is not None:
        return known
    run, count = step.region(0), len(step.op.operands) // 2

    def call(x: Any, y: Any) -> Any:
        if count == 1:
            return run(x, y)[0]
        return run(*x, *y)

    return call


def _reduce(step: Step, *operands: Any) -> Any:
    half = len(operands) // 2
    dims = step.ints("dimensions")
    found = _arg_reduce(step, operands, dims)
    if found is not None:
        return found
    xs, inits = operands[:half], operands[half:]
    if half == 1:
        return lax.reduce(xs[0], inits[0], _computation(step), dims)
    return tuple(lax.reduce(tuple(xs), tuple(inits), _computation(step), dims))


def _arg_reduce(step: Step, operands: tuple[Any, ...], dims: tuple[int, ...]) -> Any:
    """`argmax` and `argmin` of JAX: values beside an iota, the first of the extreme ones kept."""
    if len(operands) != 4 or len(dims) != 1:
        return None
    source = step.op.operands[1].owner
    if getattr(source, "name", "") != "stablehlo.iota":
        return None
    words = {
        str(op.operation.attributes["comparison_direction"])
        for op in step.op.regions[0].blocks[0].operations
        if op.operation.name == "stablehlo.compare"
    }
    greater = any("GT" in word for word in words)
    kept = lax.argmax if greater else lax.argmin
    value = (lax.reduce_max if greater else lax.reduce_min)(operands[0], dims)
    return value, kept(operands[0], dims[0], operands[1].dtype)


def _window(step: Step, x: Any, init: Any) -> Any:
    rank = x.ndim
    ones = (1,) * rank
    sizes, padding = step.ints("window_dimensions"), step.pairs("padding", rank)
    strides, base, dilation = (
        step.ints(name, ones) for name in ("window_strides", "base_dilations", "window_dilations")
    )
    running = _RUNNING.get(step.only())
    wide = [dim for dim, size in enumerate(sizes) if size > 1]
    if running and len(wide) == 1 and {*strides, *base, *dilation} == {1}:
        (dim,), size = wide, x.shape[wide[0]]
        other = all(pads == (0, 0) for d, pads in enumerate(padding) if d != dim)
        if other and sizes[dim] == size and padding[dim] in ((size - 1, 0), (0, size - 1)):
            return running(x, dim, reverse=padding[dim][0] == 0)
    return lax.reduce_window(x, init, _computation(step), sizes, strides, padding, base, dilation)


_SELECTS = {"GE": "ge", "LE": "le"}


def _select_and_scatter(step: Step, x: Any, source: Any, init: Any) -> Any:
    """As the gradient of a maximum over windows has it."""
    compare = step.op.regions[0].blocks[0].operations[0].operation
    word = str(compare.attributes["comparison_direction"])[-3:-1] if compare.operands else ""
    if word not in _SELECTS or step.only(0) != "compare" or step.only(1) != "add" or np.any(init):
        raise step.refused(" of computations other than ge or le, and add")
    add: Primitive = find_primitive("select_and_scatter_add")
    return add.bind(
        source,
        x,
        select_prim=find_primitive(_SELECTS[word]),
        window_dimensions=step.ints("window_dimensions", (1,) * x.ndim),
        window_strides=step.ints("window_strides", (1,) * x.ndim),
        padding=step.pairs("padding", x.ndim),
    )


def _sort(step: Step, *operands: Any) -> Any:
    """JAX sorts upwards by its first operands: those that the comparison reads."""
    block = step.op.regions[0].blocks[0]
    read = [bool(list(argument.uses)) for argument in block.arguments]
    keys = sum(read[::2])
    last = [op.operation for op in block.operations if op.operation.name == "stablehlo.compare"]
    words = {str(op.attributes["comparison_direction"])[-3:-1] for op in last}
    if read[: 2 * keys] != [True] * (2 * keys) or any(read[2 * keys :]) or "LT" not in words:
        raise step.refused(" downwards, or by operands that are not the first,")
    dim = step.number("dimension")
    stable = step.has("is_stable") and bool(step.op.attributes["is_stable"].value)
    done = lax.sort(operands, dimension=dim, is_stable=stable, num_keys=keys)
    return tuple(done)


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.sort": _sort,
}
