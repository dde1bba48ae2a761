"""Paths between layouts: they move every value to where it belongs, and none costs too much."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.digits import Digit, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.collectives import step_wire_bytes
from shardalg.partition.context import moves
from shardalg.partition.reshard import reshard_path
from shardalg.partition.search import _within, bound, is_direct, search
from shardalg.spmd import program as p
from shardalg.spmd.check import check
from shardalg.spmd.simulate import simulate
from tests.spmd.handmade import Builder

MESHES = (Mesh({"x": 2, "y": 2, "z": 2}), Mesh({"x": 4, "y": 2}), Mesh({"x": 2, "y": 3}))
EVEN, ANY = (0, 24, 48), (1, 2, 3, 5, 7, 9, 10, 11, 12, 13)


def pieces(mesh):
    """The prime sub-axes of the mesh, major first."""
    found = []
    for name in mesh.axis_names:
        digit = mesh.digit(name)
        low, size = digit.stride, digit.size
        for factor in (2, 3):
            while size % factor == 0:
                size //= factor
                found.append(Digit(low * size, factor))
    return found


@st.composite
def layouts(draw, mesh, shape, *, pending=False):
    """Any placing of the mesh's prime sub-axes: on a dimension, pending, or on nothing."""
    places = [*range(len(shape)), *(["pending"] if pending else []), None]
    held = {place: [] for place in places}
    for piece in draw(st.permutations(pieces(mesh))):
        held[draw(st.sampled_from(places))].append(piece)
    dims = tuple(tuple(held[dim]) for dim in range(len(shape)))
    return Sharding(mesh, shape, dims, unreduced=tuple(held.get("pending", ())))


@st.composite
def chains(draw, *, length, pending=False, sizes=ANY):
    """Several layouts of one tensor."""
    mesh = draw(st.sampled_from(MESHES))
    shape = tuple(draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3)))
    return [draw(layouts(mesh, shape, pending=pending)) for _ in range(length)]


def moving(source, target):
    """(program, graph) that takes addends of a tensor at `source`; the sum leaves at `target`."""
    b = Builder(source.mesh)
    pending = source.unreduced
    stacked = Sharding(b.mesh, (parts(pending), *source.shape), (pending, *source.dims))
    local = b.local(stacked)
    b.arguments.append(local)
    local = b.apply(lambda x: jax.lax.squeeze(x, (0,)), [local], source)
    for move in moves(source, target):
        local = b.add(move.attributes, [local], move.layout, shape=move.shape)
    if target.unreduced:
        whole = Sharding(b.mesh, target.shape, target.dims)
        local = b.add(p.AllReduce(target.unreduced), [local], whole)
    return b.program(local)


def check_moved(source, target):
    program, graph = moving(source, target)
    shape = (parts(source.unreduced), *source.shape)
    addends = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (result,) = simulate(check(program), graph, addends)
    np.testing.assert_array_equal(result, addends.sum(0))


def pending_in_order(*order):
    """A number that is pending on both axes, which are listed in some order."""
    digits = [MESHES[2].digit(name) for name in MESHES[2].axis_names]
    return Sharding(MESHES[2], (), (), unreduced=tuple(digits[i] for i in order))


@given(chains(length=2, sizes=EVEN))
def test_even_values_arrive(chain):
    check_moved(*chain)


@given(chains(length=2))
def test_uneven_values_arrive(chain):
    check_moved(*chain)


@given(chains(length=2, pending=True))
@example([pending_in_order(0, 1), pending_in_order(1, 0)])
def test_pending_sums_arrive(chain):
    """What is pending at the source is added, or still pending at the target."""
    source, target = chain
    if set(target.unreduced) <= set(source.unreduced):
        check_moved(source, target)
    else:
        check_moved(source, Sharding(target.mesh, target.shape, target.dims))


@given(chains(length=1, pending=True))
def test_staying_costs_nothing(chain):
    path = reshard_path(chain[0], chain[0])
    assert (path.steps, path.wire_elements) == ((), 0)


