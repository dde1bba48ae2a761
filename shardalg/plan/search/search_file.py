"""The file of searches: the figures of finished meshes, so that a search goes on from there.

An entry is found by the digest of all that it depends on: the traced function, the mesh with its
machine, the budget, pins and bans, and the versions. One file can have entries of many functions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from shardalg import files
from shardalg.errors import PlanFileError
from shardalg.files import write_whole
from shardalg.plan import plan_file
from shardalg.plan.comparing.given import resumed_file
from shardalg.plan.search.mesh_search import MeshFigures, MeshSearch

SCHEMA = "shardalg.search/1"


@dataclass
class SearchFile:
    """Figures of finished meshes, and the file that has them.

    Attributes:
      path: the file; None keeps nothing.
      entries: the figures by their digest.
    """

    path: Path | None
    entries: dict[str, MeshFigures] = field(default_factory=dict)

    @staticmethod
    def opened(path: str | Path | None) -> SearchFile:
        """Return the entries of a file; none if there is no such file yet.

        Raises:
          PlanFileError: the file cannot be read, was edited, or is no file of a search.
        """
        if path is None:
            return SearchFile(None)
        place = resumed_file(path)
        if not place.exists():
            return SearchFile(place)
        try:
            content = json.loads(place.read_text(encoding="utf-8"))
            told = content.pop("sha256")
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise PlanFileError(f"{path} is no file of a search: {type(error).__name__}.") from None
        if content.get("schema") != SCHEMA or told != plan_file.digest(plan_file.body(content)):
            raise PlanFileError(
                f"{path} was edited or is no file of a search: give another file, or delete it."
            )
        entries = files.read(dict[str, MeshFigures], content["entries"], "entries")
        return SearchFile(place, entries)

    def key(self, search: MeshSearch) -> str:
        """Return the digest of all that the figures of a mesh depend on; "" without a file."""
        if self.path is None:
            return ""
        parts = [
            plan_file.body(search.traced.to_json()),
            repr((search.mesh, search.place, search.budget, search.wishes)),
            plan_file.body(search.place.chip.to_json()),
            plan_file.body(plan_file.versions(search.options)),
            plan_file.body(files.to_data(search.options.settings)),
        ]
        return plan_file.digest("\n".join(parts))

    def add(self, key: str, figures: MeshFigures) -> None:
        """Add the figures of a finished mesh, and write the file atomically.

        Figures of a search that was stopped are left out. Entries that another search has written
        meanwhile stay.

        Raises:
          PlanFileError: the file cannot be written.
        """
        if self.path is None or figures.stopped:
            return
        self.entries = {**SearchFile.opened(self.path).entries, **self.entries, key: figures}
        rows = {key: files.to_data(vars(each)) for key, each in self.entries.items()}
        content = {"entries": rows, "schema": SCHEMA}
        text = json.dumps({**content, "sha256": plan_file.digest(plan_file.body(content))})
        try:
            write_whole(self.path, text + "\n")
        except OSError as error:
            raise PlanFileError(f"{self.path} cannot be written: {error.strerror}.") from None
