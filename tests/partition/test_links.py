"""Paths on meshes of which one axis is slower, as between hosts: they send less along it."""

import dataclasses
import itertools
import json
import math

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.digits import parts
from shardalg.costs.collectives import kind_seconds, seconds
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology
from shardalg.planner.reshard.links import links_on
from shardalg.planner.reshard.paths import reshard_path
from shardalg.spmd import instructions as p
from tests.calls_made import calls_made
from tests.partition.test_reshard import edges, shortest

MESH = sa.Mesh({"dcn": 2, "ici": 4})
CHIP = Hardware("toy", (("float32", 1e12),), link_bytes_per_s=1e10)
SLOW = CHIP.with_links({"dcn": 1e9})


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        # One collective goes over the slow axis first, while its blocks are small, also if the
        # axes are on two dimensions.
        (P(("ici", "dcn")), P(), ["all_gather"]),
        (P("dcn", "ici"), P(), ["all_gather"]),
        # The slow axis stays where it is, though it is of use in between.
        (P(("dcn", "ici")), P("dcn", "ici"), ["all_to_all"]),
    ],
)
def test_less_goes_along_the_slow_axis(source, target, kinds):
    ends = [sa.Sharding.from_spec(spec, MESH, (64, 64)) for spec in (source, target)]
    plain, slow = (sa.reshard(*ends, on=chip) for chip in (CHIP, SLOW))
    assert [kind for kind in slow.table["kind"] if kind != "dynamic_slice"] == kinds
    assert slow.seconds <= reshard_path(*ends).seconds(ends[0], links_on(MESH, SLOW))
    elsewhere = sa.reshard(*ends)
    assert plain.program == elsewhere.program, "alike links change nothing"
    assert slow.seconds <= sum(
        sent / SLOW.link(axes.split(","))
        for axes, sent in zip(plain.table["mesh_axes"], plain.table["wire_bytes"], strict=True)
        if sent
    )


def test_axes_of_size_1_do_not_lengthen_the_search():
    """An axis of one device has no links and moves nothing; the search took 36 s for this path."""
    found, work = [], []
    for sizes in ({"X": 1, "Y": 4}, {"Y": 4}):
        mesh = sa.Mesh(sizes)
        links = links_on(mesh, Topology("h100", chips=4))
        every = tuple(d for axis in sizes for d in mesh.digits(axis))
        ends = (sa.Sharding(mesh, (512, 2048), dims) for dims in ((every, ()), ((), every)))
        path, calls = calls_made(lambda ends=ends, links=links: reshard_path(*ends, links))
        work.append(calls)
        found.append(([type(step.attributes) for step in path.steps], path.wire_elements))
    assert found[0] == found[1]
    assert max(work) <= 100_000, "the long search needs millions"


def every_pair(mesh, shape, links):
    """(source, target, seconds of the fastest chain of moves between them)."""

    def seconds(before, sent, after):
        pairs = list(zip(before, after, strict=True))
        renamed = all(parts(x) == parts(y) for x, y in pairs)
        changed = {
            d for x, y in pairs if x != y for d in (*x, *y) if renamed or (d in x) != (d in y)
        }
        cut, stays = (math.prod(map(parts, dims)) for dims in (before, after))
        gathers = "all_gather" if stays < cut else "all_to_all"
        kind = "collective_permute" if renamed else gathers
        held = math.prod(shape) // cut
        spans = links.hardware.wiring(mesh).spans(tuple(sorted(changed, reverse=True)))
        return kind_seconds(kind, held * links.itemsize, spans) if sent and changed else 0

    graph = {
        dims: [(seconds(dims, sent, after), after) for sent, after in found]
        for dims, found in edges(mesh, shape).items()
    }
    for start in graph:
        for goal, least in shortest(graph, start).items():
            yield (*(sa.Sharding(mesh, shape, dims) for dims in (start, goal)), least)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("latency_s", "most_loss"), [(0, 1.005), (1e-8, 1.02)])
