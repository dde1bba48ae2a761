"""Mesh axes on links: tori with and without wrap, cores of a chip, islands, slices."""

import math
from functools import partial

import jax
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.costs.analyses.mesh_axes import rank_device_orders
from shardalg.costs.collectives import seconds
from shardalg.costs.hardware import Hardware, load
from shardalg.costs.network.collective_seconds import collective_s
from shardalg.costs.network.interconnect import read as read_interconnect
from shardalg.costs.network.placement import TORUS, DigitSpan, Level
from shardalg.costs.topology import Topology, machine
from shardalg.errors import HardwareError
from shardalg.planner.reshard.links import links_on
from shardalg.planner.reshard.paths import reshard_path
from shardalg.spmd.instructions import AllGather, AllReduce, AllToAll, ReduceScatter

V3 = load("tpu_v3")


def gathered_s(topology, mesh, axes, received=2**30):
    """Seconds of an all-gather after which each device holds that many bytes."""
    n = math.prod(mesh.shape[a] for a in axes)
    gather = AllGather(0, mesh.digits(axes))
    return seconds(gather, received // n, mesh=mesh, hardware=topology)


@pytest.mark.parametrize(
    ("shape", "mesh", "axis", "factor"),
    [
        # "An all-gather that leaves V bytes takes f*V*(k-1)/k over one link's speed", k chips:
        # the factors of the torus of TPU v3, GSPMD's machine, by axis and by wrap.
        ((8, 8), {"X": 8, "Y": 16}, "Y", 1),
        ((8, 8), {"X": 8, "Y": 16}, "X", 2),
        ((32, 32), {"X": 32, "Y": 64}, "Y", 1 / 2),
        ((32, 32), {"X": 32, "Y": 64}, "X", 1),
        ((4, 8), {"X": 16, "Y": 4}, "X", 1),
        ((4, 8), {"X": 16, "Y": 4}, "Y", 2),
        ((16, 32), {"X": 16, "Y": 64}, "Y", 1 / 2),
        ((16, 32), {"X": 16, "Y": 64}, "X", 2),
    ],
)
def test_placement_factors_of_a_torus_whose_chips_have_two_cores(shape, mesh, axis, factor):
    mesh, v = Mesh(mesh), 2**30
    topology = Topology("tpu_v3", shape)
    span = topology.spans(mesh)[axis][0]
    expected = factor * v * (span.count - 1) / span.count / V3.link_bytes_per_s
    assert gathered_s(topology, mesh, axis) == pytest.approx(
        expected + span.hops * V3.latency_s, rel=1e-12
    )


def brute_force_all_to_all(k, wraps, held):
    """Most bytes on one link when every chip sends held/k to each, by the shortest way."""
    load_on = {}
    for a in range(k):
        for b in range(k):
            ahead = (b - a) % k
            ways = (
                [(1, ahead), (-1, k - ahead)] if wraps else [(1, b - a) if b > a else (-1, a - b)]
            )
            least = min(steps for _, steps in ways)
            best = [way for way in ways if way[1] == least] if a != b else []
            for sign, steps in best:
                for i in range(steps):
                    link = ((a + sign * i) % k, sign)
                    load_on[link] = load_on.get(link, 0) + held / k / len(best)
    return max(load_on.values())


@pytest.mark.parametrize("k", [3, 4, 5, 8, 16])
@pytest.mark.parametrize("wraps", [False, True])
def test_all_to_all_by_bisection_is_the_fullest_link(k, wraps):
    """Even rings meet the bound; on lines the middle link is the fullest."""
    span = DigitSpan(Level(TORUS, k, 1e9, wraps=wraps), Digit(1, k))
    held = 1e9
    found = collective_s("all_to_all", (span,), held)["link"]
    exact = brute_force_all_to_all(k, wraps, held) / 1e9
    assert found == pytest.approx(exact, rel=1e-12)


def test_all_to_all_on_a_square_torus_grows_with_the_root_of_the_chips():
    """GSPMD, arXiv:2105.04663, section 5.4: O(sqrt(n)) at the same bytes per device."""
    times = []
    for k in (4, 8, 16):
        chip = Topology("v5p", (k, k, 4))
        mesh = Mesh({"e": k * k, "d": 4})
        times.append(seconds(AllToAll(0, 1, mesh.digits("e")), 2**30, mesh=mesh, hardware=chip))
    assert times[1] / times[0] == pytest.approx(2, rel=1e-3)
    assert times[2] / times[1] == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "mesh"),
    [("v3:8x8", {"X": 8, "Y": 16}), ("v5e:16x16*4", {"slice": 4, "d": 16, "t": 16}),
     ("h100:64", {"d": 16, "t": 4}), ("v3:32x32", {"X": 64, "Y": 32})],
)  # fmt: skip
def test_reduce_scatter_is_a_gather_backwards_and_all_reduce_both(text, mesh):
    """Large arrays: an all-reduce is a reduce-scatter and an all-gather, twice the bytes."""
    topology, mesh = machine(text), Mesh(mesh)
    for axes in (*([a] for a in mesh.axis_names), mesh.axis_names):
        digits = mesh.digits(axes)
        n = math.prod(d.size for d in digits)
        held = {"mesh": mesh, "hardware": topology}
        gather = seconds(AllGather(0, digits), 2**31 // n, **held)
        scatter = seconds(ReduceScatter(0, digits), 2**31, **held)
        both = seconds(AllReduce(digits), 2**31, **held)
        assert scatter == pytest.approx(gather)
        assert both == pytest.approx(gather + scatter)


def test_a_scalar_over_2048_cores_pays_the_way_across_the_torus_and_back_no_ring():
    mesh, topology = Mesh({"X": 32, "Y": 64}), Topology("v3", (32, 32))
    held = {"mesh": mesh, "hardware": topology}
    found = seconds(AllReduce(mesh.digits("XY")), 4, **held)
    across = 16 + 16  # hops to the farthest chip of a 32 x 32 torus
    assert across * 1e-6 <= found <= 2 * across * 1e-6 + 1e-9
    flat = seconds(AllReduce(mesh.digits("XY")), 4, mesh=mesh, hardware=V3)
    assert flat < (31 + 63) * 1e-6 + 1e-8


def test_a_permute_between_the_cores_of_a_chip_takes_no_time():
    mesh, kind = Mesh({"X": 16, "Y": 2}), "collective_permute"
    on = Topology("v3", shape=(4, 4))
    inside, outside = (on.wiring(mesh).spans(mesh.digits(axis)) for axis in "YX")
    assert collective_s(kind, inside, 2**20) == {}
    assert sum(collective_s(kind, outside, 2**20).values()) > 0


def test_the_network_between_islands_is_shared_by_the_gpus_of_each():
    """Gathering over 8 islands of 8: each GPU fetches an eighth of the rest over its adapter."""
    chip = Hardware(
        "gpu",
        link_bytes_per_s=1e12,
        network_bytes_per_s=1e9,
        interconnect=load("h100").interconnect,
    )
    mesh, v = Mesh({"d": 64}), 2**30
    found = gathered_s(Topology(chip, chips=64), mesh, "d", v)
    assert found == pytest.approx(v / 8 * 7 / 8 / 1e9)
    across = Mesh({"d": 8, "t": 8})
    assert gathered_s(Topology(chip, chips=64), across, "d", v) == pytest.approx(v * 7 / 8 / 1e9)
    assert gathered_s(Topology(chip, chips=64), across, "t", v) == pytest.approx(v * 7 / 8 / 1e12)


NAMES = st.permutations(["slice", "slices", "dcn", "data", "T", "é x"])


@settings(deadline=None)
@given(NAMES, st.permutations([2, 4, 32]), st.sampled_from(["", "first", "middle", "last"]))
def test_no_name_of_an_axis_has_a_meaning(names, sizes, crossing):
    """Equal sizes under other names have the same spans, with `network_axes` and without."""
    at = {"first": 0, "middle": 1, "last": 2}.get(crossing)
    found = []
    for chosen in (names[:3], names[3:], ["a", "b", "c"]):
        axes = () if at is None else chosen[at]
        mesh = Mesh(dict(zip(chosen, sizes, strict=True)))
        topology = Topology("v5e", shape=(8, 16), slices=2, network_axes=axes)
        found.append(list(topology.spans(mesh).values()))
        media = [[span.level.medium for span in spans] for spans in found[-1]]
        across = [i for i, here in enumerate(media) if "dcn" in here]
        assert across == [at or 0]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("v5e:16x16*4@r,s", {"r": 2, "d": 256, "s": 2}), ("h100:64@d", {"d": 8, "t": 8}),
     ("h100:64@d", {"t": 8, "d": 8}), ("v5e:16x16*2@d", {"t": 16, "d": 32}),
     ("v5p:4x4x4*2@d/t,d", {"t": 64, "d": 2}), ("h100:64@p,d", {"t": 8, "d": 2, "p": 4})],
)  # fmt: skip
def test_network_axes_cover_the_slow_network_and_every_device_once(text, sizes):
    topology, mesh = Topology.parse(text), Mesh(sizes)
    assert Topology.parse(topology.text) == topology
    spans = topology.spans(mesh)
    slow = {"dcn"} if topology.slices > 1 else {spans_of_islands(topology)}
    across = {name for name, s in spans.items() if slow & {one.level.medium for one in s}}
    assert across == set(topology.network_axes)
    for name, size in sizes.items():
        assert math.prod(span.count for span in spans[name]) == size
    for level in {s.level for found in spans.values() for s in found}:
        parts = [s.count for found in spans.values() for s in found if s.level == level]
        same = [one.size for one in topology.levels if one == level]
        assert math.prod(parts) == math.prod(same)


