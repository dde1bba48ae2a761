"""Collectives against the closed forms of "How to Scale Your Model" (jax-ml/scaling-book).

Chapters sharding.md (tori) and gpus.md (switches), with the book's constants: links of a TPU v4 and
v5e with 4.5e10 B/s one way, 1 us a hop; H100 with 450e9 B/s in a node and 50e9 B/s per GPU between
nodes (400e9 B/s per node of eight). The constants of a software stack are left out.
"""

import math
from dataclasses import replace

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.mesh import Mesh
from shardalg.costs.collectives import seconds
from shardalg.costs.hardware import load
from shardalg.costs.topology import Topology
from shardalg.spmd.instructions import AllGather, AllReduce, AllToAll

ICI, NVLINK, ADAPTER, NODE = 4.5e10, 450e9, 50e9, 400e9
V4 = replace(load("v4").on("datasheet"), link_bytes_per_s=ICI, latency_s=1e-6)
H100 = replace(load("h100").on("datasheet"), link_bytes_per_s=NVLINK, network_bytes_per_s=ADAPTER)


def communication_s(shape, axes, specs, topology):
    x = jax.ShapeDtypeStruct(shape, "bfloat16")
    source, target = specs
    plan = sa.plan(lambda x: x, x, mesh=Mesh(axes), in_shardings=(source,), out_shardings=target)
    return plan.cost(topology).communication_s


def test_a_gather_inside_a_node_sends_over_the_switch():
    """gpus.md, quiz on all-gathers: 65 us for bf16[1024, 16384] over eight GPUs."""
    found = communication_s((1024, 16384), {"X": 8}, (P("X"), P()), Topology(H100, chips=8))
    assert found == pytest.approx(2 * 1024 * 16384 * 7 / 8 / NVLINK, rel=0.1)


@pytest.mark.parametrize("inner", [1, 4, 8, 16, 32])
def test_an_inner_axis_helps_only_where_it_spans_nodes(inner):
    """gpus.md, quiz "sharding along 2 axes": 256 GPUs, rows along X, columns along the inner Y."""
    rows, columns, outer = 8192, 32768, 256 // inner
    total = 2 * rows * columns
    over_nodes = total * 31 / 32 / NODE
    expected = over_nodes if inner <= 8 else total / (inner * ADAPTER) * (outer - 1) / outer
    axes, specs = {"X": outer, "Y": inner}, (P("X", "Y"), P(None, "Y"))
    found = communication_s((rows, columns), axes, specs, Topology(H100, chips=256))
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("nodes", [2, 4, 32])
def test_the_slower_of_two_levels_decides(nodes):
    """gpus.md, question "2-way AllGather cost": two nodes are bound by the switch, 32 are not."""
    total, mesh = 2**30, Mesh({"d": 8 * nodes})
    on = {"mesh": mesh, "hardware": Topology(H100, chips=8 * nodes)}
    inside, between = total * 7 / 8 / NVLINK, total * (nodes - 1) / nodes / NODE
    found = seconds(AllGather(0, mesh.digits("d")), total // mesh.size, **on)
    assert found == pytest.approx(max(inside, between), rel=0.02)
    assert (inside > between) is (nodes <= 4)
    both = seconds(AllReduce(mesh.digits("d")), total, **on)
    assert both == pytest.approx(2 * max(inside, between), rel=0.02)


@pytest.mark.parametrize("nodes", [1, 2, 4, 32])
def test_all_to_all_of_gpus_sends_to_every_other(nodes):
    """gpus.md: B*(N-1)/(N^2*W) inside a node, B*(M-1)/(M^2*W_node) across M nodes."""
    total, n = 2**36, 8 * nodes
    mesh = Mesh({"d": n})
    inside, between = total * (n - 1) / n**2 / NVLINK, total * (nodes - 1) / nodes**2 / NODE
    on = {"mesh": mesh, "hardware": Topology(H100, chips=n)}
    found = seconds(AllToAll(0, 1, mesh.digits("d")), total // n, **on)
    assert found == pytest.approx(between if nodes > 1 else inside, rel=0.02)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_all_to_all_on_a_ring_is_a_quarter_of_a_gather(size):
    """sharding.md: B/(4*W) of a bidirectional ring, W both ways, where a gather takes B/W."""
    total, mesh = 2**32, Mesh({"X": 4, "Y": 4, "Z": size})
    topology = Topology(V4, (4, 4, size))
    found = seconds(AllToAll(0, 1, mesh.digits("Z")), total // size, mesh=mesh, hardware=topology)
    assert found == pytest.approx(total / 4 / (2 * ICI), rel=0.01)


def test_small_arrays_wait_for_hops():
    """sharding.md, question "latency-bound AllGather": two hops of a ring of four, 2 us.

    Through a switch, a tree of log2 n messages replaces n - 1 of a ring (gpus.md).
    """
    mesh = Mesh({"X": 4, "Y": 4, "Z": 4})
    on = {"mesh": mesh, "hardware": Topology(V4, (4, 4, 4))}
    assert seconds(AllGather(0, mesh.digits("X")), 64, **on) == pytest.approx(2e-6, rel=0.01)
    assert seconds(AllReduce(mesh.digits("XYZ")), 4, **on) == pytest.approx(6e-6, rel=0.01)
    node = Mesh({"d": 8})
    alone = {"mesh": node, "hardware": Topology(H100, chips=8)}
    tree = math.log2(8) * H100.latency_s
    assert seconds(AllReduce(node.digits("d")), 4, **alone) == pytest.approx(tree, rel=0.01)


@pytest.mark.parametrize("axes", [{"X": 2, "Y": 4}, {"X": 2, "Y": 2, "Z": 2}])
def test_axes_through_one_switch_share_the_link_of_a_gpu(axes):
    """A gather over all GPUs of a node takes the same seconds, however they are named."""
    topology, held = Topology(H100, chips=8), 2**27
    one, several = Mesh({"d": 8}), Mesh(axes)
    found = [
        seconds(AllGather(0, mesh.digits(mesh.axis_names)), held, mesh=mesh, hardware=topology)
        for mesh in (one, several)
    ]
    assert found[0] == found[1] == pytest.approx(7 * held / NVLINK + 3e-6)
