"""Regions that are manual along some axes: their bodies are planned on the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from benchmarks.oracle_bytes import our_wire_bytes
from shardalg.errors import StrategyError, TraceError
from shardalg.spmd.host.simulate import simulate
from tests.partition.planned import numbers

MESH = sa.Mesh({"L": 4, "Y": 2})
FORWARD = [(0, 1), (1, 2), (2, 3)]


def by_hand(body, in_specs, out_specs, **more):
    specs = {"in_specs": in_specs, "out_specs": out_specs, **more}
    return jax.shard_map(body, mesh=MESH.to_jax(), axis_names={"L"}, **specs)


def product(x, w):
    """Return the blocks' own product, permuted, and its sum."""
    y = jnp.tanh(x @ w)
    return lax.ppermute(y, "L", FORWARD), lax.psum(y, "L")


def every_collective(x):
    rows, place = lax.all_gather(x, "L", tiled=True), lax.axis_index("L")
    back = lax.psum_scatter(rows, "L", tiled=True) + lax.all_to_all(x, "L", 0, 0, tiled=True)
    some = lax.ppermute(x, "L", [(0, 2), (3, 1)]) + lax.ppermute(x, "L", [(3, 0), *FORWARD])
    return back + some * place + lax.pmax(x, "L") - lax.pmin(x, "L")


def annotated(x, w):
    h = sa.annotate(lax.with_sharding_constraint(x @ w, P(None, "Y")), "hidden")
    return lax.psum(h @ w.T, "L")


def nested(x, w):
    def inner(x, w):
        return lax.psum(x @ w, "Y")

    def outer(x, w):
        specs = {"in_specs": (P(None, "Y"), P("Y")), "out_specs": P()}
        made = jax.shard_map(inner, axis_names={"Y"}, **specs)(x, w)
        return lax.ppermute(made, "L", FORWARD)

    return by_hand(outer, (P("L"), P()), P("L"))(x, w)


def numbers_alone(x):
    """Literals among the results of a region, and among the operands of one in it."""

    def inner(number, w):
        return number * 2 + lax.psum(w, "Y"), lax.psum(1, "Y"), 2.5

    specs = {"in_specs": (P(), P(None, "Y")), "out_specs": P(), "axis_names": {"Y"}}
    return *jax.shard_map(inner, **specs)(3.0, lax.psum(x, "L")), lax.psum(2, "L"), True


X, W = numbers(8, 16), numbers(16, 8, seed=1)
HAND = by_hand(product, (P("L"), P()), (P("L"), P()))
CASES = {
    "product": (HAND, (X, W), (P("L"), P(None, "Y"))),
    "gradient": (
        jax.grad(lambda x, w: sum((y**2).sum() for y in HAND(x, w)), (0, 1)),
        (X, W), (P("L"), P(None, "Y")),
    ),
    "every collective": (by_hand(every_collective, P("L"), P("L")), (numbers(16, 8),), P("L", "Y")),
    "annotated": (by_hand(annotated, (P("L"), P()), P()), (X, W), (P("L"), P())),
    "nested": (nested, (X, W), (P("L"), P())),
    "numbers alone": (by_hand(numbers_alone, P("L"), P()), (X,), (P("L"),)),
    "a loop": (
        by_hand(
            lambda x, w: lax.scan(
                lambda x, w: (jax.checkpoint(jnp.tanh)(lax.ppermute(x, "L", FORWARD) @ w), None),
                x, w,
            )[0],
            (P("L"), P()), P("L"),
        ),
        (X, numbers(3, 16, 16, seed=1)), (P("L"), P(None, None, "Y")),
    ),
}  # fmt: skip


