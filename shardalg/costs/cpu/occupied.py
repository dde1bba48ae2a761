"""What is in memory while a program runs on a CPU device, breadth first."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from shardalg.costs.analyses.donation import reused
from shardalg.costs.cpu.sent_as_one import combined
from shardalg.costs.cpu.written_out import (
    APART,
    FUSED,
    REDUCTION,
    VIEW,
    WRITTEN,
    Operation,
    WrittenOut,
)
from shardalg.costs.memory import Alive, Liveness, described
from shardalg.costs.occupancy import NOTHING, Held
from shardalg.costs.walk import local_bytes
from shardalg.graph.ir import Graph
from shardalg.spmd.instruction import Block, Instruction
from shardalg.spmd.instructions import Control, Loop
from shardalg.spmd.program import SpmdProgram


def cpu_liveness(
    program: SpmdProgram, graph: Graph, *, roles: Sequence[str] = (), donated: Sequence[int] = ()
) -> Liveness:
    """`costs.memory.liveness`, by the rules of XLA's CPU compiler.

    Arguments are in memory to the end, donated ones too, whose place results of their type take.
    """
    written = WrittenOut(program, graph)
    block = program.block
    start = [*block.arguments, *(local for local, _ in program.constants)]
    held = {v: written.held[v] for v in start}
    pairs = reused(program, donated)
    taken = dict.fromkeys(pairs, NOTHING)
    peak = _Memory(written, block, held, taken).peak
    rows = [_row(written, v, h, described(program, graph, roles)) for v, h in peak.alive]
    return Liveness(
        peak.bytes,
        peak.instruction,
        tuple(sorted(rows, key=lambda row: (-row.bytes, row.local))),
        local_bytes(program, block.arguments),
        local_bytes(program, block.results),
        reused=tuple(pairs.values()),
        reused_bytes=local_bytes(program, pairs.values()),
    )


def _row(written: WrittenOut, value: int, held: Held, row: Callable[[int, Held], Alive]) -> Alive:
    """A value that is held; a copy by the name of what it is a copy of."""
    if value < len(written.program.locals):
        return row(value, held)
    of = row(held.of[0], held)
    return replace(of, memory_class="transients", name=f"copy of {of.name}")


@dataclass(frozen=True)
class Peak:
    """The most bytes at once, with which instruction, and the values that have them."""

    bytes: int = 0
    instruction: Instruction | None = None
    alive: tuple[tuple[int, Held], ...] = ()


@dataclass(frozen=True)
class _Step:
    """An operation that writes memory.

    Attributes:
      reads: values in memory, through what is fused; makes: those that it writes.
    """

    operation: Operation
    reads: tuple[int, ...]
    makes: tuple[int, ...]


@dataclass
class _Memory:
    """A block, with what it starts with, and results that take another value's place."""

    written: WrittenOut
    block: Block
    start: Mapping[int, Held]
    taken: Mapping[int, Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        operations, self.results = self.written.block(self.block)
        self.operations = combined(operations)

    @cached_property
    def maker(self) -> dict[int, Operation]:
        """The operation that makes a value."""
        return {v: one for one in self.operations for v in one.makes}

    @cached_property
    def readers(self) -> dict[int, list[Operation]]:
        """What reads a value, or another shape of it."""
        found: dict[int, list[Operation]] = defaultdict(list)
        for one in reversed(self.operations):
            behind = found[one.makes[0]] if one.kind == VIEW else [one]
            for value in dict.fromkeys(one.reads):
                found[value] = [*behind, *found[value]]
        return found

    @cached_property
    def handed_on(self) -> frozenset[int]:
        """Results, and what they are other shapes of."""
        found = {*self.results}
        for one in reversed(self.operations):
            if one.kind == VIEW and one.makes[0] in found:
                found.update(one.reads)
        return frozenset(found)

    @cached_property
    def in_memory(self) -> frozenset[int]:
        """Values that are written."""
        return frozenset(
            value
            for one in self.operations
            if one.kind != VIEW
            for value in one.makes
            if one.kind != FUSED or self._is_written(one, value)
        )

    def _is_written(self, one: Operation, value: int) -> bool:
        """Whether the result of what fuses is written all the same."""
        readers = self.readers[value]
        if value in self.handed_on or any(reader.kind == APART for reader in readers):
            return True
        return len(readers) > 1 and (one.slow or any(map(self._is_reduced, readers)))

    def _is_reduced(self, reader: Operation) -> bool:
        """Whether it is a reduction, or computes what reductions alone read."""
        if reader.kind == REDUCTION:
            return True
        behind = self.readers[reader.makes[0]] if reader.kind == FUSED else []
        return bool(behind) and all(other.kind == REDUCTION for other in behind)

    @cached_property
    def sources(self) -> dict[int, tuple[int, ...]]:
        """Values in memory that a value is computed of by what fuses; itself where it is there."""
        return self._sources(self.in_memory)

    @cached_property
    def repeated(self) -> dict[int, tuple[int, ...]]:
        """The same where what is cheap is computed again, although others read it in memory."""
        cheap = {
            v for one in self.operations if one.kind == FUSED and not one.slow for v in one.makes
        }
        return self._sources(self.in_memory - cheap)

    def _sources(self, there: Collection[int]) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for one in self.operations:
            of = self._through(one.reads, found)
            found.update({v: (v,) if v in there else of for v in one.makes})
        return found

    @staticmethod
    def _through(values: Sequence[int], sources: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(s for v in values for s in sources.get(v, (v,))))

    @cached_property
    def steps(self) -> list[_Step]:
        """What writes memory, breadth first: queued once all that it reads is there."""
        found = []
        for one in self.operations:
            makes = tuple(v for v in one.makes if v in self.in_memory)
            if makes:
                sources = self.repeated if one.kind in (FUSED, WRITTEN) else self.sources
                found.append(_Step(one, self._through(one.reads, sources), makes))
        maker = {v: place for place, step in enumerate(found) for v in step.makes}
        left = [{maker[v] for v in step.reads if v in maker} for step in found]
        users: dict[int, list[int]] = defaultdict(list)
        for place, before in enumerate(left):
            for other in before:
                users[other].append(place)
        waiting, order = deque(place for place, before in enumerate(left) if not before), []
        while waiting:
            order.append(place := waiting.popleft())
            for user in users[place]:
                left[user].discard(place)
                if not left[user]:
                    waiting.append(user)
        return [found[place] for place in order]

    @cached_property
    def kept(self) -> frozenset[int]:
        """What is in memory to the end."""
        return frozenset(self.start) | {*self._through(self.results, self.sources)}

    @cached_property
    def peak(self) -> Peak:
        """The most bytes at once."""
        alive, total = dict(self.start), sum(held.bytes for held in self.start.values())
        most, ends = Peak(total, None, tuple(alive.items())), self._ends()
        for step in self.steps:
            dying = [v for v in ends.get(id(step), ()) if v in alive]
            for value in self._written_over(step, dying, alive):
                dying.remove(value)
                total -= alive.pop(value).bytes
            for value in step.makes:
                alive[value] = self.taken.get(value, self.written.held[value])
                total += alive[value].bytes
            inner = self._inside(step.operation)
            if total + inner.bytes > most.bytes:
                now = (*alive.items(), *inner.alive)
                most = Peak(total + inner.bytes, step.operation.instruction, now)
            unread = (v for v in step.makes if v not in self._read and v not in self.kept)
            for value in (*dying, *unread):
                total -= alive.pop(value).bytes
        return most

    @cached_property
    def _read(self) -> frozenset[int]:
        return frozenset(v for step in self.steps for v in step.reads)

    def _ends(self) -> dict[int, list[int]]:
        """Per step, by `id`, the values that it is the last to read."""
        last = {v: id(step) for step in self.steps for v in step.reads}
        found: dict[int, list[int]] = defaultdict(list)
        for value, step in last.items():
            if value not in self.kept:
                found[step].append(value)
        return found

    def _written_over(
        self, step: _Step, dying: Collection[int], alive: Mapping[int, Held]
    ) -> list[int]:
        """Dying values whose memory results take over: of what fuses, and the carry of loops."""
        one, found = step.operation, []
        if not (one.in_place or isinstance(one.instruction.attributes, Control)):
            return []
        for made in step.makes:
            size = self.written.held[made].bytes
            fit = (v for v in dying if v not in found and alive[v].bytes == size)
            found += [v for v in (next(fit, None),) if v is not None]
        return found

    def _inside(self, one: Operation) -> Peak:
        """The largest of the blocks that an operation holds, beyond what is held around it."""
        control = one.instruction.attributes
        if not isinstance(control, Control):
            return Peak()
        peaks = [self._body(body, control) for body in control.bodies]
        return max(peaks, key=lambda peak: peak.bytes, default=Peak())

    def _body(self, body: Block, control: Control) -> Peak:
        """Arguments are those around it, but for the slices that a loop takes."""
        outside = len(body.arguments)
        if type(control) is Loop:
            outside = control.num_consts + control.num_carry
        held = self.written.held
        start = {v: NOTHING if k < outside else held[v] for k, v in enumerate(body.arguments)}
        return _Memory(self.written, body, start).peak
