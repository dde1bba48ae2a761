"""A planned program with one thing wrong in it is refused, or computes something else."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.errors import ProgramError
from shardalg.spmd import program as p
from shardalg.spmd.check import check
from shardalg.spmd.simulate import simulate
from tests.partition.planned import numbers, planned


def layer(table, w, ids):
    """A lookup in a sharded table, a product, and a sum over a dimension that does not divide."""
    x = jnp.asarray(table).at[ids].get(mode="clip")
    y = x @ w
    return (y * y).sum(0), y


ARGUMENTS = numbers(11, 9), numbers(9, 6, seed=1), np.array([3, 10, 0, 7, 9, 1, 5], np.int32)


@cache
def plan():
    specs = (P("Y", None), P("X", "Y"), P("X"))
    return planned(layer, ARGUMENTS, specs, out_shardings=(P("Y"), P(None, None)))


def mutated(kind, change, which):
    """The program with instruction `which` of `kind` changed; None takes it out."""
    program = plan().program
    steps = list(program.block.instructions)
    places = [i for i, s in enumerate(steps) if isinstance(s.attributes, kind)]
    place = places[which]
    step = steps[place]
    renamed = {}
    if change is None:
        renamed = {step.results[0]: step.operands[0]}
        del steps[place]
    else:
        steps[place] = replace(step, attributes=change(step.attributes))
    steps = [replace(s, operands=tuple(renamed.get(o, o) for o in s.operands)) for s in steps]
    results = tuple(renamed.get(r, r) for r in program.block.results)
    return replace(
        program, block=replace(program.block, instructions=tuple(steps), results=results)
    )


def right(program):
    """Whether the structure is accepted and the results are those of one device."""
    try:
        results = simulate(check(program), plan().graph, *ARGUMENTS)
    except ProgramError:
        return False
    wants = jax.tree.leaves(layer(*ARGUMENTS))
    return all(np.allclose(r, w, rtol=1e-5) for r, w in zip(results, wants, strict=True))


def test_the_program_as_planned_is_right():
    assert right(plan().program)


# What is changed in which instruction of a kind (None: it is left out).
MUTATIONS = {
    "mask left out": (p.Mask, None, 0),
    "mask one too wide": (p.Mask, lambda a: replace(a, size=a.size + 1), 0),
    "mask one too narrow": (p.Mask, lambda a: replace(a, size=a.size - 1), 0),
    "mask of another block": (p.Mask, lambda a: replace(a, block=a.block + 1), 0),
    "mask of another dimension": (p.Mask, lambda a: replace(a, dim=1 - a.dim), 0),
    "mask of a maximum": (p.Mask, lambda a: replace(a, fill="max"), 0),
    "first all-reduce left out": (p.AllReduce, None, 0),
    "last all-reduce left out": (p.AllReduce, None, -1),
    "all-reduce of a maximum": (p.AllReduce, lambda a: replace(a, combine="max"), 0),
    "all-reduce along no axis": (p.AllReduce, lambda a: replace(a, digits=()), 0),
    "all-gather left out": (p.AllGather, None, 0),
    "all-gather of another dimension": (p.AllGather, lambda a: replace(a, dim=1), 0),
    "all-gather with its axes swapped": (
        p.AllGather, lambda a: replace(a, digits=a.digits[::-1]), -1,
    ),
    "all-to-all the other way": (
        p.AllToAll, lambda a: p.AllToAll(a.concat_dim, a.split_dim, a.digits), 0,
    ),
    "padding kept": (p.Resize, None, 0),
    "offset left out": (p.Offset, None, 0),
    "offset the other way": (p.Offset, lambda a: replace(a, scale=-a.scale), 0),
    "offset one off": (p.Offset, lambda a: replace(a, scale=a.scale + 1), 0),
    "offset along another axis": (
        p.Offset, lambda a: replace(a, digits=plan().mesh.digits("X")), 0,
    ),
    "lookups elsewhere kept": (p.MaskIndexed, None, 0),
    "lookups of one row more": (
        p.MaskIndexed,
        lambda a: replace(a, components=tuple((c, d, b + 1, n) for c, d, b, n in a.components)),
        0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_refused_or_gives_something_else(name):
    kind, change, which = MUTATIONS[name]
    assert not right(mutated(kind, change, which))
