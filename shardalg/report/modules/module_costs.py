"""Seconds, bytes sent and bytes held of each module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardalg.costs.collectives import is_collective, wire_bytes
from shardalg.costs.step_time import timed
from shardalg.costs.topology import machine
from shardalg.costs.walk import sent_bytes
from shardalg.graph.modules.of_nodes import modules
from shardalg.io.table import Table
from shardalg.planning.stages import Stages, priced
from shardalg.report.modules import by_module
from shardalg.report.tables import maker

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology

COLUMNS = (
    "module", "wire_bytes", "held_bytes", "compute_s", "communication_s", "time_s",
)  # fmt: skip


def costs_by_module(stages: Stages, hardware: str | Hardware | Topology) -> Table:
    """What a step takes, sends, and holds at its peak on a device, per module.

    Numbered modules that send the same are one. Times and bytes add up to those of `Cost`; where
    sizes have names, at their hints. Bytes are held for the module that made the value, arguments
    for the one that reads them first.
    """
    rows = [*_steps(stages, hardware), *_held(stages, hardware)]
    return by_module.table(COLUMNS, by_module.summed(rows), compared=1)


Amounts = tuple[str, tuple[()], tuple[Any, ...]]


def _steps(stages: Stages, hardware: str | Hardware | Topology) -> Iterator[Amounts]:
    program, graph = stages.program, stages.graph
    owners = modules(graph)
    for step, _, _, seconds in timed(program, graph, machine(hardware)):
        node = maker(program, graph, step.instruction)
        what, took = step.instruction.attributes, seconds * step.count
        sent = 0
        if is_collective(what):
            sent = step.count * wire_bytes(what, sent_bytes(program, step.instruction))
        split = (0.0, took) if is_collective(what) else (took, 0.0)
        yield "" if node is None else owners[node.index], (), (sent, 0, *split, took)


def _held(stages: Stages, hardware: str | Hardware | Topology) -> Iterator[Amounts]:
    graph, owners = stages.graph, modules(stages.graph)
    for alive in priced(stages.traced, stages.program, hardware).memory.alive:
        origin = stages.program.locals[alive.local].origin
        node = None if origin is None else graph.producer[origin]
        if node is None and origin is not None:
            node = next(iter(graph.users[origin]), None)
        yield "" if node is None else owners[node], (), (0, alive.bytes, 0.0, 0.0, 0.0)
