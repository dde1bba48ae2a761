"""Seconds of a program that computes and communicates at the same time.

All-reduces are sent as one message if they have the same kind and the same axes, and if none
depends on another.

A ring of products (collective matmul) takes at each step the longer of a permute and a product:

    ring = product + (n - 1) * max(permute, product)        n members, each step one block
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

# For each kind of all-reduce, the number of them in the longest chain up to a value.
Levels = dict[AllReduce, int]


def together(block: Block) -> dict[int, tuple[Instruction, ...]]:
    """Return the all-reduces that are sent as one message, by the `id` of each instruction.

    All-reduces of one block with the same number in their chains are combined. The first has
    the tuple of all of them, the others have an empty tuple. XLA's all-reduce combiner
    (`xla/service/all_reduce_combiner.h`) does the same: 50 all-reduces of an optimizer's step for
    25 weights become two.
    """
    found: dict[int, tuple[Instruction, ...]] = {}
    for members in (group for each in blocks(block) for group in _groups(each)):
        found[id(members[0])] = tuple(members)
        found.update({id(other): () for other in members[1:]})
    return found


def in_order(block: Block) -> tuple[Instruction, ...]:
    """Return the instructions of a block in the order in which a device runs them.

    All-reduces that are sent as one run at the place of the last of them, whose operand is made
    last. Their readers follow. If two such messages would wait for each other, the remaining
    instructions keep the order of the program.
    """
    groups = [members for members in _groups(block) if len(members) > 1]
    if not groups:
        return block.instructions
    order = _Order({id(member): members for members in groups for member in members})
    # Instructions that never become ready wait for each other. They keep the program's order.
    for instruction in block.instructions:
        order.take(instruction)
    placed = set(map(id, order.made))
    return (*order.made, *(one for one in block.instructions if id(one) not in placed))


@dataclass
class _Order:
    """Instructions in the order of execution, and instructions that wait for a message.

    Attributes:
      group_of: for the `id` of each all-reduce, all all-reduces of its message.
      made: instructions in the order of execution so far.
      waiting: instructions whose operands are missing.
      missing: values that no instruction has made yet.
      arrived: for each message, the number of its all-reduces whose operands are made.
    """

    group_of: Mapping[int, list[Instruction]]
    made: list[Instruction] = field(default_factory=list)
    waiting: list[Instruction] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    arrived: dict[int, int] = field(default_factory=dict)

    def take(self, instruction: Instruction) -> None:
        """Place the next instruction of the program, then instructions that waited for it."""
        before = len(self.made)
        self.waiting += [] if self.visit(instruction) else [instruction]
        # One placed instruction can release others, so the waiting ones are tried until none moves.
        while self.waiting and len(self.made) > before:
            before = len(self.made)
            self.waiting = [one for one in self.waiting if not self.visit(one)]

    def visit(self, instruction: Instruction) -> bool:
        """Return whether the operands exist; if so, place the instruction or count its message."""
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


def executed(block: Block) -> Iterator[Instruction]:
    """Yield every instruction in the order of execution; a body comes before its instruction."""
    for instruction in in_order(block):
        for body in instruction.attributes.bodies:
            yield from executed(body)
        yield instruction


def _groups(block: Block) -> Iterator[list[Instruction]]:
    reached: dict[int, Levels] = {}
    found: dict[tuple[AllReduce, int], list[Instruction]] = {}
    for instruction in block.instructions:
        # The levels of an instruction are the maxima over its operands. Chains share one dict
        # if the maximum changes nothing, because a copy per instruction would be quadratic.
        levels: Levels = {}
        for value in instruction.operands:
            other = reached.get(value, levels)
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
            found.setdefault((attributes, level), []).append(instruction)
            levels = {**levels, attributes: level + 1}
        if levels:
            for value in instruction.results:
                reached[value] = levels
    yield from found.values()


# Returns the seconds of one execution of an instruction, with a program's local shapes.
Seconds = Callable[[SpmdProgram, Instruction], float]
Ring = Instruction[CollectiveMatmul]
PERMUTE = "collective_permute"


class RingTimes(NamedTuple):
    """Seconds of one execution of a ring of products.

    Attributes:
      apart_s: seconds of the collective and the product, one after the other.
      ring_s: seconds of the ring.
      exposed: seconds by cause that the ring takes longer than the product alone.
    """

    apart_s: float
    ring_s: float
    exposed: tuple[tuple[str, float], ...]


def ring_times(
    program: SpmdProgram, ring: Ring, seconds: Seconds, spans: Sequence[DigitSpan], chip: Hardware
) -> RingTimes:
    """Return the seconds of a ring, and of the product and collective that it replaces.

    Args:
      seconds: prices the product and the collective outside of a ring.
      spans: the links under the ring.
    """
    a = ring.attributes
    product_s = seconds(program, a.product)
    apart_s = product_s + seconds(program, a.collective)
    step_s = sum(seconds(piece(program, a, d), a.product) for d in a.directions)
    permute = permute_s(program, ring, spans, chip.operators.collective(PERMUTE))
    permuted_s = sum(permute.values())
    ahead = PERMUTE in chip.interconnect.asynchronous
    # A permute that the compiler does not start ahead cannot run during the product.
    both_s = max(step_s, permuted_s) if ahead else step_s + permuted_s
    # A ring of n members sends n - 1 times, and multiplies once more.
    ring_s = step_s + (a.members - 1) * both_s
    beyond = max(ring_s - product_s, 0.0)
    causes = permute if permuted_s else {LATENCY: 1.0}
    whole = sum(causes.values())
    # The exposed time is split among the causes of the permutes, in proportion.
    return RingTimes(apart_s, ring_s, tuple((c, beyond * s / whole) for c, s in causes.items()))


def piece(program: SpmdProgram, a: CollectiveMatmul, direction: Direction) -> SpmdProgram:
    """Return the program with the shapes of the product in one step of a ring."""
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
    """Return the seconds by cause of one step's permutes in all directions together.

    Each step sends a block to the neighbours. A ring over a line of chips closes through the links
    of the opposite direction, so both directions together take as long as one. Cores that share
    a link form one ring, in which only one of them sends to another chip.

    Args:
      spans: the links under the ring.
      measured: measured seconds of every permute, and bytes per second; None for the datasheet.
    """
    a = ring.attributes
    moving = a.collective.operands if a.gathers else a.collective.results
    sent = program.locals[moving[0]].bytes
    if measured is not None:
        return {LATENCY: measured[0] * len(a.directions), LINK: sent / measured[1]}
    over = stages(spans)
    if over[0].medium == CHIP:
        return {}
    both = len(a.directions) > 1
    rate = min(s.bytes_per_s if both else s.one_way_bytes_per_s for s in over[0].spans)
    # Only one core of a chip sends to another chip, so it has the link's whole rate.
    cores = math.prod(stage.count for stage in over if stage.medium == CHIP)
    return {over[0].cause: sent / (rate * cores), LATENCY: over[0].latency_s}


OVERLAPS = ("measured", "none", "asynchronous", "dependences", "full")


def check_overlap(overlap: str) -> None:
    """Raise unless `overlap` is one of `OVERLAPS`.

    Raises:
      HardwareError: the value is another word.
    """
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

    There are two sorts of instructions: local operators and collectives. Instructions of each sort
    start in the order of execution (`in_order`), when the previous one of their sort is done
    and their operands exist. A loop starts when both sorts are idle. Its trips do not overlap.
    The result is between `max(compute, communication)` and their sum, for each trip.

    Args:
      seconds: returns the seconds of one execution of an instruction that is no loop.
      asynchronous: kinds of collectives that are started ahead; during others nothing else runs.
    """
    line, sent = _Line(seconds, asynchronous), together(block)
    for instruction in in_order(block):
        # A message of several all-reduces starts when the operands of all of them are there.
        members = sent.get(id(instruction)) or (instruction,)
        line.run(instruction, [value for one in members for value in one.operands])
    return max(line.free.values())


