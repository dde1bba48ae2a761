"""Planning a train step on a new mesh, beside XLA's CPU compile of the same step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.result import Result
from benchmarks.train_step import FIRST, OTHERS, Step
from shardalg.tables import Table

STEPS = (Step(64, scan=True), Step(64), Step(64, jit=True))
MOST_SECONDS = 900
COUNTS = ("equations", "nodes", "instructions", "reasons", "peak_rss_bytes")
ABOUT = f"""The whole train step of the paper's 64-billion-parameter Transformer with Adam (bfloat16
activations, the sizes of Table 2), its layers unrolled or scanned, under the finalized strategy of
Table 1; jitted: each layer a call of one jitted function, which JAX traces once. Each row is a
process of its own. `trace_s` is JAX's tracing and the graph made of it, `jax_trace_s` what
`jax.make_jaxpr` takes of it (measured before, caches then cleared), `graph_s` normalisation, roles
and index: all once per function. `first_plan_s` is the first plan,
on mesh {FIRST}, with nothing remembered; `replan_s` the median of `plan.replan` on the meshes
{OTHERS} of 2048 devices, each seen for the first time, with the default options: the program, and
the reason of every value. No layers are folded: whatever is alike is decided once.
`xla_compile_s` is XLA's compile of the same function with the same annotations for
{FIRST[0] * FIRST[1]} CPU devices (`plan.lower().jit()`), after JAX lowered it in `xla_stage_s`.
`ratio` is XLA's compile over our replan in wall-clock seconds, `cpu_ratio` in processor seconds
(XLA compiles on several threads). `peak_rss_bytes` is the process's largest memory before XLA
compiles, JAX included."""


def run(
    say: Callable[[str], None], steps: Sequence[Step] = STEPS, *, limit_s: float = MOST_SECONDS
) -> Result:
    rows = []
    for step in steps:
        say(f"{step.layers} layers, {step.form}: planned, then XLA's compile")
        rows.append(row(step, measured(step, limit_s), limit_s))
    ratios = {
        f"XLA's compile over replan, {r['layers']} layers {r['form']}{unit}": r[name]
        for r in rows
        for name, unit in (("ratio", ""), ("cpu_ratio", ", processor seconds"))
    }
    return Result("planning", ABOUT, Table.from_records(rows), ratios)


def measured(step: Step, limit_s: float) -> dict[str, Any]:
    """Return the output of a step's process until its end; XLA's part may be missing."""
    environment = dict(os.environ)
    flags = environment.get("XLA_FLAGS", "")
    count = FIRST[0] * FIRST[1]
    environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()
    command = [sys.executable, "-m", "benchmarks.train_step", json.dumps(asdict(step))]
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=root
    ) as process:
        facts = json.loads(process.stdout.readline())
        try:
            rest, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return facts
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return facts | json.loads(rest)


def row(step: Step, facts: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Return the row of a step; if XLA did not end in time, its seconds are at least the limit."""
    ended = "xla_compile" in facts
    compile_ = facts["xla_compile"] if ended else {"wall": limit_s, "cpu": limit_s}
    replan = facts["replan"]
    return {
        "layers": step.layers,
        "form": step.form,
        **{name: facts[name] for name in COUNTS},
        "jax_trace_s": facts["jax_trace"]["wall"],
        "trace_s": facts["trace"]["wall"],
        "graph_s": facts["graph"]["wall"],
        "first_plan_s": facts["first_plan"]["wall"],
        "replan_s": replan["wall"],
        "xla_stage_s": facts["xla_stage"]["wall"] if ended else None,
        "xla_compile_s": compile_["wall"],
        "xla_ended": "yes" if ended else "no: at least",
        "ratio": compile_["wall"] / replan["wall"],
        "cpu_ratio": compile_["cpu"] / replan["cpu"],
    }
