"""The operators of the program before partitioning, and the tensors that they compute.

Each computing operator is an entry of a table: its opcode, attributes and operands, and a base for
its result. Equal operators share an entry, because the partitioner merges equal instructions.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.hlo_attributes import groups_of, signature
from shardalg.xla.audit.operators.operator_loops import COMMUTATIVE, OperatorLoops, loops_of
from shardalg.xla.audit.values.element_views import Known, Pending, Value, View, placed
from shardalg.xla.audit.values.manual_regions import stacked
from shardalg.xla.audit.values.per_device import ArrayPool, Content, PerDevice

Indices = dict[int, PerDevice | int]
"""Per loop, the indices on each device; a number of iterations if nothing varies along it."""


@dataclass(frozen=True)
class Entry:
    """An operator of the program before partitioning.

    Attributes:
      base: number of the base of its first result; the others follow.
      classes: in a manual region, the part of the base that each device has; else None.
    """

    instruction: HloInstruction
    operands: tuple[Value, ...]
    base: int
    loops: OperatorLoops
    classes: PerDevice | None = None

    @cached_property
    def extents(self) -> dict[int, tuple[int, bool]]:
        """The size of each loop, and whether the elements vary along it."""
        found: dict[int, tuple[int, bool]] = {}
        for x, dims in zip(self.operands, self.loops.operands, strict=True):
            for dim, loop in enumerate(dims):
                size, varies = found.get(loop, (x.shape[dim], False))
                found[loop] = (size, varies or x.varies(dim))
        for leaf, dims in zip(self.instruction.leaves, self.loops.results, strict=True):
            for dim, loop in enumerate(dims):
                is_window = any(loop == output for _, _, output in self.loops.windows)
                found.setdefault(loop, (leaf[1][dim], is_window))
        return found


@dataclass(frozen=True)
class Base:
    """A tensor whose elements views name: its shape, item type and the text for messages."""

    shape: tuple[int, ...]
    dtype: str
    text: str


@dataclass(eq=False)
class OperatorTable:
    """The bases and operators of the program before partitioning."""

    pool: ArrayPool
    bases: list[Base] = field(default_factory=list)
    entries: dict[Hashable, list[Entry]] = field(default_factory=dict)
    alike: dict[Hashable, list[Entry]] = field(default_factory=dict)

    def new_base(self, shape: Sequence[int], dtype: str, text: str) -> int:
        """Return the number of a new base."""
        self.bases.append(Base(tuple(shape), dtype, text))
        return len(self.bases) - 1

    def entry_of(self, base: int) -> Entry | None:
        """Return the operator that computes a base as its first result, or None."""
        every = (entry for found in self.entries.values() for entry in found)
        return next((entry for entry in every if entry.base == base), None)

    def words(self, content: Content) -> str:
        """Return the content of a place for messages.

        An element is named by its index per dimension, and by the operator that computes it.
        """
        if isinstance(content, str):
            return content
        base, element = self.bases[content[0]], content[1]
        inside = element < math.prod(base.shape)
        index = list(map(int, np.unravel_index(element, base.shape))) if inside else element
        return f"{index} of {base.text}" if base.shape else base.text

    def record(
        self, module: HloModule, instruction: HloInstruction, operands: Sequence[Value]
    ) -> tuple[View, ...]:
        """Return the results of an operator before partitioning, and keep the operator.

        The partitioner merges equal operators, so equal ones share their bases.
        """
        operands = ordered(instruction, operands)
        key = operator_key(module, instruction, operands, self.pool.devices, exact=True)
        found = self.entries.setdefault(key, [])
        shapes = tuple(shape for _, shape in instruction.leaves)
        for entry in found:
            if tuple(s for _, s in entry.instruction.leaves) == shapes and all(
                map(identical, entry.operands, operands)
            ):
                return self.results(entry, self._own_places(entry), None)
        first = len(self.bases)
        for dtype, shape in instruction.leaves:
            self.new_base(shape, dtype, f"{instruction.opcode} {instruction.name}")
        loops = loops_of(instruction, [x.shape for x in operands])
        classes = self.classes_of(instruction, operands)
        entry = Entry(instruction, tuple(operands), first, loops, classes)
        found.append(entry)
        self.alike.setdefault(
            operator_key(module, instruction, operands, self.pool.devices, exact=False), []
        ).append(entry)
        return self.results(entry, self._own_places(entry), None)

    def classes_of(
        self, instruction: HloInstruction, operands: Sequence[Value]
    ) -> PerDevice | None:
        """Return the class of devices with equal operands, or None if all are equal."""
        parts = [x.cells if isinstance(x, Known) else x.shift for x in operands]
        if all(part.is_equal for part in parts):
            return None
        _, classes = self.pool.joined(parts)
        if instruction.opcode == "all-reduce":
            # All members of a group have the result of the values of the group.
            groups = groups_of(instruction, self.pool.devices)
            _, numbers = np.unique(classes[groups], axis=0, return_inverse=True)
            classes = np.zeros(self.pool.devices, np.int64)
            classes[groups] = numbers.reshape(-1, 1)
        return self.pool.made(*np.unique(classes, return_inverse=True))

    def _own_places(self, entry: Entry) -> Indices:
        """Return the indices of an operator's own loops: all of them, in order."""
        places: Indices = {}
        for loop, (size, varies) in entry.extents.items():
            places[loop] = self.pool.same(np.arange(size)) if varies else size
        return places

    def results(self, entry: Entry, places: Indices, pending: Pending | None) -> tuple[View, ...]:
        """Return the views of an entry's results at indices per loop."""
        found = []
        for number, dims in enumerate(entry.loops.results):
            base = entry.base + number
            shape = self.bases[base].shape
            at = []
            for loop in dims:
                place = places[loop]
                if not isinstance(place, int):
                    at.append(place)
                elif loop in entry.loops.whole:
                    at.append(self.pool.same(np.arange(place)))
                else:
                    at.append(self.pool.same(np.zeros(place, np.int64)))
            shift = stacked(self.pool, entry.classes, shape)
            like = View(base, shift, (), None, pending)
            found.append(placed(self.pool, like, at, shape))
        return tuple(found)

    def similar(
        self, module: HloModule, instruction: HloInstruction, operands: list[Value]
    ) -> Iterator[tuple[Entry, list[Value]]]:
        """Yield the operators that may be an instruction's, each with the operands in its order."""
        for exact in (True, False):
            key = operator_key(module, instruction, operands, self.pool.devices, exact=exact)
            for entry in (self.entries if exact else self.alike).get(key, ()):
                orders = [operands]
                if instruction.opcode in COMMUTATIVE and len(operands) == 2:
                    orders.append(operands[::-1])
                for given in orders:
                    if list(map(type, given)) == list(map(type, entry.operands)):
                        yield entry, given


