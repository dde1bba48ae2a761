"""`shardalg lemmas`: the table, the exit status, and the formulas as files."""

from dataclasses import replace

import pytest

from shardalg.cli import main
from shardalg.merge.lemmas import lemma
from shardalg.plan.commands import proving

FEW = (lemma("radix_range"), lemma("offset_zero"))
WRONG = replace(lemma("halo_hops"), shows="h == 0", mutants=(("h == 0", "h == 1"),))


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(proving, "LEMMAS", FEW)


@pytest.mark.usefixtures("few")
def test_the_table_and_its_summary(capsys):
    assert main(["lemmas"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lemma", "status", "ms", "statement"]
    assert lines[1].startswith("radix_range  proved")
    assert lines[1].endswith("q*m + r with q < a and 0 <= r < m stays below a*m")
    assert lines[-1].startswith("2 of 2 lemmas proved, the slowest (")


@pytest.mark.usefixtures("few")
def test_mutants_and_seeds(capsys):
    assert main(["lemmas", "--mutants", "--seeds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "radix_range/mutant2  refuted" in shown
    assert "< a*m - 1 in place of < a*m" in shown
    assert "3 of 3 mutants refuted" in shown


def test_what_is_not_proved_is_named(monkeypatch, capsys):
    monkeypatch.setattr(proving, "LEMMAS", (*FEW, WRONG))
    assert main(["lemmas"]) == 1
    shown = capsys.readouterr().out
    assert "halo_hops    refuted" in shown
    assert "2 of 3 lemmas proved" in shown
    assert shown.endswith("; not proved: halo_hops\n")


@pytest.mark.usefixtures("few")
def test_formulas_as_files(tmp_path, capsys):
    folder = tmp_path / "new" / "smt2"
    assert main(["lemmas", "--mutants", "--smt2", str(folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 5 + 1 + 2
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "offset_zero.mutant1.smt2",
        "offset_zero.smt2",
        "radix_range.mutant1.smt2",
        "radix_range.mutant2.smt2",
        "radix_range.smt2",
    ]
    text = (folder / "offset_zero.smt2").read_text()
    assert "(check-sat)" in text
    assert "declare-fun" in text
