"""What an `Apply` runs: JAX's own primitive with the parameters that replace its own."""

from __future__ import annotations

from shardalg.graph.ir import Graph, Params
from shardalg.spmd.program import Instruction


def bound(graph: Graph, instruction: Instruction) -> tuple[object, Params]:
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
