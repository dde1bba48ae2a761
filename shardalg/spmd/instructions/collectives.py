"""Collectives: instructions that move blocks between the devices of a group.

An all-gather gives every device the blocks of all. An all-reduce or a reduce-scatter combines them,
and returns the result whole or in parts. Both may move several dimensions at once. An all-to-all
moves a split from one dimension to another, for one or several pairs at once. A permute moves whole
blocks, and a halo exchange brings parts of other devices' blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.halos.classes import Runs
from shardalg.algebra.mesh import Mesh
from shardalg.errors import ProgramError
from shardalg.spmd.instruction import Along, Collective, Shape
from shardalg.spmd.local import Start, axes_text, common_shape, scale_dim


@dataclass(frozen=True, slots=True)
class AllGather(Along, Collective):
    """Concatenate along `dim` the blocks of the devices that differ in `digits` only.

    The digits are the minor ones of those that shard the dimension.
    """

    dim: int
    digits: Digits
    sent_as = "all_gather"

    def text(self, mesh: Mesh) -> str:
        return f"all_gather dim={self.dim} axes={axes_text(mesh, self.digits)}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        return scale_dim(first, self.dim, times=parts(self.digits))


@dataclass(frozen=True, slots=True)
class AllReduce(Collective):
    """Combine the values of the devices that differ in `digits` only, by a sum or by `combine`."""

    digits: Digits
    combine: str = "sum"
    sent_as = "all_reduce"

    def text(self, mesh: Mesh) -> str:
        return f"all_reduce {self.combine} axes={axes_text(mesh, self.digits)}"


@dataclass(frozen=True, slots=True)
class ReduceScatter(Along, Collective):
    """Combine the values of the devices along `digits`; each device keeps its block of the result.

    The blocks divide dimension `dim`.
    """

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


AlongDims = tuple[tuple[int, Digits], ...]
"""(dimension, digits) pairs."""


class _OfSeveralDims(Collective):
    """Base of the collectives that move several dimensions at once, each along its own digits."""

    __slots__ = ()
    along: AlongDims

    @property
    def digits(self) -> Digits:  # type: ignore[override]
        """The digits of all pairs in one tuple; those of the first pair are the major ones."""
        return tuple([digit for _, digits in self.along for digit in digits])

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple([dim for dim, _ in self.along])

    def with_digits(self, rename: Callable[[Digits], Digits]) -> Collective:
        kind: Any = self
        along = tuple([(dim, rename(digits)) for dim, digits in self.along])
        return cast(Collective, replace(kind, along=along))

    def _along_text(self, mesh: Mesh) -> str:
        """Return the dimensions with their axes, as a program is printed."""
        return " and ".join(f"dim={dim} axes={axes_text(mesh, ds)}" for dim, ds in self.along)

    def _check_distinct(self) -> None:
        """Raise unless no two pairs share a dimension or a digit."""
        if len({*self.dims}) < len(self.dims) or len({*self.digits}) < len(self.digits):
            raise ProgramError(f" has pairs that share a dimension or digits: {self}.")


@dataclass(frozen=True, slots=True)
class AllGathers(_OfSeveralDims):
    """Gather several dimensions, each along its own digits, as one collective.

    The result is that of one `AllGather` per pair. Over `m` and `n` devices it sends the same
    `m*n - 1` blocks. On a torus all its links carry them at the same time.

    Attributes:
      along: (dimension, digits) pairs; the digits are the minor ones of the dimension.
    """

    along: AlongDims
    sent_as = "all_gather"

    def text(self, mesh: Mesh) -> str:
        return f"all_gather {self._along_text(mesh)}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        self._check_distinct()
        for dim, digits in self.along:
            first = scale_dim(first, dim, times=parts(digits))
        return first


@dataclass(frozen=True, slots=True)
class ReduceScatters(_OfSeveralDims):
    """Combine over all digits and keep the own block of several dimensions, as one collective.

    Attributes:
      along: (dimension, digits) pairs; the block along a dimension has the partition id of its
        digits.
    """

    along: AlongDims
    combine: str = "sum"
    sent_as = "reduce_scatter"

    def text(self, mesh: Mesh) -> str:
        return f"reduce_scatter {self.combine} {self._along_text(mesh)}"

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        """Return the shape in which each dimension has the size of one block."""
        self._check_distinct()
        for dim, digits in self.along:
            # All devices run one program, so their blocks must have one size.
            if first[dim] % parts(digits):
                count = parts(digits)
                what = f" cuts dimension {dim} of size {first[dim]} into {count} blocks."
                raise ProgramError(what)
            first = scale_dim(first, dim, over=parts(digits))
        return first


GATHERS = (AllGather, AllGathers)
"""The gathers of one dimension, and of several."""


@dataclass(frozen=True, slots=True)
class AllToAll(Collective):
    """Split `split_dim` and concatenate along `concat_dim` over `digits`.

    The digits are the minor ones of `split_dim`, in this order. They become the minor ones of
    `concat_dim` in the order `arriving`; () means the same order.
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
        """Return the shape of the block after the exchange.

        One dimension is divided by the number of devices of a group, and another one multiplied by
        it.
        """
        n, arriving = parts(self.digits), self.arriving or self.digits
        # Only the order may differ: along other digits a piece would have no receiver in the group.
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
        """The digits of all exchanges, beginning with the first exchange's as the major ones."""
        return tuple([digit for one in self.exchanges for digit in one.digits])

    def text(self, mesh: Mesh) -> str:
        return "all_to_all " + " and ".join(
            one.text(mesh).removeprefix("all_to_all ") for one in self.exchanges
        )

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple([dim for one in self.exchanges for dim in one.dims])

    def with_digits(self, rename: Callable[[Digits], Digits]) -> Collective:
        """Return the same exchanges along renamed digits."""
        # An `arriving` of () means the same order, and stays () because it has no digit to rename.
        return AllToAlls(
            tuple(
                [
                    replace(one, digits=rename(one.digits), arriving=rename(one.arriving))
                    for one in self.exchanges
                ]
            )
        )

    def result_shape(self, first: Shape, *more: Shape) -> Shape:
        """Return the shape after all exchanges.

        Raises:
          ProgramError: two exchanges share a dimension or digits.
        """
        if len({*self.dims}) < len(self.dims) or len({*self.digits}) < len(self.digits):
            raise ProgramError(f" has exchanges that share a dimension or digits: {self}.")
        for one in self.exchanges:
            first = one.result_shape(first)
        return first


