"""Arguments and sites that name another mesh over the same devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import StrategyError

FIRST = sa.Mesh({"x": 2, "y": 4})
SECOND = sa.Mesh({"a": 4, "b": 2})
SHAPES = ((8, 16), (16, 32), (32, 8))


def halves(x, w, v):
    """Return the first half on mesh (x, y), the second on (a, b)."""
    hidden = sa.annotate(jnp.tanh(x @ w), "hidden")
    turned = sa.annotate(hidden, "turned")
    return turned @ v


def given(entry, shape):
    return sa.Sharding.from_spec(entry, SECOND, shape)


def as_jax(entry, _):
    return NamedSharding(SECOND.to_jax(jax.devices()[:8]), entry)


@pytest.mark.parametrize("stated", [given, as_jax])
@pytest.mark.parametrize("policy", ["gspmd", "shardy"])
def test_two_halves_on_two_meshes_are_planned_proved_and_run(policy, stated):
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    strategy = sa.Strategy(
        FIRST,
        (P("x", None), P(None, "y"), stated(P("b", None), SHAPES[2])),
        sites={"hidden": P("x", "y"), "turned": stated(P("a", "b"), (8, 32))},
    )
    plan = sa.plan(halves, *types, strategy=strategy, options=sa.Options(policy=policy))
    shardings = {row.value: row.sharding for row in plan.shardings().itertuples()}
    assert shardings["hidden"] == "[x, y]"
    assert shardings["turned"] == "[(x, y:(1)2), y:(2)2]"
    assert shardings["v"] == "[y:(2)2, None]"
    # what follows the second half is completed on its mesh
    assert plan.sharded.results[0].canonical_dims[0] == SECOND.digits("a")
    assert "all_to_all" in plan.collectives()["kind"].tolist()
    assert plan.verify().ok
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    want = np.tanh(arrays[0] @ arrays[1]) @ arrays[2]
    np.testing.assert_allclose(np.asarray(plan.lower()(*arrays)), want, rtol=2e-4, atol=2e-5)


def placed(mesh, entry, plan_mesh):
    x = jax.ShapeDtypeStruct((12, 12), jnp.float32)
    spec = sa.Sharding.from_spec(entry, mesh, (12, 12))
    plan = sa.plan(lambda x: x + 1, x, mesh=plan_mesh, in_shardings=(spec,))
    return plan.sharded.shardings[plan.graph.arguments[0]].text()


def test_another_order_of_the_devices_is_told_in_digits():
    turned = sa.Mesh({"a": 2, "b": 2}, device_ids=(0, 2, 1, 3))
    assert placed(turned, P("a", "b"), sa.Mesh({"x": 2, "y": 2})) == "[y, x]"


@pytest.mark.parametrize(("mesh", "message"), [
    (sa.Mesh({"a": 3, "b": 2}), "not made of axes and sub-axes"),
    (sa.Mesh({"a": 2, "b": 3}, device_ids=(0, 1, 3, 2, 4, 6)), "lies on other devices"),
    (sa.Mesh({"a": 2}), "on a mesh over these devices"),
])  # fmt: skip
def test_what_no_axes_describe_is_refused(mesh, message):
    with pytest.raises(StrategyError, match=message):
        placed(mesh, P("a"), sa.Mesh({"x": 2, "y": 3}))


DEVICES = np.array(jax.devices()[:8])
HERE = jax.sharding.Mesh(DEVICES.reshape(2, 4), ("x", "y"))
# Another shape; another order of the devices as well; the names of the plan's in another shape.
THERE = {
    "shape": jax.sharding.Mesh(DEVICES.reshape(4, 2), ("a", "b")),
    "order": jax.sharding.Mesh(DEVICES.reshape(2, 4).T, ("a", "b")),
    "names": jax.sharding.Mesh(DEVICES.reshape(4, 2), ("x", "y")),
    "abstract": jax.sharding.AbstractMesh(
        (4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    ),
}
ON_HERE = {
    "shape": "[(x, y:(1)2), y:(2)2]",
    "order": "[y, x]",
    "names": "[(x, y:(1)2), y:(2)2]",
    "abstract": "[(x, y:(1)2), y:(2)2]",
}


def on(mesh, x, *entries):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*entries)))


def constrained(there):
    """Return the gradient of two halves whose constraints bring their meshes."""

    def loss(x, w, v):
        hidden = on(HERE, jnp.tanh(x @ w), "x", "y")
        turned = on(there, hidden, *there.axis_names)
        return jnp.sum((turned @ v) ** 2)

    return jax.grad(loss, argnums=(0, 1))


def layout_at(plan, number):
    """Return the sharding of the constraint with this number."""
    rows = plan.shardings()
    return rows[rows["value"].str.startswith("annotate")]["sharding"].iloc[number]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("there", THERE)
def test_constraints_in_the_function_bring_another_mesh(there):
    function = constrained(THERE[there])
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    policy = "shardy" if there == "shape" else "gspmd"
    plan = sa.plan(
        function, *types, mesh=FIRST, in_shardings=(P("x"), P(None, "y"), None),
        options=sa.Options(policy=policy),
    )  # fmt: skip
    assert (layout_at(plan, 0), layout_at(plan, 1)) == ("[x, y]", ON_HERE[there])
    assert plan.verify().ok
    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    (x, w, v), hidden = arrays, np.tanh(arrays[0] @ arrays[1])
    back = 2 * (hidden @ v) @ v.T * (1 - hidden**2)
    for got, want in zip(plan.lower()(*arrays), (back @ w.T, x.T @ back), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=2e-4, atol=2e-4)


def test_a_saved_plan_keeps_the_mesh_of_a_constraint(tmp_path):
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    plan = sa.plan(constrained(THERE["order"]), *types, mesh=FIRST)
    plan.save(tmp_path / "plan.json")
    assert sa.load_plan(tmp_path / "plan.json").text() == plan.text()


def split(mesh, x):
    """Annotate the first two dimensions with the two axes of a mesh."""
    return sa.mesh_split(x, sa.Mesh.from_jax(mesh), [0, 1])


def constrain(mesh, x):
    return on(mesh, x, "x", "y")


NAMED = {
    "as the plan's": HERE,
    "sizes": THERE["names"],
    "order": jax.sharding.Mesh(DEVICES[[0, 2, 1, 3, 4, 6, 5, 7]].reshape(2, 4), ("x", "y")),
    "sizes and order": jax.sharding.Mesh(DEVICES.reshape(2, 4).T, ("x", "y")),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("there", NAMED)
@pytest.mark.parametrize("annotation", [split, constrain])
def test_a_mesh_of_the_plans_names_is_itself(annotation, there):
    """Every device holds what JAX lays on it by the NamedSharding of that mesh."""
    x = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    plan = sa.plan(lambda x: annotation(NAMED[there], x) + 1, x, mesh=FIRST)
    assert plan.verify().ok
    (site,) = plan.annotations.sites
    want = NamedSharding(NAMED[there], P("x", "y")).devices_indices_map(x.shape)
    for position, device in enumerate(FIRST.order):
        assert site.shard_slices(position) == want[jax.devices()[device]]
    given = jax.jit(lambda x: x + 1, out_shardings=NamedSharding(NAMED[there], P("x", "y")))(x)
    blocks = {shard.device.id: np.asarray(shard.data) for shard in given.addressable_shards}
    for shard in plan.lower()(x).addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), blocks[shard.device.id])


def test_a_mesh_without_ids_names_the_first_devices():
    """So that on a plan of another order it is another layout, as JAX has it."""
    turned = sa.Mesh({"x": 2, "y": 4}, device_ids=(0, 4, 1, 5, 2, 6, 3, 7))
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    plan = sa.plan(lambda x: sa.mesh_split(x, FIRST, [0, -1]), x, mesh=turned)
    assert layout_at(plan, 0) == "[y:(2)2, None]"


@pytest.mark.parametrize("annotation", [split, constrain])
def test_what_brings_the_first_mesh_of_a_plan_follows_it(annotation, tmp_path):
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    plan = sa.plan(lambda x: annotation(HERE, x), x, mesh=FIRST)
    assert layout_at(plan, 0) == "[x, y]"
    larger = sa.Strategy(sa.Mesh({"y": 16, "x": 2}))
    assert layout_at(plan.replan(larger), 0) == "[x, y]"
    plan.save(tmp_path / "plan.json")
    assert layout_at(sa.load_plan(tmp_path / "plan.json").replan(larger), 0) == "[x, y]"
    both = sa.plan(lambda x: annotation(THERE["names"], annotation(HERE, x)), x, mesh=FIRST)
    there = "[(x, y:(1)2), y:(2)2]"
    assert (layout_at(both, 0), layout_at(both, 1)) == ("[x, y]", there)
    turned = both.replan(sa.Strategy(sa.Mesh({"x": 4, "y": 2})))
    assert (layout_at(turned, 0), layout_at(turned, 1)) == ("[x, y]", "[x, y]")
    with pytest.raises(StrategyError, match=r"Mesh\(x=4, y=2\).*follow `plan\.replan`"):
        both.replan(larger)


def test_an_argument_that_lies_on_the_first_mesh_follows_the_plan():
    lies = NamedSharding(HERE, P("x"))
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=lies)
    plan = sa.plan(jnp.tanh, x, mesh=FIRST)
    other = sa.Mesh({"x": 4, "y": 2})
    assert plan.replan(sa.Strategy(other)).shardings()["sharding"][0] == "[x, None]"
    with pytest.raises(sa.StrategyError, match="x, y has another size"):
        sa.plan(jnp.tanh, x, mesh=other)


def test_arguments_that_lie_on_two_meshes():
    spec = {"here": P("x", "y"), "there": P("b", "a")}
    arguments = [
        jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, spec[name]))
        for name, mesh in (("here", HERE), ("there", THERE["order"]))
    ]
    plan = sa.plan(lambda x, y: x @ y, *arguments, mesh=FIRST)
    assert plan.shardings()["sharding"].tolist()[:2] == ["[x, y]", "[x, y]"]
    assert plan.verify().ok


@pytest.mark.parametrize(("there", "mesh", "message"), [
    ("shape", sa.Mesh({"x": 16}), "on a mesh over these devices"),
    ("shape", sa.Mesh({"x": 2, "y": 4}, device_ids=range(8, 16)), None),
    ("order", sa.Mesh({"x": 2, "y": 4}, device_ids=range(8, 16)), "lies on other devices"),
    ("shape", sa.Mesh({"x": 2, "y": 4}, symbolic=True), "named sizes"),
])  # fmt: skip
def test_a_constraint_on_a_mesh_that_cannot_be_read_is_refused(there, mesh, message):
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)

    def planned():
        return sa.plan(lambda x: on(THERE[there], x, "a", "b"), x, mesh=mesh)

    if message is None:
        assert planned().verify().ok
        return
    with pytest.raises(StrategyError, match=rf"site \(no name\) at test_other_mesh.*{message}"):
        planned()
