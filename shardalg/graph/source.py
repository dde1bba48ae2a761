"""Source line, named scopes and phase (forward, backward, update) of each equation of a jaxpr.

They are read from JAX's tracebacks and name stacks. This module does not import jax.
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
"""Files of this package that count as an installed package: the user's line is the calling one."""


KERNELS = {"dot_product_attention": os.path.join("jax", "_src", "nn", "functions.py")}
"""Functions of JAX that hardware runs as one fused kernel, and the ends of their files' paths."""


class Sources:
    """Reader of the source lines and named scopes of the equations of one jaxpr, with a cache.

    The keys of the cache are the `id`s of tracebacks and name stacks. They are valid only while the
    jaxpr exists, so an instance must not be used longer.
    """

    def __init__(self) -> None:
        """Find the folders of JAX, the standard library and this package; start empty caches."""
        specs = [importlib.util.find_spec(name) for name in ("jax", "jaxlib")]
        places = [p for spec in specs if spec for p in spec.submodule_search_locations or ()]
        places += [sysconfig.get_path("stdlib"), str(_PACKAGE)]
        self._hidden = tuple(f"{place.rstrip(os.sep)}{os.sep}" for place in places)
        # Models and the lab are written like a user's code, so their lines are shown.
        self._shown = tuple(f"{_PACKAGE / room}{os.sep}" for room in ("models", "lab"))
        # Caches, because many equations share frames, tracebacks and name stacks:
        #   _files: the printed name of a path.          _lines: the text of a place in code.
        #   _tracebacks, _kernels: the line and the kernel's name, by the id of a traceback.
        #   _foreign: the lines that belong to installed packages.
        #   _stacks: (flags, scopes) by the id of a name stack.
        #   _packages: whether a path belongs to a package.
        self._files: dict[str, str] = {}
        self._lines: dict[tuple[CodeType, int], str] = {}
        self._tracebacks: dict[int, str] = {}
        self._foreign: set[str] = set()
        self._stacks: dict[int, tuple[int, tuple[str, ...]]] = {}
        self._packages: dict[str, bool] = {}
        self._kernels: dict[int, str] = {}

    def line(self, traceback: object, caller: str = "") -> str:
        """Return the innermost line of the user, such as `model.py:41`, or "".

        If this line calls an installed package, the package's line follows in brackets:
        `model.py:41 (linear.py:271)`.

        Args:
          caller: the line of the calling equation. The traceback of a cached call ends at the call,
            so that the user's line is the caller's.
        """
        user_line = self._tracebacks.get(id(traceback))
        if user_line is None:
            user_line = self._tracebacks[id(traceback)] = self._innermost(traceback)
        if not user_line or (user_line in self._foreign and caller):
            return f"{own_line(caller)} ({user_line})" if user_line else caller
        return user_line

    def scope(self, name_stack: Any) -> tuple[int, tuple[str, ...]]:
        """Return the flags of a name stack and the user's named scopes, outermost first.

        The flags are the sum of JVP if the equation was differentiated, and of TRANSPOSE if it was
        transposed (backward pass). Names that JAX and packages add are no scopes of the user.
        """
        cached = self._stacks.get(id(name_stack))
        if cached is None:
            text = str(name_stack)
            flags = sum(flag for mark, flag in _MARKS if mark in text)
            names = (entry.name for entry in name_stack.stack if type(entry).__name__ == "Scope")
            words = (part for name in names for part in name.split("/"))
            scopes = tuple(p for p in words if p not in _JAX_NAMES and not _PACKAGE_NAMES.search(p))
            cached = self._stacks[id(name_stack)] = flags, scopes
        return cached

    def kernel(self, traceback: Any) -> str:
        """Return the name of the function of `KERNELS` in whose body an equation was traced, or "".

        Derivatives keep the traceback of the equation that they are derived from, so that the
        backward pass of such a function is in its body too.
        """
        cached = self._kernels.get(id(traceback))
        if cached is None:
            frames = () if traceback is None else traceback.raw_frames()[0]
            codes = (code for code in frames if code.co_name in KERNELS)
            names = (c.co_name for c in codes if c.co_filename.endswith(KERNELS[c.co_name]))
            cached = self._kernels[id(traceback)] = next(names, "")
        return cached

    def _innermost(self, traceback: Any) -> str:
        """Return the user's innermost line of a traceback, such as `model.py:41`, or "".

        If this line calls an installed package, the package's line follows in brackets. Without a
        line of the user, return the innermost line of a package.
        """
        if traceback is None:
            return ""
        files, library = self._files, ""
        # Frames are ordered from the innermost one, so the first line of the user is the innermost.
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
        """Return whether a file belongs to an installed package."""
        if path not in self._packages:
            is_package = "site-packages" in path or "dist-packages" in path
            self._packages[path] = is_package or path in _WRAPPERS
        return self._packages[path]

    def _line(self, code: CodeType, offset: int) -> str:
        """Return the file name and line, such as `model.py:41`, of a bytecode instruction.

        Args:
          offset: the position of the instruction in the bytecode of `code`.
        """
        key = (code, offset)
        if key not in self._lines:
            ranges = ((first, last, line) for first, last, line in code.co_lines() if line)
            # Python maps ranges of bytecode to lines; some ranges have no line.
            line = next((n for first, last, n in ranges if first <= offset < last), None)
            self._lines[key] = f"{self.file(code.co_filename)}:{line or code.co_firstlineno}"
        return self._lines[key]

    def file(self, path: str) -> str:
        """Return the name by which messages show a file, or "" for a file that they do not show.

        Files of the user and of installed packages are shown. Files of JAX, of the standard library
        and of most of this package are not. The name of a notebook cell is "cell".
        """
        if path not in self._files:
            folder, name = os.path.split(path)
            inside = [hidden for hidden in self._hidden if path.startswith(hidden)]
            # Packages are often installed in a folder of the standard library, which is hidden. A
            # package is not, because its line is shown next to the user's line.
            packages = ("site-packages", "dist-packages")
            installed = all(path[len(hidden) :].startswith(packages) for hidden in inside)
            is_hidden = (inside and not installed) or path.startswith("<frozen ")
            if is_hidden and not path.startswith(self._shown):
                name = ""
            elif os.path.basename(folder).startswith("ipykernel_"):
                name = "cell"
            self._files[path] = name
        return self._files[path]

    def is_own(self, path: str) -> bool:
        """Return whether a file is the user's own: in no installed package and not in this one."""
        if path.startswith(f"{_PACKAGE}{os.sep}"):
            return False
        return self.is_editable(path)

    def is_editable(self, path: str) -> bool:
        """Return whether a file may get edits: the user's own, and the models of this package."""
        return bool(self.file(path)) and not self._is_installed(path)


