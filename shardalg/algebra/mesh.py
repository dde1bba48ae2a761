"""Meshes: named axes over device positions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any

from shardalg.algebra.digits import Digit, Digits
from shardalg.errors import MeshError
from shardalg.svg import draw_grids, drawing_card
from shardalg.tables import Table, counted

if TYPE_CHECKING:
    import jax
    import numpy as np

# An axis name is printed without quotes unless a reader could confuse it with something else.
_BARE = re.compile(r"[^\W\d][\w.-]*")
_RESERVED = ("None", "UNCONSTRAINED", "device")


@dataclass(frozen=True)
class AxisRef:
    """A mesh axis, or its sub-axis `name:(pre)size` as in Shardy.

    `pre` is the product of the sizes of the sub-axes that are more major, and `size` the number of
    devices along the sub-axis. None as the size means the whole axis.

    >>> AxisRef("x", 2, 4), AxisRef("of rows")
    (x:(2)4, 'of rows')
    """

    name: str
    pre: int = 1
    size: int | None = None

    def __repr__(self) -> str:
        """Return the axis as `x`, or the sub-axis as `x:(2)4`; unusual names are quoted."""
        name = "device" if not self.name else self.name
        if self.name and (self.name in _RESERVED or not _BARE.fullmatch(self.name)):
            name = repr(self.name)
        return name if self.size is None else f"{name}:({self.pre}){self.size}"


@dataclass(frozen=True, eq=False)
class Mesh:
    """A grid of devices with named axes; devices are in row-major order.

    Args:
      axes: name to size, major first.
      device_ids: device number at each position; None means 0, 1, 2, ... A mesh without axes is
        one device; with an id it is the device with this id, as in Shardy.
      symbolic: the sizes are symbols with the names of the axes, and the numbers are their hints.
        Plans on the mesh are made at the hints, and priced in the symbols.

    Raises:
      MeshError: a size below one; a repeated name; not exactly one device id per position; a
        symbolic mesh with device ids, an axis whose name is no identifier, or a hint of 1.

    >>> mesh = Mesh({"X": 2, "Y": 4})
    >>> mesh, mesh.size, mesh.digit("X"), mesh.digit("Y")
    (Mesh(X=2, Y=4), 8, Digit(stride=4, size=2), Digit(stride=1, size=4))
    >>> Mesh({"X": 8, "Y": 16}, symbolic=True)
    Mesh(X~8, Y~16)
    """

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None
    symbolic: bool = False
    _digits: dict[str, Digit] = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __init__(
        self,
        axes: Mapping[str, int] | Iterable[tuple[str, int]] = (),
        device_ids: Iterable[int] | None = None,
        *,
        symbolic: bool = False,
        **named: Any,
    ) -> None:
        """Check the arguments, which the class describes, and set the fields.

        `named` catches axes that are given as keywords, for an error with the right form.
        """
        if named:
            # Name the remedy with the user's own axes: Mesh(X=2) means Mesh({"X": 2}).
            meant: dict[str, Any] = {n: k for n, k in named.items() if isinstance(k, Integral)}
            meant = meant or {"X": 8}
            raise MeshError(
                f"Mesh() has no keyword {', '.join(named)}: the axes are one argument, name to "
                f"size. Write Mesh({meant})."
            )
        pairs = _pairs(axes)
        _check_axes(pairs)
        ids = _checked_ids(pairs, device_ids)
        if symbolic:
            _check_symbolic(pairs, ids)
        self._set_fields(pairs, ids, symbolic)

    def _set_fields(
        self, pairs: tuple[tuple[str, int], ...], ids: tuple[int, ...] | None, symbolic: bool
    ) -> None:
        """Set the fields of the frozen dataclass, and compute its digits and its hash."""
        fields = (("axes", pairs), ("device_ids", ids), ("symbolic", symbolic))
        for key, value in (*fields, ("_digits", _axis_digits(pairs))):
            object.__setattr__(self, key, value)
        object.__setattr__(self, "_hash", hash((pairs, ids, symbolic)))

    @staticmethod
    def unnamed(size: int, device_ids: Iterable[int] | None = None) -> Mesh:
        """Return a mesh with one axis without a name, for HLO text, which has no axis names.

        >>> Mesh.unnamed(8)
        Mesh(8 unnamed devices)
        """
        return Mesh({"": size}, device_ids)

    def resized(self, sizes: Mapping[str, Any]) -> Mesh:
        """Return a mesh with the same axes and other sizes: integers, or traced sizes (unchecked).

        >>> Mesh({"X": 2, "Y": 4}).resized({"X": 8, "Y": 4})
        Mesh(X=8, Y=4)
        """
        mesh = object.__new__(Mesh)
        pairs = tuple((name, sizes[name]) for name in self.axis_names)
        mesh._set_fields(pairs, self.device_ids, False)
        return mesh

    @property
    def is_unnamed(self) -> bool:
        """True if the axes have no names, so that no PartitionSpec can be written."""
        return self.axis_names == ("",)

    @property
    def is_device(self) -> bool:
        """True if the mesh is one device with an id: the mesh of a maximal sharding.

        >>> Mesh({}, [3]).is_device, Mesh({}).is_device, Mesh({"x": 1}).is_device
        (True, False, False)
        """
        return not self.axes and self.device_ids is not None

    @staticmethod
    def from_jax(jax_mesh: Any) -> Mesh:
        """Return the mesh of a `jax.sharding.Mesh` or `AbstractMesh`.

        Device ids are kept if they are not 0, 1, 2, ... in the order of the mesh.
        """
        from shardalg.algebra.jax_meshes import axes_of

        return Mesh(*axes_of(jax_mesh))

    def to_jax(self, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
        """Return a `jax.sharding.Mesh` with all axes Auto.

        Args:
          devices: JAX devices to take; default `jax.devices()`. A mesh with `device_ids` finds its
            devices by their ids, another mesh takes the first ones in the order given.

        Raises:
          DeviceError: fewer devices than positions, or no device with one of the ids.
        """
        from shardalg.algebra.jax_meshes import mesh_to_jax

        return mesh_to_jax(self, devices)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Return whether the other object is a mesh with equal axes and devices in one order."""
        # Identity first: planning compares one mesh with itself most of the time.
        return self is other or (
            isinstance(other, Mesh)
            and self.axes == other.axes
            and self.device_ids == other.device_ids
            and self.symbolic == other.symbolic
        )

    def __repr__(self) -> str:
        """Return the mesh as `Mesh(X=2, Y=4)`; a `~` in place of `=` marks symbolic sizes."""
        shown = [_axes_text(self.axes, "~" if self.symbolic else "=")] if self.axes else []
        if self.device_ids is not None:
            shown.append(f"device_ids={short_list(self.device_ids)}")
        return f"Mesh({', '.join(shown)})"

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes, major first."""
        return tuple(self._digits)

    @cached_property
    def sizes(self) -> dict[str, Any]:
        """Size of each axis: a number, or on a symbolic mesh a symbol with its hint.

        >>> size = Mesh({"X": 8}, symbolic=True).sizes["X"]
        >>> size, size.hint, Mesh({"X": 8}).sizes
        (X, 8, {'X': 8})
        """
        if not self.symbolic:
            return dict(self.axes)
        from shardalg.algebra.dims import Size

        return {name: Size(name, hint) for name, hint in self.axes}

    @property
    def shape(self) -> dict[str, int]:
        """Axis name to size, major first."""
        return dict(self.axes)

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(n for _, n in self.axes)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Device id at each position.

        >>> Mesh({"x": 3}).order, Mesh({"x": 3}, device_ids=[2, 0, 1]).order
        ((0, 1, 2), (2, 0, 1))
        """
        return tuple(range(self.size)) if self.device_ids is None else self.device_ids

    @cached_property
    def _positions(self) -> dict[int, int]:
        """Position of each device, by its id."""
        return {device: position for position, device in enumerate(self.order)}

    def position(self, device: int) -> int:
        """Return the position of the device with id `device`.

        >>> Mesh({"x": 3}, device_ids=[2, 0, 1]).position(2)
        0

        Raises:
          MeshError: the mesh has no such device.
        """
        # In the default order, ids are positions: no table is made.
        if self.device_ids is None and 0 <= device < self.size:
            return device
        if self.device_ids is None or device not in self._positions:
            raise MeshError(
                f"device {device} is not on {self!r}; its devices are {short_list(self.order)}."
            )
        return self._positions[device]

    def is_turned(self, other: Mesh) -> bool:
        """Return whether the other mesh has the same axes and devices, in another device order.

        >>> Mesh({"x": 3}).is_turned(Mesh({"x": 3}, device_ids=[2, 0, 1]))
        True
        """
        differs = self.device_ids != other.device_ids and self.axes == other.axes
        return differs and sorted(self.order) == sorted(other.order)

    def places(self, other: Mesh) -> np.ndarray:
        """Return, for the device at each position of this mesh, its position in another mesh.

        Both meshes must have the same devices.

        >>> Mesh({"x": 3}).places(Mesh({"x": 3}, device_ids=[2, 0, 1]))
        array([1, 2, 0])
        """
        import numpy as np

        # Sorted, both meshes have the same ids. The rank of an id among them therefore leads from a
        # position in this mesh to a position in the other one.
        ranks = np.argsort(np.argsort(self.order))
        return np.argsort(other.order)[ranks]

    def digit(self, name: str) -> Digit:
        """Return the digit of axis `name`: its value is a device's coordinate along the axis.

        Raises:
          MeshError: the mesh has no such axis.
        """
        if name not in self._digits:
            raise MeshError(
                f"axis {name!r} is not an axis of {self!r}; its axes are {list(self._digits)}."
            )
        return self._digits[name]

    def ref_digit(self, ref: AxisRef) -> Digit:
        """Return the digit of an axis or a sub-axis, which gives a device's coordinate along it.

        A sub-axis `x:(pre)size` of an axis x has `pre` parts above it. Its digit has the stride
        `stride(x) * |x| / (pre * size)`.

        >>> Mesh({"x": 8, "y": 2}).ref_digit(AxisRef("x", 2, 2))
        Digit(stride=4, size=2)

        Raises:
          MeshError: no such axis, or a sub-axis that does not divide it.
        """
        axis = self.digit(ref.name)
        # A reference without a size is the whole axis.
        if ref.size is None:
            return axis
        if min(ref.pre, ref.size) < 1 or axis.size % (ref.pre * ref.size):
            raise MeshError(
                f"{ref!r} is no sub-axis of {ref.name!r}, whose size is {axis.size}: {ref.pre} "
                f"times {ref.size} must divide it."
            )
        return Digit(axis.stride * axis.size // (ref.pre * ref.size), ref.size)

    def __str__(self) -> str:
        """Return the devices as a grid; the last axis is drawn from left to right.

        >>> print(Mesh({"X": 2, "Y": 4}))
        Mesh(X=2, Y=4): 8 devices
             Y →
        X ↓  0  1  2  3
        0    0  1  2  3
        1    4  5  6  7
        """
        from shardalg.algebra.tile_grids import mesh_grid

        return f"{self!r}: {counted(self.size, 'device')}\n{mesh_grid(self).to_text(boxed=False)}"

    def __format__(self, spec: str) -> str:
        # Sentences have the mesh on one line.
        return format(repr(self), spec)

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks: the devices as a grid, and a table of the axes."""
        from shardalg.algebra.tile_grids import mesh_grid

        rows = tuple((name, size) for name, size in self.axes)
        # The drawing leaves out devices of a large mesh.
        left_out = "… marks devices that are left out." if self.size > 256 else ""
        title = f"{self!r}: {counted(self.size, 'device')}."
        table = Table(("axis", "devices"), rows)
        return drawing_card(title, draw_grids((mesh_grid(self),)), table, note=left_out)

    def digits(self, names: Iterable[str]) -> Digits:
        """Return the digits of several axes, in the order given (major first)."""
        return tuple(self.digit(name) for name in names)

    def axis_ref(self, digit: Digit) -> AxisRef:
        """Return the axis or the sub-axis whose coordinate is `digit`.

        >>> mesh = Mesh({"x": 8, "y": 2})
        >>> mesh.axis_ref(Digit(2, 8)), mesh.axis_ref(Digit(4, 2))
        (x, x:(2)2)

        Raises:
          MeshError: the digit crosses the border of two axes.
        """
        refs = self.axis_refs(digit)
        if len(refs) != 1:
            raise MeshError(f"{digit!r} is not an axis or a sub-axis of {self!r}.")
        return refs[0]

    def axis_refs(self, digit: Digit) -> tuple[AxisRef, ...]:
        """Return the axes and sub-axes, major first, whose coordinates together are `digit`.

        >>> Mesh({"x": 4, "y": 2}).axis_refs(Digit(1, 4))
        (x:(2)2, y)

        Raises:
          MeshError: the digit is not made of axes and sub-axes (it belongs to another mesh).
        """
        # A whole axis is named by its digit alone, also if its size is 1.
        exact = [name for name, axis in self._digits.items() if digit == axis]
        if exact:
            return (AxisRef(exact[0]),)
        refs, values = [], 1
        for name, axis in self._digits.items():
            if ref := _common(name, axis, digit):
                refs.append(ref)
                values *= ref.size or axis.size
        # A digit of another mesh can have parts that no axis has.
        if values != digit.size:
            raise MeshError(f"{digit!r} is not made of axes of {self!r}.")
        return tuple(refs)

    def refs(self, digits: Digits) -> tuple[AxisRef, ...]:
        """Return the axes and sub-axes of several digits; neighbouring parts of an axis are merged.

        In the example, the digits are two major parts of x, which together are x:(1)4, and y.

        >>> Mesh({"x": 8, "y": 2}).refs((Digit(8, 2), Digit(4, 2), Digit(1, 2)))
        (x:(1)4, y)

        Raises:
          MeshError: a digit is not made of axes and sub-axes.
        """
        joined: list[AxisRef] = []
        # A sub-axis that continues the one before it, as x:(1)2 and x:(2)4, extends it. It does if
        # the parts above it are all parts of the one before: pre * size. A whole axis has no size
        # and is not extended.
        for ref in (ref for digit in digits for ref in self.axis_refs(digit)):
            last = joined[-1] if joined else None
            if last and last.name == ref.name and last.size and last.pre * last.size == ref.pre:
                name, size = ref.name, last.size * (ref.size or 1)
                is_whole_axis = size == self._digits[name].size
                joined[-1] = AxisRef(name) if is_whole_axis else AxisRef(name, last.pre, size)
            else:
                joined.append(ref)
        return tuple(joined)

    def texts(self, digits: Digits) -> list[str]:
        """Return the axes and sub-axes of some digits as texts, such as `x` or `x:(2)4`.

        A digit that is no axis or sub-axis of this mesh has the text `d//stride%size`.

        >>> Mesh({"x": 8}).texts((Digit(1, 2), Digit(3, 2)))
        ['x:(4)2', 'd//3%2']
        """
        try:
            return [repr(ref) for ref in self.refs(digits)]
        except MeshError:
            pass
        # Some digit belongs to another mesh: write the others as axes all the same.
        texts: list[str] = []
        for digit in digits:
            try:
                texts += [repr(ref) for ref in self.axis_refs(digit)]
            except MeshError:
                texts.append(f"d//{digit.stride}%{digit.size}")
        return texts


def _axis_digits(pairs: tuple[tuple[str, int], ...]) -> dict[str, Digit]:
    """Return the digit of each axis, by name.

    No two axes have the same digit, so that the axis of a digit can be found.
    """
    size = stride = math.prod(n for _, n in pairs)
    digits: dict[str, Digit] = {}
    for name, n in pairs:
        stride //= n
        digit = Digit(stride, n)
        # A digit of size 1 is 0 at any stride, so axes of size 1 get strides of their own.
        while digit in digits.values():
            digit = Digit(digit.stride + size, 1)
        digits[name] = digit
    return digits


def _common(name: str, axis: Digit, digit: Digit) -> AxisRef | None:
    """Return the sub-axis that is a part of both an axis and `digit`, or None.

    For example, an axis with stride 2 and size 8 and a digit with stride 4 and size 8 have the
    strides from 4 to 16 in common: the sub-axis x:(1)4.

    Args:
      name, axis: the name and the digit of the axis.
    """
    axis_period, period = axis.stride * axis.size, digit.stride * digit.size
    # A digit covers the range of strides from its stride to its stride * size. The common range,
    # `low` to `high`, is a common part if both borders divide evenly into the axis and into the
    # digit.
    low, high = max(axis.stride, digit.stride), min(axis_period, period)
    if low >= high or low % axis.stride or low % digit.stride or high % low:
        return None
    if axis_period % high or period % high:
        return None
    is_whole_axis = low == axis.stride and high == axis_period
    return AxisRef(name) if is_whole_axis else AxisRef(name, axis_period // high, high // low)


def _axes_text(pairs: Iterable[tuple[str, int]], sign: str = "=") -> str:
    """Return axes as text, such as `X=2, Y=4`, with `sign` between name and size."""
    return ", ".join(f"{name}{sign}{n}" if name else f"{n} unnamed devices" for name, n in pairs)


def short_list(numbers: Sequence[int]) -> str:
    """Return numbers as text, such as `[0, 1, 2]`; of a long tuple, only the first 16."""
    shown = ", ".join(map(str, numbers[:16]))
    return f"[{shown}, ...]" if len(numbers) > 16 else f"[{shown}]"


def _pairs(axes: Any) -> tuple[tuple[str, int], ...]:
    """Return the user's `axes` as (name, size) pairs, which `_check_axes` then checks.

    Raises:
      MeshError: `axes` is no mapping and no list of pairs.
    """
    try:
        items = axes.items() if isinstance(axes, Mapping) else axes
        return tuple((name, _whole(n)) for name, n in items)
    except (TypeError, ValueError):
        raise MeshError(
            f"the axes are name to size, as in {{'X': 8, 'Y': 16}}, got {axes!r}."
        ) from None


def _whole(size: Any) -> Any:
    """Return a numpy integer as a Python integer; return any other value unchanged."""
    whole = isinstance(size, Integral) and not isinstance(size, bool | int)
    return int(size) if whole else size


def _check_axes(pairs: tuple[tuple[str, int], ...]) -> None:
    """Raise MeshError if a name is no text or occurs twice, or if a size is no positive integer."""
    names = [name for name, _ in pairs]
    wrong_names = [name for name in names if not isinstance(name, str)]
    if wrong_names:
        raise MeshError(f"mesh axes have text as names, got {wrong_names}.")
    # `type` and not isinstance: True is an int in Python, but no size.
    wrong_sizes = [(name, n) for name, n in pairs if type(n) is not int or n < 1]
    if wrong_sizes:
        raise MeshError(
            f"axis sizes must be integers of at least 1, got {dict(wrong_sizes)}. Give "
            "each axis its number of devices, as in Mesh({'X': 8})."
        )
    if len(set(names)) != len(names):
        raise MeshError(f"a mesh names each axis once, got {names}.")


def _check_symbolic(pairs: tuple[tuple[str, int], ...], ids: tuple[int, ...] | None) -> None:
    """Raise MeshError if the mesh cannot be symbolic.

    Its hints (the sizes at which a plan is made) must be above 1. Its names must be identifiers,
    because formulas use them. Its devices must be in the default order.

    Args:
      pairs: (name, hint) of each axis.
      ids: the device ids, or None for the default order.
    """
    ones = [name for name, n in pairs if n == 1]
    if ones:
        raise MeshError(
            f"the hint of the symbolic axis {', '.join(ones)} is 1: an axis of one device splits "
            "nothing, so a plan at this hint says nothing about larger sizes. Take a hint of 2 or "
            "more."
        )
    unnamed = [name for name, _ in pairs if not name.isidentifier()]
    if unnamed or ids is not None:
        order = f"device_ids {short_list(ids or ())}"
        fault = f"the axes {unnamed}, no identifiers" if unnamed else order
        raise MeshError(
            f"a symbolic mesh has axes named like symbols, in the default order of devices, got "
            f"{fault}. Rename the axes, or give device_ids to a mesh that is not symbolic."
        )


def _checked_ids(
    pairs: tuple[tuple[str, int], ...], device_ids: Iterable[int] | None
) -> tuple[int, ...] | None:
    """Return the device ids as integers; None if they are 0, 1, 2, ... in this order.

    Raises:
      MeshError: `device_ids` is no list of integers, or does not name each device once.
    """
    if device_ids is None:
        return None
    id_tuple = tuple(device_ids) if isinstance(device_ids, Iterable) else (device_ids,)
    if isinstance(device_ids, str) or not all(isinstance(i, Integral) for i in id_tuple):
        raise MeshError(
            f"device_ids of Mesh({_axes_text(pairs)}) is {device_ids!r:.80}, no list of whole "
            "numbers. List the devices in row-major order of the axes, as in (1, 0)."
        )
    ids = tuple(int(i) for i in id_tuple)
    size = math.prod(n for _, n in pairs)
    if len(set(ids)) != len(ids) or len(ids) != size or min(ids) < 0:
        repeated = sorted(i for i, count in Counter(ids).items() if count > 1)
        fault = f"; {repeated} occur more than once" if repeated else ""
        raise MeshError(
            f"device_ids of Mesh({_axes_text(pairs)}) must be {size} different numbers of at "
            f"least 0, got {len(ids)}: {short_list(ids)}{fault}. List each device once, in "
            "row-major order of the axes."
        )
    # The default order is None, so that equal meshes are equal values. A mesh without axes keeps
    # its id: it is a device, and not any device.
    return None if pairs and ids == tuple(range(size)) else ids
