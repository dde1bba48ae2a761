"""Sweeps forward and backward until no sharding is refined, level by level.

The result equals that of full sweeps, whose order decides conflicts. A step is visited again only
if the sharding of one of its tensors changed: one byte per step and per value marks what is due,
and `bytearray.find` finds the next one. An equal (operator class, layout numbers) is decided once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.image import BACKWARD, FORWARD
from shardalg.planner.propagate.gspmd.index import Span, SweepIndex
from shardalg.planner.propagate.gspmd.step import (
    Numbers,
    StepOutcome,
    all_offers,
    cannot_change,
    operand_offers,
    step,
)
from shardalg.planner.propagate.layouts import Layouts, extends
from shardalg.planner.propagate.operator_classes import Dims

Memo = dict[Numbers, StepOutcome | None]
LONGEST_CHAIN = 20
"""The largest number of steps that look-ahead follows a chain of single readers."""


class ShardingChange(NamedTuple):
    """A new sharding of a value.

    Attributes:
      number: the layout number.
      step: the step that gave the sharding. None for an annotation, and for a value that shares the
        sharding of its one source because both are the same element of a tuple.
      sources: positions of the step's tensors whose shardings the value took.
    """

    value: int
    number: int
    step: int | None
    direction: str
    sources: Numbers
    level: int


@dataclass(eq=False)
class Fixpoint:
    """The state of one completion: a layout number per value, and the steps that are due.

    In a step, the tensors of one operator take shardings from each other. It is due if one of these
    tensors has got another sharding.

    Attributes:
      priorities: whether operators begin to act level by level; otherwise all act at once.
      changes: the changes so far, in order.
    """

    all_offers = staticmethod(all_offers)

    index: SweepIndex
    layouts: Layouts
    numbers: list[int]
    priorities: bool = True
    changes: list[ShardingChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the tables that the sweeps read.

        They are the due steps, the level at which each operator class begins to act, the outcomes
        of steps by layout numbers (memos), and the values whose annotation nothing can change.
        """
        index, layouts = self.index, self.layouts
        # Forward, each step is visited alone. Backward, all readers of a place (a value in one
        # computation) are visited together, so one byte per place is enough.
        steps, places = len(index.tensors), len(index.order)
        self.level, self.merging = 0, False
        self.due_steps, self.due_places = bytearray(steps), bytearray(places)
        self.retry_steps, self.retry_places = bytearray(steps), bytearray(places)
        # The sweeps read a level per visit, so the levels are listed by number of the class.
        self.first = {d: [self._level(k.role, d) for k in index.kinds] for d in DIRECTIONS}
        # An outcome depends on the direction and on whether shardings merge, not on the level.
        self.memos: dict[tuple[str, bool], list[Memo]] = {
            (d, merging): [{} for _ in index.kinds] for d in DIRECTIONS for merging in (False, True)
        }
        # An annotation without open dimensions takes no offer, so its value is never visited.
        closed = [
            fixed and not free for fixed, free in zip(layouts.fixed, layouts.open, strict=True)
        ]
        # Values in `late_backward` (constants, results of broadcasts) take nothing from their
        # readers either, until the level of broadcasts.
        self.closed = bytes([closed[number] for number in self.numbers])
        self.skipped = bytes([c or v in index.late_backward for v, c in enumerate(self.closed)])
        # The `retry` tables have the visits that become due when merging begins. `need_result` has
        # the scatters, whose operands take each other's shardings only if the result has one.
        self._broadcast_level = self._level(image.BROADCAST, BACKWARD)
        self.need_result = {
            number for number, kind in enumerate(index.kinds) if kind.needs_sharded_result
        }

    def _level(self, role: str, direction: str) -> int:
        return image.level(role, direction) if self.priorities else image.MERGING_LEVEL

    def run(self) -> None:
        """Propagate shardings until nothing changes, level by level.

        XLA has levels of aggressiveness: a higher level lets more operators pass shardings on. Each
        level repeats its sweeps over all computations until none of them changes a sharding.
        """
        for level in range(image.LAST_LEVEL + 1):
            self._enter(level)
            changed = True
            while changed:
                changed = False
                # A span is one XLA computation, for example a loop body.
                for span in self.index.spans:
                    changed |= self.sweep(span)

    def sweep(self, span: Span) -> bool:
        """Sweep one computation forward, then backward; return whether a sharding changed."""
        first, end, place, last = span
        # Both sweeps have to run: `|` calls the second one also if the first one changed something.
        return self._forward_sweep(first, end) | self._backward_sweep(place, last)

    def finish(self) -> None:
        """Do nothing; Shardy's order changes the shardings of some products here."""

    def begin_round(self, value: int, number: int) -> None:
        """Set an annotated value's sharding at the beginning of a later round of priorities."""
        # The sweeps skip values whose annotation has no open dimension (`closed`), and some of them
        # also results of broadcasts and constants (`skipped`). The new sharding may have fewer or
        # more open dimensions than the one of the round before.
        free = not self.layouts.fixed[number] or self.layouts.open[number]
        self.closed = bytes([*self.closed[:value], not free, *self.closed[value + 1 :]])
        self.skipped = bytes(
            [c or v in self.index.late_backward for v, c in enumerate(self.closed)]
        )
        # An annotation comes from no step, so it has no direction and no sources.
        self._write(ShardingChange(value, number, None, "", (), image.LAST_LEVEL))

    def _enter(self, level: int) -> None:
        """Mark the steps as due that this level of XLA's propagation adds.

        They begin to act at this level, or may change because this level begins to merge shardings.
        `due_steps` has one byte per step (forward: operands to results), and `due_places` one per
        operand (backward). A sweep visits the entries with a 1.
        """
        self.level, self.merging = level, level >= image.MERGING_LEVEL
        # At first, only annotated tensors can pass a sharding on.
        if level == 0:
            self._begin()
        # A role is a kind of operator, which acts from one level on in each direction.
        for role, (steps, places) in self.index.of_role.items() if level else ():
            if self._level(role, FORWARD) == level:
                self.due_steps = _bytewise_or(self.due_steps, steps)
            if self._level(role, BACKWARD) == level:
                self.due_places = _bytewise_or(self.due_places, places)
        # Below this level XLA gives broadcasts and constants nothing from their readers
        # (InferShardingFromUsers), so these reads become due only now.
        if level == self._broadcast_level:
            for place, value in enumerate(self.index.order):
                self.due_places[place] |= value in self.index.late_backward
        # Steps that changed nothing without merging may change something now.
        if level == image.MERGING_LEVEL:
            self.due_steps = _bytewise_or(self.due_steps, self.retry_steps)
            self.due_places = _bytewise_or(self.due_places, self.retry_places)

    def _begin(self) -> None:
        """Mark the steps with a partitioned tensor as due; no other step changes anything.

        Each step of a partitioned value is marked in both directions.
        """
        tiles, index = self.layouts.tiles, self.index
        # `numbers` has the layout number of each value. A layout of one tile is replicated.
        for value, number in enumerate(self.numbers):
            if tiles[number] > 1:
                for position in index.steps_of[value]:
                    self.due_steps[position] = 1
                for place in index.operand_places[value]:
                    self.due_places[place] = 1

    def _forward_sweep(self, first_step: int, end: int) -> bool:
        """Visit the due steps of one XLA computation in order; return whether a sharding changed.

        Args:
          first_step, end: the computation has the steps `first_step` to `end - 1`.
        """
        # The loop runs for every step of a large model, so attributes are read once.
        due, index, level = self.due_steps, self.index, self.level
        kind_of_step, pick, numbers = index.kind_of_step, index.pick, self.numbers
        # `first_levels` has the level at which each kind of step begins to act.
        memos, first_levels = self.memos[FORWARD, self.merging], self.first[FORWARD]
        # `find` returns -1 if no step is due. A visit may mark later steps as due.
        changed, position = False, due.find(1, first_step, end)
        while position >= 0:
            due[position] = 0
            kind = kind_of_step[position]
            # `_enter` marks the step as due again when its level begins.
            if first_levels[kind] > level:
                pass
            elif position in index.tuple_groups:
                changed |= self._visit_tuple(index.tuple_groups[position], FORWARD)
            else:
                # `pick` reads the layout numbers of the step's tensors. The outcome depends only on
                # these and on the operator's class, so steps of equal layers are computed once.
                key = pick[position](numbers)
                outcome = memos[kind].get(key, UNKNOWN)
                if outcome is UNKNOWN:
                    outcome = memos[kind][key] = self._step(kind, key, FORWARD)
                if outcome is not None:
                    changed |= self._write_results(position, outcome)
            position = due.find(1, position + 1, end)
        return changed

    def _step(self, kind: int, key: Numbers, direction: str) -> StepOutcome | None:
        """Return the changes that a step makes at the current level, or None if it changes nothing.

        A later level also merges shardings that do not refine each other. If the step would then
        change more, the result has `retry=True`, and the step is due again at that level.

        Args:
          kind: the number of the operator class. key: the layout numbers of the step's tensors.
          direction: `FORWARD` (operands to results) or the opposite.
        """
        known, layouts = self.index.kinds[kind], self.layouts
        if cannot_change(known, key, layouts, direction):
            return None
        outcome = step(known, key, layouts, direction=direction, merging=self.merging)
        if self.merging:
            return outcome
        after, count = key, known.num_operands
        if outcome is not None and direction == FORWARD:
            after = key[:count] + outcome.layouts
        elif outcome is not None:
            after = outcome.layouts + key[count:]
        # This is the outcome of the merging level, so its memo serves that level as well.
        memo = self.memos[direction, True][kind]
        if after not in memo:
            memo[after] = step(known, after, layouts, direction=direction, merging=True)
        return outcome if memo[after] is None else replace(outcome or NOTHING, retry=True)

    def _write_results(self, position: int, outcome: StepOutcome) -> bool:
        """Give the results of a forward step their new layouts; return whether a layout changed.

        Args:
          position: the number of the step.
          outcome: the layouts that the step computed for its results.
        """
        self.retry_steps[position] = outcome.retry
        # A contested product: the readers further on may prefer the other operand.
        if outcome.other is not None:
            outcome = self._preferred_order(position, outcome)
        values = self.index.tensors[position]
        start = len(values) - len(outcome.layouts)
        for k in outcome.changed:
            new, sources = outcome.layouts[k], outcome.sources[k]
            self._write(
                ShardingChange(values[start + k], new, position, FORWARD, sources, self.level)
            )
        return bool(outcome.changed)

    def _write(self, change: ShardingChange) -> None:
        """Record a change of a value's sharding, and mark the steps as due that it may affect.

        Values that must share the sharding change with it.
        """
        value, tiles = change.value, self.layouts.tiles
        # More tiles at every change, and no more than devices: the sweeps come to an end. A change
        # without a step copies a whole tuple, and may have fewer tiles.
        assert tiles[change.number] > tiles[self.numbers[value]] or change.step is None
        self.numbers[value] = change.number
        self.changes.append(change)
        due, places = self.due_steps, self.due_places
        for position in self.index.steps_of[value]:
            due[position] = 1
        for place in self.index.operand_places[value]:
            places[place] = 1
        # All places of one element of a tuple share its sharding. The recursion ends at values that
        # have it already. Annotated values are fixed.
        for other in self.index.related.get(value, ()):
            if self.numbers[other] != change.number and not self.layouts.fixed[self.numbers[other]]:
                self._write(change._replace(value=other, step=None, sources=(value,)))

    def _backward_sweep(self, first_place: int, end: int) -> bool:
        """Give due values the shardings that their readers want, from the last value to the first.

        A place is a value's number in the order of the visits. A place is due if a sharding changed
        that its readers depend on. Returns whether a sharding changed.
        """
        index, due, level = self.index, self.due_places, self.level
        kind_of_step, pick, numbers = index.kind_of_step, index.pick, self.numbers
        memos, first = self.memos[BACKWARD, self.merging], self.first[BACKWARD]
        # Closed annotations never take an offer. Below the level of broadcasts, constants and
        # results of broadcasts take none from their readers either (`skipped` has both).
        skipped = self.skipped if level < self._broadcast_level else self.closed
        changed, place = False, due.rfind(1, first_place, end)
        while place >= 0:
            due[place], value, retry = 0, index.order[place], False
            # The order of the readers decides conflicts. The value is operand `k` of a reader.
            for position, k in () if skipped[value] else index.reads[place]:
                kind = kind_of_step[position]
                # `_enter` marks the place as due again when the level of this operator begins.
                if first[kind] > level:
                    continue
                # XLA replaces a tuple's sharding as a whole, so its steps act together.
                if position in index.tuple_groups:
                    changed |= self._visit_tuple(index.tuple_groups[position], BACKWARD)
                    continue
                # Equal operators with equal shardings have one outcome, computed once.
                key = pick[position](numbers)
                outcome = memos[kind].get(key, UNKNOWN)
                if outcome is UNKNOWN:
                    outcome = memos[kind][key] = self._step(kind, key, BACKWARD)
                if outcome is not None:
                    # Some merges are allowed at a later level only. Such a place is visited again
                    # there, even if nothing changed.
                    retry |= outcome.retry
                    # XLA passes a scatter's updates to its indices, and the reverse, only if the
                    # scatter itself has a sharding.
                    if k in outcome.changed and (
                        kind not in self.need_result or self._has_sharded_result(position)
                    ):
                        new, sources = outcome.layouts[k], outcome.sources[k]
                        self._write(ShardingChange(value, new, position, BACKWARD, sources, level))
                        changed = True
            self.retry_places[place] = retry
            place = due.rfind(1, first_place, place)
        return changed

    def _visit_tuple(self, steps: Sequence[int], direction: str) -> bool:
        """Pass shardings from one tuple of a loop or branch to another; return whether one changed.

        XLA copies the sharding of the whole tuple as soon as one element is refined. So the other
        elements are overwritten, too, even if they had a better sharding
        (`sharding_propagation.cc`, kWhile and MergeSharding).

        Args:
          steps: one step for each element of the tuple.
        """
        # All outcomes are computed before any is written, because XLA compares whole tuples.
        index, layouts, outcomes = self.index, self.layouts, []
        memos = self.memos[direction, self.merging]
        for position in steps:
            kind, key = index.kind_of_step[position], index.pick[position](self.numbers)
            outcome = memos[kind].get(key, UNKNOWN)
            if outcome is UNKNOWN:
                outcome = memos[kind][key] = self._step(kind, key, direction)
            outcomes.append(outcome)
            # `retry` marks a step that could merge two shardings, which is allowed at a later level
            # of aggressiveness: there it is visited again.
            if outcome is not None and direction == FORWARD:
                self.retry_steps[position] = outcome.retry
            elif outcome is not None:
                self.retry_places[index.place[position][0]] = outcome.retry
        if not any(outcome is not None and outcome.changed for outcome in outcomes):
            return False
        for position, outcome in zip(steps, outcomes, strict=True):
            # A step has two tensors, the element in each tuple: forward, the first is the source.
            source, target = index.tensors[position][:: 1 if direction == FORWARD else -1]
            dims = layouts.dims[self.numbers[source]]
            if outcome is not None and outcome.changed:
                number, sources = outcome.layouts[0], outcome.sources[0]
                change = ShardingChange(target, number, position, direction, sources, self.level)
                self._write(change)
            # An unrefined element is overwritten with the sharding that it has in the source tuple.
            elif dims != layouts.dims[self.numbers[target]]:
                number = layouts.number(layouts.shapes[self.numbers[target]], dims)
                self._write(ShardingChange(target, number, None, "", (), self.level))
        return True

    def _has_sharded_result(self, position: int) -> bool:
        """Return whether XLA has given the results of a step a sharding, replicated included.

        In XLA, replicated is a sharding that spreads as others do, except through a broadcast.
        Several results are one tuple, which has a sharding as soon as one element has one.
        """
        index, layouts = self.index, self.layouts
        kind, values = index.kind(position), index.tensors[position]
        # Layouts do not say whether XLA gave a replicated value its sharding. So the search goes
        # back to a value that certainly has one, and that would have passed it on.
        todo = [*values[kind.num_operands :], values[0]]
        seen = set(todo)
        while todo:
            value = todo.pop()
            number = self.numbers[value]
            if layouts.tiles[number] > 1 or layouts.fixed[number] or layouts.open[number]:
                return True
            near = [v for step in index.steps_of[value] for v in self._implied_values(step, value)]
            todo += [v for v in dict.fromkeys(near) if v not in seen]
            seen.update(near)
        return False

    def _implied_values(self, position: int, value: int) -> Sequence[int]:
        """Return the values to which a step gives a sharding as soon as `value` has one in XLA.

        In XLA, a replicated value has a sharding too, once a step gave it one.

        Args:
          position: the step. value: an operand or a result of it.
        """
        index = self.index
        kind, values = index.kind(position), index.tensors[position]
        count = kind.num_operands
        # A step without a node leads to a result of the function. XLA puts several results in a
        # tuple, which has a sharding of its own; a single result has no such instruction.
        if index.nodes[position] is None and index.result_count == 1:
            return ()
        # Forward, a result always follows its operands. Backward, a broadcast's operand does not
        # follow, because a replicated result implies nothing for it. Of a scatter only the first
        # operand follows, because its indices take nothing from the result.
        if value in values[:count]:
            return values[count:]
        return (
            ()
            if kind.role == image.BROADCAST
            else values[: 1 if kind.needs_sharded_result else count]
        )

    def _preferred_order(self, position: int, outcome: StepOutcome) -> StepOutcome:
        """Return a product's outcome, with its operands in the order that agrees with later nodes.

        If two operands offer the result different shardings, the first one wins.
        """
        ahead = self._wanted_ahead(self.index.tensors[position][-1])
        if ahead is None:
            return outcome
        # `wanted` has the result's sharding by the first operand alone, and by the second alone.
        # XLA's order, the larger operand first, stays unless readers agree with the second alone.
        fits = [extends(ahead, dims) for dims in outcome.wanted]
        other = outcome.other if fits == [False, True] else None
        return outcome if other is None else other

    def _wanted_ahead(self, value: int) -> Dims | None:
        """Return the sharding that a chain of single readers wants for a value, or None.

        The chain ends in a partitioned value.
        """
        chain = self._reader_chain(value)
        if chain is None:
            return None
        layouts, index = self.layouts, self.index
        # Backward from the partitioned end: each operator needs the sharding that the next one
        # wants of its result. At the end, the result's own sharding is used.
        dims: Dims | None = None
        for position, k in reversed(chain):
            numbers = list(index.pick[position](self.numbers))
            if dims is not None:
                numbers[-1] = layouts.number(layouts.shapes[numbers[-1]], dims)
            wished = operand_offers(index.kind(position), tuple(numbers), layouts, k)
            if not wished:
                return None
            dims = wished[0][0]
        return dims

    def _is_zeros(self, position: int) -> bool:
        """Return whether a step only lets two stacks share a sharding, because both begin as zeros.

        A stack is an array into which a loop writes one layer per iteration. XLA has one constant
        for all stacks of zeros, so they share its sharding.
        """
        return self.index.kind(position).role == image.ZEROS

    def _reader_chain(self, value: int) -> list[tuple[int, int]] | None:
        """Return the chain of operators from a value to the first partitioned value.

        Each operator of the chain is the only reader of the value before it. An entry is (step of
        the operator, number of the operand that it reads in the chain).

        None if a value has several readers, if the chain leaves a loop, or if it is too long.
        """
        chain: list[tuple[int, int]] = []
        while len(chain) < LONGEST_CHAIN:
            readers = [r for r in self.index.readers[value] if not self._is_zeros(r[0])]
            # An operator may read the value twice; it is still the only reader. Steps that only let
            # stacks of zeros share a sharding (`_is_zeros`) do not read it.
            if not readers or any(position != readers[0][0] for position, _ in readers):
                return None
            position, kind = readers[0][0], self.index.kind(readers[0][0])
            # The border of a loop ends the chain. A step to a result of the function has no node.
            leaves = kind.role in BORDERS and self.index.nodes[position] is not None
            # An operator of several results would let the chain branch.
            if leaves or not (len(kind.results) == 1 or kind.role == image.TUPLE):
                return None
            chain.append(readers[0])
            # The step into a tuple has one result per place in the tuple; any other step here has
            # one.
            results = self.index.tensors[position][kind.num_operands :]
            value = results[-1]
            if any(self.layouts.tiles[self.numbers[v]] > 1 for v in results):
                return chain
            # A fixed result without tiles is replicated by the user, and a tuple has other readers.
            if self.layouts.fixed[self.numbers[value]] or kind.role == image.TUPLE:
                return None
        return None


DIRECTIONS = (FORWARD, BACKWARD)
BORDERS = (image.LOOP,)
"""Roles at which look-ahead ends.

XLA's look-ahead also ends at the stacks of a loop; training steps with scanned layers then send
more.
"""
# The default of a memo, because None is an outcome.
UNKNOWN: StepOutcome = StepOutcome((), (), ())
NOTHING = StepOutcome((), (), ())


Bytes = bytes | bytearray


def _bytewise_or(first: Bytes, second: Bytes) -> bytearray:
    """Return the bytewise or, computed as one long integer."""
    number = int.from_bytes(first, "little") | int.from_bytes(second, "little")
    return bytearray(number.to_bytes(len(first), "little"))
