"""The user's Python functions that a trace runs, and their replacement by edited source.

Only the code of live functions is replaced, for the duration of a trace: modules are not run again.
"""

from __future__ import annotations

import ast
import gc
import io
import linecache
import os
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
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
      text: its source, with its own ends of lines.
      functions: the live functions whose code is replaced.
      encoding: the encoding of the file.
    """

    path: str
    text: str
    functions: tuple[FunctionType, ...]
    encoding: str = "utf-8"

    @cached_property
    def lines(self) -> list[str]:
        """The lines as Python and git count them, with their ends."""
        return source_lines(self.text)

    @property
    def line_end(self) -> str:
        """The end of the file's lines."""
        return "\r\n" if "\r\n" in self.text else "\n"

    @cached_property
    def local_names(self) -> frozenset[str]:
        """Names that some function of the file binds, so that they hide global ones."""
        codes = _codes(compile(self.text, self.path, "exec"))
        return frozenset(n for c in codes for n in (*c.co_varnames, *c.co_cellvars))

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of the source."""
        return ast.parse(self.text, self.path)

    @cached_property
    def codes(self) -> dict[_Key, CodeType]:
        """The code of each function in the source by its name and place, in their order."""
        return {_key(code): code for code in _codes(compile(self.text, self.path, "exec"))}

    def has(self, function: FunctionType) -> bool:
        """Return whether the source has the code of a live function, so that an edit applies to it.

        False if the file changed since the function was loaded.
        """
        code, source_code = function.__code__, self.codes.get(_key(function.__code__))
        if source_code is None:
            return False
        # Pytest rewrites the assertions of test modules, so their code differs from the source.
        if "@pytest_ar" in function.__globals__:
            return True
        return source_code.co_code == code.co_code and _plain(source_code) == _plain(code)

    def edited(self, source: str | ast.Module) -> dict[FunctionType, CodeType]:
        """Return the code of each live function as another source has it.

        Args:
          source: text or tree with the same functions in the same order.
        """
        # An edit moves lines, so functions of the two sources are paired by their order.
        new = _codes(compile(source, self.path, "exec", dont_inherit=True))
        pairs = dict(zip(self.codes, new, strict=True))
        return {function: pairs[_key(function.__code__)] for function in self.functions}


def source_lines(text: str) -> list[str]:
    r"""Return the lines of a source with their ends; a form feed ends no line.

    >>> source_lines("a\x0cb\r\nc")
    ['a\x0cb\r\n', 'c']
    """
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)


def _plain(code: CodeType) -> tuple[object, ...]:
    """Return the names and the constants of a function, without the functions inside."""
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_names, code.co_varnames, constants


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
        """Record the code of a called function if its file may be edited (`known`, by path)."""
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
    """Return the files of some code objects, with the live functions that have this code.

    Args:
      ran: the code objects by their `id`. They stay alive here, so that no `id` is used again.
    """
    live: dict[str, list[FunctionType]] = {}
    for found in gc.get_objects():
        if type(found) is FunctionType and id(found.__code__) in ran:
            live.setdefault(found.__code__.co_filename, []).append(found)
    files = []
    for path, functions in sorted(live.items()):
        # Only functions whose code is that of the source can be edited. A file that Python cannot
        # read any more has none.
        try:
            text, encoding = _source(path)
            whole = UserFile(path, text, tuple(functions), encoding)
            unchanged = tuple(filter(whole.has, functions))
        except (SyntaxError, ValueError):
            continue
        if unchanged:
            files.append(UserFile(path, text, unchanged, encoding))
    return tuple(files)


def _source(path: str) -> tuple[str, str]:
    """Return the source of a file as it is on the disk, or of a cell, and its encoding.

    Raises:
      SyntaxError, ValueError: the file has another encoding than it says.
    """
    if not os.path.isfile(path):
        return "".join(linecache.getlines(path)), "utf-8"
    data = Path(path).read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding), encoding


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

    # The functions stay the same objects, so that all references to them run the other code.
    new: dict[FunctionType, CodeType] = {}
    for file, source in zip(files, sources, strict=True):
        new |= file.edited(source)
    old = {function: function.__code__ for function in new}
    # A name that the user's module has already is left as it is, and is not removed afterwards.
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
