"""The collectives that XLA makes: read from its dump right after SPMD partitioning.

The CPU backend never makes a reduce-scatter, it all-reduces and slices; what a TPU or GPU would
rewrite is marked `sliced_by` and priced as the reduce-scatter that it stands for.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import step_wire_bytes
from shardalg.errors import NotationError
from shardalg.lower.xla_dump.hlo_text import (
    HloInstruction,
    HloModule,
    Told,
    group_axes,
    leaves_bytes,
    moved_axes,
    parse,
    parse_groups,
    walk,
)
from shardalg.tables import Table

_KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "ragged-all-to-all": "ragged_all_to_all",
}
_BEFORE = re.compile(r"before_(tpu-)?spmd-partitioning")
_AFTER = re.compile(r"after_(tpu-)?spmd-partitioning")
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_THROUGH = ("reshape", "bitcast", "copy", "transpose", "convert")


@dataclass(frozen=True)
class HloCollective:
    """One collective of a compiled module; bytes are per device and execution.

    Attributes:
      axes: mesh axes or sub-axes along which its groups run; ("?",) if they run along none.
      count: executions per step, loops included; a lower bound unless `exact`.
      wire_bytes: what a device sends on a ring; for a sliced all-reduce, see `sliced_wire_bytes`.
      sliced_by: the smallest factor by which every user slices the result; None: not sliced.
      op_name: JAX's name stack of the operation that it came from.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    operand_bytes: int
    result_bytes: int
    wire_bytes: int | float
    count: int
    exact: bool
    sliced_by: float | None
    op_name: str

    @property
    def is_scattered(self) -> bool:
        """True for an all-reduce of which only a block is read: a reduce-scatter in effect."""
        return self.sliced_by is not None and self.sliced_by >= self.group_size


def collectives(
    text: str, mesh: Mesh, *, is_final: bool = False, told: Told = lambda loop: None
) -> tuple[HloCollective, ...]:
    """Return the collectives of HLO text, in order; groups of one device are left out.

    Args:
      mesh: names the axes; partition ids are its positions.
      told: returns the trip count of a `while` instruction if the caller knows it, else None.
      is_final: the text is the final HLO. Its all-reduces with sliced results are counted whole,
        because no later pass turns them into reduce-scatters.
    """
    module = parse(text)
    # A TPU's reduce-scatter is a fusion `%all-reduce-scatter*` around an all-reduce. Its result
    # bytes are kept under the name of the fused computation.
    fusions = (i for c in module.computations.values() for i in c.values() if i.opcode == "fusion")
    called = ((i, i.attributes.get("calls", "").lstrip("%")) for i in fusions)
    fused = {name: i.bytes for i, name in called if "all-reduce-scatter" in name + i.name}
    found = []
    for instruction, count, exact in walk(module, told):
        kind = _KINDS.get(instruction.opcode.removesuffix("-start"))
        if kind is not None:
            one = _record(module, instruction, kind, mesh, fused)
            one = replace(one, count=count, exact=exact)
            if not is_final:
                one = _with_slices(module, instruction, one)
            found.append(one)
    return tuple(c for c in found if c.group_size > 1)


def _record(
    module: HloModule, instruction: HloInstruction, kind: str, mesh: Mesh, fused: dict[str, int]
) -> HloCollective:
    """Return the record of a collective that is executed once: kind, axes, bytes.

    Args:
      kind: "all_gather", "all_reduce", ..., from the instruction's opcode.
      fused: result bytes of each fusion that a TPU runs as one reduce-scatter, by computation.
    """
    # Types of the arrays that the collective reads and returns; a tuple has several.
    defined = module.computations[instruction.computation]
    operands = tuple(
        leaf for name in instruction.operands if name in defined for leaf in defined[name].leaves
    )
    results = instruction.leaves
    if instruction.opcode.endswith("-start") and len(results) > len(operands):
        # A start returns (operands, results, contexts), of which only the results are received.
        results = results[len(operands) : 2 * len(operands)]
    sent, received = leaves_bytes(operands), leaves_bytes(results)
    if kind == "all_reduce" and instruction.computation in fused:  # how a TPU reduce-scatters
        kind, received = "reduce_scatter", fused[instruction.computation]
    axes, size = _groups(instruction, kind, mesh)
    # Bytes that a device sends, by the same formulas as for planned collectives.
    wire = _plain(step_wire_bytes(kind, group_size=size, local_bytes=sent))
    return HloCollective(
        kind=kind,
        axes=axes,
        group_size=size,
        operand_bytes=sent,
        result_bytes=received,
        wire_bytes=wire,
        count=1,
        exact=True,
        sliced_by=None,
        op_name=instruction.op_name,
    )


