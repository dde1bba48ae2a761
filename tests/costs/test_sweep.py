"""Sweeps: seconds, memory and guards at many points equal a plan's at each point."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.analyses.peaks import candidate_peaks, possible_maxima
from shardalg.costs.hardware import load
from shardalg.lab.table1_strategies import finalized
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.sizes.amounts import tile
from shardalg.sizes.checked import Checked
from shardalg.sizes.facts import _HOLDS, Fact
from shardalg.sizes.formula import FormulaError, ceiling, symbols

B, M, X, Y = symbols("B M X Y")
SMALL = Config(B=64, S=128, M=512, H=2048, N=8, D=64, V=1024, L=4, scan=True)


@pytest.fixture(scope="module")
def step():
    """Return a train step with named sizes, its layers scanned."""
    train = part("train_step")
    return sa.plan(
        train.function(SMALL),
        *train.named_arguments(SMALL),
        strategy=finalized(sa.Mesh({"X": 4, "Y": 4}, symbolic=True), SMALL),
        roles=train.roles(),
        donate_argnums=train.donate_argnums(),
    )


def layers(sizes=("B M", (64, 16))):
    def two(w, x):
        return jnp.tanh(x @ w).sum(), jnp.tanh((x @ w).T @ x)

    b, m = sa.dims(sizes[0], hint=sizes[1])
    w, x = jax.ShapeDtypeStruct((m, m), "float32"), jax.ShapeDtypeStruct((b, m), "float32")
    mesh = sa.Mesh({"X": 4}, symbolic=True)
    return sa.plan(two, w, x, mesh=mesh, in_shardings=(P(), P("X")))


@pytest.mark.slow
def test_a_train_step_costs_at_each_point_what_its_plan_there_costs(step):
    """`at` plans there; memory may peak at another instruction, and the formula has that one."""
    batch, vocab = np.array([32, 512, 640]), np.array([[512], [2048]])
    found = step.sweep("tpu_v3", B=batch, V=vocab)
    assert found.step_time_s.shape == (2, 3)
    assert found.holds.tolist() == [[False] * 3, [True] * 3]
    moved = 0
    for at in np.argwhere(found.holds):
        sizes = {"B": int(batch[at[1]]), "V": int(vocab[at[0], 0])}
        there = step.at(**sizes)
        kinds = {row["kind"] for row in there.changes}
        assert kinds <= {"peak"}
        moved += there._stages.as_written.place != step._stages.as_written.place
        cost = there.cost("tpu_v3")
        assert found.step_time_s[tuple(at)] == pytest.approx(cost.step_time_s, rel=1e-12)
        peak = cost.peak_memory_bytes  # of 100 kB beside them: what is written over what
        assert found.peak_memory_bytes[tuple(at)] == pytest.approx(peak, rel=1e-6)
    assert moved


@pytest.mark.slow
def test_what_is_in_doubt_is_a_question_for_holds(step):
    found = step.sweep("tpu_v3", L=np.array([2, 4, 64]))
    assert found.doubtful.tolist() == [True, False, False]
    assert found.holds.tolist() == [False, True, True]
    assert step.holds(L=2)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("rebuild", [False, True])
def test_the_peak_stands_elsewhere_at_other_sizes(step, rebuild):
    """At other sizes the peak is elsewhere, and the formula of the hints' peak is too small."""
    hints = {name: size.hint for name, size in step.sizes.items()}
    peaks = candidate_peaks(step._symbolised, donated=step._traced.donated, rebuild=rebuild)
    chip = replace(load("tpu_v3"), rebuilds=rebuild)
    cost = step.cost(chip)
    assert max(p.at(hints) for p in peaks) == cost.hints.memory.peak_bytes
    point = {**hints, "S": 1024}
    there = step.at(S=1024).cost(chip).peak_memory_bytes
    assert cost.totals.memory.peak_bytes.at(point) < there
    assert max(p.at(point) for p in peaks) == there
    assert cost.totals.peak_bytes.at(point) == there


def test_grids_and_scattered_points_are_the_same(step):
    rng = np.random.default_rng(0)
    sides = {name: rng.integers(1, 4096, 40) for name in "BSX"}
    grid = step.sweep("tpu_v3", **dict(zip("BSX", np.ix_(*sides.values()), strict=True)))
    flat = {
        n: a.ravel()
        for n, a in zip("BSX", np.meshgrid(*sides.values(), indexing="ij"), strict=True)
    }
    row = step.sweep("tpu_v3", **flat)
    for name in ("holds", "doubtful"):
        np.testing.assert_array_equal(getattr(grid, name).ravel(), getattr(row, name))
    for name in ("step_time_s", "peak_memory_bytes"):
        np.testing.assert_allclose(getattr(grid, name).ravel(), getattr(row, name), rtol=1e-12)


def test_of_a_plan_whose_questions_are_not_known_nothing_holds_for_certain():
    plan = layers()
    object.__setattr__(plan, "_recorded", (None, "made in a test"))
    found = plan.sweep("tpu_v3", B=np.array([64, 128]))
    assert not found.holds.any()
    assert not found.doubtful.any()


def test_overlap_and_what_fits():
    plan, sizes = layers(), np.array([64, 1 << 30])
    found = plan.sweep("tpu_v3", overlap="full", B=sizes, M=64)
    cost = plan.at(B=1 << 30, M=64).cost("tpu_v3", overlap="full")
    assert found.step_time_s[1] == pytest.approx(cost.step_time_s)
    assert found.fits.tolist() == [True, False]
    assert repr(found).startswith(
        "Sweep of B on 4 x tpu_v3 (as asked for; devices of the mesh), each mesh axis on links of "
        "its own: 2 points, the plan holds for certain at 2, fits at 1"
    )
    assert "fastest B=64: " in repr(found)


