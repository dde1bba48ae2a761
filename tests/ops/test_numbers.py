"""Declared effects of operators on numbers, compared with JAX."""

import itertools
import math

import jax
import numpy as np
import pytest
from jax import lax

from shardalg.graph.ir import Signature, ValueType
from shardalg.graph.ops.families.pointwise import EXACT, POINTS, at_numbers
from shardalg.spmd.host.blocks import item_type

NUMBERS = {
    "float32": (0.0, 1.0, -1.0, 0.5, 3e38, 1e-30, 1e-40, math.inf, -math.inf),
    "bfloat16": (0.0, 0.5, math.inf),
    "int8": (0, 1, -1, 127, -128, 64),
    "uint8": (0, 1, 255, 128),
    "bool": (False, True),
}
FLOATS = ("float32", "bfloat16")
UNARY = {"abs", "integer_pow", "neg", "sign", "square", *POINTS}
COMPARE = {"eq", "ge", "gt", "le", "lt", "ne"}
OF_BOOLEANS = COMPARE | {"select_n", "max", "min"}
CALLS = {"add_any": lax.add, "integer_pow": lambda x: lax.integer_pow(x, 3)}


def names(dtype):
    """Operators that JAX has for a type."""
    if dtype == "bool":
        return sorted(OF_BOOLEANS)
    missing = {"uint8": {"abs", "neg"}}.get(dtype, set())
    floats = {*POINTS, "integer_pow"} if dtype in FLOATS else set()
    return sorted(({*EXACT} | floats) - missing)


def types(name, dtype):
    """Return the operands' types."""
    if name == "select_n":
        return ("bool", dtype, dtype)
    return (dtype,) * (1 if name in UNARY else 3 if name == "clamp" else 2)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_what_is_said_is_what_jax_makes(dtype):
    columns = {}
    for name in names(dtype):
        rows = itertools.product(*(NUMBERS[t] for t in types(name, dtype)))
        pairs = zip(zip(*rows, strict=True), types(name, dtype), strict=True)
        columns[name] = [np.array(column, item_type(t)) for column, t in pairs]

    def all_of(columns):
        return {n: CALLS.get(n, getattr(lax, n, None))(*given) for n, given in columns.items()}

    told = 0
    for name, made in jax.jit(all_of)(columns).items():
        operands = tuple(
            ValueType(c.shape, t) for c, t in zip(columns[name], types(name, dtype), strict=True)
        )
        result = ValueType(made.shape, str(made.dtype))
        signature = Signature(name, (("y", 3),), operands, (result,))
        for *numbers, want in zip(*columns[name], np.asarray(made), strict=True):
            said = at_numbers(signature, {k: x.item() for k, x in enumerate(numbers)})
            told += said is not None
            assert said is None or said == want.item(), (name, numbers, said, want)
    assert told > 20


def test_what_moves_or_converts():
    x, y = ValueType((4,), "float32"), ValueType((4,), "int32")
    move = Signature("transpose", (), (x,), (x,))
    assert at_numbers(move, {0: 0.25}) == 0.25
    convert = Signature("convert_element_type", (), (x,), (y,))
    assert [at_numbers(convert, {0: n}) for n in (0.0, 1.0, 0.5, -math.inf)] == [0, 1, None, None]
    back = Signature("convert_element_type", (), (y,), (x,))
    assert [at_numbers(back, {0: n}) for n in (0, 1, 2**24 + 1)] == [0, 1, None]


@pytest.mark.parametrize("name", ["exp", "add", "dot_general", "log"])
def test_what_is_not_known_is_not_said(name):
    x = ValueType((4,), "float32")
    count = 1 if name in ("exp", "log") else 2
    signature = Signature(name, (), (x,) * count, (x,))
    assert at_numbers(signature, {}) is None
    assert at_numbers(signature, dict.fromkeys(range(count), 0.3)) is None
    assert at_numbers(signature, dict.fromkeys(range(count), math.nan)) is None
