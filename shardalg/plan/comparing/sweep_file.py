"""The file of a sweep: its finished points, so that an interrupted sweep goes on from there.

It is JSON with a SHA-256 of its content, written atomically. It names all that the figures depend
on: the function's graph, annotations and options, the machine, and the versions. Reading the file
never runs code from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

from shardalg import files
from shardalg.errors import PlanFileError
from shardalg.files import write_whole
from shardalg.plan import plan_file
from shardalg.plan.comparing.given import resumed_file
from shardalg.plan.comparing.step_figures import StepFigures

SCHEMA = "shardalg.sweep/1"
PARTS = ("made_of", "points", "schema")
EVERY_S = 2.0
"""Seconds between two writes of the file, so that many quick points do not rewrite it each time."""

_Saved: Any = make_dataclass(
    "_Saved",
    [
        ("step_s", float | int | None),
        ("peak_bytes", float | int | None),
        ("wire_bytes", float | int | None),
        ("source", str),
        ("refused", str),
    ],
    frozen=True,
)


@dataclass(frozen=True)
class Finished:
    """A finished point: figures with their source, or the reason why there are none."""

    figures: StepFigures | None
    source: str = ""
    refused: str = ""


@dataclass
class SweepFile:
    """Finished points of a sweep, and the file that has them.

    Attributes:
      path: the file; None keeps the points in memory alone.
      made_of: digests and texts of all that the figures depend on, by name.
      points: the finished points, by the text of the point.
    """

    path: Path | None
    made_of: dict[str, str]
    points: dict[str, Finished] = field(default_factory=dict)
    _written_s: float = 0.0

    @staticmethod
    def opened(path: str | Path | None, made_of: Mapping[str, str]) -> SweepFile:
        """Return a sweep's file with the points that it has; none if there is no such file yet.

        Without a path, the points are kept in memory only.

        Args:
          made_of: as the attribute. Names that the file does not have are added to it.

        Raises:
          PlanFileError: the file cannot be read, was edited or cut short, is no file of a sweep, or
            is of another function, machine or version.
        """
        if path is None:
            return SweepFile(None, dict(made_of))
        place = resumed_file(path)
        if not place.exists():
            return SweepFile(place, dict(made_of))
        saved, points = _read(place)
        # A name that the file lacks is new, for example a policy that is now swept, too.
        different = [name for name in made_of if saved.get(name, made_of[name]) != made_of[name]]
        if different:
            texts = [f"{n} {saved[n]:.60} in the file, {made_of[n]:.60} here" for n in different]
            raise PlanFileError(
                f"{path} has the points of another sweep ({'; '.join(texts)}): give another file, "
                "or delete it."
            )
        return SweepFile(place, {**saved, **made_of}, points)

    def add(self, key: str, point: Finished) -> None:
        """Add a finished point; the file is written again if the last time is long ago."""
        self.points[key] = point
        if time.monotonic() - self._written_s > EVERY_S:
            self.write()

    def write(self) -> None:
        """Write the file, atomically; nothing without a path.

        The file has a digest of its content, so that an edited or broken file is noticed.

        Raises:
          PlanFileError: the file cannot be written.
        """
        if self.path is None:
            return
        content = {
            "made_of": self.made_of,
            "points": {key: _record(point) for key, point in self.points.items()},
            "schema": SCHEMA,
        }
        text = json.dumps({**content, "sha256": plan_file.digest(plan_file.body(content))})
        try:
            write_whole(self.path, text + "\n")
        except OSError as error:
            raise PlanFileError(f"{self.path} cannot be written: {error.strerror}.") from None
        self._written_s = time.monotonic()


def _record(point: Finished) -> dict[str, Any]:
    """Return a point as plain data for the file; its three amounts are None if it is refused."""
    figures = point.figures
    # The fields of `StepFigures` are these three amounts, in this order.
    amounts = (None,) * 3 if figures is None else vars(figures).values()
    names = ("step_s", "peak_bytes", "wire_bytes")
    return {
        **dict(zip(names, amounts, strict=True)), "source": point.source, "refused": point.refused,
    }  # fmt: skip


def _read(path: Path) -> tuple[dict[str, str], dict[str, Finished]]:
    """Read a file of a sweep, and return its parts `made_of` and `points`.

    `made_of` has texts of all that the figures depend on, and `points` the figures by key.

    Raises:
      PlanFileError: as in `SweepFile.opened`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PlanFileError(f"{path} cannot be read: {error}.") from None
    try:
        whole = plan_file.read_json(path, text)
    except PlanFileError:
        raise PlanFileError(
            f"{path} is no file of a sweep, or it was cut short: it is not JSON. Delete it, and "
            "sweep again."
        ) from None
    # The digest is that of the content without it.
    digest = whole.pop("sha256", None) if isinstance(whole, dict) else None
    if not isinstance(whole, dict) or whole.get("schema") != SCHEMA or set(whole) != {*PARTS}:
        raise PlanFileError(f"{path} is not a file of a sweep ({SCHEMA}): give another file.")
    if plan_file.digest(plan_file.body(whole)) != digest:
        raise PlanFileError(
            f"{path} was edited: its digest is not that of its content. Delete it, and sweep again."
        )
    made_of = files.read(dict[str, str], whole["made_of"], f"{path}: made_of")
    saved = files.read(dict[str, _Saved], whole["points"], f"{path}: points")
    return made_of, {key: _finished(path, key, point) for key, point in saved.items()}


def _finished(path: Path, key: str, saved: Any) -> Finished:
    """Return a point of a file.

    Args:
      path, key: the file and the point's key in it, for the error.
      saved: the point's entries: a reason, or three amounts and their source.

    Raises:
      PlanFileError: it has neither figures nor a reason.
    """
    amounts = (saved.step_s, saved.peak_bytes, saved.wire_bytes)
    if saved.refused and amounts == (None, None, None):
        return Finished(None, refused=saved.refused)
    if saved.refused or None in amounts:
        raise PlanFileError(f"{path}: the point {key} needs three figures or a reason.")
    return Finished(StepFigures(*map(float, amounts)), saved.source)