@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_few_paths_take_longer_than_the_fastest(step, latency_s, most_loss, show):
    """The search renames digits in some ways only: one path in a hundred takes a little longer."""
    mesh, rows = sa.Mesh({"dcn": 2, "x": 2, "y": 2}), []
    chip = dataclasses.replace(CHIP, latency_s=latency_s).with_links({"dcn": 1e10 / 8})
    links = links_on(mesh, chip)
    for source, target, least in itertools.islice(every_pair(mesh, (8, 8), links), 0, None, step):
        path, other = reshard_path(source, target, links), reshard_path(source, target)
        most = max(math.prod(s.shard_shape) for s in (source, target))
        assert all(math.prod(s.layout.shard_shape) <= most for s in path.steps)
        taken, alike = (way.seconds(source, links) for way in (path, other))
        assert least * (1 - 1e-9) <= taken <= alike * (1 + 1e-9)
        rows.append((taken, least, alike))
    ours, best, alike = map(sum, zip(*rows, strict=True))
    show(
        f"{ours / best:.4f} of the fastest on {len(rows)} pairs, {alike / best:.2f} if all links "
        "were alike"
    )
    assert best <= ours * (1 + 1e-9) <= most_loss * best < alike


@pytest.mark.parametrize("axes", [{"a": 2, "b": 8}, {"a": 4, "b": 4}])
@pytest.mark.parametrize("size", [64, 256, 4096])
@pytest.mark.parametrize("text", ["v4:4x4x1", "v3:4x2", "h100:16", "tpu_v5e:16x1"])
def test_sums_take_no_longer_than_one_all_reduce(text, size, axes):
    """The search uses seconds with latency, not bytes weighted by slowness."""
    topology, mesh = Topology.parse(text), sa.Mesh(axes)
    both = mesh.digits(tuple(axes))
    source = sa.Sharding(mesh, (size, size), ((), ()), unreduced=both)
    path = sa.reshard(source, sa.Sharding(mesh, (size, size), ((), ())), on=topology)
    block = size * size * 4
    assert path.seconds <= seconds(p.AllReduce(both), block, mesh=mesh, hardware=topology)
    assert path.verify().ok


LAYOUTS = [P(("ici", "dcn")), P("dcn", "ici"), P(None, ("dcn", "ici")), P("ici"), P()]


@pytest.mark.parametrize("size", [16, 13])
def test_they_are_proved_and_right(size):
    x = np.arange(size * 8, dtype=np.float32).reshape(size, 8)
    for pair in itertools.permutations(LAYOUTS, 2):
        ends = [sa.Sharding.from_spec(spec, MESH, x.shape) for spec in pair]
        path = sa.reshard(*ends, on=SLOW)
        assert path.verify().ok
        np.testing.assert_array_equal(path.simulate(x), x)


def test_sums_over_axes_of_two_speeds_are_one_all_reduce():
    """The price is a reduce-scatter, an all-reduce of a quarter and an all-gather."""
    both = MESH.digits(("dcn", "ici"))
    source = sa.Sharding(MESH, (64, 64), ((), ()), unreduced=both)
    target = sa.Sharding(MESH, (64, 64), ((), ()))
    path = reshard_path(source, target, links_on(MESH, SLOW))
    assert [type(s.attributes) for s in path.steps] == [p.AllReduce]
    block, ici, dcn = 64 * 64 * 4, MESH.digits(("ici",)), MESH.digits(("dcn",))
    stages = (
        (p.ReduceScatter(0, ici), block),
        (p.AllReduce(dcn), block // 4),
        (p.AllGather(0, ici), block // 4),
    )
    three = sum(seconds(move, held, mesh=MESH, hardware=SLOW) for move, held in stages)
    assert path.seconds(source, links_on(MESH, SLOW)) == pytest.approx(three)


def test_plans_by_cost_heed_links(tmp_path):
    """The gradient of replicated weights is added along both axes, as is fast on their links."""
    slow, chips = CHIP.with_links({"ici": 1e9}), {}
    for chip in (CHIP, slow):
        chips[chip] = str(tmp_path / f"{len(chips)}.json")
        with open(chips[chip], "w") as file:
            json.dump(chip.to_json(), file)
    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((64, 64), (256, 64)))
    plans = [
        sa.plan(
            jax.grad(lambda w, x: (x @ w).sum()), w, x,
            mesh=MESH, in_shardings=(P(), P(("dcn", "ici"))), out_shardings=P(),
            options=sa.Options(policy="cost", hardware=path),
        )
        for path in chips.values()
    ]  # fmt: skip
    assert plans[1].verify().ok
    for chip, faster, slower in ((CHIP, *plans), (slow, *plans[::-1])):
        assert faster.cost(chip).step_time_s <= slower.cost(chip).step_time_s
    assert plans[1].cost(slow).communication_s < plans[0].cost(slow).communication_s
