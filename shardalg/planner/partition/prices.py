"""Prices in seconds of operators and moves for `policy="cost"`, by the model of `Plan.cost`.

Each candidate is emitted as a small program: one operator with its masks, windows and collectives,
or the moves between two shardings. Its instructions are then priced (`costs/step_time.py`). The
prices of all parts add up to the price of the whole program. Each value is therefore written once,
in the price of its operator, and read once in the price of each reader. A value between operators
that a compiler fuses is neither written nor read.
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
from shardalg.spmd.instruction import Block, Collective, Instruction
from shardalg.spmd.program import SpmdProgram


@once_per_graph
def fused_values(graph: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """Return two sets of values, by the operators that a compiler fuses with their neighbours.

    The first set has the results of such operators. The second one has the values that only such
    operators read. A value in both sets is never in memory, as long as no collective moves it.
    """
    # A compiler fuses all operators except contractions, calls and loops.
    fused_results: set[int] = set()
    for node in graph.nodes:
        if not node.bodies and not contracts(node.signature):
            # A view (a reshape) of a value in memory is no new value: it is the same memory.
            source = node.operands[:1] if node.primitive in VIEWS else ()
            if fused_results.issuperset(source):
                fused_results.update(node.results)
    # Contractions and calls read their operands from memory, and every result of the function or of
    # a region is in memory.
    outputs = {v for region in graph.regions for v in region.results} | {*graph.results}
    in_memory = {
        v for n in graph.nodes if n.bodies or contracts(n.signature) for v in n.operands
    } | outputs
    fused_reads = (v for v, users in enumerate(graph.users) if users and v not in in_memory)
    return frozenset(fused_results), frozenset(fused_reads)


class OperatorPart(NamedTuple):
    """One component of an operator: the part of the operator that `operator_s` prices.

    Attributes:
      signature: the operator with its types.
      place: the number of the priced component. In this price, the other components of the operator
        compute whole values.
      shardings: one per operand, then one per result; only their shapes and mesh are used.
      fused: numbers in `shardings` of the operands and results that are never in memory.
      finite: whether sums may be deferred until after a product (`Switches.finite_sums`).
    """

    signature: Signature
    place: int
    shardings: tuple[Sharding, ...]
    fused: frozenset[int] = frozenset()
    finite: bool = False


@lru_cache(maxsize=1 << 14)
def operator_s(part: OperatorPart, choice: ComponentCandidate, hardware: Machine) -> float:
    """Return the seconds of one execution of an operator, computed as a candidate describes.

    Moves of the operands to their required shardings, and reductions of partial sums, are not
    included. The operator is partitioned alone, and the program of one node is priced.

    Args:
      part: the operator, its shardings, and the number (`place`) of the component that is decided.
      choice: the candidate: digits of loops, shardings of the component's operands and results.
    """
    signature, place = part.signature, part.place
    # Components are priced one by one. Whole values keep the others from adding communication.
    layouts = [whole(sharding) for sharding in part.shardings]
    for number, layout in choice.required_shardings:
        layouts[number] = layout
    for number, layout in choice.produced:
        layouts[len(signature.operands) + number] = layout
    # The decisions are given per component; only the component `place` has one.
    count = len(components(rules(signature) or ())) or 1
    loops = tuple(choice.loops if k == place else () for k in range(count))
    graph = _graph_of(signature)
    required = tuple(choice.required_shardings if k == place else () for k in range(count))
    sharded = _with_shardings(graph, tuple(layouts))
    if rules(signature):
        sharded = replace(sharded, loops={0: loops}, required={0: required})
    options = Options(switches=Switches(finite_sums=part.finite))
    program = partition(sharded, ("unknown",) * len(graph.values), options)
    # A fused value is never in memory, so that reading and writing it costs no time.
    same = {v.index for v in program.locals if v.origin in part.fused}
    # The price of the result's first move (`move_s`) contains the reduction of partial sums.
    if any(layout.unreduced for _, layout in choice.produced):
        program = _without_sums(program)
    return _seconds(program, graph, hardware, same)


def _without_sums(program: SpmdProgram) -> SpmdProgram:
    """Return the program without collectives that reduce partial sums.

    The program is only priced afterwards: it would compute other values.
    """
    block = program.block

    def reduces_sums(step: Instruction) -> bool:
        """Return whether an instruction is a collective on a value with pending partial sums."""
        is_sent = isinstance(step.attributes, Collective)
        return is_sent and bool(program.locals[step.operands[0]].sharding.unreduced)

    instructions = tuple(step for step in block.instructions if not reduces_sums(step))
    return replace(program, block=replace(block, instructions=instructions))


def _graph_of(signature: Signature) -> Graph:
    """Return the graph of a function whose only node is an operator with this signature.

    The function's arguments are the operands, in order, and its results are the operator's.
    """
    # Two equal operands become two arguments: their moves are priced apart, by `move_s`.
    types = (*signature.operands, *signature.results)
    count = len(signature.operands)
    values = tuple(
        Value(k, type_, "argument" if k < count else "intermediate", f"v{k}")
        for k, type_ in enumerate(types)
    )
    # Values are numbered from 0: the operands first, and then the results.
    operands, results = tuple(range(count)), tuple(range(count, len(types)))
    node = Node(0, signature, operands, results)
    root = Region(
        index=0,
        kind="root",
        parent=None,
        node=None,
        arguments=operands,
        results=results,
        nodes=(0,),
        trip_count=1,
    )
    names = tuple(value.name for value in values)
    return Graph(
        values=values,
        nodes=(node,),
        regions=(root,),
        region_arguments=(),
        arguments=operands,
        results=results,
        argument_paths=names[:count],
        result_paths=names[count:],
    )


def _with_shardings(graph: Graph, layouts: tuple[Sharding, ...]) -> ShardedGraph:
    """Return the graph with these shardings, one per value, all fixed as if annotated."""
    count, mesh = len(graph.arguments), layouts[0].mesh
    results = layouts[count:]
    annotations = Annotations(mesh, layouts[:count], results, ())
    return ShardedGraph(
        graph=graph,
        mesh=mesh,
        shardings=layouts,
        results=results,
        fixed=frozenset(range(len(layouts))),
        annotations=annotations,
        _history=tuple,
        _conflicts=tuple,
        _merges=tuple,
    )


class Neighbours(NamedTuple):
    """The operators before and after a move of a value, as `move_s` needs to know them.

    A compiler can fuse the local instructions of the move with these operators. A value that is
    fused with its maker and with its readers is never in memory. The price of an operator counts
    the values that it reads from memory. The price of a move counts the values that fused operators
    write.

    Attributes:
      made: whether the operator that computes the value can be fused.
      read: whether all operators that read the value can be fused.
      is_first: whether the move starts from the sharding in which the value is computed. Its price
        then includes writing the value.
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
    """Return the seconds that moving a value from one sharding to another takes.

    The price includes collectives, slices, and padding of blocks that do not divide. It is infinite
    if `target` is a partial sum along axes along which `source` is not.

    Args:
      dtype: the element type of the value.
      around: the operators before and after the move.
    """
    # A move can reduce partial sums. It cannot create any.
    if not set(target.unreduced) <= set(source.unreduced):
        return math.inf
    # Without a move the value would not be in memory: a compiler fuses its maker with its readers.
    is_inside = around.made and around.read
    # The price of the maker does not contain writing the value, so this price must.
    is_unwritten = around.made and around.is_first
    speed = hardware.shared(source.mesh.size).chip.hbm_bytes_per_s
    # The moved value is value 0 of a graph of its own, whose program is only the move.
    value = Value(0, ValueType(source.shape, dtype), "argument", "x")
    # Nothing moves: only a write of the value may count.
    if source == target:
        written = is_unwritten and not is_inside
        return math.prod(source.shard_shape) * value.type.itemsize / speed if written else 0.0
    program, graph = _move(source, target, value, hardware)
    steps, locals_ = program.block.instructions, program.locals
    (first,), (last,) = program.block.arguments, program.block.results
    # Local instructions at the start of the move (a slice) fuse with the maker of the value, those
    # at its end with the readers. A collective fuses with neither: it needs its operand in memory.
    fuses_maker = (is_unwritten or is_inside) and all(
        fuses(step, graph) for step in steps if first in step.operands
    )
    fuses_readers = around.read and all(
        fuses(step, graph) for step in steps if last in step.results
    )
    fused = {local for local, is_on in ((first, fuses_maker), (last, fuses_readers)) if is_on}
    traffic = locals_[first].bytes if (is_unwritten or is_inside) and not fuses_maker else 0
    if is_inside and not fuses_readers:
        # The price of the reader does not count this read.
        traffic += locals_[last].bytes
    elif around.read and not is_inside and fuses_readers:
        # The price of the reader counts this read, but the move fuses with the reader.
        traffic -= locals_[last].bytes
    return max(0.0, _seconds(program, graph, hardware, fused) + traffic / speed)


