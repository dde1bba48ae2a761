"""Speed of completion: each distinct (row, shardings) is decided once, at any depth."""

import time

from shardalg.graph.ops.rows import rules
from shardalg.planner.propagate import propagate
from shardalg.planner.propagate.gspmd import fixpoint
from shardalg.planner.propagate.gspmd.index import index
from tests.propagate.small import Builder, annotations, layout


def stack(depth):
    """`depth` layers of two products with a residual, batch and features annotated at the start."""
    b = Builder()
    x = b.argument(8, 16)
    given = {0: layout((8, 16), "x")}
    for _ in range(depth):
        w_in, w_out = b.argument(16, 32), b.argument(32, 16)
        given[len(b.arguments) - 2] = layout((16, 32), None, "y")
        hidden = b.node("tanh", (b.dot(x, w_in),), (8, 32))
        x = b.add(x, b.dot(hidden, w_out))
    graph = b.graph(x)
    return graph, annotations(graph, given=given)


def decisions(depth, monkeypatch):
    count = []
    real = fixpoint.step
    with monkeypatch.context() as patch:
        patch.setattr(fixpoint, "step", lambda *a, **k: count.append(1) or real(*a, **k))
        propagate(*stack(depth))
    return len(count)


def test_decisions_do_not_grow_with_depth(monkeypatch):
    assert decisions(20, monkeypatch) == decisions(10, monkeypatch)


def test_a_graph_has_one_index():
    """All spellings of the arguments return one index, so that a first plan makes only one."""
    graph, _ = stack(2)
    assert (
        index(graph, rules) is index(graph, rules, True) is index(graph, rules, results_given=True)
    )
    assert index(graph, rules, False) is not index(graph, rules)


def test_a_deep_stack(show):
    graph, given = stack(2000)
    propagate(graph, given)
    start = time.perf_counter()
    done = propagate(graph, given)
    seconds = time.perf_counter() - start
    each = seconds / len(graph.nodes) * 1e6
    show(f"completion: {len(graph.nodes)} nodes in {seconds * 1e3:.0f} ms, {each:.1f} us a node")
    assert done.shardings[graph.results[0]].parts == (2, 1)
