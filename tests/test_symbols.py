"""Plans of named sizes: refusals, fixed numbers, and the plan at other sizes."""

import inspect
import json
import math
from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.digits import Digit
from shardalg.algebra.dims import from_data, to_data
from shardalg.errors import PlanFileError, StrategyError, TraceError
from shardalg.lab import table1_strategies as table1
from shardalg.models import training
from shardalg.models.transformer import Config
from shardalg.plan import plan_file
from shardalg.planner.stages import annotations_at

B, S, M = sa.dims("B S M", hint=(8, 16, 32))
MESH = sa.Mesh({"X": 2, "Y": 4}, symbolic=True)
ROW = sa.Strategy(MESH, in_shardings=(P("X"),))


def arrays(*shapes):
    return [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]


def line(function, text):
    """`test_symbols.py:41`, the line of a function that holds `text`."""
    lines, first = inspect.getsourcelines(function)
    found = [first + i for i, code in enumerate(lines) if text in code]
    assert len(found) == 1, found
    return f"test_symbols.py:{found[0]}"


def branch_on_size(x):
    if x.shape[0] % 8 == 0:
        return jnp.tanh(x)
    return x + 1


def threshold(x):
    if x.shape[0] <= 100:
        return jnp.tanh(x)
    return x + 1


def meet(x, y):
    return x + y


def swapped(x):
    return x.reshape(x.shape[1], x.shape[0])


def own_size(x):
    return x + jnp.zeros((B, 1))


def test_an_if_on_a_size_is_an_error_with_its_line():
    with pytest.raises(sa.SymbolError, match="another program") as error:
        sa.plan(branch_on_size, *arrays((B, S)), strategy=ROW)
    assert line(branch_on_size, "tanh") in str(error.value)


def test_an_if_that_only_at_sees_is_an_error_with_its_line():
    plan = sa.plan(threshold, *arrays((B, S)), strategy=ROW)
    assert not len(plan.at(B=100).changes)
    with pytest.raises(sa.SymbolError, match="another program at B=101") as error:
        plan.at(B=101)
    assert line(threshold, "tanh") in str(error.value)


def test_two_sizes_that_meet_on_a_loop_are_an_error_with_the_line():
    n, k = sa.dims("N K", hint=8)
    with pytest.raises(sa.SymbolError, match=r"two sizes meet on one loop.*N and K") as error:
        sa.plan(meet, *arrays((n,), (k,)), strategy=sa.Strategy(MESH))
    assert line(meet, "x + y") in str(error.value)


def test_equal_hints_alone_do_not_meet():
    n, k = sa.dims("N K", hint=8)
    plan = sa.plan(lambda x: x.T, *arrays((n, k)), strategy=ROW)
    assert plan.symbols.lifted.shapes[plan.graph.results[0]] == (k, n)
    with pytest.raises(sa.SymbolError, match="two hints are equal by accident") as error:
        sa.plan(swapped, *arrays((n, k)), strategy=ROW)
    assert line(swapped, "reshape") in str(error.value)
    with pytest.raises(sa.SymbolError, match=r"at the hints alone.*add got incompatible shapes"):
        sa.plan(lambda x: swapped(x) + x, *arrays((n, k)), strategy=ROW)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sa.Mesh({"X": 1, "Y": 4}, symbolic=True),
        lambda: sa.plan(meet, *arrays(sa.dims("Q", hint=1), ()), strategy=sa.Strategy(MESH)),
    ],
    ids=["axis", "dimension"],
)
def test_a_hint_of_1_is_an_error(make):
    with pytest.raises(sa.ShardalgError, match=r"hint of the symbolic axis X|hint of Q is 1"):
        make()


def test_a_symbol_in_no_argument_is_an_error_with_the_line():
    for args in (arrays((8, 4)), arrays((S, 4))):
        with pytest.raises(TraceError, match=r"computes with B.*sizes from shapes") as error:
            sa.plan(own_size, *args, strategy=ROW)
        assert line(own_size, "zeros") in str(error.value)
    plan = sa.plan(jnp.tanh, *arrays((B, S)), strategy=ROW)
    with pytest.raises(sa.SymbolError, match=r"Q is in no argument's shape.*B \(hint 8\)"):
        plan.at(Q=4)


def test_a_dimension_and_an_axis_of_one_name_have_one_hint():
    (x,) = sa.dims("X", hint=8)
    with pytest.raises(sa.SymbolError, match="X has two hints"):
        repr(sa.plan(jnp.tanh, *arrays((x, 4)), strategy=ROW))


