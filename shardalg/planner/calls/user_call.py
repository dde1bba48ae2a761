"""Conversion of any function and arguments that a user passes to a `Call` (`opened`).

The module also converts calls with equinox modules: arrays are traced, and all other leaves are
constants.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_flatten_with_path

from shardalg.errors import TraceError
from shardalg.planner.calls.call import Call, Inner, Returned, leaf_paths, named, plain
from shardalg.planner.calls.found_roles import Framework, Path, named_modules, plain_function
from shardalg.planner.calls.jitted import is_jitted, of_jitted, of_trace
from shardalg.planner.calls.nnx_call import is_nnx, of_nnx


def is_equinox(fn: Any, args: Any) -> bool:
    """Return whether `eqx.filter_jit` jitted `fn`, or an argument contains an equinox module."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return False
    return _is_filtered(fn) or bool(_modules(args, equinox.Module))


def _modules(tree: Any, base: type) -> list[Any]:
    """Return the modules in a pytree that are not inside of other modules.

    Args:
      base: the base class of all modules.
    """
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, base))
    return [node for node in nodes if isinstance(node, base)]


def _framework() -> Framework:
    """Return how equinox nests modules and stores their methods, as a `Framework`."""
    base = sys.modules["equinox"].Module

    def inside(module: Any) -> Iterator[tuple[Path, Any]]:
        """Yield (path, module) for a module and all modules inside of it."""
        # The names of fields are known only at the module that has them. So a flattening stops at
        # the modules directly inside of this one, and these yield the deeper ones.
        yield (), module
        below = tree_flatten_with_path(
            module, is_leaf=lambda node: isinstance(node, base) and node is not module
        )
        for path, node in below[0]:
            if isinstance(node, base):
                here = tuple(getattr(k, "name", getattr(k, "idx", str(k))) for k in path)
                yield from (((*here, *rest), found) for rest, found in inside(node))

    # equinox wraps the methods of a class in objects with the attribute `method`.
    def function(attribute: Any) -> FunctionType | None:
        """Return the Python function of a class attribute; None if it is no method."""
        return plain_function(getattr(attribute, "method", attribute))

    def put(attribute: Any, function: Callable[..., Any]) -> Any:
        """Return what replaces a class attribute, so that the method runs another function."""
        return function if isinstance(attribute, FunctionType) else type(attribute)(function)

    return Framework(base, inside, function, put)


def _is_filtered(fn: Any) -> bool:
    """Return whether an object is a function that `eqx.filter_jit` returned."""
    return type(fn).__module__ == "equinox._jit" and hasattr(fn, "donate_first")


