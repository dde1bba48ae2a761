"""Instructions whose effect depends on the place: masks, choices between pieces, first members.

They also shift the indices of gathers and scatters to count from the device's own block, and mask
the selected values.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Along, Attributes, Operator, Shape
from shardalg.spmd.local import Start, axes_text, common_shape


@dataclass(frozen=True, slots=True)
class Offset(Attributes):
    """Add `p*scale + more` to an integer value, which is clamped to `clamp` first.

    With `component`, only the slice of the last dimension with this number is shifted (gather and
    scatter indices). Values outside `within` become -1, which is no index.
    """

    digits: Digits
    scale: int
    component: int | None = None
    clamp: tuple[int, int] | None = None
    more: int = 0
    within: tuple[int, int] | None = None

    def text(self, mesh: Mesh) -> str:
        more = f"{self.more:+d}" if self.more else ""
        component = "" if self.component is None else f" on component {self.component}"
        return f"offset p({axes_text(mesh, self.digits)})*{self.scale}{more}{component}"


@dataclass(frozen=True, slots=True)
class MaskIndexed(Attributes):
    """Mask of a gather from a sharded operand: zero for each element of another device's block.

    The operands are the gathered value, and its indices counted from the device's block. An element
    is kept if each component of its index is in `[0, block + margin)`. If the global index is not
    in `[0, size)`, the element is `fill` on the first device of the group, and zero on the others.

    Attributes:
      components: (component of the index, digits that shard the indexed dimension, block, size).
      batch_dims: the dimensions of the gathered value that the batch of indices has.
      fill: the number for indices outside of the tensor; None if they need none.
      margins: per component, the number of places before the device's block at which its index
        counts as 0; () means no such places.
    """

    components: tuple[tuple[int, Digits, int, int], ...]
    batch_dims: tuple[int, ...]
    fill: complex | None = None
    margins: tuple[int, ...] = ()

    @property
    def counted(self) -> tuple[tuple[tuple[int, Digits, int, int], int], ...]:
        """Each entry of `components` with its margin, which is 0 if there are no margins."""
        # No margins means that every component counts from the block's first place.
        margins = self.margins or (0,) * len(self.components)
        return tuple(zip(self.components, margins, strict=True))

    @property
    def digits(self) -> Digits:
        """Digits that shard the blocks of all components."""
        return tuple(digit for _, digits, _, _ in self.components for digit in digits)

    def text(self, mesh: Mesh) -> str:
        """Return the attributes as text: the range of each component of an index in a block."""
        ranges = (
            f"component {component} in [0,{block})" for component, _, block, _ in self.components
        )
        return "mask_indexed " + ", ".join(ranges)

    def arity(self, rank: int, count: int) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class Mask(Along):
    """Along `dim`, places `x` with `p*block + x >= size` become the identity of `fill`.

    `fill` is a way to combine: "sum" fills with 0, "max" with the lowest number.
    """

    dim: int
    digits: Digits
    block: int
    size: int
    fill: str = "sum"

    def text(self, mesh: Mesh) -> str:
        place = f"p({axes_text(mesh, self.digits)})*{self.block}+x"
        return f"mask dim={self.dim} where {place} >= {self.size} with {self.fill}"

    @property
    def padding(self) -> str:
        return self.fill


@dataclass(frozen=True, slots=True)
class MaskAt(Along):
    """A mask of places in a device's buffer that have no element of the dimension `dim`.

    Place `x` has element `start(p) + x`, where p is the device's partition id. If this number is
    outside `[0, size)`, the place is filled: with the identity of the reduction `fill` (0 for
    "sum"), or with the second operand, a scalar, if `fill` is None.
    """

    dim: int
    start: Start
    size: int
    fill: str | None = "sum"
    # The second operand is an element of the result, so it has the type of the first one.
    of_one_type = True

    @property
    def digits(self) -> Digits:
        """The digits on which the start depends."""
        return self.start.all_digits

    def text(self, mesh: Mesh) -> str:
        outside = f"{self.start.text(mesh)}+x is outside [0,{self.size})"
        return f"mask dim={self.dim} where {outside}" + (f" with {self.fill}" if self.fill else "")

    @property
    def padding(self) -> str | None:
        return self.fill

    def arity(self, rank: int, count: int) -> int:
        return 1 + (self.fill is None)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return None if any(more) else first


@dataclass(frozen=True, slots=True)
class Choose(Along, Operator):
    """A device's block of a concatenation along `dim`, chosen from a piece of each operand.

    All pieces are as long as the block. Place `x` of the block is element `start(p) + x` of the
    concatenation, and is taken from the piece of the operand that contains this element. Places
    beyond the last operand hold garbage.

    Attributes:
      sizes: the global size of each operand along `dim`.
      loops: the digits on each sharded loop of the node's rule.
    """

    dim: int
    start: Start
    sizes: tuple[int, ...]
    loops: tuple[tuple[str, Digits], ...] = ()
    of_one_type = True

    @property
    def digits(self) -> Digits:
        """The digits on which the start depends."""
        return self.start.all_digits

    @property
    def ends(self) -> tuple[int, ...]:
        """The index behind each tensor's last element in the concatenation of all tensors."""
        return tuple(accumulate(self.sizes))

    def text(self, mesh: Mesh) -> str:
        ends = ", ".join(map(str, self.ends))
        return f"choose dim={self.dim} by {self.start.text(mesh)}+x, ends {ends}"

    def arity(self, rank: int, count: int) -> int:
        return len(self.sizes)

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return common_shape((first, *more))


@dataclass(frozen=True, slots=True)
class FirstMember(Attributes):
    """The value on the device with partition id 0 along `digits`, and an identity elsewhere.

    It is the identity of `combine`.
    """

    digits: Digits
    combine: str = "sum"

    def text(self, mesh: Mesh) -> str:
        return f"first_member axes={axes_text(mesh, self.digits)}"
