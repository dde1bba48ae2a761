"""Description of the links between chips of one kind: a torus of chips, or islands of a switch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from shardalg.costs.network.collective_seconds import COLLECTIVES
from shardalg.errors import HardwareError


@dataclass(frozen=True)
class Interconnect:
    """Links between chips of one kind; unknown if neither `dimensions` nor `island` is given.

    Attributes:
      cores_per_chip: devices that JAX shows per chip; they share the chip's links.
      chips_per_host: chips that share a host's link into the data center network.
      dimensions: the largest torus, in chips per dimension; () if a switch joins the chips.
      wraps_at: a dimension whose size is a multiple of this number is a ring; others are lines.
      cubes: whether dimensions are rings only if all of them can be.
      island: number of GPUs that one switch (NVLink) joins; 0 for a torus.
      shapes: shapes of the slices that the vendor offers, in chips along each dimension.
      asynchronous: kinds of collectives that the chip's compiler splits into a start and a done.
        Other instructions run between the two. A device waits for all other collectives.
      source: the source of these values.
    """

    cores_per_chip: int = 1
    chips_per_host: int = 1
    dimensions: tuple[int, ...] = ()
    wraps_at: int = 0
    cubes: bool = False
    island: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    asynchronous: tuple[str, ...] = ()
    source: str = ""

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Return, for each dimension of a slice of this shape, whether it is a ring.

        >>> Interconnect(dimensions=(32, 32), wraps_at=32).wraps((32, 16))
        (True, False)
        >>> Interconnect(dimensions=(64,) * 3, wraps_at=4, cubes=True).wraps((2, 4, 4))
        (False, False, False)
        """
        is_ring = [bool(self.wraps_at) and size % self.wraps_at == 0 for size in shape]
        # A slice of cubes wraps in all dimensions or in none (TPU v4: Jouppi et al., ISCA 2023).
        return (all(is_ring),) * len(is_ring) if self.cubes else tuple(is_ring)

    def default(self, chips: int) -> tuple[int, ...] | None:
        """Return the shape in which the vendor joins a number of chips; None if there is none.

        For GPUs the shape is (number of islands, GPUs per island).

        >>> Interconnect(island=8).default(64), Interconnect(island=8).default(4)
        ((8, 8), (1, 4))
        """
        listed = next((shape for shape in self.shapes if math.prod(shape) == chips), None)
        if self.island and listed is None:
            # A part of one island can be used alone; more GPUs must be whole islands.
            inside = min(chips, self.island)
            return (chips // inside, inside) if chips % inside == 0 else None
        return listed or self._of_cubes(chips)

    def _of_cubes(self, chips: int) -> tuple[int, ...] | None:
        """Return the shape of a slice of whole 4x4x4 cubes; None if `chips` do not fill cubes.

        Of several shapes, it is the one closest to a cube.

        >>> torus = Interconnect(dimensions=(64, 64, 64), wraps_at=4, cubes=True)
        >>> torus.default(384), torus.default(96)
        ((4, 8, 12), None)
        """
        if not self.cubes or len(self.dimensions) != 3:
            return None
        most = max(self.dimensions)
        found = [
            (a, b, chips // (a * b))
            for a in range(4, most + 1, 4)
            # Sides in ascending order, so that no shape is counted in two orientations.
            for b in range(a, most + 1, 4)
            if chips % (4 * a * b) == 0 and b <= chips // (a * b) <= most
        ]
        # Of the shapes with equal volume, the smallest sum of sides is the closest to a cube.
        return min(found, key=sum, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as a JSON object for `read`."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value != getattr(UNKNOWN, name)}


UNKNOWN = Interconnect()


def read(data: Any, where: str) -> Interconnect:
    """Return an `Interconnect` from parsed JSON, whose keys are names of its fields.

    Args:
      data: the entry "interconnect" of a hardware file.
      where: name of the file, for error messages.

    Raises:
      HardwareError: a name is unknown, a value has another type, or the source is missing.

    >>> read({"island": 8, "source": "data sheet"}, "toy.json").island
    8
    """
    example_entry = '{"dimensions": [16, 16], "wraps_at": 16, "source": "..."}'
    defaults = {field.name: getattr(UNKNOWN, field.name) for field in fields(Interconnect)}
    if not isinstance(data, Mapping) or not isinstance(data.get("source"), str):
        raise HardwareError(f"{where}: 'interconnect' is {data!r}; write {example_entry}.")
    # The default of a field gives the type that its value must have.
    for name, value in data.items():
        if name not in defaults or not _fits(value, defaults[name], name):
            raise HardwareError(
                f"{where}: interconnect has {name!r}: {value!r}; the entries are "
                f"{', '.join(defaults)}, as in {example_entry}."
            )
    return Interconnect(**{name: _frozen(value) for name, value in data.items()})


def _fits(value: Any, default: Any, name: str) -> bool:
    """Return whether a value from JSON has the type of a field with this default and name."""
    # The defaults of these two fields are empty tuples, which do not tell the type of an entry: a
    # shape, or the name of a kind of collective.
    if name == "shapes":
        return isinstance(value, list | tuple) and all(_fits(v, (), "") for v in value)
    if name == "asynchronous":
        return isinstance(value, list | tuple) and all(v in tuple(COLLECTIVES) for v in value)
    # All other tuples are sizes; a bool is no number here, so types must be equal.
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and all(_positive(v) for v in value)
    return _positive(value) if type(default) is int else type(value) is type(default)


def _positive(value: Any) -> bool:
    """Return whether a value is an integer above 0."""
    return type(value) is int and value > 0


def _frozen(value: Any) -> Any:
    """Return a value with all lists in it replaced by tuples, which are hashable."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
