"""Any call that a user writes, as one of a function of arrays."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from shardalg.errors import TraceError
from shardalg.planning.calls.call import Call, named, plain
from shardalg.planning.calls.equinox_call import is_equinox, of_equinox
from shardalg.planning.calls.jitted import is_jitted, of_jitted, of_trace
from shardalg.planning.calls.nnx_call import is_nnx, of_nnx


def opened(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """The call `fn(*args, **kwargs)`, from the outermost wrapper inwards.

    Args:
      fn: a function; one jitted by `jax.jit`, `eqx.filter_jit` or `nnx.jit`; or what
        `jax.jit(f).trace(...)` gives, which has its arguments.

    Raises:
      TraceError: it is none of these, or does not take these arguments.

    >>> opened(lambda x, scale: scale * x, (2.0,), {"scale": 3.0}).paths
    ('x', 'scale')
    """
    if hasattr(fn, "args_info") and hasattr(fn, "jaxpr"):
        return _of_trace(fn, args, kwargs)
    _check(fn, args, kwargs)
    if is_jitted(fn):
        return of_jitted(fn, args, kwargs)
    if is_nnx(fn, (args, kwargs)):
        return of_nnx(fn, args, kwargs)
    return (of_equinox if is_equinox(fn, (args, kwargs)) else plain)(fn, args, kwargs)


def _of_trace(traced: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    if args or kwargs:
        raise TraceError(
            f"{traced.fun_name} is traced already, with its arguments, and {len(args)} more are "
            "given. Pass the trace alone, or the function with its arguments."
        )
    return of_trace(traced)


def _check(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise unless `fn` is a function that takes the arguments, as far as its signature says."""
    if hasattr(fn, "compiler_ir") or hasattr(fn, "memory_analysis"):
        raise TraceError(
            f"{fn!r:.80} is lowered already, for one layout. Pass the function, or its trace: "
            "jax.jit(f).trace(...)."
        )
    if not callable(fn):
        raise TraceError(f"{fn!r:.80} is no function: pass what is called with the arguments.")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise TraceError(f"kwargs are a dict by the names of parameters, got {kwargs!r:.80}.")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # of a builtin nothing is known
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = [*map(_shown, args), *(f"{name}={_shown(value)}" for name, value in kwargs.items())]
        raise TraceError(
            f"{named(fn)} takes {signature}, and is given ({', '.join(given)}): {error}. Pass "
            "plan() an array or a jax.ShapeDtypeStruct for each parameter, and keyword arguments "
            "of the function as kwargs={...}."
        ) from None


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{value!r:.30}" if shape is None else f"{value.dtype}{list(shape)}"
