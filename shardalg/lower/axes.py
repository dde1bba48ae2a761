"""The mesh that a program runs on: its axes are the places of the device's position.

`jax.lax` collectives name mesh axes. A program may use sub-axes (`x:(1)2`), so the position is cut
at every border of a digit that occurs; each piece, a place, becomes an axis, and every digit is
then a tuple of neighbouring axes. Where only whole axes occur this is the user's own mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import LoweringError
from shardalg.spmd.program import SpmdProgram
from shardalg.spmd.rewrite import instructions

FOR_DEVICES = ("pure_callback", "io_callback", "custom_partitioning")
"""Primitives that JAX lowers for devices at hand only (jax 0.10.2)."""


@dataclass(frozen=True)
class Axes:
    """Names for digits.

    Attributes:
      places: (axis name, digit), major first; together they write the whole position.
      mesh: the JAX mesh with these axes; an abstract one where nothing is placed.
    """

    places: tuple[tuple[str, Digit], ...]
    mesh: JaxMesh | AbstractMesh

    def names(self, digits: Digits) -> tuple[str, ...]:
        """The axes that write the partition id of `digits`, major first."""
        return tuple(name for digit in digits for name in _inside(self.places, digit))

    @property
    def all_names(self) -> tuple[str, ...]:
        """Every axis: their common index is the position."""
        return tuple(name for name, _ in self.places)

    def turned(self, positions: np.ndarray) -> Axes:
        """The same axes over the devices at these positions."""
        devices = np.asarray(self.mesh.devices).ravel()[positions].reshape(self.mesh.devices.shape)
        mesh = JaxMesh(devices, self.mesh.axis_names, axis_types=self.mesh.axis_types)
        return replace(self, mesh=mesh)

    def spec(self, sharding: Sharding) -> PartitionSpec:
        """The layout of `sharding` over these axes."""
        return PartitionSpec(*(self.names(digits) or None for digits in sharding.dims))

    def named(self, sharding: Sharding) -> NamedSharding:
        """`sharding` as JAX's, over these axes."""
        return NamedSharding(self.mesh, self.spec(sharding))


def _inside(places: Iterable[tuple[str, Digit]], digit: Digit) -> list[str]:
    top = digit.stride * digit.size
    return [n for n, place in places if digit.stride <= place.stride < top and place.size > 1]


def used_digits(program: SpmdProgram) -> Iterator[Digit]:
    """Every digit that an instruction, a constant or a border of `program` names."""
    borders = [*program.argument_shardings, *program.result_shardings]
    borders += [program.locals[index].sharding for index, _ in program.constants]
    for sharding in borders:
        for digits in sharding.dims:
            yield from digits
    for instruction in instructions(program.block):
        yield from getattr(instruction.attributes, "digits", ())


def user_axes(mesh: Mesh, jax_mesh: JaxMesh | AbstractMesh) -> Axes:
    """The user's own mesh; a digit that is no whole axis has no name on it."""
    return Axes(tuple((name, mesh.digit(name)) for name in mesh.axis_names), jax_mesh)


def on_whole_axes(mesh: Mesh, digits: Iterable[Digit]) -> bool:
    """Whether every digit is an axis of `mesh`, or names one device."""
    whole = {mesh.digit(name) for name in mesh.axis_names}
    return all(digit.size == 1 or digit in whole for digit in digits)


def run_axes(program: SpmdProgram, jax_mesh: JaxMesh | AbstractMesh) -> Axes:
    """The user's mesh if it can name every digit of `program`, else a mesh of places over it."""
    return axes_of(program.mesh, set(used_digits(program)), jax_mesh)


def axes_of(mesh: Mesh, digits: set[Digit], jax_mesh: JaxMesh | AbstractMesh) -> Axes:
    """The user's mesh if it can name every one of `digits`, else a mesh of places over it.

    Raises:
      LoweringError: two digits cut the position at borders of which neither divides the other.
    """
    if on_whole_axes(mesh, digits):
        return user_axes(mesh, jax_mesh)
    digits = digits | {mesh.digit(name) for name in mesh.axis_names}
    borders = sorted({edge for d in digits if d.size > 1 for edge in (d.stride, d.stride * d.size)})
    for low, high in pairwise(borders):
        if high % low:
            raise LoweringError(
                f"the program cuts the device position of {mesh!r} both at {low} and at {high}, "
                "and neither divides the other: no mesh has both as axes. Use sub-axes that nest."
            )
    taken = set(mesh.axis_names)
    places = [Digit(low, high // low) for low, high in pairwise(borders)][::-1]
    named = tuple((_place_name(mesh, place, taken), place) for place in places)
    return Axes(named, _cut(jax_mesh, named))


def _cut(jax_mesh: JaxMesh | AbstractMesh, places: tuple[tuple[str, Digit], ...]) -> Any:
    """The same devices, or none, on a mesh of places."""
    shape, names = tuple(place.size for _, place in places), tuple(name for name, _ in places)
    types = (AxisType.Auto,) * len(names)
    if isinstance(jax_mesh, AbstractMesh):
        return AbstractMesh(shape, names, axis_types=types)
    return JaxMesh(np.asarray(jax_mesh.devices).reshape(shape), names, axis_types=types)


def _place_name(mesh: Mesh, place: Digit, taken: set[str]) -> str:
    ref = mesh.axis_ref(place)
    name = ref.name if ref.size is None else f"{ref.name}_{ref.pre}_{ref.size}"
    while ref.size is not None and name in taken:
        name += "_"
    return name
