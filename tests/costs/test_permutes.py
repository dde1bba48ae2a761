"""Permutes priced by their pairs: distance, ports, shared links; compared with closed forms."""

import math
import random
from dataclasses import replace

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.mesh import Mesh
from shardalg.costs.collectives import seconds
from shardalg.costs.hardware import load
from shardalg.costs.network.permute_seconds import permutes_s
from shardalg.costs.topology import Topology
from shardalg.planner.partition.prices import move_s
from shardalg.planner.reshard.exchanges import Retile
from shardalg.planner.reshard.paths import reshard_path
from shardalg.spmd.instructions import AllGather, CollectivePermute

RATE, HOP = 4.5e10, 1e-6
V5E = replace(load("v5e").on("datasheet"), link_bytes_per_s=RATE, latency_s=HOP)
SQUARE = Mesh({"X": 4, "Y": 4})
HELD = 1 << 24


def permute_s(pairs, topology, mesh, held=HELD):
    digits = tuple(mesh.digit(name) for name in mesh.axis_names)
    permute = CollectivePermute(digits, tuple(pairs))
    return seconds(permute, held, mesh=mesh, hardware=topology)


def test_one_message_from_corner_to_corner_of_a_v5e_takes_both_ports():
    """Scaling book (jax-ml/scaling-book), tpus.md, question about a v5e 4x4: 188 us and 6 hops."""
    x = jax.ShapeDtypeStruct((8, 128, 8192), "bfloat16")

    def send(x):
        return jax.lax.ppermute(x, ("X", "Y"), [(0, 15)])

    def mapped(x):
        mesh = jax.sharding.AbstractMesh((4, 4), ("X", "Y"))
        return jax.shard_map(send, mesh=mesh, in_specs=P(), out_specs=P(("X", "Y")))(x)

    plan = sa.plan(mapped, x, mesh=SQUARE)
    expected = 2 * 8 * 128 * 8192 / (2 * RATE) + 6 * HOP
    assert plan.cost(Topology(V5E, (4, 4))).communication_s == pytest.approx(expected, rel=1e-9)
    assert expected == pytest.approx(192e-6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "shape", "sizes", "pairs", "messages", "hops"),
    [
        # A neighbour costs one link and one hop: one message, or all devices of a ring.
        ("v5e", (4, 4), (4, 4), [(0, 1)], 1, 1),
        ("v5p", (4, 4, 4), (4, 4, 4), [(4 * i + j, 4 * i + (j + 1) % 4)
                                       for i in range(16) for j in range(4)], 1, 1),
        # Without a wrap, the last sends back to the first over the links of the other direction.
        ("v5e", (4, 4), (4, 4), [(4 * i + j, 4 * i + (j + 1) % 4)
                                 for i in range(4) for j in range(4)], 1, 3),
        # Half a ring: two ways of half the bytes, over k/2 links that k/2 messages share.
        ("v5p", (4, 4, 8), (4, 4, 8), [(8 * i + j, 8 * i + (j + 4) % 8)
                                       for i in range(16) for j in range(8)], 2, 4),
        # One message to the opposite chip of a 4x4x4 torus leaves over all six links.
        ("v5p", (4, 4, 4), (4, 4, 4), [(0, 42)], 1 / 6, 6),
        # A line of n reversed: half of all messages cross the middle link, each way.
        ("v5e", (1, 8), (1, 8), [(i, 7 - i) for i in range(8)], 4, 7),
        # Two messages to far chips of one row share the first link.
        ("v5e", (1, 8), (1, 8), [(0, 7), (1, 6)], 2, 7),
        # No message.
        ("v5e", (4, 4), (4, 4), [(3, 3)], 0, 0),
    ],
)  # fmt: skip
def test_permutes_of_known_load(name, shape, sizes, pairs, messages, hops):
    chip = replace(load(name).on("datasheet"), link_bytes_per_s=RATE, latency_s=HOP)
    mesh = Mesh(dict(zip("XYZ", sizes, strict=False)))
    found = permute_s(pairs, Topology(chip, shape), mesh)
    assert found == pytest.approx(messages * HELD / RATE + hops * HOP, rel=1e-12)


def routed(pairs, shape, wraps):
    """Most messages on one link, and the longest way, by walking each part of each message."""
    held, longest = {}, 0
    for here, there in pairs:
        moved = [d for d in range(len(shape)) if here[d] != there[d]]
        for first in moved:
            hops = walk(here, there, [*moved[moved.index(first):], *moved[:moved.index(first)]],
                        (shape, wraps), (1 / len(moved), held))  # fmt: skip
            longest = max(longest, hops)
    return max(held.values(), default=0), longest


def walk(at, goal, order, torus, carried):
    if not order:
        return 0
    (dim, *rest), (shape, wraps), (part, held) = order, torus, carried
    size, up = shape[dim], goal[dim] - at[dim]
    ways = {1: up % size, -1: -up % size} if wraps[dim] else {(1 if up > 0 else -1): abs(up)}
    least = min(ways.values())
    best = [sign for sign, steps in ways.items() if steps == least]
    # A ring of two has one link, so that only one of its ways is taken.
    best = best[:1] if size == 2 else best
    after = [goal[d] if d == dim else c for d, c in enumerate(at)]
    for sign in best:
        for step in range(least):
            link = (*at[:dim], (at[dim] + sign * step) % size, *at[dim + 1 :], dim, sign)
            held[link] = held.get(link, 0) + part / len(best)
    return least + walk(after, goal, rest, torus, carried)


