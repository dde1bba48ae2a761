"""The elements of one dimension that a device touches: a start in closed form, a static length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardalg.algebra.affine import Index
from shardalg.algebra.quotient import Quotient
from shardalg.errors import ShardingError


@dataclass(frozen=True)
class Interval:
    """`[start, start + length)`, the start linear in partition ids and divided at most once.

    The length is one number for all devices, since shapes are static; so an interval may reach
    over the ends of its dimension, and what lies there is garbage until it is masked.

    Attributes:
      start: its variables are partition ids: the `p` of one sharded dimension, or one per sharded
        loop. Rounded down if divided; `ceil(x/m)` is written `floor((x + m - 1)/m)`.

    Raises:
      ShardingError: a start with an exact division or a remainder; a negative length.

    >>> Interval(Index.of("p") * 4 - 1, 6)
    Interval([4*p-1, +6))
    >>> Interval(Index.of("p") * 4 - 1, 6).at({"p": 2})
    (7, 13)
    """

    start: Index
    length: int

    def __post_init__(self) -> None:
        if self.start.exact or self.start.mod or self.length < 0:
            raise ShardingError(
                f"{self!r}: the start is linear in partition ids, divided with rounding down if at "
                "all (write `//`), and the length is not negative."
            )

    def at(self, ids: Mapping[str, Any]) -> tuple[Any, Any]:
        """First element and end, for partition ids (numbers, or arrays of them)."""
        start = self.start.at(ids)
        assert start is not None
        return start, start + self.length

    @property
    def quotient(self) -> Quotient:
        """The start in canonical form, where it depends on one partition id or on none.

        >>> Interval((Index.of("p") * 6 + 5) // 4, 2).quotient
        p + floor(p/2) + 1
        """
        assert len(self.start.terms) <= 1, f"{self.start} has several partition ids"
        slope = sum(coefficient for _, coefficient in self.start.terms)
        return Quotient.of(slope, self.start.constant, self.start.div)

    def __repr__(self) -> str:
        return f"Interval([{self.start}, +{self.length}))"


def touched(index: Index, *, blocks: Mapping[str, int], parts: Mapping[str, int]) -> Interval:
    """What an index expression reaches while each loop runs over a device's block.

    A split loop runs over `[p*block, (p+1)*block)`; its partition id has the loop's own name in
    the result. The box from the smallest to the largest value, over whole blocks: it covers the
    padding of uneven ones too.

    Args:
      blocks: per loop of the index: iterations of one device.
      parts: per split loop: into how many blocks. Loops that are not here run whole everywhere.

    Raises:
      ShardingError: the index has a remainder.

    >>> conv = Index.of("o") * 2 + Index.of("r") - 1
    >>> touched(conv, blocks={"o": 4, "r": 3}, parts={"o": 8})
    Interval([8*o-1, +9))
    >>> touched(conv.over(3), blocks={"o": 4, "r": 3}, parts={"o": 8})
    Interval([(8*o+1)//3, +3))
    """
    if index.mod:
        raise ShardingError(f"{index} jumps back at a multiple of {index.mod}: it is no interval.")
    reach = [coefficient * (blocks[name] - 1) for name, coefficient in index.terms]
    low = index.constant + sum(min(0, part) for part in reach)
    span = sum(abs(part) for part in reach)
    terms = tuple((name, c * blocks[name]) for name, c in index.terms if name in parts)
    moved, m = Index(terms, low), index.div
    # The numerators run over [low(p), low(p) + span]; what their rest mod m is, decides how many
    # quotients there are.
    rests = _rests(moved, m, parts)
    if index.exact:
        length = (span - min(-rest % m for rest in rests)) // m + 1
        return Interval(_divided(Index(terms, low + m - 1), m), length)
    return Interval(_divided(moved, m), (span + max(rests)) // m + 1)


def _divided(start: Index, divisor: int) -> Index:
    """`start // divisor` in lowest terms."""
    common = math.gcd(divisor, *(coefficient for _, coefficient in start.terms))
    terms = tuple((name, coefficient // common) for name, coefficient in start.terms)
    return Index(terms, start.constant // common) // (divisor // common)


def _rests(start: Index, divisor: int, parts: Mapping[str, int]) -> set[int]:
    """All values of `start mod divisor` over the partition ids."""
    found = {start.constant % divisor}
    for name, coefficient in start.terms:
        cycle = divisor // math.gcd(coefficient, divisor)
        steps = range(min(parts[name], cycle))
        found = {(rest + coefficient * p) % divisor for rest in found for p in steps}
    return found
