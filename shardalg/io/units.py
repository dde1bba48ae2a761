"""Amounts as people read them: three figures and a unit, the same everywhere."""

from __future__ import annotations

from typing import Any

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def bytes_text(amount: Any) -> str:
    """Bytes in powers of 1000, three figures.

    >>> [bytes_text(n) for n in (0, 999, 1500, 20_812_345_678, 999_999)]
    ['0 B', '999 B', '1.5 kB', '20.8 GB', '1 MB']
    """
    scaled, unit = float(amount), 0
    while float(f"{scaled:.3g}") >= 1000 and unit < len(_BYTES) - 1:
        scaled, unit = scaled / 1000, unit + 1
    return f"{_three(scaled)} {_BYTES[unit]}"


def counted(amount: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "operator"), counted(1234, "operator")
    ('1 operator', '1,234 operators')
    """
    return f"{amount:,} {what}{'s' * (amount != 1)}"


def flops_text(amount: Any) -> str:
    """Floating-point operations, three figures.

    >>> [flops_text(n) for n in (0, 3072, 1_006_632_960)]
    ['0 flop', '3.07 kflop', '1.01 Gflop']
    """
    return bytes_text(amount)[:-1] + "flop"


def seconds_text(amount: Any) -> str:
    """Seconds with the unit in which they have one to three figures before the point.

    >>> [seconds_text(t) for t in (0, 4.2e-8, 0.00123, 0.9999, 12.345, 3600)]
    ['0 s', '42 ns', '1.23 ms', '1 s', '12.3 s', '3600 s']
    """
    seconds = float(amount)
    if not seconds:
        return "0 s"
    size, unit = next((u for u in _SECONDS if float(f"{abs(seconds):.3g}") >= u[0]), _SECONDS[-1])
    return f"{_three(seconds / size)} {unit}"


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):g}"
