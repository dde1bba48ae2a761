"""Expansion of primitives of other packages, and translation of `jax.checkpoint` to a region.

Such a primitive is only a name to JAX. The function of its lowering rule (`mlir.lower_fun`) or its
`impl` computes the same by JAX's own primitives, which have rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import jax
from jax.interpreters import mlir

from shardalg.errors import TraceError
from shardalg.graph.evaluate import primitives
from shardalg.graph.ir import LeftOut, ValueType
from shardalg.graph.tracing.jaxpr import HANDLERS, GraphBuilder, Placing, Scope, plain_node
from shardalg.graph.tracing.manual import MANUAL_HANDLERS


def _remat(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add a body of `jax.checkpoint` that the backward pass recomputes; return its results.

    It becomes a "remat" region behind an `optimization_barrier`. The barrier prevents common
    subexpression elimination, which would undo the recomputation.
    """
    params = equation.params
    # The forward pass has the body too, but it recomputes nothing: no region is needed.
    if not params.get("differentiated", True):
        return builder.run(params["jaxpr"], operands, place)
    prevents_cse = params.get("prevent_cse", True)
    is_guarded = (
        (prevents_cse,) * len(operands) if isinstance(prevents_cse, bool) else tuple(prevents_cse)
    )
    guarded = [v for v, on in zip(operands, is_guarded, strict=True) if on]
    barrier_result = _barrier(builder, guarded, place)
    body_operands = [
        barrier_result.get(v, v) if on else v for v, on in zip(operands, is_guarded, strict=True)
    ]
    span = builder.open("remat", place.spans[0])
    return builder.run(params["jaxpr"], body_operands, place._replace(spans=(span, *place.spans)))


def _barrier(builder: GraphBuilder, operands: Sequence[int], place: Scope) -> dict[int, int]:
    """Add an `optimization_barrier`; return a dictionary from operands to results (value indices).

    A barrier returns its operands, and compilers do not merge computations across it. Constants are
    not operands of the barrier and have no entry.
    """
    parts = builder.parts
    guarded = [v for v in dict.fromkeys(operands) if parts.values[v].kind != "constant"]
    if not guarded:
        return {}
    types: list[ValueType] = [parts.values[v].type for v in guarded]
    results = parts.results(types, parts.label("optimization_barrier", place.source))
    primitive = builder.primitives["optimization_barrier"]
    builder.node(primitive, {}, guarded, results, place=place)
    return dict(zip(guarded, results, strict=True))


REMAT_HANDLERS: Mapping[str, Placing] = {"remat2": _remat}


READERS: dict[str, Placing] = {**HANDLERS, **MANUAL_HANDLERS, **REMAT_HANDLERS}
"""By primitive, the function that translates its equations; others become one node each."""
_OWN = ("jax._src.", "shardalg.")
# These primitives depend on a state of the device, but JAX declares no effect for them. The check
# of effects would therefore not find them.
_STATEFUL = ("rng_uniform",)


def reader(rows: Container[str], primitive: Any) -> Placing:
    """Return the function that translates the equations of a primitive to nodes.

    Args:
      rows: names of operators that have a row: they are not expanded.
    """
    if bodies(primitive) and (primitive.name not in rows or _is_namesake(primitive)):
        return _expanded
    return _leaf if _is_namesake(primitive) else READERS.get(primitive.name, _leaf)


def _is_namesake(primitive: Any) -> bool:
    """Return whether a primitive of JAX with the same name exists, and is another primitive."""
    return primitives().get(primitive.name, primitive) is not primitive


@cache
def bodies(primitive: Any) -> tuple[Callable[..., Any], ...]:
    """Return the functions of another package that compute its primitive.

    The function of its lowering rule is the first one, because `jax.jit` runs it. Empty for a
    primitive of JAX or of this package.

    >>> from jax.experimental.sparse.bcoo import bcoo_dot_general_p
    >>> [body.__name__ for body in bodies(bcoo_dot_general_p)], bodies(jax.lax.sin_p)
    (['_bcoo_dot_general_impl'], ())
    """
    # The lowering rules that `mlir.lower_fun` returns are closures over the function.
    rule: Any = getattr(mlir._lowerings.get(primitive), "rule", None)
    from_function = getattr(rule, "__qualname__", "").startswith(f"{mlir.lower_fun.__name__}.")
    lowered = inspect.getclosurevars(rule).nonlocals.get("fun") if from_function else None
    functions = [f for f in (lowered, getattr(primitive, "impl", None)) if f is not None]
    homes = {
        f: getattr(f.func if isinstance(f, partial) else f, "__module__", "") for f in functions
    }
    if all(f"{home}.".startswith(_OWN) for home in homes.values()):
        return ()
    # The `impl` that JAX gives a primitive by default (`dispatch`) only compiles the lowering rule.
    return tuple(f for f, home in homes.items() if home != "jax._src.dispatch")


