"""docs/operators.md equals the table, and shows every builder of every family."""

from pathlib import Path

from shardalg.graph.ops.examples import CASES
from shardalg.graph.ops.rows import BUILDERS
from shardalg.show.operators import operators_page

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == operators_page(), (
        "rewrite it with `python -m shardalg.show.operators > docs/operators.md`"
    )


def test_the_page_names_every_primitive_of_the_table():
    page = operators_page()
    assert not [name for name in BUILDERS if f"`{name}`" not in page]


def test_every_builder_has_an_example():
    shown = {BUILDERS[case[0]] for case in CASES}
    assert not [name for name, builder in BUILDERS.items() if builder not in shown]
