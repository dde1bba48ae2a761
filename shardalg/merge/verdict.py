"""Verdicts on shardings: the answer, and for a refusal its reason and its witness.

A witness is a device or a tile that shows a refusal. It is found by evaluating both shardings.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardalg.algebra.digits import Digits, parts
from shardalg.algebra.sharding import Sharding
from shardalg.merge.condition import Condition, condition_of
from shardalg.merge.merged import merged_sharding, rows_of
from shardalg.merge.places import DimOrClass, digits_at, escape, offset_at
from shardalg.merge.tiles import verdict_grids
from shardalg.svg import Grid, draw_grids, drawing_card
from shardalg.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pair = tuple[Sharding, Sharding]


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why two shardings do not have the relation that was asked about.

    Attributes:
      kind: "offset": a device's blocks begin at different offsets in one dimension;
        "overlap": the merge would split two dimensions by the same digit of the device position;
        "joint": some tiles of several dimensions together would be on more devices than others;
        "closed": the merge would split a dimension whose sharding is closed (may not be refined);
        "class": the unreduced digits, or the manual digits, of the two shardings differ;
        "contained": a block of the first sharding is not inside the device's block of the second.
      dims: the dimensions at which the relation fails. For "class" it is the name of the class of
        digits.
    """

    kind: str
    dims: tuple[DimOrClass, ...]


@dataclass(frozen=True, slots=True)
class Witness:
    """A concrete case that shows a refusal.

    Attributes:
      device, dim: a device and a dimension on which the two shardings differ.
      offsets: the offsets of the two shardings there.
      dims, tile: a tile of these dimensions that is on the wrong number of devices.
      count, expected: this number, and the right one.
    """

    device: int | None = None
    dim: DimOrClass | None = None
    offsets: tuple[int, int] | None = None
    dims: tuple[DimOrClass, ...] = ()
    tile: tuple[int, ...] = ()
    count: int | None = None
    expected: int | None = None


def find(pair: Pair, failure: Failure) -> Witness:
    """Return the device or the tile that shows a refusal of two shardings."""
    return _FIND[failure.kind](pair, failure)


def _offset_witness(pair: Pair, failure: Failure) -> Witness:
    """Return a device at which the blocks of two shardings have different offsets, as a witness.

    The offsets are those along the first dimension in `failure.dims`, along which the shardings do
    not merge.
    """
    dim = failure.dims[0]
    # Digits differ first at the positions that are their strides, so try these devices first.
    digits_on_mesh = [(s.mesh, digit) for s in pair for digit in digits_at(s, dim)]
    likely_devices = [
        mesh.order[digit.stride] for mesh, digit in digits_on_mesh if digit.stride < mesh.size
    ]
    for device in itertools.chain(likely_devices, pair[0].mesh.order):
        a, b = (offset_at(s, dim, device) for s in pair)
        if a != b:
            return Witness(device, dim, (a, b))
    raise AssertionError("a refused dimension has equal offsets on every device")


