"""The spans under any digits of a mesh: under its axes, their parts, and several of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.mesh import Mesh
from shardalg.costs.network.span import LINK, Level, Span
from shardalg.sizes.recorded import are_numbers


@dataclass(frozen=True, eq=False)
class Wiring:
    """What lies under the axes of a mesh."""

    mesh: Mesh
    axes: dict[str, tuple[Span, ...]]

    def spans(self, digits: Digits) -> tuple[Span, ...]:
        """Under several digits, major first; a digit in formulas is the whole of its axis."""
        return tuple(chain.from_iterable(map(self._under, digits)))

    def _under(self, digit: Digit) -> tuple[Span, ...]:
        found: list[Span] = []
        for name, part in axis_parts(self.mesh, digit):
            whole = self.axes[name]
            if not are_numbers((part.size,)) or part == self.mesh.digit(name):
                found += whole
            else:
                found += (s for span in whole if (s := _common(span, part)) is not None)
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Unknown:
    """Axes with links of their own, of which the speed is known and no more: one stage each.

    Attributes:
      speeds: bytes per second along each axis, one way.
    """

    mesh: Mesh
    speeds: dict[str, float]
    latency_s: float

    def spans(self, digits: Digits) -> tuple[Span, ...]:
        """Under several digits: one span per axis, of all parts of it that there are."""
        sizes: dict[str, Any] = {}
        for name, part in chain.from_iterable(axis_parts(self.mesh, d) for d in digits):
            sizes[name] = sizes[name] * part.size if name in sizes else part.size
        return tuple(
            Span(Level(LINK, size, self.speeds[name], self.latency_s), Digit(1, size))
            for name, size in sizes.items()
        )


def axis_parts(mesh: Mesh, digit: Digit) -> tuple[tuple[str, Digit], ...]:
    """The axes that a digit joins, major first, each with the part of it."""
    if are_numbers((digit.size,)):
        if digit.size == 1:
            return ()
        return tuple((ref.name, mesh.ref_digit(ref)) for ref in mesh.axis_refs(digit))
    # A digit whose size is a formula is one axis, or a part of it: its stride tells which.
    axes = ((name, mesh.digit(name)) for name, size in mesh.axes if size > 1)
    names = [n for n, a in axes if a.stride <= digit.stride < a.stride * a.size]
    return tuple((name, digit) for name in names)


def _common(span: Span, part: Digit) -> Span | None:
    """The part of a span that a part of its axis takes."""
    low = max(span.digit.stride, part.stride)
    high = min(span.digit.stride * span.digit.size, part.stride * part.size)
    return span.part(Digit(low, -(-high // low))) if high > low else None
