"""Programs that move pieces of a sharded loop, each with one thing wrong: refuted, and seen."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.algebra.affine import Index
from shardalg.spmd import instructions as p
from shardalg.spmd.local import Start
from tests.partition.planned import MESH, numbers
from tests.verify.mutating import Case, judged_both_ways

X, Y = MESH.digits("X"), MESH.digits("Y")
ROWS = P("Y")


def joined(a, b):
    return jnp.concatenate([a, b], 0)


def rotated(x):
    """One permute serves two readings."""
    return jnp.concatenate([x[3:], x[:3]], 0)


def in_runs(x):
    """Return a reshape whose blocks become runs of two elements in rows of seven."""
    return x.reshape(2, 7)


def reshaped(x):
    """Blocks of three rows of three become blocks of two rows of six."""
    return x.reshape(5, 6)


def summed(x):
    return jnp.cumsum(x, 0)


def summed_from_the_end(x):
    return jax.lax.cumsum(x, 0, reverse=True)


def best(x):
    return jnp.argmax(x, 0)


def convolved(x):
    """Return a halo on both sides with an uneven dimension: its ends are masked."""
    return lax.conv_general_dilated(x, KERNEL, (1,), "SAME", dimension_numbers=NUMBERS)


def dilated(x):
    """Return a dilation whose phase depends on the device."""
    return lax.conv_general_dilated(
        x, KERNEL, (2,), ((2, 1),), lhs_dilation=(3,), dimension_numbers=NUMBERS
    )


def spread(x, kernel):
    """Return sharded taps, one of which is absent; a slot brings places for others."""
    return lax.conv_general_dilated(
        x, kernel, (2,), ((1, 1),), rhs_dilation=(2,), dimension_numbers=NUMBERS
    )


def selected(x, strides=2):
    """Return the gradient of a pooling: windows beyond both ends, of negative numbers."""
    shape, steps = (4, 1, 1), (strides, 1, 1)
    out, back = jax.vjp(lambda x: lax.reduce_window(x, -np.inf, lax.max, shape, steps, "SAME"), x)
    return back(jnp.arange(1.0, out.size + 1, dtype=out.dtype).reshape(out.shape))[0]


def selected_in_phases(x):
    """Return a selection whose first window in a block depends on the device."""
    return selected(x, 3)


NUMBERS = ("HNC", "HIO", "HNC")
KERNEL = numbers(4, 2, 3, seed=1) + np.float32(9)
IMAGE = np.arange(28, dtype=np.float32).reshape(14, 1, 2) + 9
POOLED = numbers(13, 1, 2, seed=2) - np.float32(50)
# name: (function, arguments, their layout, layout of the results)
PROGRAMS = {
    "joined": (joined, (numbers(9, 3), numbers(13, 3, seed=1)), ROWS, ROWS),
    "rotated": (rotated, (IMAGE.reshape(28)[:16],), ROWS, ROWS),
    "reshaped": (reshaped, (IMAGE.reshape(28)[:15].repeat(2).reshape(10, 3) + 1,), ROWS, ROWS),
    "summed": (summed, (numbers(9, 4),), ROWS, ROWS),
    "summed from the end": (summed_from_the_end, (numbers(9, 4),), ROWS, ROWS),
    # Three columns keep no four devices busy, so that the rows stay split.
    "best": (best, (numbers(9, 3) - np.float32(5),), ROWS, P()),
    "convolved": (convolved, (IMAGE,), ROWS, ROWS),
    "dilated": (dilated, (IMAGE[:10],), ROWS, ROWS),
    "spread": (spread, (IMAGE[:9], KERNEL[:3]), ROWS, P()),
    "selected": (selected, (POOLED,), ROWS, ROWS),
    "selected in phases": (selected_in_phases, (POOLED,), ROWS, ROWS),
}


PROGRAMS["in runs"] = (in_runs, (IMAGE.reshape(28)[:14],), P(("X", "Y")), P("X", "Y"))
CASES = {
    name: Case(fn, arguments, (spec,) * len(arguments), results)
    for name, (fn, arguments, spec, results) in PROGRAMS.items()
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_the_program_as_planned_is_right(name):
    CASES[name].check()


def moved_start(start, by):
    return replace(start, index=Index(start.index.terms, start.index.constant + by))


def in_numerator(slice_at, by):
    """Another number in front of the division, or of the remainder."""
    index = slice_at.start.index
    moved = replace(index, constant=index.constant + by)
    return replace(slice_at, start=replace(slice_at.start, index=moved))


def swapped(fetch):
    """Two devices receive what the other one should."""

    def change(permutes):
        (first, second, *rest), *more = permutes
        return ((first[0], second[1]), (second[0], first[1]), *rest), *more

    return permuted(fetch, change)


def permuted(fetch, change):
    """Change the permutes of its first reading."""
    first, *rest = fetch.readings
    return replace(fetch, readings=(replace(first, permutes=change(first.permutes)), *rest))


def backwards(permutes):
    return tuple(tuple((t, s) for s, t in pairs) for pairs in permutes)


def lacking(fetch):
    """Remove all senders of the first reading."""
    return permuted(fetch, lambda permutes: ((),) * len(permutes))


def exchanged(fetch):
    """Each of two readings takes what arrives for the other one."""
    one, two = fetch.readings
    swapped = replace(one, permutes=two.permutes), replace(two, permutes=one.permutes)
    return replace(fetch, readings=swapped)


def of_operand(fetch, change):
    """Take the first reading from another operand."""
    first, *rest = fetch.readings
    return replace(fetch, readings=(replace(first, operand=change(first.operand)), *rest))


def of_block(fetch, number):
    """Declare the first reading as another block's."""
    first, *rest = fetch.readings
    source = replace(first.source, more=number)
    return replace(fetch, readings=(replace(first, source=source), *rest))


