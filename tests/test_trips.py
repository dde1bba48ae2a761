"""Iterations of `while` loops: counted, given by the user, or a symbol in every text."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.graph.tracing.trace import trace
from shardalg.lower.xla_dump.hlo_text import parse, walk
from shardalg.plan.explain.warnings import roundabout
from shardalg.planner.trips import while_loops, with_trips

X, W = jnp.ones((8, 64)), jnp.ones((64, 64))
TESTS = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "ne": operator.ne,
}


def iterated(x, w):
    return lax.while_loop(lambda s: jnp.sum(s) > 1e-3, lambda s: 0.1 * jnp.tanh(s @ w), x)


def inside_a_scan(x, w):
    def body(carry, _):
        return lax.while_loop(lambda s: jnp.max(s) > 1.0, lambda s: s @ w, carry), None

    return lax.scan(body, x, None, length=3)[0]


def nested(x, w):
    def inner(s):
        return lax.while_loop(lambda t: jnp.min(t) > 0, lambda t: t @ w, s)

    return lax.while_loop(lambda s: jnp.max(s) > 1.0, inner, x)


def bounded_by_an_argument(x, w):
    return lax.fori_loop(0, jnp.int32(x[0, 0]), lambda i, s: jnp.tanh(s @ w), x)


def by_elements(x, w):
    return jax.vmap(lambda r: lax.while_loop(lambda s: s.sum() < 9, lambda s: s * 2 + 1, r))(x)


UNKNOWN = (iterated, inside_a_scan, nested, bounded_by_an_argument, by_elements)


def planned(function, **trips):
    return sa.plan(
        function,
        X,
        W,
        mesh=sa.Mesh({"d": 4, "m": 2}),
        in_shardings=(P("d", "m"), P("m")),
        options=sa.Options(trips=trips),
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", UNKNOWN)
def test_a_loop_of_unknown_length_is_named_wherever_its_bytes_are_shown(function):
    plan = planned(function)
    loops = while_loops(plan.graph)
    warned = plan._warnings_table.where(op="while")
    assert [row["source"] for row in warned] == [loop.node.source for loop in loops]
    for loop in loops:
        assert loop.iterations is None
        texts = str(warned), str(plan.overview("h100"))
        assert all(loop.name in text and "per iteration" in text for text in texts)
        assert loop.key in repr(plan.cost("h100"))
    for place, moved in enumerate(plan._stages.traffic.collectives):
        if any(step.node == loop.node.index for loop in loops for step in moved.step.loops):
            headline = str(plan.explain(place)).splitlines()[0]
            assert "per iteration" in headline
            assert "a step" not in headline


@pytest.mark.parametrize("function", UNKNOWN[:4])
def test_a_number_that_the_user_gives_multiplies_bytes_flops_and_seconds(function):
    """A loop of n iterations costs n times one iteration, plus the cost before it."""
    name = "trips_1"  # of nested loops the inner one
    figures = []
    for number in (0, 1, 2, 50):
        plan = planned(function, **{name: number})
        cost = plan.cost("h100")
        assert plan.verify().ok
        useful = plan.cost("h100").useful_flops
        figures.append((cost.wire_bytes, cost.flops, useful, cost.step_time_s))
    none, one, two, fifty = np.array(figures)
    assert np.allclose(two - one, one - none)
    assert np.allclose(fifty - none, 50 * (one - none))
    assert (one[:2] > none[:2]).all()


def test_a_loop_is_given_by_its_line_and_saved_with_the_plan(tmp_path):
    (loop,) = while_loops(planned(iterated).graph)
    plan = planned(iterated, **{loop.node.source: 7})
    assert roundabout.unknown_trips(plan.program, plan.graph).rows == ()
    plan.save(tmp_path / "plan")
    again = sa.load_plan(tmp_path / "plan")
    assert again.options == plan.options
    assert again.graph.regions == plan.graph.regions
    assert again.cost("h100").wire_bytes == plan.cost("h100").wire_bytes
    assert plan.replan(mesh=sa.Mesh({"d": 2, "m": 4})).graph.regions == plan.graph.regions


def test_a_loop_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(sa.StrategyError, match=r"'model.py:3'.*trips_1 \(test_trips.py:"):
        planned(iterated, **{"model.py:3": 4})
    for wrong in ({"a": 1.5}, {"a": -1}, {3: 1}, 7, {"a": True}):
        with pytest.raises(sa.StrategyError, match="Give a dict"):
            sa.Options(trips=wrong)


@pytest.mark.parametrize("seed", range(2))
def test_counted_iterations_are_those_of_a_run(seed):
    """Random counters, bounds and tests, run in Python until they end, or for 300 iterations."""
    random = np.random.default_rng(seed)
    for _ in range(40):
        start, bound = (int(n) for n in random.integers(-20, 20, 2))
        step, name = int(random.integers(-4, 5)), str(random.choice(list(TESTS)))
        is_turned, is_carried = random.random() < 0.5, random.random() < 0.3
        test = TESTS[name]

        def condition(s, test=test, bound=bound, is_turned=is_turned, is_carried=is_carried):
            limit = s[2] if is_carried else bound
            return test(limit, s[0]) if is_turned else test(s[0], limit)

        def body(s, step=step):
            return s[0] + step, s[1] * 2, s[2]

        entered = (start, 1.0, bound)
        graph = trace(lambda entered=entered: lax.while_loop(condition, body, entered))
        (loop,) = while_loops(with_trips(graph, {}))
        expected, at = 0, start
        while condition((at, 0, bound)) and expected < 300:
            expected, at = expected + 1, at + step
        assert loop.iterations == (None if expected == 300 else expected), (
            start,
            step,
            bound,
            name,
        )


def test_a_counter_that_starts_again_at_the_other_end_of_its_type_is_not_counted():
    start = jnp.int8(0)
    graph = trace(lambda: lax.while_loop(lambda i: i < 127, lambda i: i + jnp.int8(2), start))
    assert while_loops(with_trips(graph, {}))[0].iterations is None


def test_known_counts_stay():
    def counted(x, w):
        x = lax.fori_loop(0, 5, lambda i, s: jnp.tanh(s @ w), x)
        return lax.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 2, jnp.tanh(s[1] @ w)), (0, x))[
            1
        ]

    plan = planned(counted)
    assert "while" not in set(plan.warnings()["op"])
    assert plan.cost("h100").wire_bytes == (5 + 4) * 256
    assert "5 times a step" in str(plan.explain(0))
    assert "4 times a step (4 iterations of the while loop" in str(plan.explain(1))


@pytest.mark.parametrize("function", [inside_a_scan, nested])
@pytest.mark.parametrize("trips", [{}, {"trips_1": 10}])
def test_xlas_collectives_in_conditions_are_counted_as_often_as_ours(function, trips):
    plan = planned(function, **trips)
    beside = plan.compare_xla()
    assert beside.wire_bytes <= beside.xla_wire_bytes <= 1.05 * beside.wire_bytes
    assert ("count as one iteration" in beside._headline()) == (
        any(loop.iterations is None for loop in while_loops(plan.graph))
    )
    assert ("trips_1" in trips) == any(c.count % 11 == 0 for c in beside.told.collectives)


HLO = """
HloModule m
body (p: f32[4]) -> f32[4] {
  p = f32[4] parameter(0)
  ROOT a = f32[4] add(p, p)
}
test (q: f32[4]) -> pred[] {
  q = f32[4] parameter(0)
  ROOT c = pred[] custom-call(q)
}
ENTRY e (x: f32[4]) -> f32[4] {
  x = f32[4] parameter(0)
  ROOT w = f32[4] while(x), condition=test, body=body
}
"""


@pytest.mark.parametrize(
    ("told", "tests", "runs", "exact"), [(None, 1, 1, False), (0, 1, 0, True), (6, 7, 6, True)]
)
def test_a_condition_runs_once_more_than_its_body(told, tests, runs, exact):
    found = {i.name: (count, sure) for i, count, sure in walk(parse(HLO), lambda loop: told)}
    assert found["c"] == (tests, exact)
    assert found["a"] == (runs, exact)
