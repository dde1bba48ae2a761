"""A third-party train step: planned, explained and run by its border's shardings alone."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

import shardalg as sa
from shardalg.lab import foreign

STEPS = 20
MESH = sa.Mesh({"X": 2, "Y": 4})


@pytest.fixture(scope="module")
def step():
    return foreign.build()


@pytest.fixture(scope="module")
def plan(step):
    return sa.plan(
        step.step,
        *step.arguments,
        mesh=MESH,
        in_shardings=step.in_shardings,
        out_shardings=step.out_shardings,
        roles=foreign.ROLES,
        donate_argnums=(0, 1),
    )


def train(run, step, check=lambda state: None):
    params, state, *data = jax.tree.map(jax.numpy.array, step.arguments)
    losses = []
    for _ in range(STEPS):
        params, state, loss = run(params, state, *data)
        check((params, state))
        losses.append(float(loss))
    return losses


def places(specs):
    mesh = MESH.to_jax()
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=foreign.is_spec)


def placed(step):
    """Return copies of the arguments on the mesh; the originals outlive a donation."""
    return jax.device_put(jax.tree.map(jax.numpy.array, step.arguments), places(step.in_shardings))


@pytest.mark.slow
def test_twenty_steps_equal_one_device(step, plan):
    expected = jax.tree.leaves(places(step.out_shardings[:2]))

    def stays(state):
        for leaf, place in zip(jax.tree.leaves(state), expected, strict=True):
            assert leaf.sharding.is_equivalent_to(place, leaf.ndim)

    got = train(plan.lower(), step, stays)
    want = train(jax.jit(step.step), step)
    assert want[-1] < 0.6 * want[0]
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.slow
def test_state_is_donated(step, plan):
    arguments = placed(step)
    jax.block_until_ready(plan.lower()(*arguments))
    deleted = [leaf.is_deleted() for leaf in jax.tree.leaves(arguments[:2])]
    assert sum(deleted) > 0.9 * len(deleted)
    assert not any(leaf.is_deleted() for leaf in arguments[2:])


def test_no_byte_is_moved_for_want_of_a_row(plan, show):
    moved = plan.collectives()
    total = (moved["wire_bytes"] * moved["executions"]).sum()
    fallback = plan.warnings().query("op != 'jax.jit'")["wire_bytes"].sum()
    show(f"foreign step: fallback gathers {fallback:.0f} of {total:.0f} wire bytes per step")
    assert total > 0
    assert fallback == 0
    assert "unknown" not in set(moved["role"])


def test_every_value_is_explained(plan):
    table = plan.shardings()
    assert table["why"].str.len().min() > 0
    for value in table["value"].sample(20, random_state=0):
        assert len(plan.explain(value)) > 0


def test_arrays_that_carry_shardings_need_no_specs(step, plan):
    arguments = placed(step)
    other = sa.plan(step.step, *arguments, out_shardings=step.out_shardings, roles=foreign.ROLES)
    assert other.mesh == plan.mesh
    assert other.collectives().equals(plan.collectives())


@pytest.mark.slow
def test_formulas_of_the_batch_and_its_constants(step, show):
    """Batch and length have names; the packages' own constants stay numbers, with their line."""
    batch, length = sa.dims("B S", hint=(foreign.BATCH, 12))
    data = jax.ShapeDtypeStruct((batch, length), "int32")
    plan = sa.plan(
        step.step,
        *step.arguments[:2],
        data,
        data,
        mesh=sa.Mesh({"X": 2, "Y": 4}, symbolic=True),
        in_shardings=step.in_shardings,
        out_shardings=step.out_shardings,
        roles=foreign.ROLES,
        donate_argnums=(0, 1),
    )
    constants = plan.symbols.constants
    cost = plan.cost("tpu_v3")
    show(f"foreign step: wire bytes {cost.wire_bytes}\n{constants}")
    assert cost.flops.free_symbols == {batch, length, *plan.mesh.sizes.values()}
    assert {row["source"].split("(")[1].split(":")[0] for row in constants} == {
        "embeddings.py",
        "attention.py",
    }
    assert foreign.CONFIG.max_len in constants["dimension"]
    here = plan.at(B=10, S=10)
    assert not len(here.changes)
    point = {size: {"B": 10, "S": 10}.get(name, size.hint) for name, size in plan.sizes.items()}
    for quantity in ("wire_bytes", "flops"):
        formula = getattr(cost, quantity)
        assert float(formula.subs(point)) == float(getattr(here.cost("tpu_v3"), quantity))
    assert "choice" in plan.at(B=64, S=14).changes["kind"]
