"""All-to-all: the cut moves from one dimension to another."""

from __future__ import annotations

from dataclasses import dataclass

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ProgramError
from shardalg.spmd.instruction import Collective, Shape
from shardalg.spmd.local import axes_text
from shardalg.spmd.shapes import scaled


@dataclass(frozen=True, slots=True)
class AllToAll(Collective):
    """Split `split_dim` and concatenate along `concat_dim` over `digits`.

    They leave the minor end of the one in this order and reach that of the other in the order
    `arriving`; () is the same.
    """

    split_dim: int
    concat_dim: int
    digits: Digits
    arriving: Digits = ()
    sent_as = "all_to_all"

    def text(self, mesh: Mesh) -> str:
        axes = axes_text(mesh, self.digits)
        arriving = f" as {axes_text(mesh, self.arriving)}" if self.arriving else ""
        return f"all_to_all split={self.split_dim} concat={self.concat_dim} axes={axes}{arriving}"

    @property
    def dims(self) -> tuple[int, ...]:
        return self.split_dim, self.concat_dim

    @property
    def cut(self) -> tuple[int, Digits]:
        return self.split_dim, self.digits

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        n, arriving = parts(self.digits), self.arriving or self.digits
        # the order of digits says in which order pieces stand; they are the same ones
        if sorted(self.digits) != sorted(arriving):
            raise ProgramError(f" sends along {self.digits} what arrives along {arriving}.")
        return scaled(scaled(first, self.split_dim, over=n), self.concat_dim, times=n)
