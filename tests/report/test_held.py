"""Warnings of padding and of state that every device holds; each remedy was planned."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.hardware import load
from shardalg.tables import seconds_text
from tests.report.planned import plan_on  # noqa: F401 - eight devices

S = jax.ShapeDtypeStruct


def gradient(w, x):
    return jax.grad(lambda w: (jnp.maximum(x @ w["a"], 0) @ w["b"]).sum())(w)


def planned(state, roles=("parameters", "data"), axes=None):
    w = {"a": S((64, 256), "float32"), "b": S((256, 64), "float32")}
    specs = ({"a": state, "b": state}, P("data"))
    mesh = sa.Mesh(axes or {"data": 4})
    return sa.plan(gradient, w, S((16, 64), "float32"), mesh=mesh, in_shardings=specs, roles=roles)


def rows(plan, op):
    return plan.warnings().query(f"op == {op!r}").to_dict("records")


def test_state_on_every_device_is_named_with_a_layout_that_was_planned():
    plan = planned(P())
    (row,) = rows(plan, "argument")
    assert "all 4 devices along data hold the same 2 arrays of state" in row["warning"]
    held = 2 * 64 * 256 * 4
    assert f"{held / plan.cost('tpu_v3').peak_memory_bytes:.0%} of the peak" in row["warning"] or (
        f"{held / plan.memory.peak_bytes:.0%} of the peak" in row["warning"]
    )
    spec = {"[None, data]": P(None, "data"), "[data, None]": P("data")}
    named = re.findall(r"annotate w\['a'\] as (\[[^]]*\])", row["remedy"])
    mended = planned(spec[named[0]])
    assert mended.memory.peak_bytes < plan.memory.peak_bytes
    assert not rows(mended, "argument")


@pytest.mark.parametrize("roles", [None, ("data", "data")])
def test_nothing_is_said_of_what_is_no_state(roles):
    assert not rows(planned(P(), roles), "argument")


def test_fewer_heads_than_devices():
    def scores(q, k):
        return jnp.einsum("bhqd,bhkd->bhqk", q, k)

    q = S((2, 4, 8, 8), "float32")
    specs = (P(None, "model"),) * 2
    plan = sa.plan(scores, q, q, mesh=sa.Mesh({"model": 8}), in_shardings=specs)
    (row, *_) = rows(plan, "uneven")
    assert "4 elements over 8 devices along model in blocks of 1" in row["warning"]
    assert "4 devices hold only padding" in row["warning"]
    assert "make it a multiple of 8 (not tried)" in row["remedy"]


def test_padding_is_counted_in_bytes_of_a_device():
    x = S((10, 3), "float32")
    plan = sa.plan(lambda x: x, x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
    (row,) = rows(plan, "uneven")
    block, true = 3 * 3 * 4, np.prod(x.shape) * 4 / 4
    assert "in blocks of 3, 20% padding" in row["warning"]
    assert f"{block - true:.3g} B of padding" in row["warning"]
    even = sa.plan(lambda x: x, S((12, 3), "float32"), mesh=plan.mesh, in_shardings=(P("X"),))
    assert not rows(even, "uneven")


def momentum_step(w, m, x):
    m = 0.9 * m + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
    return w - m, m


@pytest.mark.parametrize(("size", "is_slower"), [(64, True), (256, False)])
def test_a_remedy_for_replicated_state_says_that_a_step_takes_longer(size, is_slower, tmp_path):
    shapes = [S(s, "float32") for s in ((size, size), (size, size), (64, size))]
    roles = "parameters", "optimizer_state", "data"
    mesh = sa.Mesh({"x": 8})
    # Seven hops along links of the axis's own make small gathers slow.
    chip = tmp_path / "own_links.json"
    figures = load("tpu_v3").with_own_links().to_json()
    del figures["software"]  # the rates of the data sheet alone
    chip.write_text(json.dumps(figures))
    options = sa.Options(hardware=str(chip))

    def seconds(*specs):
        plan = sa.plan(
            momentum_step, *shapes, mesh=mesh, in_shardings=(*specs, P("x")), roles=roles,
            options=options,
        )  # fmt: skip
        return plan, plan.cost(options.hardware).step_time_s

    plan, now = seconds(P(), P())
    _, then = seconds(P("x"), P("x"))
    (remedy,) = plan.warnings()["remedy"]
    assert remedy.startswith("annotate w as [x, None] and 1 more likewise: ")
    assert (then > now) == is_slower
    assert (f", step {seconds_text(now)} to {seconds_text(then)}" in remedy) == is_slower
