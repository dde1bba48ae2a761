"""Shorter tracebacks of exceptions that the user's function raises during tracing.

They contain the frames of the user's code, without the frames of JAX and of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_tb
from types import TracebackType
from typing import Any

from shardalg.graph.source import Sources


def users_only(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback reduced to the user's own frames, or None if there are none."""
    sources, own_frames = Sources(), []
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if sources.is_own(path):
            own_frames.append(traceback)
        traceback = traceback.tb_next
    reduced: TracebackType | None = None
    # A traceback refers to the next inner one, so build it from the innermost frame.
    for frame in reversed(own_frames):
        reduced = TracebackType(reduced, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return reduced


def passed_on(fn: Callable[..., Any], error: Exception) -> Exception:
    """Return the exception that tracing `fn` raised, with a traceback of the user's frames alone.

    A RecursionError becomes an error that names the functions that call each other. If no frame is
    the user's, the traceback is not changed.
    """
    from shardalg.graph.tracing.refused import endless

    if isinstance(error, RecursionError):
        clear_error = endless(fn, error)
        clear_error.__suppress_context__ = True
        return clear_error
    user_traceback = users_only(error.__traceback__)
    return error if user_traceback is None else error.with_traceback(user_traceback)


def user_lines(error: BaseException) -> list[str]:
    """Return the user's frames of an exception as Python prints them, outermost first.

    Each entry has the file, line number and function, and the source line below.
    """
    import linecache

    lines: list[Any] = []
    sources = Sources()
    for frame, number in walk_tb(error.__traceback__):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if sources.is_own(path):
            lines.append((path, number, name, linecache.getline(path, number).strip()))
    return [f'  File "{path}", line {n}, in {name}\n    {text}' for path, n, name, text in lines]
