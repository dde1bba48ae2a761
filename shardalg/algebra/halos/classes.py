"""Devices of a large mesh in classes that an exchange treats alike.

A device is a row (the digits beside those of the dimension on which the intervals depend), a
partition id `p` of the dimension, and digits that nothing depends on. Intervals that start at
`floor((a*p + c)/m)` of blocks of `b` elements repeat themselves:

    T = m*b / gcd(a, m*b),  S = a*T / (m*b):   start(p + T) = start(p) + S*b

so what `p` wants of block `q`, `p + k*T` wants of block `q + k*S`, for all `k` for which both exist
and something of it does. Rounds, transfers and permutes are found for the `T` classes, and every
pair of classes stands for a run of devices. A colouring of the classes, sources taken modulo `S`,
colours the devices: no two edges of a device have the same colour.
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
"""Numbers of the classes of source and target, and by how many steps the source is further on."""


@dataclass(frozen=True)
class PairRun:
    """Pairs `(source + k*step, target + k*period)` of ids in a row, `k` from `first` to `last`."""

    row: int
    source: int
    target: int
    first: int
    last: int


@dataclass(frozen=True)
class Runs:
    """(source, target) positions, as runs of classes: what a tuple of pairs is on a small mesh."""

    classes: Classes
    runs: tuple[PairRun, ...]

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((source, target) for source, target in self.arrays.tolist())

    def __contains__(self, pair: object) -> bool:
        return pair in tuple(self)

    def __len__(self) -> int:
        beside = self.classes.devices // parts((*self.classes.held, *self.classes.rows))
        return beside * sum(run.last - run.first + 1 for run in self.runs)

    @cached_property
    def arrays(self) -> np.ndarray:
        """One row per pair: source and target; by source."""
        held, found = self.classes, [np.zeros((0, 2), int)]
        for run in self.runs:
            k = np.arange(run.first, run.last + 1)
            ids = (run.source + k * held.step, run.target + k * held.period)
            row = placed(held.rows, np.array(run.row))
            found.append(np.stack([row + placed(held.held, each) for each in ids], axis=1))
        pairs = np.concatenate(found)
        rest = complement((*held.held, *held.rows), held.devices)
        assert rest is not None  # `classes_of` takes digits of one mesh
        beside = placed(rest, np.arange(parts(rest)))
        pairs = (pairs[:, None, :] + beside[None, :, None]).reshape(-1, 2)
        return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def placed(digits: Digits, ids: np.ndarray) -> np.ndarray:
    """What the digits of partition ids add to a position."""
    position, rest = np.zeros_like(ids), ids
    for digit in reversed(digits):
        position, rest = position + rest % digit.size * digit.stride, rest // digit.size
    return position


@dataclass(frozen=True)
class Classes:
    """The classes of the devices of a mesh.

    Attributes:
      held: digits of the partition id of the dimension; rows: the others on which starts depend.
      period, step: `T` and `S`; both the number of partition ids where nothing repeats itself.
    """

    held: Digits
    rows: Digits
    devices: int
    period: int
    step: int

    @property
    def count(self) -> int:
        """Partition ids of the dimension."""
        return parts(self.held)

    def rounds(self, exchange: Exchange) -> tuple[Round, ...]:
        """The rounds of an exchange, with runs for pairs."""
        last = (self._rest(exchange).max() + max(exchange.want.length, 1) - 1) // exchange.block
        found = [self._of(exchange, number) for number in range(int(last) + 1)]
        full = {each.number for each in found if each.exists}
        return tuple(found[number].round for number in worth_sending(full, int(last)))

    def stays(self, exchange: Exchange, number: int) -> bool:
        """Whether every device reads its own block in a round."""
        found = self._of(exchange, number)
        return self.step == self.period and bool((found.source == found.target).all())

    def lifted(self, exchange: Exchange, number: int, labels: Pairs) -> Runs:
        """The devices that pairs of classes stand for, in a round of an exchange."""
        sends = self._of(exchange, number).sends
        return Runs(self, tuple(run for label in labels for run in sends[label].runs))

    def _of(self, exchange: Exchange, number: int) -> Labelled:
        return labelled(self, exchange, number)

    def window(self, exchange: Exchange) -> tuple[np.ndarray, np.ndarray]:
        """Rows and partition ids of a device of each class, by rows, as sources come one by one."""
        rows, ids = np.arange(parts(self.rows))[:, None], np.arange(self.period)
        if self.period == self.count:
            begin = np.zeros_like(rows)
        else:
            first = self.starts(exchange, rows, np.arange(self.period + 1)) // exchange.block
            begin = np.argmax(first[:, 1:] != first[:, :-1], axis=1)[:, None] + 1
        ids = begin + ids
        return np.broadcast_to(rows, ids.shape).ravel(), ids.ravel()

    def starts(self, exchange: Exchange, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Where the intervals of devices start."""
        positions = placed(self.rows, rows) + placed(self.held, ids)
        return exchange.starts(positions)

    def _rest(self, exchange: Exchange) -> np.ndarray:
        return self.starts(exchange, *self.window(exchange)) % exchange.block


