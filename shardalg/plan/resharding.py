"""The reshard of one tensor: its path as a program, priced, proved and run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.algebra.layout import in_order
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import group_size, seconds, wire_bytes
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology, machine, machine_text
from shardalg.errors import ShardingError
from shardalg.graph.ir import ITEM_SIZES, Graph, Region, Value, ValueType
from shardalg.planner.partition.emit.context import Cause, PartitionContext
from shardalg.planner.reshard.links import links_on
from shardalg.planner.reshard.paths import lacking, reshard_bound
from shardalg.spmd.check import check
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instruction import Block, Collective, Instruction
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Answer, Parts, Table, bytes_text, seconds_text

if TYPE_CHECKING:
    import numpy as np

    from shardalg.lower.shard_map import Lowered
    from shardalg.verify.report import Report

COLUMNS = (
    "kind", "mesh_axes", "group_size", "operand_bytes", "result_bytes", "wire_bytes", "sharding",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Reshard(Answer):
    """The cheapest sequence of collectives between two shardings of one tensor.

    Print it, or use `table`, `verify`, `lower`.

    Attributes:
      source, target: shardings of one tensor, in positions of one mesh.
      dtype: the item type, which determines bytes.
      hardware: the chip whose seconds are shown; None: no seconds. If links of axes differ, the
        path takes the fewest seconds on them.
    """

    source: Sharding
    target: Sharding
    dtype: str
    hardware: Hardware | Topology | None = None

    @cached_property
    def _made(self) -> tuple[SpmdProgram, Graph]:
        """The program of the path, and a graph of one argument that is also the result.

        The program moves the argument from the sharding `source` to `target`.
        """
        # The graph has no operator, and its only argument, value 0, is also its result. The
        # verifier then proves that the path computes the identity, so no reference result is
        # needed. The region is the whole program: number 0, without a call around it, run once.
        value = Value(0, ValueType(self.source.shape, self.dtype), "argument", "x")
        root = Region(0, "root", None, None, (), (), (), 1)
        graph = Graph((value,), (), (root,), (), (0,), (0,), ("x",), ("result",))
        links = links_on(self.source.mesh, self.hardware, ITEM_SIZES[self.dtype])
        context = PartitionContext(graph, ("unknown",), links=links)
        first = context.new_local(self.source.shard_shape, self.dtype, self.source, 0)
        # On another device order, the path ends with one permute to that order.
        is_reordered = self._here is not self.target
        last = first
        # Equal blocks in another device order need only that permute.
        if not (
            is_reordered and self.source.parts == self.target.parts and not self.source.unreduced
        ):
            last = context.move(first, self.source, self._here, Cause(None))
        if is_reordered:
            last = context.reorder_devices(last, self.target, self.source.mesh, Cause(None))
        block = Block((first,), tuple(context.instructions), (last,))
        ends = (self.source,), (self.target,)
        return check(SpmdProgram(self.source.mesh, tuple(context.locals), block, *ends)), graph

    @property
    def _here(self) -> Sharding:
        """The sharding `target`, on a mesh with the device order of the source's mesh."""
        if self.target.mesh == self.source.mesh:
            return self.target
        return replace(self.target, mesh=self.source.mesh)

    @property
    def program(self) -> SpmdProgram:
        """The program that every device runs; `print` shows its instructions."""
        return self._made[0]

    @property
    def steps(self) -> tuple[Instruction, ...]:
        """The instructions of the path in order; not all of them send bytes."""
        return self.program.block.instructions

    @property
    def wire_bytes(self) -> Any:
        """Bytes that a device sends."""
        return sum(self._sent(step) for step in self.steps)

    @property
    def least_wire_bytes(self) -> Any:
        """A lower bound for every path: the bytes of the target that some device lacks."""
        # The sharper bound of a path is for one device order; this one holds in any order.
        bound = lacking if self._here is not self.target else reshard_bound
        return bound(self.source, self.target) * ITEM_SIZES[self.dtype]

    @property
    def peak_bytes(self) -> int:
        """The bytes of the largest buffer on a device, at either end or in between."""
        return max(local.bytes for local in self.program.locals)

    @property
    def seconds(self) -> float | None:
        """Seconds of all steps, one after the other; None without hardware."""
        if self.hardware is None:
            return None
        return sum(self._seconds(step) for step in self.steps)

    @cached_property
    def table(self) -> Table:
        """A row per instruction."""
        timed = ("time_s",) if self.hardware is not None else ()
        return Table((*COLUMNS, *timed), tuple(map(self._row, self.steps)))

    def parts(self) -> Parts:
        """Return a sentence and the table.

        The sentence has both shardings, the bytes sent with their lower bound, the largest buffer
        on a device, and the seconds if hardware is given.
        """
        tensor_bytes = math.prod(self.source.shape) * ITEM_SIZES[self.dtype]
        words = (
            f"{self.source.text()} to {self.target.text()} of {self.dtype}"
            f"[{','.join(map(str, self.source.shape))}] on {self.source.mesh!r}: "
            f"{bytes_text(self.wire_bytes)} sent per device (lower bound "
            f"{bytes_text(self.least_wire_bytes)}), largest buffer {bytes_text(self.peak_bytes)} "
            f"of a tensor of {bytes_text(tensor_bytes)}"
        )
        timed = ""
        if self.hardware is not None and self.seconds is not None:
            on = machine_text(self.hardware, self.source.mesh.size)
            timed = f", {seconds_text(self.seconds)} on {on}"
        return f"{words}{timed}.", self.table

    def verify(self) -> Report:
        """Prove, step by step, that every device ends with its block of the target."""
        from shardalg.verify.report import Report
        from shardalg.verify.verify import Verifier

        program, graph = self._made
        return Report(tuple(Verifier(graph, program).judge(self.source.mesh)))

    def simulate(self, array: np.ndarray) -> np.ndarray:
        """Run the path in numpy, and return the assembled result, which should equal `array`."""
        program, graph = self._made
        (result,) = simulate(program, graph, array)
        return result

    def lower(self, devices: Sequence[Any] | None = None) -> Lowered:
        """Return the path as a JAX executable; call it on a global array."""
        from shardalg.lower.shard_map import lower

        program, graph = self._made
        return lower(program, graph, devices)

    def _held(self, step: Instruction) -> int:
        return self.program.locals[step.operands[0]].bytes

    def _sent(self, step: Instruction) -> Any:
        return wire_bytes(step.attributes, self._held(step))

    def _seconds(self, step: Instruction) -> float:
        """Return the predicted seconds of one instruction."""
        mesh = self.source.mesh
        assert self.hardware is not None, "seconds need hardware"
        return seconds(step.attributes, self._held(step), mesh=mesh, hardware=self.hardware)

    def _row(self, step: Instruction) -> tuple[Any, ...]:
        """Return the table's row of one instruction; seconds are its last entry if known.

        A local instruction has no axes and no group size.
        """
        attributes, made = step.attributes, self.program.locals[step.results[0]]
        timed = () if self.hardware is None else (self._seconds(step),)
        # Only collectives have a name as in XLA (`sent_as`). A local instruction gets the name of
        # its class: `DynamicSlice` is dynamic_slice.
        kind, axes, size = re.sub(r"\B([A-Z])", r"_\1", type(attributes).__name__).lower(), "", None
        if isinstance(attributes, Collective):
            axes = ",".join(self.source.mesh.texts(attributes.digits))
            kind, size = attributes.sent_as, group_size(attributes)
        return (
            kind,
            axes,
            size,
            self._held(step),
            made.bytes,
            _whole(self._sent(step)),
            made.sharding.text(),
            *timed,
        )


