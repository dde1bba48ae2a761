"""Warnings and cards are complete: devices, padding, unread work."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa

F = jax.ShapeDtypeStruct


def f32(*shape):
    return F(shape, "float32")


@pytest.mark.parametrize("devices", [2, 20, 21, 32, 64])
def test_a_card_shows_all_devices_or_says_how_many_it_leaves_out(devices):
    sharding = sa.Sharding.from_axes(["a"], sa.Mesh({"a": devices}), (64 * devices,))
    page = sharding._repr_html_()
    shown = len(re.findall(r"<tr>\s*<td[^>]*>\d+</td>", page))
    left = re.search(r"(\d+) more of (\d+) devices", page)
    assert shown + (int(left[1]) if left else 0) == devices
    assert left is None or int(left[2]) == devices


def dense(w, x):
    return (jnp.tanh(x @ w) @ w).mean()


def linear(w, x):
    return (x @ w).sum()


def looped(w, x):
    return lax.scan(lambda c, _: (c @ w, None), x, None, length=3)[0].mean()


def remat(w, x):
    return jax.checkpoint(lambda x: jnp.tanh(x @ w) @ w)(x).mean()


def attention(w, x):
    return (jax.nn.softmax((x @ w) @ x.T) @ (x @ w)).sum()


LOSSES = (dense, linear, looped, remat, attention)


def unread_in(function):
    plan = sa.plan(function, f32(16, 16), f32(32, 16), mesh=sa.Mesh({"d": 4}))
    return plan.graph.unread


@pytest.mark.parametrize("loss", LOSSES)
def test_what_jax_leaves_over_of_a_loss_is_no_waste(loss):
    assert unread_in(jax.grad(loss)) is None
    assert unread_in(jax.grad(jax.jit(loss))) is None
    assert unread_in(jax.value_and_grad(loss)) is None
    assert unread_in(lambda w, x: w - 0.1 * jax.grad(loss)(w, x)) is None


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_and_products_that_are_thrown_away_are_waste(loss):
    def thrown(w, x):
        jax.grad(loss)(w, x)
        return loss(w, x)

    def product(w, x):
        (x @ w) @ w
        return x

    def beside_a_gradient(w, x):
        (x @ w) @ w
        return jax.grad(loss)(w, x)

    assert unread_in(thrown).gradients
    assert unread_in(product).count == 2
    assert unread_in(beside_a_gradient) is not None


def uneven(shape, spec, mesh=None):
    plan = sa.plan(
        lambda x: 2 * x,
        f32(*shape),
        mesh=sa.Mesh(mesh or {"d": 2, "t": 4}),
        in_shardings=spec,
        out_shardings=spec,
    )
    return plan._warnings_table.where(op="uneven").rows


@pytest.mark.parametrize("size", range(1, 9))
def test_every_dimension_with_padding_has_a_warning(size):
    rows = uneven((1024, size), P(None, "t"))
    assert bool(rows) == (size % 4 != 0 and -(-size // 4) * 4 > 1.1 * size)
    if rows:
        empty = 4 - -(-size // -(-size // 4))
        assert f"{size} elements over 4 devices" in rows[0][4]
        assert (f"{empty} devices hold only padding" in rows[0][4]) == (empty > 0)


@pytest.mark.parametrize(
    ("shape", "spec", "layout"),
    [
        ((1024, 2), P(None, "t"), "[t:(2)2, t:(1)2]"),
        ((1023, 2), P(None, "t"), "[None, t:(1)2]"),
        ((1024, 6), P(None, "t"), "[t:(2)2, t:(1)2]"),
        ((8, 64, 2, 32), P("d", None, "t"), "[(d, t:(2)2), None, t:(1)2, None]"),
        ((4, 1024), P(("d", "t")), "[(d, t:(1)2), t:(2)2]"),
        ((1024, 1), P(None, "t"), "[t, None]"),
        ((1024, 3), P(None, "t"), "[t, None]"),
    ],
)
def test_a_layout_over_a_part_of_the_axis_is_offered(shape, spec, layout):
    (row,) = uneven(shape, spec)
    assert f"annotate x as {layout} and 1 more annotation likewise" in row[5]


def test_remedies_hold_and_send_what_they_say():
    (row,) = uneven((1024, 2), P(None, "t"), {"t": 4})
    mesh = sa.Mesh({"major": 2, "minor": 2})
    spec = P("minor", "major")
    plan = sa.plan(lambda x: 2 * x, f32(1024, 2), mesh=mesh, in_shardings=spec, out_shardings=spec)
    assert "peak memory 8.2 kB to 4.1 kB, sent 0 B to 0 B" in row[5]
    assert plan.cost("tpu_v3").peak_memory_bytes == 4100
    assert plan.cost("tpu_v3").wire_bytes == 0
