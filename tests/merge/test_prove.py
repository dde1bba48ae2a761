"""Proofs: z3 agrees with the closed form everywhere, for all sizes too, and sees what is wrong."""

import itertools
import statistics

import pytest

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ProofError
from shardalg.merge.compatible import merge, refines
from shardalg.merge.lemmas import lemma
from shardalg.merge.prove import MaskClaim, MergeClaim, prove

from . import brute

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


@pytest.mark.parametrize("mesh", [Mesh({"x": 2}), Mesh({"x": 2, "y": 2})], ids=repr)
@pytest.mark.parametrize("sizes", ["concrete", "all"])
def test_enumeration_closed_form_and_solver_agree(mesh, sizes):
    rows = brute.digit_shardings(mesh, (8, 8))
    for first, second in itertools.product(rows, repeat=2):
        verdict = merge(first, second)
        assert bool(verdict) == brute.compatible(first, second)
        assert prove(verdict, sizes).status == "proved"


def test_every_wrong_result_is_refuted():
    """Of all shardings exactly the merge is proved; the others come with a device or a tile."""
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
    """On the device of the witness the result has another offset than an operand asks for."""
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
    assert "policy's rule" in prove(merge(axes(["y"]), axes(["x"]), policy="shardy")).reason


def test_digits_of_two_meshes_are_proved_at_their_sizes_only():
    rows = [
        brute.digit_shardings(Mesh(m), (24, 24))
        for m in ({"a": 2, "b": 2, "c": 3}, {"d": 3, "e": 4})
    ]
    for first, second in itertools.product(*rows):
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


@pytest.mark.parametrize("size", range(14))
def test_refinements(size):
    for fine, coarse in itertools.product(
        brute.digit_shardings(Mesh({"x": 2, "y": 2}), (size,)), repeat=2
    ):
        assert prove(refines(fine, coarse)).status == "proved"


def test_refinements_for_all_sizes():
    assert prove(refines(axes([("x", "y")]), axes(["x"])), "all")
    assert prove(refines(axes(["x"]), axes([("x", "y")])), "all").status == "unknown"


@pytest.mark.parametrize("sizes", ["concrete", "all"])
@pytest.mark.parametrize(
    ("size", "n", "block", "bound", "status"),
    [
        (10, 4, 3, 10, "proved"),
        (64, 8, 8, 64, "proved"),
        (3, 8, 1, 3, "proved"),
        (1, 1, 1, 1, "proved"),
        (10, 4, 3, None, "proved"),
        (10, 4, 3, 11, "refuted"),
        (10, 4, 3, 9, "refuted"),
        (10, 4, 2, 10, "refuted"),
        (10, 4, 2, None, "refuted"),
        (10, 4, 4, 10, "refuted"),
    ],
)
def test_masks(size, n, block, bound, status, sizes):
    proof = prove(MaskClaim(size, (Digit(1, n),), block, bound), sizes)
    assert proof.status == status
    if status == "refuted":
        at = dict(proof.witness)
        exists = at["p"] * -(-size // n) + at["x"] < size
        assert (at["p"] * block + at["x"] < (size if bound is None else bound)) != exists


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
