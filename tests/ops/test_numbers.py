"""Numbers that operators are said to make of numbers, beside those that JAX makes."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardalg.graph.ir import Signature, ValueType
from shardalg.ops.families.numbers import EXACT, POINTS, at_numbers
from shardalg.spmd.blocks import item_type

NUMBERS = {
    "float32": (0.0, 1.0, -1.0, 0.5, 3e38, 1e-30, math.inf, -math.inf),
    "bfloat16": (0.0, 0.5, math.inf),
    "int8": (0, 1, -1, 127, -128, 64),
    "uint8": (0, 1, 255, 128),
    "bool": (False, True),
}
OPERANDS = {"select_n": 3, "clamp": 3, "abs": 1, "neg": 1, "sign": 1, "square": 1}
COMPARE = {"eq", "ge", "gt", "le", "lt", "ne"}
PARAMS = {"exp": {"accuracy": None}, "integer_pow": {"y": 3}}
CALLS = {
    "select_n": lambda which, *cases: lax.select_n(which, *cases),
    "add_any": lambda a, b: lax.add(a, b),
    "clamp": lax.clamp,
    "mul": lax.mul,
    "integer_pow": lambda x: lax.integer_pow(x, 3),
}
NAMES = sorted({*EXACT, *POINTS, "integer_pow"})


def said_and_made(name, dtype):
    """(numbers, what is said of them, what JAX makes of them), for all combinations."""
    count = OPERANDS.get(name, 1 if name in POINTS or name == "integer_pow" else 2)
    types = [dtype] * count
    if name == "select_n":
        types[0] = "bool"
    rows = list(itertools.product(*(NUMBERS[t] for t in types)))
    columns = [
        jnp.asarray(c, item_type(t)) for c, t in zip(zip(*rows, strict=True), types, strict=True)
    ]
    result = "bool" if name in COMPARE else dtype
    operands = tuple(ValueType((len(rows),), t) for t in types)
    params = (("y", 3),) if name == "integer_pow" else ()
    signature = Signature(name, params, operands, (ValueType((len(rows),), result),))
    made = np.asarray(CALLS.get(name, getattr(lax, name, None))(*columns))
    stored = zip(*(np.asarray(column) for column in columns), strict=True)
    for numbers, want in zip(stored, made, strict=True):
        given = {k: x.item() for k, x in enumerate(numbers)}
        yield given, at_numbers(signature, given), want.item()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_what_is_said_is_what_jax_makes(dtype):
    told = 0
    for name in NAMES:
        floats = name in POINTS or name in ("square", "integer_pow")
        if (floats and dtype not in ("float32", "bfloat16")) or (
            dtype == "bool" and name not in COMPARE | {"select_n", "max", "min"}
        ):
            continue
        if name in ("neg", "abs") and dtype == "uint8":
            continue
        for given, said, made in said_and_made(name, dtype):
            if said is not None:
                told += 1
                assert said == made, (name, dtype, given, said, made)
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
