"""Tensors cut apart and put side by side along a sharded dimension: pieces move, nothing whole."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.spmd import instructions as p
from shardalg.spmd.check import check
from shardalg.verify.verify import verify
from tests.partition.planned import MESH, checked, instructions, kinds, moves, numbers

ROWS, BOTH, ALL = P("Y"), P("Y", "X"), P(("X", "Y"))


def sent(plan):
    """Elements that a device sends along all dimensions."""
    return sum(row["wire_bytes"] for row in plan.collectives_table) / 4


def rotated(x):
    return jnp.roll(x, 3, 0)


# name: (function, shapes, layout of all, how many elements a device may send)
CASES = {
    "two": (lambda a, b: jnp.concatenate([a, b], 0), [(9, 3), (13, 3)], ROWS, 60),
    "even": (lambda a, b: jnp.concatenate([a, b], 0), [(8, 3), (16, 3)], ALL, 24),
    "three, one of them twice": (
        lambda a, b: jnp.concatenate([a, b, a], 0), [(5, 4), (1, 4)], BOTH, 40,
    ),
    "split": (lambda a: jnp.split(a, [3, 5], 0), [(11, 4)], BOTH, 40),
    "split in halves": (lambda a: jnp.split(a, 2, 0), [(16, 4)], ALL, 32),
    "stack": (lambda a, b: jnp.stack([a, b, a, b], 0), [(5,), (5,)], P("X"), 6),
    "rotate": (rotated, [(16, 4)], BOTH, 12),
    "rotate by more than a block": (lambda a: jnp.roll(a, 17, 0), [(64, 1)], ROWS, 32),
    "rotate uneven": (lambda a: jnp.concatenate([a[7:], a[:7]], 0), [(9, 2)], ROWS, 8),
    "shift by one stage": (
        lambda a, b: jnp.concatenate([b[:1], a[:-1]], 0), [(8, 3), (8, 3)], ROWS, 12,
    ),
    "booleans": (lambda a, b: jnp.concatenate([a > 0, b > 0], 0), [(7, 2), (5, 2)], ROWS, 60),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_only_pieces_move(name):
    fn, shapes, spec, most = CASES[name]
    arguments = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    specs = tuple(P(*spec[: len(shape)]) for shape in shapes)
    plan = checked(fn, arguments, specs, out_shardings=spec)
    assert "all_gather" not in {kind for kind, _ in moves(plan)}
    assert sent(plan) <= most
    assert plan.verify().ok, plan.verify().refuted


def test_an_element_of_a_dimension_is_sent_not_the_dimension():
    x = numbers(64, 3)
    plan = checked(lambda x: lax.unstack_p.bind(x, axis=0)[5], (x,), (ROWS,))
    assert sent(plan) < x.size / 2
    assert plan.verify().ok


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: jnp.concatenate([a[::2], a[:4]], 0),
        lambda a: jnp.concatenate([a[1:-1], a[:2]], 0),
        lambda a: jnp.concatenate([a[5:], a[:4]], 0),
        lambda a: jnp.concatenate([a[4:, :1], a[:4, :1]], 0),
        lambda a: jnp.concatenate([a[:4], a[4:]], 0),
    ],
)
def test_what_is_no_rotation_is_sliced_first(fn):
    plan = checked(fn, (numbers(9, 3),), (ROWS,), out_shardings=ROWS)
    assert not {node.primitive for node in plan.graph.nodes} & {"join_ends"}


def test_a_slice_that_others_read_stays():
    def fn(a):
        end = a[3:]
        return jnp.concatenate([end, a[:3]], 0), end * 2

    plan = checked(fn, (numbers(9, 3),), (ROWS,), out_shardings=ROWS)
    assert plan.verify().ok


def test_what_is_next_to_a_place_is_chosen_bit_for_bit():
    """Zeros keep their sign, and a NaN stays in its place: nothing is added up."""
    a = np.array([-0.0, np.nan, 1, -0.0, np.inf], np.float32)
    b = np.array([-0.0, 2, np.nan], np.float32)
    plan = checked(lambda a, b: jnp.concatenate([a, b]), (a, b), (ROWS, ROWS), out_shardings=ROWS)
    got = np.asarray(plan.lower()(a, b))
    np.testing.assert_array_equal(got.view(np.int32), np.concatenate([a, b]).view(np.int32))
    assert "Choose" in kinds(plan)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(6))
def test_random_pieces_of_uneven_sizes(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, rng.integers(2, 5))
    arguments = [numbers(int(n), 2, seed=i) for i, n in enumerate(sizes)]
    specs = tuple(ALL if rng.integers(3) else P() for _ in sizes)

    def fn(*xs):
        joined = jnp.concatenate(xs, 0)
        return joined, jnp.split(joined, [int(sizes[0]) + 1], 0)[1]

    plan = checked(fn, arguments, specs, out_shardings=ALL)
    assert plan.verify().ok, plan.verify().refuted
    for got, want in zip(plan.lower()(*arguments), fn(*arguments), strict=True):
        np.testing.assert_array_equal(got, want)


def test_gradients_of_a_concatenation():
    def loss(a, b):
        return (jnp.concatenate([a, b], 0) ** 2).sum()

    arguments = numbers(9, 3), numbers(6, 3, seed=1)
    plan = checked(jax.grad(loss, (0, 1)), arguments, (ROWS, ROWS), out_shardings=ROWS)
    assert plan.verify().ok
    assert "all_gather" not in {kind for kind, _ in moves(plan)}


def test_a_choice_prints_its_ends():
    def fn(a, b):
        return jnp.concatenate([a, b])

    plan = checked(fn, (numbers(9, 3), numbers(13, 3)), (ROWS, ROWS), out_shardings=ROWS)
    assert "choose dim=0 by 6*p(Y)+x, ends 9, 22" in str(plan.program)
    found = [s.attributes for s in instructions(plan.program.block)]
    assert [a.digits for a in found if isinstance(a, p.Choose)] == [MESH.digits("Y")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "sizes", [[8] * 24, [5] * 20, [1] * 32, [3, 40, 8, 1, 9, 100, 17] * 3], ids=str
)
def test_many_pieces_are_fetched_by_rounds_that_exist(sizes):
    """The program grows with the number of pieces, not with its square."""
    arguments = [numbers(n, 3, seed=i) for i, n in enumerate(sizes)]
    join = lambda *pieces: jnp.concatenate(pieces, 0)  # noqa: E731
    plan = checked(join, arguments, (ALL,) * len(sizes), out_shardings=ALL)
    assert plan.verify().ok, plan.verify().refuted
    assert len(plan.program.block.instructions) <= 8 * len(sizes) + 120


def test_places_in_a_gap_of_another_width_are_refuted():
    """A gap one place wider would move every later piece of the interval."""
    arguments = [numbers(8, 3, seed=i) for i in range(16)]
    join = lambda *pieces: jnp.concatenate(pieces, 0)  # noqa: E731
    plan = checked(join, arguments, (ALL,) * 16, out_shardings=ALL)
    block, wrong = plan.program.block, []
    gaps = [k for k, at in enumerate(block.instructions) if isinstance(at.attributes, p.Dilate)]
    assert gaps
    for k in gaps[:4]:
        at, by = block.instructions[k], 1 if block.instructions[k].attributes.high else -1
        moved = replace(at.attributes, low=at.attributes.low + by, high=at.attributes.high - by)
        edited = list(block.instructions)
        edited[k] = replace(at, attributes=moved)
        tampered = replace(plan.program, block=replace(block, instructions=tuple(edited)))
        wrong.append(verify(plan.sharded, check(tampered)).ok)
    assert not any(wrong)
