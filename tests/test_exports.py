"""Exports: tables as files, flat numbers for trackers, and graphs for Model Explorer."""

import csv
import io
import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.show.exports import SCHEMA


@pytest.fixture(scope="module")
def plan():
    def step(w, x):
        def trip(x, w):
            return jnp.tanh(x @ w), None

        return jax.lax.scan(trip, x, w)[0].sum()

    w, x = (jax.ShapeDtypeStruct(s, "float32") for s in ((3, 16, 16), (8, 16)))
    mesh = sa.Mesh({"X": 2, "Y": 4})
    return sa.plan(step, w, x, mesh=mesh, in_shardings=(P(None, "X", "Y"), P("X", "Y")))


TABLE = sa.Table(("op", "n"), (("a|b, <c>", 1), ('say "x"\nor $y$', None)))


@pytest.mark.parametrize("table", [TABLE, TABLE.df], ids=["table", "frame"])
def test_tables_are_exported_as_text_and_files(table, tmp_path):
    rows = [*csv.reader(io.StringIO(table.csv()))]
    assert rows[0] == ["op", "n"]
    assert [row[0] for row in rows[1:]] == [row[0] for row in TABLE.rows]
    assert table.markdown().startswith("| op | n |")
    assert r"\$y\$" in table.latex()
    for form in ("csv", "markdown", "latex"):
        path = tmp_path / f"table.{form}"
        text = getattr(table, form)(path)
        assert path.read_text().rstrip("\n") == text.rstrip("\n")
        with pytest.raises(OSError, match="absent"):
            getattr(table, form)(tmp_path / "absent" / "table")


def test_figures_are_flat_numbers(plan):
    figures, cost = plan.to_dict("tpu_v3"), plan.cost("tpu_v3")
    assert all(type(value) in (int, float) for value in figures.values())
    assert json.loads(json.dumps(figures)) == figures
    assert figures["step_time_s"] == pytest.approx(float(cost.step_time_s))
    assert figures["peak_memory_bytes"] == cost.peak_memory_bytes
    wire = [value for name, value in figures.items() if name.startswith("wire/")]
    assert sum(wire) == pytest.approx(figures["wire_bytes_per_step"])
    times = [value for name, value in figures.items() if name.startswith("time/")]
    assert sum(times) == pytest.approx(figures["step_time_s"])


def test_a_graph_for_model_explorer(plan, tmp_path):
    path = tmp_path / "plan.json"
    found = plan.model_explorer(path, "tpu_v3")
    assert json.loads(path.read_text()) == found["graph"]
    (graph,) = found["graph"]["graphs"]
    names = [node["id"] for node in graph["nodes"]]
    assert len(set(names)) == len(names)
    for node in graph["nodes"]:
        assert {"id", "label", "namespace", "attrs"} <= set(node)
        assert all(edge["sourceNodeId"] in names for edge in node.get("incomingEdges", ()))
    assert graph["groupNodeAttributes"][""]["schema"] == SCHEMA
    sums = {}
    for kind in ("seconds", "wire_bytes"):
        data = json.loads((tmp_path / f"plan.{kind}.json").read_text())
        assert data == found[kind]
        results = data[graph["id"]]["results"]
        assert set(results) <= set(names)
        sums[kind] = sum(result["value"] for result in results.values())
    cost = plan.cost("tpu_v3", overlap="none")
    assert sums["seconds"] == pytest.approx(float(cost.compute_s + cost.communication_s))
    assert sums["wire_bytes"] == pytest.approx(float(cost.wire_bytes))
