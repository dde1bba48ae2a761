"""Paths between layouts: they move every value to where it belongs, and none costs too much."""

import collections
import heapq
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
from shardalg.planner.partition.emit.context import Cause, PartitionContext
from shardalg.planner.reshard.paths import reshard_bound, reshard_path, reshard_price
from shardalg.spmd import instructions as p
from shardalg.spmd.check import check
from shardalg.spmd.host.simulate import simulate
from tests.spmd.handmade import Builder

MESHES = (Mesh({"x": 2, "y": 2, "z": 2}), Mesh({"x": 4, "y": 2}), Mesh({"x": 2, "y": 3}))
EVEN, ANY = (0, 24, 48), (1, 2, 3, 5, 7, 9, 10, 11, 12, 13)


def pieces(mesh):
    """Return the prime sub-axes of the mesh, major first."""
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
    context = PartitionContext(None, (), locals=b.locals, instructions=b.blocks[-1])
    local = context.move(local, source, target, Cause(None))
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
    """Return a sum that is pending on both axes, listed in some order."""
    digits = [MESHES[2].digit(name) for name in MESHES[2].axis_names]
    return Sharding(MESHES[2], (), (), unreduced=tuple(digits[i] for i in order))


@given(chains(length=2, sizes=EVEN))
def test_even_values_arrive(chain):
    check_moved(*chain)


def between(shape, *axes):
    """Return layouts of a shape on X=2, Y=3."""
    mesh = Mesh({"x": 2, "y": 3})
    return [Sharding.from_axes(side, mesh, shape) for side in axes]


EXCHANGED = [None, "x", "y", None], ["y", None, None, "x"]


@given(chains(length=2))
@example(between((2, 7, 4, 2), *EXCHANGED))
@example(between((5, 7, 4, 3), *EXCHANGED))
def test_uneven_values_arrive(chain):
    check_moved(*chain)


@given(chains(length=2, pending=True))
@example([pending_in_order(0, 1), pending_in_order(1, 0)])
def test_pending_sums_arrive(chain):
    """Sums pending at the source are added, or still pending at the target."""
    source, target = chain
    if set(target.unreduced) <= set(source.unreduced):
        check_moved(source, target)
    else:
        check_moved(source, Sharding(target.mesh, target.shape, target.dims))


