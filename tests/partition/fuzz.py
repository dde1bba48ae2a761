"""`python -m tests.partition.fuzz SECONDS [SEED]`: random operators in random layouts, all checked.

Each case is a function of some family of rows, a mesh (one axis or two, devices in any order) and
a layout for every argument and result. Its program is simulated and held against one device, and
every claim of it is judged; of every tenth the lowering runs too. Seeds of what fails are printed,
and how many cases each seed had. Names of families behind the seed draw from these alone.
"""

import itertools
import sys
import time
import traceback
from collections import Counter

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from tests.ops import cases, random_cases
from tests.ops.numbers import KINDS, close, functions

GROUPS = (*cases.GROUPS, *random_cases.GROUPS)
MESHES = ((2,), (3,), (4,), (8,), (2, 2), (2, 3), (4, 2), (2, 4))
LAYOUTS = 25
"""Layouts that a function is planned with: what runs on a device repeats, compiled once."""
KEPT = 4
"""Seeds after which compiled operators are forgotten: small shapes come again."""
LOWERED = 10
"""Of so many cases one is lowered."""


def some_mesh(rng):
    sizes = MESHES[rng.integers(len(MESHES))]
    devices = rng.permutation(int(np.prod(sizes))) if rng.integers(2) else None
    axes = dict(zip("XY", map(int, sizes), strict=False))
    return sa.Mesh(axes, device_ids=None if devices is None else tuple(devices.tolist()))


def some_spec(rng, mesh, rank):
    """Every axis on some dimension, or on none; both on one in either order."""
    dims = [[] for _ in range(rank + 1)]
    for name in rng.permutation(list(mesh.axis_names)).tolist():
        dims[int(rng.integers(rank + 1))].append(name)
    return P(*(tuple(names) if names else None for names in dims[:rank]))


def layouts(rng, graph):
    """Return a strategy for every argument and result, sometimes left to completion."""
    mesh = some_mesh(rng)
    given, wanted = (
        tuple(some_spec(rng, mesh, len(graph.values[v].type.shape)) for v in side)
        for side in (graph.arguments, graph.results)
    )
    results = graph.results and rng.integers(4)
    return sa.Strategy(mesh, in_shardings=given, out_shardings=wanted if results else None)


def flat(drawn):
    """Return the function of flat arguments and results, with its results on one device."""
    with jax.enable_x64(True):
        want = [np.asarray(leaf) for leaf in jax.tree.leaves(drawn.fn(*drawn.arguments))]
    return lambda *arguments: tuple(jax.tree.leaves(drawn.fn(*arguments))), want


def same(ours, *theirs):
    """Return True if every element equals the element of one of several answers."""
    return all(len(ours) == len(answer) for answer in theirs) and all(
        all(a.shape == b.shape for b in of_each) and np.any([close(a, b) for b in of_each], 0).all()
        for a, *of_each in zip(ours, *theirs, strict=True)
    )


def of_xla(fn, arguments, strategy):
    """Return the results of XLA's partition of a flat function, without our code between.

    `plan.lower().jit()` hands XLA our normalised graph: what normalising gets wrong is in both.
    """
    mesh = strategy.mesh.to_jax()

    def laid_out(values, specs):
        layouts = (NamedSharding(mesh, spec) for spec in specs)
        return tuple(map(lax.with_sharding_constraint, values, layouts))

    def inside(*given):
        results = fn(*laid_out(given, strategy.in_shardings))
        wanted = strategy.out_shardings
        return results if wanted is None else laid_out(results, wanted)

    return jax.tree.leaves(jax.jit(inside)(*arguments))


def as_right_as_xla(fn, arguments, strategy, made, *answers):
    """Return True if results equal one device's wherever XLA's own do."""
    if same(made, *answers):
        return True
    try:
        theirs = of_xla(fn, arguments, strategy)
    except jax.errors.JaxRuntimeError:  # XLA does not partition it
        return False
    return not same(theirs, *answers)


def faults(fn, plan, arguments, strategy, want, lowered):
    """Return the faults of a plan of a flat function in words; empty if there are none.

    Args:
      lowered: what it gives where one device compiles it; None: ours is not compiled. Of an
        infinity times a mask that is 0, XLA makes a NaN or, where it selects instead, 0.
    """
    report = plan.verify()
    yield from (f"{c.status}: {c.node}: {c.claim}: {c.words}" for c in report.claims
                if c.status in ("refuted", "unknown", "not_claimed"))  # fmt: skip
    made = simulate(plan.program, plan.graph, *arguments)
    if not as_right_as_xla(fn, arguments, strategy, made, want):
        yield "simulated, it is another result than one device's"
    # XLA's own importer refuses a shard_map of arrays without elements (jaxlib 0.10.2).
    runs = lowered is not None and all(np.size(a) for a in arguments)
    if runs:
        made = jax.tree.leaves(plan.lower()(*arguments))
        if not as_right_as_xla(fn, arguments, strategy, made, lowered, want):
            yield "lowered, it is another result than one device's"


def cases_of(drawn, count):
    """(strategy, faults) of `count` layouts of a function, which is traced once."""
    function, want = flat(drawn)
    rng = np.random.default_rng((drawn.seed, drawn.number))
    with jax.enable_x64(True):
        plan = sa.plan(function, *drawn.arguments, mesh=sa.Mesh({"X": 1}))
        # Compiled, a NaN times a mask is 0 (XLA selects instead), and not so one by one.
        compiled = jax.jit(function)(*drawn.arguments) if drawn.edges else want
        for number in range(count):
            strategy = layouts(rng, plan.graph)
            try:
                lowered = None if number % LOWERED else compiled
                made = plan.replan(strategy), drawn.arguments, strategy
                found = list(faults(function, *made, want, lowered))
            except Exception:  # whatever goes wrong is what is looked for
                found = [traceback.format_exc(limit=-4)]
            yield strategy, found


def fuzz(end, seed, groups):
    """Return counts of cases and failures per group until `end`; one line per seed."""
    counts, wrong = Counter(), 0
    while time.monotonic() < end:
        edges = KINDS[seed % 3]
        drawings = (functions(group, seed, edges=edges) for group in groups)
        for drawn in itertools.chain(*drawings):
            for strategy, found in cases_of(drawn, LAYOUTS) if time.monotonic() < end else ():
                counts[drawn.group.__name__] += 1
                wrong += bool(found)
                if found:
                    print(f"{drawn}\n  {strategy}\n  " + "\n  ".join(found), flush=True)
        if seed % KEPT == 0:
            jax.clear_caches()
        print(f"to seed {seed}: {sum(counts.values())} cases, {wrong} wrong", flush=True)
        seed += 1
    return counts, wrong


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    groups = [group for group in GROUPS if group.__name__ in (sys.argv[3:] or group.__name__)]
    jax.config.update("jax_disable_most_optimizations", True)  # each program runs once
    sa.host_devices(8)
    counts, wrong = fuzz(time.monotonic() + seconds, first, groups)
    for group, count in sorted(counts.items()):
        print(f"{count:6d} {group}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
