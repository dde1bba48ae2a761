"""Named scopes for modules of frameworks that give them none: each by its place in its parent.

linen and haiku run every module in a `jax.named_scope` of its name; modules of nnx and equinox do
not know their names. While a function is traced, methods of their classes run in a scope: of a
module inside the one that calls it, its place there (`layers_3/mlp`), of any other its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FunctionType
from typing import Any, NamedTuple

import jax

Path = tuple[Any, ...]
"""Keys from a module to one inside of it: attributes, and places in lists."""


class Framework(NamedTuple):
    """What must be known of a framework's modules.

    Attributes:
      base: their class. inside: (path, module) of each module in a module, itself too.
      function: of what a class holds under a method's name, the function, or None.
      held: of another function, what the class is to hold.
    """

    base: type
    inside: Callable[[Any], Iterable[tuple[Path, Any]]]
    function: Callable[[Any], FunctionType | None]
    held: Callable[[Any, Callable[..., Any]], Any]


def plain_function(held: Any) -> FunctionType | None:
    """A method that is a plain function."""
    return held if isinstance(held, FunctionType) else None


@contextmanager
def named_modules(framework: Framework, modules: Iterable[Any]) -> Iterator[None]:
    """Run methods of these modules, and of those inside of them, in scopes of their names."""
    inner = [module for root in modules for _, module in framework.inside(root)]
    kinds = {kind for module in inner for kind in type(module).__mro__}
    calls = _Calls(framework)
    with ExitStack() as changed:
        for kind in kinds:
            if issubclass(kind, framework.base) and kind is not framework.base:
                _name_methods(kind, calls, changed)
        yield


def _name_methods(kind: type, calls: _Calls, changed: ExitStack) -> None:
    for name, held in list(vars(kind).items()):
        function = calls.framework.function(held)
        if function is None or (name.startswith("_") and name != "__call__"):
            continue
        type.__setattr__(kind, name, calls.framework.held(held, calls.named(function)))
        changed.callback(type.__setattr__, kind, name, held)


class _Calls:
    """The modules that are being called, and what each is called inside the one before."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self.running: list[Any] = []
        self._inside: dict[int, tuple[Any, dict[int, str]]] = {}

    def named(self, method: FunctionType) -> Callable[..., Any]:
        """The method in a scope of its module."""

        @wraps(method)
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.running and self.running[-1] is module:
                return method(module, *args, **kwargs)
            scope = jax.named_scope(self._name(module))
            self.running.append(module)
            try:
                with scope:
                    return method(module, *args, **kwargs)
            finally:
                self.running.pop()

        return run

    def _name(self, module: Any) -> str:
        known = self._paths(self.running[-1]) if self.running else {}
        return known.get(id(module)) or type(module).__name__

    def _paths(self, parent: Any) -> dict[int, str]:
        if id(parent) not in self._inside:
            found = {id(m): _text(path) for path, m in self.framework.inside(parent) if path}
            self._inside[id(parent)] = parent, found  # kept alive, so that its id stays its own
        return self._inside[id(parent)][1]


def _text(path: Path) -> str:
    """`layers_3/mlp`: keys joined, places in lists behind the list.

    >>> _text(("layers", 3, "mlp"))
    'layers_3/mlp'
    """
    words: list[str] = []
    for key in path:
        if isinstance(key, int) and words:
            words[-1] += f"_{key}"
        else:
            words.append(str(key))
    return "/".join(words)
