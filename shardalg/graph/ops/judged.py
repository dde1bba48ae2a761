"""Nodes of a graph from a file, checked by JAX's own rules for types and by our rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import jax

from shardalg.errors import PlanFileError, TraceError
from shardalg.files import read
from shardalg.graph.abstract import LEFT_TO_THE_COMPILER, item_type
from shardalg.graph.evaluate import apply
from shardalg.graph.ir import Graph, Signature, ValueType
from shardalg.graph.ops.rows import rules
from shardalg.graph.tracing.control_flow import CALLS

_WITHOUT_OPERANDS = ("axis_index",)
# Collectives of the user's, and the parameter that names their axes.
_COLLECTIVES = {
    **dict.fromkeys(("pmax", "pmin", "psum", "psum_invariant"), "axes"),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_to_all"), "axis_name"),
    **dict.fromkeys(("axis_index", "ppermute", "reduce_scatter"), "axis_name"),
}


def check_operators(graph: Graph) -> None:
    """Raise where JAX does not take a node's parameters or gives other types, or no row takes them.

    A primitive that JAX does not show, one whose parameters are code, and types that it does not
    know cannot be asked. JAX's rules look at some parameters alone: a convolution's order of
    dimensions may count from the end, a sort's dimension be none. What calls hand on is checked by
    `loaded`.

    Raises:
      PlanFileError: the nodes, with what JAX says, or what is wrong with their rows.
    """
    regions = [tuple(graph.manual_axes(region.index).items()) for region in graph.regions]
    # Collectives are asked along the axes of their own region.
    asked: dict[Any, dict[Signature, str]] = {}
    for node in graph.nodes:
        if node.primitive not in CALLS:
            asked.setdefault(regions[node.region], {})[node.signature] = node.source
    found: list[str] = []
    with jax.enable_x64(True):
        for axes, signatures in asked.items():
            found += _in_region(axes, signatures)
    if found:
        raise PlanFileError(
            f"the saved graph is damaged: {'; '.join(found[:5])}. Plan the function again."
        )


def _in_region(axes: tuple[tuple[str, int], ...], asked: Mapping[Signature, str]) -> list[str]:
    """Return the faults of the operators of regions that are manual along some axes."""
    types = {kind: _struct(kind) for signature in asked for kind in signature.operands}
    known = {kind: struct for kind, struct in types.items() if struct is not None}
    found: list[str] = []

    def ask(*arrays: Any) -> None:
        available = dict(zip(known, arrays, strict=True))
        for signature, source in asked.items():
            place = f"{signature.primitive} ({source or 'an unknown line'})"
            if all(kind in available for kind in signature.operands):
                found.extend(f"{place} {fault}" for fault in _faults(signature, available))

    jax.make_jaxpr(ask, axis_env=list(axes))(*known.values())
    for signature, source in asked.items():
        place = f"{signature.primitive} ({source or 'an unknown line'})"
        found.extend(f"{place} {fault}" for fault in _collective_faults(signature, dict(axes)))
        try:
            rules(signature)
        except Exception as error:  # a row takes for granted what tracing guarantees
            found.append(f"{place} has no row: {type(error).__name__}: {error!s:.160}")
    return found


def _collective_faults(signature: Signature, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield what JAX says only while it lowers a collective, and groups, which no trace keeps.

    Raises:
      PlanFileError: axes or pairs that are no names or numbers.
    """
    if signature.primitive not in _COLLECTIVES:
        return
    given = dict(signature.params)
    over = given.get(_COLLECTIVES[signature.primitive])
    named = read(str | tuple[str, ...], over, "axes of a collective")
    named = named if isinstance(named, tuple) else (named,)
    if given.get("axis_index_groups") is not None:
        yield "is over groups of an axis"
    elif len(set(named)) != len(named) or not set(named) <= sizes.keys():
        yield f"is over {named}, of which the region has {sorted(sizes)}"
    elif "perm" in given:
        pairs = read(tuple[tuple[int, int], ...], given["perm"], "perm")
        devices = prod(sizes[name] for name in named)
        for side in zip(*pairs, strict=True):
            if len(set(side)) != len(side) or not set(side) <= set(range(devices)):
                yield f"has pairs {pairs} of {devices} devices"


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
    """Return the type as JAX has it, or None for random keys of a kind that JAX does not know."""
    try:
        found = jax.dtypes.float0 if kind.dtype == "float0" else item_type(kind.dtype)
    except StopIteration:
        return None
    return jax.ShapeDtypeStruct(kind.shape, found)
