"""Curves of costs end where their conditions do; a cost of 0 is named in words."""

import numpy as np
import pytest

from shardalg.costs.analyses.scaling import QUANTITIES, Scaling
from shardalg.lab.table1 import POWERS, Costs, scaling_curves, sweep
from shardalg.sizes.facts import Divides
from shardalg.sizes.formula import symbols

M, X, Y = symbols("M X Y")
HINTS = {"M": 64, "X": 8, "Y": 4}
FACTS = (Divides(M, X, True),)
FOUND = Costs(Scaling(8 * M / (X * Y), M * (X - 1) / X, 0, M / Y, 0), (), HINTS, FACTS)


@pytest.mark.parametrize("axis", "XY")
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_curve_is_the_formula_where_it_holds(axis, quantity):
    value, curve = getattr(FOUND.scaling, quantity), sweep(FOUND, quantity, axis)
    for size, got in zip(POWERS.tolist(), curve, strict=True):
        point = {**HINTS, axis: size}
        if point["M"] % point["X"]:
            assert np.isnan(got)
        else:
            assert got == pytest.approx(float(value.at(point) if value else 0))


def test_the_figure_has_a_panel_per_axis_and_quantity():
    figure = scaling_curves({"one": FOUND, "two": FOUND})
    panels = figure.axes
    assert [panel.get_title() for panel in panels[:4]] == [
        "weight memory", "activation memory", "weight communication", "activation communication"
    ]  # fmt: skip
    assert len(panels) == 8
    assert panels[2].get_xlabel() == "X   (one, two: 0)"
    drawn = [np.isfinite(line.get_ydata()).sum() for line in panels[0].get_lines()]
    assert drawn == [6, 6]  # 2 to 64 divide 64
