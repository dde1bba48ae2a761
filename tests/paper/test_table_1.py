"""GSPMD (arXiv:2105.04663), Table 1: memory and communication of three strategies, derived.

Each strategy is planned on a traced layer whose sizes have names; its bytes are priced in those
names, and the order of each price is the paper's.
"""

from dataclasses import replace
from functools import cache

import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.lab import table1_strategies as table1
from shardalg.lab.evaluation.published import columns, tables
from shardalg.lab.explore.settings import Settings
from shardalg.lab.explore.strategies import LAYER, TRAIN_STEP, plans_of
from shardalg.lab.explore.table1_section import HINTS
from shardalg.lab.table1 import COLUMNS, costs_of, layer_costs, paper_order, table
from shardalg.models.transformer import Config

DENSE = {c.id: c for c in columns() if c.kind == "dense2d"}
EXPECTED = {
    name: tuple(paper_order(axes) for axes in orders) for name, orders in table1.ORDERS.items()
}
FINALIZED = "finalized"


def read(text):
    """Parse an order of the table, such as "O(1/Y)+O(1/X)"."""
    parts = [part[len("O(1/") : -1].strip("()") for part in text.split("+") if part != "0"]
    return paper_order(tuple(parts))


@pytest.mark.parametrize("row", tables()["symbolic_table"]["rows"], ids=lambda row: row["name"])
def test_the_orders_to_reach_are_the_printed_ones(row):
    kinds = (row["memory"], row["communication"])
    printed = tuple(read(kind[of]) for kind in kinds for of in ("weight", "activation"))
    assert printed == EXPECTED[row["name"].removeprefix("2D ").lower()]


@cache
def layers(column=None):
    """Return the layer with its gradient per strategy, at a column's sizes or at the hints."""
    if column is None:
        return plans_of(HINTS, LAYER)
    sizes = DENSE[column].facts
    config = Config(**{letter: sizes[letter] for letter in "BSMHNDVL"}, scan=True)
    mesh = sa.Mesh(DENSE[column].mesh, symbolic=True)
    return plans_of(Settings(config, mesh), LAYER)


def orders(costs):
    return tuple(map(costs.order, COLUMNS))


@pytest.fixture(scope="module")
def parts():
    """Attention and feed-forward together, without norms and residuals."""
    return layer_costs()


@pytest.mark.parametrize("name", table1.STRATEGIES)
def test_the_orders_of_a_layer_are_the_papers(name, parts, show):
    show(f"{name}: {', '.join(map(str, orders(parts[name])))}")
    assert orders(parts[name]) == EXPECTED[name]


@pytest.mark.parametrize("name", table1.STRATEGIES)
def test_norms_and_residuals_change_no_order(name):
    assert orders(costs_of(layers()[name])) == EXPECTED[name]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("column", DENSE)
def test_the_orders_at_the_sizes_of_every_two_dimensional_column(column):
    found = {name: orders(costs_of(made)) for name, made in layers(column).items()}
    assert found == EXPECTED


def test_each_further_layer_of_a_train_step():
    """Embedding, loss and Adafactor do not change the orders of the layer's gradients."""
    found = {n: costs_of(made, per="L") for n, made in plans_of(HINTS, TRAIN_STEP).items()}
    assert {name: orders(costs) for name, costs in found.items()} == EXPECTED
    assert all(costs.scaling.update_communication for costs in found.values())


def test_the_table_says_which_row_agrees(parts):
    whole = table(parts, table1.ORDERS)
    assert len(whole) == 3 * len(COLUMNS)
    assert set(whole["equal"]) == {"yes"}
    swapped = {**table1.ORDERS, FINALIZED: table1.ORDERS["attempt 1"]}
    wrong = table(parts, swapped).where(equal="NO")
    assert wrong["quantity"] == COLUMNS[1:]


def changed(strategy, sites=(), weights=(), x=None):
    """Return a strategy of the layer's gradient with some annotations replaced."""
    given, before, dy = strategy.in_shardings
    given = {**given, **dict(weights)}
    out, _, dx = strategy.out_shardings
    data = (x, x, x, x) if x is not None else (before, dy, out, dx)
    return replace(
        strategy,
        in_shardings=(given, *data[:2]),
        out_shardings=(data[2], given, data[3]),
        sites={**dict(strategy.sites), **dict(sites)},
    )


@pytest.mark.parametrize(
    ("change", "quantities"),
    [
        # The hidden value whole along Y: gathered after the product, and kept so. A weight then
        # changes sides by an all-to-all along 2 of Y, a number of the hints: a condition says so.
        (
            {"sites": {"ffn_hidden": P("X", None, None)}},
            {"activation_memory", "weight_communication"},
        ),
        # A weight along Y alone is not gathered, and is held by all of X.
        ({"weights": {"w_in": P(None, "Y")}}, {"weight_memory"}),
        # BSM along X alone is attempt 2.
        (
            {"x": P("X", None, None), "sites": {"layer_output": P("X", None, None)}},
            {"activation_memory"},
        ),
    ],
    ids=["ffn_hidden", "w_in", "bsm"],
)
def test_changing_an_annotation_changes_the_table(change, quantities):
    made = layers()[FINALIZED]
    strategy = table1.finalized(HINTS.mesh, HINTS.config, LAYER)
    other = costs_of(made.replan(changed(strategy, **change)))
    assert orders(costs_of(made.replan(changed(strategy)))) == EXPECTED[FINALIZED]
    found = zip(COLUMNS, orders(other), EXPECTED[FINALIZED], strict=True)
    assert {name for name, ours, theirs in found if ours != theirs} == quantities
    assert ("Y = 16" in map(str, other.facts)) == ("weight_communication" in quantities)


def test_annotations_are_less_than_a_percent_of_the_tensors(show):
    tensors = table1.tensors_per_layer(Config())
    counted = {
        table1.count_annotations(HINTS.config, build(HINTS.mesh, HINTS.config))
        for build in table1.STRATEGIES.values()
    }
    show(f"{max(counted)} annotations per layer of {tensors} tensors: {max(counted) / tensors:.2%}")
    assert max(counted) <= 7
    assert max(counted) / tensors < 0.01
