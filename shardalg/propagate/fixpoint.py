"""Sweeps forward and backward until nothing refines, level by level.

A step is visited again only when a layout of its tensors changed (a byte per step and direction;
`bytearray.find` walks to the next due one), in the order of full sweeps, since order decides
conflicts. Equal (kind, layouts) are decided once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress

from shardalg.propagate import priority
from shardalg.propagate.index import Index
from shardalg.propagate.kinds import Dims, Kind
from shardalg.propagate.layouts import Layouts, extends
from shardalg.propagate.priority import BACKWARD, FORWARD
from shardalg.propagate.step import Numbers, Outcome, step, wishes

Memo = dict[Numbers, Outcome | None]
LONGEST_CHAIN = 20
"""Steps that look-ahead follows a chain of single readers."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value's new layout, and the step that gave it."""

    value: int
    number: int
    step: int
    direction: str
    sources: Numbers
    level: int


@dataclass(eq=False)
class Fixpoint:
    """State of one completion: a layout number per value, and which steps are due."""

    index: Index
    layouts: Layouts
    numbers: list[int]
    priorities: bool = True
    trail: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        steps, values = len(self.index.kinds), len(self.numbers)
        self.level = 0
        self.merging = False
        self.due_steps = bytearray(steps)
        self.due_places = bytearray(values)
        self.retry_steps = bytearray(steps)
        self.retry_places = bytearray(values)
        self.memos: dict[tuple[str, bool], dict[Kind, Memo]] = {
            (d, m): {} for d in (FORWARD, BACKWARD) for m in (False, True)
        }
        self._prepare()

    def _prepare(self) -> None:
        """Who becomes due when a value changes: the steps that touch it, and the open operands of those."""
        levels = {kind: self._levels(kind) for kind in dict.fromkeys(self.index.kinds)}
        self.first_forward = bytearray(levels[kind][0] for kind in self.index.kinds)
        self.first_backward = bytearray(levels[kind][1] for kind in self.index.kinds)
        layouts = self.layouts
        self.closed = [layouts.fixed[n] and not layouts.open[n] for n in self.numbers]

    def _levels(self, kind: Kind) -> tuple[int, int]:
        if not self.priorities:
            return priority.MERGING_LEVEL, priority.MERGING_LEVEL
        return priority.level(kind.role, FORWARD), priority.level(kind.role, BACKWARD)

    def run(self) -> None:
        """All levels, each to its fixed point."""
        for level in range(priority.LAST_LEVEL + 1):
            self._enter(level)
            while self._forward_sweep() | self._backward_sweep():
                pass

    def _enter(self, level: int) -> None:
        """Make due what begins to act at this level, and what merging may now change."""
        self.level, self.merging = level, level >= priority.MERGING_LEVEL
        index = self.index
        self.forward_memo = self._tables(FORWARD)
        self.backward_memo = self._tables(BACKWARD)
        starts = bytes(n == level for n in range(256))
        begin = self.first_forward.translate(starts)
        turn = self.first_backward.translate(starts)
        if level == priority.MERGING_LEVEL:
            begin = bytes(map(max, begin, self.retry_steps))
        self.due_steps[:] = bytes(map(max, self.due_steps, begin))
        for position in compress(range(len(turn)), turn):
            kind, tensors = index.kinds[position], index.tensors[position]
            for value in tensors[: kind.num_operands]:
                self._mark_place(value)
        if level == priority.MERGING_LEVEL:
            self.due_places[:] = bytes(map(max, self.due_places, self.retry_places))

    def _tables(self, direction: str) -> list[Memo]:
        memos = self.memos[direction, self.merging]
        for kind in dict.fromkeys(self.index.kinds):
            memos.setdefault(kind, {})
        return [memos[kind] for kind in self.index.kinds]

    def _mark_place(self, value: int) -> None:
        if not self.closed[value]:
            self.due_places[self.index.place[value]] = 1

    def _outcome(self, position: int, direction: str) -> Outcome | None:
        """The step's outcome on the present layouts, looked up."""
        table = (self.forward_memo if direction == FORWARD else self.backward_memo)[position]
        numbers = self.index.pick[position](self.numbers)
        if numbers not in table:
            table[numbers] = step(
                self.index.kinds[position],
                numbers,
                self.layouts,
                direction=direction,
                merging=self.merging,
            )
        return table[numbers]

    def _forward_sweep(self) -> bool:
        due, first, changed = self.due_steps, self.first_forward, False
        position = due.find(1)
        while position >= 0:
            due[position] = 0
            if first[position] <= self.level:
                outcome = self._outcome(position, FORWARD)
                if outcome is not None:
                    changed |= self._write_results(position, outcome)
            position = due.find(1, position + 1)
        return changed

    def _write_results(self, position: int, outcome: Outcome) -> bool:
        self.retry_steps[position] = outcome.retry
        if outcome.other is not None:
            outcome = self._looked_ahead(position, outcome)
        kind, tensors = self.index.kinds[position], self.index.tensors[position]
        for k in outcome.changed:
            value = tensors[kind.num_operands + k]
            self._write(
                Change(value, outcome.layouts[k], position, FORWARD, outcome.sources[k], self.level)
            )
        return bool(outcome.changed)

    def _write(self, change: Change) -> None:
        self.numbers[change.value] = change.number
        self.trail.append(change)
        index, due, places = self.index, self.due_steps, self.due_places
        for position in index.touching[change.value]:
            due[position] = 1
            if self.first_backward[position] <= self.level:
                for value in index.tensors[position][: index.kinds[position].num_operands]:
                    if not self.closed[value]:
                        places[index.place[value]] = 1

    def _backward_sweep(self) -> bool:
        due, order, changed = self.due_places, self.index.order, False
        place = due.rfind(1)
        while place >= 0:
            due[place] = 0
            changed |= self._visit_value(order[place], place)
            place = due.rfind(1, 0, place)
        return changed

    def _visit_value(self, value: int, place: int) -> bool:
        """Offer a value what each of its readers wants, in program order."""
        changed, retry = False, 0
        for position, k in self.index.readers[value]:
            if self.first_backward[position] > self.level:
                continue
            outcome = self._outcome(position, BACKWARD)
            if outcome is None:
                continue
            retry |= outcome.retry
            if k in outcome.changed:
                self._write(
                    Change(
                        value,
                        outcome.layouts[k],
                        position,
                        BACKWARD,
                        outcome.sources[k],
                        self.level,
                    )
                )
                changed = True
        self.retry_places[place] = retry
        return changed

    def _looked_ahead(self, position: int, outcome: Outcome) -> Outcome:
        """The order of two operands after which the result is what later nodes want, if that tells them apart."""
        (value,) = self.index.tensors[position][self.index.kinds[position].num_operands :]
        ahead = self._ahead(value)
        if ahead is None:
            return outcome
        fits = [extends(ahead, dims) for dims in outcome.wanted]
        return outcome.other if fits == [False, True] else outcome

    def _ahead(self, value: int) -> Dims | None:
        """What a chain of single readers that ends in a partitioned value would want for `value`."""
        chain = self._chain(value)
        if chain is None:
            return None
        layouts, index = self.layouts, self.index
        dims = layouts.dims[self.numbers[index.tensors[chain[-1][0]][-1]]]
        for position, k in reversed(chain):
            numbers = list(index.pick[position](self.numbers))
            numbers[-1] = layouts.number(layouts.shapes[numbers[-1]], dims)
            wished = wishes(index.kinds[position], tuple(numbers), layouts, k)
            if not wished:
                return None
            dims = wished[0][0]
        return dims

    def _chain(self, value: int) -> list[tuple[int, int]] | None:
        """(step, operand position) from a value to the first partitioned one, each the only reader; None where there is none."""
        chain: list[tuple[int, int]] = []
        while len(chain) < LONGEST_CHAIN:
            readers = self.index.readers[value]
            position, k = readers[0] if readers else (-1, 0)
            if not readers or any(p != position for p, _ in readers):
                return None
            kind = self.index.kinds[position]
            border = (
                kind.role in (priority.LOOP, priority.STACK)
                and self.index.nodes[position] is not None
            )
            if border or len(kind.results) != 1:
                return None
            chain.append((position, k))
            value = self.index.tensors[position][-1]
            number = self.numbers[value]
            if self.layouts.tiles[number] > 1:
                return chain
            if self.layouts.fixed[number]:
                return None
        return None