def test_a_function_of_one_size_only_is_an_error_with_the_reason():
    with pytest.raises(sa.SymbolError, match=r"at the hints alone.*reshape"):
        sa.plan(lambda x: x.reshape(2, 4), *arrays((B,)), strategy=sa.Strategy(MESH))


def test_related_sizes_are_declared_in_terms_of_each_other():
    plan = sa.plan(lambda x: x.reshape(-1, 4), *arrays((4 * B,)), strategy=ROW)
    assert plan.symbols.lifted.shapes[plan.graph.results[0]] == (B, 4)
    plan = sa.plan(lambda x: x[: x.shape[0] // 2], *arrays((2 * B,)), strategy=ROW)
    assert plan.symbols.lifted.shapes[plan.graph.results[0]] == (B,)


def capacity(x):
    room = max(4, x.shape[0] // 5)
    return x @ jnp.ones((x.shape[1], 2 * room + 3))


def test_sizes_made_in_python_are_listed_with_their_line():
    plan = sa.plan(capacity, *arrays((B, M)), strategy=ROW)
    (row,) = plan.symbols.constants
    assert row["dimension"] == 11
    assert row["source"] == line(capacity, "jnp.ones")
    assert list(plan.constants.columns) == ["dimension", "source", "value", "varies"]
    assert not len(plan.at(B=16).changes)
    change, *prices = plan.at(B=40).changes
    assert {row["kind"] for row in prices} == {"peak", "formula"}
    numbers = [row["here"] for row in prices if row["kind"] == "formula"]
    assert numbers == [f"{float(number):.12g}" for number in numbers]
    assert (change["kind"], change["source"]) == ("constant", row["source"])


def axis_by_size(x):
    return x.sum(x.shape[0] // 100)


def test_a_size_that_chooses_an_axis_is_an_error_at_the_point():
    plan = sa.plan(axis_by_size, *arrays((B, S)), strategy=sa.Strategy(MESH))
    there = plan.at(B=128)  # all that planning asked holds: traced when asked for
    with pytest.raises(sa.SymbolError, match=r"at B=128.*by the formulas") as error:
        repr(there)
    assert line(axis_by_size, "x.sum") in str(error.value)


def test_a_plan_in_numbers_has_no_sizes_to_change():
    plan = sa.plan(jnp.tanh, *arrays((8, 4)), mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
    assert (plan.sizes, plan.is_symbolic, len(plan.symbols.constants)) == ({}, False, 0)
    with pytest.raises(
        sa.SymbolError, match="all sizes of this plan are fixed, so B cannot be changed"
    ):
        plan.at(B=4)


def test_a_symbolic_mesh_alone():
    plan = sa.plan(lambda x: x.sum(0), *arrays((8, 4)), strategy=ROW)
    assert list(plan.sizes) == ["X", "Y"]
    assert plan.at(X=4).mesh == sa.Mesh({"X": 4, "Y": 4})
    assert not len(plan.at(X=4).changes)


def test_sizes_of_at_are_positive_integers():
    plan = sa.plan(jnp.tanh, *arrays((B, S)), strategy=ROW)
    assert plan.at(B=np.int64(32)).mesh == plan.at(B=32).mesh
    with pytest.raises(sa.SymbolError, match="integers of at least 1, got B=0"):
        plan.at(B=0)


MODEL = Config(B=8, S=16, M=32, H=64, N=8, D=4, V=64, L=2, scan=True, dtype="float32")


@pytest.fixture(scope="module", params=["layer_gradient", "train_step"])
def model(request):
    part = training.part(request.param)
    return sa.plan(
        part.function(MODEL),
        *part.named_arguments(MODEL),
        strategy=table1.finalized(MESH, MODEL, request.param),
        roles=part.roles(),
        donate_argnums=part.donate_argnums(),
    )


@pytest.mark.sampled(1)
def test_the_hints_change_nothing(model):
    here = model.at()
    assert not len(here.changes)
    assert here.mesh == sa.Mesh({"X": 2, "Y": 4})
    assert here.text().splitlines()[1:] == model.text().splitlines()[1:]
    assert len(model.symbols.constants) == 0


def points(plan, count, seed):
    """Sizes of a plan, one to three of them other than the hints, mostly even."""
    rng = np.random.default_rng(seed)
    names = list(plan.sizes)
    for _ in range(count):
        changed = rng.choice(names, rng.integers(1, 4), replace=False)
        few, many = (2, 3, 4), (6, 8, 16, 32)
        yield {str(n): int(rng.choice(few if n in "XYL" else many)) for n in changed}


def structure(plan):
    """Return the facts that `changes` compares, from the public tables."""
    moved = plan.collectives()
    literals = {plan.graph.values[v].name for v in plan.graph.literals}
    layouts = plan.shardings()[["value", "sharding"]].values.tolist()
    layouts = [row for row in layouts if row[0] not in literals]
    return moved[["kind", "mesh_axes", "role", "op", "source"]].values.tolist(), layouts


def failing(plan, point):
    """Return the conditions of a plan that do not hold at a point."""
    plan_sizes = {name: point.get(name, size.hint) for name, size in plan.sizes.items()}
    found = [row for row in plan._conditions_table if "rather than" in row["decides"]]
    broken = [r for r in found if not holds(r["condition"], plan_sizes)]
    return broken, [c for c in plan.symbolised.conditions if not c.holds(plan_sizes)]


def holds(text, values):
    """Return a condition of the table at numbers."""
    exact = {name: Fraction(size) for name, size in values.items()}
    return eval(text, {"__builtins__": {}, "ceil": math.ceil}, exact)


def numbers(plan, point):
    """Return the amounts of the collectives; formulas at a point, other sizes at their hints."""
    columns = ("group_size", "executions", "operand_bytes", "result_bytes", "wire_bytes")
    at = {size: sympy.Integer(point.get(name, size.hint)) for name, size in plan.sizes.items()}
    rows = [[row[name] for name in columns] for row in plan.collectives_table]
    return [[float(sympy.sympify(n).xreplace(at)) for n in row] for row in rows]


KINDS = ("divides", "choice", "sharding", "collectives")


@pytest.mark.sampled(1)
def test_at_names_what_changes_and_formulas_hold_where_nothing_does(model, show):
    """At random sizes: a failed condition is a change, its own or one that it rests on.

    No change is exact formulas.
    """
    seed, broken, held = 3, 0, 0
    base = structure(model)
    for point in points(model, 24, seed):
        here = model.at(**point)
        choices, splits = failing(model, point)
        if choices or splits:
            broken += 1
            kinds = {kind: {r["place"] for r in here.changes.where(kind=kind)} for kind in KINDS}
            assert len(kinds["divides"]) == len(splits), (seed, point, splits)
            stated = [r for r in choices if kinds["choice"].isdisjoint(r["rests_on"].split(", "))]
            named = {row["place"] for row in stated}
            assert splits or named <= kinds["choice"], (seed, point, named, kinds["choice"])
        if not len(here.changes):
            held += 1
            assert structure(here) == base, (seed, point)
            assert numbers(model, point) == numbers(here, {}), (seed, point)
    show(f"at(): {broken} points where a condition fails, {held} where no decision changed")
    assert broken


def test_conditions_name_the_choices_that_they_rest_on():
    """The second product reads the copy of the weight that the first one may have brought."""
    layouts = sa.Strategy(MESH, in_shardings=(P("X"), P("X"), P("Y")))
    both = sa.plan(
        lambda x, y, w: (jnp.tanh(x @ w), y @ w),
        *arrays((64 * B, M), (16 * B, M), (M, S)),
        strategy=layouts,
    )
    rows = both._conditions_table.where(kind="choice")
    names = [value.name for value in both.graph.values if value.name.startswith("dot_general")]
    assert {(r["place"], r["rests_on"]) for r in rows} == {(names[0], ""), (names[1], names[0])}


def test_strict_refuses_a_changed_decision():
    plan = sa.plan(jnp.tanh, *arrays((B, S)), strategy=ROW, options=sa.Options(strict=True))
    assert plan.at(B=6).mesh == sa.Mesh({"X": 2, "Y": 4})
    with pytest.raises(StrategyError, match=r"(?s)strict=True.*X divides B"):
        plan.at(B=7)


def test_verified_and_lowered_plans_say_their_hints():
    plan = sa.plan(jnp.tanh, *arrays((B, S)), strategy=ROW)
    assert "at the hints B=8, S=16, X=2, Y=4" in repr(plan.verify())
    assert "at the hints B=8, S=16, X=2, Y=4" in repr(plan.lower())
    assert "at the hints" not in repr(plan.at(B=4).verify())
    x = np.ones((8, 16), np.float32)
    np.testing.assert_allclose(plan.lower()(x), np.tanh(x), rtol=1e-6)


def test_saved_plans_keep_their_sizes(tmp_path):
    def half(x):
        return x[: x.shape[0] // 2].sum(1)

    columns = sa.Strategy(MESH, in_shardings=(P(None, "X"),))
    plan = sa.plan(half, *arrays((2 * B, S)), strategy=columns, roles=("data",))
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert repr(loaded) == repr(plan)
    assert loaded.symbols.lifted.shapes == plan.symbols.lifted.shapes
    assert loaded.collectives_table == plan.collectives_table
    assert loaded.cost("tpu_v3").formulas() == plan.cost("tpu_v3").formulas()
    assert loaded.at(X=4).text() == plan.at(X=4).text()
    with pytest.raises(sa.SymbolError, match="no function to trace"):
        loaded.at(B=4)
    assert loaded.lower(fn=half)(np.ones((16, 16), np.float32)).shape == (8,)


@pytest.mark.parametrize(
    ("size", "match"),
    [(["size", "B", 4], "the size B has two hints"), (4, "not those of the graph")],
)
def test_a_plan_file_whose_sizes_are_not_the_graphs_is_refused(tmp_path, size, match):
    path = tmp_path / "plan.json"
    sa.plan(jnp.tanh, *arrays((B, S)), strategy=ROW).save(path)
    saved = plan_file.read(path)
    saved.inputs["symbols"]["shapes"][0][0] = size
    plan_file.write(path, plan_file.PlanFile(saved.inputs, saved.versions, saved.summary))
    with pytest.raises(PlanFileError, match=match):
        sa.load_plan(path)


def test_replan_keeps_the_sizes():
    plan = sa.plan(lambda x: x.sum(0), *arrays((B, S)), strategy=ROW)
    other = plan.replan(sa.Strategy(MESH, in_shardings=(P(None, "Y"),)))
    assert other.is_symbolic
    assert not len(other.collectives_table)
    in_numbers = plan.replan(sa.Strategy(sa.Mesh({"X": 4}), in_shardings=(P("X"),)))
    assert list(in_numbers.sizes) == ["B", "S"]
    (row,) = in_numbers.collectives_table
    assert str(row["wire_bytes"]) == "6*S"


def test_an_axis_of_one_device_splits_nothing(model):
    here = model.at(X=1)
    assert here.mesh == sa.Mesh({"X": 1, "Y": 4})
    assert not [row for row in here.collectives_table if "X" in row["mesh_axes"]]
    assert len(here.changes)


def test_constraints_inside_follow_the_mesh():
    def constrained(x):
        return jax.lax.with_sharding_constraint(x + 1, P(None, ("X", "Y")))

    plan = sa.plan(constrained, *arrays((B, S)), strategy=ROW)
    here = plan.at(S=24, Y=3)
    assert here.shardings()["sharding"].tolist()[-1] == "[None, (X, Y)]"
    assert here.program.locals[here.program.block.results[0]].shape == (8, 4)


def as_tuples(data):
    """JSON as plan files are read."""
    return tuple(map(as_tuples, data)) if isinstance(data, list) else data


def test_sizes_as_data_survive():
    n, k = sa.dims("N K", hint=(8, 6))
    for size in (7, n, n * k / 2 - 1, sympy.floor((n - 1) / 3) + 1, sympy.ceiling(k / 4), n**2):
        data = to_data(size)
        assert from_data(as_tuples(json.loads(json.dumps(data)))) == size
    with pytest.raises(sa.SymbolError, match="cannot be saved"):
        to_data(sympy.cos(n))


def test_annotated_parts_of_axes_keep_their_numbers():
    mesh = sa.Mesh({"X": 8}, symbolic=True)
    part = sa.Sharding(mesh, (8, 16), ((Digit(1, 4),), ()))
    plan = sa.plan(jnp.tanh, *arrays((B, S)), strategy=sa.Strategy(mesh))
    given = replace(plan.annotations, arguments=(part,))
    (moved,) = annotations_at(given, plan.graph, sa.Mesh({"X": 16})).arguments
    assert moved.text() == part.text() == "[X:(2)4, None]"
    with pytest.raises(sa.MeshError, match="2 times 4 must divide it"):
        annotations_at(given, plan.graph, sa.Mesh({"X": 12}))


def test_a_window_over_a_named_size_has_a_formula():
    """A device fetches a margin, which does not grow with its block."""
    specs = {"in_shardings": (P("X"),), "out_shardings": P("X")}
    mesh = sa.Mesh({"X": 4})
    plan = sa.plan(lambda x: jnp.roll(x, 1, 0), *arrays((S, 8)), mesh=mesh, **specs)
    assert plan.cost("tpu_v3").wire_bytes == 32
    assert plan.holds(S=32)
    assert list(plan.at(S=32).collectives()["wire_bytes"]) == [32]
