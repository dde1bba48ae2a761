"""Equivalence classes of the devices of a large mesh that send and receive in the same way.

A device has a row, a partition id `p` of the dimension, and digits on which nothing depends. The
row is the digits outside the dimension on which the intervals depend. Intervals that start at
`floor((a*p + c)/m)` of blocks of `b` elements repeat themselves:

    T = m*b / gcd(a, m*b),  S = a*T / (m*b):   start(p + T) = start(p) + S*b

If `p` reads a part of block `q`, then `p + k*T` reads the same part of block `q + k*S`, for all `k`
for which both devices exist and the part has elements. Rounds, transfers and permutes are computed
for the `T` classes; each pair of classes represents a run of device pairs. A colouring of the
classes, with sources modulo `S`, also colours the devices: no two edges of a device have the same
colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations

import numpy as np

from shardalg.algebra.digits import Digits, canonical, complement, overlap, parts
from shardalg.algebra.halos.exchange import Exchange, once_each, piece, worth_sending
from shardalg.algebra.halos.transfers import Pairs, Permute, Round

Label = tuple[int, ...]
"""(source class, target class, distance): one pair of device classes.

The distance is the number of steps `S` from the smallest partition id of the source class to the
source of the pair with k = 0.
"""


@dataclass(frozen=True)
class PairRun:
    """Pairs `(source + k*step, target + k*period)` of partition ids, for `first <= k <= last`.

    `step` and `period` are fields of `Classes`: if the reader's id grows by `period`, the id of the
    block that it reads grows by `step`. All pairs of a run are between devices of row number `row`:
    the row is the part of a device's position along the digits `Classes.rows`.
    """

    row: int
    source: int
    target: int
    first: int
    last: int


@dataclass(frozen=True)
class Runs:
    """The (source, target) pairs of a permute on a large mesh, stored as runs of pairs.

    Iteration yields pairs of positions. On a small mesh a tuple of pairs is used instead.
    """

    classes: Classes
    runs: tuple[PairRun, ...]

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((source, target) for source, target in self.arrays.tolist())

    def __contains__(self, pair: object) -> bool:
        return pair in tuple(self)

    def __len__(self) -> int:
        # Each pair of a run occurs once per value of the digits on which nothing depends.
        copies = self.classes.devices // parts((*self.classes.held, *self.classes.rows))
        return copies * sum(run.last - run.first + 1 for run in self.runs)

    @cached_property
    def arrays(self) -> np.ndarray:
        """All pairs as an array with one row (source, target) per pair, sorted by source."""
        classes, pairs_of_runs = self.classes, [np.zeros((0, 2), int)]
        for run in self.runs:
            # A run repeats one pair of partition ids: the source moves by S blocks (`step`) where
            # the target moves by T (`period`).
            repetitions = np.arange(run.first, run.last + 1)
            ids = (
                run.source + repetitions * classes.step,
                run.target + repetitions * classes.period,
            )
            row = positions_of(classes.rows, np.array(run.row))
            positions = [row + positions_of(classes.held, each) for each in ids]
            pairs_of_runs.append(np.stack(positions, axis=1))
        pairs = np.concatenate(pairs_of_runs)
        # The intervals do not depend on the other digits of the mesh: each of their values has a
        # copy of the pairs.
        other_digits = complement((*classes.held, *classes.rows), classes.devices)
        assert other_digits is not None  # `classes_of` takes digits of one mesh
        copies = positions_of(other_digits, np.arange(parts(other_digits)))
        pairs = (pairs[:, None, :] + copies[None, :, None]).reshape(-1, 2)
        return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def positions_of(digits: Digits, ids: np.ndarray) -> np.ndarray:
    """Return the position of a device with each of these partition ids.

    Of the devices with a partition id, it is the one whose digits outside `digits` are 0.
    """
    # `partition_id` is Horner's scheme; here it runs backwards, from the minor digit on.
    position, remainder = np.zeros_like(ids), ids
    for digit in reversed(digits):
        position, remainder = (
            position + remainder % digit.size * digit.stride,
            remainder // digit.size,
        )
    return position


@dataclass(frozen=True)
class Classes:
    """A division of the devices of a mesh into classes that send and receive in the same way.

    In an exchange, each device needs an interval of a sharded dimension. The partition ids of a
    class are `p, p + T, p + 2*T, ...`. The intervals of successive devices of a class differ only
    in their start, by `S` blocks.

    Attributes:
      held: the digits that shard the dimension, so that they determine the partition id.
      rows: the other digits of the device position that change the start of an interval.
      devices: number of positions in the mesh.
      period, step: `T` and `S`. If no two devices behave in the same way, both are the number of
        partition ids, so that each device is a class of its own.
    """

    held: Digits
    rows: Digits
    devices: int
    period: int
    step: int

    @property
    def count(self) -> int:
        """Number of partition ids of the dimension that is exchanged."""
        return parts(self.held)

    def rounds(self, exchange: Exchange) -> tuple[Round, ...]:
        """Return the rounds of an exchange, in which classes of devices send to classes.

        An interval covers one or more blocks; round k brings the k-th block after the one in which
        the interval starts. Rounds in which no device reads an existing element are left out,
        except short gaps between others (`worth_sending`).
        """
        # The interval that starts last in its first block reaches into the most blocks.
        offsets = self.starts(exchange, *self.window(exchange)) % exchange.block
        last = int((offsets.max() + max(exchange.want.length, 1) - 1) // exchange.block)
        rounds = [class_round(self, exchange, number) for number in range(last + 1)]
        full = {each.number for each in rounds if each.exists}
        return tuple(rounds[number].round for number in worth_sending(full, last))

    def stays(self, exchange: Exchange, number: int) -> bool:
        """Return whether every device reads its own block in round `number` of an exchange.

        Such a round needs no communication.
        """
        class_round_of = class_round(self, exchange, number)
        # From one device of a class to the next, the reader's id grows by `period` and the block's
        # by `step`. If these are equal and one device reads its own block, all of them do.
        return self.step == self.period and bool(
            (class_round_of.source == class_round_of.target).all()
        )

    def device_runs(self, exchange: Exchange, number: int, labels: Pairs) -> Runs:
        """Return the device pairs that pairs of classes represent in round `number`.

        Args:
          labels: the pairs of classes.
        """
        sends = class_round(self, exchange, number).sends
        return Runs(self, tuple(run for label in labels for run in sends[label].runs))

    def window(self, exchange: Exchange) -> tuple[np.ndarray, np.ndarray]:
        """Return two arrays: the row and the partition id of one device of each class.

        For each row, the partition ids are `T` successive ones. They begin at an id whose interval
        starts in another block than the interval of the id before it. Devices that read one block
        are then next to each other.
        """
        # If the period is the whole dimension, each device is a class, and any first id will do.
        rows, ids = np.arange(parts(self.rows))[:, None], np.arange(self.period)
        if self.period == self.count:
            begin = np.zeros_like(rows)
        else:
            first = self.starts(exchange, rows, np.arange(self.period + 1)) // exchange.block
            begin = np.argmax(first[:, 1:] != first[:, :-1], axis=1)[:, None] + 1
        ids = begin + ids
        return np.broadcast_to(rows, ids.shape).ravel(), ids.ravel()

    def starts(self, exchange: Exchange, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the starts of the intervals of several devices.

        Args:
          rows: per device, the number that its digits `rows` give.
          ids: per device, its partition id along the dimension.
        """
        return exchange.starts(positions_of(self.rows, rows) + positions_of(self.held, ids))


