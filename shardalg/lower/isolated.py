"""Parts of a program that run alone: its collectives and contractions, or one device's shard.

**Operators.** Each distinct collective and contraction runs on blocks of the plan's shapes. The sum
of their times splits the error of a predicted step in two. The difference between the prediction
and the sum is the error of the rates. The difference between the sum and the step comes from
overlap, fusion, and all other compute.

**One shard.** Compute and memory of one shard of a plan for 64 devices can be measured on one chip.
Each collective is replaced by a copy of its operand, repeated or cut to the shape of its result.
The same blocks are read and written, and nothing is sent. The values are wrong and are not
returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardalg.costs.analyses.overlap import combined_all_reduces
from shardalg.costs.collectives import axis_names
from shardalg.costs.compute import contracts
from shardalg.costs.step_time import timed
from shardalg.costs.walk import walk
from shardalg.errors import LoweringError
from shardalg.graph.abstract import item_type
from shardalg.lower.emit import EMIT, Emitter, body
from shardalg.lower.measure import Memory, Timing, time_repeatedly
from shardalg.spmd.instruction import Collective, Instruction
from shardalg.spmd.instructions import Apply, While
from shardalg.tables import Table, bytes_text

if TYPE_CHECKING:
    from shardalg.costs.calibration.fit import CostSample
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology
    from shardalg.lower.shard_map import Lowered

CONTRACTION = "contraction"


@dataclass(frozen=True)
class Alone:
    """The time of a collective or contraction that runs alone, and how often a step executes it.

    Attributes:
      name: the instruction's first result in the printed program, such as "%5". Of equal
        instructions it is the first one's.
      kind: kind of the collective, or "contraction".
      axes: mesh axes of the collective.
      shapes: shapes of the operands' blocks, such as "f32[4,8]".
      count: executions of this and of equal instructions in a step.
      timing: time of one execution, less the time of an empty program with the same arguments.
      predicted_s: predicted seconds of all executions in a step; None without hardware.
      amounts: amounts of one execution, to which rates are fitted (`CostSample.amounts`).
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    shapes: tuple[str, ...]
    count: int
    timing: Timing
    predicted_s: float | None = None
    amounts: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds of all executions in a step."""
        return self.count * self.timing.step_s


@dataclass(frozen=True)
class InstructionKind:
    """A group of equal instructions: of one operator, on blocks of the same types.

    Attributes:
      first: the group's first instruction, or the first all-reduces that are sent as one message.
      kind: kind of the collective, or "contraction".
      axes: mesh axes of the collective.
      count: executions of all instructions of the group in a step.
      predicted_s: predicted seconds of all executions; None without hardware.
      place: the `id` of the group's first instruction, under which its amounts are stored.
    """

    first: tuple[Instruction, ...]
    kind: str
    axes: tuple[str, ...]
    count: int
    predicted_s: float | None = None
    place: int = 0


def each_alone(
    lowered: Lowered,
    repeats: int,
    taken: Sequence[CostSample],
    hardware: Hardware | Topology | None = None,
) -> tuple[Alone, ...]:
    """Time every distinct collective and contraction alone, in the order of the program.

    Args:
      repeats: number of timed runs of each.
      taken: the amounts of every instruction.
      hardware: the chip or topology for which times are predicted; None predicts nothing.
    """
    prices = timed(lowered.program, lowered.graph, hardware) if hardware is not None else ()
    seconds = {id(p.step.instruction): p.seconds * p.step.count for p in prices}
    amounts = {one.instruction: one.amounts for one in taken}
    # `instruction_kinds` groups equal instructions, of which only the first one is timed.
    return tuple(
        replace(_time_alone(lowered, kind, repeats), amounts=amounts[kind.place])
        for kind in instruction_kinds(lowered, seconds)
    )


def table(rows: Sequence[Alone]) -> Table:
    """Return a table with a row per operator: its measured and predicted seconds in a step."""
    names = ("instruction", "kind", "mesh_axes", "shapes", "executions", "predicted_s", "alone_s")
    return Table(
        names,
        tuple(
            (
                r.name,
                r.kind,
                ",".join(r.axes),
                " ".join(r.shapes),
                r.count,
                r.predicted_s,
                r.seconds,
            )
            for r in rows
        ),
    )


def instruction_kinds(lowered: Lowered, seconds: Mapping[int, float]) -> list[InstructionKind]:
    """Return the collectives and contractions of a program; equal ones are one group.

    Each group has its first instruction, its executions in a step, and its predicted seconds.

    Args:
      seconds: predicted seconds by the `id` of the instruction; empty if nothing is predicted.
    """
    found: dict[Any, InstructionKind] = {}
    messages = combined_all_reduces(lowered.program.block)
    for step in walk(lowered.program):
        # All-reduces that the compiler combines are one message: they are timed together. The first
        # of them has the whole message in `messages`, the others have an empty one.
        group = messages.get(id(step.instruction), (step.instruction,))
        kind = _kind(lowered, step.instruction) if group else None
        if kind is None:
            continue
        # Equal operations on equal types take equal time, so that only one of them is measured.
        operations = []
        for each in group:
            attributes, node = each.attributes, each.node
            # A collective is described by its attributes. `Apply` runs an operator of the graph, so
            # the operator's signature describes it.
            operation: Any = attributes
            if type(attributes) is Apply and node is not None:
                operation = lowered.graph.nodes[node].signature
            types = [lowered.program.locals[v] for v in each.operands]
            operations.append((operation, tuple((x.shape, x.dtype) for x in types)))
        key = kind, tuple(operations)
        if key not in found:
            axes = axis_names(lowered.program.mesh, getattr(group[0].attributes, "digits", ()))
            # Executions and predicted seconds are added up below, from 0.
            found[key] = InstructionKind(
                first=group,
                kind=kind,
                axes=axes,
                count=0,
                predicted_s=0.0 if seconds else None,
                place=id(step.instruction),
            )
        total = found[key]
        predicted_s = total.predicted_s
        if predicted_s is not None:
            predicted_s += seconds.get(id(step.instruction), 0.0)
        found[key] = replace(total, count=total.count + step.count, predicted_s=predicted_s)
    return list(found.values())


def _kind(lowered: Lowered, instruction: Instruction) -> str | None:
    """Return "contraction" or the kind of collective; None for other instructions.

    A contraction is a matrix product or a convolution. A permute in which every device keeps its
    own block sends nothing, so it counts as another instruction.
    """
    attributes = instruction.attributes
    # `Apply` runs an operator of the graph on a device's blocks.
    if type(attributes) is Apply and instruction.node is not None:
        graph = lowered.graph
        return CONTRACTION if contracts(graph.nodes[instruction.node].signature) else None
    if isinstance(attributes, Collective) and attributes.sends > 0 and not attributes.stays:
        return attributes.sent_as
    return None


def _time_alone(lowered: Lowered, group: InstructionKind, repeats: int) -> Alone:
    """Time a group's first instruction on blocks of ones, without the rest of the program.

    Args:
      group: equal instructions of the program, of which only the first is executed.
      repeats: number of timed runs.
    """
    locals_ = lowered.program.locals
    # An operand that is read twice has one block.
    operands = list(dict.fromkeys(v for one in group.first for v in one.operands))
    emitter = Emitter(lowered.program, lowered.graph, lowered.run, lowered.tiled)

    def emitted(*blocks: Any) -> list[Any]:
        """Return the results of the group's first instructions on one device's blocks.

        The instructions become JAX operations, by the function in `EMIT` for each kind.
        """
        block_of = dict(zip(operands, blocks, strict=True))
        result_lists = (
            EMIT[type(one.attributes)](emitter, one, *(block_of[v] for v in one.operands))
            for one in group.first
        )
        # All results are returned, so that the compiler removes no work.
        return [result for results in result_lists for result in results]

    mesh, names = lowered.run.mesh, lowered.run.all_names
    # A leading dimension over the devices makes one global array of the devices' equal blocks.
    types, layout = [locals_[v] for v in operands], NamedSharding(mesh, PartitionSpec(names))
    blocks = []
    for t in types:
        ones = partial(jnp.ones, (mesh.size, *t.shape), item_type(t.dtype))
        blocks.append(jax.jit(ones, out_shardings=layout)())
    # Devices of the CPU platform are parts of one host, and share its cores.
    shared = mesh.devices.flat[0].platform == "cpu"
    # The time of an empty program is the cost of a call, which the step pays only once.
    group_time, empty_time = (
        time_repeatedly(_compile(mesh, names, function, blocks), repeats, shared=shared)
        for function in (emitted, lambda *_: [jnp.zeros(())])
    )
    return Alone(
        name=f"%{group.first[0].results[0]}",
        kind=group.kind,
        axes=group.axes,
        shapes=tuple(map(repr, types)),
        count=group.count,
        timing=group_time.without(empty_time),
        predicted_s=group.predicted_s,
    )


def _compile(
    mesh: Any, names: tuple[str, ...], function: Callable[..., Any], blocks: Sequence[jax.Array]
) -> Callable[[], Any]:
    """Compile a function of blocks for all devices, and return a function that calls it.

    The returned function takes no arguments: it runs the compiled program on `blocks`.

    Args:
      mesh: JAX's mesh.
      names: all axes of the mesh.
      function: the function that each device runs, from its blocks to a list of results.
      blocks: arguments, each a global array with the devices' blocks stacked.
    """

    def on_blocks(*stacked: Any) -> list[Any]:
        """Call `function` without the leading dimension, of size 1 on each device."""
        return [x[None] for x in function(*(x[0] for x in stacked))]

    spec = PartitionSpec(names)
    mapped = jax.shard_map(on_blocks, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    # Compilation happens here, so that it is no part of the time of a call.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        run = jax.jit(mapped).lower(*blocks).compile()
    return lambda: run(*blocks)


NO_RESULT = "one shard with stand-ins for its collectives: times and memory, not a result"


@dataclass(frozen=True)
class ShardMeasurement:
    """Times and memory of one shard's local work."""

    timing: Timing
    memory: Memory
    flops: float
    device: str
    note: str = NO_RESULT

    def __repr__(self) -> str:
        return (
            f"ShardMeasurement on {self.device} ({self.note}): {self.timing}, "
            f"{bytes_text(self.memory.total_bytes)}"
        )


