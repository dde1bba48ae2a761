"""Parts of a local value: the own block, the same elements everywhere, one element of all.

A box in a tensor that is cut in blocks, at run-time starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ProgramError
from shardalg.spmd.instruction import Along, Operator, Shape
from shardalg.spmd.local import Start, axes_text, resize_dim

Places = tuple[tuple[int, Digits, int], ...]
"""(dimension, digits that cut it, largest start) of the dimensions in which a device has a block.

A start on such a dimension is clamped to `[0, largest]`, then counted from the own block's first
element, `p * block`, with the block's size read off the operand. On every other dimension it is
clamped to what is there, as XLA does.
"""


@dataclass(frozen=True, slots=True)
class Extract(Operator):
    """A box of the first operand at the starts that the others are: 0 where the block lacks it.

    Attributes:
      sizes: of the box on a device.
      places: dimensions that are cut.
      loops: the digits on each sharded loop of the node's rule.
    """

    sizes: tuple[int, ...]
    places: Places
    loops: tuple[tuple[str, Digits], ...] = ()

    @property
    def digits(self) -> Digits:
        """What its blocks are cut by."""
        return tuple(digit for _, digits, _ in self.places for digit in digits)

    def text(self, mesh: Mesh) -> str:
        return f"extract {_places_text(mesh, self.places)}"

    def arity(self, rank: int, count: int) -> int:
        return 1 + rank

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return None if any(more) else self.sizes


@dataclass(frozen=True, slots=True)
class Insert(Operator):
    """The first operand with the second in its box, as far as the block has a part of that.

    Operands are a block, what is written, and a start per dimension.

    Attributes:
      places: dimensions that are cut.
      loops: the digits on each sharded loop of the node's rule.
    """

    places: Places
    loops: tuple[tuple[str, Digits], ...] = ()

    @property
    def digits(self) -> Digits:
        """What its blocks are cut by."""
        return tuple(digit for _, digits, _ in self.places for digit in digits)

    def text(self, mesh: Mesh) -> str:
        return f"insert {_places_text(mesh, self.places)}"

    def arity(self, rank: int, count: int) -> int:
        return 2 + rank

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        written, *starts = more
        return first if not any(starts) and len(written) == len(first) else None


def _places_text(mesh: Mesh, places: Places) -> str:
    """`dim 0 at t-p(Y)*b`: where a box at start `t` begins in blocks of `b` places."""
    return ", ".join(f"dim {dim} at t-p({axes_text(mesh, digits)})*b" for dim, digits, _ in places)


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
        return resize_dim(first, self.dim, self.block)


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
        return resize_dim(first, self.dim, self.size)


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
        return resize_dim(first, self.dim, self.size)


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
        return resize_dim(first, self.dim, 1) if first[self.dim] == self.block else None