@dataclass(frozen=True)
class Sends:
    """The runs of a pair of classes, and the places `[lower, upper)` of a block that they send."""

    runs: tuple[PairRun, ...]
    lower: int
    upper: int


@dataclass(frozen=True, eq=False)
class Labelled:
    """One round of an exchange over the classes, in arrays with an entry per class."""

    classes: Classes
    exchange: Exchange
    number: int

    @cached_property
    def _window(self) -> tuple[np.ndarray, np.ndarray]:
        return self.classes.window(self.exchange)

    @property
    def target(self) -> np.ndarray:
        """Partition id of the reader."""
        return self._window[1]

    @cached_property
    def start(self) -> np.ndarray:
        """Of its interval."""
        return self.classes.starts(self.exchange, *self._window)

    @cached_property
    def source(self) -> np.ndarray:
        """The block of the round; there may be none of this number."""
        return self.start // self.exchange.block + self.number

    @cached_property
    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        """The elements of that block that are in the interval, whether they exist or not."""
        block, end = self.exchange.block, self.start + self.exchange.want.length
        low = np.maximum(self.start, self.source * block)
        return low, np.minimum(end, (self.source + 1) * block)

    @cached_property
    def valid(self) -> tuple[np.ndarray, np.ndarray]:
        """First and last `k` for which both devices are there, and what is read exists."""
        classes, exchange = self.classes, self.exchange
        low, high = self._read
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
        """Whether some device reads an element of the round's block."""
        first, last = self.valid
        return bool((first <= last).any())

    @cached_property
    def _mine(self) -> np.ndarray:
        """The `k` for which a device reads its own block; out of range where there is none."""
        first, last = self.valid
        apart, stride = self.source - self.target, self.classes.period - self.classes.step
        if not stride:
            return np.where(apart == 0, first, last + 1)
        return np.where(apart % stride == 0, apart // stride, last + 1)

    @cached_property
    def sends(self) -> dict[Label, Sends]:
        """What the devices of a pair of classes send, in the order of the targets."""
        low, high = self._read
        fields = (*self._window, self.source, *self.valid, self._mine, low, high)
        each = zip(*(field.tolist() for field in fields), strict=True)
        found = (self._sent(*values) for values in each)
        return {label: sends for label, sends in found if sends.runs}

    def _sent(self, row: int, target: int, source: int, *ends: int) -> tuple[Label, Sends]:
        first, last, mine, low, high = ends
        step, block = self.classes.step, self.exchange.block
        spans = [span for span in self._others(first, last, mine) if span[0] <= span[1]]
        turns, reader = divmod(target, self.classes.period)
        begin = source - step * turns
        runs = tuple(PairRun(row, begin, reader, a + turns, b + turns) for a, b in spans)
        further, sender = divmod(begin, abs(step))
        label = row * abs(step) + sender, row * self.classes.period + reader, further
        # the block that is nearest to the first one has most that exists
        blocks = min((source + k * step for span in spans for k in span), default=source)
        upper = min(high - source * block, self.exchange.size - blocks * block)
        return label, Sends(runs, low - source * block, upper)

    def _others(self, first: int, last: int, mine: int) -> tuple[tuple[int, int], ...]:
        """The `k` of a class for which its devices read the block of another device."""
        if not first <= mine <= last:
            return ((first, last),)
        if self.classes.step == self.classes.period:
            return ()
        return (first, mine - 1), (mine + 1, last)

    @property
    def round(self) -> Round:
        """The round; its permutes have pairs of classes."""
        offset = self.start % self.exchange.block - self.number * self.exchange.block
        layout = piece(offset, offset + self.exchange.want.length, self.exchange.block)
        permutes, labels = [], list(self.sends)
        for members in once_each([label[0] for label in labels], range(len(labels))):
            sent = tuple(labels[i] for i in members)
            lower = min(self.sends[label].lower for label in sent)
            upper = max(self.sends[label].upper for label in sent)
            permutes.append(Permute(sent, lower, upper))
        first, last = self.valid
        own = bool(((first <= self._mine) & (self._mine <= last)).any())
        return Round(self.number, *layout, tuple(permutes), own)


@lru_cache(maxsize=1 << 10)
def labelled(classes: Classes, exchange: Exchange, number: int) -> Labelled:
    """One round, made once."""
    return Labelled(classes, exchange, number)


FEW = 256
"""Devices that are looked at one by one."""


def neighbours(digits: Digits, step: int, devices: int) -> Pairs:
    """(source, target): the source's partition id is `step` more, all else alike.

    >>> from shardalg.algebra.digits import Digit
    >>> neighbours((Digit(1, 4),), -1, 4)
    ((0, 1), (1, 2), (2, 3))
    """
    last = parts(digits) - 1
    run = PairRun(0, step, 0, max(0, -step), min(last, last - step))
    runs = Runs(Classes(digits, (), devices, 1, 1), (run,))
    return runs if devices > FEW else tuple(runs)


@lru_cache(maxsize=1 << 10)
def classes_of(exchanges: tuple[Exchange, ...]) -> Classes | None:
    """Classes that several exchanges along one dimension have in common; None on small meshes.

    Also None where digits are those of several meshes.
    """
    held, devices = exchanges[0].held, exchanges[0].devices
    if devices <= FEW:
        return None
    ids = {d for e in exchanges for n, d in e.ids if n in e.want.start.variables}
    rows = tuple(sorted({digit for d in ids if canonical(d) != canonical(held) for digit in d}))
    rest = complement(held, devices)
    if rest is None:
        return None
    if any(overlap(*pair) for pair in combinations((*held, *rows), 2)):
        rows = rest
    if complement((*held, *rows), devices) is None:
        return None
    return Classes(held, rows, devices, *_common(exchanges))


def _common(exchanges: Sequence[Exchange]) -> tuple[int, int]:
    """Period and step of all; the number of partition ids where there are none, or hardly less."""
    count = parts(exchanges[0].held)
    asked = [_period(exchange) for exchange in exchanges if exchange.want.length]
    found = [each for each in asked if each is not None]
    if not found or len(found) < len(asked):
        return count, count
    period = math.lcm(*(period for period, _ in found))
    steps = {step * (period // own) for own, step in found}
    return (period, steps.pop()) if len(steps) == 1 and 4 * period <= count else (count, count)


def _period(exchange: Exchange) -> tuple[int, int] | None:
    """`T` and `S`; None where starts depend on the dimension's digits otherwise, or not at all."""
    slope, whole = 0, canonical(exchange.held)
    digits = dict(exchange.ids)
    for name, coefficient in exchange.want.start.terms:
        if canonical(digits[name]) == whole:
            slope += coefficient
        elif any(overlap(a, b) for a in digits[name] for b in whole):
            return None
    size = exchange.want.start.div * exchange.block
    common = math.gcd(slope, size)
    return (size // common, slope // common) if slope else None


def _within(start: np.ndarray, step: int, bounds: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """First and last `k` with `bounds[0] <= start + k*step < bounds[1]`."""
    low, high = bounds[0] - start, bounds[1] - 1 - start
    return (-(-low // step), high // step) if step > 0 else (-(high // -step), low // step)
