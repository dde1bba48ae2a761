"""The page of a plan as HTML: figures, source lines, modules, and the mesh, in one file."""

from __future__ import annotations

import html
import inspect
import linecache
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.costs.walk import walk
from shardalg.graph.source import Sources, own_line
from shardalg.plan.overview import Overview, overview, program_html
from shardalg.plan.page.page_data import BORDER, Amounts, PageData, alike
from shardalg.plan.page.page_figures import (
    CLASS_COLOURS,
    bytes_figure,
    memory_figure,
    time_figure,
)
from shardalg.plan.page.page_memory import CLASSES, MemoryCurve, memory_curve
from shardalg.show.pages.document import html_document, page_element
from shardalg.tables import bytes_text, counted, seconds_text

if TYPE_CHECKING:
    from shardalg.costs.hardware import Hardware
    from shardalg.plan.plan import Plan

MOST_INSTRUCTIONS = 1500
"""A longer program is not on the page: its part would be larger than all others together."""
_STYLE, _SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
NEAR = 2
"""At most so many lines without an operator are shown between two lines with operators."""


def plan_document(plan: Plan, title: str = "", hardware: str | Hardware | None = None) -> str:
    """Return the page of a plan as a complete HTML file that loads nothing.

    Args:
      title: the heading of the page; "" is the name of the function.
      hardware: the chip whose prices are shown; None: the chip of the plan's options.
    """
    name = title or function_name(plan)
    body = plan_element(overview(plan, hardware), name, is_linked=True)
    return html_document(f"{name}: sharding plan", body)


def plan_element(seen: Overview, title: str, *, is_linked: bool = False) -> str:
    """Return the page of a plan as one HTML element with its style and script.

    Args:
      seen: the plan's overview, with its prices.
      is_linked: whether the element is a page of its own: its address keeps the selection, and the
        slowest collectives have remedies, which take time to plan.
    """
    data = PageData(seen.plan, seen)
    curve = memory_curve(seen.plan, seen.priced)
    # Seconds of communication that no line is charged for, because computation hides them.
    whole = sum(each.seconds * each.step.count for each in data.steps if each.axes)
    hidden = max(0.0, whole - sum(data.exposed.values()))
    hidden = hidden if hidden > 1e-6 * whole else 0.0
    figures = time_figure(seen, hidden) + memory_figure(seen, curve) + bytes_figure(seen)
    notes = "".join(
        f"<p>{html.escape(text)}</p>"
        for text in (seen.counted_once, seen.assumed, seen.beside, seen.cheaper)
        if text
    )
    program = ""
    if sum(1 for _ in walk(seen.plan.program)) <= MOST_INSTRUCTIONS:
        shown = program_html(seen.plan)
        program = f"<details><summary>Program that every device runs</summary>{shown}</details>"
    body = (
        f"<header><h1>{html.escape(title)}</h1><p>{html.escape(_about(seen))}</p>{notes}</header>"
        f'<div class="figures">{figures}</div>'
        f'<p class="tools"><span class="faint small">Choose a line or a module. Arrow keys move '
        f"in a list, Escape clears.</span>"
        f'<button type="button" data-reset>Clear the selection</button></p>'
        f'<div class="cols"><section class="pane"><header><h2>Source</h2></header>'
        f'<div class="heads"><span>line</span><span></span><span class="num">time</span>'
        f'<span class="num">sent</span></div><div class="list">{_lines(data)}</div></section>'
        f'<section class="pane modules"><header><h2>Modules</h2></header>'
        f'<div class="heads"><span>with all inside</span><span class="num">time</span>'
        f'<span class="num">sent</span></div><div class="list">{_modules(data)}</div></section>'
        f'<section class="pane right"><div class="mesh"><h2 class="meshtitle">Mesh</h2>'
        f'<div class="drawing"></div><p class="small meshsaid" aria-live="polite">'
        f"{html.escape(repr(seen.plan.mesh))}</p></div>"
        f'<div class="detail" aria-live="polite"><noscript>This part needs JavaScript.</noscript>'
        f"</div></section></div>"
        f"{program}"
    )
    content = _script_data(data, curve, is_linked=is_linked)
    return page_element(body, content, styles=[_STYLE], scripts=[_SCRIPT])


def function_name(plan: Plan) -> str:
    """Return the name of the function of a plan; "plan" in a plan of a file."""
    call = plan._traced.call
    fn = None if call is None else inspect.unwrap(call.fn)
    name = str(getattr(fn, "__name__", "")) or "plan"
    return "plan" if name == "<lambda>" else name


