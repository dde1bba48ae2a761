"""Reasons and remedies of collectives and shardings, checked by planning again."""

from functools import cache

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import StrategyError
from shardalg.lab import table1_strategies as table1
from shardalg.merge.compatible import refines
from tests import small_step
from tests.small_step import CONFIG, MESH

X, W = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16), (16, 32)))
IMAGE = jax.ShapeDtypeStruct((4, 8, 16, 16), "float32")
TAPS = jax.ShapeDtypeStruct((8, 8, 3, 3), "float32")


def conv(image, taps):
    return lax.conv_general_dilated(image, taps, (1, 1), "SAME")


def tanh_scan(x):
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c), x[0], x)


# name -> function, arguments, in_shardings, out_shardings, collectives that one change removes
PROGRAMS = {
    "sum": (lambda x: x.sum(0), (X,), (P("X"),), None, 1),
    "product": (jnp.matmul, (X, W), (P("X", "Y"), P("X", "Y")), None, 4),
    "wide product": (jnp.matmul, (X, W), (P("X", "Y"), P(None, ("X", "Y"))), None, 1),
    "contracted": (jnp.matmul, (X, W), (P(None, "Y"), P("Y", None)), P(None, None), 1),
    "scattered": (jnp.matmul, (X, W), (P(None, "Y"), P("Y", None)), P("Y"), 1),
    "softmax": (lambda x: jax.nn.softmax(x, -1), (X,), (P(None, "Y"),), None, 2),
    "border": (lambda x: x + 1, (X,), (P("X"),), P(None, "X"), 1),
    "gathered result": (lambda x: x + 1, (X,), (P("X", "Y"),), P("X"), 1),
    "halo": (conv, (IMAGE, TAPS), (P(None, None, "Y"), P()), None, 2),
    "cumulative": (lambda x: jnp.cumsum(x, 1), (X,), (P("X", "Y"),), None, 1),
    "two meet": (jnp.add, (X, X), (P("X", None), P(None, "X")), None, 1),
    "reversed": (lambda x: x[::-1], (X,), (P("X"),), None, 1),
    "sorted": (lambda x: jnp.sort(x, 0), (X,), (P("X", "Y"),), None, 2),
    "loop": (tanh_scan, (X,), (P("X"),), None, 2),
}


@cache
def program(name):
    fn, args, given, wanted, _ = PROGRAMS[name]
    return sa.plan(fn, *args, mesh=MESH, in_shardings=given, out_shardings=wanted)


@cache
def step(strategy):
    return small_step.plan().replan(getattr(table1, strategy)(MESH, CONFIG))


def strategy_of(plan, change):
    """Return the user's form of a change: specs in the function's trees, sites by name."""
    given = {
        side: [layout and layout.to_spec() for layout in getattr(plan.annotations, side)]
        for side in ("arguments", "results", "sites")
    }
    for step in change.steps:
        for side, at in step.slots:
            given[side][at] = step.after.to_spec()
    trees = plan.graph.trees
    named = {site.name: spec for site, spec in zip(plan.graph.sites, given["sites"], strict=True)}
    return sa.Strategy(
        plan.mesh,
        in_shardings=trees[0].unflatten(given["arguments"]),
        out_shardings=trees[1].unflatten(given["results"]),
        sites=named,
    )


def alike(plan, row):
    table = plan.collectives()
    same = table[(table["kind"] == row["kind"]) & (table["mesh_axes"] == row["mesh_axes"])]
    return int(same["executions"].sum())


def assert_removed(plan, number):
    """Check the promised effect in the plan that the user gets by the changed strategy."""
    row, found = plan.collectives().loc[number], plan.explain(number)
    other = plan.replan(strategy_of(plan, found.change))
    assert alike(other, row) < alike(plan, row)
    promised = found.df.loc[0]
    table = other.collectives()
    assert promised["removes"]
    assert promised["collectives"] == len(table)
    assert promised["wire_bytes"] == (table["wire_bytes"] * table["executions"]).sum()
    assert promised["peak_memory_bytes"] == other.memory.peak_bytes
    assert (promised["collectives"], promised["wire_bytes"]) != (
        len(plan.collectives()), plan.collectives()["wire_bytes"].sum(),
    )  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_change_that_is_proposed_removes_the_collective(name):
    plan = program(name)
    removable = [k for k in range(len(plan.collectives())) if plan.explain(k).change]
    assert len(removable) == PROGRAMS[name][-1]
    for number in removable:
        assert_removed(plan, number)


