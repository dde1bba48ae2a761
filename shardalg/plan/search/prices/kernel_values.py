"""Values of a graph that kernels of products or of attention never write to memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardalg.algebra.derived_layouts import interned
from shardalg.algebra.mesh import Mesh
from shardalg.costs.fusion import casts, on_chip, rebuilt_stacks
from shardalg.graph.ir import Graph, once_per_graph
from shardalg.planner.pipeline import partition
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.propagate.strategy import Annotations
from shardalg.spmd.program import SpmdProgram


@dataclass(frozen=True)
class KernelValues:
    """Graph values that are not in memory in a program without communication.

    Attributes:
      on_chip: values that an attention kernel computes block by block, and values in bodies of
        scans that another scan computes again (`rebuilt_stacks`).
      free: results of casts that a product carries out, so that the cast moves no bytes.
      stored: for an operand or a result of a product that is cast, the value that is in memory.
    """

    on_chip: frozenset[int]
    free: frozenset[int]
    stored: Mapping[int, int]


@once_per_graph
def kernel_values(graph: Graph) -> KernelValues:
    """Return the values of a graph that kernels never write, on one device."""
    program = program_on_one_device(graph)
    cast = casts(program, graph)
    origin = [local.origin for local in program.locals]

    def values(found: Sequence[int] | frozenset[int]) -> frozenset[int]:
        return frozenset(v for local in found if (v := origin[local]) is not None)

    stored = {}
    for local in (*cast.read, *cast.written):
        value, held = origin[local], origin[cast.stored(local)]
        if value is not None and held is not None:
            stored[value] = held
    # A backward scan computes some slices of a stack again, so that they move no bytes either.
    never = on_chip(program, graph) | rebuilt_stacks(program, graph)
    return KernelValues(values(never), values(cast.free), stored)


@once_per_graph
def program_on_one_device(graph: Graph) -> SpmdProgram:
    """Return the program of a graph on a mesh of one device."""
    mesh = Mesh({"one": 1})
    shapes = [value.type.shape for value in graph.values]
    shardings = tuple(interned(mesh, shape, ((),) * len(shape), ()) for shape in shapes)
    arguments = tuple(shardings[v] for v in graph.arguments)
    results = tuple(shardings[v] for v in graph.results)
    annotations = Annotations(mesh, arguments, results, (None,) * len(graph.sites))
    everything = frozenset(range(len(shapes)))
    sharded = ShardedGraph(
        graph, mesh, shardings, results, everything, annotations, tuple, tuple, tuple
    )
    return partition(sharded, ("unknown",) * len(graph.values), Options())
