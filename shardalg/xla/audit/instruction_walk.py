"""Both programs, instruction by instruction: first before partitioning, then on the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.block_checks import Tree, block_of, blocks_of, check_block
from shardalg.xla.audit.hlo_attributes import (
    called,
    combination,
    groups_of,
    shardings_of,
)
from shardalg.xla.audit.operators.index_matching import index_rule
from shardalg.xla.audit.operators.operator_loops import POINTWISE
from shardalg.xla.audit.operators.operator_matching import match_operator
from shardalg.xla.audit.operators.operator_table import OperatorTable
from shardalg.xla.audit.trace_back import losing_move
from shardalg.xla.audit.values import known_values
from shardalg.xla.audit.values.data_moves import MOVES, select
from shardalg.xla.audit.values.element_views import (
    Known,
    Origin,
    Value,
    View,
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
    ArrayPool,
    AuditFinding,
    PerDevice,
    RefutedError,
    Shown,
    UnknownError,
)

_SAME = (
    "copy", "bitcast", "opt-barrier", "optimization-barrier", "domain", "copy-start", "copy-done",
    "all-gather-done", "all-reduce-done", "collective-permute-done", "async-done", "async-update",
    "all-to-all-done", "reduce-scatter-done", "add-dependency",
)  # fmt: skip
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
                for operand in one.operands if error.shown.wanted else ():
                    self.trace(name, operand, error)
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
            self.rows[key] = replace(self.rows[key], status="refuted", finding=error)
            for operand in self.module.computations[key[0]][key[1]].operands:
                self.trace(key[0], operand, error)

    def trace(self, computation: str, start: str, error: AuditFinding) -> None:
        """Refute the move of data that first lost an element that a refuted value should have.

        Args:
          start: the instruction whose value is wrong.
        """
        if error.origin is not None:
            return
        body = self.module.computations[computation]

        def value_of(name: str) -> Tree:
            row = self.rows.get((computation, name))
            return row.holds if row else None

        for base, element in error.shown.wanted:
            wanted = (base, element, error.device)
            move = losing_move(body, value_of, start, wanted, self.pool.devices)
            if move is not None:
                why = "loses an element that a later instruction needs"
                shown = Shown((), (base, element), "no place with this element")
                lost = RefutedError(why, error.device, shown=shown)
                key = (computation, move.name)
                if self.rows[key].status != "refuted":
                    self.rows[key] = replace(self.rows[key], status="refuted", finding=lost)

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
            check_block(self.pool, mine, theirs, blocks[number], what)
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
