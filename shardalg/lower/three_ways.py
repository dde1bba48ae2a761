"""One plan run three ways: our program, XLA's partitioning of the same function, one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from shardalg.algebra.mesh import Mesh
from shardalg.costs.collectives import is_collective, wire_bytes
from shardalg.costs.walk import sent_bytes, walk
from shardalg.lower.jit import Twin
from shardalg.lower.measure import Measurement, measure, relative_error
from shardalg.lower.shard_map import Lowered
from shardalg.lower.xla_dump.hlo_collectives import HloCollective, compile_with_collectives
from shardalg.palette import BLUE, GREY
from shardalg.sizes.amounts import number
from shardalg.svg import Bar, Segment, draw_bars, drawing_card
from shardalg.tables import Answer, Parts, Table, bytes_text, seconds_text


@dataclass(frozen=True, repr=False)
class Comparison(Answer):
    """Our program, and the same function partitioned by XLA, compared with a run on one device.

    Attributes:
      measurement: times of our program and of XLA's, which ran in turns.
      relative_error, xla_relative_error: the largest `max |result - expected| / max |expected|` of
        all results, of our program and of XLA's; `expected` is the result of one device.
      xla_collectives: collectives that XLA's partitioner inserted, with their executions.
      ours: kinds of our collectives, and the bytes that a device sends in a call.
    """

    measurement: Measurement
    relative_error: float
    xla_relative_error: float
    xla_collectives: tuple[HloCollective, ...]
    ours: tuple[str, int | float] = ("", 0)

    @property
    def table(self) -> Table:
        """Table of errors, median seconds, collectives and bytes of our program and of XLA's."""
        measured = self.measurement
        # Each collective of XLA is executed `count` times in a call.
        sent = sum(c.wire_bytes * c.count for c in self.xla_collectives)
        kinds = ", ".join(sorted({c.kind for c in self.xla_collectives}))
        return Table(
            ("executable", "relative_error", "median_s", "collectives", "wire_bytes"),
            (
                ("shardalg", self.relative_error, measured.ours.median_s, *self.ours),
                ("xla", self.xla_relative_error, measured.xla.median_s, kinds, number(sent)),
            ),
        )

    def parts(self) -> Parts:
        """Return the table with rounded figures and their units, as the only part of a page."""
        rows = (
            (r["executable"], f"{r['relative_error']:.1e}", seconds_text(r["median_s"]),
             r["collectives"], bytes_text(r["wire_bytes"]))
            for r in self.table
        )  # fmt: skip
        columns = ("executable", "error against one device", "median time", "collectives", "sent")
        return (Table(columns, tuple(rows)),)

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks, as HTML: the median times as bars, and the table."""
        times = {row["executable"]: row["median_s"] for row in self.table}
        bars = [
            Bar(name, (Segment(name, s, "", color),), seconds_text(s))
            for (name, s), color in zip(times.items(), (BLUE, GREY), strict=True)
        ]
        sent = {row["executable"]: bytes_text(row["wire_bytes"]) for row in self.table}
        title = (
            f"Median time of a call: {seconds_text(times['shardalg'])}, XLA "
            f"{seconds_text(times['xla'])}. Sent per device: {sent['shardalg']}, XLA {sent['xla']}."
        )
        return drawing_card(title, draw_bars(bars), *self.parts())


@dataclass(frozen=True, eq=False)
class DumpedTwin:
    """The same function as XLA partitions it, compiled so that its collectives can be read."""

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
        """Return the arguments in the executable's shardings."""
        return self.twin.entering(*args)

    def leave(self, outputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Return the results at their true sizes."""
        return self.twin.leave(outputs)


def one_device(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` compiled for the first device alone: the reference of partitioned runs."""
    return jax.jit(fn)


def compare(
    lowered: Lowered,
    args: Sequence[Any],
    expected: Any,
    *,
    repeats: int = 20,
    verified: str = "not verified",
) -> Comparison:
    """Run `lowered`, and its function partitioned by XLA; compare both with `expected`.

    Args:
      expected: the function's results, such as `one_device(fn)(*args)`.
      repeats: timed runs of each.
      verified: how far the plan was proved, in words; it is copied to the measurement.
    """
    # The function as XLA partitions it. `dump` is (compiled program, its collectives).
    twin = DumpedTwin(lowered.jit(), lowered.program.mesh)
    wanted = jax.tree.leaves(expected)
    errors: list[float] = []
    for executable in (lowered, twin):
        placed = executable.entering(*args)
        # A call consumes donated arguments, which `measure` needs again.
        held = [x.copy() if i in executable.donated else x for i, x in enumerate(placed)]
        results = executable.leave(executable.compiled(*held))
        errors.append(max(map(relative_error, results, wanted), default=0.0))
    measured = measure(lowered, twin, args, repeats=repeats, verified=verified)
    own, other = errors
    return Comparison(measured, own, other, twin.dump[1], _kinds_and_bytes(lowered))


def _kinds_and_bytes(lowered: Lowered) -> tuple[str, int | float]:
    """Return the kinds of a lowered plan's collectives, and the bytes a device sends in a call.

    The kinds are one text, such as "all_gather, all_reduce".
    """
    program, kinds, total_bytes = lowered.program, set(), 0
    for step in walk(program):
        attributes = step.instruction.attributes
        if is_collective(attributes):
            kinds.add(attributes.sent_as)
            # A collective in a loop is executed `count` times. `wire_bytes` turns the bytes of the
            # operand into those that a device sends.
            bytes_per_run = wire_bytes(attributes, sent_bytes(program, step.instruction))
            total_bytes += step.count * bytes_per_run
    return ", ".join(sorted(kinds)), number(total_bytes)
