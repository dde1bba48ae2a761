"""Seconds of a program whose collectives run beside the compute that does not wait for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from shardalg.costs.analyses.together import in_order, together
from shardalg.costs.collectives import is_collective
from shardalg.costs.network.collective_seconds import COLLECTIVES
from shardalg.errors import HardwareError
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import Control

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
