"""The page of `shardalg explore`: strategies side by side, drawn, priced, measured, proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardalg.costs.step_time import Cost
from shardalg.graph.ir import Graph
from shardalg.report import proofs, tables
from shardalg.report.figures import (
    Panel,
    draw_programs,
    measured_times,
    png,
    wire_bytes_bars,
)
from shardalg.report.html import Listing, Page, Part, Picture, Section
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.text import program_text
from shardalg.table import Table


@dataclass(frozen=True)
class Entry:
    """One strategy of one function: its program and whatever is known of it.

    Attributes:
      cost: an estimate; measured: the table of a `Measurement`.
      xla: XLA's own collectives, in the columns kind, axes, count, wire_bytes.
      claims: columns node, claim, status, ms, smt2.
    """

    name: str
    program: SpmdProgram
    graph: Graph
    cost: Cost | None = None
    measured: Table | None = None
    xla: Table | None = None
    claims: Table | None = None

    @property
    def collectives(self) -> Table:
        """Every collective of the program."""
        return tables.collectives(self.program, self.graph)


def page(
    title: str,
    lead: str,
    *,
    entries: Sequence[Entry],
    drawn: Sequence[Entry] = (),
    dim_names: Mapping[int, str] | None = None,
) -> Page:
    """A page about several strategies of one function.

    Args:
      entries: the strategies; sections for which no entry has data are left out.
      drawn: programs to draw, such as the feed-forward layer under each strategy.
      dim_names: global dimension size to the letter that stands for it in drawings.
    """
    sections = (
        _moved(entries),
        _drawing(drawn, dict(dim_names or {})),
        _measured([e for e in entries if e.measured is not None]),
        _beside([e for e in entries if e.xla is not None]),
        _estimated([e for e in entries if e.cost is not None]),
        _proved([e for e in entries if e.claims is not None]),
        *map(_collectives, entries),
        *map(_program, entries),
    )
    return Page(title, lead, tuple(section for section in sections if section.parts))


def _moved(entries: Sequence[Entry]) -> Section:
    found = {entry.name: entry.collectives for entry in entries}
    summed = tables.strategies(found)
    picture = Picture(
        "wire_bytes",
        png(wire_bytes_bars(summed)),
        "Bytes that each device sends in one step, on a ring, by kind of collective.",
    )
    return Section("What each strategy sends", (tables.totals(found), picture, summed))


def _drawing(drawn: Sequence[Entry], dim_names: dict[int, str]) -> Section:
    if not drawn:
        return Section("", ())
    panels = [Panel(e.name, e.program, e.graph, None, dim_names) for e in drawn]
    caption = (
        "Small letters are partitioned dimensions, with their mesh axes below; Σ marks sums that "
        "are still pending along an axis. Under a collective: the bytes that each device sends."
    )
    picture = Picture("partitioned", png(draw_programs(panels)), caption)
    return Section("The partitioned program, drawn", (picture,))


def _measured(entries: Sequence[Entry]) -> Section:
    if not entries:
        return Section("", ())
    measured = {entry.name: entry.measured for entry in entries}
    caption = "Ours and XLA's own partitioning of the same function, run in turns."
    rows = [(name, *row) for name, table in measured.items() for row in table.rows]
    columns = ("strategy", *entries[0].measured.columns)
    picture = Picture("measured", png(measured_times(measured)), caption)
    return Section("Run on this machine", (picture, Table(columns, tuple(rows))))


def _beside(entries: Sequence[Entry]) -> Section:
    parts: list[Part] = []
    for entry in entries:
        parts += [f"**{entry.name}**", tables.beside(entry.collectives, entry.xla)]
    if parts:
        parts.insert(0, "Collectives that XLA's partitioner makes of the same annotations.")
    return Section("Beside XLA's collectives", tuple(parts))


def _estimated(entries: Sequence[Entry]) -> Section:
    if not entries:
        return Section("", ())
    columns = (
        "strategy", "hardware", "step_time_s", "compute_s", "communication_s",
        "peak_memory_bytes", "fits", "flops", "flops_utilization",
    )  # fmt: skip
    rows = [(e.name, e.cost.hardware.name, *_figures(e.cost, columns[2:])) for e in entries]
    parts: list[Part] = [
        "No overlap of compute and communication is assumed, and matrix units run at their peak.",
        Table(columns, tuple(rows)),
        _classes(entries),
    ]
    hardware = {entry.cost.hardware.name: entry.cost.hardware for entry in entries}
    parts += [chip.table() for chip in hardware.values() if chip.sources]
    return Section("Estimated time and memory", tuple(parts))


def _figures(cost: Cost, names: Sequence[str]) -> tuple[object, ...]:
    return tuple(getattr(cost, name) for name in names)


def _classes(entries: Sequence[Entry]) -> Table:
    """Bytes at the peak by class, a column per strategy."""
    found = [entry.cost.memory.by_class for entry in entries]
    classes = dict.fromkeys(name for by_class in found for name in by_class)
    rows = [(name, *(by_class.get(name, 0) for by_class in found)) for name in classes]
    totals = ("at the peak", *(entry.cost.peak_memory_bytes for entry in entries))
    return Table(("bytes", *(entry.name for entry in entries)), (*rows, totals))


def _proved(entries: Sequence[Entry]) -> Section:
    parts: list[Part] = []
    for entry in entries:
        parts += [f"**{entry.name}**", proofs.by_claim(entry.claims)]
    return Section("What is proved", tuple(parts))


def _collectives(entry: Entry) -> Section:
    return Section(f"{entry.name}: every collective", (entry.collectives,))


def _program(entry: Entry) -> Section:
    text = program_text(entry.program, entry.graph)
    return Section(f"{entry.name}: the program of each device", (Listing(text),))
