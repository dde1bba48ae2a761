"""A plan's figures compared with the figures of a chip's compiler, row by row.

`tiled_bytes` gives the memory of an array on a TPU, which stores rows and columns in tiles.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardalg.costs.cost import Cost
from shardalg.costs.walk import local_bytes
from shardalg.graph.abstract import item_type
from shardalg.lower import Lowered
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Answer, Parts, Table
from shardalg.xla.aot import Compiled, Target, compile_for

LANES, SUBLANES = 128, 8
OF_VECTORS = 256, 1024
"""The smallest and the largest tile of a vector; a scalar has the smallest."""


def tiled_bytes(shape: Sequence[int], itemsize: int) -> int:
    """Return the bytes of an array of 32-bit items, padded to the tiles of the TPU's compiler.

    A tile has 8 x 128 items of the two minor dimensions, with 1, 2 or 4 rows if the array has no
    more. The order of these two dimensions is the one that takes fewer bytes. A vector's tile has
    256 to 1024 items, a scalar's 256. For narrower items the result is a lower bound.

    >>> tiled_bytes((512, 4, 128), 4), tiled_bytes((12, 1024), 4), tiled_bytes((2000,), 4)
    (1048576, 65536, 8192)
    >>> tiled_bytes((1024, 12), 4)
    65536

    Source: layouts of libtpu, such as `f32[4,128]{1,0:T(4,128)}` and `f32[2000]{0:T(1024)}`.
    """
    if len(shape) < 2:
        (size,) = shape or (1,)
        least, most = OF_VECTORS
        return _up(size, min(most, max(least, _power_of_two(size)))) * itemsize
    *outer, rows, columns = shape
    # The compiler stores that dimension as the minor one with which the array is smaller.
    padded = min(_tiled(rows, columns), _tiled(columns, rows))
    return math.prod(outer) * padded * itemsize


def _tiled(rows: int, columns: int) -> int:
    """Return the number of items of a matrix that is padded to tiles."""
    return _up(rows, min(SUBLANES, _power_of_two(rows))) * _up(columns, LANES)


def _power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def _up(size: int, tile: int) -> int:
    """Return `size` rounded up to a multiple of `tile`."""
    return -(-size // tile) * tile


COLUMNS = ("quantity", "mesh_axes", "planned", "compiled", "xla", "error", "xla_error")
DIFFERENCE_COLUMNS = ("program", "kind", "mesh_axes", "planned", "its", "difference")
MEMORY = ("peak_memory_bytes", "argument_bytes", "flops")
# Bytes of collectives within this share count as equal: the difference is tile padding.
SLACK = 0.01
_REDUCES = ("reduce_scatter", "all_reduce")
CONTRACTION = "contraction"
MOST_FLOPS = 0.001
"""Flops within this share count as equal."""

Moved = Mapping[tuple[str, str], tuple[int, int | float]]
"""Executions and wire bytes of a step by kind and axes."""


@dataclass(frozen=True)
class Figures:
    """A plan's figures for one device.

    Attributes:
      peak_memory_bytes: largest memory during a call. flops: flops of one call.
      argument_bytes: bytes of the arguments; on a TPU with the padding of tiles.
      product_flops: flops of matrix products and convolutions.
      moved: executions and bytes of the collectives, by kind and axes.
    """

    peak_memory_bytes: int
    argument_bytes: int
    flops: float
    product_flops: float
    moved: Moved

    @staticmethod
    def of(program: SpmdProgram, cost: Cost, sent: Table, platform: str) -> Figures:
        """Return the figures of a program.

        Args:
          cost: its predicted cost. sent: its table of collectives.
          platform: "tpu", where arguments are padded to tiles, or another platform.
        """
        # A TPU's compiler reports arguments with the padding of tiles, so the plan's get it, too.
        rows = ((r["kind"], r["mesh_axes"], r["executions"], r["wire_bytes"]) for r in sent)
        products = (item.flops for item in cost.totals.items if item.kind == CONTRACTION)
        arguments = [program.locals[local] for local in program.block.arguments]
        tiled = sum(tiled_bytes(a.shape, item_type(a.dtype).itemsize) for a in arguments)
        return Figures(
            cost.peak_memory_bytes,
            tiled if platform == "tpu" else local_bytes(program, program.block.arguments),
            float(cost.totals.sum("flops")),
            float(sum(products)),
            summed(rows),
        )


@dataclass(frozen=True, repr=False, eq=False)
class BesideCompiler(Answer):
    """A plan compared with a chip compiler's figures, for the plan's program and for XLA's.

    XLA's program is the same function with the same annotations, partitioned by XLA.

    Attributes:
      where: chip, topology and compiler, in words.
      planned: the plan's figures.
      compiled: figures of the lowered program.
      xla: figures of the same function partitioned by XLA.
      notes: messages about the compilation.
    """

    where: str
    planned: Figures
    compiled: Compiled
    xla: Compiled
    notes: tuple[str, ...] = field(default=())

    @property
    def table(self) -> Table:
        """Memory, flops and collectives: planned, compiled, and compiled from XLA's partitioning.

        An error is `planned / compiled - 1`. Collectives of one kind on the same axes have two
        rows: their number, and the bytes that a device sends in a step. A figure that a compiler
        does not give is empty.
        """
        return Table(COLUMNS, tuple(self._rows()))

    def _rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the rows of `table`."""
        for name in MEMORY:
            values = (getattr(a, name) for a in (self.planned, self.compiled, self.xla))
            yield _row(name, "", *values)
        theirs = moved(self.compiled), moved(self.xla)
        for kind, axes in sorted({*self.planned.moved, *theirs[0], *theirs[1]}):
            found = [m.get((kind, axes), (0, 0)) for m in (self.planned.moved, *theirs)]
            # A program that does not fit has no HLO, so its collectives are unknown, not 0.
            known = (True, *(c.out_of_memory is None for c in (self.compiled, self.xla)))
            for at, what in enumerate(("count", "wire_bytes")):
                counts = (f[at] if k else None for f, k in zip(found, known, strict=True))
                yield _row(f"{kind}_{what}", axes, *counts)

    @property
    def differences(self) -> Table:
        """Collectives and flops of a compiled program that differ from the plan, and the cause.

        A compiler may keep a copy or gather it again, combine several collectives, all-reduce and
        slice in place of a reduce-scatter, or choose another collective. It counts the flops of
        elementwise operators differently, and includes those that its fusions compute again.
        """
        # A program that does not fit in memory was not compiled, so that it has no collectives.
        programs = (("compiled", self.compiled), ("xla", self.xla))
        rows = (
            (name, *row)
            for name, program in programs
            if program.out_of_memory is None
            for row in (
                *_flops(self.planned, program),
                *_differences(self.planned.moved, moved(program)),
            )
        )
        return Table(DIFFERENCE_COLUMNS, tuple(rows))

    def parts(self) -> Parts:
        """Return the lines and tables of the printed text.

        They are the target, a line per program that does not fit the memory, the table of figures,
        the differences, and the notes.
        """
        lines = [f"{self.where}: planned, compiled, and the same function partitioned by XLA."]
        programs = (("the lowered program", self.compiled), ("XLA's program", self.xla))
        for name, program in programs:
            if program.out_of_memory is not None:
                message = program.out_of_memory.splitlines()[0][:300]
                lines.append(f"Out of memory: {name}: {message}")
        return (*lines, self.table, "Other than planned:", self.differences, *self.notes)


