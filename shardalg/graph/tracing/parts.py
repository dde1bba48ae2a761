"""The parts of a graph under construction: types, parameters, signatures, names, constants.

What the installed jax partitions with, and how it counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardalg.errors import TraceError
from shardalg.graph.ir import SHORT, Params, Signature, Value, ValueType
from shardalg.graph.plain import HINTS, plain_params
from shardalg.graph.source import own_line

SWITCH = "jax_use_shardy_partitioner"
"""The option of jax by which GSPMD or Shardy partitions; a jax without it has Shardy alone."""


def installed_partitioner() -> str:
    """The partitioner of XLA that `jax.jit` uses here: "gspmd" or "shardy".

    >>> installed_partitioner() in ("gspmd", "shardy")
    True
    """
    import jax

    return "shardy" if getattr(jax.config, SWITCH, True) else "gspmd"


def jax_version() -> str:
    """Return the version of the installed jax.

    >>> jax_version().split(".")[0].isdecimal()
    True
    """
    import jax

    return jax.__version__


def sorts_permutes() -> bool:
    """Whether `lax.ppermute` counts places along the mesh, in whichever order axes are named.

    A jax that asks about another order counts as named, where that is allowed.

    >>> sorts_permutes() in (True, False)
    True
    """
    import jax

    return not hasattr(jax.config, "jax_raise_on_ppermute_sort_diff")


class Parts:
    """Makes values and signatures, equal ones once.

    Attributes:
      values: every value made so far.
      constants: (value index, array).
      numbers: value index to array, of the constants of rank 0.
    """

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.constants: list[tuple[int, object]] = []
        self.numbers: dict[int, np.ndarray] = {}
        self._constant_of: dict[object, int] = {}
        self._types: dict[ValueType, ValueType] = {}
        self._types_of: dict[int, tuple[object, ValueType]] = {}  # by identity: JAX shares them
        self._params: dict[object, Params] = {}
        self._signatures: dict[object, Signature] = {}
        self._taken: set[str] = set()
        self._counts: dict[tuple[str, str], int] = {}

    def type_of(self, aval: Any) -> ValueType:
        """The type of an abstract value of JAX.

        Raises:
          TraceError: it is no array (a reference, a token).
        """
        found = self._types_of.get(id(aval))
        if found is None:
            found = self._types_of[id(aval)] = (aval, self._type(aval))
        return found[1]

    def _type(self, aval: Any) -> ValueType:
        try:
            made = ValueType(tuple(map(int, aval.shape)), aval.dtype.name)
        except AttributeError:
            raise TraceError(
                f"a value of type {aval} is no array: a graph holds arrays only. "
                "Keep references and tokens out of the planned function."
            ) from None
        return self._types.setdefault(made, made)

    def value(self, value_type: ValueType, kind: str, name: str) -> int:
        """A new value; a name that is taken gets a number behind it."""
        index = len(self.values)
        if name in self._taken:
            number = 2
            while f"{name}#{number}" in self._taken:
                number += 1
            name = f"{name}#{number}"
        self._taken.add(name)
        self.values.append(Value(index, value_type, kind, name))
        return index

    def results(self, types: Sequence[ValueType], label: tuple[str, str]) -> tuple[int, ...]:
        """The values that a node with this label makes."""
        name, at = label
        if len(types) == 1:
            return (self.value(types[0], "node", name + at),)
        return tuple([self.value(t, "node", f"{name}.{i}{at}") for i, t in enumerate(types)])

    def label(self, primitive: str, source: str) -> tuple[str, str]:
        """`dot_general:3` and `@model.py:41`: a name of the next such node at that line."""
        line = own_line(source)
        key = (primitive, line)
        number = self._counts[key] = self._counts.get(key, 0) + 1
        return f"{primitive}:{number}", f"@{line}" if line else ""

    def constant(self, aval: Any, array: Any) -> int:
        """The value of a literal or of a closed-over array; equal numbers are one value."""
        value_type = self.type_of(aval)
        number = not value_type.shape and isinstance(aval.dtype, np.dtype)
        if number:
            array = np.asarray(array, aval.dtype)
        # Bytes, not `==`, tell numbers apart: 0.0 from -0.0, and a NaN is one constant.
        key = (value_type, array.tobytes() if number else id(array))
        if key not in self._constant_of:
            short = SHORT.get(value_type.dtype, value_type.dtype)
            name = f"{array}:{short}" if number else f"constant:{len(self.constants)}"
            self._constant_of[key] = self.value(value_type, "constant", name)
            self.constants.append((self._constant_of[key], array))
            if number:
                self.numbers[self._constant_of[key]] = array
        return self._constant_of[key]

    def plain(self, primitive: str, params: Mapping[str, object]) -> Params:
        """The parameters as plain data, one object per distinct content."""
        try:
            key: object = (primitive, *[item for item in params.items() if item[0] not in HINTS])
            found = self._params.get(key)
        except TypeError:
            key = found = None
        if found is None:
            found = plain_params(primitive, params)
            found = self._params.setdefault((primitive, found), found)
            if key is not None:
                self._params[key] = found
        return found

    def signature(
        self, primitive: str, params: Params, *, operands: Sequence[int], results: Sequence[int]
    ) -> Signature:
        """The signature of a node; `params` come from `plain`."""
        values = self.values
        ins = tuple([values[i].type for i in operands])
        outs = tuple([values[i].type for i in results])
        # Types and parameters are interned themselves, so identity stands for equality.
        key = (primitive, id(params), *map(id, ins), None, *map(id, outs))
        if key not in self._signatures:
            self._signatures[key] = Signature(primitive, params, ins, outs)
        return self._signatures[key]
