"""A plan compared with XLA's partitioning of the same function: shardings by value, bytes by line.

XLA's log is read for "involuntary full rematerialization" (spmd_partitioner.cc): XLA has no
reshard between two shardings, so every device gathers the whole tensor and keeps one block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isclose
from typing import TYPE_CHECKING, Any

from shardalg.costs.collectives import MovedValue
from shardalg.errors import ShardalgError
from shardalg.graph.ir import Graph
from shardalg.graph.modules import modules
from shardalg.graph.tracing.parts import installed_partitioner
from shardalg.lower.xla_dump.hlo_collectives import layout
from shardalg.lower.xla_dump.hlo_collectives import table as hlo_table
from shardalg.lower.xla_dump.hlo_text import parse_leaves
from shardalg.plan.explain.why_not import annotated_as
from shardalg.plan.running import bound
from shardalg.planner.stages import Stages, planned
from shardalg.planner.trials import TrialOutcome, Trials
from shardalg.planner.trips import while_loops
from shardalg.show import tables
from shardalg.show.tables import beside, collectives
from shardalg.sizes.amounts import number
from shardalg.tables import Answer, Parts, Table, bytes_text
from shardalg.xla.align import Match, matches
from shardalg.xla.dump import Completion, ask, node_of

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

_WARNING = re.compile(
    r"Involuntary full rematerialization\. The compiler (?:cannot|was not able to) go from "
    r"sharding (?P<source>\{.*?\}) to (?:sharding )?(?P<target>\{.*?\}) (?:efficiently|without)"
    r".*? HLO operation:? %?(?P<name>\S+) = (?P<type>\S+) (?P<opcode>[\w-]+)\((?P<rest>.*)"
)
_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True)
class Rematerialized:
    """One warning of XLA about a tensor that it replicates between two shardings.

    Attributes:
      instruction, opcode, op_name: XLA's names of the tensor.
      shape: the shape of a device's part. source, target: HLO text of the shardings.
    """

    instruction: str
    opcode: str
    op_name: str
    shape: tuple[int, ...]
    source: str
    target: str


def rematerialized(log: str) -> tuple[Rematerialized, ...]:
    """Return the warnings in XLA's log of a compilation, in order, each once.

    >>> (found,) = rematerialized(
    ...     "W1 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler "
    ...     "cannot go from sharding {devices=[2,1]<=[2]} to {devices=[1,2]<=[2]} efficiently for "
    ...     'HLO operation %add.2 = f32[8,4]{1,0} add(%a, %b), metadata={op_name="f/node3/add"}. '
    ...     "As the last resort, SPMD will replicate the tensor."
    ... )
    >>> found.shape, found.source, found.op_name
    ((8, 4), '{devices=[2,1]<=[2]}', 'f/node3/add')
    """
    return tuple(dict.fromkeys(_read(log)))


def _read(log: str) -> Iterator[Rematerialized]:
    """Yield the warnings about replicated tensors in XLA's log, in order, with repetitions."""
    for found in filter(None, map(_WARNING.search, log.splitlines())):
        # The metadata names the operator of the function, the instruction name does not.
        named = _NAME.search(found["rest"])
        ((_, shape), *_) = parse_leaves(found["type"])
        op_name = named[1] if named else ""
        what = found["name"], found["opcode"], op_name, shape
        yield Rematerialized(*what, found["source"], found["target"])


VERDICTS = ("agree", "ours better", "XLA better", "even")
VALUE_COLUMNS = (
    "value", "kind", "sharding", "xla_sharding", "verdict", "wire_bytes", "xla_wire_bytes",
)  # fmt: skip
LINE_COLUMNS = (
    "source", "phase", "collectives", "xla_collectives", "verdict", "wire_bytes",
    "xla_wire_bytes", "rows",
)  # fmt: skip
REMATERIALIZED_COLUMNS = (
    "value", "source", "phase", "from_sharding", "to_sharding", "whole_bytes", "wire_bytes", "rows",
)  # fmt: skip
_WHOLE = ("all_gather", "all_reduce")
_WARNED = (
    'XLA warns of "involuntary full rematerialization": between these two shardings it replicates '
    "the whole tensor, and splits it again. `rows` are our collectives of the same value."
)
ROW_COLUMNS = (
    "what", "place", "this", "xla", "verdict", "wire_bytes", "xla_wire_bytes",
)  # fmt: skip


