"""Properties for every graph: the worklist equals full sweeps, annotations and carries hold."""

import math
import random
from dataclasses import replace
from unittest.mock import patch

from hypothesis import given, note, settings
from hypothesis import strategies as st

from shardalg.algebra.mesh import Mesh
from shardalg.graph.ir import Graph
from shardalg.graph.ops.rows import rules
from shardalg.planner.propagate import CompletionOptions, Options, border, propagate
from shardalg.planner.propagate.gspmd.fixpoint import Fixpoint
from shardalg.planner.propagate.gspmd.index import index
from shardalg.planner.propagate.gspmd.instructions import Instructions
from shardalg.planner.propagate.layouts import Layouts, extends
from tests.propagate.small import MESH, Builder, annotations, axes, behind, layout

SPECS = [(None, None), ("x", None), (None, "x"), ("y", None), (None, "y"), ("x", "y"), ("y", "x")]


def grow(b, consts, carries, slices):
    """`carry + carry @ constant`, no stacked results."""
    return [b.add(carries[0], b.dot(carries[0], consts[0]))], []


MAKERS = {
    "dot": lambda b, p, q: b.dot(p, q),
    "add": lambda b, p, q: b.add(p, q),
    "turn": lambda b, p, _: b.node("transpose", (p,), (8, 8), permutation=(1, 0)),
    "spread": lambda b, p, _: b.broadcast(
        b.node("reduce_sum", (p,), (8,), axes=(1,)), (8, 8), (0,)
    ),
    "site": lambda b, p, _: b.annotate(p),
    "scan": lambda b, p, q: b.scan([p], grow, consts=[q])[0][0],
}  # fmt: skip


@st.composite
def problems(draw, meshes=(MESH,)):
    """Draw a graph of 8x8 values, and annotations on some arguments, results and sites."""
    b, mesh = Builder(), draw(st.sampled_from(meshes))
    values = [b.argument(8, 8) for _ in range(draw(st.integers(1, 4)))]
    for _ in range(draw(st.integers(1, 10))):
        p, q = (draw(st.sampled_from(values)) for _ in range(2))
        values.append(MAKERS[draw(st.sampled_from(sorted(MAKERS)))](b, p, q))
    graph = b.graph(*values[-2:])
    spec = st.none() | st.sampled_from(SPECS)
    opened = st.sampled_from([(), (), (1,)])

    def some(count):
        chosen = [(draw(spec), draw(opened)) for _ in range(count)]
        return {
            i: layout((8, 8), *s, mesh=mesh, open_dims=o)
            for i, (s, o) in enumerate(chosen)
            if s is not None
        }

    arguments, results, sites = map(some, (len(graph.arguments), 2, len(graph.sites)))
    return graph, annotations(graph, arguments, results, sites, mesh=mesh)


def swept(graph, given, everything_due):
    """(layout per value, changes) after the sweeps, without what the ends change."""
    layouts, steps = Layouts(given.mesh, "gspmd"), index(graph, rules)
    numbers, _ = border.start(graph, given, layouts, steps)
    kind = FullSweeps if everything_due else Fixpoint
    fixpoint = kind(steps, layouts, numbers)
    fixpoint.run()
    return [layouts.sharding(n) for n in numbers], fixpoint


class FullSweeps(Fixpoint):
    """Every step and value in every sweep."""

    def sweep(self, span):
        self.due_steps[:] = b"\x01" * len(self.due_steps)
        self.due_places[:] = b"\x01" * len(self.due_places)
        return super().sweep(span)


@given(problems())
def test_visiting_what_is_due_equals_full_sweeps(problem):
    quick, _ = swept(*problem, False)
    full, _ = swept(*problem, True)
    assert quick == full


@given(problems())
def test_annotations_stand_and_every_change_is_told(problem):
    graph, given = problem
    done = propagate(graph, given)
    told = {reason.value: reason.layout for reason in done.history}
    for value, sharding in enumerate(done.shardings):
        if value in told:
            assert told[value] == sharding
            assert done.why(value)
        else:
            assert sharding.is_replicated
    for value, annotated in zip(graph.arguments, given.arguments, strict=True):
        if annotated is not None:
            assert extends(done.shardings[value].dims, annotated.dims)
            if not annotated.unspecified_dims:
                assert done.shardings[value] == annotated


@given(problems())
def test_a_carry_has_one_layout(problem):
    graph, given = problem
    done = propagate(graph, given)
    for tie in graph.region_arguments:
        if tie.kind == "carry" and tie.source not in done.fixed:
            assert axes(done.shardings[tie.source]) == axes(done.shardings[tie.target])


@given(problems(), st.sampled_from(["gspmd", "shardy"]))
@settings(max_examples=50)
def test_the_merges_told_are_merges(problem, policy):
    done = propagate(*problem, CompletionOptions.of(Options(policy=policy)))
    for _, first, second, both in done.merges:
        for a, b, c in zip(first.dims, second.dims, both.dims, strict=True):
            assert c == (a or b)
            assert not (a and b) or a == b


def any_order(rng):
    """Return a random order in which operands precede their readers, in place of XLA's."""

    def order(self, region):
        before, todo = {}, [("root", region, 0), *map(self._made_by, self._nodes(region))]
        while todo:
            key = todo.pop()
            if key not in before:
                before[key] = self._before(key)
                todo += before[key]
        done = []
        while len(done) < len(before):
            ready = sorted(k for k in before if k not in done and set(before[k]) <= set(done))
            done.append(rng.choice(ready))
        return done

    return order


def reordered(problem, policy, seed):
    """Return the completion of a problem whose nodes are visited in another order."""
    graph, given = replace(problem[0]), problem[1]  # a copy, which remembers no index
    order = any_order(random.Random(seed))
    with patch.object(Instructions, "in_order", order):
        return propagate(graph, given, CompletionOptions.of(Options(policy=policy)))


@given(problems(), st.sampled_from(["gspmd", "shardy"]), st.integers(0, 99))
@settings(max_examples=150)
def test_order_decides_nothing_but_recorded_conflicts(problem, policy, seed):
    """Two orders that differ both name a value that refused a sharding, with the kept one.

    It is the value that differs, or one that its layout depends on.
    """
    note(f"{policy}, seed {seed}")
    first = propagate(*problem, CompletionOptions.of(Options(policy=policy)))
    second = reordered(problem, policy, seed)
    for value, layouts in enumerate(zip(first.shardings, second.shardings, strict=True)):
        if layouts[0] != layouts[1]:
            near = behind(value, first, second)
            assert near & {conflict.value for conflict in first.conflicts}
            assert near & {conflict.value for conflict in second.conflicts}
    for conflict in (*first.conflicts, *second.conflicts):
        assert not extends(conflict.kept.dims, conflict.refused.dims)
        assert conflict.kept.key != conflict.refused.key


@given(problems((MESH, Mesh({"x": 1, "y": 4}))), st.sampled_from(["gspmd", "shardy"]))
def test_every_change_has_more_tiles(problem, policy):
    """An equal number of tiles on more axes of size 1 is possible; Shardy propagates these too."""
    done = propagate(*problem, CompletionOptions.of(Options(policy=policy)))
    tiles = {}
    for reason in done.history:
        count = math.prod(reason.layout.parts), sum(map(len, reason.layout.dims))
        if reason.kind == "completed":
            assert count > tiles.get(reason.value, (1, 0))
        tiles[reason.value] = count


def test_a_graph_without_nodes_completes():
    graph = Builder().graph()
    assert isinstance(graph, Graph)
    assert propagate(graph, annotations(graph)).shardings == ()
