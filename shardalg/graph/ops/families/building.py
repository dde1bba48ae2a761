"""Helpers for all families: loop names, index maps, properties of number types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Plain, Signature
from shardalg.graph.ops.rule import Access, Rule

Builder = Callable[[Signature], tuple[Rule, ...]]
FLOATS = {"bfloat16": (8, 8), "float16": (11, 5), "float32": (24, 8), "float64": (53, 11)}
"""By floating-point type, (bits of precision, bits of exponent).

A type has all numbers of another one if it has at least as many bits of both.
"""


def names(prefix: str, count: int) -> tuple[str, ...]:
    """Return `count` loop names: the prefix, followed by 0, 1, 2, ....

    >>> names("d", 2)
    ('d0', 'd1')
    """
    return tuple(f"{prefix}{i}" for i in range(count))


def letters(prefix: str, count: int) -> tuple[str, ...]:
    """Return `count` loop names: the prefix itself for a single loop, numbered names for more.

    >>> letters("k", 1), letters("k", 2)
    (('k',), ('k0', 'k1'))
    """
    return (prefix,) if count == 1 else names(prefix, count)


def indices(items: Iterable[str | int | Index]) -> tuple[Index, ...]:
    """Return each loop name, number or index expression as an index expression."""
    return tuple(map(Index.of, items))


def access(operand: int, items: Iterable[str | int | Index]) -> Access:
    """Return the `Access` that reads an operand at these indices, one per dimension.

    Args:
      operand: the position of the operand.
      items: a loop's name, a number or an index expression for each dimension.
    """
    return Access(operand, indices(items))


LOAD = "expert_load"
"""The parameter of a node with its load factor; a node without it has a perfect balance."""
BALANCED, WORST = 1.0, "worst"


def load_factor(signature: Signature) -> Fraction | None:
    """Return the load factor of a product by groups, such as the experts of a mixture of experts.

    It is the number of rows of the busiest device, divided by the average over all devices. None
    for the worst case, in which all rows are on one device.

    >>> load_factor(Signature("grouped_dot", ((LOAD, 1.25),), (), ()))
    Fraction(5, 4)
    """
    load = signature.param(LOAD, BALANCED)
    return None if load == WORST else Fraction(load).limit_denominator(1 << 10)


def moved_row(
    signature: Signature,
    loops: Sequence[str],
    *,
    dims: Iterable[Index],
    family: str,
) -> Rule:
    """Return a row that moves elements of one operand, such as `[2*d0+1] -> [d0]`.

    Args:
      loops: the loop of each dimension of the result.
      dims: the index of each dimension of the operand.
      family: see `Rule`.
    """
    return Rule(
        signature.primitive,
        tuple(zip(loops, signature.results[0].shape, strict=True)),
        ((access(0, dims),),),
        (indices(loops),),
        linear=frozenset({0}),
        family=family,
    )


def record(value: Plain, fields: str) -> dict[str, tuple[int, ...]]:
    """Return a dictionary from field name to value for a named tuple stored as plain data.

    Args:
      value: the values in order, or (name, value) pairs.
      fields: the names of the fields, separated by spaces.

    >>> record(((2,), (0,)), "offset_dims collapsed_slice_dims")
    {'offset_dims': (2,), 'collapsed_slice_dims': (0,)}
    """
    assert isinstance(value, tuple)
    # JAX's named tuples become pairs in `plain`; dimension numbers of a dot are a bare tuple.
    named = bool(value) and isinstance(value[0], tuple) and len(value[0]) == 2
    if named and isinstance(value[0][0], str):
        return dict(value)
    return dict(zip(fields.split(), value, strict=True))


def scaling(signature: Signature, *operands: int) -> dict[str, Any]:
    """Return the fields `linear` and `scaled` (see `Rule`) of a row that multiplies operands.

    Integers of one type are a ring, in which a product distributes over every sum. Therefore they
    are not in `scaled`.

    Args:
      operands: the operands in each of which the result is linear.

    >>> from shardalg.graph.ir import ValueType
    >>> x, n = ValueType((4,), "float32"), ValueType((4,), "int32")
    >>> scaling(Signature("mul", (), (x, x), (x,)), 0)
    {'linear': frozenset({0}), 'scaled': frozenset({0})}
    >>> scaling(Signature("mul", (), (n, n), (n,)), 0)
    {'linear': frozenset({0}), 'scaled': frozenset()}
    """
    dtype = signature.results[0].dtype
    if not is_number(dtype) or rounds_whole(signature):
        return {"linear": frozenset(), "scaled": frozenset()}
    ring = dtype.startswith(("int", "uint"))
    ring = ring and all(signature.operands[k].dtype == dtype for k in operands)
    linear = frozenset(operands)
    return {"linear": linear, "scaled": frozenset() if ring else linear}


def rounds_whole(signature: Signature) -> bool:
    """Return whether an operator adds floats and converts the sum to integers or bool.

    Such a conversion does not distribute over partial sums, so the sum must not be partitioned.

    >>> from shardalg.graph.ir import ValueType
    >>> x, n = ValueType((4,), "bfloat16"), ValueType((4,), "int32")
    >>> [rounds_whole(Signature("dot_general", (), (a, a), (n,))) for a in (x, n)]
    [True, False]
    """
    result_type = signature.results[0].dtype
    is_integer = result_type == "bool" or result_type.startswith(("int", "uint"))
    floats = ("float", "bfloat", "complex")
    return is_integer and any(value.dtype.startswith(floats) for value in signature.operands)


@lru_cache
def has_zero(dtype: str) -> bool:
    """Return whether a type has the number 0, by which partitioning replaces missing elements.

    >>> has_zero("float8_e5m2"), has_zero("float8_e8m0fnu"), has_zero("key<fry>")
    (True, False, True)
    """
    # Some 8-bit types of ml_dtypes have no zero.
    narrow = getattr(ml_dtypes, dtype, None)
    return narrow is None or float(np.zeros((), narrow)) == 0


def is_number(dtype: str) -> bool:
    """Return whether elements of a type can be added: not for bool and random keys."""
    return dtype in FLOATS or dtype.startswith(("int", "uint", "complex"))


def largest_counted(dtype: str) -> int | None:
    """Return the largest n so that a floating-point type represents all integers up to n exactly.

    The result is None for integer types and 0 for types without addition.

    >>> largest_counted("bfloat16"), largest_counted("complex64"), largest_counted("int8")
    (256, 16777216, None)
    """
    dtype = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    if dtype in FLOATS:
        return 2 ** FLOATS[dtype][0]
    return None if dtype.startswith(("int", "uint")) else 0
