"""What JAX does not trace, in the user's words: function, line, arguments, and the remedy."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from traceback import walk_tb
from typing import Any

import jax

from shardalg.errors import TraceError
from shardalg.graph.source import Sources

_UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.UnexpectedTracerError,
)
SPECS_DIFFER = "in_specs passed to shard_map"
"""JAX says so where the layout of a value on explicit axes is not that of a shard_map's specs."""
_TRACING = f"{os.path.dirname(__file__)}{os.sep}"
REFUSALS = (*_UNTRACEABLE, TypeError, ValueError, NameError, RuntimeError)
"""What JAX raises where it does not trace; users raise some of them too."""


def refused(fn: Callable[..., Any], args: Sequence[Any], error: Exception) -> TraceError | None:
    """What to do about an error that ended a trace; None where it says so itself."""
    if isinstance(error, RecursionError):
        return endless(fn, error)
    at = f"{function_name(fn)}{user_line(error)}"
    message = str(error).split("\n")[0]
    if isinstance(error, _UNTRACEABLE):
        return TraceError(
            f"JAX cannot trace {at}: {message} Compute what Python decides on outside the "
            "function, or with jax.numpy and jax.lax.cond; make an argument that is a plain switch "
            "static, by jax.jit(f, static_argnames=...)."
        )
    if SPECS_DIFFER in str(error):
        found = str(error).split("`in_specs` is")[0].partition("shard_map: ")[2].strip()
        return TraceError(
            f"JAX does not trace the shard_map in {at}: the axes of its mesh are Explicit, and "
            f"its in_specs differ from the layout of a value: {found} Give the argument this "
            "layout (in_shardings, or a NamedSharding), call jax.reshard before the shard_map, or "
            "make the mesh with axis_types=(jax.sharding.AxisType.Auto,) * n."
        )
    if str(error).startswith("Found an unbound axis name"):
        return TraceError(
            f"{at} names an axis of devices: {message} A planned function sees whole arrays: leave "
            "collectives to the plan, or put them into a jax.shard_map."
        )
    if isinstance(error, RuntimeError):
        needs = f"a constraint in {at} needs a mesh: {error} Give the mesh to the plan, or use a "
        return TraceError(f"{needs}NamedSharding or mesh_split.") if "mesh" in message else None
    typed = _typed(fn, error) if isinstance(error, TypeError) else None
    return typed or _inside(fn, args, error)


def endless(fn: Callable[..., Any], error: RecursionError) -> TraceError:
    """Return an error that names the functions of the user's that call each other."""
    calls: Counter[tuple[str, str]] = Counter()
    sources = Sources()
    for frame, line in walk_tb(error.__traceback__):
        file = sources.file(frame.f_code.co_filename)
        if file:
            calls[frame.f_code.co_name, f"{file}:{line}"] += 1
    found = [f"{name} ({place})" for (name, place), times in calls.items() if times > 20]
    if found:
        whom = "itself" if len(found) == 1 else "each other"
        verb = "calls" if len(found) == 1 else "call"
        return TraceError(
            f"endless recursion in {function_name(fn)}: {', '.join(found[:4])} {verb} {whom} until "
            "Python's limit of recursion. Give the recursion an end that depends on Python values."
        )
    return TraceError(
        f"Python's limit of recursion is reached while {function_name(fn)}{user_line(error)} is "
        "traced. If its recursion has an end, raise the limit with sys.setrecursionlimit."
    )


def _typed(fn: Callable[..., Any], error: TypeError) -> TraceError | None:
    """What the user did where JAX found a value of a wrong type; None where JAX says it itself."""
    named = _named_sizes(error)
    if named:
        return TraceError(
            f"{function_name(fn)}{user_line(error)} computes with {', '.join(named)}, where a "
            "traced function sees numbers. Take sizes from shapes, as in x.shape[0], so that they "
            "follow the arguments."
        )
    if "JAX type" in str(error) or "JAX array type" in str(error):
        return TraceError(
            f"{function_name(fn)} cannot be planned{user_line(error)}: {error} Return and pass "
            "arrays only."
        )
    return None


def _inside(fn: Callable[..., Any], args: Sequence[Any], error: Exception) -> TraceError | None:
    """What was computed with what, where JAX or Python's operators refuse it; else None.

    What the user's own code raises stays as it is.
    """
    frames = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    # JAX takes its own frames out: then its caller, which is ours, comes last.
    by_jax = f"{os.sep}jax{os.sep}" in frames[-1] or frames[-1].startswith(_TRACING)
    sizes = [a for a in args if isinstance(a, tuple) and a and all(type(n) is int for n in a)]
    if not (by_jax or sizes):
        return None
    given = ", ".join(map(_shown, args))
    shape = f" {sizes[0]} is a tuple of numbers: an array of that shape is " if sizes else ""
    remedy = (
        f"{shape}jax.ShapeDtypeStruct({sizes[0]}, 'float32')."
        if sizes
        else " Give arguments whose shapes and types the function takes."
    )
    message = _first_words(str(error))
    return TraceError(
        f"JAX cannot trace {function_name(fn)}{user_line(error)} for ({given}): {message}{remedy}"
    )


def _first_words(message: str) -> str:
    """The first line; where it ends in a colon, also the first that says of which value."""
    first, *more = (line for line in message.split("\n") if line)
    named = (line for line in more if line.startswith("the passed "))
    return f"{first} {next(named, '')}." if first.endswith(":") else first


def _shown(value: Any) -> str:
    """An argument by shapes and types."""
    types = jax.tree.map(_short, value)
    return str(types).replace("'", "")


def _short(leaf: Any) -> str:
    shape = getattr(leaf, "shape", None)
    return repr(leaf) if shape is None else f"{leaf.dtype}{list(shape)}"


def function_name(fn: Callable[..., Any]) -> str:
    """What messages call a function."""
    return getattr(fn, "__name__", type(fn).__name__)


def user_line(error: BaseException) -> str:
    """` (model.py:41)`, the user's innermost line on the way to the error."""
    sources, place = Sources(), ""
    for frame, line in walk_tb(error.__traceback__):
        file = sources.file(frame.f_code.co_filename)
        place = f" ({file}:{line})" if file else place
    return place


def _named_sizes(error: BaseException) -> list[str]:
    """Named sizes that the user's innermost function on the way to the error has at hand."""
    sources, found = Sources(), []
    for frame, _ in walk_tb(error.__traceback__):
        if sources.file(frame.f_code.co_filename):
            seen = {n: frame.f_globals.get(n) for n in frame.f_code.co_names} | frame.f_locals
            found = sorted(n for n, v in seen.items() if getattr(v, "free_symbols", None))
    return found