def _script_data(data: PageData, curve: MemoryCurve, *, is_linked: bool) -> dict[str, Any]:
    """Return the data of the script: values, collectives, shardings, the mesh, and the memory."""
    plan, lines = data.plan, [*data.lines]
    texts = _line_texts(data.lines, source_texts(plan))
    values, collectives = data.values(), data.collectives(explained=is_linked)
    names = dict.fromkeys(row[0] for row in curve.values)
    place = {name: number for number, name in enumerate(names)}
    classes, kinds = [*CLASSES.values()], dict[str, int]()

    def group(name: str, amounts: Amounts | None) -> dict[str, Any]:
        """Return the name and the costs of a line or a module."""
        found = amounts or Amounts()
        return {
            "name": name,
            "s": found.compute_s,
            "x": found.exposed_s,
            "b": found.wire_bytes,
            "n": found.collectives,
            "m": int(found.held_bytes),
        }

    modules = []
    for number, node in enumerate(data.modules):
        path, up = node.label, node.parent
        while up >= 0:
            path, up = f"{data.modules[up].label}/{path}", data.modules[up].parent
        modules.append({**group(path, data.per_module.get(number)), "parent": node.parent})
    warned = [
        {
            "line": lines.index(line) if (line := own_line(row["source"])) in data.lines else -1,
            "where": row["source"],
            "op": row["op"],
            "warning": row["warning"],
            "remedy": row["remedy"],
        }
        for row in data.seen.warned
    ]
    order = plan.mesh.order
    return {
        "linked": is_linked,
        "mesh": {
            "axes": plan.program.mesh.axes,
            "ids": None if [*order] == [*range(plan.mesh.size)] else [int(i) for i in order],
        },
        "lines": [
            {**group(name, amounts), "text": texts.get(name, "")}
            for name, amounts in data.lines.items()
        ],
        "modules": modules,
        "values": values,
        "collectives": collectives,
        "remedies": warned,
        "layouts": [
            {
                "text": sharding.text(),
                "shape": sharding.shape,
                "dims": sharding.dims,
                "shard": sharding.shard_shape,
                "parts": sharding.unreduced,
                "split": any(sharding.dims),
            }
            for sharding in data.layouts
        ],
        "memory": {
            "peak": curve.peak,
            "totals": curve.totals,
            "phases": curve.phases,
            "names": [*names],
            "alike": [kinds.setdefault(alike(name), len(kinds)) for name in names],
            "classes": classes,
            "colours": [CLASS_COLOURS[name] for name in classes],
            "values": [(place[name], *row) for name, *row in curve.values],
        },
    }


def _about(seen: Overview) -> str:
    """Return the operators, mesh, chip and policy of a plan as text."""
    plan = seen.plan
    named = " Named sizes have their hints." if plan._stages.is_named else ""
    return (
        f"{counted(len(plan.graph.nodes), 'operator')} on {plan.mesh!r}, priced on {seen.machine}. "
        f"Shardings {plan.options.followed}.{named} Predicted, per device and step."
    )


def _cells(amounts: Amounts, most: Amounts) -> str:
    """Return the cells of seconds and bytes of a row, with bars relative to the largest row."""
    time = 100 * amounts.seconds / most.seconds if most.seconds else 0
    sent = 100 * amounts.wire_bytes / most.wire_bytes if most.wire_bytes else 0
    seconds = seconds_text(amounts.seconds) if amounts.seconds else ""
    wire = bytes_text(amounts.wire_bytes) if amounts.wire_bytes else ""
    bars = (
        f'<i class="{kind}" style="width:{share:.1f}%"></i>' if share >= 1 else ""
        for kind, share in (("a", time), ("b", sent))
    )
    return "".join(
        f'<span class="cell">{text}{bar}</span>'
        for text, bar in zip((seconds, wire), bars, strict=True)
    )


def _most(rows: Mapping[Any, Amounts]) -> Amounts:
    """Return the most seconds and the most bytes of any row."""
    seconds = max((row.seconds for row in rows.values()), default=0.0)
    return Amounts(seconds, 0.0, max((row.wire_bytes for row in rows.values()), default=0))