def _expanded(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """Add the nodes of another package's primitive, expanded; return the results.

    It is one node if JAX cannot trace a function that computes it.
    Inside a `shard_map` it is one node, because a body may read the manual axes there.
    """
    key = (equation.primitive, *(builder.parts.values[v].type for v in operands))
    body = None
    # A body that contains the same primitive, on the same types, would be expanded without end.
    if not place.manual and key not in place.opened:
        # Literals are known numbers, except those of a weak type, which would lose it.
        known = [
            None if getattr(atom.aval, "weak_type", False) else builder.parts.numbers.get(value)
            for atom, value in zip(equation.invars, operands, strict=True)
        ]
        body = traced(equation, known)
    if body is None:
        return _leaf(builder, equation, operands, place)
    given = [value for value, number in zip(operands, known, strict=True) if number is None]
    return builder.run(body, given, place._replace(opened=place.opened | {key}))


def traced(equation: Any, known: Sequence[Any]) -> Any | None:
    """Return a closed jaxpr that computes an equation of another package's primitive, or None.

    Candidates are the functions that `bodies` finds for the primitive. The result is the first one
    that JAX traces to the types of the equation's results.

    Args:
      known: for each operand its number if it is known, which a function may inspect, or None.
        Operands without a number are the arguments of the jaxpr.
    """

    def run(body: Callable[..., Any], *arguments: Any) -> Any:
        """Return the results of a function for the equation's operands and parameters.

        `given` has the operands whose number is not known; the others are known numbers.
        """
        remaining = iter(arguments)
        operands = (next(remaining) if number is None else number for number in known)
        return body(*operands, **equation.params)

    def type_of(aval: Any) -> tuple[object, object]:
        """Return the shape and the dtype of an abstract value; a token has only itself."""
        return getattr(aval, "shape", None), getattr(aval, "dtype", aval)

    avals = [v.aval for v, n in zip(equation.invars, known, strict=True) if n is None]
    arguments = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    types = [type_of(v.aval) for v in equation.outvars]
    for body in bodies(equation.primitive):
        with suppress(Exception):  # code of another package may raise anything for a traced value
            closed = jax.make_jaxpr(partial(run, body))(*arguments)
            if [*map(type_of, closed.out_avals)] == types:
                return closed
    return None


def _leaf(builder: GraphBuilder, equation: Any, operands: list[int], place: Scope) -> Sequence[int]:
    """Add one node for an equation; return its results.

    An equation with an effect and no results, such as a debug print, is omitted and recorded in
    `left_out`.

    Raises:
      TraceError: the equation has an effect and results, depends on a state of the device, or its
        primitive has the name of another primitive of JAX.
    """
    if _is_namesake(equation.primitive):
        raise TraceError(
            f"{equation.primitive.name} at {place.source or 'an unknown line'} is not JAX's "
            "primitive of this name, and a plan would partition it like that one. Rename it, or "
            "give it a body that JAX can trace."
        )
    if equation.primitive.name in _STATEFUL:
        raise TraceError(
            f"{equation.primitive.name} at {place.source or 'an unknown line'} draws from a state "
            "of each device, so that copies of a value on several devices would differ. Draw with "
            "jax.random, from a key that is an argument of the function."
        )
    # In a manual region, the effect of a collective is only the name of its axis.
    effects = [e for e in equation.effects if getattr(e, "name", None) not in place.manual]
    if not effects:
        return plain_node(builder, equation, operands, place)
    name, source = equation.primitive.name, place.source
    if equation.outvars:
        raise TraceError(
            f"{name} at {source or 'an unknown line'} has results and an effect "
            f"({', '.join(sorted(map(str, effects)))}). A plan computes a value on many devices, "
            "but an effect must happen once. Use jax.pure_callback, or compute the results outside "
            "the function."
        )
    builder.left_out.append(LeftOut(name, source, place.spans[0].trip_count))
    return ()
