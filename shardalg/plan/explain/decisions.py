"""Differences of two plans: decisions of one function at two sizes, and figures of any two plans.

Values are aligned by their place in the function, or by module and operator. Collectives are
aligned by kind and place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.analyses.peaks import peak_formula
from shardalg.costs.collectives import is_collective
from shardalg.costs.cost import Totals
from shardalg.costs.memory import Liveness, peak_bytes
from shardalg.costs.symbolic import Symbolised
from shardalg.costs.walk import walk
from shardalg.graph.ir import Graph
from shardalg.graph.modules import modules
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.stages import CHANGE_COLUMNS, Stages, priced
from shardalg.show.tables import collectives, region_text
from shardalg.sizes.formula import Formula
from shardalg.sizes.symbolic.retrace import Alignment, Difference
from shardalg.spmd.instructions import Apply
from shardalg.spmd.program import SpmdProgram
from shardalg.tables import Answer, Parts, Table, counted

ChangeRow = tuple[str, str, str, str, str]
BORDER = -1
"""Collectives at the border belong to no node. This number sorts them before all nodes."""


def changes(
    hints: Stages,
    here: Stages,
    named: Symbolised | None,
    *,
    point: Mapping[str, int],
    constant: Difference | None,
) -> Table:
    """Return every decision in which two plans of one function for different sizes differ.

    Args:
      hints: the plan for the first sizes (the hints). here: the plan for the sizes `point`.
      named: the program of the first plan with formulas, if its sizes have names.
      point: the sizes of the second plan, by name.
      constant: the first number that differs between the traces; None if there is none.

    Kinds: "constant" (a size that Python code makes differs), "blocks" (a region was traced again
    because its axis has another size), "divides" (a split is even at only one of both), "part" (an
    axis with another size is used in part), "choice" (the axes on the loops of an operator),
    "sharding" (of a value), "collectives" (kind, dimensions, axes and role at an operator or at the
    border), "peak" (the formula of the peak memory gives another number than this plan), "formula"
    (another formula does). If the traces are different programs, only the first kinds are listed.
    """
    rows: list[ChangeRow] = []
    if constant is not None:
        rows.append((constant.kind, "", constant.source, "", constant.text))
        # Operators of different programs do not correspond, so they cannot be compared.
        if Alignment(hints.graph, here.graph).difference is not None:
            return Table(CHANGE_COLUMNS, tuple(rows))

    # A formula assumes for each sharded dimension whether the axes divide it, as at the hints. An
    # assumption that fails here makes the formulas wrong, although no operator decides otherwise.
    for fact in named.conditions if named else ():
        if not fact.holds(point):
            rows.append((fact.kind, fact.where, "", str(fact), fact.otherwise(point)))

    # Both graphs are of the same function, so their operators have the same numbers.
    first, second = _assignments(hints.program), _assignments(here.program)
    for number in sorted(first.keys() | second.keys()):
        pair = first.get(number, ""), second.get(number, "")
        if pair[0] != pair[1]:
            rows.append(("choice", *place(hints.graph, number), *pair))
    rows += _shardings(hints, here)
    moves, other_moves = _moved(hints.program), _moved(here.program)
    for number in sorted(moves.keys() | other_moves.keys()):
        one, other = ("; ".join(side.get(number, ())) for side in (moves, other_moves))
        if one != other:
            where = ("border", "") if number == BORDER else place(hints.graph, number)
            rows.append(("collectives", *where, one, other))

    # Equal decisions should make the formulas exact; a wrong formula is reported, not hidden.
    if named is not None:
        rows += [*_peak(here, named, point), *_prices(hints, here, named, point)]
    return Table(CHANGE_COLUMNS, tuple(rows))


def _peak(here: Stages, named: Symbolised, point: Mapping[str, int]) -> Iterator[ChangeRow]:
    """Yield one row if the peak memory by formula differs from the peak of the plan `here`.

    Args:
      here: a plan for the sizes `point`.
      named: the program of a plan with named sizes, which has the formula of the peak.
      point: the number for each named size.
    """
    donated = tuple(here.traced.donated)
    # Chips differ in whether their compiler rebuilds values in the backward pass: check both.
    for rebuild in (False, True):
        formula = peak_formula(named, donated, rebuild).at(point)
        found = peak_bytes(here.program, here.graph, donated=donated, rebuild=rebuild)
        if formula != found:
            where = alive_at(here.graph, here.as_written)
            yield "peak", *where, f"{formula} bytes by the formula", f"{found} bytes"
            return


def _prices(
    hints: Stages, here: Stages, named: Symbolised, point: Mapping[str, int]
) -> Iterator[ChangeRow]:
    """Yield one row per total whose formula is not right at other sizes.

    The totals are bytes, flops and seconds of a step. The number by formula, of the plan `hints`,
    is compared with the number of the plan `here`, which was made for the sizes `point`.
    """
    by_formula = priced(hints.traced, named, hints.machine()).totals
    found = priced(here.traced, here.program, here.machine()).totals
    for name, quantity in _PRICES.items():
        formula = Formula.of(quantity(by_formula)).at(point)
        number = quantity(found)
        if abs(formula - number) > _ROUNDED * abs(number):
            text = f"{name} {float(formula):.12g} by the formula"
            yield "formula", "", "", text, f"{float(number):.12g}"


_ROUNDED = 1e-9
"""Relative difference of equal seconds: formula and plan add floats in different orders."""
_PRICES: Mapping[str, Callable[[Totals], Any]] = {
    "wire_bytes": lambda totals: totals.sum("wire_bytes"),
    "flops": lambda totals: totals.sum("flops"),
    "useful_flops": lambda totals: totals.useful_flops,
    "step_time_s": lambda totals: totals.sum("time_s"),
}


def alive_at(graph: Graph, memory: Liveness) -> tuple[str, str]:
    """Return name and source line of the operator at whose instruction memory is at its peak."""
    peak = memory.instruction
    if peak is None:
        return "the arguments", ""
    return ("border", "") if peak.node is None else place(graph, peak.node)


def _assignments(program: SpmdProgram) -> dict[int, str]:
    """Return the partitioned loops of each node with their axes, as text: "i over X".

    If a node is emitted several times in different ways, semicolons separate the texts. The key is
    the number of the node.
    """
    loops_text = cache(partial(loops_over, program.mesh))
    texts_by_node: dict[int, list[str]] = {}
    # Only `Apply` is the work of an operator; the other instructions bring its operands.
    for step in walk(program):
        attributes, node = step.instruction.attributes, step.instruction.node
        if type(attributes) is Apply and node is not None:
            texts_by_node.setdefault(node, []).append(loops_text(attributes.loops))
    return {node: "; ".join(dict.fromkeys(texts)) for node, texts in texts_by_node.items()}


def loops_over(mesh: Mesh, loops: tuple[tuple[str, Digits], ...]) -> str:
    """Return the axes on the loops of an operator as text: "i over X, j over Y"."""
    split = sorted((name, _axes(mesh, digits)) for name, digits in loops)
    return ", ".join(f"{name} over {axes}" for name, axes in split if axes)


def _axes(mesh: Mesh, digits: Digits) -> str:
    return ",".join(mesh.texts(digits))


def place(graph: Graph, node: int) -> tuple[str, str]:
    """Return the name of a node's first result, and its source line."""
    found = graph.nodes[node]
    return graph.values[found.results[0]].name, found.source


