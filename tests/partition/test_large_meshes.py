"""Halos on meshes whose devices are looked at in classes: right, proved, and planned in no time."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from benchmarks.halos import AXES, PROGRAMS
from shardalg.algebra.halos.classes import Runs
from shardalg.spmd.instructions import HaloExchange
from shardalg.verify.verify import verify
from tests.calls_made import calls_made
from tests.partition.planned import check_equal, numbers

EIGHTS = sa.Mesh({"a": 8, "b": 4, "c": 16})


def planned(name, mesh, axes):
    function, more = PROGRAMS[name]
    parts = int(np.prod([mesh.shape[axis] for axis in axes]))
    types = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((1, 4 * parts + more, 2), (3, 2, 2))]
    return function, sa.plan(function, *types, mesh=mesh, in_shardings=(P(None, axes), None))


def fetches(plan):
    return [i for i in plan.program.block.instructions if isinstance(i.attributes, HaloExchange)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes", [("a", "b", "c"), ("b",), ("c", "a")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_halo_of_classes_is_right(name, axes):
    function, plan = planned(name, EIGHTS, axes)
    assert plan.verify().ok
    readings = [r for i in fetches(plan) for r in i.attributes.readings]
    assert all(isinstance(pairs, Runs) for r in readings for pairs in r.permutes)
    arguments = [numbers(*s.shape, seed=5) for s in plan.program.argument_shardings]
    check_equal(plan, function, arguments)


def tampered(instruction, change):
    a = instruction.attributes
    first, *rest = a.readings
    permutes = tuple(replace(p, runs=change(p.runs)) for p in first.permutes)
    readings = (replace(first, permutes=permutes), *rest)
    return replace(instruction, attributes=replace(a, readings=readings))


@pytest.mark.parametrize("change", [
    lambda runs: (replace(runs[0], first=runs[0].first + 1), *runs[1:]),
    lambda runs: (replace(runs[0], source=runs[0].source + 1), *runs[1:]),
    lambda runs: (replace(runs[0], last=runs[0].last - 1), *runs[1:]),
    lambda runs: runs[1:],
])  # fmt: skip
def test_tampered_runs_are_refuted(change):
    _, plan = planned("convolution", EIGHTS, ("a", "b", "c"))
    program, found = plan.program, fetches(plan)[0]
    steps = tuple(tampered(i, change) if i is found else i for i in program.block.instructions)
    broken = replace(program, block=replace(program.block, instructions=steps))
    assert verify(plan.sharded, program).ok
    assert not verify(plan.sharded, broken).ok


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_million_devices_on_five_axes(name, show):
    """Plans and proofs on 1,048,576 devices need hardly more calls than on 1,024."""
    work = {}
    for size in (4, 16):
        mesh = sa.Mesh(dict.fromkeys(AXES, size))
        (_, plan), planning = calls_made(lambda mesh=mesh: planned(name, mesh, tuple(AXES)))
        verdict, proof = calls_made(plan.verify)
        assert verdict.ok
        work[size] = planning, proof
    show(f"{name}: calls to plan and to prove {work}")
    assert work[16][0] <= 3 * work[4][0]
    assert work[16][1] <= 1.1 * work[4][1]
    assert len(plan.text()) < 3000
