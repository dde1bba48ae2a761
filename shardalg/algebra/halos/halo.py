"""Halos: the elements that a partition reads from other blocks, as closed forms in its id."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING

from shardalg.algebra.affine import Quotient
from shardalg.algebra.draw_halos import DimensionDrawing, PartitionRow, draw_halos, halo_canvas
from shardalg.algebra.halos.intervals import Interval
from shardalg.algebra.halos.window import Window
from shardalg.algebra.offset import block_size
from shardalg.errors import ShardingError
from shardalg.svg import drawing_card
from shardalg.tables import MOST_ROWS, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.algebra.halos.exchange import Exchange


@dataclass(frozen=True)
class Halo:
    """The elements outside its own block that each partition reads to compute its outputs.

    Partition `p` owns the elements `[p*block, (p+1)*block)` and the outputs
    `[p*out_block, (p+1)*out_block)`, padding included. It reads the elements
    `[start(p), limit(p))`: `left(p)` before its own block and `right(p)` after it. A negative width
    means that the partition does not read that end of its own block.

    Attributes:
      window: how the operator reads the dimension.
      size: elements of the unpartitioned dimension.
      parts: number of partitions.
      left, right: widths in elements, as functions of the partition id.
    """

    window: Window
    size: int
    parts: int
    left: Quotient
    right: Quotient

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks: the elements that each partition reads, and a table."""
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
        num_hidden = self.parts - len(rows)
        hidden_note = (
            (f"... and {num_hidden} more of {self.parts} partitions.",) if num_hidden else ()
        )
        title = f"{self.size} elements over {self.parts} partitions: {widths}."
        return drawing_card(title, halo_canvas(self.picture()), Table(columns, rows), *hidden_note)

    @cached_property
    def out_size(self) -> int:
        """Number of outputs of the unpartitioned operator."""
        return self.window.out_size(self.size)

    @cached_property
    def block(self) -> int:
        """Number of elements in one partition's block: `ceil(size / parts)`."""
        return block_size(self.size, self.parts)

    @cached_property
    def out_block(self) -> int:
        """Number of outputs of one partition: `ceil(out_size / parts)`."""
        return block_size(self.out_size, self.parts)

    @cached_property
    def step(self) -> int:
        """Positions between the first windows of neighbouring partitions: `stride * out_block`."""
        return self.window.stride * self.out_block

    @property
    def start(self) -> Quotient:
        """First element that a partition reads: `ceil((step*p - padding_low) / base_dilation)`."""
        return (-self.left).plus(self.block)

    @property
    def limit(self) -> Quotient:
        """First element after the ones that a partition reads: `right(p) + (p+1)*block`."""
        return self.right.plus(self.block, self.block)

    @property
    def max_left(self) -> int:
        """The largest value of `left(p)` over all partitions, which may be negative."""
        return self.left.max(0, self.parts - 1)

    @property
    def max_right(self) -> int:
        """The largest value of `right(p)` over all partitions, which may be negative."""
        return self.right.max(0, self.parts - 1)

    @property
    def margin_left(self) -> int:
        """The most elements that any partition reads from the blocks to its left.

        The maximum is over the partitions 1 to `parts - 1`: no block precedes the first one.
        """
        return self._margin(self.left, 1)

    @property
    def margin_right(self) -> int:
        """The most elements that any partition reads from the blocks to its right.

        The maximum is over the partitions 0 to `parts - 2`: no block follows the last one.
        """
        return self._margin(self.right, 0)

    def _margin(self, width: Quotient, first: int) -> int:
        """Return the largest width for the partitions `first` to `first + parts - 2`.

        The result is not negative, and not more than all other blocks together.
        """
        if self.parts == 1:
            return 0
        widest = width.max(first, first + self.parts - 2)
        return min(max(widest, 0), (self.parts - 1) * self.block)

    @property
    def exchanged_left(self) -> int:
        """Number of elements that each partition receives from the left, as XLA exchanges them.

        XLA sends a margin hop by hop. Elements after every partition's `limit` are left out. If a
        width is more than twice `length`, XLA sends pieces instead, as an `Exchange` does.
        """
        return max(self.margin_left + min(self.block + self.max_right, 0), 0)

    @property
    def exchanged_right(self) -> int:
        """Number of elements that each partition receives from the right, as XLA exchanges them.

        Elements of the margin that precede every partition's `start` are left out.
        """
        return max(self.margin_right + min(self.block + self.max_left, 0), 0)

    @property
    def hops(self) -> tuple[int, int]:
        """Number of blocks to the left and to the right that a partition's margins reach into."""
        return -(-self.margin_left // self.block), -(-self.margin_right // self.block)

    @property
    def case(self) -> int:
        """The case of base dilation: 1, 2 or 3, as GSPMD's appendix numbers them.

        1: `base_dilation` divides `step`, so every partition needs the same low padding.
        2: stride 1. All partitions use the largest low padding and slice surplus outputs off.
        3: otherwise. The window itself is padded, by a different amount on each partition.
        """
        if self.step % self.window.base_dilation == 0:
            return 1
        return 2 if self.window.stride == 1 else 3

    def padding_low(self, p: int) -> int:
        """Return the positions from the first window's start to the first element it reads.

        Positions are on the dilated base: `(padding_low - step*p) mod base_dilation`.
        """
        return (self.window.padding_low - self.step * p) % self.window.base_dilation

    def padding_high(self, p: int) -> int:
        """Return the number of padding positions behind the last element that partition p reads.

        They fill up the last window: `padding_low + (elements - 1)*base_dilation + 1 +
        padding_high` is `reach`.
        """
        elements = self.limit.at(p) - self.start.at(p)
        dilated = (elements - 1) * self.window.base_dilation + 1
        return self.reach - self.padding_low(p) - dilated

    @property
    def reach(self) -> int:
        """Positions from the start of a partition's first window to the end of its last window.

        It is `stride*(out_block - 1) + span`.
        """
        return self.window.stride * (self.out_block - 1) + self.window.span

    @property
    def max_padding_low(self) -> int:
        """The largest `padding_low(p)` over all partitions.

        It is `padding_low mod g + base_dilation - g` with `g = gcd(step, base_dilation)`, if there
        are at least `base_dilation / g` partitions.
        """
        base = self.window.base_dilation
        common = math.gcd(self.step, base)
        # `step*p mod base` takes `base / common` values, so fewer partitions may miss the largest.
        if self.parts < base // common:
            return max(self.padding_low(p) for p in range(self.parts))
        return self.window.padding_low % common + base - common

    @cached_property
    def length(self) -> int:
        """Number of elements of the local operand: the most that any partition reads."""
        start, limit = self.start, self.limit
        # Both slopes are `step / base_dilation`, so `limit - start` repeats with the rests.
        cycle = math.lcm(start.divisor, limit.divisor)
        return max(0, *(limit.at(p) - start.at(p) for p in range(min(self.parts, cycle))))

    @property
    def interval(self) -> Interval:
        """The elements that partition p reads, as an interval whose length is equal for all p."""
        return Interval(self.start.index, self.length)

    def reads(self, p: int) -> tuple[int, int] | None:
        """Return the first element and the end of the elements that partition p's outputs use.

        None if they use no element. Unlike `[start(p), limit(p))`, the range excludes padding,
        outputs past the end, and elements between the taps at either end.
        """
        window = self.window
        common = math.gcd(window.stride, window.base_dilation)
        cycle = window.base_dilation // common
        used: list[int] = []
        for tap in range(window.size):
            # Output o meets element k at this tap if base*k = stride*o - low. A solution exists
            # only if gcd(stride, base) divides low.
            low = window.padding_low - tap * window.window_dilation
            if low % common:
                continue
            # The bounds 0 <= k < size and the outputs of p bound o.
            first = max(p * self.out_block, -(-low // window.stride))
            top = (self.size - 1) * window.base_dilation + low
            last = min((p + 1) * self.out_block - 1, self.out_size - 1, top // window.stride)
            # The solutions o are one residue class mod `cycle`: round both bounds into it.
            residue = low // common * pow(window.stride // common, -1, cycle) % cycle
            first, last = first + (residue - first) % cycle, last - (last - residue) % cycle
            if first <= last:
                used += ((window.stride * o - low) // window.base_dilation for o in (first, last))
        return (min(used), max(used) + 1) if used else None

    @property
    def needed_left(self) -> int:
        """The most elements to the left of its block that any partition's outputs use.

        At most `margin_left`, which counts elements between the taps, too.
        """
        own_block = self.block
        return max(
            0, *(p * own_block - read[0] if read else 0 for p, read in enumerate(self._reads))
        )

    @property
    def needed_right(self) -> int:
        """The most elements to the right of its block that any partition's outputs use.

        At most `margin_right`, which counts elements between the taps, too.
        """
        own_block = self.block
        ends = (read[1] - (p + 1) * own_block if read else 0 for p, read in enumerate(self._reads))
        return max(0, *ends)

    @cached_property
    def _reads(self) -> tuple[tuple[int, int] | None, ...]:
        """Value of `reads` for each partition."""
        return tuple(self.reads(p) for p in range(self.parts))

    def table(self) -> Table:
        """Return a table with one row per partition.

        Columns are its own elements, the elements that it reads ([start, limit)), the widths left
        and right, the padding of its windows, and the elements that its outputs use (see `reads`).

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
        """Return the data of the drawing that `draw` makes, for the same arguments.

        >>> halo(Window(2, padding_low=1, padding_high=4), size=12, parts=4).picture().rows[3]
        PartitionRow(partition=3, start=11, limit=16, windows=(11, ..., 14), outputs=4, ...)
        """
        window = self.window
        rows = []
        for p in range(self.parts):
            # With base dilation the low padding may differ by partition (case 3). All windows get
            # the length for the largest one, and each partition puts its kernel at its own place.
            max_low, low = (
                (self.max_padding_low, self.padding_low(p)) if kernel_placement else (0, 0)
            )
            outputs = range(p * self.out_block, (p + 1) * self.out_block)
            windows = tuple(window.stride * o - window.padding_low for o in outputs)
            num_outputs = sum(o < self.out_size for o in outputs)
            # The kernel of this partition has `most - low` taps of 0 before it and `low` after it.
            span = self.start.at(p), self.limit.at(p)
            rows.append(PartitionRow(p, *span, windows, num_outputs, (max_low - low, low)))
        taps = tuple(range(0, window.span, window.window_dilation))
        widths = (("left", self.left, self.max_left), ("right", self.right, self.max_right))
        note = ",   ".join(
            f"{side}(p) = {form!r}, at most {max_low}" for side, form, max_low in widths
        )
        if window.base_dilation > 1:
            note += f",   case {self.case}"
        base, stride = window.base_dilation, window.stride
        return DimensionDrawing(
            self.size, self.block, tuple(rows), f"elements: {note}", base, taps, stride
        )

    def draw(self, *, kernel_placement: bool = False) -> Figure:
        """Draw each partition's block, the elements it reads, and its windows, in one row each.

        A cell is an element, in the color of the partition that holds it. The frame is the
        partition's own block. A number above a cell names the partition that sends it. Hatched
        cells do not exist. The windows of the partition's outputs are below, with a dot per tap.

        Args:
          kernel_placement: draw the paper's case 3 of base dilation. All partitions start with the
            same low padding; each places the kernel in a longer window (rings are taps of 0).

        >>> figure = halo(Window(3, padding_low=1, padding_high=1), size=16, parts=4).draw()
        >>> figure.axes[0].texts[0].get_text()
        'A window of 3 over 16 elements in 4 partitions'
        """
        return self._drawn({self._title: self}, kernel_placement=kernel_placement)

    @property
    def _title(self) -> str:
        """Title of the drawing: the window, the number of elements, and of partitions."""
        w = self.window
        steps = {
            "stride": w.stride,
            "base dilation": w.base_dilation,
            "dilation": w.window_dilation,
        }
        notes = "".join(f", {name} {value}" for name, value in steps.items() if value != 1)
        return f"A window of {w.size}{notes} over {self.size} elements in {self.parts} partitions"

    @staticmethod
    def _drawn(things: Mapping[str, Halo | Exchange], **options: bool) -> Figure:
        """Draw several halos or exchanges under their titles, one panel each."""
        return draw_halos({name: each.picture(**options) for name, each in things.items()})

    def __repr__(self) -> str:
        return f"Halo(left={self.left!r}, right={self.right!r})"


def halo(window: Window, *, size: int, parts: int) -> Halo:
    """Return the halo of a windowed operator whose input and output have the same partitions.

    With `block = ceil(size/parts)`, `out_block = ceil(out_size/parts)`, `step = stride*out_block`
    and `b = base_dilation`:

        left(p)  = p*block - ceil((step*p - padding_low) / b)
        right(p) = ceil((step*p + stride*(out_block-1) + span - padding_low) / b) - (p+1)*block

    Args:
      size: elements of the unpartitioned dimension; `parts` need not divide it.

    Raises:
      ShardingError: fewer than one element or part, or a window without output.

    >>> example = halo(Window(2, padding_low=1, padding_high=4), size=12, parts=4)
    >>> example, example.max_right, example.exchanged_right
    (Halo(left=1 - p, right=p + 1), 4, 3)
    >>> halo(Window(3, stride=2, padding_low=1, padding_high=1), size=224, parts=4)
    Halo(left=1, right=0)

    The widths 1, 2, 3, 4 are those of GSPMD (arXiv:2105.04663), appendix "Halo exchange details";
    XLA's `MultiplyAddDivideOffsetCalculation` has such forms. It takes their largest value over
    the partitions that have a neighbour.
    """
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
    base, low = window.base_dilation, window.padding_low
    block, out_block = block_size(size, parts), block_size(window.out_size(size), parts)
    step = window.stride * out_block
    reach = step - window.stride + window.span
    # Element k is at position base*k, so the first one at or after a window's start is rounded up;
    # so is the first one at or after the last window's end.
    start = Quotient.of(step, -low, base, up=True)
    limit = Quotient.of(step, reach - low, base, up=True)
    # Block p has the elements from p*block to (p+1)*block, so that left(p) = p*block - start(p) and
    # right(p) = limit(p) - p*block - block.
    return Halo(window, size, parts, (-start).plus(block), limit.plus(-block, -block))
