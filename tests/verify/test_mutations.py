"""A planned program with one thing wrong in it: `verify` refutes it, and `simulate` sees it too.

Each mutation is judged by the two alone: by the claims without running anything, and by running it
(with garbage in all padding) without any claim.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.spmd import instructions as p
from tests.partition.planned import MESH, numbers
from tests.verify.mutating import Case, judged_both_ways


def lookup(table, w, ids):
    """Return a lookup in a sharded table, a product, and a sum over an uneven dimension."""
    x = jnp.asarray(table).at[ids].get(mode="clip")
    y = x @ w
    return (y * y).sum(0), y


def step(table, w, ids):
    """Rows added to the table (a scatter), a maximum, and a scan that carries a sharded sum."""

    def body(carry, row):
        carry = carry + row @ w
        return carry, (carry * carry).sum()

    rows = jnp.asarray(table).at[ids].add(jnp.asarray(table).at[ids].get(mode="clip"))
    carry, sums = jax.lax.scan(body, jnp.zeros(w.shape[1:]), rows)
    return carry, sums, jnp.max(jnp.asarray(table), 0), rows


def moved(x, y):
    """Two arrays that change hands: transposed layouts, other device orders, positions."""
    position = jnp.arange(10.0)[:, None]
    return x * position, jnp.flip(y, 1).reshape(2, 8, 8).sum(0)


ROWS, IDS = numbers(11, 9), np.array([3, 10, 0, 7, 9, 1, 5], np.int32)
# Per program: the function, its arguments, the specs of these and of its results.
PROGRAMS = {
    "lookup": (
        lookup,
        (ROWS, numbers(9, 6, seed=1), IDS),
        (P("Y", None), P("X", "Y"), P("X")),
        (P("Y"), P(None, None)),
    ),
    "step": (
        step,
        (ROWS, numbers(9, 8, seed=1), IDS),
        (P("Y", None), P(None, "X"), P("X")),
        (P("Y"), P(None), P(None), P("Y", None)),
    ),
    "moved": (
        moved,
        (numbers(10, 8), numbers(16, 8)),
        (P("X", "Y"), P(("X", "Y"), None)),
        (P("Y", "X"), P(("Y", "X"), None)),
    ),
    "whole": (
        lambda x: x + 1,
        (numbers(16, 8),),
        (P(("X", "Y"), None),),
        P(None, None),
    ),
}

CASES = {name: Case(*row) for name, row in PROGRAMS.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_the_program_as_planned_is_right(name):
    CASES[name].check()


X, Y = MESH.digits("X"), MESH.digits("Y")


def other(digits):
    """Return the other axis."""
    return Y if digits == X else X


def turned(fetch):
    """Reverse the direction of every pair."""
    (reading,) = fetch.readings
    pairs = tuple((target, source) for source, target in reading.permutes[0])
    return replace(fetch, readings=(replace(reading, permutes=(pairs,)),))


# The program, and what is changed in which instruction of a kind (None: it is left out).
MUTATIONS = {
    "mask left out": ("lookup", p.Mask, None, 0),
    "mask one too wide": ("lookup", p.Mask, lambda a: replace(a, size=a.size + 1), 0),
    "mask one too narrow": ("lookup", p.Mask, lambda a: replace(a, size=a.size - 1), 0),
    "mask of another block": ("lookup", p.Mask, lambda a: replace(a, block=a.block + 1), 0),
    "mask of another dimension": ("lookup", p.Mask, lambda a: replace(a, dim=1 - a.dim), 0),
    "mask of a maximum": ("lookup", p.Mask, lambda a: replace(a, fill="max"), 0),
    "first all-reduce left out": ("lookup", p.AllReduce, None, 0),
    "last all-reduce left out": ("lookup", p.AllReduce, None, -1),
    "all-reduce of a maximum": ("lookup", p.AllReduce, lambda a: replace(a, combine="max"), 0),
    "all-reduce along no axis": ("lookup", p.AllReduce, lambda a: replace(a, digits=()), 0),
    "all-gather left out": ("lookup", p.AllGather, None, 0),
    "all-gather of another dimension": ("lookup", p.AllGather, lambda a: replace(a, dim=1), 0),
    "all-gather with its axes swapped": (
        "whole", p.AllGather, lambda a: replace(a, digits=a.digits[::-1]), 0,
    ),
    "all-to-all the other way": (
        "moved", p.AllToAll, lambda a: p.AllToAll(a.concat_dim, a.split_dim, a.digits), -1,
    ),
    "margin not fetched": ("moved", p.HaloExchange, None, 0),
    "margin of the other neighbour": ("moved", p.HaloExchange, lambda a: turned(a), 0),
    "margin one place on": ("moved", p.Slice, lambda a: replace(a, start=a.start + 1), 0),
    "block one place on": (
        "moved", p.SliceAt, lambda a: replace(a, start=replace(a.start, more=1)), 0,
    ),
    "padding kept": ("lookup", p.Resize, None, 0),
    "offset left out": ("lookup", p.Offset, None, 0),
    "offset the other way": ("lookup", p.Offset, lambda a: replace(a, scale=-a.scale), 0),
    "offset one off": ("lookup", p.Offset, lambda a: replace(a, scale=a.scale + 1), 0),
    "offset along another axis": (
        "lookup", p.Offset, lambda a: replace(a, digits=X), 0,
    ),
    "lookups elsewhere kept": ("lookup", p.MaskIndexed, None, 0),
    "lookups of one row more": (
        "lookup", p.MaskIndexed,
        lambda a: replace(a, components=tuple((c, d, b + 1, n) for c, d, b, n in a.components)),
        0,
    ),
    "all-reduce with an axis too many": (
        "lookup", p.AllReduce, lambda a: replace(a, digits=X + Y), 0,
    ),
    "all-gather along another axis": (
        "step", p.AllGather, lambda a: replace(a, digits=other(a.digits)), 0,
    ),
    "first member left out": ("step", p.FirstMember, None, 0),
    "first member along another axis": (
        "step", p.FirstMember, lambda a: replace(a, digits=other(a.digits)), 0,
    ),
    "scatter of one row off": ("step", p.Offset, lambda a: replace(a, scale=a.scale - 1), 0),
    "maximum joined as a sum": (
        "step", p.AllReduce, lambda a: replace(a, combine="sum"), -1,
    ),
    "a sum in the loop left out": ("step", p.AllReduce, None, 2),
    "a sum in the loop along another axis": (
        "step", p.AllReduce, lambda a: replace(a, digits=other(a.digits)), 2,
    ),
    "another block sliced": (
        "step", p.DynamicSlice, lambda a: replace(a, digits=other(a.digits)), 0,
    ),
    "blocks of two devices swapped": (
        "moved", p.CollectivePermute,
        lambda a: replace(a, pairs=tuple((s, {0: 1, 1: 0}.get(t, t)) for s, t in a.pairs)), 0,
    ),
    "a block sent twice": (
        "moved", p.CollectivePermute,
        lambda a: replace(a, pairs=tuple((1 if s == 2 else s, t) for s, t in a.pairs)), 0,
    ),
    "positions of another device": (
        "moved", p.Offset, lambda a: replace(a, scale=a.scale + 1), 0,
    ),
    "one iteration less": (
        "step", p.Loop, lambda a: replace(a, length=a.length - 1), 0,
    ),
    "iterations in reverse": ("step", p.Loop, lambda a: replace(a, reverse=True), 0),
    "another parameter": (
        "lookup", p.Apply, lambda a: replace(a, params=(*a.params, ("axes", (1,)))), -1,
    ),
}  # fmt: skip


test_verify_refutes_it, test_simulate_sees_it = judged_both_ways(CASES, MUTATIONS)
