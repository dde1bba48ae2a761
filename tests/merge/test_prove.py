"""Proofs: z3 agrees with the closed form everywhere, for all sizes too, and sees what is wrong."""

import itertools
import random
import statistics

import pytest

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ProofError
from shardalg.merge.compatible import equal, merge, refines
from shardalg.merge.lemmas import lemma
from shardalg.merge.proofs.prove import EqualClaim, MergeClaim, RefineClaim, prove

from . import brute

EVERY_WAY = (
    ("concrete", "coordinates"), ("concrete", "position"), ("concrete", "devices"),
    ("all", "coordinates"),
)  # fmt: skip
MESH = Mesh({"x": 2, "y": 3, "z": 2, "w": 4, "v": 2, "u": 3})
CASES = [
    ([None, None], ["x", "y"]),
    (["x", None], [None, "y"]),
    (["x", None], ["x", "y"]),
    (["x", None], [None, "x"]),
    (["x", None], ["y", None]),
    ([("x", "y"), None], [("x", "y"), None]),
    ([("x", "y"), None], [("y", "x"), None]),
    ([("x", "y"), None], ["x", None]),
    ([("x", "y"), None], [None, "z"]),
    ([("x", "y"), None], [None, "y"]),
    ([("z", "x"), None], [None, "y"]),
    (["x", "y", None], [None, "y", "z"]),
    (["x", "y", None], [None, "z", "y"]),
    ([("x", "y", "z"), None], [None, "w"]),
    ([("x", "y", "z", "w")], [("x", "y", "z", "w")]),
    ([("x", "y", "z", "w")], [("x", "y", "w", "z")]),
    ([("x", "y", "z", "w")], [("y", "x", "z", "w")]),
    (["x", None, "y"], [None, None, "y"]),
    ([None, None, "x"], ["x", None, None]),
    (["x", None, "z", None, "v"], [None, "y", None, "w", "v"]),
    ([("x", "y"), None, ("z", "w")], [None, ("v", "u"), ("z", "w")]),
    ([("x", "y", "u"), None, ("z", "w")], [None, ("v", "u"), ("z", "w")]),
]


def axes(entries, mesh=MESH, **more):
    return Sharding.from_axes(entries, mesh, (48,) * len(entries), **more)


def test_named_cases_for_all_sizes():
    """Every verdict, of either answer, for the sizes at hand and for all; `-s` shows the times."""
    times = {"concrete": [], "all": []}
    for first, second in CASES:
        verdict = merge(axes(first), axes(second))
        for sizes, ms in times.items():
            proof = prove(verdict, sizes)
            assert proof.status == "proved", proof
            assert "check-sat" in proof.smt2
            ms.append(proof.ms)
    for sizes, ms in times.items():
        print(f"{sizes}: median {statistics.median(ms):.2f} ms, worst {max(ms):.2f} ms")
    assert statistics.median(times["all"]) < 25


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mesh", [Mesh({"x": 2}), Mesh({"x": 2, "y": 2})], ids=repr)
@pytest.mark.parametrize("sizes", ["concrete", "all"])
def test_enumeration_closed_form_and_solver_agree(mesh, sizes):
    rows = brute.digit_shardings(mesh, (8, 8))
    for first, second in itertools.product(rows, repeat=2):
        verdict = merge(first, second)
        assert bool(verdict) == brute.compatible(first, second)
        assert prove(verdict, sizes).status == "proved"


def test_every_wrong_result_is_refuted():
    """Only the merge is proved among all shardings; refusals name a device or a tile."""
    mesh = Mesh({"x": 2, "y": 2})
    rows = brute.digit_shardings(mesh, (8, 8))
    x, y = axes(["x", None], mesh), axes([None, "y"], mesh)
    first, second = (s.__class__(mesh, (8, 8), s.dims) for s in (x, y))
    right = merge(first, second).sharding
    for sizes in ("concrete", "all"):
        for result in rows:
            proof = prove(MergeClaim(first, second, result), sizes)
            assert proof.status == ("proved" if result == right else "refuted")
            if result != right:
                check_witness(proof)


def check_witness(proof):
    """Check that the witness's device has another offset than an operand requires."""
    claim, witness = proof.claim, proof.witness
    found = claim.result.shard_offset(witness.device, witness.dim)
    wanted = [s.shard_offset(witness.device, witness.dim) for s in (claim.first, claim.second)]
    split = [s.parts[witness.dim] > 1 for s in (claim.first, claim.second)]
    assert found == witness.offsets[1] != witness.offsets[0]
    assert witness.offsets[0] in ([w for w, s in zip(wanted, split, strict=True) if s] or [0])


@pytest.mark.parametrize("sizes", ["concrete", "all"])
def test_swapped_axes_are_refuted(sizes):
    first, second = axes([("x", "y"), None]), axes([None, "w"])
    swapped = axes([("y", "x"), "w"])
    proof = prove(MergeClaim(first, second, swapped), sizes)
    assert not proof
    check_witness(proof)
    assert "witness" in repr(proof)


