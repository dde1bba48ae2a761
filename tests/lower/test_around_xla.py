"""Programs that XLA (jaxlib 0.10.2) would get wrong, or refuse, in their plainest emission."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.graph.evaluate import evaluate
from shardalg.graph.tracing.trace import trace


def lowered_equals_one_device(fn, arguments, specs, **border):
    plan = sa.plan(fn, *arguments, in_shardings=specs, **border)
    np.testing.assert_allclose(plan.lower()(*arguments), fn(*arguments), rtol=1e-6)


@pytest.mark.parametrize("kind", ["multiply", "set"])
def test_updates_that_miss_a_block_leave_it_alone(kind):
    """XLA reads another part of the block and writes it back (openxla/xla issue 49121)."""
    x, index = jnp.arange(1.0, 5), jnp.array([0])

    def put(x, index):
        return getattr(x.at[index], kind)(7.0, mode="drop")

    mesh = sa.Mesh({"X": 2})
    lowered_equals_one_device(put, (x, index), (P(), P()), mesh=mesh, out_shardings=P("X"))


ONE_BLOCK = lax.GatherDimensionNumbers((0,), (), (0,))
READS = {
    "dynamic_slice": lambda x, start: lax.dynamic_slice(x, (start,), (6,)),
    "gather": lambda x, start: lax.gather(x, start[None], ONE_BLOCK, (6,), mode="clip"),
}


@pytest.mark.parametrize("start", [7, -9])
@pytest.mark.parametrize("name", READS)
def test_a_block_of_what_is_read_out_of_range(name, start):
    """The block of a slice is a slice of a slice: the first start is clamped as the operator's."""
    x, mesh = jnp.arange(8.0), sa.Mesh({"X": 2})
    arguments, specs = (x, np.int32(start)), (P(), P())
    lowered_equals_one_device(READS[name], arguments, specs, mesh=mesh, out_shardings=P("X"))


def test_xla_still_forgets_a_clamp():
    """A failure means that XLA was repaired: `lower/around_xla.py` may go."""

    def one_of_a_block(x, start, index):
        block = lax.dynamic_slice(x, (start,), (2,))
        return lax.dynamic_slice_p.bind(block, index, slice_sizes=(1,))[0]

    x = jnp.arange(4.0)
    with jax.disable_jit():
        assert one_of_a_block(x, 2, -2) == 2
    assert jax.jit(one_of_a_block)(x, 2, -2) == 0


def dilated(image, kernel, base):
    """XLA takes the first of two dilated spatial dimensions for groups."""
    names = lax.ConvDimensionNumbers((0, 3, 1, 2), (2, 3, 0, 1), (0, 3, 1, 2))
    sizes = {"window_strides": (base - 1, 1), "padding": ((0, 0), (2, 1))}
    return lax.conv_general_dilated(
        image, kernel, **sizes, lhs_dilation=(base, base), dimension_numbers=names
    )


@pytest.mark.parametrize("base", [2, 3])
def test_a_dilated_image_is_not_taken_for_groups(base):
    """The gradient of a strided convolution, by the rows of its kernel that a device holds."""
    rng = np.random.default_rng(base)
    image = rng.integers(-4, 5, (2, 4, 2, 8)).astype("float32")
    kernel = rng.integers(-4, 5, (base, 3, 4, 8)).astype("float32")
    graph = trace(functools.partial(dilated, base=base), image, kernel)
    zeros = np.zeros((2, 3 * base + 1, base + 1, 8), "float32")
    zeros[:, ::base, ::base] = image
    padded = np.pad(zeros, ((0, 0), (0, 0), (2, 1), (0, 0)))
    rows, columns = (3 * base + 1 - base) // (base - 1) + 1, padded.shape[2] - 2
    expected = np.zeros((2, rows, columns, 4), "float32")
    for row in range(rows):
        for column in range(columns):
            first = row * (base - 1)
            window = padded[:, first : first + base, column : column + 3]
            expected[:, row, column] = np.einsum("bhwi,hwoi->bo", window, kernel)
    (got,) = evaluate(graph, image, kernel)
    np.testing.assert_array_equal(got, expected)


def test_xla_still_takes_a_dilated_image_for_groups():
    """A failure means that XLA was repaired: `_convolved` in `graph/evaluate.py` may go."""
    code = (
        "import jax, jax.numpy as jnp; from tests.lower.test_around_xla import dilated; "
        "jax.jit(dilated, static_argnums=2)(jnp.ones((2, 3, 2, 8)), jnp.ones((2, 3, 4, 8)), 2)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode < 0


def test_exchanges_of_single_elements_in_a_row():
    """XLA gives the pieces of the second one layouts that its own verifier refuses."""
    x = jnp.arange(2 * 3 * 4 * 3.0).reshape(2, 3, 4, 3)
    y = jnp.arange(4 * 3 * 5.0).reshape(4, 3, 5)
    lowered_equals_one_device(
        lambda x, y: jnp.einsum("bsnd,nde->bse", x, y),
        (x, y),
        (P("Y"), P(None, None, "X")),
        mesh=sa.Mesh({"X": 2, "Y": 3}),
        out_shardings=P(("Y", "X")),
    )


def test_a_function_of_no_operators():
    x = jnp.ones((5, 1, 5))
    plan = sa.plan(lambda x: lax.broadcast_in_dim(x, x.shape, (0, 1, 2)), x, mesh=sa.Mesh({"X": 4}))
    again = plan.replan(sa.Strategy(plan.mesh, in_shardings=(P("X"),)))
    np.testing.assert_array_equal(again.lower()(x), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_extremum_of_a_nan_is_a_nan(dtype):
    """XLA's CPU collectives keep what compares as larger: its own partitioning loses the NaN."""
    x = jnp.array([[2, -1, -0.0, 4], [1, -jnp.inf, 0, jnp.nan], [jnp.nan, -5, -0.0, 3]], dtype).T

    def extrema(x):
        return jnp.stack([x.max(0), x.min(0)])

    plan = sa.plan(extrema, x, in_shardings=(P("X"),), mesh=sa.Mesh({"X": 4}))
    assert {row["kind"] for row in plan.collectives_table} == {"all_reduce"}
    ours, want = (np.asarray(v, np.float32) for v in (plan.lower()(x), extrema(x)))
    np.testing.assert_array_equal(ours, want)
