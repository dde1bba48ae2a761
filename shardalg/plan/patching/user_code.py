"""The user's Python functions that a trace runs, and their replacement by edited source.

Only the code of live functions is replaced, for the duration of a trace: modules are not run again.
"""

from __future__ import annotations

import ast
import gc
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any, TypeVar

from shardalg.graph.source import Sources

Result = TypeVar("Result")
_Key = tuple[str, int, tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class UserFile:
    """A file, or a cell of a notebook, with functions of the user that a trace runs.

    Attributes:
      path: the name of the file as Python knows it.
      text: its source.
      functions: the live functions whose code is replaced.
    """

    path: str
    text: str
    functions: tuple[FunctionType, ...]

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of the source."""
        return ast.parse(self.text, self.path)

    @cached_property
    def keys(self) -> list[_Key]:
        """Name and place of each function in the source, in their order."""
        return [_key(code) for code in _codes(compile(self.text, self.path, "exec"))]

    def edited(self, source: str | ast.Module) -> dict[FunctionType, CodeType]:
        """Return the code of each live function as another source has it.

        Args:
          source: text or tree with the same functions in the same order.
        """
        # An edit moves lines, so functions of the two sources are paired by their order.
        new = _codes(compile(source, self.path, "exec", dont_inherit=True))
        pairs = dict(zip(self.keys, new, strict=True))
        return {function: pairs[_key(function.__code__)] for function in self.functions}


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of all functions inside of a compiled source, in their order."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes(const)


def _key(code: CodeType) -> _Key:
    """Return the name and the place of a function in its file; lambdas of a line have columns."""
    place = next((p for p in code.co_positions() if p[2]), ()) if "<" in code.co_name else ()
    return code.co_qualname, code.co_firstlineno, tuple(place)


def user_files(run: Callable[[], Result]) -> tuple[Result, tuple[UserFile, ...]]:
    """Call a function, and return its result with the user's files whose functions it ran.

    Functions without source, or whose file has changed since it was loaded, are left out.
    """
    sources, known = Sources(), {}
    ran: dict[int, CodeType] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            path = code.co_filename
            if path not in known:
                known[path] = sources.is_editable(path)
            if known[path]:
                ran[id(code)] = code

    # The profiler of Python is told of every call. That of the user is set again afterwards.
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = run()
    finally:
        sys.setprofile(before)
    return result, _files(ran)


def _files(ran: Mapping[int, CodeType]) -> tuple[UserFile, ...]:
    """Return the files of some code objects, with the live functions that have this code."""
    live: dict[str, list[FunctionType]] = {}
    for found in gc.get_objects():
        if type(found) is FunctionType and id(found.__code__) in ran:
            live.setdefault(found.__code__.co_filename, []).append(found)
    files = []
    for path, functions in sorted(live.items()):
        linecache.checkcache(path)
        text = "".join(linecache.getlines(path))
        try:
            whole = UserFile(path, text, tuple(functions))
            kept = tuple(f for f in functions if _key(f.__code__) in whole.keys)
        except SyntaxError:
            continue
        if kept:
            files.append(UserFile(path, text, kept))
    return tuple(files)


@contextmanager
def replaced(
    files: Sequence[UserFile], sources: Sequence[str | ast.Module], names: Mapping[str, Any]
) -> Iterator[None]:
    """Run the functions of files by other sources inside of the context.

    JAX's caches are cleared before and after, because they have results of the other code.

    Args:
      files: the user's files.
      sources: for each file, the text or tree that replaces its source.
      names: global names that the other sources use.
    """
    import jax

    new: dict[FunctionType, CodeType] = {}
    for file, source in zip(files, sources, strict=True):
        new |= file.edited(source)
    old = {function: function.__code__ for function in new}
    added = [
        (function.__globals__, name)
        for function in new
        for name in names
        if name not in function.__globals__
    ]
    jax.clear_caches()
    try:
        for function, code in new.items():
            function.__code__ = code
        for space, name in added:
            space[name] = names[name]
        yield
    finally:
        for function, code in old.items():
            function.__code__ = code
        for space, name in added:
            space.pop(name, None)
        jax.clear_caches()
