"""Indices of gathers and scatters, counted from the own block on, and what they select."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.local import axes_text


@dataclass(frozen=True, slots=True)
class Offset(Attributes):
    """Add `p*scale + more` to an integer value, which is clamped to `clamp` first.

    To all of it, or, with `component`, to the slice of the last dimension with that number (gather
    and scatter indices). Where the value was outside of `within` it becomes -1: no index.
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
    """Keep of a gathered value what the own block holds; operands are the value and its indices.

    Zero where a component of the shifted indices misses `[0, block)`; on the first member, `fill`
    where the global index misses `[0, size)`.

    Attributes:
      components: (component, digits, block, size).
      margins: places before the block from which each component counts, none if it is empty.
      batch_dims: the value's dimensions that the indices span.
      fill: None where nothing is filled in.
    """

    components: tuple[tuple[int, Digits, int, int], ...]
    batch_dims: tuple[int, ...]
    fill: complex | None = None
    margins: tuple[int, ...] = ()

    @property
    def counted(self) -> tuple[tuple[tuple[int, Digits, int, int], int], ...]:
        """Every component with its margin."""
        margins = self.margins or (0,) * len(self.components)
        return tuple(zip(self.components, margins, strict=True))

    @property
    def digits(self) -> Digits:
        """What the blocks of all components are cut by."""
        return tuple(digit for _, digits, _, _ in self.components for digit in digits)

    def text(self, mesh: Mesh) -> str:
        held = (
            f"component {component} in [0,{block})" for component, _, block, _ in self.components
        )
        return "mask_indexed " + ", ".join(held)

    def arity(self, rank: int, count: int) -> int:
        return 2
