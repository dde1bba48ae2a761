"""Memory traffic of local operators: a slice or an update counts only its own part."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import shardalg as sa
from shardalg.costs.hardware import Hardware

CHIP = Hardware("toy", hbm_bytes_per_s=1.0)  # arithmetic takes no time: seconds are bytes
TABLE, ROWS = jax.ShapeDtypeStruct((64, 32), "float32"), jax.ShapeDtypeStruct((4, 32), "float32")
ROW = 32 * 4


def moved(function, *args):
    plan = sa.plan(function, *args, mesh=sa.Mesh({"X": 1}))
    return plan.cost(CHIP).compute_s


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (lambda x, y: lax.dynamic_slice(x, (jnp.argmax(y[:, 0]), 0), (4, 32)), 2 * 4),
        (lambda x, y: lax.dynamic_update_slice(x, y, (jnp.argmax(y[:, 0]), 0)), 2 * 4),
        (lambda x, y: x[jnp.argsort(y[:, 0])], 2 * 4),
        (lambda x, y: x.at[jnp.argsort(y[:, 0])].add(y), 3 * 4),
    ],
    ids=["slice", "update", "gather", "scatter-add"],
)
def test_a_part_moves_as_a_part(function, rows):
    """Only the read or written rows of the table count, twice; indices are small."""
    whole = moved(function, TABLE, ROWS)
    assert whole < (rows + 4) * ROW + 4 * ROW
    assert whole >= rows * ROW - 1


@pytest.mark.parametrize("view", [jnp.transpose, jnp.ravel, lax.optimization_barrier])
def test_a_view_moves_nothing(view):
    """A view is only a layout between two products; later operators read the original."""
    product = moved(lambda x: x @ x.T, TABLE)
    assert moved(lambda x: view(x @ x.T), TABLE) == product
    plain = moved(lambda x: jnp.tanh(x @ x.T), TABLE)
    assert moved(lambda x: jnp.tanh(view(x @ x.T)), TABLE) == plain
