"""The divisions of one operator: digits for the loops of its result, and for its summed loops.

`lengths`, `lacking` and `missing` count the elements that a device reads and does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digit, Digits, overlap, partition_id, partition_ids, parts
from shardalg.graph.ir import Signature
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import AND, MAX, MIN, OR, PRODUCT, SUM, XOR, Rule

Dims = tuple[Digits, ...]
MOST_READ, MOST_APART = 1 << 16, 256
"""The most elements of a dimension, and the most devices, for which reads are counted."""


class Affine(NamedTuple):
    """The elements of a dimension that an affine index reads.

    Attributes:
      at: the index, of several loops or with a factor.
      loops: per loop (name, factor, extent, digits that divide the loop).
    """

    at: Index
    loops: tuple[tuple[str, int, int, Digits], ...]

    def of(self, size: int, position: int) -> np.ndarray | None:
        """Return the elements that the device at a position reads, of a dimension of `size`.

        The result is None if there are more than `MOST_READ`.
        """
        # The sums of one value per loop: the set grows loop by loop, without repeated elements.
        found = np.array([self.at.constant])
        for _, factor, extent, digits in self.loops:
            block = -(-extent // parts(digits))
            start = partition_id(digits, position) * block
            values = np.arange(start, min(start + block, extent)) * factor
            if found.size * values.size > MOST_READ:
                return None
            found = np.unique(found[:, None] + values[None, :])
        # The index is `sum / div % mod`; an exact division skips sums that `div` does not divide.
        if self.at.exact:
            found = found[found % self.at.div == 0]
        found = found // self.at.div
        found = found % self.at.mod if self.at.mod else found
        return np.unique(found[(found >= 0) & (found < size)])


Goal = Digits | Affine
"""The elements that a device reads: its block along digits, or those of an affine index."""
Lengths = tuple[np.ndarray, np.ndarray]
"""Per device, the number of elements that it reads, and the number that it also holds."""


@lru_cache(maxsize=1 << 14)
def lengths(size: int, held: Digits, wanted: Goal, devices: int) -> Lengths | None:
    """Return two counts per device: the elements that it reads along a dimension, and has already.

    The second count is the number of elements that the device both reads and holds. None if there
    are too many devices or elements to count.

    Args:
      size: the size of the dimension.
      held: the digits that shard the dimension.
      wanted: the elements that each device reads: digits, if it reads a block, or an index of
        loops.
      devices: the number of devices.
    """
    positions = np.arange(devices)
    # Each device has the elements [start, end). The last block of an uneven division is shorter.
    width = -(-size // parts(held))
    start = np.minimum(partition_ids(held, positions) * width, size)
    end = np.minimum(start + width, size)
    # A block along digits is an interval, too, so the common elements follow without a loop.
    if not isinstance(wanted, Affine):
        goal_block = -(-size // parts(wanted))
        goal = np.minimum(partition_ids(wanted, positions) * goal_block, size)
        goal_end = np.minimum(goal + goal_block, size)
        return goal_end - goal, np.maximum(np.minimum(end, goal_end) - np.maximum(start, goal), 0)
    # The reads of an affine index are no interval, so they are listed for each device. If a loop is
    # divided, the lists differ between devices; on many devices, they would take too long.
    if devices > MOST_APART and any(digits for *_, digits in wanted.loops):
        return None
    counts = []
    for position in range(devices):
        read = wanted.of(size, position)
        if read is None:
            return None
        is_held = (read >= start[position]) & (read < end[position])
        counts.append((read.size, int(is_held.sum())))
    num_read, num_held = np.array(counts).T
    return num_read, num_held


def lacking(
    found: Iterable[Lengths], devices: int, *, need: float = 1.0, both: float = 1.0
) -> float:
    """Return the largest number of elements that any device reads and does not hold.

    Args:
      found: per dimension, a pair of arrays over the devices: the number of elements that a device
        reads, and how many of these it also holds.
      devices: the number of devices.
      need: a factor for the elements that are read, for dimensions that are not in `found`.
      both: a factor for the elements that are read and held, for the same dimensions.
    """
    whole, common = np.ones(devices), np.ones(devices)
    for read, inside in found:
        whole, common = whole * read, common * inside
    return max(float((whole * need - common * both).max()), 0.0)


def missing(shape: tuple[int, ...], held: Dims, wanted: Dims, devices: int) -> float:
    """Return the largest number of elements that a device lacks of its wanted block.

    Args:
      held, wanted: per dimension, the digits that shard it in the present and the wanted layout.

    >>> from shardalg.algebra.digits import Digit
    >>> x, y = Digit(4, 2), Digit(1, 4)
    >>> missing((8, 8), ((x,), ()), ((), (x,)), 8), missing((8, 8), ((), ()), ((x,), (y,)), 8)
    (16.0, 0.0)
    """
    rows = zip(shape, held, wanted, strict=True)
    found = [lengths(size, own, goal, devices) for size, own, goal in rows]
    return lacking([one for one in found if one is not None], devices)


COMBINED = (SUM, PRODUCT, MAX, MIN, AND, OR, XOR)
MOST_DIVISIONS = 512
"""An operator with more divisions than this counts as 0."""


@lru_cache(maxsize=1 << 12)
def plain_rule(signature: Signature) -> Rule | None:
    """Return the row of RULES of an operator that the bound covers; None for other operators.

    Such an operator has one result, reads at fixed indices, and combines elements by `COMBINED`.
    """
    rows = rules(signature)
    if not rows or len(rows) > 1 or len(signature.results) > 1:
        return None
    rule = rows[0]
    has_special_loops = rule.guards or rule.symbols or rule.whole or rule.prefix
    has_simple_result = all(index.loop or not index.variables for index in rule.results[0])
    has_extents = all(extent for _, extent in rule.loops)
    return (
        rule
        if has_simple_result and has_extents and rule.combine in COMBINED and not has_special_loops
        else None
    )


@dataclass(frozen=True)
class Loops:
    """One operator, whose loops can be divided among the devices in several ways.

    A division assigns digits of the mesh to each loop.

    Attributes:
      layouts: the layouts of the operands, then of the result.
      is_settled: whether no device may have more of an operand than the block of its layout.
    """

    rule: Rule
    layouts: tuple[Dims, ...]
    is_settled: bool

    @cached_property
    def ways(self) -> list[tuple[dict[str, Digits], dict[str, Digits]]]:
        """All ways to divide the operator's loops among the devices.

        Each entry is (digits of each loop of the result, digits of each summed loop). The list is
        empty if the lower bound leaves the operator out: it sums over a window that is sharded, or
        there are too many ways.
        """
        result_choices = [(name, self._choices(name)) for name in self._of_result]
        sum_choices = [(name, self._subsets(name)) for name in self._summed]
        if self._has_divided_taps:
            return []
        count = math.prod(len(choices) for _, choices in (*result_choices, *sum_choices))
        if count > MOST_DIVISIONS:
            return []
        ways = []
        # A digit divides one loop only. Summed loops choose first, and the result's loops get the
        # digits that are left.
        for sum_digits in product(*(choices for _, choices in sum_choices)):
            taken_digits = [d for digits in sum_digits for d in digits]
            if not _apart(taken_digits):
                continue
            for result_digits in product(*(choices for _, choices in result_choices)):
                free_digits = [
                    tuple(d for d in digits if d not in taken_digits) for digits in result_digits
                ]
                if _apart([*taken_digits, *(d for digits in free_digits for d in digits)]):
                    digits_of_loop = dict(
                        zip((name for name, _ in result_choices), free_digits, strict=True)
                    )
                    ways.append(
                        (
                            digits_of_loop,
                            dict(zip((n for n, _ in sum_choices), sum_digits, strict=True)),
                        )
                    )
        return ways

    @cached_property
    def _of_result(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(i.loop for i in self.rule.results[0] if i.loop))

    @cached_property
    def _summed(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.rule.loops if name not in self._of_result)

    @cached_property
    def _has_divided_taps(self) -> bool:
        """True if an operand is sharded along a loop of a window that is summed."""
        taps = self._window.intersection(self._summed)
        tensors = [(self.layouts[k], dims) for k, dims in self.rule.operands.items()]
        pairs = [pair for tensor in tensors for pair in zip(*tensor, strict=True)]
        return any(digits and index.loop in taps for digits, index in pairs)

    @cached_property
    def _window(self) -> frozenset[str]:
        """The loops that share an index with other loops, such as the taps of a window."""
        dims = [i for dims in self.rule.operands.values() for i in dims]
        return frozenset(v for i in dims if i.loop is None for v in i.variables)

    def _choices(self, name: str) -> tuple[Digits, ...]:
        """Return the digits by which a division may cut a loop: those of each tensor, or none."""
        return tuple(dict.fromkeys((*self._held(name), ())))

    def _held(self, name: str) -> Iterator[Digits]:
        """Yield the digits of each dimension that a loop indexes, in the result and the operands.

        Args:
          name: the name of the loop.
        """
        tensors = [(self.layouts[-1], self.rule.results[0])]
        tensors += [(self.layouts[k], dims) for k, dims in self.rule.operands.items()]
        for layout, dims in tensors:
            yield from (layout[d] for d, index in enumerate(dims) if name in index.variables)

    def _subsets(self, name: str) -> tuple[Digits, ...]:
        """Return the possible sets of digits along which devices divide a summed loop.

        Each device then sums its part of the loop. If all operands have the same digits on the
        loop, these are the only set: XLA then does not gather the operands (premise 3 in
        `least/__init__.py`).

        Args:
          name: the name of the loop.
        """
        # The taps of a window stay whole: the bound does not cover divided taps.
        if name in self._window:
            return ((),)
        held_digits = set(self._held(name))
        if len(held_digits) == 1 and self.is_settled:
            return tuple(held_digits)
        # Otherwise each subset of the operands' digits is possible; () leaves the loop whole.
        digits = tuple(dict.fromkeys(d for held in self._held(name) for d in held))
        choices = product(*((False, True) for _ in digits))
        return tuple(
            tuple(d for d, is_in in zip(digits, way, strict=True) if is_in) for way in choices
        )


def _apart(digits: list[Digit]) -> bool:
    """Return whether no two digits share a factor of the device's position."""
    return not any(overlap(a, b) for k, a in enumerate(digits) for b in digits[:k])