@pytest.mark.parametrize("sizes", ["concrete", "all"])
def test_a_denied_merge_is_refuted_by_the_merge(sizes):
    proof = prove(MergeClaim(axes(["x", None]), axes([None, "y"]), None), sizes)
    assert proof.status == "refuted"
    assert proof.witness.text() == "[x, y]"


def test_unreduced_and_manual_digits_count():
    partial = axes([None, "y"], unreduced=["x"])
    other = axes(["z", None], unreduced=["x"])
    for sizes in ("concrete", "all"):
        assert prove(merge(partial, other), sizes)
        assert prove(merge(partial, axes(["x", None])), sizes)
        lost = MergeClaim(partial, other, axes(["z", "y"]))
        assert prove(lost, sizes).status == "refuted"


def test_sub_axes_for_all_sizes():
    mesh = Mesh({"x": 8, "y": 2})
    major, minor = Digit(8, 2), Digit(2, 4)
    first = Sharding(mesh, (16, 16), ((major,), ()))
    second = Sharding(mesh, (16, 16), ((), (minor,)))
    assert prove(merge(first, second), "all")
    assert prove(
        merge(first, axes([None, "x"], mesh).__class__(mesh, (16, 16), ((), mesh.digits(["x"])))),
        "all",
    )


def test_prefixes_of_the_shardy_policy():
    first, second = axes(["x", None]), axes([("x", "y"), "z"])
    for sizes in ("concrete", "all"):
        assert prove(merge(first, second, policy="shardy"), sizes)
        wrong = MergeClaim(first, second, axes([("y", "x"), "z"]), "shardy")
        assert prove(wrong, sizes).status == "refuted"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["y"], ["x"]),
        (["x"], [("y", "x")]),
        ([("x", "y")], [("y", "x")]),
        ([("x", "y")], [("x", "z", "y")]),
        ([("x", "y"), None], [("x", "z"), "y"]),
        (["x", None], [None, "x"]),
    ],
)
def test_refusals_of_the_shardy_policy(first, second):
    for pair in ((first, second), (second, first)):
        verdict = merge(*map(axes, pair), policy="shardy")
        assert not verdict
        for sizes, encoding in EVERY_WAY:
            assert prove(verdict, sizes, encoding=encoding).status == "proved"


