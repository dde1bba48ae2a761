"""Formulas of every dimension, against the shapes of the same function traced at other sizes."""

import jax
import jax.numpy as jnp
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from shardalg.algebra.dims import SymbolError, dims, evaluate, second_hints
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.tracing.trace import trace
from shardalg.sizes.symbolic.lift import compare, lift
from tests.ops.sized import HINTS, SEVERAL, Function, X, mixture, parsed


@pytest.mark.sampled(19)
@pytest.mark.parametrize("case", SEVERAL.values(), ids=SEVERAL)
def test_formulas_are_the_shapes_of_a_retrace(case):
    graph, symbols = case.graph({}), case.symbols()
    second = case.retraced(second_hints(symbols.values(), multiples=case.divides))
    lifted = lift(graph, case.declared(), second)
    expected = [parsed(text, symbols) for text in case.results]
    found = [lifted.shapes[v] for v in graph.results]
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        assert all(sympy.expand(a - b) == 0 for a, b in zip(ours, theirs, strict=True)), found
    assert {(c.size, c.varies) for c in lifted.constants} == set(case.constants)
    for factor in (2, 6):  # neither the hints nor the sizes that the formulas were read off
        more = 0 if case.divides else factor - 1
        values = {n: s.hint * (factor + k) + more for k, (n, s) in enumerate(symbols.items())}
        assert compare(lifted, case.retraced(values)) is None


STEPS = {
    "flatten": lambda x: x.reshape(-1, *x.shape[2:]) if x.ndim > 1 else x,
    "split": lambda x: x.reshape(*x.shape[:-1], 2, -1),
    "cut": lambda x: x[1:],
    "drop": lambda x: x[..., :-1],
    "pad": lambda x: jnp.pad(x, [(1, 2)] + [(0, 0)] * (x.ndim - 1)),
    "twice": lambda x: jnp.concatenate([x, x], -1),
    "turn": lambda x: x.T,
    "every other": lambda x: x[::2],
    "outer": lambda x: (
        x[..., None] * x[:1, ..., :, None].mean(-2, keepdims=True) if x.ndim > 1 else x
    ),
    "sum": lambda x: x.sum(0) if x.ndim > 1 else x,
}


@given(steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6))
@settings(max_examples=25)
def test_chains_of_layout_operators(steps):
    def fn(x):
        for name in steps:
            x = STEPS[name](x)
        return x

    case = Function(fn, ("8*B,8*S,16*D",), ())
    # Far from the hints: sizes that six steps halve are others, too.
    values = ({"B": 13, "S": 83, "D": 29}, {"B": 19, "S": 131, "D": 43})
    try:
        graph = case.graph({})
        second, third = (case.retraced(v) for v in values)
    except (TypeError, ZeroDivisionError):  # an odd size has no halves, JAX divides by an empty one
        return
    lifted = lift(graph, case.declared(), second)
    assert compare(lifted, third) is None


@pytest.mark.parametrize(
    "name", ["flatten", "rope of 2D", "flip", "next token", "concatenate", "pooling"]
)
def test_one_trace_is_enough_for_layout(name):
    case = SEVERAL[name]
    lifted = lift(case.graph({}), case.declared())
    assert compare(lifted, case.retraced(second_hints(case.symbols().values()))) is None


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        (lambda x: x[::8] * 2, "floor((B + 7)/8)"),
        (lambda x: x[::4][1:] * 2, "floor((B - 1)/4)"),
        (lambda x: x[: x.shape[0] - 7] * 2, "B - 7"),
    ],
)
def test_a_size_that_is_1_at_the_hints_alone_has_a_formula(fn, formula):
    case, hints = Function(fn, ("B",), ()), HINTS | {"B": 8}
    second = case.retraced({"B": 17}, hints)
    lifted = lift(case.graph({}, hints), case.declared(hints), second)
    ((size,),) = (lifted.shapes[v] for v in lifted.graph.results)
    (wanted,) = parsed(formula, case.symbols(hints) | {"floor": sympy.floor})
    for b in range(8, 40):
        assert evaluate(size, {"B": b}) == evaluate(wanted, {"B": b})
    assert not lifted.constants
    assert compare(lifted, case.retraced({"B": 34}, hints)) is None


def test_loops_count_their_trips():
    def fn(ws, x):
        def outer(x, w):
            inner, _ = lax.scan(lambda x, row: (x + row, None), x, w)
            return lax.fori_loop(0, 5, lambda i, x: x * 2, inner), None

        return lax.scan(outer, x, ws)[0]

    case = Function(fn, ("K,C,M", "M"), ("M",))
    lifted = lift(case.graph({}), case.declared())
    symbols = case.symbols()
    expected = {1, symbols["K"], symbols["K"] * symbols["C"], 5 * symbols["K"]}
    assert set(lifted.trip_counts) == expected
    assert [(c.size, c.source) for c in lifted.constants] == [
        (5, f"test_lift.py:{fn.__code__.co_firstlineno + 3}")
    ]


