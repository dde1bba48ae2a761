"""One shard with substitutes for collectives does the local work of a run on all devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError


def step(x, w, v):
    def loss(w, v):
        return (jax.nn.gelu(x @ w) @ v).var()

    value, grads = jax.value_and_grad(loss, (0, 1))(w, v)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, (w, v), grads)


SHAPES = (64, 128), (128, 512), (512, 128)
SPECS = P("X"), P("X", "Y"), P("Y", "X")


def planned(x, y):
    structs = [jax.ShapeDtypeStruct(shape, "float32") for shape in SHAPES]
    return sa.plan(step, *structs, mesh=sa.Mesh({"X": x, "Y": y}), in_shardings=SPECS)


def test_the_local_work_is_that_of_the_run(show):
    plan = planned(2, 4)
    assert {"all_gather", "reduce_scatter"} <= set(plan.collectives()["kind"])
    lowered = plan.lower()
    whole = lowered.compiled.memory_analysis()
    shard = plan.one_shard()
    made = shard.measure(repeats=3)
    assert not any(word in shard.compiled.as_text() for word in ("all-gather", "all-reduce"))
    assert made.memory.argument_bytes == whole.argument_size_in_bytes
    assert made.memory.result_bytes == pytest.approx(whole.output_size_in_bytes, rel=0.01)
    # of the compiler, which counts what reductions add up as well
    flops = lowered.compiled.cost_analysis()["flops"]
    assert made.flops == pytest.approx(flops, rel=0.1)
    assert "not a result" in repr(made)
    show(f"{made}; the run {whole.temp_size_in_bytes:,} temporary bytes, {flops:,.0f} flops")
    assert len(made.timing.busy_s) == 3


def test_a_shard_of_more_devices_than_there_are():
    made = planned(8, 8).one_shard().measure(repeats=2)
    assert made.memory.argument_bytes == 4 * (8 * 128 + 2 * 128 * 512 // 64)


def test_a_loop_that_ends_by_its_values():
    def halved(x):
        return jax.lax.while_loop(lambda x: jnp.abs(x).max() > 1, lambda x: x / 2, x)

    plan = sa.plan(halved, np.ones(8, "float32"), mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
    with pytest.raises(LoweringError, match="`while` ends by values"):
        plan.one_shard()
