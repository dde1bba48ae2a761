"""Gathered copies that can stay in memory until the backward pass without a higher memory peak.

A copy that is freed after the forward pass is gathered again in the backward pass (GSPMD,
arXiv:2105.04663, section 5.1). The program then sends more in order to hold less. If the peak of
memory is at another instruction, freeing the copy does not lower the peak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import wire_bytes
from shardalg.costs.memory import held_bytes
from shardalg.costs.walk import sent_bytes
from shardalg.graph.ir import Graph
from shardalg.sizes.recorded import are_numbers
from shardalg.spmd.instruction import Collective
from shardalg.spmd.program import SpmdProgram

Copy = tuple[int, Sharding]
"""A graph value, and the sharding of a gathered copy of it. A value can have several copies."""


@dataclass(frozen=True)
class _Repeated:
    """A gathered copy that the program computes several times.

    Attributes:
      copy: the graph value and the sharding of the copy.
      between: numbers of the instructions at which no such copy is in memory: after the last read
        of one, before the next is computed.
      held_bytes: bytes that a device holds for the copy.
      saved_bytes: bytes that a device would not send if the first copy stayed in memory.
    """

    copy: Copy
    between: np.ndarray
    held_bytes: int
    saved_bytes: float


def below_peak(
    program: SpmdProgram, graph: Graph, *, donated: Sequence[int], rebuild: bool
) -> frozenset[Copy]:
    """Return the gathered copies that can stay in memory between their uses.

    The memory peak of the program does not rise. Copies that save the most bytes sent per byte held
    are chosen first.

    Args:
      donated: indices of the arguments whose memory the step may reuse.
      rebuild: whether forward values may be computed again in the backward pass.
    """
    found = _repeated_copies(program)
    if not found:
        return frozenset()
    # A kept copy occupies additional memory only between its uses. Each one that is kept raises the
    # memory there, so the next one is compared with what is left below the peak.
    alive = np.array(held_bytes(program, graph, donated=donated, rebuild=rebuild))
    peak, kept = alive.max(), set[Copy]()
    for one in sorted(found, key=lambda c: (-c.saved_bytes / c.held_bytes, c.copy[0])):
        if (alive[one.between] + one.held_bytes <= peak).all():
            alive[one.between] += one.held_bytes
            kept.add(one.copy)
    return frozenset(kept)


def _repeated_copies(program: SpmdProgram) -> list[_Repeated]:
    """Return the copies that collectives outside of loops compute more than once.

    A copy is a graph value in one sharding, such as a gathered weight. Each entry has the copy, the
    instructions between its uses (where keeping the copy needs more memory), its bytes, and the
    bytes sent that keeping it saves.
    """
    # The positions of the collectives that compute each copy. Partial sums are no copies.
    positions_of: dict[Copy, list[int]] = defaultdict(list)
    instructions = program.block.instructions
    last_read = {local: i for i, one in enumerate(instructions) for local in one.operands}
    for i, one in enumerate(instructions):
        if not isinstance(one.attributes, Collective) or len(one.results) != 1:
            continue
        local = program.locals[one.results[0]]
        if local.origin is not None and not local.sharding.unreduced:
            positions_of[local.origin, local.sharding].append(i)
    found = []
    for copy, positions in positions_of.items():
        size = program.locals[instructions[positions[0]].results[0]].bytes
        # Named sizes have no number to compare with the peak.
        if len(positions) < 2 or not are_numbers((size,)) or not size:
            continue
        # Keeping the copy needs more memory only between its last read and the next gather:
        # i: made .. end: last read | end+1 .. j-1: not in memory | j: made again ..
        ends = [last_read.get(instructions[i].results[0], i) for i in positions]
        gaps = [np.arange(end + 1, i) for end, i in zip(ends, positions[1:], strict=False)]
        # All collectives except the first one become needless.
        repeated = [instructions[i] for i in positions[1:]]
        saved = sum(wire_bytes(one.attributes, sent_bytes(program, one)) for one in repeated)
        found.append(_Repeated(copy, np.concatenate(gaps), size, saved))
    return found
