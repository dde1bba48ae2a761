"""The three figures on top of a plan's page, as HTML: step time, memory, and bytes per axis."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from shardalg.costs.analyses.limits import EXPOSED
from shardalg.palette import CAUSES, MEMORY, NEUTRAL, axis_color
from shardalg.plan.overview import Overview
from shardalg.plan.page.page_memory import MemoryCurve
from shardalg.tables import bytes_text, counted, seconds_text

CAUSE_NAMES = {
    "memory traffic": "memory-bound operators",
    "idle devices": "repeated work",
}
"""Names of causes of a step's time that differ from those of `Cost.limits`."""
CLASS_COLOURS = {
    **{name.replace("_", " "): colour for name, colour in MEMORY.items()},
    "arguments": MEMORY["unknown"],
    "intermediate values": MEMORY["transients"],
}
"""Colours of the classes of memory, by their names on the page."""
WIDTH, HEIGHT = 600, 110
"""Size of the memory curve in units of its drawing."""


def axis_colours(seen: Overview) -> dict[str, str]:
    """Return the colour of each mesh axis, by its name."""
    names = seen.plan.mesh.axis_names
    return {name: axis_color(i) for i, name in enumerate(names)}


def _fill(axes: Sequence[str], colours: dict[str, str]) -> str:
    """Return the CSS background for a set of mesh axes: stripes if there are several."""
    used = [colours.get(axis, "#555") for axis in axes] or ["#555"]
    if len(used) == 1:
        return used[0]
    stops = ",".join(f"{c} {6 * i}px {6 * i + 6}px" for i, c in enumerate(used))
    return f"repeating-linear-gradient(45deg,{stops})"


def _key(rows: Iterable[tuple[str, str, str, str]]) -> str:
    """Return a legend; a row is (background, name, amount, share)."""
    cells = "".join(
        f'<i style="background:{fill}"></i><span>{html.escape(name)}</span>'
        f"<b>{amount}</b><span>{share}</span>"
        for fill, name, amount, share in rows
    )
    return f'<div class="key">{cells}</div>'


def _share(share: float) -> str:
    """Return a share as text in per cent; a small one is "<1%".

    >>> _share(0.004), _share(0.25), _share(0.0)
    ('&lt;1%', '25%', '0%')
    """
    return "&lt;1%" if 0 < share < 0.005 else f"{share:.0%}"


def time_figure(seen: Overview, hidden_s: float) -> str:
    """Return the step time as one stacked bar with its parts, and its limit.

    Args:
      hidden_s: seconds of communication that computation hides.
    """
    cost, colours = seen.priced, axis_colours(seen)
    limits = cost.limits
    rows = []
    for name, seconds, share in limits.table().rows:
        kind, _, axes = name.partition(" along ")
        names = axes.split(",") if axes else []
        if kind == EXPOSED:
            fill, text = _fill(names, colours), f"exposed communication: {axes}"
        else:
            fill, text = CAUSES.get(kind, NEUTRAL), CAUSE_NAMES.get(kind, kind)
            text += f" along {axes}" if axes else ""
        rows.append((fill, text, seconds, share))
    bars = "".join(
        f'<i style="width:{100 * share:.3f}%;background:{fill}"'
        f' title="{html.escape(text)}: {seconds_text(seconds)}"></i>'
        for fill, text, seconds, share in rows
    )
    legend = _key((f, text, seconds_text(s), _share(share)) for f, text, s, share in rows)
    # The time of a step without communication and memory traffic is its lower limit.
    ideal = limits.model_s / seen.plan.mesh.size
    step = seconds_text(cost.at_hints.step_time_s)
    limit = ""
    if ideal:
        limit = (
            f"Limit: {seconds_text(ideal)}, if every device multiplied at its peak rate all the "
            f"time. This step reaches {cost.mfu:.0%} of it (MFU). "
        )
    if hidden_s > 0:
        limit += f"A further {seconds_text(hidden_s)} of communication run beside computation."
    return (
        f'<section class="card"><h2>Step time</h2><div class="big">{step}</div>'
        f'<div class="stack" role="img" aria-label="Parts of the step time">{bars}</div>{legend}'
        f'<p class="faint small">{limit}</p></section>'
    )