@dataclass
class _Line:
    """The times at which the compute unit and the links are free, and each value exists."""

    seconds: Callable[[Instruction], float]
    asynchronous: Collection[str]
    free: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    ready: dict[int, float] = field(default_factory=dict)

    def run(self, instruction: Instruction, operands: Iterable[int]) -> None:
        """Start an instruction as early as possible, given the operands of its message."""
        attributes = instruction.attributes
        control, sends = isinstance(attributes, Control), is_collective(attributes)
        # A loop, and a collective that is not started ahead, occupies both the unit and the links.
        alone = control or (
            is_collective(attributes) and attributes.sent_as not in self.asynchronous
        )
        sorts = (False, True) if alone else (sends,)
        taken = self.inside(instruction) if control else self.seconds(instruction)
        waits = (self.ready.get(value, 0.0) for value in operands)
        end = max(*(self.free[sort] for sort in sorts), *waits, 0.0) + taken
        self.free.update(dict.fromkeys(sorts, end))
        self.ready.update(dict.fromkeys(instruction.results, end))

    def inside(self, instruction: Instruction) -> float:
        """Return the seconds of all bodies of a loop or branch, as often as `walk` counts them."""
        control = instruction.attributes
        runs = zip(control.bodies, control.executions_of_bodies, strict=True)
        return sum(
            count * scheduled_s(body, self.seconds, self.asynchronous) for body, count in runs
        )
