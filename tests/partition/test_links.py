"""Paths on meshes of which one axis is slower, as between hosts: they send less along it."""

import itertools
import json
import math

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.digits import parts
from shardalg.costs.collectives import axis_names
from shardalg.costs.hardware import Hardware
from shardalg.reshard.links import links_on
from shardalg.reshard.paths import reshard_path
from shardalg.spmd import instructions as p
from tests.partition.test_reshard import edges, shortest

MESH = sa.Mesh({"dcn": 2, "ici": 4})
CHIP = Hardware("toy", (("float32", 1e12),), link_bytes_per_s=1e10)
SLOW = CHIP.with_links({"dcn": 1e9})


def along(path, axis):
    """Bytes that a device sends in collectives along an axis."""
    rows = zip(path.table["mesh_axes"], path.table["wire_bytes"], strict=True)
    return sum(sent for axes, sent in rows if axis in axes.split(","))


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        # Blocks are small while the slow axis is gathered, and large when the fast one is.
        (P(("ici", "dcn")), P(), ["all_gather", "all_gather"]),
        (P("dcn", "ici"), P(), ["all_gather", "all_gather"]),
        # The slow axis stays where it is, though it is of use in between.
        (P(("dcn", "ici")), P("dcn", "ici"), ["all_to_all"]),
    ],
)
def test_less_goes_along_the_slow_axis(source, target, kinds):
    ends = [sa.Sharding.from_spec(spec, MESH, (64, 64)) for spec in (source, target)]
    plain, slow = (sa.reshard(*ends, on=chip) for chip in (CHIP, SLOW))
    assert [kind for kind in slow.table["kind"] if kind != "dynamic_slice"] == kinds
    assert along(slow, "dcn") <= along(plain, "dcn")
    elsewhere = sa.reshard(*ends)
    assert plain.program == elsewhere.program, "alike links change nothing"
    assert slow.seconds <= sum(
        sent / SLOW.link(axes.split(","))
        for axes, sent in zip(plain.table["mesh_axes"], plain.table["wire_bytes"], strict=True)
        if sent
    )


def every_pair(mesh, shape, slow):
    """(source, target, what is sent at least, each element as often as its axis is slow)."""

    def factor(a, b):
        pairs = list(zip(a, b, strict=True))
        renamed = all(parts(x) == parts(y) for x, y in pairs)
        changed = {
            d for x, y in pairs if x != y for d in (*x, *y) if renamed or (d in x) != (d in y)
        }
        return 8 if "dcn" in axis_names(mesh, tuple(changed)) else 1

    graph = {
        dims: [(sent * factor(dims, after), after) for sent, after in found]
        for dims, found in edges(mesh, shape).items()
    }
    for start in graph:
        for goal, sent in shortest(graph, start).items():
            yield (*(sa.Sharding(mesh, shape, dims) for dims in (start, goal)), sent)


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_few_paths_send_more_than_the_cheapest(step, show):
    """The search renames digits in some ways only: one path in a hundred sends a little more."""
    mesh, rows = sa.Mesh({"dcn": 2, "x": 2, "y": 2}), []
    links = links_on(mesh, CHIP.with_links({"dcn": 1e10 / 8}))
    for source, target, least in itertools.islice(every_pair(mesh, (8, 8), links), 0, None, step):
        path = reshard_path(source, target, links)
        most = max(math.prod(s.shard_shape) for s in (source, target))
        assert all(math.prod(s.layout.shard_shape) <= most for s in path.steps)
        assert least <= path.on(links) <= reshard_path(source, target).on(links)
        rows.append((path.on(links), least, reshard_path(source, target).on(links)))
    ours, best, alike = map(sum, zip(*rows, strict=True))
    show(
        f"{ours / best:.4f} of the cheapest on {len(rows)} pairs, {alike / best:.2f} if all links "
        "were alike"
    )
    assert ours <= 1.005 * best < 1.2 * ours < alike


LAYOUTS = [P(("ici", "dcn")), P("dcn", "ici"), P(None, ("dcn", "ici")), P("ici"), P()]


@pytest.mark.parametrize("size", [16, 13])
def test_they_are_proved_and_right(size):
    x = np.arange(size * 8, dtype=np.float32).reshape(size, 8)
    for pair in itertools.permutations(LAYOUTS, 2):
        ends = [sa.Sharding.from_spec(spec, MESH, x.shape) for spec in pair]
        path = sa.reshard(*ends, on=SLOW)
        assert path.verify().ok
        np.testing.assert_array_equal(path.simulate(x), x)


def test_sums_are_added_along_the_fast_axis_first():
    """What goes along the slow one is then a quarter: reduce-scatter, all-reduce, all-gather."""
    both = MESH.digits(("dcn", "ici"))
    source = sa.Sharding(MESH, (64, 64), ((), ()), unreduced=both)
    target = sa.Sharding(MESH, (64, 64), ((), ()))
    kinds = [type(s.attributes) for s in reshard_path(source, target, links_on(MESH, SLOW)).steps]
    assert kinds == [p.ReduceScatter, p.AllReduce, p.AllGather]
    assert [type(s.attributes) for s in reshard_path(source, target).steps] == [p.AllReduce]


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
