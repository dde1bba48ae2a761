"""Ranking of plans by time and memory, and the plans that no other plan beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Ranked(Protocol):
    """A row of a comparison, a sweep or a search."""

    @property
    def has_figures(self) -> bool:
        """True if the row has a plan or at least its figures."""

    @property
    def fits(self) -> bool:
        """True if the peak memory is within the capacity of a device."""

    @property
    def order(self) -> float:
        """Seconds by which rows are ranked."""

    @property
    def peak_bytes(self) -> float:
        """Peak memory of a device."""


Row = TypeVar("Row", bound=Ranked)


def ranked(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return rows in their order: rows that fit first, by seconds; refused rows last."""
    return tuple(sorted(rows, key=lambda row: (not row.has_figures, not row.fits, row.order)))


def least_memory(rows: Iterable[Row]) -> Row | None:
    """Return the row with the smallest peak memory; None if no row has figures."""
    found = [row for row in rows if row.has_figures]
    return min(found, key=lambda row: row.peak_bytes, default=None)


def unbeaten(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows that no other one beats in both time and memory, in their order.

    Rows with equal time and memory do not beat each other, so that all of them are kept.
    """
    kept = []
    least = float("inf"), float("inf")
    # In ascending order of time, a row is beaten if an earlier one needs no more memory.
    found = [row for row in rows if row.has_figures]
    for row in sorted(found, key=lambda row: (row.order, row.peak_bytes)):
        now = row.peak_bytes, row.order
        if now[0] < least[0] or now == least:
            kept.append(row)
            least = now
    return ranked(kept)
