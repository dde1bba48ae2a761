"""The layout of Table 1: formulas in sympy, bytes at the hints, agreement with printed orders."""

import pytest
import sympy

from shardalg.costs.analyses.scaling import Scaling
from shardalg.lab.table1 import COLUMNS, Costs, big_o, difference, paper_order, table
from shardalg.sizes.formula import symbols
from shardalg.sizes.growth import order

M, X, Y = symbols("M X Y")
SCALING = Scaling(8 * M / (X * Y), M * (X - 1) / X, 0, M / Y, M)
HINTS = {"M": 64, "X": 8, "Y": 4}
FOUND = Costs(SCALING, SCALING.orders("XY"), HINTS)


def test_a_row_per_quantity_with_bytes_at_the_hints():
    shown = table({"one": FOUND})
    assert shown["quantity"] == (*COLUMNS, "update_communication")
    assert shown["bytes"] == (16, 56, 0, 16, 64)
    assert [str(formula) for formula in shown["formula"]] == [
        "8*M/(X*Y)", "M*(X - 1)/X", "0", "M/Y", "M"
    ]  # fmt: skip
    assert [str(o) for o in shown["order"]] == ["O(1/(X*Y))", "O(1)", "0", "O(1/Y)", "O(1)"]


def test_printed_orders_beside_the_derived_ones():
    printed = {"one": (("XY",), ("X",), (), ("Y",))}
    shown = table({"one": FOUND}, printed)
    assert shown["quantity"] == COLUMNS
    assert shown["equal"] == ("yes", "NO", "yes", "yes")
    assert [str(o) for o in shown["paper"]] == ["O(1/(X*Y))", "O(1/X)", "0", "O(1/Y)"]


def test_a_difference_leaves_out_what_is_equal():
    added = Scaling(0, 16 * M / X, 0, 0, -M)
    shown = difference({"one": added}, HINTS)
    assert shown.select("quantity", "bytes").rows == (
        ("activation_memory", 128), ("update_communication", -64)
    )  # fmt: skip


@pytest.mark.parametrize("axes", [(), ("X",), ("X", "Y"), ("XY",)])
def test_printed_orders_are_read_as_orders(axes):
    written = paper_order(axes)
    total = sum((1 / term for term in map(_product, axes)), start=0 * M)
    assert written == order(total, growing="XY")
    assert bool(big_o(written) == sympy.S.Zero) == (not axes)


def _product(axes):
    found = symbols(" ".join(axes))
    return found[0] * found[1] if len(found) == 2 else found[0]


def test_formulas_are_mathml_in_html_and_math_in_latex():
    shown = table({"one": FOUND}, {"one": (("XY",), ("X",), (), ("Y",))})
    html = shown.to_html()
    assert html.count("<math>") == 3 * len(COLUMNS)
    assert "<mi>O</mi><mo>(</mo><mfrac><mn>1</mn><mi>Y</mi></mfrac><mo>)</mo>" in html
    assert "<mi>o</mi>" not in html  # a small o is another order
    assert r"$\frac{8 M}{X Y}$ & 16 & $O\left(\frac{1}{X Y}\right)$" in shown.to_latex()
    assert r"\toprule" in shown.to_latex()
