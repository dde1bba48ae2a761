"""All-to-all: the cut moves from one dimension to another, for one or several pairs at once."""

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


@dataclass(frozen=True, slots=True)
class AllToAlls(Collective):
    """Several all-to-alls between dimensions of their own, as one exchange among all members.

    The result is that of the exchanges one after the other. A device sends each element at most
    once: `1 - 1/(m*n)` of its block instead of `2 - 1/m - 1/n`.
    """

    exchanges: tuple[AllToAll, ...]
    sent_as = "all_to_all"

    @property
    def digits(self) -> Digits:  # type: ignore[override]
        """The digits of all exchanges, those of the first one major."""
        return tuple([digit for one in self.exchanges for digit in one.digits])

    def text(self, mesh: Mesh) -> str:
        return "all_to_all " + " and ".join(
            one.text(mesh).removeprefix("all_to_all ") for one in self.exchanges
        )

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple([dim for one in self.exchanges for dim in one.dims])

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        if len({*self.dims}) < len(self.dims) or len({*self.digits}) < len(self.digits):
            raise ProgramError(f" has exchanges that share a dimension or digits: {self}.")
        for one in self.exchanges:
            first = one.result_shape(first)
        return first
