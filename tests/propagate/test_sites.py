"""Annotations inside a function: what they fix, and what they leave open."""

from shardalg.propagate import propagate
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
