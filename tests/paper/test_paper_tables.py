"""The transcript of the tables is whole and agrees with the counts that the paper states."""

import json
import math
from pathlib import Path

import pytest

TABLES = json.loads((Path(__file__).parent / "paper_tables.json").read_text())
COLUMNS = TABLES["columns"]
DENSE = [c for c in COLUMNS if c["table"] == "dense-bench"]


def test_every_column_and_value_is_there():
    assert len({c["id"] for c in COLUMNS}) == len(COLUMNS) == TABLES["n_columns"] == 39
    assert sum(len(c["meas"]) for c in COLUMNS) == TABLES["n_measured_values"] == 143


@pytest.mark.parametrize("column", DENSE, ids=lambda c: c["id"])
def test_the_sizes_of_a_dense_column_give_its_parameter_count(column):
    size = {k: column[k] for k in "LMHND"}
    layer = 4 * size["M"] * size["N"] * size["D"] + 2 * size["M"] * size["H"]
    stated = int(column["param_count"][:-1]) * {"B": 2**30, "T": 2**40}[column["param_count"][-1]]
    assert layer * size["L"] == pytest.approx(stated, rel=0.02)
    assert math.prod(column["mesh"]) == column["devices"]


def test_table_1_names_three_strategies_on_every_tensor():
    table = TABLES["symbolic_table"]
    assert [row["name"] for row in table["rows"]] == [
        "2D Attempt 1",
        "2D Attempt 2",
        "2D finalized",
    ]
    for row in table["rows"]:
        for weight in ("W_QKV", "W_O", "W_in", "W_out"):
            assert len(row[weight]) == len(table["tensors"][weight])
            assert sorted(filter(None, row[weight])) == table["mesh_axes"]
        for activation in ("BSM", "BSND", "BSH"):
            assert len(row[activation]) == len(activation)
