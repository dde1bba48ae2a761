"""Where in the user's files an equation comes from, and what its name stack says. No jax here."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from types import CodeType
from typing import Any

JVP, TRANSPOSE = 1, 2
_MARKS = (("transpose(", TRANSPOSE), ("jvp(", JVP))
_PACKAGE = Path(__file__).resolve().parents[1]


class Sources:
    """Reads tracebacks and name stacks of one jaxpr, each distinct one once.

    Objects are remembered by identity, so an instance must not outlive the jaxpr it reads.
    """

    def __init__(self) -> None:
        self._hidden = _hidden_folders()
        self._shown = tuple(
            f"{_PACKAGE / room}{os.sep}" for room in ("models", "paper", "examples")
        )
        self._files: dict[str, str] = {}
        self._lines: dict[tuple[CodeType, int], str] = {}
        self._tracebacks: dict[int, str] = {}
        self._stacks: dict[int, int] = {}

    def line(self, traceback: object) -> str:
        """`model.py:41`, the innermost frame that is the user's; "" where there is none.

        JAX cuts tracebacks at its own cached `jit`s: there the calling equation's line counts.
        """
        found = self._tracebacks.get(id(traceback))
        if found is None:
            found = self._tracebacks[id(traceback)] = self._innermost(traceback)
        return found

    def flags(self, name_stack: object) -> int:
        """JVP and TRANSPOSE, as the name stack says them."""
        found = self._stacks.get(id(name_stack))
        if found is None:
            text = str(name_stack)
            found = sum(flag for mark, flag in _MARKS if mark in text)
            self._stacks[id(name_stack)] = found
        return found

    def _innermost(self, traceback: Any) -> str:
        if traceback is None:
            return ""
        files = self._files
        for code, offset in zip(*traceback.raw_frames(), strict=True):
            path = code.co_filename
            if files[path] if path in files else self.file(path):
                return self._line(code, offset)
        return ""

    def _line(self, code: CodeType, offset: int) -> str:
        key = (code, offset)
        if key not in self._lines:
            spans = ((first, last, line) for first, last, line in code.co_lines() if line)
            line = next((n for first, last, n in spans if first <= offset < last), None)
            self._lines[key] = f"{self.file(code.co_filename)}:{line or code.co_firstlineno}"
        return self._lines[key]

    def file(self, path: str) -> str:
        """The name to show for a user's file, "" for a file that is not the user's."""
        if path not in self._files:
            self._files[path] = self._shown_name(path)
        return self._files[path]

    def _shown_name(self, path: str) -> str:
        hidden = path.startswith((*self._hidden, "<frozen "))
        if hidden and not path.startswith(self._shown) and not _installed(path, self._hidden):
            return ""
        folder, name = os.path.split(path)
        return "cell" if os.path.basename(folder).startswith("ipykernel_") else name


def _hidden_folders() -> tuple[str, ...]:
    """Folders whose frames are not the user's: jax, the standard library, this package."""
    specs = [importlib.util.find_spec(name) for name in ("jax", "jaxlib")]
    places = [p for spec in specs if spec for p in spec.submodule_search_locations or ()]
    places += [sysconfig.get_path("stdlib"), str(_PACKAGE)]
    return tuple(f"{place.rstrip(os.sep)}{os.sep}" for place in places)


def _installed(path: str, hidden: tuple[str, ...]) -> bool:
    """Whether `path` is a package that merely lies below the standard library's folder."""
    inside = [folder for folder in hidden if path.startswith(folder)]
    return bool(inside) and all(
        path[len(folder) :].startswith(("site-packages", "dist-packages")) for folder in inside
    )
