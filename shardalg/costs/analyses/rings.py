"""Seconds of a ring of products: at each step the longer of a permute and a product.

    ring = product + (n - 1) * max(permute, product)        n members, each step one block
On a chip whose compiler starts no permute ahead (`Interconnect.asynchronous`) a step is their sum.
As many bytes are sent as by the collective alone, by permutes to a neighbour: half of a block each
way round. The product of one block is priced as any product is, so that small ones fill their unit
badly, and read again what all blocks are multiplied with; a sum that is added to is read, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardalg.costs.hardware import Hardware
from shardalg.costs.network.collective_seconds import LATENCY, stages
from shardalg.costs.network.span import CHIP, LINK, Span
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import CollectiveMatmul, Direction
from shardalg.spmd.program import SpmdProgram

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
    program: SpmdProgram, ring: Ring, seconds: Seconds, spans: Sequence[Span], chip: Hardware
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
    program: SpmdProgram, ring: Ring, spans: Sequence[Span], measured: tuple[float, float] | None
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
