"""Each kind of instruction as `jax.lax` calls inside a `shard_map`, one function per kind."""

from shardalg.lower.emit import (
    apply,
    boxes,
    collective_matmul,
    collectives,
    control,
    indices,
    joins,
    masks,
    pads,
    permute,
    slices,
)
from shardalg.lower.emit.control import body
from shardalg.lower.emit.emitter import EMIT, Emitter, emits

REGISTERED = (
    apply, boxes, collective_matmul, collectives, control, indices, joins, masks, pads, permute,
    slices,
)  # fmt: skip
"""The modules whose functions are in `EMIT` once they are imported."""

__all__ = ["EMIT", "REGISTERED", "Emitter", "body", "emits"]
