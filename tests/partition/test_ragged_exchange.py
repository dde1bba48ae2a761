"""`jax.lax.ragged_all_to_all` in manual regions: simulated, checked, priced; experts on devices."""

import random
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError, ProgramError
from shardalg.plan.running import executable
from shardalg.spmd.host.simulate import simulate
from shardalg.verify.verify import verify
from tests.mutate.tampering import Subject, mutant
from tests.partition.planned import kinds, numbers, planned

DEVICES = 4
MESH = sa.Mesh({"x": DEVICES})


def on_blocks(body, mesh=MESH, count=6, **more):
    """Return the body as a `shard_map` whose operands and result are sharded along x."""
    specs = {"in_specs": (P("x"),) * count, "out_specs": P("x")}
    return jax.shard_map(body, **{"mesh": mesh.to_jax(), **specs, **more})


def exchange(*operands):
    return lax.ragged_all_to_all(*operands, axis_name="x")


EXCHANGE = on_blocks(exchange)
N, ROOM, WIDTH = 12, 20, 3


def slices(rng, each, room=ROOM, devices=DEVICES):
    """Return starts, sizes, targets and expected sizes, each of shape (device, device, each).

    Entry (s, d, e) is slice e from device s to device d, for expected sizes from device d to s.
    """
    sizes = np.zeros((devices, devices, each), np.int32)
    for s, d, e in np.ndindex(*sizes.shape):
        free = min(N - sizes[s].sum(), room - sizes[:, d].sum(), 4)
        sizes[s, d, e] = rng.integers(0, free + 1)
    # Slices lie one after the other on both sides.
    sent, received = (v.reshape(devices, -1) for v in (sizes, sizes.transpose(1, 0, 2)))
    starts = (np.cumsum(sent, 1) - sent).reshape(sizes.shape)
    targets = (np.cumsum(received, 1) - received).reshape(sizes.shape).transpose(1, 0, 2)
    return starts, sizes, targets, sizes.transpose(1, 0, 2)


def case(seed, each, room=ROOM, devices=DEVICES):
    """Return the global operands, and the result by the definition in JAX's documentation."""
    rng = np.random.default_rng([seed, each])
    vectors = slices(rng, each, room, devices)
    starts, sizes, targets, _ = vectors
    rows, into = numbers(devices, N, WIDTH, seed=rng), numbers(devices, room, WIDTH, seed=rng)
    want = into.copy()
    for s, d, e in np.ndindex(*sizes.shape):
        n, at, start = sizes[s, d, e], targets[s, d, e], starts[s, d, e]
        want[d, at : at + n] = rows[s, start : start + n]
    flat = [v.reshape(-1).astype(np.int32) for v in vectors]
    operands = [rows.reshape(-1, WIDTH), into.reshape(-1, WIDTH), *flat]
    return operands, want.reshape(-1, WIDTH)


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_rows_arrive_where_the_definition_says(seed, each, show):
    operands, want = case(seed, each)
    plan = planned(EXCHANGE, operands, mesh=MESH)
    assert kinds(plan) == {"Manual", "RaggedAllToAll"}
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, *operands)[0], want)
    assert plan.verify().ok
    show(f"seed {seed}, {each} slices per device: {operands[3].tolist()}")


def test_the_gradient_sends_the_rows_back():
    operands, _ = case(0, 2)
    plan = planned(jax.grad(lambda *given: (EXCHANGE(*given) ** 2).sum()), operands, mesh=MESH)
    (got,) = simulate(plan.program, plan.graph, *operands)
    # A row that is sent enters the sum of squares once, so its derivative is twice the row.
    is_sent = np.zeros((DEVICES, N, 1), bool)
    starts, sizes = (v.reshape(DEVICES, -1) for v in operands[2:4])
    for s, k in np.ndindex(*starts.shape):
        is_sent[s, starts[s, k] : starts[s, k] + sizes[s, k]] = True
    np.testing.assert_array_equal(got, 2 * operands[0] * is_sent.reshape(-1, 1))
    assert plan.verify().ok


def test_one_verified_claim_says_what_is_trusted():
    operands, _ = case(0, 1)
    table = planned(EXCHANGE, operands, mesh=MESH).verify().table
    trusted = table[(table["status"] == "trusted") & (table["node"] != "every plan")]
    assert any("ragged_all_to_all" in words for words in trusted["statement"])


