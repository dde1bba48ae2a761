"""Warnings about operators that are not partitioned, and about effects that are left out."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from shardalg.costs.collectives import moves, wire_bytes
from shardalg.costs.walk import Execution, sent_bytes, walk
from shardalg.graph.ir import Graph, Node
from shardalg.graph.ops.local_parameters import unsupported_loops
from shardalg.graph.ops.rows import EXCLUDED, rules
from shardalg.graph.ops.rule import Rule
from shardalg.planner.trips import while_loops
from shardalg.sizes.amounts import number
from shardalg.spmd.instructions import GATHERS
from shardalg.spmd.manual import USER_COLLECTIVES
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Table, bytes_text

WARNING_COLUMNS = (
    "op", "source", "executions", "wire_bytes_per_step", "warning", "remedy",
    "redundant_flops",
)  # fmt: skip


def warnings(program: SpmdProgram, graph: Graph) -> Table:
    """Return the operators that are not partitioned as they could be, with the bytes they send.

    An operator without a row in the table of operators runs on whole operands. A loop that cannot
    be partitioned yet is gathered. Results are correct in both cases. `wire_bytes_per_step` is per
    device: the sum over all executions and all collectives that the operator causes.
    """
    gathers: dict[int, list[Execution]] = {}
    for step in walk(program):
        if step.instruction.node is not None:
            gathers.setdefault(step.instruction.node, []).append(step)
    found = (_warning(program, graph, node, gathers.get(node.index, [])) for node in graph.walk())
    return Table(WARNING_COLUMNS, tuple(row for row in found if row is not None))


def left_out(graph: Graph) -> Table:
    """Return a row per line with an effect or a host copy that the plan leaves out.

    >>> import jax
    >>> from shardalg.graph.tracing.trace import trace
    >>> def step(x):
    ...     jax.debug.print("{}", x)
    ...     return 2 * x
    >>> row = left_out(trace(step, 1.0)).rows[0]
    >>> row[0], row[1].endswith(":2"), row[4]
    ('debug_print', True, 'its effect is left out: no device runs it')
    """
    # Effects of one source line share a row, however often the line was traced.
    counts: Counter[tuple[str, str]] = Counter()
    for effect in graph.left_out:
        counts[effect.primitive, effect.source] += effect.count
    rows = (
        (*place, count, 0, *(_ON_HOST if place[0] == "device_put" else _EFFECT), 0)
        for place, count in counts.items()
    )
    return Table(WARNING_COLUMNS, tuple(rows))


def unknown_trips(program: SpmdProgram, graph: Graph) -> Table:
    """Return a row per `while` loop whose number of iterations is unknown, with its symbol.

    `wire_bytes` counts one iteration in each of the loop's executions.

    >>> import jax
    >>> import shardalg as sa
    >>> from jax.sharding import PartitionSpec as P
    >>> f = lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: 2 * x, x)
    >>> x = jax.ShapeDtypeStruct((8,), "float32")
    >>> plan = sa.plan(f, x, mesh=sa.Mesh({"X": 2}), in_shardings=P("X"))
    >>> row = unknown_trips(plan.program, plan.graph).rows[0]
    >>> row[0], row[2:4], row[4]
    ('while', (1, 4), 'the number of iterations, trips_1, is unknown; each sends 4 B: ...')
    """
    # Only loops of unknown length need the walk over the program.
    unknown = [loop for loop in while_loops(graph) if loop.iterations is None]
    steps = list(walk(program)) if unknown else []
    rows = []
    for loop in unknown:
        inside = (s for s in steps if any(one.node == loop.node.index for one in s.loops))
        sent = sum(step.count * _sent(program, step) for step in inside if moves(step))
        trips = graph.trip_count(loop.node)
        each = bytes_text(number(Fraction(sent) / max(trips, 1)))
        text = (
            f"the number of iterations, {loop.name}, is unknown; each sends {each}: bytes, flops "
            "and seconds are per iteration, and totals of a step count one iteration"
        )
        rows.append(("while", loop.node.source, trips, number(sent), text, loop.remedy, 0))
    return Table(WARNING_COLUMNS, tuple(rows))


_EFFECT = (
    "its effect is left out: no device runs it",
    "return the values that it shows, or call it outside the function",
)
_ON_HOST = (
    "its copy to the host is left out: the value stays on the device, and counts in the peak "
    "memory",
    "subtract its bytes from the peak memory, or keep it on the device",
)


def unread(graph: Graph) -> Table:
    """Return one row about traced operators that no result needs; none if they are few.

    >>> import jax
    >>> import shardalg as sa
    >>> def step(params, x):
    ...     gradient = jax.grad(lambda params: (x @ params["w"]).sum())(params)
    ...     params["w"] = params["w"] - gradient["w"]
    >>> x = jax.ShapeDtypeStruct((4, 4), "float32")
    >>> plan = sa.plan(step, {"w": x}, x, mesh=sa.Mesh({"X": 2}))
    >>> unread(plan.graph).rows[0][4]
    "... traced operators (100%) are needed by no result, ...; params['w'] is changed in place ..."
    """
    found = graph.unread
    if found is None:
        return Table(WARNING_COLUMNS, ())
    share = found.count / found.total
    text = f"{found.count} of {found.total} traced operators ({share:.0%}) are needed by no result"
    text += f", {found.gradients} of them gradients" if found.gradients else ""
    text += ": the plan leaves them out"
    if found.lost:
        verb = "is" if len(found.lost) == 1 else "are"
        text += f"; {', '.join(found.lost[:3])} {verb} changed in place and not returned"
    remedy = "return their results, such as the new state, or remove them from the function"
    row = ("unread", found.source, found.count, 0, text, remedy, 0)
    return Table(WARNING_COLUMNS, (row,))


def _warning(
    program: SpmdProgram, graph: Graph, node: Node, steps: list[Execution]
) -> tuple[object, ...] | None:
    """Return the warning about an operator that is not partitioned; None if it needs no warning.

    An operator is partitioned by its row, which declares its loops. It has no row, or a row with
    loops that shardalg cannot partition yet.

    Args:
      steps: the instructions of the program that belong to the operator.
    """
    rows = None if node.bodies else rules(node.signature)
    # Loops and branches (with bodies) and the user's own collectives have no row on purpose, and a
    # row without such a loop is partitioned.
    if (
        node.bodies
        or node.primitive in USER_COLLECTIVES
        or (rows is not None and not any(map(_split_later, rows)))
    ):
        return None
    # Without a row, shardalg knows nothing about the operator, so all its moves are due to that.
    if rows is None:
        reason = EXCLUDED.get(node.primitive, "it has no row, and JAX traces no body of it")
        caused, sends = steps, any(_sent(program, step) for step in steps)
        if not sends and (graph.manual_axes(node.region) or graph.block_axes):
            return None  # inside a shard_map each device runs it on its own blocks, as it must
        what = "its operands are gathered whole" if sends else "every device runs all of it"
        text = f"{what}: {reason}"
        remedy = "not tried: leave them unsharded, or add a row (docs/adding_an_operator.md)"
    # With a row, only the gathers along loops that cannot be partitioned yet are due to that.
    else:
        caused = [step for step in steps if _along(program, node, rows[0], step)]
        loops = sorted(_split_later(rows[0]))
        text = f"loop {', '.join(loops)} is gathered: it cannot be partitioned yet"
        remedy = (
            "not tried: leave that dimension unsharded, or extend "
            "shardalg/graph/ops/local_parameters.py"
        )
    total_bytes = sum(step.count * _sent(program, step) for step in caused)
    # A loop over an unsharded dimension stays whole without traffic, so a warning would be noise.
    if rows is not None and not total_bytes:
        return None
    trips = graph.trip_count(node)
    return (node.primitive, node.source, trips, number(total_bytes), text, remedy, 0)


def _split_later(rule: Rule) -> frozenset[str]:
    """Return the loops that the operator allows to be partitioned, and shardalg does not yet."""
    return unsupported_loops(rule) - rule.whole - rule.local


def _sent(program: SpmdProgram, step: Execution) -> int | float:
    held = sent_bytes(program, step.instruction)
    return wire_bytes(step.instruction.attributes, held)


def _along(program: SpmdProgram, node: Node, rule: Rule, step: Execution) -> bool:
    """Return whether an instruction gathers an operand of `node` along a loop of `_split_later`.

    Such a loop could be partitioned, but shardalg does not partition it yet.

    Args:
      rule: the row of RULES of the node.
    """
    attributes = step.instruction.attributes
    if not isinstance(attributes, GATHERS):
        return False
    # A gather names dimensions of a tensor, but a row names loops. So the gathered value is found
    # among the operands, and its gathered dimensions give their loops by the row.
    origin = program.locals[step.instruction.operands[0]].origin
    positions = [k for k, value in enumerate(node.operands) if value == origin]
    dims = (rule.operands.get(k, ()) for k in positions)
    indices = (index[d] for index in dims for d in attributes.dims if d < len(index))
    return any(_split_later(rule) & set(index.variables) for index in indices)