def beside_compiler(lowered: Lowered, planned: Figures, target: Target) -> BesideCompiler:
    """Compile a plan's program and XLA's partitioning of the same function; compare both.

    The program is lowered without devices.

    Raises:
      LoweringError: see `compile_for`.
    """
    mesh = lowered.program.mesh
    programs = {"ours": lowered.stage, "xla": lowered.jit().stage}
    answers, notes = compile_for(target, programs, mesh)
    where = f"{mesh!r} on {target.topology} by {target.compiler}"
    return BesideCompiler(where, planned, answers["ours"], answers["xla"], tuple(notes))


def moved(compiled: Compiled) -> Moved:
    """Return the collectives of a compiled program by kind and axes."""
    rows = ((c.kind, ",".join(c.axes), c.count, c.wire_bytes) for c in compiled.collectives)
    return summed(rows)


def summed(rows: Iterable[tuple[str, str, int, int | float]]) -> Moved:
    """Sum rows (kind, axes, executions, bytes of each) by kind and axes.

    Groups along two axes are the same in either order.

    >>> summed([("all_gather", "Y,X", 2, 10), ("all_gather", "X,Y", 1, 5)])
    {('all_gather', 'X,Y'): (3, 25)}
    """
    found: dict[tuple[str, str], tuple[int, int | float]] = defaultdict(lambda: (0, 0))
    for kind, axes, count, size in rows:
        along = ",".join(sorted(axes.split(",")))
        times, sent = found[kind, along]
        found[kind, along] = times + count, sent + count * size
    return dict(found)


