"""`python -m tests.ops.fuzz SECONDS [SEED]`: rows executed literally, and in parts, against JAX.

Draws cases of every family from one seed after the other, of plain numbers and of those at the ends
of types, narrow ones too (`numbers.py`), and prints the seed of what fails.
"""

import sys
import time
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from shardalg.graph.ops.rows import rules
from tests.edges import rounding
from tests.ops import cases, random_cases
from tests.ops.numbers import KINDS, close, functions
from tests.ops.partitioned import run_in_parts
from tests.ops.test_emit import parts_of, splittable
from tests.ops.test_meaning import literal, runs

GROUPS = (*cases.GROUPS, *random_cases.GROUPS)


def check(run):
    """Yield (check, whether it was right) of one node: whole, then along each loop."""
    table_rows, run = rules(run.signature), wrapped(run)
    literally = (literal(given, table_rows) for given in (run, flushed(run)))
    yield "whole", any(is_right(made, run) for made in literally)
    for rule, loop in splittable(run):
        parts = parts_of(rule, loop)
        ours = run_in_parts(run, rule, loop, parts)
        if ours is not None:
            yield f"split on {loop} over {parts}", is_right(ours, run)


def runs_of(group, seed):
    """Yield (drawing, one of its nodes) of all functions of a group."""
    for drawn in functions(group, seed, edges=KINDS[seed % len(KINDS)]):
        with jax.enable_x64(True):
            made = list(runs(drawn.fn, drawn.arguments))
        yield from ((drawn, run) for run in made)


def wrapped(run):
    """Return the run with indices reduced to 32 bits, as JAX's filling gather does."""
    if run.signature.primitive != "gather" or run.signature.param("mode") != "FILL_OR_DROP":
        return run
    x, indices = run.operands
    return replace(run, operands=[x, np.asarray(indices).astype("int32").astype(indices.dtype)])


def flushed(run):
    """Return the run with 0 for numbers below the smallest normal one, as in XLA's dots."""

    def normal(x):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return np.where(abs(x) < jnp.finfo(x.dtype).tiny, np.zeros((), x.dtype), x)

    return replace(run, operands=list(map(normal, run.operands)))


def is_right(ours, run):
    """Return True if all results equal JAX's, or JAX's in some order of its sums."""
    if [x.shape for x in ours] != [x.shape for x in run.results]:
        return False
    alike = list(map(close, ours, run.results))
    if all(x.all() for x in alike):
        return True
    bounds = rounding.of_operator(run)
    return bounds is not None and all(
        (x | rounding.possible(a, b)).all() for x, a, b in zip(alike, ours, bounds, strict=True)
    )


def fuzz(seconds, seed):
    """Return counts of checks per primitive, and the failures as text."""
    counts, failures, end = Counter(), [], time.monotonic() + seconds
    while time.monotonic() < end:
        for group in GROUPS:
            for drawn, run in runs_of(group, seed):
                with jax.enable_x64(True), np.errstate(all="ignore"):
                    for what, right in check(run):
                        counts[run.signature.primitive, what.split()[0]] += 1
                        if not right:
                            failures.append(f"{drawn}: {rules(run.signature)[0]} {what}")
        jax.clear_caches()
        seed += 1
    return counts, failures, seed


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    counts, failures, last = fuzz(seconds, first)
    for (primitive, kind), count in sorted(counts.items()):
        print(f"{count:6d} {kind:5s} {primitive}")
    print("\n".join(failures))
    print(f"{sum(counts.values())} checks, seeds {first} to {last - 1}, {len(failures)} wrong")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
