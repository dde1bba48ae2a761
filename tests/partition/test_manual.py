"""Manual regions (`shard_map`): planned, simulated, proved and lowered, equal to JAX's own run."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from benchmarks import oracle_bytes
from shardalg.algebra.dims import SymbolError
from shardalg.errors import ProgramError, StrategyError, TraceError
from shardalg.spmd import instructions as spmd
from shardalg.spmd.host.simulate import simulate
from shardalg.verify.verify import verify
from tests.oracle import corpus
from tests.oracle.test_oracle import worst
from tests.partition.planned import MESH, instructions, numbers

X, W = numbers(8, 8), numbers(8, 16, seed=1)
BORDER = {"in_specs": (P("X", "Y"), P("Y")), "out_specs": (P("X"), P("X", "Y"))}


def region(body, **more):
    return jax.shard_map(body, **{"mesh": MESH.to_jax(), **BORDER, **more})


def product(x, w):
    """Return the product of the blocks, with the left block sent to the neighbour."""
    return lax.psum(x @ w, "Y"), lax.ppermute(x, "Y", [(0, 1), (1, 2), (3, 0)])


def every_collective(x, w):
    y = lax.psum(x @ w, "Y")
    rows, pairs = lax.all_gather(y, "X", tiled=True), lax.all_gather(y, "X", axis=1)
    y += lax.psum_scatter(rows, "X", tiled=True) + lax.psum_scatter(pairs, "X", scatter_dimension=1)
    y += lax.pmax(y, "X") * lax.axis_index("X") - lax.pmin(y, "X")
    x += lax.all_to_all(x, "X", 0, 0, tiled=True) + lax.axis_index(("Y", "X"))
    return y, x + lax.all_to_all(x.reshape(2, 2, 2), "X", 0, 2).reshape(4, 2)


def permutes_in_a_row(x, w):
    """No formatting: a device that nobody serves has zeros, also where the others keep theirs."""
    once = lax.ppermute(lax.ppermute(x, "Y", [(0, 1), (1, 2)]), "Y", [(1, 0), (2, 3)])
    return lax.psum(x @ w, "Y"), once + 3 * lax.ppermute(x, "X", [(0, 0)])


def permutes_over_two_axes(x, w):
    """Permute over two axes; the version of JAX decides the places that their order names."""
    turns = [(place, (place + 3) % 8) for place in range(6)]
    both = lax.ppermute(x, ("Y", "X"), turns) - 2 * lax.ppermute(x, ("X", "Y"), turns[1:])
    return lax.psum(x @ w, "Y"), both


def meshes_of_both_orders(x, w):
    """Return meshes of both orders; a permute counts along the region's own mesh."""
    swapped = sa.Mesh({"Y": 4, "X": 2}).to_jax()
    (y, left), (z, right) = (
        region(permutes_over_two_axes, mesh=mesh)(x, w) for mesh in (swapped, MESH.to_jax())
    )
    return y - z, left - 5 * right


def on_its_own(x, w):
    """Loops and branches that every device takes its own way, and jitted calls."""
    place = lax.axis_index("Y")
    x = lax.cond(place > 1, lambda x: x * 2, jax.jit(lambda x: x - 1), x)
    turns = lax.while_loop(lambda c: c[0] < place, lambda c: (c[0] + 1, c[1] * 2), (0 * place, x))
    carry, _ = lax.scan(lambda c, _: (lax.psum(c, "Y") % 5, None), w, None, length=2)
    return lax.psum(x @ carry, "Y"), turns[1]


def losses(x, w, **more):
    y, z = region(lambda x, w: (jnp.tanh(product(x, w)[0]), product(x, w)[1]), **more)(x, w)
    return (y**2).sum() + (z * x).sum()


def nested(x, w):
    """One axis is manual inside of the other."""
    inner = partial(lambda y: lax.psum(y, "Y") * 2)

    def outer(x):
        wide = jax.shard_map(inner, in_specs=P(None, "Y"), out_specs=P(), axis_names={"Y"})(x)
        return lax.psum(wide, "X")

    mesh = MESH.to_jax()
    return jax.shard_map(outer, mesh=mesh, in_specs=P("X"), out_specs=P(), axis_names={"X"})(x)


