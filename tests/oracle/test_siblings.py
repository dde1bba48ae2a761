"""Random programs: bytes and flops compared with XLA's, recorded."""

import jax
import numpy as np
import pytest

from shardalg.spmd.host.simulate import simulate
from tests.oracle import beside_xla
from tests.oracle.test_oracle import worst

PROVED = ("einsum_0", "gated_1", "pool_3")
PROGRAMS = {program.name: (program, told) for program, told in beside_xla.recorded()}


def test_no_more_bytes_and_no_more_flops_than_xla(show):
    assert len(PROGRAMS) == 60
    table = [beside_xla.row(*found) for found in PROGRAMS.values()]
    show(beside_xla.summary(table))
    assert [r["program"] for r in table if beside_xla.is_above(r)] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PROVED)
def test_right_against_one_device_and_proved(name):
    program, told = PROGRAMS[name]
    made = beside_xla.plan(program, told["gspmd"])
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(t.shape).astype(t.dtype) for t in program.types]
    mesh = jax.make_mesh((1,) * len(program.mesh), tuple(program.mesh), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        want = jax.tree.leaves(jax.jit(program.function)(*values))
    tolerance = 1e-4 if all(v.dtype == np.float32 for v in values) else 5e-2
    assert worst(simulate(made.program, made.graph, *values), want) < tolerance
    assert made.verify().ok
