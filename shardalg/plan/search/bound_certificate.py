"""The certificate of a search: its table, its solution and the proof of its bound, as a file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardalg.files import write_whole
from shardalg.plan.search.check_certificate import IMPOSSIBLE, SCHEMA, check, digest_of
from shardalg.plan.search.minimising.factor_graph import FactorGraph
from shardalg.plan.search.minimising.minimum import Minimum


@dataclass(frozen=True, eq=False)
class Certificate:
    """The costs of one mesh, and the minimum that was found with its proof.

    Attributes:
      about: what the costs are of: the function, the mesh and the hardware, in words.
      inputs: the mesh, the hardware, the price of memory, pins and bans, as plain data.
    """

    about: str
    factors: FactorGraph
    found: Minimum
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Return the certificate as plain data; `check_certificate.check` verifies it.

        The claimed bound is the one that the check proves from rounded duals.
        """
        numbers: dict[bytes, int] = {}
        matrices: list[list[list[int | None]]] = []
        edges = []
        for (one, other), matrix in self.factors.edges.items():
            whole = _whole(matrix)
            key = whole.tobytes() + str(whole.shape).encode()
            if key not in numbers:
                numbers[key] = len(matrices)
                matrices.append(_plain(whole))
            edges.append([one, other, numbers[key]])
        labels = self.found.labels
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "about": self.about,
            "inputs": dict(self.inputs),
            "unit_s": 1e-12,
            "costs": [_plain(_whole(costs)[None])[0] for costs in self.factors.costs],
            "matrices": matrices,
            "edges": edges,
            "steps": [[*step] for step in self.found.steps],
            "duals": [*map(self._dual, range(len(self.found.duals)))],
            "solution": [*labels],
            "cost_ps": round(self.factors.total(labels)),
            "bound_ps": -IMPOSSIBLE,
        }
        # The bound is claimed last: rounding of duals to whole numbers lowers it by little.
        content["bound_ps"] = check(content).bound_ps
        return content

    def _dual(self, number: int) -> list[list[Any]]:
        """Return a dual in whole picoseconds: (one variable, other variable, two vectors).

        The vectors have an entry per label of the whole factor graph; 0 for removed labels.
        """
        dual, labels = self.found.duals[number]
        found = []
        for (one, other), sides in dual.items():
            whole = []
            for variable, side in zip((one, other), sides, strict=True):
                vector = np.zeros(len(self.factors.costs[variable]), np.int64)
                vector[labels[variable]] = np.rint(side).astype(np.int64)
                whole.append(vector.tolist())
            found.append([one, other, *whole])
        return found

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON, compressed if the name ends with ".gz".

        `shardalg certificate check PATH` verifies it.
        """
        content = self.content()
        content["digest"] = digest_of(content)
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        write_whole(Path(path), gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def _whole(costs: np.ndarray) -> np.ndarray:
    """Return costs as whole picoseconds, with `IMPOSSIBLE` for infinite ones."""
    return np.where(np.isfinite(costs), costs, IMPOSSIBLE).astype(np.int64)


def _plain(rows: np.ndarray) -> list[list[int | None]]:
    """Return rows of whole numbers as lists, with None for `IMPOSSIBLE`."""
    return [[None if n >= IMPOSSIBLE else n for n in row] for row in rows.tolist()]
