"""Halos: what a partition reads of its neighbours' blocks, as closed forms in the partition id."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING

from shardalg.algebra.affine import Quotient
from shardalg.algebra.draw_halos import DimensionDrawing, PartitionRow, draw_halos
from shardalg.algebra.halos.intervals import Interval
from shardalg.algebra.halos.window import Window
from shardalg.algebra.offset import block_size
from shardalg.errors import ShardingError
from shardalg.tables import MOST_ROWS, Table, card

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.algebra.halos.exchange import Exchange


@dataclass(frozen=True)
class Halo:
    """What each partition reads beside its own block, so that it can compute its outputs.

    Partition `p` owns the elements `[p*block, (p+1)*block)` and the outputs
    `[p*out_block, (p+1)*out_block)`, padding included. It reads the elements
    `[start(p), limit(p))`: `left(p)` before its own block and `right(p)` after it. A negative width
    means that it does not read that end of its own block.

    Attributes:
      size: elements of the unpartitioned dimension.
      left, right: widths in elements, as functions of the partition id.
    """

    window: Window
    size: int
    parts: int
    left: Quotient
    right: Quotient

    def _repr_html_(self) -> str:
        columns = ("partition", "owns", "reads", "left", "right")
        rows = tuple(
            (
                p,
                f"{p * self.block} to {(p + 1) * self.block}",
                f"{self.start.at(p)} to {self.limit.at(p)}",
                *(self.left.at(p), self.right.at(p)),
            )
            for p in range(min(self.parts, MOST_ROWS))
        )
        widths = f"left(p) = {self.left}, right(p) = {self.right}"
        left = self.parts - len(rows)
        more = (f"... and {left} more of {self.parts} partitions.",) if left else ()
        title = f"{self.size} elements over {self.parts} partitions: {widths}."
        return card(title, Table(columns, rows), *more)

    @cached_property
    def out_size(self) -> int:
        """Outputs of the unpartitioned operator."""
        return self.window.out_size(self.size)

    @cached_property
    def block(self) -> int:
        """Elements of one partition: `ceil(size / parts)`."""
        return block_size(self.size, self.parts)

    @cached_property
    def out_block(self) -> int:
        """Outputs of one partition: `ceil(out_size / parts)`."""
        return block_size(self.out_size, self.parts)

    @cached_property
    def step(self) -> int:
        """By how many positions the first window moves per partition: `stride * out_block`."""
        return self.window.stride * self.out_block

    @property
    def start(self) -> Quotient:
        """First element that a partition reads: `ceil((step*p - padding_low) / base_dilation)`."""
        return (-self.left).plus(self.block)

    @property
    def limit(self) -> Quotient:
        """End of what a partition reads."""
        return self.right.plus(self.block, self.block)

    @property
    def max_left(self) -> int:
        """The largest left width over all partitions: at the first or the last one."""
        return self.left.max(0, self.parts - 1)

    @property
    def max_right(self) -> int:
        """The largest right width over all partitions: at the first or the last one."""
        return self.right.max(0, self.parts - 1)

    @property
    def margin_left(self) -> int:
        """How far to the left of its own block any partition with a left neighbour reads.

        Those are the partitions 1 to `parts - 1`; no block lies beyond the first one.
        """
        return self._margin(self.left, 1)

    @property
    def margin_right(self) -> int:
        """How far to the right of its own block any partition with a right neighbour reads."""
        return self._margin(self.right, 0)

    def _margin(self, width: Quotient, first: int) -> int:
        if self.parts == 1:
            return 0
        widest = width.max(first, first + self.parts - 2)
        return min(max(widest, 0), (self.parts - 1) * self.block)

    @property
    def exchanged_left(self) -> int:
        """Elements that each partition gets from the left, as XLA exchanges them, hop by hop.

        The margin, less what lies behind every partition's limit. (A width of more than twice
        `length` XLA does not exchange by hops, but in pieces like those of an `Exchange`.)
        """
        return max(self.margin_left + min(self.block + self.max_right, 0), 0)

    @property
    def exchanged_right(self) -> int:
        """Elements from the right: the margin, less what lies before every partition's start."""
        return max(self.margin_right + min(self.block + self.max_left, 0), 0)

    @property
    def hops(self) -> tuple[int, int]:
        """How many neighbours to the left and to the right hold what a partition reads."""
        return -(-self.margin_left // self.block), -(-self.margin_right // self.block)

    @property
    def case(self) -> int:
        """The paper's case of base dilation.

        1: every partition starts at the same distance from an element (`base_dilation` divides
        `step`). 2: stride 1, so the surplus outputs of the largest low padding are sliced off.
        3: neither, so that the window itself is padded, by different amounts.
        """
        if self.step % self.window.base_dilation == 0:
            return 1
        return 2 if self.window.stride == 1 else 3

    def padding_low(self, p: int) -> int:
        """Positions from the first window's start to the first element, on the dilated base.

        `(padding_low - step*p) mod base_dilation`, in `[0, base_dilation)`.
        """
        return (self.window.padding_low - self.step * p) % self.window.base_dilation

    def padding_high(self, p: int) -> int:
        """Positions after the last element that is read, up to the last window's end.

        `padding_low + (elements - 1)*base_dilation + 1 + padding_high` is the reach of a
        partition's windows, `stride*(out_block - 1) + span`.
        """
        elements = self.limit.at(p) - self.start.at(p)
        dilated = (elements - 1) * self.window.base_dilation + 1
        return self.reach - self.padding_low(p) - dilated

    @property
    def reach(self) -> int:
        """Positions from a partition's first window start to its last window end."""
        return self.window.stride * (self.out_block - 1) + self.window.span

    @property
    def max_padding_low(self) -> int:
        """The largest `padding_low(p)`.

        `padding_low mod g + base_dilation - g` with `g = gcd(step, base_dilation)`, once there are
        as many partitions as rests.
        """
        base = self.window.base_dilation
        common = math.gcd(self.step, base)
        if self.parts < base // common:
            return max(self.padding_low(p) for p in range(self.parts))
        return self.window.padding_low % common + base - common

    @cached_property
    def length(self) -> int:
        """Elements of the local operand: the most that any partition reads.

        `limit(p) - start(p)` repeats after `base_dilation / gcd(step, base_dilation)` partitions.
        """
        start, limit = self.start, self.limit
        cycle = math.lcm(start.divisor, limit.divisor)
        return max(0, *(limit.at(p) - start.at(p) for p in range(min(self.parts, cycle))))

    @property
    def interval(self) -> Interval:
        """What partition p reads, with a static length."""
        return Interval(self.start.index, self.length)

    def reads(self, p: int) -> tuple[int, int] | None:
        """First element and end of what the outputs of a partition really read; None: nothing.

        Unlike `[start(p), limit(p))` it counts no padding, no output past the end, and no element
        that falls between the taps: per tap the outputs that meet an element are one residue class
        `mod base_dilation`.
        """
        hits = [found for r in range(self.window.size) if (found := self._hits(p, r))]
        if not hits:
            return None
        return min(first for first, _ in hits), max(last for _, last in hits) + 1

    def _hits(self, p: int, tap: int) -> tuple[int, int] | None:
        """First and last element that one tap reads."""
        w = self.window
        low = w.padding_low - tap * w.window_dilation
        # base*k = stride*o - low with 0 <= k < size bounds o; the outputs of p bound it too.
        first = max(p * self.out_block, -(-low // w.stride))
        top = (self.size - 1) * w.base_dilation + low
        last = min((p + 1) * self.out_block - 1, self.out_size - 1, top // w.stride)
        common = math.gcd(w.stride, w.base_dilation)
        if low % common:
            return None
        cycle = w.base_dilation // common
        rest = low // common * pow(w.stride // common, -1, cycle) % cycle
        first, last = first + (rest - first) % cycle, last - (last - rest) % cycle
        if first > last:
            return None
        lower, upper = ((w.stride * o - low) // w.base_dilation for o in (first, last))
        return lower, upper

    @property
    def needed_left(self) -> int:
        """How far to the left some output of a partition really reads: at most `margin_left`."""
        return self._needed(lambda p, first, end: p * self.block - first)

    @property
    def needed_right(self) -> int:
        """How far to the right some output of a partition really reads: at most `margin_right`."""
        return self._needed(lambda p, first, end: end - (p + 1) * self.block)

    def _needed(self, width: Callable[[int, int, int], int]) -> int:
        return max(0, 0, *(width(p, *read) for p, read in enumerate(self._reads) if read))

    @cached_property
    def _reads(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(self.reads(p) for p in range(self.parts))

    def table(self) -> Table:
        """One row per partition: what it owns, what it reads, and what of that is padding.

        >>> halo(Window(2, padding_low=1, padding_high=4), size=12, parts=4).table()
        partition  own       start  limit  left  right  padding_low  padding_high  reads
                0  [0, 3)       -1      4     1      1            0             0  [0, 4)
                1  [3, 6)        3      8     0      2            0             0  [3, 8)
                2  [6, 9)        7     12    -1      3            0             0  [7, 12)
                3  [9, 12)      11     16    -2      4            0             0  [11, 12)
        """
        forms = {"start": self.start, "limit": self.limit, "left": self.left, "right": self.right}
        return Table.from_records(
            {
                "partition": p,
                "own": f"[{p * self.block}, {min((p + 1) * self.block, self.size)})",
                **{name: form.at(p) for name, form in forms.items()},
                "padding_low": self.padding_low(p),
                "padding_high": self.padding_high(p),
                "reads": None if read is None else f"[{read[0]}, {read[1]})",
            }
            for p, read in enumerate(self._reads)
        )

    def picture(self, *, kernel_placement: bool = False) -> DimensionDrawing:
        """What there is to draw of it; the arguments are those of `draw`.

        >>> halo(Window(2, padding_low=1, padding_high=4), size=12, parts=4).picture().rows[3]
        PartitionRow(partition=3, start=11, limit=16, windows=(11, ..., 14), outputs=4, ...)
        """
        window = self.window
        rows = tuple(self._row(p, kernel_placement) for p in range(self.parts))
        taps = tuple(range(0, window.span, window.window_dilation))
        widths = (("left", self.left, self.max_left), ("right", self.right, self.max_right))
        note = ",   ".join(f"{side}(p) = {form!r}, at most {most}" for side, form, most in widths)
        if window.base_dilation > 1:
            note += f",   case {self.case}"
        base, stride = window.base_dilation, window.stride
        return DimensionDrawing(
            self.size, self.block, rows, f"elements: {note}", base, taps, stride
        )

    def _row(self, p: int, kernel_placement: bool) -> PartitionRow:
        window = self.window
        most, low = (self.max_padding_low, self.padding_low(p)) if kernel_placement else (0, 0)
        outputs = range(p * self.out_block, (p + 1) * self.out_block)
        return PartitionRow(
            p,
            self.start.at(p),
            self.limit.at(p),
            tuple(window.stride * o - window.padding_low for o in outputs),
            sum(o < self.out_size for o in outputs),
            (most - low, low),
        )

    def draw(self, *, kernel_placement: bool = False) -> Figure:
        """Each partition's block, what it reads of others, and its windows: a row per partition.

        A cell is an element, in the color of the partition that holds it; the frame is the
        partition's own block, and a number above it names the partition that sends it. Hatched
        cells do not exist. Below lie the windows of its outputs, a dot per tap.

        Args:
          kernel_placement: the paper's case 3 of base dilation: all partitions start with the same
            low padding, and each moves the kernel in a window that is longer by so much (rings).

        >>> figure = halo(Window(3, padding_low=1, padding_high=1), size=16, parts=4).draw()
        >>> figure.axes[0].texts[0].get_text()
        'A window of 3 over 16 elements in 4 partitions'
        """
        return self._drawn({self._title: self}, kernel_placement=kernel_placement)

    @property
    def _title(self) -> str:
        w = self.window
        said = {"stride": w.stride, "base dilation": w.base_dilation, "dilation": w.window_dilation}
        notes = "".join(f", {name} {value}" for name, value in said.items() if value != 1)
        return f"A window of {w.size}{notes} over {self.size} elements in {self.parts} partitions"

    @staticmethod
    def _drawn(things: Mapping[str, Halo | Exchange], **options: bool) -> Figure:
        return draw_halos({name: each.picture(**options) for name, each in things.items()})

    def __repr__(self) -> str:
        return f"Halo(left={self.left!r}, right={self.right!r})"


def halo(window: Window, *, size: int, parts: int) -> Halo:
    """The halo of a windowed operator whose input and output are split alike.

    With `block = ceil(size/parts)`, `out_block = ceil(out_size/parts)`, `step = stride*out_block`
    and `b = base_dilation`:

        left(p)  = p*block - ceil((step*p - padding_low) / b)
        right(p) = ceil((step*p + stride*(out_block-1) + span - padding_low) / b) - (p+1)*block

    Args:
      size: elements of the unpartitioned dimension; `parts` need not divide it.

    Raises:
      ShardingError: fewer than one element or part, or a window that yields no output.

    >>> example = halo(Window(2, padding_low=1, padding_high=4), size=12, parts=4)
    >>> example, example.max_right, example.exchanged_right
    (Halo(left=1 - p, right=p + 1), 4, 3)
    >>> halo(Window(3, stride=2, padding_low=1, padding_high=1), size=224, parts=4)
    Halo(left=1, right=0)

    The widths 1, 2, 3, 4 are those of GSPMD (arXiv:2105.04663), appendix "Halo exchange details";
    XLA's `MultiplyAddDivideOffsetCalculation` holds such forms, and takes their largest value over
    the partitions that have a neighbour.
    """
    _check(window, size, parts)
    base, low = window.base_dilation, window.padding_low
    block, out_block = block_size(size, parts), block_size(window.out_size(size), parts)
    step = window.stride * out_block
    reach = step - window.stride + window.span
    start = Quotient.of(step, -low, base, up=True)
    limit = Quotient.of(step, reach - low, base, up=True)
    return Halo(window, size, parts, (-start).plus(block), limit.plus(-block, -block))


def _check(window: Window, size: int, parts: int) -> None:
    if not isinstance(window, Window):
        raise ShardingError(f"a halo is of a window, as in Window(size=3), got {window!r}.")
    if not (isinstance(size, Integral) and isinstance(parts, Integral) and min(size, parts) >= 1):
        raise ShardingError(
            f"a halo of size={size!r} in parts={parts!r}: both are whole numbers of at least 1."
        )
    if window.out_size(size) < 1:
        raise ShardingError(
            f"{window!r} has no output over {size} elements: its {window.span} positions do not "
            "fit into the padded input; nothing is read, so there is no halo."
        )
