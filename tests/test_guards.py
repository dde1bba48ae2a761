"""Guards of plans with named sizes: sound, complete, and checked without planning."""

import copy
import importlib
import math
import re
from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.lab import table1_strategies as table1
from shardalg.models import training
from shardalg.models.transformer import Config
from shardalg.plan.explain import decisions
from shardalg.plan.named_sizes import guards_hold
from shardalg.plan.plan import Plan
from shardalg.planner.stages import planned_at
from shardalg.sizes.facts import BROKEN, WHOLE, Facts
from shardalg.sizes.formula import Formula

B, S, M = sa.dims("B S M", hint=(8, 16, 32))
MESH = sa.Mesh({"X": 2, "Y": 4}, symbolic=True)
LAYER = Config(B=12, S=20, M=32, H=224, N=8, D=6, V=80, L=2, scan=False)


def there(plan, point):
    """Return the plan traced and planned at a point, with the changes."""
    full = {name: point.get(name, size.hint) for name, size in plan.sizes.items()}
    stages, constant = planned_at(plan._stages, full, plan.options)
    found = Plan(plan.options, lambda: stages)
    both = plan._stages, stages
    changes = decisions.changes(*both, plan._named, point=full, constant=constant)
    return found, changes


@pytest.fixture(scope="module")
def layer():
    part = training.part("layer_gradient")
    return sa.plan(
        part.function(LAYER),
        *part.named_arguments(LAYER),
        strategy=table1.finalized(MESH, LAYER, "layer_gradient"),
        roles=part.roles(),
        donate_argnums=part.donate_argnums(),
    )


def asks_of_splits(fact, run, calls):
    return fact.relation in (WHOLE, BROKEN)


def asked_inside_of_calls(fact, run, calls):
    return run not in calls


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("left_out", "point"),
    [
        (asks_of_splits, {"H": 222}),
        (asked_inside_of_calls, {"D": 3}),
    ],
)
def test_each_class_of_facts_is_needed(layer, left_out, point):
    """Another plan would be taken for the same one without this class."""
    guards = layer._guards
    full = {name: point.get(name, size.hint) for name, size in layer.sizes.items()}
    weaker = copy.copy(guards)
    kept = (f for f, calls in guards.asked.items() if not left_out(f, guards.whole, calls))
    weaker.facts = Facts(kept)
    assert weaker.hold(full)
    assert not guards.hold(full)
    assert len(there(layer, point)[1])


def test_unchanged_plans_are_planned_only_when_asked_for(layer, monkeypatch):
    here = layer.at(B=11, S=19)
    assert not layer.holds(B=11, S=19)
    assert len(here.changes)
    monkeypatch.setattr(importlib.import_module("shardalg.plan.named_sizes"), "planned_at", None)
    same = layer.at(H=232)
    assert not len(same.changes)
    with pytest.raises(TypeError):
        same.program  # noqa: B018
    monkeypatch.undo()
    assert same.text() == there(layer, {"H": 232})[0].text()


def both_ends(x):
    return jnp.pad(x[1:-1], ((2, 1), (0, 0))).reshape(-1) * 2


def windows(x):
    return jax.lax.dynamic_slice_in_dim(x, 1, x.shape[0] - 3, 0).sum(1)


def scanned(x):
    return jax.lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(x.shape[1:]), x)


def gathered(x):
    return x[jnp.arange(x.shape[1]) % x.shape[0]] @ x.T


@pytest.mark.parametrize("function", [both_ends, windows, scanned, gathered])
def test_sizes_in_parameters_follow(function):
    x = jax.ShapeDtypeStruct((B, S), "float32")
    plan = sa.plan(function, x, mesh=MESH, in_shardings=(P(None, "Y"),))
    assert plan._guards is not None
    held = [p for p in ({"B": 10}, {"B": 16, "S": 32}, {"S": 24, "X": 3}) if plan.holds(**p)]
    assert held
    for point in held:
        found, changed = there(plan, point)
        assert not [row for row in changed if row["kind"] != "peak"], (point, changed)
        assert found.text() == plan.at(**point).text()
        right(plan, found, point)


