import math
from fractions import Fraction

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from shardalg.costs.collectives import RING_BYTES, step_wire_bytes
from shardalg.sizes.amounts import given as given_that
from shardalg.sizes.amounts import is_whole, tile
from shardalg.sizes.formula import Formula, FormulaError, ceiling, symbol, symbols
from shardalg.sizes.read_sympy import from_sympy

NAMES = "B M V X Y"
B, M, V, X, Y = symbols(NAMES)
SYMPY = dict(zip(NAMES.split(), sympy.symbols(NAMES, positive=True, integer=True), strict=True))

points = st.fixed_dictionaries({name: st.integers(1, 40) for name in NAMES.split()})
coefficients = st.one_of(st.integers(-6, 6), st.fractions(-3, 3, max_denominator=6))
monomials = st.dictionaries(st.sampled_from(NAMES.split()), st.integers(-2, 2), max_size=3)


def product(powers, values):
    return math.prod((values[name] ** e for name, e in powers.items()), start=Fraction(1))


def formula_of(terms):
    named = {name: symbol(name) for name in NAMES.split()}
    parts = (c * math.prod((named[n] ** e for n, e in m.items()), start=1) for m, c in terms)
    return sum(parts, Formula({}))


sums = st.lists(st.tuples(monomials, coefficients), max_size=5)

# An expression is a leaf or (operator, left, right); read on formulas, numbers and sympy alike.
leaves = st.one_of(st.sampled_from(NAMES.split()), st.integers(-5, 9))
trees = st.recursive(
    leaves, lambda t: st.tuples(st.sampled_from(["+", "-", "*", "/", "tile"]), t, t), max_leaves=7
)
AXES = ("X", "Y")


def read(tree, values, tile_of, divide):
    """Return the value of an expression tree with an axis as divisor, blocks of |size| + 1."""
    if not isinstance(tree, tuple):
        return values.get(tree, tree)
    operator, left, right = tree
    a = read(left, values, tile_of, divide)
    axis = values[AXES[len(str(right)) % 2]]
    if operator == "/":
        return divide(a, 2 * axis)
    if operator == "tile":
        return tile_of(a, axis)
    b = read(right, values, tile_of, divide)
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


FORMULAS = {name: symbol(name) for name in NAMES.split()}


def as_formula(tree):
    return Formula.of(read(tree, FORMULAS, tile, lambda a, b: a / b))


def as_number(tree, point):
    return read(tree, point, lambda a, n: math.ceil(Fraction(a) / n), lambda a, b: Fraction(a) / b)


@given(trees, points)
@settings(max_examples=300)
def test_a_formula_at_numbers_is_the_computation_on_numbers(tree, point):
    expected = as_number(tree, point)
    found = as_formula(tree).at(point)
    assert found == expected
    assert isinstance(found, int if expected.denominator == 1 else Fraction)


@given(trees, points)
@settings(max_examples=100)
def test_a_formula_in_sympy_is_the_computation_in_sympy(tree, point):
    formula = as_formula(tree)
    expected = Fraction(str(formula.at(point)))
    values = {SYMPY[name]: value for name, value in point.items()}
    for factored in (True, False):
        shown = formula.sympy(factored=factored)
        assert shown.free_symbols <= set(SYMPY.values())
        assert Fraction(str(shown.subs(values))) == expected


@given(trees)
@settings(max_examples=100)
def test_sympy_and_back(tree):
    formula = as_formula(tree)
    assert from_sympy(formula.sympy(factored=False)) == known_to_sympy(formula)


def known_to_sympy(formula):
    """Ceilings that sympy has numbers for are numbers: `ceil(-1/(2*Y)) = 0` for all sizes Y."""

    def new(factor):
        if factor in FORMULAS:
            return FORMULAS[factor]
        found = Formula.of(ceiling(known_to_sympy(factor.ratio)))
        shown = found.sympy(factored=False)
        return Formula.of(int(shown)) if shown.is_Integer else found

    return formula.replace(new)


def test_a_ceiling_that_sympy_knows_comes_back_as_its_number():
    formula = M * tile(-1 / (2 * Y), X) + tile(M, X)
    assert from_sympy(formula.sympy(factored=False)) == tile(M, X) == known_to_sympy(formula)


