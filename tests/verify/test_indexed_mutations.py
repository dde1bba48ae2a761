"""Programs that select at run time, or join several values, with one thing wrong: refuted, seen."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.errors import ProgramError
from shardalg.spmd import program as p
from shardalg.spmd.simulate import simulate
from shardalg.verify.verify import verify
from tests.partition.planned import MESH, planned

X, Y = MESH.digits("X"), MESH.digits("Y")
ROWS = P("Y")
STARTS = (np.float32(0), np.float32(1))


def written(x, new, start):
    return lax.dynamic_update_slice(x, new, (start, 0))


def read(x, start):
    return lax.dynamic_slice(x, (start, 0), (3, 4))


def best(x):
    return lax.top_k(x, 2, axis=0)


def folded(x, y):
    def product(a, b):
        return a[0] * b[1] + a[1] * b[0], a[1] * b[1]

    return lax.reduce((x, y), STARTS, product, (0,))


TENSOR = np.arange(1, 69, dtype=np.float32).reshape(17, 4)
# name: (function, arguments, their layouts, layouts of the results). Starts are out of range.
PROGRAMS = {
    "written": (written, (TENSOR, -TENSOR[:3], np.int32(40)), (ROWS, P(), P()), ROWS),
    "read": (read, (TENSOR, np.int32(40)), (ROWS, P()), P()),
    "best": (best, (TENSOR[:, :3],), (ROWS,), (P(), P())),
    "folded": (folded, (TENSOR % 5, TENSOR % 3 + 1), (ROWS, ROWS), (P(), P())),
}


@cache
def plan(name):
    fn, arguments, specs, results = PROGRAMS[name]
    return planned(fn, arguments, specs, out_shardings=results)


def mutated(name, kind, change):
    """The program with the first instruction of a kind changed; None: its operands in its place."""
    program = plan(name).program
    block = program.block
    victim = next(s for s in block.instructions if isinstance(s.attributes, kind))
    if change:
        changed = replace(victim, attributes=change(victim.attributes))
        steps = tuple(changed if s is victim else s for s in block.instructions)
        return replace(program, block=replace(block, instructions=steps))
    renamed = dict(zip(victim.results, victim.operands, strict=False))
    steps = tuple(
        replace(s, operands=tuple(renamed.get(o, o) for o in s.operands))
        for s in block.instructions
        if s is not victim
    )
    results = tuple(renamed.get(r, r) for r in block.results)
    return replace(program, block=replace(block, instructions=steps, results=results))


def computes(name, program):
    """Whether the results are those of one device."""
    fn, arguments, *_ = PROGRAMS[name]
    try:
        results = simulate(program, plan(name).graph, *arguments)
    except ProgramError:
        return False
    wants = jax.tree.leaves(fn(*arguments))
    return all(np.allclose(r, w, rtol=1e-5) for r, w in zip(results, wants, strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_as_planned_is_right(name):
    assert computes(name, plan(name).program)
    report = verify(plan(name).sharded, plan(name).program)
    assert report.ok, report.refuted


def placed(attributes, **more):
    """A box whose only place has another dimension, digits or largest start."""
    ((dim, digits, high),) = attributes.places
    old = {"dim": dim, "digits": digits, "high": high}
    return replace(attributes, places=(tuple((old | more).values()),))


MUTATIONS = {
    "written beyond the end": ("written", p.Insert, lambda a: placed(a, high=15)),
    "written before the end": ("written", p.Insert, lambda a: placed(a, high=13)),
    "written in blocks of another axis": ("written", p.Insert, lambda a: placed(a, digits=X)),
    "written along another dimension": (
        "written", p.Insert, lambda a: placed(a, dim=1, high=0),
    ),
    "written by every device": ("written", p.Insert, lambda a: replace(a, places=())),
    "read beyond the end": ("read", p.Extract, lambda a: placed(a, high=15)),
    "read in blocks of another axis": ("read", p.Extract, lambda a: placed(a, digits=X)),
    "read from the own block": ("read", p.Extract, lambda a: replace(a, places=())),
    "what others read left out": ("read", p.AllReduce, None),
    "the best of a block": ("best", p.Top, None),
    "the best of longer blocks": ("best", p.Top, lambda a: replace(a, block=a.block + 1)),
    "the best of another axis": ("best", p.Top, lambda a: replace(a, digits=X)),
    "the best along another dimension": ("best", p.Top, lambda a: replace(a, dim=1)),
    "the best of padding": ("best", p.Mask, None),
    "one place of padding": ("best", p.Mask, lambda a: replace(a, size=a.size + 1)),
    "the fold of a block": ("folded", p.Fold, None),
    "the fold of another axis": ("folded", p.Fold, lambda a: replace(a, digits=X)),
    "padding folded": ("folded", p.MaskAt, None),
    "padding of zeros": ("folded", p.MaskAt, lambda a: replace(a, fill="sum")),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_verify_refutes_it(name):
    program, kind, change = MUTATIONS[name]
    report = verify(plan(program).sharded, mutated(program, kind, change))
    assert report.refuted


@pytest.mark.parametrize("name", MUTATIONS)
def test_simulate_sees_it(name):
    program, kind, change = MUTATIONS[name]
    assert not computes(program, mutated(program, kind, change))
