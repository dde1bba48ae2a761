"""Layouts in an order of the devices that no digits of the mesh write: one collective permute."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError, ShardingError, StrategyError
from shardalg.spmd.instructions import Apply, CollectivePermute
from shardalg.verify.verify import verify

RING = sa.Mesh({"x": 8})
GRID = sa.Mesh({"x": 2, "y": 4})
ORDERS = {
    "reversed": [7, 6, 5, 4, 3, 2, 1, 0],
    "snake": [0, 1, 3, 2, 4, 5, 7, 6],
    "stride of 3": [0, 3, 6, 1, 4, 7, 2, 5],
    "neighbours swapped once": [1, 0, 2, 3, 4, 5, 6, 7],
}
DEVICES = np.array(jax.devices()[:8])
X = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)


def as_jax(mesh, entries):
    sizes, names = tuple(mesh.shape.values()), mesh.axis_names
    devices = DEVICES[list(mesh.order)].reshape(sizes)
    return NamedSharding(jax.sharding.Mesh(devices, names), P(*entries))


def blocks(array):
    return {shard.device.id: np.asarray(shard.data) for shard in array.addressable_shards}


def check_blocks(found, want):
    """Every device holds what JAX lays on it."""
    found, want = blocks(found), blocks(want)
    assert found.keys() == want.keys()
    for device, block in want.items():
        np.testing.assert_array_equal(found[device], block)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("here", "axes", "there", "entries"), [
    (RING, {"x": 8}, ("x",), ("x",)),
    (GRID, {"x": 2, "y": 4}, ("x", "y"), ("x", "y")),
    (GRID, {"a": 4, "b": 2}, (("x", "y"), None), (("a", "b"), None)),
    (GRID, {"x": 2, "y": 4}, ("x", None), (None, "y")),
])  # fmt: skip
def test_a_reshard_to_another_order_of_the_devices(order, here, axes, there, entries):
    target = sa.Mesh(axes, ORDERS[order])
    first = sa.Sharding.from_spec(P(*there), here, X.shape)
    path = sa.reshard(first, sa.Sharding.from_spec(P(*entries), target, X.shape))
    if first.parts == path.target.parts:
        assert path.table["kind"] == ("collective_permute",)
        assert path.wire_bytes == X.nbytes // 8
    assert path.wire_bytes >= path.least_wire_bytes
    assert path.verify().ok
    np.testing.assert_array_equal(path.simulate(X), X)
    check_blocks(*path.lower()(X), jax.device_put(X, as_jax(target, entries)))
    back = sa.reshard(path.target, first)
    assert back.verify().ok
    check_blocks(*back.lower()(X), jax.device_put(X, as_jax(here, there)))


def types(*shapes):
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def kinds(plan):
    return [row["kind"] for row in plan.collectives_table]


TURNED = {name: sa.Mesh({"x": 8}, order) for name, order in ORDERS.items()}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("annotation", ["mesh_split", "constraint", "result"])
def test_a_result_in_another_order_is_one_permute(order, annotation):
    turned = as_jax(TURNED[order], ("x", None))
    run = {
        "mesh_split": lambda x: sa.mesh_split(x + 1, TURNED[order], [0, -1]),
        "constraint": lambda x: jax.lax.with_sharding_constraint(x + 1, turned),
        "result": lambda x: x + 1,
    }[annotation]
    ends = {"out_shardings": turned} if annotation == "result" else {}
    plan = sa.plan(run, *types(X.shape), mesh=RING, in_shardings=(P("x"),), **ends)
    assert kinds(plan) == ["collective_permute"]
    assert plan.collectives()["wire_bytes"].sum() == X.nbytes // 8
    assert plan.verify().ok
    check_blocks(plan.lower()(X), jax.device_put(X + 1, turned))


@pytest.mark.parametrize("order", ORDERS)
def test_an_argument_in_another_order_is_one_permute(order, tmp_path):
    turned = as_jax(TURNED[order], ("x", None))
    given = {"in_shardings": (turned,), "out_shardings": P("x")}
    plan = sa.plan(jnp.negative, *types(X.shape), mesh=RING, **given)
    carried = jax.ShapeDtypeStruct(X.shape, jnp.float32, sharding=turned)
    assert sa.plan(jnp.negative, carried, mesh=RING, out_shardings=P("x")).text() == plan.text()
    assert kinds(plan) == ["collective_permute"]
    assert plan.verify().ok
    lowered = plan.lower()
    check_blocks(lowered.place(X)[0], jax.device_put(X, turned))
    check_blocks(lowered(X), jax.device_put(-X, as_jax(RING, ("x", None))))
    np.testing.assert_array_equal(lowered.place(X)[0], X)
    np.testing.assert_array_equal(lowered(*lowered.place(X)), -X)
    plan.save(tmp_path / "plan.json")
    assert sa.load_plan(tmp_path / "plan.json").text() == plan.text()


def snake(shape, entries=("x",)):
    return sa.Sharding.from_spec(P(*entries), TURNED["snake"], shape)


def test_an_uneven_value_in_another_order():
    x = np.arange(17 * 3, dtype=np.float32).reshape(17, 3)
    given = {"in_shardings": (snake(x.shape),), "out_shardings": P("x")}
    plan = sa.plan(jnp.tanh, *types(x.shape), mesh=RING, **given)
    assert plan.verify().ok
    np.testing.assert_allclose(np.asarray(plan.lower()(x)), np.tanh(x), rtol=1e-6)
    back = plan.replan(sa.Strategy(RING, (P("x"),), snake(x.shape)))
    np.testing.assert_allclose(np.asarray(back.lower()(x)), np.tanh(x), rtol=1e-6)


def test_an_order_goes_on_until_another_is_asked_for():
    """An order also applies to values computed from a value, until another order is given."""
    w = np.eye(24, dtype=np.float32)

    def run(x, w):
        turned = sa.mesh_split(x, TURNED["snake"], [0, -1])
        return jnp.tanh(turned) @ w, sa.mesh_split(turned + 1, RING, [0, -1]), w + 1

    plan = sa.plan(run, *types(X.shape, w.shape), mesh=RING, in_shardings=(P("x"), None))
    assert plan.verify().ok
    assert kinds(plan) == ["collective_permute"]
    turned, plain = (as_jax(mesh, ("x", None)) for mesh in (TURNED["snake"], RING))
    first, second, third = plan.lower()(X, w)
    check_blocks(second, jax.device_put(X + 1, plain))
    np.testing.assert_array_equal(np.asarray(third), w + 1)
    want = blocks(jax.device_put(np.tanh(X), turned))
    for device, block in blocks(first).items():
        np.testing.assert_allclose(block, want[device], rtol=1e-6)


def tampered(program, kind, change):
    steps = tuple(
        change(step) if isinstance(step.attributes, kind) else step
        for step in program.block.instructions
    )
    return replace(program, block=replace(program.block, instructions=steps))


def swapped(step):
    """Two devices get each other's block."""
    pairs = tuple((s, {0: 1, 1: 0}.get(t, t)) for s, t in step.attributes.pairs)
    return replace(step, attributes=replace(step.attributes, pairs=pairs))


