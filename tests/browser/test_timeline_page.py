"""The page of a timeline, the trace for Perfetto, and measured steps of the profiler's traces."""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.show.pages.timeline_page import timeline_document
from tests.browser.in_page import said_by
from tests.browser.test_names import HOSTILE, plan_of
from tests.browser.test_program_view import browser


def loss(w, v, x):
    return jnp.maximum(x @ w, 0) @ v


@pytest.fixture(scope="module")
def plan():
    w, v, x = (jax.ShapeDtypeStruct(s, "float32") for s in ((64, 32), (32, 64), (64, 64)))
    specs = (P("X", "Y"), P("Y", "X"), P("X"))
    mesh = sa.Mesh({"X": 2, "Y": 2})
    return sa.plan(loss, w, v, x, mesh=mesh, in_shardings=specs, out_shardings=P("X"))


@pytest.fixture(scope="module")
def measured(plan, tmp_path_factory):
    """Return the folder of a trace of three steps on CPU devices."""
    folder = tmp_path_factory.mktemp("trace")
    lowered = plan.lower()
    args = [jnp.ones(spec.shape) for spec in map(jnp.zeros, ((64, 32), (32, 64), (64, 64)))]
    jax.block_until_ready(lowered(*args))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        for _ in range(3):
            jax.block_until_ready(lowered(*args))
    return folder


def test_a_trace_of_cpu_devices_has_the_planned_collectives(plan, measured):
    step = sa.read_trace(measured)
    kinds = {event.kind for event in step.events}
    assert kinds == {"compute", *plan.collectives()["kind"]}
    assert "measured on CPU:0, the median of 3 runs" in step.of
    assert all(event.seconds >= 0 for event in step.events)
    table = plan.timeline("tpu_v3").differences(step)
    assert {row["kind"] for row in table} == kinds
    for row in table:
        assert row["difference_s"] == pytest.approx(row["measured_s"] - row["planned_s"])
        assert row["measured_s"] == pytest.approx(step.seconds(row["kind"]))
    other = sa.read_trace(measured, device="CPU:3")
    assert "CPU:3" in other.of


def named(kind, pid, tid, name):
    """Return an event with the name of a process or a thread."""
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def ran(tid, name, ts, dur, **args):
    """Return an event of an operator."""
    return {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}


TPU = [
    named("process_name", 1, 0, "/device:TPU:0"),
    named("thread_name", 1, 1, "Steps"),
    named("thread_name", 1, 2, "XLA Modules"),
    named("thread_name", 1, 3, "XLA Ops"),
    *(ran(2, "jit_step(123)", 1000 * i, 100 + i) for i in range(3)),
    *(ran(3, "fusion.1", 1000 * i, 60) for i in range(3)),
    *(ran(3, "all-gather-start.2", 1000 * i + 60, 1) for i in range(3)),
    *(ran(3, "all-gather-done.2", 1000 * i + 61, 20 + i) for i in range(3)),
    *(ran(3, "while.7", 1000 * i, 80) for i in range(3)),
]
GPU = [
    named("process_name", 1, 0, "/device:GPU:0 NVIDIA H100"),
    named("thread_name", 1, 1, "XLA Modules"),
    named("thread_name", 1, 2, "XLA Ops"),
    named("thread_name", 1, 3, "Stream #13(Compute)"),
    named("thread_name", 1, 4, "Stream #14(Compute)"),
    ran(1, "jit_step", 0, 100),
    ran(2, "gemm", 0, 50),
    ran(3, "gemm_fusion_dot_3", 0, 50, hlo_op="gemm_fusion_dot.3"),
    ran(4, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 50, 30),
    ran(4, "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", 80, 20),
]


