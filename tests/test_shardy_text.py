"""A plan as Shardy's text: jaxlib parses it, and read back it gives the same plan."""

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

import shardalg as sa

MESH = sa.Mesh({"X": 2, "Y": 4})


def ffn(w, x):
    hidden = sa.annotate(jax.nn.relu(x @ w["in"]), "hidden")
    return hidden @ w["out"]


def training(w, x):
    return jax.value_and_grad(lambda w: (ffn(w, x) ** 2).mean())(w)


def scanned(w, x):
    return jax.lax.scan(lambda x, _: (jnp.tanh(ffn(w, x)), x.sum()), x, None, length=3)


W = {n: jax.ShapeDtypeStruct(s, "float32") for n, s in (("in", (16, 32)), ("out", (32, 16)))}
SPECS = {"in": P("X", "Y"), "out": P("Y", "X")}


def plan_of(fn, rows=8):
    x = jax.ShapeDtypeStruct((rows, 16), "float32")
    given = sa.Strategy(MESH, in_shardings=(SPECS, P("X")), sites={"hidden": P("X", "Y")})
    return sa.plan(fn, W, x, strategy=given)


@pytest.mark.parametrize("fn", [ffn, training, scanned])
def test_what_is_written_is_read_as_the_same_plan(fn):
    plan = plan_of(fn)
    text = plan.shardy()
    with mlir.make_ir_context():
        ir.Module.parse(text)
    back = sa.plan(sa.read_stablehlo(text), options=plan.options)
    assert back.mesh == plan.mesh
    columns = ["kind", "mesh_axes", "executions", "wire_bytes"]
    ours, theirs = (
        p.collectives()[columns].sort_values(columns).values.tolist() for p in (plan, back)
    )
    assert ours == theirs


def test_every_border_has_the_completed_layout():
    text = plan_of(ffn).shardy()
    (main,) = (line for line in text.splitlines() if "@main" in line)
    for sdy in ('[{"X"}, {"Y"}]', '[{"Y"}, {"X"}]', '[{"X"}, {}]'):
        assert f"#sdy.sharding<@mesh, {sdy}>" in main
    assert "sdy.sharding_constraint" in text
    assert "test_shardy_text.py" in text


def test_uneven_layouts_stand_inside():
    """Seven rows over two devices: JAX has no such border, so the argument is constrained."""
    lines = plan_of(ffn, rows=7).shardy().splitlines()
    (main,) = (line for line in lines if "@main" in line)
    assert '[{"X"}, {}]' not in main
    assert any("sharding_constraint" in line and '[{"X"}, {}]' in line for line in lines)