def swapped(x):
    return x.reshape(x.shape[1], 2, x.shape[0])


def decided(x):
    return jnp.pad(x, ((0, 0), (0, 3))) if x.shape[1] > 50 else x * 2


def when_large(small, large):
    """Return a function that Python chooses by the size of x."""
    return Function(lambda x: (large if x.shape[1] > 50 else small)(x), X, ())


WRONG = {
    "other operands": (
        when_large(lambda x: x - jnp.tanh(x), lambda x: jnp.tanh(x) - x),
        {},
        "sub.*hints, sub.*other",
    ),
    "other type": (
        when_large(lambda x: x.astype("float16"), lambda x: x.astype("bfloat16")),
        {},
        "convert_element_type.* at the hints",
    ),
    "more nodes": (
        when_large(jnp.tanh, lambda x: jnp.exp(jnp.tanh(x))),
        {},
        "exp.*only at other sizes",
    ),
    "fewer nodes": (
        when_large(lambda x: jnp.exp(jnp.tanh(x)), jnp.tanh),
        {},
        "exp.*only at the hints",
    ),
    "meet": (
        Function(lambda x, y: x + y, ("B,S", "C,S"), ()),
        {"C": 6},
        "add:1.*: B and C, both 6",
    ),
    "number": (Function(lambda x, w: x @ w, ("B,M", "64,H"), ()), {}, "dot_general.*M and 64"),
    "product": (
        Function(
            lambda x, y: x.reshape(-1) + y,
            (
                "B,C",
                "M",
            ),
            (),
        ),
        {"M": 24},
        r"two sizes meet.*(M and B\*C|B\*C and M)",
    ),
    "hint of 1": (Function(jnp.tanh, ("B",), ()), {"B": 1}, "hint of B is 1"),
    "if": (Function(decided, X, ()), {}, r"mul.*test_lift.py:\d+ at the hints, pad.*test_lift.py"),
    "slice of all": (Function(lambda x: x[:, :40] * 2, X, ()), {}, "slice.* at other sizes"),
    "swap": (Function(swapped, ("B,S,2",), ()), {"S": 6}, r"test_lift.py:\d+.*\[B, 2, S\] by the"),
}


@pytest.mark.parametrize(("case", "hints", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_named_says_where(case, hints, message):
    hints = HINTS | hints
    declared = case.declared(hints)
    values = second_hints(case.symbols(hints).values())
    try:
        second = case.retraced(values)
    except TypeError:  # the function itself cannot be traced where the two sizes differ
        second = None
    with pytest.raises(SymbolError, match=message):
        lift(case.graph({}, hints), declared, second)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([], "of 0 arguments for 1: x"),
        ([(3, 4)], r"x \[3, 4\] = \[3, 4\], traced as \[6, 40\]"),
        ([(6,)], r"x \[6\]"),
        ([(dims("B", hint=6)[0], sympy.Symbol("S"))], "S has no hint"),
    ],
)
def test_declared_dimensions_must_fit(declared, message):
    graph = normalise(trace(lambda x: x * 2, jax.ShapeDtypeStruct((6, 40), "float32")))
    with pytest.raises(SymbolError, match=message):
        lift(graph, declared)


def test_a_size_computed_in_python_is_listed_with_its_line():
    case = Function(mixture, ("B,S,M", "M,E", "E,M,H"), ())
    second = case.retraced(second_hints(case.symbols().values()))
    lifted = lift(case.graph({}), case.declared(), second)
    (constant,) = lifted.constants
    assert (constant.size, constant.varies) == (10, True)
    line = mixture.__code__.co_firstlineno + 6
    assert str(constant).startswith(f"size 10 at sized.py:{line} is a constant in the formulas")
    found = compare(lifted, second)
    assert (found.kind, found.source) == ("constant", f"sized.py:{line}")


def test_without_a_second_trace_a_wrong_reading_is_found_by_comparing():
    case = Function(lambda x: x[:, :10], X, ())
    lifted = lift(case.graph({}), case.declared())
    assert str(lifted.shapes[lifted.graph.results[0]]) == "(B, S/4)"  # the likelier reading
    found = compare(lifted, case.retraced({"B": 7, "S": 44}))
    assert (found.kind, found.node) == ("size", 0)
    assert "[B, S/4] by the formulas, hence [7, 11]" in str(found)