# strategy, and the first collective of this kind and operator
STEP_CASES = [
    ("attempt_1", "all_reduce", "broadcast_in_dim"),
    ("attempt_1", "all_reduce", "reduce_max"),
    ("attempt_1", "all_reduce", "annotate"),
    ("attempt_2", "all_gather", "dot_general"),
    ("attempt_2", "all_reduce", "add"),
    ("finalized", "all_reduce", "reduce_max"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("strategy", "kind", "op"), STEP_CASES)
def test_the_change_holds_in_a_train_step(strategy, kind, op):
    table = step(strategy).collectives()
    assert_removed(step(strategy), table[(table["kind"] == kind) & (table["op"] == op)].index[0])


def test_twenty_cases_are_verified_at_least():
    assert sum(case[-1] for case in PROGRAMS.values()) + len(STEP_CASES) >= 20


@pytest.mark.parametrize("strategy", ["attempt_1", "attempt_2", "finalized"])
def test_every_collective_of_a_train_step_is_explained_by_an_annotation(strategy):
    plan = step(strategy)
    table = plan.collectives()
    names = {*plan.graph.argument_paths, *plan.graph.result_paths}
    names |= {site.name for site in plan.graph.sites}
    for number, row in table.iterrows():
        found = plan.explain(number)
        assert found.annotations
        assert {place.name for place in found.annotations} <= names
        assert found.has.annotations
        assert found.has.layout != found.needs.layout
        # What the table says moves is what the two sides say.
        assert row["kind"] == found.moved.alike[0]
        assert set(row["mesh_axes"].split(",")) <= axes_of(found.has) | axes_of(found.needs)


def axes_of(side):
    layout = side.layout
    digits = [d for dim in (*layout.dims, layout.unreduced) for d in dim]
    return {name for name in layout.mesh.axis_names if layout.mesh.digit(name) in digits}


def test_the_sides_name_the_annotations_of_the_axes_in_question():
    """The weight of a projection is gathered because the batch of the activations has its axis."""
    plan = step("attempt_2")
    table = plan.collectives()
    number = table[(table["kind"] == "all_gather") & (table["op"] == "dot_general")].index[0]
    has, needs = plan.explain(number).sides.rows
    assert has[:2] == ("has", "[X, Y, None]")
    assert has[-1] == "argument params['layers'][0]['w_q']"
    assert needs[1] == "[None, Y, None]"
    assert needs[-1].startswith("site embedded")


def test_a_collective_is_found_by_row_number_and_instruction():
    plan = program("border")
    row, number = plan.collectives().iloc[0], 0
    instruction = plan.explain(0).moved.step.instruction
    texts = {repr(plan.explain(which)) for which in (row, number, instruction)}
    (text,) = texts
    assert text.startswith("all_to_all of x along X at test_explain.py:")
    assert "Cheapest change that removes it: argument x as [None, X]" in text


def test_what_moves_at_another_operator_instead_is_not_removed():
    """A weight that is not gathered for the embedding is gathered for its update instead."""
    plan = step("attempt_1")
    moved = [t for t in plan.explain(0).trials if not t.removes and not t.left_bytes]
    assert moved
    for trial in moved:
        other = plan.replan(strategy_of(plan, trial.change))
        assert alike(other, plan.collectives().loc[0]) >= alike(plan, plan.collectives().loc[0])


def test_state_changes_at_both_ends():
    """A donated argument and the result that takes its place keep one layout."""
    plan = step("attempt_2")
    table = plan.collectives()
    number = table[(table["kind"] == "all_gather") & (table["op"] == "dot_general")].index[0]
    assert [side for side, _ in plan.explain(number).change.slots] == ["arguments", "results"]


@pytest.mark.parametrize("which", [99, -1, 1.5, None, "row"])
def test_a_collective_that_is_not_there(which):
    row = step("attempt_2").collectives().iloc[0]
    with pytest.raises(StrategyError, match=r"not a collective of this plan, which has 1, .* row"):
        program("border").explain(row if which == "row" else which)


def test_why_not_names_the_annotation_and_its_witness():
    plan = step("finalized")
    found = plan.why_not("ffn_hidden", P(None, None, "Y"))
    assert found.obstacle == "site ffn_hidden is annotated [X, None, Y]"
    assert not found.verdict
    assert found.verdict.witness is not None
    assert found.verdict.evidence in repr(found)


def test_why_not_names_the_first_step_that_contradicts():
    plan = step("finalized")
    name = "dot_general:18@transformer.py:210"
    found = plan.why_not(name, P("Y", None, "X"))
    first = plan.explain(name).df.iloc[0]
    assert found.obstacle == f"it came {first['why']} as {first['sharding']}"
    assert not refines(found.wanted, found.has)


def fsdp():
    """Return a product whose weight has the batch's axis: two shardings are possible."""
    shapes = (P("X"), P("Y", "X"))
    return sa.plan(lambda x, w: jnp.tanh(x @ w), X, W, mesh=MESH, in_shardings=shapes)


def test_what_was_refused_is_told_with_the_annotation_behind_it():
    plan = fsdp()
    product, result = (plan.graph.values[node.results[0]].name for node in plan.graph.nodes)
    conflicts = plan.sharded.conflicts
    assert [plan.graph.values[c.value].name for c in conflicts] == [product]
    kept, refused = (layout.text() for layout in (conflicts[0].kept, conflicts[0].refused))
    assert {kept, refused} == {"[X, None]", "[None, X]"}
    (asked,) = plan.explain(result).refused
    loser = "w" if refused == "[None, X]" else "x"
    assert (asked["value"], asked["kept"], asked["refused"]) == (product, kept, refused)
    assert (asked["asked_by"], asked["annotations"]) == (loser, f"argument {loser}")
    found = plan.why_not(product, P(None, "X") if loser == "w" else P("X"))
    assert tuple(found.refused) == (asked,)
    assert not found.verdict
    assert "Operators proposed it, and were refused" in repr(found)
    assert not len(plan.why_not(product, P("Y")).refused)
    assert not len(plan.explain("x").refused)


def test_what_was_refused_is_told_from_the_value_backwards():
    def stack(x, weights):
        for w in weights:
            x = x + jnp.tanh(x @ w)
        return x

    square = jax.ShapeDtypeStruct((16, 16), "float32")
    given = (P("X"), [P("X", "Y")] * 3)
    plan = sa.plan(stack, square, [square] * 3, mesh=MESH, in_shardings=given)
    found = plan.explain("result")
    depth = {}
    for row in found:
        depth.setdefault(row["value"], row["depth"])
    told = [depth[row["value"]] for row in found.refused]
    assert len(told) > 1
    assert told == sorted(told)


def test_one_layout_written_in_two_ways_is_no_conflict():
    """A split dimension gives its axis back in parts."""
    plan = sa.plan(
        lambda x: jnp.tanh(x.reshape(8, 2, 8)).reshape(8, 16),
        X, mesh=MESH, in_shardings=(P("X", "Y"),), out_shardings=P("X", "Y"),
    )  # fmt: skip
    assert "Y:(1)2, Y:(2)2" in repr(plan.explain(plan.shardings()["value"][1]))
    assert not plan.sharded.conflicts


def test_long_tables_are_cut_where_they_are_printed():
    found = step("attempt_2").diff(step("finalized"))
    assert len(found.values) > 30
    hidden = len(found.values) - 20
    assert f"... and {hidden} more rows." in repr(found)
    assert f"... and {hidden} more rows." in found._repr_html_()


@pytest.mark.parametrize("name", ["dot_general:18@transformer.py:210", "ffn_hidden", "tokens"])
def test_the_costs_of_why_not_are_those_of_the_annotated_plan(name):
    plan = step("finalized")
    found = plan.why_not(name, P())
    totals = found.cost.totals.df.set_index("quantity")
    assert totals.loc["wire_bytes", "this"] == plan._trials.stages.traffic.wire_bytes
    moved = {row["value"]: row["other_sharding"] for row in found.cost.values}
    rank = plan.graph.values[[v.name for v in plan.graph.values].index(name)].type.shape
    assert moved[name] == f"[{', '.join(['None'] * len(rank))}]"
    assert totals["difference"].any()


def test_a_layout_that_a_value_has_costs_nothing():
    found = step("finalized").why_not("ffn_hidden", P("X", None, "Y"))
    assert found.obstacle == "it already has this sharding"
    assert not found.cost.totals.df["difference"].any()
    assert found.cost.is_empty
    assert repr(found).endswith("the plan would be the same.")


def test_a_layout_that_nothing_asks_for():
    plan = sa.plan(lambda x: x * 2, X, mesh=MESH, in_shardings=(P(P.UNCONSTRAINED, None),))
    assert (
        plan.why_not("x", P("X")).obstacle
        == "no operator that makes or reads the value proposes it"
    )
    plan = sa.plan(lambda x: x * 2, X, mesh=MESH, in_shardings=(P(),))
    assert plan.why_not("x", P("X")).obstacle.startswith("argument x is fixed as [None, None]")


def test_a_spec_that_does_not_fit_a_value():
    plan = program("border")
    for spec in (P("Z"), P(None, None, "X"), None):
        with pytest.raises(StrategyError, match="the spec does not fit on Mesh"):
            plan.why_not("x", spec)


def squared(x):
    return lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, None, length=3)[0]


