import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.show.proofs import by_claim, statements
from shardalg.show.tables import (
    COLLECTIVE_COLUMNS,
    beside,
    collectives,
    shardings,
    strategies,
    totals,
)
from shardalg.tables import Table
from tests.costs.handmade import H, M, ffn_graph, ffn_program, loop_program
from tests.report.planned import plan_on, planned


def test_collectives_of_a_program_in_order():
    table = collectives(ffn_program(), ffn_graph())
    assert table.columns == COLLECTIVE_COLUMNS
    assert list(zip(table["kind"], table["mesh_axes"], table["role"], strict=True)) == [
        ("all_gather", "Y", "activation"),
        ("all_gather", "X", "weight"),
        ("all_gather", "X", "weight"),
        ("reduce_scatter", "Y", "activation"),
    ]
    weights = table.where(role="weight")
    assert set(weights["operand_bytes"]) == {4 * M * H // 8}
    assert set(weights["result_bytes"]) == {4 * M * H // 4}
    assert set(weights["wire_bytes"]) == {4 * M * H // 8}
    assert table["source"] == ("ffn.py:1", "ffn.py:1", "ffn.py:3", "ffn.py:3")
    assert set(table["group_size"]) == {2, 4}


@pytest.mark.parametrize("axes", [("X", "Y"), ("Y", "X")])
def test_several_axes_stand_major_first(axes):
    program, graph, _ = plan_on(lambda x: jnp.sort(x, 0), (64,), P(axes))
    (row,) = collectives(program, graph)
    assert (row["kind"], row["mesh_axes"], row["group_size"]) == ("all_gather", ",".join(axes), 8)


def test_counts_include_trip_counts_and_sums_use_them():
    table = collectives(loop_program(5), ffn_graph())
    assert table["executions"] == (5, 5)
    assert table["op"] == ("border", "border")
    (moved,) = totals({"loop": table})["wire_bytes_per_step"]
    assert moved == 5 * sum(table["wire_bytes"])
    assert sum(strategies({"loop": table})["wire_bytes_per_step"]) == moved


def test_strategies_are_summed_by_phase_in_order_of_the_step():
    def row(kind, phase, count, size):
        return (
            kind,
            "Y",
            4,
            count,
            0,
            0,
            size,
            count * size,
            "gradient",
            phase,
            "root",
            "op",
            "",
            "",
            "",
        )

    table = Table(
        COLLECTIVE_COLUMNS,
        (row("all_reduce", "update", 1, 7), row("all_gather", "backward", 2, 3),
         row("all_gather", "forward", 1, 3), row("all_gather", "backward", 1, 3)),
    )  # fmt: skip
    found = strategies({"b": table, "a": table})
    assert found["strategy"] == ("b",) * 3 + ("a",) * 3
    assert found["phase"][:3] == ("forward", "backward", "update")
    assert found["wire_bytes_per_step"][:3] == (3, 9, 7)
    assert found["executions"][:3] == (1, 3, 1)


@pytest.mark.parametrize("rows", [(), (("all_gather", "X", 2, 10),)])
def test_beside_an_empty_table(rows):
    columns = ("kind", "mesh_axes", "executions", "wire_bytes_per_step")
    last = beside(Table(columns, rows), Table(columns)).rows[-1]
    moved = sum(r[3] for r in rows)
    assert last == ("all", "", 2 * len(rows), 0, moved, 0)


def test_beside_reads_a_sliced_all_reduce_as_what_it_stands_for():
    columns = ("kind", "mesh_axes", "group_size", "executions", "wire_bytes_per_step", "sliced_by")
    rows = (("all_reduce", "Y, X", 8, 2, 6, 8), ("all_reduce", "Y", 4, 1, 9, None))
    found = beside(Table(columns), Table(columns, (*rows, ("all_reduce", "Y", 4, 1, 9, 2))))
    assert found.rows[0] == ("all_reduce", "Y", 0, 2, 0, 18)
    assert found.rows[1] == ("reduce_scatter", "X,Y", 0, 2, 0, 6)


def test_proofs_count_each_statement_once():
    rows = (
        ("a", "merge", "proved", 2.0, "(one)"),
        ("b", "merge", "proved", 2.0, "(one)"),
        ("c", "merge", "refuted", 5.0, "(two)"),
        ("d", "reads", "not_claimed", 0.0, ""),
    )
    claims = Table(("node", "claim", "status", "ms", "smt2"), rows)
    assert by_claim(claims).columns == (
        "claim", "claims", "statements", "proved", "refuted", "not_claimed", "ms",
    )  # fmt: skip
    assert by_claim(claims).rows == (
        ("merge", 3, 2, 2, 1, 0, 7.0), ("reads", 1, 0, 0, 0, 1, 0.0),
    )  # fmt: skip
    assert statements(claims)["claims"] == (1, 2)


def test_the_table_of_shardings_has_every_value():
    _, graph, sharded = planned("ffn", "2D finalized")
    table = shardings(sharded)
    assert table["value"] == tuple(v.name for v in graph.values)
    (x,) = table.where(value="x")
    assert (x["sharding"], x["local_shape"]) == ("[X, None, Y]", "8x64x32")
