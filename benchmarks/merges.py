"""Merges: decided by digits and by tables, proved, and sympy for the equality of two offsets."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import sympy

from shardalg.algebra.digits import Digit, partition_ids
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.merge.compatible import equal, merge, refines
from shardalg.merge.merged import Rows, join
from shardalg.merge.proofs.prove import prove

SEED = 210504663
SIZES = {"x": 16, "z": 4, "y": 32}
LARGE = 1 << 20
ABOUT = """`digit merge`: the verdict on x and y of a mesh of 16 * 4 * 32 devices, on two
dimensions; `with its sharding` builds the merged sharding too. `table merge`: partition ids listed
by device, in a random order of devices, one dimension each and one shared, compared, joined and
counted. `two orders` starts from shardings on meshes in two random orders, and so lists them first.
`certificate`: every device of the 2048 in SMT-LIB, proved by z3, the text included; `proof for all
sizes` is of the same merge. sympy decides the equality of two offsets, written in the position, by
`simplify`; it has no word for the balance of a merge."""


def rows(large: int = LARGE) -> Iterator[dict[str, object]]:
    mesh = Mesh(SIZES)
    x, y, both = (sharding(mesh, e) for e in (["x", None], [None, "y"], [("x", "z"), "y"]))
    halves = Sharding(mesh, x.shape, ((Digit(512, 4), Digit(128, 4)), ()))
    yield from (
        {"what": what, "us": microseconds(call)}
        for what, call in (
            ("digit merge", partial(merge, x, y)),
            ("digit merge, with its sharding", lambda: merge(x, y).sharding),
            ("digit merge, refused", partial(merge, x, halves.with_dims(((), x.dims[0])))),
            ("refines", partial(refines, both, x)),
        )
    )
    slow = microseconds(lambda: by_sympy(x, halves), passes=1, calls=1)
    us = microseconds(partial(equal, x, halves))
    yield {"what": "equal", "us": us, "sympy_us": slow, "sympy_ratio": slow / us}
    for size, calls in ((mesh.size, 200), (large, 1)):
        us = microseconds(partial(join, *tables(size)), calls=calls)
        yield {"what": f"table merge, {size} devices", "us": us}
    orders = [Mesh(SIZES, np.random.default_rng(s).permutation(mesh.size)) for s in (1, 2)]
    pair = [sharding(m, e) for m, e in zip(orders, (["x"], [None, "y"]), strict=True)]
    us = microseconds(partial(merge, *pair), calls=20)
    yield {"what": f"two orders, {mesh.size} devices", "us": us}
    verdict = merge(x, y)
    for what, proved in (
        (f"certificate, {mesh.size} devices", partial(prove, verdict, encoding="devices")),
        ("proof for all sizes", partial(prove, verdict, "all")),
    ):
        proved()
        yield {"what": what, "us": microseconds(proved, calls=1)}


def sharding(mesh: Mesh, entries: list) -> Sharding:
    return Sharding.from_axes(entries, mesh, (4096, 4096))


def tables(size: int) -> list[Rows]:
    """Return a table per case and a shared one, a quarter of the bits each, in random order."""
    positions = np.random.default_rng(SEED).permutation(size)
    n = 1 << (size.bit_length() - 1) // 4
    held = [(Digit(size // n, n),), (Digit(1, n),), (Digit(n, n),)]
    ids = [partition_ids(digits, positions) for digits in held]
    return [Rows(size, dict.fromkeys((own, 2), n), {p: ids[p] for p in (own, 2)}) for own in (0, 1)]


def by_sympy(first: Sharding, second: Sharding) -> bool:
    a, b = (s.shard_offset_expr(0, by="position") for s in (first, second))
    return sympy.simplify(a - b) == 0


def microseconds(call: Callable[[], object], *, passes: int = 5, calls: int = 2000) -> float:
    spent = []
    for _ in range(passes):
        start = time.process_time()
        for _ in range(calls):
            call()
        spent.append(time.process_time() - start)
    return statistics.median(spent) / calls * 1e6