def squarings(spec):
    x = jax.ShapeDtypeStruct((16, 16), "float32")
    return sa.plan(squared, x, mesh=MESH, in_shardings=(spec,))


@pytest.mark.parametrize("case", ["strategies", "in a loop"])
def test_the_difference_of_two_plans_is_what_their_tables_differ_in(case):
    one, two = step("attempt_2"), step("finalized")
    if case == "in a loop":
        one, two = squarings(P("X", "Y")), squarings(P("X"))
    found = one.diff(two)
    shardings = one.shardings().set_index("value")["sharding"]
    other = two.shardings().set_index("value")["sharding"]
    assert set(found.values["value"]) == set(shardings.index[shardings != other])
    totals = found.totals.df.set_index("quantity")
    for name, plan in (("this", one), ("other", two)):
        table = plan.collectives()
        assert totals.loc["collectives", name] == table["executions"].sum()
        assert totals.loc["wire_bytes", name] == (table["wire_bytes"] * table["executions"]).sum()
        assert totals.loc["peak_memory_bytes", name] == plan.memory.peak_bytes
    parts = found.collectives.df
    change = (parts["other_wire_bytes_per_step"] - parts["wire_bytes_per_step"]).sum()
    assert change == totals.loc["wire_bytes", "difference"]
    assert not len(one.diff(one).values) + len(one.diff(one).collectives)


