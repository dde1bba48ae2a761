"""Permutes of blocks; of what is fetched a reading takes what it is served, or its own block."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from shardalg.algebra.digits import Digits, partition_id
from shardalg.lower.emit.emitter import Array, Emitter, emits
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import CollectivePermute, HaloExchange, Reading


@emits(CollectivePermute)
def _permute(
    emitter: Emitter, instruction: Instruction[CollectivePermute], x: Array
) -> list[Array]:
    return [lax.ppermute(x, emitter.axes.all_names, instruction.attributes.pairs)]


@emits(HaloExchange)
def _halo_exchange(
    emitter: Emitter, instruction: Instruction[HaloExchange], *xs: Array
) -> list[Array]:
    """What arrives is sent once; a reading takes it where it is served, and else its own block."""
    a, names = instruction.attributes, emitter.axes.all_names
    arrived = []
    for edges in a.permutes:
        first = edges[0][2] if edges else 0
        sent = xs[first]
        for operand in {k for _, _, k in edges} - {first}:
            here = _at(emitter, [source for source, _, k in edges if k == operand])
            sent = jnp.where(here, xs[operand], sent)
        arrived.append(lax.ppermute(sent, names, [edge[:2] for edge in edges]))
    return [_read(emitter, a.digits, r, xs[r.operand], arrived) for r in a.readings]


def _read(
    emitter: Emitter, digits: Digits, reading: Reading, x: Array, arrived: list[Array]
) -> Array:
    """The block that a device wants; who is neither served nor wants its own wants nothing."""
    everyone = range(emitter.program.mesh.size)
    served = [[target for _, target in pairs] for pairs in reading.permutes]
    found = [(block, targets) for block, targets in zip(arrived, served, strict=True) if targets]
    own = [p for p in everyone if reading.source.at(p) == partition_id(digits, p)]
    if found and not set(own).difference(*served):
        (x, _), *found = found
    for block, targets in found:
        x = jnp.where(_at(emitter, targets), block, x)
    return x


def _at(emitter: Emitter, positions: list[int]) -> Array:
    """Whether the device that executes is at one of some positions."""
    chosen = np.isin(np.arange(emitter.program.mesh.size), positions)
    return jnp.asarray(chosen)[lax.axis_index(emitter.axes.all_names)]
