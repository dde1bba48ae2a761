"""A program as HTML: folded into groups, collectives as coloured chips, values with tooltips.

The page is plain HTML with a few lines of JavaScript and loads nothing. Groups are details elements
of HTML, which open by click and by keyboard. A chip opens its group and shows its instruction.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from shardalg.costs.collectives import MovedValue, Traffic, axis_names
from shardalg.costs.walk import walk
from shardalg.graph.ir import Graph
from shardalg.palette import kind_color
from shardalg.show.html import Listing
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.program import Printer, SpmdProgram
from shardalg.tables import bytes_text

MOST_LINES = 3000
"""A page with more lines is slow, so a longer program shows only its collectives."""
# More chips would hide the name of a group, so a group with more collectives has a chip per kind.
MOST_CHIPS = 16
STYLE = """
.sa-view { font: 13px/1.5 system-ui, sans-serif; color: #22262b; max-width: 100%; }
.sa-view details { border-left: 2px solid #e2e5e9; margin: 2px 0 2px 4px; padding-left: 8px; }
.sa-view summary { cursor: pointer; } .sa-view summary:focus-visible, .sa-view button:focus-visible
  { outline: 2px solid #1565c0; }
.sa-view pre { font: 12px/1.45 ui-monospace, Menlo, Consolas, monospace; margin: 2px 0; padding: 0;
  background: none; white-space: pre; overflow-x: auto; }
.sa-view pre div:target, .sa-view pre div.sa-now { background: #fff3c4; }
.sa-view .sa-chip { border: 0; border-radius: 9px; color: #22262b; font: 11px system-ui;
  padding: 1px 8px; margin: 0 3px; cursor: pointer; }
.sa-view .sa-faint { color: #6b7280; } .sa-view span[title] { border-bottom: 1px dotted #9aa1a9; }
"""
SCRIPT = """
(function (view) {
  function show(line) {
    for (let up = line; up && up !== view; up = up.parentElement)
      if (up.tagName === "DETAILS") up.open = true;
    view.querySelectorAll(".sa-now").forEach(old => old.classList.remove("sa-now"));
    line.classList.add("sa-now");
    line.scrollIntoView({block: "nearest"});
  }
  view.addEventListener("click", event => {
    const chip = event.target.closest("[data-line]"), all = event.target.closest("[data-all]");
    if (chip) { event.preventDefault(); show(view.querySelector("#" + chip.dataset.line)); }
    if (all)
      view.querySelectorAll("details").forEach(d => { d.open = all.dataset.all === "open"; });
  });
})(document.currentScript.parentElement);
"""


@dataclass(frozen=True, eq=False)
class ProgramView:
    """A program as HTML, with its instructions in groups that open by click.

    Attributes:
      told: a listing whose titles are the tooltips of values such as `%7`.
      path: returns the groups of an instruction, outermost first. Consecutive instructions of
        the same group are folded together.
      key: prefix of element ids, different for each view of a page.
    """

    program: SpmdProgram
    graph: Graph
    told: Listing
    path: Callable[[Instruction], tuple[str, ...]]
    key: str = "p"

    def to_html(self) -> str:
        """Return one HTML element with its style and script.

        From the top: buttons that open or close all groups, a legend of the kinds of collectives,
        and the groups of instructions.
        """
        buttons = "".join(
            f'<button type="button" data-all="{what}">{what} all</button> '
            for what in ("open", "close")
        )
        kinds = dict.fromkeys(moved.attributes.sent_as for moved in self._moved.values())
        dots = (
            f'<span style="color:{kind_color(kind)}">&#9679;</span> {html.escape(kind)}'
            for kind in kinds
        )
        groups = "".join(self._groups(self.program.block.instructions, 0, opened=True))
        script = f"<script>{SCRIPT}</script>"
        return (
            f'<div class="sa-view"><style>{STYLE}</style><p>{buttons}'
            f'<span class="sa-faint">{" &nbsp; ".join(dots)}</span></p>{groups}{script}</div>'
        )

    def _groups(
        self, instructions: Sequence[Instruction], depth: int, *, opened: bool = False
    ) -> Iterator[str]:
        """Yield HTML per group: consecutive instructions whose paths have equal entries at `depth`.

        Args:
          opened: whether the groups are unfolded when the page loads.
        """
        # Consecutive ones only, so that the order of execution stays visible.
        for name, members in groupby(instructions, lambda one: self.path(one)[depth : depth + 1]):
            inside = tuple(members)
            # No further group at this depth: these are lines of the enclosing group.
            if not name:
                yield from map(self._line, inside)
                continue
            moved = tuple(self._inside(inside))
            shown = "".join(map(self._chip, moved)) if len(moved) <= MOST_CHIPS else _sums(moved)
            count = f'<span class="sa-faint">{len(inside)} instructions</span>'
            head = f"<b>{html.escape(name[0])}</b> {count} {shown}"
            lines = "".join(self._groups(inside, depth + 1))
            yield f"<details{' open' * opened}><summary>{head}</summary>{lines}</details>"

    def _inside(self, instructions: tuple[Instruction, ...]) -> Iterator[MovedValue]:
        """Yield the collectives among instructions and in their bodies, in order."""
        for one in instructions:
            for body in one.attributes.bodies:
                yield from self._inside(body.instructions)
            if id(one) in self._moved:
                yield self._moved[id(one)]

    @cached_property
    def _moved(self) -> Mapping[int, MovedValue]:
        """The moved value of each collective, by the `id` of its instruction."""
        traffic = Traffic(self.program, self.graph)
        return {id(moved.step.instruction): moved for moved in traffic.collectives}

    @cached_property
    def _is_long(self) -> bool:
        return sum(1 for _ in walk(self.program)) > MOST_LINES

    def _chip(self, moved: MovedValue) -> str:
        """Return a button for one collective, coloured by its kind, that leads to its line.

        Its text has the kind, the mesh axes, the bytes of one execution, and the executions.
        """
        colour = kind_color(moved.attributes.sent_as)
        axes = ",".join(axis_names(self.program.mesh, moved.digits))
        times = f" x {moved.step.count}" if moved.step.count != 1 else ""
        text = f"{moved.attributes.sent_as} {axes} {bytes_text(moved.wire_bytes)}{times}"
        title = f"collective {moved.number}: plan.explain({moved.number})"
        return (
            f'<button type="button" class="sa-chip" style="background:{colour}" title="{title}" '
            f'data-line="{self.key}-{moved.number}">{html.escape(text)}</button>'
        )

    def _line(self, instruction: Instruction) -> str:
        """Return an instruction as HTML, with the groups of its bodies; "" if it is left out.

        In a long program, only collectives and loops are shown. A collective's line has an id, to
        which its button leads.
        """
        moved = self._moved.get(id(instruction))
        bodies = instruction.attributes.bodies
        # A loop is kept, because there may be collectives in its body.
        if self._is_long and moved is None and not bodies:
            return ""
        printer = Printer(self.program.mesh, self.program.locals, self.graph)
        shown = re.sub(r"%[0-9]+", self._pointed, html.escape(printer.instruction(instruction)))
        name = f' id="{self.key}-{moved.number}"' if moved else ""
        inner = "".join("".join(self._groups(body.instructions, 0)) for body in bodies)
        return f"<pre><div{name}>{shown}</div></pre>{inner}"

    def _pointed(self, found: re.Match[str]) -> str:
        """Return a value's name as HTML with its tooltip.

        The tooltip has six lines at the first place of the name, and two lines at later places, so
        that the page stays small.

        Args:
          found: the match of a name such as `%7`.
        """
        title = self._titles.get(found[0])
        if title is None:
            return found[0]
        lines = "&#10;".join(
            map(html.escape, title.split("\n")[: 2 if found[0] in self._seen else 6])
        )
        self._seen.add(found[0])
        return f'<span title="{lines}">{found[0]}</span>'

    @cached_property
    def _seen(self) -> set[str]:
        """Values whose full tooltip was already shown."""
        return set()

    @cached_property
    def _titles(self) -> Mapping[str, str]:
        return dict(self.told.titles)


def _sums(moved: Iterable[MovedValue]) -> str:
    """Return HTML with a coloured label per kind of collective: its count and bytes sent.

    The labels replace the buttons of a group with too many collectives.
    """
    counts: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for one in moved:
        counts[one.attributes.sent_as] += 1
        # Bytes are those of one execution; in a loop there are several.
        sent[one.attributes.sent_as] += one.wire_bytes * one.step.count
    return "".join(
        f'<span class="sa-chip" style="background:{kind_color(kind)}">'
        f"{number} {html.escape(kind)} {bytes_text(sent[kind])}</span>"
        for kind, number in counts.items()
    )