def right_and_proved(plan, fn, values, *, lowered=False):
    with jax.set_mesh(MESH.to_jax()):
        want = jax.tree.leaves(jax.jit(lambda *values: fn(*values))(*values))
    runs = [simulate(plan.program, plan.graph, *values)]
    for results in [*runs, plan.lower()(*values)] if lowered else runs:
        for found, wanted in zip(jax.tree.leaves(results), want, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert plan.verify().ok, plan.verify().refuted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_a_body_is_planned_on_the_automatic_axes(name):
    fn, values, specs = CASES[name]
    plan = sa.plan(fn, *values, mesh=MESH, in_shardings=specs)
    assert "shard_map" not in {node.primitive for node in plan.graph.nodes}
    assert not [r for r in plan.collectives_table if r["role"] == "weight"]
    right_and_proved(plan, fn, values, lowered=name in ("gradient", "every collective"))


PAIRS = {"neighbours": [[0, 1], [2, 3]], "far": [[0, 2], [1, 3]], "any": [[3, 0], [1, 2]]}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mesh", [MESH, sa.Mesh({"L": 4})], ids=["some axes", "all axes"])
@pytest.mark.parametrize("name", PAIRS)
def test_sums_over_groups_of_an_axis(name, mesh):
    """Batch normalisation across some devices uses such sums."""
    groups = {"axis_index_groups": PAIRS[name]}

    def joined(x, w):
        y = lax.psum(x, "L", **groups) * lax.pmax(x, "L", **groups)
        return y - lax.pmin(x, "L", **groups), lax.psum(w, "L", **groups)

    specs = {"in_specs": (P("L"), P()), "out_specs": (P("L"), P()), "check_vma": False}
    devices = jax.make_mesh(
        tuple(mesh.shape.values()), tuple(mesh.shape),
        axis_types=(jax.sharding.AxisType.Auto,) * len(mesh.shape),
        devices=jax.devices()[: mesh.size],
    )  # fmt: skip
    fn = jax.shard_map(joined, mesh=devices, axis_names={"L"}, **specs)
    plan = sa.plan(fn, X, W, mesh=mesh, in_shardings=(P("L"), P()))
    want = jax.jit(fn)(X, W)
    for found in (simulate(plan.program, plan.graph, X, W), plan.lower()(X, W)):
        for one, wanted in zip(found, want, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-5)
    assert plan.verify().ok


THREE = jax.make_mesh((2, 2, 2), tuple("abc"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
ALONG = {
    "a sum in parts": lambda x: lax.psum_scatter(jnp.stack([x, 2 * x]), "a"),
    "a sum in tiles": lambda x: lax.psum_scatter(x, "a", scatter_dimension=1, tiled=True),
    "all blocks": lambda x: lax.all_gather(x, "a", axis=1).sum(1),
    "all tiles": lambda x: lax.all_gather(x, "a", tiled=True)[1:5],
    "rows for columns": lambda x: lax.all_to_all(x, "a", 0, 1, tiled=True),
    "columns for rows": lambda x: lax.all_to_all(x, "a", 1, 0, tiled=True),
    "parts": lambda x: lax.all_to_all(jnp.stack([x, x + 1], 1), "a", 1, 2).reshape(4, -1),
    "a permutation": lambda x: lax.ppermute(x, "a", [(1, 0)]),
    "groups": lambda x: lax.psum(x, "a", axis_index_groups=[[1], [0]]) * lax.axis_index("b"),
    "nothing": lambda x: lax.all_gather(x[:, :0], "a", tiled=True).sum(1)[:4, None] + x,
}


BLOCKS = {(8, 16): P("a", "b"), (8, 8): P("b"), (4, 32): P(None, ("b", "a"))}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", BLOCKS)
@pytest.mark.parametrize("name", ALONG)
def test_what_is_sent_along_one_of_two_axes(name, shape):
    """The blocks along the other one, and the automatic axis, stay apart; integers are summed."""
    x = (4 * numbers(*shape)).astype("int32")
    border = {"in_specs": BLOCKS[shape], "out_specs": P(("a", "b")), "check_vma": False}
    fn = jax.shard_map(ALONG[name], mesh=THREE, axis_names={"a", "b"}, **border)
    want = jax.jit(fn)(x)
    plan = sa.plan(fn, x, mesh=THREE)
    for found in (*simulate(plan.program, plan.graph, x), plan.lower()(x)):
        np.testing.assert_allclose(found, want, rtol=1e-5)
    assert plan.verify().ok


@pytest.mark.parametrize("mesh", [MESH, sa.Mesh({"L": 4})], ids=["some axes", "all axes"])
@pytest.mark.parametrize(
    "pairs",
    [[(0, 1), (0, 2)], [(0, 1), (2, 1)], [(0, 1), (5, 2)], [(0, 1), (1, 4)], [(3, 0), (-1, 1)]],
)
def test_a_place_that_is_not_there_or_twice_is_refused_by_name(pairs, mesh):
    """JAX refuses such a permutation; planned on other axes the last pair counted."""
    fn = sa.manual(lambda x: lax.ppermute(x, "L", pairs), "L")
    with pytest.raises(TraceError, match=r"ppermute at test_subgroups.py:\d+ along .* with 4"):
        sa.plan(fn, X, mesh=mesh)


def test_places_are_counted_from_the_end_too():
    fn = by_hand(lambda x: lax.ppermute(x, "L", [(-1, 0), (0, -2)]), P("L"), P("L"))
    right_and_proved(sa.plan(fn, X, mesh=MESH), fn, (X,), lowered=True)


GROUPED = {
    "gathered": lambda x: lax.all_gather(x, "L", axis_index_groups=PAIRS["far"]),
    "of two sizes": lambda x: lax.psum(x, "L", axis_index_groups=[[0, 1, 2], [3]]),
}


@pytest.mark.parametrize("name", GROUPED)
def test_other_groups_are_refused_by_name(name):
    body = by_hand(GROUPED[name], (P("L"),), P("L"), check_vma=False)
    with pytest.raises(TraceError, match=r"test_subgroups.py:\d+ is over groups of an axis"):
        sa.plan(body, X, mesh=MESH)


def test_weights_stay_where_they_are():
    """2048 bytes were gathered at the region's border."""
    fn, values, specs = CASES["product"]
    plan = sa.plan(fn, *values, mesh=MESH, in_shardings=specs, out_shardings=(P("L", "Y"), P()))
    kinds = [r["kind"] for r in plan.collectives_table if r["mesh_axes"] == "L"]
    assert sorted(kinds) == ["all_reduce", "collective_permute"]
    assert our_wire_bytes(plan.program) < values[1].nbytes


def test_sites_inside_take_a_strategys_spec():
    fn, values, _ = CASES["annotated"]
    strategy = sa.Strategy(MESH, in_shardings=(P("L"), P()), sites={"hidden": P(None, "Y")})
    plan = sa.plan(fn, *values, strategy=strategy)
    layouts = [s for s in plan.sharded.annotations.sites if s is not None]
    assert "[?, None, Y]" in {layout.text() for layout in layouts}


STAGES, STEPS = 4, 4


def stage(w, x):
    return x + jax.nn.relu(x @ w[0]) @ w[1]


def piped_by_hand(w, xs):
    """Return a pipeline in which every device runs its own stage and sends its result on."""

    def body(w, xs):
        place, own = lax.axis_index("L"), jax.tree.map(lambda leaf: leaf[0], w)

        def step(state, x):
            state = jnp.where(place == 0, x, lax.ppermute(state, "L", FORWARD))
            state = jax.checkpoint(stage)(own, state)
            return state, state

        start = lax.pcast(jnp.zeros(xs.shape[1:]), ("L",), to="varying")
        return lax.scan(step, start, xs)[1][STAGES - 1 :][None]

    return by_hand(body, (P("L"), P()), P("L"))(w, xs)[-1]


def piped_by_vmap(w, xs):
    def step(state, x):
        first = lax.broadcasted_iota(jnp.int32, state.shape, 0) == 0
        shifted = jnp.pad(state, ((1, 0), (0, 0), (0, 0)))[:-1]
        state = jax.vmap(jax.checkpoint(stage))(w, jnp.where(first, x[None], shifted))
        return state, state

    start = lax.with_sharding_constraint(jnp.zeros((STAGES, *xs.shape[1:])), P("L"))
    return lax.scan(step, start, xs)[1][STAGES - 1 :, -1]


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_gradient", [False, True])
def test_a_pipeline_by_hand_costs_what_one_by_vmap_does(is_gradient):
    weights = 0.125 * numbers(STAGES, 8, 16), 0.125 * numbers(STAGES, 16, 8, seed=1)
    values = weights, numbers(STEPS + STAGES - 1, 4, 8, seed=2)
    specs = {"mesh": MESH, "in_shardings": ((P("L", None, "Y"), P("L", "Y")), P())}
    plans = []
    for fn in (piped_by_hand, piped_by_vmap):
        if is_gradient:
            fn = jax.grad(lambda w, xs, fn=fn: (fn(w, xs) ** 2).sum())
        plans.append(sa.plan(fn, *values, **specs))
        flat = jax.tree.leaves(values)
        with jax.set_mesh(MESH.to_jax()):
            want = jax.tree.leaves(jax.jit(fn)(*values))
        for found, wanted in zip(
            simulate(plans[-1].program, plans[-1].graph, *flat), want, strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
        assert plans[-1].verify().ok
    in_loops = [
        sorted((r["kind"], r["mesh_axes"], r["executions"], r["wire_bytes"]) for r in rows)
        for rows in ([r for r in p.collectives_table if "scan" in r["region"]] for p in plans)
    ]
    assert in_loops[0] == in_loops[1]
    assert [k[0] for k in in_loops[0]].count("collective_permute") == 1 + is_gradient
    seconds = [plan.cost("tpu_v3").step_time_s for plan in plans]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.15)


def test_manual_is_the_short_spelling():
    given = {"mesh": MESH, "in_shardings": (P("L", "Y"),)}
    values = (numbers(8, 6),)
    short = sa.manual(lambda x: lax.ppermute(x, "L", FORWARD), "L")
    long = by_hand(lambda x: lax.ppermute(x, "L", FORWARD), P("L"), P("L"))
    plans = [sa.plan(fn, *values, **given) for fn in (short, long)]
    assert str(plans[0].program) == str(plans[1].program)
    right_and_proved(plans[0], short, values)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (("L", "L"), "'L' twice"),
        ((), "no axis"),
        ("Z", r"'Z', which the mesh does not have"),
        (3, r"manual\(fn, 3\): axes must be one or several names"),
        (("L", None), "axes must be one or several names"),
        (iter("L"), "axes must be one or several names"),
    ],
)
def test_axes_that_cannot_be_manual_are_named(axes, words):
    with pytest.raises(TraceError, match=words):
        sa.plan(sa.manual(lambda x: x, axes), X, mesh=MESH)


@pytest.mark.parametrize("mesh", [MESH, {"L": 4}])
def test_a_mesh_that_jax_does_not_take_is_named(mesh):
    with pytest.raises(TraceError, match=r"needs a mesh of JAX.*to_jax\(\)"):
        sa.manual(lambda x: x, "L", mesh=mesh)


def test_an_axis_that_is_manual_already_is_named():
    inner = sa.manual(lambda x: x * 2, "L")
    with pytest.raises(TraceError, match="'L' is already manual"):
        sa.plan(sa.manual(lambda x: inner(x), "L"), X, mesh=MESH)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("activation", [lambda x: x, jax.nn.relu, jnp.tanh])
@pytest.mark.parametrize("is_cut", [False, True])
def test_experts_by_hand_send_what_they_say(activation, is_cut):
    """The second exchange's layout went back through the activation: four were sent, not two."""

    def experts(x, wide, thin):
        sent = lax.all_to_all(x, "L", 0, 1, tiled=True)
        made = activation(jnp.einsum("egm,emh->egh", sent, wide))
        return lax.all_to_all(jnp.einsum("egh,ehm->egm", made, thin), "L", 1, 0, tiled=True)

    fn = by_hand(experts, (P(None, "L"), P("L"), P("L")), P(None, "L"))
    given = numbers(8, 16, 16), numbers(8, 16, 32, seed=1), numbers(8, 32, 16, seed=2)
    cut = "Y" if is_cut else None
    specs = (P(None, "L"), P("L", None, cut), P("L", cut))
    plan = sa.plan(fn, *given, mesh=MESH, in_shardings=specs)
    assert [r["kind"] for r in plan.collectives_table if r["mesh_axes"] == "L"] == [
        "all_to_all"
    ] * 2
    assert our_wire_bytes(plan.program) <= (5120 if is_cut else 3072)  # XLA's, by Shardy
    right_and_proved(plan, fn, given)


def test_what_the_backward_pass_keeps_of_a_region_stays_cut():
    """A dimension with blocks of the region's axis is cut by the other axis behind it, too."""

    def experts(weights, x):
        sent = lax.all_to_all(x.reshape(4, 4, 16), "L", 0, 0)
        made = jax.nn.relu(sent @ weights["in"][0]) @ weights["out"][0]
        return lax.all_to_all(made, "L", 0, 0).reshape(16, 16)

    run = by_hand(experts, ({"in": P("L"), "out": P("L")}, P("L")), P("L"))
    weights = {"in": numbers(4, 16, 32), "out": numbers(4, 32, 16, seed=1)}
    specs = {"in": P("L", None, "Y"), "out": P("L", "Y")}, P("L")
    fn, arguments = (
        jax.grad(lambda w, x: (run(w, x) ** 2).sum(), (0, 1)),
        (weights, numbers(64, 16)),
    )
    plan = sa.plan(fn, *arguments, mesh=MESH, in_shardings=specs, out_shardings=specs)
    assert [r for r in plan.collectives_table if r["op"] == "annotate"] == []
    assert our_wire_bytes(plan.program) == 4352  # XLA, by Shardy: 5,120; GSPMD ends in a check
    assert plan.verify().ok
    want = jax.jit(fn)(*arguments)
    got = plan.lower()(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)


def summed(x, w):
    """Return the sum of the blocks' own products; it depends on the number of blocks."""
    return lax.psum(jnp.tanh(x @ w), "L") * lax.axis_size("L")


def laid_out(mesh, own=None):
    """Return a function that is manual along an axis of the planned mesh's size, or its own."""
    fn = sa.manual(summed, "L", in_specs=(P("L"), P()), out_specs=P(), mesh=own)
    return sa.plan(fn, X, W, mesh=mesh, in_shardings=(P("L"), P(None, "Y")))


OTHER = [{"L": 2, "Y": 2}, {"L": 8, "Y": 1}, {"L": 4, "Y": 2}]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", OTHER, ids=str)
def test_another_size_of_a_manual_axis_is_another_trace(sizes):
    """The trace belonged to the first mesh, with blocks of another size."""
    fresh = laid_out(sa.Mesh(sizes))
    named = laid_out(sa.Mesh(MESH.shape, symbolic=True))
    others = [named.at(**sizes), laid_out(MESH).replan(mesh=sa.Mesh(sizes))]
    others += [named.at(L=2).replan(mesh=sa.Mesh(sizes))]
    strategy = sa.Strategy(sa.Mesh(sizes), in_shardings=(P("L"), P(None, "Y")))
    for plan in (*others, laid_out(MESH).replan(strategy)):
        assert plan.text() == fresh.text()
    assert named.holds(**sizes) == (sizes["L"] == 4)
    found = others[0].lower()(X, W)
    want = np.tanh(X @ W).reshape(sizes["L"], -1, 8).sum(0) * sizes["L"]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_what_changes_with_the_blocks_is_listed():
    named = laid_out(sa.Mesh(MESH.shape, symbolic=True))
    first = next(iter(named.at(L=2).changes))
    assert (first["kind"], first["here"]) == ("blocks", "traced for blocks of L=2")
    assert "L = 4" in named.conditions()["condition"].tolist()
    assert not [row for row in named.at(Y=4).changes if row["kind"] == "blocks"]


def test_a_program_that_counts_the_blocks_is_another_one():
    """A strategy that names its sites needs as many of them."""

    def turned(x):
        for _ in range(lax.axis_size("L")):
            x = sa.annotate(lax.ppermute(x + 1, "L", FORWARD[:1]), "turn")
        return x

    mesh = sa.Mesh(MESH.shape, symbolic=True)
    fn = sa.manual(turned, "L", in_specs=P("L"), out_specs=P("L"))
    plan = sa.plan(fn, X, mesh=mesh, in_shardings=(P("L"),))
    (row,) = plan.at(L=2).changes
    assert "traced for blocks of L=2: " in row["here"]
    assert (
        plan.at(L=2).text()
        == sa.plan(fn, X, mesh=sa.Mesh({"L": 2, "Y": 2}), in_shardings=(P("L"),)).text()
    )
    given = plan.replan(sa.Strategy(mesh, in_shardings=(P("L"),), sites={"turn": P(None, "Y")}))
    with pytest.raises(StrategyError, match=r"site turn occurs 2 times .* 4 times here"):
        given.at(L=2)
    with pytest.raises(StrategyError, match="site turn occurs 2 times"):
        given.replan(mesh=sa.Mesh({"L": 2, "Y": 2}))


def test_a_region_of_its_own_mesh_is_the_same_everywhere():
    plan = laid_out(MESH, MESH.to_jax())
    moved = plan.replan(mesh=sa.Mesh({"L": 2, "Y": 4}))
    assert str(moved.graph) == str(plan.graph)


def test_a_loaded_plan_has_no_other_blocks(tmp_path):
    plan = laid_out(sa.Mesh(MESH.shape, symbolic=True))
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert loaded.at(Y=4).text() == plan.at(Y=4).text()
    with pytest.raises(StrategyError, match="no function to trace at L=2, not 4"):
        loaded.at(L=2)
    with pytest.raises(StrategyError, match="no function to trace at L=8, not 4"):
        loaded.replan(mesh=sa.Mesh({"L": 8, "Y": 1}))


def by_place(x, w):
    """Places take different branches, and share the weight."""

    def body(x, w):
        twice, summed = (lambda x: 2 * x @ w), (lambda x: x.sum(1, keepdims=True) + jnp.zeros(8))
        y = lax.cond(lax.axis_index("L") == 0, twice, summed, x)
        return lax.psum(y, "L")

    return by_hand(body, (P("L"), P()), P())(x, w)


def by_place_on_one_device(x, w):
    return 2 * x[:2] @ w + x[2:].reshape(3, 2, -1).sum((0, 2))[:, None]


def both_by_place(x, w):
    def body(x, w):
        y = lax.cond(lax.axis_index("L") == 0, lambda x: 2 * x @ w, lambda x: jnp.sin(x) @ w, x)
        return lax.psum(y, "L")

    return by_hand(body, (P("L"), P()), P())(x, w)


def both_by_place_on_one_device(x, w):
    return 2 * x[:2] @ w + jnp.sin(x[2:].reshape(3, 2, -1)).sum(0) @ w


def nested_on_one_device(x, w):
    made = (x @ w).reshape(4, 2, -1)
    return jnp.concatenate([0 * made[:1], made[:-1]]).reshape(8, -1)


GRADIENTS = {
    "one branch has the weight": (by_place, by_place_on_one_device),
    "both branches have it": (both_by_place, both_by_place_on_one_device),
    "a region in a region": (nested, nested_on_one_device),
}


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_branches_by_place_and_of_regions_in_regions(name):
    """Sums of a gradient were in branches; an inner region's values have the outer axis."""

    def gradient(fn):
        return jax.grad(lambda x, w: (fn(x, w) ** 2).sum(), (0, 1))

    fn, plain = map(gradient, GRADIENTS[name])
    plan = sa.plan(fn, X, W, mesh=MESH, in_shardings=(P("L"), P("Y")))
    assert "shard_map" not in {node.primitive for node in plan.graph.nodes}
    for found in (simulate(plan.program, plan.graph, X, W), plan.lower()(X, W)):
        for one, want in zip(found, plain(X, W), strict=True):
            np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-4)
    assert plan.verify().ok