@dataclass(frozen=True)
class StandIns(Emitter):
    """An emitter for the device at position 0, with copies instead of collectives."""

    def partition_id(self, digits: Any) -> Any:
        """Return 0, the partition id of the device at position 0, as an array.

        A plain number would let the compiler fold the operations that read it.
        """
        return jnp.zeros((), jnp.int32)

    def rotated(self, digits: Any, x: Any, hop: int) -> Any:
        """Return a copy, because there is only one device."""
        return _in_shape(x, x.shape, x.dtype.name)

    def emit(self, instruction: Instruction) -> Callable[..., list[Any]]:
        """Return the function that computes an instruction here.

        For a collective this is a copy of the operands, because there is only one device. Any other
        instruction has the function that a plan's devices use (`EMIT`).
        """
        if not isinstance(instruction.attributes, Collective):
            return EMIT[type(instruction.attributes)]

        def stand_in(emitter: Emitter, instruction: Instruction, *operands: Any) -> list[Any]:
            # A collective may have more results than operands; the last operand fills the rest.
            results = [emitter.program.locals[r] for r in instruction.results]
            sources = [*operands, *[operands[-1]] * len(results)]
            return [_in_shape(x, r.shape, r.dtype) for x, r in zip(sources, results, strict=False)]

        return stand_in


