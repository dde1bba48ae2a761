"""Nodes of a graph from a file, held against JAX's own rules for shapes and types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import jax

from shardalg.errors import PlanFileError, TraceError
from shardalg.graph.abstract import LEFT_TO_THE_COMPILER
from shardalg.graph.evaluate import apply
from shardalg.graph.ir import Graph, Signature, ValueType
from shardalg.graph.loaded import item_type
from shardalg.graph.tracing.control_flow import CALLS

# Our form of it has the number 0 as operand, to which the device's place is added.
_WITHOUT_OPERANDS = ("axis_index",)


def check_types(graph: Graph) -> None:
    """Raise where JAX does not take a node's parameters, or gives its results other types.

    A primitive that JAX does not show, one whose parameters are code, and types that it does not
    know cannot be asked: there the file is all there is. What calls hand on is checked by `loaded`.

    Raises:
      PlanFileError: the nodes, with what JAX says.
    """
    regions = [graph.manual_axes(region.index) for region in graph.regions]
    axes = {name: size for found in regions for name, size in found.items()}
    asked = {n.signature: n.source for n in graph.nodes if n.primitive not in CALLS}
    types = {kind: _struct(kind) for signature in asked for kind in signature.operands}
    known = {kind: struct for kind, struct in types.items() if struct is not None}
    found: list[str] = []

    def ask(*arrays: Any) -> None:
        available = dict(zip(known, arrays, strict=True))
        for signature, source in asked.items():
            if all(kind in available for kind in signature.operands):
                place = f"{signature.primitive} ({source or 'an unknown line'})"
                found.extend(f"{place} {fault}" for fault in _faults(signature, available))

    with jax.enable_x64(True):
        jax.make_jaxpr(ask, axis_env=list(axes.items()))(*known.values())
    if found:
        raise PlanFileError(
            f"the saved graph is damaged: {'; '.join(found[:5])}. Plan the function again."
        )


def _faults(signature: Signature, available: Mapping[ValueType, Any]) -> Iterator[str]:
    name = signature.primitive
    operands = [available[kind] for kind in signature.operands if name not in _WITHOUT_OPERANDS]
    left = LEFT_TO_THE_COMPILER.get(name)
    try:
        fits = not left or left(dict(signature.params), signature.operands, signature.results)
        results = apply(name, None, signature.params, operands)
    except TraceError:  # JAX cannot be asked
        results = None
    except Exception as error:  # JAX may raise anything at what it does not take
        reason = str(error).strip().split("\n")[0]
        yield f"is not JAX's: {type(error).__name__}: {reason:.160}"
        return
    if not fits:
        yield f"does not make {list(signature.results)} of {list(signature.operands)}"
    made = tuple(ValueType(tuple(r.shape), str(r.dtype)) for r in results or ())
    if results is not None and made != signature.results:
        yield f"makes {list(made)}, not {list(signature.results)}"


def _struct(kind: ValueType) -> jax.ShapeDtypeStruct | None:
    """The type as JAX has it; None if it does not know it."""
    found = item_type(kind.dtype) or _extended_types().get(kind.dtype)
    return None if found is None else jax.ShapeDtypeStruct(kind.shape, found)


@cache
def _extended_types() -> Mapping[str, Any]:
    """Types that numpy lacks: of gradients of integers, and of the random keys of each kind."""
    kinds = ("threefry2x32", "rbg", "unsafe_rbg")
    keys = [jax.eval_shape(partial(jax.random.key, impl=kind), 0).dtype for kind in kinds]
    return {"float0": jax.dtypes.float0, **{str(key): key for key in keys}}
