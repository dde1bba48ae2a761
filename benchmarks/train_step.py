"""One train step planned, then compiled by XLA: a process of its own, so that nothing is warm.

Prints one JSON object per line, ours first: the parent may end the process while XLA compiles.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

FIRST = (2, 4)
OTHERS = ((4, 2), (16, 16), (32, 64))


@dataclass(frozen=True)
class Step:
    """A train step to plan: its depth, whether its layers are scanned, and its sizes."""

    layers: int
    scan: bool = False
    sizes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Seconds:
    """Wall-clock and processor seconds of one call."""

    wall: float
    cpu: float


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[Any, Seconds]:
    """What a call returns, and how long it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = call(*arguments)
    return made, Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def plan_step(step: Step) -> tuple[dict[str, Any], Any]:
    """Seconds of tracing, graph, first plan and plans on new meshes; the first plan."""
    import shardalg as sa
    from shardalg.graph.trace import trace
    from shardalg.models.table1 import finalized
    from shardalg.models.training import part
    from shardalg.models.transformer import Config
    from shardalg.plan import Traced, from_annotations
    from shardalg.propagate import Options, resolve

    config = Config(L=step.layers, scan=step.scan, **dict(step.sizes))
    chosen = part("train_step")
    arguments = chosen.arguments(config)
    leaf_roles = _leaf_roles(chosen.roles(), arguments)

    def strategy(shape: tuple[int, int]) -> sa.Strategy:
        return finalized(sa.Mesh(dict(zip("XY", shape, strict=True))), config)

    def first_plan(traced: Traced, given: sa.Strategy) -> sa.Plan:
        return from_annotations(traced, resolve(traced.graph, given), Options())

    graph, traced_s = timed(trace, chosen.function(config), *arguments)
    traced, graph_s = timed(_prepared, graph, leaf_roles, Traced)
    made, first_s = timed(first_plan, traced, strategy(FIRST))
    replans = [timed(made.replan, strategy(shape))[1] for shape in OTHERS]
    facts = {
        "nodes": len(traced.graph.nodes),
        "instructions": len(made.program.block.instructions),
        "trace": asdict(traced_s),
        "graph": asdict(graph_s),
        "first_plan": asdict(first_s),
        "replan": {
            "wall": statistics.median(s.wall for s in replans),
            "cpu": statistics.median(s.cpu for s in replans),
        },
    }
    return facts, made


def _leaf_roles(roles: tuple[str, ...], arguments: tuple[Any, ...]) -> tuple[str | None, ...]:
    from shardalg.graph.trace import flatten_prefix

    return tuple(flatten_prefix(roles, arguments, "roles"))


def _prepared(graph: Any, leaf_roles: tuple[str | None, ...], traced_type: type) -> Any:
    """All that is made once per function, for every mesh and strategy."""
    from shardalg.ops.normalise import normalise
    from shardalg.ops.table import rules
    from shardalg.propagate.index import index

    traced = traced_type(normalise(graph), leaf_roles)
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
