"""The mesh that a program runs on, CPU devices for it, and arrays of the host as shards.

`jax.lax` collectives name mesh axes, and a program may use sub-axes (`x:(1)2`). The mesh of a
program therefore has a smaller axis, called a place, between all borders of its digits. Every digit
is then a tuple of neighbouring axes. If only whole axes occur, this is the user's own mesh.

`host_devices` makes CPU devices, on which a plan for many devices runs on one machine. `Blocks` is
an array of the host, whole or given block by block by a function of the user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import DeviceError, LoweringError
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.rewrite import instructions

FOR_DEVICES = ("pure_callback", "io_callback", "custom_partitioning")
"""Primitives that JAX lowers only for existing devices (jax 0.10.2)."""


@dataclass(frozen=True)
class Axes:
    """Names of mesh axes for the digits of a device's position.

    Attributes:
      places: pairs (axis name, digit), major first; together the digits are the whole position.
      mesh: the JAX mesh with these axes; an abstract mesh if there are no devices.
    """

    places: tuple[tuple[str, Digit], ...]
    mesh: JaxMesh | AbstractMesh

    def names(self, digits: Digits) -> tuple[str, ...]:
        """Return the axes, major first, along which a device's index is its id along `digits`."""
        return tuple(name for digit in digits for name in _inside(self.places, digit))

    @property
    def all_names(self) -> tuple[str, ...]:
        """All axes, major first; the index along all of them is the device's position."""
        return tuple(name for name, _ in self.places)

    def turned(self, positions: np.ndarray) -> Axes:
        """Return the same axes on a mesh whose device `i` is this mesh's at `positions[i]`."""
        devices = np.asarray(self.mesh.devices).ravel()[positions].reshape(self.mesh.devices.shape)
        mesh = JaxMesh(devices, self.mesh.axis_names, axis_types=self.mesh.axis_types)
        return replace(self, mesh=mesh)

    def spec(self, sharding: Sharding) -> PartitionSpec:
        """Return `sharding` as a PartitionSpec of these axes."""
        return PartitionSpec(*(self.names(digits) or None for digits in sharding.dims))

    def named(self, sharding: Sharding) -> NamedSharding:
        """Return `sharding` as JAX's `NamedSharding` on the mesh of these axes."""
        return NamedSharding(self.mesh, self.spec(sharding))


def _inside(places: Iterable[tuple[str, Digit]], digit: Digit) -> list[str]:
    """Return the names of the axes that a digit consists of; axes of size 1 are left out.

    Args:
      places: the name and the digit of each axis. An axis is never only partly inside the digit.
    """
    top = digit.stride * digit.size
    return [n for n, place in places if digit.stride <= place.stride < top and place.size > 1]


def used_digits(program: SpmdProgram) -> Iterator[Digit]:
    """Yield every digit that an instruction, a constant, an argument or a result names.

    A digit is a mesh axis or a part of one. A digit may be yielded several times.
    """
    borders = [*program.argument_shardings, *program.result_shardings]
    borders += [program.locals[index].sharding for index, _ in program.constants]
    for sharding in borders:
        for digits in sharding.dims:
            yield from digits
    # Instructions that compute on one device, without a collective, have no digits.
    for instruction in instructions(program.block):
        yield from getattr(instruction.attributes, "digits", ())


def user_axes(mesh: Mesh, jax_mesh: JaxMesh | AbstractMesh) -> Axes:
    """Return the axes of the user's own mesh, which name only digits that are whole axes."""
    return Axes(tuple((name, mesh.digit(name)) for name in mesh.axis_names), jax_mesh)


def on_whole_axes(mesh: Mesh, digits: Iterable[Digit]) -> bool:
    """Return True if every digit is an axis of `mesh`, or has size 1."""
    whole = {mesh.digit(name) for name in mesh.axis_names}
    return all(digit.size == 1 or digit in whole for digit in digits)


def run_axes(program: SpmdProgram, jax_mesh: JaxMesh | AbstractMesh) -> Axes:
    """Return the axes of the mesh that a program runs on.

    It is the user's mesh if each digit of the program is an axis of it. Otherwise its axes are cut
    into smaller ones, so that every digit is a sequence of axes.
    """
    return axes_of(program.mesh, set(used_digits(program)), jax_mesh)


