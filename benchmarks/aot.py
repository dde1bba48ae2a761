"""`make aot`: the paper's Transformers compiled by the TPU's own compiler, beside their plans.

The three attempts of Table 1 (at half the batch of Table 2's first column, so that all of them
fit), and the 13 two-dimensional columns of GSPMD's Tables 2 and 3: what
`plan.aot` says of each, with few layers or all, written to `results/aot_tpu_v3.json` after each
one. A full column takes minutes of a core; what is in the user's cache is not compiled again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.result import RESULTS

NAME = "aot_tpu_v3.json"
SHALLOW = 4


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aot", description=__doc__)
    parser.add_argument("columns", nargs="*", help="columns or attempts; default all")
    parser.add_argument("--layers", type=int, default=SHALLOW, help="0: the column's own")
    parser.add_argument("--out", type=Path, default=RESULTS / NAME)
    options = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.nice(int(os.environ.get("AOTNICE", "10")))
    kept = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    rows = {(row["column"], row["layers"]): row for row in kept}
    for name, plan, layers, where in plans(options.columns, options.layers):
        start = time.perf_counter()
        rows[name, layers] = row(name, layers, plan, where)
        write(options.out, list(rows.values()))
        print(
            f"{name} L={layers}: {told(rows[name, layers])} ({time.perf_counter() - start:.0f} s)"
        )
    print(json.dumps(summary(list(rows.values())), indent=1))
    return 0


def plans(names: Sequence[str], layers: int) -> Iterator[tuple[str, Any, int, str]]:
    """(name, plan, layers, topology) of the columns and attempts that are asked for."""
    from shardalg.algebra.mesh import Mesh
    from shardalg.lab import table1_strategies as table1
    from shardalg.lab.evaluation.published import columns
    from shardalg.models.training import part
    from shardalg.plan.plan import plan

    known = {c.id: c for c in columns() if c.kind == "dense2d"}
    first = next(iter(known.values()))
    asked = [(name, first, name) for name in table1.STRATEGIES]
    asked += [(name, c, "finalized") for name, c in known.items()]
    step = part("train_step")
    for name, column, strategy in asked:
        if names and name not in names:
            continue
        model, mesh = config(column.facts, layers), Mesh(column.mesh)
        if name in table1.STRATEGIES:
            model = replace(model, B=model.B // 2)
        made = plan(
            step.function(model),
            *step.arguments(model),
            strategy=table1.STRATEGIES[strategy](mesh, model),
            roles=step.roles(),
            donate_argnums=step.donate_argnums(),
        )
        yield name, made, model.L, topology(mesh)


def config(facts: Mapping[str, int], layers: int) -> Any:
    """Return the model of a column with so many layers; 0 keeps its own number."""
    from shardalg.models.transformer import Config

    sizes = {letter: facts[letter] for letter in "BSMHNDVL"}
    return Config(**{**sizes, "L": layers or sizes["L"]})


def topology(mesh: Any) -> str:
    """Return a TPU v3 slice of as many cores that the mesh's axes tile.

    >>> from shardalg.algebra.mesh import Mesh
    >>> topology(Mesh({"X": 8, "Y": 16})), topology(Mesh({"X": 16, "Y": 4}))
    ('v3:8x8', 'v3:8x4')
    """
    X, Y = mesh.shape.values()
    return f"v3:{X}x{Y // 2}" if X <= Y else f"v3:{X // 2}x{Y}"


def row(name: str, layers: int, plan: Any, where: str) -> dict[str, Any]:
    """Return the recorded fields of a column."""
    found = plan.aot(where)
    return {
        "column": name,
        "layers": layers,
        "mesh": plan.mesh.shape,
        "where": found.where,
        "out_of_memory": {k: getattr(found, k).out_of_memory for k in ("compiled", "xla")},
        "figures": list(found.table),
        "differences": list(found.differences),
    }


def figure(row: dict[str, Any], quantity: str, column: str, axes: str = "") -> Any:
    """Return a cell of a row's table; 0 if the collective does not occur."""
    cells = (f for f in row["figures"] if (f["quantity"], f["mesh_axes"]) == (quantity, axes))
    return next((f[column] for f in cells), 0)


def told(row: dict[str, Any]) -> str:
    """Return a line for the terminal."""
    peaks = {c: figure(row, "peak_memory_bytes", c) for c in ("planned", "compiled", "xla")}
    return ", ".join(f"{k} {v / 1e9:.3f} GB" if v else f"{k} unknown" for k, v in peaks.items())


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return median and largest errors of the planned figures, over the rows that fit."""
    found: dict[str, Any] = {"rows": len(rows)}
    for quantity in ("peak_memory_bytes", "argument_bytes", "flops"):
        for against in ("compiled", "xla"):
            pairs = [(figure(r, quantity, "planned"), figure(r, quantity, against)) for r in rows]
            errors = [abs(p / t - 1) for p, t in pairs if t]
            if errors:
                found[f"{quantity} against {against}"] = {
                    "median": statistics.median(errors),
                    "max": max(errors),
                    "n": len(errors),
                }
    pairs = [[figure(r, "peak_memory_bytes", c) for c in ("compiled", "xla")] for r in rows]
    ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
    found["peak, ours compiled over XLA's"] = {"max": max(ratios, default=math.nan)}
    return found


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """All rows in the order of their names, and their summary, atomically."""
    from shardalg.files import write_whole

    rows = sorted(rows, key=lambda row: (row["column"], row["layers"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"summary": summary(rows), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
