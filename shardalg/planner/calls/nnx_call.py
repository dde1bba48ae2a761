"""Conversion of calls with flax nnx modules to `Call`s.

nnx itself takes the arrays out of modules and optimizers, and writes the new ones into them.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
from jax.tree_util import tree_flatten_with_path

from shardalg.graph.tracing.trace import parameter_names
from shardalg.planner.calls.call import Call, Inner, Returned
from shardalg.planner.calls.found_roles import Framework, named_modules, plain_function
from shardalg.planner.calls.jitted import of_jitted


def is_nnx(fn: Any, args: Any) -> bool:
    """Return whether `fn` was jitted by `nnx.jit`, or an argument contains a module of nnx."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and (_is_wrapped(fn) or any(map(_is_node, _nodes(args))))


def _is_wrapped(fn: Any) -> bool:
    """Return whether an object is a function that `nnx.jit` returned."""
    return type(fn).__module__.startswith("flax.nnx.") and hasattr(fn, "jitted_fn")


def of_nnx(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a function with its arguments, which contain nnx modules, as a `Call`.

    nnx takes the arrays out of its modules, and writes the results into them. The planned function
    is called in place of nnx's compiled function.

    Args:
      fn: the function. If it was not jitted by `nnx.jit`, it is jitted first.
    """
    # nnx.jit calls a function that `jax.jit` has jitted, with the arrays of the modules. Another
    # function in its place sees these arrays, and nnx converts arguments and results as usual.
    wrapper = fn if _is_wrapped(fn) else sys.modules["flax.nnx"].jit(fn)
    jitted = wrapper.jitted_fn

    def taken(inner: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with _in_place(wrapper, inner):
            return wrapper(*args, **kwargs)

    # Only nnx knows how it converts modules to arrays. So it is called once with `catch`, which
    # records the arrays and ends the call where nnx would compile.
    caught: list[Call] = []

    def catch(*pure: Any, **named: Any) -> Any:
        caught.append(of_jitted(jitted, pure, named))
        raise _Caught

    try:
        taken(catch, args, kwargs)
    except _Caught:
        (made,) = caught

    def through(run: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return taken(lambda *pure, **named: made.through(run, pure, named), args, kwargs)

    # The modules' methods run only while this function is traced, so only it needs named scopes.
    def scoped(*arrays: Any) -> Any:
        with named_modules(_framework(), modules):
            return made.fn(*arrays)

    modules = [node for node in _nodes((args, kwargs)) if _is_node(node)]
    return _named(replace(made, fn=scoped, through=through), wrapper, args, kwargs)


def _framework() -> Framework:
    """Return the `Framework` of nnx, in which methods are plain functions of a class."""
    nnx: Any = sys.modules["flax.nnx"]

    def inside(module: Any) -> Any:
        """Return (path, module) of a module and of the modules inside of it."""
        return nnx.iter_modules(module) if isinstance(module, nnx.Module) else ()

    return Framework(nnx.Module, inside, plain_function, lambda _, function: function)


class _Caught(BaseException):
    """An exception that ends a call of nnx where its compiled function would run."""


@contextmanager
def _in_place(wrapper: Any, inner: Callable[..., Any]) -> Iterator[None]:
    """Let nnx call `inner` in place of its compiled function, inside a `with` block.

    Args:
      wrapper: the function that `nnx.jit` returned.
    """
    jitted, wrapper.jitted_fn = wrapper.jitted_fn, inner
    try:
        yield
    finally:
        wrapper.jitted_fn = jitted


def _named(made: Call, wrapper: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return the call with argument names, pytrees and roles as the user sees them.

    nnx passes arrays in pytrees of its own. Their names are kept if some array is not in the user's
    arguments.

    Args:
      made: the call in terms of nnx's pytrees.
      wrapper: the function that `nnx.jit` returned.
      args, kwargs: the user's arguments.
    """
    # nnx passes arrays of its own trees. The arrays are the same objects as in the user's trees, so
    # identity finds the user's place of each.
    info = wrapper.jitted_fn._jit_info
    kwargs = {n: v for n, v in kwargs.items() if n not in (info.static_argnames or ())}
    every = zip(parameter_names(wrapper.fun, len(args)), args, strict=True)
    traced = [pair for n, pair in enumerate(every) if n not in made.static]
    traced += [("", dict(kwargs))] if kwargs else []
    names, owners = [name for name, _ in traced], [arg for _, arg in traced]
    outer = tuple(map(plain_state, owners))
    paths: list[str] = []
    # One array may be at several places of the user's trees, each with a name of its own. The
    # queue of an array's places gives a further place to each further leaf with this array.
    known = defaultdict[int, deque[int]](deque)
    for name, tree in zip(names, outer, strict=True):
        for path, leaf in tree_flatten_with_path(tree)[0]:
            known[id(leaf)].append(len(paths))
            paths.append(f"{name}{''.join(map(_step, path))}".lstrip("."))
    returned = _returned(made)
    found = [known[id(leaf)] for leaf in jax.tree.leaves(made.args)]
    # nnx may pass an array that is in no tree of the user. Such a leaf has no name and no place
    # there, so then all leaves keep the names and places of nnx's own trees.
    if not all(found):
        return replace(made, returned=returned)
    places = tuple(place.popleft() if len(place) > 1 else place[0] for place in found)
    roles = jax.tree.leaves([_roles(arg) for arg in owners])
    return replace(
        made,
        paths=tuple(paths[place] for place in places),
        outer=outer,
        places=places,
        returned=returned,
        names=tuple(names),
        own_roles=tuple(roles[place] for place in places),
    )


def _roles(arg: Any) -> Any:
    """Return a pytree with the structure of an argument and the role of each array as its leaf.

    Arrays outside of modules are "data", arrays of `nnx.Param`s are "parameters", and all others
    are "optimizer_state".
    """
    nnx: Any = sys.modules["flax.nnx"]

    def role(variable: Any) -> str:
        return "parameters" if isinstance(variable, nnx.Param) else "optimizer_state"

    def roles(node: Any) -> Any:
        """Return the roles of the arrays in one module of nnx, or "data" for an array."""
        if not _is_node(node):
            return "data"
        # An optimizer has no parameters of the model: all its variables are state, whatever their
        # class.
        variables = jax.tree.leaves(nnx.state(node), is_leaf=lambda v: isinstance(v, nnx.Variable))
        is_optimizer = isinstance(node, nnx.Optimizer)
        return ["optimizer_state" if is_optimizer else role(variable) for variable in variables]

    return jax.tree.map(roles, arg, is_leaf=_is_node)


def _step(key: Any) -> str:
    """Return one key of a pytree path as Python writes it: `.name`, `['name']` or `[0]`."""
    name = getattr(key, "key", getattr(key, "name", getattr(key, "idx", None)))
    return f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{name!r}]"


