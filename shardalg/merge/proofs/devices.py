"""Unknown devices in formulas, and the formulas that are sent to the solver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import z3

from shardalg.algebra.digits import Digits
from shardalg.algebra.sharding import Sharding
from shardalg.merge.proofs.encode import Number, Space, place_value, space

Values = tuple[tuple[str, int], ...]
MESHES_DIFFER = (
    "the digits belong to different meshes, so no one formula says it for all sizes: "
    "it can be proved for the sizes at hand (Verdict.condition says for which it holds)"
)


@dataclass(frozen=True)
class Obligation:
    """`hypotheses` imply `goal`, or `text` is unsatisfiable; `witness` reads a counterexample.

    Obligations of one `group` are alternatives: one of them is enough.
    """

    hypotheses: tuple[z3.BoolRef, ...]
    goal: z3.BoolRef
    witness: Callable[[Values], object] = lambda values: values
    group: str = ""
    text: str = ""


class Unprovable(Exception):
    """A claim that has no formula here, with the reason; it becomes the status "unknown"."""


@dataclass(frozen=True)
class Devices:
    """Unknown devices and how digits read on them: by coordinates, or by one position."""

    mesh_size: int
    space: Space | None

    def value(self, digits: Digits, tag: str = "d") -> Number:
        """Partition id of the device `tag`."""
        if self.space is None:
            return place_value(digits, z3.Int(tag))
        return self.space.partition_id(self.space.atoms_of(digits), self.space.device(tag))

    def bounds(self, *tags: str) -> list[z3.BoolRef]:
        """The devices are on the mesh."""
        if self.space is None:
            return [z3.And(z3.Int(tag) >= 0, z3.Int(tag) < self.mesh_size) for tag in tags]
        return self.space.bounds(*(self.space.device(tag) for tag in tags))

    def fixed(self, tag: str, position: int) -> list[z3.BoolRef]:
        """The device `tag` is the one at `position`."""
        if self.space is None:
            return [z3.Int(tag) == position]
        device, values = self.space.device(tag), self.space.at(position)
        return [device[atom] == values[atom] for atom in self.space.atoms]

    def position(self, values: Values, tag: str = "d") -> int:
        """Position of the device that a model names `tag`."""
        named = dict(values)
        return named.get(tag, 0) if self.space is None else self.space.position(named, tag)


def devices_of(
    shardings: Iterable[Sharding], *, symbolic: bool, by_position: bool = False
) -> Devices:
    """Unknown devices for the digits of all shardings.

    Args:
      symbolic: coordinates of unknown sizes.
      by_position: one number and its quotients, for sizes at hand; without it the coordinates.

    Raises:
      Unprovable: digits of different meshes, or orders of devices, that such devices cannot say.
    """
    held = list(shardings)
    mesh = held[0].mesh
    if len({s.mesh.device_ids for s in held}) > 1:
        raise Unprovable("the operands order their devices differently, which no digits say")
    if symbolic:
        _check_one_mesh(held)
    if by_position:
        return Devices(mesh.size, None)
    digits = [d for s in held for _, row in s.split_places for d in row]
    found = space(mesh, digits, symbolic=symbolic)
    if found is None and symbolic:
        raise Unprovable(MESHES_DIFFER)
    return Devices(mesh.size, found)


def _check_one_mesh(shardings: Iterable[Sharding]) -> None:
    """Check that one assignment of sizes to axes is a mesh for all shardings, the same one.

    Axes in another order, or fused, are the same positions at some sizes only: on (X=2, Y=4) and
    (Y=4, X=2) axis X of the second is a part of Y of the first, on (X=2, Y=3) it is not.

    Raises:
      Unprovable: other axes, or a digit of an axis of size 1, which has no formula.
    """
    held = list(shardings)
    if len({s.mesh.axes for s in held}) > 1:
        raise Unprovable(MESHES_DIFFER)
    digits = [
        d for s in held for row in (*s.dims, s.unreduced, s.manual, s.replicated) for d in row
    ]
    if any(digit.size == 1 for digit in digits):
        raise Unprovable(
            "an axis of size 1 is used, and all sizes are those of at least 2: leave the axis out, "
            "or give it a size of 2"
        )