def _move(
    source: Sharding, target: Sharding, value: Value, hardware: Machine
) -> tuple[SpmdProgram, Graph]:
    """Return a program that moves its argument from one sharding to another, and its graph.

    The graph has one value, which is both argument and result.

    Args:
      value: the value that is moved; its index is 0.
    """
    # A function without nodes, which returns its argument.
    root = Region(
        index=0,
        kind="root",
        parent=None,
        node=None,
        arguments=(0,),
        results=(0,),
        nodes=(),
        trip_count=1,
    )
    graph = Graph(
        values=(value,),
        nodes=(),
        regions=(root,),
        region_arguments=(),
        arguments=(0,),
        results=(0,),
        argument_paths=("x",),
        result_paths=("result",),
    )
    links = links_on(source.mesh, hardware, value.type.itemsize)
    context = PartitionContext(graph, ("unknown",), links=links)
    # `move` emits the cheapest chain of collectives and returns the number of the moved block.
    argument = context.new_local(source.shard_shape, value.type.dtype, source, 0)
    result = context.move(argument, source, target, Cause(None))
    block = Block((argument,), tuple(context.instructions), (result,))
    program = SpmdProgram(
        mesh=source.mesh,
        locals=tuple(context.locals),
        block=block,
        argument_shardings=(source,),
        result_shardings=(target,),
    )
    return after_passes(program, graph, Switches(), DEFAULT_CHIP), graph


def _seconds(program: SpmdProgram, graph: Graph, hardware: Machine, inside: set[int]) -> float:
    """Return the seconds of all instructions of a program at the rates of the data sheet.

    Args:
      inside: local values that are never in memory, in addition to those that the program fuses.
    """
    priced = pricing(program, graph, hardware.on(DATASHEET))
    priced = replace(priced, fused=priced.fused | inside)
    places = dict.fromkeys(range(len(priced.steps)), 1)
    prices = zip(priced.steps, priced.prices(places), strict=True)
    return float(sum(float(priced.seconds_of(price)) * step.count for step, price in prices))
