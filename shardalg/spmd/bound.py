"""What an `Apply` runs: JAX's own primitive with the parameters that replace its own."""

from __future__ import annotations

from shardalg.errors import ProgramError
from shardalg.graph.evaluate import Binding
from shardalg.graph.ir import Graph, Node, Params
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply, Fold


def node_of(graph: Graph, instruction: Instruction) -> Node:
    """The graph node that an instruction was emitted for.

    Raises:
      ProgramError: it stands at the program's border, and is for none.
    """
    if instruction.node is None:
        kind = type(instruction.attributes).__name__
        raise ProgramError(f"{kind} {instruction.results} is for no node, and needs one.")
    return graph.nodes[instruction.node]


def bound(graph: Graph, instruction: Instruction[Apply | Fold]) -> tuple[Binding | None, Params]:
    """(binding, parameters) for `graph.evaluate.apply`.

    The binding is None for a node that normalisation made and in a loaded graph; the parameters
    then are all of the node's, with those that the instruction changes.
    """
    changed, node = instruction.attributes.params, instruction.node
    if node is None:
        return None, changed
    binding = graph.bindings[node] if graph.bindings else None
    if binding is not None:
        return binding, changed
    own = dict(graph.nodes[node].signature.params)
    return None, tuple({**own, **dict(changed)}.items())
