"""Arrays without elements, or dimensions without: planned, proved, simulated and lowered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from tests.edges.asking import Child
from tests.partition.fuzz import some_spec
from tests.partition.planned import check_equal, numbers, planned


def convolved(x, k, low=0):
    return lax.conv_general_dilated(x, k, (1,), [(low, low)])


def grouped(x, k):
    return lax.conv_general_dilated(x, k, (1,), "SAME", feature_group_count=2)


def scanned(x):
    return lax.scan(lambda c, row: (c + row, c * row), jnp.ones(x.shape[1:]), x)


def products(x):
    return lax.associative_scan(jnp.multiply, x)


def windows(x):
    return lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), ((1, 1), (0, 0)))


NONE = np.zeros(0, np.int32)
CASES = {
    "strided, of nothing": (lambda x: x[5:5:2], numbers(8)),
    "strided, of a whole dimension": (lambda x: x[:, 6:5:3] * 2, numbers(4, 8)),
    "strided, of no rows": (lambda x: x[::2], numbers(0, 4)),
    "gradient of products": (jax.grad(lambda x: (products(x) * x).sum()), numbers(3)),
    "gradient of one product": (jax.grad(lambda x: (products(x) * x).sum()), numbers(1)),
    "dot, contracted": (jnp.matmul, numbers(4, 0), numbers(0, 6)),
    "dot, gradient": (jax.grad(lambda a, b: (a @ b).sum(), (0, 1)), numbers(4, 0), numbers(0, 6)),
    "dot, batch": (jnp.matmul, numbers(0, 4, 5), numbers(0, 5, 6)),
    "dot, of a scalar": (lambda a, b: jnp.einsum("a,a->", a, b), numbers(0), numbers(0)),
    "convolution, batch": (convolved, numbers(0, 3, 8), numbers(4, 3, 3)),
    "convolution, too short": (convolved, numbers(2, 3, 2), numbers(4, 3, 3)),
    "convolution, features": (convolved, numbers(2, 0, 6), numbers(4, 0, 3)),
    "convolution, padding": (lambda x, k: convolved(x, k, 2), numbers(2, 3, 0), numbers(4, 3, 3)),
    "groups that make no features": (grouped, numbers(2, 4, 6), numbers(0, 2, 3)),
    "groups of no features": (grouped, numbers(2, 0, 6), numbers(4, 0, 3)),
    "sum": (lambda x: x.sum(0), numbers(0, 4)),
    "maximum": (lambda x: lax.reduce_max(x, (0,)), numbers(0, 4)),
    "all": (lambda x: (x > 0).all(), numbers(0, 4)),
    "argmax": (lambda x: jnp.argmax(x, 1), numbers(0, 4)),
    "window": (windows, numbers(0, 4)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y, x], 1), numbers(3, 0), numbers(3, 5)),
    "gather none": (lambda x, i: x[i], numbers(8, 4), NONE),
    "gather of none": (lambda x, i: x[i], numbers(8, 0), np.arange(3)),
    "scatter none": (lambda x, i, u: jnp.asarray(x).at[i].add(u), numbers(8), NONE, numbers(0)),
    "sort": (lambda x: jnp.sort(x, 0), numbers(0, 4)),
    "argsort": (lambda x: jnp.argsort(x, 1), numbers(3, 0)),
    "cumsum": (lambda x: jnp.cumsum(x, 0), numbers(0, 4)),
    "cummax from the end": (lambda x: lax.cummax(x, 0, reverse=True), numbers(0, 4)),
    "scan": (scanned, numbers(0, 4)),
    "scan of empty rows": (scanned, numbers(3, 0)),
    "reshape": (lambda x: x.reshape(5, 0), numbers(0, 4)),
    "reverse": (lambda x: x[::-1], numbers(0, 4)),
    "pad": (lambda x: lax.pad(x, 0.0, ((1, 1, 2), (0, 0, 0))), numbers(0, 4)),
    "pad by less": (lambda x: lax.pad(x, 0.0, ((-2, -2, 0), (0, 0, 0))), numbers(4, 4)),
    "box": (lambda x, i: lax.dynamic_slice(x, (i, 0), (0, 4)), numbers(4, 4), np.int32(3)),
    "written box": (lambda x, u: lax.dynamic_update_slice(x, u, (1,)), numbers(4), numbers(0)),
    "convolution, both": (convolved, numbers(1, 0, 0), numbers(2, 0, 1)),
    "broadcast": (lambda x: jnp.broadcast_to(x, (0, 4)), numbers(4)),
    "softmax": (lambda x: jax.nn.softmax(x, 0), numbers(0, 4)),
    "top 0": (lambda x: lax.top_k(x, 0), numbers(4, 4)),
    "random": (lambda k: jax.random.normal(jax.random.key(k), (0, 4)), np.int32(1)),
}


def test_groups_that_make_no_features_are_cut():
    """The group is an iteration of the result then too: nothing is summed over it."""
    x, kernel = numbers(2, 4, 6), numbers(0, 2, 3)
    specs = (P(None, "X"), P())
    plan = sa.plan(grouped, x, kernel, mesh=sa.Mesh({"X": 2}), in_shardings=specs)
    assert plan.verify().ok
    assert plan.lower()(x, kernel).shape == (2, 0, 6)


def plans_of(name):
    """Plans of a case on random layouts, on two meshes."""
    fn, *arguments = CASES[name]
    rng = np.random.default_rng(len(name))
    results = jax.tree.leaves(jax.eval_shape(fn, *arguments))
    for mesh in (sa.Mesh({"X": 3}), sa.Mesh({"X": 2, "Y": 4})):
        given = tuple(some_spec(rng, mesh, np.ndim(a)) for a in arguments)
        wanted = tuple(some_spec(rng, mesh, r.ndim) for r in results)
        yield planned(
            lambda *a: tuple(jax.tree.leaves(fn(*a))), arguments, given, mesh=mesh,
            out_shardings=wanted,
        ), fn, arguments  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_partitioned_as_something(name):
    for plan, fn, arguments in plans_of(name):
        assert plan.verify().ok
        check_equal(plan, fn, arguments)


LOWERED = (
    "strided, of a whole dimension", "dot, contracted", "dot, of a scalar", "gather none",
    "convolution, too short", "cumsum", "scan", "box", "gradient of one product",
)  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LOWERED)
def test_arrays_without_elements_cross_the_border(name):
    """XLA's own partition gives blocks of another shape, which JAX then cannot read."""
    *_, (plan, fn, arguments) = plans_of(name)
    lowered = plan.lower()
    wants = jax.tree.leaves(fn(*arguments))
    for executable in (lowered, lowered.jit()):
        results = executable(*arguments)
        for got, want, border in zip(results, wants, lowered.results, strict=True):
            np.testing.assert_array_equal(got, want)
            assert got.sharding.is_equivalent_to(border.outer, got.ndim)


