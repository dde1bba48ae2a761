"""Types, parameters, signatures, names and constants of a graph under construction.

Three functions return properties of the installed version of JAX.
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
"""The option of jax that selects GSPMD or Shardy; a version without it has only Shardy."""


def installed_partitioner() -> str:
    """Return the partitioner that `jax.jit` uses in this installation: "gspmd" or "shardy".

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
    """Return whether `lax.ppermute` counts devices in mesh order, not in the order of the names.

    Versions of JAX with the option `jax_raise_on_ppermute_sort_diff` count in the order of the
    names, unless the option makes them raise an error. Older versions count in mesh order.

    >>> sorts_permutes() in (True, False)
    True
    """
    import jax

    return not hasattr(jax.config, "jax_raise_on_ppermute_sort_diff")


class Parts:
    """Values, constants and signatures of a graph under construction.

    Equal types, parameters and signatures share one object.

    Attributes:
      values: all values so far.
      constants: (value index, array).
      numbers: array of each constant of rank 0, by value index.
    """

    def __init__(self) -> None:
        """Start without values, and with empty caches of types, parameters and signatures.

        A new part that equals a cached one is replaced by the cached object.
        """
        self.values: list[Value] = []
        self.constants: list[tuple[int, object]] = []
        self.numbers: dict[int, np.ndarray] = {}
        self._constant_of: dict[object, int] = {}
        self._types: dict[ValueType, ValueType] = {}
        # By identity, because JAX shares abstract values. The tuple keeps the object alive.
        self._types_of: dict[int, tuple[object, ValueType]] = {}
        self._params: dict[object, Params] = {}
        self._signatures: dict[object, Signature] = {}
        self._taken: set[str] = set()
        self._counts: dict[tuple[str, str], int] = {}

    def type_of(self, aval: Any) -> ValueType:
        """Return the shape and dtype of an abstract value of JAX.

        Raises:
          TraceError: the value is no array (a reference, a token).
        """
        cached = self._types_of.get(id(aval))
        # Many equations share an abstract value. The cache stores it too, so that its `id` is not
        # given to another object.
        if cached is None:
            try:
                new = ValueType(tuple(map(int, aval.shape)), aval.dtype.name)
            except AttributeError:
                raise TraceError(
                    f"a value of type {aval} is no array: a graph holds arrays only. "
                    "Keep references and tokens out of the planned function."
                ) from None
            cached = self._types_of[id(aval)] = (aval, self._types.setdefault(new, new))
        return cached[1]

    def value(self, value_type: ValueType, kind: str, name: str) -> int:
        """Add a value and return its index; if its name is taken, a number is appended to it.

        Args:
          kind, name: see `Value`.
        """
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
        """Add a value for each result of a node; return their indices.

        Args:
          types: the types of the results.
          label: the parts of the node's name, from `label`.
        """
        name, at = label
        if len(types) == 1:
            return (self.value(types[0], "node", name + at),)
        return tuple([self.value(t, "node", f"{name}.{i}{at}") for i, t in enumerate(types)])

    def label(self, primitive: str, source: str) -> tuple[str, str]:
        """Return the two parts of a new node's name, such as `dot_general:3` and `@model.py:41`."""
        line = own_line(source)
        key = (primitive, line)
        number = self._counts[key] = self._counts.get(key, 0) + 1
        return f"{primitive}:{number}", f"@{line}" if line else ""

    def constant(self, aval: Any, array: Any) -> int:
        """Return the value index of a literal or a captured array; add the value if it is new.

        Equal numbers of one type share a value. Arrays share one only if they are one object.

        Args:
          aval: its abstract value.
        """
        value_type = self.type_of(aval)
        is_number = not value_type.shape and isinstance(aval.dtype, np.dtype)
        if is_number:
            array = np.asarray(array, aval.dtype)
        # Numbers are compared by their bytes: 0.0 differs from -0.0, and NaN equals itself.
        key = (value_type, array.tobytes() if is_number else id(array))
        if key not in self._constant_of:
            short = SHORT.get(value_type.dtype, value_type.dtype)
            name = f"{array}:{short}" if is_number else f"constant:{len(self.constants)}"
            self._constant_of[key] = self.value(value_type, "constant", name)
            self.constants.append((self._constant_of[key], array))
            if is_number:
                self.numbers[self._constant_of[key]] = array
        return self._constant_of[key]

    def plain(self, primitive: str, params: Mapping[str, object]) -> Params:
        """Return the parameters of a primitive as plain data; equal parameters share an object."""
        try:
            key: object = (primitive, *[item for item in params.items() if item[0] not in HINTS])
            cached = self._params.get(key)
        except TypeError:
            # A parameter has no hash, such as a list: only its plain data can be looked up.
            key = cached = None
        if cached is None:
            cached = plain_params(primitive, params)
            cached = self._params.setdefault((primitive, cached), cached)
            if key is not None:
                self._params[key] = cached
        return cached

    def signature(
        self, primitive: str, params: Params, *, operands: Sequence[int], results: Sequence[int]
    ) -> Signature:
        """Return the signature of a node.

        Args:
          params: the parameters, as `plain` returned them.
          operands, results: value indices.
        """
        values = self.values
        ins = tuple([values[i].type for i in operands])
        outs = tuple([values[i].type for i in results])
        # Types and parameters are interned themselves, so equal ones are identical.
        key = (primitive, id(params), *map(id, ins), None, *map(id, outs))
        if key not in self._signatures:
            self._signatures[key] = Signature(primitive, params, ins, outs)
        return self._signatures[key]
