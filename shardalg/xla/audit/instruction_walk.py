"""Both programs, instruction by instruction: first before partitioning, then on the devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.block_checks import Tree, block_of, blocks_of, check_block
from shardalg.xla.audit.expected_blocks import expected_elements
from shardalg.xla.audit.hlo_attributes import (
    called,
    combination,
    groups_of,
    shardings_of,
)
from shardalg.xla.audit.operators.index_matching import index_rule
from shardalg.xla.audit.operators.operator_loops import POINTWISE
from shardalg.xla.audit.operators.operator_matching import match_operator
from shardalg.xla.audit.operators.operator_table import OperatorTable, ordered
from shardalg.xla.audit.trace_back import (
    TracedBody,
    WrongPlace,
    cause_of,
    differ,
    first_reader,
    table_behind,
    traced_path,
    wrong_number,
)
from shardalg.xla.audit.values import known_values
from shardalg.xla.audit.values.data_moves import MOVES, select
from shardalg.xla.audit.values.element_views import (
    Known,
    Origin,
    Value,
    View,
    content,
    whole,
)
from shardalg.xla.audit.values.group_moves import (
    all_gather,
    all_reduce,
    all_to_all,
    collective_permute,
    reduce_scatter,
)
from shardalg.xla.audit.values.manual_regions import (
    TO_FULL,
    TO_SHARD,
    full_of,
    manual_classes,
    shard_of,
    stacked,
)
from shardalg.xla.audit.values.per_device import (
    NOT_COMPLETED,
    NOT_SHIFTED,
    ArrayPool,
    AuditFinding,
    PerDevice,
    RefutedError,
    Shown,
    UnknownError,
    WantedElement,
)

_SAME = (
    "copy", "bitcast", "opt-barrier", "optimization-barrier", "domain", "copy-start", "copy-done",
    "all-gather-done", "all-reduce-done", "collective-permute-done", "async-done", "async-update",
    "all-to-all-done", "reduce-scatter-done", "add-dependency",
)  # fmt: skip
MOST_OPERATORS = 8
"""Operators that are passed on the way from a wrong value back to the faulty move."""
_MARKERS = ("Sharding", "annotate_device_placement", "LayoutConstraint")


@dataclass(frozen=True)
class InstructionAnswer:
    """The answer for one instruction.

    Attributes:
      status: "proved", "refuted", "not understood", or "behind" for one that reads a value that is
        not understood.
      holds: the value that was found, for messages.
    """

    instruction: HloInstruction
    status: str
    finding: AuditFinding | None = None
    holds: Tree = None


@dataclass(eq=False)
class ControlFlow:
    """A loop or a conditional before partitioning, with its values in the order of the walk."""

    instruction: HloInstruction
    inputs: list[Tree]
    carried: list[Tree]
    outputs: list[Tree]
    results: list[Tree]
    condition: Tree = None
    is_used: bool = False


@dataclass(eq=False)
class Walk:
    """The values of one module on all devices.

    Attributes:
      before: the walk of the program before partitioning; None for that walk itself.
      rows: the answer per instruction, by computation and name.
      watch: is called with the walk before each instruction.
    """

    module: HloModule
    pool: ArrayPool
    table: OperatorTable
    before: Walk | None = None
    rows: dict[tuple[str, str], InstructionAnswer] = field(default_factory=dict)
    regions: list[ControlFlow] = field(default_factory=list)
    watch: Callable[[Walk], None] | None = None

    def run(self, name: str, arguments: Sequence[Tree]) -> Tree:
        """Return the result of a computation."""
        values: dict[str, Tree] = {}
        for one in self.module.computations[name].values():
            if self.watch is not None:
                self.watch(self)
            operands = [values.get(o) for o in one.operands]
            status, made = "proved", None
            finding: AuditFinding | None = None
            try:
                if one.opcode == "parameter":
                    made = arguments[int(one.literal)]
                elif one.opcode == "tuple":
                    made = tuple(operands)
                elif any(x is None for x in operands):
                    status = "behind"
                else:
                    made = self._step(one, operands)
                if isinstance(made, View | Known) and made.shape != one.leaves[0][1]:
                    # Attributes and type of an instruction disagree in no text of XLA.
                    shapes = list(made.shape), list(one.leaves[0][1])
                    made = None
                    raise UnknownError(
                        "{} with the shape {}, and the type {}".format(one.opcode, *shapes)
                    )
            except RefutedError as error:
                status, finding = "refuted", error
                self.trace_operands(one, error)
            except UnknownError as error:
                status, finding = "not understood", error
            except (
                KeyError,
                ValueError,
                IndexError,
                TypeError,
                AssertionError,
                AttributeError,
            ) as error:
                # An instruction in a form that no rule expects is not understood, and no traceback.
                why = f"{one.opcode} in an unknown form ({type(error).__name__}: {error})"
                status, finding = "not understood", UnknownError(why)
            if made is None and status == "proved":
                status = "behind"
            values[one.name] = made
            old = self.rows.get((name, one.name))
            if finding is not None and isinstance(finding.origin, Origin):
                self.blame(finding.origin)
            # A computation that is called twice has its worst answer.
            if old is None or old.status == "proved":
                self.rows[name, one.name] = InstructionAnswer(one, status, finding, made)
        return values[self.module.roots[name].name]

    def blame(self, origin: Origin) -> None:
        """Refute the instruction that first had the wrong elements of a refuted value."""
        key, fault = (origin.computation, origin.instruction), origin.fault
        if key in self.rows:
            error = RefutedError(fault.why, fault.device, fault.place, shown=fault.shown)
            error.reader = origin.reader
            self.rows[key] = replace(self.rows[key], status="refuted", finding=error)
            self.trace_operands(self.module.computations[key[0]][key[1]], error)

    def trace_operands(self, one: HloInstruction, error: AuditFinding) -> None:
        """Refute the instruction before a refuted operator that gave it the wrong values."""
        wanted: Sequence[WantedElement] = ()
        if isinstance(error.reader, tuple) and self.before is not None:
            entry, given = error.reader
            wanted = expected_elements(self.pool, self.before.module, entry, one, given)
            theirs = entry.instruction
            for pair in itertools.product(one.operands, theirs.operands):
                mine = (one.computation, pair[0])
                if self.trace_number(mine, (theirs.computation, pair[1]), error):
                    return
        for name in dict.fromkeys(one.operands):
            holder = self._value_of(one.computation, name)
            # Shardings may say no blocks; then the operands are compared with each other.
            for each in wanted or error.shown.wanted:
                if each.holder is holder and self._refute_move(one.computation, name, each):
                    return
            if NOT_COMPLETED in error.why:
                self.trace_pending(one.computation, name, error)
        table = table_behind(self._body(one.computation), one) if error.why == NOT_SHIFTED else None
        if table is not None:
            why = f"gives {one.name} the offset of another block"
            self._refute(one.computation, table, RefutedError(why, error.device, shown=error.shown))

    def trace(self, computation: str, start: str, error: AuditFinding) -> None:
        """Refute the move of data that first lost an element that a wrong value should have.

        Args:
          start: the instruction whose value is wrong.
        """
        if isinstance(error.origin, Origin):
            self.blame(error.origin)
        for each in error.shown.wanted:
            if self._refute_move(computation, start, each):
                return
        if NOT_COMPLETED in error.why:
            self.trace_pending(computation, start, error)

    def trace_number(
        self, mine: tuple[str, str], theirs: tuple[str, str], error: AuditFinding
    ) -> bool:
        """Refute the instruction that first computed a wrong known number, if two values differ.

        Args:
          mine, theirs: computation and name of the values on devices and before partitioning.
          error: names the device, the place, and the place before partitioning.

        Returns:
          Whether an instruction is refuted.
        """
        there = error.shown.before
        if self.before is None or there is None:
            return False
        bodies = self._body(mine[0]), self.before._body(theirs[0])
        places = (
            WrongPlace(mine[1], error.device, error.place, 0, 0),
            WrongPlace(theirs[1], 0, there, 0, 0),
        )
        if not differ(*bodies, *places):
            return False
        name = wrong_number(*bodies, *places)
        if name is not None:
            shown = replace(error.shown, before=None)
            why = "leads to another known number than before partitioning"
            self._refute(mine[0], name, RefutedError(why, error.device, shown=shown))
        return name is not None

    def trace_pending(self, computation: str, start: str, error: AuditFinding) -> None:
        """Refute the first reader of a reduction that is pending, in place of an all-reduce."""
        name = first_reader(self._body(computation), start)
        if name is not None:
            shown = error.shown
            self._refute(computation, name, RefutedError(f"reads {NOT_COMPLETED}", shown=shown))

    def _refute_behind(self, computation: str, end: WrongPlace, steps: int) -> bool:
        """Refute the faulty move behind a proved operator's operands, if there is one."""
        one = self.module.computations[computation][end.name]
        entry = self.table.entry_of(end.base)
        if entry is None or self.before is None or entry.instruction.opcode != one.opcode:
            return False
        values = [self._value_of(computation, name) for name in one.operands]
        given = ordered(one, [x for x in values if isinstance(x, View | Known)])
        if [getattr(x, "base", -1) for x in given] != [
            getattr(x, "base", -1) for x in entry.operands
        ]:
            return False
        wanted = expected_elements(self.pool, self.before.module, entry, one, given)
        return any(
            each.holder is x and self._refute_move(computation, name, each, steps)
            for name, x in zip(one.operands, values, strict=True)
            for each in wanted
        )

    def _refute_move(
        self, computation: str, start: str, wanted: WantedElement, steps: int = MOST_OPERATORS
    ) -> bool:
        """Refute the faulty move behind a wrong place, and return whether there is one.

        Args:
          steps: the number of operators that are passed on the way back.
        """
        body = self._body(computation)
        place = WrongPlace(start, wanted.device, wanted.place, wanted.base, wanted.element)
        path = traced_path(body, place)
        if path.move is None and steps and self._refute_behind(computation, path.end, steps - 1):
            return True
        # If no move is faulty, a transfer is missing before the first reader of the place.
        move = path.move or path.stale
        if move is None:
            return False
        x = body.value_of(move.name)
        assert isinstance(x, View)
        shown = Shown(
            expected=(wanted.base, wanted.element), found=content(x, move.device, move.place)
        )
        why = "moves another element to a place than a later instruction needs there"
        error = RefutedError(why, move.device, move.place, shown=shown)
        self._refute(computation, move.name, error)
        cause = cause_of(body, move)
        if cause != move.name:
            self._refute(
                computation,
                cause,
                RefutedError(
                    f"gives {move.name} the place of another element than is needed later",
                    move.device,
                    shown=shown,
                ),
            )
        return True

    def _refute(self, computation: str, name: str, error: RefutedError) -> None:
        """Change the status of an instruction to refuted, unless it is so already."""
        key = (computation, name)
        if self.rows[key].status != "refuted":
            self.rows[key] = replace(self.rows[key], status="refuted", finding=error)

    def _body(self, computation: str) -> TracedBody:
        """Return the instructions of a computation and their values."""
        return TracedBody(
            self.module.computations[computation],
            lambda name: self._value_of(computation, name),
            self.pool.devices,
        )

    def _value_of(self, computation: str, name: str) -> Tree:
        """Return the value of an instruction, or None if it has none yet."""
        row = self.rows.get((computation, name))
        return row.holds if row else None

    def _step(self, one: HloInstruction, operands: list[Tree]) -> Tree:
        """Return the value of an instruction.

        Raises:
          RefutedError, UnknownError: see their docstrings.
        """
        opcode, attributes = one.opcode, one.attributes
        if opcode in _SAME or attributes.get("custom_call_target", "").strip('"') in _MARKERS:
            return operands[0]
        if opcode == "get-tuple-element":
            (x,) = operands
            index = int(attributes["index"])
            # An asynchronous start has its result in place of a tuple with its operands.
            return x[index] if isinstance(x, tuple) else x
        if opcode == "while":
            return self._loop(one, operands[0])
        if opcode == "conditional":
            return self._conditional(one, operands)
        if opcode in ("call", "fusion", "async-start"):
            return self.run(called(one, "to_apply") or called(one, "calls"), operands)
        target = attributes.get("custom_call_target", "").strip('"')
        if target in (TO_SHARD, TO_FULL) and isinstance(operands[0], View):
            return self._border(one, target, operands[0])
        values: list[Value] = []
        for x in operands:
            if isinstance(x, tuple) or x is None:
                raise UnknownError(f"{opcode} of a tuple")
            values.append(x)
        if opcode in ("partition-id", "replica-id"):
            ids = (
                np.arange(self.pool.devices) if opcode == "partition-id" else np.zeros(1, np.int64)
            )
            return Known(self.pool.made(ids), ())
        if opcode == "constant":
            return known_values.literal(self.pool, one)
        if opcode == "iota":
            (dtype, shape), dim = one.leaves[0], int(attributes.get("iota_dimension", 0))
            return known_values.iota(self.pool, dtype, shape, dim)
        plain = opcode.removesuffix("-start")
        if plain in _COLLECTIVES:
            return self._collective(one, plain, values)
        return self._operator(one, values)

    def _border(self, one: HloInstruction, target: str, x: View) -> View:
        """Return a value at the begin or the end of a manual region."""
        shape = one.leaves[0][1]
        if target == TO_FULL:
            return full_of(self.pool, x, one.attributes.get("sharding", ""), shape)
        given = self.module.computations[one.computation][one.operands[0]]
        return shard_of(self.pool, x, given.attributes.get("sharding", ""), shape)

    def _operator(self, one: HloInstruction, values: list[Value]) -> Tree:
        """Return the value of an operator: computed if it is known, moved, or looked up."""
        opcode = one.opcode
        if values and all(isinstance(x, Known) for x in values):
            numbers = [x for x in values if isinstance(x, Known)]
            try:
                if opcode in POINTWISE:
                    return known_values.pointwise(self.pool, one, numbers)
                combine = combination(self.module, one) if opcode == "reduce" else ""
                return known_values.moved(self.pool, one, numbers, combine)
            except UnknownError:
                if self.before is not None and opcode not in ("dot", "scatter", "gather", "sort"):
                    raise
        failure: UnknownError | None = None
        starts = values[1:] if opcode == "dynamic-slice" else ()
        if opcode in MOVES and isinstance(values[0], View | Known) and all(
            isinstance(x, Known) for x in starts
        ):  # fmt: skip
            try:
                if any(isinstance(x, View) and x.change is not None for x in values):
                    if opcode not in ("broadcast", "reshape", "transpose", "slice"):
                        raise UnknownError(f"{opcode} of shifted indices")
                if any(isinstance(x, View) for x in values):
                    return MOVES[opcode](self.pool, one, values)
            except UnknownError as error:
                failure = error
        if self.before is None:
            return _single(self.table.record(self.module, one, values))
        try:
            return _single(match_operator(self.table, self.module, one, values))
        except AuditFinding as error:
            shifted = index_rule(self.table, self.module, one, values)
            if shifted is not None:
                return shifted
            if opcode == "select" and isinstance(values[0], Known):
                moved = select(self.pool, one, values)
                if moved is not None:
                    return moved
            if failure is not None and isinstance(error, UnknownError):
                raise failure from None
            raise

    def _collective(self, one: HloInstruction, opcode: str, values: list[Value]) -> Tree:
        """Return the value after a collective: a change of the views of all members of a group.

        An all-reduce of a value that is not pending is an operator of the program itself: in a
        manual region (`shard_map`) the user writes it.

        Raises:
          RefutedError, UnknownError: see their docstrings.
        """
        if any(isinstance(x, View) and x.change is not None for x in values):
            raise UnknownError(f"{opcode} of shifted indices, or of a gather without its mask")
        if opcode in ("all-reduce", "reduce-scatter"):
            combine = combination(self.module, one)
            if opcode == "reduce-scatter":
                return reduce_scatter(self.pool, combine, one, values[0])
            groups = groups_of(one, self.pool.devices)
            if len(values) == 1 and isinstance(values[0], View) and values[0].pending is None:
                # In a manual region, the all-reduce is one of the function.
                if self.before is None:
                    return _single(self.table.record(self.module, one, values))
                with suppress(AuditFinding):
                    return _single(match_operator(self.table, self.module, one, values))
            made = tuple(all_reduce(self.pool, combine, groups, x) for x in values)
            return made[0] if len(made) == 1 else made
        return _COLLECTIVES[opcode](self.pool, one, values)

    # --- loops and conditionals ---------------------------------------------------------------

    def _fresh(self, one: HloInstruction, what: str) -> list[Tree]:
        """Return whole views of new bases with the shapes of an instruction's results."""
        made: list[Tree] = []
        shardings = shardings_of(one.attributes.get("sharding"), len(one.leaves))
        for number, (dtype, shape) in enumerate(one.leaves):
            classes = manual_classes(shardings[number], self.pool.devices)
            part = None
            if classes is not None:
                rows = self.pool.made(*np.unique(classes, return_inverse=True))
                part = stacked(self.pool, rows, shape)
            text = f"{what} {number} of {one.name}"
            base = self.table.new_base(shape, dtype, text)
            made.append(whole(self.pool, base, shape, part))
        return made

    def _loop(self, one: HloInstruction, state: Tree) -> Tree:
        """Return the carried values after a loop.

        The body is walked once, from blocks of carried values before partitioning. The blocks are
        those of the loop's sharding; entry, end and condition must agree with them.
        """
        inputs = leaves_of(state)
        if self.before is None:
            carries = self._fresh(one, "carried value")
            kept = self._kept(called(one, "body"))
            # A value that the body returns unchanged is the same value in the loop and behind it.
            carries = [
                x if k in kept and x is not None else carries[k] for k, x in enumerate(inputs)
            ]
            region = ControlFlow(one, inputs, carries, [], [])
            self.regions.append(region)
            carried = _nested(state, region.carried)
            region.condition = self.run(called(one, "condition"), [carried])
            region.outputs = leaves_of(self.run(called(one, "body"), [carried]))
            results = self._fresh(one, "result")
            region.results = [
                carries[k] if k in kept else result for k, result in enumerate(results)
            ]
            return _nested(state, region.results)
        region = self._region_like(one)
        blocks = self._blocks(region.instruction)
        for number, (mine, theirs) in enumerate(zip(inputs, region.inputs, strict=True)):
            what = f"value {number} that enters the loop"
            try:
                check_block(self.pool, mine, theirs, blocks[number], what)
            except RefutedError as error:
                self._trace_entry(one, region.instruction, number, error)
                raise
        mine_carried = [
            block_of(self.pool, x, at) for x, at in zip(region.carried, blocks, strict=True)
        ]
        carried = _nested(state, mine_carried)
        condition = self.run(called(one, "condition"), [carried])
        check_block(self.pool, condition, region.condition, [], "the condition of the loop")
        outputs = leaves_of(self.run(called(one, "body"), [carried]))
        body = called(one, "body")
        for number, (mine, theirs) in enumerate(zip(outputs, region.outputs, strict=True)):
            what = f"value {number} at the end of the loop"
            try:
                check_block(self.pool, mine, theirs, blocks[number], what)
            except RefutedError as error:
                root = self.module.roots[body]
                self.trace(body, root.operands[number], error)
                raise
        known = [
            None if mine is None or theirs is None else block_of(self.pool, result, at)
            for mine, theirs, result, at in zip(
                outputs, region.outputs, region.results, blocks, strict=True
            )
        ]
        return _nested(state, known)

    def _trace_entry(
        self, one: HloInstruction, other: HloInstruction, number: int, error: RefutedError
    ) -> None:
        """Refute the instruction that gave a loop a wrong value.

        Args:
          one, other: the loop on devices, and before partitioning.
          number: the place of the value in the loop's tuple.
        """
        assert self.before is not None
        places = []
        for module, loop in ((self.module, one), (self.before.module, other)):
            state = module.computations[loop.computation][loop.operands[0]]
            if state.opcode != "tuple":
                return
            places.append((loop.computation, state.operands[number]))
        if not self.trace_number(places[0], places[1], error):
            self.trace(*places[0], error)

    def _kept(self, body: str) -> set[int]:
        """Return the elements of a loop's tuple that its body returns unchanged."""
        instructions, root = self.module.computations[body], self.module.roots[body]
        found = set()
        for number, name in enumerate(root.operands if root.opcode == "tuple" else ()):
            one = instructions[name]
            while one.opcode == "copy":
                one = instructions[one.operands[0]]
            if one.opcode == "get-tuple-element" and int(one.attributes["index"]) == number:
                if instructions[one.operands[0]].opcode == "parameter":
                    found.add(number)
        return found

    def _conditional(self, one: HloInstruction, operands: list[Tree]) -> Tree:
        """Return the results of a conditional whose branches are walked one by one."""
        names = one.attributes.get("branch_computations", "").strip("{}").split(",")
        if names == [""]:
            names = [one.attributes["true_computation"], one.attributes["false_computation"]]
        names = [name.strip().lstrip("%") for name in names]
        shape = result_tree(one)
        if self.before is None:
            region = ControlFlow(one, [operands[0]], [], [], self._fresh(one, "result"))
            self.regions.append(region)
            for name, x in zip(names, operands[1:], strict=True):
                region.outputs.append(tuple(leaves_of(self.run(name, [x]))))
            return _nested(shape, region.results)
        region = self._region_like(one)
        check_block(self.pool, operands[0], region.inputs[0], [], "the choice of the branch")
        blocks = self._blocks(region.instruction)
        good = [True] * len(blocks)
        for name, x, wanted in zip(names, operands[1:], region.outputs, strict=True):
            outputs = leaves_of(self.run(name, [x]))
            assert isinstance(wanted, tuple)
            for number, (mine, theirs) in enumerate(zip(outputs, wanted, strict=True)):
                what = f"value {number} at the end of a branch"
                check_block(self.pool, mine, theirs, blocks[number], what)
                good[number] = good[number] and mine is not None and theirs is not None
        results = [
            block_of(self.pool, x, at) if ok else None
            for x, at, ok in zip(region.results, blocks, good, strict=True)
        ]
        return _nested(shape, results)

    def _region_like(self, one: HloInstruction) -> ControlFlow:
        """Return the loop or conditional before partitioning of one on the devices."""
        assert self.before is not None
        for region in self.before.regions:
            same = region.instruction.opcode == one.opcode
            if same and not region.is_used and len(region.instruction.leaves) == len(one.leaves):
                region.is_used = True
                return region
        raise UnknownError(f"no {one.opcode} before partitioning has as many values")

    def _blocks(self, one: HloInstruction) -> list[list[PerDevice]]:
        """Return the indices of each device's block of each result."""
        texts = shardings_of(one.attributes.get("sharding"), len(one.leaves))
        return [
            blocks_of(self.pool, text, shape)
            for text, (_, shape) in zip(texts, one.leaves, strict=True)
        ]


_COLLECTIVES: dict[str, Callable[..., Tree]] = {
    "all-gather": all_gather, "all-to-all": all_to_all, "collective-permute": collective_permute,
    "all-reduce": lambda: None, "reduce-scatter": lambda: None,
}  # fmt: skip


def leaves_of(tree: Tree) -> list[Tree]:
    """Return the elements of a nested tuple, in order."""
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves_of(part)]
    return [tree]


def _nested(like: Tree, leaves: Sequence[Tree]) -> Tree:
    """Return leaves in the form of a nested tuple."""
    rest = iter(leaves)

    def build(part: Tree) -> Tree:
        return tuple(map(build, part)) if isinstance(part, tuple) else next(rest)

    return build(like)


def result_tree(one: HloInstruction) -> Tree:
    """Return the tuple that an instruction returns, without values."""
    return (None,) * len(one.leaves) if len(one.leaves) > 1 else None


def _single(results: tuple[View, ...]) -> Tree:
    return results[0] if len(results) == 1 else results
