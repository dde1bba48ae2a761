"""Whether an instruction reads the values that it should: those of its node, or of one value."""

from __future__ import annotations

from collections.abc import Callable

from shardalg.graph.ir import Graph, Node
from shardalg.spmd.instruction import Instruction, Operator
from shardalg.spmd.instructions import (
    ArgReduce,
    Concatenate,
    Fold,
    Join,
    MaskIndexed,
    Regroup,
    Top,
    ValueAt,
    kinds,
)

Values = tuple[int | None, ...]


def of_its_own(graph: Graph, instruction: Instruction, given: Values) -> bool:
    """Whether the values that are read belong together.

    Args:
      given: the graph values that the operands are parts of.
    """
    kind = type(instruction.attributes)
    if kind in _OF_ONE_VALUE:
        return len(set(given)) == 1
    if kind not in _OF_NODE:
        return True
    return instruction.node is not None and _OF_NODE[kind](graph.nodes[instruction.node], given)


def _is_view(node: Node, given: Values) -> bool:
    """The node makes of the value that is regrouped the same elements in the same order."""
    row_major = node.signature.param("new_sizes") and not node.signature.param("dimensions")
    return bool(row_major) and given[0] == node.operands[0]


_OF_ONE_VALUE = (ArgReduce, Concatenate, Join)
_OF_NODE: dict[type, Callable[[Node, Values], bool]] = {
    **dict.fromkeys(kinds(Operator), lambda node, given: given == node.operands),
    Fold: lambda node, given: given == (*node.results, *node.operands[len(node.results) :]),
    MaskIndexed: lambda node, given: given == (node.results[0], node.operands[1]),
    Regroup: _is_view,
    Top: lambda node, given: given == node.results,
    ValueAt: lambda node, given: given == (node.results[0], node.operands[0]),
}
