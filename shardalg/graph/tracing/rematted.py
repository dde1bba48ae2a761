"""Recomputation in the backward pass as a region: `jax.checkpoint`. No jax here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardalg.graph.ir import ValueType
from shardalg.graph.tracing.jaxpr import Builder, Placing, Scope


def _remat(builder: Builder, equation: Any, operands: list[int], place: Scope) -> Sequence[int]:
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


def _barrier(builder: Builder, operands: Sequence[int], place: Scope) -> dict[int, int]:
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
