"""Seconds of a program that computes and communicates at the same time.

Several all-reduces are combined into one message if they have the same kind and the same axes, and
if none depends on another.

A collective matmul overlaps a product with a collective: a ring of n devices multiplies one block
in each step, while a permute sends the next block. A step takes the longer of both:

    ring = product + (n - 1) * max(permute, product)

On a chip whose compiler starts no permute ahead (`Interconnect.asynchronous`) a step is their sum.
The permutes send as many bytes as the collective alone, half of a block in each direction. The
product of a block is priced like any product. A small block fills the matrix unit badly, and each
product reads the other operand again. If the products are added up, the sum is read, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardalg.costs.collectives import is_collective
from shardalg.costs.hardware import Hardware
from shardalg.costs.network.collective_seconds import COLLECTIVES, LATENCY, stages
from shardalg.costs.network.placement import CHIP, LINK, DigitSpan
from shardalg.errors import HardwareError
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import AllReduce, CollectiveMatmul, Control, Direction
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.rewrite import blocks

# For each kind of all-reduce: the most of them on a chain of dependences up to a value. All-reduces
# with equal numbers cannot depend on each other, so they can be combined.
Levels = dict[AllReduce, int]


def combined_all_reduces(block: Block) -> dict[int, tuple[Instruction, ...]]:
    """Return which all-reduces of a program are combined into one message.

    A key is the `id` of an all-reduce. For the first one of a message the value is the tuple of all
    its all-reduces, for the others (). All-reduces are combined if they are in one block, are equal
    in kind and axes, and none depends on another. XLA's all-reduce combiner
    (`xla/service/all_reduce_combiner.h`) does the same: 50 all-reduces of an optimizer's step for
    25 weights become two.
    """
    found: dict[int, tuple[Instruction, ...]] = {}
    for members in (group for each in blocks(block) for group in _groups(each)):
        found[id(members[0])] = tuple(members)
        found.update({id(other): () for other in members[1:]})
    return found


def execution_order(block: Block) -> tuple[Instruction, ...]:
    """Return the instructions of a block in the order in which a device runs them.

    Combined all-reduces run together, as soon as the operands of all of them exist. Instructions
    that read their results come later. If two such messages would wait for each other, the
    remaining instructions keep the order of the program.
    """
    groups = [members for members in _groups(block) if len(members) > 1]
    if not groups:
        return block.instructions
    order = _Order({id(member): members for members in groups for member in members})
    # Two messages wait for each other forever if each needs a result of the other. Their
    # instructions, and the readers of these, are not taken here and follow in the program's order.
    for instruction in block.instructions:
        order.take(instruction)
    placed = set(map(id, order.made))
    return (*order.made, *(one for one in block.instructions if id(one) not in placed))


@dataclass
class _Order:
    """State of the search for an order of execution in which all-reduces are combined.

    Attributes:
      group_of: for the `id` of each combined all-reduce, all all-reduces of its message.
      made: instructions in the order of execution so far.
      waiting: instructions that cannot run yet, because an operand is missing.
      missing: values that no instruction has produced yet.
      arrived: for the `id` of a message's first all-reduce, the number of its all-reduces whose
        operands exist.
    """

    group_of: Mapping[int, list[Instruction]]
    made: list[Instruction] = field(default_factory=list)
    waiting: list[Instruction] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    arrived: dict[int, int] = field(default_factory=dict)

    def take(self, instruction: Instruction) -> None:
        """Add the next instruction of the program, then all instructions that waited for it."""
        before = len(self.made)
        self.waiting += [] if self.visit(instruction) else [instruction]
        # `visit` returns whether an instruction could be placed. One that is placed can release
        # others, so the waiting ones are tried until none moves.
        while self.waiting and len(self.made) > before:
            before = len(self.made)
            self.waiting = [one for one in self.waiting if not self.visit(one)]

    def visit(self, instruction: Instruction) -> bool:
        """Add an instruction to the order, and return True, if its operands exist.

        An all-reduce that is combined with others is only counted, until the operands of all of
        them exist. Then all of them are added together.
        """
        # Results are missing until the instruction is placed, so its readers wait.
        self.missing.update(instruction.results)
        if not self.missing.isdisjoint(instruction.operands):
            return False
        members = self.group_of.get(id(instruction), [instruction])
        count = self.arrived.get(id(members[0]), 0) + 1
        self.arrived[id(members[0])] = count
        for member in members if count == len(members) else ():
            self.made.append(member)
            self.missing.difference_update(member.results)
        return True


def all_in_execution_order(block: Block) -> Iterator[Instruction]:
    """Yield every instruction in the order of execution; the body of a loop comes before the loop.

    See `execution_order`.
    """
    for instruction in execution_order(block):
        for body in instruction.attributes.bodies:
            yield from all_in_execution_order(body)
        yield instruction


def _groups(block: Block) -> Iterator[list[Instruction]]:
    """Yield the all-reduces of each message in a block, in the order of the program.

    The level of an all-reduce is the number of equal ones (in kind and axes) before it on the
    longest chain of dependences. Two with equal levels cannot depend on each other, so all equal
    all-reduces of one level are one message.
    """
    levels_of: dict[int, Levels] = {}
    messages: dict[tuple[AllReduce, int], list[Instruction]] = {}
    for instruction in block.instructions:
        # The levels of an instruction are the maxima over its operands. Chains share one dict
        # if the maximum changes nothing, because a copy per instruction would be quadratic.
        levels: Levels = {}
        for value in instruction.operands:
            other = levels_of.get(value, levels)
            if other is levels:
                continue
            if not levels:
                levels = other
            elif any(levels.get(kind, 0) < n for kind, n in other.items()):
                kinds = levels.keys() | other.keys()
                levels = {kind: max(levels.get(kind, 0), other.get(kind, 0)) for kind in kinds}
        attributes = instruction.attributes
        if type(attributes) is AllReduce and attributes.sends > 0:
            level = levels.get(attributes, 0)
            messages.setdefault((attributes, level), []).append(instruction)
            levels = {**levels, attributes: level + 1}
        # All-reduces that read these results come after this one in a chain.
        if levels:
            for value in instruction.results:
                levels_of[value] = levels
    yield from messages.values()


# Prices one execution of an instruction. The program is an argument, because a ring's product is
# priced with the shapes of one block, which differ from those of the whole program.
Seconds = Callable[[SpmdProgram, Instruction], float]
Ring = Instruction[CollectiveMatmul]
PERMUTE = "collective_permute"


class RingTimes(NamedTuple):
    """Seconds of one execution of a collective matmul, with and without the overlap.

    Attributes:
      apart_s: seconds of the separate collective and product, one after the other.
      ring_s: seconds of the ring, which overlaps them.
      exposed: pairs (cause, seconds) whose sum is `ring_s` minus the seconds of the product alone.
    """

    apart_s: float
    ring_s: float
    exposed: tuple[tuple[str, float], ...]


def ring_times(
    program: SpmdProgram, ring: Ring, seconds: Seconds, spans: Sequence[DigitSpan], chip: Hardware
) -> RingTimes:
    """Return the seconds of a collective matmul, and of the separate product and collective.

    Args:
      ring: the instruction.
      seconds: function that prices a product or a collective alone.
      spans: the links under the mesh axes of the ring.
    """
    ring_attributes = ring.attributes
    product_s = seconds(program, ring_attributes.product)
    apart_s = product_s + seconds(program, ring_attributes.collective)
    step_s = sum(
        seconds(piece(program, ring_attributes, d), ring_attributes.product)
        for d in ring_attributes.directions
    )
    permute = permute_s(program, ring, spans, chip.operators.collective(PERMUTE))
    permuted_s = sum(permute.values())
    is_ahead = PERMUTE in chip.interconnect.asynchronous
    # A permute that the compiler does not start ahead cannot run during the product.
    both_s = max(step_s, permuted_s) if is_ahead else step_s + permuted_s
    # A ring of n members sends n - 1 times, and multiplies once more.
    ring_s = step_s + (ring_attributes.members - 1) * both_s
    exposed_s = max(ring_s - product_s, 0.0)
    causes = permute if permuted_s else {LATENCY: 1.0}
    permute_total_s = sum(causes.values())
    # Only the permutes make a ring longer than its product, so the exposed time has their causes.
    return RingTimes(
        apart_s, ring_s, tuple((c, exposed_s * s / permute_total_s) for c, s in causes.items())
    )


def piece(program: SpmdProgram, a: CollectiveMatmul, direction: Direction) -> SpmdProgram:
    """Return a program in which the product of a collective matmul has the shapes of one step.

    Args:
      a: the collective matmul.
      direction: the direction around the ring, whose block has its own size.
    """
    product, found = a.product, list(program.locals)
    values = (*product.operands, *product.results)
    for local, dim in zip(values, a.along, strict=True):
        if dim is not None:
            shape = found[local].shape
            cut = (*shape[:dim], direction.size, *shape[dim + 1 :])
            found[local] = replace(found[local], shape=cut)
    return replace(program, locals=tuple(found))


def permute_s(
    program: SpmdProgram,
    ring: Ring,
    spans: Sequence[DigitSpan],
    measured: tuple[float, float] | None,
) -> dict[str, float]:
    """Return the seconds by cause of the permutes in one step of a collective matmul.

    Each step sends a block to the neighbours. A ring over a line of chips closes through the links
    of the opposite direction, so both directions together take as long as one. Cores that share
    a link form one ring, in which only one of them sends to another chip. If no block leaves
    a chip, the result is {}.

    Args:
      spans: the links under the mesh axes of the ring.
      measured: measured (seconds of each permute, bytes per second); None for the data sheet.
    """
    ring_attributes = ring.attributes
    moved_values = (
        ring_attributes.collective.operands
        if ring_attributes.gathers
        else ring_attributes.collective.results
    )
    sent = program.locals[moved_values[0]].bytes
    # Measured figures contain the links, whatever they are.
    if measured is not None:
        return {LATENCY: measured[0] * len(ring_attributes.directions), LINK: sent / measured[1]}
    link_stages = stages(spans)
    if link_stages[0].medium == CHIP:
        return {}
    is_two_way = len(ring_attributes.directions) > 1
    rate = min(s.bytes_per_s if is_two_way else s.one_way_bytes_per_s for s in link_stages[0].spans)
    # Only one core of a chip sends to another chip, so it has the link's whole rate.
    cores = math.prod(stage.count for stage in link_stages if stage.medium == CHIP)
    return {link_stages[0].cause: sent / (rate * cores), LATENCY: link_stages[0].latency_s}


OVERLAPS = ("measured", "none", "asynchronous", "dependences", "full")


def check_overlap(overlap: str) -> None:
    """Raise `HardwareError` unless a name of an overlap mode is one of `OVERLAPS`."""
    if overlap not in OVERLAPS:
        raise HardwareError(
            f"overlap={overlap!r}: write 'measured' (the shares of communication that were found "
            "exposed on the chip), 'none' (one after the other), 'dependences' (collectives "
            "run during compute that does not wait for them), 'asynchronous' (the same, only for "
            "collectives that the chip's compiler starts ahead) or 'full' (the longer of both)."
        )


def scheduled_s(
    block: Block,
    seconds: Callable[[Instruction], float],
    asynchronous: Collection[str] = COLLECTIVES,
) -> float:
    """Return the seconds of a block on a device that computes and sends at the same time.

    The device has two resources: the compute unit runs local operators, and the links run
    collectives. Each resource runs its instructions in order (`execution_order`), when the previous
    one is done and the operands exist. A loop starts when both resources are idle. Its trips do not
    overlap. The result is between `max(compute, communication)` and their sum, for each trip.

    Args:
      seconds: function that returns the seconds of one execution of an instruction.
      asynchronous: kinds of collectives that run during compute; during others nothing else runs.
    """
    timeline, sent = _Line(seconds, asynchronous), combined_all_reduces(block)
    for instruction in execution_order(block):
        # A message of several all-reduces starts when the operands of all of them are there.
        members = sent.get(id(instruction)) or (instruction,)
        timeline.run(instruction, [value for member in members for value in member.operands])
    return max(timeline.free.values())


UNIT, LINKS = "compute unit", "links"
"""The two resources of a device."""


@dataclass
class _Line:
    """Times at which resources of a device are free, and values exist, while a block runs.

    Attributes:
      free: seconds from which each resource is free: `UNIT`, the compute unit, and `LINKS`.
      ready: for each local value, the seconds at which it exists.
    """

    seconds: Callable[[Instruction], float]
    asynchronous: Collection[str]
    free: dict[str, float] = field(default_factory=lambda: {UNIT: 0.0, LINKS: 0.0})
    ready: dict[int, float] = field(default_factory=dict)

    def run(self, instruction: Instruction, operands: Iterable[int]) -> None:
        """Run an instruction as early as possible.

        Args:
          operands: values that must exist; for combined all-reduces, the operands of all of them.
        """
        attributes = instruction.attributes
        # A loop, and a collective that is not started ahead, occupies both the unit and the links.
        occupied: tuple[str, ...] = (UNIT,)
        if isinstance(attributes, Control):
            occupied = (UNIT, LINKS)
        elif is_collective(attributes):
            is_ahead = attributes.sent_as in self.asynchronous
            occupied = (LINKS,) if is_ahead else (UNIT, LINKS)
        is_control = isinstance(attributes, Control)
        # The instructions of a body run inside of the loop's own time.
        seconds = self.inside(instruction) if is_control else self.seconds(instruction)
        operands_s = (self.ready.get(value, 0.0) for value in operands)
        start_s = max(*(self.free[resource] for resource in occupied), *operands_s, 0.0)
        end_s = start_s + seconds
        # The unit and the links are busy until the end, when the results exist.
        self.free.update(dict.fromkeys(occupied, end_s))
        self.ready.update(dict.fromkeys(instruction.results, end_s))

    def inside(self, instruction: Instruction) -> float:
        """Return the seconds of all bodies of a loop or branch, times their trip counts."""
        control = instruction.attributes
        runs = zip(control.bodies, control.executions_of_bodies, strict=True)
        return sum(
            count * scheduled_s(body, self.seconds, self.asynchronous) for body, count in runs
        )
