"""Exchanges: every device receives an interval of a dimension that is partitioned into blocks.

Round `j` brings each device the block `floor(start / block) + j`. The interval is one slice of the
concatenated rounds. A halo of a convolution, a slice, a pad, a reversal, a concatenation and a
reshape are all such intervals. A halo exchange between neighbours ("hops") is the case in which the
start moves by one block per partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digit, Digits, overlap, partition_ids, parts
from shardalg.algebra.draw_halos import DimensionDrawing, PartitionRow, halo_canvas
from shardalg.algebra.halos.halo import Halo
from shardalg.algebra.halos.intervals import Interval, extremes, residues
from shardalg.algebra.halos.transfers import BlockReader, Permute, Round, Transfer, transfers
from shardalg.algebra.offset import block_size
from shardalg.errors import ShardingError
from shardalg.svg import drawing_card
from shardalg.tables import MOST_ROWS, Table, card

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Exchange:
    """Communication after which every device has its interval of a partitioned dimension.

    Devices receive whole blocks or parts of blocks, in rounds (see the module's docstring).

    Attributes:
      want: the interval; its variables are the names in `ids`.
      size: elements of the dimension; elements outside `[0, size)` are never sent.
      block: elements per block; the device with partition id k holds `[k*block, (k+1)*block)`.
      held: digits of the partition id of the dimension.
      ids: digits of the partition ids in the start of `want`.
      devices: number of positions in the mesh.
      lowest: None if round 0 brings the block in which the interval starts. If it is a number,
        round 0 brings block `k + lowest` to the device with partition id k. Each round is then one
        permute between devices at one distance.

    Raises:
      ShardingError: too few blocks; a partition id without digits; digits outside the mesh, or two
        digits of `held` that overlap.
    """

    want: Interval
    size: int
    block: int
    held: Digits
    ids: tuple[tuple[str, Digits], ...]
    devices: int
    lowest: int | None = None

    def __post_init__(self) -> None:
        """Raise ShardingError unless devices of the mesh hold all elements of the dimension."""
        undefined = sorted(set(self.want.start.variables) - {name for name, _ in self.ids})
        if undefined or self.size < 1 or self.block * parts(self.held) < self.size:
            raise ShardingError(
                f"an exchange of {self.size} elements in {parts(self.held)} blocks of {self.block} "
                f"for {self.want}: the blocks must hold all elements, at least one, and every "
                f"partition id of the start needs digits (missing: {undefined})."
            )
        # Digits of `held` must not overlap: otherwise some block would have no holder.
        digits = (*self.held, *(digit for _, row in self.ids for digit in row))
        outside = [d for d in digits if d.stride * d.size > self.devices]
        overlapping = [pair for pair in combinations(self.held, 2) if overlap(*pair)]
        if outside or overlapping:
            raise ShardingError(
                f"an exchange over {self.devices} devices: {outside or overlapping[0]} "
                f"{'reach beyond them' if outside else 'split the dimension twice'}."
            )

    def by_neighbours(self) -> Exchange:
        """Return the same exchange with rounds that count from the device's own block.

        Intervals can drift against the blocks, as in a convolution without padding: the distance
        from a device's own block to the block where its interval starts differs between devices.
        Rounds that count from the start of the interval then take more than one permute each.
        """
        # A start that does not depend on the device's own block has no name for it yet.
        partition_name = next(
            (name for name, digits in self.ids if digits == self.held), "own block"
        )
        ids = dict(self.ids) | {partition_name: self.held}
        lowest = int((self._starts // self.block - self._held).min())
        return replace(self, ids=tuple(ids.items()), lowest=lowest)

    @property
    def _own(self) -> str:
        """Name in `ids` of the partition id along the exchanged dimension."""
        return next(name for name, digits in self.ids if digits == self.held)

    @property
    def first(self) -> Index:
        """Number of the block that a device receives in round 0, as a function of partition ids."""
        start = self.want.start
        if self.lowest is None:
            return Index(start.terms, start.constant, start.div * self.block)
        return Index.of(self._own) + self.lowest

    @property
    def offset(self) -> Index:
        """Start of a device's interval, in elements from the start of its block of round 0."""
        start = self.want.start
        if self.lowest is None:
            return start % self.block
        linear = Index(start.terms, start.constant)
        return (linear - self.first * (self.block * start.div)) // start.div

    @cached_property
    def rests(self) -> frozenset[int]:
        """The different values that `offset` has on the devices of the mesh."""
        if self.lowest is None:
            return residues(self.want.start, self.block, self.ids, self.devices)
        return frozenset((self._starts - self._first * self.block).tolist())

    def stays(self, number: int) -> bool:
        """Return whether every device reads its own block in round `number`.

        Such a round needs no communication.
        """
        return bool((self._sources(number) == self._positions).all())

    def shift(self, position: int) -> int:
        """Return the position in its buffer where the interval of a device starts.

        The buffer has the elements that the device receives: the range `[lower, upper)` of each
        round's block, one after the other. The shift is `offset` minus the `lower` of the first
        round, which is the smallest offset.

        Args:
          position: the device's position in the mesh.
        """
        if not self.want.length:
            return 0  # an empty slice may start anywhere
        offset = self._starts[position] - self._first[position] * self.block
        return int(offset) - min(self.rests)

    def source(self, position: int, number: int) -> int | None:
        """Return the position of the device that sends to the device at `position` in a round.

        It holds the block that the round brings. None if there is no such block.
        """
        source = int(self._sources(number)[position])
        return None if source < 0 else source

    @property
    def exists(self) -> bool:
        """True if all intervals are inside the dimension, so that nothing has to be masked."""
        first, last = extremes(self.want.start, self.ids, self.devices)
        return first >= 0 and last + self.want.length <= self.size

    @property
    def buffer(self) -> int:
        """Number of elements of the buffer into which a device receives blocks (see `shift`).

        Blocks that no round sends are included: they hold no element of any interval.
        """
        return max(self.rests) - min(self.rests) + self.want.length

    def place(self, number: int, lower: int) -> int:
        """Return the place of an element in the buffer into which a device receives blocks.

        The blocks of the rounds are one after the other in this buffer (see `shift`).

        Args:
          number: the round in which the element arrives.
          lower: the position of the element in its block.
        """
        return number * self.block + lower - min(self.rests)

    @property
    def elements(self) -> int:
        """Number of elements along the dimension that a device sends, over all permutes."""
        return sum(transfer.elements for transfer in self.transfers)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """The transfers, each of one or more permutes, that deliver the blocks of all rounds."""
        return transfers((BlockReader(self.rounds, self.block),))

    @cached_property
    def hop_elements(self) -> int:
        """Number of elements that a device sends if only neighbours in the mesh send to each other.

        The elements then travel block by block ("hops"). Every device receives the same number of
        elements, the most that any device needs.
        """
        start, end = self._clipped
        own_start, some = self._held * self.block, start < end
        if not some.any():
            return 0
        left, right = (
            int((own_start - start)[some].max()),
            int((end - own_start - self.block)[some].max()),
        )
        # If every interval ends before the device's own block (right < -block), the left margin
        # need not include the elements after the last end; likewise on the other side.
        unread = min(self.block + right, 0), min(self.block + left, 0)
        return max(left + unread[0], 0) + max(right + unread[1], 0)

    @property
    def gather_elements(self) -> int:
        """Number of elements that a device sends if every device gathers all other blocks."""
        return (parts(self.held) - 1) * self.block

    @property
    def cheapest(self) -> str:
        """The method by which a device sends the fewest elements: "rounds", "hops" or "gather".

        See `elements`, `hop_elements` and `gather_elements`. For equal numbers, the earlier method
        in this order is chosen.
        """
        prices = {
            "rounds": self.elements,
            "hops": self.hop_elements,
            "gather": self.gather_elements,
        }
        return min(prices, key=prices.__getitem__)

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds in which some device receives a part of its interval, in order; at least one.

        Long runs of rounds in which no block exists are left out (`worth_sending`).
        """
        # A round that no interval reaches into sends nothing. Intervals outside of the dimension
        # have no elements, so they need no round.
        start, end = self._clipped
        first, last = start // self.block - self._first, (end - 1) // self.block - self._first
        some = start < end
        spans = set(zip(first[some].tolist(), last[some].tolist(), strict=True))
        beyond = (self._starts + max(self.want.length, 1) - 1) // self.block
        most = int((beyond - self._first).max())
        numbers = worth_sending({j for a, b in spans for j in range(a, b + 1)}, most)
        return tuple(map(self._round, numbers))

    def _round(self, number: int) -> Round:
        """Return round `number`: the part of the block that is sent, and its permutes."""
        block = self._first + number
        # The buffer has places for elements that do not exist, too, so that a slice of it is the
        # interval on every device.
        offset = self._starts - block * self.block
        layout = piece(offset, offset + self.want.length, self.block)
        # Padding is not sent: `_clipped` cuts off the elements outside of the dimension.
        start, end = self._clipped
        source = self._sources(number)
        lower, upper = start - block * self.block, end - block * self.block
        receives = (source >= 0) & (np.maximum(lower, 0) < np.minimum(upper, self.block))
        keeps_own = receives & (source == self._positions)
        targets = np.flatnonzero(receives & ~keeps_own)
        # A block that several devices want takes as many permutes: a source sends once in each.
        permutes = []
        for members in once_each(source[targets].tolist(), targets.tolist()):
            pairs = tuple((int(source[t]), int(t)) for t in members)
            permutes.append(Permute(pairs, *piece(lower[members], upper[members], self.block)))
        return Round(number, *layout, tuple(permutes), bool(keeps_own.any()))

    def picture(self) -> DimensionDrawing:
        """Return the data of the drawing that `draw` makes.

        Raises:
          ShardingError: the dimension is not partitioned over all devices, in their order.
        """
        # The drawing has one row per device, and one partition id for all of them.
        all_devices = (Digit(1, self.devices),)
        if self.held != all_devices or any(digits != all_devices for _, digits in self.ids):
            raise ShardingError(
                f"an exchange of a dimension held in {self.held} over {self.devices} devices: only "
                f"{all_devices} is drawn, one row of devices. Build it by `shardalg.exchange`."
            )
        intervals = [self.want.at({name: p for name, _ in self.ids}) for p in range(self.devices)]
        rows = tuple(PartitionRow(p, *span) for p, span in enumerate(intervals))
        note = (
            f"p reads {self.want.length} elements from {self.want.quotient!r} on;   a device sends "
            f"{self.elements} in rounds, {self.hop_elements} by hops, {self.gather_elements} to "
            "gather"
        )
        return DimensionDrawing(self.size, self.block, rows, note)

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks: the elements that each device reads, and the rounds."""
        columns = ("round", "permutes", "elements", "own_block_is_read")
        rows = tuple(
            (one.number, len(one.permutes), sum(p.upper - p.lower for p in one.permutes), one.own)
            for one in self.rounds[:MOST_ROWS]
        )
        table = Table(columns, rows)
        title = (
            f"{self.want.length} of {self.size} elements for each of {self.devices} devices. A "
            f"device sends {self.elements} elements in rounds, {self.hop_elements} by hops, "
            f"{self.gather_elements} to gather all; cheapest: {self.cheapest}."
        )
        # An exchange along a part of the mesh has no drawing with one row per device.
        all_devices = (Digit(1, self.devices),)
        if self.held != all_devices or any(digits != all_devices for _, digits in self.ids):
            return card(title, table)
        return drawing_card(title, halo_canvas(self.picture()), table)

    def draw(self) -> Figure:
        """Draw each partition's block and the elements it reads from others, as `Halo.draw` does.

        Raises:
          ShardingError: the dimension is not partitioned over all devices, in their order.
        """
        title = f"{self.want.length} of {self.size} elements for each of {self.devices} partitions"
        return self._drawn({title: self})

    _drawn = staticmethod(Halo._drawn)

    @cached_property
    def _positions(self) -> np.ndarray:
        """Positions of all devices: 0, 1, 2, ...."""
        return np.arange(self.devices)

    @cached_property
    def _held(self) -> np.ndarray:
        """Number of the block that each device holds."""
        return partition_ids(self.held, self._positions)

    @cached_property
    def _starts(self) -> np.ndarray:
        """Start of each device's interval."""
        return self.starts(self._positions)

    def starts(self, positions: np.ndarray) -> np.ndarray:
        """Return the first element of the interval that each of some devices needs.

        Args:
          positions: the positions of the devices in the mesh.
        """
        ids = {name: partition_ids(digits, positions) for name, digits in self.ids}
        start, _ = self.want.at(ids)
        return np.broadcast_to(start, positions.shape)

    @cached_property
    def _first(self) -> np.ndarray:
        """Number of the block that each device receives in round 0, as an array."""
        if self.lowest is not None:
            return self._held + self.lowest
        return self._starts // self.block

    @cached_property
    def _clipped(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of each device's interval, cut off at the ends of the dimension."""
        ends = np.minimum(self._starts + self.want.length, self.size)
        return np.maximum(self._starts, 0), ends

    def _sources(self, number: int) -> np.ndarray:
        """Return, for each device, the position of the device that sends to it in round `number`.

        The sender holds the block that the device receives in this round. Of all devices with this
        block, it is the one that differs from the receiver only in the digits `held`. -1 if the
        block does not exist.
        """
        block = self._first + number
        # The block's number gives the digits `held`; the sender has all others in common with the
        # device. The remainders of the number are its digits from the minor one on.
        source, remainder = self._positions.copy(), block
        for digit in reversed(self.held):
            now = self._positions // digit.stride % digit.size
            source += (remainder % digit.size - now) * digit.stride
            remainder = remainder // digit.size
        return np.where((block >= 0) & (block < parts(self.held)), source, -1)


def exchange(want: Interval, *, size: int, count: int, block: int | None = None) -> Exchange:
    """Return the exchange that brings each of `count` devices in a row its interval `want`.

    Args:
      want: the interval, as a function of the partition id `p`.
      size: elements of the dimension.
      block: elements that a device holds; `ceil(size / count)` if not given.

    Raises:
      ShardingError: no devices, or blocks that are too small for all elements.

    >>> from shardalg.algebra.affine import Index
    >>> shifted = exchange(Interval(Index.of("p") * 3 - 1, 4), size=12, count=4)
    >>> [(r.number, r.lower, r.upper, r.own) for r in shifted.rounds]
    [(0, 2, 3, False), (1, 0, 3, True)]
    >>> shifted.rounds[0].permutes
    (Permute(pairs=((0, 1), (1, 2), (2, 3)), lower=2, upper=3),)
    >>> shifted.elements, shifted.hop_elements, shifted.gather_elements
    (1, 1, 9)
    """
    if count < 1:
        raise ShardingError(f"an exchange over count={count} devices: give at least one.")
    held = (Digit(1, count),)
    names = want.start.variables or ("p",)
    ids = tuple((name, held) for name in names)
    return Exchange(want, size, block or block_size(size, count), held, ids, count)


def worth_sending(full: set[int], last: int) -> list[int]:
    """Return the numbers of the rounds to send, of the rounds 0 to `last`.

    One or two rounds between full ones, before the first or after the last, are sent too. Leaving
    them out leaves a gap in the buffer, and filling a gap costs an instruction. Longer runs are
    left out, because a concatenation of n tensors has about n * n rounds, of which few are full.

    Args:
      full: rounds in which some device reads an element that exists.

    >>> worth_sending({0, 3, 9}, 11)
    [0, 1, 2, 3, 9, 10, 11]
    """
    if not full:
        return [0]
    numbers = set(full)
    for before, after in pairwise([-1, *sorted(full), last + 1]):
        if after - before <= 3:
            numbers.update(range(before + 1, after))
    return sorted(numbers - {last + 1})


def piece(lower: np.ndarray, upper: np.ndarray, block: int) -> tuple[int, int]:
    """Return the smallest range of elements of a block that contains all given ranges.

    The ranges are first cut off at the ends of the block. (0, 0) if all of them are then empty.

    Args:
      lower, upper: the ranges `[lower, upper)`, as arrays.
      block: number of elements of the block.
    """
    low, high = np.maximum(lower, 0), np.minimum(upper, block)
    some = low < high
    return (int(low[some].min()), int(high[some].max())) if some.any() else (0, 0)


def once_each(sources: Iterable[int], targets: Iterable[int]) -> list[list[int]]:
    """Return the targets in groups, so that no group has two targets with the same source.

    Each group can then be one permute. The number of groups is as small as possible. Every target
    receives once in a round, so the k-th target of a source goes to group k.
    """
    # Greedy is optimal here: the number of groups is the largest number of targets of a source.
    count_of: Counter[int] = Counter()
    groups: list[list[int]] = []
    for source, target in zip(sources, targets, strict=True):
        if count_of[source] == len(groups):
            groups.append([])
        groups[count_of[source]].append(target)
        count_of[source] += 1
    return groups
