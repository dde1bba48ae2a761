import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from shardalg.costs.collectives import step_wire_bytes
from shardalg.sizes.amounts import tile
from shardalg.sizes.formula import Formula, FormulaError, symbols
from shardalg.sizes.growth import order

B, S, M, H, N, D, X, Y = symbols("B S M H N D X Y")
NAMES = "BSMHNDXY"

EVEN = [(M, X), (M, Y), (H, Y), (N, Y), (H, X), (B, X)]


def gather(block, parts):
    return step_wire_bytes("all_gather", group_size=parts, local_bytes=block)


def scatter(block, parts):
    return step_wire_bytes("reduce_scatter", group_size=parts, local_bytes=block)


def reduce(block, parts):
    return step_wire_bytes("all_reduce", group_size=parts, local_bytes=block)


def weight_memory():
    return 4 * (4 * tile(M, X) * tile(N, Y) * D + 2 * tile(M, X) * tile(H, Y))


def hidden(batch, size):
    """Activations of one layer whose last dimension is H or N*D; scores too."""
    return 2 * batch * S * (2 * tile(H, size) + 4 * tile(N, size) * D + S * tile(N, size))


# Written down from the paper's text: strategy -> memory and communication of one Transformer layer,
# forward and backward, of weights and of activations.
def attempt1():
    outside = 2 * B * S * tile(M, X)
    return {
        "weight memory": weight_memory(),
        "activation memory": 4 * outside + hidden(B, Y),
        "weight communication": Formula({}),
        "activation communication": 4 * reduce(outside, Y)
        + 2 * reduce(2 * B * S * tile(H, Y), X)
        + 6 * reduce(2 * B * S * tile(N, Y) * D, X),
    }


def weights_moved():
    block = 2 * tile(M, X) * tile(H, Y) + 4 * tile(M, X) * tile(N, Y) * D
    return 2 * gather(2 * block, X) + scatter(2 * X * block, X)


def attempt2():
    outside = 2 * tile(B, X) * S * M
    return {
        "weight memory": weight_memory(),
        "activation memory": 4 * outside + hidden(tile(B, X), Y),
        "weight communication": weights_moved(),
        "activation communication": 4 * reduce(outside, Y),
    }


def finalized():
    outside = 2 * tile(B, X) * S * tile(M, Y)
    return {
        "weight memory": weight_memory(),
        "activation memory": 4 * outside + hidden(tile(B, X), Y) + 16 * tile(B, X) * S,
        "weight communication": weights_moved(),
        "activation communication": 6 * gather(outside, Y) + 4 * scatter(Y * outside, Y),
    }


# GSPMD, arXiv:2105.04663, table 1.
TABLE_1 = {
    attempt1: ("O(1/(X*Y))", "O(1/X + 1/Y)", "0", "O(1/X + 1/Y)"),
    attempt2: ("O(1/(X*Y))", "O(1/X)", "O(1/Y)", "O(1/X)"),
    finalized: ("O(1/(X*Y))", "O(1/(X*Y))", "O(1/Y)", "O(1/X)"),
}


@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("strategy", TABLE_1, ids=lambda s: s.__name__)
def test_the_orders_of_table_1(strategy, even):
    costs = strategy().values()
    if even:
        costs = [
            Formula.of(cost).subs({"B": X * B, "M": X * Y * M, "H": Y * H, "N": Y * N})
            for cost in costs
        ]
        back = {"B": B / X, "M": M / (X * Y), "H": H / Y, "N": N / Y}
        costs = [cost.subs(back) for cost in costs]
        assert not any(cost.atoms for cost in costs)
    shown = tuple(str(order(cost, growing="XY", shardings=EVEN)) for cost in costs)
    assert shown == TABLE_1[strategy]


def test_a_norm_is_dominated_only_where_its_sharding_is_known():
    """The statistics of a norm are 16*B*S/X bytes, below B*M*S/(X*Y) because M/Y >= 1."""
    memory = finalized()["activation memory"]
    assert str(order(memory, growing="XY", shardings=EVEN)) == "O(1/(X*Y))"
    even = 2 * B * S * M / (X * Y) + 16 * B * S / X
    assert str(order(even, growing="XY")) == "O(1/X)"
    assert str(order(even, growing="XY", shardings=[(H, Y)])) == "O(1/X)"


def test_weak_scaling_is_the_order_after_the_batch_grows_with_x():
    costs = {name: cost.subs({"B": B * X}) for name, cost in finalized().items()}
    shown = {name: str(order(cost, growing="XY", shardings=EVEN)) for name, cost in costs.items()}
    assert shown["activation memory"] == "O(1/Y)"
    assert shown["activation communication"] == "O(1)"
    assert shown["weight communication"] == "O(1/Y)"