def test_digits_of_two_meshes_are_proved_at_their_sizes_only():
    rows = [
        brute.digit_shardings(Mesh(m), (24, 24))
        for m in ({"a": 2, "b": 2, "c": 3}, {"d": 3, "e": 4})
    ]
    pairs = list(itertools.product(*rows))
    for first, second in random.Random(0).sample(pairs, len(pairs) // 5):
        assert prove(merge(first, second)).status == "proved"
    crossing = merge(
        *(
            Sharding(Mesh({"d": 6}), (6, 6), dims)
            for dims in (((Digit(1, 2),), ()), ((), (Digit(1, 3),)))
        )
    )
    proof = prove(crossing, "all")
    assert proof.status == "unknown"
    assert "different meshes" in proof.reason
    assert repr(crossing.condition) == "gcd(2, 3) = 1"


@pytest.mark.sampled(11)
@pytest.mark.parametrize("size", range(14))
def test_refinements(size):
    for fine, coarse in itertools.product(
        brute.digit_shardings(Mesh({"x": 2, "y": 2}), (size,)), repeat=2
    ):
        assert prove(refines(fine, coarse)).status == "proved"


def test_refinements_for_all_sizes():
    both, x = axes([("x", "y")]), axes(["x"])
    assert prove(refines(both, x), "all")
    for fine, coarse in ((x, both), (axes(["y"]), x)):
        for sizes, encoding in EVERY_WAY:
            assert prove(refines(fine, coarse), sizes, encoding=encoding).status == "proved"
    swapped = refines(axes([("y", "x")]), x)
    for sizes, encoding in EVERY_WAY[:-1]:
        assert prove(swapped, sizes, encoding=encoding).status == "proved"
    # with 48 parts along x all 48 elements have y = 0, and the same device along x
    assert swapped.condition.holds(**{**dict(MESH.axes), "x": 48, "y": 2})
    assert prove(swapped, "all").status == "unknown"
    uneven, whole = (Sharding.from_axes(e, MESH, (50,)) for e in ([("x", "y")], ["x"]))
    proof = prove(refines(uneven, whole), "all")
    assert proof.status == "unknown"
    assert "nest for some sizes" in proof.reason
    wrong = RefineClaim(axes([("y", "x")]), x)
    assert prove(wrong, "all").status == "unknown"
    assert prove(wrong).status == "refuted"


def test_a_refinement_for_all_sizes_says_where_it_holds():
    mesh = Mesh({"X": 2, "Y": 4})
    both, x = (Sharding.from_axes([e], mesh, (24,)) for e in (("X", "Y"), "X"))
    proof = prove(RefineClaim(both, x), "all")
    assert "proved for all sizes where ceil(24/(X)) = Y*ceil(24/(X*Y))" in repr(proof)
    assert proof.condition == refines(both, x).condition
    assert not proof.condition.holds(X=3, Y=3)
    one = [s.with_dims(s.dims) for s in (both, Sharding.from_axes([None], mesh, (24,)))]
    assert prove(refines(*one), "all").condition is None


def test_axes_in_another_order_are_not_proved_for_all_sizes():
    """Axis X of (Y=4, X=2) is a part of axis Y of (X=2, Y=4)."""

    def merged(x, y):
        first = Sharding.from_axes(["Y"], Mesh({"X": x, "Y": y}), (24, 24))
        return merge(first, Sharding.from_axes([None, "X"], Mesh({"Y": y, "X": x}), (24, 24)))

    assert not merged(2, 4)
    assert merged(2, 3)
    assert prove(merged(2, 4), "all").status == "unknown"


def test_an_axis_of_size_1_is_not_proved_for_all_sizes():
    x, y = (Sharding.from_axes([e], Mesh({"x": 1, "y": 2}), (8,)) for e in ("x", "y"))
    proof = prove(equal(x, Sharding.from_axes([None], x.mesh, (8,))), "all")
    assert proof.status == "unknown"
    assert "an axis of size 1 is used" in proof.reason
    assert prove(equal(y, y), "all")


def test_equality():
    for a, b in itertools.product((["x"], ["y"], [("x", "y")], [("y", "x")], [None]), repeat=2):
        verdict = equal(axes(a), axes(b))
        for sizes, encoding in EVERY_WAY:
            assert prove(verdict, sizes, encoding=encoding).status == "proved"
            opposite = EqualClaim(axes(a), axes(b), not verdict)
            assert prove(opposite, sizes, encoding=encoding).status == "refuted"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("encoding", ["coordinates", "position", "devices"])
def test_every_encoding_refutes_what_is_wrong(encoding):
    """Each encoding alone proves only the merge among all shardings of a mesh."""
    mesh = Mesh({"x": 2, "y": 3})
    rows = brute.digit_shardings(mesh, (12, 12))
    x, y = (Sharding.from_axes(e, mesh, (12, 12)) for e in (["x", None], [None, "y"]))
    for result in rows:
        proof = prove(MergeClaim(x, y, result), encoding=encoding)
        assert proof.status == ("proved" if result == merge(x, y).sharding else "refuted")
    assert prove(MergeClaim(x, y, None), encoding=encoding).status == "refuted"
    for fine, coarse in itertools.product(rows[:9], repeat=2):
        claim = RefineClaim(fine, coarse)
        held = "proved" if brute.contained(fine, coarse) else "refuted"
        assert prove(claim, encoding=encoding).status == held


def test_many_operands():
    x, y, z = axes(["x", None, None]), axes([None, "y", None]), axes([None, None, "z"])
    clash = axes([None, "x", None])
    for sizes, encoding in EVERY_WAY:
        assert prove(merge(x, y, z), sizes, encoding=encoding)
        assert prove(merge(x, z, clash), sizes, encoding=encoding)
        short = MergeClaim(x, y, merge(x, y).sharding, others=(z,))
        assert prove(short, sizes, encoding=encoding).status == "refuted"


def test_orders_of_devices_are_proved_device_by_device():
    mesh = Mesh({"x": 2, "y": 4})
    other = Mesh({"x": 2, "y": 4}, [0, 3, 1, 2, 4, 7, 6, 5])
    x, y = (Sharding.from_axes(e, other, (8, 8)) for e in (["x"], ["y"]))
    column = Sharding.from_axes([None, "y"], mesh, (8, 8))
    rows = [merge(x, column), merge(y, column), merge(y, Sharding.from_axes(["y"], mesh, (8, 8)))]
    assert [bool(v) for v in rows] == [True, False, False]
    for verdict in (*rows, refines(column, y), equal(y, column)):
        proof = prove(verdict)
        assert proof.status == "proved"
        assert "define-fun" in proof.smt2
        assert prove(verdict, "all").status == "unknown"
    wrong = MergeClaim(x, column, Sharding.from_axes(["x", "y"], other, (8, 8)))
    assert prove(wrong).status == "refuted"


def test_no_time_is_unknown_not_an_error():
    verdict = merge(axes([("x", "y", "z", "w")]), axes([("y", "x", "z", "w")]))
    proof = prove(verdict, "all", timeout_s=0.0)
    assert proof.status in ("unknown", "proved")
    hard = prove(lemma("radix_injective"), timeout_s=0.001)
    assert hard.status in ("unknown", "proved")
    assert hard.status == "proved" or hard.reason


def test_what_is_no_claim():
    verdict = merge(axes(["x"]), axes(["x"]))
    with pytest.raises(ProofError, match=r"sizes='some' is not one of"):
        prove(verdict, "some")
    with pytest.raises(ProofError, match="int is no claim"):
        prove(3)
    with pytest.raises(ProofError, match="of one shape"):
        MergeClaim(axes(["x"]), axes(["x", None]), None)
