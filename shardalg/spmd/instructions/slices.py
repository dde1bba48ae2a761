"""Instructions that take a part of a local value, or write a box into it."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ProgramError
from shardalg.spmd.instruction import Along, Operator, Shape
from shardalg.spmd.local import Start, axes_text, resize_dim

Places = tuple[tuple[int, Digits, int], ...]
"""(dimension, its digits, largest start) per sharded dimension of a boxed tensor.

A start on such a dimension is clamped to `[0, largest]`. Then it counts from the own block's first
element, `p * block`; the operand has the block's size. On every other dimension it is clamped to
the dimension, as XLA does.
"""


@dataclass(frozen=True, slots=True)
class Extract(Operator):
    """Read a box of the first operand, at the starts given by the other operands.

    Elements of the box that the device's block does not contain are 0.

    Attributes:
      sizes: sizes of the box on a device.
      places: (dimension, its digits, largest start) of each sharded dimension.
      loops: the digits on each sharded loop of the node's rule.
    """

    sizes: tuple[int, ...]
    places: Places
    loops: tuple[tuple[str, Digits], ...] = ()

    @property
    def digits(self) -> Digits:
        """The digits of all sharded dimensions of the tensor that contains the box."""
        return tuple(digit for _, digits, _ in self.places for digit in digits)

    def text(self, mesh: Mesh) -> str:
        return f"extract {_places_text(mesh, self.places)}"

    def arity(self, rank: int, count: int) -> int:
        return 1 + rank

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return None if any(more) else self.sizes


@dataclass(frozen=True, slots=True)
class Insert(Operator):
    """The first operand, with the second written over the part of its box that is in the block.

    The operands are a block, the written box, and a start per dimension.

    Attributes:
      places: (dimension, its digits, largest start) of each sharded dimension.
      loops: the digits on each sharded loop of the node's rule.
    """

    places: Places
    loops: tuple[tuple[str, Digits], ...] = ()

    @property
    def digits(self) -> Digits:
        """The digits of all sharded dimensions of the tensor that contains the box."""
        return tuple(digit for _, digits, _ in self.places for digit in digits)

    def text(self, mesh: Mesh) -> str:
        return f"insert {_places_text(mesh, self.places)}"

    def arity(self, rank: int, count: int) -> int:
        return 2 + rank

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        # Starts are scalars, so their shapes are empty.
        written, *starts = more
        return first if not any(starts) and len(written) == len(first) else None


def _places_text(mesh: Mesh, places: Places) -> str:
    """Return text such as `dim 0 at t-p(Y)*b` for the place of a box in a device's block.

    t is the box's start in the whole dimension, p(Y) the partition id along axis Y, and b the size
    of a block.
    """
    return ", ".join(f"dim {dim} at t-p({axes_text(mesh, digits)})*b" for dim, digits, _ in places)


@dataclass(frozen=True, slots=True)
class DynamicSlice(Along):
    """Cut the device's own block `[p*block, (p+1)*block)` out of dimension `dim`.

    `p` is the device's partition id along `digits`.
    """

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
        """The first element after the slice."""
        return self.start + self.size

    def text(self, mesh: Mesh) -> str:
        return f"slice dim={self.dim} [{self.start}:{self.stop}]"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        # Python slices would be cut silently at the end.
        if self.stop > first[self.dim]:
            raise ProgramError(f" reads {self} of {first[self.dim]} elements.")
        return resize_dim(first, self.dim, self.size)


@dataclass(frozen=True, slots=True)
class SliceAt(Along):
    """Cut elements `[start(p), start(p) + size)` out of `dim`, with a start that differs by device.

    Each device cuts its own local value; nothing is sent.
    """

    dim: int
    start: Start
    size: int

    @property
    def digits(self) -> Digits:
        """The digits on which the start depends."""
        return self.start.all_digits

    def text(self, mesh: Mesh) -> str:
        return f"slice dim={self.dim} at {self.start.text(mesh)} size {self.size}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        return resize_dim(first, self.dim, self.size)


@dataclass(frozen=True, slots=True)
class OwnerSelect(Along):
    """Select element `index` of `dim`: the device that has it keeps it, and all others have 0.

    The result is a partial sum over all devices that hold a block.

    Attributes:
      block: number of elements of a block; digits: digits that shard the dimension.
    """

    dim: int
    index: int
    block: int
    digits: Digits

    @property
    def owner(self) -> int:
        """Partition id, along the digits, of the device that has the element."""
        return self.index // self.block

    @property
    def place(self) -> int:
        """Place of the element in its block."""
        return self.index % self.block

    def text(self, mesh: Mesh) -> str:
        axes = axes_text(mesh, self.digits)
        return f"owner_select dim={self.dim} element {self.index} of axes={axes}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        # `owner` and `place` count in blocks of this size: of a longer operand they would be wrong.
        return resize_dim(first, self.dim, 1) if first[self.dim] == self.block else None