@given(chains(length=2))
def test_never_more_than_gathering_all_and_slicing(chain):
    source, target = chain
    local, gathered = int(np.prod(source.shard_shape)), 0
    for dim, digits in enumerate(source.dims):
        n = parts(digits)
        gathered += step_wire_bytes("all_gather", group_size=n, local_bytes=local) if n > 1 else 0
        local = local // max(source.shard_shape[dim], 1) * source.shape[dim]
    assert reshard_path(source, target).wire_elements <= gathered


@st.composite
def searches(draw):
    """(shape, start, goal) in common digits, some of the goal's sums still pending."""
    source, target = draw(chains(length=2, pending=True, sizes=draw(st.sampled_from([EVEN, ANY]))))
    kept = tuple(d for d in target.unreduced if d in source.unreduced)
    goal = Sharding(target.mesh, target.shape, target.dims, unreduced=kept)
    start, goal = ((s.dims, tuple(sorted(s.unreduced, reverse=True))) for s in (source, goal))
    return source.shape, start, goal


X, Y = Digit(2, 2), Digit(1, 2)


@settings(max_examples=200)
@given(searches())
@example(((8, 8, 8), (((X,), (Y,), ()), ()), (((), (), (X, Y)), ())))
def test_bounds_hold_and_change_no_chain(problem):
    """The search within limits finds what the search without a limit finds, move for move."""
    shape, start, goal = problem
    chain, _ = _within(shape, (start, goal), math.inf)
    sent = sum(price for _, _, price in chain)
    assert search(*problem) == chain
    assert bound(*problem) <= sent
    assert bound(*problem) == sent or not is_direct(*problem)


AG, A2A, CP, DS = p.AllGather, p.AllToAll, p.CollectivePermute, p.DynamicSlice


@pytest.mark.parametrize(
    ("source", "target", "kinds", "wire_elements"),
    [
        (("X", ""), ("", ""), [AG], 16 * 32),
        (("", ""), ("X", "Y"), [DS, DS], 0),
        (("XY", ""), ("YX", ""), [CP], 4 * 32),
        (("XY", ""), ("Y", "X"), [CP, A2A], 4 * 32 + 4 * 32 // 2),
        (("XY", ""), ("X", "Y"), [A2A], 4 * 32 * 3 // 4),
        # A slice out of order and a permute, rather than a gather.
        (("Y", ""), ("XY", ""), [DS, CP], 4 * 32),
    ],
)
def test_short_paths(source, target, kinds, wire_elements):
    mesh = Mesh({"X": 2, "Y": 4})
    ends = (Sharding(mesh, (32, 32), tuple(map(mesh.digits, dims))) for dims in (source, target))
    path = reshard_path(*ends)
    assert ([type(step.attributes) for step in path.steps], path.wire_elements) == (
        kinds,
        wire_elements,
    )


LAYOUTS = [P("Y"), P(("X", "Y")), P("X", "Y"), P("Y", "X"), P(None, ("Y", "X"))]


@pytest.mark.parametrize("size", [16, 13])
def test_paths_run_on_devices_too(size):
    """Each layout to each other one in one program: sub-axes and permutes lower too."""
    mesh = sa.Mesh({"X": 2, "Y": 4})
    x = np.arange(size * 8, dtype=np.float32).reshape(size, 8)
    pairs = list(itertools.permutations(LAYOUTS, 2))
    plan = sa.plan(
        lambda *xs: [x + i for i, x in enumerate(xs)],
        *[x for _ in pairs],
        mesh=mesh,
        in_shardings=tuple(source for source, _ in pairs),
        out_shardings=[target for _, target in pairs],
    )
    kinds = set(plan.collectives()["kind"])
    assert {"all_to_all", "collective_permute", "all_gather"} <= kinds
    for i, result in enumerate(plan.lower()(*[x for _ in pairs])):
        np.testing.assert_array_equal(result, x + i)