def _row(name: str, axes: str, *values: object) -> tuple[object, ...]:
    """Return a row of `table`; `values` are the planned, the compiled and XLA's figure."""
    planned, *theirs = values
    return (name, axes, *values, *(_error(planned, other) for other in theirs))


def _error(planned: object, other: object) -> float | None:
    """Return `planned / other - 1`; None if a figure is missing or the other one is 0."""
    if not isinstance(planned, int | float) or not isinstance(other, int | float) or not other:
        return None
    return planned / other - 1


def _flops(planned: Figures, compiled: Compiled) -> Iterator[tuple[object, ...]]:
    """Yield a row of `differences` if the compiler counts other flops than the plan."""
    if compiled.flops is None or abs(planned.flops / compiled.flops - 1) <= MOST_FLOPS:
        return
    # Products have the same flops in both counts, so only the other operators can differ.
    products = planned.product_flops
    others = (flops - products for flops in (planned.flops, compiled.flops))
    cause = "products: {:.4g} flops; other operators: {:.3g} planned, {:.3g} compiled"
    yield "flops", "", planned.flops, compiled.flops, cause.format(products, *others)


def _differences(planned: Moved, compiled: Moved) -> Iterator[tuple[object, ...]]:
    """Yield a row of `differences` per kind and axes whose number or bytes differ."""
    both = (planned, compiled)
    for kind, axes in sorted({*planned, *compiled}):
        (count, sent), (its_count, its) = (m.get((kind, axes), (0, 0)) for m in both)
        near = abs(its - sent) <= SLACK * max(its, sent)
        if near and its_count == count:
            continue
        yield kind, axes, sent, its, _cause(kind, axes, both, near)


def _cause(kind: str, axes: str, both: tuple[Moved, Moved], near: bool) -> str:
    """Return the probable cause of a difference between planned and compiled collectives, as text.

    The cause is guessed from the number of collectives and from the bytes that they send.

    Args:
      kind, axes: the collectives that differ, by kind and mesh axes.
      both: the collectives of the plan, and of the compiled program: (number, bytes) by (kind,
        axes).
      near: whether both send the same bytes, except for the padding of tiles.
    """
    (count, _), (its_count, _) = (m.get((kind, axes), (0, 0)) for m in both)
    if near and its_count < count:
        return f"combined: {count} as {its_count}"
    if kind == "all_gather" and its_count != count:
        verb = "gathered again" if its_count > count else "copy kept"
        return f"{verb}: {its_count} all-gathers, planned {count}"
    # A reduce-scatter that became an all-reduce is one fewer of the first kind and one more of the
    # second. So both differences are needed.
    fewer = []
    for name in _REDUCES:
        (ours, sent), (theirs, its) = (m.get((name, axes), (0, 0)) for m in both)
        fewer.append((ours - theirs, sent - its))
    (scatters, parts), (reduces, whole) = fewer
    # If other all-reduces were combined, their number is no evidence. The bytes are: an all-reduce
    # sends twice the bytes of the reduce-scatter that it replaces.
    # `parts` bytes are missing then, and twice as many are sent in addition (`whole` is negative):
    # the sum of both is 0, within the share `SLACK` of the all-reduced bytes.
    is_whole = reduces < 0 or abs(whole + 2 * parts) <= -SLACK * whole
    if kind in _REDUCES and scatters > 0 and is_whole:
        return f"all-reduced and then sliced: {scatters} reduce-scatters"
    return f"{its_count} collectives, planned {count}" if its_count != count else "padded"
