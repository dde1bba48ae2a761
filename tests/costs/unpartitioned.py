"""A graph as the program of a single device, the base of a partitioned program's costs."""

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import replicated
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import Apply, Loop
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

ONE = Mesh({"X": 1})


def program_of(graph):
    held = tuple(
        Local(v.index, v.type.shape, v.type.dtype, replicated(v.type.shape, ONE), v.index)
        for v in graph.values
    )
    root = Block(graph.arguments, tuple(steps(graph, graph.regions[0])), graph.results)
    constants = tuple((v.index, v.index) for v in graph.values if v.kind == "constant")
    return SpmdProgram(ONE, held, root, (), (), constants)


def steps(graph, region):
    for node in (graph.nodes[i] for i in region.nodes):
        bodies = [graph.regions[b] for b in node.bodies]
        if any(b.kind == "scan" for b in bodies):
            numbers = (node.signature.param(k) for k in ("num_consts", "num_carry", "length"))
            body = Block(bodies[0].arguments, tuple(steps(graph, bodies[0])), bodies[0].results)
            attributes = Loop(body, *numbers, bool(node.signature.param("reverse")))
        else:
            for b in bodies:
                yield from steps(graph, b)
            attributes = Apply(node.primitive)
        yield Instruction(attributes, node.operands, node.results, node.index)
