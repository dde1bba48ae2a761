"""`Call`: a function of arrays, and the conversion from the user's arguments to its arguments.

The module also finds arguments that a function changes in place. A trace would lose these changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Return a function like `fn` that reports arrays which `fn` replaces in its arguments.

    A function can put a new array into a dict, a list or an object that it gets as an argument. If
    it does not return the new array, `jax.jit` loses it. Inside a trace, dicts and lists are copies
    of the caller's, so a change may be intended. Changes of other objects are errors.

    Args:
      fn: the function.
      paths: the names of the arrays in its arguments.
      lost: an output. Each call writes the names of the replaced arrays here.
      name: the name of `fn` in messages.

    Raises:
      TraceError: an array in an object that is no dict and no list is replaced and not returned.

    >>> lost = []
    >>> def step(params):
    ...     params["w"] = params["w"] + 1.0
    >>> watched(step, ("params['w']",), lost, "step")({"w": 1.0}), lost
    (None, ["params['w']"])
    """

    @wraps(fn)
    def run(*given: Any) -> Any:
        """Call `fn`, and compare the leaves of its arguments before and after the call."""
        before, tree = tree_flatten_with_path(given)
        result = fn(*given)
        after = jax.tree.leaves(given)
        # With another structure, leaves cannot be paired, so nothing is recorded.
        same: Any = jax.tree.structure(given)
        if same != tree or len(paths) != len(after):
            return result
        # In a trace, an update in place puts a new array into a leaf. Tracers have no values to
        # compare, so identity tells. A new array among the results is not lost.
        kept = {id(leaf) for leaf in jax.tree.leaves(result)}
        pairs = enumerate(zip(before, after, strict=True))
        gone = [i for i, ((_, was), now) in pairs if was is not now and id(now) not in kept]
        lost[:] = [paths[i] for i in gone]
        # The last key of a leaf's path is an attribute if the array is in an object, for example a
        # module. Users expect such an update, as of a running mean, to survive the call.
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
"""The user's arguments of a call: positional arguments, and keyword arguments by name."""
Inner = Callable[..., Any]
"""A function from pytrees of arrays to pytrees of arrays: the part of a call that is planned."""
Through = Callable[[Inner, tuple[Any, ...], Mapping[str, Any]], Any]
"""A function of (inner, args, kwargs).

It converts the user's arguments to arrays, calls `inner` once with these arrays, and converts the
arrays that `inner` returns to the user's results.
"""


