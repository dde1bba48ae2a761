"""Proofs of halos: right ones are proved on all partitions, wrong ones have a partition to show."""

from dataclasses import replace

import numpy as np
import pytest

from shardalg.algebra.halos.halo import halo
from shardalg.algebra.halos.window import Window
from shardalg.merge.lemmas.lemma import Lemma
from shardalg.merge.proofs.claims import ALL_SIZES, HaloWitness
from shardalg.merge.proofs.prove import prove

SEED = 210504663
EXAMPLE = halo(Window(2, padding_low=1, padding_high=4), size=12, parts=4)
DILATED = halo(Window(5, 2, 4, 4, base_dilation=3, window_dilation=2), size=190, parts=16)
MUTATIONS = {
    "left one smaller": lambda h: replace(h, left=h.left.plus(0, -1)),
    "left one larger": lambda h: replace(h, left=h.left.plus(0, 1)),
    "right one smaller": lambda h: replace(h, right=h.right.plus(0, -1)),
    "right one larger": lambda h: replace(h, right=h.right.plus(0, 1)),
    "left grows": lambda h: replace(h, left=h.left.plus(1)),
    "of another window": lambda h: replace(h, window=replace(h.window, padding_low=2)),
}


def random_halo(rng):
    while True:
        fields = rng.integers((1, 1, -3, -3, 1, 1), (8, 5, 8, 8, 5, 4))
        window, size = Window(*map(int, fields)), int(rng.integers(1, 300))
        if window.out_size(size):
            return halo(window, size=size, parts=int(rng.integers(1, 65)))


def test_random_halos_are_proved(show):
    rng, times = np.random.default_rng(SEED), []
    for _ in range(20):
        proof = prove(random_halo(rng))
        assert proof, proof
        times.append(proof.ms)
    show(f"halos proved for concrete sizes: median {np.median(times):.0f} ms")


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("found", [EXAMPLE, DILATED])
def test_a_wrong_halo_is_refuted(found, name):
    proof = prove(MUTATIONS[name](found))
    assert proof.status == "refuted"
    assert isinstance(proof.witness, HaloWitness)


def test_the_witness_is_an_element_that_is_lacking():
    """Right halo p, not p + 1: some partition reads the element after its last one."""
    wrong = replace(EXAMPLE, right=EXAMPLE.right.plus(0, -1))
    witness = prove(wrong).witness
    assert witness.fault == "an element that is read is outside the halo"
    first, end = EXAMPLE.reads(witness.partition)
    assert wrong.limit.at(witness.partition) <= witness.element < end
    assert first <= witness.element


def test_halos_for_all_sizes():
    """The claim is proved with every parameter symbolic; other forms are not the window's."""
    proof = prove(DILATED, "all")
    assert proof, proof
    assert proof.smt2.count("(check-sat)") >= 6
    other = prove(replace(DILATED, left=DILATED.left.plus(0, -1)), "all")
    assert other.status == "unknown"
    assert "not the window's closed forms" in other.reason


MUTANTS = [
    ("left == p*s - start", "left == p*s - start - 1"),
    ("right == limit", "right == 1 + limit"),
    ("start == ceil(stride*t*p - low, b)", "start == (stride*t*p - low) // b"),
    ("+ 1 - low, b)", "- low, b)"),
    ("stride*(t - 1)", "stride*t"),
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_other_forms_are_refuted_for_all_sizes(mutant):
    old, new = mutant
    assert all(old in statement.given for statement in ALL_SIZES)
    made = (replace(s, given=s.given.replace(old, new)) for s in ALL_SIZES)
    assert any(judged(statement) == "refuted" for statement in made)


def judged(statement):
    """Return a statement in the solver's form, through an equal lemma."""
    lemma = Lemma("any", statement.fault, "tests", statement.given, statement.shows, (("b", "b"),))
    return prove(lemma).status


@pytest.mark.slow
def test_halos_for_all_sizes_with_other_seeds(show):
    proofs = [prove(DILATED, "all", seed=seed) for seed in range(10)]
    assert all(proofs)
    show(f"a halo for all sizes: {max(proof.ms for proof in proofs):.0f} ms at most")
