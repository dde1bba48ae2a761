"""The page of compared strategies: points, filters, the chosen strategy, and refused ones."""

import pytest

from shardalg.show.pages.explorer_page import explorer_document
from shardalg.show.strategy_bars import StrategyBar
from shardalg.tables import Table
from tests.browser.in_page import said_by
from tests.browser.test_names import HOSTILE
from tests.browser.test_program_view import browser

NAME = HOSTILE["markup"]
ROWS = [
    StrategyBar("fast", "X=4", "", True, 1e-3, {"matrix products": 1e-3}, 6e9, 8e9),
    StrategyBar(f"small {NAME}", "X=2, Y=2", "", True, 2e-3, {"padding": 2e-3}, 3e9, 8e9),
    StrategyBar("beaten", "Y=4", "", True, 3e-3, {"idle devices along Y": 3e-3}, 7e9, 8e9),
    StrategyBar("large", "Y=4", "", False, 0.5e-3, {"matrix products": 5e-4}, 9e9, 8e9),
    StrategyBar("odd", "Z=3", f"no axis {NAME}", False, float("inf"), {}, 0, 8e9),
]
SCRIPT = """
const points = () => all('[data-part="scatter"] [data-at]').length;
said.points = points();
said.limit = one('[data-part="scatter"]').textContent.includes("memory of a device");
one('[data-at="1"]').dispatchEvent(new MouseEvent("click", {bubbles: true}));
said.detail = one('[data-part="detail"] h2').textContent;
one('[data-at="0"]').dispatchEvent(new Event("focus"));
said.tip = one(".tip").textContent;
one('[data-at="0"]').dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
said.key = one('[data-part="detail"] h2').textContent;
one('[data-part="fits"]').click();
said.fitting = points();
one('[data-part="front"]').click();
said.front = points();
change(one('[data-part="filter"]'), "nothing");
said.none = points();
said.refused = one("ul").textContent;
"""


@browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, 1), (420, 0)])
def test_a_person_explores_strategies(width, scheme, tmp_path):
    table = Table(("strategy", "n"), ((NAME, 1),))
    page = explorer_document(ROWS, "fast is the fastest", [("Ranking", table)], title="Compared")
    said = said_by(page, SCRIPT, tmp_path, width=width, scheme=scheme)
    assert said["points"] == 4
    assert said["limit"]
    assert said["detail"] == f"small {NAME}"
    assert "1 ms per step" in said["tip"]
    assert said["key"] == "fast"
    assert (said["fitting"], said["front"], said["none"]) == (3, 2, 0)
    assert f"odd on Z=3: no axis {NAME}" in said["refused"]