@pytest.mark.parametrize("seed", range(12))
def test_random_permutes_are_the_messages_that_walk_over_each_link(seed):
    chosen = random.Random(seed)
    name, shape = chosen.choice(
        [("v5p", (4, 4, 4)), ("v5p", (4, 8, 4)), ("v5p", (2, 4, 2)), ("v5e", (4, 8)),
         ("v5e", (16, 2)), ("v5e", (16, 16))]
    )  # fmt: skip
    chip = replace(load(name).on("datasheet"), link_bytes_per_s=RATE, latency_s=HOP)
    topology, mesh = Topology(chip, shape), Mesh(dict(zip("XYZ", shape, strict=False)))
    wraps = [level.wraps for level in topology.levels if level.medium == "torus"]
    count = chosen.choice([1, 3, mesh.size])
    sources, targets = (chosen.sample(range(mesh.size), count) for _ in range(2))
    pairs = list(zip(sources, targets, strict=True))
    # Axes of equal size may be placed on the torus in another order than the mesh has.
    spans = topology.spans(mesh)
    order = sorted(mesh.axis_names, key=lambda name: spans[name][0].level.number)
    placed = [[p // d.stride % d.size for d in map(mesh.digit, order)] for p in range(mesh.size)]
    most, hops = routed([(placed[a], placed[b]) for a, b in pairs], shape, wraps)
    found = permute_s(pairs, topology, mesh)
    assert found == pytest.approx(most * HELD / RATE + hops * HOP, rel=1e-9)


def test_cores_of_a_chip_share_its_links_and_send_to_each_other_for_nothing():
    mesh, topology = Mesh({"X": 16, "Y": 2}), Topology("v3", (4, 4))
    chip = topology.chip
    one = permute_s([(0, 2)], topology, mesh)
    both = permute_s([(0, 2), (1, 3)], topology, mesh)
    assert one == pytest.approx(HELD / chip.link_bytes_per_s + chip.latency_s)
    assert both == pytest.approx(2 * HELD / chip.link_bytes_per_s + chip.latency_s)
    assert permute_s([(0, 1), (1, 0)], topology, mesh) == 0


def test_messages_between_slices_share_the_link_of_a_host():
    mesh, topology = Mesh({"slice": 2, "d": 256}), Topology("v5e", chips=256, slices=2)
    chip = topology.chip
    one = permute_s([(0, 256)], topology, mesh)
    all_of_them = permute_s([(i, i + 256) for i in range(256)], topology, mesh)
    assert one == pytest.approx(HELD / chip.dcn_bytes_per_s + chip.dcn_latency_s)
    assert all_of_them == pytest.approx(8 * HELD / chip.dcn_bytes_per_s + chip.dcn_latency_s)


def test_islands_send_over_their_switch_or_each_over_its_own_adapter():
    mesh, topology = Mesh({"d": 16}), Topology("h100", chips=16)
    chip = topology.chip
    inside = permute_s([(i, i ^ 1) for i in range(16)], topology, mesh)
    across = permute_s([(i, (i + 8) % 16) for i in range(16)], topology, mesh)
    assert inside == pytest.approx(HELD / chip.link_bytes_per_s + chip.latency_s)
    assert across == pytest.approx(HELD / chip.network_bytes_per_s + chip.network_latency_s)


def test_permutes_that_start_together_add_their_bytes_and_wait_once():
    network = Topology(V5E, (4, 4)).wiring(SQUARE).network
    both = permutes_s(network, [(((0, 1),),), (((0, 2),),)], HELD)
    assert both == {"link": pytest.approx(2 * HELD / RATE), "latency": 2 * HOP}
    # Two readings that share a message send it once.
    assert permutes_s(network, [(((0, 1),), ((0, 1),))], HELD)["link"] == HELD / RATE


def test_without_places_a_permute_has_the_price_of_a_neighbour():
    assert permute_s([(0, 15)], V5E, SQUARE) == pytest.approx(HELD / RATE + HOP)


def test_a_change_of_block_size_costs_its_margin():
    """Blocks of 64 of 1020 rows become blocks of 255: an all-to-all and a margin to a neighbour."""
    (x, y), topology = (SQUARE.digits(a) for a in "XY"), Topology(V5E, (4, 4))
    source = sa.Sharding(SQUARE, (1020, 64), (x + y, ()))
    target = sa.Sharding(SQUARE, (1020, 64), (x, y))
    padded = sa.Sharding(SQUARE, (1024, 64), (x, y))
    steps = reshard_path(source, target).steps
    assert type(steps[1].attributes) is Retile
    margin = steps[1].attributes.margin * 16 * 4
    exchange = move_s(sa.Sharding(SQUARE, (1024, 64), (x + y, ())), padded, "float32", topology)
    found = move_s(source, target, "float32", topology)
    assert found >= exchange + margin / RATE + HOP


def test_a_gather_over_both_axes_costs_what_it_did():
    """A level's number tells dimensions of equal size apart; other prices stay."""
    gather = AllGather(0, SQUARE.digits("XY"))
    found = seconds(gather, 1 << 20, mesh=SQUARE, hardware=Topology(V5E, (4, 4)))
    assert found == pytest.approx(15 * (1 << 20) / (2 * RATE) + 6 * HOP)
    assert math.isfinite(found)
