"""Fourier transforms along sharded dimensions run in stages with exchanges between them."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.graph.evaluate import evaluate
from shardalg.graph.ops.canonicalize.normalise import in_stages
from shardalg.graph.ops.canonicalize.transforms import stage_order
from shardalg.spmd.host.simulate import simulate

LINE, GRID = sa.Mesh({"X": 8}), sa.Mesh({"X": 4, "Y": 2})
FUSED = sa.Options(switches=sa.Switches(stage_transforms=False))


def real(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def drawn(*shape, seed=0):
    return (real(*shape, seed=seed) + 1j * real(*shape, seed=seed + 1)).astype("complex64")


def filtered(z):
    return jnp.fft.ifftn(jnp.fft.fftn(z) * 0.5)


def energy(x):
    return (jnp.abs(jnp.fft.rfftn(x)) ** 2).sum() + (jnp.fft.irfft2(jnp.fft.rfft2(x)) ** 3).sum()


def in_a_loop(z):
    step = lambda z, _: (jnp.fft.ifftn(2 * jnp.fft.fftn(z)), None)  # noqa: E731
    return jax.lax.scan(step, z, None, length=3)[0]


def exchanged(*sizes, itemsize=8, devices=8):
    """Bytes of an exchange on a mesh: all of a block except for the part that stays."""
    return (devices - 1) * int(np.prod(sizes)) // devices**2 * itemsize


C = (16, 16, 16)
HALF = (16, 16, 9)
CASES = {  # function, argument, mesh, layouts of argument and result, bytes
    "first": (jnp.fft.fftn, drawn(*C), LINE, P("X"), P(None, "X"), exchanged(*C)),
    "and back": (jnp.fft.fftn, drawn(*C), LINE, P("X"), P("X"), 2 * exchanged(*C)),
    "last": (jnp.fft.ifftn, drawn(*C), LINE, P(None, None, "X"), P("X"), exchanged(*C)),
    "pencils": (
        *(jnp.fft.fftn, drawn(*C), GRID, P("X", "Y"), P(None, "X", "Y")),
        (3 + 2) * 16**3 // 8 // 4 * 8,
    ),
    "real": (jnp.fft.rfftn, real(*C), LINE, P("X"), P(None, "X"), exchanged(*HALF)),
    "real, last": (
        *(jnp.fft.rfftn, real(*C), LINE, P(None, None, "X"), P("X")),
        exchanged(*C, itemsize=4) + exchanged(*HALF),
    ),
    "inverse real": (jnp.fft.irfftn, drawn(*HALF), LINE, P("X"), P(None, "X"), exchanged(*HALF)),
    "inverse real, last": (
        *(jnp.fft.irfftn, jnp.fft.rfftn(real(16, 16, 14)), LINE, P(None, None, "X"), P("X")),
        exchanged(16, 16, 8),
    ),
    "two dimensions": (jnp.fft.fft2, drawn(16, 16), LINE, P("X"), P(None, "X"), 8 * 7 * 4),
    "half that does not divide": (
        *(jnp.fft.irfft2, drawn(16, 9), LINE, P("X"), P("X")),
        2 * exchanged(16, 16),
    ),
    "in a batch": (jnp.fft.fft2, drawn(2, *C), LINE, P(None, None, "X"), P(None, "X"), None),
    "some axes": (
        *(lambda z: jnp.fft.fftn(z, axes=(0, 2)), drawn(*C), LINE, P("X"), P(None, None, "X")),
        exchanged(*C),
    ),
    "one after the other": (filtered, drawn(*C), LINE, P("X"), P("X"), 2 * exchanged(*C)),
    "a gradient": (jax.grad(energy), real(*C), LINE, P("X"), P("X"), None),
    "in a loop": (in_a_loop, drawn(*C), LINE, P("X"), P("X"), 6 * exchanged(*C)),
    "under vmap": (
        *(jax.vmap(jnp.fft.fft2), drawn(*C), GRID, P("X", "Y"), P("X", None, "Y")),
        16**3 // 8 // 2 * 8,
    ),
}


def sent(plan):
    return sum(row["wire_bytes_per_step"] for row in plan.collectives_table)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_a_transform_exchanges_blocks_and_gathers_nothing(name):
    fn, x, mesh, given, wanted, wire_bytes = CASES[name]
    layouts = {"mesh": mesh, "in_shardings": given, "out_shardings": wanted}
    plan = sa.plan(fn, x, **layouts)
    assert {row["kind"] for row in plan.collectives_table} == {"all_to_all"}
    assert wire_bytes is None or sent(plan) == wire_bytes
    assert sent(plan) <= sent(sa.plan(fn, x, options=FUSED, **layouts))
    want = np.asarray(fn(x))
    runs = [simulate(plan.program, plan.graph, np.asarray(x))[0], plan.lower()(x)]
    for found in runs:
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-5 * np.abs(want).max())
    assert plan.verify().ok, plan.verify().refuted


def test_whole_dimensions_are_transformed_at_once():
    """Nothing is exchanged for them, so that one kernel does all of it."""
    for given in (P(), P("X")):
        plan = sa.plan(jnp.fft.fft2, drawn(*C), mesh=LINE, in_shardings=given)
        assert [node.primitive for node in plan.graph.nodes] == ["fft"]


KINDS = {
    "fftn": lambda shape: drawn(*shape),
    "ifftn": lambda shape: drawn(*shape),
    "rfftn": lambda shape: real(*shape),
    "irfftn": lambda shape: drawn(*shape[:-1], shape[-1] // 2 + 1),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [2, 3])
def test_every_order_of_stages_is_the_transform(kind, rank):
    """The graph in stages and JAX's own transform, evaluated."""
    x = KINDS[kind]((4, 6, 5)[-rank:])
    fn = getattr(jnp.fft, kind)
    graph = sa.plan(fn, x, mesh=LINE).graph
    (node,) = graph.nodes_of(["fft"])
    for count in range(1, rank + 1):
        for split in itertools.combinations(range(rank), count):
            order = stage_order(node.signature, split)
            assert sorted(dim for stage in order for dim in stage) == list(range(rank))
            made = in_stages(graph, {node.index: order})
            (found,) = evaluate(made, x)
            np.testing.assert_allclose(found, fn(x), rtol=1e-4, atol=1e-4)