def own_line(source: str) -> str:
    """Return the user's line from `Node.source`, without the line of an installed package.

    >>> own_line("model.py:41 (linear.py:271)"), own_line("model.py:41")
    ('model.py:41', 'model.py:41')
    """
    return source.partition(" (")[0]


def within(outer: str, scopes: tuple[str, ...]) -> str:
    """Return the module of an equation in a call: the call's scopes, then the equation's scopes.

    If JAX splits a call, the new call repeats all scopes of the old one; they are counted once.

    >>> within("model", ("layers_0", "up")), within("", ("mlp", "mlp")), within("model", ())
    ('model/layers_0/up', 'mlp', 'model')
    """
    if not scopes:
        return outer
    # JAX pushes the scopes of a call that it splits a second time: (a, b, a, b) means (a, b).
    half = len(scopes) // 2
    once = scopes[:half] if half and scopes[:half] == scopes[half:] else scopes
    return "/".join((outer, *once) if outer else once)


_JAX_NAMES = frozenset({"", "~", "rematted_computation", "checkpoint"})
_PACKAGE_NAMES = re.compile("^eqx[.]|->")
"""Scopes of equinox' own classes, and of einsum."""


class Draft(NamedTuple):
    """A traced node before its phase is known.

    Its `flags` are the sum of JVP and TRANSPOSE, as `Sources.scope` returns them. The other fields
    are the fields of `Node`.
    """

    signature: Signature
    operands: tuple[int, ...]
    results: tuple[int, ...]
    source: str
    flags: int
    region: int
    bodies: tuple[int, ...]
    module: str = ""
    kernel: str = ""


def phases(drafts: Sequence[Draft], body_results: Mapping[int, Sequence[int]]) -> list[str]:
    """Return the phase of every node: "forward", "backward" or "update".

    A transposed equation is backward. Any other differentiated equation is forward. A call has the
    flags of its bodies. Of the remaining nodes, those that a differentiated node needs are forward
    (masks, casts of parameters), and the others are update. Without a backward node, all nodes are
    forward.

    Args:
      drafts: the nodes in order of execution, each call right after the nodes of its bodies.
      body_results: by region, the indices of the values that it returns.
    """
    flags, inside = [], dict[int, int]()
    for draft in drafts:
        flag = draft.flags
        for body in draft.bodies:
            flag |= inside.get(body, 0)
        flags.append(flag)
        # A call comes right after its bodies, so its flags are complete when it is reached.
        inside[draft.region] = inside.get(draft.region, 0) | flag & (JVP | TRANSPOSE)
    # Forward-mode derivatives alone have no backward pass.
    if not any(flag & TRANSPOSE for flag in flags):
        return ["forward"] * len(drafts)
    phase_of = [""] * len(drafts)
    needed: set[int] = set()
    # In reverse order all readers of a result come before its node.
    for i in range(len(drafts) - 1, -1, -1):
        draft, flag = drafts[i], flags[i]
        is_needed = not needed.isdisjoint(draft.results)
        if flag:
            phase_of[i] = "backward" if flag & TRANSPOSE else "forward"
        else:
            phase_of[i] = "forward" if is_needed else "update"
        if flag or is_needed:
            needed.update(draft.operands)
        if is_needed:
            needed.update(value for body in draft.bodies for value in body_results[body])
    return phase_of
