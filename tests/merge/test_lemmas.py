"""The lemmas: proved, not vacuous, and each with wrong statements that are refuted.

A counter-example is evaluated by Python itself, whose `//` and `%` the formulas define anew.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from shardalg.errors import ProofError
from shardalg.merge.lemmas import LEMMAS, lemma
from shardalg.merge.lemmas.lemma import Lemma
from shardalg.merge.proofs.integers import conditions
from shardalg.merge.proofs.prove import prove
from shardalg.merge.proofs.solve import decide

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = [(known, wrong) for known in LEMMAS for wrong in known.mutated()]
PYTHON = {
    "__builtins__": {},
    "ceil": lambda x, m: -(-x // m),
    "min": min,
    "max": max,
    "clip": lambda x, low, high: max(low, min(x, high)),
    "implies": lambda a, b: not a or b,
}


def by_python(text, values):
    """Return the conditions of a text at numbers, evaluated by Python."""
    return eval(f"({text},)", PYTHON, dict(values))


def witness(statement, known):
    """Return numbers at which a variant of a lemma fails; irrelevant numbers are 0."""
    proof = prove(statement)
    assert proof.status == "refuted", proof
    names = re.findall(r"[A-Za-z]\w*", f"{known.given} {known.shows}")
    return dict.fromkeys(set(names) - set(PYTHON), 0) | dict(proof.witness)


@pytest.mark.sampled(37)
@pytest.mark.parametrize("known", LEMMAS, ids=lambda known: known.name)
def test_a_lemma_is_proved_and_not_vacuous(known):
    proof = prove(known)
    assert proof.status == "proved", proof
    assert proof.sizes == "all"
    assert proof.smt2.count("check-sat") == len(conditions(known.shows))
    example = witness(replace(known, shows="1 == 0", mutants=(("1 == 0", "1 == 1"),)), known)
    assert all(by_python(known.given, example)), example
    assert all(by_python(known.shows, example)), example


@pytest.mark.sampled(8)
@pytest.mark.parametrize("known", LEMMAS[::6], ids=lambda known: known.name)
def test_the_text_of_a_proof_is_a_script(known):
    """Several formulas in one script, none of which sees what another one assumes."""
    proof = prove(known)
    assert answers(proof.smt2) == ["unsat"] * proof.smt2.count("(check-sat)")
    wrong = next(known.mutated())
    assert "sat" in answers(prove(wrong).smt2)


def answers(script):
    context = z3.Context()  # held until the script has run
    return z3.Z3_eval_smtlib2_string(context.ref(), script).split()


@pytest.mark.sampled(56)
@pytest.mark.parametrize(("known", "wrong"), MUTANTS, ids=lambda s: s.name)
def test_a_wrong_statement_is_refuted_by_numbers(known, wrong):
    example = witness(wrong, known)
    assert all(by_python(wrong.given, example)), example
    assert not all(by_python(wrong.shows, example)), example


def test_the_table():
    assert len(LEMMAS) >= 21
    names = [known.name for known in LEMMAS]
    assert len(set(names)) == len(names)
    assert len({(k.given, k.shows) for k in LEMMAS}) == len(names)
    for known in LEMMAS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", known.name)
        assert known.statement[0].islower() or not known.statement[0].isalpha(), known.statement
        assert not known.statement.endswith(".")
        paths = re.findall(r"[\w/]+\.py", known.used)
        assert [p for p in paths if not (ROOT / "shardalg" / p).exists()] == []


def test_a_lemma_is_found_by_its_name():
    assert lemma("mask_exact").name == "mask_exact"
    with pytest.raises(ProofError, match="no lemma 'mask'; the lemmas are radix_injective, "):
        lemma("mask")


@pytest.mark.parametrize("mutants", [(), (("q > 0", "q > 1"),)])
def test_a_lemma_needs_mutants_that_change_it(mutants):
    with pytest.raises(ProofError, match="the lemma new needs mutants that change it"):
        Lemma("new", "a statement", "nowhere", "q >= 0", "q*q >= q", mutants)


READ = (
    "x // m == q, x % m == r, ceil(x, m) == q, -x // m == r",
    "min(x, q) == r, max(x, q) == x, clip(x, q, r) == m",
    "q <= x < r, not q == r or x > 1, implies(q > r, x != 2)",
    "(q if x >= r else r) == x, (x < q) == (q < r), -x + 2*q - r*q == m",
    "(x // m) * m + (x + q) % m == x - r, ceil(q*x, m) >= ceil(q, m) * x",
)


@settings(max_examples=12)
@pytest.mark.parametrize("text", READ)
@given(values=st.tuples(*[st.integers(-9, 9)] * 3, st.integers(1, 5)))
def test_formulas_mean_what_python_means(text, values):
    at = dict(zip("xqrm", values, strict=True))
    fixed = [z3.Int(name) == value for name, value in at.items()]
    for condition, right in zip(conditions(text), by_python(text, at), strict=True):
        hypotheses = [*fixed, *condition.definitions]
        assert decide(hypotheses, condition.formula).status == ("proved" if right else "refuted")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no list of conditions"),
        ("q >", "is no list of conditions"),
        ("q + 1", r"'q \+ 1' in 'q \+ 1' is a number, not a condition"),
        ("q >= 1, x", "'x' in 'q >= 1, x' is a number"),
        ("q / 2 == 1", "'q / 2' in .* is nothing that proofs read"),
        ("q ** 2 == 1", "is nothing that proofs read"),
        ("q == 1.5", "'1.5' in"),
        ("q == True", "'True' in"),
        (
            "abs(q) == 1",
            r"'abs\(q\)' in .* is nothing that proofs read.*ceil, min, max, clip, implies",
        ),
        ("ceil(q) == 1", "has 1 arguments for 2"),
        ("implies(q, x > 1)", "'q' in .* is a number, not a condition"),
        ("not q", "'q' in .* is a number, not a condition"),
        ("(q > 1) + 1 == 2", "is a condition, not a number"),
        ("(q > 1) == 2", "is a number, not a condition"),
        ("(q > 1) < (x > 1)", "is nothing that proofs read"),
        ("q.real == 1", "is nothing that proofs read"),
        ("q in x", "is nothing that proofs read"),
        ("__import__('os') == 1", "is nothing that proofs read"),
    ],
)
def test_what_is_no_statement_is_an_error(text, message):
    with pytest.raises(ProofError, match=message):
        conditions(text)