def spans_of_islands(topology):
    return topology.levels[1].medium


def test_axes_that_pandas_has_as_attributes_have_columns_with_a_unit():
    mesh = Mesh({"T": 8, "size": 16})
    frame = rank_device_orders(mesh, "v3:8x8").df
    assert list(frame.columns) == ["order", "seconds", "T_bytes_per_s", "size_bytes_per_s"]
    assert not [name for name in frame.columns if hasattr(pd.DataFrame, name)]


def test_a_slice_axis_lies_on_the_data_center_network_of_the_hosts():
    topology, mesh = Topology("v5e", chips=256, slices=2), Mesh({"slice": 2, "fsdp": 256})
    assert [span.level.medium for span in topology.spans(mesh)["slice"]] == ["dcn"]
    chip = load("v5e")
    found = gathered_s(topology, mesh, ["slice"], 2**30)
    per_chip = chip.dcn_bytes_per_s / 8  # eight chips to a host
    assert found == pytest.approx(2**29 / per_chip + chip.dcn_latency_s)
    unnamed = topology.spans(Mesh({"data": 4, "fsdp": 128}))
    assert unnamed["data"][0].level.medium == "dcn"


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_axis_of_size_1_leaves_the_others_where_they_lie(at):
    """The outermost axis of size above 1 runs between slices."""
    sizes = {"X": 32, "Y": 8}
    names = list(sizes)
    names.insert(at, "one")
    given = Topology("v5e", shape=(8, 16), slices=2)
    spans = given.spans(Mesh({name: sizes.get(name, 1) for name in names}))
    assert spans.pop("one") == ()
    assert spans == given.spans(Mesh(sizes))


