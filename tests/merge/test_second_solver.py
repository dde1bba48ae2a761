"""The SMT-LIB text of proofs, judged again by cvc5: another solver, no code of ours in between."""

import itertools
from dataclasses import replace

import cvc5
import pytest

from shardalg.algebra.halos.halo import halo
from shardalg.algebra.halos.window import Window
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.merge.compatible import equal, merge, refines
from shardalg.merge.proofs.prove import MergeClaim, prove

MESH = Mesh({"x": 2, "y": 3, "z": 4})
ENTRIES = (["x", None], [None, "y"], [("x", "y"), None], [None, ("y", "x")], ["z", "x"])


def judged(smt2):
    """cvc5's answer to each query of a text that may hold several."""
    answers = []
    for query in smt2.split("(check-sat)")[:-1]:
        solver = cvc5.Solver()
        solver.setOption("tlimit-per", "5000")
        parser = cvc5.InputParser(solver)
        parser.setStringInput(
            cvc5.InputLanguage.SMT_LIB_2_6, f"(set-logic ALL)\n{query}(check-sat)", "proof"
        )
        symbols = parser.getSymbolManager()
        while not (command := parser.nextCommand()).isNull():
            printed = command.invoke(solver, symbols)
        answers.append(printed.strip())
    return answers


def shardings(mesh=MESH):
    return [Sharding.from_axes(entries, mesh, (50, 50)) for entries in ENTRIES]


@pytest.mark.parametrize(
    ("sizes", "encoding"),
    [("concrete", "coordinates"), ("concrete", "position"), ("concrete", "devices"),
     ("all", "coordinates")],
)  # fmt: skip
def test_verdicts(sizes, encoding):
    """Merges, equalities and refinements of either answer; every proof holds in cvc5 too."""
    rows = shardings()
    verdicts = [merge(a, b) for a, b in itertools.combinations(rows, 2)]
    verdicts += [equal(rows[0], rows[1]), refines(rows[2], rows[0]), refines(rows[0], rows[2])]
    for verdict in verdicts:
        proof = prove(verdict, sizes, encoding=encoding)
        if sizes == "all" and proof.status == "unknown":
            continue
        assert proof.status == "proved"
        answers = judged(proof.smt2)
        assert "unsat" in answers, proof
        if sizes == "concrete":
            assert set(answers) == {"unsat"}, proof


def test_orders_of_devices():
    other = Mesh(MESH.axes, [*range(12, 24), *reversed(range(12))])
    for a, b in itertools.product(shardings()[:3], shardings(other)[:3]):
        assert judged(prove(merge(a, b)).smt2) == ["unsat"]


def test_what_z3_refutes_cvc5_refutes():
    x, y = shardings()[:2]
    wrong = MergeClaim(x, y, Sharding.from_axes(["y", "x"], MESH, (50, 50)))
    for encoding in ("coordinates", "position", "devices"):
        assert "sat" in judged(prove(wrong, encoding=encoding).smt2)
    one_each = halo(Window(3, padding_low=1, padding_high=1), size=16, parts=4)
    narrow = replace(one_each, right=one_each.right.plus(0, -1))
    assert "sat" in judged(prove(narrow).smt2)