@dataclass(frozen=True, repr=False, eq=False)
class BesideXla(Answer):
    """A plan compared with XLA's partitioning of the same function under the same annotations.

    Bytes are per device and step. An all_reduce of XLA of which a device keeps one block counts as
    a reduce_scatter, because TPUs and GPUs run it so.

    Attributes:
      partitioner: "gspmd" or "shardy".
      found: the values without an annotation that XLA's dump shows, with both shardings.
      told: the result of XLA's partitioner.
    """

    partitioner: str
    found: tuple[Match, ...]
    told: Completion
    _trials: Trials
    _apart: Callable[[], Completion]

    @cached_property
    def values(self) -> Table:
        """A row per value without an annotation: our sharding, XLA's sharding and a verdict.

        If the shardings differ, `xla_wire_bytes` are the bytes that our plan would send if the
        value were annotated with XLA's sharding. Fewer bytes are better, then a smaller shard.
        """
        return Table(VALUE_COLUMNS, tuple(map(self._value_row, self.found)))

    @cached_property
    def lines(self) -> Table:
        """Collectives of both programs per source line and phase, with their wire bytes.

        `rows` are the numbers of our collectives in `plan.collectives()`, for `plan.explain`.
        """
        return Table(LINE_COLUMNS, tuple(_lines(self._trials.stages, self.told)))

    @cached_property
    def modules(self) -> Table:
        """Collectives of both programs per module of the function; equal modules share a row.

        `verdict` is as in `lines`. The row "(unknown line)" has the collectives that name no line.
        They may belong to any module. So a module has a verdict only if all of them together would
        not change it.
        """
        stages = self._trials.stages
        graph, xla_graph = stages.graph, self.told.graph or stages.graph
        our_owners, xla_owners = modules(graph), modules(xla_graph)
        # The owner of a node is its module. An entry is (owners, node, amounts): first our
        # collectives, then XLA's. Amounts are added by module, so each side has zeros in the other
        # one's places: executions of both, then bytes of both.
        sides = [
            *((our_owners, _node(stages, m), (m.step.count, 0, m.step.count * m.wire_bytes, 0))
              for m in stages.traffic.collectives),
            *((xla_owners, node_of(c.op_name, xla_graph), (0, c.count, 0, c.count * c.wire_bytes))
              for c in self.told.collectives),
        ]  # fmt: skip
        rows = ((UNPLACED if n is None else owners[n], (), amounts) for owners, n, amounts in sides)
        columns = (
            "module", "executions", "xla_executions", "wire_bytes_per_step",
            "xla_wire_bytes_per_step",
        )  # fmt: skip
        module_table = tables.table(columns, tables.summed(rows))
        sent = {row[0]: (row[3], row[4]) for row in module_table.rows}
        # XLA's collectives inside a `shard_map` carry no operator name. They may belong to any
        # line, so every verdict takes their bytes into account.
        unplaced = sent.get(UNPLACED, (0, 0))
        judged_rows = (
            (*row, "" if row[0] == UNPLACED else _line_verdict(row[0], sent[row[0]], unplaced))
            for row in module_table.rows
        )
        return Table((*columns, "verdict"), tuple(judged_rows))

    @cached_property
    def kinds(self) -> Table:
        """Collectives of both programs by kind and axes, and their sums."""
        stages = self._trials.stages
        return beside(collectives(stages.program, stages.graph), hlo_table(self.told.collectives))

    @cached_property
    def rematerialized(self) -> Table:
        """Tensors that XLA replicates to reshard them, from its own warnings.

        A row has the shardings before and after. `rows` are the collectives of our plan that move
        the same value, and `wire_bytes` their bytes. `whole_bytes` is the size of the tensor: a
        device receives all of it except its own block. If XLA's log is not known yet, XLA runs
        again in another process, unless its program has no all-gathers and all-reduces.
        """
        # XLA can replicate a tensor only by an all-gather or an all-reduce. Without them, no
        # warning is possible, and the slow second process is not started.
        moves = any(c.kind in _WHOLE for c in self.told.collectives)
        log = (self.told.log if self.told.log is not None else self._apart().log) if moves else ""
        stages = self._trials.stages
        xla_graph = self.told.graph or stages.graph
        rows = (
            _rematerialized_row(stages, xla_graph, found) for found in rematerialized(log or "")
        )
        return Table(REMATERIALIZED_COLUMNS, tuple(rows))

    @property
    def wire_bytes(self) -> int | float:
        """Bytes that our plan sends per device and step."""
        return number(self._trials.now.wire_bytes)

    @property
    def xla_wire_bytes(self) -> int | float:
        """Bytes that XLA's program sends per device and step."""
        return number(sum(c.wire_bytes * c.count for c in self.told.collectives))

    @property
    def table(self) -> Table:
        """All rows, with their kind ("value", "collectives"), place, both sides, verdict and bytes.

        A "rematerialized" row has the two shardings of a warning in place of ours and XLA's.
        """
        rows = [("value", *(r[n] for n in VALUE_COLUMNS if n != "kind")) for r in self.values]
        # The three tables have other columns for the same things: place, both sides, verdict,
        # bytes.
        for r in self.lines:
            where = f"{r['source']} ({r['phase']})"
            rows.append(("collectives", where, *(r[name] for name in LINE_COLUMNS[2:7])))
        for r in self.rematerialized:
            layouts = (r["from_sharding"], r["to_sharding"])
            where = f"{r['value']} ({r['phase']})"
            sent = (r["wire_bytes"], r["whole_bytes"])
            rows.append(("rematerialized", where, *layouts, "", *sent))
        return Table(ROW_COLUMNS, tuple(rows))

    def parts(self) -> Parts:
        """Return the bytes of both programs, shardings that differ, and collectives by line."""
        # `_agreement` counts equal shardings in a sentence, so the table lists only the others.
        differ = Table(VALUE_COLUMNS, tuple(r for r in self.values.rows if r[4] != "agree"))
        warned = (_WARNED, self.rematerialized) if len(self.rematerialized) else ()
        head = (self._headline(), *self._gathered_once(), self.kinds, self._agreement(), differ)
        return (*head, *warned, "By line:", self.lines)

    def _headline(self) -> str:
        """Return a sentence with the bytes that both programs send, per device and step.

        A second sentence names `while` loops whose number of iterations is not known.
        """
        ours, theirs = self.wire_bytes, self.xla_wire_bytes
        ratio = _ratio(ours, theirs)
        unknown = [w for w in while_loops(self._trials.stages.graph) if w.iterations is None]
        note = ""
        if unknown:
            loops = ", ".join(w.key for w in unknown)
            note = f" `while` loops of unknown length count as one iteration: {loops}."
        return (
            f"{bytes_text(ours)} sent per device and step; XLA ({self.partitioner}) sends "
            f"{bytes_text(theirs)}{ratio}, on {self.told.mesh!r}.{note}"
        )

    def _gathered_once(self) -> Iterator[str]:
        """Yield a sentence about the option `keep_gathers=True`, if it sends fewer bytes.

        The planner frees gathered weights after the forward pass to save memory, and gathers them
        again. XLA may keep them instead.
        """
        trials, stages = self._trials, self._trials.stages
        # Planning again is worthwhile only if copies are freed now and XLA sends less.
        if trials.options.keeping(stages.traced.roles) or self.wire_bytes <= self.xla_wire_bytes:
            return
        options = replace(trials.options, keep_gathers=True)
        outcome = TrialOutcome.of(planned(stages.traced, stages.annotations, options))
        if outcome.wire_bytes < self.wire_bytes:
            sent, peak = bytes_text(outcome.wire_bytes), bytes_text(outcome.peak_memory_bytes)
            yield (
                "The backward pass gathers values again that the forward pass gathered and freed; "
                f"XLA keeps the copies. Options(keep_gathers=True) sends {sent}, with peak memory "
                f"{peak} instead of {bytes_text(trials.now.peak_memory_bytes)}."
            )

    def _agreement(self) -> str:
        """Return a sentence: how many values have XLA's sharding, and counts of other verdicts.

        Only values without an annotation count, because completion has no choice at the others.
        """
        counts = {name: self.values["verdict"].count(name) for name in VERDICTS}
        # The first verdict is "agree".
        agree, *others = counts.items()
        rest = ", ".join(f"{n} {name}" for name, n in others if n)
        if not self.found:
            return "Every value is annotated, or not in XLA's dump: no shardings to compare."
        equal = f"{agree[1]} of {len(self.found)} values without annotation have XLA's sharding"
        return f"{equal}; {rest}." if rest else f"{equal}."

    def _value_row(self, match: Match) -> tuple[object, ...]:
        """Return the row of one value: names, both shardings, verdict, and the bytes sent by each.

        Bytes are None if both shardings agree, because then there is nothing to compare. Otherwise
        they are those of our plan as it is, and of our plan with XLA's sharding of the value.
        """
        names = (match.name, match.kind, match.ours.text(), match.theirs.text())
        if match.agrees:
            return (*names, "agree", None, None)
        # The fair comparison is our own planner with XLA's sharding of this one value.
        bytes_now = self.wire_bytes
        stages = self._trials.stages
        # All dimensions are closed, so that completion does not refine XLA's sharding.
        xla_sharding = replace(match.theirs, unspecified_dims=())
        bytes_then = number(
            self._trials.outcome(annotated_as(stages, match.value, xla_sharding)).wire_bytes
        )
        # At equal bytes, the smaller shard is better, because it needs less memory.
        ranks = (
            (bytes_now, _held(match.ours.shard_shape)),
            (bytes_then, _held(match.theirs.shard_shape)),
        )
        return (*names, _verdict(*ranks), bytes_now, bytes_then)


