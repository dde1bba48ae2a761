"""Rings of products: proved, simulated and lowered equal to one device, and never a byte more."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import ProgramError
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instructions import CollectiveMatmul
from shardalg.verify.verify import verify
from tests.partition.planned import check_equal, instructions, numbers, planned

LINE, MESH = sa.Mesh({"X": 8}), sa.Mesh({"X": 2, "Y": 4})
RING = sa.Options(hardware="h100", switches=sa.Switches(collective_matmul=True))
APART = sa.Options(hardware="h100")


def rings(plan):
    return [s for s in instructions(plan.program.block) if type(s.attributes) is CollectiveMatmul]


def sent(plan):
    return plan.collectives()["wire_bytes"].sum()


def product(x, w):
    return x @ w


def transposed(x, w):
    return jnp.einsum("km,kn->mn", x, w)


def batched(x, w):
    return jnp.einsum("bmk,bkn->bmn", x, w)


def layers(x, ws):
    def layer(x, w):
        return x @ w[0] @ w[1] / 8, None

    return lax.scan(layer, x, ws)[0]


# name -> function, arguments, in_shardings, out_shardings, mesh, how many rings
X, Y = "X", "Y"
CASES = {
    "the rows of the left": (
        product, (numbers(32, 8), numbers(8, 16)), (P(Y), P(None, Y)), P(None, Y), MESH, 1,
    ),
    "the columns of the right": (
        product, (numbers(16, 8), numbers(8, 32)), (P(Y), P(None, Y)), P(Y), MESH, 1,
    ),
    "a contracted dimension": (
        product, (numbers(64, 16), numbers(16, 8)), (P(X), P(Y)), P(X), MESH, 1,
    ),
    "the batch, and it is scattered": (
        batched, (numbers(8, 4, 16), numbers(8, 16, 4)), (P(None, None, Y), P(None, Y)), P(Y),
        MESH, 1,
    ),
    "the rows are scattered": (
        transposed, (numbers(16, 32), numbers(16, 8)), (P(Y), P(Y)), P(Y), MESH, 1,
    ),
    "the columns are scattered over two axes": (
        product, (numbers(8, 16), numbers(16, 24)), (P(None, (X, Y)), P((X, Y))), P(None, (Y, X)),
        MESH, 1,
    ),
    "two neighbours": (
        product, (numbers(8, 16), numbers(16, 8)), (P(X), P(None, X)), P(None, X), MESH, 1,
    ),
    "blocks of one row": (
        product, (numbers(8, 16), numbers(16, 16)), (P(X), P(None, X)), P(None, X), LINE, 1,
    ),
    "blocks of three rows, some padded": (
        product, (numbers(22, 16), numbers(16, 16)), (P(X), P(None, X)), P(None, X), LINE, 1,
    ),
    "whole numbers": (
        product, (numbers(32, 16, dtype=np.int32), numbers(16, 16, dtype=np.int32)),
        (P(None, X), P(X)), P(X), LINE, 1,
    ),
    "layers of a scan": (
        layers, (numbers(32, 16), (numbers(3, 2, 16, 16) / 4)), (P(X), P(None, None, X)), P(X),
        LINE, 1,
    ),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_a_ring_is_equal_proved_and_sends_as_much(name):
    fn, arguments, specs, results, mesh, count = CASES[name]
    given = {"mesh": mesh, "out_shardings": results}
    plan = planned(fn, arguments, specs, options=RING, **given)
    apart = planned(fn, arguments, specs, options=APART, **given)
    assert len(rings(plan)) >= count
    assert not rings(apart)
    assert sent(plan) == sent(apart) > 0
    assert plan.verify().ok
    check_equal(plan, fn, arguments)
    np.testing.assert_allclose(plan.lower()(*arguments), fn(*arguments), rtol=1e-5)


def test_a_ring_over_axes_in_another_order_than_the_mesh_has(tmp_path):
    """The chip has no latency or memory traffic, so that every ring pays."""
    figures = {"peak_flops_per_s.float32": 1e12, "link_bytes_per_s": 1e10}
    entries = {name: [{"value": value, "source": "none"}] for name, value in figures.items()}
    joined = {"asynchronous": ["collective_permute"], "source": "none"}
    chip = {"schema": "shardalg.hardware/1", "name": "eager", "interconnect": joined}
    (tmp_path / "eager.json").write_text(json.dumps({**chip, "figures": entries}))
    options = replace(RING, hardware=str(tmp_path / "eager.json"))

    def fn(x, w):
        return jnp.einsum("dabe,aced->abc", x, w)

    arguments = numbers(24, 8, 10, 24), numbers(8, 10, 24, 24)
    specs, results = (P(X), P(None, None, (X, Y))), P((Y, X))
    plan = planned(fn, arguments, specs, mesh=MESH, out_shardings=results, options=options)
    assert [step.attributes.ring for step in rings(plan)] == [MESH.digits("YX")]
    assert plan.verify().ok
    check_equal(plan, fn, arguments)
    np.testing.assert_array_equal(plan.lower()(*arguments), fn(*arguments))


def changed(program, make):
    """Return the program with its first ring changed."""
    found = list(program.block.instructions)
    (place, *_) = [n for n, s in enumerate(found) if type(s.attributes) is CollectiveMatmul]
    found[place] = make(found[place])
    return replace(program, block=replace(program.block, instructions=tuple(found)))


def one_way(**changes):
    """One direction of a ring with other numbers."""

    def make(step):
        first, *rest = step.attributes.directions
        numbers = {name: change(getattr(first, name)) for name, change in changes.items()}
        ways = (replace(first, **numbers), *rest)
        return replace(step, attributes=replace(step.attributes, directions=ways))

    return make


def with_along(change):
    return lambda step: replace(
        step, attributes=replace(step.attributes, along=change(step.attributes.along))
    )


def with_body(change):
    return lambda step: replace(
        step, attributes=replace(step.attributes, body=change(step.attributes.body))
    )


def other_digits(body):
    """Return the collective over the other axis, of as many devices."""
    found = [
        replace(s, attributes=replace(s.attributes, digits=SQUARE.digits("X")))
        if hasattr(s.attributes, "digits")
        else s
        for s in body.instructions
    ]
    return replace(body, instructions=tuple(found))


MUTANTS = {
    "the other way round": one_way(hop=lambda hop: -hop),
    "two places at once": one_way(hop=lambda hop: 2 * hop),
    "the blocks of the other way": one_way(step=lambda step: -step),
    "one block late": one_way(start=lambda start: start + 1),
    "one step fewer": one_way(products=lambda n: n - 1),
    "one step more": one_way(products=lambda n: n + 1),
    "a row fewer": one_way(size=lambda size: size - 1),
    "a row further": one_way(first=lambda first: first + 1),
    "one direction alone": lambda step: replace(
        step, attributes=replace(step.attributes, directions=step.attributes.directions[:1])
    ),
    "a direction twice": lambda step: replace(
        step, attributes=replace(step.attributes, directions=step.attributes.directions * 2)
    ),
    "other dimensions": with_along(lambda along: tuple(d if d is None else 1 - d for d in along)),
    "a dimension more": with_along(lambda along: tuple(d or 0 for d in along)),
    "no dimension of the result": with_along(lambda along: (*along[:-1], None)),
    "another axis": with_body(other_digits),
    "instructions swapped": with_body(
        lambda body: replace(body, instructions=body.instructions[::-1])
    ),
    "the collective alone": with_body(
        lambda body: replace(body, instructions=body.instructions[:1])
    ),
}
SQUARE = sa.Mesh({"X": 4, "Y": 4})
ATTACKED = {
    "gathered": (product, (numbers(16, 8), numbers(8, 16)), (P(Y), P(None, Y)), P(None, Y)),
    "summed": (product, (numbers(16, 16), numbers(16, 16)), (P(), P(Y)), P()),
    "scattered": (transposed, (numbers(16, 32), numbers(16, 8)), (P(Y), P(Y, X)), P(Y, X)),
}
# What is computed or written once more, and a dimension that nothing reads.
HARMLESS = {
    ("gathered", "one step more"), ("gathered", "a direction twice"),
    ("scattered", "a direction twice"), ("scattered", "no dimension of the result"),
}  # fmt: skip


@pytest.fixture(scope="module", params=ATTACKED)
def attacked(request):
    fn, arguments, specs, results = ATTACKED[request.param]
    plan = planned(fn, arguments, specs, mesh=SQUARE, out_shardings=results, options=RING)
    assert rings(plan)
    assert plan.verify().ok
    return request.param, plan, fn(*arguments), arguments


@pytest.mark.sampled(21)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_ring_that_is_tampered_with_is_refuted(attacked, name):
    form, plan, wanted, arguments = attacked
    mutant = changed(plan.program, MUTANTS[name])
    if mutant == plan.program:
        return
    assert not verify(plan.sharded, mutant).ok
    try:
        right = np.array_equal(simulate(mutant, plan.graph, *arguments)[0], wanted)
    except (ProgramError, ValueError, IndexError, KeyError, AttributeError):
        right = False
    assert right == ((form, name) in HARMLESS)


def wide(x, w):
    return x @ w


def priced(options, *, sizes=(4096, 2048, 8192), dtype="bfloat16"):
    m, k, n = sizes
    x, w = jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)
    specs = (P("X"), P(None, "X"))
    return sa.plan(
        wide, x, w, mesh=LINE, in_shardings=specs, out_shardings=P(None, "X"), options=options
    )


def test_a_step_takes_the_longer_of_a_permute_and_a_product():
    """Computed by hand, for a gathered operand whose blocks of 512 rows are multiplied 8 times."""
    ring, apart = priced(RING), priced(APART)
    assert len(rings(ring)) == 1
    # The rates of the data sheet, for which the times can be computed by hand.
    chip = sa.Hardware.load("h100").on("datasheet").with_own_links()
    half = 2 * 256 * 2048 * 1024 / chip.peak("bfloat16")  # rows of one direction
    moved = (256 * 2048 + 2048 * 1024 + 256 * 1024) * 2 / chip.hbm_bytes_per_s
    product = 2 * max(half, moved)
    permute = 512 * 2048 * 2 / chip.link_bytes_per_s + chip.latency_s
    assert ring.cost(chip).step_time_s == pytest.approx(product + 7 * max(product, permute))
    assert ring.cost(chip).compute_s == apart.cost(chip).compute_s
    assert ring.cost(chip).step_time_s < apart.cost(chip).step_time_s
    scheduled = ring.cost(chip, overlap="dependences").step_time_s
    assert scheduled == pytest.approx(ring.cost(chip).step_time_s)
    assert ring.cost(chip).wire_bytes == apart.cost(chip).wire_bytes


def test_a_ring_is_made_only_where_it_is_faster():
    """Small products read all of the other operand for each block: slower than a gather."""
    plan = priced(RING, sizes=(64, 2048, 65536))
    assert [row["kind"] for row in plan.collectives_table] == ["all_gather"]
    assert not rings(plan)


def test_switches_list_what_rings_are_worth():
    table = priced(APART).switches().set_index("options")
    row, before = table.loc["collective_matmul=True"], table.loc["as planned"]
    assert row["wire_bytes"] == before["wire_bytes"]
    assert row["peak_memory_bytes"] < before["peak_memory_bytes"]


def test_what_is_gathered_for_several_goes_round_for_none():
    """A ring would send the operand once for each reader."""
    arguments = numbers(32, 8), numbers(8, 16), numbers(8, 16, seed=1)
    specs = (P("X"), P(None, "X"), P(None, "X"))
    plan = planned(
        lambda x, q, k: (x @ q, x @ k), arguments, specs, mesh=LINE, options=RING,
        out_shardings=(P(None, "X"), P(None, "X")),
    )  # fmt: skip
    assert not rings(plan)
    assert len(plan.collectives()) == 1


def test_where_no_permute_is_started_ahead_a_ring_waits_for_each():
    """TPU v3's compiler has no asynchronous permutes: a ring saves it nothing."""
    waits = sa.Options(hardware="tpu_v3", switches=sa.Switches(collective_matmul=True))
    assert not rings(priced(waits))
    plan = priced(RING)
    assert not any(plan.cost("tpu_v3").table()["overlappable"])
    table = plan.cost("h100").table()
    named = dict(zip(table["kind"], table["overlappable"], strict=True))
    assert named == {"all_gather": True, "contraction": False}


