"""Reshapes that move the borders of blocks: one exchange of flat elements, nothing whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.sizes.formula import FormulaError
from tests.partition.planned import checked, kinds, moves, numbers

ROWS = P("Y")


def sent(plan):
    """Elements that a device sends."""
    return sum(row["wire_bytes"] for row in plan.collectives_table) / 4


# name: (shape, shape of the result, layouts, elements that a device sends)
CASES = {
    "the paper's": ((3, 2), (6,), P("X"), P("X"), 1),
    "merged, uneven": ((6, 4), (24,), ROWS, ROWS, 6),
    "split, uneven": ((22,), (11, 2), ROWS, ROWS, 0),
    "not nested": ((6, 4), (4, 6), ROWS, ROWS, 6),
    "not nested, blocks alike": ((6, 4), (4, 6), P("X"), P("X"), 0),
    "beside a dimension that stays": ((4, 6, 4), (4, 4, 6), P("X", "Y"), P("X", "Y"), 12),
    "twice": ((3, 2, 3, 2), (6, 6), P("X", None, "Y"), P("X", "Y"), 8),
    "around dimensions of size 1": ((1, 6, 1, 4), (4, 6, 1), P(None, "Y"), ROWS, 6),
}


@pytest.mark.sampled(26)
@pytest.mark.parametrize("out", [None, P(), P("Y"), P(None, "X"), P("X", "Y"), P(("Y", "X"))])
@pytest.mark.parametrize("spec", [P(None, "Y"), P(None, "Y", "X"), P("X", "Y"), P("Y"), P()])
def test_a_reshape_in_another_order_of_dimensions(spec, out):
    """A loop that cuts a dimension by itself may be one of several in another: that one is cut."""

    def turned(x):
        return jax.lax.reshape(x, (12, 2), (1, 0, 2))

    plan = checked(turned, (numbers(3, 4, 2),), (spec,), out_shardings=out)
    assert plan.verify().ok


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_only_what_lies_elsewhere_is_sent(name):
    shape, out_shape, spec, out, most = CASES[name]
    x = numbers(*shape)
    plan = checked(lambda x: x.reshape(out_shape), (x,), (spec,), out_shardings=out)
    assert {kind for kind, _ in moves(plan)} <= {"collective_permute"}
    assert sent(plan) <= most, sent(plan)
    assert plan.verify().ok, plan.verify().refuted
    np.testing.assert_array_equal(plan.lower()(x), x.reshape(out_shape))


# shape, shape of the result, mesh, layouts, elements that a device sends
RUNS = [
    ((6,), (2, 3), (2, 2), P(("X", "Y")), P("X", "Y"), 1),
    ((14,), (2, 7), (2, 3), P(("X", "Y")), P("X", "Y"), 2),
    ((10,), (2, 5), (2, 2), P(("X", "Y")), P("X", "Y"), 2),
    ((4, 6), (4, 2, 3), (2, 2), P(None, ("X", "Y")), P(None, "X", "Y"), 4),
    ((6, 2), (2, 3, 2), (2, 2), P(("X", "Y")), P("X", "Y"), 2),
    ((12,), (2, 2, 3), (4, 2), P(("X", "Y")), P("X", None, "Y"), 6),
    ((30,), (2, 3, 5), (6, 2), P(("X", "Y")), P("X", None, "Y"), 30),
]


@pytest.mark.parametrize("case", RUNS, ids=str)
def test_uneven_parts_of_rows_are_fetched_as_runs(case):
    """The result is sharded along two dimensions, and a device holds a run of flat elements."""
    shape, out_shape, axes, spec, out, most = case
    x, mesh = numbers(*shape), sa.Mesh(dict(zip("XY", axes, strict=True)))
    plan = checked(lambda x: x.reshape(out_shape), (x,), (spec,), mesh=mesh, out_shardings=out)
    assert sent(plan) <= most, sent(plan)
    report = plan.verify()
    assert report.ok, report.refuted


def sizes(rng, total):
    """Draw sizes with that product, sometimes with 1 among them."""
    found = [1] if rng.integers(3) == 0 else []
    while total > 1:
        found.append(int(rng.choice([d for d in range(2, total + 1) if total % d == 0])))
        total //= found[-1]
    return [found[k] for k in rng.permutation(len(found))] or [1]


def layout(rng, rank):
    dims = [[] for _ in range(rank + 1)]
    for axis in rng.permutation(["X", "Y"]).tolist():
        dims[int(rng.integers(rank + 1))].append(axis)
    return P(*(tuple(axes) or None for axes in dims[:rank]))


def test_random_reshapes_in_random_layouts(show):
    rng, regrouped = np.random.default_rng(SEED), 0
    for _ in range(40):
        total, kept = int(rng.choice([12, 24, 30, 36, 60])), int(rng.choice([1, 1, 5]))
        shape, out_shape = ([kept] * (kept > 1) + sizes(rng, total) for _ in range(2))
        spec, out = layout(rng, len(shape)), layout(rng, len(out_shape))
        mesh = sa.Mesh({"X": int(rng.choice([2, 3])), "Y": int(rng.choice([2, 4]))})
        fn, x = lambda x, to=out_shape: x.reshape(to), numbers(*shape)
        plan = checked(fn, (x,), (spec,), mesh=mesh, out_shardings=out)
        assert plan.verify().ok, (shape, out_shape, spec, out, mesh)
        regrouped += "Regroup" in kinds(plan)
    show(f"{regrouped} of 40 reshapes by an exchange, seed {SEED}")
    assert regrouped >= 5


SEED = 210504663


def test_where_gathering_sends_less_it_is_gathered():
    """Every device wants all of a result that is whole."""
    plan = checked(lambda x: x.reshape(32), (numbers(8, 4),), (ROWS,), out_shardings=P())
    assert {kind for kind, _ in moves(plan)} == {"all_gather"}


def test_the_program_prints_what_becomes_what():
    plan = checked(lambda x: x.reshape(6), (numbers(3, 2),), (P("X"),), out_shardings=P("X"))
    assert "regroup d*d as 6 " in str(plan.program)


def test_named_sizes_of_an_exchange_have_no_formula():
    (n,) = sa.dims("n", hint=(6,))
    plan = sa.plan(
        lambda x: x.reshape(4, -1),
        jax.ShapeDtypeStruct((n, 4), jnp.float32),
        mesh=sa.Mesh({"X": 4}),
        in_shardings=(P("X"),),
        out_shardings=P("X"),
    )
    with pytest.raises(FormulaError, match="named sizes"):
        plan.cost("tpu_v3").formulas()
