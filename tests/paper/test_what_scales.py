"""GSPMD (arXiv:2105.04663), section 5.1: growth of costs, derived from named sizes.

Every sentence of the paper that is a proportion is a property of formulas: they are those of the
plans of a layer, or of a whole train step, under the strategies of Table 1.
"""

from functools import cache

import pytest
import sympy

from shardalg.costs.hardware import load
from shardalg.lab import table1
from shardalg.lab.explore.strategies import TRAIN_STEP
from shardalg.lab.table1 import MESH, costs_of, layer_costs, plan_part
from shardalg.sizes.formula import Formula
from shardalg.sizes.growth import order

LETTERS = "BSMHNDVLXY"
SIZES = {name: sympy.Symbol(name, positive=True, integer=True) for name in LETTERS}
B, S, M, H, N, D, V, L, X, Y = SIZES.values()
FINALIZED, ATTEMPT_2 = "finalized", "attempt 2"
PARTS = ("ffn", "attention")


@cache
def layer():
    """Costs of a layer with its gradient, per strategy."""
    return layer_costs()


@cache
def forward(strategy, part):
    """(kind, axes) to wire bytes of the forward pass, as formulas."""
    table = plan_part(table1.SIZES, MESH, strategy, part)._collectives_table
    found = {}
    for row in table:
        key = row["kind"], row["mesh_axes"]
        found[key] = found.get(key, 0) + row["executions"] * row["wire_bytes"]
    return found


@cache
def step():
    """Return the whole train step, in named sizes."""
    return plan_part(table1.SIZES, MESH, FINALIZED, TRAIN_STEP)


def in_symbols(formula):
    """Return a formula in the symbols of this file."""
    made = Formula.of(formula).sympy() if not isinstance(formula, sympy.Basic) else formula
    return made.subs({old: SIZES[old.name] for old in made.free_symbols})


def grown(formula, **times):
    """Return a formula at multiplied sizes, divided by the formula itself."""
    given = in_symbols(formula)
    larger = {SIZES[name]: count * SIZES[name] for name, count in times.items()}
    return sympy.simplify(given.subs(larger, simultaneous=True) / given)


def at_hints(expression):
    """Return a number, at the sizes of the paper's first column."""
    hints = layer()[FINALIZED].hints
    return float(expression.subs({SIZES[name]: size for name, size in hints.items()}))


def test_flops_of_matrix_products_are_those_of_the_six_n_rule():
    """6 B S (4 D L M N + 2 D L N S + 2 H L M + M V): forward once, backward twice, no remat."""
    cost = step().cost("tpu_v3")
    products = sum(in_symbols(item.flops) for item in cost.items if item.kind == "contraction")
    expected = 6 * B * S * (4 * D * L * M * N + 2 * D * L * N * S + 2 * H * L * M + M * V)
    assert sympy.expand(products * X * Y - expected) == 0


def test_a_layer_four_times_as_large_doubles_its_activations():
    """The paper: doubling M, H and N makes a layer 4x, its activation memory only 2x."""
    scaling = layer()[FINALIZED].scaling
    assert grown(scaling.weight_memory, M=2, H=2, N=2) == 4
    assert grown(scaling.activation_memory, M=2, H=2, N=2) == 2
    # Of the layers both are a multiple, which is why deeper is harder than wider.
    deeper = costs_of(step(), per="L").scaling
    assert deeper.weight_memory == scaling.weight_memory
    assert (
        at_hints(in_symbols(deeper.activation_memory) / in_symbols(scaling.activation_memory)) >= 1
    )


@pytest.mark.parametrize(
    ("name", "along"), [("attempt 1", ""), (ATTEMPT_2, "X"), (FINALIZED, "XY")]
)
def test_twice_the_devices_hold_twice_the_batch(name, along):
    """Along X or along Y: under the finalized strategy alone what a device holds stays."""
    memory = layer()[name].scaling.activation_memory
    assert [axis for axis in "XY" if grown(memory, B=2, **{axis: 2}) == 1] == list(along)
    assert grown(layer()[name].scaling.weight_memory, X=2) == sympy.Rational(1, 2)


@pytest.mark.parametrize("part", PARTS)
def test_a_reduce_scatter_is_half_the_all_reduce_that_it_replaces(part):
    """Together with the all-gather it equals the all-reduce: "comparable performance"."""
    before, after = (forward(name, part) for name in (ATTEMPT_2, FINALIZED))
    reduced = in_symbols(before["all_reduce", "Y"])
    scattered, gathered = (
        in_symbols(after[kind, "Y"]) for kind in ("reduce_scatter", "all_gather")
    )
    assert sympy.simplify(reduced - 2 * scattered) == 0
    assert sympy.simplify(reduced - scattered - gathered) == 0
    assert ("all_reduce", "Y") not in after


def test_compute_is_of_order_mh_plus_mnd_and_communication_of_order_m():
    """Per token of a layer; therefore the narrower model has more communication."""
    sizes = ("M", "H", "N", "D")
    flops = sum(
        Formula.of(item.flops)
        for part in PARTS
        for item in plan_part(table1.SIZES, MESH, FINALIZED, part).cost(load("tpu_v3")).items
        if item.kind == "contraction"
    )
    sent = layer()[FINALIZED].scaling.activation_communication
    assert {str(term) for term in order(flops, growing=sizes).terms} == {"D*M*N", "H*M"}
    assert {str(term) for term in order(sent, growing=sizes).terms} == {"M"}
    share = in_symbols(sent) / in_symbols(flops)
    narrow = share.subs({M: M / 2, H: H / 4, N: N / 2, D: D / 2})
    assert at_hints(narrow / share) > 2


def test_with_as_many_devices_a_smaller_y_sends_less():
    """Activations are sent in proportion to (Y - 1)/(X Y): X Y given, the less the smaller Y."""
    scaling = layer()[FINALIZED].scaling
    sent = in_symbols(scaling.activation_communication)
    assert sympy.simplify(sent / ((Y - 1) / (X * Y))).free_symbols.isdisjoint({X, Y})
    moved = grown(scaling.activation_communication, X=2, Y=sympy.Rational(1, 2))
    assert sympy.simplify(moved - (Y / 2 - 1) / (Y - 1)) == 0
    # Weights are sent the more: (X - 1)/(X Y) of them.
    assert at_hints(grown(scaling.weight_communication, X=2, Y=sympy.Rational(1, 2))) > 2