def place_beside(digits, position):
    """Return a position with these digits set to 0."""
    return position - sum((position // d.stride % d.size) * d.stride for d in digits)


X_TO_Z = [Sharding.from_axes(axes, MESHES[0], (24, 24)) for axes in (["x", None], [None, "z"])]


@given(chains(length=2))
@example(X_TO_Z)
def test_a_permute_sends_along_the_axes_that_it_names(chain):
    """Both devices of a pair have the same position along all other axes."""
    for step in reshard_path(*chain).steps:
        if isinstance(step.attributes, p.CollectivePermute):
            for pair in step.attributes.pairs:
                source, target = (place_beside(step.attributes.digits, at) for at in pair)
                assert source == target, (step.attributes.digits, pair)


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


def every_move(dims, shape, digits):
    """(elements sent, layout) of every slice, gather, all-to-all and permute; no goal is known."""
    local = math.prod(n // parts(d) for n, d in zip(shape, dims, strict=True))
    free = [d for d in digits if all(d not in held for held in dims)]

    def put(*changed):
        after = tuple(dict(changed).get(k, held) for k, held in enumerate(dims))
        fits = all(n % parts(d) == 0 for n, d in zip(shape, after, strict=True))
        return [after] if fits else []

    for dim, held in enumerate(dims):
        yield from ((0, after) for d in free for after in put((dim, (*held, d))))
        for keep in range(len(held)):
            n = parts(held[keep:])
            yield from ((local * (n - 1), after) for after in put((dim, held[:keep])))
            for other in {*range(len(dims))} - {dim}:
                for order in itertools.permutations(held[keep:]):
                    for after in put((dim, held[:keep]), (other, dims[other] + order)):
                        yield local - local // n, after


def edges(mesh, shape):
    """Every layout of a shape to the moves from it; permutes lead to all with as many parts."""
    digits, every = pieces(mesh), []
    for count in range(len(digits) + 1):
        for chosen in itertools.permutations(digits, count):
            for cuts in itertools.combinations_with_replacement(range(count + 1), len(shape) - 1):
                bounds = itertools.pairwise((0, *cuts, count))
                every.append(tuple(chosen[low:high] for low, high in bounds))
    every = [d for d in every if all(n % parts(x) == 0 for n, x in zip(shape, d, strict=True))]
    alike = collections.defaultdict(list)
    for dims in every:
        alike[tuple(map(parts, dims))].append(dims)
    found = {}
    for dims in every:
        local = math.prod(n // parts(d) for n, d in zip(shape, dims, strict=True))
        permutes = [(local, after) for after in alike[tuple(map(parts, dims))]]
        found[dims] = [*every_move(dims, shape, digits), *permutes]
    return found


def shortest(graph, start):
    """Elements sent from one layout to each other one (Dijkstra)."""
    best, heap, numbers = {}, [(0, 0, start)], itertools.count(1)
    while heap:
        sent, _, dims = heapq.heappop(heap)
        if dims not in best:
            best[dims] = sent
            for price, after in graph[dims]:
                heapq.heappush(heap, (sent + price, next(numbers), after))
    return best


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [
        ({"x": 2, "y": 2, "z": 2}, (64, 64)),
        ({"x": 4, "y": 2}, (64,)),
        ({"x": 3, "y": 2}, (72, 72)),
        ({"x": 6, "y": 2}, (144,)),
        pytest.param({"x": 2, "y": 2, "z": 2}, (64, 64, 64), marks=pytest.mark.slow),
        pytest.param({"x": 2, "y": 2, "z": 2, "u": 2}, (256, 256), marks=pytest.mark.slow),
        pytest.param({"x": 3, "y": 2, "z": 2}, (144, 144), marks=pytest.mark.slow),
    ],
)
def test_paths_are_the_shortest_there_are(mesh, shape):
    """Therefore no detour is cheaper, and no buffer is larger than both ends."""
    mesh = Mesh(mesh)
    graph = edges(mesh, shape)
    layouts = {dims: Sharding(mesh, shape, dims) for dims in graph}
    for start, source in layouts.items():
        best = shortest(graph, start)
        for goal, target in layouts.items():
            path = reshard_path(source, target)
            assert path.wire_elements == best[goal], (source, target)
            most = max(math.prod(s.shard_shape) for s in (source, target))
            assert all(math.prod(s.layout.shard_shape) <= most for s in path.steps)
            assert all(mesh.refs(s.attributes.digits) for s in path.steps), "axes of the mesh"


@settings(max_examples=200)
@given(chains(length=3, sizes=EVEN))
def test_a_detour_costs_no_less(chain):
    first, by, last = chain
    legs = [reshard_path(*ends).wire_elements for ends in ((first, by), (by, last))]
    assert reshard_path(first, last).wire_elements <= sum(legs)


@settings(max_examples=200)
@given(st.sampled_from([EVEN, ANY]).flatmap(lambda n: chains(length=2, pending=True, sizes=n)))
def test_bounds_hold(chain):
    """Bounds hold for sums too, and prices without a path equal the paths' prices."""
    source, target = chain
    kept = tuple(d for d in target.unreduced if d in source.unreduced)
    target = Sharding(target.mesh, target.shape, target.dims, unreduced=kept)
    sent = reshard_path(source, target).wire_elements
    assert reshard_bound(source, target) <= sent
    assert reshard_price(source, target) == sent


AG, A2A, CP, DS = p.AllGather, p.AllToAll, p.CollectivePermute, p.DynamicSlice


@pytest.mark.parametrize(
    ("source", "target", "kinds", "wire_elements"),
    [
        (("X", ""), ("", ""), [AG], 16 * 32),
        (("", ""), ("X", "Y"), [DS, DS], 0),
        (("XY", ""), ("YX", ""), [CP], 4 * 32),
        (("XY", ""), ("Y", "X"), [A2A, CP], 4 * 32 + 4 * 32 // 2),
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


@pytest.mark.sampled(1)
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
