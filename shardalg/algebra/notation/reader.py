"""A reader of shardings as text from left to right; its errors point at the column of the fault.

Work is bounded by the length of the text, even if the text is hostile. Numbers have at most
`MAX_DIGITS` decimal places, meshes at most `MAX_DEVICES` devices, and a text names at most
`MAX_AXES` axes.

`iota` and `iota_text` read and print XLA's short form of a list of devices, `[2,4]T(1,0)`: a
reshape and a transpose of 0, 1, 2, ... (xla/hlo/ir/tile_assignment.cc).

The functions at the end return the layout that a text states.
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
SHOWN = 60
"""Columns of a long text that an error shows on each side of the fault."""
MESSAGE = 2000
"""The most characters of an error, because a message may name a mesh of many devices."""

T = TypeVar("T")
_SPACE = re.compile(r"[ \t\r\n]*")


class Reader:
    """A text in one notation, and the place up to which it was read. Space is skipped.

    Attributes:
      text: the text.
      notation, example: the name of the notation and a valid text, for messages.
      at: the index of the next character.
      axes: the number of axes that were read.

    >>> reader = Reader("{12, 7}", "a set", "{1, 2}")
    >>> reader.expect("{"), reader.items(lambda: reader.number("a number"), "}"), reader.end()
    ('{', (12, 7), None)
    """

    def __init__(self, text: str, notation: str, example: str) -> None:
        """Start at the beginning of the text; raise NotationError if it is no text."""
        if not isinstance(text, str):
            raise NotationError(f"{notation} is text like {example}; got {text!r:.80}.")
        self.text, self.notation, self.example = text, notation, example
        self.at, self.axes = 0, 0

    def skip(self) -> int:
        """Skip space; return the index of the next word."""
        space = _SPACE.match(self.text, self.at)
        assert space is not None  # it matches the empty text
        self.at = space.end()
        return self.at

    def take(self, pattern: str) -> str:
        """Consume and return the text that matches a pattern at this place, or return ""."""
        match = re.compile(pattern).match(self.text, self.skip())
        if match is None:
            return ""
        self.at = match.end()
        return match[0]

    def word(self, word: str) -> bool:
        """Consume `word` if the text continues with it; return whether it does."""
        if not self.text.startswith(word, self.skip()):
            return False
        self.at += len(word)
        return True

    def expect(self, *words: str) -> str:
        """Consume and return the next word, which must be one of `words`, tried in this order.

        For example, `expect(",", "]")` continues or ends a list.

        Raises:
          NotationError: something else is next.
        """
        for word in words:
            if self.word(word):
                return word
        raise self.error(
            f"expected {' or '.join(map(repr, dict.fromkeys(words)))}, found {self.found()}"
        )

    def number(self, what: str) -> int:
        """Consume and return a number without sign; `what` names it in errors."""
        start = self.skip()
        number = self.take("[0-9]+")
        if not number:
            raise self.error(f"expected {what}, found {self.found()}")
        # Hostile texts may have very long numbers; no valid text has them.
        if len(number) > MAX_DIGITS:
            raise self.error(f"{what} has {len(number)} digits, more than {MAX_DIGITS}", start)
        return int(number)

    def items(self, read: Callable[[], T], close: str) -> tuple[T, ...]:
        """Read a list whose items are separated by commas; return the items.

        Args:
          read: reads one item and returns it.
          close: the word at the end of the list, such as "]". The list may be empty.
        """
        if self.word(close):
            return ()
        items = [read()]
        while self.expect(",", close) == ",":
            items.append(read())
        return tuple(items)

    def numbers(self, what: str, close: str) -> tuple[int, ...]:
        """Read numbers separated by commas, up to the word `close`; return them, at least one.

        Args:
          what: the name of a number in errors.
        """
        numbers = [self.number(what)]
        while self.expect(",", close) == ",":
            numbers.append(self.number(what))
        return tuple(numbers)

    def quoted(self, quotes: str, what: str) -> str:
        """Consume and return a name in quotation marks, without escapes.

        Args:
          quotes: the allowed quotation marks.
          what: the name of the thing in errors.
        """
        start = self.skip()
        quote = self.text[start : start + 1]
        if not quote or quote not in quotes:
            raise self.error(f"expected {what} in {quotes[0]}, found {self.found()}")
        end = self.text.find(quote, start + 1)
        name = self.text[start + 1 : end]
        # `find` returns -1 if the closing mark is missing.
        if end < 0 or "\\" in name or not name or not name.isprintable():
            raise self.error(f"{what} must end with {quote}, be printable, and have no escapes")
        self.at = end + 1
        return name

    def one_more_axis(self, at: int) -> None:
        """Count an axis; raise NotationError if there are more than `MAX_AXES`.

        Pairs of axes are checked later, so a hostile text with many axes would take long.
        """
        self.axes += 1
        if self.axes > MAX_AXES:
            raise self.error(f"a sharding of more than {MAX_AXES} axes", at)

    def metadata(self) -> None:
        """Skip the rest of `metadata={...}` after its opening brace; quoted braces do not count."""
        depth = 1
        while depth:
            token = self.take(r'"(?:[^"\\]|\\.)*"|[^"{}]+|[{}]')
            if not token:
                raise self.error("the metadata do not end")
            depth += {"{": 1, "}": -1}.get(token, 0)

    def end(self) -> None:
        """Raise NotationError if anything except space follows."""
        if self.skip() < len(self.text):
            raise self.error(f"the sharding ends here, found {self.found()}")

    def found(self) -> str:
        """Return the next character in quotes, or "the end", for messages."""
        return repr(self.text[self.at]) if self.at < len(self.text) else "the end"

    def error(self, what: str, at: int | None = None) -> NotationError:
        """Return an error at index `at` (default: here), with a caret below a piece of the text."""
        column = self.skip() if at is None else at
        # Show a piece of a long text, with unprintable characters as blanks to keep the columns.
        first = max(0, column - SHOWN)
        piece = self.text[first : column + SHOWN]
        shown = "".join(char if char.isprintable() else " " for char in piece)
        # The message adds a period itself.
        what = what.removesuffix(".") if len(what) < MESSAGE else f"{what[:MESSAGE]} ..."
        return NotationError(
            f"column {column + 1} of {self.notation}: {what}.\n  {shown}\n"
            f"  {' ' * (column - first)}^\nWrite it as {self.example}."
        )


def iota(reader: Reader) -> Digits:
    """Read XLA's short form of a list, such as `[2,4]T(1,0)`; return digits that state the list.

    It is the list 0, 1, ..., n - 1, reshaped to the sizes, transposed and flattened: `[2,4]T(1,0)`
    is 0, 4, 1, 5, 2, 6, 3, 7. The digits of a number, major first, give its place in the list. Here
    they are number mod 4, then floor(number / 4).
    """
    start = reader.skip()
    reader.expect("[")
    sizes = reader.numbers("an extent", "]")
    if min(sizes) < 1 or math.prod(sizes) > MAX_DEVICES:
        raise reader.error(
            f"extents are at least 1 and number at most {MAX_DEVICES} devices", start
        )
    permutation = tuple(range(len(sizes)))
    if reader.word("T"):
        reader.expect("(")
        start = reader.skip()
        permutation = reader.numbers("a dimension", ")")
        if sorted(permutation) != list(range(len(sizes))):
            what = f"{list(permutation)} is no permutation of {len(sizes)} numbers"
            raise reader.error(what, start)
    # The reshape gives each dimension a stride in the number: the product of the sizes after it.
    # The transpose orders the digits.
    strides, stride = [], math.prod(sizes)
    for size in sizes:
        stride //= size
        strides.append(stride)
    return tuple(Digit(strides[i], sizes[i]) for i in permutation)


def iota_order(digits: Digits) -> tuple[int, ...]:
    """Return the list of numbers 0 to n - 1 that `iota` reads as these digits.

    The digits of a number give its place in the list, major first.

    >>> iota_order((Digit(1, 2), Digit(2, 3)))
    (0, 2, 4, 1, 3, 5)
    """
    import numpy as np

    digits = canonical(digits)
    numbers = np.arange(math.prod(digit.size for digit in digits))
    # The place of each number: its digits in mixed radix, by Horner's scheme.
    place = np.zeros_like(numbers)
    for digit in digits:
        place = place * digit.size + numbers // digit.stride % digit.size
    # The list has at each place the number with this place, which is the inverse permutation.
    return tuple(np.argsort(place).tolist())


def iota_text(order: Sequence[int]) -> str | None:
    """Return XLA's shortest form of a list, such as `[2,4]T(1,0)`; None if it has no such form.

    >>> iota_text((0, 2, 4, 1, 3, 5)), iota_text((0, 1, 2)), iota_text((0, 2, 1))
    ('[3,2]T(1,0)', '[3]', None)
    """
    # An iota lists each of 0, ..., n - 1 once, so any other list has no short form.
    place = {device: number for number, device in enumerate(order)}
    if any(device not in place for device in range(len(order))):
        return None
    places = tuple(place[device] for device in range(len(order)))
    # An iota is a list in which the place is made of digits of the number. `recognize` finds them.
    digits_of_dim = PositionTable((len(order),), (places,)).recognize()
    if digits_of_dim is None:
        return None
    # The reshape has the digits in the order of their strides; the transpose has their places.
    digits = canonical(digits_of_dim[0])
    dims = sorted(digits, reverse=True)
    if len(dims) <= 1:
        return f"[{len(order)}]"
    return f"[{listed(d.size for d in dims)}]T({listed(dims.index(d) for d in digits)})"


def listed(numbers: Iterable[int]) -> str:
    """Return numbers as text in XLA's form, such as `0,1,2`."""
    return ",".join(map(str, numbers))


