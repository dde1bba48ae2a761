"""Products by groups (`jax.lax.ragged_dot`) on sharded rows, groups and matrices; their price."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.instructions import Apply
from shardalg.spmd.rewrite import instructions as all_instructions
from shardalg.verify.verify import verify
from tests.partition.planned import check_equal, numbers, planned

MESH = sa.Mesh({"X": 2, "Y": 2})
SPECS = (None, "X", "Y", ("X", "Y"))


def drawn(rng):
    """Return rows, matrices and sizes of groups; some groups are empty, some rows in no group."""
    m, k, n, g = rng.integers((1, 1, 1, 1), (18, 9, 9, 7))
    x, w = numbers(m, k, seed=rng), numbers(g, k, n, seed=rng)
    cuts = np.sort(rng.integers(0, m + 1, g))
    sizes = np.diff(cuts, prepend=0).astype(np.int32) * rng.integers(0, 2, g, dtype=np.int32)
    return x, w, sizes


def grouped(x, w, sizes):
    return lax.ragged_dot(x, w, sizes)


def gradients(x, w, sizes):
    return jax.grad(lambda x, w: (lax.ragged_dot(x, w, sizes) ** 2).sum(), (0, 1))(x, w)


def shuffled(rng, names, rank):
    """Return a spec that has each axis of the mesh in at most one dimension."""
    free, entries = [*names], []
    for _ in range(rank):
        entry = SPECS[rng.integers(len(SPECS))]
        axes = (entry,) if isinstance(entry, str) else entry or ()
        entries.append(entry if set(axes) <= set(free) else None)
        free = [name for name in free if entries[-1] is None or name not in axes]
    return P(*entries)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fn", [grouped, gradients])
def test_random_products_equal_jax_on_one_device(fn, seed, show):
    rng = np.random.default_rng([seed, fn is gradients])
    seen = []
    for _ in range(3):
        arguments = drawn(rng)
        specs = tuple(shuffled(rng, "XY", a.ndim) for a in arguments)
        plan = planned(fn, arguments, specs, mesh=MESH)
        check_equal(plan, fn, arguments)
        report = plan.verify()
        assert report.ok, (seed, specs, [a.shape for a in arguments], report.refuted)
        seen.append(f"{[a.shape for a in arguments]} {specs}: {report}")
    show(f"seed {seed}\n" + "\n".join(seen))


def applied(plan):
    """Return the grouped products of a program."""
    found = (i.attributes for i in all_instructions(plan.program.block))
    return [a for a in found if isinstance(a, Apply) and a.primitive == "grouped_dot"]


X, W, SIZES = numbers(16, 8), numbers(4, 8, 6, seed=1), np.array([5, 0, 7, 2], np.int32)
# The sharded loop, the shardings of rows and matrices, and the collective that the loop needs.
LOOPS = {
    "m": (P("X"), P(), []),
    "k": (P(None, "X"), P(None, "X"), ["all_reduce"]),
    "n": (P(), P(None, None, "X"), []),
    "g": (P(), P("X"), ["all_reduce"]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("loop", LOOPS)
def test_each_loop_is_sharded_and_runs_on_devices(loop):
    rows, matrices, kinds = LOOPS[loop]
    plan = planned(grouped, (X, W, SIZES), (rows, matrices, None), mesh=MESH)
    (product,) = applied(plan)
    assert [name for name, _ in product.loops] == [loop]
    assert plan.collectives()["kind"].tolist() == kinds
    assert plan.verify().ok
    np.testing.assert_array_equal(plan.lower()(X, W, SIZES), grouped(X, W, SIZES))


def test_rows_and_groups_are_sharded_together_and_gradients_run_on_devices():
    specs = (P("X"), P("Y"), None)
    plan = planned(gradients, (X, W, SIZES), specs, mesh=MESH)
    assert {n for a in applied(plan) for n, _ in a.loops} >= {"m", "g"}
    for got, want in zip(plan.lower()(X, W, SIZES), gradients(X, W, SIZES), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_rows_without_a_group_are_zero_even_if_they_are_infinite():
    """Three groups on two devices: the second one has a block of padding."""
    x = X.copy()
    x[10:] = np.inf
    arguments = x, W[:3], np.array([4, 0, 6], np.int32)
    plan = planned(grouped, arguments, (None, P("X"), None), mesh=MESH)
    check_equal(plan, grouped, arguments)
    np.testing.assert_array_equal(plan.lower()(*arguments), grouped(*arguments))


BATCHED = {
    "free": lax.RaggedDotDimensionNumbers((((2,), (3,)), ((0,), (0,))), (1,), (1,)),
    "contracting": lax.RaggedDotDimensionNumbers((((1,), (1,)), ((0,), (0,))), (1,), ()),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ragged", BATCHED)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("axis", ["batch", "rows", "groups"])
def test_a_batch_of_products_with_groups_of_its_own(ragged, ranks, axis):
    """With sizes of rank 2 each batch element has groups of its own."""
    x = numbers(2, 6, 4)
    w = numbers(2, 3, 5, 4, seed=1) if ragged == "free" else numbers(2, 6, 5, seed=1)
    sizes = np.array([[3, 0, 2], [1, 4, 1]], np.int32)[: ranks if ranks == 2 else 0]
    sizes = sizes if ranks == 2 else np.array([3, 0, 2], np.int32)

    def fn(x, w, sizes):
        return lax.ragged_dot_general(x, w, sizes, BATCHED[ragged])

    on = {
        "batch": (P("X"), P("X"), None),
        "rows": (P(None, "X"), None, None),
        "groups": (None, P(None, "X") if ragged == "free" else None, None),
    }[axis]
    out = P("X") if axis == "groups" and ragged == "contracting" else None
    plan = planned(fn, (x, w, sizes), on, mesh=MESH, out_shardings=out)
    check_equal(plan, fn, (x, w, sizes))
    assert plan.verify().ok
    np.testing.assert_array_equal(plan.lower()(x, w, sizes), fn(x, w, sizes))


def test_numbers_that_are_not_shifted_to_the_block_are_refuted():
    plan = planned(grouped, (X, W, SIZES), (None, P("X"), None), mesh=MESH)
    block = plan.program.block
    changed = []
    for one in block.instructions:
        a = one.attributes
        if isinstance(a, Apply) and a.primitive == "grouped_dot":
            assert ("is_shifted", True) in a.params
            params = tuple(p for p in a.params if p[0] != "is_shifted")
            one = replace(one, attributes=replace(a, params=params))
        changed.append(one)
    wrong = replace(plan.program, block=replace(block, instructions=tuple(changed)))
    assert not verify(plan.sharded, wrong).ok
    assert verify(plan.sharded, plan.program).ok


# -- the price ----------------------------------------------------------------------------------


def product_flops(cost):
    table = cost.table()
    pairs = zip(table["kind"], table["flops"], strict=True)
    return sum(flops for kind, flops in pairs if kind == "contraction")


M, K, N, G = 64, 32, 16, 8
SHAPES = [
    jax.ShapeDtypeStruct((M, K), "float32"),
    jax.ShapeDtypeStruct((G, K, N), "float32"),
    jax.ShapeDtypeStruct((G,), "int32"),
]
ALL = 2 * M * K * N  # each row meets the matrix of one group


@pytest.mark.parametrize(
    ("specs", "load", "flops"),
    [
        ((None, None, None), 1.0, ALL),
        ((P("X"), None, None), "worst", ALL / 2),
        ((None, P("Y"), None), 1.0, ALL / 4),
        ((None, P("Y"), None), 1.5, 1.5 * ALL / 4),
        ((None, P("Y"), None), 9, ALL),
        ((None, P("Y"), None), "worst", ALL),
        ((P("X"), P("Y"), None), 1.25, 1.25 * ALL / 8),
        ((P("X"), P("Y"), None), "worst", ALL / 2),
    ],
)
def test_the_busiest_device_has_its_share_of_the_rows(specs, load, flops):
    mesh, options = sa.Mesh({"X": 2, "Y": 4}), sa.Options(expert_load=load)
    plan = sa.plan(grouped, *SHAPES, mesh=mesh, in_shardings=specs, options=options)
    assert product_flops(plan.cost("h100")) == flops
    is_named = "Options(expert_load)" in repr(plan.cost("h100"))
    assert is_named == (specs[1] is not None)


def test_uneven_groups_are_priced_by_the_largest_block():
    shapes = [SHAPES[0], jax.ShapeDtypeStruct((3, K, N), "float32")]
    shapes.append(jax.ShapeDtypeStruct((3,), "int32"))
    plan = sa.plan(grouped, *shapes, mesh=sa.Mesh({"X": 2}), in_shardings=(None, P("X"), None))
    assert product_flops(plan.cost("h100")) == pytest.approx(ALL * 2 / 3)


def test_useful_flops_do_not_depend_on_the_number_of_groups():
    for groups in (1, 4, 8):
        w = jax.ShapeDtypeStruct((groups, K, N), "float32")
        sizes = jax.ShapeDtypeStruct((groups,), "int32")
        plan = sa.plan(grouped, SHAPES[0], w, sizes, mesh=sa.Mesh({"X": 1}))
        assert product_flops(plan.cost("h100")) == ALL


@pytest.mark.parametrize("load", [1.0, 1.5, "worst"])
def test_the_formula_is_the_price_of_the_plan_at_other_sizes(load):
    m, g = sa.dims("M G", hint=(M, G))
    shapes = [
        jax.ShapeDtypeStruct((m, K), "float32"),
        jax.ShapeDtypeStruct((g, K, N), "float32"),
        jax.ShapeDtypeStruct((g,), "int32"),
    ]
    mesh = sa.Mesh({"X": 2, "Y": 4}, symbolic=True)
    options = sa.Options(expert_load=load)
    specs = (P("X"), P("Y"), None)
    plan = sa.plan(grouped, *shapes, mesh=mesh, in_shardings=specs, options=options)
    formula = plan.cost("h100").flops
    for at in ({"M": 64, "G": 8, "X": 2, "Y": 4}, {"M": 128, "G": 16, "X": 4, "Y": 2}):
        symbols = {s: at[s.name] for s in formula.free_symbols}
        assert formula.subs(symbols) == plan.at(**at).cost("h100").flops


def test_the_matrix_unit_rounds_up_the_sides_of_one_group():
    plan = sa.plan(grouped, *SHAPES, mesh=sa.Mesh({"X": 1}))
    dense = sa.plan(
        jnp.matmul,
        SHAPES[0],
        jax.ShapeDtypeStruct((K, N), "float32"),
        mesh=sa.Mesh({"X": 1}),
    )
    seconds = [
        sum(t for kind, t in zip(c.table()["kind"], c.table()["time_s"], strict=True)
            if kind == "contraction")
        for c in (p.cost("tpu_v4", overlap="none", software="datasheet") for p in (plan, dense))
    ]  # fmt: skip
    assert seconds[0] >= seconds[1] > 0


@pytest.mark.parametrize("load", [0.5, True, "best", float("nan"), float("inf"), None])
def test_other_load_factors_are_refused(load):
    with pytest.raises(sa.StrategyError, match=r"expert_load is .* or 'worst'"):
        sa.Options(expert_load=load)


def test_a_saved_plan_keeps_its_load(tmp_path):
    options = sa.Options(expert_load=1.5)
    specs = (None, P("X"), None)
    mesh = sa.Mesh({"X": 4})
    plan = sa.plan(grouped, *SHAPES, mesh=mesh, in_shardings=specs, options=options)
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert loaded.cost("h100").flops == plan.cost("h100").flops
    assert loaded.options.expert_load == 1.5
    lighter = loaded.replan(options=sa.Options())
    assert product_flops(lighter.cost("h100")) == ALL / 4
