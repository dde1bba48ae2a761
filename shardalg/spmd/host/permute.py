"""Blocks that go from one position to another."""

from __future__ import annotations

from itertools import chain

import numpy as np

from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.run import Run, on_blocks, simulates
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import CollectivePermute, HaloExchange, Reading


@on_blocks(CollectivePermute)
def _permute(a: CollectivePermute, x: Stack) -> Stack:
    result = [np.zeros_like(block) for block in x]
    for source, target in a.pairs:
        result[target] = x[source]
    return result


@simulates(HaloExchange)
def _halo_exchange(run: Run, instruction: Instruction[HaloExchange], *stacks: Stack) -> list[Stack]:
    """Per reading its blocks. What is nobody's is garbage: the own one is as good as any."""
    return [_read(reading, stacks[reading.operand]) for reading in instruction.attributes.readings]


def _read(reading: Reading, x: Stack) -> Stack:
    result = list(x)
    for source, target in chain.from_iterable(reading.permutes):
        result[target] = x[source]
    return result
