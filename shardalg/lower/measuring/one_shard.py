"""One device stands for many: its program with local stand-ins for what comes from the others.

Compute and memory of one shard of a plan for 64 devices can be measured on one chip. A collective
becomes a copy of what it takes, repeated or cut to the shape of what it makes: the same blocks are
read and written, and nothing is sent. The values are of no use, and none are handed out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from shardalg.costs.walk import walk
from shardalg.errors import LoweringError
from shardalg.graph.abstract import item_type
from shardalg.io.units import bytes_text
from shardalg.lower.emit import EMIT, Emitter, body
from shardalg.lower.measure import Memory, Timing, repeated
from shardalg.spmd.instruction import Collective, Instruction
from shardalg.spmd.instructions import While

if TYPE_CHECKING:
    from shardalg.lower.shard_map import Lowered

NO_RESULT = "one shard with stand-ins for its collectives: times and memory, not a result"


@dataclass(frozen=True)
class ShardMeasurement:
    """Times and memory of one shard's local work."""

    timing: Timing
    memory: Memory
    flops: float
    device: str
    note: str = NO_RESULT

    def __repr__(self) -> str:
        return (
            f"ShardMeasurement on {self.device} ({self.note}): {self.timing}, "
            f"{bytes_text(self.memory.total_bytes)}"
        )


@dataclass(frozen=True)
class StandIns(Emitter):
    """Emits what the device at position 0 does alone."""

    def partition_id(self, digits: Any) -> Any:
        """That of position 0; an array, so that no compiler folds what depends on it."""
        return jnp.zeros((), jnp.int32)

    def rotated(self, digits: Any, x: Any, hop: int) -> Any:
        """A copy: nobody else is there."""
        return _shaped(x, x.shape, x.dtype.name)

    def emit(self, instruction: Instruction) -> Callable[..., list[Any]]:
        """As on devices, but for collectives."""
        if not isinstance(instruction.attributes, Collective):
            return EMIT[type(instruction.attributes)]
        return _stood_in


def _stood_in(emitter: Emitter, instruction: Instruction, *operands: Any) -> list[Any]:
    held = [emitter.program.locals[r] for r in instruction.results]
    given = [*operands, *[operands[-1]] * len(held)]
    return [_shaped(x, r.shape, r.dtype) for x, r in zip(given, held, strict=False)]


def _shaped(x: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A copy in another shape, repeated or cut."""
    size, own = math.prod(shape), max(1, x.size)
    flat = jnp.tile(x.ravel(), -(-size // own))[:size] if x.size else jnp.zeros(size, x.dtype)
    return jax.lax.optimization_barrier(flat.reshape(shape).astype(item_type(dtype)))


@dataclass(frozen=True, eq=False)
class OneShard:
    """A plan's program of one device, on one device.

    Raises:
      LoweringError: the program has a loop that ends by its values, which are of no use here.
    """

    lowered: Lowered
    device: jax.Device

    def __post_init__(self) -> None:
        loops = [
            s for s in walk(self.lowered.program) if isinstance(s.instruction.attributes, While)
        ]
        if loops:
            raise LoweringError(
                f"a `while` ends by values, which stand-ins do not have: {len(loops)} of them. "
                "Measure a function without, or run the plan on its devices."
            )

    @property
    def _structs(self) -> list[Any]:
        held = self.lowered.program
        where = jax.sharding.SingleDeviceSharding(self.device)
        locals_ = [held.locals[index] for index in held.block.arguments]
        return [jax.ShapeDtypeStruct(x.shape, item_type(x.dtype), sharding=where) for x in locals_]

    @cached_property
    def compiled(self) -> Any:
        """JAX's compiled program."""
        low = self.lowered
        emitter = StandIns(low.program, low.graph, low.run, self.device.platform != "cpu")
        return jax.jit(body(emitter)).lower(*self._structs).compile()

    def measure(self, repeats: int = 20) -> ShardMeasurement:
        """Its times on blocks of ones, and its memory."""
        blocks = [jax.device_put(jnp.ones(s.shape, s.dtype), self.device) for s in self._structs]
        shared = self.device.platform == "cpu"
        timing = repeated(lambda: self.compiled(*blocks), repeats, shared=shared)
        stats = self.compiled.memory_analysis()
        memory = Memory(
            stats.argument_size_in_bytes,
            stats.output_size_in_bytes,
            stats.temp_size_in_bytes,
            stats.alias_size_in_bytes,
        )
        flops = float((self.compiled.cost_analysis() or {}).get("flops", math.nan))
        return ShardMeasurement(timing, memory, flops, self.device.device_kind)
