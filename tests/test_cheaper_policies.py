"""`overview` names another policy that is a tenth cheaper, and one annotation that is as cheap."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.explain import switches
from shardalg.spmd.host.simulate import simulate

EXPERTS, ROOM = 8, 8
MESH = sa.Mesh({"E": 4})
FIRST = sa.Switches(turn_products=False)


def routed(w, x):
    """Return a mixture of experts; tokens and experts share one axis."""
    gates = jax.nn.softmax(x @ w["router"])
    chosen = jax.nn.one_hot(gates.argmax(-1), EXPERTS)
    order = (jnp.cumsum(chosen, 1) * chosen).sum(-1).astype(int) - 1
    place = jax.nn.one_hot(order, ROOM)
    mask = jnp.einsum("bse,bsc->bsec", chosen, place)
    sent = jnp.einsum("bsm,bsec->ebcm", x, mask)
    hidden = jax.nn.relu(jnp.einsum("ebcm,emf->ebcf", sent, w["up"]))
    back = jnp.einsum("ebcf,efm->ebcm", hidden, w["down"])
    return x + jnp.einsum("ebcm,bsec->bsm", back, mask * gates[..., None])


def step(w, x):
    grads = jax.grad(lambda w: (routed(w, x) ** 2).mean())(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads)


def planned(fn=step, mesh=MESH, **options):
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")  # noqa: E731
    w = {"router": f32(64, EXPERTS), "up": f32(EXPERTS, 64, 256), "down": f32(EXPERTS, 256, 64)}
    layout = {"router": P(), "up": P("E"), "down": P("E")}
    given = (layout, P("E"))
    wanted = layout if fn is step else P("E")
    options = sa.Options(**options)
    return sa.plan(fn, w, f32(8, 32, 64), mesh=mesh, in_shardings=given, out_shardings=wanted,
                   options=options)  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chip", ["tpu_v3", "h100"])
def test_a_cheaper_policy_is_named_with_seconds_bytes_and_an_annotation(chip):
    plan, other = planned(switches=FIRST), planned(policy="shardy")
    seconds, least = (each.cost(chip).step_time_s for each in (plan, other))
    assert least < 0.9 * seconds
    said = plan.overview(chip).cheaper
    assert said in str(plan.overview(chip))
    assert re.match(r"Options\(policy='(shardy|cost)'\) is cheaper: step ", said)
    assert f"{seconds * 1e6:.3g} µs to {least * 1e6:.3g} µs" in said
    assert f" on {chip}." in said
    name, layout = re.search(r"annotate (.*?) as (\[.*?\]):", said).groups()
    assert name.startswith("mul:")
    assert layout == "[E, None, None, None]"


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("chip", ["tpu_v3", "h100"])
def test_the_operand_wins_whose_layout_is_read_beside_the_product(chip):
    """The gradient of the gates has the sharding of the tokens, not of the experts."""
    plan, first, shardy = planned(), planned(switches=FIRST), planned(policy="shardy")
    seconds = [each.cost(chip).step_time_s for each in (plan, first, shardy)]
    assert seconds[0] <= 1.01 * seconds[2] < 0.9 * seconds[1]
    sent = [sum(each.collectives_table["wire_bytes_per_step"]) for each in (plan, first)]
    assert sent[0] <= sent[1]
    assert plan.verify().ok
    assert plan.overview(chip).cheaper == ""
    types = [plan.graph.values[v].type for v in plan.graph.arguments]
    rng = np.random.default_rng(0)
    values = [(rng.normal(size=t.shape) / 16).astype(t.dtype) for t in types]
    down, router, up, x = values
    wanted = jax.tree.leaves(step({"down": down, "router": router, "up": up}, x))
    for found, want in zip(simulate(plan.program, plan.graph, *values), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_nothing_is_said_where_no_policy_is_cheaper_or_the_graph_is_large(monkeypatch):
    assert planned(policy="shardy").overview().cheaper == ""
    monkeypatch.setattr(switches, "LARGEST", 10)
    monkeypatch.setattr(switches, "planned", lambda *args: pytest.fail("planned again"))
    assert planned(switches=FIRST).overview().cheaper == ""


def test_a_long_search_by_cost_is_left_out(monkeypatch):
    """The size of the search grows with the devices, not with the operators alone."""
    tried = []

    def noted(traced, annotations, options):
        tried.append(options.policy)
        return stages

    monkeypatch.setattr(switches, "planned", noted)
    for axes, searched in (({"E": 4}, True), ({"E": 4, "M": 16}, False)):
        plan = planned(mesh=sa.Mesh(axes), policy="gspmd")
        stages = plan._stages
        tried.clear()
        plan.overview().cheaper  # noqa: B018
        assert ("cost" in tried) == searched, axes
        assert "shardy" in tried