def test_device_orders_are_ranked_by_what_gathers_take():
    table = rank_device_orders(Mesh({"X": 8, "Y": 16}), "v3:8x8", sent_bytes={"X": 1e9, "Y": 8e9})
    assert list(table["seconds"]) == sorted(table["seconds"])
    assert table["order"][0] == "as JAX lays it"
    light = rank_device_orders(Mesh({"X": 8, "Y": 16}), "v3:8x8", sent_bytes={"X": 8e9})
    assert light["order"][0] == "Y, X"


@pytest.mark.parametrize(
    ("name", "file"),
    [("v5e", "tpu_v5e"), ("TPU v5e", "tpu_v5e"), ("A100-80GB", "a100_80gb"), ("h100_80gb", "h100"),
     ("NVIDIA H100", "h100"), ("TPU v5 lite", "tpu_v5e"), ("v2", "tpu_v2"), ("tpu_v3", "tpu_v3")],
)  # fmt: skip
def test_chips_by_the_names_that_people_write(name, file):
    assert load(name).name == file


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Topology("v9", (8, 8)), "the names are"),
        (lambda: Topology("v3", (64, 8)), "at most 32 x 32"),
        (lambda: Topology("v3", (0, 8)), "at least 1"),
        (lambda: Topology("v3", (2, 2, 2)), "has 2 numbers"),
        (lambda: Topology("v3", chips=100), "there are 1, 4, 16"),
        (lambda: Topology("v3", chips=0), "there are 1, 4, 16"),
        (lambda: Topology("h100", chips=12), "multiples of 8"),
        (lambda: Topology("v3"), r"shape=\(8, 8\) or chips=64"),
        (lambda: Topology("v3", (8, 8), chips=64), "one of the two"),
        (lambda: Topology("v3", (8, 8), slices=2), "dcn_bytes_per_s"),
        (lambda: Topology("v5e", (8, 8), slices=0), "at least 1"),
        (lambda: Topology(Hardware("toy"), (2, 2)), "'interconnect'"),
        (lambda: machine("v3:8by8"), "write the chip and its shape"),
        (lambda: machine(3), "give one of the names"),
        (lambda: Topology("v3", (8, 8)).spans(Mesh({"X": 3, "Y": 5})), "the mesh 15"),
        (lambda: Topology("v4", (4, 4, 4)).spans(Mesh({"X": 64, "slice": 1})), None),
        (lambda: Topology("v4", chips=192).spans(Mesh({"X": 24, "Y": 8})), None),
        (lambda: Topology("v4", (4, 4, 3)).spans(Mesh({"X": 6, "Y": 8})), None),
        (lambda: Topology("h100", (3, 8)).spans(Mesh({"X": 2, "Y": 12})), "does not tile"),
        (lambda: Topology("v4", chips=4, order=3), r'order=3: .*\["Y", "X"\]'),
        (lambda: Topology("v5p"), r"shape=\(4, 4, 4\) or chips=64"),
        (lambda: Topology("v4", (4, 4, 4)).spans(Mesh({"X": 32, "slice": 2})), None),
        (lambda: Topology("v5e", chips=256, slices=2, network_axes=3), "network_axes=3: give"),
        (lambda: Topology("v5e", chips=256, slices=2, network_axes=["d", "d"]), "each once"),
        (lambda: Topology("v5e", chips=256, slices=2, network_axes="Z").spans(
            Mesh({"X": 2, "Y": 256})), "names 'Z', which is no axis"),
        (lambda: Topology("v5e", chips=256, slices=4, network_axes="X").spans(
            Mesh({"X": 2, "Y": 512})), "network axes X=2 do not divide into its 4 slices"),
        (lambda: Topology("v5e", chips=256, slices=2, network_axes="XY").spans(
            Mesh({"X": 2, "Y": 256})), "'XY', which is no axis"),
        (lambda: Topology("v5e", chips=256, slices=2, network_axes=("X", "Y")).spans(
            Mesh({"X": 2, "Y": 256})), "X=2, Y=256 do not divide"),
        (lambda: Topology("h100", chips=64, network_axes="X").spans(
            Mesh({"X": 4, "Y": 16})), "into its 8 islands"),
        (lambda: Topology("v3", (8, 8), order="XZ").spans(Mesh({"X": 8, "Y": 16})), "each of them"),
        (lambda: rank_device_orders(Mesh({"X": 128}), "v3:8x8", sent_bytes={"Z": 1}), "'Z'"),
        *(
            (partial(rank_device_orders, Mesh({"X": 128}), "v3:8x8", sent_bytes=sent), "from 0")
            for sent in ({"X": "a"}, {"X": None}, {"X": math.nan}, {"X": -1}, 5)
        ),
        (lambda: rank_device_orders({"X": 128}, "v3:8x8"), "takes a sa.Mesh"),
        (lambda: rank_device_orders(Mesh({"X": 128}), 3), "got Mesh.* and 3"),
        (lambda: read_interconnect({"asynchronous": [["x"]], "source": "s"}, "f"), "asynchronous"),
    ],
)  # fmt: skip
def test_what_cannot_be_says_what_to_write_instead(make, match):
    if match is None:
        make()
        return
    with pytest.raises(HardwareError, match=match):
        make()