def right(plan, found, point):
    """Return True if every price by formula equals the price of the plan made there."""
    full, costs = plan_point(plan, point), [p.cost("tpu_v3").totals for p in (plan, found)]
    for (name, formula), (_, number) in zip(*(c.named() for c in costs), strict=False):
        if not name.endswith("_bytes") or name in ("wire_bytes", "peak_memory_bytes"):
            value = Formula.of(formula).at(full) if type(formula) is Formula else formula
            assert float(value) == pytest.approx(float(number), rel=1e-9), (name, point)


def taken(table, places):
    return jnp.take(table, places, axis=0)


def summed(table, places):
    return jax.grad(lambda table: (taken(table, places) ** 2).sum())(table)


def clipped(table, places):
    return jnp.take(table, places, axis=0, mode="clip") + table[places]


def smooth(table, places):
    """Return a function with its own derivative rule, and a reduction by a function."""
    made = jax.grad(lambda x: (jax.nn.relu(x) + jax.nn.silu(x)).sum())(table)
    return jax.lax.reduce(made, np.float32(0), lambda a, b: a + b * 1.0, (1,))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("function", [taken, summed, clipped, smooth])
def test_parameters_of_two_traces_are_compared_by_value(function):
    """A gather fills with nan, which is not equal to itself; code is not a size."""
    table, places = jax.ShapeDtypeStruct((M, S), "float32"), jax.ShapeDtypeStruct((B,), "int32")
    plan = sa.plan(function, table, places, mesh=MESH, in_shardings=(P("X"), P("Y")))
    assert plan.unguarded == ""
    for point in ({"B": 16}, {"M": 64, "S": 24}, {"B": 24, "M": 16}):
        assert plan._guards.hold(plan_point(plan, point)), point
        found, changed = there(plan, point)
        assert not len(changed), (point, changed)
        assert found.text() == plan.at(**point).text()


def plan_point(plan, point):
    return {name: point.get(name, size.hint) for name, size in plan.sizes.items()}


