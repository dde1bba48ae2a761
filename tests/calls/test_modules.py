"""Places that people know: module paths, the user's own lines, tables folded by module, roles."""

from functools import cache

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import RoleError, TableError, TraceError
from shardalg.show import tables
from shardalg.tables import Table
from tests.calls import programs, transformers

MESH = sa.Mesh({"X": 2, "Y": 2})


@cache
def plan(name):
    fn, args, specs = transformers.STEPS[name]()
    return sa.plan(fn, *args, mesh=MESH, in_shardings=specs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", transformers.STEPS)
def test_collectives_have_a_module_and_a_line_of_the_users(name):
    found = plan(name).collectives()
    assert len(found) > 40
    placed = (found.module != "") & found.source.str.startswith("transformers.py:")
    assert placed.mean() >= 0.95
    assert found.source.str.contains(r"\(.*\.py:\d+\)").any(), "the package's line stands behind it"
    want = {f"{name.capitalize()}/layers_{i}/{part}" for i in range(2) for part in ("up", "down")}
    assert want <= set(found.module)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", transformers.STEPS)
def test_what_is_folded_by_module_adds_up(name):
    made = plan(name)
    whole, cost = made.collectives(), made.cost("tpu_v3")
    folded, costs = made.collectives(by="module"), cost.table(by="module").df
    assert any("layers[0:2]" in module for module in folded.module)
    assert folded.wire_bytes_per_step.sum() == (whole.wire_bytes * whole["executions"]).sum()
    assert folded["executions"].sum() == whole["executions"].sum()
    assert costs.wire_bytes.sum() == cost.wire_bytes
    assert costs.held_bytes.sum() == cost.peak_memory_bytes
    np.testing.assert_allclose(costs.time_s.sum(), cost.step_time_s)
    with pytest.raises(TableError, match=r"by='layer'.*'module'"):
        made.collectives(by="layer")
    with pytest.raises(TableError, match=r"by='layer'.*'module'"):
        cost.table(by="layer")


def test_layers_that_differ_are_not_folded():
    one, two = {("psum",): (1, 8)}, {("psum",): (2, 8)}
    found = {f"net/h_{i}": two if i == 2 else one for i in range(5)}
    assert [row[0] for row in tables.folded(found)] == ["net/h[0:2]", "net/h_2", "net/h[3:5]"]
    assert tables.folded(found)[0][2] == (2, 16)


@pytest.mark.parametrize("name", transformers.STEPS)
def test_roles_stand_in_the_trees(name):
    made = plan(name)
    roles = dict(zip(made.graph.argument_paths, made._traced.argument_roles, strict=True))
    kernels = {path: role for path, role in roles.items() if "up" in path and "layers" in path}
    assert set(kernels.values()) == {"parameters", "optimizer_state"}
    assert roles["tokens"] == "data"
    moments = [role for path, role in kernels.items() if ".mu" in path or ".nu" in path]
    assert set(moments) == {"optimizer_state"}
    assert "unknown" not in made.cost("tpu_v3").memory_by_class


def test_roles_are_given_by_paths():
    x = jax.ShapeDtypeStruct((4, 4), "float32")
    given = {"weights": "parameters", "weights['scale']": "optimizer_state", "x": "data"}
    made = sa.plan(
        lambda weights, x: x @ weights["w"] * weights["scale"],
        {"w": x, "scale": x}, x, mesh=MESH, roles=given,
    )  # fmt: skip
    assert made._traced.argument_roles == ("optimizer_state", "parameters", "data")
    with pytest.raises(RoleError, match=r"roles names y, which no argument is.*x"):
        sa.plan(abs, x, mesh=MESH, roles={"y": "data"})


def test_what_the_backward_pass_of_a_rematerialised_span_gathers_is_a_weight():
    @jax.checkpoint
    def layer(w, x):
        return jax.numpy.tanh(x @ w)

    def loss(w, x):
        return layer(w, layer(w, x)).sum()

    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((16, 16), (512, 16)))
    made = sa.plan(
        jax.grad(loss), w, x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"), P("X")),
        out_shardings=P("X"), roles=("parameters", "data"),
    ).collectives()  # fmt: skip
    gathers = made[(made.kind == "all_gather") & (made.phase == "backward")]
    assert set(gathers.role) == {"weight"}


def test_changed_state_that_nothing_carries_out_is_refused():
    model, optimizer = programs.nnx_state()
    with pytest.raises(
        TraceError, match=r"nnx_train_step \(programs.py:\d+\) changes model.*nnx.jit"
    ):
        sa.plan(
            jax.jit(programs.nnx_train_step), model, optimizer, programs.X, programs.Y, mesh=MESH
        )


def test_gradients_that_nobody_reads_are_a_warning_with_their_share():
    def step(params, x):
        loss, grads = jax.value_and_grad(lambda p: ((x @ p["w"]) ** 2).sum())(params)
        for name in params:
            params[name] = params[name] - 0.1 * grads[name]
        return loss

    x = jax.ShapeDtypeStruct((4, 4), "float32")
    lost = sa.plan(step, {"w": x}, x, mesh=MESH).warnings()
    (row,) = lost[lost.op == "unread"].to_dict("records")
    assert "7 of 10 traced operators (70%)" in row["warning"]
    assert "params['w'] is changed in place and not returned" in row["warning"]
    assert row["source"].startswith("test_modules.py:")
    kept = sa.plan(lambda p, x: (step(p, x), p), {"w": x}, x, mesh=MESH).warnings()
    assert "unread" not in set(kept.op)


def test_a_table_is_one_of_the_house():
    assert isinstance(plan("equinox").cost("tpu_v3").table(by="module"), Table)
