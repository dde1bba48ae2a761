"""Annotations inside a function: fixed and open dimensions."""

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.planner.propagate import propagate
from tests.propagate.small import Builder, annotations, axes, layout


def test_a_site_fixes_its_result_and_the_value_it_is_put_on():
    b = Builder()
    x, w = b.argument(8, 16), b.argument(16, 32)
    made = b.dot(x, w)
    kept = b.annotate(made)
    graph = b.graph(kept)
    done = propagate(
        graph,
        annotations(graph, sites={0: layout((8, 32), None, "y")}, given={0: layout((8, 16), "x")}),
    )
    assert axes(done.shardings[kept]) == ((), ("y",))
    assert axes(done.shardings[made]) == ((), ("y",))
    assert {made, kept, x} == done.fixed
    assert [done.reasons[v].kind for v in (x, made, kept)] == [
        "annotated",
        "annotated operand",
        "annotated",
    ]


def test_of_two_sites_on_one_value_the_last_fixes_it():
    b = Builder()
    x = b.argument(8, 8)
    made = b.node("neg", (x,), (8, 8))
    first, last = b.annotate(made), b.annotate(made)
    graph = b.graph(first, last)
    sites = {0: layout((8, 8), "x"), 1: layout((8, 8), None, "y")}
    done = propagate(graph, annotations(graph, sites=sites))
    assert axes(done.shardings[made]) == ((), ("y",))
    assert axes(done.shardings[first]) == (("x",), ())


def test_an_argument_takes_a_sites_layout_but_stays_free():
    b = Builder()
    x = b.argument(8, 8)
    kept = b.annotate(x)
    other = b.add(x, b.argument(8, 8))
    graph = b.graph(kept, other)
    done = propagate(
        graph,
        annotations(graph, sites={0: layout((8, 8), "x")}, given={1: layout((8, 8), None, "y")}),
    )
    assert axes(done.shardings[kept]) == (("x",), ())
    assert axes(done.shardings[x]) == (("x",), ("y",))
    assert x not in done.fixed


def test_open_dimensions_are_completed_and_closed_ones_are_not():
    b = Builder()
    x, w = b.argument(8, 16), b.argument(16, 32)
    made = b.dot(x, w)
    kept = b.annotate(made)
    graph = b.graph(kept)
    given = {0: layout((8, 16), "x"), 1: layout((16, 32), None, "y")}
    done = propagate(
        graph, annotations(graph, given=given, sites={0: layout((8, 32), open_dims=(1,))})
    )
    assert axes(done.shardings[made]) == (("x",), ("y",))
    assert axes(done.shardings[kept]) == ((), ("y",))


def test_a_site_without_a_spec_passes_layouts_on():
    b = Builder()
    kept = b.annotate(b.argument(8, 8), "hidden")
    graph = b.graph(kept)
    done = propagate(graph, annotations(graph, given={0: layout((8, 8), "x")}))
    assert axes(done.shardings[kept]) == (("x",), ())


def staged(site, rows=4):
    """Return a product per stage, its result annotated inside of vmap."""

    def stage(w, x):
        return site(x @ w)

    w, x = (jax.ShapeDtypeStruct(s, "float32") for s in ((4, 8, 16), (rows, 4, 8)))
    return jax.vmap(stage, in_axes=(0, 1), out_axes=1), (w, x)


MESH = sa.Mesh({"L": 4, "Y": 2})


@pytest.mark.parametrize("spec", [P(None, "Y"), sa.Sharding.from_spec(P(None, "Y"), MESH, (4, 16))])
def test_a_strategy_lays_out_a_site_under_vmap_as_it_is_written(spec):
    """The new dimension is open and gets the stages; the spec describes one stage."""
    fn, given = staged(lambda y: sa.annotate(y, "hidden"))
    strategy = sa.Strategy(MESH, in_shardings=(P("L"), None), sites={"hidden": spec})
    plan = sa.plan(fn, *given, strategy=strategy)
    (site,) = plan.graph.sites
    held = plan.sharded.shardings[plan.graph.nodes[site.node].results[0]]
    assert [list(map(str, MESH.refs(dim))) for dim in held.dims] == [["L"], [], ["Y"]]
    own, _ = staged(lambda y: sa.mesh_split(y, MESH, [-1, 1]))
    same = sa.plan(own, *given, strategy=sa.Strategy(MESH, in_shardings=(P("L"), None)))
    assert str(plan.program) == str(same.program)
    assert plan.verify().ok


def test_a_spec_of_another_rank_than_the_site_is_written_with_names_both_shapes():
    fn, given = staged(lambda y: sa.annotate(y, "hidden"), rows=6)
    strategy = sa.Strategy(MESH, sites={"hidden": P("L", None, "Y")})
    with pytest.raises(sa.StrategyError) as raised:
        sa.plan(fn, *given, strategy=strategy)
    assert "f32[4,6,16], written for shape (6, 16) under vmap" in str(raised.value)
    more = (jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for x in given)
    right = sa.Strategy(MESH, sites={"hidden": P(None, "Y")})
    nested = sa.plan(jax.vmap(fn), *more, strategy=right)
    layout = nested.sharded.annotations.sites[0]
    assert layout.text() == "[?, ?, None, Y]"
