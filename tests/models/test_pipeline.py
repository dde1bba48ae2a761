"""`sa.pipeline`: equal to the layers one after the other, one permute per shift and direction."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from shardalg.tables import bytes_text

# (stages, microbatches, rounds, layers per round)
GPIPE = [(stages, m, 1, 1) for stages in (2, 4) for m in range(1, 9)]
CIRCULAR = [(n, m, r, 1) for n in (2, 4) for m in range(n, 9) for r in range(1, 5)]
SOME = [(2, 1, 1, 2), (4, 3, 1, 1), (2, 3, 3, 1), (4, 4, 2, 2)]


def layer(weights, x):
    hidden = jnp.maximum(jnp.einsum("bm,mh->bh", x, weights["in"]), 0)
    return x + jnp.einsum("bh,hm->bm", hidden, weights["out"])


def sequential(weights, x):
    return jax.lax.scan(lambda x, w: (layer(w, x), None), x, weights)[0]


def gradient(fn):
    return lambda weights, x, dy: jax.vjp(fn, weights, x)[1](dy)


@cache
def data(layers, batch):
    """Whole numbers, so that sums in any order are the same numbers."""
    rng = np.random.default_rng(layers)

    def draw(*shape):
        return jnp.asarray(rng.integers(-1, 2, shape) * (rng.random(shape) < 0.5), "float32")

    return {"in": draw(layers, 4, 8), "out": draw(layers, 8, 4)}, draw(batch, 4), draw(batch, 4)


def of(stages, microbatches, rounds, count, **more):
    pipe = sa.pipeline(layer, stages=stages, microbatches=microbatches, rounds=rounds, **more)
    return pipe, *data(stages * rounds * count, 4 * microbatches)


def planned(pipe, weights, x, dy, *, batch="X"):
    mesh = sa.Mesh({"L": pipe.schedule.stages, "X": 2, "Y": 4 // pipe.schedule.stages})
    specs = ({"in": P("L", None, None, "Y"), "out": P("L", None, "Y")}, P(batch), P(batch))
    arguments = (pipe.stack(weights), x, dy)
    grads = (specs[0], specs[1])
    fn = gradient(pipe)
    return sa.plan(fn, *arguments, mesh=mesh, in_shardings=specs, out_shardings=grads), arguments


def check_as_jax_runs_it(case, **more):
    pipe, weights, x, dy = of(*case, **more)
    made = jax.jit(jax.vjp, static_argnums=0)(pipe, pipe.stack(weights), x)
    np.testing.assert_array_equal(made[0], sequential(weights, x))
    stacked, by_x = made[1](dy)
    want = gradient(sequential)(weights, x, dy)
    jax.tree.map(np.testing.assert_array_equal, (pipe.unstack(stacked), by_x), want)


def check_on_devices(case, remat="none"):
    pipe, weights, x, dy = of(*case, remat=remat)
    plan, arguments = planned(pipe, weights, x, dy)
    stacked, by_x = plan.lower()(*arguments)
    want = gradient(sequential)(weights, x, dy)
    jax.tree.map(np.testing.assert_array_equal, (pipe.unstack(stacked), by_x), want)
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    simulated = simulate(plan.program, plan.graph, *flat)
    for got, leaf in zip(simulated, jax.tree.leaves((stacked, by_x)), strict=True):
        np.testing.assert_array_equal(got, leaf)
    assert plan.verify().ok


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", SOME, ids=str)
def test_is_the_layers_one_after_the_other(case):
    check_as_jax_runs_it(case)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("case", "remat"), list(zip(SOME, ["none", "layer", "stage", "layer"], strict=True)), ids=str
)
def test_runs_on_devices_and_is_proved(case, remat):
    check_on_devices(case, remat)


@pytest.mark.slow
@pytest.mark.parametrize("case", GPIPE + CIRCULAR, ids=str)
def test_every_schedule(case):
    check_as_jax_runs_it(case)
    check_on_devices(case)


STREAMED = [(2, 4, 1, 1), (4, 8, 1, 2), (4, 4, 2, 1)]


def check_streamed(case, batch="X"):
    """Microbatches on all stages: the same numbers, two permutes per iteration and direction."""
    pipe, weights, x, dy = of(*case, stream_io=True)
    plan, arguments = planned(pipe, weights, x, dy, batch=batch)
    stacked, by_x = plan.lower()(*arguments)
    want = gradient(sequential)(weights, x, dy)
    jax.tree.map(np.testing.assert_array_equal, (pipe.unstack(stacked), by_x), want)
    assert plan.verify().ok
    assert in_the_loop(plan, "L") == [("collective_permute", pipe.schedule.iterations)] * 4
    return plan


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("case", "batch"), list(zip(STREAMED, ["L", "X", "L"], strict=True)), ids=str
)
def test_microbatches_on_all_stages(case, batch):
    check_streamed(case, batch)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in GPIPE + CIRCULAR if c[1] % c[0] == 0], ids=str)
def test_every_schedule_streams(case):
    check_as_jax_runs_it(case, stream_io=True)
    for batch in ("X", "L"):
        check_streamed(case, batch)


def test_streamed_microbatches_take_less_memory():
    """M / L of the microbatches in place of M on each stage, to enter and to leave."""

    def peak(**more):
        pipe, weights, _, _ = of(4, 64, 1, 1, **more)
        x = jax.ShapeDtypeStruct((64 * 64, 4), "float32")
        specs = ({"in": P("L"), "out": P("L")}, P(("L", "X")))
        plan = sa.plan(
            pipe,
            pipe.stack(weights),
            x,
            mesh=sa.Mesh({"L": 4, "X": 2}),
            in_shardings=specs,
            out_shardings=P(("L", "X")),
        )
        return plan.cost("tpu_v3").peak_memory_bytes

    assert peak(stream_io=True) < 0.5 * peak()


def in_the_loop(plan, axis):
    """Return kinds and counts of collectives along an axis that run more than once a step."""
    rows = plan.collectives().to_dict("records")
    return [
        (r["kind"], r["executions"]) for r in rows if r["executions"] > 1 and axis in r["mesh_axes"]
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "batch"),
    [(SOME[1], "X"), (SOME[2], "L"), (SOME[3], ("X", "L")), (SOME[0], "L")],
    ids=str,
)
def test_one_permute_per_shift_and_direction(case, batch):
    """Also where the axis of the stages is data parallel outside."""
    pipe, weights, x, dy = of(*case)
    plan, _ = planned(pipe, weights, x, dy, batch=batch)
    shifts = ("collective_permute", pipe.schedule.iterations)
    assert in_the_loop(plan, "L") == [shifts, shifts]
    forward = plan.replan(plan_strategy(plan, batch))
    assert in_the_loop(forward, "L") == [shifts, shifts]


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("stream", [False, True], ids=["at the ends", "on all stages"])
@pytest.mark.parametrize(
    ("case", "batch"),
    [(STREAMED[0], ("X", "L")), (STREAMED[0], ("L", "X")), ((2, 2, 2, 1), ("L", "X"))],
    ids=str,
)
def test_other_axes_of_a_batch_that_is_on_the_stages_axis_stay_its_own(case, batch, stream):
    """Both axes were lost where the batch meets the stages: X computed alike, and was gathered."""
    pipe, weights, x, dy = of(*case, stream_io=stream)
    plan, arguments = planned(pipe, weights, x, dy, batch=batch)
    alone, _ = planned(pipe, weights, x, dy, batch="X")
    assert plan.cost("tpu_v3").flops == pytest.approx(alone.cost("tpu_v3").flops, rel=0.01)
    tables = [
        made.collectives()[["kind", "mesh_axes", "executions", "wire_bytes"]]
        for made in (plan, alone)
    ]
    inside = [sorted(t[t["executions"] > 1].values.tolist()) for t in tables]
    assert inside[0] == inside[1]
    found = simulate(plan.program, plan.graph, *map(np.asarray, jax.tree.leaves(arguments)))
    want = gradient(sequential)(weights, x, dy)
    stacked = jax.tree.unflatten(jax.tree.structure(weights), found[:-1])
    got = pipe.unstack(jax.tree.map(jnp.asarray, stacked)), found[-1]
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert plan.verify().ok


def once_a_step(case, remat="none"):
    """Return the plan with deferred sums, checked against layers one after the other."""
    pipe, weights, x, dy = of(*case, remat=remat)
    plain, arguments = planned(pipe, weights, x, dy)
    once = sa.Options(switches=sa.Switches(defer_in_loops=True))
    plan = plain.replan(given_strategy(plain), options=once)
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    *stacked, by_x = simulate(plan.program, plan.graph, *flat)
    stacked = jax.tree.unflatten(jax.tree.structure(weights), map(jnp.asarray, stacked))
    want = gradient(sequential)(weights, x, dy)
    jax.tree.map(np.testing.assert_array_equal, (pipe.unstack(stacked), by_x), want)
    assert plan.verify().ok, plan.verify().refuted
    return plain, plan


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("case", "remat"), list(zip(SOME[1:], ["none", "stage", "layer"], strict=True)), ids=str
)
def test_gradients_are_reduced_once_a_step(case, remat):
    """Weights of a round, which are rows of a stage's weights, count too."""
    plain, plan = once_a_step(case, remat)
    assert "all_reduce" in {kind for kind, _ in in_the_loop(plain, "X")}
    assert "all_reduce" not in {kind for kind, _ in in_the_loop(plan, "X")}
    reduced = [r for r in plan.collectives().to_dict("records") if r["mesh_axes"] == "X"]
    assert [r["executions"] for r in reduced if r["kind"] == "all_reduce"] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("case", GPIPE + CIRCULAR, ids=str)