def test_floors_and_ceilings_of_sympy():
    m, x = SYMPY["M"], SYMPY["X"]
    assert from_sympy(sympy.floor(m / x)) == M // X
    assert from_sympy(2 * sympy.ceiling(m / x) - 1) == 2 * tile(M, X) - 1


@given(sums, sums)
@settings(max_examples=100)
def test_equality_and_hash_need_no_expansion(left, right):
    a, b = formula_of(left), formula_of(right)
    assert (a + b) * (a - b) == a * a - b * b
    assert hash((a + b) ** 2) == hash(a * a + 2 * a * b + b**2)
    same = sympy.expand(a.sympy(factored=False) - b.sympy(factored=False)) == 0
    assert (a == b) == same


@given(st.lists(trees, min_size=1, max_size=3), st.lists(points, min_size=1, max_size=3))
@settings(max_examples=100)
def test_a_sweep_is_the_formula_at_every_point(trees, points):
    formula = sum(map(as_formula, trees), Formula({}))
    columns = {name: np.array([p[name] for p in points]) for name in NAMES.split()}
    swept = np.broadcast_to(formula.lambdify()(**columns), len(points))
    scale = [1 + sum(abs(part.at(p)) for part in parts_of(formula)) for p in points]
    for value, point, size in zip(swept, points, scale, strict=True):
        assert abs(value - float(formula.at(point))) <= 1e-12 * float(size)


def parts_of(formula):
    return [Formula({monomial: c}) for monomial, c in formula.terms.items()]