@dataclass(frozen=True, eq=False)
class Call:
    """A function of pytrees of arrays with its arguments: the part of a user's call to plan.

    Attributes:
      fn: the function, called with `args`; traced only inside of `through`.
      args: its arguments: pytrees of arrays, or of `jax.ShapeDtypeStruct`s.
      paths: the name of each leaf of `args`, for example `params['w']`.
      through: a function that converts the user's arguments, calls `fn` and converts its results.
      outer: the user's arguments without static ones. Prefixes of shardings and roles refer to
        these.
      places: per leaf of `args`, the number of the same leaf in `outer`.
      returned: a function from the pytree of `fn`'s results to a `Returned`, which separates state
        from the user's results. None if `fn` returns the user's results only.
      in_shardings, out_shardings: the shardings that were given to `jax.jit`: prefixes of `args`
        and of its results.
      donated: numbers of the leaves of `args` whose memory the function may reuse.
      keywords: whether the last of `outer` is the dict of keyword arguments.
      given: the user's arguments if a trace contains them; None if the user passes them.
      lost: the names of arrays that the last trace of `fn` replaced in the arguments and did not
        return.
      names: the names of the arguments in `outer`.
      own_roles: the role of each leaf of `args`, if the framework knows the roles; otherwise None.
      static: positions of static arguments. A prefix may have entries for them or omit these.
      mesh: the mesh that a program read from text states; None if there is none.
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
        """Return the role of each leaf of `args`.

        Args:
          given: a dict from paths of leaves to roles, or a prefix of the arguments. If it is None,
            the roles are those that the framework knows, or those found from an optimizer's state
            (`found_roles`).

        Raises:
          RoleError: a prefix does not fit, or a path does not exist.
        """
        if isinstance(given, Mapping) and all(isinstance(path, str) for path in given):
            return by_path(given, self.paths)
        if given is not None:
            return self.spread(given, "roles")
        if self.own_roles is not None:
            return self.own_roles
        # Roles are found on whole arguments, because an optimizer's state is known by its tree.
        found = found_roles(self.outer, self.names)
        return tuple(found[place] for place in self.places)

    def inside(self, work: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return `work(*arrays)` for the arrays to which the user's arguments are converted.

        `fn` does not run.

        Args:
          args, kwargs: the user's arguments.

        >>> plain(lambda x: -x, (1.0,), {}).inside(lambda *arrays: arrays, (2.0,), {})
        (2.0,)
        """

        # `work` may return something else than arrays, such as a graph. An exception therefore
        # skips the conversion of results.
        def stop(*arrays: Any) -> Any:
            raise _Stopped(work(*arrays))

        try:
            self.through(stop, args, kwargs)
        except _Stopped as stopped:
            return stopped.result
        raise AssertionError("a call calls its function")

    def spread(self, prefix: Any, what: str) -> tuple[Any, ...]:
        """Return the entry of a pytree prefix for each leaf of `args`.

        Args:
          prefix: shardings or roles, as a pytree prefix of the user's arguments (as the argument
            `in_shardings` of `jax.jit`).
          what: the name of the prefix in messages.

        Raises:
          StrategyError, RoleError: the prefix does not fit the arguments.
        """
        if isinstance(prefix, tuple):
            positional = len(self.outer) - self.keywords
            # A prefix may count static arguments or leave them out. Entries for static arguments
            # are dropped, because only arrays have shardings.
            if self.static and len(prefix) >= positional + len(self.static):
                prefix = tuple(entry for n, entry in enumerate(prefix) if n not in self.static)
            # The dict of keyword arguments is the last argument; a prefix need not mention it.
            if self.keywords and len(prefix) == positional:
                prefix = (*prefix, None)
        entries = flatten_prefix(prefix, self.outer, what)
        return tuple(entries[place] for place in self.places)

    def donates(self, argnums: int | Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of the leaves of `args` that `donate_argnums` donates.

        For example, if argument 0 is a dictionary of two arrays, `donates(0)` is (0, 1).

        Args:
          argnums: positions of the user's arguments, as in `jax.jit`.

        Raises:
          StrategyError: no argument has one of the positions.
        """
        given = tuple(argnums) if isinstance(argnums, Iterable) else (argnums,)
        count = len(self.outer)
        unknown = [n for n in given if type(n) is not int or not -count <= n < count]
        if unknown:
            raise StrategyError(
                f"donate_argnums names {unknown}, but there are {count} arguments, numbered from 0."
            )
        # As in `jax.jit`, a position means a whole argument and may count from the end. A plan
        # donates single buffers, so the position is translated to all leaves of the argument.
        positions = {n % count for n in given}
        # The position of the argument that has each leaf. `places` has the leaf of each buffer.
        owner = [i for i, arg in enumerate(self.outer) for _ in jax.tree.leaves(arg)]
        return tuple(i for i, place in enumerate(self.places) if owner[place] in positions)


@dataclass(frozen=True)
class Returned:
    """The results of `Call.fn`, separated into new state of arguments and the user's results.

    Attributes:
      states: per leaf of the results, the number of the leaf of `Call.args` whose new value it is,
        or None.
      tree: the result of the user's function, to which prefixes of output shardings refer.
      places: per leaf of the results, the number of the same leaf in `tree`, or None for state.
    """

    states: tuple[int | None, ...]
    tree: Any
    places: tuple[int | None, ...]


class _Stopped(BaseException):
    """An exception that ends a call where its function would run, and carries a result.

    It is no `Exception`, so that handlers of errors in the user's code do not catch it.
    """

    def __init__(self, result: Any) -> None:
        self.result = result


def plain(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    paths: tuple[str, ...] | None = None,
    of: Callable[..., Any] | None = None,
) -> Call:
    """Return the `Call` of a function whose arguments are pytrees of arrays.

    Keyword arguments become one dict, the last argument.

    Args:
      paths: the names of the leaves; if None, they begin with the names of `fn`'s parameters.
      of: the user's function, which `fn` calls, for messages; if None, it is `fn`.

    >>> call = plain(lambda x, *, w: x + w, (1.0,), {"w": 2.0})
    >>> call.args, call.paths, call.through(call.fn, (3.0,), {"w": 4.0})
    ((1.0, {'w': 2.0}), ('x', 'w'), 7.0)
    """
    # Keyword arguments become one dict at the end: shardings and donation count it as an argument.
    made = (*args, dict(kwargs)) if kwargs else tuple(args)
    paths = leaf_paths(fn, args, kwargs) if paths is None else paths

    def through(inner: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return inner(*args, dict(kwargs)) if kwargs else inner(*args)

    @wraps(fn)
    def with_keywords(*given: Any) -> Any:
        return fn(*given[:-1], **given[-1])

    # `watched` writes here the arrays that the function replaces in its arguments and loses.
    lost: list[str] = []
    # The dict of keyword arguments has no name of its own.
    names = (*parameter_names(of or fn, len(args)), *(("",) if kwargs else ()))
    inside = watched(with_keywords if kwargs else fn, paths, lost, named(of or fn))
    # No framework reorders the arguments here, so leaf i of `args` is leaf i of the user's own.
    places = tuple(range(len(paths)))
    return Call(
        fn=inside,
        args=made,
        paths=paths,
        through=through,
        outer=made,
        places=places,
        keywords=bool(kwargs),
        lost=lost,
        names=names,
    )


def leaf_paths(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the name of every leaf of a call's arguments, for example `params['w']`.

    The order is that of the leaves of `(*args, kwargs)`.
    """
    # JAX flattens a dict in the order of its sorted keys.
    named = [*zip(parameter_names(fn, len(args)), args, strict=True)]
    named += [(name, kwargs[name]) for name in sorted(kwargs)]
    return tuple(
        f"{name}{keystr(path)}" for name, arg in named for path, _ in tree_flatten_with_path(arg)[0]
    )


def named(fn: Callable[..., Any]) -> str:
    """Return a function's name for messages: `train_step (model.py:41)`."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    name = getattr(fn, "__name__", type(fn).__name__)
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def result_paths(call: Call, tree: Any, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each result of `call.fn`, for example `result[0]`.

    A result that is the new state of an argument has the argument's name after the word "next".

    Args:
      tree: the structure of the results of `call.fn`.
      paths: the names of its leaves from a trace.
    """
    if call.returned is None:
        return tuple(paths)
    # The framework's function returns new state in addition to the user's results. The user knows
    # only the names of the arguments that it replaces.
    returned = call.returned(tree.unflatten(range(tree.num_leaves)))
    own_paths = [f"result{keystr(path)}" for path, _ in tree_flatten_with_path(returned.tree)[0]]
    # A leaf is one of the user's results (`place`), the new state of an argument (`state`), or
    # state that no argument had before. Only the trace has a name for the last kind.
    return tuple(
        own_paths[place]
        if place is not None
        else own
        if state is None
        else f"next {call.paths[state]}"
        for state, place, own in zip(returned.states, returned.places, paths, strict=True)
    )
