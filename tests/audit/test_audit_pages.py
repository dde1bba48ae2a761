"""The page of an audit, its progress, and an interrupt."""

import pytest

import shardalg as sa
from shardalg.xla.audit.operators.operator_table import OperatorTable
from shardalg.xla.audit.values import data_moves
from tests.audit.seeded_faults import faults
from tests.audit.test_known_issues import grads_pair, scatter_pair
from tests.audit.test_recorded_pairs import pairs


def test_the_page_has_the_verdict_first_and_loads_nothing(tmp_path):
    found = sa.audit_hlo(*scatter_pair(is_right=False))
    path = found.page(tmp_path / "audit.html")
    text = path.read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert "<script" not in text
    order = ["<b>refuted</b>", '<h2 id="s2">Refuted: all-reduce', "openxla/xla#42481", "<details>"]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)
    assert found.refuted[0].witness.split(" of ")[0].removeprefix("expected ") in text
    assert "%all = f32[4,4]{1,0} all-reduce(%block)" in text


def test_the_page_has_both_sides(tmp_path):
    given = pairs()["attn_final_fwd.shardy"]
    (fault,) = (f for f in faults(given["after"], 8, 3, 1) if f.kind == "missing reduction")
    found = sa.audit_hlo(given["before"], fault.text)
    row = found.refuted[0]
    assert row.opcode in row.after
    assert row.before
    text = found.page(str(tmp_path / "audit.html")).read_text()
    assert "Before partitioning:" in text


def test_the_page_of_a_right_program(tmp_path):
    text = sa.audit_hlo(*grads_pair(is_right=True)).page(tmp_path / "audit.html").read_text()
    assert "<b>proved</b>" in text
    assert "Refuted" not in text


def test_the_page_needs_a_path():
    with pytest.raises(sa.TableError, match="its path is 3"):
        sa.audit_hlo(*grads_pair(is_right=True)).page(3)


def test_progress_has_counts(capsys):
    sa.audit_hlo(*scatter_pair(is_right=True), progress=True)
    shown = capsys.readouterr().err
    assert "instructions, 0 refuted" in shown
    assert shown.endswith("\r\033[K")
    sa.audit_hlo(*scatter_pair(is_right=True))
    assert not capsys.readouterr().err


def test_an_interrupt_returns_the_rows_so_far(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(data_moves.MOVES, "dynamic-slice", interrupted)
    found = sa.audit_hlo(*scatter_pair(is_right=True))
    assert found.verdict == "not examined"
    assert not found.ok
    assert found.counts["not examined"] >= 1
    assert found.counts["proved"] >= 1


def test_an_interrupt_before_the_first_instruction_examines_none(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    # The program before partitioning is walked first, and records its operators.
    monkeypatch.setattr(OperatorTable, "record", interrupted)
    found = sa.audit_hlo(*scatter_pair(is_right=True))
    assert found.verdict == "not examined"
    assert set(found.counts) == {"not examined"}
