"""Error messages for functions that JAX cannot trace.

They name the function, the user's line, the arguments and the remedy.
"""

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
# JAX has no error class for a value whose sharding on explicit axes differs from a shard_map's
# specs. This part of the message identifies the error.
SPECS_DIFFER = "in_specs passed to shard_map"
_TRACING = f"{os.path.dirname(__file__)}{os.sep}"
# User code raises some of these errors too. So `refused` returns None for those that JAX did not
# raise because of the function or its arguments.
REFUSALS = (*_UNTRACEABLE, TypeError, ValueError, NameError, RuntimeError)


def refused(fn: Callable[..., Any], args: Sequence[Any], error: Exception) -> TraceError | None:
    """Return an error with a remedy for an exception that JAX raised while it traced `fn`.

    Return None if the exception's own message is clear.
    """
    if isinstance(error, RecursionError):
        return endless(fn, error)
    place = f"{function_name(fn)}{user_line(error)}"
    message = str(error).split("\n")[0]
    # Most of these classes are subclasses of TypeError, so they are tested before `_type_error`.
    if isinstance(error, _UNTRACEABLE):
        return TraceError(
            f"JAX cannot trace {place}: {message} Move decisions of Python out of the function, or "
            "write them with jax.numpy and jax.lax.cond. Make an argument that is a plain switch "
            "static: jax.jit(f, static_argnames=...)."
        )
    if SPECS_DIFFER in str(error):
        # The middle part of JAX's message has the specs, without JAX's own remedy.
        jax_words = str(error).split("`in_specs` is")[0].partition("shard_map: ")[2].strip()
        return TraceError(
            f"JAX does not trace the shard_map in {place}: the axes of its mesh are Explicit, and "
            f"its in_specs differ from the sharding of a value: {jax_words} Give the argument this "
            "sharding (in_shardings, or a NamedSharding), call jax.reshard before the shard_map, "
            "or create the mesh with axis_types=(jax.sharding.AxisType.Auto,) * n."
        )
    if str(error).startswith("Found an unbound axis name"):
        return TraceError(
            f"{place} names an axis of devices: {message} A planned function computes on whole "
            "arrays. Leave collectives to the plan, or write them in a jax.shard_map."
        )
    if isinstance(error, RuntimeError):
        fault = (
            f"a constraint in {place} needs a mesh: {error} Give the mesh to the plan, or use a "
        )
        return TraceError(f"{fault}NamedSharding or mesh_split.") if "mesh" in message else None
    type_error = _type_error(fn, error) if isinstance(error, TypeError) else None
    return type_error or _operator_error(fn, args, error)


def endless(fn: Callable[..., Any], error: RecursionError) -> TraceError:
    """Return an error for a recursion without end that names the functions that call each other.

    If no such functions are found, the error says that Python's limit of recursion is too low.
    """
    calls: Counter[tuple[str, str]] = Counter()
    sources = Sources()
    for frame, line in walk_tb(error.__traceback__):
        file = sources.file(frame.f_code.co_filename)
        # Frames of JAX and of this package have no name here, and no part in the message.
        if file:
            calls[frame.f_code.co_name, f"{file}:{line}"] += 1
    # Functions of an endless recursion occur many times in the traceback, their callers once.
    functions = [f"{name} ({place})" for (name, place), times in calls.items() if times > 20]
    if functions:
        whom = "itself" if len(functions) == 1 else "each other"
        verb = "calls" if len(functions) == 1 else "call"
        return TraceError(
            f"endless recursion in {function_name(fn)}: {', '.join(functions[:4])} {verb} {whom} "
            "until Python's limit of recursion. Give the recursion an end that depends on Python "
            "values."
        )
    return TraceError(
        f"Python's limit of recursion is reached while {function_name(fn)}{user_line(error)} is "
        "traced. If its recursion has an end, raise the limit with sys.setrecursionlimit."
    )


def _type_error(fn: Callable[..., Any], error: TypeError) -> TraceError | None:
    """Return an error with a remedy for a TypeError of JAX, or None if its message is clear."""
    size_names = _named_sizes(error)
    # Named sizes (`dims`) are variables of the user's innermost function, outside of the arguments.
    if size_names:
        return TraceError(
            f"{function_name(fn)}{user_line(error)} computes with {', '.join(size_names)}, but a "
            "traced function has numbers instead. Take sizes from shapes, such as x.shape[0], so "
            "that they follow the arguments."
        )
    if "JAX type" in str(error) or "JAX array type" in str(error):
        return TraceError(
            f"{function_name(fn)} cannot be planned{user_line(error)}: {error} Return and pass "
            "arrays only."
        )
    return None


def _operator_error(
    fn: Callable[..., Any], args: Sequence[Any], error: Exception
) -> TraceError | None:
    """Return an error that shows the arguments, if JAX raised the exception because of them.

    Also return one if an argument is a tuple of numbers, which was probably meant as a shape.
    Return None if the user's own code raised the exception.

    Args:
      fn, args: the function that was traced, and its arguments.
    """
    frames = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    # JAX removes its own frames from a traceback. The last one is then its caller, in this folder.
    by_jax = f"{os.sep}jax{os.sep}" in frames[-1] or frames[-1].startswith(_TRACING)
    sizes = [a for a in args if isinstance(a, tuple) and a and all(type(n) is int for n in a)]
    if not (by_jax or sizes):
        return None

    def short(leaf: Any) -> str:
        shape = getattr(leaf, "shape", None)
        return repr(leaf) if shape is None else f"{leaf.dtype}{list(shape)}"

    shown_args = ", ".join(str(jax.tree.map(short, arg)).replace("'", "") for arg in args)
    remedy = (
        f" {sizes[0]} is a tuple of numbers. An array of that shape is "
        f"jax.ShapeDtypeStruct({sizes[0]}, 'float32')."
        if sizes
        else " Give arguments whose shapes and types the function accepts."
    )
    # If the first line ends with a colon, a later line names the value.
    message, *more = (line for line in str(error).split("\n") if line)
    if message.endswith(":"):
        value_line = next((line for line in more if line.startswith("the passed ")), "")
        message = f"{message} {value_line}."
    place = f"{function_name(fn)}{user_line(error)}"
    return TraceError(f"JAX cannot trace {place} for ({shown_args}): {message}{remedy}")


def function_name(fn: Callable[..., Any]) -> str:
    """Return the name of a function, or of a callable object's class, for messages."""
    return getattr(fn, "__name__", type(fn).__name__)


def user_line(error: BaseException) -> str:
    """Return the user's innermost line before the error, such as ` (model.py:41)`, or ""."""
    sources, place = Sources(), ""
    for frame, line in walk_tb(error.__traceback__):
        file = sources.file(frame.f_code.co_filename)
        place = f" ({file}:{line})" if file else place
    return place


def _named_sizes(error: BaseException) -> list[str]:
    """Return the names of variables with a named size (`dims`) in the user's innermost function.

    This is the last function of the user in the traceback of the error.
    """
    sources, names = Sources(), []
    # The traceback goes from the outer to the inner calls, so the last function of the user
    # replaces the names of the earlier ones.
    for frame, _ in walk_tb(error.__traceback__):
        if sources.file(frame.f_code.co_filename):
            variables = {n: frame.f_globals.get(n) for n in frame.f_code.co_names} | frame.f_locals
            names = sorted(n for n, v in variables.items() if getattr(v, "free_symbols", None))
    return names