@dataclass(frozen=True, slots=True)
class RaggedAllToAll(Collective):
    """Send slices of the first operand to the devices along `digits`, at run-time offsets.

    The operands are those of `jax.lax.ragged_all_to_all`: the rows that are sent, the array that
    they are written into, then four vectors with K entries: the offset and the size of each slice,
    its offset on the receiver, and the sizes that are received. Of n devices, member k receives
    the slices `k*K/n` to `(k+1)*K/n`.

    Attributes:
      load: the load factor of its price (`costs/kernels/expert_load.py`), or "worst".
    """

    digits: Digits
    load: float | str = 1.0
    sent_as = "ragged_all_to_all"

    def text(self, mesh: Mesh) -> str:
        return f"ragged_all_to_all axes={axes_text(mesh, self.digits)}"

    def arity(self, rank: int, count: int) -> int:
        return 6

    def followed(self, count: int) -> Sequence[int]:
        return (1,)

    def moving(self, results: int) -> int | None:
        return 2

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        """Return the shape of the array that receives the slices; None if operands do not fit.

        The operands are those of `jax.lax.ragged_all_to_all`. The rows that are sent must have the
        row shape of the receiving array, and the four vectors of offsets and sizes must be equally
        long.

        Args:
          first: the shape of the rows that are sent.
          more: the shape of the receiving array, then those of the four vectors.
        """
        into, *vectors = more
        count = vectors[0][0] if vectors[0] else 0
        fits = first[1:] == into[1:] and all(shape == (count,) for shape in vectors)
        if fits and count % parts(self.digits):
            raise ProgramError(f" has {count} slices for {parts(self.digits)} devices.")
        return into if fits else None


