"""Arrays that differ between devices, stored once per class of devices with equal contents.

A program for 2,048 devices has few different blocks: all devices of a data-parallel axis hold the
same rows of a weight. Every operation runs once per class of devices, and its result is kept, so
that equal layers of a model cost a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class PerDevice:
    """One array per device. Equal contents are one object of a `ArrayPool`.

    Attributes:
      rows: the distinct arrays, [classes, ...].
      classes: the row of each device, [devices].
      number: number of the object in its pool.
    """

    rows: np.ndarray
    classes: np.ndarray
    number: int

    @property
    def is_equal(self) -> bool:
        """True if all devices have the same array."""
        return len(self.rows) == 1

    def of(self, device: int) -> np.ndarray:
        """Return the array of a device."""
        return self.rows[self.classes[device]]

    def each(self) -> np.ndarray:
        """Return the arrays of all devices, [devices, ...]."""
        return self.rows[self.classes]

    def device(self, row: int) -> int:
        """Return the first device that has a row."""
        return int(np.argmax(self.classes == row))


@dataclass(eq=False)
class ArrayPool:
    """All arrays of an audit, and the results of the operations on them.

    Attributes:
      devices: number of devices.
    """

    devices: int
    _made: dict[Hashable, PerDevice] = field(default_factory=dict)
    _results: dict[Hashable, PerDevice | Exception] = field(default_factory=dict)
    _joined: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    _values: dict[Hashable, object] = field(default_factory=dict)

    def made(self, rows: np.ndarray, classes: np.ndarray | None = None) -> PerDevice:
        """Return the object with these arrays.

        Args:
          rows: [classes, ...]. classes: the row of each device; None: row 0, or row d of device d.
        """
        rows = np.ascontiguousarray(rows)
        if classes is None:
            one = len(rows) == 1
            classes = np.zeros(self.devices, np.int64) if one else np.arange(self.devices)
        # Rows are numbered by the first device that has them, so that equal contents are equal
        # bytes.
        seen: dict[bytes, int] = {}
        if len(rows) > 1:
            names = [seen.setdefault(row.tobytes(), at) for at, row in enumerate(rows)]
            used, first = np.unique(np.array(names)[classes], return_index=True)
            order = used[np.argsort(first)]
            number = np.zeros(len(rows), np.int64)
            number[order] = np.arange(len(order))
            classes, rows = number[np.array(names)[classes]], rows[order]
        mark = (rows.tobytes(), rows.shape, rows.dtype.str, classes.tobytes())
        found = self._made.get(mark)
        if found is None:
            found = self._made[mark] = PerDevice(rows, classes, len(self._made))
        return found

    def same(self, row: np.ndarray | float) -> PerDevice:
        """Return an array that all devices have."""
        return self.made(np.asarray(row)[None])

    def joined(self, parts: Sequence[PerDevice]) -> tuple[np.ndarray, np.ndarray]:
        """Return the classes of devices that have equal rows of all parts.

        Returns:
          The row of each part by class, [parts, classes], and the class of each device.
        """
        key = tuple(part.number for part in parts)
        if key not in self._joined:
            table = np.stack([part.classes for part in parts])
            if (table == table[:, :1]).all():
                self._joined[key] = table[:, :1], np.zeros(self.devices, np.int64)
            else:
                columns, classes = np.unique(table, axis=1, return_inverse=True)
                self._joined[key] = columns, classes.reshape(-1)
        return self._joined[key]

    def applied(
        self, name: Hashable, function: Callable[..., np.ndarray], *parts: PerDevice
    ) -> PerDevice:
        """Return a function of arrays, applied once per class of devices.

        Args:
          name: identifies the function and its parameters.
          function: takes one array [classes, ...] per part and returns an array [classes, ...].
        """
        key = (name, *(part.number for part in parts))
        found = self._results.get(key)
        if found is None:
            columns, classes = self.joined(parts)
            try:
                rows = function(*(p.rows[at] for p, at in zip(parts, columns, strict=True)))
                found = self.made(rows, classes)
            except ClassError as error:
                # The function knows the class; the message names the first device of the class.
                found = error.on(int(np.argmax(classes == error.row)))
            self._results[key] = found
        if isinstance(found, Exception):
            raise found
        return found

    def in_groups(
        self,
        name: Hashable,
        function: Callable[..., np.ndarray],
        groups: np.ndarray,
        *parts: PerDevice,
    ) -> PerDevice:
        """Return a function of the arrays of each group of devices.

        Args:
          name: identifies the function, its parameters and the groups.
          function: takes one array [groups, members, ...] per part, and returns one array
            [groups, members, ...].
          groups: device numbers, [groups, members].
        """
        key = (name, *(part.number for part in parts))
        found = self._results.get(key)
        if found is None:
            # Groups whose members have equal rows are one class of groups.
            table = np.concatenate([part.classes[groups] for part in parts], axis=1)
            table, which = np.unique(table, axis=0, return_inverse=True)
            which = which.reshape(-1)
            columns = np.split(table, len(parts), axis=1)
            try:
                rows = function(*(p.rows[at] for p, at in zip(parts, columns, strict=True)))
                members = groups.shape[1]
                classes = np.zeros(self.devices, np.int64)
                classes[groups] = which[:, None] * members + np.arange(members)
                found = self.made(rows.reshape(-1, *rows.shape[2:]), classes)
            except ClassError as error:
                group = int(np.argmax(which == error.row))
                found = error.on(int(groups[group, error.member]))
            self._results[key] = found
        if isinstance(found, Exception):
            raise found
        return found

    def kept(self, key: Hashable, make: Callable[[], object]) -> object:
        """Return a value that is made once per key."""
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]


Content = str | tuple[int, int]
NOT_COMPLETED = "a pending reduction that no all-reduce has completed"
OTHER_BLOCKS = "the members of a group hold different blocks of the result"
NOT_SHIFTED = "the indices are not shifted by the offset of the block"
COMPLETE_ALREADY = "an all-reduce adds values that are complete already"


@dataclass(frozen=True)
class WantedElement:
    """An element that a place of a value should hold.

    Attributes:
      holder: the operand with the place; None: the value itself.
    """

    base: int
    element: int
    device: int
    place: tuple[int, ...]
    holder: object = field(default=None, compare=False)


@dataclass(frozen=True)
class Shown:
    """The expected and the found content of a place that shows a wrong instruction.

    Attributes:
      wanted: the elements of which one is missing, and where.
      expected, found: the contents, as a base and an element, or in words.
      before: of a known number, its place in the value before partitioning; else None.
    """

    wanted: tuple[WantedElement, ...] = ()
    expected: Content = ""
    found: Content = ""
    before: tuple[int, ...] | None = None


NOT_SHOWN = Shown()


class AuditFinding(Exception):
    """A reason why an instruction is not proved.

    Attributes:
      why: the reason. device: the device where it shows. place: the element of the device.
      origin: the instruction at which the wrong elements first were wrong, if it is another one.
      shown: the expected and the found content of the place.
      reader: the operator before partitioning, and the device's operands in its order.
    """

    reader: object = None

    def __init__(
        self,
        why: str,
        device: int = 0,
        place: tuple[int, ...] = (),
        *,
        origin: object = None,
        shown: Shown = NOT_SHOWN,
    ) -> None:
        """Keep the reason and the witness: a device, a place on it, and its contents."""
        super().__init__(why)
        self.why, self.device, self.place = why, device, place
        self.origin, self.shown = origin, shown


class RefutedError(AuditFinding):
    """The instruction does not compute a block of the program before partitioning."""


class UnknownError(AuditFinding):
    """The audit does not understand the instruction."""


class ClassError(Exception):
    """A finding about a class of devices, raised inside of `ArrayPool.applied`.

    Attributes:
      finding: the finding, without its device. row: the class. member: the member of a group.
    """

    def __init__(self, finding: AuditFinding, row: int, member: int = 0) -> None:
        super().__init__(finding.why)
        self.finding, self.row, self.member = finding, row, member

    def on(self, device: int) -> AuditFinding:
        """Return the finding on a device."""
        one = self.finding
        return type(one)(one.why, device, one.place, origin=one.origin, shown=one.shown)
