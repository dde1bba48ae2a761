"""The emission of every family: each loop that it supports, split, equals the whole."""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest

from shardalg.errors import RuleError
from shardalg.graph.ir import Signature, ValueType
from shardalg.graph.ops.local_parameters import emit, unsupported_loops
from shardalg.graph.ops.loops import loop_class
from shardalg.graph.ops.rows import rules
from tests.ops import cases, random_cases
from tests.ops.partitioned import run_in_parts
from tests.ops.test_meaning import drawn, runs, same

GROUPS = (
    cases.pointwise,
    cases.layout,
    cases.reshapes,
    cases.reductions,
    cases.contractions,
    cases.shifted,
    cases.windows,
    cases.gathers,
    cases.scatters,
    cases.selections,
    *random_cases.GROUPS,
)


def splittable(run):
    """(row, loop) of the loops that emission supports."""
    found = rules(run.signature)
    for rule in found if len(found) == 1 else ():
        for loop, extent in rule.loops:
            if extent > 1 and loop not in unsupported_loops(rule):
                yield rule, loop


def parts_of(rule, loop):
    """Three devices leave padding nearly always; a loop inside a nested index must divide."""
    nested = loop_class(rule, loop) == "compound"
    return next((n for n in (2, 3, 5) if rule.extents[loop] % n == 0), 2) if nested else 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [13])
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.__name__)
def test_every_supported_loop_can_be_split(group, times, seed, show):
    """Each loop of each primitive is split so many times."""
    seen, counts = Counter(), Counter()
    for run in drawn(group, seed):
        for rule, loop in splittable(run):
            seen[rule.primitive, loop] += 1
            if seen[rule.primitive, loop] > times:
                continue
            parts = parts_of(rule, loop)
            with jax.enable_x64(True):
                ours = run_in_parts(run, rule, loop, parts)
            counts["refused" if ours is None else "equal"] += 1
            assert ours is None or same(ours, run.results), f"{rule} split on {loop} over {parts}"
    show(dict(counts))
    assert counts["equal"] > times


IDS = np.array([4, 0, 2, 9])
TABLE = np.random.default_rng(3).normal(size=(5, 4))


def fill(t, i):
    return t.at[i].get(mode="fill", fill_value=7.0)


def clip(t, i):
    return t.at[i].get(mode="clip")


def scatter(t, i):
    return t.at[i].add(TABLE[:4])


WITHOUT = [
    (lambda: jax.lax.iota(np.int32, 5), (), "d0", "shifts"),
    (fill, (TABLE, IDS), "k0", "shifts"),
    (fill, (TABLE, IDS), "k0", "owned"),
    (clip, (TABLE, IDS), "k0", "shifts"),
    (clip, (TABLE, IDS), "k0", "owned"),
    (scatter, (TABLE, IDS), "o0", "shifts"),
    (scatter, (TABLE, IDS), "u", "first_member"),
]


@pytest.mark.parametrize(("fn", "args", "loop", "field"), WITHOUT)
def test_what_an_emission_says_is_needed(fn, args, loop, field):
    nothing = {"shifts": (), "owned": (), "first_member": None}
    with jax.enable_x64(True):
        run = list(runs(fn, args))[-1]
        (rule,) = rules(run.signature)
        assert same(run_in_parts(run, rule, loop, 3), run.results)

        def change(emission):
            return replace(emission, **{field: nothing[field]})

        assert not same(run_in_parts(run, rule, loop, 3, change=change), run.results)


@pytest.mark.parametrize(("fn", "args"), [(fill, (TABLE, IDS)), (clip, (TABLE, IDS))])
def test_what_a_gather_out_of_range_gives_is_needed(fn, args):
    with jax.enable_x64(True):
        run = list(runs(fn, args))[-1]
        (rule,) = rules(run.signature)

        def unclamped(e):
            return tuple(replace(s, clamp=None) for s in e.shifts)

        def change(e):
            return replace(e, fill=None, shifts=unclamped(e))

        assert not same(run_in_parts(run, rule, "k0", 3, change=change), run.results)


def test_an_unsupported_loop_is_refused_by_name():
    x, y = ValueType((6, 4), "float32"), ValueType((4, 6), "float32")
    signature = Signature("reshape", (("dimensions", None),), (x,), (y,))
    (rule,) = rules(signature)
    with pytest.raises(RuleError, match="cannot be partitioned on loop i: nothing emits it yet"):
        emit(signature, rule, {"i": 8})


@pytest.mark.parametrize("index_type", ["int32", "uint32"])
def test_unsigned_indices_are_not_shifted(index_type):
    dims = (("offset_dims", (1,)), ("collapsed_slice_dims", (0,)), ("start_index_map", (0,)))
    dims += (("operand_batching_dims", ()), ("start_indices_batching_dims", ()))
    params = (("dimension_numbers", dims), ("mode", "CLIP"), ("slice_sizes", (1, 4)))
    operands = (ValueType((8, 4), "float32"), ValueType((3, 1), index_type))
    (rule,) = rules(Signature("gather", params, operands, (ValueType((3, 4), "float32"),)))
    assert ("k0" in unsupported_loops(rule)) == (index_type == "uint32")


def test_updates_of_padding_promise_nothing():
    """Their indices are like any others: two of one number, and in no order."""
    x, indices, updates = (ValueType(s, t) for s, t in
                           (((8,), "float32"), ((5, 1), "int32"), ((5,), "float32")))  # fmt: skip
    promises = (("indices_are_sorted", True), ("unique_indices", True))
    params = (("dimension_numbers", ((), (0,), (0,), (), ())), ("mode", None), *promises)
    signature = Signature("scatter-add", params, (x, indices, updates), (x,))
    (row,) = rules(signature)
    made = emit(signature, row, dict(row.loops) | {"u": 2})
    assert dict(made.params) == dict.fromkeys(dict(promises), False)
