"""Shardy's order: stage by stage, each change is followed to its end before the next step.

All steps are on a stack, the first one on top. A step that changes tensors puts the producers and
readers of these tensors on top, unless they are on the stack already. So a change is followed
through the program before the next step of the first pass is visited. Source: MLIR's greedy
rewriter, top down, and `notifyShardingModified` of Shardy's `basic_propagation.cc`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardalg.planner.propagate.gspmd import image
from shardalg.planner.propagate.gspmd.fixpoint import ShardingChange
from shardalg.planner.propagate.gspmd.index import SweepIndex
from shardalg.planner.propagate.gspmd.step import Numbers
from shardalg.planner.propagate.layouts import Layouts
from shardalg.planner.propagate.shardy.factors import (
    LAST_STAGE,
    Directions,
    Extended,
    all_offers,
    directions,
    step,
)
from shardalg.planner.propagate.shardy.lowered import made_as_operands

Memo = dict[Numbers, Extended | None]
PRODUCT = "product"
"""The reason of a product's sharding that differs from its readers' (`lowered.py`)."""
# The default of a memo, because None is an outcome.
UNKNOWN: Extended = ()


@dataclass(eq=False)
class Worklist:
    """The state of one completion in Shardy's order: a layout number per value.

    Attributes:
      level: the stage of propagation that runs now.
      exits: the edges from the function's results to the values that have their annotations.
      todo: the stack of steps to visit, the next one last.
      waits: per step, whether it is on the stack.
      known: per operator class, the directions of its last visit and the outcomes under them.
    """

    all_offers = staticmethod(all_offers)

    index: SweepIndex
    layouts: Layouts
    numbers: list[int]
    priorities: bool = True
    changes: list[ShardingChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Set an empty stack and empty memos, and list the edges to annotated results in `exits`.

        These edges are steps between a result of the function and its annotation.
        """
        index = self.index
        self.level = 0
        steps = range(len(index.tensors))
        self.exits = [step for step in steps if index.kind(step).role == image.EXIT]
        # The stack has the steps to visit; `waits` marks them, so that none is on it twice.
        self.todo: list[int] = []
        self.waits = bytearray(len(index.tensors))
        # Per operator class, the directions in which it passes shardings and a memo of outcomes.
        self.known: list[tuple[Directions, Memo] | None] = [None] * len(index.kinds)

    def run(self) -> None:
        """Run all stages of Shardy's propagation, each until nothing changes.

        In the earlier stages only some operators act, so that these have priority. Without
        priorities only the last stage runs, in which all act. `todo` is the stack of steps to
        visit. `waits` tells for each step whether it is on the stack, so that none is there twice.
        """
        for stage in range(LAST_STAGE + 1) if self.priorities else (LAST_STAGE,):
            self.level = stage
            # Shardy propagates between the results and their annotations before and after a stage.
            self._pass_exits()
            # The steps go onto the stack in reverse, so that the first one is visited first.
            outside = set(self.exits)
            self.todo = [p for p in range(len(self.waits) - 1, -1, -1) if p not in outside]
            for position in self.todo:
                self.waits[position] = 1
            while self.todo:
                position = self.todo.pop()
                self.waits[position] = 0
                self._visit(position)
            self._pass_exits()
        self._copy_to_related()

    def _copy_to_related(self) -> None:
        """Copy each value's sharding to the other values that must have the same one."""
        # Steps name one value of each group only, so the others get their sharding at the end.
        layouts = self.layouts
        for value, others in self.index.related.items():
            dims = layouts.dims[self.numbers[value]]
            for other in others:
                if layouts.dims[self.numbers[other]] != dims:
                    number = layouts.number(layouts.shapes[self.numbers[other]], dims)
                    self.numbers[other] = number
                    self.changes.append(
                        ShardingChange(other, number, None, "", (value,), self.level)
                    )

    def finish(self) -> None:
        """Set the shardings of matrix products to those in which Shardy computes them.

        The partitioner computes some products in the sharding of an operand, and reshards the
        result (`lowered.py`). This changes the sharding of the product itself.
        """
        for step_of, value, number in [*made_as_operands(self.index, self.layouts, self.numbers)]:
            self.numbers[value] = number
            operands = self.index.tensors[step_of][:2]
            self.changes.append(ShardingChange(value, number, None, PRODUCT, operands, self.level))

    def begin_round(self, value: int, number: int) -> None:
        """Set an annotated value's sharding at the beginning of a later round of priorities."""
        self.numbers[value] = number
        self.changes.append(ShardingChange(value, number, None, "", (), LAST_STAGE))

    def _pass_exits(self) -> None:
        """Pass shardings between results and their annotations, by one visit to each such edge.

        Steps that read a changed value are put on the stack, and visited afterwards.
        """
        for position in self.exits:
            self._visit(position)

    def _visit(self, position: int) -> None:
        """Apply one step, and put the producers and readers of each changed tensor on the stack.

        Args:
          position: the number of the step.
        """
        # The layout numbers of the step's tensors. With the class, they determine the outcome.
        key = self.index.pick[position](self.numbers)
        # A memo serves one operator class under one set of directions. The next stage may have the
        # same directions, and then continues with the memo.
        number = self.index.kind_of_step[position]
        known = self.known[number]
        allowed = directions(self.index.kinds[number], self.level)
        if known is None or known[0] != allowed:
            known = self.known[number] = (allowed, {})
        memo = known[1]
        outcome = memo.get(key, UNKNOWN)
        if outcome is UNKNOWN:
            kind = self.index.kind(position)
            outcome = memo[key] = step(kind, key, self.layouts, allowed) if allowed else None
        # None: no tensor of the step changes.
        if outcome is None:
            return
        values = self.index.tensors[position]
        # Of a value that is read twice the last place decides, as in Shardy.
        last = {values[k]: k for k, (new, _) in enumerate(outcome) if new != key[k]}
        for k in last.values():
            self._write(position, k, *outcome[k])

    def _write(self, position: int, tensor: int, new: int, sources: Numbers) -> None:
        """Change the layout of one tensor of a step, and put makers and readers on the stack.

        Args:
          tensor: its number in the step; new: its layout number; sources: the tensors that gave it.
        """
        value = self.index.tensors[position][tensor]
        # More tiles at every change, or as many on more axes (of size 1), and no more than there
        # are devices and axes: the stack comes to an end.
        assert self._measure(new) > self._measure(self.numbers[value])
        self.numbers[value] = new
        is_result = tensor >= self.index.kind(position).num_operands
        direction = image.FORWARD if is_result else image.BACKWARD
        self.changes.append(ShardingChange(value, new, position, direction, sources, self.level))
        for near in self.index.notified.get(value, ()):
            self._push(near, position)

    def _push(self, position: int, current: int) -> None:
        """Put a step on the stack, unless it is there already or is the current step."""
        # The edges to annotations of results are visited only between stages.
        is_exit = self.index.kind(position).role == image.EXIT
        if position != current and not self.waits[position] and not is_exit:
            self.waits[position] = 1
            self.todo.append(position)

    def _measure(self, number: int) -> tuple[int, int]:
        """Return the number of tiles of a layout, and its number of digits."""
        return self.layouts.tiles[number], sum([len(d) for d in self.layouts.dims[number]])