def of_equinox(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a function with its arguments, which contain equinox modules, as a `Call`.

    `Call.fn` takes and returns arrays only, as functions inside of `eqx.filter_jit` do. Other
    leaves, such as activation functions, are constants. Constants in the arguments have the values
    of this call, and constants in the results have the values of the trace.
    """
    inner: Callable[..., Any] = fn.__wrapped__ if _is_filtered(fn) else fn
    # The leaves of the arguments are arrays, whose numbers are in `array_places`, and constants.
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    static = [None if _is_array(leaf) else leaf for leaf in leaves]
    array_places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]
    call = plain(inner, args, kwargs)
    # The tree of the results and their constants are known only after a trace: `of_arrays` writes
    # them here, and the conversion of the results reads them.
    results: list[tuple[Any, list[Any]]] = []
    framework = _framework()

    def of_arrays(*arrays: Any) -> tuple[Any, ...]:
        """Run the user's function on the arrays, and return the arrays among its results."""
        all_leaves = list(static)
        for place, array in zip(array_places, arrays, strict=True):
            all_leaves[place] = array
        positional, named = jax.tree.unflatten(tree, all_leaves)
        with named_modules(framework, _modules((positional, named), framework.base)):
            result = inner(*positional, **named)
        result_leaves, result_tree = jax.tree.flatten(result)
        # Only leaves that the trace computed can be results of a planned program. The others, for
        # example an activation function in a returned module, are constants of the call.
        results[:] = [(result_tree, [None if _is_traced(x) else x for x in result_leaves])]
        return tuple(x for x in result_leaves if _is_traced(x))

    def through(run: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call `run` with the arrays in the arguments, and put constants back into its results."""
        flat = jax.tree.leaves((args, kwargs))
        _check_static(static, flat)
        arrays = run(*(leaf for leaf in flat if _is_array(leaf)))
        # `constants` has None in place of each computed leaf, which is filled from `arrays` in
        # order.
        result_tree, constants = results[0]
        rest = iter(arrays)
        result_leaves = [next(rest) if x is None else x for x in constants]
        return jax.tree.unflatten(result_tree, result_leaves)

    def returned(_: Any) -> Returned:
        """Return which leaves of the user's result the program computes, by their numbers."""
        # equinox replaces no state in place, so every computed leaf is one of the user's results.
        result_tree, constants = results[0]
        places = tuple(i for i, leaf in enumerate(constants) if leaf is None)
        numbered = jax.tree.unflatten(result_tree, range(len(constants)))
        return Returned((None,) * len(places), numbered, places)

    paths = leaf_paths(inner, args, kwargs)
    is_donated = _donated(fn, args, kwargs)
    return replace(
        call,
        fn=of_arrays,
        args=tuple(leaves[i] for i in array_places),
        paths=tuple(paths[i] for i in array_places),
        through=through,
        places=tuple(array_places),
        returned=returned,
        donated=tuple(n for n, i in enumerate(array_places) if is_donated[i]),
    )


def _check_static(planned: Sequence[Any], given: Sequence[Any]) -> None:
    """Raise unless all leaves that are not arrays equal those with which the call was planned.

    Args:
      planned: the planned leaves, None in place of arrays.
      given: the leaves of another call.

    Raises:
      TraceError: a leaf differs.
    """
    pairs = zip(planned, given, strict=False)
    other = [(was, now) for was, now in pairs if was is not None and was is not now and was != now]
    if other:
        was, now = other[0]
        raise TraceError(
            f"an argument is {now!r:.60}, planned was {was!r:.60}: what is no array makes another "
            "function. Plan it for that."
        )


def _donated(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[bool]:
    """Return per leaf of the arguments whether `eqx.filter_jit` donates its memory."""
    # `eqx.filter_jit(donate="all-except-first")` and the like set these two attributes: one for the
    # first argument, and one for all others.
    first, rest = getattr(fn, "donate_first", False), getattr(fn, "donate_rest", False)
    owners = [*args, dict(kwargs)]
    return [first if i == 0 else rest for i, arg in enumerate(owners) for _ in jax.tree.leaves(arg)]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array)


def opened(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return `fn(*args, **kwargs)` as a `Call`: a function of arrays, and the conversion to it.

    Args:
      fn: a function, also one jitted by `jax.jit`, `eqx.filter_jit` or `nnx.jit`. It can also be
        the result of `jax.jit(f).trace(...)`, which contains its arguments.

    Raises:
      TraceError: `fn` is none of these, or does not take these arguments.

    >>> opened(lambda x, scale: scale * x, (2.0,), {"scale": 3.0}).paths
    ('x', 'scale')
    """
    if hasattr(fn, "args_info") and hasattr(fn, "jaxpr"):
        return _of_trace(fn, args, kwargs)
    _check(fn, args, kwargs)
    # A jitted function comes first: its shardings, donation and static arguments count even if
    # arguments are modules.
    if is_jitted(fn):
        return of_jitted(fn, args, kwargs)
    if is_nnx(fn, (args, kwargs)):
        return of_nnx(fn, args, kwargs)
    return (of_equinox if is_equinox(fn, (args, kwargs)) else plain)(fn, args, kwargs)


def _of_trace(traced: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return the result of `jax.jit(f).trace(...)` as a `Call`.

    Raises:
      TraceError: arguments are given in addition to those of the trace.
    """
    if args or kwargs:
        raise TraceError(
            f"{traced.fun_name} is traced already, with its arguments, and {len(args)} more are "
            "given. Pass the trace alone, or the function with its arguments."
        )
    return of_trace(traced)


def _check(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise unless `fn` is a function whose signature accepts the arguments.

    Raises:
      TraceError: `fn` is no function, or does not take the arguments.
    """
    # The results of `.lower()` and `.compile()` have these attributes. They have shardings already,
    # and no jaxpr that could be planned.
    if hasattr(fn, "compiler_ir") or hasattr(fn, "memory_analysis"):
        raise TraceError(
            f"{fn!r:.80} is lowered already, for one layout. Pass the function, or its trace: "
            "jax.jit(f).trace(...)."
        )
    if not callable(fn):
        raise TraceError(f"{fn!r:.80} is no function: pass what is called with the arguments.")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise TraceError(f"kwargs are a dict by the names of parameters, got {kwargs!r:.80}.")
    # The call is tried on the signature alone, because an error from inside of the function would
    # not say which argument is wrong.
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