def axes_of(mesh: Mesh, digits: set[Digit], jax_mesh: JaxMesh | AbstractMesh) -> Axes:
    """Return the axes of the user's mesh, cut into smaller axes if the digits need it.

    Every digit is then a sequence of neighbouring axes. For example, on X=8 the digit (stride 2,
    size 2) cuts X into three axes of size 2.

    Args:
      mesh: the program's mesh.
      digits: the parts of device positions that the program names.
      jax_mesh: the user's mesh, with the same axes.

    Raises:
      LoweringError: two digits cut the position at borders of which neither divides the other.
    """
    if on_whole_axes(mesh, digits):
        return user_axes(mesh, jax_mesh)
    # Keep the mesh's axes too, so that every place belongs to one axis and gets its name.
    digits = digits | {mesh.digit(name) for name in mesh.axis_names}
    # A digit has the two borders `stride` and `stride * size`. The common refinement of all digits
    # has the borders of all of them, if each one divides the next.
    borders = sorted({edge for d in digits if d.size > 1 for edge in (d.stride, d.stride * d.size)})
    for low, high in pairwise(borders):
        if high % low:
            raise LoweringError(
                f"the program cuts the device position of {mesh!r} both at {low} and at {high}, "
                "and neither divides the other: no mesh has both as axes. Use sub-axes that nest."
            )
    taken_names = set(mesh.axis_names)
    # Between two neighbouring borders there is one smaller axis; the major one comes first.
    pieces = [Digit(low, high // low) for low, high in pairwise(borders)][::-1]
    named = []
    for piece in pieces:
        ref = mesh.axis_ref(piece)
        name = ref.name if ref.size is None else f"{ref.name}_{ref.pre}_{ref.size}"
        # The mesh may have an axis with the name of a sub-axis already, such as "X_1_2".
        is_sub_axis = ref.size is not None
        while is_sub_axis and name in taken_names:
            name += "_"
        named.append((name, piece))
    # The mesh of these axes has the devices of `jax_mesh`, in the same order; it is abstract if
    # `jax_mesh` is.
    shape, names = tuple(piece.size for _, piece in named), tuple(name for name, _ in named)
    types = (AxisType.Auto,) * len(names)
    mesh_of_axes: JaxMesh | AbstractMesh
    if isinstance(jax_mesh, AbstractMesh):
        mesh_of_axes = AbstractMesh(shape, names, axis_types=types)
    else:
        devices = np.asarray(jax_mesh.devices).reshape(shape)
        mesh_of_axes = JaxMesh(devices, names, axis_types=types)
    return Axes(tuple(named), mesh_of_axes)


FORCED = "xla_force_host_platform_device_count"
"""The flag of XLA that sets how many CPU devices there are."""


def host_devices(n: int) -> list[jax.Device]:
    """Return the first `n` CPU devices; set their number if JAX has not started yet.

    Raises:
      DeviceError: JAX has started with fewer CPU devices, or XLA_FLAGS sets a smaller number.

    >>> len(host_devices(2))
    2
    """
    if not isinstance(n, int) or n < 1:
        raise DeviceError(f"host_devices(n) needs a number of devices of at least 1, got {n!r}.")
    # JAX refuses the flag and the option together. With the flag, the number is fixed already.
    has_flag = FORCED in os.environ.get("XLA_FLAGS", "")
    if not has_flag:
        try:
            jax.config.update("jax_num_cpu_devices", n)
        except RuntimeError:  # JAX has started, so that its number of devices is fixed
            pass
    devices = jax.devices("cpu")
    if len(devices) < n:
        reason = f"XLA_FLAGS sets --{FORCED}" if has_flag else "JAX started before"
        raise DeviceError(
            f"{n} CPU devices asked for, this process has {len(devices)}: {reason}. Call "
            f"host_devices({n}) before anything else uses JAX, or start Python with "
            f"XLA_FLAGS=--{FORCED}={n}."
        )
    return devices[:n]


def first_device() -> jax.Device:
    """Return the first of JAX's devices."""
    return jax.devices()[0]


Read = Callable[[tuple[slice, ...]], Any]
"""Maps a block's place, a slice with start and stop per dimension, to its elements."""


@dataclass(frozen=True)
class Blocks:
    """One array of the host, whose blocks are read when they are sharded.

    Attributes:
      path: the array's name in messages.
      shape: shape without padding.
      dtype: item type of the sharded array.
      read: returns the elements of a block.
      checked: whether shape and type of a block are checked, because `read` is the user's own.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    read: Read
    checked: bool = False

    def placed(self, padded: tuple[int, ...], target: NamedSharding) -> jax.Array:
        """Return the array with the sharding `target`, padded with zeros to the shape `padded`.

        Only blocks of this process's devices are read.

        Raises:
          LoweringError: `read` returns a block of another shape or item type than was asked for.
        """

        def block(index: Any) -> np.ndarray:
            """Return one device's block of the padded array, given its slices.

            For example, of 10 elements padded to 12, the last of 4 blocks is [9:12]: the elements
            [9:10] are read, and 2 zeros follow.
            """
            # JAX asks for blocks of the padded array, and `read` knows the array without padding.
            ranges = [range(*part.indices(size)) for part, size in zip(index, padded, strict=True)]
            true_slices = [
                slice(places.start, min(places.stop, size))
                for places, size in zip(ranges, self.shape, strict=True)
            ]
            sizes = [max(0, part.stop - part.start) for part in true_slices]
            # A block of padding alone has no elements to read.
            if 0 in sizes:
                return np.zeros([len(places) for places in ranges], self.dtype)
            elements = self._read(tuple(true_slices), tuple(sizes))
            # Padding is at the end of a dimension.
            widths = [(0, len(places) - size) for places, size in zip(ranges, sizes, strict=True)]
            return np.pad(elements, widths) if any(width for _, width in widths) else elements

        return jax.make_array_from_callback(padded, target, block)

    def _read(self, index: tuple[slice, ...], sizes: tuple[int, ...]) -> np.ndarray:
        """Return the elements of a block, in the planned item type.

        A user's function may return another shape or type, which is a LoweringError; a NumPy array
        of the host is not checked.

        Args:
          index: the block's slice per dimension. sizes: the block's shape.
        """
        found = np.asarray(self.read(index))
        # Only numpy's own numbers are made canonical (float64 becomes float32 without 64-bit
        # types). Other types, such as bfloat16, are compared as they are.
        held = jax.dtypes.canonicalize_dtype(found.dtype) if found.dtype.kind in "biufc" else None
        if self.checked and (found.shape != sizes or (held or found.dtype) != self.dtype):
            place = ", ".join(f"{s.start}:{s.stop}" for s in index)
            raise LoweringError(
                f"{self.path}: its function gives {found.dtype}{list(found.shape)} for the block "
                f"[{place}], which is {self.dtype}{list(sizes)}. Return the elements of the slices "
                "that it is given, in the planned item type."
            )
        return found.astype(self.dtype, copy=False)