def _whole(amount: Any) -> Any:
    return amount if isinstance(amount, int) else float(amount)


def reshard(
    source: Sharding,
    target: Sharding,
    *,
    dtype: str = "float32",
    on: str | Hardware | Topology | None = None,
) -> Reshard:
    """Return the cheapest path of collectives from one sharding of a tensor to another.

    Args:
      target: may be on another mesh over the same devices, in any order. If digits of the source's
        mesh cannot express that order, the last step is one permute.
      on: hardware by name or value, whose seconds are shown too. If an axis has slower links than
        others (`Hardware.with_links`), the path takes the fewest seconds on them.

    Raises:
      ShardingError: arguments that are not shardings, different shapes, an unknown type, meshes
        over different devices, or a target with pending sums whose device order axes of the
        source's mesh cannot express.
      HardwareError: `on` is unknown hardware.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 2, "y": 4})
    >>> path = reshard(*(Sharding.parse(text, (8, 8, 8), mesh)
    ...     for text in ("P('y', None, 'x')", "P(None, ('x', 'y'), None)")))
    >>> path.table.select("kind", "mesh_axes", "wire_bytes", "sharding")
    kind        mesh_axes  wire_bytes  sharding
    all_to_all  x                 128  [y, x, None]
    all_to_all  y                 192  [None, (x, y), None]
    >>> path.wire_bytes, path.least_wire_bytes, path.peak_bytes, path.verify().ok
    (320, 224, 256, True)
    """
    no_shardings = [given for given in (source, target) if not isinstance(given, Sharding)]
    if no_shardings:
        raise ShardingError(
            f"reshard() needs two shardings, got {no_shardings[0]!r}. Make each with "
            "Sharding.parse(text, shape, mesh) or Sharding.from_axes(axes, mesh, shape)."
        )
    if dtype not in ITEM_SIZES:
        raise ShardingError(f"unknown dtype {dtype!r}; known types: {', '.join(ITEM_SIZES)}.")
    if source.shape != target.shape:
        raise ShardingError(
            f"reshard from {source!r} to {target!r}: the shapes differ. Reshape the tensor first."
        )
    # The same sharding on the source's mesh if possible: axes of another mesh can name the same
    # blocks. None if the meshes have different devices.
    same_target = in_order(target, source.mesh)
    if same_target is None:
        raise ShardingError(
            f"{target!r} is on other devices than {source!r}, which no collective reaches. Give "
            "both shardings on one mesh."
        )
    if same_target.mesh != source.mesh and same_target.unreduced:
        raise ShardingError(
            f"{target!r} has pending sums in a device order that axes of {source.mesh!r} cannot "
            "express, and pending sums cannot move. Reshard to a sharding without them."
        )
    hardware = None if on is None else machine(on)
    return Reshard(source, same_target, dtype, hardware)