def test_sweeps_broadcast_and_go_block_by_block():
    sweep = (tile(M, X) * B / Y).lambdify()
    x, y = np.arange(1, 301)[:, None], np.arange(1, 51)
    expected = np.ceil(1000 / x) * 7 / y
    np.testing.assert_allclose(sweep(M=1000, X=x, Y=y, B=7, unused=3), expected, rtol=1e-15)
    np.testing.assert_allclose(sweep(M=1000, X=x, Y=y[None, :], B=7), expected, rtol=1e-15)
    long = np.arange(1, 20_001)
    np.testing.assert_array_equal(sweep(M=long, X=7, Y=1, B=1), -(-long // 7))


def test_sweeps_of_ceilings_are_exact_where_a_quotient_comes_out():
    """49 * (1/49) is below 1, and k * (1/n) may be above k/n: only one division is right."""
    n, k = np.meshgrid(np.arange(1, 200), np.arange(1, 200))
    np.testing.assert_array_equal(ceiling(M / X).lambdify()(M=k * n, X=n), k)
    np.testing.assert_array_equal(ceiling((M - 1) / (2 * X)).lambdify()(M=2 * k * n + 1, X=n), k)


@given(points, st.sampled_from(["B", "M", "X"]), st.integers(1, 9))
@settings(max_examples=50)
def test_replacing_a_size_is_evaluating_there(point, name, value):
    formula = tile(B * M, 3 * X) * M / Y + tile(V - 1, X * Y) - 4
    there = {**point, name: value}
    assert formula.subs({name: value}).at(point) == formula.at(there)
    doubled = {**point, name: 2 * point[name]}
    assert formula.subs({name: 2 * symbol(name)}).at(point) == formula.at(doubled)


# block, parts, the block size as it is written
TILES = [
    (M, 1, "M"),
    (M, X, "ceil(M/X)"),
    (4 * M, 4 * X, "ceil(M/X)"),
    (4 * M, 2, "2*M"),
    (M, 4, "ceil(M/4)"),
    (M * X * Y, X, "M*Y"),
    (B * X + M, X, "B + ceil(M/X)"),
    (V - 1, X * Y, "ceil((V - 1)/(X*Y))"),
    (M + X - 1, X, "ceil((M - 1)/X) + 1"),
    (1, X, "1"),
    (1, X * Y, "1"),
    (2, X, "ceil(2/X)"),
    (X, 2 * X, "1"),
    (7 * X, 2 * X, "4"),
    (tile(M, X), Y, "ceil(M/(X*Y))"),
    (tile(M, X), 3, "ceil(M/(3*X))"),
    (2 * tile(M, X), Y, "ceil(2*ceil(M/X)/Y)"),
    (tile(M, X) * Y, Y, "ceil(M/X)"),
    (10, 4, "3"),
    (0 * M, X, "0"),
]


@pytest.mark.parametrize(("size", "parts", "written"), TILES)
def test_block_sizes_are_simplified_and_stay_the_ceiling(size, parts, written):
    found = tile(size, parts)
    assert str(found) == written
    rng = np.random.default_rng(5)
    for numbers in rng.integers(1, 30, (60, 5)):
        point = dict(zip(NAMES.split(), map(int, numbers), strict=True))
        whole, n = Formula.of(size).at(point), Formula.of(parts).at(point)
        assert Formula.of(found).at(point) == -(-whole // n)


# size, parts, what is known to divide what, the block size as it is written
KNOWN = [
    (M, X, [(M, X)], "M/X"),
    (4 * M, X, [(M, X)], "4*M/X"),
    (M, X, [(M, X * Y)], "M/X"),
    (M, X * Y, [(M, X)], "ceil(M/(X*Y))"),
    (M, X, [(M, Y)], "ceil(M/X)"),
    (M, X, [(B, X)], "ceil(M/X)"),
    (M, X, [(4 * M, X)], "ceil(M/X)"),
    (B * M, X * Y, [(B, X), (M, Y)], "B*M/(X*Y)"),
    (B * M, X * Y, [(B, X)], "ceil(B*M/(X*Y))"),
    (M, 4, [(M, 8)], "M/4"),
    (M, 8, [(M, 4)], "ceil(M/8)"),
    (V - 1, X, [(V - 1, X)], "V/X - 1/X"),
    (3 * V - 3, X, [(V - 1, X)], "3*V/X - 3/X"),
    (V, X, [(V - 1, X)], "ceil(V/X)"),
    (V + 1, X, [(V - 1, X)], "ceil((V + 1)/X)"),
    (M + V, X, [(M, X)], "ceil(V/X) + M/X"),
    (M + V, X, [(M, X), (V, X)], "M/X + V/X"),
    (tile(M, X), Y, [(M, X)], "ceil(M/(X*Y))"),
    (2 * tile(M, X), Y, [(M, X * Y)], "2*M/(X*Y)"),
    (M, X, [], "ceil(M/X)"),
]


@pytest.mark.parametrize(("size", "parts", "divides", "written"), KNOWN)
def test_what_is_known_to_divide_removes_a_ceiling_and_nothing_else(size, parts, divides, written):
    found = tile(size, parts, divides=divides)
    assert str(found) == written
    assert given_that(Y * tile(size, parts) - 1, divides) == Y * found - 1
    tried = 0
    rng = np.random.default_rng(7)
    for numbers in rng.integers(1, 9, (200, 5)) * rng.choice([1, 4, 12], (200, 5)):
        point = dict(zip(NAMES.split(), map(int, numbers), strict=True))
        if all(Formula.of(d).at(point) % Formula.of(n).at(point) == 0 for d, n in divides):
            tried += 1
            exact = Formula.of(tile(size, parts)).at(point)
            assert found.at(point) == exact
    assert tried


facts = st.lists(
    st.tuples(
        st.sampled_from([B, M, 2 * M, B * M, V - 1]), st.sampled_from([X, Y, X * Y, 2 * X, 4, 6])
    ),
    max_size=3,
)


@given(facts, monomials, st.integers(1, 6), points)
@settings(max_examples=300)
def test_what_is_called_whole_is_whole(facts, powers, multiple, point):
    ratio = formula_of([(powers, multiple)])
    grown = {**point, "M": point["M"] * 24 * point["X"] * point["Y"], "B": point["B"] * point["X"]}
    ratios = tuple(size / n for size, n in facts)
    if is_whole(ratio, ratios) and all(Fraction(r.at(grown)).denominator == 1 for r in ratios):
        assert Fraction(ratio.at(grown)).denominator == 1


@pytest.mark.parametrize("kind", sorted(RING_BYTES))
@pytest.mark.parametrize("group", [X, X * Y, 4])
@pytest.mark.parametrize("local", [2 * tile(B, X) * tile(M, Y), 4 * B * M / (X * Y), 1024, V - 1])
def test_collectives_are_priced_by_the_function_that_prices_numbers(kind, group, local):
    price = Formula.of(step_wire_bytes(kind, group_size=group, local_bytes=local))
    for point in (
        {"B": 9, "M": 10, "V": 7, "X": 2, "Y": 3},
        {"B": 1, "M": 64, "V": 9, "X": 8, "Y": 5},
    ):
        n, held = Formula.of(group).at(point), Formula.of(local).at(point)
        assert price.at(point) == step_wire_bytes(kind, group_size=n, local_bytes=Fraction(held))


def test_integer_code_takes_formulas_unchanged():
    """Local sizes are written `-(-D // n)` where sizes are numbers; floors come for free."""
    assert -(-M // X) == tile(M, X)
    assert -(-M // 4) == tile(M, 4)
    assert (M // X).at({"M": 11, "X": 4}) == 2
    assert (100 // X).at({"X": 7}) == 14
    assert sum([M, 2 * M, 3]) == 3 * M + 3
    assert math.prod([M, X, 2]) == 2 * M * X
    assert bool(M) is True
    assert bool(M - M) is False


def test_constants_are_numbers():
    three = 3 * M / M
    assert three == 3 == Fraction(3)
    assert hash(three) == hash(3)
    assert three.number == 3
    assert M.number is None
    assert len({three, 3, M - M, 0}) == 2
    assert (M == "M") is False


@pytest.mark.parametrize(
    ("formula", "written"),
    [
        (2 * B * M * (X - 1) / X, "2*B*M*(X - 1)/X"),
        (2 * B * tile(M, X) * (Y - 1), "2*B*(Y - 1)*ceiling(M/X)"),
        (tile(V - 1, X * Y), "ceiling((V - 1)/(X*Y))"),
        (tile(M, X) * tile(B, Y), "ceiling(B/Y)*ceiling(M/X)"),
        (B * (V - 1) * (X - 1) / X, "B*(V - 1)*(X - 1)/X"),
        (
            B * M * (Y - 1) / (X * Y) + 2 * M * V * (X - 1) / X,
            "B*M*(Y - 1)/(X*Y) + 2*M*V*(X - 1)/X",
        ),
    ],
)
def test_sympy_shows_products(formula, written):
    assert str(formula.sympy()) == written


def test_sympy_takes_the_symbols_of_the_user():
    own = sympy.Symbol("B")
    assert (B * tile(B, X)).sympy(symbols={"B": own}).free_symbols == {own, SYMPY["X"]}


@pytest.mark.parametrize(
    ("formula", "written"),
    [
        (Formula({}), "0"),
        (-B, "-B"),
        (Fraction(-3, 2) * B / X + 1, "-3*B/(2*X) + 1"),
        (1 / (X * Y**2), "1/(X*Y**2)"),
        (B / X**2, "B/X**2"),
        (B * M - M / X + V, "B*M + V - M/X"),
    ],
)
def test_text(formula, written):
    assert str(formula) == written
    assert from_sympy(sympy.sympify(written, locals=SYMPY)) == formula


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: B / (X + 1), r"1/\(X \+ 1\) is no formula: only products divide"),
        (lambda: B ** Fraction(1, 2), "the exponent of a formula is an integer"),
        (lambda: (B * M).at({"B": 2, "X": 8}), r"B\*M needs M; given are \['B', 'X'\]"),
        (lambda: tile(B, X).lambdify()(B=3), r"ceil\(B/X\) needs X"),
        (lambda: (B / X).at({"B": 1, "X": 0}), "B/X divides by X, which is 0"),
        (lambda: symbol("2B"), "'2B' is no name of a size"),
        (lambda: Formula.of(0.5), "0.5 is no exact number"),
        (lambda: from_sympy(sympy.sqrt(SYMPY["B"])), "the exponent of a formula is an integer"),
        (lambda: from_sympy(sympy.Max(SYMPY["B"], SYMPY["M"])), r"a formula has no Max"),
    ],
)
def test_errors_say_what_is_wrong(wrong, message):
    with pytest.raises(FormulaError, match=message):
        wrong()


@pytest.mark.parametrize("other", [0.5, 1j, None, SYMPY["M"]])
def test_only_exact_numbers_mix_with_formulas(other):
    """Not even sympy's symbols: one with a hint is another symbol than one without."""
    with pytest.raises(TypeError, match="unsupported operand"):
        M * other
