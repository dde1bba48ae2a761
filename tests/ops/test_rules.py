"""The printed rows, their consequences, and rows that contradict themselves."""

import jax
import jax.numpy as jnp
import pytest

from shardalg.algebra.affine import Index
from shardalg.costs.flops import flops
from shardalg.errors import RuleError
from shardalg.graph.ir import Signature, ValueType
from shardalg.graph.ops import rule as rows
from shardalg.graph.ops.loops import LOOP_CLASSES, dim_loops, loop_class
from shardalg.graph.ops.rows import BUILDERS, rules
from shardalg.graph.ops.rule import Access, Guard, Rule
from shardalg.graph.tracing.trace import trace
from tests.ops import golden


def test_every_row_prints_its_golden_line():
    assert list(golden.lines()) == golden.PATH.read_text().splitlines(), (
        "rewrite the file with `python -m tests.ops.golden` if the change is meant"
    )


def test_the_golden_lines_show_every_family_and_every_class():
    families = {BUILDERS[case[0]].__module__ for case in golden.CASES}
    assert families == {builder.__module__ for builder in BUILDERS.values()}
    found = [rule for case in golden.CASES for rule in rules(golden.signature(case))]
    classes = {loop_class(rule, name) for rule in found for name, _ in rule.loops}
    assert classes == set(LOOP_CLASSES)


I, J = Index.of("i"), Index.of("j")
GOOD = {
    "primitive": "test",
    "loops": (("i", 4), ("j", 2)),
    "terms": ((Access(0, (I, J)),),),
    "results": ((I,),),
}
BAD = [
    ({"loops": (("i", 4),)}, r"indices use \['j'\], which are neither loops nor symbols"),
    ({"loops": (("i", 4), ("i", 2), ("j", 2))}, r"loops \['i', 'i', 'j'\] are not distinct"),
    ({"loops": (("i", -1), ("j", 2))}, "must not be negative"),
    ({"combine": "mean"}, "combine 'mean' is none of sum"),
    ({"whole": frozenset("k")}, r"\['k'\] are marked but are no loops"),
    ({"prefix": ("k", False)}, r"\['k'\] are marked but are no loops"),
    ({"linear": frozenset({1})}, r"linear \[1\] must hold addends \[\] and scaled \[\] and"),
    ({"addends": frozenset({0})}, r"linear \[\] must hold addends \[0\]"),
    ({"guards": (Guard(I, Index.of("$t")),)}, r"indices use \['\$t'\]"),
    ({"operand_shapes": ((4,),)}, r"operand 0 of shape \(4,\) has indices \[i, j\]"),
    ({"result_shapes": ((4, 1),)}, r"a result of shape \(4, 1\) has indices \[i\]"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_row_that_contradicts_itself_is_refused(change, message):
    assert str(Rule(**GOOD)) == "test: [i, j] -> [i] sum [j]"
    with pytest.raises(RuleError, match=message):
        Rule(**(GOOD | change))


def test_equal_rows_are_one_key():
    first, second = (rules(golden.signature(golden.CASES[k]))[0] for k in (0, 0))
    assert first == second
    assert len({first, second, Rule(**GOOD), Rule(**GOOD)}) == 2


def test_a_primitive_without_a_row_has_none():
    x = ValueType((4,), "float32")
    assert rules(Signature("no_such_primitive", (), (x,), (x,))) is None


F, B, N = "float32", "bfloat16", "int32"
LINEAR = [
    ("add", (F, F), F, {0, 1}, {0, 1}),
    ("sub", (F, F), F, {0, 1}, {0, 1}),
    ("mul", (F, F), F, {0, 1}, set()),
    ("div", (F, F), F, {0}, set()),
    ("div", (N, N), N, set(), set()),
    ("max", (F, F), F, set(), set()),
    ("neg", (F,), F, {0}, set()),
    ("exp", (F,), F, set(), set()),
    ("and", ("bool", "bool"), "bool", set(), set()),
    ("add", ("bool", "bool"), "bool", set(), set()),
    ("select_n", ("bool", F, F), F, {1, 2}, {1, 2}),
    ("convert_element_type", (B,), F, {0}, set()),  # not for every number: see PASSES
    ("convert_element_type", ("float16",), B, set(), set()),
    ("convert_element_type", (B,), "float16", set(), set()),
    ("convert_element_type", (F,), B, set(), set()),
    ("convert_element_type", (N,), F, set(), set()),
    ("convert_element_type", ("bool",), F, set(), set()),
    ("copy", (F,), F, {0}, set()),
]


@pytest.mark.parametrize(("primitive", "operands", "result", "linear", "addends"), LINEAR)
def test_partial_sums_pass_only_where_the_operator_is_linear(
    primitive, operands, result, linear, addends
):
    types = tuple(ValueType((4,), dtype) for dtype in operands)
    (rule,) = rules(Signature(primitive, (), types, (ValueType((4,), result),)))
    assert (rule.linear, rule.addends) == (linear, addends)


def widened(x, y):
    return x.astype(F)


# function of two matrices, types of them, operands behind which sums of every number may wait
PASSES = [
    (jnp.matmul, (F, F), set()),
    (jnp.matmul, (N, N), {0, 1}),
    (lambda x, y: jnp.matmul(x, y, preferred_element_type=N), ("int8", "int8"), set()),
    (lambda x, y: jax.lax.conv(x[None], y[None], (1,), "SAME"), (F, F), set()),
    (jnp.multiply, (F, F), set()),
    (jnp.multiply, ("complex64", "complex64"), set()),
    (jnp.multiply, ("uint8", "uint8"), {0, 1}),
    (jnp.divide, (F, F), set()),
    (jnp.subtract, (F, F), {0, 1}),
    (widened, (B, B), set()),
]


@pytest.mark.parametrize(("fn", "types", "operands"), PASSES)
def test_sums_of_every_number_wait_behind_additions_and_rings(fn, types, operands):
    x, y = (jnp.ones((3, 3), dtype) for dtype in types)
    (rule,) = rules(trace(fn, x, y).nodes[-1].signature)
    assert rule.passes(finite=False) == operands
    assert rule.passes(finite=True) == ({0} if fn in (jnp.divide, widened) else {0, 1})


def test_linear_rows_are_linear(show):
    """f(a + b) = f(a) + f(b) where the row says so, on the literal meaning of a few families."""
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3)) * 0.5
    checked = 0
    for fn in (
        jnp.sum,
        jnp.transpose,
        lambda v: v.reshape(6),
        lambda v: v[:, 1:],
        lambda v: jnp.cumsum(v, 1),
    ):
        (rule,) = rules(trace(fn, x).nodes[-1].signature)
        assert rule.linear == {0}
        assert jnp.allclose(fn(x + y), fn(x) + fn(y))
        checked += 1
    show(f"{checked} linear operators")