def test_overlap_of_what_the_compiler_starts_ahead():
    """Weights are gathered during the previous layer; a v4 does not overlap them."""

    def layers(x, *weights):
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    types = [jax.ShapeDtypeStruct((4096, 1024), "bfloat16")]
    types += [jax.ShapeDtypeStruct((1024, 1024), "bfloat16")] * 3
    plan = sa.plan(layers, *types, mesh=LINE, in_shardings=(P("X"),) * 4, out_shardings=P("X"))
    assert [row["kind"] for row in plan.collectives_table] == ["all_gather"] * 3

    def step(chip, overlap):
        return plan.cost(chip, overlap=overlap).step_time_s

    assert step("tpu_v4", "dependences") < step("tpu_v4", "none")
    assert step("tpu_v4", "asynchronous") == pytest.approx(step("tpu_v4", "none"))
    assert step("h100", "asynchronous") == step("h100", "dependences") < step("h100", "none")


def feed_forward(x, up, down):
    return jnp.maximum(x @ up, 0) @ down


def attention(x, query, out):
    heads = jnp.einsum("bsm,mhd->bshd", x, query)
    return jnp.einsum("bshd,hdm->bsm", jnp.tanh(heads), out)


def of_a_layer(name, options, *, gradient=False, rows=64):
    """Return a layer with rows and weights along the same axis, or its gradient.

    Rows lie so at both ends; between them the hidden dimension, or the heads, are cut.
    """
    rng = np.random.default_rng(0)
    layer, weights = {
        "feed-forward": (feed_forward, ((32, 64), (64, 32))),
        "attention": (attention, ((32, 8, 8), (8, 8, 32))),
    }[name]
    shapes = ((2, rows, 32), *weights)
    arguments = [rng.normal(size=s).astype("float32") for s in shapes]
    specs = (P(None, "X"), P(None, "X"), P("X"))

    def fn(x, *weights):
        if not gradient:
            return layer(x, *weights)
        y, back = jax.vjp(layer, x, *weights)
        return y, back(x)

    results = (P(None, "X"), specs) if gradient else P(None, "X")
    plan = sa.plan(
        fn, *arguments, mesh=LINE, in_shardings=specs, out_shardings=results, options=options,
        roles=("data", "parameters", "parameters"),
    )  # fmt: skip
    return plan, fn, arguments


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("name", ["feed-forward", "attention"])
def test_layers_run_as_rings(name, gradient):
    plan, fn, arguments = of_a_layer(name, RING, gradient=gradient)
    apart = of_a_layer(name, APART, gradient=gradient)[0]
    assert len(rings(plan)) >= 2
    assert sent(plan) == sent(apart)
    assert plan.verify().ok
    wanted = jax.tree.leaves(fn(*arguments))
    found = simulate(plan.program, plan.graph, *arguments), plan.lower()(*arguments)
    for results in found:
        for result, want in zip(jax.tree.leaves(results), wanted, strict=True):
            np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-3)