def test_the_text_does_not_deny_what_the_plan_confirms():
    """A plan may keep the decisions of its hints even if a recorded question has another answer."""
    plan = layers()
    points = np.array([1, 2, 3, 63, 64, 4096])
    found = plan.sweep("tpu_v3", B=points)
    assert not found.holds.all()
    assert "the plan holds for certain at" in repr(found)
    assert "(plan.holds decides at the others)" in repr(found)


def test_equal_sizes_are_in_doubt_where_the_hints_differ():
    """XLA's completion relates loop results of equal type: [L, B, D] and [L, D, D] at B = D."""
    b, d, f = sa.dims("B D F", hint=(512, 256, 1024))

    def step(up, down, x):
        def layer(h, w):
            return h + jnp.maximum(h @ w[0], 0) @ w[1], None

        return jax.grad(lambda w: (jax.lax.scan(layer, x, w)[0] ** 2).mean())((up, down))

    shapes = (8, d, f), (8, f, d), (b, d)
    specs = P(None, None, "model"), P(None, "model"), P("data")
    plan = sa.plan(
        step,
        *(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes),
        mesh=sa.Mesh({"data": 4, "model": 2}, symbolic=True),
        in_shardings=specs,
        out_shardings=specs[:2],
        roles=("parameters", "parameters", "data"),
    )
    batches = np.array([128, 256, 384])
    found = plan.sweep("h100", B=batches)
    assert found.holds.tolist() == [True, False, True]
    there = [plan.at(B=int(size)).cost("h100") for size in batches]
    same = [
        cost.step_time_s == pytest.approx(seconds, rel=1e-9) and cost.peak_memory_bytes == held
        for cost, seconds, held in zip(
            there, found.step_time_s, found.peak_memory_bytes, strict=True
        )
    ]
    assert same == [True, False, True]


def test_on_a_topology_other_axes_have_other_links():
    plan = layers()
    found = plan.sweep("h100:4", B=np.array([64, 128]), X=np.array([[4], [2]]))
    assert found.holds.tolist() == [[True, True], [False, False]]


WRONG = {
    "unknown": (lambda p: p.sweep("tpu_v3", Q=np.arange(1, 3)), sa.SymbolError, "Q is in no arg"),
    "no array": (lambda p: p.sweep("tpu_v3", B=8), sa.SymbolError, "needs an array of some size"),
    "zero": (lambda p: p.sweep("tpu_v3", B=np.arange(3)), sa.SymbolError, "integers of at least 1"),
    "NaN": (
        lambda p: p.sweep("tpu_v3", B=np.array([1.0, np.nan])),
        sa.SymbolError, "of float64: give int",
    ),
    "shapes": (
        lambda p: p.sweep("tpu_v3", B=np.arange(1, 3), M=np.arange(1, 4)),
        sa.SymbolError, r"shapes B \(2,\), M \(3,\) do not broadcast: give all points",
    ),
    "chip": (lambda p: p.sweep("v9", B=np.arange(1, 3)), sa.HardwareError, "no hardware 'v9'"),
    "schedule": (
        lambda p: p.sweep("tpu_v3", overlap="dependences", B=np.arange(1, 3)),
        FormulaError, "take 'none' or 'full'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_sweep_says_what_to_write(name):
    act, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        act(layers())


def test_a_plan_in_numbers_has_nothing_to_sweep():
    x = jax.ShapeDtypeStruct((8,), "float32")
    plan = sa.plan(jnp.sin, x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
    with pytest.raises(sa.SymbolError, match="plan with sa"):
        plan.sweep("tpu_v3", B=np.array([1, 2]))


FORMULAS = [
    B * M - 37 * X, M / X, (B - 1) * (X - 1), B * M / (X * Y), ceiling(M / X) * B - Y,
    tile(B, X * Y) * 3 - M, 10**15 * B - 3 * 10**14 * M + 1, B - B / X,
]  # fmt: skip
SIZES = st.integers(1, 40) | st.sampled_from([64, 4096, 1 << 20])


@given(
    st.lists(st.tuples(st.sampled_from(FORMULAS), st.sampled_from(sorted(_HOLDS))), max_size=4),
    st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=30),
    st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_facts_hold_at_arrays_where_they_hold_at_each_point(pairs, rows, known):
    facts = [Fact(formula, relation) for formula, relation in pairs]
    values = {
        name: np.array(column) for name, column in zip("BMX", zip(*rows, strict=True), strict=True)
    }
    found = Checked(facts, {"Y": known}).hold(values)
    points = [{**dict(zip("BMX", row, strict=True)), "Y": known} for row in rows]
    assert found.tolist() == [all(f.holds(point) for f in facts) for point in points]


@given(st.lists(st.sampled_from([B, M, B * M, B + 2 * M, 3 * B, B / X, B * M / X + 5, M + 4 + X]),
                min_size=1), SIZES, SIZES, SIZES)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_what_is_left_out_is_nowhere_the_largest(formulas, b, m, x):
    point = {"B": b, "M": m, "X": x}
    left = possible_maxima(formulas)
    assert max(f.at(point) for f in left) == max(f.at(point) for f in formulas)
