"""Tables of reasons: why a value is sharded as it is, and what a plan does in a roundabout way."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from shardalg.costs.collectives import wire_bytes
from shardalg.costs.cost import number
from shardalg.costs.walk import Step, local_bytes, walk
from shardalg.errors import StrategyError
from shardalg.graph.ir import Graph, Node
from shardalg.ops.emit import unsupported_loops
from shardalg.ops.excluded import EXCLUDED
from shardalg.ops.rule import Rule
from shardalg.ops.table import rules
from shardalg.spmd.program import AllGather, SpmdProgram
from shardalg.table import Table

if TYPE_CHECKING:
    from shardalg.propagate.sharded import Reason, ShardedGraph

WARNING_COLUMNS = ("op", "source", "count", "wire_bytes", "warning", "remedy")
EXPLANATION_COLUMNS = ("depth", "value", "sharding", "why", "source")


def explanation(sharded: ShardedGraph, value: str) -> Table:
    """Why a value has its layout: each step that gave it, back to the annotations.

    Row 0 is the value's last change; deeper rows are those of the values whose layouts it took, as
    they were at that moment.

    Raises:
      StrategyError: no value has that name.
    """
    graph = sharded.graph
    start = _named(graph, value)
    rows = [
        (
            depth,
            graph.values[reason.value].name,
            reason.layout.text(),
            reason.text(graph),
            "" if reason.node is None else graph.nodes[reason.node].source,
        )
        for depth, reason in _chain(sharded, start)
    ]
    return Table(EXPLANATION_COLUMNS, tuple(rows))


def _named(graph: Graph, name: str) -> int:
    found = {value.name: value.index for value in graph.values}
    if name not in found:
        near = get_close_matches(name, found, n=5, cutoff=0.5) or list(found)[:5]
        raise StrategyError(
            f"no value is called {name!r}; near it are {', '.join(map(repr, near))}. "
            "plan.shardings() lists the names of all values."
        )
    return found[name]


def _chain(sharded: ShardedGraph, start: int) -> Iterator[tuple[int, Reason]]:
    """(depth, reason), a value's sources right below it, each value once."""
    changes: dict[int, list[tuple[int, Reason]]] = {}
    for moment, reason in enumerate(sharded.history):
        changes.setdefault(reason.value, []).append((moment, reason))
    if start not in changes:
        yield 0, sharded.reasons[start]
    waiting, seen = [(0, start, len(sharded.history))], set()
    while waiting:
        depth, value, before = waiting.pop()
        earlier = [change for change in changes.get(value, ()) if change[0] < before]
        if not earlier or earlier[-1][0] in seen:
            continue
        moment, reason = earlier[-1]
        seen.add(moment)
        yield depth, reason
        waiting += [(depth + 1, source, moment) for source in reversed(reason.sources)]


def warnings(program: SpmdProgram, graph: Graph) -> Table:
    """Operators that are not partitioned as they could be, and the bytes that this sends.

    An operator without a row runs on whole operands; a loop that no emission splits yet is
    gathered. Both give right results. `wire_bytes` is per device and step, over all `count`
    executions and all collectives that the operator causes.
    """
    gathers: dict[int, list[Step]] = {}
    for step in walk(program):
        if step.instruction.node is not None:
            gathers.setdefault(step.instruction.node, []).append(step)
    found = (_warning(program, graph, node, gathers.get(node.index, [])) for node in graph.walk())
    return Table(WARNING_COLUMNS, tuple(row for row in found if row is not None))


def _warning(
    program: SpmdProgram, graph: Graph, node: Node, steps: list[Step]
) -> tuple[object, ...] | None:
    rows = None if node.bodies else rules(node.signature)
    if node.bodies or (rows is not None and not any(map(_split_later, rows))):
        return None
    if rows is None:
        reason = EXCLUDED.get(node.primitive, "it has no row")
        caused, text = steps, f"its operands are gathered whole: {reason}"
        remedy = "leave them unpartitioned, or add a row (docs/adding_an_operator.md)"
    else:
        caused = [step for step in steps if _along(program, node, rows[0], step)]
        loops = sorted(_split_later(rows[0]))
        text = f"loop {', '.join(loops)} is gathered: no emission splits it yet"
        remedy = "leave that dimension unpartitioned, or extend shardalg/ops/emit.py"
    moved = sum(step.count * _sent(program, step) for step in caused)
    if rows is not None and not moved:
        return None
    trips = graph.trip_count(node)
    return (node.primitive, node.source, trips, number(moved), text, remedy)


def _split_later(rule: Rule) -> frozenset[str]:
    """Loops that could be partitioned, but that no emission splits yet."""
    return unsupported_loops(rule) - rule.whole - rule.local


def _sent(program: SpmdProgram, step: Step) -> int | float:
    held = local_bytes(program, step.instruction.operands)
    return wire_bytes(step.instruction.attributes, held)


def _along(program: SpmdProgram, node: Node, rule: Rule, step: Step) -> bool:
    """Whether a step gathers an operand of the node along a loop that is split later."""
    attributes = step.instruction.attributes
    if type(attributes) is not AllGather:
        return False
    origin = program.locals[step.instruction.operands[0]].origin
    positions = [k for k, value in enumerate(node.operands) if value == origin]
    dims = (rule.operands.get(k, ()) for k in positions)
    indices = (index[attributes.dim] for index in dims if attributes.dim < len(index))
    return any(_split_later(rule) & set(index.variables) for index in indices)