def _ratio(ours: float, theirs: float) -> str:
    """Return how many times more or less XLA sends, in parentheses; "" without bytes or ratio.

    >>> _ratio(64, 512), _ratio(96, 64), _ratio(64, 64), _ratio(0, 64)
    (' (8x more)', ' (1.5x less)', ' (the same)', '')
    """
    if not ours or not theirs:
        return ""
    if ours == theirs:
        return " (the same)"
    more = theirs > ours
    return f" ({max(ours, theirs) / min(ours, theirs):.3g}x {'more' if more else 'less'})"


def compare(trials: Trials, told: Completion, apart: Callable[[], Completion]) -> BesideXla:
    """Return the comparison of a plan with XLA's result for its graph and annotations.

    Args:
      told: XLA's result: its module, its collectives, and its log.
      apart: runs XLA again, in another process.
    """
    found = matches(trials.stages.sharded, told.module, told.results)
    return BesideXla(told.partitioner, found, told, trials, apart)


def compared(
    plan: Plan,
    partitioner: str | None,
    *,
    apart: bool,
    fn: Callable[..., Any] | None,
    args: Sequence[Any] | None,
) -> BesideXla:
    """Ask XLA for its partitioning, and compare a plan with it; see `Plan.compare_xla`.

    The plan remembers the wire bytes of XLA's program for `Plan.beside_jit`.

    Raises:
      LoweringError: this jax lacks the partitioner, XLA ends without an answer, or the mesh has one
        device.
    """
    traced = bound(plan, fn, args)
    # XLA partitions the function as it is written: the planner's own rewrite of transforms into
    # stages is not part of the question.
    graph = traced.whole or traced.graph
    partitioner_name = installed_partitioner() if partitioner is None else partitioner
    question = (graph, plan._annotations, partitioner_name)
    answer = ask(*question, () if apart else None)
    comparison = compare(plan._trials, answer, partial(ask, *question, ()))
    plan._told[partitioner_name] = comparison.xla_wire_bytes
    return comparison


