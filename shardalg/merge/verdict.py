"""What deciding shardings gives: the answer, and for a refusal its reason and its witness.

Refusals, and the device or the tile that shows one, found by evaluating both shardings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.merge.condition import Condition, condition_of
from shardalg.merge.merged import rows_of, united
from shardalg.merge.places import DimOrClass, digits_at, escape, offset_at
from shardalg.tables import card

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pair = tuple[Sharding, Sharding]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why shardings are refused.

    Attributes:
      kind: "offset" (a dimension lies differently), "overlap" (two dimensions would share a
        digit), "joint" (several are unbalanced together), "closed" (a dimension that may not be
        refined), "class" (unreduced or manual digits differ), "contained" (a block is not inside
        the other one).
      dims: the dimensions at fault; a class stands as its name.
    """

    kind: str
    dims: tuple[DimOrClass, ...]


@dataclass(frozen=True, slots=True)
class Witness:
    """A concrete case that shows a refusal.

    Attributes:
      device, dim: where the two shardings differ, with the offsets that they give.
      dims, tile: the tile that `count` devices would hold in place of `expected`.
    """

    device: int | None = None
    dim: DimOrClass | None = None
    offsets: tuple[int, int] | None = None
    dims: tuple[DimOrClass, ...] = ()
    tile: tuple[int, ...] = ()
    count: int | None = None
    expected: int | None = None


def find(pair: Pair, failure: Failure) -> Witness:
    """The device or the tile that shows a refusal of two shardings."""
    return _FIND[failure.kind](pair, failure)


def _offset_witness(pair: Pair, failure: Failure) -> Witness:
    """A device that the pair gives different offsets."""
    place = failure.dims[0]
    for device in _likely_first(pair, place):
        a, b = (offset_at(s, place, device) for s in pair)
        if a != b:
            return Witness(device, place, (a, b))
    raise AssertionError("a refused dimension lies alike on every device")


def _likely_first(pair: Pair, place: DimOrClass) -> Iterator[int]:
    """All devices, those at the strides of the digits first."""
    for s in pair:
        for digit in digits_at(s, place):
            if digit.stride < s.mesh.size:
                yield s.mesh.order[digit.stride]
    yield from pair[0].mesh.order


