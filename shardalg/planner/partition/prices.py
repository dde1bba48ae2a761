"""Prices in seconds of the choices of `policy="cost"`, in the way of `Plan.cost`.

A choice is emitted as a program of its own: one operator with its masks, windows and collectives,
or the moves between two shardings. Its instructions are then priced (`costs/step_time.py`).
Programs are cut at values, so that these parts add up to the
price of the whole: a value is written by the operator that makes it and read by the operators that
use it, unless instructions that a compiler fuses do both.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from shardalg.algebra.derived_layouts import whole
from shardalg.algebra.sharding import Sharding
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.compute import contracts
from shardalg.costs.fusion import VIEWS, fuses
from shardalg.costs.step_time import pricing
from shardalg.costs.topology import Machine
from shardalg.graph.ir import Graph, Node, Region, Signature, Value, ValueType, once_per_graph
from shardalg.graph.ops.rows import rules
from shardalg.planner.partition.choose.choices import ComponentCandidate
from shardalg.planner.partition.choose.component import components
from shardalg.planner.partition.emit.context import Cause, PartitionContext
from shardalg.planner.pipeline import after_passes, partition
from shardalg.planner.propagate.options import DEFAULT_CHIP, Options, Switches
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.propagate.strategy import Annotations
from shardalg.planner.reshard.links import links_on
from shardalg.spmd.instruction import Block, Collective
from shardalg.spmd.program import SpmdProgram


@once_per_graph
def fused_values(graph: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """Return the values that fusing operators make, and the values that only such operators read.

    A value in both sets is never in memory, as long as no collective moves it.
    """
    made: set[int] = set()
    for node in graph.nodes:
        if not node.bodies and not contracts(node.signature):
            # A view of a value in memory is that memory.
            source = node.operands[:1] if node.primitive in VIEWS else ()
            if made.issuperset(source):
                made.update(node.results)
    # Contractions and calls read their operands from memory, and every result is in memory.
    given_back = {v for region in graph.regions for v in region.results} | {*graph.results}
    in_memory = {
        v for n in graph.nodes if n.bodies or contracts(n.signature) for v in n.operands
    } | given_back
    read = (v for v, users in enumerate(graph.users) if users and v not in in_memory)
    return frozenset(made), frozenset(read)


class OperatorPart(NamedTuple):
    """A part of an operator that is decided alone.

    Attributes:
      place: the component of the operator; the others compute whole values.
      shardings: of the operands, then of the results; only their shapes and mesh are used.
      fused: operands, then results, that are never in memory, by their numbers.
      finite: whether sums are deferred behind products too (`Switches.finite_sums`).
    """

    signature: Signature
    place: int
    shardings: tuple[Sharding, ...]
    fused: frozenset[int] = frozenset()
    finite: bool = False


@lru_cache(maxsize=1 << 14)
def operator_s(part: OperatorPart, choice: ComponentCandidate, hardware: Machine) -> float:
    """Return the seconds of one execution of an operator on operands in the layouts it requires."""
    signature, place = part.signature, part.place
    # Other components of the operator run on whole values.
    layouts = [whole(sharding) for sharding in part.shardings]
    for number, layout in choice.required_shardings:
        layouts[number] = layout
    for number, layout in choice.produced:
        layouts[len(signature.operands) + number] = layout
    count = len(components(rules(signature) or ())) or 1
    loops = tuple(choice.loops if k == place else () for k in range(count))
    graph = _graph_of(signature)
    required = tuple(choice.required_shardings if k == place else () for k in range(count))
    sharded = _sharded(graph, tuple(layouts))
    if rules(signature):
        sharded = replace(sharded, loops={0: loops}, required={0: required})
    options = Options(switches=Switches(finite_sums=part.finite))
    program = partition(sharded, ("unknown",) * len(graph.values), options)
    # A fused value is never written to memory.
    same = {v.index for v in program.locals if v.origin in part.fused}
    # The first move of the result reduces these sums, and its price counts them.
    if any(layout.unreduced for _, layout in choice.produced):
        program = _without_sums(program)
    return _seconds(program, graph, hardware, same)


def _without_sums(program: SpmdProgram) -> SpmdProgram:
    """Return the program without the collectives that reduce partial sums."""
    held, block = program.locals, program.block
    kept = tuple(
        step
        for step in block.instructions
        if not (
            isinstance(step.attributes, Collective) and held[step.operands[0]].sharding.unreduced
        )
    )
    return replace(program, block=replace(block, instructions=kept))


def _graph_of(signature: Signature) -> Graph:
    """Return a function of one operator."""
    types = (*signature.operands, *signature.results)
    count = len(signature.operands)
    values = tuple(
        Value(k, type_, "argument" if k < count else "intermediate", f"v{k}")
        for k, type_ in enumerate(types)
    )
    given, made = tuple(range(count)), tuple(range(count, len(types)))
    node = Node(0, signature, given, made)
    root = Region(0, "root", None, None, given, made, (0,), 1)
    names = tuple(value.name for value in values)
    return Graph(values, (node,), (root,), (), given, made, names[:count], names[count:])


def _sharded(graph: Graph, layouts: tuple[Sharding, ...]) -> ShardedGraph:
    """Return the graph with every value fixed to its sharding."""
    count, mesh = len(graph.arguments), layouts[0].mesh
    results = layouts[count:]
    annotations = Annotations(mesh, layouts[:count], results, ())
    return ShardedGraph(
        graph, mesh, layouts, results, frozenset(range(len(layouts))), annotations,
        tuple, tuple, tuple,
    )  # fmt: skip


class Neighbours(NamedTuple):
    """Whether a compiler fuses the operators around a move with local instructions of the move.

    A value is in memory unless the operators on both of its sides fuse. The price of an operator
    counts the values in memory that it reads; moves count what fusing operators write.

    Attributes:
      made: the operator that makes the value fuses.
      read: all operators that read the value fuse.
      is_first: the move starts where the value is made, so that it includes writing the value.
    """

    made: bool = False
    read: bool = False
    is_first: bool = False


IN_MEMORY = Neighbours()


@lru_cache(maxsize=1 << 16)
def move_s(
    source: Sharding,
    target: Sharding,
    dtype: str,
    hardware: Machine,
    around: Neighbours = IN_MEMORY,
) -> float:
    """Return the seconds from one sharding to another; infinite if partial sums would arise.

    Collectives and formatting count: slices, and the padding of blocks that do not divide.
    """
    # No move creates partial sums.
    if not set(target.unreduced) <= set(source.unreduced):
        return math.inf
    is_inside = around.made and around.read
    is_unwritten = around.made and around.is_first
    speed = hardware.shared(source.mesh.size).chip.hbm_bytes_per_s
    value = Value(0, ValueType(source.shape, dtype), "argument", "x")
    # Nothing moves: only a write of the value may count.
    if source == target:
        written = is_unwritten and not is_inside
        return math.prod(source.shard_shape) * value.type.itemsize / speed if written else 0.0
    program, graph = _move(source, target, value, hardware)
    steps, held = program.block.instructions, program.locals
    (first,), (last,) = program.block.arguments, program.block.results
    begins = (is_unwritten or is_inside) and all(
        fuses(step, graph) for step in steps if first in step.operands
    )
    ends = around.read and all(fuses(step, graph) for step in steps if last in step.results)
    inside = {local for local, fused in ((first, begins), (last, ends)) if fused}
    traffic = held[first].bytes if (is_unwritten or is_inside) and not begins else 0
    if is_inside and not ends:
        # The price of the reader does not count this read.
        traffic += held[last].bytes
    elif around.read and not is_inside and ends:
        # The price of the reader counts this read, but the move fuses with the reader.
        traffic -= held[last].bytes
    return max(0.0, _seconds(program, graph, hardware, inside) + traffic / speed)


def _move(
    source: Sharding, target: Sharding, value: Value, hardware: Machine
) -> tuple[SpmdProgram, Graph]:
    """Return the moves between two shardings as a program, and the graph that it computes."""
    root = Region(0, "root", None, None, (0,), (0,), (), 1)
    graph = Graph((value,), (), (root,), (), (0,), (0,), ("x",), ("result",))
    links = links_on(source.mesh, hardware, value.type.itemsize)
    context = PartitionContext(graph, ("unknown",), links=links)
    first = context.new_local(source.shard_shape, value.type.dtype, source, 0)
    last = context.move(first, source, target, Cause(None))
    block = Block((first,), tuple(context.instructions), (last,))
    program = SpmdProgram(source.mesh, tuple(context.locals), block, (source,), (target,))
    return after_passes(program, graph, Switches(), DEFAULT_CHIP), graph


def _seconds(program: SpmdProgram, graph: Graph, hardware: Machine, inside: set[int]) -> float:
    """Return the seconds of all instructions.

    Args:
      inside: local values that are never in memory, in addition to those that the program fuses.
    """
    priced = pricing(program, graph, hardware.on(DATASHEET))
    priced = replace(priced, fused=priced.fused | inside)
    places = dict.fromkeys(range(len(priced.steps)), 1)
    prices = zip(priced.steps, priced.prices(places), strict=True)
    return float(sum(float(priced.took(price)) * step.count for step, price in prices))
