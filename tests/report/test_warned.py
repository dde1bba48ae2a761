import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.plan.explain.warnings.roundabout import warnings
from shardalg.show.tables import collectives
from tests.report.planned import plan_on, planned


def test_a_model_of_known_operators_gives_no_warning():
    program, graph, _ = planned("ffn_gradient", "2D finalized")
    assert len(warnings(program, graph)) == 0


def rearranged(x):
    """Return a reshape that moves the borders of blocks."""
    return x[:12, :8].reshape(16, 6)


def foreign(x):
    """Call code of another language."""
    return jax.ffi.ffi_call("twice", x)(x)


@pytest.mark.parametrize(
    ("fn", "op", "match"),
    [
        (foreign, "ffi_call", "its meaning is in code that is no jaxpr"),
        (rearranged, "reshape", "loop i is gathered"),
    ],
)
def test_a_fallback_is_listed_with_its_line_and_all_its_bytes(fn, op, match):
    program, graph, _ = plan_on(fn, (16, 64), P("X", "Y"))
    (row,) = warnings(program, graph)
    moved = collectives(program, graph)
    assert row["op"] == op
    assert match in row["warning"]
    assert row["source"].startswith("test_warned.py:")
    gathers = [r["wire_bytes"] for r in moved if r["op"] == op]
    assert row["wire_bytes_per_step"] == sum(gathers) > 0


def test_a_loop_that_stays_whole_and_is_not_sharded_costs_nothing():
    program, graph, _ = plan_on(lambda x: jnp.cumsum(x, 1), (16, 64), P("X"))
    assert len(warnings(program, graph)) == 0