CASES = {
    "collectives": region(every_collective),
    "permutes": region(permutes_in_a_row),
    "permutes over two axes": region(permutes_over_two_axes),
    "meshes of both orders": meshes_of_both_orders,
    "own ways": region(on_its_own, check_vma=False),
    "gradient": jax.grad(losses, (0, 1)),
    "gradient without types": jax.grad(partial(losses, check_vma=False), (0, 1)),
    "nested": nested,
    "remat": jax.grad(jax.checkpoint(lambda x, w: region(product)(x, w)[0].sum())),
    "vmap": lambda x, w: jax.vmap(lambda w: region(product)(x, w), 2, 1)(w[..., None]),
    "a free axis": lambda x, w: jax.shard_map(
        lambda x: lax.psum(x, "X"), mesh=MESH.to_jax(), in_specs=P("X"), out_specs=P(),
        axis_names={"X"})(x @ w),
}  # fmt: skip


PERMUTES = ("permutes", "permutes over two axes", "meshes of both orders")
LOWERED = ("collectives", *PERMUTES, "own ways", "gradient")


@pytest.fixture
def any_order():
    """Permutes over axes in another order than the mesh's: newer versions of JAX ask about it."""
    asked = "jax_raise_on_ppermute_sort_diff"
    if not hasattr(jax.config, asked):
        yield
        return
    jax.config.update(asked, False)
    yield
    jax.config.update(asked, True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_regions_give_what_jax_gives(name, any_order):
    fn = CASES[name]
    plan = sa.plan(fn, X, W, mesh=MESH, in_shardings=(P("Y"), P(None, "X")))
    want = jax.tree.leaves(jax.jit(fn)(X, W))
    assert plan.verify().ok, plan.verify().refuted
    assert plan.warnings().query("op not in ('unread', 'jax.jit', 'uneven')").empty
    runs = [simulate(plan.program, plan.graph, X, W)]
    runs += [plan.lower()(X, W)] if name in LOWERED else []
    for results in runs:
        for found, wanted in zip(jax.tree.leaves(results), want, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_what_the_user_sends_is_listed_with_its_bytes():
    plan = sa.plan(region(product), X, W, mesh=MESH, in_shardings=BORDER["in_specs"])
    rows = [
        [row[key] for key in ("kind", "mesh_axes", "group_size", "wire_bytes", "region", "op")]
        for row in plan.collectives_table
    ]
    assert rows == [
        ["all_reduce", "Y", 4, 384, "shard_map", "psum_invariant"],
        ["collective_permute", "Y", 4, 32, "shard_map", "ppermute"],
    ]
    assert "the function asks for it" in plan.explain(0).headline
    useful = 2 * 8 * 8 * 16
    assert plan.cost("tpu_v3").flops == useful / MESH.size
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, X, W)[0], X @ W)


def test_values_of_a_region_are_whole_to_their_device():
    plan = sa.plan(lambda x, w: region(product)(x, w), X, W, mesh=MESH)
    inside = plan.graph.values[plan.graph.regions[1].arguments[0]].name
    with pytest.raises(StrategyError, match=r"operand0 is inside a shard_map over \['X', 'Y'\]"):
        plan.why_not(inside, P("X"))
    assert plan.why_not("x", P("X")).wanted.dims[0]


def test_a_loaded_plan_and_another_order_of_devices(tmp_path):
    plan = sa.plan(region(product), X, W, mesh=MESH)
    plan.save(tmp_path / "plan.json")
    assert sa.load_plan(tmp_path / "plan.json").verify().ok
    mesh = sa.Mesh(MESH.shape, device_ids=(3, 1, 2, 0, 7, 6, 5, 4))
    moved = plan.replan(sa.Strategy(mesh)).lower()(X, W)
    np.testing.assert_array_equal(moved[0], X @ W)


