"""Each kind of instruction as `jax.lax` calls inside a `shard_map`, one function per kind."""

from shardalg.lower.emit import collective_matmul, collectives, control, joins, masks, pads, slices
from shardalg.lower.emit.control import body
from shardalg.lower.emit.emitter import EMIT, Emitter, emits

REGISTERED = (collective_matmul, collectives, control, joins, masks, pads, slices)
"""The modules whose functions are in `EMIT` once they are imported."""

__all__ = ["EMIT", "REGISTERED", "Emitter", "body", "emits"]
