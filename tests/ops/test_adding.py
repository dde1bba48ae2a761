"""docs/adding_an_operator.md, done: one row, and an unknown primitive is partitioned."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from shardalg.graph.ir import Signature, ValueType
from shardalg.graph.ops.rows import BUILDERS, rules

PAGE = Path(__file__).parents[2] / "docs" / "adding_an_operator.md"
X = np.random.default_rng(2).normal(size=(8, 10)).astype(np.float32)
W = np.arange(10, dtype=np.float32)


@pytest.fixture(scope="module")
def page():
    """Return the names that the page's code defines."""
    names = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    return names


@pytest.fixture
def with_row(page, monkeypatch):
    for name, builder in page["ROWS"].items():
        monkeypatch.setitem(BUILDERS, name, builder)
    return page


def kinds(plan):
    return [row["kind"] for row in plan.collectives().to_dict("records")]


def test_without_a_row_it_is_opened(page):
    # Another size than below: what is decided is remembered by the node.
    plan = page["plan_of_it"](rows=6)
    assert kinds(plan) == ["all_reduce"]
    assert "dot_general" in str(plan.program)
    np.testing.assert_allclose(plan.lower()(X[:6], W), X[:6] @ W, rtol=1e-5)


def test_where_it_cannot_be_opened_the_operands_are_gathered_and_the_plan_says_so(
    page, monkeypatch
):
    monkeypatch.setattr("shardalg.graph.tracing.opened.bodies", lambda primitive: ())
    plan = page["plan_of_it"](rows=6)
    assert set(kinds(plan)) == {"all_gather"}
    (warning,) = (
        plan.warnings().query("op not in ('jax.jit', 'uneven', 'unread')").to_dict("records")
    )
    assert warning["op"] == "weighted_sum"
    assert "no row" in str(warning)
    assert "docs/adding_an_operator.md" in str(warning)
    np.testing.assert_allclose(plan.lower()(X[:6], W), X[:6] @ W, rtol=1e-5)


def test_with_the_row_it_is_partitioned_on_every_loop(with_row):
    plan = with_row["plan_of_it"]()
    assert kinds(plan) == ["all_reduce"]
    assert plan.warnings().query("op not in ('jax.jit', 'uneven', 'unread')").empty
    text = str(plan.program)
    assert "weighted_sum" in text
    assert "mask" in text
    np.testing.assert_allclose(plan.lower()(X, W), X @ W, rtol=1e-5)
    assert plan.cost("tpu_v3").flops == 2 * 4 * 3


def test_the_page_says_what_the_row_is(with_row):
    types = tuple(ValueType(shape, "float32") for shape in ((8, 10), (10,), (8,)))
    (rule,) = rules(Signature("weighted_sum", (), types[:2], types[2:]))
    doc = with_row["weighted_sum_row"].__doc__.strip("`.")
    assert str(rule) == f"weighted_sum: {doc}"
    assert np.allclose(jax.jit(with_row["weighted_sum"])(X, W), X @ W, rtol=1e-4)
