import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardalg.algebra.digits import canonical
from shardalg.algebra.mesh import Mesh
from shardalg.costs.collectives import RING_BYTES, seconds, step_wire_bytes, wire_bytes
from shardalg.costs.hardware import Hardware
from shardalg.spmd.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    DynamicSlice,
    ReduceScatter,
)

MESH = Mesh({"X": 2, "Y": 4})
X, Y = MESH.digits("X"), MESH.digits("Y")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (AllGather(0, Y), 3 * 1000),
        (ReduceScatter(0, Y), 750),
        (AllReduce(Y), 1500),
        (AllReduce((*X, *Y)), 1750),
        (AllToAll(0, 1, Y), 750),
        (CollectivePermute(Y, ((0, 1), (1, 0))), 1000),
        (CollectivePermute(Y, ((0, 0), (1, 1))), 0),
        (AllGather(0, ()), 0),
        (DynamicSlice(0, Y, 4), 0),
    ],
)
def test_wire_bytes_of_one_instruction(attributes, expected):
    assert wire_bytes(attributes, 1000) == expected


def simulated_ring(kind, n, blocks):
    """Bytes that device 0 of a ring sends, counted message by message; `blocks` bytes per block."""
    if kind == "all_gather":  # passes on the block that came in, n-1 times
        return sum(blocks for _ in range(n - 1))
    if kind == "reduce_scatter":  # passes on a partial sum of one block, n-1 times
        return sum(blocks for _ in range(n - 1))
    if kind in ("all_to_all", "ragged_all_to_all"):  # one block for each other device
        return sum(blocks for other in range(n) if other)
    if kind == "all_reduce":
        return simulated_ring("reduce_scatter", n, blocks) + simulated_ring("all_gather", n, blocks)
    return blocks


@given(st.sampled_from(sorted(RING_BYTES)), st.integers(2, 64), st.integers(1, 10**12))
def test_formula_equals_the_messages_of_a_ring(kind, n, block):
    held = block if kind in ("all_gather", "collective_permute") else n * block
    price = step_wire_bytes(kind, group_size=n, local_bytes=held)
    assert price == simulated_ring(kind, n, block)
    assert isinstance(price, int)


@settings(max_examples=15)
@given(st.sampled_from(sorted(RING_BYTES)), st.integers(2, 64), st.integers(0, 10**6))
def test_prices_are_exact_in_numbers_and_equal_the_formula_in_symbols(kind, n, held):
    import sympy

    size, group = sympy.symbols("b n", positive=True)
    formula = step_wire_bytes(kind, group_size=group, local_bytes=size)
    exact = sympy.Rational(formula.subs({size: held, group: n}))
    price = step_wire_bytes(kind, group_size=n, local_bytes=held)
    assert isinstance(price, int | Fraction)
    assert price == Fraction(int(exact.p), int(exact.q))


def test_all_reduce_is_reduce_scatter_and_all_gather():
    whole = step_wire_bytes("all_reduce", group_size=8, local_bytes=4096)
    parts = step_wire_bytes("reduce_scatter", group_size=8, local_bytes=4096)
    assert whole == parts + step_wire_bytes("all_gather", group_size=8, local_bytes=512)


@given(st.lists(st.integers(2, 8), min_size=1, max_size=4), st.integers(1, 100))
def test_axis_by_axis_sends_as_much_as_one_ring_in_fewer_hops(axes, block):
    n, sent, held = math.prod(axes), 0, block
    for size in axes:
        sent += step_wire_bytes("all_gather", group_size=size, local_bytes=held)
        held *= size
    assert sent == step_wire_bytes("all_gather", group_size=n, local_bytes=block)
    mesh = Mesh({f"a{k}": size for k, size in enumerate(axes)})
    hop = Hardware("hops alone", latency_s=1.0)
    every = tuple(digit for name, _ in mesh.axes for digit in mesh.digits([name]))
    time_s = seconds(AllGather(0, every), block, mesh=mesh, hardware=hop)
    assert time_s == sum(size - 1 for size in axes)
    joined = AllReduce(canonical(every))
    # Where only hops cost, each axis in one go: there, and not back again.
    assert seconds(joined, block, mesh=mesh, hardware=hop) == time_s


def test_seconds_take_the_links_of_each_axis_and_a_latency_per_hop():
    hardware = Hardware("toy", link_bytes_per_s=1e9, latency_s=1e-6).with_links({"X": 1e6})
    held = {"mesh": MESH, "hardware": hardware}
    assert seconds(AllGather(0, Y), 1000, **held) == pytest.approx(3000 / 1e9 + 3e-6)
    assert seconds(AllReduce(Y), 10**5, **held) == pytest.approx(1.5e5 / 1e9 + 6e-6)
    assert seconds(AllReduce(Y), 1000, **held) == pytest.approx(3000 / 1e9 + 3e-6)  # in one go
    # Axis by axis, over X while a device holds an eighth, and back.
    moved = 2 * (125 / 1e6 + 250 * 3 / 1e9)
    assert seconds(AllReduce((*X, *Y)), 1000, **held) == pytest.approx(moved + 8e-6)
    assert seconds(AllGather(0, ()), 1000, **held) == 0