def _shardings(hints: Stages, here: Stages) -> Iterator[ChangeRow]:
    """Yield a row per value of both plans with different shardings.

    Values are compared by the text of their shardings, such as "[X, None]".
    """
    graph = hints.graph
    partner = Alignment(graph, here.graph).partner
    text = cache(Sharding.text)
    for value, other in zip(graph.values, partner, strict=True):
        # A value without a partner exists only at the hints.
        if other >= 0:
            first, second = hints.sharded.shardings[value.index], here.sharded.shardings[other]
            pair = text(first), text(second)
            if pair[0] != pair[1]:
                producer = graph.producer[value.index]
                source = "" if producer is None else graph.nodes[producer].source
                yield ("sharding", value.name, source, *pair)


def _moved(program: SpmdProgram) -> Mapping[int, list[str]]:
    """Return the collectives of each node as texts with kind, dimensions, axes and role.

    The key is the number of the node, or `BORDER`.
    """
    texts_by_node: dict[int, list[str]] = {}
    for step in walk(program):
        instruction = step.instruction
        attributes = instruction.attributes
        if is_collective(attributes):
            node = BORDER if instruction.node is None else instruction.node
            # E.g. "all_to_all of dimension 0 to 1 along X (activation)".
            dims = attributes.dims
            dims_text = f" of dimension {' to '.join(map(str, dims))}" if dims else ""
            axes = _axes(program.mesh, attributes.digits)
            text = f"{attributes.sent_as}{dims_text} along {axes} ({instruction.role})"
            texts_by_node.setdefault(node, []).append(text)
    return texts_by_node