def _tile_witness(pair: Pair, failure: Failure) -> Witness:
    """Return the tile that is on the fewest devices, as a witness that two shardings do not merge.

    A tile is a block of each dimension in `failure.dims`. If some tile is on no device, it is the
    witness. Otherwise all tiles are on a device, but not on equally many.
    """
    places = failure.dims
    id_tables = [rows_of(s) for s in owners(pair, failure)]
    shape = tuple(rows.parts[place] for rows, place in zip(id_tables, places, strict=True))
    tile_of_device = np.stack(
        [rows.ids[place] for rows, place in zip(id_tables, places, strict=True)], axis=1
    )
    size, num_tiles = len(tile_of_device), math.prod(shape)
    tiles, counts = np.unique(tile_of_device, axis=0, return_counts=True)
    # A tile on no device is the simplest witness; otherwise take the one on the fewest devices.
    # `unique` lists only tiles that are on a device, so a smaller number means that one is missing.
    if len(tiles) == num_tiles:
        index = int(counts.argmin())
        tile, count = tuple(tiles[index].tolist()), int(counts[index])
    else:
        tile, count = _missing(tiles, shape), 0
    return Witness(dims=places, tile=tile, count=count, expected=-(-size // num_tiles))


def _missing(tiles: np.ndarray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first tile, in row-major order, that is not among the sorted `tiles`."""
    # Numbers of tiles can be larger than 64 bits, so use Python's integers.
    numbers = np.zeros(len(tiles), object)
    for column, n in zip(tiles.T, shape, strict=True):
        numbers = numbers * n + column.astype(object)
    # Sorted numbers without a gap are 0, 1, 2, ...: the first place whose number differs is itself
    # the missing number.
    gaps = np.flatnonzero(numbers != np.arange(len(numbers)))
    number = int(gaps[0]) if len(gaps) else len(numbers)
    tile: list[int] = []
    for n in reversed(shape):
        number, digit = divmod(number, n)
        tile.append(digit)
    return tuple(reversed(tile))


def owners(pair: Pair, failure: Failure) -> tuple[Sharding, ...]:
    """Return, for each dimension or class of a failure, the sharding whose digits are at fault."""
    if failure.kind == "overlap":
        return pair
    # Jointly unbalanced places: the merge has the digits of the operand with more partitions.
    return tuple(max(pair, key=lambda s: parts(digits_at(s, place))) for place in failure.dims)


def _contained_witness(pair: Pair, failure: Failure) -> Witness:
    """Return a device whose block of the first sharding is not inside its block of the second."""
    # The closed form decides without a device, so a device is searched here.
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
    """The answer to a question about shardings; in a condition it is true or false.

    Attributes:
      relation: "merge", "compatible", "equal" or "refines".
      operands: the shardings, on the mesh of the first one if its digits can express them.
      policy: the partitioner whose rule for merges is used, "gspmd" or "shardy".
      merged: for a merge that exists, its digits or the sharding; use `sharding`.
      failure: the reason of a refusal; None if the relation holds.
      clash: if more than two operands do not merge, the merge of the first ones and the operand
        with which it does not merge.
    """

    relation: str
    operands: tuple[Sharding, ...]
    policy: str = "gspmd"
    merged: Sharding | tuple[Digits, ...] | None = None
    failure: Failure | None = None
    clash: tuple[Sharding, Sharding] | None = None

    def __bool__(self) -> bool:
        return self.failure is None

    def __str__(self) -> str:
        """Return the answer, and the blocks of the operands; `!` marks a tile of a refusal.

        >>> import shardalg as sa
        >>> texts, mesh = ("[X]", "[Y]"), sa.Mesh({"X": 2, "Y": 2})
        >>> print(sa.merge(*(sa.Sharding.parse(text, (4,), mesh) for text in texts)))
        merge: the shardings place blocks differently on dimension 0 ...
        first [X]
         0:2    2:4
        ┌──────┬──────┐
        │ 0, 1 │!2, 3!│
        └──────┴──────┘
        <BLANKLINE>
        second [Y]
         0:2    2:4
        ┌──────┬──────┐
        │!0, 2!│ 1, 3 │
        └──────┴──────┘
        """
        grids = "\n\n".join(grid.to_text() for grid in self._grids)
        return f"{self.relation}: {self.reason}\n{grids}"

    @property
    def _grids(self) -> tuple[Grid, ...]:
        """Grids of the operands, and of the merge."""
        return verdict_grids(self, owners(self.pair, self.failure) if self.failure else ())

    def _repr_html_(self) -> str:
        """Return a drawing for notebooks: the operands, with the tiles of a refusal in red."""
        merge_note = f"Together: {self.sharding!r}." if self.sharding is not None else ""
        names = ("relation", "operand", "sharding")
        rows = tuple((self.relation, n, f"{s!r}") for n, s in enumerate(self.operands, 1))
        title = f"{self.relation}: {self.reason}"
        canvas = draw_grids(self._grids)
        return drawing_card(title, canvas, Table(names, rows), ok=self.ok, note=merge_note)

    def draw(self) -> Figure:
        """Draw the operands as planes that are divided into blocks, and the merge if there is one.

        Raises:
          ShardingError: the operands are scalars, or split more than two dimensions.

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
        """True if the relation holds."""
        return self.failure is None

    @property
    def pair(self) -> tuple[Sharding, Sharding]:
        """The two shardings that a refusal is about."""
        return self.clash or (self.operands[0], self.operands[-1])

    @cached_property
    def sharding(self) -> Sharding | None:
        """The coarsest sharding that agrees with all operands; None without a merge."""
        if self.merged is None or isinstance(self.merged, Sharding):
            return self.merged
        return merged_sharding(*self.pair, self.merged)

    @cached_property
    def witness(self) -> Witness | None:
        """A device or a tile that shows the refusal; None if the relation holds."""
        return None if self.failure is None else find(self.pair, self.failure)

    @cached_property
    def reason(self) -> str:
        """The answer in words, with the shardings, the witness and the remedy."""
        if self.failure is None:
            listed = " and ".join(s.text() for s in self.operands)
            return f"{listed} {_HOLDS[self.relation]}"
        return "".join(_fault(self))

    @property
    def evidence(self) -> str:
        """The fault of a refusal with its witness, without the remedy that `reason` adds."""
        return self.reason if self.ok else _fault(self)[0]

    @cached_property
    def condition(self) -> Condition | None:
        """The sizes at which the relation holds; None if the answer is the same for all sizes.

        Sizes are at least 2. The answer depends on them if digits of different meshes are compared,
        or if `refines` compares uneven blocks. On a symbolic mesh the condition uses the names of
        its axes, and the verdict is its value at the hints. The condition of `refines` uses the
        names of the axes even if the sizes of the mesh are numbers.

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
        # Closed dimensions and classes are compared without sizes.
        if self.failure is not None and self.failure.kind in ("closed", "class"):
            return None
        return condition_of(self.operands, self.relation, self.policy)

    def __repr__(self) -> str:
        answer = repr(self.sharding) if self.sharding is not None and self else self.reason
        return f"Verdict({'ok' if self else 'refused'}, {self.relation}: {answer})"


def _fault(verdict: Verdict) -> tuple[str, str]:
    """Return the fault of a refusal with its witness, and the remedy, as two texts."""
    witness, failure = verdict.witness, verdict.failure
    assert witness is not None and failure is not None
    first, second = verdict.pair
    context = f"of shape {first.shape} on {first.mesh!r}"
    # A witness is a tile if several dimensions are split by the same digits. It is a device if the
    # offsets on a single dimension differ. The two need different remedies.
    if witness.tile:
        places = " and ".join(_place(dim) for dim in witness.dims)
        count, expected = (
            f"{n or 'no'} device{'' if n in (0, 1) else 's'}"
            for n in (witness.count, witness.expected)
        )
        return (
            f"{first.text()} and {second.text()} {context} split {places} by the same devices: "
            f"tile {witness.tile} should be on {expected}, but {count} would hold it.",
            " Use a different mesh axis in one of them.",
        )
    lines = [
        f"  {s.text()}  {_fact_at(s, witness, value)}"
        for s, value in zip(verdict.pair, witness.offsets or (), strict=True)
    ]
    return (
        f"{_FAULT[failure.kind]} on {_place(witness.dim)} {context}:\n" + "\n".join(lines),
        f"\nReshard one of them so that both agree on {_place(witness.dim)}.",
    )


def _fact_at(sharding: Sharding, witness: Witness, value: int) -> str:
    """Return text with the offset and the end of a block, on the device of the witness.

    For a class of axes, such as "unreduced", the text has the partition id.

    Args:
      value: the block's offset, or the partition id.
    """
    # Classes, and dimensions of size 0, have partition ids but no offsets.
    dim, device = witness.dim, witness.device
    if not isinstance(dim, int) or not sharding.shape[dim] or device is None:
        return f"partition_id({device}, {dim}) = {value}"
    end = value + sharding.valid_size(device, dim)
    text = f"shard_offset({witness.device}, {witness.dim}) = {value}"
    return f"{text}, up to {end}" if end > value else f"{text}, empty"


def _place(place: DimOrClass | None) -> str:
    """Return the words for a dimension or a class."""
    return f"dimension {place}" if isinstance(place, int) else f"the {place} digits"


_COMPATIBLE = "agree on the dimensions that both split, and split the others independently"
_HOLDS = {
    "merge": _COMPATIBLE,
    "compatible": _COMPATIBLE,
    "equal": "give every device the same offsets",
    "refines": "are nested: each block of the first is inside the device's block of the second",
}
_FAULT = {
    "offset": "the shardings place blocks differently",
    "class": "the shardings differ",
    "closed": "the merged sharding would split a dimension that is closed in one of them,",
    "contained": "a block of the first sharding leaves the device's block of the second",
}
