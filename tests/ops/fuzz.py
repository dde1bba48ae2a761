"""`python -m tests.ops.fuzz SECONDS [SEED]`: rows executed literally, and in parts, against JAX.

Draws cases of every family from one seed after the other and prints the seed of what fails.
"""

import sys
import time
from collections import Counter

import jax

from shardalg.ops.rows import rules
from tests.ops import cases, random_cases
from tests.ops.partitioned import run_in_parts
from tests.ops.test_emit import parts_of, splittable
from tests.ops.test_meaning import drawn, literal, same

GROUPS = (*cases.GROUPS, *random_cases.GROUPS)


def check(run):
    """(what was checked, whether it was right) of one node: whole, then on each loop."""
    table_rows = rules(run.signature)
    yield "whole", same(literal(run, table_rows), run.results)
    for rule, loop in splittable(run):
        parts = parts_of(rule, loop)
        ours = run_in_parts(run, rule, loop, parts)
        if ours is not None:
            yield f"split on {loop} over {parts}", same(ours, run.results)


def fuzz(seconds, seed):
    """Counts of checks per primitive, and the failures as text."""
    counts, failures, end = Counter(), [], time.monotonic() + seconds
    while time.monotonic() < end:
        for group in GROUPS:
            for run in drawn(group, seed):
                with jax.enable_x64(True):
                    for what, right in check(run):
                        counts[run.signature.primitive, what.split()[0]] += 1
                        if not right:
                            place = f"{group.__name__}, seed {seed}"
                            failures.append(f"{place}: {rules(run.signature)[0]} {what}")
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
