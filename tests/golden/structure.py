"""Recorded facts of a plan: shardings, instructions, collectives, memory, claims; no wording.

Names of values, reasons, source lines and the order of keys do not count. What a device holds and
runs does: a shape, an axis, a count, a byte, and how many claims were proved. Seconds are a price
of all this on some machine, and stand in `tests/costs`.
"""

import hashlib
from collections import Counter

from shardalg.errors import ShardalgError
from shardalg.planner.stages import priced

CHIP = "tpu_v3"


def structure(make):
    """Return the plan's structure as plain data, or the kind of its refusal."""
    try:
        return planned(make())
    except ShardalgError as refused:
        return {"refused": type(refused).__name__}


def planned(plan):
    cost = priced(plan._traced, plan.program, CHIP)
    return {
        "completion": digest(completion(plan)),
        "instructions": digest(instructions(plan)),
        "collectives": collectives(plan),
        "flops": int(cost.flops),
        "peak_memory_bytes": int(cost.peak_memory_bytes),
        "claims": claims(plan.verify()),
    }


def digest(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def completion(plan):
    """Return the sharding of every value of the graph, in order."""
    return [repr(plan.sharded.shardings[v.index]) for v in plan.graph.values]


def instructions(plan):
    """Return each instruction's operands and results: types and shardings, with nested blocks."""
    return list(walked(plan.program, plan.program.block, 0))


def walked(program, block, depth):
    for one in block.instructions:
        taken, made = (
            " ".join(f"{program.locals[k]!r}{program.locals[k].sharding}" for k in side)
            for side in (one.operands, one.results)
        )
        yield f"{depth} {type(one.attributes).__name__} {taken} -> {made}"
        for inner in one.attributes.bodies:
            yield from walked(program, inner, depth + 1)


def collectives(plan):
    """Return how often each kind of collective runs, by axes, devices and bytes."""
    rows = Counter()
    for row in plan.collectives_table:
        sizes = f"{row['operand_bytes']} to {row['result_bytes']}, {row['wire_bytes']} sent"
        what = f"{row['kind']} {row['mesh_axes']} of {row['group_size']}"
        rows[f"{what}: {sizes}"] += row["executions"]
    return {key: int(count) for key, count in sorted(rows.items())}


def claims(report):
    return dict(sorted(Counter(claim.status for claim in report.claims).items()))
