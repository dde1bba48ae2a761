"""Reading text from the left, with errors that point at the column. All notations are read here.

Work is bounded by the length of the text, whatever it says: numbers have at most `MAX_DIGITS`
decimal places, meshes at most `MAX_DEVICES` devices, and a text names at most `MAX_AXES` axes.

Lists of devices as XLA shortens them: `[2,4]T(1,0)`, a reshape and a transpose of 0, 1, 2, ...

Source: xla/hlo/ir/tile_assignment.cc.

What a text states, as the data of a sharding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shardalg.algebra.digits import Digit, Digits, PositionTable, canonical
from shardalg.algebra.layout import Layout, restate
from shardalg.algebra.mesh import Mesh
from shardalg.errors import NotationError

MAX_DIGITS = 10
MAX_DEVICES = 1 << 20
MAX_AXES = 256
SHOWN = 60  # columns of a long text on each side of the fault
MESSAGE = 2000  # characters of an error, which may name a mesh of many devices

T = TypeVar("T")
_SPACE = re.compile(r"[ \t\r\n]*")


class Reader:
    """One text of one notation; `at` is the place that is read next. Space between words is free.

    >>> reader = Reader("{12, 7}", "a set", "{1, 2}")
    >>> reader.expect("{"), reader.items(lambda: reader.number("a number"), "}"), reader.end()
    ('{', (12, 7), None)
    """

    def __init__(self, text: str, notation: str, example: str) -> None:
        if not isinstance(text, str):
            raise NotationError(f"{notation} is text like {example}; got {text!r:.80}.")
        self.text, self.notation, self.example = text, notation, example
        self.at, self.axes = 0, 0

    def skip(self) -> int:
        """The column of the next word."""
        found = _SPACE.match(self.text, self.at)
        assert found is not None  # it matches the empty text
        self.at = found.end()
        return self.at

    def take(self, pattern: str) -> str:
        """The text that matches here, consumed; "" if none does."""
        match = re.compile(pattern).match(self.text, self.skip())
        if match is None:
            return ""
        self.at = match.end()
        return match[0]

    def word(self, word: str) -> bool:
        """Whether `word` stands here; it is consumed."""
        if not self.text.startswith(word, self.skip()):
            return False
        self.at += len(word)
        return True

    def expect(self, *words: str) -> str:
        """The one of `words` that stands here, consumed."""
        for word in words:
            if self.word(word):
                return word
        raise self.error(
            f"expected {' or '.join(map(repr, dict.fromkeys(words)))}, found {self.found()}"
        )

    def number(self, what: str) -> int:
        """A number without sign."""
        start = self.skip()
        number = self.take("[0-9]+")
        if not number:
            raise self.error(f"expected {what}, found {self.found()}")
        if len(number) > MAX_DIGITS:
            raise self.error(f"{what} has {len(number)} digits, more than {MAX_DIGITS}", start)
        return int(number)

    def items(self, read: Callable[[], T], close: str) -> tuple[T, ...]:
        """What `read` reads, comma-separated, up to `close`; possibly nothing."""
        if self.word(close):
            return ()
        found = [read()]
        while self.expect(",", close) == ",":
            found.append(read())
        return tuple(found)

    def numbers(self, what: str, close: str) -> tuple[int, ...]:
        """Comma-separated numbers up to `close`, at least one."""
        found = [self.number(what)]
        while self.expect(",", close) == ",":
            found.append(self.number(what))
        return tuple(found)

    def quoted(self, quotes: str, what: str) -> str:
        """A name between one of `quotes`, without escapes."""
        start = self.skip()
        quote = self.text[start : start + 1]
        if not quote or quote not in quotes:
            raise self.error(f"expected {what} in {quotes[0]}, found {self.found()}")
        end = self.text.find(quote, start + 1)
        name = self.text[start + 1 : end]
        if end < 0 or "\\" in name or not name or not name.isprintable():
            raise self.error(f"{what} must end with {quote}, be printable, and have no escapes")
        self.at = end + 1
        return name

    def one_more_axis(self, at: int) -> None:
        """Count an axis, so that a hostile text cannot make the checks of pairs slow."""
        self.axes += 1
        if self.axes > MAX_AXES:
            raise self.error(f"a sharding of more than {MAX_AXES} axes", at)

    def metadata(self) -> None:
        """Skip `metadata={...}` behind its opening brace; braces within quotes do not count."""
        depth = 1
        while depth:
            token = self.take(r'"(?:[^"\\]|\\.)*"|[^"{}]+|[{}]')
            if not token:
                raise self.error("the metadata do not end")
            depth += {"{": 1, "}": -1}.get(token, 0)

    def end(self) -> None:
        """Nothing but space may follow."""
        if self.skip() < len(self.text):
            raise self.error(f"the sharding ends here, found {self.found()}")

    def found(self) -> str:
        """The character that stands here, as it is named in messages."""
        return repr(self.text[self.at]) if self.at < len(self.text) else "the end"

    def error(self, what: str, at: int | None = None) -> NotationError:
        """An error at column `at` (default: here), with a caret below a piece of the text."""
        column = self.skip() if at is None else at
        first = max(0, column - SHOWN)
        piece = self.text[first : column + SHOWN]
        shown = "".join(char if char.isprintable() else " " for char in piece)
        what = what.removesuffix(".") if len(what) < MESSAGE else f"{what[:MESSAGE]} ..."
        return NotationError(
            f"column {column + 1} of {self.notation}: {what}.\n  {shown}\n"
            f"  {' ' * (column - first)}^\nWrite it as {self.example}."
        )


def iota(reader: Reader) -> Digits:
    """`[2,4]T(1,0)` read: the place in the list as digits of the number there, major first."""
    start = reader.skip()
    reader.expect("[")
    sizes = reader.numbers("an extent", "]")
    if min(sizes) < 1 or math.prod(sizes) > MAX_DEVICES:
        raise reader.error(
            f"extents are at least 1 and number at most {MAX_DEVICES} devices", start
        )
    order = tuple(range(len(sizes)))
    if reader.word("T"):
        reader.expect("(")
        start = reader.skip()
        order = reader.numbers("a dimension", ")")
        if sorted(order) != list(range(len(sizes))):
            what = f"{list(order)} is no permutation of {len(sizes)} numbers"
            raise reader.error(what, start)
    strides, below = [], math.prod(sizes)
    for size in sizes:
        below //= size
        strides.append(below)
    return tuple(Digit(strides[i], sizes[i]) for i in order)


def iota_order(digits: Digits) -> tuple[int, ...]:
    """The numbers that `iota` lists.

    >>> iota_order((Digit(1, 2), Digit(2, 3)))
    (0, 2, 4, 1, 3, 5)
    """
    import numpy as np

    digits = canonical(digits)
    numbers = np.arange(math.prod(digit.size for digit in digits))
    place = np.zeros_like(numbers)
    for digit in digits:
        place = place * digit.size + numbers // digit.stride % digit.size
    return tuple(np.argsort(place).tolist())


def iota_text(order: Sequence[int]) -> str | None:
    """The list as `[2,4]T(1,0)` in XLA's shortest form; None where it is no such list.

    >>> iota_text((0, 2, 4, 1, 3, 5)), iota_text((0, 1, 2)), iota_text((0, 2, 1))
    ('[3,2]T(1,0)', '[3]', None)
    """
    place = {device: number for number, device in enumerate(order)}
    if any(device not in place for device in range(len(order))):
        return None
    row = tuple(place[device] for device in range(len(order)))
    found = PositionTable((len(order),), (row,)).recognize()
    return None if found is None else _iota_text(found[0], len(order))


def _iota_text(digits: Digits, size: int) -> str:
    digits = canonical(digits)
    places = sorted(digits, reverse=True)
    if len(places) <= 1:
        return f"[{size}]"
    return f"[{listed(d.size for d in places)}]T({listed(places.index(d) for d in digits)})"


def listed(numbers: Iterable[int]) -> str:
    """Numbers as XLA lists them, without spaces."""
    return ",".join(map(str, numbers))


@dataclass(frozen=True)
class Dim:
    """One dimension as it stands."""

    digits: Digits
    is_open: bool
    priority: int


def layout_of(
    mesh: Mesh, shape: tuple[int, ...], dims: tuple[Dim, ...], held: dict[str, Digits]
) -> Layout:
    """The sharding that was read."""
    opened = tuple(i for i, dim in enumerate(dims) if dim.is_open)
    priorities = tuple(dim.priority for dim in dims)
    digits = tuple(dim.digits for dim in dims)
    return Layout(mesh, shape, digits, opened, priorities=priorities).holding(held)


def whole(mesh: Mesh, shape: tuple[int, ...], **held: Digits) -> Layout:
    """No dimension is partitioned; `held` has the digits of the other classes."""
    return Layout(mesh, shape, ((),) * len(shape)).holding(held)


def on_device(reader: Reader, device: int, shape: tuple[int, ...], mesh: Mesh | None) -> Layout:
    """The maximal sharding that was read, after a look whether `mesh` has the device."""
    if mesh is not None and device not in mesh.order:
        raise reader.error(f"device {device} is not on {mesh!r}")
    return whole(Mesh({}, [device]), shape)


def stated(reader: Reader, read: Layout, mesh: Mesh | None) -> Layout:
    """What was read with a mesh of its own, on `mesh` where one is given.

    A mesh of no axes that names no device stands for all of them: the tensor is replicated.
    """
    if mesh is not None and not read.mesh.axes and read.mesh.device_ids is None:
        return Layout(mesh, read.shape, read.dims)
    found = read if mesh is None else restate(read, mesh)
    if found is None:
        raise reader.error(f"{read!r} is no digits of {mesh!r}; read it without a mesh")
    return found