def with_places(fetch, by):
    """Fewer places of the block count, or more."""
    first, *rest = fetch.readings
    lower, upper = first.places
    return replace(fetch, readings=(replace(first, places=(lower, upper + by)), *rest))


MUTATIONS = {
    "the first piece one too long": (
        "joined", p.Choose, lambda a: replace(a, sizes=(10, 12)), 0,
    ),
    "the pieces the other way": ("joined", p.Choose, lambda a: replace(a, sizes=(13, 9)), 0),
    "chosen one place later": (
        "joined", p.Choose, lambda a: replace(a, start=moved_start(a.start, 1)), 0,
    ),
    "chosen along another axis": (
        "joined", p.Choose,
        lambda a: replace(a, start=replace(a.start, digits=((a.start.digits[0][0], X),))), 0,
    ),
    "a piece of one place later": (
        "joined", p.SliceAt, lambda a: replace(a, start=replace(a.start, more=a.start.more + 1)),
        0,
    ),
    "a round of another block": (
        "joined", p.HaloExchange, lambda a: of_block(a, 5), 0,
    ),
    "a round left out": ("joined", p.HaloExchange, None, -1),
    "a reading that takes its own block": ("rotated", p.HaloExchange, lambda a: lacking(a), -1),
    "the readings of a permute swapped": ("rotated", p.HaloExchange, lambda a: exchanged(a), -1),
    "the block of another operand": (
        "joined", p.HaloExchange, lambda a: of_operand(a, lambda k: k + 1), 0,
    ),
    "a permute that names a device twice": (
        "rotated", p.HaloExchange, lambda a: permuted(a, lambda pairs: (((1, 3),), *pairs[1:])), -1,
    ),
    "regrouped blocks one place later": (
        "reshaped", p.SliceAt, lambda a: replace(a, start=replace(a.start, more=a.start.more + 1)),
        -1,
    ),
    "regrouped blocks not fetched": ("reshaped", p.HaloExchange, None, 1),
    "rows of another length": (
        "reshaped", p.Regroup, lambda a: replace(a, groups=((1, (6, 5)),)), -1,
    ),
    "flat of a part": ("reshaped", p.Regroup, lambda a: replace(a, groups=((1, (30,)),)), 0),
    "runs of another dimension": ("in runs", p.Regroup, lambda a: replace(a, held=()), -1),
    "runs one place later": (
        "in runs", p.SliceAt, lambda a: replace(a, start=replace(a.start, more=a.start.more + 1)),
        -1,
    ),
    "runs not fetched": ("in runs", p.HaloExchange, None, 1),
    "what is carried left out": ("summed", p.Join, None, 0),
    "carried the other way": ("summed", p.ExclusiveScan, lambda a: replace(a, reverse=True), 0),
    "carried as a maximum": ("summed", p.ExclusiveScan, lambda a: replace(a, combine="max"), 0),
    "carried along another axis": ("summed", p.ExclusiveScan, lambda a: replace(a, digits=X), 0),
    "joined as a maximum": ("summed", p.Join, lambda a: replace(a, combine="max"), 0),
    "the first place carried": ("summed", p.Slice, lambda a: replace(a, start=0), 0),
    "nothing carried on": ("summed", p.ExclusiveScan, None, 0),
    "padding summed from the end": ("summed from the end", p.Mask, None, 0),
    "the best of padding": ("best", p.Mask, None, 0),
    "best of longer blocks": ("best", p.ArgReduce, lambda a: replace(a, block=a.block + 1), 0),
    "the least": ("best", p.ArgReduce, lambda a: replace(a, combine="argmin"), 0),
    "best along another axis": ("best", p.ArgReduce, lambda a: replace(a, digits=X), 0),
    "the best place of a block": ("best", p.ArgReduce, None, 0),
    "a halo one place off": (
        "convolved", p.Slice, lambda a: replace(a, start=a.start - 1), 0,
    ),
    "a halo not fetched": ("convolved", p.HaloExchange, None, 0),
    "a halo from the other side": (
        "convolved", p.HaloExchange, lambda a: permuted(a, backwards), 0,
    ),
    "two pairs of a permute swapped": ("convolved", p.HaloExchange, lambda a: swapped(a), 0),
    "a permute left out": ("convolved", p.HaloExchange, lambda a: permuted(a, lambda _: ()), -1),
    "ends not masked": ("convolved", p.MaskAt, None, 0),
    "a place too many unmasked": (
        "convolved", p.MaskAt, lambda a: replace(a, size=a.size + 1), 0,
    ),
    "a mask one off": (
        "convolved", p.MaskAt, lambda a: replace(a, start=replace(a.start, more=1)), 0,
    ),
    "an interval one off": ("dilated", p.SliceAt, lambda a: in_numerator(a, 3), 0),
    "a start rounded up": ("dilated", p.SliceAt, lambda a: in_numerator(a, 2), 0),
    "a phase one off": ("dilated", p.SliceAt, lambda a: in_numerator(a, 1), -1),
    "the first device's phase": (
        "dilated", p.SliceAt,
        lambda a: replace(a, start=Start(Index((), a.start.at(0)), ())), -1,
    ),
    "places that nobody sends": ("spread", p.HaloExchange, lambda a: with_places(a, 1), 0),
    "places that are not counted": ("spread", p.HaloExchange, lambda a: with_places(a, -1), 0),
    "gaps of another number": ("dilated", p.Dilate, lambda a: replace(a, fill="product"), 0),
    "less between, more before": (
        "dilated", p.Dilate, lambda a: replace(a, factor=2, low=a.low + 5), 0,
    ),
    "a block cut one place later": (
        "selected", p.Slice, lambda a: replace(a, start=a.start - 1), -1,
    ),
    "places without an element selected": ("selected", p.MaskAt, None, 0),
    "a number that is selected": ("selected", p.MaskAt, lambda a: replace(a, fill="sum"), 0),
    "windows without an element": ("selected", p.MaskAt, None, -1),
    "a window's source not fetched": ("selected", p.HaloExchange, None, -1),
    "a window's places not fetched": ("selected", p.HaloExchange, None, 0),
    "windows one place off": ("selected in phases", p.SliceAt, lambda a: in_numerator(a, 1), -2),
    "a block cut in another phase": (
        "selected in phases", p.SliceAt, lambda a: in_numerator(a, 1), -1,
    ),
    "a maximum's padding": (
        "summed from the end", p.Mask, lambda a: replace(a, fill="max"), 0,
    ),
}  # fmt: skip


# What a fetch says of its source is what its permutes do: only the claim reads it.
UNSEEN = {
    "a round of another block",
    "places that nobody sends",
    "places that are not counted",
}


test_verify_refutes_it, test_simulate_sees_it = judged_both_ways(CASES, MUTATIONS, unseen=UNSEEN)
