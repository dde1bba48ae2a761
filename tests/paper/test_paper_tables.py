"""The transcript of the tables is whole and agrees with the counts that the paper states."""

import math

import pytest

import shardalg as sa
from shardalg.lab.evaluation.published import PARAMETER_UNIT, column, columns, tables
from shardalg.models.transformer import Config

TRANSFORMERS = [c for c in columns() if c.facts["model"] == "dense_transformer"]


def test_every_column_and_value_is_there():
    assert len({c.id for c in columns()}) == len(columns()) == tables()["n_columns"] == 39
    assert sum(len(c.measured) for c in columns()) == tables()["n_measured_values"] == 143


@pytest.mark.parametrize("case", TRANSFORMERS, ids=lambda c: c.id)
def test_the_sizes_of_a_transformer_give_its_parameter_count_exactly(case):
    """All weights of the layers; the paper leaves the embedding out."""
    counts = Config(**{letter: case.facts[letter] for letter in "BSMHNDVL"}).parameter_counts()
    assert sum(counts.values()) - counts["embedding"] == case.stated_parameters
    assert math.prod(case.mesh.values()) == case.facts["devices"]


def test_what_was_derived_from_the_counts_of_the_hybrid_gives_them():
    """12 attention layers, 6 dense and 6 MoE feed-forwards of M = 8192, D = 128: see "derived"."""
    for case in columns(7):
        H, N, E = (case.facts[letter] for letter in "HNE")
        count = 12 * 4 * 8192 * N * 128 + 6 * (1 + E) * 2 * 8192 * H
        assert count == case.stated_parameters, case.id


def test_what_was_derived_from_the_slope_of_the_sparse_model_gives_it():
    """18 MoE layers of two 1024 x 8192 matrices per expert, as printed to a billion."""
    first, *others = columns(6)
    for case in others:
        more = 18 * 2 * 1024 * 8192 * (case.facts["E"] - first.facts["E"])
        assert abs(more - (case.stated_parameters - first.stated_parameters)) <= PARAMETER_UNIT


def test_table_1_names_three_strategies_on_every_tensor():
    table = tables()["symbolic_table"]
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


def test_a_column_or_table_that_is_not_there():
    with pytest.raises(
        sa.TableError, match=r"no column 'dense.c1'; write one of dense-bench.c1 to c7"
    ):
        column("dense.c1")
    with pytest.raises(sa.TableError, match="no table 9 of measurements: Tables 2 to 8"):
        columns(9)