@dataclass(frozen=True)
class Sends:
    """Messages from the devices of one class to the devices of another class in one round.

    Attributes:
      runs: the (source, target) device pairs, as runs of evenly spaced pairs.
      lower, upper: each source sends the elements `[lower, upper)` of its block.
    """

    runs: tuple[PairRun, ...]
    lower: int
    upper: int


@dataclass(frozen=True, eq=False)
class ClassRound:
    """One round of a halo exchange, computed for one device of each class.

    Devices of one class receive in the same way (`Classes`). Each array has one entry per class;
    the entry describes one device of the class as the receiver.
    """

    classes: Classes
    exchange: Exchange
    number: int

    @cached_property
    def _window(self) -> tuple[np.ndarray, np.ndarray]:
        """One device of each class, as two arrays: its row number and its partition id.

        A row is the part of a device's position outside of the exchanged dimension
        (`Classes.rows`).
        """
        return self.classes.window(self.exchange)

    @property
    def target(self) -> np.ndarray:
        """For each class, the partition id of the device that stands for it as the receiver."""
        return self._window[1]

    @cached_property
    def start(self) -> np.ndarray:
        """Start of the interval that the reading device of each class needs."""
        return self.classes.starts(self.exchange, *self._window)

    @cached_property
    def source(self) -> np.ndarray:
        """Number of the block that the reader receives; such a block need not exist."""
        return self.start // self.exchange.block + self.number

    @cached_property
    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of the elements of the received block that are in the reader's interval.

        They are counted from the start of the dimension, and need not exist.
        """
        block, end = self.exchange.block, self.start + self.exchange.want.length
        low = np.maximum(self.start, self.source * block)
        return low, np.minimum(end, (self.source + 1) * block)

    @cached_property
    def valid(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last k for which the k-th pair of devices of each class communicates.

        The k-th pair is the reader with partition id `p + k*T` and the owner of the block `q + k*S`
        that it reads. Both devices must exist, and so must at least one element that is read.
        """
        classes, exchange = self.classes, self.exchange
        low, high = self._read
        # Each condition is a range of k; the class exists where all of them overlap.
        ends = [
            _within(self.target, classes.period, (0, classes.count)),
            _within(self.source, classes.step, (0, classes.count)),
            _within(low, classes.step * exchange.block, (0, exchange.size)),
        ]
        first = np.max([a for a, _ in ends], axis=0)
        last = np.min([b for _, b in ends], axis=0)
        return first, np.where(low < high, last, first - 1)

    @property
    def exists(self) -> bool:
        """True if some device reads an element of the round's block."""
        first, last = self.valid
        return bool((first <= last).any())

    @cached_property
    def _own(self) -> np.ndarray:
        """By class, the number of the first device that reads its own block; else `last + 1`.

        The devices of a class have the numbers k = 0, 1, 2, ...; `valid` has the first and the last
        number of a device that exists.
        """
        first, last = self.valid
        # The k-th device reads its own block if source + k*step = target + k*period: solve for k.
        distance, stride = self.source - self.target, self.classes.period - self.classes.step
        if not stride:
            return np.where(distance == 0, first, last + 1)
        return np.where(distance % stride == 0, distance // stride, last + 1)

    @cached_property
    def sends(self) -> dict[Label, Sends]:
        """For each pair of classes, its device pairs and the elements that they send."""
        low, high = self._read
        fields = (*self._window, self.source, *self.valid, self._own, low, high)
        each = zip(*(field.tolist() for field in fields), strict=True)
        found = (self._sent(*values) for values in each)
        return {label: sends for label, sends in found if sends.runs}

    def _sent(self, row: int, target: int, source: int, *ends: int) -> tuple[Label, Sends]:
        """Return the label of two classes of devices, and the elements that one sends to the other.

        The label is (source class, target class, distance), see `Label`. The elements are a range
        of the sender's block, the same for all k, with runs: the ranges of k for which they are
        sent. Device k of a class has the partition id `target + k*T` and reads from `source + k*S`
        (see `Classes`).

        Args:
          row: the number of the other digits, which both classes share.
          target, source: the partition ids of reader and sender for k = 0.
          ends: five numbers: the first and the last k; the k whose sender is the reader itself; the
            first element and the end of the range to send.
        """
        first, last, own, low, high = ends
        step, period, block = self.classes.step, self.classes.period, self.exchange.block
        # The reader of its own block receives nothing. With equal steps that is all of the class.
        if not first <= own <= last:
            spans = [(first, last)]
        elif step == period:
            spans = []
        else:
            spans = [(first, own - 1), (own + 1, last)]
        spans = [span for span in spans if span[0] <= span[1]]
        # `target` may be any device of the class, and the label must be the same for all of them.
        # So the runs are counted from the smallest partition id of the class, `target mod period`.
        turns, reader = divmod(target, period)
        begin = source - step * turns
        runs = tuple(PairRun(row, begin, reader, a + turns, b + turns) for a, b in spans)
        distance, sender = divmod(begin, abs(step))
        label = row * abs(step) + sender, row * period + reader, distance
        # Only the last block of the dimension is incomplete, so the first block of the runs has
        # the most elements that exist.
        blocks = min((source + k * step for span in spans for k in span), default=source)
        upper = min(high - source * block, self.exchange.size - blocks * block)
        return label, Sends(runs, low - source * block, upper)

    @property
    def round(self) -> Round:
        """The round for one device of each class; its permutes list pairs of classes.

        A class is a set of devices that read their blocks in the same pattern. A pair of classes
        (source, target) stands for all pairs of devices in these classes.
        """
        # The start of each interval, counted from the start of the block that this round brings.
        offset = self.start % self.exchange.block - self.number * self.exchange.block
        layout = piece(offset, offset + self.exchange.want.length, self.exchange.block)
        # A permute must not have two pairs with one source. Classes with different sources have no
        # source device in common, so that groups of classes are groups of devices too.
        permutes, labels = [], list(self.sends)
        for members in once_each([label[0] for label in labels], range(len(labels))):
            sent = tuple(labels[i] for i in members)
            # A permute sends one range of every block, so it must cover the range of each class.
            lower = min(self.sends[label].lower for label in sent)
            upper = max(self.sends[label].upper for label in sent)
            permutes.append(Permute(sent, lower, upper))
        # `own` tells whether some device reads its own block; `_own` has that device per class.
        first, last = self.valid
        own = bool(((first <= self._own) & (self._own <= last)).any())
        return Round(self.number, *layout, tuple(permutes), own)


@lru_cache(maxsize=1 << 10)
def class_round(classes: Classes, exchange: Exchange, number: int) -> ClassRound:
    """Return round `number` of a halo exchange as a `ClassRound`, from a cache.

    Args:
      classes: the classes of devices that receive in the same way.
    """
    return ClassRound(classes, exchange, number)


FEW = 256
"""The largest mesh on which every device is visited; larger ones are planned by classes."""


def neighbours(digits: Digits, step: int, devices: int) -> Pairs:
    """Return the (source, target) positions in which the source's partition id is larger by `step`.

    All digits of the two positions outside `digits` are equal.

    Args:
      digits: the digits of the partition id.
      devices: the number of devices of the mesh.

    >>> from shardalg.algebra.digits import Digit
    >>> neighbours((Digit(1, 4),), -1, 4)
    ((0, 1), (1, 2), (2, 3))
    """
    # Neighbours are an exchange with period and step 1: all pairs are one run.
    last = parts(digits) - 1
    run = PairRun(0, step, 0, max(0, -step), min(last, last - step))
    runs = Runs(Classes(digits, (), devices, 1, 1), (run,))
    return runs if devices > FEW else tuple(runs)


@lru_cache(maxsize=1 << 10)
def classes_of(exchanges: tuple[Exchange, ...]) -> Classes | None:
    """Return a division of the devices into classes that have the same part in all exchanges.

    None on small meshes, where classes save nothing, and if the digits are not digits of one mesh.

    Args:
      exchanges: exchanges of one dimension, of which the intervals may differ.
    """
    held, devices = exchanges[0].held, exchanges[0].devices
    if devices <= FEW:
        return None
    # Starts may depend on other digits, too. Each value of these is a row of devices, which have
    # starts of their own.
    ids = {d for e in exchanges for n, d in e.ids if n in e.want.start.variables}
    rows = tuple(sorted({digit for d in ids if canonical(d) != canonical(held) for digit in d}))
    other_digits = complement(held, devices)
    if other_digits is None:
        return None
    # Digits that overlap have no independent values, so they cannot count rows. All digits outside
    # of the dimension can, in more rows than necessary.
    if any(overlap(*pair) for pair in combinations((*held, *rows), 2)):
        rows = other_digits
    if complement((*held, *rows), devices) is None:
        return None
    return Classes(held, rows, devices, *_common(exchanges))


def _common(exchanges: Sequence[Exchange]) -> tuple[int, int]:
    """Return a common period `T` and step `S` of several exchanges.

    The device with partition id `p + T` then reads in the same pattern as the device with `p`, from
    blocks whose numbers are larger by `S`. If there is no common period, or if it is so long that
    classes save little, both are the number of partition ids.
    """
    count = parts(exchanges[0].held)
    periods = [_period(exchange) for exchange in exchanges if exchange.want.length]
    known_periods = [each for each in periods if each is not None]
    if not known_periods or len(known_periods) < len(periods):
        return count, count
    # Over a common period all exchanges must advance by equally many blocks.
    period = math.lcm(*(period for period, _ in known_periods))
    steps = {step * (period // own) for own, step in known_periods}
    return (period, steps.pop()) if len(steps) == 1 and 4 * period <= count else (count, count)


def _period(exchange: Exchange) -> tuple[int, int] | None:
    """Return the period `T` and the step `S` of one exchange.

    The device with partition id `p + T` reads like the device with `p`, `S` blocks further on.
    None if starts do not depend on the dimension's partition id, or on a part of its digits only.
    """
    # Other digits change the row, not the period, if they are independent of the dimension's.
    slope, whole = 0, canonical(exchange.held)
    digits = dict(exchange.ids)
    for name, coefficient in exchange.want.start.terms:
        if canonical(digits[name]) == whole:
            slope += coefficient
        elif any(overlap(a, b) for a in digits[name] for b in whole):
            return None
    # T ids further on, the start `(slope*p + c) / div` is S blocks further on if `slope * T = div *
    # block * S`. T = size / gcd is the smallest such number.
    size = exchange.want.start.div * exchange.block
    common = math.gcd(slope, size)
    return (size // common, slope // common) if slope else None


def _within(start: np.ndarray, step: int, bounds: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return, per entry of `start`, the first and the last `k` for which a number is in a range.

    The condition is `bounds[0] <= start + k*step < bounds[1]`.
    If there is no such `k`, the last one is smaller than the first one.
    """
    # With a negative step the upper bound gives the first k.
    low, high = bounds[0] - start, bounds[1] - 1 - start
    return (-(-low // step), high // step) if step > 0 else (-(high // -step), low // step)