def memory_figure(seen: Overview, curve: MemoryCurve) -> str:
    """Return the memory of a device over the program by class, with its peak and capacity."""
    peak = curve.totals[curve.peak]
    share = peak / curve.capacity if curve.capacity else 0.0
    free, kind = curve.capacity - peak, "over" if share > 1 else "within"
    over = f"{bytes_text(-free)} too much: does NOT fit" if free < 0 else f"{bytes_text(free)} free"
    count, base, paths = len(curve.totals), [0] * len(curve.totals), []
    # The areas of the classes are stacked, each on top of those before it. An area's edge is a
    # staircase: the memory at point i of the program is drawn from x = i to i + 1. A polygon runs
    # along its upper edge, and back along its lower edge.
    for name, sizes in curve.by_class.items():
        top = [low + size for low, size in zip(base, sizes, strict=True)]
        upper_edge = [(x, y) for i, y in enumerate(top) for x in (i, i + 1)]
        lower_edge = [(x, y) for i, y in enumerate(base) for x in (i, i + 1)][::-1]
        line = " ".join(
            f"{WIDTH * x / count:.1f},{HEIGHT - 0.92 * HEIGHT * y / (peak or 1):.1f}"
            for x, y in upper_edge + lower_edge
        )
        paths.append(f'<polygon fill="{CLASS_COLOURS[name]}" points="{line}"/>')
        base = top
    at = 100 * (curve.peak + 0.5) / count
    side = f"right:{100 - at:.2f}%" if at > 50 else f"left:{at:.2f}%"
    rows = (
        (
            CLASS_COLOURS[name],
            name,
            bytes_text(sizes[curve.peak]),
            _share(sizes[curve.peak] / peak),
        )
        for name, sizes in curve.by_class.items()
        if sizes[curve.peak] >= 0.005 * peak
    )
    return (
        f'<section class="card"><h2>Peak memory of a device</h2><div class="big">'
        f"{bytes_text(peak)} <small>of {bytes_text(curve.capacity)}: {over}</small></div>"
        f'<div class="meter" role="img" aria-label="{share:.0%} of the capacity">'
        f'<i class="{kind}" style="width:{min(100, 100 * share):.2f}%"></i></div>'
        f'<div class="curve" tabindex="0" role="slider" aria-label="Memory over the program: arrow '
        f'keys move, the values alive are listed" aria-valuemin="0" aria-valuemax="{count - 1}" '
        f'aria-valuenow="{curve.peak}">'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'{"".join(paths)}</svg><div class="mark" style="left:{at:.2f}%"></div>'
        f'<span class="tag" style="{side}">&nbsp;peak {bytes_text(peak)}&nbsp;</span></div>'
        f'{_phases(curve)}{_key(rows)}<p class="faint small">First to last of '
        f"{counted(curve.instructions, 'instruction')}. Click the curve to list the values alive "
        f'there.</p><details class="alivehere"><summary>Values alive at the peak</summary>'
        f'<div class="alive"></div></details></section>'
    )


def _phases(curve: MemoryCurve) -> str:
    """Return a strip below the memory curve that names the phase of the instructions above it."""
    runs: list[tuple[str, int]] = []
    for phase in curve.phases:
        before, count = runs[-1] if runs else ("", 0)
        # Constants and the start of the program have no phase, and get the one of their neighbour.
        if runs and (not phase or before in ("", phase)):
            runs[-1] = phase or before, count + 1
        else:
            runs.append((phase, 1))
    # In an interleaved program the names would be too short to read.
    if len(runs) > 9:
        return ""
    cells = "".join(f'<span style="flex:{count} 0 0">{name}</span>' for name, count in runs)
    return f'<div class="phases">{cells}</div>'


def bytes_figure(seen: Overview) -> str:
    """Return the bytes that a device sends along each set of mesh axes, and its links' load."""
    colours, step = axis_colours(seen), float(seen.priced.at_hints.step_time_s)
    rows = seen.numbers.rows
    most = max((float(row[3]) for row in rows), default=0) or 1
    parts = []
    for axes, devices, count, sent, seconds in rows:
        busy = f", {_share(float(seconds) / step)} of the step" if step else ""
        fill = _fill(axes.split(","), colours)
        width = f"width:{100 * float(sent) / most:.2f}%;background:{fill}"
        text = (
            f"groups of {devices:,} devices, {counted(count, 'collective')}; "
            f"{seconds_text(seconds)} at full link speed{busy}"
        )
        parts.append(
            f'<div class="axis"><div><b>{html.escape(axes)}</b><span>{bytes_text(sent)}</span>'
            f'</div><div class="meter"><i style="{width}"></i></div>'
            f'<div class="faint small">{text}</div></div>'
        )
    total = bytes_text(seen.priced.at_hints.wire_bytes)
    body = "".join(parts) or "<p>No device sends anything: there are no collectives.</p>"
    return (
        f'<section class="card"><h2>Bytes sent per mesh axis</h2><div class="big">{total} '
        f"<small>per device and step</small></div>{body}</section>"
    )
