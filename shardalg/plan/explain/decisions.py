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

    If a node is emitted several times in different ways, semicolons separate the texts.
    """
    words = cache(partial(loops_over, program.mesh))
    found: dict[int, list[str]] = {}
    for step in walk(program):
        attributes, node = step.instruction.attributes, step.instruction.node
        if type(attributes) is Apply and node is not None:
            found.setdefault(node, []).append(words(attributes.loops))
    return {node: "; ".join(dict.fromkeys(made)) for node, made in found.items()}


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
    """Yield a row per value of both plans with different shardings."""
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
    found: dict[int, list[str]] = {}
    for step in walk(program):
        instruction = step.instruction
        attributes = instruction.attributes
        if is_collective(attributes):
            node = BORDER if instruction.node is None else instruction.node
            dims = attributes.dims
            of = f" of dimension {' to '.join(map(str, dims))}" if dims else ""
            axes = _axes(program.mesh, attributes.digits)
            text = f"{attributes.sent_as}{of} along {axes} ({instruction.role})"
            found.setdefault(node, []).append(text)
    return found


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
        """All differences in one table: kind, place, and both plans."""
        rows = [("sharding", r["value"], r["sharding"], r["other_sharding"]) for r in self.values]
        # The last two columns of the collectives are the bytes of this plan and of the other one.
        for r in self.collectives:
            op = f"{r['op']} in {r['module']}" if r["module"] else r["op"]
            at = f"{r['mesh_axes']} {op} ({r['source']}) {r['role']} {r['phase']}"
            rows.append((f"{r['kind']} wire_bytes", at, *(r[c] for c in COLLECTIVE_COLUMNS[-2:])))
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
    first, second = _layouts(this.sharded), _layouts(other.sharded)
    absent = ("", "", None)
    values = [
        (mine[0] or its[0], mine[1], its[1], mine[2], its[2])
        for key in dict.fromkeys((*first, *second))
        if (mine := first.get(key, absent))[1:] != (its := second.get(key, absent))[1:]
    ]
    sent, other_sent = _sent(this), _sent(other)
    nothing = ("", 0, 0)
    moved = [
        (*key, ours[0] or theirs[0], ours[1], theirs[1], ours[2], theirs[2])
        for key in dict.fromkeys((*sent, *other_sent))
        if (ours := sent.get(key, nothing))[1:] != (theirs := other_sent.get(key, nothing))[1:]
    ]
    amounts, other_amounts = dict(_quantities(this)), dict(_quantities(other))
    names = dict.fromkeys((*amounts, *other_amounts))
    pairs = [(name, amounts.get(name, 0), other_amounts.get(name, 0)) for name in names]
    return PlanDifference(
        Table(VALUE_COLUMNS, tuple(values)),
        Table(COLLECTIVE_COLUMNS, tuple(moved)),
        Table(TOTAL_COLUMNS, tuple((n, mine, its, its - mine) for n, mine, its in pairs)),
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
    """Return (source line, executions, wire bytes) per step, by the columns `KEYS`.

    The line is that of the first collective with this key.
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
    """Yield the totals of a plan by name: collectives, wire bytes, peak memory and its classes."""
    groups = _sent(plan).values()
    yield "collectives", sum(count for _, count, _ in groups)
    yield "wire_bytes", sum(sent for _, _, sent in groups)
    yield "peak_memory_bytes", plan.cost.memory.peak_bytes
    for name, held in plan.cost.memory.by_class.items():
        yield f"{name}_bytes", held
