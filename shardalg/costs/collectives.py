"""Bytes and seconds of one collective instruction, and a list of a program's collectives.

The algorithms that give the seconds are in `costs/network/collective_seconds.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeGuard

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.costs.hardware import Hardware
from shardalg.costs.network.collective_seconds import collective_s
from shardalg.costs.network.permute_seconds import permutes_s
from shardalg.costs.network.placement import DigitSpan, UnplacedAxes, Wiring, axis_parts
from shardalg.costs.topology import Topology
from shardalg.costs.walk import Execution, sent_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.sizes.amounts import quotient
from shardalg.sizes.recorded import total
from shardalg.spmd.bound import node_of
from shardalg.spmd.instruction import Attributes, Collective, Instruction
from shardalg.spmd.instructions import Apply, DynamicSlice, Resize, Slice
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

RING_BYTES: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "all_gather": lambda b, n: (b * (n - 1), 1),
    "all_reduce": lambda b, n: (2 * b * (n - 1), n),
    "reduce_scatter": lambda b, n: (b * (n - 1), n),
    "all_to_all": lambda b, n: (b * (n - 1), n),
    "collective_permute": lambda b, n: (b, 1),
    "ragged_all_to_all": lambda b, n: (b * (n - 1), n),
}
"""For each collective, (numerator, denominator) of the bytes that one device of a ring sends.

