"""Lists of devices as XLA shortens them: `[2,4]T(1,0)`, a reshape and a transpose of 0, 1, 2, ...

Source: xla/hlo/ir/tile_assignment.cc.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from shardalg.algebra.digits import Digit, Digits, Table, canonical
from shardalg.algebra.notation.reader import MAX_DEVICES, Reader


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
    found = Table((len(order),), (row,)).recognize()
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