def test_every_schedule_reduces_gradients_once(case):
    """There is one permute per shift and direction, and nothing else along the stages."""
    pipe, _, _, _ = of(*case)
    shifts = ("collective_permute", pipe.schedule.iterations)
    for plan in once_a_step(case):
        assert in_the_loop(plan, "L") == [shifts, shifts]
    kinds = {kind for kind, _ in in_the_loop(plan, "X")}
    assert "all_reduce" not in kinds


def given_strategy(plan):
    specs = ({"in": P("L", None, None, "Y"), "out": P("L", None, "Y")}, P("X"))
    return sa.Strategy(plan.mesh, (*specs, P("X")), specs)


def plan_strategy(plan, batch):
    """Weights on the stages alone: no in-layer sharding, all of Y for the batch."""
    both = (*batch, "Y") if isinstance(batch, tuple) else (batch, "Y")
    return sa.Strategy(plan.mesh, ({"in": P("L"), "out": P("L")}, P(both), P(both)))


@pytest.mark.parametrize("rounds", [1, 2])
def test_completion_never_partitions_what_the_loop_indexes(rounds):
    """Though a batch that is split contiguously would put an axis there."""
    pipe, weights, x, dy = of(2, 4, rounds, 1)
    plan, _ = planned(pipe, weights, x, dy, batch=("X", "Y"))
    slots = [
        plan._sharded.shardings[value.index].dims[1]
        for value in plan.graph.values
        if value.type.shape[:2] == (2, 4) and len(value.type.shape) == 4
    ]
    assert len(slots) > 4
    assert not any(slots)


