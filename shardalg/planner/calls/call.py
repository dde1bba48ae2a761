"""A call of a function of arrays, and the way to it from what its user passes.

Arguments that a function changes in place: what a trace of it would lose.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import jax
from jax.tree_util import DictKey, SequenceKey, keystr, tree_flatten_with_path

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError, TraceError
from shardalg.graph.tracing.trace import flatten_prefix, parameter_names
from shardalg.planner.calls.found_roles import by_path, found_roles


def watched(
    fn: Callable[..., Any], paths: Sequence[str], lost: list[str], name: str
) -> Callable[..., Any]:
    """`fn`, with the arrays that it replaces in its arguments and does not return, in `lost`.

    A dict or a list is a copy of the caller's inside of a trace, and may be a scratch pad; an
    object of another class that is changed is state.

    Args:
      paths: what the arrays of the arguments are called. name: of `fn`, in messages.

    Raises:
      TraceError: state is changed, and not returned.

    >>> lost = []
    >>> def step(params):
    ...     params["w"] = params["w"] + 1.0
    >>> watched(step, ("params['w']",), lost, "step")({"w": 1.0}), lost
    (None, ["params['w']"])
    """

    @wraps(fn)
    def run(*given: Any) -> Any:
        before, tree = tree_flatten_with_path(given)
        result = fn(*given)
        after = jax.tree.leaves(given)
        same: Any = jax.tree.structure(given)
        if same != tree or len(paths) != len(after):
            return result
        kept = {id(leaf) for leaf in jax.tree.leaves(result)}
        pairs = enumerate(zip(before, after, strict=True))
        gone = [i for i, ((_, was), now) in pairs if was is not now and id(now) not in kept]
        lost[:] = [paths[i] for i in gone]
        state = [paths[i] for i in gone if not isinstance(before[i][0][-1], DictKey | SequenceKey)]
        if state:
            raise TraceError(
                f"{name} changes {', '.join(state[:3])} ({len(state)} arrays) in place and does "
                "not return them: under jax.jit the changes are lost. Pass the function without "
                "jax.jit, or jitted by nnx.jit, which carries them out; or return the new state."
            )
        return result

    return run


Given = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The user's arguments of a call, by position and by name."""
Inner = Callable[..., Any]
"""What runs on arrays, in the middle of a call."""
Through = Callable[[Inner, tuple[Any, ...], Mapping[str, Any]], Any]
"""(inner, args, kwargs) -> what the user's function returns; `inner` is called once within."""


@dataclass(frozen=True, eq=False)
class Call:
    """A function of pytrees of arrays, called.

    Attributes:
      fn: called with `args`; traced only inside of `through`.
      args: pytrees of arrays, or of `jax.ShapeDtypeStruct`s.
      paths: what each of their leaves is called, `params['w']`.
      through: from the user's own arguments to `fn`'s, and from its results to the user's own.
      outer: the arguments as prefixes of shardings and roles count them: all but static ones.
      places: per leaf of `args`, the leaf of `outer` that it is.
      returned: of the tree of results, per leaf the leaf of `outer` whose next state it is, or
        None, and the tree that a prefix of output shardings counts; None: the results themselves.
      in_shardings, out_shardings: the function's own, prefixes of `args` and of its results.
      donated: numbers of the leaves whose memory the function may reuse.
      keywords: whether the last of `outer` is the dict of keyword arguments.
      given: the user's arguments where the function brings them; None: those of the call.
      lost: what the last trace of `fn` changed in the arguments, and did not return.
      names: of `outer`. own_roles: per leaf of `args`, where the framework says them.
      static: positions of arguments that are no arrays; a prefix may count them, or leave them out.
      mesh: the mesh that a text states; None: the mesh of the layouts, or of the call.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    paths: tuple[str, ...]
    through: Through
    outer: tuple[Any, ...]
    places: tuple[int, ...]
    returned: Callable[[Any], Returned] | None = None
    in_shardings: Any = None
    out_shardings: Any = None
    donated: tuple[int, ...] = ()
    keywords: bool = False
    given: Given | None = None
    lost: Sequence[str] = ()
    names: tuple[str, ...] = ()
    own_roles: tuple[str | None, ...] | None = None
    static: tuple[int, ...] = ()
    mesh: Mesh | None = None

    def roles(self, given: Any) -> tuple[str | None, ...]:
        """Per leaf its role: as given, by a prefix or by paths, else as the trees say it.

        Raises:
          RoleError: a prefix that does not fit, a path that there is not.
        """
        if isinstance(given, Mapping) and all(isinstance(path, str) for path in given):
            return by_path(given, self.paths)
        if given is not None:
            return self.spread(given, "roles")
        if self.own_roles is not None:
            return self.own_roles
        found = found_roles(self.outer, self.names)
        return tuple(found[place] for place in self.places)

    def inside(self, work: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What `work` makes of the arrays that a call hands to `fn`; the call ends there.

        >>> plain(lambda x: -x, (1.0,), {}).inside(lambda *arrays: arrays, (2.0,), {})
        (2.0,)
        """

        def stop(*arrays: Any) -> Any:
            raise _Stopped(work(*arrays))

        try:
            self.through(stop, args, kwargs)
        except _Stopped as stopped:
            return stopped.made
        raise AssertionError("a call calls its function")

    def spread(self, prefix: Any, what: str) -> tuple[Any, ...]:
        """The entry of a prefix of the user's arguments for every leaf of `args`.

        Raises:
          StrategyError, RoleError: it is no prefix of them.
        """
        if isinstance(prefix, tuple):
            prefix = self._per_argument(prefix)
        entries = flatten_prefix(prefix, self.outer, what)
        return tuple(entries[place] for place in self.places)

    def _per_argument(self, prefix: tuple[Any, ...]) -> tuple[Any, ...]:
        """One entry per argument that is no static one; without keywords they are open."""
        positional = len(self.outer) - self.keywords
        if self.static and len(prefix) >= positional + len(self.static):
            prefix = tuple(entry for n, entry in enumerate(prefix) if n not in self.static)
        return (*prefix, None) if self.keywords and len(prefix) == positional else prefix

    def donates(self, argnums: int | Sequence[int]) -> tuple[int, ...]:
        """Numbers of the leaves of the arguments at these positions.

        Raises:
          StrategyError: a position that no argument has.
        """
        wanted = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        count = len(self.outer)
        bad = [n for n in wanted if type(n) is not int or not -count <= n < count]
        if bad:
            raise StrategyError(
                f"donate_argnums names {bad}, but there are {count} arguments, numbered from 0."
            )
        positions = {n % count for n in wanted}
        owner = [i for i, arg in enumerate(self.outer) for _ in jax.tree.leaves(arg)]
        return tuple(i for i, place in enumerate(self.places) if owner[place] in positions)


