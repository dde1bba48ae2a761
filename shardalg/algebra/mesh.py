"""Meshes: named axes over device positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shardalg.algebra.digits import Digit, Digits
from shardalg.errors import MeshError


@dataclass(frozen=True)
class AxisRef:
    """A mesh axis, or the sub-axis `name:(pre)size` of it: `pre` parts are more major than it.

    >>> AxisRef("x", 2, 4)
    x:(2)4
    """

    name: str
    pre: int = 1
    size: int | None = None

    def __repr__(self) -> str:
        return self.name if self.size is None else f"{self.name}:({self.pre}){self.size}"


@dataclass(frozen=True, eq=False)
class Mesh:
    """Devices in row-major order under named axes.

    Args:
      axes: name to size, major first.
      device_ids: device number at each position; None means 0, 1, 2, ...

    >>> mesh = Mesh({"X": 2, "Y": 4})
    >>> mesh, mesh.size, mesh.digit("X"), mesh.digit("Y")
    (Mesh(X=2, Y=4), 8, Digit(stride=4, size=2), Digit(stride=1, size=4))
    """

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None
    _digits: dict[str, Digit] = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __init__(
        self,
        axes: Mapping[str, int] | Iterable[tuple[str, int]],
        device_ids: Iterable[int] | None = None,
    ) -> None:
        pairs = tuple(axes.items() if isinstance(axes, Mapping) else axes)
        ids = None if device_ids is None else tuple(int(i) for i in device_ids)
        _check_axes(pairs)
        size = math.prod(n for _, n in pairs)
        if (ids is not None and sorted(ids) != sorted(set(ids))) or (ids and len(ids) != size):
            raise MeshError(
                f"device_ids of Mesh({_axes_text(pairs)}) must be {size} different numbers, "
                f"got {ids}. List each device once, in row-major order of the axes."
            )
        digits, stride = {}, size
        for name, n in pairs:
            stride //= n
            digits[name] = Digit(stride, n)
        if ids == tuple(range(size)):
            ids = None
        for key, value in (("axes", pairs), ("device_ids", ids), ("_digits", digits)):
            object.__setattr__(self, key, value)
        object.__setattr__(self, "_hash", hash((pairs, ids)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Mesh)
            and self.axes == other.axes
            and self.device_ids == other.device_ids
        )

    def __repr__(self) -> str:
        ids = "" if self.device_ids is None else f", device_ids={list(self.device_ids)}"
        return f"Mesh({_axes_text(self.axes)}{ids})"

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes, major first."""
        return tuple(self._digits)

    @property
    def shape(self) -> dict[str, int]:
        """Axis name to size, major first."""
        return dict(self.axes)

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(n for _, n in self.axes)

    def digit(self, name: str) -> Digit:
        """The digit of the device position that axis `name` is."""
        if name not in self._digits:
            raise MeshError(f"axis {name!r} is not an axis of {self!r}; its axes are {list(self._digits)}.")
        return self._digits[name]

    def digits(self, names: Iterable[str]) -> Digits:
        """The digits of several axes, in the order given (major first)."""
        return tuple(self.digit(name) for name in names)

    def axis_ref(self, digit: Digit) -> AxisRef:
        """The axis, or sub-axis, that `digit` is.

        >>> mesh = Mesh({"x": 8, "y": 2})
        >>> mesh.axis_ref(Digit(2, 8)), mesh.axis_ref(Digit(4, 2))
        (x, x:(2)2)

        Raises:
          MeshError: the digit crosses the border of two axes.
        """
        for name, axis in self._digits.items():
            if digit == axis:
                return AxisRef(name)
        for name, axis in self._digits.items():
            top = axis.stride * axis.size
            inside = axis.stride <= digit.stride and digit.stride * digit.size <= top
            if inside and digit.stride % axis.stride == 0 and top % (digit.stride * digit.size) == 0:
                return AxisRef(name, top // (digit.stride * digit.size), digit.size)
        raise MeshError(f"{digit!r} is not an axis or a sub-axis of {self!r}.")


def _axes_text(pairs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name}={n}" for name, n in pairs)


def _check_axes(pairs: tuple[tuple[str, int], ...]) -> None:
    names = [name for name, _ in pairs]
    bad = [(name, n) for name, n in pairs if not isinstance(n, int) or n < 1]
    if bad:
        raise MeshError(f"axis sizes must be integers of at least 1, got {dict(bad)}.")
    if len(set(names)) != len(names):
        raise MeshError(f"a mesh names each axis once, got {names}.")
