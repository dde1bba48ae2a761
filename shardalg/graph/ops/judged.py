"""Checks of the nodes of a loaded graph, by JAX's own type rules and by the table of rows."""

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
_COLLECTIVES = {
    **dict.fromkeys(("pmax", "pmin", "psum", "psum_invariant"), "axes"),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_to_all"), "axis_name"),
    **dict.fromkeys(("axis_index", "ppermute", "ragged_all_to_all", "reduce_scatter"), "axis_name"),
}
"""Collectives that a user calls, and the parameter that names their axes."""


def check_operators(graph: Graph) -> None:
    """Raise unless JAX derives each node's result types and the table builds the node's rows.

    Some nodes cannot be checked by JAX: primitives that it does not export, code as parameters, and
    unknown types. JAX's rules also ignore some parameters: the dimension numbers of a convolution
    may be negative, and the dimension of a sort may not exist. The rows detect these. The module
    `shardalg.graph.loaded` checks calls.

    Raises:
      PlanFileError: some nodes are wrong. The message has their lines and JAX's messages.
    """
    regions = [tuple(graph.manual_axes(region.index).items()) for region in graph.regions]
    # Equal signatures are checked once per set of manual axes, which collectives depend on.
    checked: dict[Any, dict[Signature, str]] = {}
    for node in graph.nodes:
        if node.primitive not in CALLS:
            checked.setdefault(regions[node.region], {})[node.signature] = node.source
    faults: list[str] = []
    with jax.enable_x64(True):
        for axes, signatures in checked.items():
            faults += _faults_in_regions(axes, signatures)
    if faults:
        raise PlanFileError(
            f"the saved graph is damaged: {'; '.join(faults[:5])}. Plan the function again."
        )


def _faults_in_regions(
    axes: tuple[tuple[str, int], ...], checked: Mapping[Signature, str]
) -> list[str]:
    """Return a message for each wrong operator among those in regions with the same manual axes.

    Args:
      axes: names and sizes of the manual axes, which collectives refer to.
      checked: the signatures of the operators, each with the source line of one node.
    """
    operand_types: dict[ValueType, jax.ShapeDtypeStruct] = {}
    for type_ in dict.fromkeys(type_ for signature in checked for type_ in signature.operands):
        try:
            item = jax.dtypes.float0 if type_.dtype == "float0" else item_type(type_.dtype)
        except StopIteration:
            continue  # random keys of a kind that JAX does not know
        operand_types[type_] = jax.ShapeDtypeStruct(type_.shape, item)
    faults: list[str] = []

    def bind_all(*arrays: Any) -> None:
        """Derive the result types of all operators from arrays of all operand types."""
        available = dict(zip(operand_types, arrays, strict=True))
        for signature, source in checked.items():
            place = f"{signature.primitive} ({source or 'an unknown line'})"
            if all(type_ in available for type_ in signature.operands):
                faults.extend(f"{place} {fault}" for fault in _type_faults(signature, available))

    # One trace evaluates the types of all operators abstractly, with the axes in scope.
    jax.make_jaxpr(bind_all, axis_env=list(axes))(*operand_types.values())
    for signature, source in checked.items():
        place = f"{signature.primitive} ({source or 'an unknown line'})"
        faults.extend(f"{place} {fault}" for fault in _collective_faults(signature, dict(axes)))
        try:
            rules(signature)
        except Exception as error:  # builders of rows assume what tracing guarantees
            faults.append(f"{place} has no row: {type(error).__name__}: {error!s:.160}")
    return faults


def _collective_faults(signature: Signature, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield a message for each fault of a collective that JAX's type rules do not find.

    Faults are axes that the region does not have, impossible pairs of a `ppermute`, and groups
    within an axis, which no traced graph has. Other primitives have no such faults.

    Args:
      sizes: the size of each manual axis of the region.

    Raises:
      PlanFileError: the axes are no names, or the pairs no numbers.
    """
    if signature.primitive not in _COLLECTIVES:
        return
    params = dict(signature.params)
    axes = params.get(_COLLECTIVES[signature.primitive])
    names = read(str | tuple[str, ...], axes, "axes of a collective")
    names = names if isinstance(names, tuple) else (names,)
    if params.get("axis_index_groups") is not None:
        yield "is over groups of an axis"
    elif len(set(names)) != len(names) or not set(names) <= sizes.keys():
        yield f"is over the axes {names}, but its region has {sorted(sizes)}"
    elif "perm" in params:
        pairs = read(tuple[tuple[int, int], ...], params["perm"], "perm")
        devices = prod(sizes[name] for name in names)
        for side in zip(*pairs, strict=True):
            if len(set(side)) != len(side) or not set(side) <= set(range(devices)):
                yield f"has pairs {pairs}, which {devices} devices cannot have"


def _type_faults(signature: Signature, available: Mapping[ValueType, Any]) -> Iterator[str]:
    """Yield a message if a node's result types differ from the types that JAX derives.

    Also yield one if JAX rejects the operands or the parameters.

    Args:
      available: a traced value of each type that JAX knows.
    """
    name = signature.primitive
    # The operands are tracers, so that `apply` derives types and computes no array.
    operands = [available[type_] for type_ in signature.operands if name not in _WITHOUT_OPERANDS]
    check = LEFT_TO_THE_COMPILER.get(name)
    try:
        fits = not check or check(dict(signature.params), signature.operands, signature.results)
        results = apply(name, None, signature.params, operands)
    except TraceError:  # JAX exports no primitive of this name
        results = None
    except Exception as error:  # JAX may raise anything for parameters that it does not accept
        reason = str(error).strip().split("\n")[0]
        yield f"is rejected by JAX: {type(error).__name__}: {reason:.160}"
        return
    if not fits:
        yield f"does not compute {list(signature.results)} from {list(signature.operands)}"
    derived = tuple(ValueType(tuple(r.shape), str(r.dtype)) for r in results or ())
    if results is not None and derived != signature.results:
        yield f"computes {list(derived)}, not {list(signature.results)}"
