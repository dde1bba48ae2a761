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
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate
from tests.ops import cases, random_cases

GROUPS = (*cases.GROUPS, *random_cases.GROUPS)
MESHES = ((2,), (3,), (4,), (8,), (2, 2), (2, 3), (4, 2), (2, 4))
LAYOUTS = 25
"""Layouts that a function is planned with: what runs on a device repeats, compiled once."""
KEPT = 4
"""Seeds after which compiled operators are forgotten: small shapes come again."""
LOWERED = 10
"""Of so many cases one is lowered."""
FINITE = (0.0, -0.0, -1.0, 1.0, 2.0)
EDGES = (np.nan, np.inf, -np.inf, *FINITE)
"""Numbers that masks, ties and orders go wrong on."""
WITHOUT = {
    "conv_general_dilated": FINITE,
    "select_and_gather_add": EDGES[1:],
    " reduce[": FINITE,
}
"""XLA multiplies padding and gaps of a convolution (0 times infinity) or leaves them out, as its
algorithm for a size does; a NaN loses against the padding behind it in a pooling's tangent; what
`a + b + a*b` of a user starts from, 0, makes a NaN of an infinity."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
PROMISED = ("PROMISE_IN_BOUNDS", "indices_are_sorted=True", "unique_indices=True", "while[")
"""Where whole numbers are promised to be few: indices, and what a loop counts to."""


def ends_of(rng, dtype):
    """Numbers at the ends of a type: small ones of both signs, or one sign of all, or all.

    Sums of one sign overflow in every order.
    """
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return info.min, info.max, 0, 1, info.max // 2
    info = jnp.finfo(dtype)
    tiny = (float(info.tiny), float(info.smallest_subnormal))
    one = (0.0, 1.0, *tiny, float(info.max), np.inf)
    both = (*EDGES, *tiny, *(-number for number in tiny))
    return (one, tuple(-number for number in one), both, (*both, info.max, info.min))[
        rng.integers(4)
    ]


@dataclass(frozen=True)
class Drawn:
    """A function, its arguments, and where the draw came from.

    Attributes:
      seed: of the arguments and of the layouts; number: of the function in its group.
      edges: "" for plain numbers, "edges" for some of `EDGES`, "ends" for those of `ends_of`.
    """

    group: object
    seed: int
    number: int
    fn: object
    arguments: tuple
    edges: str

    def __str__(self):
        shapes = [np.shape(a) for a in self.arguments]
        types = sorted({str(np.asarray(a).dtype) for a in self.arguments})
        of = f" of {self.edges} in {', '.join(types)}" if self.edges else ""
        return f"{self.group.__name__}, seed {self.seed}, number {self.number}, on {shapes}{of}"


def functions(group, seed, *, edges=""):
    """The functions of a group, as one seed draws them."""
    draw = {"": lambda rng, fn, arguments: arguments, "edges": at_edges, "ends": at_ends}[edges]
    rng = np.random.default_rng((seed, 1))
    with jax.enable_x64(True):
        for number, (fn, arguments) in enumerate(group(np.random.default_rng(seed))):
            given = draw(rng, fn, arguments)
            yield Drawn(group, seed, number, fn, tuple(map(jnp.asarray, given)), edges)


def at_ends(rng, fn, arguments):
    """Floats of one narrow or wide type, and whole numbers, at the ends of their types."""
    arguments = tuple(map(np.asarray, arguments))
    written = str(jax.make_jaxpr(fn)(*arguments))
    dtype = jnp.dtype(FLOATS[rng.integers(len(FLOATS))])
    given = tuple(x.astype(dtype) if x.dtype.kind == "f" else x for x in arguments)
    try:
        jax.jit(fn).lower(*given)
    except (TypeError, ValueError):  # it has numbers of a type of its own
        given = arguments
    promised = any(word in written for word in PROMISED)
    few = next((numbers for name, numbers in WITHOUT.items() if name in written), None)
    return tuple(_of_ends(rng, x, few, promised) for x in given)


def _of_ends(rng, x, few, promised):
    whole = jnp.issubdtype(x.dtype, jnp.integer)
    if (whole and promised) or not (whole or jnp.issubdtype(x.dtype, jnp.floating)):
        return x
    numbers = ends_of(rng, x.dtype) if whole or few is None else few
    some = rng.choice(len(numbers), size=rng.integers(1, len(numbers) + 1))
    chosen = np.asarray([np.asarray(numbers[k]).astype(x.dtype) for k in some])
    return rng.choice(chosen, size=x.shape).astype(x.dtype)


def at_edges(rng, fn, arguments):
    """Floats of some of the `EDGES` alone, so that a block or a window may be all one of them.

    Not all for the operators in `WITHOUT`.
    """
    arguments = tuple(map(np.asarray, arguments))
    written = str(jax.make_jaxpr(fn)(*arguments))
    numbers = next((few for name, few in WITHOUT.items() if name in written), EDGES)
    some = [rng.choice(numbers, size=rng.integers(1, len(numbers) + 1)) for _ in arguments]
    return tuple(
        rng.choice(few, size=x.shape).astype(x.dtype) if x.dtype.kind == "f" else x
        for few, x in zip(some, arguments, strict=True)
    )


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
    """A strategy with a layout for every argument and result, at times left to completion."""
    mesh = some_mesh(rng)
    given, wanted = (
        tuple(some_spec(rng, mesh, len(graph.values[v].type.shape)) for v in side)
        for side in (graph.arguments, graph.results)
    )
    results = graph.results and rng.integers(4)
    return sa.Strategy(mesh, in_shardings=given, out_shardings=wanted if results else None)


def flat(drawn):
    """The same function of flat arguments with flat results, and what it gives on one device."""
    with jax.enable_x64(True):
        want = [np.asarray(leaf) for leaf in jax.tree.leaves(drawn.fn(*drawn.arguments))]
    return lambda *arguments: tuple(jax.tree.leaves(drawn.fn(*arguments))), want


def same(ours, *theirs):
    """Whether every element is what one of several answers has there."""
    return all(len(ours) == len(answer) for answer in theirs) and all(
        all(a.shape == b.shape for b in of_each) and np.any([close(a, b) for b in of_each], 0).all()
        for a, *of_each in zip(ours, *theirs, strict=True)
    )


def close(a, b):
    """Equal but for the order in which a sum is rounded, in the type that it has."""
    a, b = np.asarray(a), np.asarray(b)
    rtol = 1e-6
    if jnp.issubdtype(a.dtype, jnp.floating):
        rtol = max(rtol, 4 * float(jnp.finfo(a.dtype).eps))
        a, b = a.astype(np.float64), b.astype(np.float64)
    return np.isclose(a, b, rtol=rtol, atol=1e-7, equal_nan=True)


def as_right_as_xla(plan, arguments, made, *answers):
    """Whether results are one device's, wherever those of XLA's own partition are."""
    if same(made, *answers):
        return True
    try:
        theirs = jax.tree.leaves(plan.lower().jit()(*arguments))
    except jax.errors.JaxRuntimeError:  # XLA does not partition it
        return False
    return not same(theirs, *answers)


def faults(plan, arguments, want, lowered):
    """What is wrong with a plan: words, none if nothing is.

    Args:
      lowered: what it gives where one device compiles it; None: ours is not compiled. Of an
        infinity times a mask that is 0, XLA makes a NaN or, where it selects instead, 0.
    """
    report = plan.verify()
    yield from (f"{c.status}: {c.node}: {c.claim}: {c.words}" for c in report.claims
                if c.status in ("refuted", "unknown", "not_claimed"))  # fmt: skip
    if not as_right_as_xla(plan, arguments, simulate(plan.program, plan.graph, *arguments), want):
        yield "simulated, it is another result than one device's"
    # XLA's own importer refuses a shard_map of arrays without elements (jaxlib 0.10.2).
    runs = lowered is not None and all(np.size(a) for a in arguments)
    if runs:
        made = jax.tree.leaves(plan.lower()(*arguments))
        if not as_right_as_xla(plan, arguments, made, lowered, want):
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
                found = list(faults(plan.replan(strategy), drawn.arguments, want, lowered))
            except Exception:  # whatever goes wrong is what is looked for
                found = [traceback.format_exc(limit=-4)]
            yield strategy, found


def fuzz(end, seed, groups):
    """Counts of cases per group, and of those that fail, until `end`; one line per seed."""
    counts, wrong = Counter(), 0
    while time.monotonic() < end:
        edges = ("", "edges", "ends")[seed % 3]
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