@pytest.mark.parametrize(
    ("events", "device", "expected"),
    [
        (TPU, "TPU:0", {"compute": 60e-6, "all_gather": 22e-6}),
        (GPU, "GPU:0", {"compute": 50e-6, "all_reduce": 30e-6, "reduce_scatter": 20e-6}),
    ],
    ids=["tpu", "gpu"],
)
def test_traces_of_accelerators_are_read_by_their_names(events, device, expected, tmp_path):
    path = tmp_path / "host.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    step = sa.read_trace(path)
    assert device in step.of
    assert {event.kind for event in step.events} == set(expected)
    for kind, seconds in expected.items():
        assert step.seconds(kind) == pytest.approx(seconds)


def test_files_that_are_no_traces_are_refused(tmp_path):
    path = tmp_path / "host.trace.json.gz"
    with pytest.raises(sa.RunError, match=r"has no \*\.trace\.json\.gz"):
        sa.read_trace(tmp_path)
    path.write_bytes(gzip.compress(b"{}")[:-9])
    with pytest.raises(sa.RunError, match="is no JSON trace"):
        sa.read_trace(path)
    path.write_text('{"traceEvents": []}')
    with pytest.raises(sa.RunError, match="has no operators of a device"):
        sa.read_trace(path)
    path.write_text(json.dumps({"traceEvents": TPU}))
    with pytest.raises(sa.RunError, match=r"has no device 'GPU:9'\. It has TPU:0"):
        sa.read_trace(path, device="GPU:9")
    with pytest.raises(sa.RunError, match=r"has no module 'jit_f' on TPU:0\. It has jit_step"):
        sa.read_trace(path, module="jit_f")


def test_traces_follow_the_trace_event_format(plan, tmp_path):
    """Complete events have a name, a time and a duration; metadata have the documented names."""
    plan.timeline("tpu_v3").save(tmp_path / "plan.json", beside=plan.timeline("h100"))
    trace = json.loads((tmp_path / "plan.json").read_text())
    assert trace["displayTimeUnit"] in ("ms", "ns")
    threads = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    for event in trace["traceEvents"]:
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            key = "sort_index" if event["name"].endswith("index") else "name"
            assert list(event["args"]) == [key]
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] > 0
            assert (event["pid"], event["tid"]) in threads


CLICKS = """
const tracks = one('[data-part="tracks"]');
said.events = all("[data-event]").length;
said.titles = tracks.textContent;
one('[data-zoom="0"]').click();
const before = tracks.innerHTML;
one('[data-zoom="0.5"]').click();
said.zoomed = tracks.innerHTML !== before;
const near = tracks.innerHTML;
tracks.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
said.moved = tracks.innerHTML !== near;
tracks.dispatchEvent(new WheelEvent("wheel", {deltaY: -100, bubbles: true, cancelable: true}));
tracks.dispatchEvent(new KeyboardEvent("keydown", {key: "0", bubbles: true}));
said.whole = tracks.innerHTML === before;
all("[data-event]")[0].dispatchEvent(new PointerEvent("pointermove", {bubbles: true}));
said.tip = one(".tip").textContent.includes("from ");
const table = one('[data-part="table"]').textContent;
said.kinds = all("[data-kind]").map(row => row.dataset.kind);
one('[data-part="overlap"] input').click();
said.alone = one('[data-part="table"]').textContent !== table;
"""


@browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, 1), (420, 0)])
def test_a_person_zooms_the_timeline(plan, measured, width, scheme, tmp_path):
    planned, step = plan.timeline("tpu_v3"), sa.read_trace(measured)
    said = said_by(timeline_document(planned, step), CLICKS, tmp_path, width=width, scheme=scheme)
    for name in ("events", "zoomed", "moved", "whole", "tip", "alone"):
        assert said[name], name
    assert set(said["kinds"]) == {e.kind for e in (*planned.events, *step.events)}
    assert said["titles"].index("predicted") < said["titles"].index("measured")


@browser
def test_hostile_names_are_text(tmp_path):
    page = timeline_document(plan_of(HOSTILE["markup"]).timeline("tpu_v3"))
    said = said_by(page, 'said.text = one("header").textContent;', tmp_path)
    assert HOSTILE["markup"] in said["text"]