def test_another_axis_stays_replicated_in_the_region():
    mesh = sa.Mesh({"x": DEVICES, "y": 2})
    operands, want = case(1, 1)
    plan = planned(on_blocks(exchange, mesh, axis_names={"x"}), operands, mesh=mesh)
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, *operands)[0], want)


# -- faults ---------------------------------------------------------------------------------------


def test_sizes_that_disagree_are_an_error():
    operands, _ = case(0, 1)
    plan = planned(EXCHANGE, operands, mesh=MESH)
    operands[5] = operands[5] + 1
    with pytest.raises(ProgramError, match=r"device 0 sends \d rows to device 0, which expects \d"):
        simulate(plan.program, plan.graph, *operands)


def test_slices_outside_of_a_block_are_an_error():
    operands, _ = case(0, 1)
    plan = planned(EXCHANGE, operands, mesh=MESH)
    operands[4] = operands[4] + ROOM
    with pytest.raises(ProgramError, match=r"to row \d+ of 20 on device \d are not inside"):
        simulate(plan.program, plan.graph, *operands)


def test_cpu_devices_are_refused_by_name():
    plan = planned(EXCHANGE, case(0, 1)[0], mesh=MESH)
    with pytest.raises(LoweringError, match=r"ragged_all_to_all at .*CPU devices: XLA has it for"):
        plan.lower()


def test_the_program_of_xla_is_refused_by_name():
    plan = planned(EXCHANGE, case(0, 1)[0], mesh=MESH)
    with pytest.raises(LoweringError, match="`ragged-all-to-all` is not supported by XLA:CPU"):
        plan.compare_xla()


def test_groups_are_refused():
    grouped = partial(lax.ragged_all_to_all, axis_name="x", axis_index_groups=[[0, 1], [2, 3]])
    with pytest.raises(sa.TraceError, match=r"ragged_all_to_all at .* is over groups of an axis"):
        planned(on_blocks(grouped), case(0, 1)[0], mesh=MESH)


# -- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_platforms_get_the_collective_of_xla(platform):
    plan = planned(EXCHANGE, case(0, 1)[0], mesh=MESH)
    text = executable(plan, plan._traced, None, platform).stage.as_text()
    assert text.count("ragged_all_to_all(") == 1


def test_one_device_writes_its_own_slices():
    mesh = sa.Mesh({"x": 1})
    operands, want = case(2, 3, devices=1)
    plan = planned(on_blocks(exchange, mesh), operands, mesh=mesh)
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, *operands)[0], want)
    np.testing.assert_array_equal(plan.lower()(*operands), want)


# -- the price ------------------------------------------------------------------------------------

ROW = 4 * WIDTH


@pytest.mark.parametrize(
    ("load", "room", "sent_rows"),
    [
        (1.0, ROOM, N * 3 / 4),
        (1.25, ROOM, 1.25 * N * 3 / 4),
        ("worst", ROOM, ROOM * 3 / 4),  # a device receives what it has room for
        ("worst", 100, DEVICES * N * 3 / 4),  # the rows of all devices
        (9.0, ROOM, ROOM * 3 / 4),
        (1.0, 8, 8 * 3 / 4),  # no device can receive more on average, so none sends more
    ],
)
def test_the_busiest_device_sends_its_load(load, room, sent_rows):
    operands, _ = case(0, 1, room=room)
    plan = planned(EXCHANGE, operands, mesh=MESH, options=sa.Options(expert_load=load))
    assert plan.collectives()["wire_bytes"].tolist() == [sent_rows * ROW]
    text = repr(plan.cost("h100"))
    words = "the most rows possible" if load == "worst" else f"{load} of the average rows"
    assert f"the busiest device has {words} at test_ragged_exchange.py" in text


def test_a_balanced_exchange_takes_the_time_of_an_all_to_all():
    """Equal slices are an all-to-all, which JAX has as a collective of its own."""
    operands, _ = case(0, 1)
    ragged = planned(EXCHANGE, operands, mesh=MESH).cost("h100", overlap="none")

    def dense(rows):
        return lax.all_to_all(rows, "x", 0, 0, tiled=True)

    even = planned(on_blocks(dense, count=1), operands[:1], mesh=MESH).cost("h100", overlap="none")
    assert ragged.communication_s == even.communication_s


# -- experts on devices ---------------------------------------------------------------------------

EXPERTS, TOKENS, MODEL, FF = 8, 6, 4, 5
OWN = EXPERTS // DEVICES