@pytest.mark.slow
def test_what_comes_before_and_after_may_be_anything():
    pipe, weights, _x, _dy = of(2, 4, 1, 1)
    table = jnp.arange(32.0).reshape(8, 4) % 3

    def model(table, weights, ids):
        y = pipe(weights, table[ids])
        return (y @ table.T).sum()

    def plain(table, weights, ids):
        return (sequential(weights, table[ids]) @ table.T).sum()

    ids = jnp.arange(16) % 8
    mesh = sa.Mesh({"L": 2, "X": 2})
    plan = sa.plan(
        jax.grad(model, (0, 1)),
        *(table, pipe.stack(weights), ids),
        mesh=mesh,
        in_shardings=(P(), P("L"), P(("X", "L"))),
    )
    got = plan.lower()(table, pipe.stack(weights), ids)
    want = jax.grad(plain, (0, 1))(table, weights, ids)
    np.testing.assert_array_equal(got[0], want[0])
    jax.tree.map(np.testing.assert_array_equal, pipe.unstack(got[1]), want[1])


def test_a_state_of_several_values():
    """Other inputs of a stage travel with the microbatch's activations."""

    def biased(weights, state):
        x, bias = state
        return layer(weights, x) + bias, bias

    _, weights, x, bias = of(2, 4, 2, 1)
    pipe = sa.pipeline(biased, stages=2, microbatches=4, rounds=2)
    got, same = pipe(pipe.stack(weights), (x, bias))
    want = jax.lax.scan(lambda s, w: (biased(w, s), None), (x, bias), weights)[0]
    np.testing.assert_array_equal(got, want[0])
    np.testing.assert_array_equal(same, bias)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("more", [{}, {"stream_io": True, "remat": "layer"}], ids=str)
