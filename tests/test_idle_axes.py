"""Axes on none of a product's loops: warned of, with the flops and an annotation that uses them."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.analyses.mesh_axes import idle, redundant_flops
from shardalg.lab import table1_strategies as table1
from shardalg.lab import weight_update
from shardalg.models.transformer import Config
from shardalg.plan.explain.why_not import annotated_as
from tests import small_step

MESH = sa.Mesh({"X": 2, "Y": 4})
X, W = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16), (16, 32)))
ODD = jax.ShapeDtypeStruct((7, 5), "float32")
BATCHES = jax.ShapeDtypeStruct((3, 8, 16), "float32")


def two_layers(x, w):
    return jnp.tanh(x @ w) @ w.T


def scanned(xs, w):
    return lax.scan(lambda carry, x: (carry, x @ w), 0.0, xs)[1]


# name -> function, arguments, in_shardings, (axes, redundant flops) of each warning
PROGRAMS = {
    "one axis": (jnp.matmul, (X, W), (P("X"), P()), [("Y", 2 * 8 * 16 * 32 / 2 * 3 / 4)]),
    "both axes": (jnp.matmul, (X, W), (P(), P()), [("X,Y", 2 * 8 * 16 * 32 * 7 / 8)]),
    "none": (jnp.matmul, (X, W), (P("X"), P(None, "Y")), []),
    "contracted": (jnp.matmul, (X, W), (P("X", "Y"), P("Y")), []),
    "trips": (scanned, (BATCHES, W), (P(None, "X"), P()), [("Y", 3 * 8 * 16 * 32 * 3 / 4)]),
    "no product": (jnp.add, (X, X), (P(), P()), []),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_flops_that_are_done_more_than_once(name):
    fn, arguments, specs, want = PROGRAMS[name]
    plan = sa.plan(fn, *arguments, mesh=MESH, in_shardings=specs)
    found = idle(plan.program, plan.graph)
    assert [(",".join(one.axes), one.redundant_flops) for one in found] == want


def test_the_remedy_is_what_replanning_gives():
    plan = sa.plan(jnp.matmul, X, W, mesh=MESH, in_shardings=(P("X"), P()))
    (row,) = plan.warnings().to_dict("records")
    assert row["remedy"] == (
        "annotate dot_general:1 as [(X, Y), None]: 3.07 kflop to 0 flop repeated, 0 B to 0 B sent"
    )
    mended = sa.plan(
        jnp.matmul, X, W, mesh=MESH, in_shardings=(P("X"), P()), out_shardings=P(("X", "Y"))
    )
    assert mended.warnings().empty


def test_lines_that_repeat_work_are_listed_costliest_first():
    plan = sa.plan(two_layers, X, W, mesh=MESH, in_shardings=(P("X"), P()))
    rows = plan.warnings()
    assert rows["redundant_flops"].sum() == redundant_flops(idle(plan.program, plan.graph))
    assert list(rows["redundant_flops"]) == sorted(rows["redundant_flops"], reverse=True)


@pytest.mark.slow
def test_the_overview_names_the_chip_on_which_remedies_are_cheaper():
    """The same annotation makes a step faster on one chip and slower on another."""

    def step(p, x):
        loss = lambda p: ((jax.nn.relu(x @ p["a"]) @ p["b"]) ** 2).mean()  # noqa: E731
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p))

    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
    given = {"a": f32(256, 512), "b": f32(512, 256)}, f32(1024, 256)
    plans = [
        sa.plan(step, *given, mesh=sa.Mesh({"d": 2, "m": 4}), in_shardings=(None, P("d")),
                options=sa.Options(hardware=chip))
        for chip in ("h100", "tpu_v3")
    ]  # fmt: skip
    here, there = (str(plan.overview("tpu_v3")) for plan in plans)
    assert "annotate dot_general:1" in here
    assert "none makes a step cheaper" in there
    assert "Remedies are tried on h100; Options(hardware='tpu_v3') tries them on" in here
    assert "Remedies are tried" not in there + str(plans[0].overview())


def test_a_remedy_is_shown_only_if_it_makes_a_step_cheaper():
    plan = sa.plan(lambda a: a @ a.T, ODD, mesh=MESH, in_shardings=(P(),))
    (row,) = plan.warnings().to_dict("records")
    assert row["redundant_flops"] == 2 * 7 * 7 * 5 * 7 / 8
    assert row["remedy"] == (
        "6 shardings of its result and operands were planned: none makes a step cheaper"
    )


@pytest.mark.parametrize("sizes", [(7, 5, 7), (9, 64, 512), (100, 30, 6), (1, 5, 3), (64, 6, 2)])
@pytest.mark.parametrize("spec", [P(), P("X")])
def test_following_a_remedy_repeats_less_and_takes_less_time(sizes, spec):
    m, k, n = sizes
    types = jax.ShapeDtypeStruct((m, k), jnp.float32), jax.ShapeDtypeStruct((k, n), jnp.float32)
    made = {"mesh": MESH, "in_shardings": (spec, P())}
    plan = sa.plan(jnp.matmul, *types, **made)
    for row in plan.warnings().query("redundant_flops > 0").to_dict("records"):
        named = re.match(r"annotate (.*) as (\[.*\]): ", row["remedy"])
        if named is None:
            assert "none makes a step cheaper" in row["remedy"] or "not tried" in row["remedy"]
            continue
        index = next(v.index for v in plan.graph.values if v.name == named[1])
        layout = sa.Sharding.parse(named[2], plan.graph.values[index].type.shape, MESH)
        asked = annotated_as(plan._stages, index, layout)
        other = plan._trials.under(asked)
        # On TPU v3 memory traffic hides behind products: equal times are told apart by memory.
        before, after = plan._stages.cost, other.cost
        assert after.step_time_s <= before.step_time_s
        assert (after.step_time_s, after.peak_memory_bytes) < (
            before.step_time_s,
            before.peak_memory_bytes,
        )
        before, after = (idle(s.program, s.graph) for s in (plan, other))
        assert redundant_flops(after) < redundant_flops(before)


def test_strict_allows_them():
    specs, strict = (P("X"), P()), sa.Options(strict=True)
    assert len(sa.plan(jnp.matmul, X, W, mesh=MESH, in_shardings=specs, options=strict).warnings())


def test_only_the_attention_of_attempt_1_is_idle():
    """Attempt 1 has X on M alone, which scores and values lack (Table 1, first row)."""
    idle_ops = {}
    for name, strategy in table1.STRATEGIES.items():
        plan = small_step.plan().replan(strategy(small_step.MESH, small_step.CONFIG))
        found = idle(plan.program, plan.graph)
        sources = {plan.graph.nodes[one.node].source.split(":")[0] for one in found}
        idle_ops[name] = {one.axes for one in found}, sources
    assert idle_ops["attempt 1"] == ({("X",)}, {"transformer.py"})
    assert idle_ops["attempt 2"] == idle_ops["finalized"] == (set(), set())


def test_no_product_of_a_data_parallel_step_is_idle():
    config, mesh = Config(L=1), sa.Mesh({"X": 4})
    data = sa.plan(
        weight_update.function(config),
        *weight_update.arguments(config),
        strategy=weight_update.strategy(3, mesh, config),
    )
    assert not idle(data.program, data.graph)
