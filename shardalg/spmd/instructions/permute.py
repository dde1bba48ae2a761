"""Collective permutes: whole blocks change places, or parts of the neighbours' are fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.halos.classes import Runs
from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Along, Collective, Shape
from shardalg.spmd.local import Start, axes_text
from shardalg.spmd.shapes import alike

Pairs = tuple[tuple[int, int], ...]
"""(source, target) positions."""


@dataclass(frozen=True, slots=True)
class CollectivePermute(Collective):
    """The device at position `source` sends its block to position `target`, for each pair.

    `digits` are those in which the two layouts differ.
    """

    digits: Digits
    pairs: tuple[tuple[int, int], ...]
    sent_as = "collective_permute"

    def text(self, mesh: Mesh) -> str:
        return f"collective_permute axes={axes_text(mesh, self.digits)}"

    @property
    def stays(self) -> bool:
        return all(source == target for source, target in self.pairs)


@dataclass(frozen=True, slots=True)
class Reading:
    """The block of the device whose partition id is `source(p)`: a result of a `HaloExchange`.

    What arrives counts only at `places`, lower and upper of the block, and as far as it is among
    the `length` elements from `wanted(p)` on; the rest is garbage.

    Attributes:
      operand: which operand of the fetch it is a block of.
      permutes: of each permute of the fetch the (source, target) positions that serve this result;
        a device that is no target keeps its own block.
    """

    operand: int
    source: Start
    permutes: tuple[Pairs | Runs, ...]
    wanted: Start
    length: int
    places: tuple[int, int]


@dataclass(frozen=True, slots=True)
class HaloExchange(Along, Collective):
    """Blocks along `dim` of devices that differ along `digits`: one result per reading.

    The operands are as long as each other. In a permute a device sends the block of one operand,
    for all readings of it; it names no position twice on one side.
    """

    dim: int
    digits: Digits
    readings: tuple[Reading, ...]
    sent_as = "collective_permute"
    of_one_type = True

    def text(self, mesh: Mesh) -> str:
        sources = " and ".join(reading.source.text(mesh) for reading in self.readings)
        return f"halo_exchange dim={self.dim} axes={axes_text(mesh, self.digits)} of p = {sources}"

    @property
    def permutes(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """What is sent: per permute (source, target, operand), for all readings together."""
        permutes = zip(*(reading.permutes for reading in self.readings), strict=True)
        return tuple(
            tuple(
                dict.fromkeys(
                    (*pair, reading.operand)
                    for reading, pairs in zip(self.readings, permute, strict=True)
                    for pair in pairs
                )
            )
            for permute in permutes
        )

    @property
    def sends(self) -> int:
        """How many permutes there are: all readings have the same ones."""
        return len(self.readings[0].permutes)

    @property
    def choices(self) -> int:
        """How many operands it has: a permute sends the block of one."""
        return 1 + max(reading.operand for reading in self.readings)

    def arity(self, rank: int, count: int) -> int:
        return self.choices

    def followed(self, count: int) -> Sequence[int]:
        return [reading.operand for reading in self.readings]

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return alike((first, *more))