def _rematerialized_row(stages: Stages, graph: Graph, found: Rematerialized) -> tuple[object, ...]:
    """Return the row of `BesideXla.rematerialized` for one warning of XLA.

    XLA warns if it replicates a whole tensor to reshard it. The row has the value, its line and
    phase, both shardings, the bytes of the whole tensor, and what the plan sends there instead.

    Args:
      graph: the graph that XLA compiled.
      found: the warning, with XLA's names and shardings as text.
    """
    node = node_of(found.op_name, graph)
    producer = None if node is None else graph.nodes[node]
    value = None if producer is None else producer.results[0]
    # A warning that names no operator of the function keeps XLA's own names.
    name, shape, whole_bytes = found.instruction, found.shape, None
    if value is not None:
        name, shape = graph.values[value].name, graph.values[value].type.shape
        whole_bytes = _held(shape) * graph.values[value].type.itemsize
    texts = []
    for text in (found.source, found.target):
        # XLA's text stays if the sharding has no axes of the mesh, or is of a reshaped tensor.
        try:
            sharding = layout(text, shape, stages.mesh)
        except ShardalgError:
            sharding = None
        texts.append(text if sharding is None else sharding.text())
    our_values = stages.graph.values
    our_moves = stages.traffic.collectives if value is not None else ()
    # XLA may have compiled another graph than the planned one, so values are matched by name.
    same_value = [m for m in our_moves if our_values[m.value].name == name]
    sent_bytes = number(sum(m.step.count * m.wire_bytes for m in same_value))
    line, phase = ("", "") if producer is None else (producer.source, producer.phase)
    rows = ", ".join(str(m.number) for m in same_value)
    return (name, line, phase, *texts, whole_bytes, sent_bytes, rows)


