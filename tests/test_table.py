import subprocess
import sys
from xml.etree import ElementTree

import pytest
import sympy

import shardalg as sa
from shardalg.tables import Table

B, X = sympy.symbols("B X", positive=True, integer=True)
TABLE = Table(
    ("kind", "wire_bytes", "share"),
    (("all_gather", 3072, 0.25), ("all|reduce_x", 64, None)),
)


def test_text_is_aligned_numbers_flush_right():
    assert repr(TABLE).splitlines() == [
        "kind          wire_bytes  share",
        "all_gather          3072   0.25",
        "all|reduce_x          64",
    ]


def test_values_compare_by_content_and_cannot_change():
    same = Table(["kind", "wire_bytes", "share"], [list(row) for row in TABLE.rows])
    assert same == TABLE
    assert hash(same) == hash(TABLE)
    with pytest.raises(AttributeError):
        TABLE.rows = ()


def test_columns_rows_and_records():
    assert TABLE["wire_bytes"] == (3072, 64)
    assert len(TABLE) == 2
    assert list(TABLE)[1] == {"kind": "all|reduce_x", "wire_bytes": 64, "share": None}
    assert TABLE.select("share", "kind").columns == ("share", "kind")
    assert TABLE.where(kind="all_gather", wire_bytes=3072).rows == TABLE.rows[:1]
    assert Table.from_records(TABLE) == TABLE
    assert Table.from_records(TABLE, TABLE.columns[:1]) == TABLE.select("kind")


def test_an_empty_table_keeps_its_columns_everywhere():
    empty = Table(("kind", "wire_bytes"))
    assert repr(empty) == "kind  wire_bytes"
    assert list(empty.df.columns) == ["kind", "wire_bytes"]
    assert empty.where(kind="x") == empty
    assert empty.select("kind") == Table(("kind",))
    assert "toprule" in empty.to_latex()


def test_markdown_escapes_its_own_sign():
    assert TABLE.to_markdown().splitlines()[1:] == [
        "| --- | ---: | ---: |",
        "| all_gather | 3072 | 0.25 |",
        "| all\\|reduce_x | 64 |  |",
    ]


def test_latex_escapes_and_sets_formulas_as_math():
    text = Table(("wire_bytes", "why"), ((2 * B / X, "100 % of {a} & b^2"),)).to_latex()
    assert r"wire\_bytes & why \\" in text
    assert r"$\frac{2 B}{X}$ & 100 \% of \{a\} \& b\textasciicircum{}2 \\" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1


def test_html_is_well_formed_with_mathml():
    text = Table(("formula", "sharding"), ((sympy.ceiling(B / X), "<[x]> & y"),))._repr_html_()
    root = ElementTree.fromstring(text)
    assert [cell.text for cell in root[0]] == ["formula", "sharding"]
    assert root[1][0][0].tag == "math"
    assert root[1][1].text == "<[x]> & y"


def test_data_frame_has_the_same_cells():
    frame = TABLE.df
    assert list(frame.columns) == list(TABLE.columns)
    assert frame["wire_bytes"].sum() == 3136
    assert frame["wire_bytes"].dtype.kind == "i"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Table(("a", "b"), ((1,), (1, 2), (1, 2, 3))), r"row 0 has 1, row 2 has 3 values"),
        (lambda: Table(("a", "b", "a")), "columns named twice: a"),
        (lambda: TABLE["bytes"], "no column 'bytes'; the columns are kind, wire_bytes, share"),
        (lambda: TABLE.select("kind", "x"), "no column 'x'"),
        (lambda: TABLE.where(y=1), "no column 'y'"),
    ],
)
def test_errors_name_what_is_wrong(make, message):
    with pytest.raises(sa.TableError, match=message):
        make()


def test_pandas_and_sympy_load_on_demand_only():
    code = (
        "import sys; from shardalg import Table; t = Table(('a',), ((1,),)); repr(t); t.to_html(); "
        "t.to_latex(); t.to_markdown(); before = {'pandas', 'sympy'} & set(sys.modules); t.df; "
        "print(before, 'pandas' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set() True"
