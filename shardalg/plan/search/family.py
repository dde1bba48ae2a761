"""`sa.family`: the meshes and layouts among which `sa.search` finds the fastest plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.plan.strategies.derive.recipe_parts import Wishes

MOST_AXES = 3
"""The largest number of mesh axes of a family. Tables of more axes do not fit in memory."""
AXIS_NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Family:
    """The plans among which `search` finds the fastest, on some meshes.

    On each mesh, every mesh axis may shard any loop of each operator, and any dimension of each
    argument and value, or none, as long as blocks are even. Equal layers have equal layouts.

    Attributes:
      axes: the largest number of mesh axes.
      meshes: the meshes; () for all ordered meshes with up to `axes` axes.
      wishes: pins and bans of arguments, as of a recipe.
    """

    axes: int = 2
    meshes: tuple[Mesh, ...] = ()
    wishes: Wishes = field(default=Wishes())

    def pin(self, path: str, spec: Any) -> Family:
        """Return the family of all plans with this layout of the arguments that a glob names.

        Args:
          path: a glob on paths with slashes, such as "params/embed*" or "*/bias".
          spec: a `PartitionSpec`, or a tuple with an axis, a tuple of axes or None per dimension.
            Dimensions that it leaves out are not sharded, so that `P()` means replicated.

        Raises:
          StrategyError: the layout is none, or contradicts another pin.

        >>> found = Family().pin("batch", ("a", None)).ban("params/embed*", "b")
        >>> found.wishes.bans
        (('params/embed*', 'b'),)
        """
        wishes = self.wishes.with_pin(path, spec)
        wishes.check()
        return replace(self, wishes=wishes)

    def ban(self, path: str, axis: str) -> Family:
        """Return the family of all plans in which an axis shards no argument that a glob names.

        Raises:
          StrategyError: no mesh of the family has the axis, or the path is no text.
        """
        wishes = self.wishes.with_ban(path, axis)
        wishes.check()
        known = {name for mesh in self.meshes for name in mesh.axis_names}
        if axis not in (known or AXIS_NAMES[: self.axes]):
            names = ", ".join(sorted(known) or AXIS_NAMES[: self.axes])
            raise StrategyError(
                f"ban({path!r}, {axis!r}): the axes of the family's meshes are {names}."
            )
        return replace(self, wishes=wishes)

    def of(self, devices: int) -> tuple[Mesh, ...]:
        """Return the meshes of this number of devices; the first axis is the major one.

        >>> [dict(mesh.axes) for mesh in Family(axes=2).of(8)]
        [{'a': 8}, {'a': 4, 'b': 2}, {'a': 2, 'b': 4}]
        """
        if self.meshes:
            return self.meshes
        return tuple(
            Mesh(dict(zip(AXIS_NAMES, sizes, strict=False)))
            for count in range(1, self.axes + 1)
            for sizes in _factorings(devices, count)
        )


def _factorings(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield each way to write a number as an ordered product of `count` factors above 1."""
    if count == 1:
        if number > 1:
            yield (number,)
        return
    for first in range(number // 2, 1, -1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factorings(number // first, count - 1))


def family(*, axes: int = 2, meshes: Sequence[Any] | None = None) -> Family:
    """Return a family of plans for `search`.

    Args:
      axes: the largest number of mesh axes, 1 to 3.
      meshes: the meshes, each a `Mesh` or axis sizes such as {"data": 8, "model": 4}; None for
        all ordered meshes of the devices with up to `axes` axes.

    Raises:
      StrategyError: `axes` is not valid, or an entry is no mesh.

    >>> family(meshes=[{"data": 8}]).of(8)
    (Mesh(data=8),)
    """
    if type(axes) is not int or not 1 <= axes <= MOST_AXES:
        raise StrategyError(f"axes is {axes!r}: give a whole number from 1 to {MOST_AXES}.")
    several = [meshes] if isinstance(meshes, Mesh | Mapping) else meshes
    if several is None:
        return Family(axes)
    if not isinstance(several, list | tuple) or not several:
        raise StrategyError(
            f"meshes is {meshes!r:.60}: give a list of meshes, or None for all meshes."
        )
    found = []
    for each in several:
        if not isinstance(each, Mesh | Mapping):
            raise StrategyError(
                f"meshes has {each!r:.60}: give a Mesh, or axis sizes as {{'data': 8, 'model': 4}}."
            )
        mesh = each if isinstance(each, Mesh) else Mesh(dict(each))
        if mesh.symbolic:
            raise StrategyError(f"{mesh!r} has named sizes: search decides at numbers.")
        found.append(mesh)
    return Family(axes, tuple(found))