@pytest.mark.parametrize("text", ["v3:8x8", "tpu_v5e:16x16*2", "h100:64", "v5p:8x8x16"])
def test_a_topology_reads_its_own_text(text):
    made = Topology.parse(text)
    assert Topology.parse(made.text) == made
    assert hash(Topology.parse(made.text)) == hash(made)


def test_reshards_and_plans_read_the_topology():
    """Sums over two axes are one all-reduce: it uses the network beside the switches."""
    topology = Topology("h100", chips=16)  # two islands of eight
    mesh = Mesh({"hosts": 2, "gpus": 8})
    assert topology.speeds(mesh)["gpus"] > topology.speeds(mesh)["hosts"]
    source = sa.Sharding(mesh, (64, 64), ((), ()), unreduced=mesh.digits(("hosts", "gpus")))
    target = sa.Sharding(mesh, (64, 64), ((), ()))
    (step,) = reshard_path(source, target, links_on(mesh, topology)).steps
    assert type(step.attributes).__name__ == "AllReduce"
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    settings = sa.Options(hardware=topology)
    assert settings.hardware == "h100:2x8"
    spec = P(("hosts", "gpus"))
    plan = sa.plan(lambda x: x.sum(0), x, mesh=mesh, in_shardings=(spec,), options=settings)
    on = plan.cost(topology)
    assert on.communication_s == plan.cost("h100:2x8").communication_s
    wrong = sa.plan(lambda x: x * 2, x, mesh=Mesh({"a": 4}), in_shardings=(P("a"),))
    with pytest.raises(HardwareError, match="does not tile"):
        wrong.cost(topology)
