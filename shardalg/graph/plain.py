"""Conversion of primitives' parameters to plain data. This module does not import jax.

Plain data are numbers, text, None, and tuples of plain data. They have the same hash, order, text
and file in every process. Code (jaxprs, functions) and shardings are replaced by a name:
`("opaque", "jaxpr:1f0c...")`.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from functools import singledispatch

import numpy as np

from shardalg.graph.ir import Params, Plain

# Layout hints of JAX are dropped, because a plan decides layouts.
HINTS = frozenset({"sharding", "out_sharding"})
OPAQUE = "opaque"
COMPLEX = "complex"
# Parameters with code that follows from the primitive's name, so that it need not be stored.
_NAMED_BY_PRIMITIVE = frozenset({"update_jaxpr", "update_consts"})
SCATTERS = frozenset({"scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub"})


@singledispatch
def plain(value: object) -> Plain:
    """Return `value` as plain data.

    A named tuple or dataclass becomes (field, value) pairs. An enum or dtype becomes its name. A
    set is sorted, and a complex number is split into its parts. Any other object becomes
    `("opaque", name)`.

    >>> plain([np.int64(3), np.dtype("float32"), {2, 1}])
    (3, 'float32', (1, 2))
    >>> plain(plain)
    ('opaque', 'shardalg.graph.plain.plain')
    """
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        # Addresses of functions differ between processes; the rest of the text does not.
        text = re.sub(r"0x[0-9a-f]+", "0x", str(value))
        return (OPAQUE, f"jaxpr:{hashlib.sha256(text.encode()).hexdigest()[:12]}")
    # A primitive is found by its name again when the graph is run (`evaluate.find_primitive`).
    if hasattr(value, "bind") and hasattr(value, "name"):
        return (OPAQUE, f"primitive:{value.name}")
    name = getattr(value, "__qualname__", None)
    if name is None and dataclasses.is_dataclass(value):
        return tuple((f.name, plain(getattr(value, f.name))) for f in dataclasses.fields(value))
    kind = type(value)
    text = f"{value.__module__}.{name}" if name else f"{kind.__module__}.{kind.__qualname__}"
    return (OPAQUE, text)


def _items(value: Iterable[object]) -> Plain:
    """Return a sequence as plain data, and a named tuple as (field, value) pairs."""
    fields = getattr(value, "_fields", None)
    if fields is not None:
        return tuple((f, plain(item)) for f, item in zip(fields, value, strict=True))
    return tuple(plain(item) for item in value)


def _float(value: float) -> Plain:
    """Return the number, with one shared object for nan.

    Since nan is not equal to itself, tuples and caches find it only by identity.
    """
    return math.nan if math.isnan(value) else value


# JSON keeps these types as they are, so a saved graph has the same parameters when it is read.
for _scalar in (bool, int, str, type(None)):
    plain.register(_scalar, lambda value: value)
plain.register(float, _float)
plain.register(tuple, _items)
plain.register(list, _items)
plain.register(set, lambda value: tuple(sorted(plain(item) for item in value)))
plain.register(frozenset, lambda value: tuple(sorted(plain(item) for item in value)))
plain.register(np.dtype, lambda value: value.name)
plain.register(np.generic, lambda value: plain(value.item()))
plain.register(complex, lambda value: (COMPLEX, _float(value.real), _float(value.imag)))
plain.register(enum.Enum, lambda value: value.name)
plain.register(
    type, lambda value: np.dtype(value).name if issubclass(value, np.generic) else str(value)
)


def plain_params(primitive: str, params: Mapping[str, object]) -> Params:
    """Return all parameters of an equation as plain data, sorted by name, without layout hints.

    >>> plain_params("iota", {"shape": (2, 3), "sharding": None, "dtype": np.dtype("int32")})
    (('dtype', 'int32'), ('shape', (2, 3)))
    """
    dropped = HINTS | _NAMED_BY_PRIMITIVE if primitive in SCATTERS else HINTS
    return tuple((name, plain(params[name])) for name in sorted(params) if name not in dropped)


def number(value: Plain) -> complex | None:
    """Return the number that plain data represent, or None if they are no number.

    >>> number(plain(1 + 2j)), number(plain(np.float32(2))), number(plain("x"))
    ((1+2j), 2.0, None)
    """
    if isinstance(value, tuple) and len(value) == 3 and value[0] == COMPLEX:
        _, real, imaginary = value
        assert isinstance(real, float) and isinstance(imaginary, float)
        return complex(real, imaginary)
    return value if isinstance(value, int | float) else None


def is_same(first: Plain, second: Plain) -> bool:
    """Return whether two parameters are the same plain data, where nan equals nan.

    Types count: `True` is not `1`, and `1` is not `1.0`. Code compares by its name.

    >>> is_same(("x", (float("nan"), 1)), ("x", (float("nan"), 1))), is_same(1, True)
    (True, False)
    """
    if type(first) is not type(second):
        return False
    if isinstance(first, tuple):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(is_same(a, b) for a, b in pairs)
    # Only nan differs from itself.
    return bool(first == second) or (first != first and second != second)


def is_code(value: Plain) -> bool:
    """Return whether a parameter is the name of code, which `plain` does not store.

    >>> is_code(plain(plain)), is_code((1, 2))
    (True, False)
    """
    return isinstance(value, tuple) and len(value) == 2 and value[0] == OPAQUE


def is_opaque(value: Plain) -> bool:
    """Return whether a parameter is or contains the name of code.

    JAX's parameter cannot be rebuilt from such plain data.

    >>> is_opaque((("key_shape", (2,)), ("seed", ("opaque", "threefry_seed"))))
    True
    """
    if not isinstance(value, tuple):
        return False
    return is_code(value) or any(is_opaque(item) for item in value)
