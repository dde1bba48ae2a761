"""The node of an instruction, and the primitive with the parameters that it runs on a device."""

from __future__ import annotations

from shardalg.errors import ProgramError
from shardalg.graph.evaluate import Binding
from shardalg.graph.ir import Graph, Node, Params
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply, Fold


def node_of(graph: Graph, instruction: Instruction) -> Node:
    """Return the graph node that an instruction was emitted for.

    Raises:
      ProgramError: the instruction is at the program's border and has no node.
    """
    if instruction.node is None:
        kind = type(instruction.attributes).__name__
        raise ProgramError(f"{kind} {instruction.results} has no node, and needs one.")
    return graph.nodes[instruction.node]


def bound(graph: Graph, instruction: Instruction[Apply | Fold]) -> tuple[Binding | None, Params]:
    """Return (binding, parameters), with which `graph.evaluate.apply` runs a primitive.

    A binding is a JAX primitive with the parameters of its traced equation. The returned parameters
    replace some of these. The binding is None for a node that normalisation made, and in a loaded
    graph. The returned parameters are then all parameters of the node, with the instruction's
    changes.
    """
    changed, node = instruction.attributes.params, instruction.node
    if node is None:
        return None, changed
    # A loaded graph has no bindings, because they hold the user's code.
    binding = graph.bindings[node] if graph.bindings else None
    if binding is not None:
        return binding, changed
    # Without a binding the graph's parameters are complete, and the instruction overrides some.
    node_params = dict(graph.nodes[node].signature.params)
    return None, tuple({**node_params, **dict(changed)}.items())