def _in_shape(x: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return the elements of `x` in another shape and type, repeated or cut to its size."""
    size, own = math.prod(shape), max(1, x.size)
    flat = jnp.tile(x.ravel(), -(-size // own))[:size] if x.size else jnp.zeros(size, x.dtype)
    # Without a barrier the compiler would see through the copy and remove local work.
    return jax.lax.optimization_barrier(flat.reshape(shape).astype(item_type(dtype)))


@dataclass(frozen=True, eq=False)
class OneShard:
    """The program that a plan's device runs, compiled for a single device.

    Raises:
      LoweringError: the program has a `while` loop. Copies replace collectives, so values are wrong
        and the condition of the loop might never become false.
    """

    lowered: Lowered
    device: jax.Device

    def __post_init__(self) -> None:
        """Raise LoweringError if the program has a `while` loop, which might not end here."""
        loops = [
            s for s in walk(self.lowered.program) if isinstance(s.instruction.attributes, While)
        ]
        if loops:
            raise LoweringError(
                f"a `while` ends by values, which stand-ins do not have: {len(loops)} of them. "
                "Measure a function without, or run the plan on its devices."
            )

    @property
    def _structs(self) -> list[Any]:
        """Shapes and item types of the blocks that the program takes as arguments."""
        program = self.lowered.program
        where = jax.sharding.SingleDeviceSharding(self.device)
        locals_ = [program.locals[index] for index in program.block.arguments]
        return [jax.ShapeDtypeStruct(x.shape, item_type(x.dtype), sharding=where) for x in locals_]

    @cached_property
    def compiled(self) -> Any:
        """JAX's compiled program."""
        low = self.lowered
        emitter = StandIns(low.program, low.graph, low.run, self.device.platform != "cpu")
        return jax.jit(body(emitter)).lower(*self._structs).compile()

    def measure(self, repeats: int = 20) -> ShardMeasurement:
        """Return the program's times on blocks of ones, its memory in bytes, and its flops.

        Flops are those that XLA counts in the compiled program, nan if it does not count them.

        Args:
          repeats: number of timed runs.
        """
        # Values of ones suffice: the time does not depend on the numbers.
        blocks = [jax.device_put(jnp.ones(s.shape, s.dtype), self.device) for s in self._structs]
        # A CPU device shares the cores of this process, so that waiting is told apart from work.
        shared = self.device.platform == "cpu"
        timing = time_repeatedly(lambda: self.compiled(*blocks), repeats, shared=shared)
        stats = self.compiled.memory_analysis()
        memory = Memory(
            stats.argument_size_in_bytes,
            stats.output_size_in_bytes,
            stats.temp_size_in_bytes,
            stats.alias_size_in_bytes,
        )
        flops = float((self.compiled.cost_analysis() or {}).get("flops", math.nan))
        return ShardMeasurement(timing, memory, flops, self.device.device_kind)
