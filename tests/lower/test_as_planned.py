"""Compiled collectives equal the planned ones, on a sample of `make fuzz-as-planned`."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.lower import as_planned


def test_collectives_are_compiled_as_planned(show):
    seen, own = as_planned.run("1", 8)
    assert not own
    assert sum(n for reason, n in seen.items() if reason != "planned") <= 0.05 * seen["planned"]
    show(dict(seen))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_reduce_scatter_stays_one_along_any_dimension(dim):
    """Along other dimensions than the first it was an all-reduce, which sends twice the bytes."""
    x, w = jnp.arange(8.0 * 8 * 256).reshape(8, 8, 256) % 7, jnp.ones((256, 8))
    out = P(*(None,) * dim, "X")
    plan = sa.plan(
        lambda x, w: x @ w, x, w, mesh=sa.Mesh({"X": 8}),
        in_shardings=(P(None, None, "X"), P("X")), out_shardings=out,
    )  # fmt: skip
    lowered = plan.lower()
    assert list(plan.collectives()["kind"]) == ["reduce_scatter"]
    assert lowered.differences().empty
    assert jnp.array_equal(lowered(x, w), x @ w)


def test_what_xla_makes_of_equal_and_small_collectives_has_a_reason():
    def two(x, w):
        return jax.nn.relu(x @ w), jnp.tanh(x @ (w + 1))

    spec = jax.ShapeDtypeStruct((16, 16), "float32")
    plan = sa.plan(
        two, spec, spec, mesh=sa.Mesh({"X": 8}),
        in_shardings=(P(None, "X"), P("X")), out_shardings=(P(), P()),
    )  # fmt: skip
    assert list(plan.collectives()["kind"]) == ["all_reduce"] * 2
    found = plan.lower().differences()
    assert set(found["reason"]) == {"combined: XLA sends several values as one"}
    assert found["wire_bytes"].sum() == found["compiled_wire_bytes"].sum()