def test_plans_of_other_meshes_differ_in_what_a_device_holds():
    one = program("sum")
    two = one.replan(sa.Strategy(sa.Mesh({"X": 8}), in_shardings=(P("X"),)))
    (row,) = one.diff(two).values.df[lambda df: df["value"] == "x"].to_dict("records")
    assert (row["sharding"], row["other_sharding"]) == ("[X, None]", "[X, None]")
    assert (row["shard_bytes"], row["other_shard_bytes"]) == (256, 64)


def test_answers_are_data_text_and_html():
    plan = program("border")
    answers = (plan.explain("x"), plan.explain(0), plan.why_not("x", P()), plan.diff(plan))
    for answer in answers:
        assert list(answer) == answer.df.to_dict("records")
        assert "<table>" in answer._repr_html_()
        assert len(repr(answer).splitlines()) > 1


def test_a_plan_of_named_sizes_is_explained_at_its_hints():
    (size,) = sa.dims("B", hint=(8,))
    x = jax.ShapeDtypeStruct((size, 16), "float32")
    mesh = sa.Mesh({"X": 2, "Y": 4}, symbolic=True)
    plan = sa.plan(lambda x: x.sum(0), x, mesh=mesh, in_shardings=(P("X"),))
    found = plan.explain(plan.collectives().iloc[0])
    assert str(found.change) == "argument x as [None, X] instead of [X, None]"
    assert found.df["wire_bytes"].tolist() == [0, 0]


def test_a_pinned_value_inside_is_laid_out_so():
    """A value without a site is annotated beside the others; its neighbours follow."""
    plan = sa.plan(lambda x: jnp.tanh(x) * 2, X, mesh=MESH)
    found = plan.why_not(plan.shardings()["value"].iloc[-1], P("Y"))
    assert found.obstacle == "no operator that makes or reads the value proposes it"
    assert {row["other_sharding"] for row in found.cost.values} == {"[Y, None]"}
