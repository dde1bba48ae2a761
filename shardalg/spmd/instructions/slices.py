"""Parts of a local value: the own block, the same elements everywhere, one element of all."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ProgramError
from shardalg.spmd.instruction import Along, Shape
from shardalg.spmd.local import Start, axes_text
from shardalg.spmd.shapes import sized


@dataclass(frozen=True, slots=True)
class DynamicSlice(Along):
    """The own block `[p*block, (p+1)*block)` along `dim`, `p` the partition id of `digits`."""

    dim: int
    digits: Digits
    block: int

    def text(self, mesh: Mesh) -> str:
        return f"dynamic_slice dim={self.dim} at p({axes_text(mesh, self.digits)})*{self.block}"

    @property
    def cut(self) -> tuple[int, Digits]:
        return self.dim, self.digits

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        return sized(first, self.dim, self.block)


@dataclass(frozen=True, slots=True)
class Slice(Along):
    """Elements `[start, start + size)` of `dim`, the same on every device."""

    dim: int
    start: int
    size: int

    @property
    def stop(self) -> int:
        """The first element behind it."""
        return self.start + self.size

    def text(self, mesh: Mesh) -> str:
        return f"slice dim={self.dim} [{self.start}:{self.stop}]"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        if self.stop > first[self.dim]:
            raise ProgramError(f" reads {self} of {first[self.dim]} elements.")
        return sized(first, self.dim, self.size)


@dataclass(frozen=True, slots=True)
class SliceAt(Along):
    """Elements `[start(p), start(p) + size)` of `dim`; they lie inside on every device."""

    dim: int
    start: Start
    size: int

    @property
    def digits(self) -> Digits:
        """What its start depends on."""
        return self.start.all_digits

    def text(self, mesh: Mesh) -> str:
        return f"slice dim={self.dim} at {self.start.text(mesh)} size {self.size}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        return sized(first, self.dim, self.size)


@dataclass(frozen=True, slots=True)
class OwnerSelect(Along):
    """Element `index` of `dim` alone: on the device that has it, and 0 on the others.

    What a device makes is a partial sum over all that hold a block.

    Attributes:
      block: elements of a block; digits: what the dimension is cut by.
    """

    dim: int
    index: int
    block: int
    digits: Digits

    @property
    def owner(self) -> int:
        """The partition id, along the digits, that has the element."""
        return self.index // self.block

    @property
    def place(self) -> int:
        """Where it lies in the block."""
        return self.index % self.block

    def text(self, mesh: Mesh) -> str:
        axes = axes_text(mesh, self.digits)
        return f"owner_select dim={self.dim} element {self.index} of axes={axes}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return sized(first, self.dim, 1) if first[self.dim] == self.block else None
