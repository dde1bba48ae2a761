"""Every collective of every model and recorded program is explained; proposals hold."""

import random

import jax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.explain import collective, removals
from shardalg.plan.explain.why_not import annotated_as
from shardalg.plan.plan import from_annotations
from tests import every_plan

SEED = 11
MODELS, ORACLE = every_plan.models(), every_plan.oracle()
# One of each kind: a scanned step, a manual region, results that are even by force, whole
# operators, state that is split, halos, a loop of the user's.
SAMPLE = (
    "attempt 2, train_step, scanned", "adafactor, level 3", "microbatches",
    "17 rows over 8 devices", "shard_map_subgraph", "topk_sharded", "reverse_uneven",
    "conv2d_two_axes", "scan_layers_remat",
)  # fmt: skip


def unexplained(plan):
    """Return collectives without an annotation as cause, or with incomplete sides."""
    for number, moved in enumerate(plan._stages.traffic.collectives):
        found = plan.explain(number)
        value = plan.graph.values[moved.value].name
        complete = found.annotations and value in found.headline and found.has.words
        if not (complete and found.needs.words):
            yield number, found.headline


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SAMPLE)
def test_every_collective_names_an_annotation(name):
    assert not list(unexplained({**MODELS, **ORACLE}[name]()))


@pytest.mark.slow
@pytest.mark.parametrize("policy", every_plan.POLICIES)
def test_every_collective_of_every_plan_names_an_annotation(policy, show):
    """Parts of train steps are used by cost, because whole steps take minutes."""
    count = 0
    for name, planned in {**every_plan.models(policy), **every_plan.oracle(policy)}.items():
        if policy != "cost" or not ("step" in name or "level" in name):
            plan = planned()
            count += len(plan._stages.traffic.collectives)
            assert not list(unexplained(plan)), name
    show(f"{policy}: {count} collectives, each explained by an annotation")


# (plan, collective, how many annotations are changed); several of them send more elsewhere.
REMOVED = [
    ("two layouts of a sum", 0, 2),
    ("slice_strided", 1, 1),
    ("attempt 2, layer_gradient, unrolled", 5, 1),
    ("attempt 2, layer_gradient, unrolled", 8, 2),
    ("attempt 2, layer_gradient, unrolled", 13, 5),
    ("reduce_uneven", 1, 1),
    ("topk_sharded", 0, 1),
    ("embedding_grad", 0, 1),
]


def assert_removed(plan, number):
    """Check the promised figures in the changed plan, and that one collective is gone."""
    moved, found = plan._stages.traffic.collectives[number], plan.explain(number)
    other = from_annotations(plan.traced, found.change.applied(plan.annotations), plan.options)
    promised, table = found.df.loc[0], other.collectives_table
    assert promised["wire_bytes"] == sum(r["wire_bytes"] * r["executions"] for r in table)
    assert promised["collectives"] == len(other._stages.traffic.collectives)
    assert promised["peak_memory_bytes"] == other.memory.peak_bytes
    runs = [
        sum(m.step.count for m in p._stages.traffic.collectives if m.alike == moved.alike)
        for p in (plan, other)
    ]
    assert runs[1] < runs[0]
    more = other._stages.traffic.wire_bytes > plan._stages.traffic.wire_bytes
    assert ("MORE: it moves elsewhere" in repr(found)) == more


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "number", "changed"), REMOVED)
def test_the_proposed_change_removes_the_collective(name, number, changed):
    plan = {**MODELS, **ORACLE}[name]()
    assert len(plan.explain(number).change.steps) == changed
    assert_removed(plan, number)


@pytest.mark.slow
def test_proposals_hold_in_all_small_plans(show):
    """The first collectives of every plan that is no whole step are used."""
    counts = {"removed": 0, "by two changes": 0, "not": 0}
    for name, planned in {**MODELS, **ORACLE}.items():
        if "step" in name or "level" in name:
            continue
        plan = planned()
        for number in range(min(3, len(plan._stages.traffic.collectives))):
            change = plan.explain(number).change
            if change is None:
                counts["not"] += 1
                continue
            assert_removed(plan, number)
            counts["removed"] += 1
            counts["by two changes"] += len(change.steps) == 2
    show(f"changes that are proposed for collectives, planned again: {counts}")
    assert counts["removed"] >= 20
    assert counts["by two changes"]