def _plain(exact: Any) -> int | float:
    """Return an exact number of bytes as an int, or as a float if it is a fraction."""
    return int(exact) if exact == int(exact) else float(exact)


def _groups(instruction: HloInstruction, kind: str, mesh: Mesh) -> tuple[tuple[str, ...], int]:
    """Return the mesh axes of a collective's groups, and the number of devices in a group.

    The axes are ("?",) if the groups are not along axes. A permute has pairs in place of groups:
    they count as groups of 2 devices, or of 1 device if nothing moves.
    """
    attributes = instruction.attributes
    if kind == "collective_permute":
        # The text has the form {{0,1},{1,0}}: (sender, receiver).
        text = attributes.get("source_target_pairs", "")
        pairs = [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", text)]
        moved = moved_axes(pairs, mesh)
        return moved, 2 if moved else 1
    groups = parse_groups(attributes.get("replica_groups", ""), mesh.size)
    axes = group_axes(groups, mesh)
    return ("?",) if axes is None else axes, len(groups[0])


def _with_slices(
    module: HloModule, instruction: HloInstruction, record: HloCollective
) -> HloCollective:
    """Return the record with fewer bytes if it is an all-reduce of which only slices are read."""
    factor = _slice_factor(module, instruction) if record.kind == "all_reduce" else None
    if factor is None:
        return record
    wire = sliced_wire_bytes(record.operand_bytes, record.group_size, factor)
    return replace(record, sliced_by=factor, wire_bytes=wire)


def sliced_wire_bytes(operand_bytes: int, group_size: int, sliced_by: float) -> int | float:
    """Return the bytes that a device sends for an all-reduce of which every user reads a slice.

    The value has n bytes on g devices, and each device reads 1/k of it. The cheapest way is a
    reduce-scatter over k devices, `n (k-1)/k`, and an all-reduce of the slices over the other g/k,
    `2 n/k (g/k - 1)/(g/k)`.

    >>> sliced_wire_bytes(64, 4, 4.0), sliced_wire_bytes(64, 4, 2.0)
    (48, 64)
    """
    k = Fraction(min(sliced_by, group_size)).limit_denominator()
    rest = group_size / k
    return _plain(operand_bytes * (k - 1) / k + 2 * operand_bytes / k * (rest - 1) / rest)


def _slice_factor(module: HloModule, instruction: HloInstruction) -> float | None:
    """Return the smallest factor by which every user slices a result; None if one does not.

    For example, an all-reduce whose only reader slices out a quarter -> 4.0: a reduce-scatter would
    send less. A slice may follow operators such as a reshape.
    """
    # The instructions that read each value of the computation.
    users: dict[str, list[HloInstruction]] = defaultdict(list)
    for other in module.computations[instruction.computation].values():
        for operand in other.operands:
            users[operand].append(other)
    factors = []
    for user in users[instruction.name]:
        # A reshape or copy with one reader passes the value on unchanged.
        while user.opcode in _THROUGH and len(users[user.name]) == 1:
            user = users[user.name][0]
        # A user that does not slice reads everything: its factor is 1.
        is_slice = user.opcode == "dynamic-slice"
        factors.append(instruction.bytes / max(1, user.bytes) if is_slice else 1.0)
    # The user that reads most decides: the bytes that any user reads must be reduced.
    return min(factors) if factors and min(factors) > 1 else None


def layout(text: str, shape: Sequence[int], mesh: Mesh) -> Sharding | None:
    """Return the `Sharding` that a text of XLA describes; None if axes of the mesh cannot.

    The mesh's positions are XLA's partition ids, also if the mesh has an order of its devices.

    >>> layout("{devices=[2,4]<=[8]}", (8, 8), Mesh({"x": 2, "y": 4})).text()
    '[x, y]'
    """
    numbered = mesh if mesh.device_ids is None else Mesh(mesh.axes)
    try:
        read = Sharding.from_hlo(text, shape, numbered)
    except NotationError:
        # GSPMD reverses the order of devices for a reversed value; axes have only one order.
        return None
    return replace(read, mesh=mesh) if read.mesh == numbered else None


@dataclass(frozen=True)
class Dump:
    """XLA's program before and after SPMD partitioning, as text; None if no partitioner ran."""

    before: str | None
    after: str | None


class Dumping:
    """A temporary folder for XLA's dumps, deleted on exit.

    Attributes:
      folder: the temporary folder; options: the compiler options that dump into the folder.

    Args:
      is_run: whether the compiled program will run; if not, XLA skips optimisation after
        partitioning, which saves time.
    """

    def __init__(self, *, is_run: bool = True) -> None:
        self._more = {} if is_run else _QUICK

    def __enter__(self) -> Dumping:
        """Create the folder of the dump, and set the compiler options that write into it."""
        self._temporary = tempfile.TemporaryDirectory(prefix="shardalg-hlo-")
        self.folder = Path(self._temporary.name)
        flags = {"xla_dump_to": str(self.folder), "xla_dump_hlo_pass_re": "spmd"}
        self.options: dict[str, str | int | bool] = flags | self._more
        # Without it, XLA prints tables of offsets as {...}.
        self.options["xla_dump_large_constants"] = True
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def read(self) -> Dump:
        """Return the dumped texts."""
        return Dump(self._largest(_BEFORE), self._largest(_AFTER))

    def _largest(self, name: re.Pattern[str]) -> str | None:
        texts = [p.read_text() for p in sorted(self.folder.iterdir()) if name.search(p.name)]
        return max(texts, key=len, default=None)


def compile_with_collectives(stage: Any, mesh: Mesh) -> tuple[Any, tuple[HloCollective, ...]]:
    """Compile a lowered JAX program and read its collectives as SPMD partitioning left them.

    Args:
      stage: `jax.jit(f).lower(...)`.

    Returns:
      The compiled program, and its collectives. If no partitioner ran, they are those of the final
      HLO.
    """
    # XLA writes the program after partitioning to a file, because later passes change collectives.
    with Dumping() as dumping:
        compiled = stage.compile(compiler_options=dumping.options)
        text = dumping.read().after
    return compiled, collectives(text or compiled.as_text(), mesh)


def total_wire_bytes(records: Iterable[HloCollective]) -> int | float:
    """Return the bytes that a device sends in one step."""
    return sum(record.wire_bytes * record.count for record in records)


def table(records: Iterable[HloCollective]) -> Table:
    """Return a table with a row per collective of a compiled program.

    It has those columns of `plan.collectives()` that HLO has values for. Bytes are those of one
    execution, except in the column "wire_bytes_per_step".
    """
    rows = [
        (
            r.kind, ", ".join(r.axes), r.group_size, r.count, r.operand_bytes, r.result_bytes,
            r.wire_bytes, r.count * r.wire_bytes, r.sliced_by, r.op_name,
        )
        for r in records
    ]  # fmt: skip
    columns = (
        "kind", "mesh_axes", "group_size", "executions", "operand_bytes", "result_bytes",
        "wire_bytes", "wire_bytes_per_step", "sliced_by", "op",
    )  # fmt: skip
    return Table(columns, tuple(rows))