def _held(shape: Iterable[int]) -> int:
    """Return the number of elements of an array or a block."""
    size = 1
    for extent in shape:
        size *= extent
    return size


def _verdict(ours: Any, theirs: Any) -> str:
    """Return which of two numbers of bytes or elements is better, the plan's or XLA's."""
    # Bytes can be fractions, such as thirds, whose floats differ in the last digits.
    if ours == theirs or (type(ours) is float and isclose(ours, theirs)):
        return "even"
    return "ours better" if ours < theirs else "XLA better"


Line = tuple[str, str]
"""Source line and phase, because one line has operators of the forward and the backward pass."""
NO_LINE: Line = ("", "")
# XLA's collectives inside a `shard_map` name no operator, so they share one row under this name.
UNPLACED = "(unknown line)"


def _lines(stages: Stages, told: Completion) -> Iterator[tuple[object, ...]]:
    """Yield a row per source line and phase, in program order, with our collectives and XLA's.

    A row has the line, the phase, both sides' kinds of collectives with their axes, the verdict,
    the bytes that each side sends, and the numbers of our collectives.
    """
    # The planner may have rewritten its graph, so XLA's operators are looked up in the graph that
    # XLA compiled. Both graphs have the same source lines. `ours` and `theirs` have the collectives
    # of each line.
    graph, xla_graph = stages.graph, told.graph or stages.graph
    ours = _grouped((_line(graph, _node(stages, m)), m) for m in stages.traffic.collectives)
    theirs = _grouped(
        (_line(xla_graph, node_of(c.op_name, xla_graph)), c) for c in told.collectives
    )
    # Bytes per device and step: (ours, XLA's).
    sums = {
        line: (
            number(sum(m.step.count * m.wire_bytes for m in ours.get(line, []))),
            number(sum(c.count * c.wire_bytes for c in theirs.get(line, []))),
        )
        for line in sorted({**ours, **theirs}, key=_order(graph))
    }
    unplaced = sums.get(NO_LINE, (0, 0))
    for line, (sent, xla_sent) in sums.items():
        our_moves, xla_moves = ours.get(line, []), theirs.get(line, [])
        names = (
            _named(f"{m.alike[0]} {','.join(stages.mesh.texts(m.digits))}" for m in our_moves),
            # If every device keeps only one block of an all_reduce, TPUs and GPUs run it as a
            # reduce_scatter. Our program has the same name for it.
            _named(
                f"{'reduce_scatter' if c.is_scattered else c.kind} {','.join(c.axes)}"
                for c in xla_moves
            ),
        )
        # Equal bytes do not mean equal programs: "agree" also needs equal kinds and axes.
        verdict = _line_verdict(line, (sent, xla_sent), unplaced)
        rows = ", ".join(str(m.number) for m in our_moves)
        is_same = verdict == "even" and names[0] == names[1]
        yield (*line, *names, "agree" if is_same else verdict, sent, xla_sent, rows)


