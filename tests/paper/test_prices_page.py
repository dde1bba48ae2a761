"""The page on prices: its examples run, its table is that of the chips' files."""

import doctest
import re
from pathlib import Path

import shardalg as sa

PAGE = Path(__file__).parents[2] / "docs" / "prices.md"


def test_the_examples_of_the_page_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    found = doctest.DocTestRunner(verbose=False).run(test)
    assert found.attempted > 5
    assert not found.failed


def test_the_table_of_the_page_is_that_of_the_constants():
    assert f"```text\n{sa.paper.errors_by_chip()}\n```" in PAGE.read_text()


def test_every_run_has_a_row(show):
    table = sa.paper.run_table()
    show(table)
    assert len(table) == sum(row["runs"] for row in sa.paper.errors_by_chip())
    assert all(abs(row["left_out_pct"]) < 12 for row in table)
