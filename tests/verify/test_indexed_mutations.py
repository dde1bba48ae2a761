"""Programs that select at run time, or join several values, with one thing wrong: refuted, seen."""

from dataclasses import replace

import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.spmd import instructions as p
from tests.partition.planned import MESH
from tests.verify.mutating import Case, judged_both_ways

X, Y = MESH.digits("X"), MESH.digits("Y")
ROWS = P("Y")
STARTS = (np.float32(0), np.float32(1))


def written(x, new, start):
    return lax.dynamic_update_slice(x, new, (start, 0))


def read(x, start):
    return lax.dynamic_slice(x, (start, 0), (3, 4))


def element(x):
    return x[5]


def best(x):
    return lax.top_k(x, 2, axis=0)


def folded(x, y):
    def product(a, b):
        return a[0] * b[1] + a[1] * b[0], a[1] * b[1]

    return lax.reduce((x, y), STARTS, product, (0,))


def along(x, places):
    dims = lax.GatherDimensionNumbers((), (1,), (1,), (0,), (0,))
    return lax.gather(x, places, dims, (1, 1), mode="fill")


TENSOR = np.arange(1, 69, dtype=np.float32).reshape(17, 4)
PLACES = np.arange(17, dtype=np.int32).reshape(17, 1, 1)
# name: (function, arguments, their layouts, layouts of the results). Starts are out of range.
PROGRAMS = {
    "written": (written, (TENSOR, -TENSOR[:3], np.int32(40)), (ROWS, P(), P()), ROWS),
    "read": (read, (TENSOR, np.int32(40)), (ROWS, P()), P()),
    "element": (element, (TENSOR,), (ROWS,), P()),
    "best": (best, (TENSOR[:, :3],), (ROWS,), (P(), P())),
    "along": (
        along,
        (TENSOR, np.arange(17, dtype=np.int32).reshape(17, 1, 1) % 4),
        (ROWS, ROWS),
        ROWS,
    ),
    "folded": (folded, (TENSOR % 5, TENSOR % 3 + 1), (ROWS, ROWS), (P(), P())),
}


CASES = {name: Case(*row) for name, row in PROGRAMS.items()}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_the_program_as_planned_is_right(name):
    CASES[name].check()


def placed(attributes, **more):
    """Return a box whose only place has another dimension, digits or largest start."""
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
    "written by the operator itself": (
        "written", p.Insert, lambda a: p.Apply("dynamic_update_slice", (), a.loops),
    ),
    "read by the operator itself": (
        "read", p.Extract, lambda a: p.Apply("dynamic_slice", (), a.loops),
    ),
    "read beyond the end": ("read", p.Extract, lambda a: placed(a, high=15)),
    "read in blocks of another axis": ("read", p.Extract, lambda a: placed(a, digits=X)),
    "read from the own block": ("read", p.Extract, lambda a: replace(a, places=())),
    "what others read left out": ("read", p.AllReduce, None),
    "an element of another place": (
        "element", p.OwnerSelect, lambda a: replace(a, index=a.index + 1),
    ),
    "an element of another partition": (
        "element", p.OwnerSelect, lambda a: replace(a, index=a.index + a.block),
    ),
    "an element of another axis": ("element", p.OwnerSelect, lambda a: replace(a, digits=X)),
    "an element of a block": ("element", p.AllReduce, None),
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


test_verify_refutes_it, test_simulate_sees_it = judged_both_ways(CASES, MUTATIONS)


def test_a_batch_selects_what_the_operator_selects():
    """The result hides its sizes; an empty selection gives any number. Found by mutation."""
    case, params = CASES["along"], (("slice_sizes", (0, 1)),)
    program = case.mutated(p.Apply, lambda a: replace(a, params=(*a.params, *params)))
    assert case.verified(program).refuted
