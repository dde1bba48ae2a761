"""The page of a plan: its numbers equal the plan's, and its text never runs as code."""

import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.analyses.alive_over_time import alive_curve
from shardalg.plan.page.page_data import PageData
from shardalg.plan.page.page_memory import memory_curve
from shardalg.plan.page.plan_html import plan_document


def loss(params, x):
    for i, w in enumerate(params):
        with jax.named_scope(f"layers_{i}"):
            x = jnp.tanh(x @ w)
    return jax.lax.scan(lambda c, row: (c + row.sum(), None), 0.0, x)[0]


@pytest.fixture(scope="module")
def plan():
    params = [jax.ShapeDtypeStruct((16, 16), "float32")] * 3
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    mesh = sa.Mesh({"X": 2, "Y": 4})
    return sa.plan(jax.grad(loss), params, x, mesh=mesh, in_shardings=(P("X", "Y"), P("X", "Y")))


def data_of(page):
    """Return the data of the page's script."""
    found = re.search(r"\(document\.currentScript\.parentElement, (\{.*\})\);</script>", page)
    return json.loads(found[1])


@pytest.fixture(scope="module")
def page(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "plan.html"
    plan.page(path, "h100")
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_lines_and_modules_add_up_to_the_step(plan, page):
    cost = plan.cost("h100")
    data = data_of(page)
    tops = [one for one in data["modules"] if one["parent"] == -1]
    for rows in (data["lines"], tops):
        assert sum(r["s"] + r["x"] for r in rows) == pytest.approx(cost.step_time_s, rel=1e-9)
        assert sum(r["b"] for r in rows) == pytest.approx(float(cost.wire_bytes))
        assert sum(r["n"] for r in rows) == len(plan.collectives())
        assert sum(r["m"] for r in rows) == cost.peak_memory_bytes
    assert sum(one["n"] for one in data["collectives"]) == len(plan.collectives())
    assert any(one["name"] == "layers[0:3]" for one in data["modules"])


def test_the_memory_curve_has_the_peak_of_the_plan(plan):
    for rebuild in (False, True):
        curve = alive_curve(plan.program, plan.graph, donated=(), rebuild=rebuild)
        for point, total in enumerate(curve.totals):
            alive = (life.bytes for life in curve.lifetimes if life.first <= point <= life.last)
            assert sum(alive) == total
    for chip in ("h100", "tpu_v3"):
        cost = plan.cost(chip)
        curve = memory_curve(plan, cost)
        assert curve.totals[curve.peak] == cost.peak_memory_bytes
        assert [*map(sum, zip(*curve.by_class.values(), strict=True))] == [*curve.totals]


def test_every_value_of_a_line_has_its_sharding_and_reason(plan, page):
    data, rows = data_of(page), plan.shardings().set_index("value")
    assert data["values"]
    for _, _, name, _, kind, layout, why in data["values"]:
        assert data["layouts"][layout]["text"] == rows.sharding[name]
        assert (kind, why) == (rows.global_shape[name], rows.why[name])


def test_the_page_has_the_source_and_loads_nothing(page):
    assert "x = jnp.tanh(x @ w)" in page
    assert not re.search(r"\b(src|href)\s*=|@import|url\(|https?:", page)


@pytest.mark.slow
def test_a_notebook_shows_the_same_page(plan, page):
    shown = plan._repr_html_()
    assert data_of(shown)["collectives"][0]["s"] > 0
    assert shown.count("data-pick") == page.count("data-pick")
    assert not data_of(shown)["linked"]


def test_no_text_ends_the_script(plan):
    page = plan_document(plan, "</script><script>alert(1)</script>")
    assert "<script>alert" not in page


def test_exposed_seconds_are_those_of_the_limits(plan):
    seen = plan.overview("tpu_v3")
    found = sum(PageData(plan, seen).exposed.values())
    parts = seen.priced.limits.seconds.items()
    assert found == pytest.approx(sum(s for name, s in parts if name.startswith("exposed")))


def test_a_loaded_plan_whose_source_file_is_gone(tmp_path):
    """Neighbouring lines of a file that is not found have names and amounts, and no text."""
    text = "def two_lines(x):\n    y = x + 1\n    return y * 2\n"
    names: dict = {}
    exec(compile(text, str(tmp_path / "gone_with_its_lines.py"), "exec"), names)
    x = jax.ShapeDtypeStruct((8,), "float32")
    traced = sa.plan(names["two_lines"], x, mesh=sa.Mesh({"X": 2}), in_shardings=P("X"))
    traced.save(tmp_path / "plan.json")
    sa.load_plan(tmp_path / "plan.json").page(tmp_path / "page.html", "h100")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    lines = [re.search(rf"gone_with_its_lines.py:{at}\b", page) for at in (2, 3)]
    assert all(lines)


def test_a_chip_that_is_unknown_is_named(plan, tmp_path):
    with pytest.raises(sa.HardwareError, match="h1000"):
        plan.page(tmp_path / "plan.html", "h1000")
