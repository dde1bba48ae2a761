"""What the faithful policies know of an operator: its class, as XLA has its instruction."""

from __future__ import annotations

from dataclasses import replace

from shardalg.graph.ir import Graph, Node
from shardalg.propagate.gspmd import priority
from shardalg.propagate.gspmd.index import Rules
from shardalg.propagate.operator_classes import OperatorClass, kind_of

PASSING = (priority.POINTWISE, priority.LAYOUT)
LATER = frozenset(
    ("slice", "pad", "rev", "concatenate", "gather", "reduce_sum", "reduce_max", "reduce_min",
     "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin", "cumsum", "sort")
)  # fmt: skip
"""Operators that XLA passes layouts through from the second level on, whatever their loops are."""
BOXES = {
    ("slice", "dynamic_slice"): priority.DYNAMIC_SLICE,
    ("pad", "dynamic_update_slice"): priority.STACK,
    ("slice", "gather"): priority.WINDOW,
    ("pad", "scatter"): priority.WINDOW,
}
"""(primitive, what is written there) of boxes at known starts, which are slices and pads here."""


def written(graph: Graph, node: Node) -> str:
    """The primitive that the program has where a node stands: its result is named after it."""
    return graph.values[node.results[0]].name.partition(":")[0] if node.results else ""


def is_written_over(graph: Graph, node: Node) -> bool:
    """Whether a pad is written as a box that is put into a tensor full of one number."""
    return node.primitive == "pad" and ("pad", written(graph, node)) in BOXES


def hlo_class(node: Node, rules: Rules, written: str = "") -> OperatorClass | None:
    """The class of a node, as XLA's levels have it; None where nothing is inferred.

    Args:
      written: the primitive that the program has there.
    """
    signature = node.signature
    rows = rules(signature) if signature.operands else None
    kind = kind_of(signature, rows, (False,) * len(node.results)) if rows else None
    if kind is None or kind.is_closed:
        return None
    if (node.primitive, written) in BOXES:
        return replace(boxed(node, kind), role=BOXES[node.primitive, written])
    if node.primitive == "dynamic_update_slice":
        others = [k for k in range(kind.num_operands) if k != 1]
        return replace(kind, role=priority.STACK, first=(1, *others))
    if node.primitive in LATER and kind.role in PASSING:
        return replace(kind, role=priority.WINDOW)
    return kind


def boxed(node: Node, kind: OperatorClass) -> OperatorClass:
    """Of a box neither side says where the other is cut along a dimension that it has a part of.

    Source: `sharding_propagation.cc`, kDynamicSlice and kDynamicUpdateSlice, and Shardy's
    `op_sharding_rule_registry.cc`, DynamicSliceOp and DynamicUpdateSliceOp.
    """
    whole = zip(kind.shapes[0], kind.shapes[-1], strict=True)
    ends = node.signature.param("padding_config", [(a - b,) for a, b in whole])
    parts = {d for d, sizes in enumerate(ends) if any(sizes)}
    maps = [
        tuple(() if d in parts else entry for d, entry in enumerate(dims)) for dims in kind.maps
    ]
    return replace(kind, maps=tuple(maps))
