"""`python -m tests.edges.fuzz COUNT [SEED]`: programs at the edges in random layouts, all judged.

Each program is planned five times: on a random small mesh, with a layout for every argument and
result. Its claims are judged, its program is simulated, and of one layout it is lowered, in a
process that XLA may abort. What is farther from what one device gives than rounding can take it
(`rounding.py`) is held against XLA's own partition of the same function in the same layouts, in
that process too: what it gets wrong as well is counted ("as XLA"), what it has no answer to as
well, the rest is wrong. What some order of the sums gives (one that overflows, a decision by a
rounded number), or padding that is multiplied or not, is counted ("by order or algorithm"). What is
refused is refused by an error of ours; any other exception is a crash. Words of what is not right
are printed, figures last.
"""

import sys
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

import shardalg as sa
from shardalg.errors import ShardalgError
from shardalg.spmd.host.simulate import simulate
from tests.edges import rounding
from tests.edges.asking import Child
from tests.edges.programs import program
from tests.partition.fuzz import layouts, of_xla

LAYOUTS = 5
KEPT = 25
"""Programs after which compiled operators are forgotten."""
RIGHT, BY_ORDER, REFUSED = "right", "by order or algorithm", "refused"
AS_XLA, NO_ANSWER = "as XLA", "XLA does not answer"
UNPROVED, WRONG, CRASH = "unproved", "wrong", "crash"
FAULTS = (UNPROVED, WRONG, CRASH)
XLA = Child()


class Case:
    """A program and its results on one device."""

    def __init__(self, drawn):
        self.drawn, self.rng = drawn, np.random.default_rng((drawn.seed, 7))

    def fn(self, *arguments):
        return tuple(jax.tree.leaves(self.drawn.fn(*arguments)))

    @cached_property
    def compiled(self):
        return list(map(np.asarray, jax.jit(self.fn)(*self.drawn.arguments)))

    @cached_property
    def one_by_one(self):
        return self.run()

    @cached_property
    def each_by_itself(self):
        with jax.disable_jit():
            return self.run()

    def run(self):
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
                yield strategy, *self.judged(plan, strategy, lowered=number == 0)
            except Exception as error:  # whatever goes wrong is what is looked for
                refused = plan is None and isinstance(error, ShardalgError)
                yield strategy, REFUSED if refused else CRASH, traceback.format_exc(limit=-4)

    def judged(self, plan, strategy, *, lowered):
        report = plan.verify()
        if not report.ok:
            bad = [c for c in report.claims if c.status not in ("proved", "trusted")]
            return UNPROVED, "\n  ".join(f"{c.status} {c.node}: {c.claim}: {c.words}" for c in bad)
        ways = {"simulated": lambda: simulate(plan.program, plan.graph, *self.drawn.arguments)}
        if lowered:
            ways["lowered"] = lambda: XLA.ask(ours, self.drawn.seed, strategy)
        for name, run in ways.items():
            answer = run()
            if answer is None or isinstance(answer, str):
                return CRASH, f"{name}: {answer or 'the process ends, or does not'}"
            got = list(map(np.asarray, answer))
            if not self.is_right(got):
                words = f"{name}:\n{got}\none device:\n{self.compiled}"
                return self.wherefore(got, strategy), words
        return RIGHT, ""

    def wherefore(self, got, strategy):
        """Return why results differ from one device's: orders of sums, or XLA's partition."""
        if self.is_near(got, rounding.possible):
            return BY_ORDER
        theirs = self.of_xla(strategy)
        if theirs is None:
            return NO_ANSWER
        return WRONG if self.is_right(theirs) else AS_XLA

    def of_xla(self, strategy):
        """Return the results of XLA's partition; None if XLA has no answer or dies."""
        return XLA.ask(partitioned, self.drawn.seed, strategy)

    @cached_property
    def bounds(self):
        return rounding.bounds(self.plan.graph, self.drawn.arguments)

    def answers(self):
        """Return one device's results: compiled, then operator by operator where JAX allows it.

        Last each operator by itself: of two XLA may make one that rounds otherwise, or is another
        (`False / 0` is 0 where a conversion from bool and a division are compiled together).
        """
        yield self.compiled
        with suppress(TypeError):
            yield self.one_by_one
        with suppress(TypeError):
            yield self.each_by_itself

    def is_right(self, got):
        """Return True if all results equal one device's, except for rounding."""
        is_equal = any(all(map(equal, got, answer)) for answer in self.answers())
        return is_equal or self.is_near(got, rounding.within)

    def is_near(self, got, within):
        """Return True if all differences from one device are within the bounds."""
        return self.bounds is not None and any(
            all(near(*of_each, within) for of_each in zip(got, answer, self.bounds, strict=True))
            for answer in self.answers()
        )


def ours(seed, strategy):
    """Return the results of our lowered program of a seed, or the words of its error."""
    case = Case(program(seed))
    try:
        return list(map(np.asarray, case.plan.replan(strategy).lower()(*case.drawn.arguments)))
    except Exception:  # whatever goes wrong is what is looked for
        return traceback.format_exc(limit=-4)


def partitioned(seed, strategy):
    """Return the results of XLA's partition of the program of a seed."""
    case = Case(program(seed))
    return list(map(np.asarray, of_xla(case.fn, case.drawn.arguments, strategy)))


def equal(a, b):
    return (a.shape, a.dtype) == (b.shape, b.dtype) and bool(same(a, b).all())


def near(a, b, bound, within):
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return bool((same(a, b) | within(a, bound)).all())


def same(a, b):
    """Elementwise, NaN being itself."""
    return (a == b) | ((a != a) & (b != b))


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