def cut_in_python(x):
    return jax.lax.top_k(x, x.shape[1] // 4)


def test_a_parameter_that_binds_is_named():
    x = jax.ShapeDtypeStruct((B, S), "float32")
    plan = sa.plan(cut_in_python, x, mesh=MESH, in_shardings=(P("X"),))
    assert "the parameter k of top_k at test_guards.py" in plan.unguarded
    assert "is 4 at the hints and" in plan.unguarded
    assert plan.holds()
    assert not plan.holds(S=32)


def test_sizes_made_in_python_are_traced_again():
    plan = sa.plan(
        lambda x: x @ jnp.ones((x.shape[1], 3 + x.shape[0] // 5)),
        jax.ShapeDtypeStruct((B, M), "float32"),
        mesh=MESH,
        in_shardings=(P("X"),),
    )
    assert len(plan.symbols.constants)
    assert plan.holds(X=4)
    assert plan.holds(M=64)
    assert not guards_hold(plan, plan_point(plan, {"M": 64}))
    assert not len(plan.at(M=64).changes)
    # 3 + B // 5 is 4 up to B = 9, and 5 there.
    assert plan.holds(B=6)
    assert not plan.holds(B=10)


def test_loaded_plans_know_their_axes(tmp_path):
    x = jax.ShapeDtypeStruct((B, S), "float32")
    plan = sa.plan(lambda x: x.sum(0), x, mesh=MESH, in_shardings=(P("X"),))
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert (loaded.holds(X=4), loaded.holds(X=3), loaded.holds(B=16)) == (True, False, False)
    assert loaded.at(X=4).text() == plan.at(X=4).text()


def test_a_plan_in_numbers_holds_nowhere_else():
    plan = sa.plan(jnp.tanh, jax.ShapeDtypeStruct((8, 4), "float32"), mesh=sa.Mesh({"X": 2}))
    assert not plan.holds()
    assert plan.at().text() == plan.text()


STEP = Config(B=12, S=20, M=32, H=224, N=8, D=6, V=80, L=2)
FORMS = {"scanned": {"scan": True}, "remat": {"scan": True, "remat": True}, "unrolled": {}}


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_train_steps_hold_at_their_hints(form):
    """The gradient of the embedding is a permute over both of these axes."""
    part, config = training.part("train_step"), replace(STEP, **FORMS[form])
    plan = sa.plan(
        part.function(config),
        *part.named_arguments(config),
        strategy=table1.finalized(sa.Mesh({"X": 16, "Y": 8}, symbolic=True), config),
        roles=part.roles(),
        donate_argnums=part.donate_argnums(),
    )
    assert plan.unguarded == ""
    assert plan.holds()
    assert [name for name in plan.sizes if plan.holds(**{name: 2 * plan.sizes[name].hint})]


def pipeline(weights, microbatches):
    """Return a vmapped buffer of one microbatch per stage, which shifts in every trip."""
    stages = weights[0].shape[0]

    def step(buffer, entering):
        shifted = jnp.pad(buffer, ((1, 0), (0, 0), (0, 0)))[:-1]
        first = jax.lax.broadcasted_iota(jnp.int32, buffer.shape, 0) == 0
        x = jnp.where(first, entering[None], shifted)
        x = jax.lax.with_sharding_constraint(x, P("p", "x"))
        buffer = jax.vmap(jax.checkpoint(stage))(weights, x)
        return buffer, buffer[-1]

    start = jnp.zeros((stages, *microbatches.shape[1:]))
    fed = jnp.pad(microbatches, ((0, stages - 1), (0, 0), (0, 0)))
    _, made = jax.lax.scan(step, start, fed)
    return (made[stages - 1 :] ** 2).sum()


def stage(weights, x):
    return x + jnp.maximum(x @ weights[0], 0) @ weights[1]


def test_a_pipeline_holds():
    L, T, B, M, H = sa.dims("L T B M H", hint=(4, 10, 8, 16, 32))
    shapes = ((L, M, H), (L, H, M), (T, B, M))
    first, second, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    plan = sa.plan(
        jax.grad(pipeline),
        (first, second),
        x,
        mesh=sa.Mesh({"p": 4, "x": 2, "y": 2}, symbolic=True),
        in_shardings=((P("p", None, "y"), P("p", "y")), P(None, "x")),
    )
    # Python makes the number of trips, which holds the dimensions.
    assert plan.unguarded == ""
    assert plan.holds()
    assert plan.symbols.constants.rows
    assert not plan.holds(T=20)


def test_a_pipeline_whose_stages_hold_the_batch_outside_is_guarded():
    """Recorded sizes were completed without bringing the batch away from the axis of the stages."""
    L, Q, B, M = sa.dims("L Q B M", hint=(4, 8, 16, 32))
    shapes = (L, 2, M, M), (Q * B, M), (Q,)
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]

    def layers(w, x, parts):
        made = {"stages": w.shape[0], "microbatches": parts.shape[0], "axis": "p"}
        return sa.pipeline(lambda w, x: x + jnp.tanh(x @ w), **made)(w, x).sum() + parts.sum()

    plan = sa.plan(
        layers,
        *arguments,
        mesh=sa.Mesh({"p": 4, "x": 2}, symbolic=True),
        in_shardings=(P("p"), P(("x", "p")), None),
    )
    assert plan.unguarded == ""
    assert plan.holds()


def test_what_is_not_known_of_other_sizes_is_said(monkeypatch):
    x = jax.ShapeDtypeStruct((B, S), "float32")

    def planned(function, **options):
        spec = (P("X"),)
        return sa.plan(function, x, mesh=MESH, in_shardings=spec, options=sa.Options.of(options))

    assert "chosen by cost" in planned(jnp.tanh, policy="cost").unguarded
    assert planned(lambda x: x[1:] + x[:-1]).unguarded == ""
    numbers = sa.plan(jnp.tanh, jax.ShapeDtypeStruct((8, 4), "float32"), mesh=sa.Mesh({"X": 2}))
    assert numbers.unguarded == "no size has a name"
    module = importlib.import_module("shardalg.planner.guards")
    monkeypatch.setattr(module, "partition", lambda *_: [][1])
    assert "recorded sizes ends with IndexError" in planned(jnp.tanh).unguarded
    other = planned(jnp.sin).program
    monkeypatch.setattr(module, "_planned_again", lambda *_: other)
    assert "gives %1 = " in planned(jnp.tanh).unguarded


def so(text, values):
    """Return a condition of the table at numbers."""
    if "divide" in text:
        parts, size = re.split(" divides | does not divide ", text)
        return (value(size, values) % value(parts, values) == 0) == (" divides " in text)
    return value(text.replace(" = ", " == "), values)


def value(text, values):
    exact = {name: Fraction(size) for name, size in values.items()}
    return eval(text, {"__builtins__": {}, "ceil": math.ceil}, exact)


def test_conditions_are_what_planning_found_of_its_sizes(layer):
    """Conditions hold at the hints, nearest first, each with its operator and alternative."""
    rows, hints = layer._conditions_table, {n: size.hint for n, size in layer.sizes.items()}
    assert all(so(row["condition"], hints) for row in rows)
    near = [row["margin"] for row in rows if row["margin"] is not None]
    assert near == sorted(near)
    names = {v.name for v in layer.graph.values}
    weighed = [row for row in rows if "rather than" in row["decides"]]
    assert len(weighed) > 10
    assert {row["kind"] for row in weighed} == {"choice"}
    assert {row["place"] for row in weighed} <= names
    assert {row["place"].split(":")[0] for row in weighed} > {"dot_general", "reduce_sum"}


@pytest.mark.slow
def test_a_choice_turns_where_its_condition_does(layer, show):
    """At the sizes that the table names, and, where it splits as before, another one is made."""
    rows, hints = layer._conditions_table, {n: size.hint for n, size in layer.sizes.items()}
    splits = [row["condition"] for row in rows if row["decides"] == "the size of blocks"]
    turned = {}
    for row in rows:
        for name, side, size in map(str.split, filter(None, row["flips"].split(", "))):
            assert not so(row["condition"], hints | {name: int(size)})
            beyond = range(int(size), 1, -1) if side == "<=" else range(int(size), 999)
            points = (hints | {name: n} for n in beyond)
            even = next((p for p in points if all(so(split, p) for split in splits)), None)
            if even and "rather than" in row["decides"]:
                turned.setdefault((row["place"], name), (row, even))
    for row, point in turned.values():
        changed = layer.at(**point).changes.where(kind="choice")
        assert {row["place"], *row["rests_on"].split(", ")} & set(changed["place"]), (row, point)
    show(f"{len(turned)} choices turned")
    assert len(turned) >= 6


def test_where_the_questions_are_not_known_the_splits_still_are():
    x = jax.ShapeDtypeStruct((B, S), "float32")
    plan = sa.plan(
        jnp.tanh, x, mesh=MESH, in_shardings=(P("X"),), options=sa.Options(policy="cost")
    )
    assert plan.unguarded
    assert [row[:2] for row in plan._conditions_table.rows] == [("divides", "X divides B")]


def test_no_decision_may_turn_on_a_question_that_does_not_matter():
    """Other axes that divide everything: searches ask other questions, and the plan is the same."""
    B, M, V = sa.dims("B M V", hint=(64, 512, 1024))
    shapes = (B, M), (M, V)
    plan = sa.plan(
        lambda x, w: jax.nn.log_softmax(x @ w),
        *(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes),
        mesh=sa.Mesh({"X": 8, "Y": 4}, symbolic=True),
        in_shardings=(P("X"), P(None, "Y")),
    )
    points = [{"X": 4}, {"Y": 8}, {"X": 16}, {"Y": 2}, {"B": 96, "X": 4, "V": 768}]
    assert [point for point in points if not guards_hold(plan, plan_point(plan, point))]
    for point in points:
        assert plan.holds(**point), point
        right(plan, there(plan, point)[0], point)
    assert not plan.holds(V=1022)
