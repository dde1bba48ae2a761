"""Places of a sharding, that is dimensions and classes: their digits, blocks and offsets.

A `Monomial` is a product of mesh sizes: the stride or the size of a digit on axes of named sizes.
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
    """Return the canonical digits of a dimension, or of a class such as "unreduced"."""
    if isinstance(place, int):
        return sharding.canonical_dims[place]
    return sharding.classes[CLASSES.index(place)]


def block_of(sharding: Sharding, place: DimOrClass) -> int:
    """Return the block size of a dimension; 1 for a class of axes, such as "unreduced".

    The offset on a dimension is the partition id times this number.
    """
    # A dimension of size 0 has no offsets to compare, so its partition ids are compared.
    return max(1, sharding.shard_shape[place]) if isinstance(place, int) else 1


def offset_at(sharding: Sharding, place: DimOrClass, device: int) -> int:
    """Return the offset of a device's block on a dimension.

    For a class of axes, such as "unreduced", return the partition id.

    Args:
      device: the id of the device.
    """
    position = sharding.mesh.position(device)
    return partition_id(digits_at(sharding, place), position) * block_of(sharding, place)


def escape(fine: Sharding, coarse: Sharding, device: int) -> int | None:
    """Return the first dimension on which the device's fine block leaves its coarse block.

    For example, elements 4 to 7 leave a block of the elements 0 to 5. None if the fine block is
    inside, or has no elements.
    """
    if any(fine.valid_size(device, dim) == 0 for dim in range(len(fine.shape))):
        return None  # a block without elements is inside any other block
    pairs = zip(fine.shard_slices(device), coarse.shard_slices(device), strict=True)
    for dim, (a, b) in enumerate(pairs):
        if a.start < b.start or a.stop > b.stop:
            return dim
    return None


@dataclass(frozen=True)
class Monomial:
    """The product `number * X**a * Y**b ...`, where every named size is at least 2.

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
        """Return the size with this name."""
        return Monomial(1, ((name, 1),))

    def __mul__(self, other: Monomial) -> Monomial:
        powers = Counter(dict(self.powers)) + Counter(dict(other.powers))
        return Monomial(self.number * other.number, tuple(sorted(powers.items())))

    def divides(self, other: Monomial) -> bool:
        """Return whether this product divides the other one for all sizes."""
        # Sizes are independent: no power of one name makes up for a missing factor of another.
        theirs = dict(other.powers)
        return other.number % self.number == 0 and all(
            power <= theirs.get(name, 0) for name, power in self.powers
        )

    def common(self, other: Monomial) -> Monomial:
        """Return the greatest product that divides both for all sizes.

        At some sizes the greatest common divisor is larger.
        """
        powers = Counter(dict(self.powers)) & Counter(dict(other.powers))
        return Monomial(math.gcd(self.number, other.number), tuple(sorted(powers.items())))

    def over(self, divisor: Monomial) -> Monomial:
        """Return the quotient by a product that divides this one for all sizes."""
        powers = Counter(dict(self.powers)) - Counter(dict(divisor.powers))
        return Monomial(self.number // divisor.number, tuple(sorted(powers.items())))

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the value at given sizes."""
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
        """The period of the digit: stride * size."""
        return self.stride * self.size

    def nests(self, other: NamedDigit) -> bool:
        """Return whether one digit's period divides the other's stride for all sizes."""
        return self.top.divides(other.stride) or other.top.divides(self.stride)


def device_count(mesh: Mesh, *, by_name: bool = False) -> Monomial:
    """Return the number of devices: a product of names on a symbolic mesh, or with `by_name`."""
    if not (mesh.symbolic or by_name):
        return Monomial(mesh.size)
    return product(Monomial.named(name) for name in mesh.axis_names)


def named_places(
    sharding: Sharding, borders: Iterable[int] = (), *, by_name: bool = False
) -> dict[DimOrClass, tuple[NamedDigit, ...]] | None:
    """Return the digits of every split dimension and class, as products of names of axes.

    None if the digits are not made of axes. On a mesh (X=2, Y=4), the digit of X has the stride Y
    and the size X.

    Args:
      borders: strides and periods of other shardings on the mesh. A sub-axis that one of them uses
        then has the same name in all of them.
      by_name: use names also on a mesh whose sizes are numbers.
    """
    try:
        cuts = _cuts(sharding, borders, by_name)
    except MeshError:
        return None
    digits_of_place = {}
    for place, digits in sharding.split_places:
        # Per digit, stride and period as products of names. Their quotient is the size.
        tops = [(cuts[d.stride], cuts[d.stride * d.size]) for d in digits]
        digits_of_place[place] = tuple(NamedDigit(stride, top.over(stride)) for stride, top in tops)
    return digits_of_place


def _cuts(sharding: Sharding, others: Iterable[int], by_name: bool) -> dict[int, Monomial]:
    """Return the strides and periods of a sharding's digits, each as a product of axis sizes.

    A digit's period is its stride times its size. A key is the number that a stride or period has
    at the hints. For example, on a mesh (X=2, Y=4) the stride 4 of X is the product Y.

    Args:
      others: strides and periods of other shardings, which are added.
      by_name: whether to use names of axes also on a mesh whose sizes are numbers.

    Raises:
      MeshError: some stride or period is not made of axes and sub-axes.
    """
    mesh = sharding.mesh
    digits = [d for _, row in sharding.split_places for d in row]
    borders = {n for d in digits for n in (d.stride, d.stride * d.size)} | set(others)
    if not (mesh.symbolic or by_name):
        return {n: Monomial(n) for n in borders}
    axes = [mesh.digit(name) for name in mesh.axis_names]
    # With the borders of all axes, each step between neighbouring borders is inside one axis.
    borders |= {n for axis in axes for n in (1, axis.stride * axis.size)}
    cuts = {1: ONE}
    for low, high in itertools.pairwise(sorted(borders)):
        # Only a whole factor between two borders is an axis or a sub-axis, whose name the product
        # can contain. Otherwise the digits belong to several meshes.
        if high % low:
            raise MeshError(f"{high} is no multiple of {low}.")
        axis = mesh.axis_ref(Digit(low, high // low))
        cuts[high] = cuts[low] * Monomial.named(repr(axis))
    return cuts


def product(factors: Iterable[Monomial]) -> Monomial:
    """Return the product of several products of sizes."""
    total = ONE
    for factor in factors:
        total = total * factor
    return total
