"""Conversion of functions jitted by `jax.jit`, and of their traces, to `Call`s."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from types import MethodType
from typing import Any, NamedTuple

import jax

from shardalg.algebra.mesh import Mesh
from shardalg.errors import TraceError
from shardalg.planner.calls.call import Call, Inner, leaf_paths, plain

_JITTED = type(jax.jit(abs))


def is_jitted(fn: Any) -> bool:
    """Return whether an object is a function, or a bound method, that `jax.jit` returned.

    `functools.wraps` of a jitted function copies all its attributes, but is another function. The
    class of the object therefore decides.

    >>> is_jitted(jax.jit(abs)), is_jitted(abs), is_jitted(wraps(jax.jit(abs))(lambda x: 2 * x))
    (True, False, False)
    """
    return isinstance(getattr(fn, "__func__", fn), _JITTED)


def of_jitted(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a jitted function with its arguments as a `Call`.

    The call has the shardings and the donated and static arguments that were given to `jax.jit`. A
    static argument has the value of this call: a function with another value is another function.

    >>> power = jax.jit(lambda x, n: x**n, static_argnames="n", donate_argnums=0)
    >>> call = of_jitted(power, (2.0,), {"n": 3})
    >>> call.args, call.paths, call.donated, call.fn(2.0)
    ((2.0,), ('x',), (0,), 8.0)
    """
    if isinstance(fn, MethodType):
        return _of_method(fn, args, kwargs)
    # jax has no public access to the arguments of `jax.jit`; `_jit_info` has them.
    info, inner = fn._jit_info, fn.__wrapped__
    static = _Part(args, kwargs, info.static_argnums or (), info.static_argnames or ())
    donated = _Part(args, kwargs, info.donate_argnums or (), info.donate_argnames or ())

    @wraps(inner)
    def whole(*given: Any, **named: Any) -> Any:
        return inner(*static.merged(given), **named, **static.named)

    # Static leaves are no arguments of the planned function. Names and donated leaves are counted
    # without them, because they are matched with the leaves of `made.args` by number.
    traced = [not on for on in static.leaves(args, kwargs)]
    every = zip(leaf_paths(inner, args, kwargs), traced, strict=True)
    paths = tuple(path for path, kept in every if kept)
    made = plain(whole, *static.others(args, kwargs), paths=paths, of=inner)
    freed = [on for on, kept in zip(donated.leaves(args, kwargs), traced, strict=True) if kept]

    def through(run: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        static.check(args, kwargs)
        return made.through(run, *static.others(args, kwargs))

    return replace(
        made,
        through=through,
        static=tuple(static.values),
        in_shardings=_own(info.in_shardings_treedef, info.in_shardings_leaves),
        out_shardings=_own(info.out_shardings_treedef, info.out_shardings_leaves),
        donated=tuple(leaf for leaf, on in enumerate(freed) if on),
    )


def _of_method(method: MethodType, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a bound jitted method with its arguments as a `Call`; the object is argument 0."""
    own = method.__self__
    made = of_jitted(method.__func__, (own, *args), kwargs)

    def through(run: Inner, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return made.through(run, (own, *args), kwargs)

    # The user's positions do not count the object, which is argument 0 of the class's function.
    static = tuple(n - 1 for n in made.static if n)
    return replace(made, through=through, static=static)


def of_trace(traced: Any) -> Call:
    """Return the result of `jax.jit(f).trace(...)` as a `Call`.

    A `Call` has the function, its abstract arguments, their names, shardings and donations.

    >>> one = jax.ShapeDtypeStruct((2, 2), "float32")
    >>> call = of_trace(jax.jit(lambda x, w: x @ w, donate_argnums=1).trace(one, one))
    >>> call.paths, call.donated
    (('x', 'w'), (1,))
    """
    # One entry per leaf of the arguments, which says whether the leaf is donated.
    info = jax.tree.leaves(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))
    types = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in traced.jaxpr.in_avals
    ]
    given = jax.tree.unflatten(traced.in_tree, types)
    call = plain(traced, *given)
    # JAX cannot express all shardings of a program read from text, so its trace has them in the
    # attribute `STATED`, which is preferred to JAX's own parameters.
    params, names = traced._params, traced.jaxpr.jaxpr.debug_info.arg_names
    stated = getattr(traced, STATED, Stated(None, params["in_shardings"], params["out_shardings"]))
    return replace(
        call,
        fn=traced,
        given=given,
        # JAX has no names for arguments of a program that was read from text.
        paths=tuple(names) if len(names or ()) == len(types) else call.paths,
        in_shardings=_own(jax.tree.structure(call.args), stated.arguments),
        out_shardings=_own(traced.out_tree, stated.results),
        donated=tuple(leaf for leaf, argument in enumerate(info) if argument.donated),
        mesh=stated.mesh,
    )


STATED = "_shardalg_stated"
"""Name of an attribute that is set on the trace of a program read from text.

Its value is a `Stated` with the text's shardings, because JAX cannot express all of them.
"""


class Stated(NamedTuple):
    """The mesh and shardings that are written in the text from which a program was read.

    Attributes:
      mesh: the mesh, or None.
      arguments, results: the sharding of each flat argument and result.
    """

    mesh: Mesh | None
    arguments: Sequence[Any]
    results: Sequence[Any]


def _own(tree: Any, leaves: Sequence[Any]) -> Any:
    """Return the `in_shardings` or `out_shardings` that `jax.jit` got; None if it got none.

    Args:
      tree: the structure of the pytree.
      leaves: its leaves; unspecified ones become None.
    """
    # The class is private in jax, so its name is compared.
    entries = [None if type(s).__name__ == "UnspecifiedValue" else s for s in leaves]
    return None if all(s is None for s in entries) else jax.tree.unflatten(tree, entries)


@dataclass(frozen=True, eq=False, init=False)
class _Part:
    """The static arguments of a call of a jitted function, or its donated ones, with their values.

    Attributes:
      count: the number of all positional arguments of the call.
      values: position to value, for the positional arguments of this part.
      named: name to value, for the keyword arguments of this part.
    """

    count: int
    values: dict[int, Any]
    named: dict[str, Any]

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        positions: Collection[int],
        names: Collection[str],
    ) -> None:
        count = len(args)
        # `jax.jit` ignores positions and names that a call leaves to default values.
        values = {n % count: args[n] for n in positions if -count <= n < count}
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "named", {n: kwargs[n] for n in names if n in kwargs})

    def others(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of a call that do not belong to this part."""
        positional = tuple(arg for i, arg in enumerate(args) if i not in self.values)
        return positional, {name: v for name, v in kwargs.items() if name not in self.named}

    def merged(self, others: Sequence[Any]) -> list[Any]:
        """Return all positional arguments of the call: those of this part, and `others` in between.

        Args:
          others: the positional arguments that are not in this part, in order.
        """
        rest = iter(others)
        return [self.values[i] if i in self.values else next(rest) for i in range(self.count)]

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[bool]:
        """Return, for each leaf of all arguments of the call, whether its argument is in this part.

        The part is the static or the donated arguments.
        """
        owners = [(i in self.values, arg) for i, arg in enumerate(args)]
        owners += [(name in self.named, kwargs[name]) for name in sorted(kwargs)]
        return [on for on, arg in owners for _ in jax.tree.leaves(arg)]

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise unless another call has the same static arguments as the planned call (this part).

        Args:
          args, kwargs: all arguments of the other call.

        Raises:
          TraceError: a static argument has another value.
        """
        # An argument that the other call leaves out counts as None.
        new_values = {i: args[i] if i < len(args) else None for i in self.values}
        triples = [(f"argument {i}", old, new_values[i]) for i, old in self.values.items()]
        triples += [(name, old, kwargs.get(name)) for name, old in self.named.items()]
        changed = [
            f"{name} is {new!r:.40}, planned was {old!r:.40}"
            for name, old, new in triples
            if old != new
        ]
        if changed:
            raise TraceError(
                f"{'; '.join(changed)}: another static argument makes another function. Plan it "
                "for that value."
            )