def random_question(plan, rng):
    """Draw a value of a plan, and a spec with its axes."""
    values = [v for v in plan.graph.values if v.type.shape and v.kind != "constant"]
    value = rng.choice(values)
    dims = [()] * len(value.type.shape)
    for axis in rng.sample(plan.mesh.axis_names, len(plan.mesh.axis_names)):
        at = rng.randrange(2 * len(dims))
        if at < len(dims):
            dims[at] = (*dims[at], axis)
    return value, tuple(axes or None for axes in dims)


def assert_costs(plan, value, spec):
    """Check the predicted costs of a sharding against the plan in which the value has it."""
    found = plan.why_not(value.name, spec)
    annotations = annotated_as(plan._stages, value.index, found.wanted)
    other = from_annotations(plan.traced, annotations, plan.options)
    assert other.sharded.shardings[value.index].dims == found.wanted.dims
    totals = found.cost.totals.df.set_index("quantity")
    for side, one in (("this", plan), ("other", other)):
        sent = sum(row["wire_bytes"] * row["executions"] for row in one.collectives_table)
        assert totals.loc["wire_bytes", side] == sent
        assert totals.loc["peak_memory_bytes", side] == one.memory.peak_bytes
    contradicted = found.verdict is not None and not found.verdict
    assert found.obstacle
    assert not contradicted or found.verdict.witness is not None


def test_why_not_costs_what_the_annotated_plan_costs(show):
    rng = random.Random(SEED)
    show(f"seed {SEED}")
    for name in rng.sample(sorted(ORACLE), 4):
        plan = ORACLE[name]()
        for _ in range(2):
            assert_costs(plan, *random_question(plan, rng))


@pytest.mark.slow
def test_why_not_costs_what_the_annotated_plan_costs_in_every_plan(show):
    rng = random.Random(SEED + 1)
    show(f"seed {SEED + 1}")
    for planned in {**MODELS, **ORACLE}.values():
        plan = planned()
        assert_costs(plan, *random_question(plan, rng))


@pytest.mark.slow
def test_of_many_changes_none_can_be_left_out():
    plan = MODELS["attempt 2, layer_gradient, unrolled"]()
    found = plan.explain(13)
    assert "Set of 5 changes that removes it, all of them needed" in repr(found)
    steps, moved = found.change.steps, found.moved
    assert len({slot for step in steps for slot in step.slots}) >= len(steps)
    for left_out in steps:
        annotations = plan.annotations
        for step in steps:
            annotations = annotations if step == left_out else step.applied(annotations)
        other = from_annotations(plan.traced, annotations, plan.options)
        traffic = other._stages.traffic.collectives
        alike = sum(m.step.count for m in traffic if m.alike == moved.alike)
        before = plan._stages.traffic.collectives
        same = any(m.place == moved.place for m in traffic)
        assert same or alike >= sum(m.step.count for m in before if m.alike == moved.alike)


def test_a_pair_is_found_where_no_single_change_helps():
    """Both operands of a sum have the result's sharding: nothing moves."""
    found = MODELS["two layouts of a sum"]().explain(0)
    assert not any(trial.removes for trial in found.trials)
    best = min((t for t in found.pairs if t.removes), key=lambda t: t.outcome.wire_bytes)
    assert [str(step.place) for step in best.change.steps] == ["argument a", "argument b"]
    assert {step.after.text() for step in best.change.steps} == {"[None, (x, y), None]"}
    assert best.outcome.wire_bytes == 0
    assert found.helps
    assert found.change == best.change


def test_a_single_change_that_sends_more_stands_behind_the_pair_that_does_not():
    found = MODELS["two layouts of a sum"]().explain(1)
    assert len(found.change.steps) == 2
    assert "sent 10.5 MB to 0 B (100% less)" in repr(found)
    single = found.df[found.df["changed_dims"] == 1].iloc[0]
    assert single["wire_bytes"] == 1.4 * MODELS["two layouts of a sum"]().cost("tpu_v3").wire_bytes
    assert not single["helps"]