def nested(*terms, size):
    loops = (("i", 2), ("j", 3), ("k", 5))
    index = Index()
    for name, factor in terms:
        index = index + Index.of(name) * factor
    names = [n for n, _ in loops]
    shapes = {"operand_shapes": ((size,),), "result_shapes": ((2, 3, 5),)}
    results = (tuple(map(Index.of, names)),)
    return Rule("test", loops, ((Access(0, (index,)),),), results, **shapes)


@pytest.mark.parametrize(
    ("terms", "size", "loops"),
    [
        ((("i", 3), ("j", 1)), 6, "ij"),
        ((("i", 15), ("j", 5), ("k", 1)), 30, "ijk"),
        ((("j", 2), ("i", 1)), 6, "ji"),
        ((("i", 1), ("j", 1)), 4, ""),
        ((("i", 4), ("j", 1)), 8, ""),
        ((("i", 3), ("j", 1)), 7, ""),
        ((("i", 1),), 2, "i"),
        ((("i", 1),), 3, ""),
        ((("i", 2),), 4, ""),
    ],
)
def test_a_dimension_nests_its_loops_or_has_none(terms, size, loops):
    assert "".join(name for name, _ in dim_loops(nested(*terms, size=size), 0, 0)) == loops


def xla_flops(fn, *args):
    return jax.jit(fn).lower(*args).compile().cost_analysis()["flops"]


CONV = jnp.zeros((2, 3, 12)), jnp.zeros((4, 3, 5))


@pytest.mark.parametrize("padding", [[(0, 0)], [(2, 2)], [(1, 4)]])
def test_flops_of_a_convolution_are_those_that_xla_counts(padding):
    def fn(x, k):
        return jax.lax.conv_general_dilated(x, k, (2,), padding)

    (rule,) = rules(trace(fn, *CONV).nodes[0].signature)
    assert flops(rule) == xla_flops(fn, *CONV)


def test_flops_of_a_kernel_with_one_tap_in_a_dimension_are_those_that_xla_counts():
    """No loop runs over that dimension of the kernel, and the image is padded along it."""

    def fn(x, k):
        padding = [(2, 0), (2, 3)]
        return jax.lax.conv_general_dilated(x, k, (1, 2), padding, rhs_dilation=(1, 2))

    args = jnp.zeros((1, 2, 7, 4)), jnp.zeros((2, 2, 2, 1))
    (rule,) = rules(trace(fn, *args).nodes[0].signature)
    assert flops(rule) == xla_flops(fn, *args)


def test_flops_of_a_product_are_those_that_xla_counts():
    args = jnp.zeros((2, 7, 5)), jnp.zeros((2, 5, 3))
    (rule,) = rules(trace(jnp.matmul, *args).nodes[0].signature)
    assert flops(rule) == xla_flops(jnp.matmul, *args)
    assert flops(rule, {"m": 3}) == 2 * 2 * 3 * 5 * 3


def test_combines_are_the_known_words():
    assert {r.combine for c in golden.CASES for r in rules(golden.signature(c))} <= set(
        rows.COMBINES
    )