def test_nothing_is_sent_of_nothing():
    """A reshard of no elements is no walk through layouts, all of which cost nothing."""
    mesh = sa.Mesh({"X": 2, "Y": 4})
    texts = "P(None, None, None, 'X')", "P('Y', None, None, None)"
    path = sa.reshard(*(sa.Sharding.parse(text, (1, 1, 0, 0), mesh) for text in texts))
    kinds = [row[0] for row in path.table.select("kind").rows]
    assert kinds == ["all_gather", "resize", "dynamic_slice"]
    assert path.wire_bytes == 0
    assert path.verify().ok


def test_a_box_of_no_columns_of_one_that_is_cut():
    """A dimension of one element is cut, too, although its block is as long as it is."""
    fn, arguments = lambda x, i: lax.dynamic_slice(x, (i, i), (1, 0)), (numbers(8, 1), np.int32(3))
    plan = planned(fn, arguments, (P("X", "Y"), P()))
    assert plan.verify().ok
    check_equal(plan, fn, arguments)


WINDOWS = lax.GatherDimensionNumbers((0, 1), (), (0, 1))
UPDATES = lax.ScatterDimensionNumbers((0, 1), (), (0, 1))
AT_INDICES = {
    "gather": lambda x, i: lax.gather(x, i, WINDOWS, (3, 0), mode="clip"),
    "scatter": lambda x, i: lax.scatter_add(x, i, x[:3, :0], UPDATES, mode="clip"),
}


