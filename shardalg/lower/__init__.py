"""Programs on real devices: an SPMD program as `jax.shard_map`, its XLA twin, measurements.

Operators of a plan run alone.
"""

from shardalg.lower.shard_map import Lowered, lower

__all__ = ["Lowered", "lower"]
