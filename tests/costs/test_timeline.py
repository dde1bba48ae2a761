"""`plan.timeline`: the seconds of the price, the bubbles of the formula, a valid trace."""

import json

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.cli import main
from shardalg.costs.pipelines.overheads import overheads
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.costs.topology import arranged

PROGRAM = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import shardalg as sa

pipe = sa.pipeline(lambda w, x: x + jnp.tanh(x @ w), stages=2, microbatches=4)

def step(w, x):
    return jax.grad(lambda w: (pipe(w, x) ** 2).sum())(w)

def args():
    return tuple(jax.ShapeDtypeStruct(s, "float32") for s in ((2, 1, 64, 64), (256, 64)))

in_shardings = (P("L"), P("X"))
"""


def layer(w, x):
    return x + jax.numpy.tanh(x @ w)


def planned(schedule):
    stages, batches, rounds = schedule.stages, schedule.microbatches, schedule.rounds
    pipe = sa.pipeline(layer, stages=stages, microbatches=batches, rounds=rounds)

    def step(w, x):
        return w - jax.grad(lambda w: (pipe(w, x) ** 2).sum())(w)

    shapes = (stages, rounds, 64, 64), (64 * batches, 64)
    arguments = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    mesh = sa.Mesh({"L": stages, "X": 2})
    return sa.plan(step, *arguments, mesh=mesh, in_shardings=(P("L"), P("X")))


@pytest.mark.parametrize("schedule", [Schedule(2, 3), Schedule(4, 8), Schedule(4, 4, 3)], ids=str)
def test_bubbles_are_those_of_the_formula(schedule):
    plan = planned(schedule)
    timeline, cost = plan.timeline("tpu_v3"), plan.cost("tpu_v3")
    spent = overheads(plan.program, plan.graph, arranged("tpu_v3", plan.mesh))
    assert timeline.step_s == pytest.approx(cost.step_time_s)
    assert timeline.stages == schedule.stages
    for stage in range(schedule.stages):
        waits = timeline.seconds("bubble", stage)
        assert waits / spent.pipelined_s == pytest.approx(schedule.bubble_ratio)
    assert timeline.bubbles == pytest.approx(spent.bubbles)


def test_a_microbatch_goes_from_stage_to_stage():
    schedule = Schedule(4, 8)
    busy = {}
    for event in planned(schedule).timeline("tpu_v3").events:
        if event.trip is not None and event.kind == "compute":
            busy.setdefault((event.phase, event.stage), []).append(event.trip)
    for stage in range(4):
        there = sorted(set(busy["forward", stage]))
        assert there == list(range(stage, stage + 8))
        back = list(dict.fromkeys(busy["backward", stage]))
        assert back == there[::-1]


def test_events_of_a_stage_follow_one_another():
    timeline = planned(Schedule(2, 3)).timeline("tpu_v3")
    for stage in range(2):
        now = 0.0
        for event in timeline.events:
            if event.stage == stage:
                assert event.start_s == pytest.approx(now)
                now = event.start_s + event.seconds
        assert now == pytest.approx(timeline.step_s)


def test_the_trace_is_in_the_format_of_chrome(tmp_path):
    timeline = planned(Schedule(2, 3)).timeline("tpu_v5e:2x2")
    timeline.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = [e for e in events if e["ph"] == "M"]
    names = [(e["name"], e["args"]["name"], e["tid"]) for e in named if "name" in e["args"]]
    # Perfetto sorts the rows by these numbers.
    order = [e["args"]["sort_index"] for e in named if e["name"] == "thread_sort_index"]
    assert order == [0, 1]
    assert names == [
        ("process_name", f"{timeline.of}, {timeline.mesh}", 0),
        ("thread_name", "stage 0", 0),
        ("thread_name", "stage 1", 1),
    ]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(timeline.events)
    assert all(e["dur"] > 0 and {"name", "ts", "pid", "tid"} <= set(e) for e in complete)
    ends = max(e["ts"] + e["dur"] for e in complete)
    assert ends == pytest.approx(1e6 * timeline.step_s)


def test_without_a_pipeline_there_is_one_row():
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    plan = sa.plan(lambda x: x @ x, x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
    timeline = plan.timeline("tpu_v3")
    assert (timeline.stages, timeline.bubbles) == (1, 0)
    assert "all devices the same" in repr(timeline)
    assert timeline.step_s == pytest.approx(plan.cost("tpu_v3").step_time_s)
    assert timeline.table().columns[0] == "stage"


def test_the_command(tmp_path, capsys):
    (tmp_path / "step.py").write_text(PROGRAM)
    trace, figure = tmp_path / "trace.json", tmp_path / "figure.png"
    written = ["--trace", str(trace), "--figure", str(figure)]
    made = ["timeline", f"{tmp_path / 'step.py'}:step", "--mesh", "L=2,X=2", *written]
    assert main(made) == 0
    assert "2 stages" in capsys.readouterr().out
    assert json.loads(trace.read_text())["traceEvents"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_chip(tmp_path, capsys):
    (tmp_path / "step.py").write_text(PROGRAM)
    where = f"{tmp_path / 'step.py'}:step"
    assert main(["timeline", where, "--mesh", "L=2,X=2", "--hardware", "tpu_v99"]) == 2
    error = capsys.readouterr().err
    assert "tpu_v99" in error
    assert error.count("\n") == 1


def shifting(weights):
    """Return a step of a pipeline by hand, whose buffer has the name."""

    def step(state, x):
        first = jax.lax.broadcasted_iota("int32", state.shape, 0) == 0
        shifted = jax.numpy.pad(state, ((1, 0), (0, 0), (0, 0)))[:-1]
        state = sa.annotate(jax.numpy.where(first, x[None], shifted), "pipeline_state")
        state = jax.vmap(layer)(weights, state)
        return state, state[-1]

    return step


START = jax.numpy.zeros((4, 6, 8))
OWN = {
    "some trips only": (
        lambda w, xs: jax.lax.scan(
            lambda s, x: jax.lax.cond(
                x.sum() > 0, shifting(w), lambda s, x: (s, s[-1]), s, x
            ), START, xs,
        )[1],
        3 / 7,
    ),
    "nobody knows how often": (
        lambda w, xs: jax.lax.while_loop(
            lambda c: c[0] < 7, lambda c: (c[0] + 1, shifting(w)(c[1], xs[c[0]])[0]), (0, START)
        ),
        0,
    ),
    "never": (lambda w, xs: jax.lax.scan(shifting(w), START, xs[:0])[0] + w.sum(), 0),
    "too few trips": (lambda w, xs: jax.lax.scan(shifting(w), START, xs[:2])[1], 1),
    "no stages": (
        lambda w, xs: jax.lax.scan(
            lambda c, x: (sa.annotate(c + x.sum(), "pipeline_state"), None), w.sum(), xs
        )[0],
        0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OWN)
def test_loops_of_ones_own(case):
    """A name in a branch or in a loop that ends by itself, on a number: all ended in a check."""
    fn, bubbles = OWN[case]
    shapes = (4, 8, 8), (7, 6, 8)
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    mesh = sa.Mesh({"L": 4, "X": 2})
    plan = sa.plan(fn, *arguments, mesh=mesh, in_shardings=(P("L"), P()))
    timeline = plan.timeline("tpu_v3")
    spent = overheads(plan.program, plan.graph, arranged("tpu_v3", plan.mesh))
    assert timeline.step_s == pytest.approx(plan.cost("tpu_v3").step_time_s)
    assert timeline.bubbles == pytest.approx(bubbles, rel=2e-2)
    assert timeline.bubbles == pytest.approx(spent.bubbles)


def test_stages_are_counted_without_what_vmap_added():
    """Three models at once made of four stages three."""
    pipe = sa.pipeline(layer, stages=4, microbatches=4)
    shapes = (3, 4, 1, 8, 8), (3, 16, 8)
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    mesh = sa.Mesh({"L": 4, "X": 2})
    plan = sa.plan(jax.vmap(pipe), *arguments, mesh=mesh, in_shardings=(P(None, "L"), None))
    timeline = plan.timeline("tpu_v3")
    spent = overheads(plan.program, plan.graph, arranged("tpu_v3", plan.mesh))
    assert timeline.stages == 4
    for stage in range(4):
        waits = timeline.seconds("bubble", stage)
        assert waits / spent.pipelined_s == pytest.approx(pipe.schedule.bubble_ratio)


def test_pipelines_of_other_stages_wait_as_long_on_every_row():
    """Rows that one of them has no stage for were idle in trips of none."""
    both = [
        sa.pipeline(layer, stages=n, microbatches=4, axis=axis) for n, axis in ((4, "L"), (2, "X"))
    ]
    shapes = (4, 1, 8, 8), (2, 1, 8, 8), (16, 8)
    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    mesh = sa.Mesh({"L": 4, "X": 2})
    plan = sa.plan(lambda v, w, x: both[1](w, both[0](v, x)), *arguments, mesh=mesh,
                   in_shardings=(P("L"), P("X"), None))  # fmt: skip
    timeline = plan.timeline("tpu_v3")
    waits = [timeline.seconds("bubble", stage) / timeline.step_s for stage in range(4)]
    assert waits == pytest.approx([timeline.bubbles] * 4)
    assert timeline.bubbles == pytest.approx(
        overheads(plan.program, plan.graph, arranged("tpu_v3", plan.mesh)).bubbles
    )