def test_what_is_not_the_order_that_was_asked_for_is_refuted():
    plan = sa.plan(jnp.tanh, *types(X.shape), mesh=RING, in_shardings=(P("x"),),
                   out_shardings=snake(X.shape))  # fmt: skip
    program, graph = plan.program, plan.sharded
    assert verify(graph, program).ok
    assert not verify(graph, tampered(program, CollectivePermute, swapped)).ok
    # in the order of the plan where another one is handed out, or the other way round
    other = replace(program.result_shardings[0], mesh=TURNED["reversed"])
    for layout in (other, replace(other, mesh=RING)):
        assert not verify(graph, replace(program, result_shardings=(layout,))).ok
        last = program.locals[-1]
        renamed = (*program.locals[:-1], replace(last, sharding=layout))
        wrong = replace(program, locals=renamed, result_shardings=(layout,))
        assert not verify(graph, wrong).ok
    # a program that is right, for the reversed order
    asked = replace(other, mesh=TURNED["reversed"])
    reverse = sa.plan(jnp.tanh, *types(X.shape), mesh=RING, in_shardings=(P("x"),),
                      out_shardings=asked)  # fmt: skip
    assert verify(reverse.sharded, reverse.program).ok
    assert not verify(graph, reverse.program).ok
    # an operator on a value in another order
    (turning,) = [i for i in program.block.instructions if type(i.attributes) is CollectivePermute]
    misread = tampered(program, Apply, lambda step: replace(step, operands=turning.results))
    assert not verify(graph, misread).ok


def test_what_cannot_be_said_in_another_order_is_refused():
    named = sa.Mesh({"x": 8}, symbolic=True)
    with pytest.raises(StrategyError, match="named sizes do not describe"):
        sa.plan(jnp.tanh, *types(X.shape), mesh=named, in_shardings=(snake(X.shape),))
    beyond = sa.Sharding.from_spec(P("x"), sa.Mesh({"x": 8}, range(8, 16)), X.shape)
    with pytest.raises(ShardingError, match="other devices"):
        sa.reshard(snake(X.shape), beyond)
    pending = sa.Sharding(TURNED["snake"], X.shape, ((), ()), unreduced=RING.digits("x"))
    with pytest.raises(ShardingError, match="pending sums"):
        sa.reshard(sa.Sharding.from_spec(P("x"), RING, X.shape), pending)
    plan = sa.plan(jnp.tanh, *types(X.shape), mesh=RING, in_shardings=(snake(X.shape),))
    for asked in (plan.lower().jit, plan.compare_xla):
        with pytest.raises(LoweringError, match="order"):
            asked()