def test_derivatives_of_either_mode_go_through_a_circular_pipeline(more):
    """The rotation had a gradient only; `jvp` and Hessian products were refused."""
    pipe, weights, x, dy = of(2, 4, 2, 1, **more)
    stacked = pipe.stack(weights)
    made = jax.jvp(lambda x: pipe(stacked, x), (x,), (dy,))
    want = jax.jvp(lambda x: sequential(weights, x), (x,), (dy,))
    jax.tree.map(np.testing.assert_array_equal, made, want)

    def curved(fn, weights):
        return jax.jvp(jax.grad(lambda x: (fn(weights, x) ** 2).sum()), (x,), (dy,))[1]

    np.testing.assert_array_equal(curved(pipe, stacked), curved(sequential, weights))
    several = jax.vmap(pipe, (None, 1), 1)(stacked, jnp.stack([x, dy], 1))
    np.testing.assert_array_equal(several[:, 1], sequential(weights, dy))


def wider(weights, x):
    return jnp.concatenate([x, x], 1)


def cast(weights, x):
    return layer(weights, x).astype("bfloat16")


BAD = [
    ({"stages": 0}, "stages must be an integer of at least 1, got 0"),
    ({"stages": True}, "stages must be an integer of at least 1, got True"),
    ({"microbatches": 2.5}, "microbatches must be an integer of at least 1, got 2.5"),
    ({"rounds": -1}, "rounds must be an integer of at least 1, got -1"),
    ({"stages": 4, "microbatches": 2, "rounds": 2}, "at least as many microbatches as stages"),
    (
        {"microbatches": 2, "stages": 4, "stream_io": True},
        "2 microbatches are not divisible by 4 stages.*Take microbatches=4",
    ),
    ({"axis": ("L", "Y")}, r"axis is \('L', 'Y'\): give the name of the mesh axis"),
    ({"remat": "all"}, "remat must be one of .*got 'all'"),
    ({"stage_fn": "layer"}, "stage_fn is a str, 'layer', no function"),
    ({"stage_fn": wider}, r"takes float32\[4, 4\] and makes float32\[4, 8\].*must be the same"),
    ({"stage_fn": cast}, r"makes bfloat16\[4, 4\].*Cast inside"),
    ({"stages": 3}, "8 layers are not divisible by 3 stages x 1 rounds = 3.*6 or 9 layers"),
    ({"rounds": 3}, "8 layers are not divisible by 2 stages x 3 rounds = 6.*6 or 12 layers"),
    ({"stages": 16}, "= 16: every stage runs as many layers in every round. Take 16 layers"),
    ({"microbatches": 5}, "batch of 16 is not divisible by 5 microbatches.*1, 2, 4, 8, 16"),
]


def test_a_batch_of_numpy_is_what_jax_makes_of_it():
    """The batch's 64 bits were compared with the 32 bits of a stage's result."""

    def counted(w, state):
        return {"x": layer(w, state["x"]), "n": state["n"] + 1}

    weights, x, _ = data(8, 16)
    batch = {"x": np.asarray(x, "float64"), "n": np.arange(16)}
    pipe = sa.pipeline(counted, stages=2, microbatches=4)
    made = pipe(pipe.stack(weights), batch)
    np.testing.assert_array_equal(made["x"], sequential(weights, x))
    np.testing.assert_array_equal(made["n"], np.arange(16) + 8)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (3.0, "a batch has a leaf 3.0, which is no array of samples: pass arrays"),
        ([[1.0, 2.0]], "a leaf 1.0, which is no array of samples"),
        (np.ones((0, 4)), "a batch without samples has no microbatches"),
    ],
    ids=["number", "lists", "empty"],
)
def test_what_is_no_batch(x, message):
    pipe = sa.pipeline(layer, stages=2, microbatches=4)
    with pytest.raises(sa.PipelineError, match=message):
        pipe(pipe.stack(data(8, 16)[0]), x)
    stage = sa.Stage(lambda w, x: x * w, jnp.ones(4), sa.Mesh({"X": 2}))
    with pytest.raises(sa.PipelineError, match=message):
        sa.unequal_pipeline([stage], x, microbatches=4)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 8)], ids=str)