@pytest.mark.parametrize("axes", [("X", "Y"), ("X",)])
def test_dimensions_from_the_end_are_refused_as_jax_does_not_lower_them(axes):
    def send(x):
        return lax.all_to_all(x, "X", -1, 0, tiled=True)

    specs = {"in_specs": P("X"), "out_specs": P("X"), "axis_names": {*axes}, "check_vma": False}
    fn = jax.shard_map(send, mesh=MESH.to_jax(), **specs)
    if "split_axis=-1" not in str(jax.make_jaxpr(fn)(X)):  # newer versions of JAX count from 0
        np.testing.assert_array_equal(sa.plan(fn, X, mesh=MESH).lower()(X), jax.jit(fn)(X))
        return
    with pytest.raises(TraceError, match=r"all_to_all at .* has split_axis=-1, .* Count from 0"):
        sa.plan(fn, X, mesh=MESH)


def test_an_axis_of_one_device_sends_nothing():
    mesh = sa.Mesh({"X": 2, "Z": 1})

    def alone(x):
        near = lax.psum(x, "Z") + lax.ppermute(x, "Z", [(0, 0)])
        return lax.all_gather(near, "Z") + lax.axis_index("Z")

    given = {"mesh": mesh.to_jax(), "in_specs": P("X"), "out_specs": P(None, "X")}
    fn = jax.shard_map(alone, check_vma=False, **given)
    plan = sa.plan(fn, X, mesh=mesh)
    assert not len(plan.collectives_table)
    assert plan.verify().ok
    np.testing.assert_array_equal(plan.lower()(X), 2 * X[None])


def test_axes_that_are_explicit_are_refused_with_the_remedy():
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((2, 4), ("X", "Y"), axis_types=explicit)
    with pytest.raises(TraceError, match=r"test_manual.py:\d+.*Explicit.*AxisType.Auto"):
        sa.plan(lambda x, w: region(product, mesh=mesh)(x, w), X, W, mesh=MESH)


def test_the_recorded_program_sends_what_xla_sends():
    case, values = (
        f("shard_map_subgraph", "float32") for f in (oracle_bytes.case, oracle_bytes.arguments)
    )
    plan = oracle_bytes.plan("shard_map_subgraph", "float32")
    with jax.set_mesh(case.mesh.to_jax()):
        want = jax.jit(case.function)(*values)
    assert worst(simulate(plan.program, plan.graph, *values), [want]) < 1e-6
    assert plan.verify().ok
    for compiler in ("cpu_gspmd", "cpu_shardy"):
        plan = oracle_bytes.plan("shard_map_subgraph", "float32", compiler=compiler)
        sent = oracle_bytes.our_wire_bytes(plan.program)
        assert sent <= corpus.wire_bytes("shard_map_subgraph", compiler)


def changed(block, change):
    """Return a block with `change(instruction)` for each instruction, bodies included."""
    made = []
    for step in block.instructions:
        inside = [changed(body, change) for body in step.attributes.bodies]
        if inside:
            step = replace(step, attributes=step.attributes.with_bodies(inside))
        made.append(change(step))
    return replace(block, instructions=tuple(made))


def other(kind, **fields):
    """Return a change of the first fields of every instruction of a kind."""
    return lambda step: (
        replace(step, attributes=replace(step.attributes, **fields))
        if type(step.attributes) is kind
        else step
    )


def unsent(step):
    """Return the block itself in place of the permuted one."""
    if type(step.attributes) is spmd.Manual:
        body = step.attributes.body
        body = replace(body, results=(body.results[0], body.arguments[0]))
        return replace(step, attributes=replace(step.attributes, body=body))
    return step


def left_out(kind):
    """Replace the instruction by a sum over no device."""
    return other(kind, digits=())


def is_seen(program, plan):
    """Return True if the simulation stops at differing copies, or its results differ."""
    want = simulate(plan.program, plan.graph, X, W)
    try:
        results = simulate(program, plan.graph, X, W)
    except ProgramError as error:
        return "different copies" in str(error)
    return any((a != b).any() for a, b in zip(results, want, strict=True))


