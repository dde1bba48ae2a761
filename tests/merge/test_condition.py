"""Conditions on mesh sizes: they equal decisions at those sizes."""

import itertools

import pytest

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError
from shardalg.merge.compatible import equal, merge, refines

SIZES = [(2, 2, 2), (2, 3, 2), (3, 2, 4), (4, 6, 2), (6, 4, 3), (2, 4, 8), (4, 2, 2), (5, 3, 2)]
ENTRIES = (
    ["X", None], [None, "X"], ["Y", None], [None, "Y"], [None, "Z"], [("X", "Y"), None],
    [None, ("Y", "Z")], [("Y", "X"), None], ["X", "Y"], ["Z", "X"], [None, ("X", "Z")],
)  # fmt: skip


def mesh_of(order, sizes, *, symbolic):
    named = dict(zip("XYZ", sizes, strict=True))
    return Mesh({name: named[name] for name in order}, symbolic=symbolic)


def decided(relation, cases, sizes, *, symbolic, policy=None):
    """Return the verdict on shardings of meshes with these axis orders and sizes."""
    more = {"policy": policy} if policy else {}
    rows = [
        Sharding.from_axes(entries, mesh_of(order, sizes, symbolic=symbolic), (720, 720))
        for order, entries in cases
    ]
    return relation(*rows, **more)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("orders", [("XYZ", "YXZ"), ("XYZ", "ZYX"), ("XYZ", "XYZ")])
@pytest.mark.parametrize(
    ("relation", "policy"), [(merge, "gspmd"), (merge, "shardy"), (equal, None), (refines, None)]
)
def test_a_condition_is_exact(orders, relation, policy):
    """Names at one point; the numbers at every other point agree with the condition there."""
    seen = {True: 0, False: 0}
    conditional = 0
    for pair in itertools.product(ENTRIES, repeat=2):
        cases = tuple(zip(orders, pair, strict=True))
        named = decided(relation, cases, SIZES[1], symbolic=True, policy=policy)
        conditional += named.condition is not None
        for sizes in SIZES:
            truth = bool(decided(relation, cases, sizes, symbolic=False, policy=policy))
            point = dict(zip("XYZ", sizes, strict=True))
            said = bool(named) if named.condition is None else named.condition.holds(**point)
            assert said == truth, (cases, sizes, named.condition)
            seen[truth] += 1
    assert min(seen.values()) > 0
    assert (conditional > 0) == (orders[0] != orders[1] or relation is refines)


def test_the_answer_is_that_at_the_hints():
    cases = (("XY", ["Y", None]), ("YX", [None, "X"]))
    for sizes, answer in (((2, 3), True), ((4, 6), False)):
        rows = [
            Sharding.from_axes(
                entries,
                Mesh({n: dict(zip("XY", sizes, strict=True))[n] for n in order}, symbolic=True),
                (12, 12),
            )
            for order, entries in cases
        ]
        verdict = merge(*rows)
        assert bool(verdict) == answer
        assert repr(verdict.condition) == "gcd(X, Y) = 1"


def test_meshes_of_other_sizes_meet_where_the_numbers_of_devices_are_equal():
    one, other = Mesh({"X": 4, "Y": 6}, symbolic=True), Mesh({"Z": 24}, symbolic=True)
    x, z = Sharding.from_axes(["X"], one, (48,)), Sharding.from_axes(["Z"], other, (48,))
    assert not merge(x, z)
    verdict = refines(z, x)
    assert verdict
    assert "X*Y = Z" in repr(verdict.condition)
    assert verdict.condition.holds(X=4, Y=6, Z=24)
    assert not verdict.condition.holds(X=4, Y=5, Z=24)
    with pytest.raises(ShardingError, match=r"is about \['X', 'Y', 'Z'\]"):
        verdict.condition.holds(X=4)


def test_three_meshes_hold_at_their_sizes_only():
    sizes = {"X": 2, "Y": 3, "Z": 5}
    rows = [
        Sharding.from_axes([*(None,) * k, order[-1]], mesh, (30, 30, 30))
        for k, order in enumerate(("XYZ", "XZY", "YZX"))
        for mesh in [Mesh({n: sizes[n] for n in order}, symbolic=True)]
    ]
    verdict = merge(*rows)
    assert verdict
    assert "counted" in repr(verdict.condition)
    with pytest.raises(ShardingError, match="counted"):
        verdict.condition.holds(**sizes)
