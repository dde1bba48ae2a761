"""An answer that is a change of the user's source: the patched text, the diff, and its file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shardalg.errors import PatchError
from shardalg.files import write_whole
from shardalg.graph.source import Sources
from shardalg.plan.patching.edits import Edit, applied, diff, encoded
from shardalg.plan.patching.probes import Expression
from shardalg.plan.patching.user_code import UserFile
from shardalg.tables import Answer


@dataclass(frozen=True, eq=False, repr=False)
class SourcePatch(Answer):
    """A change of the user's source.

    Attributes:
      files: the user's files.
      expressions: their expressions by number.
      axes: the sizes of the plan's mesh axes.
    """

    files: tuple[UserFile, ...]
    expressions: Mapping[int, Expression]
    axes: Mapping[str, int]

    @abstractmethod
    def edits_of(self, file: UserFile) -> list[Edit]:
        """Return the edits of a file; [] if it does not change."""

    @property
    @abstractmethod
    def conclusion(self) -> str:
        """The result of the search in one or two sentences."""

    @cached_property
    def texts(self) -> dict[str, str]:
        """The patched text of each file that changes, by its path."""
        made = {file: self.edits_of(file) for file in self.files}
        return {file.path: applied(file.text, edits) for file, edits in made.items() if edits}

    @cached_property
    def diff(self) -> str:
        """The change as a unified diff, which `git apply` accepts; "" if there is nothing to add.

        A cell of a notebook has no file that `git apply` finds: the table names its line.
        """
        changed = (file for file in self.files if file.path in self.texts)
        return "".join(diff(file, self.texts[file.path]) for file in changed)

    def write(self, path: str | Path) -> Path:
        """Write the diff to a file, and return its path.

        Raises:
          PatchError: there is nothing to add. OSError: the folder does not exist, or is not
            writable.
        """
        if not self.diff:
            raise PatchError(f"there is nothing to write: {self.conclusion}")
        write_whole(Path(path), encoded(self.diff, self.files))
        return Path(path)

    def place(self, number: int) -> str:
        """Return the file and the line of an expression, such as `model.py:41`."""
        expression = self.expressions[number]
        return f"{Sources().file(expression.file.path)}:{expression.node.lineno}"