def _returned(made: Call) -> Callable[[Any], Returned]:
    """Return the attribute `Call.returned` of a call of nnx.

    It is a function from the results of nnx's compiled function to a `Returned`, which separates
    the new state of the modules from the user's results.
    """
    # The number of each leaf of the arguments, by its path.
    argument_paths = [path for path, _ in tree_flatten_with_path(made.args)[0]]
    argument_number = {path: number for number, path in enumerate(argument_paths)}

    def returned(results: Any) -> Returned:
        """Separate the new state of modules from the user's results, leaf by leaf.

        `Returned.states` has, per leaf of the results, the number of the argument's leaf of which
        it is the new value, or None. `Returned.places` has its number in the user's own result, or
        None. Without graph mode no leaf is a new value. The keyword arguments of graph mode are
        neither, because modules are passed by position.
        """
        # In its graph mode, nnx returns (positional arguments, keyword arguments, user's result);
        # otherwise the result is the first element. State is paired with arguments by its path.
        graph_mode = isinstance(results, tuple) and len(results) == 3
        paths = [path for path, _ in tree_flatten_with_path(results)[0]]
        # The first key of a leaf's path is its element of `results`.
        user_element = 2 if graph_mode else 0
        states = tuple(
            argument_number.get(path[1:]) if graph_mode and path[0].idx == 0 else None
            for path in paths
        )
        # The leaves of the user's result are numbered from 0, without the state between them.
        count = iter(range(len(paths)))
        places = tuple(next(count) if path[0].idx == user_element else None for path in paths)
        return Returned(states, results[user_element], places)

    return returned


def _nodes(tree: Any) -> list[Any]:
    """Return the leaves of a pytree, in which each nnx module counts as one leaf."""
    return jax.tree.leaves(tree, is_leaf=_is_node)


def _is_node(value: Any) -> bool:
    nnx: Any = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Pytree)


def plain_state(tree: Any) -> Any:
    """Return a pytree with nested dicts of arrays in place of nnx modules and states.

    >>> plain_state({"x": 1})
    {'x': 1}
    """
    # If nnx was never imported, the pytree has no module of it.
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None:
        return tree

    def is_state(value: Any) -> bool:
        """Return whether a value is a state or a module of nnx."""
        return isinstance(value, nnx.State) or _is_node(value)

    def plain(value: Any) -> Any:
        """Return the nested dicts of a module or state; any other value itself."""
        if not is_state(value):
            return value
        state = value if isinstance(value, nnx.State) else nnx.state(value)
        return nnx.to_pure_dict(state)

    # None is an entry of a prefix of shardings ("no sharding"), so it must stay a leaf.
    return jax.tree.map(plain, tree, is_leaf=lambda v: v is None or is_state(v))
