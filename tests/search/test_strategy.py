"""The answer of a search as a strategy: planned again, saved and loaded, it is the same plan."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.calibration.constants import DATASHEET
from shardalg.costs.topology import arranged, machine

MESH = {"a": 2, "b": 4}


def step(up, down, x):
    """Return the loss and new weights of a step with two products and a residual."""

    def loss(up, down):
        y = x + jnp.tanh(x @ up) @ down
        return (y.astype("float32") ** 2).mean()

    value, (first, second) = jax.value_and_grad(loss, (0, 1))(up, down)
    return value, up - 0.1 * first, down - 0.1 * second


@pytest.fixture(scope="module")
def found():
    up, down, x = (
        jax.ShapeDtypeStruct(shape, "bfloat16")
        for shape in ((4096, 16384), (16384, 4096), (1024, 4096))
    )
    given = (up, down, x)
    family = sa.family(meshes=[MESH])
    return given, sa.search(step, *given, hardware="h100:8", over=family)


def seconds(plan):
    place = arranged(machine("h100:8"), plan.mesh).on(DATASHEET)
    return float(plan.cost(place, overlap="none").step_time_s)


def test_planned_again_it_costs_the_same(found, tmp_path):
    given, answer = found
    best = answer.best
    assert len(best.collectives()) > 2
    again = sa.plan(step, *given, strategy=answer.strategy, options=sa.Options(hardware="h100:8"))
    assert again.diff(best).values.rows == ()
    assert seconds(again) == pytest.approx(seconds(best), rel=0.01)
    assert "shardings given for" in repr(best)
    assert again.verify().ok
    path = tmp_path / "best.json"
    best.save(path)
    loaded = sa.load_plan(path)
    assert loaded.diff(again).is_empty
    assert seconds(loaded) == pytest.approx(answer.step_s, rel=0.01)
    assert best.jit_kwargs()["in_shardings"]


def test_unknown_values_are_errors():
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    mesh = sa.Mesh({"X": 2})
    plan = sa.plan(lambda x: jnp.tanh(x @ x), x, mesh=mesh, in_shardings=(P("X"),))
    name = next(n for n in plan.shardings()["value"] if n.startswith("dot_general"))
    wanted = sa.Strategy(mesh, (P("X"),), values={name: P(None, "X")})
    assert plan.replan(wanted)._sharded.shardings[1].text() == "[None, X]"
    for values, words in (
        ({"dot_genera:1": P()}, "no value"),
        ({name: P("Y")}, "Y"),
        ({name: P(None, None, "X")}, "dot_general"),
    ):
        with pytest.raises(sa.StrategyError, match=words):
            plan.replan(sa.Strategy(mesh, values=values))