def random_case(seed):
    """Draw a transform of random dimensions in random shardings on a random mesh."""
    rng = random.Random(seed)
    rank = rng.randint(2, 4)
    shape = tuple(rng.choice((4, 6, 8, 9, 16)) for _ in range(rank))
    axes = tuple(sorted(rng.sample(range(rank), rng.randint(2, min(3, rank)))))
    kind = rng.choice(list(KINDS))
    x = KINDS[kind](shape) if axes[-1] == rank - 1 or kind in ("fftn", "ifftn") else None
    x = real(*shape) if x is None and kind == "rfftn" else x
    x = drawn(*shape) if x is None else x
    mesh = rng.choice((LINE, GRID))

    def layout():
        names = list(mesh.axis_names)
        dims = [None] * rank
        for name in names:
            dims[rng.randrange(rank)] = name
        return P(*dims)

    return (lambda x: getattr(jnp.fft, kind)(x, axes=axes)), x, mesh, layout(), layout()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(12))
def test_random_transforms_are_right_and_send_no_more_than_in_one(seed):
    fn, x, mesh, given, wanted = random_case(seed)
    layouts = {"mesh": mesh, "in_shardings": given, "out_shardings": wanted}
    plan, fused = (sa.plan(fn, x, options=o, **layouts) for o in (sa.Options(), FUSED))
    assert sent(plan) <= sent(fused)
    want = np.asarray(fn(x))
    (found,) = simulate(plan.program, plan.graph, x)
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-5 * np.abs(want).max())
    assert plan.verify().ok, plan.verify().refuted


def test_a_plan_in_stages_is_saved_and_planned_again(tmp_path):
    fn, x, mesh, given, wanted, _ = CASES["first"]
    plan = sa.plan(fn, x, mesh=mesh, in_shardings=given, out_shardings=wanted)
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert str(loaded.program) == str(plan.program)
    np.testing.assert_allclose(loaded.lower(fn=fn)(x), fn(x), rtol=1e-3, atol=1e-3)
    one = plan.replan(sa.Strategy(mesh, in_shardings=P(), out_shardings=P()))
    assert [node.primitive for node in one.graph.nodes] == ["fft"]
    again = one.replan(sa.Strategy(mesh, in_shardings=given, out_shardings=wanted))
    assert str(again.program) == str(plan.program)
    table = {row["options"]: row["wire_bytes"] for row in plan.switches().to_dict("records")}
    assert table["stage_transforms=False"] == 8 * table["as planned"]


def test_xla_is_asked_for_the_transform_as_it_is_written():
    fn, x, mesh, given, wanted, wire_bytes = CASES["first"]
    plan = sa.plan(fn, x, mesh=mesh, in_shardings=given, out_shardings=wanted)
    beside = plan.compare_xla()
    assert beside.wire_bytes == wire_bytes
    assert beside.xla_wire_bytes == 8 * wire_bytes  # all of it is gathered, once
    assert "8x more" in str(beside)


@pytest.mark.parametrize("policy", ["gspmd", "shardy", "cost"])
def test_every_policy_runs_transforms_in_stages(policy):
    fn, x, mesh, given, wanted, wire_bytes = CASES["first"]
    options = sa.Options(policy=policy)
    plan = sa.plan(fn, x, mesh=mesh, in_shardings=given, out_shardings=wanted, options=options)
    assert sent(plan) == wire_bytes
    assert plan.verify().ok