def test_only_what_was_stacked_is_unstacked(shape):
    pipe = sa.pipeline(layer, stages=2, microbatches=4, rounds=2)
    with pytest.raises(sa.PipelineError, match=r"pass pipe.stack|3 x 2|6 layers are not") as raised:
        pipe.unstack(jnp.ones(shape))
    assert "\n" not in str(raised.value)


def run(weights, x, *, stage_fn, **given):
    pipe = sa.pipeline(stage_fn, **given)
    return pipe(pipe.stack(weights), x)


@pytest.mark.parametrize(("given", "message"), BAD, ids=[words for _, words in BAD])
def test_bad_input_says_what_to_write(given, message):
    weights, x, _ = data(8, 16)
    with pytest.raises(sa.PipelineError, match=message) as raised:
        run(weights, x, **{"stage_fn": layer, "stages": 2, "microbatches": 4, **given})
    assert "\n" not in str(raised.value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [np.int32(2), np.int64(2), np.uint8(2)])
def test_numbers_of_numpy_are_numbers(number):
    numbers = {"stages": number, "microbatches": number, "rounds": number}
    assert sa.pipeline(layer, **numbers) == sa.pipeline(layer, **dict.fromkeys(numbers, 2))
    assert run(*data(8, 16)[:2], stage_fn=layer, **numbers).shape == (16, 4)


UNSTACKED = [
    ({}, "weights are arrays of all layers, .* none is one"),
    ({"a": np.ones((4, 8, 8)), "s": 1.0}, r"weights\['s'\] is a number: .*jnp.stack"),
    ([[1.0, 2.0]], r"weights\[0\]\[0\] is a number"),
    ({"a": np.ones((8, 8)), "b": np.ones((4, 8))}, r"\['a'\] has 8, weights\['b'\] has 4"),
]


@pytest.mark.parametrize(("weights", "message"), UNSTACKED, ids=[words for _, words in UNSTACKED])
def test_weights_that_cannot_be_stacked(weights, message):
    pipe = sa.pipeline(lambda w, x: x, stages=2, microbatches=2)
    with pytest.raises(sa.PipelineError, match=message) as raised:
        pipe.stack(weights)
    assert "\n" not in str(raised.value)


def test_layers_of_different_numbers_and_a_batch_without_an_array():
    pipe = sa.pipeline(lambda w, x: x, stages=2, microbatches=2)
    with pytest.raises(sa.PipelineError, match=r"weights\[0\] has 4, weights\[1\] has 8"):
        pipe((jnp.ones((2, 2, 8)), jnp.ones((2, 4, 8))), jnp.ones((4, 8)))
    with pytest.raises(sa.PipelineError, match=r"x is \{\}, without an array"):
        pipe(jnp.ones((2, 2, 8)), {})


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("more", [{"rounds": 1}, {"rounds": 2}, {"stream_io": True}], ids=str)
def test_random_keys_pass_through_the_stages(more):
    def dropped(w, x):
        keys = jax.vmap(jax.random.split)(x["k"])
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (8,)))(keys[:, 0])
        return {"x": jnp.where(kept, jnp.tanh(x["x"] @ w), x["x"]), "k": keys[:, 1]}

    weights, x = jnp.ones((4, 8, 8)) / 8, jnp.ones((8, 8))
    batch = {"x": x, "k": jax.random.split(jax.random.key(0), 8)}
    pipe = sa.pipeline(dropped, stages=2, microbatches=4, remat="layer", **more)

    def loss(weights, x, k):
        made = pipe(weights, {"x": x, "k": k})
        return (made["x"] ** 2).sum(), made

    want, got = batch, loss(pipe.stack(weights), **batch)[1]
    for w in weights:
        want = dropped(w, want)
    np.testing.assert_allclose(got["x"], want["x"], rtol=1e-5)
    assert got["k"].dtype == batch["k"].dtype
    np.testing.assert_array_equal(*map(jax.random.key_data, (got["k"], want["k"])))
    assert jax.grad(loss, has_aux=True)(pipe.stack(weights), **batch)[0].shape == (2, 2, 8, 8)
    given = {"mesh": sa.Mesh({"L": 2}), "in_shardings": (P("L"), None)}
    plan = sa.plan(pipe, pipe.stack(weights), batch, **given)
    in_loop = [row["kind"] for row in plan.collectives_table if "scan" in row["region"]]
    assert set(in_loop) == {"collective_permute"}


