"""Places of a sharding, dimensions and classes alike: their digits, blocks and offsets.

Products of mesh sizes: strides and sizes of digits where axes have names instead of numbers.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardalg.algebra.digits import Digit, Digits, partition_id
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import CLASSES, Sharding
from shardalg.errors import MeshError

DimOrClass = int | str


def digits_at(sharding: Sharding, place: DimOrClass) -> Digits:
    """The canonical digits of a dimension or a class."""
    if isinstance(place, int):
        return sharding.canonical_dims[place]
    return sharding.classes[CLASSES.index(place)]


def block_of(sharding: Sharding, place: DimOrClass) -> int:
    """What one step of the partition id is worth: the block size; 1 for a class.

    A dimension of size 0 has no offsets to compare, so its partition ids are compared.
    """
    return max(1, sharding.shard_shape[place]) if isinstance(place, int) else 1


def offset_at(sharding: Sharding, place: DimOrClass, device: int) -> int:
    """Offset of a dimension, or partition id of a class, on the device with id `device`."""
    position = sharding.mesh.position(device)
    return partition_id(digits_at(sharding, place), position) * block_of(sharding, place)


def escape(fine: Sharding, coarse: Sharding, device: int) -> int | None:
    """The first dimension on which the device's fine block leaves its coarse block."""
    if any(fine.valid_size(device, dim) == 0 for dim in range(len(fine.shape))):
        return None
    pairs = zip(fine.shard_slices(device), coarse.shard_slices(device), strict=True)
    for dim, (a, b) in enumerate(pairs):
        if a.start < b.start or a.stop > b.stop:
            return dim
    return None


@dataclass(frozen=True)
class Monomial:
    """`number * X**a * Y**b ...`, every named size an integer of at least 2.

    >>> x, y = Monomial.named("X"), Monomial.named("Y")
    >>> x * y, (x * y).divides(x * x * y), x.divides(y), (x * y).common(y * y)
    (X*Y, True, False, Y)
    >>> (x * y).at({"X": 3, "Y": 5})
    15
    """

    number: int = 1
    powers: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def named(name: str) -> Monomial:
        """The size with this name."""
        return Monomial(1, ((name, 1),))

    def __mul__(self, other: Monomial) -> Monomial:
        powers = Counter(dict(self.powers)) + Counter(dict(other.powers))
        return Monomial(self.number * other.number, tuple(sorted(powers.items())))

    def divides(self, other: Monomial) -> bool:
        """Whether it divides the other one for all sizes."""
        theirs = dict(other.powers)
        return other.number % self.number == 0 and all(
            power <= theirs.get(name, 0) for name, power in self.powers
        )

    def common(self, other: Monomial) -> Monomial:
        """The greatest common divisor as a product of sizes; the numbers may share more."""
        powers = Counter(dict(self.powers)) & Counter(dict(other.powers))
        return Monomial(math.gcd(self.number, other.number), tuple(sorted(powers.items())))

    def over(self, divisor: Monomial) -> Monomial:
        """The quotient by a product that divides it for all sizes."""
        powers = Counter(dict(self.powers)) - Counter(dict(divisor.powers))
        return Monomial(self.number // divisor.number, tuple(sorted(powers.items())))

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number that it is at given sizes."""
        return self.number * math.prod(sizes[name] ** power for name, power in self.powers)

    def __repr__(self) -> str:
        names = [name for name, power in self.powers for _ in range(power)]
        return "*".join(([str(self.number)] if self.number > 1 or not names else []) + names)


ONE = Monomial()


@dataclass(frozen=True)
class NamedDigit:
    """A digit whose stride and size are products of mesh sizes."""

    stride: Monomial
    size: Monomial

    @property
    def top(self) -> Monomial:
        """Its period: stride * size."""
        return self.stride * self.size

    def nests(self, other: NamedDigit) -> bool:
        """Whether one of the two lies wholly above the other for all sizes."""
        return self.top.divides(other.stride) or other.top.divides(self.stride)


def device_count(mesh: Mesh, *, by_name: bool = False) -> Monomial:
    """Number of devices: a product of names on a symbolic mesh, or `by_name`."""
    if not (mesh.symbolic or by_name):
        return Monomial(mesh.size)
    return _product(Monomial.named(name) for name in mesh.axis_names)


def named_places(
    sharding: Sharding, borders: Iterable[int] = (), *, by_name: bool = False
) -> dict[DimOrClass, tuple[NamedDigit, ...]] | None:
    """The digits of every place in the names of the mesh; None if they are not its axes.

    Args:
      borders: strides and periods of other shardings on the mesh, so that sub-axes that one of
        them uses have the same names in all of them.
      by_name: use names also on a mesh whose sizes are numbers.
    """
    try:
        cuts = _cuts(sharding, borders, by_name)
    except MeshError:
        return None
    return {place: _named(digits, cuts) for place, digits in sharding.split_places}


def _named(digits: Digits, cuts: Mapping[int, Monomial]) -> tuple[NamedDigit, ...]:
    tops = [(cuts[d.stride], cuts[d.stride * d.size]) for d in digits]
    return tuple(NamedDigit(stride, top.over(stride)) for stride, top in tops)


def _cuts(sharding: Sharding, others: Iterable[int], by_name: bool) -> dict[int, Monomial]:
    """Each stride and period of the digits at hand, by its number at the hints."""
    mesh = sharding.mesh
    digits = [d for _, held in sharding.split_places for d in held]
    borders = {n for d in digits for n in (d.stride, d.stride * d.size)} | set(others)
    if not (mesh.symbolic or by_name):
        return {n: Monomial(n) for n in borders}
    borders |= {n for name in mesh.axis_names for n in (1, _top(mesh, name))}
    cuts, ordered = {1: ONE}, sorted(borders)
    for low, high in itertools.pairwise(ordered):
        cuts[high] = cuts[low] * _atom(mesh, low, high)
    return cuts


def _atom(mesh: Mesh, low: int, high: int) -> Monomial:
    """The axis, or sub-axis, between two neighbouring borders."""
    if high % low:
        raise MeshError(f"{high} is no multiple of {low}.")
    return Monomial.named(repr(mesh.axis_ref(Digit(low, high // low))))


def _top(mesh: Mesh, name: str) -> int:
    digit = mesh.digit(name)
    return digit.stride * digit.size


def _product(factors: Iterable[Monomial]) -> Monomial:
    total = ONE
    for factor in factors:
        total = total * factor
    return total
