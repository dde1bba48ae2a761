"""One plan run three ways: our program, XLA's partitioning of the same function, one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from shardalg.algebra.mesh import Mesh
from shardalg.lower.jit import Twin
from shardalg.lower.measure import Measurement, measure, relative_error
from shardalg.lower.shard_map import Lowered
from shardalg.lower.xla_dump.hlo_collectives import HloCollective, compile_with_collectives


@dataclass(frozen=True)
class Comparison:
    """What came of the three.

    Attributes:
      measurement: ours and XLA's, timed in turns.
      relative_error, xla_relative_error: of ours and of XLA's against one device, over all results
        the largest `max |result - expected| / max |expected|`.
      xla_collectives: what XLA's partitioner made, loops counted.
    """

    measurement: Measurement
    relative_error: float
    xla_relative_error: float
    xla_collectives: tuple[HloCollective, ...]


@dataclass(frozen=True, eq=False)
class DumpedTwin:
    """The XLA twin, compiled with a dump of what its partitioner made."""

    twin: Twin
    mesh: Mesh

    @cached_property
    def dump(self) -> tuple[Any, tuple[HloCollective, ...]]:
        """The compiled program, and its collectives."""
        return compile_with_collectives(self.twin.stage, self.mesh)

    @property
    def compiled(self) -> Any:
        """JAX's compiled program."""
        return self.dump[0]

    @property
    def donated(self) -> tuple[int, ...]:
        """Arguments that a call consumes."""
        return self.twin.donated

    def entering(self, *args: Any) -> list[jax.Array]:
        """The arguments as the executable takes them."""
        return self.twin.entering(*args)

    def leave(self, outputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Its results at their true sizes."""
        return self.twin.leave(outputs)


def one_device(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` compiled for the first device alone: what partitioned runs are held against."""
    return jax.jit(fn)


def compare(
    lowered: Lowered,
    args: Sequence[Any],
    expected: Any,
    *,
    repeats: int = 20,
    verified: str = "not verified",
) -> Comparison:
    """Run `lowered` and its XLA twin on `args`, and hold both against `expected`.

    Args:
      expected: the function's results, such as `one_device(fn)(*args)`.
      repeats: timed runs of each.
      verified: how far the plan was proved, for the measurement.
    """
    twin = DumpedTwin(lowered.jit(), lowered.program.mesh)
    wanted = jax.tree.leaves(expected)
    errors: list[float] = []
    for executable in (lowered, twin):
        placed = executable.entering(*args)
        held = [x.copy() if i in executable.donated else x for i, x in enumerate(placed)]
        results = executable.leave(executable.compiled(*held))
        errors.append(max(map(relative_error, results, wanted), default=0.0))
    measured = measure(lowered, twin, args, repeats=repeats, verified=verified)
    own, other = errors
    return Comparison(measured, own, other, twin.dump[1])