@dataclass(frozen=True)
class Dim:
    """One dimension of a sharding that was read.

    Attributes:
      digits: the digits that split it.
      is_open: whether completion may shard it further.
      priority: the first round of completion in which it takes part.
    """

    digits: Digits
    is_open: bool
    priority: int


def layout_of(
    mesh: Mesh, shape: tuple[int, ...], dims: tuple[Dim, ...], held: dict[str, Digits]
) -> Layout:
    """Return the layout with dimensions that were read.

    Args:
      held: the digits that split no dimension, by kind ("unreduced", "manual", "replicated").
    """
    opened = tuple(i for i, dim in enumerate(dims) if dim.is_open)
    priorities = tuple(dim.priority for dim in dims)
    digits = tuple(dim.digits for dim in dims)
    return Layout(mesh, shape, digits, opened, priorities=priorities).holding(held)


def whole(mesh: Mesh, shape: tuple[int, ...], **held: Digits) -> Layout:
    """Return the layout without partitioned dimensions.

    Args:
      held: the digits that split no dimension, by kind ("unreduced", "manual", "replicated").
    """
    return Layout(mesh, shape, ((),) * len(shape)).holding(held)


def on_device(reader: Reader, device: int, shape: tuple[int, ...], mesh: Mesh | None) -> Layout:
    """Return the sharding that keeps the whole tensor on one device.

    Raises:
      NotationError: `mesh` is given and does not have the device.
    """
    if mesh is not None and device not in mesh.order:
        raise reader.error(f"device {device} is not on {mesh!r}")
    return whole(Mesh({}, [device]), shape)


def stated(reader: Reader, read: Layout, mesh: Mesh | None) -> Layout:
    """Return a layout that was read on the mesh in its text, converted to `mesh` if it is given.

    Raises:
      NotationError: axes of `mesh` cannot express the layout.
    """
    # A mesh without axes and device ids means all devices: the tensor is replicated.
    if mesh is not None and not read.mesh.axes and read.mesh.device_ids is None:
        return Layout(mesh, read.shape, read.dims)
    # The text's mesh may have other axes or another device order over the same devices.
    layout = read if mesh is None else restate(read, mesh)
    if layout is None:
        raise reader.error(f"{read!r} is no digits of {mesh!r}; read it without a mesh")
    return layout
