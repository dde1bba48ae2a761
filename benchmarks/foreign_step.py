"""A train step that is not ours: our wire bytes beside XLA's own partitioning of it."""

import jax
from jax.sharding import NamedSharding

import shardalg as sa
from benchmarks.result import Result
from shardalg.lab import foreign
from shardalg.lower.xla_dump.hlo_collectives import compile_with_collectives, total_wire_bytes

ABOUT = """Wire bytes per device and step of attnax's Transformer with optax's AdamW on a (2, 4)
mesh, ours over XLA's. XLA gets what we get: the step, its in_shardings and out_shardings, nothing
inside. Its bytes are those right after partitioning, sliced all-reduces counted as
reduce-scatters, by each of its two propagations."""
MESH = sa.Mesh({"X": 2, "Y": 4})


def planned(step):
    return sa.plan(
        step.step,
        *step.arguments,
        mesh=MESH,
        in_shardings=step.in_shardings,
        out_shardings=step.out_shardings,
        roles=foreign.ROLES,
    )


def xla_wire_bytes(step, partitioner):
    """Bytes that a device sends in a step that XLA partitioned alone."""
    mesh = MESH.to_jax()
    specs = (step.in_shardings, step.out_shardings)
    inside, outside = (
        jax.tree.map(lambda spec: NamedSharding(mesh, spec), tree, is_leaf=foreign.is_spec)
        for tree in specs
    )
    types = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), step.arguments)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
    try:
        jitted = jax.jit(step.step, in_shardings=inside, out_shardings=outside)
        _, collectives = compile_with_collectives(jitted.lower(*types), MESH)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    return total_wire_bytes(collectives)


def table(partitioners=("gspmd", "shardy")):
    """One row per partitioner of XLA."""
    step = foreign.build()
    moved = planned(step).collectives_table
    ours = float(sum(row["wire_bytes"] * row["executions"] for row in moved))
    rows = []
    for partitioner in partitioners:
        theirs = xla_wire_bytes(step, partitioner)
        rows.append((partitioner, ours, float(theirs), ours / theirs))
    return sa.Table(("partitioner", "wire_bytes", "xla_wire_bytes", "bytes_ratio"), rows)


def run(say):
    sa.host_devices(MESH.size)
    say("planning a train step that is not ours, and compiling it with XLA twice")
    made = table()
    return Result("foreign_step", ABOUT, made, {"largest bytes_ratio": max(made["bytes_ratio"])})
