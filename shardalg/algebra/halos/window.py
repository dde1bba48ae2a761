"""Windows: how a convolution, a pooling, a slice or a pad reads one dimension."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral

from shardalg.errors import ShardingError


@dataclass(frozen=True)
class Window:
    """One dimension of a windowed operator, with the meanings of XLA's `Window`.

    Output `o` reads, at tap `0 <= r < size`, the element `k` of the input with

        base_dilation * k = stride * o + window_dilation * r - padding_low

    If no such k exists inside the input, the tap reads padding.

    Attributes:
      size: number of taps.
      stride: positions by which the window moves from one output to the next.
      padding_low, padding_high: positions added before and after the input; negative: cut off.
      base_dilation: one plus the number of holes between two input elements.
      window_dilation: one plus the number of holes between two taps.

    Raises:
      ShardingError: a field is not a whole number; a size, stride or dilation is below 1.

    >>> Window(3, padding_low=1, padding_high=1)
    Window(size=3, padding_low=1, padding_high=1)

    Source: GSPMD (arXiv:2105.04663), appendix "Halo exchange details".
    """

    size: int
    stride: int = 1
    padding_low: int = 0
    padding_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1

    def __post_init__(self) -> None:
        """Raise ShardingError if a field is no integer, or below 1 where it must not be."""
        values = [getattr(self, name) for name in _NAMES]
        # Every size calculation builds windows, so the list of faults is made for errors only.
        whole = all(isinstance(value, Integral) for value in values)
        if whole and min(self.size, self.stride, self.base_dilation, self.window_dilation) >= 1:
            return
        faults = [
            f"{name}={value!r}"
            for name, value in zip(_NAMES, values, strict=True)
            if not isinstance(value, Integral) or (name not in _SIGNED and value < 1)
        ]
        raise ShardingError(
            f"{', '.join(faults)} in {self!r}: the size, the stride and the dilations of a window "
            "are whole numbers of at least 1; only the padding may be 0 or negative."
        )

    @property
    def span(self) -> int:
        """Positions from the first tap to the last one: `(size - 1) * window_dilation + 1`."""
        return (self.size - 1) * self.window_dilation + 1

    def out_size(self, size: int) -> int:
        """Return the number of outputs over an input of `size` elements.

        `floor((padded - span) / stride) + 1`, with `padded = (size - 1) * base_dilation + 1 +
        padding_low + padding_high`; 0 if the window is longer than the padded input.

        >>> Window(3, stride=2, padding_low=1, padding_high=1).out_size(224)
        112
        """
        base = (size - 1) * self.base_dilation + 1 if size else 0
        room = base + self.padding_low + self.padding_high - self.span
        return room // self.stride + 1 if room >= 0 else 0

    def __repr__(self) -> str:
        """Return the window as text, without the fields that have their default."""
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"Window({', '.join(shown)})"


_NAMES = tuple(field.name for field in fields(Window))
_SIGNED = ("padding_low", "padding_high")


def slice_window(start: int, limit: int, stride: int = 1, *, size: int) -> Window:
    """Return the window that computes the slice `x[start:limit:stride]`: one tap, negative padding.

    `size` is the number of elements of `x`.

    Raises:
      ShardingError: `0 <= start < limit <= size` is false.

    >>> slice_window(2, 9, 3, size=10), slice_window(2, 9, 3, size=10).out_size(10)
    (Window(size=1, stride=3, padding_low=-2, padding_high=-1), 3)
    """
    if not 0 <= start < limit <= size:
        raise ShardingError(
            f"the slice {start}:{limit}:{stride} of {size} elements: give 0 <= start < limit <= "
            "size."
        )
    # Negative padding cuts off the elements before the start and from the limit on.
    return Window(1, stride, -start, limit - size)


def pad_window(low: int, high: int, interior: int = 0) -> Window:
    """Return the window that computes `jax.lax.pad` on one dimension: one tap, a dilated base.

    Args:
      low, high: elements added at the ends, or cut off if negative.
      interior: elements inserted between any two neighbours.

    >>> pad_window(2, -1, 1), pad_window(2, -1, 1).out_size(4)
    (Window(size=1, padding_low=2, padding_high=-1, base_dilation=2), 8)
    """
    # Elements of a dilated base are `interior + 1` positions apart.
    return Window(1, 1, low, high, interior + 1)