@pytest.mark.parametrize("name", AT_INDICES)
def test_windows_of_no_elements_in_what_is_cut(name):
    fn, arguments = AT_INDICES[name], (numbers(7, 2), np.array([2, 1], np.int32))
    for spec in (P("X", "Y"), P(None, "Y")):
        plan = planned(fn, arguments, (spec, P()))
        assert plan.verify().ok
        check_equal(plan, fn, arguments)


def complex_numbers():
    return (numbers(8, 4) + 1j * numbers(8, 4, seed=1)).astype(np.complex64)


@pytest.mark.parametrize(
    "fn", [lambda x: x.min(0), lambda x: x.max(1), lambda x: lax.cumlogsumexp(x, 0)]
)
def test_complex_numbers_are_ordered_and_joined_across_devices(fn):
    plan = planned(fn, (complex_numbers(),), (P("X", "Y"),))
    assert plan.verify().ok
    want = jax.jit(fn)(complex_numbers())
    for got in (
        *simulate(plan.program, plan.graph, complex_numbers()),
        plan.lower()(complex_numbers()),
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_complex_sums_of_exponentials_where_blocks_are_padding_alone():
    """Found by seed 2239: of two of minus infinity JAX's own complex `logaddexp` makes NaN."""

    def fn(x):
        return lax.cumlogsumexp(x, 0, reverse=True)

    x = complex_numbers()[:3]
    plan = planned(fn, (x,), (P(("X", "Y")),))
    assert plan.verify().ok
    for got in (*simulate(plan.program, plan.graph, x), plan.lower()(x)):
        np.testing.assert_allclose(got, fn(x), rtol=1e-5)


def test_a_box_of_no_elements_written_under_vmap():
    """Found by seed 8113: a scatter of windows without elements in a dimension that is cut."""

    def fn(x, u, at):
        return jax.vmap(lambda x: lax.dynamic_update_slice(x, u, at))(x)

    arguments = numbers(3, 7, 3), numbers(4, 0), (np.int32(1), np.int32(2))
    for spec in (P(None, None, "X"), P("X", "Y"), P(None, "Y", "X")):
        plan = planned(fn, arguments, (spec, P(None, "X"), (P(), P())))
        assert plan.verify().ok
        check_equal(plan, fn, arguments)


def test_boxes_of_a_scalar_in_one_another():
    """Found by seed 9065: a slice of a slice that has no dimension."""

    def fn(x):
        return lax.dynamic_slice(lax.dynamic_slice(x.sum(), (), ()), (), ()) * 2

    plan = planned(fn, (numbers(8),), (P("X"),))
    assert plan.verify().ok
    check_equal(plan, fn, (numbers(8),))


def product(n, x, y):
    """Return a product in a branch in a loop, of complex numbers, of nothing."""

    def body(i, made):
        return lax.cond(i % 2 == 0, lambda z: x[:, ::-1] @ y, lambda z: z[::-1], made)

    return lax.fori_loop(0, n, body, jnp.zeros((8, 7), x.dtype))


def lowered_product():
    """Our program of a product over nothing, whose operands are split there."""
    arguments = np.int32(3), np.zeros((8, 0), np.complex64), np.zeros((0, 7), np.complex64)
    split = (P(), P(None, "X"), P("X", None))
    plan = sa.plan(product, *arguments, mesh=sa.Mesh({"X": 8}), in_shardings=split)
    assert plan.verify().ok
    return np.asarray(plan.lower()(*arguments))


@pytest.mark.slow
def test_a_product_over_nothing_is_not_split_there():
    """Found by seed 20501: XLA aborted when it compiled what masked and added up nothing."""
    child = Child()
    made = child.ask(lowered_product)
    child.end()
    np.testing.assert_array_equal(made, np.zeros((8, 7), np.complex64))