@pytest.mark.parametrize(
    ("cost", "growing", "shardings", "expected"),
    [
        (Formula({}), "XY", [], "0"),
        (Formula.of(7), "XY", [], "O(1)"),
        (B * M * (X - 1) / X, "XY", [], "O(1)"),
        (B * M * (X - 1) / X, "XM", [], "O(M)"),
        (B * (X - 1), "XY", [], "O(X)"),
        (B / X + B / Y + B / (X * Y), "XY", [], "O(1/X + 1/Y)"),
        (B * M + B * H, "MH", [], "O(H + M)"),
        (B / X**2 + 1, "X", [(B, X**2)], "O(1/X**2)"),
        (B / X**2 + 1, "X", [(B, X)], "O(1)"),
        # what is known of a ceiling is that it lies between q and q + 1
        (tile(B, X), "X", [], "O(1)"),
        (tile(B, X), "X", [(B, X)], "O(1/X)"),
        (X * tile(B, X) - B, "X", [(B, X)], "O(X)"),
        (2 * B - X * tile(B, X), "X", [(B, X)], "O(1)"),
        (B + X - X * tile(B, X), "X", [(B, X)], "O(X)"),
        (tile(M - 1, X), "X", [(M - 1, X)], "O(1/X)"),
        (tile(tile(M, X) * B, Y), "XY", [(M, X), (B, Y)], "O(1/(X*Y))"),
        # products of two shardings: (B/X) * (M/Y) >= 1
        (B * M / (X * Y) + 1, "XY", [(B, X), (M, Y)], "O(1/(X*Y))"),
        (B * M / (X * Y) + 1, "XY", [(B, X)], "O(1)"),
    ],
)
def test_orders(cost, growing, shardings, expected):
    found = order(cost, growing=growing, shardings=shardings)
    assert str(found) == expected
    assert found == order(3 * cost, growing=growing, shardings=list(reversed(shardings)))


def test_the_leading_terms_are_kept_with_all_sizes():
    found = order(4 * B * M / X + 2 * B * H / Y + B, growing="XY", shardings=EVEN)
    assert found.leading == (2 * B * H / Y, 4 * B * M / X)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (M - X, r"M - X may be negative: nothing bounds its term -X on all sizes >= 1, B/X >= 1"),
        (M - H, "may be negative"),
        (M / tile(B, X), "divides by a ceiling"),
    ],
)
def test_a_cost_that_may_be_negative_has_no_order(cost, message):
    with pytest.raises(FormulaError, match=message):
        order(cost, growing="XY", shardings=[(B, X)])


monomials = st.dictionaries(st.sampled_from("BMXY"), st.integers(-2, 3), max_size=4)
SHARDINGS = [(B, X), (M, X * Y)]


def monomial(powers):
    values = dict(zip(NAMES, (B, S, M, H, N, D, X, Y), strict=True))
    return math.prod((values[name] ** e for name, e in powers.items()), start=Formula.of(1))


def bounded_by_linear_programming(big, small):
    """Return True if log(big/small) >= 0 wherever log(B/X), log(M/(X*Y)) and all logs are."""
    names = "BMXY"
    need = [big.get(n, 0) - small.get(n, 0) for n in names]
    ratios = [[1, 0, -1, 0], [0, 1, -1, -1]]
    found = linprog(need, A_ub=-np.array(ratios), b_ub=[0, 0], bounds=[(0, 1)] * 4)
    return found.fun > -1e-9


@given(monomials, monomials)
@settings(max_examples=150)
def test_a_term_is_dropped_exactly_where_another_bounds_it(left, right):
    a, b = monomial(left), monomial(right)
    found = order(a + b, growing="BMXY", shardings=SHARDINGS)
    drops_left = bounded_by_linear_programming(right, left)
    drops_right = bounded_by_linear_programming(left, right)
    kept = set(found.terms)
    if a == b:
        assert kept == {a}
    elif drops_left != drops_right:
        assert kept == {a if drops_right else b}
    elif not drops_left:
        # neither bounds the other: both lead, unless projecting shows that sizes >= 1 suffice
        assert kept == {a, b}


@given(st.lists(st.tuples(monomials, st.integers(1, 9)), min_size=1, max_size=5), st.randoms())
@settings(max_examples=100)
def test_a_formula_is_bounded_by_its_leading_terms(terms, rng):
    formula = sum((c * monomial(powers) for powers, c in terms), Formula({}))
    formula += tile(B, X) * tile(M - 1, Y)
    leading = order(formula, growing="XY", shardings=SHARDINGS).leading
    constant = 2 * len(formula.terms) * max(map(abs, formula.terms.values())) + 4
    for _ in range(5):
        x, y = (2 ** rng.randint(0, 9) for _ in "XY")
        point = {"X": x, "Y": y, "B": x * rng.randint(1, 50), "M": x * y * rng.randint(1, 50)}
        assert formula.at(point) <= constant * sum(term.at(point) for term in leading)


def test_many_terms_take_milliseconds():
    """A step has dozens of terms: each pair is decided at most once."""
    rng = random.Random(3)
    names = (B, S, M, H, N, D)
    cost = sum(
        (
            rng.randint(1, 9) * math.prod(rng.sample(names, 3)) / rng.choice([1, X, Y, X * Y])
            for _ in range(60)
        ),
        Formula({}),
    )
    found = order(cost, growing="XY", shardings=EVEN)
    assert str(found) == "O(1)"