The ring has n devices, each with b bytes before the collective. The fraction is not divided,
because b and n may be formulas, and because an integer quotient must not be rounded.
"""


# `typed`, because a number and a constant formula are equal, but must give results of their type.
@lru_cache(maxsize=1 << 14, typed=True)
def step_wire_bytes(kind: str, *, group_size: Any, local_bytes: Any) -> Any:
    """Return the bytes that each device sends in one execution of a collective, on a ring.

    `n = group_size` devices each hold `b = local_bytes` before the collective. The bytes are:
    all_gather `b*(n-1)`, reduce_scatter, all_to_all and ragged_all_to_all `b*(n-1)/n`, all_reduce
    `2*b*(n-1)/n`, collective_permute `b`. A group of one sends nothing. The result is exact: an
    int, or a Fraction if a block does not divide evenly, or a formula if an argument is a formula.

    Args:
      kind: "all_gather", "all_reduce", "reduce_scatter", "all_to_all" or "collective_permute".
      group_size: number of devices that take part in one collective.
      local_bytes: bytes of the operand on one device, padding included.

    >>> step_wire_bytes("all_gather", group_size=4, local_bytes=1024)
    3072
    >>> step_wire_bytes("all_reduce", group_size=4, local_bytes=1024)
    1536
    >>> step_wire_bytes("reduce_scatter", group_size=3, local_bytes=4)
    Fraction(8, 3)

    Source: bandwidth-optimal ring algorithms, Patarasu and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", JPDC 69 (2009).
    """
    if group_size == 1:
        return 0
    above, below = RING_BYTES[kind](local_bytes, group_size)
    return above if below == 1 else quotient(above, below)


def is_collective(attributes: Attributes) -> TypeGuard[Collective]:
    """Return whether an instruction is a collective that sends at least one message."""
    return isinstance(attributes, Collective) and attributes.sends > 0


def moves(step: Execution) -> TypeGuard[Execution[Collective]]:
    """Return whether the instruction of an execution sends bytes between devices."""
    return is_collective(step.instruction.attributes)


def group_size(attributes: Collective) -> Any:
    """Return the number of devices in one group of a collective.

    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.spmd.instructions import AllReduce
    >>> group_size(AllReduce((Digit(4, 2), Digit(1, 4))))
    8
    """
    return parts(attributes.digits)


def wire_bytes(attributes: Attributes, local_in_bytes: Any) -> Any:
    """Return the bytes that each device sends in one execution of an instruction, on a ring.

    The bytes of a collective are those of `step_wire_bytes`. They are 0 for a local instruction,
    and for a permute in which every device keeps its own block.

    Args:
      local_in_bytes: bytes of the operands on one device.

    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.spmd.instructions import ReduceScatter
    >>> wire_bytes(ReduceScatter(0, (Digit(1, 4),)), 1024)
    768
    """
    if not is_collective(attributes) or attributes.stays:
        return 0
    kind, size = attributes.sent_as, group_size(attributes)
    sent = step_wire_bytes(kind, group_size=size, local_bytes=local_in_bytes)
    # A permute may choose among several operands (`choices`), but each message has the block of
    # only one. So the bytes of all operands are scaled to those of `sends` messages.
    if attributes.sends == attributes.choices:
        return sent
    return quotient(sent * attributes.sends, attributes.choices)


def seconds(
    attributes: Attributes, local_in_bytes: Any, *, mesh: Mesh, hardware: Hardware | Topology
) -> Any:
    """Return the seconds of one execution of a collective; 0 for a local instruction.

    Args:
      local_in_bytes: bytes of the operands on one device.

    >>> from shardalg.spmd.instructions import AllGather
    >>> mesh = Mesh({"X": 2, "Y": 4})
    >>> slow = Hardware("slow", link_bytes_per_s=1e6, latency_s=1e-3)
    >>> seconds(AllGather(0, mesh.digits("Y")), 1_000_000, mesh=mesh, hardware=slow)
    3.003
    >>> seconds(AllGather(0, mesh.digits("XY")), 1_000_000, mesh=mesh, hardware=slow)
    7.004
    """
    wiring = hardware.wiring(mesh)
    return total(seconds_by_cause(attributes, local_in_bytes, wiring=wiring).values())


def seconds_by_cause(
    attributes: Attributes, local_in_bytes: Any, *, wiring: Wiring | UnplacedAxes
) -> Mapping[str, Any]:
    """Return the seconds of one execution of a collective by cause; {} for other instructions.

    The causes are "link", "network" (between islands of GPUs), "dcn" (between slices) and
    "latency". The time is that of the cheapest algorithm. A permute is priced by the positions that
    send and receive. If only the speed of the links is known, it has the price of a permute to
    a neighbour.

    Args:
      local_in_bytes: bytes of the operands on one device.
      wiring: the links under the mesh axes.
    """
    if not is_collective(attributes) or attributes.stays:
        return {}
    held = local_in_bytes
    if wiring.network and attributes.routes:
        # A message has the block of one operand, although the permute may choose among several.
        block = held if attributes.choices == 1 else quotient(held, attributes.choices)
        return permutes_s(wiring.network, attributes.routes, block)
    # An exchange sends `sends` blocks, each of one of its `choices` operands. `held` has every
    # operand once.
    if attributes.sends != attributes.choices:
        held = quotient(held * attributes.sends, attributes.choices)
    return _seconds(attributes.sent_as, wiring.spans(attributes.digits), held)


def kind_seconds(kind: str, local_in_bytes: Any, spans: tuple[DigitSpan, ...]) -> Any:
    """Return the seconds of one execution of a collective of one kind over given links.

    Args:
      kind: a key of `RING_BYTES`, such as "all_gather".
      local_in_bytes: bytes of the operand on one device.
      spans: the links that the collective uses, major first.
    """
    return total(_seconds(kind, spans, local_in_bytes).values())


@lru_cache(maxsize=1 << 14, typed=True)
def _seconds(kind: str, spans: tuple[DigitSpan, ...], held: Any) -> Mapping[str, Any]:
    """Return the seconds of a collective by cause, cached; `held` is its operand's bytes."""
    return MappingProxyType(collective_s(kind, spans, held))


def axis_names(mesh: Mesh, digits: Digits) -> tuple[str, ...]:
    """Return the names of the mesh axes that some digits belong to, major first, each once.

    >>> axis_names(Mesh({"X": 2, "Y": 4}), Mesh({"X": 2, "Y": 4}).digits("YX"))
    ('Y', 'X')
    """
    found = chain.from_iterable(axis_parts(mesh, digit) for digit in digits)
    return tuple(dict.fromkeys(name for name, _ in found))


MOVES = (Collective, DynamicSlice, Slice, Resize)
"""Instructions that change only the sharding of a value; several of them can form a chain."""


