"""Strategies for graphs: resolution, and every way in which one does not fit."""

import dataclasses

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.graph.annotate import annotate
from shardalg.graph.tracing.trace import trace
from shardalg.planner.propagate import Options, Strategy, resolve
from tests.propagate.small import MESH, Builder, axes, layout

P = PartitionSpec


def ffn(params, x):
    hidden = annotate(x @ params["w_in"], "hidden")
    return {"y": hidden @ params["w_out"]}


@pytest.fixture(scope="module")
def graph():
    shape = jax.ShapeDtypeStruct
    params = {"w_in": shape((8, 16), "float32"), "w_out": shape((16, 8), "float32")}
    return trace(ffn, params, shape((4, 8), "float32"))


def test_prefixes_of_every_kind_of_spec_resolve(graph):
    named = NamedSharding(
        AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2), P(None, "y")
    )
    found = resolve(
        graph,
        Strategy(
            MESH,
            ({"w_in": named, "w_out": None}, layout((4, 8), "x")),
            P("x"),
            {"hidden": P("x", "y")},
        ),
    )
    assert [s and axes(s) for s in found.arguments] == [((), ("y",)), None, (("x",), ())]
    assert axes(found.results[0]) == (("x",), ())
    assert axes(found.sites[0]) == (("x",), ("y",))
    whole = resolve(graph, Strategy(MESH, (P(None, "y"), None)))
    assert [s and axes(s) for s in whole.arguments] == [((), ("y",)), ((), ("y",)), None]
    assert whole.results == (None,)
    assert whole.sites == (None,)


def test_open_dimensions_and_axis_tuples():
    b = Builder()
    kept = b.annotate(b.argument(8, 8), "h", (("x",), ()), (1,))
    graph = b.graph(kept)
    own = resolve(graph, Strategy(MESH))
    assert axes(own.sites[0]) == (("x",), ())
    assert own.sites[0].unspecified_dims == (1,)
    other = resolve(graph, Strategy(MESH, sites={"h": (("x", "y"), None)}))
    assert axes(other.sites[0]) == (("x", "y"), ())
    assert not other.sites[0].unspecified_dims


BAD = [
    # in_shardings, out_shardings, sites, what the message must name
    ((None, P("z")), None, {}, ["argument x f32[4,8]", "'z'", r"\['x', 'y'\]"]),
    ((None, P("x", "x")), None, {}, ["argument x f32[4,8]", "x", "twice|both"]),
    ((None, P(None, None, "x")), None, {}, ["argument x f32[4,8]", "longer", r"\(4, 8\)"]),
    ((None, layout((4, 8, 2), "x")), None, {}, ["argument x", r"\(4, 8, 2\)"]),
    ((None, layout((4, 8), "x", mesh=Mesh({"x": 2}))), None, {}, ["argument x", r"Mesh\(x=2\)"]),
    (({"w_in": None}, None), None, {}, ["in_shardings", "w_out"]),
    (({"w_in": None, "w_out": None, "b": None}, None), None, {}, ["in_shardings", "'b'"]),
    ((None, None, None), None, {}, ["in_shardings"]),
    (None, {"z": P("x")}, {}, ["out_shardings", "'z'"]),
    (None, P("x", "y", None), {}, ["result", "longer"]),
    (None, None, {"hiden": P("x")}, ["'hiden'", "Did you mean 'hidden'"]),
    (None, None, {"hidden": P("q")}, ["site hidden", r"test_strategy\.py", "'q'"]),
    ((None, 3.5), None, {}, ["argument x"]),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=range(len(BAD)))
def test_what_does_not_fit_is_named(graph, case):
    given, wanted, sites, parts = case
    for part in parts:
        with pytest.raises(StrategyError, match=part.replace("[4,8]", r"\[4,8\]")):
            resolve(graph, Strategy(MESH, given, wanted, sites))


def test_all_faults_are_named_at_once(graph):
    with pytest.raises(StrategyError) as error:
        resolve(graph, Strategy(MESH, (P("q"), P("r")), None, {"nowhere": P()}))
    for part in ("params['w_in']", "params['w_out']", "argument x", "'r'", "'nowhere'"):
        assert part in str(error.value)


def test_a_graph_without_its_function_takes_flat_lists():
    b = Builder()
    graph = b.graph(b.add(b.argument(8, 8), b.argument(8, 8)))
    found = resolve(graph, Strategy(MESH, [P("x"), None]))
    assert axes(found.arguments[0]) == (("x",), ())
    with pytest.raises(StrategyError, match="in_shardings has 1 entries for 2 values"):
        resolve(graph, Strategy(MESH, [P("x")]))


def test_an_unknown_policy_is_refused():
    with pytest.raises(StrategyError, match=r"policy 'magic' .* \['paper', 'gspmd'"):
        Options(policy="magic")


def test_priorities_are_kept(graph):
    given = dataclasses.replace(layout((4, 8), "x"), priorities=(1, 0))
    found = resolve(graph, Strategy(MESH, (None, given))).arguments
    assert [sharding.priorities for sharding in found if sharding] == [(1, 0)]