@dataclass(frozen=True)
class Returned:
    """Whose next state each result is, and the results as the user's prefixes count them.

    Attributes:
      states: per leaf of the results, the leaf of the call's `args`, or None.
      tree: what the user's function returns; places: per leaf that is no state, its leaf of `tree`.
    """

    states: tuple[int | None, ...]
    tree: Any
    places: tuple[int | None, ...]


class _Stopped(BaseException):
    """Ends a call where its function would run; no handler of errors is to hold it."""

    def __init__(self, made: Any) -> None:
        self.made = made


def plain(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    paths: tuple[str, ...] | None = None,
    of: Callable[..., Any] | None = None,
) -> Call:
    """A call of a function whose arguments are pytrees of arrays; keywords are one more argument.

    Args:
      paths: what the leaves are called; None: by the parameters of `fn`.
      of: the user's function, which `fn` calls, for messages; None: `fn`.

    >>> call = plain(lambda x, *, w: x + w, (1.0,), {"w": 2.0})
    >>> call.args, call.paths, call.through(call.fn, (3.0,), {"w": 4.0})
    ((1.0, {'w': 2.0}), ('x', 'w'), 7.0)
    """
    made = (*args, dict(kwargs)) if kwargs else tuple(args)
    paths = leaf_paths(fn, args, kwargs) if paths is None else paths

    def through(inner: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return inner(*args, dict(kwargs)) if kwargs else inner(*args)

    @wraps(fn)
    def with_keywords(*given: Any) -> Any:
        return fn(*given[:-1], **given[-1])

    lost: list[str] = []
    names = (*parameter_names(of or fn, len(args)), *(("",) if kwargs else ()))
    inside = watched(with_keywords if kwargs else fn, paths, lost, named(of or fn))
    places = tuple(range(len(paths)))
    return Call(
        inside, made, paths, through, made, places, keywords=bool(kwargs), lost=lost, names=names
    )


def leaf_paths(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """What every leaf of a call is called, in the order of `(*args, kwargs)`."""
    named = [*zip(parameter_names(fn, len(args)), args, strict=True)]
    named += [(name, kwargs[name]) for name in sorted(kwargs)]
    return tuple(
        f"{name}{keystr(path)}" for name, arg in named for path, _ in tree_flatten_with_path(arg)[0]
    )


def named(fn: Callable[..., Any]) -> str:
    """A function as messages say it: `train_step (model.py:41)`."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    name = getattr(fn, "__name__", type(fn).__name__)
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def result_paths(call: Call, tree: Any, paths: Sequence[str]) -> tuple[str, ...]:
    """What the results are called: of state the argument's name, of others `result[0]`.

    Args:
      tree: of the results of `call.fn`. paths: as a trace says them.
    """
    if call.returned is None:
        return tuple(paths)
    returned = call.returned(tree.unflatten(range(tree.num_leaves)))
    said = [f"result{keystr(path)}" for path, _ in tree_flatten_with_path(returned.tree)[0]]
    return tuple(
        said[place] if place is not None else own if state is None else f"next {call.paths[state]}"
        for state, place, own in zip(returned.states, returned.places, paths, strict=True)
    )