KEYS = ("kind", "mesh_axes", "role", "phase", "op", "module", "region")
VALUE_COLUMNS = ("value", "sharding", "other_sharding", "shard_bytes", "other_shard_bytes")
COLLECTIVE_COLUMNS = (
    *KEYS, "source", "executions", "other_executions", "wire_bytes_per_step",
    "other_wire_bytes_per_step",
)  # fmt: skip
TOTAL_COLUMNS = ("quantity", "this", "other", "difference")
DIFFERENCE_COLUMNS = ("what", "place", "this", "other")


@dataclass(frozen=True, repr=False)
class PlanDifference(Answer):
    """The differences of two plans; equal values and equal kinds of collectives have no row.

    Attributes:
      values: shardings that differ, with the bytes of a shard, by name; "" if only one plan has the
        value.
      collectives: executions and wire bytes per step, by kind, axes, role, phase and operator.
      totals: executions and wire bytes of all collectives, peak memory and its classes, per device.
    """

    values: Table
    collectives: Table
    totals: Table

    @property
    def is_empty(self) -> bool:
        """True if no value, collective or total differs between the two plans."""
        changed = any(self.totals["difference"])
        return not (changed or len(self.values) or len(self.collectives))

    @property
    def table(self) -> Table:
        """All differences in one table: kind, place, and the value in this and the other plan.

        Collectives are compared by their bytes.
        """
        rows = [("sharding", r["value"], r["sharding"], r["other_sharding"]) for r in self.values]
        # The last two columns of the collectives are the bytes of this plan and of the other one.
        for r in self.collectives:
            op = f"{r['op']} in {r['module']}" if r["module"] else r["op"]
            place = f"{r['mesh_axes']} {op} ({r['source']}) {r['role']} {r['phase']}"
            rows.append(
                (f"{r['kind']} wire_bytes", place, *(r[c] for c in COLLECTIVE_COLUMNS[-2:]))
            )
        rows += [("total", r["quantity"], r["this"], r["other"]) for r in self.totals]
        return Table(DIFFERENCE_COLUMNS, tuple(rows))

    def parts(self) -> Parts:
        """Return the counts of differences, and the three tables."""
        values, groups = len(self.values), len(self.collectives)
        sharded = f"{counted(values, 'value')} {'is' if values == 1 else 'are'} sharded differently"
        differ = (
            f"{counted(groups, 'kind')} of collectives {'differs' if groups == 1 else 'differ'}"
        )
        return (f"{sharded}; {differ}.", self.totals, self.collectives, self.values)


