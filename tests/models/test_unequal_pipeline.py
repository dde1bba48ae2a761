"""Stages that differ: their plans give the gradients of the whole, and are proved and priced."""

from dataclasses import replace
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.topology import machine


def embed(w, ids):
    return w[ids]


def wide(w, x):
    return jnp.maximum(x @ w["in"], 0) @ w["out"]


def loss(w, x):
    return (x @ w).sum()


def whole(shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).integers(-1, 2, shape), "float32")


WEIGHTS = (whole((16, 8)), {"in": whole((8, 32)), "out": whole((32, 12))}, whole((12, 4)))
IDS = jnp.arange(24) % 16


def stages():
    """Other functions, other meshes: 2, 4 and 2 of eight devices."""
    specs = {"in": P(None, "Y"), "out": P("Y")}
    return [
        sa.Stage(embed, WEIGHTS[0], sa.Mesh({"X": 2}), x=P("X")),
        sa.Stage(wide, WEIGHTS[1], sa.Mesh({"X": 2, "Y": 2}), specs, P("X")),
        sa.Stage(loss, WEIGHTS[2], sa.Mesh({"X": 2}), x=P("X")),
    ]


def planned(**more):
    return sa.unequal_pipeline(stages(), IDS, microbatches=4, **more)


@pytest.mark.slow
def test_the_plans_of_the_stages_give_the_gradients_of_the_whole():
    pipe = planned()
    taken = [IDS.reshape(4, 6)]
    for given, stage in zip(stages(), pipe.stages, strict=True):
        run = stage.forward.lower()
        taken.append(jnp.stack([jnp.asarray(run(given.weights, x)) for x in taken[-1]]))
    total = taken[-1].sum()
    gradient, found = jnp.ones(4), []
    for given, stage, xs in zip(stages()[::-1], pipe.stages[::-1], taken[-2::-1], strict=True):
        by_weights, gradient = stage.backward.lower()(given.weights, xs, gradient)
        gradient = None if gradient is None else np.asarray(gradient)
        found.append(by_weights)

    def one(weights):
        runs = zip((embed, wide, loss), weights, strict=True)
        return reduce(lambda x, run: run[0](run[1], x), runs, IDS)

    want, grads = jax.value_and_grad(one)(WEIGHTS)
    assert total == want
    jax.tree.map(np.testing.assert_array_equal, tuple(found[::-1]), grads)
    assert all(report.ok for report in pipe.verify())


def test_gradients_are_reduced_once_a_step_and_behind_it():
    stage = planned().stages[1]
    rows = stage.backward.collectives().to_dict("records")
    reduced = [row for row in rows if row["mesh_axes"] == "X" and row["kind"] == "all_reduce"]
    assert reduced
    assert {row["executions"] for row in reduced} == {1}
    after = stage.times(machine("tpu_v3"), 4)[2]
    assert {part.axes for part in after} >= {("X",)}


def test_one_forward_one_backward_keeps_fewer_microbatches_and_takes_as_long():
    gpipe, other = planned().table("tpu_v3"), planned(schedule="1f1b").table("tpu_v3")
    assert list(gpipe["in_flight"]) == [4, 4, 4]
    assert list(other["in_flight"]) == [3, 2, 1]
    for here, there in zip(gpipe["peak_memory_bytes"], other["peak_memory_bytes"], strict=True):
        assert there < here
    busy = [np.add(t["busy_s"], t["waits_s"]) for t in (gpipe, other)]
    assert np.allclose(busy[0], planned().step_s("tpu_v3"))


def test_a_timeline_has_every_stage_and_microbatch():
    timeline = planned().timeline("tpu_v3")
    assert timeline.stages == 3
    forward = {
        (e.stage, e.trip) for e in timeline.events if e.phase == "forward" and e.trip is not None
    }
    assert forward == {(s, m) for s in range(3) for m in range(4)}
    assert "Mesh(X=2) | Mesh(X=2, Y=2) | Mesh(X=2)" in repr(timeline)


def meeting() -> list:
    """Return the stages, of which the last one shares devices with the first."""
    first, second, last = stages()
    second = replace(second, mesh=sa.Mesh(second.mesh.shape, device_ids=range(2, 6)))
    return [first, second, replace(last, mesh=sa.Mesh({"X": 2}, device_ids=[1, 0]))]


def one_stage(x=IDS, **changed):
    return sa.unequal_pipeline([replace(stages()[0], **changed)], x, microbatches=4)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: sa.unequal_pipeline([], IDS, microbatches=2), "needs stages: pass"),
        (lambda: sa.unequal_pipeline(stages()[0], IDS, microbatches=2), "needs stages: pass"),
        (lambda: one_stage(fn="wide"), "fn of stage 0 is a str, no function"),
        (
            lambda: sa.unequal_pipeline([(wide, WEIGHTS[1])], IDS, microbatches=2),
            "stage 0 is a tuple: pass sa.Stage",
        ),
        (lambda: one_stage(mesh={"X": 2}), r"mesh of stage 0 is a dict, \{'X': 2\}: pass sa.Mesh"),
        (lambda: one_stage(mesh=sa.Mesh({"X": 2}).to_jax()), "stage 0 is a Mesh, .*from_jax"),
        (lambda: one_stage(x={}), r"x is \{\}, without an array"),
        (lambda: planned(schedule="zb"), "no schedule 'zb' here"),
        (lambda: sa.unequal_pipeline(stages(), IDS, microbatches=5), "24 is not divisible by 5"),
        (
            lambda: sa.unequal_pipeline(stages()[::2], IDS, microbatches=4),
            r"stage 1 cannot take what comes to it.*same shape, got \(8,\) and \(12,\)",
        ),
        (
            lambda: sa.unequal_pipeline(meeting(), IDS, microbatches=4),
            r"stages 0 and 2 are both on device [01]: Mesh\(X=2\) and Mesh\(X=2, .*Give each",
        ),
    ],
)
def test_bad_input(made, message):
    with pytest.raises(sa.PipelineError, match=message) as raised:
        made()
    assert "\n" not in str(raised.value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [np.int32(3), np.ones(4, bool)], ids=["integer", "flags"])
def test_weights_without_a_gradient_pass_by(number):
    def scaled(w, x):
        return jnp.tanh(x @ w["a"]) * w["n"].sum()

    weights = {"a": jnp.ones((4, 4)), "n": number}
    given = [sa.Stage(scaled, weights, sa.Mesh({"X": 2}), x=P("X"))] * 2
    pipe = sa.unequal_pipeline(given, jnp.ones((8, 4)), microbatches=np.int32(4))
    assert all(report.ok for report in pipe.verify())
    given = weights, jnp.ones((4, 2, 4)), jnp.ones((4, 2, 4))
    gradients, _ = pipe.stages[1].backward.lower()(*given)
    want = jax.grad(lambda a: scaled(weights | {"a": a}, given[1]).sum())(weights["a"])
    np.testing.assert_allclose(gradients["a"], want, rtol=1e-5)
    np.testing.assert_array_equal(gradients["n"], np.zeros_like(number))


def test_the_whole_is_not_lowered_by_name():
    with pytest.raises(sa.LoweringError, match=r"3 unequal stages is not lowered.*sa.pipeline"):
        planned().lower()
