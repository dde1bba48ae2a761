"""What a device counts: starts are whole numbers to a claim, and numbers of 32 bits to a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from shardalg.algebra.digits import parts
from shardalg.spmd.instruction import Attributes
from shardalg.spmd.local import Start
from shardalg.verify.report import Decided

LARGEST = 2**31 - 1
"""Of the type in which partition ids are counted."""


def counted(attributes: Attributes) -> Iterator[Decided]:
    """Of every start that a device works out, whether all numbers on the way to it fit.

    >>> from shardalg.algebra.affine import Index
    >>> from shardalg.algebra.digits import Digit
    >>> from shardalg.spmd.instructions import SliceAt
    >>> row = Index.of("o") * 2**30
    >>> start = Start(row // 2**29, (("o", (Digit(1, 4),)),))
    >>> [claim.holds for claim in counted(SliceAt(0, start, 2))]
    [False]
    """
    for one in fields(attributes):  # type: ignore[arg-type]  # every kind is a dataclass
        start = getattr(attributes, one.name)
        if isinstance(start, Start):
            words = f"{start.index} is worked out in 32 bits"
            yield Decided(words, max(largest(start)) <= LARGEST)
    wrong = [number for number in _sizes(attributes) if not 0 <= number <= LARGEST]
    if wrong:
        yield Decided(f"{wrong[0]} is counted in 32 bits", holds=False)


def _sizes(attributes: Attributes) -> Iterator[int]:
    """Sizes that places are compared with, and where the block behind the last one starts."""
    yield getattr(attributes, "size", 0)
    yield from getattr(attributes, "sizes", ())
    yield getattr(attributes, "block", 0) * parts(getattr(attributes, "digits", ()))


def largest(start: Start) -> tuple[int, ...]:
    """What no number on the way to a start exceeds."""
    index, counts = start.index, {name: parts(digits) for name, digits in start.digits}
    terms = sum(abs(c) * (counts[name] - 1) for name, c in index.terms)
    return terms + abs(index.constant) + abs(start.more), index.div, index.mod
