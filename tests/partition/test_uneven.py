"""Reshards of sizes that do not divide: padded, run as even ones are, and brought back."""

import heapq
import itertools
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings

import shardalg as sa
from shardalg.algebra.digits import Digit, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.lower.shard_map import lower
from shardalg.planner.partition.emit.context import Cause, PartitionContext
from shardalg.planner.reshard.exchanges import Retile, margin
from shardalg.planner.reshard.paths import reshard_path
from shardalg.spmd.check import check
from shardalg.spmd.instruction import Collective
from tests.partition.test_reshard import MESHES, chains, check_moved, pieces
from tests.spmd.handmade import Builder

SEED = 1020
SMALL, LARGE = (1, 2, 3, 5, 6, 7, 9, 11, 12, 13), (37, 50, 66, 101, 130, 257, 514, 1000, 1001, 1020)


def random_layouts(sizes, *, count, length, meshes=MESHES, seed=SEED):
    """Chains of layouts, each of one tensor: sub-axes in any place and order."""
    rng = random.Random(seed)
    for _ in range(count):
        mesh = rng.choice(meshes)
        shape = tuple(rng.choice(sizes) for _ in range(rng.randint(1, 3)))
        yield [random_layout(rng, mesh, shape) for _ in range(length)]


def random_layout(rng, mesh, shape):
    held = [[] for _ in range(len(shape) + 1)]
    for piece in rng.sample(pieces(mesh), len(pieces(mesh))):
        rng.choice(held).append(piece)
    return Sharding(mesh, shape, tuple(map(tuple, held[:-1])))


def uneven_pairs(sizes, *, count, **more):
    """Pairs of different layouts, one of which is uneven at least."""
    for source, target in random_layouts(sizes, count=count, length=2, **more):
        if source.dims != target.dims and not (source.is_even and target.is_even):
            yield source, target


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_detour_costs_no_less(sizes, count, show):
    show(f"{count} triples, seed {SEED}")
    for first, by, last in random_layouts(sizes, count=count, length=3):
        legs = [reshard_path(*ends).wire_elements for ends in ((first, by), (by, last))]
        assert reshard_path(first, last).wire_elements <= sum(legs), (first, by, last)