def test_temporary_memory_is_below_that_of_what_is_gathered(show):
    """A feed-forward layer of 1,024 rows, compiled: nobody holds all rows, nor their sums."""

    def layer(x, up, down):
        hidden = jax.NamedSharding(LINE.to_jax(), P(None, None, "X"))
        return jnp.maximum(lax.with_sharding_constraint(x @ up, hidden), 0) @ down

    types = [jax.ShapeDtypeStruct(s, "float32") for s in ((2, 512, 256), (256, 1024), (1024, 256))]
    given = {"mesh": LINE, "in_shardings": (P(None, "X"), P(None, "X"), P("X"))}
    temp, predicted = {}, {}
    for name, options in (("ring", RING), ("gathered", APART)):
        plan = sa.plan(layer, *types, out_shardings=P(None, "X"), options=options, **given)
        assert len(rings(plan)) == (2 if name == "ring" else 0)
        temp[name] = plan.lower().compiled.memory_analysis().temp_size_in_bytes
        predicted[name] = plan.memory.peak_bytes
    show(f"temporary bytes {temp}, peaks of the plans {predicted}")
    assert temp["ring"] < 0.6 * temp["gathered"]
    assert predicted["ring"] < predicted["gathered"]


def test_sums_in_the_order_of_the_ring():
    """Infinities and NaNs come through; bfloat16 is rounded once a step, as it is sent."""
    x, w = numbers(32, 16), numbers(16, 16)
    x[0, 0], x[1, 1], x[2, 2:4] = np.inf, np.nan, (np.inf, -np.inf)
    specs, given = (P(None, "X"), P("X")), {"mesh": LINE, "out_shardings": P("X")}
    plan = planned(product, (x, w), specs, options=RING, **given)
    assert rings(plan)
    wanted = product(jnp.asarray(x), w)
    for found in (simulate(plan.program, plan.graph, x, w)[0], plan.lower()(x, w)):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    short = [jnp.asarray(numbers(32, 16, seed=seed), "bfloat16") for seed in (1, 2)]
    plan = planned(transposed, (short[0], short[1]), (P("X"), P("X")), options=RING, **given)
    assert rings(plan)
    wanted = np.float64(transposed(*short))
    for found in (simulate(plan.program, plan.graph, *short)[0], plan.lower()(*short)):
        np.testing.assert_allclose(np.float64(found), wanted, rtol=2.0**-7, atol=2.0**-6)
