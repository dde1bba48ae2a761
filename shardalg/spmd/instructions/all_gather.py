"""All-gather: everybody gets the blocks of all."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.spmd.instruction import Along, Collective, Shape
from shardalg.spmd.local import axes_text
from shardalg.spmd.shapes import scaled


@dataclass(frozen=True, slots=True)
class AllGather(Along, Collective):
    """Concatenate the blocks of the devices along `digits` (minor on `dim`)."""

    dim: int
    digits: Digits
    sent_as = "all_gather"

    def text(self, mesh: Mesh) -> str:
        return f"all_gather dim={self.dim} axes={axes_text(mesh, self.digits)}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        return scaled(first, self.dim, times=parts(self.digits))
