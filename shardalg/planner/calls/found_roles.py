"""Roles of arguments (parameters, optimizer state, data), and named scopes for modules.

Roles are found if an argument is a TrainState or a state of optax. Without an optimizer's state,
arguments have no role; nothing is guessed.

linen and haiku run every module in a `jax.named_scope` of its name, but modules of nnx and equinox
do not know their names. While a function is traced, methods of their classes therefore run in a
scope. A module inside the calling module is named after its place there (`layers_3/mlp`), any other
module after its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FunctionType
from typing import Any, NamedTuple

import jax

from shardalg.errors import RoleError

PARAMETERS, OPTIMIZER_STATE, DATA = "parameters", "optimizer_state", "data"


def found_roles(outer: Sequence[Any], names: Sequence[str]) -> tuple[str | None, ...]:
    """Return the role of each leaf of a call's arguments.

    The roles are None unless an argument contains a train state or a state of optax. The fields
    `params` and `opt_state` of a train state tell the roles. Otherwise, parameters are the
    arguments of which an optimizer keeps moments (equal shapes in equal order), or that are named
    "params". All other leaves are data.

    Args:
      outer: the arguments.
      names: their names, for example "params".

    >>> import optax
    >>> params, x = {"w": jax.numpy.ones((2, 2))}, jax.numpy.ones(3)
    >>> found_roles((params, optax.sgd(0.1, momentum=0.9).init(params), x), ("p", "s", "x"))
    ('parameters', 'optimizer_state', 'data')
    >>> found_roles((params, x), ("params", "x"))
    (None, None)
    """
    # An optimizer keeps moments in the shapes of the parameters, which identifies them.
    moments = [part for arg in outer for part in _mirrors(arg)]
    if not moments and not any(map(_holds_state, outer)):
        return (None,) * len(jax.tree.leaves(tuple(outer)))
    return tuple(
        role for arg, name in zip(outer, names, strict=True) for role in _roles(arg, name, moments)
    )


def by_path(given: Mapping[str, Any], paths: Sequence[str]) -> tuple[str | None, ...]:
    """Return the role of each leaf, from a dict of roles by path; None for a leaf without a role.

    A role for `state` holds for all leaves whose paths begin with `state`. If several roles fit a
    leaf, the role with the longest path is taken.

    Args:
      given: the role of each path.
      paths: the path of each leaf.

    Raises:
      RoleError: no leaf has one of the paths in `given`.

    >>> by_path({"state": "optimizer_state", "state.w": "parameters"}, ("state.w", "state.m", "x"))
    ('parameters', 'optimizer_state', None)
    """
    # A path that matches no leaf is misspelled: the user meant other leaves. If it were ignored,
    # these leaves would have no role, and the user would get another plan without notice.
    unread = [start for start in given if not any(_begins(path, start) for path in paths)]
    if unread:
        raise RoleError(
            f"roles names {', '.join(unread)}, which no argument is: the arguments are "
            f"{', '.join(paths[:8])}{', ...' if len(paths) > 8 else ''}. Give a path, or the "
            "beginning of several."
        )
    chosen = [[start for start in given if _begins(path, start)] for path in paths]
    return tuple(given[max(starts, key=len)] if starts else None for starts in chosen)


def _begins(path: str, start: str) -> bool:
    """Return whether a leaf's path is `start`, or `start` followed by further keys.

    For example, "state.w" begins "state.w['a']", and not "state.weights".
    """
    return path == start or path.startswith((f"{start}.", f"{start}["))


def _roles(arg: Any, name: str, moments: list[tuple[Any, ...]]) -> list[str]:
    """Return the role of each leaf of one argument.

    Args:
      name: the argument's name.
      moments: the shapes of each tree of moments in an optimizer's state (`_mirrors`).
    """
    count = len(jax.tree.leaves(arg))
    if _is_train_state(arg):
        return [role for part, role in _parts(arg) for _ in jax.tree.leaves(part)]
    # A tuple of optimizer states has no type of its own that tells what it is, so its content does.
    if _holds_state(arg):
        return [OPTIMIZER_STATE] * count
    shapes = _shapes(arg)
    # An optimizer keeps moments of this argument if one tree of moments has exactly its shapes.
    is_kept = bool(shapes) and shapes in moments
    return [PARAMETERS if is_kept or name in ("params", "parameters") else DATA] * count


def _parts(state: Any) -> Iterator[tuple[Any, str]]:
    """Yield the children of a train state in the order of its leaves, with their roles."""
    children, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda x: x is not state)
    for path, child in children:
        name = getattr(path[0], "name", getattr(path[0], "key", ""))
        yield child, PARAMETERS if name == "params" else OPTIMIZER_STATE


def _is_train_state(arg: Any) -> bool:
    """Return whether an argument has the fields of a flax TrainState, `params` and `opt_state`."""
    return hasattr(arg, "params") and hasattr(arg, "opt_state")


def _is_optax(node: Any) -> bool:
    """Return whether the class of a pytree node is defined in optax: it is an optimizer's state."""
    return type(node).__module__.split(".")[0] == "optax"


