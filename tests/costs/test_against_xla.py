"""Flops and peak memory of a program of one device beside what XLA says of the same function."""

import jax
import pytest

from shardalg.costs.compute import useful_flops
from shardalg.costs.memory import liveness
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.tracing.trace import trace
from shardalg.models.training import part
from shardalg.models.transformer import Config
from tests.costs.unpartitioned import program_of

SIZES = {"B": 16, "S": 64, "M": 64, "H": 256, "N": 4, "D": 16, "V": 512, "L": 2}
CASES = [
    # part, scanned, largest difference of flops, least and largest ratio of bytes to XLA's
    ("ffn", False, 0.0, (0.99, 1.01)),
    ("layer", False, 0.01, (0.9, 1.1)),
    ("train_step", True, None, (0.8, 1.25)),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "scan", "flops_error", "ratio"), CASES)
def test_flops_and_memory(name, scan, flops_error, ratio, show):
    config = Config(**SIZES, dtype="float32", scan=scan)
    chosen = part(name)
    fn, args = chosen.function(config), chosen.arguments(config)
    donated = chosen.donate_argnums()
    compiled = jax.jit(fn, donate_argnums=donated).lower(*args).compile()
    graph = normalise(trace(fn, *args))
    owner = [i for i, arg in enumerate(args) for _ in jax.tree.leaves(arg)]
    positions = [position for position, i in enumerate(owner) if i in donated]
    found = liveness(program_of(graph), graph, donated=positions)
    memory = compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    xla = held + memory.temp_size_in_bytes - memory.alias_size_in_bytes
    show(f"{name}: {found.peak_bytes} bytes, XLA {xla}, ratio {found.peak_bytes / xla:.3f}")
    assert found.argument_bytes == memory.argument_size_in_bytes
    assert ratio[0] <= found.peak_bytes / xla <= ratio[1]
    if flops_error is not None:  # XLA counts the body of a loop once
        flops = compiled.cost_analysis()["flops"]
        assert useful_flops(graph) == pytest.approx(flops, rel=flops_error + 1e-12)