def identical(first: Value, second: Value) -> bool:
    """Return whether two values are the same elements or numbers at the same places."""
    if isinstance(first, Known) or isinstance(second, Known):
        return first == second
    return first.same_places(second)


def ordered(instruction: HloInstruction, operands: Sequence[Value]) -> list[Value]:
    """Return the operands in an order that does not depend on how an operator is written."""
    if instruction.opcode not in COMMUTATIVE:
        return list(operands)
    return sorted(operands, key=lambda x: x.base if isinstance(x, View) else -1)


def operator_key(
    module: HloModule,
    instruction: HloInstruction,
    operands: Iterable[Value],
    devices: int,
    *,
    exact: bool,
) -> Hashable:
    """Return the key of an operator: opcode, attributes and bases.

    Args:
      exact: whether the number of a known operand is a part of the key.
    """
    marks: list[Hashable] = []
    for x in operands:
        if isinstance(x, View):
            marks.append(x.base)
        else:
            marks.append(("known", repr(x.number) if exact else ""))
    types = tuple(dtype for dtype, _ in instruction.leaves)
    if instruction.opcode == "all-reduce":
        groups = groups_of(instruction, devices)
        marks.append(tuple(sorted(tuple(sorted(group)) for group in groups.tolist())))
    if instruction.opcode in ("dynamic-slice", "dynamic-update-slice"):
        marks = _without_full_starts(instruction, list(operands), marks)
    return instruction.opcode, types, signature(module, instruction), tuple(marks)


def _without_full_starts(
    instruction: HloInstruction, operands: Sequence[Value], marks: list[Hashable]
) -> list[Hashable]:
    """Return the marks without the starts of dimensions that are taken whole."""
    moved = operands[0].shape
    part = instruction.leaves[0][1] if instruction.opcode == "dynamic-slice" else operands[1].shape
    first = len(operands) - len(moved)
    return [
        "whole" if k >= first and moved[k - first] == part[k - first] else mark
        for k, mark in enumerate(marks)
    ]
