"""`python -m tests.edges.fuzz COUNT [SEED]`: programs at the edges in random layouts, all judged.

Each program is planned five times: on a random small mesh, with a layout for every argument and
result. Its claims are judged, its program is simulated, and of one layout it is lowered. Where that
is not what one device gives, XLA's own partition of the same function in the same layouts is asked:
what it gets wrong as well is counted ("as XLA"), the rest is wrong. What is refused is refused by
an error of ours; any other exception is a crash. Words of what fails are printed, figures last.
"""

import sys
import time
import traceback
import warnings
from collections import Counter
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

import shardalg as sa
from shardalg.errors import ShardalgError
from shardalg.spmd.host.simulate import simulate
from tests.edges.programs import program
from tests.partition.fuzz import layouts

LAYOUTS = 5
KEPT = 25
"""Programs after which compiled operators are forgotten."""
RIGHT, AS_XLA, REFUSED = "right", "as XLA", "refused"
UNPROVED, WRONG, CRASH = "unproved", "wrong", "crash"
FAULTS = (UNPROVED, WRONG, CRASH)


class Case:
    """A program, and what one device gives."""

    def __init__(self, drawn):
        self.drawn, self.rng = drawn, np.random.default_rng((drawn.seed, 7))

    def fn(self, *arguments):
        return tuple(jax.tree.leaves(self.drawn.fn(*arguments)))

    @cached_property
    def compiled(self):
        return list(map(np.asarray, jax.jit(self.fn)(*self.drawn.arguments)))

    @cached_property
    def one_by_one(self):
        return list(map(np.asarray, self.fn(*map(jnp.asarray, self.drawn.arguments))))

    @cached_property
    def plan(self):
        return sa.plan(self.fn, *self.drawn.arguments, mesh=sa.Mesh({"X": 1}))

    def verdicts(self, count):
        """(strategy, verdict, words) of `count` layouts."""
        for number in range(count):
            strategy = plan = None
            try:
                strategy = layouts(self.rng, self.plan.graph)
                plan = self.plan.replan(strategy)
                yield strategy, *self.judged(plan, lowered=number == 0)
            except Exception as error:  # whatever goes wrong is what is looked for
                refused = plan is None and isinstance(error, ShardalgError)
                yield strategy, REFUSED if refused else CRASH, traceback.format_exc(limit=-4)

    def judged(self, plan, *, lowered):
        report = plan.verify()
        if not report.ok:
            bad = [c for c in report.claims if c.status not in ("proved", "trusted")]
            return UNPROVED, "\n  ".join(f"{c.status} {c.node}: {c.claim}: {c.words}" for c in bad)
        ways = {"simulated": lambda: simulate(plan.program, plan.graph, *self.drawn.arguments)}
        if lowered:
            ways["lowered"] = lambda: plan.lower()(*self.drawn.arguments)
        for name, run in ways.items():
            got = list(map(np.asarray, run()))
            if not (self.is_right(got)):
                theirs = self.of_xla(plan)
                if theirs is None or not self.is_right(theirs):
                    return AS_XLA, name
                return WRONG, f"{name}:\n{got}\none device:\n{self.compiled}"
        return RIGHT, ""

    def of_xla(self, plan):
        """What XLA's partition gives; None where it does not run."""
        try:
            return list(map(np.asarray, plan.lower().jit()(*self.drawn.arguments)))
        except Exception:  # XLA's own
            return None

    def is_right(self, got):
        return same(got, self.compiled) or same(got, self.one_by_one)


def same(ours, theirs):
    return all(close(a, b) for a, b in zip(ours, theirs, strict=True))


def close(a, b):
    """Whether two arrays have the same numbers, but for the rounding of a few operations."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return bool(np.array_equal(a, b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    eps = 16 * float(jnp.finfo(a.dtype).eps)
    a, b = a.astype(wide), b.astype(wide)
    finite = np.abs(b[np.isfinite(b)])
    atol = eps * max(1.0, float(finite.max(initial=0))) if finite.max(initial=0) < 1e4 else eps
    return bool(np.allclose(a, b, rtol=eps, atol=atol, equal_nan=True))


def fuzz(seeds):
    """(verdict, words) of every layout of the programs of these seeds."""
    for number, seed in enumerate(seeds):
        drawn = program(seed)
        for strategy, verdict, words in Case(drawn).verdicts(LAYOUTS):
            yield verdict, f"{verdict}: {drawn}\n  {strategy}\n  {words}"
        if number % KEPT == KEPT - 1:
            jax.clear_caches()


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    jax.config.update("jax_disable_most_optimizations", True)  # each program runs once
    sa.host_devices(8)
    warnings.simplefilter("ignore")
    start, verdicts = time.monotonic(), Counter()
    for verdict, words in fuzz(range(first, first + count)):
        verdicts[verdict] += 1
        if verdict != RIGHT:
            print(words, flush=True)
    seconds = time.monotonic() - start
    print(f"{count} programs from seed {first}, {seconds:.0f} s: {dict(verdicts)}")
    return any(verdicts[fault] for fault in FAULTS)


if __name__ == "__main__":
    sys.exit(main())