@dataclass(frozen=True)
class MovedValue:
    """A collective of a program, with the graph value that it moves.

    Attributes:
      number: row in the table of collectives.
      step: the instruction, and how often it runs.
      value: number of the graph value that is moved. If the operand is an intermediate without
        a graph value, it is the graph value from which the operand was computed.
      wire_bytes: bytes that a device sends in one execution.
    """

    number: int
    step: Execution[Collective]
    value: int
    wire_bytes: int | float

    @property
    def attributes(self) -> Collective:
        """Attributes of the collective instruction, such as its kind and digits."""
        return self.step.instruction.attributes

    @property
    def digits(self) -> Digits:
        """The digits of device positions, such as a mesh axis, along which the collective runs."""
        return self.attributes.digits

    @property
    def place(self) -> tuple[int | None, int]:
        """The pair (graph node that needs the collective, or None; graph value that it moves)."""
        return self.step.instruction.node, self.value

    @property
    def alike(self) -> tuple[str, Digits]:
        """Pair (kind, sorted digits), equal for collectives that differ only in where they run."""
        return self.attributes.sent_as, tuple(sorted(self.digits))


@dataclass(frozen=True, eq=False)
class Traffic:
    """The collectives of a program, and the producer and readers of each local value.

    Keys of the dictionaries are numbers of local values.
    """

    program: SpmdProgram
    graph: Graph

    @cached_property
    def steps(self) -> tuple[Execution, ...]:
        """All instructions in order of execution."""
        return tuple(walk(self.program))

    @cached_property
    def made_by(self) -> Mapping[int, Instruction]:
        """For each local value, the instruction that produces it; arguments have no entry."""
        return {r: step.instruction for step in self.steps for r in step.instruction.results}

    @cached_property
    def readers(self) -> Mapping[int, list[Instruction]]:
        """For each local value, the instructions that read it."""
        found: dict[int, list[Instruction]] = {}
        for step in self.steps:
            for operand in dict.fromkeys(step.instruction.operands):
                found.setdefault(operand, []).append(step.instruction)
        return found

    @cached_property
    def collectives(self) -> tuple[MovedValue, ...]:
        """All collectives that send bytes, in order of execution."""
        found = []
        for number, step in enumerate(step for step in self.steps if moves(step)):
            instruction = step.instruction
            sent = wire_bytes(instruction.attributes, sent_bytes(self.program, instruction))
            value = self._origin(instruction.operands[0])
            if value is None:
                value = node_of(self.graph, instruction).results[0]
            found.append(MovedValue(number, step, value, sent))
        return tuple(found)

    def _origin(self, local: int) -> int | None:
        """Return the graph value that a local value is a block of, or was computed from.

        The result is None if no graph value is found along the first operands.
        """
        while self.program.locals[local].origin is None:
            producer = self.made_by.get(local)
            if producer is None or not producer.operands:
                return None
            # A partial sum has no graph value, but the operator that computes it has a result.
            if self.program.locals[local].sharding.unreduced and type(producer.attributes) is Apply:
                return node_of(self.graph, producer).results[producer.results.index(local)]
            local = producer.operands[0]
        return self.program.locals[local].origin

    @cached_property
    def wire_bytes(self) -> int | float:
        """Bytes that a device sends in one call of the program."""
        return sum(moved.step.count * moved.wire_bytes for moved in self.collectives)

    def ends(self, moved: MovedValue) -> tuple[Local, Local]:
        """Return the values before and after the chain of instructions around a collective.

        A chain changes the sharding of one value for one reader: collectives, slices and pads that
        follow each other.
        """
        instruction = moved.step.instruction
        first, last = instruction.operands[0], instruction.results[0]
        while self._same_chain(instruction, self.made_by.get(first)):
            first = self.made_by[first].operands[0]
        readers = self.readers.get(last, ())
        while len(readers) == 1 and self._same_chain(instruction, readers[0]):
            last = readers[0].results[0]
            readers = self.readers.get(last, ())
        return self.program.locals[first], self.program.locals[last]

    def _same_chain(self, one: Instruction, other: Instruction | None) -> bool:
        """Return whether another instruction is part of the same chain of sharding changes."""
        return (
            other is not None
            and isinstance(other.attributes, MOVES)
            and other.node == one.node
            and other.why.is_chained(one.why)
        )
