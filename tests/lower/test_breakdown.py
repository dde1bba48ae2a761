"""A step's time by JAX's profiler, compared with the prices of the same instructions."""

import json
from dataclasses import replace
from itertools import groupby, pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError
from shardalg.lower.breakdown import per_instruction
from shardalg.lower.xla_dump.hlo_text import parse


def layers(x, w, v):
    def layer(x, w):
        return jnp.tanh(x @ w), None

    return jnp.maximum(jax.lax.scan(layer, x, w)[0], 0) @ v


ARGS = tuple(np.ones(s, "float32") for s in ((64, 256), (3, 256, 256), (256, 128)))


@pytest.fixture(scope="module")
def plan():
    specs = P("X", "Y"), P(None, None, "Y"), P("Y")
    return sa.plan(layers, *ARGS, mesh=sa.Mesh({"X": 2, "Y": 4}), in_shardings=specs)


def test_every_instruction_has_what_the_trace_says_of_it(plan, show):
    lowered = plan.lower()
    chip = sa.measure_hardware(jax.devices()[:8], quick=True)
    found = lowered.breakdown(*ARGS, hardware=chip, repeats=3)
    show(found)
    # predicted: the plan's own prices, none left out and none twice
    cost = plan.cost(chip)
    assert found.predicted_s == pytest.approx(cost.compute_s + cost.communication_s)
    kinds = [row.kind for row in found.rows]
    sent = plan.collectives()
    assert sorted(k for k in kinds if k in set(sent["kind"])) == sorted(sent["kind"])
    assert kinds.count("contraction") == 2
    # measured: every one of them ran, the one in the loop too, and little ran that has no name
    assert all(row.measured_s > 0 for row in found.rows if row.name)
    whole = sum(row.measured_s for row in found.rows)
    assert found.rows[-1].kind == "not named"
    assert found.rows[-1].measured_s < 0.5 * whole
    assert abs(found.largest.difference_s) == max(abs(r.difference_s) for r in found.rows)
    assert "devices share" in repr(found)
    assert found.timing.warm_up_s > 0


def test_a_step_on_a_time_axis_beside_the_planned_one(plan, tmp_path):
    made = plan.lower().measure(*ARGS, repeats=1, trace=True)
    timeline, planned = made.timeline(), plan.timeline("tpu_v3")
    assert type(timeline) is type(planned)
    events = timeline.events
    assert events[0].start_s == 0
    assert all(a.start_s <= b.start_s for a, b in pairwise(events))
    assert 0 < timeline.step_s < 60
    # what is sent, in the order of the program; the gather, in a loop, with copies beside it
    sent = [(e.kind, e.axes) for e in planned.events if e.axes]
    assert sent == [("all_gather", ("Y",)), ("all_reduce", ("Y",))]
    ran = [(e.kind, e.axes) for e in events if e.axes]
    assert ran.count(sent[0]) >= 3
    assert [kind for kind, _ in groupby(ran)] == sent
    timeline.save(tmp_path / "both.json", beside=planned)
    traced = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    found = {pid: sum(e["pid"] == pid for e in traced) for pid in (0, 1)}
    # Each side has its name, and the name and the order of its row.
    assert found == {0: 3 + len(events), 1: 3 + len(planned.events)}
    named = [e["args"]["name"] for e in traced if e["name"] == "process_name"]
    assert named[0] == f"measured, {plan.mesh}"
    assert named[1].startswith(f"predicted on {plan.mesh.size} x tpu_v3 (")
    assert named[1].endswith(f", {plan.mesh}")
    made.save(tmp_path / "m.json")
    assert len(json.loads((tmp_path / "m.json").read_text())["events"]) == len(events)
    for other in (plan.lower().measure(*ARGS, repeats=1), replace(made, drawn=None)):
        with pytest.raises(LoweringError, match="trace=True"):
            other.timeline()


def test_a_trace_without_events(plan):
    module = parse(plan.lower().compiled.as_text())
    with pytest.raises(LoweringError, match="no events of the program"):
        per_instruction([], module, 1)