def test_weights_that_are_not_stacked():
    weights, x, _ = data(8, 16)
    pipe = sa.pipeline(layer, stages=4, microbatches=4)
    with pytest.raises(sa.PipelineError, match=r"leaf of shape \(8, 4, 8\).*pass pipe.stack"):
        pipe(weights, x)


def test_a_strategys_spec_for_the_state_does_not_count_what_vmap_added(tmp_path):
    """The spec slid by a dimension: L on the models, Y on the samples."""
    pipe, weights, x, _ = of(2, 2, 1, 1)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4, 1), (pipe.stack(weights), x))
    mesh = sa.Mesh({"L": 2, "X": 2, "Y": 2})
    strategy = sa.Strategy(mesh, sites={"pipeline_state": P("L", None, "Y")})
    plan = sa.plan(jax.vmap(pipe, 1, 1), *many, strategy=strategy)
    pairs = zip(plan.graph.sites, plan.sharded.annotations.sites, strict=True)
    assert {s.text() for site, s in pairs if site.name == "pipeline_state"} == {"[?, L, None, Y]"}
    plan.save(tmp_path / "plan.json")
    assert sa.load_plan(tmp_path / "plan.json").text() == plan.text()
    wrong = sa.Strategy(mesh, sites={"pipeline_state": P("L", None, None, "Y")})
    with pytest.raises(sa.StrategyError, match=r"f32\[4,2,4,4\], written for shape \(2, 4, 4\)"):
        sa.plan(jax.vmap(pipe, 1, 1), *many, strategy=wrong)


def test_an_axis_that_the_mesh_lacks():
    pipe, weights, x, _ = of(2, 2, 1, 1, axis="Z")
    with pytest.raises(sa.StrategyError, match=r"'Z' .* which the mesh does not have"):
        sa.plan(pipe, pipe.stack(weights), x, mesh=sa.Mesh({"L": 2}))


@cache
def with_a_sum_in_the_loop():
    """Weight gradients of a data-parallel pipeline."""
    pipe, weights, x, dy = of(2, 4, 1, 1)
    step = gradient(pipe)
    given = {"mesh": sa.Mesh({"L": 2, "X": 2}), "in_shardings": (P("L"), P("X"), P("X"))}
    return sa.plan(step, pipe.stack(weights), x, dy, **given)


def test_what_the_pipeline_sends_stands_at_the_line_that_calls_it():
    rows = with_a_sum_in_the_loop().collectives_table
    shifts = [row["source"] for row in rows if row["kind"] == "collective_permute"]
    assert shifts
    assert all(re.fullmatch(r"test_pipeline.py:\d+ \(pipeline.py:\d+\)", one) for one in shifts)


def test_a_sum_of_every_iteration_is_explained_with_the_switch_that_defers_it():
    plan = with_a_sum_in_the_loop()
    sums = [n for n, row in enumerate(plan.collectives_table)
            if row["kind"] == "all_reduce" and row["executions"] > 1]  # fmt: skip
    said = str(plan.explain(sums[0]))
    switched = sa.Options(switches=sa.Switches(defer_in_loops=True))
    sent = bytes_text(plan.replan(options=switched).cost("v3").wire_bytes)
    assert "Switches(defer_in_loops=True) reduces it once, after the loop" in said
    assert f"to {sent} (" in said
    assert "Switches" not in str(plan.replan(options=switched).explain(0))


@pytest.mark.slow
def test_a_sum_that_a_layer_needs_is_not_said_to_wait():
    """Products of parts of the hidden dimension are added up before the next layer reads them."""
    pipe, weights, x, dy = of(2, 4, 1, 2, remat="layer")
    mesh = sa.Mesh({"L": 2, "X": 2, "Y": 2})
    inside = {"in": P("L", None, None, "Y"), "out": P("L", None, "Y")}
    specs = {"mesh": mesh, "in_shardings": (inside, P("X"), P("X"))}
    plan = sa.plan(gradient(pipe), pipe.stack(weights), x, dy, **specs)
    said = {
        row["mesh_axes"]: "defer_in_loops" in str(plan.explain(number))
        for number, row in enumerate(plan.collectives_table)
        if row["kind"] == "all_reduce" and row["executions"] > 1
    }
    assert said == {"X": True, "Y": False}


def test_a_plain_pipeline_is_warned_of_nothing():
    assert with_a_sum_in_the_loop().warnings().empty
