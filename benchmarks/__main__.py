"""`python -m benchmarks [name ...]`: run them, print their tables, keep them in results/."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.result import RESULTS, printed
from shardalg.lab.explore.explore import Progress

# Name -> module with `run(say) -> Result`; each loads jax itself, after the environment is set.
BENCHMARKS = {
    "planning": "benchmarks.planning",
    "scaling": "benchmarks.scaling",
    "halos": "benchmarks.halos",
    "step_time": "benchmarks.step_time",
    "oracle_bytes": "benchmarks.oracle",
    "oracle_time": "benchmarks.oracle_time",
    "switches": "benchmarks.switches",
    "formatting": "benchmarks.formatting",
    "foreign_step": "benchmarks.foreign_step",
    "symbols": "benchmarks.symbols",
    "algebra": "benchmarks.algebra",
    "reshards": "benchmarks.reshards",
    "reshard_paths": "benchmarks.reshard_paths",
    "calibration": "benchmarks.calibration",
    "systems": "benchmarks.systems",
    "ranking": "benchmarks.ranking",
    "collective_matmul": "benchmarks.collective_matmul",
    "holding": "benchmarks.holding",
    "comparing": "benchmarks.comparing",
    "sweeping": "benchmarks.sweeping",
    "searching": "benchmarks.searching",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(argv)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    say = Progress()
    for name in options.names or BENCHMARKS:
        result = importlib.import_module(BENCHMARKS[name]).run(say)
        paths = result.save(options.out)
        printed(result)
        say(f"{name}: written to {', '.join(map(str, paths))}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
