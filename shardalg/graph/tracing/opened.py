"""Primitives of other packages, opened through what they are written with.

Such a primitive is a name to JAX; what it computes stands in the function that its lowering was
made of (`mlir.lower_fun`), or in its `impl`, in JAX's own primitives, which partition.

Recomputation in the backward pass as a region: `jax.checkpoint`. No jax here.
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
    """A recomputation in the backward pass: a region, behind a barrier that holds off CSE."""
    params = equation.params
    if not params.get("differentiated", True):
        return builder.run(params["jaxpr"], operands, place)
    guard = params.get("prevent_cse", True)
    guards = (guard,) * len(operands) if isinstance(guard, bool) else tuple(guard)
    guarded = [v for v, on in zip(operands, guards, strict=True) if on]
    passed = _barrier(builder, guarded, place)
    inner = [passed.get(v, v) if on else v for v, on in zip(operands, guards, strict=True)]
    span = builder.open("remat", place.spans[0])
    return builder.run(params["jaxpr"], inner, place._replace(spans=(span, *place.spans)))


def _barrier(builder: GraphBuilder, operands: Sequence[int], place: Scope) -> dict[int, int]:
    """Operand to what a barrier hands on; constants need none."""
    parts = builder.parts
    held = [v for v in dict.fromkeys(operands) if parts.values[v].kind != "constant"]
    if not held:
        return {}
    types: list[ValueType] = [parts.values[v].type for v in held]
    results = parts.results(types, parts.label("optimization_barrier", place.source))
    primitive = builder.primitives["optimization_barrier"]
    builder.node(primitive, {}, held, results, place=place)
    return dict(zip(held, results, strict=True))


REMAT_HANDLERS: Mapping[str, Placing] = {"remat2": _remat}


READERS: dict[str, Placing] = {**HANDLERS, **MANUAL_HANDLERS, **REMAT_HANDLERS}
"""Primitive to what reads its equations; all others are one node each."""
_OWN = ("jax._src.", "shardalg.")
_STATEFUL = ("rng_uniform",)
"""Primitives whose results depend on a state of the device, which JAX counts as no effect."""


def reader(rows: Container[str], primitive: Any) -> Placing:
    """What reads the equations of a primitive.

    Args:
      rows: names of operators that have a row: they are partitioned as they are.
    """
    if bodies(primitive) and (primitive.name not in rows or _is_namesake(primitive)):
        return _opened
    return _leaf if _is_namesake(primitive) else READERS.get(primitive.name, _leaf)


def _is_namesake(primitive: Any) -> bool:
    """Whether it is another primitive than the one of JAX's that has its name."""
    return primitives().get(primitive.name, primitive) is not primitive


@cache
def bodies(primitive: Any) -> tuple[Callable[..., Any], ...]:
    """The functions that a primitive of another package is written with, each saying all of it.

    First the one that it is lowered with, which is what runs under `jax.jit`. None of a primitive
    of JAX's own or of ours.

    >>> from jax.experimental.sparse.bcoo import bcoo_dot_general_p
    >>> [body.__name__ for body in bodies(bcoo_dot_general_p)], bodies(jax.lax.sin_p)
    (['_bcoo_dot_general_impl'], ())
    """
    found = [f for f in (_lowered(primitive), getattr(primitive, "impl", None)) if f is not None]
    homes = {f: getattr(_inner(f), "__module__", "") for f in found}
    if all(f"{home}.".startswith(_OWN) for home in homes.values()):
        return ()
    return tuple(f for f, home in homes.items() if home != "jax._src.dispatch")


def _inner(function: Any) -> Any:
    return function.func if isinstance(function, partial) else function


def _lowered(primitive: Any) -> Callable[..., Any] | None:
    """The function of a lowering rule that `mlir.lower_fun` made."""
    rule: Any = getattr(mlir._lowerings.get(primitive), "rule", None)
    made = getattr(rule, "__qualname__", "").startswith(f"{mlir.lower_fun.__name__}.")
    return inspect.getclosurevars(rule).nonlocals.get("fun") if made else None


def _opened(
    builder: GraphBuilder, equation: Any, operands: list[int], place: Scope
) -> Sequence[int]:
    """A body of a primitive, where JAX traces it; else one node.

    Inside a `shard_map` it stays a node: there a body may ask for the axes that are manual.
    """
    key = (equation.primitive, *(builder.parts.values[v].type for v in operands))
    body = None
    if not place.manual and key not in place.opened:
        known = [_number(builder, *pair) for pair in zip(equation.invars, operands, strict=True)]
        body = traced(equation, known)
    if body is None:
        return _leaf(builder, equation, operands, place)
    given = [value for value, number in zip(operands, known, strict=True) if number is None]
    return builder.run(body, given, place._replace(opened=place.opened | {key}))


def _number(builder: GraphBuilder, atom: Any, value: int) -> Any | None:
    """What an operand is, where it is a number; one of a weak type would lose that."""
    return None if getattr(atom.aval, "weak_type", False) else builder.parts.numbers.get(value)


def traced(equation: Any, known: Sequence[Any]) -> Any | None:
    """What an equation computes, as a closed jaxpr; None where JAX traces no body of it.

    Args:
      known: per operand its number, which a body may look at, or None; the jaxpr has the others as
        arguments.
    """
    avals = [v.aval for v, n in zip(equation.invars, known, strict=True) if n is None]
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    said = [_type(v.aval) for v in equation.outvars]
    for body in bodies(equation.primitive):
        with suppress(Exception):  # code of another package may raise anything at a traced value
            closed = jax.make_jaxpr(partial(_run, body, equation.params, known))(*given)
            if [*map(_type, closed.out_avals)] == said:
                return closed
    return None


def _run(body: Callable[..., Any], params: Any, known: Sequence[Any], *given: Any) -> Any:
    rest = iter(given)
    return body(*(next(rest) if number is None else number for number in known), **params)


def _type(aval: Any) -> tuple[object, object]:
    return getattr(aval, "shape", None), getattr(aval, "dtype", aval)


def _leaf(builder: GraphBuilder, equation: Any, operands: list[int], place: Scope) -> Sequence[int]:
    """One node; what has an effect and no result is left out, and noted.

    Raises:
      TraceError: it has an effect and results, or a state of the device, or the name of a
        primitive of JAX's.
    """
    if _is_namesake(equation.primitive):
        raise TraceError(
            f"{equation.primitive.name} at {place.source or 'an unknown line'} is no primitive of "
            "JAX's, but has the name of one, by which a plan would partition it. Rename it, or "
            "give it a body that JAX traces."
        )
    if equation.primitive.name in _STATEFUL:
        raise TraceError(
            f"{equation.primitive.name} at {place.source or 'an unknown line'} draws from a state "
            "that each device has to itself: where several hold a copy of a value, copies "
            "would differ. Draw with jax.random, from a key that the function is given."
        )
    effects = [e for e in equation.effects if getattr(e, "name", None) not in place.manual]
    if not effects:
        return plain_node(builder, equation, operands, place)
    name, source = equation.primitive.name, place.source
    if equation.outvars:
        raise TraceError(
            f"{name} at {source or 'an unknown line'} has results and an effect "
            f"({', '.join(sorted(map(str, effects)))}): a plan runs a value on many devices, and "
            "an effect once. Compute the results with jax.pure_callback, or outside the function."
        )
    builder.left_out.append(LeftOut(name, source, place.spans[0].trip_count))
    return ()