Pairs = tuple[tuple[int, int], ...]
"""(source, target) positions."""


@dataclass(frozen=True, slots=True)
class CollectivePermute(Collective):
    """The device at position `source` sends its block to position `target`, for each pair.

    The two shardings differ in `digits`.
    """

    digits: Digits
    pairs: tuple[tuple[int, int], ...]
    sent_as = "collective_permute"

    def text(self, mesh: Mesh) -> str:
        return f"collective_permute axes={axes_text(mesh, self.digits)}"

    @property
    def stays(self) -> bool:
        return all(source == target for source, target in self.pairs)

    @property
    def routes(self) -> tuple[tuple[Pairs, ...], ...]:
        # The search for a reshard path makes permutes without pairs, which it does not need.
        return ((self.pairs,),) if self.pairs else ()


@dataclass(frozen=True, slots=True)
class Reading:
    """The block of the device whose partition id is `source(p)`: a result of a `HaloExchange`.

    Received elements are valid only at `places` (lower and upper place in the block), and among the
    `length` elements from `wanted(p)` on. All others are garbage.

    Attributes:
      operand: number of the exchange's operand that it is a block of.
      permutes: per permute of the exchange, the (source, target) positions for this result.
        A device that is no target keeps its own block.
    """

    operand: int
    source: Start
    permutes: tuple[Pairs | Runs, ...]
    wanted: Start
    length: int
    places: tuple[int, int]


@dataclass(frozen=True, slots=True)
class HaloExchange(Along, Collective):
    """An exchange by permutes in which devices receive blocks of others; each block is a result.

    Dimension `dim` is divided into blocks along `digits`. All operands have the same length along
    `dim`. In one permute, a device sends its block of one operand. A permute names no position
    twice as a source, or twice as a target.

    Attributes:
      readings: per result, the operand and the device whose block it is, and the permutes that send
        it.
    """

    dim: int
    digits: Digits
    readings: tuple[Reading, ...]
    sent_as = "collective_permute"
    # Which operand a device sends in a permute can depend on the device. A permute has one buffer,
    # so all operands need one type.
    of_one_type = True

    def text(self, mesh: Mesh) -> str:
        sources = " and ".join(reading.source.text(mesh) for reading in self.readings)
        return f"halo_exchange dim={self.dim} axes={axes_text(mesh, self.digits)} of p = {sources}"

    @property
    def permutes(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """The (source, target, operand) triples of each permute, for all results together.

        Each result of the exchange is described by a reading, which lists its pairs per permute.
        """
        # Number k of every reading's permutes belongs to permute k of the exchange.
        permutes = zip(*(reading.permutes for reading in self.readings), strict=True)
        return tuple(
            tuple(
                # Readings may share an edge, which is sent once.
                dict.fromkeys(
                    (*pair, reading.operand)
                    for reading, pairs in zip(self.readings, permute, strict=True)
                    for pair in pairs
                )
            )
            for permute in permutes
        )

    @property
    def routes(self) -> tuple[tuple[Pairs | Runs, ...], ...]:
        return tuple(zip(*(reading.permutes for reading in self.readings), strict=True))

    @property
    def sends(self) -> int:
        """The number of permutes; each result is selected from the blocks that they bring."""
        return len(self.readings[0].permutes)

    @property
    def choices(self) -> int:
        """The number of operands, of which a device sends one block in each permute."""
        return 1 + max(reading.operand for reading in self.readings)

    def arity(self, rank: int, count: int) -> int:
        return self.choices

    def followed(self, count: int) -> Sequence[int]:
        return [reading.operand for reading in self.readings]

    def result_shape(self, first: Shape, *more: Shape) -> Shape | None:
        return common_shape((first, *more))
