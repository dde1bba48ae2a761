"""Every sharding of operands gives a program that equals the function, even and uneven."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instructions import Mask
from tests.partition.planned import check_equal, checked, kinds, moves, numbers, planned

BOTH = ("X", "Y")
LAYOUTS = [(None, None), ("X", None), (None, "Y"), ("X", "Y"), ("Y", "X"), (None, ("Y", "X"))]


def dot(x, w):
    return x @ w


def check_dots(sizes, layouts):
    m, k, n = sizes
    arguments = numbers(m, k), numbers(k, n, seed=1)
    for lhs, rhs in itertools.product(layouts, layouts):
        check_equal(planned(dot, arguments, (P(*lhs), P(*rhs))), dot, arguments)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [(8, 16, 8), (7, 9, 5)], ids=str)
def test_dot_of_every_pair_of_layouts(sizes):
    check_dots(sizes, LAYOUTS)


@pytest.mark.parametrize("sizes", [(1, 3, 2), (4, 0, 8), (0, 3, 1)], ids=str)
def test_dot_of_sizes_0_and_1(sizes):
    check_dots(sizes, [("X", "Y"), ("Y", "X")])


@pytest.mark.parametrize(
    ("name", "specs", "expected"),
    [
        ("replicated", (P(), P()), []),
        ("contracted together", (P(None, "Y"), P("Y", None)), [("all_reduce", "Y")]),
        ("weight sharded twice", (P("X"), P("X", "Y")), [("all_gather", "X")]),
        ("batch and features", (P("X"), P(None, "Y")), []),
    ],
)
def test_dot_moves_what_it_must(name, specs, expected):
    arguments = numbers(8, 16), numbers(16, 8, seed=1)
    assert moves(planned(dot, arguments, specs)) == expected


REDUCTIONS = {
    "sum": (jnp.sum, np.float32), "max": (jnp.max, np.float32), "min": (jnp.min, np.int32),
    "all": (jnp.all, np.bool_), "any": (jnp.any, np.bool_),
}  # fmt: skip
FILLS = {"sum": "sum", "max": "max", "min": "min", "all": "and", "any": "or"}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_uneven_dimensions(name):
    reduce, dtype = REDUCTIONS[name]
    for values in (numbers(9, 7, dtype=dtype), np.full((9, 7), name == "all", dtype)):
        plan = checked(lambda x: reduce(x, axis=0), (values,), (P("Y", "X"),), out_shardings=P("X"))
    assert [kind for kind, _ in moves(plan)] == ["all_reduce"]
    masks = [s.attributes for s in plan.program.block.instructions]
    masks = [(m.dim, m.size, m.block, m.fill) for m in masks if isinstance(m, Mask)]
    assert masks == [(0, 9, 3, FILLS[name])]


def take(mode):
    return lambda table, ids: jnp.asarray(table).at[ids].get(mode=mode)


IDS = np.array([[0, 10, 3], [8, 7, 5]], np.int32)
WILD = np.array([[0, 99, -40], [11, 7, 12]], np.int32)


@pytest.mark.parametrize("rows", [11, 12])
@pytest.mark.parametrize(("mode", "ids"), [("fill", WILD), ("clip", WILD), ("fill", IDS)])
def test_embedding_of_a_sharded_vocabulary(rows, mode, ids):
    """Each device looks up the rows that it holds; the others' are zero, and are added."""
    plan = checked(take(mode), (numbers(rows, 4), ids), (P("Y", None), P()))
    assert moves(plan) == [("all_reduce", "Y")]
    assert {"Offset", "MaskIndexed"} <= kinds(plan)


@pytest.mark.parametrize("rows", [11, 12])
@pytest.mark.parametrize("ids", [IDS, WILD], ids=["inside", "outside"])
@pytest.mark.parametrize("where", [P(), P("X")], ids=str)
def test_gradient_of_an_embedding(rows, ids, where):
    def gradient(table, ids, dy):
        return jax.vjp(lambda table: take("fill")(table, ids), table)[1](dy)[0]

    arguments = numbers(rows, 4), ids, numbers(2, 3, 4, seed=1)
    checked(gradient, arguments, (P("Y", None), where, where), out_shardings=P("Y", None))


