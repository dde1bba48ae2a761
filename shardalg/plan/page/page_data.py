"""Numbers of a plan's page: time and bytes per line and module, shardings and collectives.

Everything is read from the plan's own answers. Values and collectives of repeated layers that are
equal except for their numbers share a row.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.costs.analyses.limits import EXPOSED
from shardalg.costs.collectives import MovedValue
from shardalg.costs.step_time import Timed, timed
from shardalg.graph.modules import modules
from shardalg.graph.source import own_line
from shardalg.plan.explain.disagreements import disagreement
from shardalg.plan.page.page_modules import ModuleNode, folded_modules
from shardalg.show.tables import maker
from shardalg.sizes.amounts import number

if TYPE_CHECKING:
    from shardalg.algebra.sharding import Sharding
    from shardalg.graph.ir import Node
    from shardalg.plan.overview import Overview
    from shardalg.plan.plan import Plan

BORDER = "(arguments and results)"
"""Name of the line of moves at the border of the function, which belong to no line."""
FEW, SOME = 400, 1500
"""With at most `FEW` operators the three slowest collectives are explained, with `SOME` one.

An explanation plans the program again with changed annotations, which takes long in a large one.
"""


@dataclass
class Amounts:
    """Costs of a line or a module in one step on one device.

    Attributes:
      compute_s: seconds of local operators. exposed_s: seconds that communication adds.
      wire_bytes: bytes sent. collectives: number of collectives in the program.
      held_bytes: bytes alive at the peak.
    """

    compute_s: float = 0.0
    exposed_s: float = 0.0
    wire_bytes: float = 0
    collectives: int = 0
    held_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.compute_s + self.exposed_s


@dataclass
class PageData:
    """Numbers of a plan's page on a chip.

    Attributes:
      seen: the plan's overview, with its prices.
      layouts: rows of distinct shardings; values and collectives refer to them by number.
    """

    plan: Plan
    seen: Overview
    layouts: dict[Sharding, int] = field(default_factory=dict)

    @cached_property
    def steps(self) -> tuple[Timed, ...]:
        """All instructions with their seconds."""
        chip = self.plan._stages.machine(self.seen.hardware)
        return timed(self.plan.program, self.plan.graph, chip)

    @cached_property
    def exposed(self) -> dict[int, float]:
        """Seconds that each collective adds to the step, by the `id` of its instruction.

        They add up to the exposed communication of `Cost.limits`, per set of axes.
        """
        sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for each in self.steps:
            if each.axes:
                axes = ",".join(each.axes)
                sums[axes][0] += each.exposed_s * each.step.count
                sums[axes][1] += each.seconds * each.step.count
        found: dict[int, float] = {}
        limits = self.seen.priced.limits.seconds
        for each in self.steps:
            if not each.axes:
                continue
            axes, count = ",".join(each.axes), each.step.count
            (shown, whole), wanted = (
                sums[axes],
                limits.get(f"{EXPOSED} along {axes}", 0.0),
            )
            # If a step exposes more than the chip's share, the rest is distributed by whole time.
            share = each.exposed_s / shown if shown else each.seconds / whole if whole else 0.0
            found[id(each.step.instruction)] = share * count * wanted
        return found

    @cached_property
    def moved(self) -> dict[int, MovedValue]:
        """The moved value of each collective, by the `id` of its instruction."""
        return {id(one.step.instruction): one for one in self.plan._stages.traffic.collectives}

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The module of each node of the graph."""
        return modules(self.plan.graph)

    @cached_property
    def _tree(self) -> tuple[list[ModuleNode], dict[str, int]]:
        """The folded modules, and the number of each module among them."""
        walked = (self.owners[node.index] for node in self.plan.graph.walk())
        return folded_modules([*walked, *self.owners, ""])

    @property
    def modules(self) -> list[ModuleNode]:
        """The folded modules, parents first."""
        return self._tree[0]

    @cached_property
    def lines(self) -> dict[str, Amounts]:
        """The costs of each source line, such as `model.py:41`, by file and number."""
        return self._sums[0]

    @cached_property
    def per_module(self) -> dict[int, Amounts]:
        """The costs of each folded module, inner modules included."""
        return self._sums[1]

    def line(self, node: Node | None) -> str:
        """Return the user's line of a node; `BORDER` if it has none."""
        return (own_line(node.source) if node is not None else "") or BORDER

    def module(self, node: Node | None) -> int:
        """Return the number of a node's module."""
        return self._tree[1]["" if node is None else self.owners[node.index]]

    @cached_property
    def _sums(self) -> tuple[dict[str, Amounts], dict[int, Amounts]]:
        """The costs by line, and by module."""
        program, graph = self.plan.program, self.plan.graph
        lines: defaultdict[str, Amounts] = defaultdict(Amounts)
        found: defaultdict[int, Amounts] = defaultdict(Amounts)
        for each in self.steps:
            instruction, count = each.step.instruction, each.step.count
            node = maker(program, graph, instruction)
            moved = self.moved.get(id(instruction))
            for sums in (lines[self.line(node)], *self._around(found, self.module(node))):
                if each.axes:
                    sums.exposed_s += self.exposed[id(instruction)]
                else:
                    sums.compute_s += each.seconds * count
                if moved is not None:
                    sums.wire_bytes += float(number(moved.wire_bytes)) * count
                    sums.collectives += 1
        for alive in self.seen.priced.hints.memory.alive:
            origin = program.locals[alive.local].origin
            made = None if origin is None else graph.producer[origin]
            # A weight belongs to the module that reads it first.
            if made is None and origin is not None:
                made = next(iter(graph.users[origin]), None)
            node = None if made is None else graph.nodes[made]
            for sums in (lines[self.line(node)], *self._around(found, self.module(node))):
                sums.held_bytes += alive.bytes
        ordered = sorted(lines, key=lambda name: _place(name))
        return {name: lines[name] for name in ordered}, dict(found)

    def _around(self, found: dict[int, Amounts], module: int) -> Iterator[Amounts]:
        """Yield the costs of a module and of all modules around it."""
        while module >= 0:
            yield found[module]
            module = self.modules[module].parent

    def layout(self, sharding: Sharding) -> int:
        """Return the number of a sharding among `layouts`, which gets it if it is new."""
        return self.layouts.setdefault(sharding, len(self.layouts))

    def values(self) -> list[list[Any]]:
        """Return rows (line, module, name, count, type, layout, reason) of the values of each line.

        They are the results of the line's operators, and the arguments that these read.
        """
        graph, sharded = self.plan.graph, self.plan._sharded
        names = {name: place for place, name in enumerate(self.lines)}
        rows: dict[tuple[Any, ...], list[Any]] = {}
        seen: set[tuple[int, int]] = set()
        for node in graph.walk():
            line = names.get(self.line(node), -1)
            read = [v for v in node.operands if graph.producer[v] is None]
            for value in (*read, *node.results) if line >= 0 else ():
                if (line, value) in seen:
                    continue
                seen.add((line, value))
                held, why = graph.values[value], sharded.why(value)
                layout, module = self.layout(sharded.shardings[value]), self.module(node)
                key = (line, module, alike(held.name), repr(held.type), layout, alike(why))
                row = rows.setdefault(key, [line, module, held.name, 0, key[3], layout, why])
                row[3] += 1
        return [*rows.values()]

    def collectives(self, *, explained: bool) -> list[dict[str, Any]]:
        """Return a row per group of equal collectives, the slowest first.

        Collectives are equal if line, module, kind, axes, bytes, phase and reason agree.

        Args:
          explained: whether the slowest ones get the effect of changes that would remove them.
        """
        plan, names = self.plan, {name: place for place, name in enumerate(self.lines)}
        groups: dict[tuple[Any, ...], list[MovedValue]] = {}
        for one in plan._stages.traffic.collectives:
            instruction = one.step.instruction
            node = maker(plan.program, plan.graph, instruction)
            place = names[self.line(node)], self.module(node), instruction.phase
            why = alike(str(instruction.why))
            key = (*place, *one.alike, number(one.wire_bytes), one.step.count, why)
            groups.setdefault(key, []).append(one)
        rows = [self._group(members, *key[:3]) for key, members in groups.items()]
        rows.sort(key=lambda row: (-row["s"], -row["b"]))
        operators = len(plan.graph.nodes)
        tried = 3 if operators <= FEW else 1 if operators <= SOME else 0
        for row in rows[: tried if explained else 0]:
            row["tried"] = str(plan.explain(row["first"]).parts()[2])
        return rows

    def _group(
        self, members: list[MovedValue], line: int, module: int, phase: str
    ) -> dict[str, Any]:
        """Return the row of a group of equal collectives."""
        plan, first = self.plan, members[0]
        has, needs = disagreement(plan._sharded, plan._stages.traffic, first)
        causes = dict.fromkeys(map(str, (*has.annotations, *needs.annotations)))
        return {
            "line": line, "module": module, "phase": phase, "kind": first.attributes.sent_as,
            "axes": ",".join(plan.mesh.texts(first.digits)), "digits": first.digits,
            "n": len(members), "first": first.number, "runs": number(first.step.count),
            "each": float(number(first.wire_bytes)),
            "b": sum(float(number(m.wire_bytes)) * m.step.count for m in members),
            "s": sum(self.exposed[id(m.step.instruction)] for m in members),
            "name": plan.graph.values[first.value].name, "role": first.step.instruction.role,
            "has": self.layout(has.layout), "needs": self.layout(needs.layout),
            "hasWhy": has.words, "needsWhy": needs.words,
            "why": str(first.step.instruction.why), "causes": [*causes],
        }  # fmt: skip


def alike(name: str) -> str:
    """Return a text without the numbers that differ between repeated layers.

    >>> alike("dot_general:3@model.py:41"), alike("params['layers'][3]['up']")
    ('dot_general@model.py:41', "params['layers'][]['up']")
    """
    return re.sub(r"\[\d+\]", "[]", re.sub(r":\d+@|(?<=[a-z]_)\d+\b", "@", name)).replace("@@", "@")


def _place(line: str) -> tuple[bool, str, int]:
    """Return the key by which lines are ordered: by file and number, `BORDER` last."""
    file, _, place = line.rpartition(":")
    return line == BORDER, file, int(place) if place.isdecimal() else 0
