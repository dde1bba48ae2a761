"""Sweeps forward and backward until nothing refines, level by level.

A step is visited again only when a layout of its tensors changed, in the order of full sweeps,
since order decides conflicts: a byte per step and per value says what is due, and
`bytearray.find` walks to the next one. Equal (kind, layouts) are decided once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.image import BACKWARD, FORWARD
from shardalg.planner.propagate.gspmd.index import Span, SweepIndex
from shardalg.planner.propagate.gspmd.step import Numbers, StepOutcome, asks, settled, step, wishes
from shardalg.planner.propagate.layouts import Layouts, extends
from shardalg.planner.propagate.operator_classes import Dims, OperatorClass

Memo = dict[Numbers, StepOutcome | None]
LONGEST_CHAIN = 20
"""Steps that look-ahead follows a chain of single readers."""


class ShardingChange(NamedTuple):
    """A value's new layout, and the step that gave it; None where its annotation did.

    None too where the value is in a tuple with another, whose layout it has: its one source.
    """

    value: int
    number: int
    step: int | None
    direction: str
    sources: Numbers
    level: int


@dataclass(eq=False)
class Fixpoint:
    """State of one completion: a layout number per value, and what is due."""

    asks = staticmethod(asks)

    index: SweepIndex
    layouts: Layouts
    numbers: list[int]
    priorities: bool = True
    trail: list[ShardingChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        index, layouts = self.index, self.layouts
        steps, places = len(index.tensors), len(index.order)
        self.level, self.merging = 0, False
        self.due_steps, self.due_places = bytearray(steps), bytearray(places)
        self.retry_steps, self.retry_places = bytearray(steps), bytearray(places)
        self.first = {d: [self._level(k.role, d) for k in index.kinds] for d in DIRECTIONS}
        self.memos: dict[tuple[str, bool], list[Memo]] = {
            (d, merging): [{} for _ in index.kinds] for d in DIRECTIONS for merging in (False, True)
        }
        closed = [
            fixed and not free for fixed, free in zip(layouts.fixed, layouts.open, strict=True)
        ]
        self.closed = bytes([closed[number] for number in self.numbers])
        self.deaf = bytes([c or v in index.late for v, c in enumerate(self.closed)])
        self._late = self._level(image.BROADCAST, BACKWARD)
        self.doubtful = {number for number, kind in enumerate(index.kinds) if kind.is_doubtful}

    def _level(self, role: str, direction: str) -> int:
        return image.level(role, direction) if self.priorities else image.MERGING_LEVEL

    def run(self) -> None:
        """All levels, each to its fixed point."""
        for level in range(image.LAST_LEVEL + 1):
            self._enter(level)
            changed = True
            while changed:
                changed = False
                for span in self.index.spans:
                    changed |= self.swept(span)

    def swept(self, span: Span) -> bool:
        """One computation forward, then backward."""
        first, end, place, last = span
        return self._forward_sweep(first, end) | self._backward_sweep(place, last)

    def settle(self) -> None:
        """Nothing is left to do when the results of the function have their layouts."""

    def take_part(self, value: int, number: int) -> None:
        """An annotated value's layout at the beginning of a later round."""
        free = not self.layouts.fixed[number] or self.layouts.open[number]
        self.closed = bytes([*self.closed[:value], not free, *self.closed[value + 1 :]])
        self.deaf = bytes([c or v in self.index.late for v, c in enumerate(self.closed)])
        self._write(ShardingChange(value, number, None, "", (), image.LAST_LEVEL))

    def _enter(self, level: int) -> None:
        """Make due what begins to act at this level, and what merging may now change."""
        self.level, self.merging = level, level >= image.MERGING_LEVEL
        if level == 0:
            self._begin()
        for role, (steps, places) in self.index.of_role.items() if level else ():
            if self._level(role, FORWARD) == level:
                self.due_steps = _either(self.due_steps, steps)
            if self._level(role, BACKWARD) == level:
                self.due_places = _either(self.due_places, places)
        if level == self._late:
            for place, value in enumerate(self.index.order):
                self.due_places[place] |= value in self.index.late
        if level == image.MERGING_LEVEL:
            self.due_steps = _either(self.due_steps, self.retry_steps)
            self.due_places = _either(self.due_places, self.retry_places)

    def _begin(self) -> None:
        """Make due what has a partitioned tensor and acts at level 0: all else changes nothing."""
        tiles, index = self.layouts.tiles, self.index
        for value, number in enumerate(self.numbers):
            if tiles[number] > 1:
                for position in index.touching[value]:
                    self.due_steps[position] = 1
                for place in index.near[value]:
                    self.due_places[place] = 1

    def _forward_sweep(self, first_step: int, end: int) -> bool:
        due, index, level = self.due_steps, self.index, self.level
        kind_of_step, pick, numbers = index.kind_of_step, index.pick, self.numbers
        memos, first = self.memos[FORWARD, self.merging], self.first[FORWARD]
        changed, position = False, due.find(1, first_step, end)
        while position >= 0:
            due[position] = 0
            kind = kind_of_step[position]
            if first[kind] > level:
                pass
            elif position in index.together:
                changed |= self._rewritten(index.together[position], FORWARD)
            else:
                key = pick[position](numbers)
                outcome = memos[kind].get(key, UNKNOWN)
                if outcome is UNKNOWN:
                    outcome = memos[kind][key] = self._step(kind, key, FORWARD)
                if outcome is not None:
                    changed |= self._write_results(position, outcome)
            position = due.find(1, position + 1, end)
        return changed

    def _step(self, kind: int, key: Numbers, direction: str) -> StepOutcome | None:
        """The outcome at this level; None where nothing changes, now or with merging."""
        known, layouts = self.index.kinds[kind], self.layouts
        if settled(known, key, layouts, direction):
            return None
        outcome = step(known, key, layouts, direction=direction, merging=self.merging)
        if self.merging:
            return outcome
        after = key if outcome is None else _after(known, key, outcome, direction)
        memo = self.memos[direction, True][kind]
        if after not in memo:
            memo[after] = step(known, after, layouts, direction=direction, merging=True)
        return outcome if memo[after] is None else replace(outcome or NOTHING, retry=True)

    def _write_results(self, position: int, outcome: StepOutcome) -> bool:
        self.retry_steps[position] = outcome.retry
        if outcome.other is not None:
            outcome = self._looked_ahead(position, outcome)
        values = self.index.tensors[position]
        start = len(values) - len(outcome.layouts)
        for k in outcome.changed:
            new, sources = outcome.layouts[k], outcome.sources[k]
            self._write(
                ShardingChange(values[start + k], new, position, FORWARD, sources, self.level)
            )
        return bool(outcome.changed)

    def _write(self, change: ShardingChange) -> None:
        value, tiles = change.value, self.layouts.tiles
        # More tiles at every change, and no more than devices: the sweeps come to an end.
        assert tiles[change.number] > tiles[self.numbers[value]] or change.step is None
        self.numbers[value] = change.number
        self.trail.append(change)
        due, places = self.due_steps, self.due_places
        for position in self.index.touching[value]:
            due[position] = 1
        for place in self.index.near[value]:
            places[place] = 1
        for other in self.index.related.get(value, ()):
            if self.numbers[other] != change.number and not self.layouts.fixed[self.numbers[other]]:
                self._write(change._replace(value=other, step=None, sources=(value,)))

    def _backward_sweep(self, first_place: int, end: int) -> bool:
        """Offer each due value, last ones first, what its readers want, in program order."""
        index, due, level = self.index, self.due_places, self.level
        kind_of_step, pick, numbers = index.kind_of_step, index.pick, self.numbers
        memos, first = self.memos[BACKWARD, self.merging], self.first[BACKWARD]
        deaf = self.deaf if level < self._late else self.closed
        changed, place = False, due.rfind(1, first_place, end)
        while place >= 0:
            due[place], value, retry = 0, index.order[place], False
            for position, k in () if deaf[value] else index.heard[place]:
                kind = kind_of_step[position]
                if first[kind] > level:
                    continue
                if position in index.together:
                    changed |= self._rewritten(index.together[position], BACKWARD)
                    continue
                key = pick[position](numbers)
                outcome = memos[kind].get(key, UNKNOWN)
                if outcome is UNKNOWN:
                    outcome = memos[kind][key] = self._step(kind, key, BACKWARD)
                if outcome is not None:
                    retry |= outcome.retry
                    if k in outcome.changed and (
                        kind not in self.doubtful or self._is_reached(position)
                    ):
                        new, sources = outcome.layouts[k], outcome.sources[k]
                        self._write(ShardingChange(value, new, position, BACKWARD, sources, level))
                        changed = True
            self.retry_places[place] = retry
            place = due.rfind(1, first_place, place)
        return changed

    def _rewritten(self, steps: Sequence[int], direction: str) -> bool:
        """One tuple from the other: if an element is refined, all of them are taken over.

        Then also those that lose by it (`sharding_propagation.cc`, kWhile and MergeSharding).
        """
        index, outcomes = self.index, []
        memos = self.memos[direction, self.merging]
        for position in steps:
            kind, key = index.kind_of_step[position], index.pick[position](self.numbers)
            outcome = memos[kind].get(key, UNKNOWN)
            if outcome is UNKNOWN:
                outcome = memos[kind][key] = self._step(kind, key, direction)
            outcomes.append(outcome)
            if outcome is not None:
                self._retry(position, direction, outcome.retry)
        if not any(outcome is not None and outcome.changed for outcome in outcomes):
            return False
        for position, outcome in zip(steps, outcomes, strict=True):
            source, target = index.tensors[position][:: 1 if direction == FORWARD else -1]
            if outcome is not None and outcome.changed:
                new, sources = outcome.layouts[0], outcome.sources[0]
                self._write(ShardingChange(target, new, position, direction, sources, self.level))
            elif self.layouts.dims[self.numbers[source]] != self.layouts.dims[self.numbers[target]]:
                self._write(
                    ShardingChange(target, self._copied(source, target), None, "", (), self.level)
                )
        return True

    def _retry(self, position: int, direction: str, retry: bool) -> None:
        if direction == FORWARD:
            self.retry_steps[position] = retry
        else:
            self.retry_places[self.index.place[position][0]] = retry

    def _copied(self, source: int, target: int) -> int:
        layouts, number = self.layouts, self.numbers[source]
        return layouts.number(layouts.shapes[self.numbers[target]], layouts.dims[number])

    def _is_reached(self, position: int) -> bool:
        """Whether XLA has laid out the results of a step, be it as replicated.

        Replicated is a layout too there, which spreads as others do, but not through a broadcast.
        Several results are in one tuple: they are laid out as soon as one of them is.
        """
        index, layouts = self.index, self.layouts
        kind, values = index.kind(position), index.tensors[position]
        todo = [*values[kind.num_operands :], values[0]]
        seen = set(todo)
        while todo:
            value = todo.pop()
            number = self.numbers[value]
            if layouts.tiles[number] > 1 or layouts.fixed[number] or layouts.open[number]:
                return True
            near = [v for step in index.touching[value] for v in self._across(step, value)]
            todo += [v for v in dict.fromkeys(near) if v not in seen]
            seen.update(near)
        return False

    def _across(self, position: int, value: int) -> Sequence[int]:
        """The values that make another value of a step laid out, or that this one makes so."""
        index = self.index
        kind, values = index.kind(position), index.tensors[position]
        count = kind.num_operands
        if index.nodes[position] is None and index.result_count == 1:
            return ()
        if value in values[:count]:
            return values[count:]
        return () if kind.role == image.BROADCAST else values[: 1 if kind.is_doubtful else count]

    def _looked_ahead(self, position: int, outcome: StepOutcome) -> StepOutcome:
        """The order after which a result is what later nodes want, if that tells the two apart."""
        ahead = self._ahead(self.index.tensors[position][-1])
        if ahead is None:
            return outcome
        fits = [extends(ahead, dims) for dims in outcome.wanted]
        other = outcome.other if fits == [False, True] else None
        return outcome if other is None else other

    def _ahead(self, value: int) -> Dims | None:
        """What a chain of single readers that ends in a partitioned value wants for `value`."""
        chain = self._chain(value)
        if chain is None:
            return None
        layouts, index = self.layouts, self.index
        dims: Dims | None = None
        for position, k in reversed(chain):
            numbers = list(index.pick[position](self.numbers))
            if dims is not None:
                numbers[-1] = layouts.number(layouts.shapes[numbers[-1]], dims)
            wished = wishes(index.kind(position), tuple(numbers), layouts, k)
            if not wished:
                return None
            dims = wished[0][0]
        return dims

    def _is_beside(self, position: int) -> bool:
        """Whether a step reads nothing, and only joins two stacks of equal type."""
        return self.index.kind(position).role == image.ZEROS

    def _chain(self, value: int) -> list[tuple[int, int]] | None:
        """(step, operand) from a value to the first partitioned one, each the only reader."""
        chain: list[tuple[int, int]] = []
        while len(chain) < LONGEST_CHAIN:
            readers = [r for r in self.index.readers[value] if not self._is_beside(r[0])]
            if not readers or any(position != readers[0][0] for position, _ in readers):
                return None
            position, kind = readers[0][0], self.index.kind(readers[0][0])
            leaves = kind.role in BORDERS and self.index.nodes[position] is not None
            if leaves or not (len(kind.results) == 1 or kind.role == image.TUPLE):
                return None
            chain.append(readers[0])
            made = self.index.tensors[position][kind.num_operands :]
            value = made[-1]
            if any(self.layouts.tiles[self.numbers[v]] > 1 for v in made):
                return chain
            if self.layouts.fixed[self.numbers[value]] or kind.role == image.TUPLE:
                return None
        return None


DIRECTIONS = (FORWARD, BACKWARD)
BORDERS = (image.LOOP,)
"""Where look-ahead ends. XLA's ends at the stacks of a loop too, and scanned steps send more."""
UNKNOWN: StepOutcome = StepOutcome((), (), ())
"""What a memo gives for a key that it does not hold; None is an outcome."""
NOTHING = StepOutcome((), (), ())


def _after(kind: OperatorClass, key: Numbers, outcome: StepOutcome, direction: str) -> Numbers:
    """All layouts of a step after an outcome."""
    count = kind.num_operands
    if direction == FORWARD:
        return key[:count] + outcome.layouts
    return outcome.layouts + key[count:]


Bytes = bytes | bytearray


def _either(first: Bytes, second: Bytes) -> bytearray:
    """Bytewise or, as one long integer."""
    number = int.from_bytes(first, "little") | int.from_bytes(second, "little")
    return bytearray(number.to_bytes(len(first), "little"))