def experts_on_devices(x, up, down, choice):
    """Send each token to the device of its expert, compute there, and send it back.

    Blocks: x [TOKENS, MODEL], up [OWN, MODEL, FF], down [OWN, FF, MODEL], choice [TOKENS].
    """
    order = jnp.argsort(choice)
    rows, room = x[order], DEVICES * TOKENS
    # counts[s, e]: tokens of device s for expert e.
    counts = lax.all_gather(jnp.bincount(choice, length=EXPERTS), "x")
    me = lax.axis_index("x")
    by_device = counts.reshape(DEVICES, DEVICES, OWN).sum(2)
    sizes, expected = by_device[me], by_device[:, me]
    starts = jnp.cumsum(sizes) - sizes
    # Rows of device s arrive behind those of the devices before it.
    targets = (jnp.cumsum(by_device, 0) - by_device)[me]
    arrived = lax.ragged_all_to_all(
        rows, jnp.zeros((room, MODEL)), starts, sizes, targets, expected, axis_name="x"
    )
    # Rows arrive by sender; a product by groups needs them by expert.
    mine = lax.dynamic_slice_in_dim(counts, me * OWN, OWN, 1)
    place = jnp.arange(room)
    ends = jnp.cumsum(mine.reshape(-1))
    expert = (place[:, None] >= ends).sum(1)
    expert = jnp.where(place < ends[-1], expert % OWN, OWN)
    by_expert = jnp.argsort(expert, stable=True)
    groups = mine.sum(0).astype("int32")
    hidden = jnp.maximum(lax.ragged_dot(arrived[by_expert], up, groups), 0)
    made = lax.ragged_dot(hidden, down, groups)[jnp.argsort(by_expert)]
    # Back: the receivers' slices are the senders', and the other way round.
    back_starts = jnp.cumsum(expected) - expected
    back_targets = (jnp.cumsum(by_device, 1) - by_device)[:, me]
    back = lax.ragged_all_to_all(
        made, jnp.zeros((TOKENS, MODEL)), back_starts, expected, back_targets, sizes, axis_name="x"
    )
    return back[jnp.argsort(order)]


def dense_experts(x, up, down, choice):
    """Return every token through its expert's matrices, on one device."""
    hidden = jnp.maximum(jnp.einsum("tm,tmf->tf", x, up[choice]), 0)
    return jnp.einsum("tf,tfm->tm", hidden, down[choice])


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_experts_on_devices_equal_all_experts_on_one(seed, show):
    rng = np.random.default_rng(seed)
    x, up = numbers(DEVICES * TOKENS, MODEL, seed=rng), numbers(EXPERTS, MODEL, FF, seed=rng)
    down = numbers(EXPERTS, FF, MODEL, seed=rng)
    choice = rng.integers(0, EXPERTS, DEVICES * TOKENS).astype(np.int32)
    operands = x, up, down, choice
    mapped = on_blocks(experts_on_devices, count=4, check_vma=False)
    plan = planned(mapped, operands, mesh=MESH)
    assert plan.verify().ok
    (got,) = simulate(plan.program, plan.graph, *operands)
    np.testing.assert_array_equal(got, dense_experts(*operands))
    sent = plan.collectives().groupby("kind")["wire_bytes"].sum()
    assert sent["ragged_all_to_all"] == 2 * TOKENS * MODEL * 4 * 3 / 4
    show(f"seed {seed}: tokens per expert {np.bincount(choice, minlength=EXPERTS).tolist()}")


def test_a_tampered_exchange_is_refused_or_has_the_same_result():
    """CPU devices cannot run the exchange, so `make mutate` has no case with it: the simulator."""
    operands, want = case(0, 1)
    rows = P("x")
    plan = sa.plan(EXCHANGE, *operands, mesh=MESH, in_shardings=(rows,) * 6, out_shardings=rows)
    subject, accepted, refused = Subject(plan.program, plan.graph), 0, 0
    for number in range(60):
        program = mutant(random.Random(f"exchange/{number}"), subject)
        try:
            ok = verify(plan._sharded, program).ok
        except sa.ShardalgError:
            ok = False
        accepted, refused = accepted + ok, refused + (not ok)
        if ok:
            (found,) = simulate(program, plan.graph, *operands)
            np.testing.assert_array_equal(found, want, err_msg=f"seed exchange/{number}")
    assert refused >= 30, (accepted, refused)
