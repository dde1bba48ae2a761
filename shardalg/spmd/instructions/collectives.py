"""All-gather: everybody gets the blocks of all.

All-reduce and reduce-scatter: the blocks of all, combined, whole or in parts.

All-to-all: the cut moves from one dimension to another, for one or several pairs at once.

Collective permutes: whole blocks change places, or parts of the neighbours' are fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.halos.classes import Runs
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ProgramError
from shardalg.spmd.instruction import Along, Collective, Shape
from shardalg.spmd.local import Start, axes_text, common_shape, scale_dim


@dataclass(frozen=True, slots=True)
class AllGather(Along, Collective):
    """Concatenate the blocks of the devices along `digits` (minor on `dim`)."""

    dim: int
    digits: Digits
    sent_as = "all_gather"

    def text(self, mesh: Mesh) -> str:
        return f"all_gather dim={self.dim} axes={axes_text(mesh, self.digits)}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        return scale_dim(first, self.dim, times=parts(self.digits))


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
        return scale_dim(first, self.dim, over=parts(self.digits))


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
        return scale_dim(scale_dim(first, self.split_dim, over=n), self.concat_dim, times=n)


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
        return common_shape((first, *more))