MUTATIONS = {
    "another axis": other(spmd.AllReduce, digits=MESH.digits("X")),
    "more axes": other(spmd.AllReduce, digits=MESH.digits("XY")),
    "another combination": other(spmd.AllReduce, combine="max"),
    "the sum left out": left_out(spmd.AllReduce),
    "sent backwards": other(spmd.CollectivePermute, pairs=tuple((p ^ 1, p) for p in range(8))),
    "handed on unsent": unsent,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_region_that_runs_otherwise_is_refuted_and_seen(name):
    plan = sa.plan(region(product), X, W, mesh=MESH, in_shardings=BORDER["in_specs"])
    assert {spmd.AllReduce, spmd.CollectivePermute} <= {
        type(step.attributes) for step in instructions(plan.program.block)
    }
    program = replace(plan.program, block=changed(plan.program.block, MUTATIONS[name]))
    assert verify(plan.sharded, program).refuted
    assert is_seen(program, plan)


def test_results_that_are_not_alike_are_seen():
    """JAX takes some device's copy where `check_vma` is off."""
    plan = sa.plan(
        region(lambda x, w: (x, x), out_specs=(P("X"), P("X", "Y")), check_vma=False),
        X,
        W,
        mesh=MESH,
    )
    with pytest.raises(ProgramError, match=r"Manual .*shard_map:1.* different copies"):
        simulate(plan.program, plan.graph, X, W)


(B,) = sa.dims("B", hint=(8,))
PAIRS = {"axis_index_groups": [[0, 1], [2, 3]]}
REFUSED = {
    "all_gather .*groups": lambda x, w: (lax.all_gather(x @ w, "Y", **PAIRS), x),
    "pbroadcast .* is not supported": lambda x, w: (lax.pbroadcast(x, "X", 0) @ w, x),
    "annotation .* in_specs": lambda x, w: (sa.mesh_split(x, MESH, [0, -1]) @ w, x),
    "annotation u .* in_specs": lambda x, w: (sa.annotate(x, "u") @ w, x),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_planned_is_said_at_the_trace(words):
    with pytest.raises(TraceError, match=words) as raised:
        sa.plan(region(REFUSED[words], check_vma=False), X, W, mesh=MESH)
    assert "test_manual.py:" in str(raised.value)


def test_a_region_is_planned_on_the_axes_it_was_traced_for():
    plan = sa.plan(lambda x, w: region(product)(x, w), X, W, mesh=MESH)
    with pytest.raises(StrategyError, match=r"test_manual.py:\d+ is traced for X=2, here X is 4"):
        plan.replan(sa.Strategy(sa.Mesh({"X": 4, "Y": 2})))
    with pytest.raises(StrategyError, match="here Y is a symbol"):
        plan.replan(sa.Strategy(sa.Mesh(MESH.shape, symbolic=True)))
    with pytest.raises(SymbolError, match="Plan the function at numbers"):
        sa.plan(region(product), jax.ShapeDtypeStruct((B, 8), "float32"), W, mesh=MESH)


def test_an_axis_of_vmap_and_one_of_the_mesh_in_one_mean():
    """The dimension of `vmap` is reduced on each device; the mesh axis is sent."""
    x = np.arange(48, dtype="float32").reshape(8, 6)

    def centred(x):
        return jax.vmap(lambda v: v - jax.lax.pmean(v, ("batch", "X")), axis_name="batch")(x)

    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((4,), ("X",), axis_types=auto)
    region = jax.shard_map(centred, mesh=mesh, in_specs=P("X"), out_specs=P("X"), check_vma=False)
    plan = sa.plan(region, x)
    assert plan.mesh == sa.Mesh({"X": 4})
    assert plan.verify().ok
    assert plan.collectives()[["kind", "mesh_axes", "wire_bytes"]].values.tolist() == [
        ["all_reduce", "X", 36]
    ]
    np.testing.assert_allclose(plan.lower()(x), x - x.mean(0), atol=1e-5)
