"""Seconds of a program whose collectives run beside the compute that does not wait for them.

All-reduces that are sent as one: of one kind along one set of axes, none waiting for another.

Seconds of a ring of products: at each step the longer of a permute and a product.

    ring = product + (n - 1) * max(permute, product)        n members, each step one block
On a chip whose compiler starts no permute ahead (`Interconnect.asynchronous`) a step is their sum.
As many bytes are sent as by the collective alone, by permutes to a neighbour: half of a block each
way round. The product of one block is priced as any product is, so that small ones fill their unit
badly, and read again what all blocks are multiplied with; a sum that is added to is read, too.
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

Levels = dict[AllReduce, int]
"""How many all-reduces of each kind follow one another up to a value."""


def together(block: Block) -> dict[int, tuple[Instruction, ...]]:
    """Per all-reduce, by the `id` of its instruction, those that are sent with it, itself first.

    Those at the same place of their chains, in one block, go together: the first one takes the
    others with it, which have an empty entry. So does XLA's all-reduce combiner (`xla/service/
    all_reduce_combiner.h`): of the 50 of an optimizer's step for 25 weights two are left.
    """
    found: dict[int, tuple[Instruction, ...]] = {}
    for members in (group for each in blocks(block) for group in _groups(each)):
        found[id(members[0])] = tuple(members)
        found.update({id(other): () for other in members[1:]})
    return found


def in_order(block: Block) -> tuple[Instruction, ...]:
    """Return the instructions of a block in the order in which a device runs them.

    All-reduces that are sent as one follow one another, at the place of the last one: its operand
    is made last. What reads one of them comes later. Where two such messages would wait for each
    other, the rest keeps the order of the program.
    """
    groups = [members for members in _groups(block) if len(members) > 1]
    if not groups:
        return block.instructions
    order = _Order({id(member): members for members in groups for member in members})
    for instruction in block.instructions:
        order.take(instruction)
    placed = set(map(id, order.made))
    return (*order.made, *(one for one in block.instructions if id(one) not in placed))


@dataclass
class _Order:
    """Instructions in the order of execution, and those that wait for a message.

    Attributes:
      group_of: per all-reduce, by its `id`, all that are sent with it.
      missing: values that are not there yet.
    """

    group_of: Mapping[int, list[Instruction]]
    made: list[Instruction] = field(default_factory=list)
    waiting: list[Instruction] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    arrived: dict[int, int] = field(default_factory=dict)

    def take(self, instruction: Instruction) -> None:
        """Place the next instruction of the program, and those that waited for it."""
        before = len(self.made)
        self.waiting += [] if self.visit(instruction) else [instruction]
        while self.waiting and len(self.made) > before:
            before = len(self.made)
            self.waiting = [one for one in self.waiting if not self.visit(one)]

    def visit(self, instruction: Instruction) -> bool:
        """Return whether the operands are there; then place it, or count it for its message."""
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
        levels: Levels = {}
        for value in instruction.operands:
            other = reached.get(value, levels)
            if other is not levels:
                levels = _joined(levels, other) if levels else other
        attributes = instruction.attributes
        if type(attributes) is AllReduce and attributes.sends > 0:
            level = levels.get(attributes, 0)
            found.setdefault((attributes, level), []).append(instruction)
            levels = {**levels, attributes: level + 1}
        if levels:
            for value in instruction.results:
                reached[value] = levels
    yield from found.values()


def _joined(first: Levels, other: Levels) -> Levels:
    """The largest level of each kind; chains share one dictionary, which is then no copy."""
    if all(first.get(kind, 0) >= n for kind, n in other.items()):
        return first
    kinds = first.keys() | other.keys()
    return {kind: max(first.get(kind, 0), other.get(kind, 0)) for kind in kinds}


Seconds = Callable[[SpmdProgram, Instruction], float]
"""Of one execution of an instruction, with the local shapes of a program."""
Ring = Instruction[CollectiveMatmul]
PERMUTE = "collective_permute"


class RingTimes(NamedTuple):
    """Seconds of one execution.

    Attributes:
      apart_s: of the collective and the product one after the other; ring_s: of the ring.
      exposed: by cause, what the ring takes beyond the product alone.
    """

    apart_s: float
    ring_s: float
    exposed: tuple[tuple[str, float], ...]


def ring_times(
    program: SpmdProgram, ring: Ring, seconds: Seconds, spans: Sequence[DigitSpan], chip: Hardware
) -> RingTimes:
    """What a ring takes, and what it takes the place of.

    Args:
      seconds: of the product and the collective alone.
      spans: the links that lie under the ring.
    """
    a = ring.attributes
    product_s = seconds(program, a.product)
    apart_s = product_s + seconds(program, a.collective)
    step_s = sum(seconds(piece(program, a, d), a.product) for d in a.directions)
    permute = permute_s(program, ring, spans, chip.operators.collective(PERMUTE))
    permuted_s = sum(permute.values())
    ahead = PERMUTE in chip.interconnect.asynchronous
    both_s = max(step_s, permuted_s) if ahead else step_s + permuted_s
    ring_s = step_s + (a.members - 1) * both_s
    beyond = max(ring_s - product_s, 0.0)
    causes = permute if permuted_s else {LATENCY: 1.0}
    whole = sum(causes.values())
    return RingTimes(apart_s, ring_s, tuple((c, beyond * s / whole) for c, s in causes.items()))


def piece(program: SpmdProgram, a: CollectiveMatmul, direction: Direction) -> SpmdProgram:
    """The program with the shapes of one step's product."""
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
    """Seconds by cause of one step's permutes, all directions at once: a block to the neighbours.

    A line closes through its own links the other way, so that both ways together take as long as
    one; cores that share a link send over it in turns, only the last of them to another chip.

    Args:
      spans: what lies under the ring; measured: seconds of every permute, and bytes per second.
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
    cores = math.prod(stage.count for stage in over if stage.medium == CHIP)
    return {over[0].cause: sent / (rate * cores), LATENCY: over[0].latency_s}


OVERLAPS = ("none", "asynchronous", "dependences", "full")


def check_overlap(overlap: str) -> None:
    """Raise unless `overlap` is one of `OVERLAPS`.

    Raises:
      HardwareError: another word.
    """
    if overlap not in OVERLAPS:
        raise HardwareError(
            f"overlap={overlap!r}: write 'none' (one after the other), 'dependences' (collectives "
            "beside the compute that does not wait for them), 'asynchronous' (of these only what "
            "the chip's compiler starts ahead) or 'full' (the longer of both)."
        )


def scheduled_s(
    block: Block,
    seconds: Callable[[Instruction], float],
    asynchronous: Collection[str] = COLLECTIVES,
) -> float:
    """Seconds of a block on a device that computes and sends at the same time.

    Instructions of each sort start in the order of execution (`together.in_order`), as soon as the
    one before of their sort is done and what they read is there. A loop begins when both sorts are
    idle, and its trips follow one another: nothing is fetched for the next trip. At least
    `max(compute, communication)` of each trip, at most their sum.

    Args:
      seconds: of one execution of an instruction that is no loop.
      asynchronous: kinds of collectives that are started ahead; for others nothing else runs.
    """
    line, sent = _Line(seconds, asynchronous), together(block)
    for instruction in in_order(block):
        # A message of several all-reduces starts when the operands of all of them are there.
        members = sent.get(id(instruction)) or (instruction,)
        line.run(instruction, [value for one in members for value in one.operands])
    return max(line.free.values())


@dataclass
class _Line:
    """When the compute unit and the links are free, and each value is there."""

    seconds: Callable[[Instruction], float]
    asynchronous: Collection[str]
    free: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    ready: dict[int, float] = field(default_factory=dict)

    def run(self, instruction: Instruction, operands: Iterable[int]) -> None:
        """Start an instruction as early as it can, when the operands are there."""
        attributes = instruction.attributes
        control, sends = isinstance(attributes, Control), is_collective(attributes)
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
        """Of a loop or a branch: of all bodies, each as often as `walk` counts it."""
        control = instruction.attributes
        runs = zip(control.bodies, control.executions_of_bodies, strict=True)
        return sum(
            count * scheduled_s(body, self.seconds, self.asynchronous) for body, count in runs
        )