def test_remedies_are_ranked_by_seconds_and_memory_of_their_own_plans():
    """The first is the cheapest of all tried ones; each figure equals the plan's cost."""
    plan = MODELS["two layouts of a sum"]()
    table = plan.explain(1).df
    assert table["step_time_s"].is_monotonic_increasing
    now = plan.cost("tpu_v3").step_time_s
    assert table["helps"].tolist() == [bool(row < now * 0.9999) for row in table["step_time_s"]]
    best = plan.explain(1).trials[0].outcome
    assert best.price >= plan.explain(1)._removing[0].outcome.price
    other = from_annotations(
        plan._traced, plan.explain(1).change.applied(plan._annotations), plan.options
    ).cost("tpu_v3")
    first = table.iloc[0]
    assert (first["step_time_s"], first["peak_memory_bytes"]) == (
        other.step_time_s,
        other.peak_memory_bytes,
    )


def test_nothing_helps_is_an_answer():
    """Data parallelism: every change that drops the gradients' sum repeats the work."""
    mesh = sa.Mesh({"data": 8})
    w, x = (jax.ShapeDtypeStruct((n, 4096), "bfloat16") for n in (4096, 65536))
    loss = jax.grad(lambda w, x: ((x @ w) ** 2).sum().astype("float32"))
    plan = sa.plan(loss, w, x, mesh=mesh, in_shardings=(P(), P("data")), out_shardings=P())
    found = plan.explain(0)
    assert "It can be removed, but no change makes a step cheaper." in repr(found)
    assert not found.helps
    assert not found.df["helps"].any()
    assert (
        min(t.outcome.step_time_s for t in found.trials if t.removes)
        > plan.cost("tpu_v3").step_time_s
    )


def test_axes_that_no_single_edit_moves_are_dropped_together():
    """The second halo of a convolution is the first one's again: it has one annotation."""
    plan = ORACLE["conv2d_two_axes"]()
    assert not any(trial.removes for trial in (*plan.explain(2).trials, *plan.explain(2).pairs))
    assert str(plan.explain(2).change).startswith("argument x as [None, None, None, None] instead")
    assert_removed(plan, 2)


def test_a_large_program_is_explained_by_few_plans_unless_asked_to_be_thorough(monkeypatch):
    """The text says that trials were left out; a thorough explanation has the full text."""
    plan = MODELS["two layouts of a sum"]()
    whole = repr(plan.explain(1))
    monkeypatch.setattr(collective, "QUICK_NODES", 1)
    few = plan.explain(1)
    assert len(few.trials) == 1
    assert not few.pairs
    assert "stopped after 1 change: plan.explain(1, thorough=True) plans more." in repr(few)
    assert repr(plan.explain(1, thorough=True)) == whole
    assert "thorough" not in whole


def test_only_changes_that_remove_a_collective_are_priced():
    plan = MODELS["two layouts of a sum"]()
    found = plan.explain(0)
    priced = found._trials._outcomes.values()
    assert len(found.trials) > len(list(priced)) - len(found.pairs) - 1
    for trial in found.trials:  # asked for later, the price is that of the plan
        assert trial.outcome.wire_bytes == trial.wire_bytes
        assert trial.outcome.step_time_s > 0


def test_what_no_change_removes_says_so_with_the_nearest(monkeypatch):
    """The plan is so large that no pairs are planned."""
    monkeypatch.setattr(removals, "MOST_NODES", 0)
    found = ORACLE["conv2d_two_axes"]().explain(2)
    assert found.change is None
    assert "None of 3 single changes removes it" in repr(found)
    assert ". The nearest is argument x" in repr(found)
    assert found.df["removes"].tolist() == [False]


def test_a_collective_of_the_users_own_names_the_annotation_at_the_border_of_its_region():
    mesh, jax_mesh = sa.Mesh({"X": 4}), jax.make_mesh((4,), ("X",), axis_types=(AxisType.Auto,))
    region = jax.shard_map(
        lambda x: jax.lax.psum(x, "X"), mesh=jax_mesh, in_specs=P("X"), out_specs=P()
    )
    x = jax.ShapeDtypeStruct((8, 4), "float32")
    found = sa.plan(region, x, mesh=mesh, in_shardings=(P("X"),)).explain(0)
    assert "is in the function's own shard_map" in found.needs.words
    assert "No annotation causes it" in repr(found)
