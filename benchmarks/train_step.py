"""One train step planned, then compiled by XLA: a process of its own, so that nothing is warm.

Prints one JSON object per line, ours first: the parent may end the process while XLA compiles.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

FIRST = (2, 4)
OTHERS = ((32, 64), (64, 32), (16, 128))


@dataclass(frozen=True)
class Step:
    """A train step to plan: its depth, how its layers follow one another, and its sizes.

    Sizes that are not given are those of the paper's 64-billion-parameter model.

    Attributes:
      scan: in a loop. jit: unrolled, each a call of one jitted function.
    """

    layers: int
    scan: bool = False
    jit: bool = False
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def form(self) -> str:
        """The name of the form in tables."""
        return "scanned" if self.scan else "unrolled, jitted" if self.jit else "unrolled"


@dataclass(frozen=True)
class Seconds:
    """Wall-clock and processor seconds of one call."""

    wall: float
    cpu: float


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[Any, Seconds]:
    """Return a call's result and its duration."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = call(*arguments)
    return made, Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def peak_rss_bytes() -> int:
    """Return the largest memory of this process.

    Linux tells it of what was executed; `getrusage` counts what the parent had when it forked, too.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (peak,) = (line.split()[1] for line in status.open() if line.startswith("VmHWM"))
        return int(peak) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def plan_step(step: Step) -> tuple[dict[str, Any], Any]:
    """Seconds of tracing, graph, first plan and plans on new meshes; the first plan."""
    import shardalg as sa
    from benchmarks import adam
    from shardalg.graph.tracing.trace import trace
    from shardalg.models.transformer import WIDE_64B
    from shardalg.plan.plan import from_annotations  # with all that it imports, before the clock

    config = replace(WIDE_64B, L=step.layers, scan=step.scan, jit=step.jit, **dict(step.sizes))
    arguments = adam.arguments(config)

    def strategy(shape: tuple[int, int]) -> sa.Strategy:
        return adam.finalized(sa.Mesh(dict(zip("XY", shape, strict=True))), config)

    from shardalg.planner.calls.user_call import opened

    function = partial(adam.train_step, config)
    jax_s = _jax_alone(function, arguments)
    graph, traced_s = timed(trace, function, *arguments)
    traced, graph_s = timed(
        _prepared, graph, _leaf_roles(arguments), opened(function, arguments, {})
    )
    made, first_s = timed(_first_plan, from_annotations, traced, strategy(FIRST))
    replans = [timed(_replanned, made, strategy(shape)) for shape in OTHERS]
    facts = {
        "equations": len(graph.nodes),
        "nodes": len(traced.graph.nodes),
        "instructions": len(made.program.block.instructions),
        "reasons": len(replans[0][0].sharded.reasons),
        "peak_rss_bytes": peak_rss_bytes(),
        "jax_trace": asdict(jax_s),
        "trace": asdict(traced_s),
        "graph": asdict(graph_s),
        "first_plan": asdict(first_s),
        "replan": {
            "wall": statistics.median(s.wall for _, s in replans),
            "cpu": statistics.median(s.cpu for _, s in replans),
        },
    }
    return facts, made


def _jax_alone(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Seconds:
    """Time JAX's own tracing, which every plan needs; clear JAX's caches afterwards."""
    import jax

    from shardalg.pause import collection_paused

    with collection_paused():
        _, taken = timed(jax.make_jaxpr(function), *arguments)
    jax.clear_caches()
    return taken


def _first_plan(plan: Callable[..., Any], traced: Any, given: Any) -> Any:
    from shardalg.planner.propagate import Options, resolve

    return plan(traced, resolve(traced.graph, given), Options())


def _replanned(made: Any, given: Any) -> Any:
    """Plan again; compute the program and the reason of every value."""
    plan = made.replan(given)
    assert plan.sharded.reasons
    return plan


def _leaf_roles(arguments: tuple[Any, ...]) -> tuple[str | None, ...]:
    from shardalg.graph.tracing.trace import flatten_prefix
    from shardalg.models.training import part

    return tuple(flatten_prefix(part("train_step").roles(), arguments, "roles"))


def _prepared(graph: Any, leaf_roles: tuple[str | None, ...], call: Any) -> Any:
    """All that is made once per function, for every mesh and strategy."""
    from shardalg.graph.ops.canonicalize.normalise import normalise
    from shardalg.graph.ops.rows import rules
    from shardalg.pause import collection_paused
    from shardalg.planner.propagate.gspmd.index import index
    from shardalg.planner.traced import Traced

    with collection_paused():  # as around all of planning
        traced = Traced(normalise(graph), leaf_roles, call=call)
        assert traced.roles
        index(traced.graph, rules)
    return traced


def compile_step(made: Any) -> dict[str, Any]:
    """Seconds that XLA takes for the same function with the same annotations, for CPU devices."""
    import shardalg as sa

    twin = made.lower(sa.host_devices(made.mesh.size)).jit()
    _, stage_s = timed(getattr, twin, "stage")
    _, compile_s = timed(getattr, twin, "compiled")
    return {"xla_stage": asdict(stage_s), "xla_compile": asdict(compile_s)}


def main() -> None:
    """Argument: a `Step` as JSON."""
    given = json.loads(sys.argv[1])
    sizes = tuple((name, size) for name, size in given.pop("sizes", ()))
    facts, made = plan_step(Step(sizes=sizes, **given))
    print(json.dumps(facts), flush=True)
    print(json.dumps(compile_step(made)), flush=True)


if __name__ == "__main__":
    main()
