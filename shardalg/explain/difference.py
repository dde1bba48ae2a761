"""What changed between two plans: layouts, collectives, bytes, memory, aligned by name and kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardalg.io.answers import Answer, Parts
from shardalg.io.table import Table
from shardalg.io.units import counted
from shardalg.planning.stages import Stages
from shardalg.propagate.sharded import ShardedGraph
from shardalg.report.tables import collectives

KEYS = ("kind", "mesh_axes", "role", "phase", "op", "source")
VALUE_COLUMNS = ("value", "sharding", "other_sharding", "shard_bytes", "other_shard_bytes")
COLLECTIVE_COLUMNS = (
    *KEYS, "executions", "other_executions", "wire_bytes_per_step", "other_wire_bytes_per_step",
)  # fmt: skip
TOTAL_COLUMNS = ("quantity", "this", "other", "difference")
CHANGE_COLUMNS = ("what", "place", "this", "other")


@dataclass(frozen=True, repr=False)
class PlanDifference(Answer):
    """What another plan does otherwise; a value or a kind of collective that is alike has no row.

    Attributes:
      values: layouts that differ, and bytes of a value's shard; by name, empty where only one plan
        has the value.
      collectives: executions and wire bytes of a step, by kind, axes, role, phase and operator.
      totals: executions and wire bytes of all collectives, peak memory and its classes, per device.
    """

    values: Table
    collectives: Table
    totals: Table

    @property
    def is_empty(self) -> bool:
        """Whether the other plan does nothing otherwise."""
        changed = any(self.totals["difference"])
        return not (changed or len(self.values) or len(self.collectives))

    @property
    def table(self) -> Table:
        """All of it: what (sharding, wire_bytes, bytes), where, this and other."""
        rows = [("sharding", r["value"], r["sharding"], r["other_sharding"]) for r in self.values]
        rows += [
            (f"{r['kind']} wire_bytes", _where(r), *(r[c] for c in COLLECTIVE_COLUMNS[-2:]))
            for r in self.collectives
        ]
        rows += [("total", r["quantity"], r["this"], r["other"]) for r in self.totals]
        return Table(CHANGE_COLUMNS, tuple(rows))

    def parts(self) -> Parts:
        """Counts, and the three tables."""
        values, groups = len(self.values), len(self.collectives)
        laid = f"{counted(values, 'value')} laid out otherwise"
        differ = f"{counted(groups, 'kind')} of collectives not alike"
        return (f"{laid}, {differ}.", self.totals, self.collectives, self.values)


def _where(row: Mapping[str, object]) -> str:
    return f"{row['mesh_axes']} {row['op']} ({row['source']}) {row['role']} {row['phase']}"


def difference(this: Stages, other: Stages) -> PlanDifference:
    """What `other` does otherwise than `this`; numbers, at the hints where sizes have names."""
    return PlanDifference(_values(this, other), _collectives(this, other), _totals(this, other))


def _values(this: Stages, other: Stages) -> Table:
    first, second = _layouts(this.sharded), _layouts(other.sharded)
    rows = [
        (name, one[0], two[0], one[1], two[1])
        for name in dict.fromkeys((*first, *second))
        if (one := first.get(name, ("", None))) != (two := second.get(name, ("", None)))
    ]
    return Table(VALUE_COLUMNS, tuple(rows))


def _layouts(sharded: ShardedGraph) -> dict[str, tuple[str, int]]:
    found = {}
    for value, layout in zip(sharded.graph.values, sharded.shardings, strict=True):
        size = value.type.itemsize
        for extent in layout.shard_shape:
            size *= extent
        found[value.name] = (layout.text(), size)
    return found


def _collectives(this: Stages, other: Stages) -> Table:
    first, second = _sent(this), _sent(other)
    rows = [
        (*key, one[0], two[0], one[1], two[1])
        for key in dict.fromkeys((*first, *second))
        if (one := first.get(key, (0, 0))) != (two := second.get(key, (0, 0)))
    ]
    return Table(COLLECTIVE_COLUMNS, tuple(rows))


def _sent(plan: Stages) -> dict[tuple[object, ...], tuple[int, float]]:
    """Executions and wire bytes of a step, per group of collectives."""
    counts: Counter[tuple[object, ...]] = Counter()
    sent: Counter[tuple[object, ...]] = Counter()
    for row in collectives(plan.program, plan.graph):
        key = tuple(row[name] for name in KEYS)
        counts[key] += row["executions"]
        sent[key] += row["wire_bytes_per_step"]
    return {key: (counts[key], sent[key]) for key in counts}


def _totals(this: Stages, other: Stages) -> Table:
    first, second = dict(_quantities(this)), dict(_quantities(other))
    names = dict.fromkeys((*first, *second))
    pairs = [(name, first.get(name, 0), second.get(name, 0)) for name in names]
    return Table(TOTAL_COLUMNS, tuple((n, one, two, two - one) for n, one, two in pairs))


def _quantities(plan: Stages) -> Iterator[tuple[str, float]]:
    groups = _sent(plan).values()
    yield "collectives", sum(count for count, _ in groups)
    yield "wire_bytes", sum(sent for _, sent in groups)
    yield "peak_memory_bytes", plan.cost.memory.peak_bytes
    for name, held in plan.cost.memory.by_class.items():
        yield f"{name}_bytes", held