@dataclass(frozen=True)
class Reads:
    """The part of an operand that a device reads, if an operator's loops are divided in one way.

    Attributes:
      rule: the row of the operator.
      dims: the index of each dimension of the operand.
      place: the digits that divide each loop of the result.
      sums: the digits that divide each summed loop.
    """

    rule: Rule
    dims: tuple[Index, ...]
    place: Mapping[str, Digits]
    sums: Mapping[str, Digits]

    def along(self, index: Index) -> Goal:
        """Return the elements of a dimension that each device reads, as digits or as an `Affine`.

        For an index that is one loop, they are the block along the digits that divide the loop.
        """
        if index.loop:
            return self.place[index.loop]
        loops = tuple(
            (name, factor, self.rule.extents[name], self.place.get(name, self.sums.get(name, ())))
            for name, factor in index.terms
        )
        return Affine(index, loops)


@dataclass(frozen=True)
class OperatorDivision:
    """One way to divide the work of an operator among devices.

    Attributes:
      loops: the loops of the operator, which can be divided in several ways.
      place: the digits of each loop that the result has.
      sums: the digits of each summed loop.
    """

    loops: Loops
    place: Mapping[str, Digits]
    sums: Mapping[str, Digits]

    def reads(self, operand: int) -> Reads:
        """Return the part of an operand that a device reads."""
        rule = self.loops.rule
        return Reads(rule, rule.operands[operand], self.place, self.sums)
