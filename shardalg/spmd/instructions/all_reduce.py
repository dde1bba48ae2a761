"""All-reduce and reduce-scatter: the blocks of all, combined, whole or in parts."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Along, Collective, Shape
from shardalg.spmd.local import axes_text
from shardalg.spmd.shapes import scaled


@dataclass(frozen=True, slots=True)
class AllReduce(Collective):
    """Combine over the devices along `digits`."""

    digits: Digits
    combine: str = "sum"
    sent_as = "all_reduce"

    def text(self, mesh: Mesh) -> str:
        return f"all_reduce {self.combine} axes={axes_text(mesh, self.digits)}"


@dataclass(frozen=True, slots=True)
class ReduceScatter(Along, Collective):
    """Combine over `digits` and keep the own block along `dim`."""

    dim: int
    digits: Digits
    combine: str = "sum"
    sent_as = "reduce_scatter"

    def text(self, mesh: Mesh) -> str:
        axes = axes_text(mesh, self.digits)
        return f"reduce_scatter {self.combine} dim={self.dim} axes={axes}"

    @property
    def cut(self) -> tuple[int, Digits]:
        return self.dim, self.digits

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        return scaled(first, self.dim, over=parts(self.digits))