def difference(this: Stages, other: Stages) -> PlanDifference:
    """Return the differences of two plans in numbers.

    Named sizes have the numbers at which the plans were made.
    """
    # Values and collectives are matched by module, operator and loop, because the plans may have
    # different graphs, and lines of a source move. What one plan lacks has an empty entry there.
    layouts, other_layouts = _layouts(this.sharded), _layouts(other.sharded)
    value_rows = []
    for key in dict.fromkeys((*layouts, *other_layouts)):
        name, sharding, num_bytes = layouts.get(key, ("", "", None))
        other_name, other_sharding, other_bytes = other_layouts.get(key, ("", "", None))
        # Names have source lines, so a different name alone is no difference.
        if (sharding, num_bytes) != (other_sharding, other_bytes):
            both = (sharding, other_sharding, num_bytes, other_bytes)
            value_rows.append((name or other_name, *both))

    sums, other_sums = _sent(this), _sent(other)
    collective_rows = []
    for key in dict.fromkeys((*sums, *other_sums)):
        line, count, sent = sums.get(key, ("", 0, 0))
        other_line, other_count, other_sent = other_sums.get(key, ("", 0, 0))
        if (count, sent) != (other_count, other_sent):
            amounts_of_both = (count, other_count, sent, other_sent)
            collective_rows.append((*key, line or other_line, *amounts_of_both))

    amounts, other_amounts = dict(_quantities(this)), dict(_quantities(other))
    total_rows = []
    for name in dict.fromkeys((*amounts, *other_amounts)):
        amount, other_amount = amounts.get(name, 0), other_amounts.get(name, 0)
        total_rows.append((name, amount, other_amount, other_amount - amount))
    return PlanDifference(
        Table(VALUE_COLUMNS, tuple(value_rows)),
        Table(COLLECTIVE_COLUMNS, tuple(collective_rows)),
        Table(TOTAL_COLUMNS, tuple(total_rows)),
    )


def _layouts(sharded: ShardedGraph) -> dict[tuple[object, ...], tuple[str, str, int]]:
    """Return (name, sharding as text, bytes of a shard) of each value, by its place.

    The place of an argument, a result or a site is its name. That of another value is its operator,
    module and regions, and how many such values come before it.
    """
    graph = sharded.graph
    module, counts = modules(graph), Counter[tuple[str, ...]]()
    found: dict[tuple[object, ...], tuple[str, str, int]] = {}
    for value, layout in zip(graph.values, sharded.shardings, strict=True):
        size = value.type.itemsize
        for extent in layout.shard_shape:
            size *= extent
        producer = graph.producer[value.index]
        key: tuple[object, ...] = (value.name,)
        # Only the name of an operator's value has its source line.
        if producer is not None and "@" in value.name:
            node = graph.nodes[producer]
            kind = (node.primitive, module[producer], region_text(graph, node))
            counts[kind] += 1
            key = (*kind, counts[kind])
        found[key] = (value.name, layout.text(), size)
    return found


def _sent(plan: Stages) -> dict[tuple[object, ...], tuple[str, int, float]]:
    """Return (source line, executions, wire bytes) per step of the collectives, by group.

    A group has equal values in the columns `KEYS`: kind, axes, role, phase, operator, module and
    region. Its line is that of its first collective.
    """
    counts: Counter[tuple[object, ...]] = Counter()
    sent: Counter[tuple[object, ...]] = Counter()
    lines: dict[tuple[object, ...], str] = {}
    for row in collectives(plan.program, plan.graph):
        key = tuple(row[name] for name in KEYS)
        counts[key] += row["executions"]
        sent[key] += row["wire_bytes_per_step"]
        lines.setdefault(key, row["source"])
    return {key: (lines[key], counts[key], sent[key]) for key in counts}


def _quantities(plan: Stages) -> Iterator[tuple[str, float]]:
    """Yield (name, amount) of the totals of a plan's step.

    They are the executions of collectives, and the bytes of one device: wire bytes, the peak
    memory, and the classes of values that are alive at the peak.
    """
    groups = _sent(plan).values()
    yield "collectives", sum(count for _, count, _ in groups)
    yield "wire_bytes", sum(sent for _, _, sent in groups)
    yield "peak_memory_bytes", plan.cost.memory.peak_bytes
    for name, class_bytes in plan.cost.memory.by_class.items():
        yield f"{name}_bytes", class_bytes