def blocks(size, n, devices):
    """Return padded sizes that a dimension in n parts may have."""
    if n == 1:
        return {size}
    return {-(-size // k) * k for k in range(n, devices + 1, n) if devices % k == 0}


def widths(size, n, before, after):
    """Places that a retile fetches, counted part by part; None if a neighbour has too few."""
    rows = []
    for p in range(n):
        wanted = range(p * after, min((p + 1) * after, size))
        rows.append(len(set(wanted) - set(range(p * before, (p + 1) * before))))
    width = max(rows) if after > before else (n - 1) * (before - after)
    return width if width <= before else None


def put(state, *changed):
    return tuple(dict(changed).get(k, row) for k, row in enumerate(state))


def cuts(row, size, more, devices):
    """Return a dimension of `size` elements with more digits."""
    held, padded = row
    n = parts(held + more)
    for other in {padded} if held else blocks(size, n, devices):
        if other % n == 0:
            yield held + more, other


def retiles(state, shape, devices):
    local = math.prod(size // parts(held) for held, size in state)
    for dim, (held, size) in enumerate(state):
        n = parts(held)
        for other in blocks(shape[dim], n, devices) - {size}:
            width = widths(shape[dim], n, size // n, other // n)
            if width is not None:
                yield width * (local // (size // n)), put(state, (dim, (held, other)))


def every_move(state, shape, digits):
    """(elements sent, state) of every move; a state is (digits, padded size) per dimension."""
    devices = math.prod(d.size for d in digits)
    local = math.prod(size // parts(held) for held, size in state)
    yield from retiles(state, shape, devices)
    free = [d for d in digits if all(d not in held for held, _ in state)]
    for (dim, row), digit in itertools.product(enumerate(state), free):
        yield from ((0, put(state, (dim, c))) for c in cuts(row, shape[dim], (digit,), devices))
    for dim, (held, size) in enumerate(state):
        for keep in range(len(held)):
            m, left = parts(held[keep:]), (dim, (held[:keep], size if keep else shape[dim]))
            yield local * (m - 1), put(state, left)
            for other, order in itertools.product(
                {*range(len(state))} - {dim}, itertools.permutations(held[keep:])
            ):
                for row in cuts(state[other], shape[other], order, devices):
                    padded = local * row[1] // state[other][1]
                    yield padded - padded // m, put(state, left, (other, row))
    for dims in arranged([parts(held) for held, _ in state], digits):
        yield local, tuple((row, size) for row, (_, size) in zip(dims, state, strict=True))


def arranged(counts, digits):
    """Every way to have so many parts per dimension."""
    for total in range(len(digits) + 1):
        for order in itertools.permutations(digits, total):
            for ends in itertools.combinations_with_replacement(range(total + 1), len(counts) - 1):
                cut = [order[a:b] for a, b in itertools.pairwise((0, *ends, total))]
                if [parts(row) for row in cut] == counts:
                    yield tuple(cut)


def shortest(start, goals, moves):
    """Elements sent from one state to each of some (Dijkstra)."""
    best, heap, numbers = {}, [(0, 0, start)], itertools.count(1)
    while not goals <= best.keys():
        sent, _, state = heapq.heappop(heap)
        if state not in best:
            best[state] = sent
            for price, after in moves(state):
                heapq.heappush(heap, (sent + price, next(numbers), after))
    return best


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [
        ({"x": 2, "y": 2}, (5, 3)),
        ({"x": 2, "y": 3}, (13,)),
        pytest.param({"x": 2, "y": 3}, (7, 11), marks=pytest.mark.slow),
        pytest.param({"x": 2, "y": 2, "z": 2}, (13, 6), marks=pytest.mark.slow),
    ],
)
def test_paths_are_the_shortest_there_are(mesh, shape):
    """Padded paths count too: no detour by any sharding is cheaper."""
    mesh = Mesh(mesh)
    digits = pieces(mesh)
    every = [
        dims
        for counts in itertools.product({1, 2, 3, 4, 6, 8}, repeat=len(shape))
        for dims in arranged(list(counts), digits)
    ]
    known = {}

    def moves(state):
        if state not in known:
            known[state] = list(every_move(state, shape, digits))
        return known[state]

    def natural(dims):
        pairs = zip(dims, shape, strict=True)
        return tuple((row, -(-size // parts(row)) * parts(row)) for row, size in pairs)

    layouts = {natural(dims): Sharding(mesh, shape, dims) for dims in every}
    for start, source in layouts.items():
        best = shortest(start, layouts.keys(), moves)
        for goal, target in layouts.items():
            if not (source.is_even and target.is_even):
                assert reshard_path(source, target).wire_elements == best[goal], (source, target)


@pytest.mark.parametrize("size", [1, 2, 5, 12, 13, 37])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_margins_are_what_is_lacking(size, n):
    grids = [-(-size // (n * k)) * k for k in (1, 2, 3, 4)]
    for before, after in itertools.permutations(sorted(set(grids)), 2):
        assert margin(size, n, before, after) == widths(size, n, before, after)


def test_bytes_and_buffers_are_those_of_the_padded_tensor(show):
    """Sizes are padded to multiples of the devices; buffers hold a margin beside a block."""
    sent, retiled = [], 0
    for source, target in uneven_pairs(LARGE, count=120):
        devices = source.mesh.size
        shape = tuple(-(-n // devices) * devices for n in source.shape)
        ends = [Sharding(source.mesh, shape, side.dims) for side in (source, target)]
        path, even = reshard_path(source, target), reshard_path(*ends)
        most = max(math.prod(end.shard_shape) for end in ends)
        held = [math.prod(step.layout.shard_shape) for step in path.steps]
        assert max(held) <= most, (source, target)
        beside = max(math.prod(n + devices for n in end.shard_shape) for end in ends)
        assert sa.reshard(source, target).peak_bytes <= 4 * beside
        sent.append((path.wire_elements, even.wire_elements))
        retiled += any(isinstance(step.attributes, Retile) for step in path.steps)
    ratio = statistics.geometric_mean(float(ours / even) for ours, even in sent if ours and even)
    share = float(sum(ours for ours, _ in sent) / sum(even for _, even in sent))
    show(
        f"{len(sent)} pairs, {retiled} with a margin: {ratio:.3f} of the padded tensor's elements, "
        f"{share:.3f} of all together"
    )
    assert max(ratio, share) < 1.05


@pytest.mark.parametrize("size", [101, 257, 1001])
def test_of_two_paths_that_send_as_much_none_gathers(size):
    """One permute moves a split between axes of one size, without a gather and a slice."""
    mesh = Mesh({"x": 2, "y": 2, "z": 2})
    for a, b in itertools.permutations("xyz", 2):
        path = reshard_path(*(Sharding(mesh, (size,), (mesh.digits(axis),)) for axis in (a, b)))
        assert [step.layout.shard_shape for step in path.steps] == [(-(-size // 2),)]


def test_two_buffers_are_no_more_than_twice_one():
    for source, target in uneven_pairs(LARGE, count=60):
        devices = source.mesh.size
        padded = math.prod(1 + devices / n for n in source.shape)
        most = padded * max(math.prod(end.shard_shape) for end in (source, target))
        before = math.prod(source.shard_shape)
        for step in reshard_path(source, target).steps:
            after = math.prod(step.layout.shard_shape)
            assert before + after <= 2 * most, (source, target)
            before = after


def in_one_program(pairs):
    """(program, graph) that takes one array per pair and hands it out in the other layout."""
    b = Builder(pairs[0][0].mesh)
    b.arguments += [b.local(source) for source, _ in pairs]
    context = PartitionContext(None, (), locals=b.locals, instructions=b.blocks[-1])
    ends = zip(tuple(b.arguments), pairs, strict=True)
    return b.program(*[context.move(local, *pair, Cause(None)) for local, pair in ends])


@pytest.mark.parametrize("count", [10, pytest.param(600, marks=pytest.mark.slow)])
def test_a_sample_runs_on_devices(count):
    pairs = list(uneven_pairs((5, 12, 13, 30), count=count, meshes=MESHES[:1]))
    retiled = sum(isinstance(s.attributes, Retile) for p in pairs for s in reshard_path(*p).steps)
    assert retiled > count / 8, "margins are among them"
    for at in range(0, len(pairs), 50):
        some = pairs[at : at + 50]
        program, graph = in_one_program(some)
        arrays = [np.random.default_rng(at).standard_normal(s.shape, np.float32) for s, _ in some]
        results = lower(check(program), graph)(*arrays)
        for result, array in zip(results, arrays, strict=True):
            np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_every_step_is_proved(count):
    for source, target in uneven_pairs(SMALL, count=count):
        path = sa.reshard(source, target)
        assert path.verify().ok, (source, target)
        assert path.wire_bytes == 4 * reshard_path(source, target).wire_elements


def test_other_meshes_and_device_orders():
    mesh = Mesh({"x": 2, "y": 4})
    others = Mesh({"u": 4, "v": 2}), Mesh({"u": 4, "v": 2}, device_ids=(0, 4, 1, 5, 2, 6, 3, 7))
    array = np.arange(13 * 6, dtype=np.float32).reshape(13, 6)
    for other, source, target in itertools.product(
        others, (("x", "y"), ("", "yx"), ("y", "")), (("u", "v"), ("vu", ""), ("v", ""))
    ):
        ends = [
            Sharding(m, array.shape, tuple(map(m.digits, dims)))
            for m, dims in ((mesh, source), (other, target))
        ]
        path = sa.reshard(*ends)
        np.testing.assert_array_equal(path.simulate(array), array)
        assert path.verify().ok


MANY = (Mesh({"x": 4, "y": 4}), Mesh({"x": 12, "y": 5}), Mesh({"x": 8, "y": 16}))


def test_on_more_devices_paths_are_padded_or_gathered():
    """Beyond three digits of prime size nothing is searched; the plan is right."""
    for source, target in uneven_pairs((7, 12, 37), count=24, meshes=MANY):
        check_moved(source, target)


@settings(max_examples=40)
@given(chains(length=2, pending=True))
def test_without_padding_blocks_are_those_of_the_layouts(chain):
    source, target = chain
    target = Sharding(target.mesh, target.shape, target.dims)
    path = reshard_path(source, target, None, False)
    assert all(step.layout.shape == source.shape for step in path.steps)
    assert not any(isinstance(step.attributes, Retile) for step in path.steps)
    assert path.wire_elements >= reshard_path(source, target).wire_elements


def test_a_margin_is_one_permute_as_wide_as_it_must_be():
    """1020 rows in blocks of 255, then of 128: XLA sends 3 rows too (`reshard_uneven`)."""
    mesh = Mesh({"x": 2, "y": 4})
    source = Sharding(mesh, (1020, 1024), (mesh.digits("y"), ()))
    target = Sharding(mesh, (1020, 1024), (mesh.digits("xy"), ()))
    steps = reshard_path(source, target).steps
    assert steps[0].attributes == Retile(0, (Digit(1, 4),), 1020, 255, 256)
    assert [step.wire_elements for step in steps] == [3 * 1024, 0, 128 * 1024]
    path = sa.reshard(source, target)
    assert sum(isinstance(step.attributes, Collective) for step in path.steps) == 2
