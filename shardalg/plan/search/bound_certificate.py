"""The certificate of a search: its table, its solution and the proof of its bound, as a file."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardalg.errors import CertificateError
from shardalg.files import write_whole
from shardalg.plan.search.check_certificate import IMPOSSIBLE, check

if TYPE_CHECKING:
    # The solver is not imported to read and check a certificate.
    from shardalg.plan.search.minimising.branches import Branch
    from shardalg.plan.search.minimising.factor_graph import FactorGraph
    from shardalg.plan.search.minimising.message_passing import Dual
    from shardalg.plan.search.minimising.minimum import Minimum

SCHEMA = "shardalg.certificate/1"


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
        labels = self.found.labels
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "about": self.about,
            "inputs": dict(self.inputs),
            "unit_s": 1e-12,
            **table_content(self.factors),
            "steps": [[*step] for step in self.found.steps],
            "duals": [self._dual(*dual) for dual in self.found.duals],
            "tree": None if self.found.tree is None else self._tree(self.found.tree),
            "solution": [*labels],
            "cost_ps": round(self.factors.total(labels)),
            "bound_ps": -IMPOSSIBLE,
        }
        # The bound is claimed last: rounding of duals to whole numbers lowers it by little.
        content["bound_ps"] = check(content).bound_ps
        return content

    def _tree(self, branch: Branch) -> list[Any]:
        """Return a leaf as [dual], or a branch as [variable, labels, part, other part]."""
        if branch.variable is None:
            return [self._dual(branch.dual, branch.labels)]
        return [branch.variable, [*branch.taken], *map(self._tree, branch.parts)]

    def _dual(self, dual: Dual, labels: Mapping[int, np.ndarray]) -> list[list[Any]]:
        """Return a dual in whole picoseconds: (one variable, other variable, two vectors).

        The vectors have an entry per label of the whole factor graph; 0 for removed labels.
        """
        found = []
        for (one, other), sides in dual.items():
            whole = []
            for variable, side in zip((one, other), sides, strict=True):
                vector = np.zeros(len(self.factors.costs[variable]), np.int64)
                vector[labels[variable]] = np.rint(side).astype(np.int64)
                whole.append(vector.tolist())
            found.append([one, other, *whole] if one < other else [other, one, *whole[::-1]])
        return found

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON, compressed if the name ends with ".gz".

        `shardalg certificate check PATH` verifies it.
        """
        content = self.content()
        content["digest"] = digest_of(content)
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        write_whole(Path(path), gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def table_content(factors: FactorGraph) -> dict[str, Any]:
    """Return the costs of a factor graph in whole picoseconds, each matrix once."""
    numbers: dict[bytes, int] = {}
    matrices: list[list[list[int | None]]] = []
    edges = []
    for (one, other), matrix in factors.edges.items():
        whole = _whole(matrix)
        key = whole.tobytes() + str(whole.shape).encode()
        if key not in numbers:
            numbers[key] = len(matrices)
            matrices.append(_plain(whole))
        edges.append([one, other, numbers[key]])
    costs = [_plain(_whole(own)[None])[0] for own in factors.costs]
    return {"costs": costs, "matrices": matrices, "edges": edges}


def read_certificate(path: str | Path) -> dict[str, Any]:
    """Return the content of a certificate file, and check its digest.

    Raises:
      CertificateError: there is no such file, it is no certificate, or it was edited.
    """
    try:
        data = Path(path).read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        found = json.loads(text)
        schema, digest = found["schema"], found.pop("digest")
    except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise CertificateError(f"{path} is no certificate: {type(error).__name__}.") from None
    if schema != SCHEMA:
        raise CertificateError(f"{path} has the schema {schema!r:.40}, and this is {SCHEMA!r}.")
    if digest != digest_of(found):
        raise CertificateError(f"{path} was edited: its digest is not that of its content.")
    return found


def digest_of(content: dict[str, Any]) -> str:
    """Return the SHA-256 digest of a certificate's content without its digest."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _whole(costs: np.ndarray) -> np.ndarray:
    """Return costs as whole picoseconds, with `IMPOSSIBLE` for infinite ones."""
    return np.where(np.isfinite(costs), costs, IMPOSSIBLE).astype(np.int64)


def _plain(rows: np.ndarray) -> list[list[int | None]]:
    """Return rows of whole numbers as lists, with None for `IMPOSSIBLE`."""
    return [[None if n >= IMPOSSIBLE else n for n in row] for row in rows.tolist()]