def _lines(data: PageData) -> str:
    """Return the source lines as buttons, each with its text, seconds and bytes."""
    most, texts, made = _most(data.lines), source_texts(data.plan), []
    operators: dict[str, dict[str, None]] = {}
    for node in data.plan.graph.nodes:
        operators.setdefault(data.line(node), {})[node.primitive] = None
    indents = _indents(data.lines, texts)
    file, last = "", 0
    for number, (line, amounts) in enumerate(data.lines.items()):
        name, _, place = line.rpartition(":")
        at = int(place) if place.isdecimal() else 0
        if line == BORDER:
            made.append('<div class="file">Border of the function</div>')
        elif name != file:
            made.append(f'<div class="file">{html.escape(name)}</div>')
        elif at - last > NEAR + 1 or (at - last > 1 and not texts.get(name)):
            made.append('<div class="gap" aria-hidden="true">⋯</div>')
        else:
            for n, known in enumerate(texts.get(name, [])[last : at - 1], last + 1):
                shown = html.escape(_dedented(known, indents[name]))
                made.append(
                    f'<div class="code"><span class="num small">{n}</span>'
                    f'<code class="text">{shown}</code></div>'
                )
        file, last = name, at
        found = texts.get(name, ())
        # Without the file, the names of the operators on the line are shown.
        text = BORDER.strip("()") if line == BORDER else ", ".join(operators.get(line, ()))
        if 0 < at <= len(found):
            text = _dedented(found[at - 1], indents.get(name, 0))
        made.append(
            f'<button type="button" class="row" aria-pressed="false" data-pick="line:{number}">'
            f'<span class="num faint small">{at or ""}</span><code class="text" '
            f'title="{html.escape(text.strip())}">{html.escape(text)}</code>'
            f"{_cells(amounts, most)}</button>"
        )
    return "".join(made)


def _line_texts(lines: Iterable[str], texts: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the text of each line, such as `model.py:41`, if its file is known.

    Args:
      texts: the lines of each file.
    """
    found: dict[str, str] = {}
    for line in lines:
        name, _, place = line.rpartition(":")
        known = texts.get(name, ())
        if place.isdecimal() and 0 < int(place) <= len(known):
            found[line] = known[int(place) - 1].rstrip()
    return found


def _indents(lines: Iterable[str], texts: Mapping[str, list[str]]) -> dict[str, int]:
    """Return, for each file, the number of spaces that all of its shown lines begin with.

    Args:
      lines: the shown lines, such as `model.py:41`. texts: the lines of each file.
    """
    found: dict[str, int] = {}
    for line, text in _line_texts(lines, texts).items():
        name, spaces = line.rpartition(":")[0], len(text) - len(text.lstrip())
        found[name] = min(found.get(name, spaces), spaces)
    return found


def _dedented(line: str, indent: int) -> str:
    """Return a line of source with half of its indentation beyond `indent` spaces.

    >>> _dedented("            x = 1", 4)
    '    x = 1'
    """
    text = line.strip()
    return " " * (max(0, len(line.rstrip()) - len(text) - indent) // 2) + text


def _modules(data: PageData) -> str:
    """Return the folded modules as buttons, indented by depth."""
    most, made, depth = _most(data.per_module), [], {-1: -1}
    for number, node in enumerate(data.modules):
        depth[number] = depth[node.parent] + 1
        amounts = data.per_module.get(number)
        # Constants and arguments of a module take no time, and are seen at their readers.
        if amounts is None:
            continue
        made.append(
            f'<button type="button" class="row" aria-pressed="false" data-pick="module:{number}">'
            f'<code class="text" style="padding-left:{14 * depth[number]}px">'
            f"{html.escape(node.label)}</code>{_cells(amounts, most)}</button>"
        )
    # Without named scopes there is one row, which needs an explanation.
    hint = ""
    if len(data.per_module) == 1:
        hint = '<p class="small faint pad">jax.named_scope gives parts of a function a name.</p>'
    return "".join(made) + hint


def source_texts(plan: Plan) -> dict[str, list[str]]:
    """Return the lines of each source file of a plan's function, by the file's name.

    A plan knows the names of its files without their folders. A file is left out if it is not
    found, or if several loaded modules have files of this name.
    """
    wanted = {own_line(node.source).rpartition(":")[0] for node in plan.graph.nodes}
    sources, found = Sources(), {name: set[str]() for name in wanted if name}
    paths = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    call = plan._traced.call
    code = None if call is None else getattr(inspect.unwrap(call.fn), "__code__", None)
    for path in filter(None, paths):
        name = Path(path).name
        if name in found and sources.is_editable(path):
            found[name].add(path)
    # The file of the function itself is certain.
    if code is not None and sources.file(code.co_filename) in found:
        found[sources.file(code.co_filename)] = {code.co_filename}
    return {
        name: linecache.getlines(next(iter(paths)))
        for name, paths in found.items()
        if len(paths) == 1
    }