X, Y, XY = P("X"), P(None, "Y"), P("X", "Y")
# name: (function, shapes, their layouts, layout of the result, whether anything has to move).
# Results are annotated: a completed uneven one would be replicated at the border.
OPERATORS = {
    "split": (lambda a: a.reshape(2, 4, 3), [(8, 3)], (P(BOTH),), XY, False),
    "split elsewhere": (lambda a: a.reshape(4, 2, 3), [(8, 3)], (P(BOTH),), XY, True),
    "fuse": (lambda a: a.reshape(8, 3), [(2, 4, 3)], (XY,), P(BOTH), False),
    "fuse uneven": (lambda a: a.reshape(27, 3), [(9, 3, 3)], (XY,), P(), True),
    "transpose": (
        lambda a: a.transpose(2, 0, 1), [(7, 3, 5)], (P("X", None, "Y"),), P("Y", "X"), False,
    ),
    "broadcast": (
        lambda a: jnp.broadcast_to(a[:, None], (5, 3, 7)), [(5, 7)], (XY,), P("X", None, "Y"),
        False,
    ),
    "broadcast 1": (lambda a, b: a + b, [(5, 1), (5, 7)], (X, XY), XY, False),
    "iota": (lambda a: a + lax.iota(np.float32, 7), [(5, 7)], (XY,), XY, False),
    "select": (lambda a: jnp.where(a > 0, a, -a), [(5, 7)], (XY,), XY, False),
    "concatenate": (
        lambda a, b: jnp.concatenate([a, b], 0), [(5, 7), (4, 7)], (XY, XY), XY, True,
    ),
    "concatenate other": (
        lambda a, b: jnp.concatenate([a, b], 1), [(5, 3), (5, 4)], (X, X), X, False,
    ),
    "slice": (lambda a: a[3:, 1:], [(7, 5)], (X,), X, True),
    "slice of what is there": (lambda a: a[2:6, 1:], [(7, 5)], (X,), X, False),
    "slice other": (lambda a: a[:, 1:4], [(7, 5)], (X,), X, False),
    "pad": (lambda a: jnp.pad(a, ((2, 1), (0, 0))), [(5, 7)], (XY,), XY, True),
    "pad other": (lambda a: jnp.pad(a, ((0, 0), (1, 1))), [(5, 7)], (X,), X, False),
    "sort": (lambda a: jnp.sort(a, 1), [(5, 7)], (XY,), X, True),
    "sort other": (lambda a: jnp.sort(a, 0), [(5, 7)], (Y,), Y, False),
    "cumsum": (lambda a: jnp.cumsum(a, 0), [(9, 3)], (X,), X, True),
    "cumsum other": (lambda a: jnp.cumsum(a, 0), [(9, 3)], (Y,), Y, False),
    "argmax": (lambda a: jnp.argmax(a, 1), [(5, 7)], (XY,), X, True),
    "softmax": (lambda a: jax.nn.softmax(a, -1), [(5, 7)], (XY,), XY, True),
    "reverse": (lambda a: a[::-1], [(7, 3)], (X,), X, True),
    "dynamic_slice": (lambda a: lax.dynamic_slice(a, (2, 1), (3, 2)), [(7, 5)], (XY,), P(), True),
    "while": (
        lambda a: lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c + 2, a), [(4, 8)], (XY,), XY,
        True,
    ),
    "cond": (
        lambda a: lax.cond(a[0, 0] > 0, jnp.sin, jnp.cos, a), [(5, 8)], (XY,), XY, True,
    ),
}  # fmt: skip


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", OPERATORS)
def test_layout_operators(name):
    fn, shapes, specs, out, moving = OPERATORS[name]
    arguments = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    plan = checked(fn, arguments, specs, out_shardings=out)
    assert bool(moves(plan)) == moving


@pytest.mark.parametrize("axes", [{"X": 1, "Y": 1}, {"X": 1, "Y": 4}, {"X": 1}], ids=str)
def test_axes_of_size_1_move_nothing(axes):
    """A mesh of one device is legal, and so is an axis that splits nothing."""
    specs = (P(None, "X"), P("X"))
    plan = checked(dot, (numbers(4, 6), numbers(6, 3)), specs, mesh=sa.Mesh(axes))
    assert moves(plan) == []
    assert kinds(plan) == set()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (1, 5), (3, 0)], ids=str)
def test_sizes_0_and_1_are_legal(shape):
    checked(lambda x: (jnp.exp(x).sum(0), x.T + 1, x.sum()), (numbers(*shape),), (P("X", "Y"),))


@pytest.mark.parametrize(("dtype", "count"), [("bfloat16", 602), ("float16", 4100), ("int8", 600)])
def test_positions_beyond_what_a_type_counts_to(dtype, count):
    """Each is rounded once: a rounded start, and a place behind it, would be rounded twice."""

    def fn():
        return lax.iota(dtype, count)

    plan = planned(fn, (), out_shardings=P("Y"))
    assert plan.verify().ok
    for found in (*simulate(plan.program, plan.graph), plan.lower()()):
        np.testing.assert_array_equal(np.float32(found), np.float32(fn()))


def test_a_complex_number_for_what_is_missing():
    z, ids = (numbers(9) + 1j).astype(np.complex64), np.array([1, 9, 3, -20], np.int32)

    def fn(z, ids):
        return jnp.take(z, ids, mode="fill", fill_value=1 + 2j)

    plan = planned(fn, (z, ids), (P("Y"), P()))
    assert plan.verify().ok
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, z, ids)[0], fn(z, ids))
    np.testing.assert_array_equal(plan.lower()(z, ids), fn(z, ids))
