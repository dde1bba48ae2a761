"""Where in the user's files an equation comes from, and what its name stack says. No jax here.

Forward, backward or update: read off JAX's name stacks.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from shardalg.graph.ir import Signature

JVP, TRANSPOSE = 1, 2
_MARKS = (("transpose(", TRANSPOSE), ("jvp(", JVP))
_PACKAGE = Path(__file__).resolve().parents[1]
_WRAPPERS = frozenset({str(_PACKAGE / "models" / "pipeline.py")})
"""Files of ours that users call as they call a package's: the calling line is theirs."""


class Sources:
    """Reads tracebacks and name stacks of one jaxpr, each distinct one once.

    Objects are remembered by identity, so an instance must not outlive the jaxpr it reads.
    """

    def __init__(self) -> None:
        self._hidden = _hidden_folders()
        self._shown = tuple(f"{_PACKAGE / room}{os.sep}" for room in ("models", "lab"))
        self._files: dict[str, str] = {}
        self._lines: dict[tuple[CodeType, int], str] = {}
        self._tracebacks: dict[int, str] = {}
        self._foreign: set[str] = set()
        self._stacks: dict[int, tuple[int, tuple[str, ...]]] = {}
        self._packages: dict[str, bool] = {}

    def line(self, traceback: object, caller: str = "") -> str:
        """`model.py:41`, the innermost frame that is the user's; "" where there is none.

        Behind a line outside of installed packages stands the line of one that it calls, in
        brackets: `model.py:41 (linear.py:271)`.

        Args:
          caller: the line of the calling equation: JAX cuts tracebacks at calls that it caches,
            and there it is the user's.
        """
        found = self._tracebacks.get(id(traceback))
        if found is None:
            found = self._tracebacks[id(traceback)] = self._innermost(traceback)
        if not found or (found in self._foreign and caller):
            return f"{own_line(caller)} ({found})" if found else caller
        return found

    def scope(self, name_stack: Any) -> tuple[int, tuple[str, ...]]:
        """JVP and TRANSPOSE, as the name stack says them, and its named scopes."""
        found = self._stacks.get(id(name_stack))
        if found is None:
            text = str(name_stack)
            flags = sum(flag for mark, flag in _MARKS if mark in text)
            found = self._stacks[id(name_stack)] = flags, _scopes(name_stack)
        return found

    def _innermost(self, traceback: Any) -> str:
        """The innermost line of the user's own, and the one of a package that it calls there."""
        if traceback is None:
            return ""
        files, library = self._files, ""
        for code, offset in zip(*traceback.raw_frames(), strict=True):
            path = code.co_filename
            if not (files[path] if path in files else self.file(path)):
                continue
            if not self._is_installed(path):
                line = self._line(code, offset)
                return f"{line} ({library})" if library else line
            library = library or self._line(code, offset)
        self._foreign.add(library)
        return library

    def _is_installed(self, path: str) -> bool:
        if path not in self._packages:
            kept = "site-packages" in path or "dist-packages" in path
            self._packages[path] = kept or path in _WRAPPERS
        return self._packages[path]

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

    def is_own(self, path: str) -> bool:
        """Return whether a file is the user's own: of no installed package, and not of this one."""
        if path.startswith(f"{_PACKAGE}{os.sep}"):
            return False
        return bool(self.file(path)) and not self._is_installed(path)

    def _shown_name(self, path: str) -> str:
        hidden = path.startswith((*self._hidden, "<frozen "))
        if hidden and not path.startswith(self._shown) and not _installed(path, self._hidden):
            return ""
        folder, name = os.path.split(path)
        return "cell" if os.path.basename(folder).startswith("ipykernel_") else name


def own_line(source: str) -> str:
    """The user's own line of a source, without the package's behind it.

    >>> own_line("model.py:41 (linear.py:271)"), own_line("model.py:41")
    ('model.py:41', 'model.py:41')
    """
    return source.partition(" (")[0]


def within(outer: str, scopes: tuple[str, ...]) -> str:
    """The scopes of an equation behind those of the call that it is in.

    A call that JAX makes of a part of another has the scopes of that one again.

    >>> within("model", ("layers_0", "up")), within("", ("mlp", "mlp")), within("model", ())
    ('model/layers_0/up', 'mlp', 'model')
    """
    if not scopes:
        return outer
    half = len(scopes) // 2
    once = scopes[:half] if half and scopes[:half] == scopes[half:] else scopes
    return "/".join((outer, *once) if outer else once)


def _scopes(name_stack: Any) -> tuple[str, ...]:
    """The named scopes of a stack, without what JAX and packages add of their own."""
    names = (entry.name for entry in name_stack.stack if type(entry).__name__ == "Scope")
    parts = (part for name in names for part in name.split("/"))
    return tuple(part for part in parts if part not in _UNSAID and not _FOREIGN.search(part))


_UNSAID = frozenset({"", "~", "rematted_computation", "checkpoint"})
_FOREIGN = re.compile("^eqx[.]|->")
"""Scopes of equinox' own classes, and of einsum."""


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


class Draft(NamedTuple):
    """A node whose phase is not known yet; `flags` are JVP and TRANSPOSE of its name stack."""

    signature: Signature
    operands: tuple[int, ...]
    results: tuple[int, ...]
    source: str
    flags: int
    region: int
    bodies: tuple[int, ...]
    module: str = ""


def phases(drafts: Sequence[Draft], body_results: Mapping[int, Sequence[int]]) -> list[str]:
    """The phase of every node.

    A transposed equation is backward and any other differentiated one forward; a call is what its
    body is. Of the rest, what a differentiated node needs is forward (masks, casts of parameters)
    and what none needs is update. Without any backward node everything is forward.

    Args:
      drafts: in order of execution, a call right behind its bodies.
      body_results: region to the values that its call hands on.
    """
    flags = _with_bodies(drafts)
    if not any(flag & TRANSPOSE for flag in flags):
        return ["forward"] * len(drafts)
    found = [""] * len(drafts)
    needed: set[int] = set()
    for i in range(len(drafts) - 1, -1, -1):
        draft, flag = drafts[i], flags[i]
        wanted = not needed.isdisjoint(draft.results)
        if flag:
            found[i] = "backward" if flag & TRANSPOSE else "forward"
        else:
            found[i] = "forward" if wanted else "update"
        if flag or wanted:
            needed.update(draft.operands)
        if wanted:
            needed.update(value for body in draft.bodies for value in body_results[body])
    return found


def _with_bodies(drafts: Sequence[Draft]) -> list[int]:
    """Flags per node, a call's joined with those of its bodies."""
    flags, inside = [], dict[int, int]()
    for draft in drafts:
        flag = draft.flags
        for body in draft.bodies:
            flag |= inside.get(body, 0)
        flags.append(flag)
        inside[draft.region] = inside.get(draft.region, 0) | flag & (JVP | TRANSPOSE)
    return flags