def _holds_state(arg: Any) -> bool:
    """Return whether an argument is a train state, or contains a state of optax."""
    if _is_train_state(arg) or _is_optax(arg):
        return True
    return any(map(_is_optax, jax.tree.leaves(arg, is_leaf=_is_optax)))


def _mirrors(arg: Any) -> list[tuple[Any, ...]]:
    """Return the shapes of each tree of moments that an optax state in the argument contains.

    An entry of the result has the shapes of one tree, for example of all first moments of Adam.
    They are the parameters' shapes in the same order, so that parameters are recognised by them.
    """
    # `optax.chain` makes a state whose fields are states. The search therefore enters fields.
    states = [s for s in jax.tree.leaves(arg, is_leaf=_is_optax) if _is_optax(s)]
    fields = [part for state in states for part in _children(state)]
    inner = [shapes for part in fields if _holds_state(part) for shapes in _mirrors(part)]
    return [shapes for part in fields if (shapes := _shapes(part))] + inner


def _children(node: Any) -> list[Any]:
    """Return the direct children of a node of a pytree."""
    return list(jax.tree.leaves(node, is_leaf=lambda x: x is not node))


def _shapes(tree: Any) -> tuple[Any, ...]:
    """Return the shapes of a tree's arrays in the order of its leaves."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape"))


Path = tuple[Any, ...]
"""The path from a module to one inside of it: names of attributes, and indices of lists."""


class Framework(NamedTuple):
    """How a framework (nnx, equinox) nests modules and stores their methods.

    Attributes:
      base: the base class of all modules.
      inside: a function from a module to (path, module) of each module in it, itself included.
      function: a function from a class attribute to the Python function of this method; None if the
        attribute is no method.
      with_function: a function of (class attribute, function). It returns the attribute to set on
        the class, so that the method runs this function.
    """

    base: type
    inside: Callable[[Any], Iterable[tuple[Path, Any]]]
    function: Callable[[Any], FunctionType | None]
    with_function: Callable[[Any, Callable[..., Any]], Any]


def plain_function(attribute: Any) -> FunctionType | None:
    """Return the class attribute if it is a plain function, else None."""
    return attribute if isinstance(attribute, FunctionType) else None


@contextmanager
def named_modules(framework: Framework, modules: Iterable[Any]) -> Iterator[None]:
    """Give operators the names of their modules, during a `with` block.

    Inside the block, each public method of the given modules, and of the modules inside of them,
    runs in a `jax.named_scope` with the module's name.
    """
    # Methods belong to classes, so the classes are changed for the time of a trace, base classes
    # included. The framework's own class of all modules stays as it is.
    inner = [module for root in modules for _, module in framework.inside(root)]
    kinds = {kind for module in inner for kind in type(module).__mro__}
    calls = _Calls(framework)
    with ExitStack() as changed:
        for kind in kinds:
            if issubclass(kind, framework.base) and kind is not framework.base:
                _name_methods(kind, calls, changed)
        yield


def _name_methods(kind: type, calls: _Calls, changed: ExitStack) -> None:
    """Replace the public methods of a class by methods that run in named scopes.

    Args:
      kind: the class.
      calls: the record of running modules, which the methods use.
      changed: the stack that restores the methods when it is closed.
    """
    for name, attribute in list(vars(kind).items()):
        # A private method is called by a public one of the same module, whose scope is open then.
        function = calls.framework.function(attribute)
        if function is None or (name.startswith("_") and name != "__call__"):
            continue
        type.__setattr__(
            kind, name, calls.framework.with_function(attribute, calls.named(function))
        )
        changed.callback(type.__setattr__, kind, name, attribute)


class _Calls:
    """The modules whose methods are running; a module's scope is named by its path in its caller.

    Attributes:
      running: the modules whose methods are running, the innermost last.
    """

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self.running: list[Any] = []
        self._inside: dict[int, tuple[Any, dict[int, str]]] = {}

    def named(self, method: FunctionType) -> Callable[..., Any]:
        """Return `method`, changed to run in a `jax.named_scope` with the name of its module."""

        @wraps(method)
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            """Run `method` in the scope of `module`, inside the scope of the calling module."""
            # A module that calls its own methods stays in its scope: one name per module.
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
        """Return the name of a module's scope: the module's path inside the module that calls it.

        A module that is not inside the calling module has the name of its class.
        """
        if not self.running:
            return type(module).__name__
        parent = self.running[-1]
        # The entry keeps the parent alive: the id of a freed object may be given to another module.
        if id(parent) not in self._inside:
            found = {id(m): _text(path) for path, m in self.framework.inside(parent) if path}
            self._inside[id(parent)] = parent, found
        return self._inside[id(parent)][1].get(id(module)) or type(module).__name__


def _text(path: Path) -> str:
    """Return the path of a module as text; a list's index is appended to the list's name.

    >>> _text(("layers", 3, "mlp"))
    'layers_3/mlp'
    """
    words: list[str] = []
    for key in path:
        # An integer is an index into the list that the word before names.
        if isinstance(key, int) and words:
            words[-1] += f"_{key}"
        else:
            words.append(str(key))
    return "/".join(words)
