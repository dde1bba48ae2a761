"""Blocks of a dimension on another grid: a margin of a neighbour's block, as wide as what shifts.

Of `n` parts, part `p` holds `[p*a, p*a + a)` and wants `[p*b, p*b + b)`. Where blocks grow it lacks
what lies behind its own, at most until the dimension of `D` elements ends; where they shrink, what
lies before:

    a < b:  max over k <= n of min(D, k*b) - k*a = max(k*(b-a), D - (k+1)*a), k = D // b
    a > b:  (n-1) * (a-b)

A margin wider than the neighbour's block is not fetched: such a dimension is gathered whole.

Source: GSPMD (arXiv:2105.04663), section 4.2, "Halo exchange"; XLA: `PadFromPartialReplicateShape`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from shardalg.algebra.affine import Index
from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.halos.classes import neighbours
from shardalg.reshard.dim_program import DimBuilder, DimProgram
from shardalg.reshard.exchanges import positions
from shardalg.spmd.instructions import Concatenate, HaloExchange, Reading, Resize, SliceAt
from shardalg.spmd.local import Start


def margin(size: int, parts: int, before: int, after: int) -> int | None:
    """Places of its block that a device sends for a retile; None where one neighbour is too few.

    >>> margin(1020, 4, 255, 256), margin(1020, 4, 256, 255), margin(5, 8, 2, 1)
    (3, 3, None)
    """
    if after < before:
        width = (parts - 1) * (before - after)
    else:
        k = min(size // after, parts)
        width = max(k * (after - before), size - (k + 1) * before, 0)
    return width if width <= before else None


@dataclass(frozen=True, slots=True)
class Retile:
    """A dimension of `size` elements goes from blocks of `before` to blocks of `after` places.

    It stays on its digits.
    """

    dim: int
    digits: Digits
    size: int
    before: int
    after: int
    sent_as: ClassVar[str] = "collective_permute"

    @property
    def margin(self) -> int:
        """Places of its block that a device sends to its neighbour."""
        found = margin(self.size, parts(self.digits), self.before, self.after)
        assert found is not None, f"{self} reaches beyond the neighbour's block"
        return found

    def number(self, scale: int, more: int = 0) -> Start:
        """`p*scale + more`, of the partition id of the dimension."""
        return Start(Index.of("p") * scale, (("p", self.digits),), more)

    def fetch(self, devices: int) -> HaloExchange:
        """The neighbour's margin: of the next device where blocks grow, else of the one before."""
        step = 1 if self.after > self.before else -1
        pairs: Any = neighbours(self.digits, step, devices)  # of positions, or runs of them
        wanted = self.number(self.after)
        places = (0, self.margin)
        reading = Reading(0, self.number(1, step), (positions(pairs),), wanted, self.after, places)
        return HaloExchange(self.dim, self.digits, (reading,))


def retiled(retile: Retile, devices: int) -> DimProgram:
    """A retile as a program: the margin, beside the own block, and one slice of both."""
    dim, before, after = retile.dim, retile.before, retile.after
    width, shift = retile.margin, after - before
    along = DimBuilder(dim, (before,))
    if not width:
        return along.program(along.add(Resize(dim, after), after, 0))
    fetch = retile.fetch(devices)
    if shift < 0:
        margin = along.add(fetch, width, along.places(0, before - width, before))
        both = margin, along.places(0, 0, after)
        joined = along.add(Concatenate(dim), width + after, *both)
        at = SliceAt(dim, retile.number(shift, width), after)
        return along.program(along.add(at, after, joined))
    margin = along.add(fetch, width, along.places(0, 0, width))
    joined = along.add(Concatenate(dim), before + width, 0, margin)
    # behind the margin nothing is that exists and is wanted
    end = before + parts(retile.digits) * shift
    if end > before + width:
        joined = along.add(Resize(dim, end), end, joined)
    return along.program(along.add(SliceAt(dim, retile.number(shift), after), after, joined))
