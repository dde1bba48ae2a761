"""Locations of operators, as frames of a traceback and as JAX's name stack."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

from jax.extend import source_info_util

_FRAME = re.compile(r'(?:"((?:[^"\\]|\\.)*)"\()?"((?:[^"\\]|\\.)*)":(\d+):\d+')
_NAME = re.compile(r'^loc\("((?:[^"\\]|\\.)*)"')
_CALLED = re.compile(r"^(?:jit|pjit|checkpoint|remat)\(.*\)$")

Frames = tuple[tuple[str, int], ...]
"""File and line, the innermost first."""


def frames(location: str, path: str) -> Frames:
    """Return the files and lines of a location, innermost first.

    Args:
      path: path of the text, for which the parser writes "-".

    >>> frames('loc("mul"(callsite("f"("a.py":3:1 to :5) at "g"("b.py":7:1))))', "p.mlir")
    (('a.py', 3), ('b.py', 7))
    >>> frames('loc("-":8:3)', "p.mlir")
    (('p.mlir', 8),)
    """
    found = _FRAME.finditer(location)
    return tuple((path if m[2] == "-" else m[2], int(m[3])) for m in found)


def shown(location: str, path: str) -> str:
    """Return a location for messages: its innermost line, `model.py:41`."""
    return next((f"{file}:{line}" for file, line in frames(location, path)), path)


def called_from(places: Frames, fn: Callable[..., Any], *args: Any) -> Any:
    """Return `fn(*args)`, called with these files and lines above it in the traceback.

    >>> import traceback
    >>> stack = called_from((("a.py", 3), ("b.py", 7)), traceback.extract_stack)
    >>> [(frame.filename, frame.lineno) for frame in stack if frame.filename in ("a.py", "b.py")]
    [('b.py', 7), ('a.py', 3)]
    """
    for file, line in places:
        args, fn = (fn, *args), _frame(file, line)
    return fn(*args)


@cache
def _frame(file: str, line: int) -> Callable[..., Any]:
    """Return a function at this line that calls its first argument."""

    def call(fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)

    # The call itself is one line below the first.
    code = call.__code__.replace(co_filename=file, co_firstlineno=line - 1)
    return FunctionType(code, {})


@contextmanager
def scoped(location: str) -> Iterator[None]:
    """Set JAX's name stack to the scopes of a location.

    `jit(f)/transpose(jvp(mlp))/dot_general` has scope `mlp` in transforms `transpose`, `jvp`.
    """
    parts = _parts(location)
    if not parts:
        yield
        return
    # JAX prints transforms around the outermost scope, the outermost transform first.
    transforms, name = [], parts[0]
    while match := re.match(r"^(transpose|jvp|vmap)\((.*)\)$", name):
        transforms.append(match[1])
        name = match[2]
    rest = "/".join(parts[1:])
    with _inside(transforms, "/".join(filter(None, (name, rest)))):
        yield


def _parts(location: str) -> list[str]:
    """Return the scopes of a location, without called functions and the operator's own name.

    >>> _parts('loc("jit(f)/transpose(jvp(mlp/up))/jit(relu)/dot_general"("a.py":1:1))')
    ['transpose(jvp(mlp/up))']
    >>> _parts('loc("a.py":1:1)')
    []
    """
    match = _NAME.match(location)
    if match is None or location.startswith(f'loc("{match[1]}":'):
        return []
    parts = _split(match[1])
    return [part for part in parts[:-1] if not _CALLED.match(part)]


def _split(text: str) -> list[str]:
    """Split a path at the slashes that are outside of parentheses.

    E.g. "jit(f)/transpose(a/b)/mul" gives ["jit(f)", "transpose(a/b)", "mul"].
    """
    parts, depth = [""], 0
    for letter in text:
        # `depth` is the number of parentheses that are open.
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


@contextmanager
def _inside(transforms: list[str], scope: str) -> Iterator[None]:
    """Extend JAX's name stack by transforms, the outermost first, and then by a scope.

    The body of the `with` statement runs inside of all of them.
    """
    # Each transform is a context around the rest, so that the last call adds the scope.
    if transforms:
        with source_info_util.transform_name_stack(transforms[0]), _inside(transforms[1:], scope):
            yield
    elif scope:
        with source_info_util.extend_name_stack(scope):
            yield
    else:
        yield
