"""What `Plan.draw` shows: a program as boxes, or the bytes of a large one as bars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from shardalg.errors import TableError
from shardalg.graph.modules.of_nodes import modules
from shardalg.io.table import Table
from shardalg.report.figures import Panel, draw_programs, kind_bars, wire_bytes_bars
from shardalg.report.tables import collectives as table_of
from shardalg.report.tables import collectives_by_module, strategies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.graph.ir import Graph
    from shardalg.spmd.program import SpmdProgram

MOST_BOXES, MOST_BARS = 48, 20
SHOWN = ("program", "bytes")


@dataclass(frozen=True)
class DrawnPlan:
    """What is drawn of a plan.

    Attributes:
      note: what stands beside the title of a single one: the mesh, bytes and seconds.
    """

    program: SpmdProgram
    graph: Graph
    note: str

    @property
    def collectives(self) -> Table:
        """What it sends, in numbers."""
        return table_of(self.program, self.graph)

    def nodes(self, module: str | None) -> frozenset[int] | None:
        """The operators of a module (or the end of its path) and of those inside it; None: all.

        Raises:
          TableError: no operator belongs to the module.
        """
        if module is None:
            return None
        names = modules(self.graph)
        inside = (i for i, name in enumerate(names) if f"/{module}/" in f"/{name}/")
        found = frozenset(inside)
        if not found:
            known = sorted({name for name in names if name})
            near = get_close_matches(module, known, 3) or known[:5]
            there = f"it has {', '.join(near)}" if near else "its operators stand in no module"
            raise TableError(f"the program has no module {module!r}; {there}.")
        return found


def draw_plans(
    plans: Mapping[str, DrawnPlan],
    *,
    show: str | None = None,
    module: str | None = None,
    letters: Mapping[str, int] | None = None,
) -> Figure:
    """Plans one below the other, or their bytes; the arguments are those of `Plan.draw`.

    Raises:
      TableError: `show` or `module` names nothing that there is.
    """
    if show not in (None, *SHOWN):
        raise TableError(f"show={show!r}: a plan is drawn as 'program' or as 'bytes'.")
    names = {size: letter for letter, size in (letters or {}).items()}
    panels = [
        Panel(title, each.program, each.graph, each.nodes(module), names)
        for title, each in plans.items()
    ]
    if show is None:
        small = max(len(panel.boxes) for panel in panels) <= MOST_BOXES
        show = "program" if small or module else "bytes"
    if show == "program":
        return draw_programs(panels)
    return _bytes(plans)


def _bytes(plans: Mapping[str, DrawnPlan]) -> Figure:
    """Of one plan a bar per module, the longest first; of several one per plan and phase."""
    if len(plans) > 1:
        return wire_bytes_bars(strategies({name: each.collectives for name, each in plans.items()}))
    ((title, plan),) = plans.items()
    sums: dict[str, dict[str, float]] = {}
    for row in collectives_by_module(plan.collectives):
        bar = sums.setdefault(row["module"] or "in no module", {})
        bar[row["kind"]] = bar.get(row["kind"], 0) + row["wire_bytes_per_step"]
    ordered = sorted(sums, key=lambda name: -sum(sums[name].values()))
    shown = {name: sums[name] for name in ordered[:MOST_BARS]}
    for name in ordered[MOST_BARS:]:
        rest = shown.setdefault(f"{len(ordered) - MOST_BARS} other modules", {})
        for kind, sent in sums[name].items():
            rest[kind] = rest.get(kind, 0) + sent
    return kind_bars(shown, title)