def _tile_witness(pair: Pair, failure: Failure) -> Witness:
    """The tile that too few devices hold: one that none holds, if there is one."""
    places = failure.dims
    tables = [rows_of(s) for s in owners(pair, failure)]
    shape = tuple(rows.parts[place] for rows, place in zip(tables, places, strict=True))
    held = np.stack([rows.ids[place] for rows, place in zip(tables, places, strict=True)], axis=1)
    size, total = len(held), math.prod(shape)
    tiles, counts = np.unique(held, axis=0, return_counts=True)
    if len(tiles) == total:
        least = int(counts.argmin())
        tile, count = tuple(tiles[least].tolist()), int(counts[least])
    else:
        tile, count = _missing(tiles, shape), 0
    return Witness(dims=places, tile=tile, count=count, expected=-(-size // total))


def _missing(tiles: np.ndarray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The first tile, in row-major order, that is not in a sorted list."""
    numbers = np.zeros(len(tiles), object)
    for column, n in zip(tiles.T, shape, strict=True):
        numbers = numbers * n + column.astype(object)
    gaps = np.flatnonzero(numbers != np.arange(len(numbers)))
    number = int(gaps[0]) if len(gaps) else len(numbers)
    found: list[int] = []
    for n in reversed(shape):
        number, digit = divmod(number, n)
        found.append(digit)
    return tuple(reversed(found))


def owners(pair: Pair, failure: Failure) -> tuple[Sharding, ...]:
    """Whose digits clash on each place: the first one's with the second one's, or the longest."""
    if failure.kind == "overlap":
        return pair
    return tuple(max(pair, key=lambda s: parts(digits_at(s, place))) for place in failure.dims)


def _contained_witness(pair: Pair, failure: Failure) -> Witness:
    """A device whose block of the first sharding leaves its block of the second one."""
    fine, coarse = pair
    for device in fine.mesh.order:
        dim = escape(fine, coarse, device)
        if dim is not None:
            offsets = (fine.shard_offset(device, dim), coarse.shard_offset(device, dim))
            return Witness(device, dim, offsets)
    raise AssertionError("a refused refinement holds on every device")


_FIND = {
    "offset": _offset_witness,
    "class": _offset_witness,
    "closed": _offset_witness,
    "overlap": _tile_witness,
    "joint": _tile_witness,
    "contained": _contained_witness,
}


@dataclass(frozen=True)
class Verdict:
    """The answer to a question about shardings; true or false as itself.

    Attributes:
      relation: "merge", "compatible", "equal" or "refines".
      operands: the shardings, in positions of the first one's mesh where digits can say that.
      merged: for a merge that exists, what makes it; `sharding` is the value to use.
      failure: what is wrong; None if nothing is.
      clash: of more than two operands that do not merge, the merge of the first ones and the one
        that it clashes with.
      policy: the partitioner whose merges are meant.
    """

    relation: str
    operands: tuple[Sharding, ...]
    policy: str = "gspmd"
    merged: Sharding | tuple[Digits, ...] | None = None
    failure: Failure | None = None
    clash: tuple[Sharding, Sharding] | None = None

    def __bool__(self) -> bool:
        return self.failure is None

    def _repr_html_(self) -> str:
        made = () if self.sharding is None else (f"Together: {self.sharding!r}.",)
        return card(f"{self.relation}: {self.reason}", *made, ok=self.ok)

    def draw(self) -> Figure:
        """The operands as planes in blocks, and of a merge what they make together.

        Raises:
          ShardingError: scalars, or more than two dimensions that some operand splits.

        >>> import shardalg as sa
        >>> mesh, texts = sa.Mesh({"X": 2, "Y": 4}), ("[X, None]", "[None, Y]")
        >>> both = sa.merge(*(sa.Sharding.parse(text, (64, 128), mesh) for text in texts))
        >>> [axes.get_title().split()[0] for axes in both.draw().axes]
        ['first', 'second', 'merged']
        """
        names = ("first", "second") if len(self.operands) == 2 else range(1, len(self.operands) + 1)
        shown = {str(name): each for name, each in zip(names, self.operands, strict=True)}
        if self.sharding is not None:
            shown["merged"] = self.sharding
        return Sharding._drawn(shown)

    @property
    def ok(self) -> bool:
        """Whether the relation holds."""
        return self.failure is None

    @property
    def pair(self) -> tuple[Sharding, Sharding]:
        """The two shardings that a refusal is about; the only two where two were given."""
        return self.clash or (self.operands[0], self.operands[-1])

    @cached_property
    def sharding(self) -> Sharding | None:
        """For a merge, the coarsest sharding that all operands agree with; None if refused."""
        if self.merged is None or isinstance(self.merged, Sharding):
            return self.merged
        return united(*self.pair, self.merged)

    @cached_property
    def witness(self) -> Witness | None:
        """A device or a tile that shows the refusal; None where the relation holds."""
        return None if self.failure is None else find(self.pair, self.failure)

    @cached_property
    def reason(self) -> str:
        """The answer in words, with the shardings and the witness."""
        return _reason(self)

    @property
    def evidence(self) -> str:
        """Of a refusal, the fault with its witness alone; `reason` says what to do, too."""
        return self.reason if self.ok else _fault(self)[0]

    @cached_property
    def condition(self) -> Condition | None:
        """For which sizes the relation holds; None if the answer is the same for all sizes.

        All sizes are those of at least 2. The answer depends on them where digits of different
        meshes meet, and where `refines` compares uneven blocks. On a symbolic mesh the condition
        is in the names of its axes, and the verdict is its value at the hints. The condition of
        `refines` is in the names of the axes also on a mesh whose sizes are numbers.

        >>> from shardalg.algebra.mesh import Mesh
        >>> from shardalg.merge.compatible import merge
        >>> one, other = (Mesh(m, symbolic=True) for m in ({"X": 2, "Y": 3}, {"Y": 3, "X": 2}))
        >>> y = Sharding.from_axes(["Y"], one, (12, 12))
        >>> merge(y, Sharding.from_axes([None, "X"], other, (12, 12))).condition
        gcd(X, Y) = 1
        >>> from shardalg.merge.compatible import refines
        >>> mesh = Mesh({"X": 2, "Y": 4})
        >>> both, x = (Sharding.from_axes([e], mesh, (24,)) for e in (("X", "Y"), "X"))
        >>> refines(both, x).condition
        ceil(24/(X)) = Y*ceil(24/(X*Y))
        """
        if self.failure is not None and self.failure.kind in ("closed", "class"):
            return None
        return condition_of(self.operands, self.relation, self.policy)

    def __repr__(self) -> str:
        answer = repr(self.sharding) if self.sharding is not None and self else self.reason
        return f"Verdict({'ok' if self else 'refused'}, {self.relation}: {answer})"


def _reason(verdict: Verdict) -> str:
    """The answer in words, with the shardings and the witness."""
    if verdict.failure is None:
        listed = " and ".join(s.text() for s in verdict.operands)
        return f"{listed} {_HOLDS[verdict.relation]}"
    return "".join(_fault(verdict))


def _fault(verdict: Verdict) -> tuple[str, str]:
    """What is wrong, with its witness, and the remedy."""
    witness, failure = verdict.witness, verdict.failure
    assert witness is not None and failure is not None
    first, second = verdict.pair
    place = f"of shape {first.shape} on {first.mesh!r}"
    if witness.tile:
        places = " and ".join(_place(dim) for dim in witness.dims)
        held = f"{witness.count} device{'' if witness.count == 1 else 's'}"
        return (
            f"{first.text()} and {second.text()} {place} split {places} by the same devices: "
            f"{held if witness.count else 'no device'} would hold tile {witness.tile} where "
            f"{witness.expected} should.",
            " Reshard one of them off what they share.",
        )
    lines = [
        f"  {s.text()}  {_fact_at(s, witness, value)}"
        for s, value in zip(verdict.pair, witness.offsets or (), strict=True)
    ]
    return (
        f"{_FAULT[failure.kind]} on {_place(witness.dim)} {place}:\n" + "\n".join(lines),
        "\nReshard one of them there.",
    )


def _fact_at(sharding: Sharding, witness: Witness, value: int) -> str:
    """What one operand gives the device of the witness: offset and end, or a class's id."""
    dim, device = witness.dim, witness.device
    if not isinstance(dim, int) or not sharding.shape[dim] or device is None:
        return f"partition_id({device}, {dim}) = {value}"
    end = value + sharding.valid_size(device, dim)
    text = f"shard_offset({witness.device}, {witness.dim}) = {value}"
    return f"{text}, up to {end}" if end > value else f"{text}, empty"


def _place(place: DimOrClass | None) -> str:
    return f"dimension {place}" if isinstance(place, int) else f"the {place} digits"


_ALIKE = "agree on the dimensions that both split, and split the others independently"
_HOLDS = {
    "merge": _ALIKE,
    "compatible": _ALIKE,
    "equal": "give every device the same offsets",
    "refines": "are nested: each block of the first lies in the device's block of the second",
}
_FAULT = {
    "offset": "the shardings place blocks differently",
    "class": "the shardings differ",
    "closed": "the merged sharding would split a dimension that one of them holds closed,",
    "contained": "a block of the first sharding leaves the device's block of the second",
}
