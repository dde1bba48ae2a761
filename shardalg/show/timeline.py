"""Timeline of the devices of each pipeline stage: a table, a figure, and a Chrome trace."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.costs.pipelines.events import BUBBLE, COMPUTE, StageEvent
from shardalg.files import check_place, write_whole
from shardalg.palette import kind_color
from shardalg.svg import (
    WIDTH,
    Canvas,
    draw_legend,
    draw_scale,
    drawing_card,
    places,
    scale_marks,
    spans_by_pixel,
    text_width,
)
from shardalg.tables import MOST_ROWS, Table, seconds_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Timeline:
    """The events of one step, from `plan.timeline` or `measurement.timeline`.

    Attributes:
      events: all events in order of time.
      mesh: text of the mesh.
      of: origin of the times, such as "predicted on tpu_v3" or "measured".
      alone: the events of a prediction without overlap: collectives have all of their seconds.
    """

    events: tuple[StageEvent, ...]
    mesh: str
    of: str
    alone: tuple[StageEvent, ...] = ()

    @property
    def stages(self) -> int:
        """Number of pipeline stages; 1 without a pipeline."""
        return 1 + max((event.stage for event in self.events), default=0)

    @property
    def step_s(self) -> float:
        """Seconds from the first event to the end of the last."""
        return max((event.start_s + event.seconds for event in self.events), default=0.0)

    def seconds(self, kind: str, stage: int = 0) -> float:
        """Return the seconds that a stage spends on "compute", "bubble" or a kind of collective."""
        return sum(e.seconds for e in self.events if e.kind == kind and e.stage == stage)

    @property
    def bubbles(self) -> float:
        """The share of the step in which a stage waits, which is equal for all stages."""
        return self.seconds(BUBBLE) / self.step_s if self.step_s else 0.0

    def table(self) -> Table:
        """Return a row per event, in order of time.

        `trip` is the number of the loop's iteration, None outside of loops. Times are seconds since
        the begin of the step.
        """
        names = ("stage", "kind", "mesh_axes", "phase", "trip", "start_s", "seconds")
        rows = (
            (e.stage, e.kind, ",".join(e.axes), e.phase, e.trip, e.start_s, e.seconds)
            for e in self.events
        )
        return Table(names, tuple(rows))

    def trace(self) -> dict[str, Any]:
        """Return the events in Chrome's Trace Event Format; Perfetto (ui.perfetto.dev) reads it.

        The trace has one process, a thread per stage, and complete events in microseconds.
        """

        def named(kind: str, stage: int, name: str) -> dict[str, Any]:
            """Return a metadata event ("M"), which names the process or a thread (a stage)."""
            return {"ph": "M", "name": kind, "pid": 0, "tid": stage, "args": {"name": name}}

        made = [named("process_name", 0, f"{self.of}, {self.mesh}")]
        made += [named("thread_name", stage, row) for stage, row in enumerate(self._rows)]
        # Viewers sort threads by name otherwise: "stage 10" would come before "stage 2".
        made += [
            {**named("thread_sort_index", stage, ""), "args": {"sort_index": stage}}
            for stage in range(self.stages)
        ]
        # A complete event ("X") has its begin and its duration.
        for event in self.events:
            trip = "" if event.trip is None else f" {event.trip}"
            name = event.phase if event.kind == COMPUTE else event.kind
            made.append(
                {
                    "ph": "X",
                    "name": f"{name}{trip}",
                    "cat": event.kind,
                    "pid": 0,
                    "tid": event.stage,
                    # The trace format of Chrome and Perfetto counts in microseconds.
                    "ts": 1e6 * event.start_s,
                    "dur": 1e6 * event.seconds,
                    "args": {"axes": ",".join(event.axes), "phase": event.phase},
                }
            )
        return {"traceEvents": made, "displayTimeUnit": "ms"}

    @property
    def _rows(self) -> list[str]:
        """The name of each row: a stage of a pipeline, or one row for all devices without one."""
        several = self.stages > 1
        return [f"stage {stage}" if several else "every device" for stage in range(self.stages)]

    def save(self, path: str | Path, *, beside: Timeline | None = None) -> None:
        """Write the trace to a JSON file, atomically.

        Args:
          beside: another timeline, which the trace shows as a second process.
        """
        made = self.trace()
        if beside is not None:
            # Perfetto groups rows by process, so the two timelines do not mix.
            other = [{**event, "pid": 1} for event in beside.trace()["traceEvents"]]
            made = {**made, "traceEvents": [*made["traceEvents"], *other]}
        write_whole(Path(path), json.dumps(made) + "\n")

    def page(self, path: str | Path, *, beside: Timeline | None = None) -> None:
        """Write an interactive page with a track per stream and stage, which can be zoomed.

        Overlap can be switched off if the timeline is a prediction. The page is one HTML file that
        loads nothing.

        Args:
          path: the file, which is written atomically.
          beside: another timeline, such as the measured step of `sa.read_trace`, which is drawn
            below on the same axis. The page then has a table of seconds per collective.

        Raises:
          OSError: the folder does not exist, or is not writable.
        """
        from shardalg.show.pages.timeline_page import timeline_document

        check_place(Path(path))
        write_whole(Path(path), timeline_document(self, beside))

    def differences(self, measured: Timeline) -> Table:
        """Return a row per kind and mesh axes: seconds here and in another timeline.

        Seconds are those of the first stage. A measured trace does not name mesh axes, so kinds are
        compared as a whole if one of the timelines has no axes. The ratio is measured / planned.
        """
        has_axes = all(any(e.axes for e in side.events) for side in (self, measured))
        sums: dict[tuple[str, str], list[float]] = {}
        for place, side in enumerate((self, measured)):
            for event in side.events:
                if event.stage == 0:
                    axes = ",".join(event.axes) if has_axes else ""
                    sums.setdefault((event.kind, axes), [0.0, 0.0])[place] += event.seconds
        rows = (
            (kind, axes, ours, theirs, theirs - ours, theirs / ours if ours else None)
            for (kind, axes), (ours, theirs) in sums.items()
        )
        names = ("kind", "mesh_axes", "planned_s", "measured_s", "difference_s", "ratio")
        return Table(names, tuple(sorted(rows, key=lambda row: -abs(row[4]))))

    def figure(self) -> Figure:
        """Draw a bar per stage over time: compute, bubbles and collectives, a colour per kind.

        A bubble is a time in which a stage waits for another one.
        """
        # Imported here, because matplotlib is slow to import and only figures need it.
        from matplotlib.patches import Patch

        from shardalg.drawing import Drawing

        waits = f", bubbles {self.bubbles:.1%}" if self.bubbles else ""
        step = f"one step {self.of}: {seconds_text(self.step_s)}{waits}; {self.mesh}"
        title = textwrap.wrap(step, 90)
        height = 0.6 + 0.2 * len(title) + 0.4 * self.stages
        drawn = Drawing(figsize=(9, height), layout="constrained")
        axes = drawn.subplots()
        # One artist per stage and colour is drawn faster than one artist per event.
        bars = defaultdict(list)
        for event in self.events:
            drawn_as = event.stage, kind_color(event.kind)
            bars[drawn_as].append((event.start_s, event.seconds))
        for (stage, colour), spans in bars.items():
            axes.broken_barh(spans, (stage - 0.4, 0.8), color=colour, linewidth=0)
        axes.set_yticks(range(self.stages), self._rows)
        # A y axis grows upwards, but a pipeline is read from its first stage at the top.
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.set_title("\n".join(title), loc="left")
        kinds = dict.fromkeys(event.kind for event in self.events)
        handles = [Patch(color=kind_color(kind), label=kind.replace("_", " ")) for kind in kinds]
        drawn.legend(handles=handles, ncols=len(handles), loc="outside lower right", frameon=False)
        return drawn

    def __repr__(self) -> str:
        """Return the timeline in one line: seconds of a step, and shares of compute and bubbles.

        A bubble is a time in which a stage of a pipeline waits. Shares are of the first stage.
        """
        rows = f"{self.stages} stages" if self.stages > 1 else "all devices the same"
        return (
            f"Timeline {self.of} on {self.mesh}: {rows}, step {seconds_text(self.step_s)}, "
            f"compute {self.seconds(COMPUTE) / (self.step_s or 1):.1%}, "
            f"bubbles {self.bubbles:.1%} (first stage), {len(self.events)} events"
        )

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks: a track per stage over time, and the longest events."""
        # A program can have thousands of events; the longest ones explain the step.
        longest = sorted(self.events, key=lambda event: -event.seconds)[:MOST_ROWS]
        rows = tuple(
            (e.stage, e.kind, ",".join(e.axes), e.phase, e.trip, seconds_text(e.start_s),
             seconds_text(e.seconds))
            for e in longest
        )  # fmt: skip
        names = ("stage", "kind", "mesh_axes", "phase", "trip", "start", "time")
        left = len(self.events) - len(rows)
        more = (f"The longest {len(rows)} of {len(self.events)} events.",) if left else ()
        return drawing_card(f"{self!r}.", self._canvas(), *more, Table(names, rows))

    def _canvas(self) -> Canvas:
        """Return a track per stage as SVG, with a scale of time and the seconds of each kind.

        Names of the stages are at the left. Of many stages, some are shown and an ellipsis stands
        for the others.
        """
        canvas, most = Canvas(), self.step_s or 1.0
        names = dict(enumerate(self._rows))
        side = 10 + max(map(text_width, names.values()))
        room, top = WIDTH - side, 0.0
        for stage in places(self.stages):
            if stage is None:
                canvas.text((0, top + 12), "…")
                top += 20
                continue
            canvas.text((side - 8, top + 16), names[stage], anchor="end")
            spans = [(e.start_s, e.seconds, e.kind) for e in self.events if e.stage == stage]
            # At most one rectangle per pixel, so that the size does not grow with the program.
            for first, end, kind in spans_by_pixel(spans, most, int(room)):
                canvas.rect((side + first, top), (end - first, 22), kind_color(kind))
            top += 28
        # The scale has round times at their share of the width.
        marks = {mark / most: seconds_text(mark) for mark in scale_marks(most)}
        draw_scale(canvas, side, room, marks)
        kinds = dict.fromkeys(event.kind for event in self.events)
        of = " (first stage)" if self.stages > 1 else ""
        entries = [
            (kind_color(k), f"{k.replace('_', ' ')} {seconds_text(self.seconds(k))}{of}")
            for k in kinds
        ]
        draw_legend(canvas, entries)
        return canvas