def _line_verdict(line: Line | str, sent: tuple[Any, Any], unplaced: tuple[Any, Any]) -> str:
    """Return who sends less for a line or a module; "" if bytes without a line could change it.

    Inside a `shard_map`, XLA's collectives do not name their operator. They may belong to any line,
    so that a line has a verdict only if all of them together would not change it. Equal bytes are
    always "even".

    Args:
      sent: bytes of the plan and of XLA for the line.
      unplaced: bytes of the plan and of XLA in collectives that name no line.
    """
    ours, theirs = sent
    verdict = _verdict(ours, theirs)
    if verdict == "even":
        return verdict
    if line == NO_LINE:
        return ""
    # Worst case for the side that seems better: all its unplaced bytes belong to this line.
    if verdict == "XLA better":
        return verdict if ours > theirs + unplaced[1] else ""
    return verdict if ours + unplaced[0] < theirs else ""


def _grouped(pairs: Iterable[tuple[Line, object]]) -> dict[Line, list]:
    """Return the second items of pairs by source line, in the given order."""
    found: dict[Line, list] = {}
    for line, thing in pairs:
        found.setdefault(line, []).append(thing)
    return found


def _node(stages: Stages, moved: MovedValue) -> int | None:
    """Return the operator to which XLA attributes a collective.

    A pending sum belongs to the operator that made its parts, wherever it is reduced. A move of a
    result of the function belongs to the operator that made the value.
    """
    made, program = stages.traffic.made_by, stages.program
    local, node = moved.step.instruction.operands[0], moved.step.instruction.node
    # A pending sum can pass through other operators before it is reduced, but XLA names the first
    # operator that made parts of it.
    while program.locals[local].sharding.unreduced and local in made:
        node = made[local].node
        parts = [o for o in made[local].operands if program.locals[o].sharding.unreduced]
        if not parts:
            return node
        local = parts[0]
    return stages.graph.producer[moved.value] if node is None else node


def _line(graph: Graph, node: int | None) -> Line:
    return NO_LINE if node is None else (graph.nodes[node].source, graph.nodes[node].phase)


def _order(graph: Graph) -> Callable[[Line], int]:
    """Return a function from a source line to its place in the program; unknown lines are last."""
    places: dict[Line, int] = {}
    for node in graph.walk():
        places.setdefault((node.source, node.phase), len(places))
    return lambda line: places.get(line, len(places))


def _named(names: Iterable[str]) -> str:
    """Return texts of collectives (kind and axes) as one text, each once with its count.

    >>> _named(["all_gather X", "all_reduce Y", "all_gather X"])
    '2 all_gather X, all_reduce Y'
    """
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{n} {name}" if n > 1 else name for name, n in sorted(counts.items()))
